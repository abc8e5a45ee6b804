//! A POST that is sent again with its Idempotency-Key has its effect once and gets the first answer again.
//!
//! What a POST does is a [`Verb`] in three steps: the effect, the same from the rows of an effect that was had before, and the
//! rest: wait, stream, render. Keyed requests run in a task of their own, so that the answer is complete and kept also when the
//! client goes away.

use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use axum::extract::{FromRequestParts, OriginalUri};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};
use tracing::Instrument;

use super::error::{ApiError, ApiResult, set_problem_headers};
use super::extract::bad_parameter;
use super::prefer::{Format, PREFERENCE_APPLIED};
use super::request_id::{RequestId, is_visible_ascii};
use super::sse::{self, Feed};
use crate::domain::approval::hex;
use crate::domain::scope::Principal;
use crate::service::{Begun, OnceAnswer, OnceGuard, OnceKey, OnceRequest, RenderAnswer, Seen, Service};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
/// Longest key.
const KEY_MAX_CHARS: usize = 255;

/// A complete answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// JSON.
    pub body: String,
    /// The wish for waiting that was granted.
    pub applied: Option<HeaderValue>,
}

impl Answer {
    /// An answer of that status.
    pub fn new(status: StatusCode, body: String) -> Self {
        Self { status, body, applied: None }
    }
}

/// What a verb comes to.
pub enum Outcome {
    /// An answer.
    Answer(Answer),
    /// What was waited for went wrong: an answer as well, and given again.
    Refusal(ApiError),
    /// A turn as it happens.
    Stream(Box<Feed>),
}

/// What a POST does.
#[async_trait]
pub trait Verb: Send + Sync + 'static {
    /// What is known when the effect is had.
    type Done: Send;

    /// Renders the answer before the effect is committed, where it is known that early.
    fn render(&self) -> Option<RenderAnswer> {
        None
    }

    /// The Location of what the request made.
    fn location(&self, _session: &str) -> Option<String> {
        None
    }

    /// The form that the caller wants.
    fn format(&self) -> Format {
        Format::Json
    }

    /// Has the effect.
    async fn effect(&mut self, once: Option<OnceRequest>) -> ApiResult<Self::Done>;

    /// The same from the rows of an effect that was had before.
    async fn rebuild(&self, seen: &Seen) -> ApiResult<Self::Done>;

    /// The rest of the way to the answer, and the id of the session that it is about.
    async fn finish(&self, done: Self::Done) -> ApiResult<(String, Outcome)>;
}

/// The part of a request that makes it the same request when it is sent again.
#[derive(Clone, Debug)]
pub struct Repeatable {
    key: Option<String>,
    method: Method,
    path: String,
    request_id: RequestId,
}

impl<S: Send + Sync> FromRequestParts<S> for Repeatable {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> ApiResult<Self> {
        let request_id = RequestId::from_request_parts(parts, state).await?;
        // Inside a nested router the plain URI has lost the beginning of its path.
        let path = match parts.extensions.get::<OriginalUri>() {
            Some(OriginalUri(uri)) => uri.path().to_owned(),
            None => parts.uri.path().to_owned(),
        };
        Ok(Self { key: key_of(parts)?, method: parts.method.clone(), path, request_id })
    }
}

fn key_of(parts: &Parts) -> ApiResult<Option<String>> {
    let mut values = parts.headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let key =
        value.to_str().ok().filter(|key| is_visible_ascii(key, KEY_MAX_CHARS) && values.next().is_none());
    let words = "must stand once and be 1 to 255 characters of visible ASCII";
    key.map(|key| Some(key.to_owned())).ok_or_else(|| bad_parameter("idempotency-key", words))
}

/// What makes two requests the same: method, path and body. How the answer is wanted does not.
fn fingerprint(method: &Method, path: &str, body: &[u8]) -> String {
    let mut digest = Sha256::new();
    // A zero byte is in neither a method nor a path, so that the parts cannot run into each other.
    for part in [method.as_str().as_bytes(), b"\0", path.as_bytes(), b"\0", body] {
        digest.update(part);
    }
    hex(&digest.finalize())
}

impl Repeatable {
    /// As the request would be without its key: for one that has no effect.
    pub fn without_key(self) -> Self {
        Self { key: None, ..self }
    }

    fn once_key(&self, principal: &Principal, body: &[u8]) -> Option<OnceKey> {
        self.key.as_ref().map(|key| OnceKey {
            org: principal.org.clone(),
            space: principal.idempotency_space(),
            key: key.clone(),
            fingerprint: fingerprint(&self.method, &self.path, body),
        })
    }

    /// Carries a verb out, once.
    ///
    /// # Errors
    /// What the verb says; `idempotency_in_progress`, `idempotency_key_reused`.
    pub async fn run<V: Verb>(
        self,
        service: &Arc<Service>,
        principal: &Principal,
        body: &[u8],
        mut verb: V,
    ) -> ApiResult<Response> {
        let once_key = self.once_key(principal, body);
        let run =
            Run { service: Arc::clone(service), principal: principal.clone(), request_id: self.request_id };
        let Some(once_key) = once_key else {
            let done = verb.effect(None).await?;
            return run.respond(&verb, verb.finish(done).await?, false);
        };
        match service.begin_once(once_key).await? {
            Begun::Fresh(guard) => detached(run.fresh(guard, verb)).await,
            Begun::Seen(guard, seen) => detached(run.seen(guard, seen, verb)).await,
        }
    }
}

