//! How the caller wants its answer: as JSON or as an event stream, at once or when the turn has ended.

use std::time::Duration;

use axum::extract::{FromRequestParts, MatchedPath, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::chat::COMPLETIONS;
use super::error::{ApiError, ErrorCode};

/// The longest that a caller can have an answer held back, in seconds.
pub const WAIT_MAX_SECONDS: u64 = 300;
const PREFER: HeaderName = HeaderName::from_static("prefer");
/// The header that says which wish was granted.
pub const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One JSON document.
    Json,
    /// Server-sent events.
    EventStream,
}

/// The form that the Accept header likes best of those that a route has; `None` when it likes none of them.
fn negotiate(headers: &HeaderMap, streams: bool) -> Option<Format> {
    let mut values = headers.get_all(header::ACCEPT).iter().peekable();
    if values.peek().is_none() {
        return Some(Format::Json);
    }
    let mut best: Option<(u16, Format)> = None;
    for range in values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')) {
        let (name, quality) = media_range(range);
        let format = match name.as_str() {
            "text/event-stream" if streams => Format::EventStream,
            "*/*" | "application/*" | "application/json" | "application/problem+json" => Format::Json,
            _ => continue,
        };
        // Of equals the first stands.
        if quality > 0 && best.is_none_or(|(other, _)| quality > other) {
            best = Some((quality, format));
        }
    }
    best.map(|(_, format)| format)
}

/// A media range in lower case and its quality in thousandths.
fn media_range(range: &str) -> (String, u16) {
    let mut parts = range.split(';').map(str::trim);
    let name = parts.next().unwrap_or_default().to_ascii_lowercase();
    let quality = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
    let quality = quality.map_or(1.0, |text| text.parse::<f32>().unwrap_or(0.0));
    (name, (quality.clamp(0.0, 1.0) * 1000.0) as u16)
}

/// Whether a route can answer with an event stream.
fn streams(method: &Method, route: &str) -> bool {
    let tail = route.rsplit('/').next();
    (method == Method::GET && tail == Some("events"))
        || (method == Method::POST
            && (matches!(route, "/v1/sessions" | COMPLETIONS) || tail == Some("prompts")))
}

/// The layer: decides the form once, before any handler, so that none can forget to.
pub async fn layer(mut request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str).unwrap_or_default();
    let streams = streams(request.method(), route);
    let Some(format) = negotiate(request.headers(), streams) else {
        let words = if streams {
            "the answer is application/json or text/event-stream"
        } else {
            "the answer is application/json"
        };
        return ApiError::new(ErrorCode::NotAcceptable, words).into_response();
    };
    request.extensions_mut().insert(format);
    next.run(request).await
}

impl<S: Sync> FromRequestParts<S> for Format {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(parts.extensions.get().copied().unwrap_or(Self::Json))
    }
}

/// How long the answer may be held back, from `Prefer: wait=N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait(pub Option<u64>);

impl Wait {
    /// Brought into bounds. A preference that cannot be read is none: that is what RFC 7240 says of preferences.
    fn of(headers: &HeaderMap) -> Self {
        let preferences = headers.get_all(PREFER).iter().filter_map(|value| value.to_str().ok());
        let seconds = preferences.flat_map(|value| value.split(',')).find_map(|preference| {
            let (name, value) = preference.split(';').next()?.split_once('=')?;
            let value = value.trim().trim_matches('"');
            let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
            (name.trim().eq_ignore_ascii_case("wait") && digits).then(|| value.parse().unwrap_or(u64::MAX))
        });
        Self(seconds.map(|seconds| seconds.min(WAIT_MAX_SECONDS)))
    }

    /// As a duration.
    pub fn duration(self) -> Option<Duration> {
        self.0.map(Duration::from_secs)
    }

    /// The value of [`PREFERENCE_APPLIED`].
    pub fn applied(self) -> Option<HeaderValue> {
        self.0.and_then(|seconds| HeaderValue::from_str(&format!("wait={seconds}")).ok())
    }
}

impl<S: Sync> FromRequestParts<S> for Wait {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Self::of(&parts.headers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: HeaderName, values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(&name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn a_wait_is_read_and_bounded_and_nonsense_is_no_wish() {
        for (values, expected) in [
            (&["wait=30"][..], Some(30)),
            (&["Wait = 30"], Some(30)),
            (&["wait=\"30\""], Some(30)),
            (&["respond-async, wait=5; x=y"], Some(5)),
            (&["respond-async", "wait=5"], Some(5)),
            (&["wait=0"], Some(0)),
            (&["wait=301"], Some(300)),
            (&["wait=99999999999999999999999"], Some(300)),
            (&["wait=-1"], None),
            (&["wait=soon"], None),
            (&["wait"], None),
            (&["waiting=3"], None),
            (&[], None),
        ] {
            assert_eq!(Wait::of(&with(PREFER, values)).0, expected, "{values:?}");
        }
    }

    #[test]
    fn the_form_is_the_one_that_is_liked_best_of_those_there_are() {
        use Format::{EventStream, Json};
        for (accept, stream_route, json_route) in [
            (&[][..], Some(Json), Some(Json)),
            (&["*/*"], Some(Json), Some(Json)),
            (&["application/*"], Some(Json), Some(Json)),
            (&["application/problem+json"], Some(Json), Some(Json)),
            (&["text/html, */*;q=0.8"], Some(Json), Some(Json)),
            (&["text/event-stream"], Some(EventStream), None),
            (&["TEXT/Event-Stream; charset=utf-8"], Some(EventStream), None),
            (&["application/json, text/event-stream"], Some(Json), Some(Json)),
            (&["application/json;q=0.5, text/event-stream"], Some(EventStream), Some(Json)),
            (&["text/event-stream", "*/*;q=0.1"], Some(EventStream), Some(Json)),
            (&["text/html"], None, None),
            (&["application/json;q=0"], None, None),
            (&[""], None, None),
        ] {
            let headers = with(header::ACCEPT, accept);
            assert_eq!(negotiate(&headers, true), stream_route, "{accept:?}");
            assert_eq!(negotiate(&headers, false), json_route, "{accept:?}");
        }
    }

    #[test]
    fn four_kinds_of_route_stream() {
        assert!(streams(&Method::GET, "/v1/sessions/{session_id}/events"));
        assert!(streams(&Method::POST, "/v1/runs/{run_id}/prompts"));
        assert!(streams(&Method::POST, "/v1/sessions"));
        assert!(streams(&Method::POST, COMPLETIONS));
        assert!(!streams(&Method::GET, "/v1/sessions"));
        assert!(!streams(&Method::POST, "/v1/sessions/{session_id}/events/tickets"));
    }
}
