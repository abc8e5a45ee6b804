//! A completion as it is said: a turn's words as chunks, in place of its events.

use std::sync::Arc;

use async_trait::async_trait;
use axum::http::StatusCode;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::Map;

use super::answer::{AboutView, Header, Part, finish_reason, usage_of};
use super::rewind::{Differs, Sent};
use super::{pending, refusal};
use crate::domain::event::Event;
use crate::domain::scope::Scope;
use crate::domain::session::{Session, SessionState};
use crate::domain::turn::{Turn, TurnStatus};
use crate::http::error::{ApiError, ApiResult};
use crate::http::sse::{Broken, Said, Voice};
use crate::service::{Published, Service, ServiceError, SessionRef};

/// Chunks that are ready together go out in pieces of about this size.
const PIECE_BYTES: usize = 64 * 1024;
const DONE: &str = "data: [DONE]\n\n";

/// See the module.
pub struct Speaker {
    /// Whom the turn is looked up with when it has ended.
    pub service: Arc<Service>,
    /// In whose name.
    pub scope: Scope,
    /// The session.
    pub session: Session,
    /// The turn, as it was when the stream began.
    pub turn: Turn,
    /// What it says.
    pub words: Words,
}

/// Events as chunks.
pub struct Words {
    header: Header,
    /// Whether a last chunk tells the usage.
    with_usage: bool,
    sent: Sent,
}

/// As much of an event's data as is looked at here.
#[derive(Deserialize)]
struct WordsData {
    text: String,
}

#[derive(Deserialize)]
struct RewoundData {
    length: u64,
}

fn frame(data: &str) -> String {
    format!("data: {data}\n\n")
}

/// Words were sent that do not stand.
fn rewound(turn: &Turn) -> String {
    let mut about = Map::new();
    about.insert("turn_id".to_owned(), turn.id.as_str().into());
    let words = "the turn took back words that were sent; collect its answer by metadata.session_id and metadata.turn_id";
    refusal::document(StatusCode::INTERNAL_SERVER_ERROR, "answer_rewound", words, about)
}

impl Words {
    /// Each chunk begins with that header.
    pub fn new(header: Header, with_usage: bool) -> Self {
        Self { header, with_usage, sent: Sent::default() }
    }

    fn chunk(&self, part: Part<'_>) -> String {
        frame(&self.header.chunk(part, self.with_usage))
    }

    fn say(&mut self, words: &str) -> Result<String, Differs> {
        let new = self.sent.take(words)?;
        Ok(if new.is_empty() { String::new() } else { self.chunk(Part::Words(new)) })
    }

    /// What an event comes to; nothing for most.
    fn tell(&mut self, event: &Event) -> Result<String, Differs> {
        match event.kind.as_str() {
            "text.delta" => match serde_json::from_str(&event.data) {
                Ok(WordsData { text }) => self.say(&text),
                Err(error) => Ok(unread(event, &error)),
            },
            "thinking.delta" => match serde_json::from_str(&event.data) {
                Ok(WordsData { text }) => Ok(self.chunk(Part::Thought(&text))),
                Err(error) => Ok(unread(event, &error)),
            },
            "text.rewound" => match serde_json::from_str(&event.data) {
                Ok(RewoundData { length }) => self.sent.rewind(length).map(|()| String::new()),
                Err(error) => Ok(unread(event, &error)),
            },
            _ => Ok(String::new()),
        }
    }

    /// What events of a turn come to.
    fn tell_all<'a>(&mut self, turn: &Turn, events: impl Iterator<Item = &'a Event>) -> Said {
        let (mut chunks, mut piece) = (Vec::new(), String::new());
        for event in events {
            match self.tell(event) {
                Ok(words) => piece.push_str(&words),
                Err(Differs) => {
                    piece.push_str(&frame(&rewound(turn)));
                    chunks.push(piece.into());
                    return Said { chunks, last: true };
                }
            }
            if piece.len() >= PIECE_BYTES {
                chunks.push(std::mem::take(&mut piece).into());
            }
        }
        chunks.push(piece.into());
        Said { chunks, last: false }
    }
}

impl Speaker {
    /// The turn as it is now that its events have come to an end, or to a pause.
    async fn close(&mut self) -> ApiResult<Option<String>> {
        let session = SessionRef::Id(self.session.id.clone());
        let (session, turn) = self.service.lookup_turn(&self.scope, &session, &self.turn.id).await?;
        if matches!(turn.status, TurnStatus::Queued | TurnStatus::Running) {
            return match session.state {
                SessionState::Destroyed { .. } => Err(ServiceError::SessionDestroyed(session.id).into()),
                // It waited for a person, and goes on.
                _ => Ok(None),
            };
        }
        let reason = match finish_reason(&turn) {
            Ok(reason) => reason,
            Err(failed) => return Ok(Some(frame(&failed.document(&session, &turn)))),
        };
        let mut out = String::new();
        let stands = match turn.text.as_deref() {
            // Its events are gone; its row keeps the words.
            Some(text) if self.words.sent.is_empty() => {
                self.words.say(text).map(|words| out.push_str(&words))
            }
            _ => self.words.sent.end(),
        };
        if stands.is_err() {
            return Ok(Some(frame(&rewound(&turn))));
        }
        let approvals = pending(&self.service, &self.scope, &session, &turn).await?;
        let about = AboutView::of(&session, &turn, &approvals);
        out.push_str(&self.words.chunk(Part::Finish(reason, &about)));
        if self.words.with_usage {
            out.push_str(&self.words.chunk(Part::Usage(usage_of(&turn))));
        }
        Ok(Some(out + DONE))
    }
}

