//! One call of a model, over as many attempts as it takes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use reqwest::Response;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, DATE, HeaderName, RETRY_AFTER};
use secrecy::ExposeSecret;

use super::super::http::root_cause;
use super::assemble::{Answer, Wrong};
use super::refusal::Refusal;
use super::stream::{self, Events, Fault};
use super::wire::{self, Chunk, Customs};
use super::{Access, Inner, ModelError, ModelErrorCode, ModelRequest, Piece, retry};
use crate::clock::Clock;

/// The largest answer that is not streamed, in bytes.
const WHOLE_MAX: usize = 16 << 20;
/// How much of a refusal is read, in bytes.
const REFUSAL_MAX: usize = 64 << 10;
/// How long a refusal's words are waited for.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(10);
/// How much of it is shown, in characters.
const SHOWN: usize = 300;
/// A shorter part of an address is no secret, in bytes.
const SECRET_MIN: usize = 8;

/// A call under way. Dropping it closes its connection.
pub(in crate::harness::agent) struct ModelCall {
    model: Arc<Inner>,
    body: Bytes,
    /// Attempts that have begun.
    tried: u32,
    /// What has come and was not given out yet.
    pieces: VecDeque<Piece>,
    state: State,
}

enum State {
    /// It is sent after this time.
    Waits(Duration),
    /// The answer is coming.
    Reads { events: Events, answer: Box<Answer> },
    /// It cannot be made.
    Failed(ModelError),
    /// Nothing more follows.
    Over,
}

/// An attempt that failed.
struct Trouble {
    error: ModelError,
    /// Whether another one may succeed.
    passes: bool,
    /// How long the provider wants it to wait.
    asked: Option<Duration>,
}

impl ModelCall {
    pub(super) fn new(model: Arc<Inner>, request: &ModelRequest<'_>) -> Self {
        let customs =
            Customs { model: &model.model, stream: model.streams, max_tokens: model.max_output_tokens };
        let (body, state) = match (wire::body(&customs, request), &model.access) {
            (Ok(body), Ok(_)) => (body, State::Waits(Duration::ZERO)),
            (Ok(_), Err(why)) => (Bytes::new(), State::Failed(model.unusable(why))),
            (Err(error), _) => {
                let words = format!("the request cannot be written: {error}");
                (Bytes::new(), State::Failed(model.error(ModelErrorCode::Rejected, &words)))
            }
        };
        Self { model, body, tried: 0, pieces: VecDeque::new(), state }
    }

    /// What comes next; `None` after [`Piece::Done`] and after an error.
    ///
    /// # Errors
    /// When the call has failed, after all its attempts.
    pub(in crate::harness::agent) async fn next(&mut self) -> Result<Option<Piece>, ModelError> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                return Ok(Some(piece));
            }
            let (trouble, has_words) = match std::mem::replace(&mut self.state, State::Over) {
                State::Over => return Ok(None),
                State::Failed(error) => return Err(error),
                State::Waits(time) => {
                    if !time.is_zero() {
                        tokio::time::sleep(time).await;
                    }
                    self.tried += 1;
                    (self.send().await.err(), false)
                }
                State::Reads { mut events, mut answer } => {
                    let read = self.read(&mut events, &mut answer).await;
                    let has_words = answer.has_words();
                    match read {
                        Ok(true) => {
                            self.state = State::Reads { events, answer };
                            (None, has_words)
                        }
                        Ok(false) => (self.finish(*answer).err(), has_words),
                        Err(trouble) => (Some(trouble), has_words),
                    }
                }
            };
            if let Some(trouble) = trouble {
                // What came whole and is wrong is not given out.
                self.pieces.clear();
                self.state = State::Waits(self.again(trouble)?);
                if has_words {
                    return Ok(Some(Piece::Restarted));
                }
            }
        }
    }

    /// How long to wait before the next attempt.
    fn again(&self, trouble: Trouble) -> Result<Duration, ModelError> {
        // Without randomness there is no jitter, and no harm.
        let chance = getrandom::u32().map_or(0.5, |random| f64::from(random) / f64::from(u32::MAX));
        let wait = retry::wait(self.tried, self.model.attempts, trouble.asked, chance);
        let wait = wait.filter(|_| trouble.passes).ok_or(trouble.error)?;
        tracing::debug!(model = self.model.name, tried = self.tried, ?wait, "a model is asked again");
        Ok(wait)
    }

    /// Sends the request and takes the answer's beginning, or the whole of one that is not streamed.
    async fn send(&mut self) -> Result<(), Trouble> {
        let model = Arc::clone(&self.model);
        let access = match &model.access {
            Ok(access) => access,
            Err(why) => return Err(Trouble::last(model.unusable(why))),
        };
        let mut response = model.open(access, self.body.clone()).await?;
        let status = response.status();
        if !status.is_success() {
            return Err(model.refused(status.as_u16(), &mut response).await);
        }
        let kind = header(&response, &CONTENT_TYPE).unwrap_or_default();
        // Some answer as a whole although they are asked to stream.
        let streams = match kind.split(';').next().unwrap_or_default().trim() {
            "text/event-stream" => true,
            "application/json" => false,
            _ => self.model.streams,
        };
        let silence = self.model.silence;
        let mut answer = Box::<Answer>::default();
        if streams {
            self.state = State::Reads { events: Events::of(response, silence), answer };
            return Ok(());
        }
        let whole = stream::whole(&mut response, silence, WHOLE_MAX).await;
        let whole = whole.map_err(|fault| self.model.faulty(fault))?;
        self.take(&whole, &mut answer)?;
        self.finish(*answer)
    }

    /// Reads the next event; `false` when the answer is at its end.
    async fn read(&mut self, events: &mut Events, answer: &mut Answer) -> Result<bool, Trouble> {
        match events.next().await {
            Ok(Some(data)) if data.trim() == "[DONE]" => Ok(false),
            Ok(Some(data)) => self.take(data.as_bytes(), answer).map(|()| true),
            // What is missing is not of the answer any more.
            Ok(None) | Err(Fault::Lost(_) | Fault::Silent(_)) if answer.is_finished() => Ok(false),
            Ok(None) => Err(self.model.faulty(Fault::Lost("the answer has no end".to_owned()))),
            Err(fault) => Err(self.model.faulty(fault)),
        }
    }

    /// Takes a part of an answer.
    fn take(&mut self, json: &[u8], answer: &mut Answer) -> Result<(), Trouble> {
        let chunk: Chunk = serde_json::from_slice(json)
            .map_err(|error| self.model.wrong(&format!("is not a chat completion: {error}")))?;
        if let Some(error) = chunk.error.as_ref().filter(|error| !error.is_null()) {
            let refusal = Refusal::of(error);
            return Err(self.model.refusal(&refusal, refusal.status(), None, "gave up"));
        }
        let pieces = answer.take(chunk).map_err(|Wrong(why)| self.model.wrong(why))?;
        self.pieces.extend(pieces);
        Ok(())
    }

    fn finish(&mut self, answer: Answer) -> Result<(), Trouble> {
        let reply = answer.into_reply().map_err(|Wrong(why)| self.model.wrong(why))?;
        self.pieces.push_back(Piece::Done(reply));
        self.state = State::Over;
        Ok(())
    }
}