/// Runs work to its end whether or not anybody still waits for it.
async fn detached<T: Send + 'static>(
    work: impl Future<Output = ApiResult<T>> + Send + 'static,
) -> ApiResult<T> {
    match tokio::spawn(work.in_current_span()).await {
        Ok(result) => result,
        Err(panicked) => Err(ApiError::internal(panicked.to_string())),
    }
}

struct Run {
    service: Arc<Service>,
    principal: Principal,
    request_id: RequestId,
}

impl Run {
    async fn fresh<V: Verb>(self, guard: OnceGuard, mut verb: V) -> ApiResult<Response> {
        let render = verb.render();
        let done = verb.effect(Some(guard.request(render))).await?;
        let finished = verb.finish(done).await?;
        if render.is_none() {
            self.keep(&guard, &finished.1).await;
        }
        self.respond(&verb, finished, false)
    }

    async fn seen<V: Verb>(self, guard: OnceGuard, seen: Seen, verb: V) -> ApiResult<Response> {
        let streams = verb.format() == Format::EventStream && seen.turn.is_some();
        if let Some(answer) = seen.answer.as_ref().filter(|_| !streams) {
            return Ok(replay(answer, verb.location(&seen.session)));
        }
        let done = verb.rebuild(&seen).await?;
        let finished = verb.finish(done).await?;
        self.keep(&guard, &finished.1).await;
        self.respond(&verb, finished, true)
    }

    /// Keeps the answer. When that fails the effect still stands, and a repeat is answered from the rows.
    async fn keep(&self, guard: &OnceGuard, outcome: &Outcome) {
        let answer = match outcome {
            Outcome::Answer(answer) => {
                OnceAnswer { status: answer.status.as_u16(), body: answer.body.clone() }
            }
            Outcome::Refusal(error) => OnceAnswer {
                status: error.code().status().as_u16(),
                body: error.document(&self.request_id.0),
            },
            Outcome::Stream(_) => return,
        };
        if let Err(error) = self.service.finish_once(guard, answer).await {
            tracing::warn!(%error, "the answer to an idempotency key was not kept");
        }
    }

    fn respond<V: Verb>(
        &self,
        verb: &V,
        (session, outcome): (String, Outcome),
        replayed: bool,
    ) -> ApiResult<Response> {
        let mut response = match outcome {
            Outcome::Answer(answer) => {
                let mut response = json_answer(answer.status, answer.body, verb.location(&session));
                if let Some(applied) = answer.applied {
                    response.headers_mut().insert(PREFERENCE_APPLIED, applied);
                }
                response
            }
            Outcome::Refusal(error) => error.into_response(),
            Outcome::Stream(feed) => {
                let mut response = sse::answer(&self.service, *feed, self.principal.key.clone());
                set_location(&mut response, verb.location(&session));
                response
            }
        };
        if replayed {
            response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
        }
        Ok(response)
    }
}

fn json_answer(status: StatusCode, body: String, location: Option<String>) -> Response {
    let mut response = super::views::json_body(body);
    *response.status_mut() = status;
    set_location(&mut response, location);
    response
}

fn set_location(response: &mut Response, location: Option<String>) {
    if let Some(location) = location.and_then(|location| HeaderValue::from_str(&location).ok()) {
        response.headers_mut().insert(header::LOCATION, location);
    }
}

/// The first answer, byte for byte.
fn replay(answer: &OnceAnswer, location: Option<String>) -> Response {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::OK);
    let refused = status.is_client_error() || status.is_server_error();
    let mut response = json_answer(status, answer.body.clone(), location.filter(|_| !refused));
    if refused {
        set_problem_headers(status, status == StatusCode::SERVICE_UNAVAILABLE, response.headers_mut());
    }
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_tells_method_path_and_body_apart() {
        let of = |method: &Method, path: &str, body: &str| fingerprint(method, path, body.as_bytes());
        let first = of(&Method::POST, "/v1/sessions", "{}");
        assert_eq!(first.len(), 64);
        assert_eq!(first, of(&Method::POST, "/v1/sessions", "{}"));
        for other in [
            of(&Method::PUT, "/v1/sessions", "{}"),
            of(&Method::POST, "/v1/session", "s{}"),
            of(&Method::POST, "/v1/sessions", "{} "),
            of(&Method::POST, "/v1/sessions{}", ""),
        ] {
            assert_ne!(first, other);
        }
    }

    #[test]
    fn a_key_is_visible_ascii_of_a_bounded_length() {
        let of = |keys: &[&str]| {
            let mut parts = axum::http::Request::new(()).into_parts().0;
            for key in keys {
                parts.headers.append(IDEMPOTENCY_KEY, HeaderValue::from_bytes(key.as_bytes()).unwrap());
            }
            key_of(&parts).map_err(|error| error.code().as_str())
        };
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&["a-1"]), Ok(Some("a-1".into())));
        assert!(of(&[&"k".repeat(255)]).is_ok());
        for wrong in [&[""][..], &["a b"], &["é"], &["a", "a"], &[&"k".repeat(256)]] {
            assert_eq!(of(wrong), Err("invalid_query"), "{wrong:?}");
        }
    }
}