/// Events are written by this program: one that does not read is a bug, and no reason to stop.
fn unread(event: &Event, error: &serde_json::Error) -> String {
    tracing::error!(seq = event.seq, kind = event.kind, %error, "an event does not read");
    String::new()
}

#[async_trait]
impl Voice for Speaker {
    fn head(&mut self) -> Bytes {
        self.words.chunk(Part::Head(&AboutView::of(&self.session, &self.turn, &[]))).into()
    }

    fn events(&mut self, _session: &Session, events: &[Arc<Published>]) -> Said {
        self.words.tell_all(&self.turn, events.iter().map(|published| &published.event))
    }

    async fn end(&mut self) -> Option<Bytes> {
        let words = self.close().await.unwrap_or_else(|error| {
            tracing::warn!(
                code = error.code().as_str(),
                cause = error.cause(),
                "a completion could not be closed"
            );
            Some(frame(&refusal::document_of(&error)))
        });
        words.map(Bytes::from)
    }

    fn broken(&mut self, why: Broken) -> Bytes {
        let error = ApiError::from(match why {
            Broken::Closing => ServiceError::ShuttingDown,
            Broken::Revoked => ServiceError::Unauthenticated,
            Broken::Unread(error) => error,
        });
        frame(&refusal::document_of(&error.with("turn_id", self.turn.id.as_str()))).into()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::clock::Timestamp;
    use crate::domain::turn::{Ordinal, Prompt};

    fn event(kind: &str, data: &Value) -> Event {
        Event { seq: 1, kind: kind.into(), turn_id: None, at: Timestamp(0), data: data.to_string() }
    }

    /// The chunks that events come to, and whether the stream goes on.
    fn told(events: &[Event]) -> (Vec<Value>, bool) {
        let turn = Turn::queued(Ordinal(1), Prompt::Text("x".into()), Timestamp(0));
        let said = Words::new(Header::new(&turn, "demo"), false).tell_all(&turn, events.iter());
        let text: String = said.chunks.iter().map(|chunk| std::str::from_utf8(chunk).unwrap()).collect();
        let chunks = text
            .split_terminator("\n\n")
            .map(|frame| serde_json::from_str(frame.strip_prefix("data: ").unwrap()).unwrap());
        (chunks.collect(), !said.last)
    }

    fn contents(chunks: &[Value]) -> String {
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect()
    }

    #[test]
    fn words_and_thoughts_are_chunks_and_nothing_else_is() {
        let (chunks, goes_on) = told(&[
            event("turn.started", &json!({})),
            event("thinking.delta", &json!({"text": "hm"})),
            event("text.delta", &json!({"text": "one "})),
            event("tool.started", &json!({"name": "bash"})),
            event("text.delta", &json!({"text": "two"})),
        ]);
        assert_eq!((chunks.len(), contents(&chunks).as_str(), goes_on), (3, "one two", true));
        assert_eq!(chunks[0]["choices"][0]["delta"], json!({"reasoning_content": "hm"}));
    }

    #[test]
    fn words_that_are_said_anew_after_a_rewind_are_sent_once() {
        let (chunks, goes_on) = told(&[
            event("text.delta", &json!({"text": "one two"})),
            event("text.rewound", &json!({"length": 4, "reason": "retried"})),
            event("text.delta", &json!({"text": "tw"})),
            event("text.delta", &json!({"text": "o three"})),
        ]);
        assert_eq!((contents(&chunks).as_str(), goes_on), ("one two three", true));
    }

    #[test]
    fn words_that_are_not_those_that_were_sent_end_the_stream_with_an_error() {
        let (chunks, goes_on) = told(&[
            event("text.delta", &json!({"text": "one two"})),
            event("text.rewound", &json!({"length": 4, "reason": "repaired"})),
            event("text.delta", &json!({"text": "three"})),
            event("text.delta", &json!({"text": "never"})),
        ]);
        assert_eq!((contents(&chunks).as_str(), goes_on), ("one two", false));
        assert_eq!(chunks.last().unwrap()["error"]["code"], "answer_rewound");
    }

    #[test]
    fn much_that_is_ready_together_goes_out_in_pieces() {
        let turn = Turn::queued(Ordinal(1), Prompt::Text("x".into()), Timestamp(0));
        let events: Vec<Event> =
            (0..4).map(|_| event("text.delta", &json!({"text": "x".repeat(PIECE_BYTES)}))).collect();
        let said = Words::new(Header::new(&turn, "demo"), false).tell_all(&turn, events.iter());
        assert_eq!(said.chunks.iter().filter(|chunk| !chunk.is_empty()).count(), 4);
    }
}