impl Trouble {
    fn last(error: ModelError) -> Self {
        Self { error, passes: false, asked: None }
    }
}

impl Inner {
    async fn open(&self, access: &Access, body: Bytes) -> Result<Response, Trouble> {
        let mut request = access.http.post(self.url.clone()).header(CONTENT_TYPE, "application/json");
        if let Some(authorization) = &access.authorization {
            request = request.header(AUTHORIZATION, authorization.clone());
        }
        let sent = request.body(body).send();
        match tokio::time::timeout(self.silence, sent).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => {
                let words = format!("cannot be reached: {}", root_cause(&error));
                let error = self.error(ModelErrorCode::Unavailable, &words);
                Err(Trouble { error, passes: true, asked: None })
            }
            Err(_) => Err(self.faulty(Fault::Silent(self.silence))),
        }
    }

    async fn refused(&self, status: u16, response: &mut Response) -> Trouble {
        let asked = header(response, &RETRY_AFTER).and_then(|asked| {
            let date = header(response, &DATE).as_deref().and_then(retry::date);
            retry::asked(&asked, date.unwrap_or_else(|| Clock::System.now()))
        });
        let patience = REFUSAL_PATIENCE.min(self.silence);
        let body = stream::beginning(response, patience, REFUSAL_MAX).await;
        self.refusal(&Refusal::read(&body), Some(status), asked, &format!("answered {status}"))
    }

    fn refusal(
        &self,
        refusal: &Refusal,
        status: Option<u16>,
        asked: Option<Duration>,
        what: &str,
    ) -> Trouble {
        // A body that is too large is a conversation that is too long.
        let overflows =
            status == Some(413) || refusal.is_overflow() && matches!(status, None | Some(400 | 422 | 500));
        let passes = status.is_some_and(retry::passes) && !overflows && !refusal.is_spent();
        let code = match status {
            _ if overflows => ModelErrorCode::Overflow,
            _ if refusal.is_spent() => ModelErrorCode::Unavailable,
            Some(status) if status >= 500 || retry::passes(status) => ModelErrorCode::Unavailable,
            _ => ModelErrorCode::Rejected,
        };
        let colon = if refusal.message.is_empty() { "" } else { ": " };
        let error = self.error(code, &format!("{what}{colon}{}", refusal.message));
        Trouble { error, passes, asked }
    }

    fn faulty(&self, fault: Fault) -> Trouble {
        // Who has waited for a silent provider has waited enough.
        let (code, passes) = match fault {
            Fault::Lost(_) => (ModelErrorCode::Unavailable, true),
            Fault::Silent(_) => (ModelErrorCode::Unavailable, false),
            Fault::TooLarge | Fault::Garbled(_) => (ModelErrorCode::Rejected, false),
        };
        let error = self.error(code, &format!("failed: {fault}"));
        Trouble { error, passes, asked: None }
    }

    fn wrong(&self, why: &str) -> Trouble {
        Trouble::last(self.error(ModelErrorCode::Rejected, &format!("failed: the answer {why}")))
    }

    fn unusable(&self, why: &str) -> ModelError {
        self.error(ModelErrorCode::Unavailable, &format!("cannot be called: {why}"))
    }

    /// An error whose words follow the model's name. They may come from the provider: what might be the key, or of the address's
    /// query, is taken out of them, and they are cut.
    fn error(&self, code: ModelErrorCode, words: &str) -> ModelError {
        let key = self.access.as_ref().ok().and_then(|access| access.key.as_ref());
        let mut words =
            key.map_or_else(|| words.to_owned(), |key| words.replace(key.expose_secret(), "[key]"));
        let values = self.url.query_pairs().map(|(_, value)| value.into_owned());
        for secret in self.url.query().map(str::to_owned).into_iter().chain(values) {
            if secret.len() >= SECRET_MIN {
                words = words.replace(&secret, "[query]");
            }
        }
        let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
        let cut: String = words.chars().filter(|char| !char.is_control()).take(SHOWN).collect();
        ModelError { code, message: format!("the model {} {cut}", self.name) }
    }
}

fn header(response: &Response, name: &HeaderName) -> Option<String> {
    response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}
