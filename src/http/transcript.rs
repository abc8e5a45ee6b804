//! The conversation as messages: events folded into what a person reads.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::State;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Http;
use super::auth::Reads;
use super::error::ApiResult;
use super::extract::{Params, SessionPath, cursor, limit};
use super::turns::PageQuery;
use super::views::{ApprovalSchema, List, View};
use crate::clock::Timestamp;
use crate::domain::event::Event;
use crate::domain::limits::TRANSCRIPT_VALUE_MAX_CHARS;
use crate::domain::session::Session;
use crate::domain::turn::{Ordinal, Turn};
use crate::service::{Cursor, Service};

/// What stands at the end of a text that was cut.
const MARKER: &str = "… [truncated]";

/// The routes, below a session.
pub fn routes() -> OpenApiRouter<Http> {
    OpenApiRouter::default().routes(routes!(transcript))
}

/// One message of the conversation.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum Message {
    /// What was said to the agent.
    User {
        turn_id: String,
        text: String,
        #[schema(value_type = String, format = DateTime)]
        at: Timestamp,
    },
    /// What the agent said.
    Assistant {
        turn_id: String,
        text: String,
        #[schema(value_type = String, format = DateTime)]
        at: Timestamp,
    },
    /// A tool call.
    Tool {
        turn_id: String,
        tool_call_id: String,
        name: String,
        kind: String,
        /// started, succeeded or failed.
        status: String,
        /// At most 12,000 characters: what is longer is cut, as text.
        input: Value,
        /// Likewise; null until the call has ended.
        result: Value,
        /// Whether input or result was cut.
        truncated: bool,
        #[schema(value_type = String, format = DateTime)]
        at: Timestamp,
    },
    /// A question to a person, as it stands now.
    Approval {
        turn_id: String,
        #[schema(value_type = ApprovalSchema)]
        approval: Value,
        #[schema(value_type = String, format = DateTime)]
        at: Timestamp,
    },
}

/// Where a page of a transcript begins: a message of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    turn: Ordinal,
    index: usize,
}

impl Cursor for Place {
    fn write(&self) -> String {
        format!("m{}.{}", self.turn.0, self.index)
    }

    fn read(text: &str) -> Option<Self> {
        let (turn, index) = text.strip_prefix('m')?.split_once('.')?;
        let turn = turn.parse().ok().filter(|turn| *turn > 0)?;
        Some(Self { turn: Ordinal(turn), index: index.parse().ok()? })
    }
}

/// The conversation, oldest first: what was said, the tool calls, the approvals with their decisions.
#[utoipa::path(
    get, path = "/transcript", tag = "sessions", operation_id = "get_transcript", params(PageQuery),
    responses((status = 200, description = "A page, oldest first", body = List<Message>)),
)]
async fn transcript(
    State(service): State<Arc<Service>>,
    Reads(principal): Reads,
    SessionPath(session): SessionPath,
    Params(query): Params<PageQuery>,
) -> ApiResult<View<List<Message>>> {
    let limit = usize::try_from(limit(query.limit.as_deref())?).unwrap_or(1);
    let from = cursor(query.cursor.as_deref())?.unwrap_or(Place { turn: Ordinal(1), index: 0 });
    let session = service.lookup(&principal.scope(), &session).await?.session;
    Ok(View(read_page(&service, &session, from, limit).await?))
}

async fn read_page(
    service: &Service,
    session: &Session,
    mut from: Place,
    limit: usize,
) -> ApiResult<List<Message>> {
    let mut data = Vec::new();
    while let Some((turn, events)) = service.turn_with_events(session, from.turn).await? {
        // A cursor's turn may have been taken back meanwhile: then its index means nothing.
        let skip = if turn.ordinal == from.turn { from.index } else { 0 };
        let messages = fold(&turn, &events);
        let room = limit - data.len();
        let rest = messages.len().saturating_sub(skip);
        data.extend(messages.into_iter().skip(skip).take(room));
        if rest > room {
            let next = Place { turn: turn.ordinal, index: skip + room };
            return Ok(List { data, next_cursor: Some(next.encode()) });
        }
        from = Place { turn: Ordinal(turn.ordinal.0 + 1), index: 0 };
        if data.len() == limit {
            let more = service.turn_with_events(session, from.turn).await?.is_some();
            return Ok(List { data, next_cursor: more.then(|| from.encode()) });
        }
    }
    Ok(List { data, next_cursor: None })
}

/// The messages of one turn.
pub fn fold(turn: &Turn, events: &[Event]) -> Vec<Message> {
    let mut fold = Fold::of(turn);
    for event in events {
        fold.take(event);
    }
    fold.finish(turn)
}

struct Fold {
    turn_id: String,
    messages: Vec<Message>,
    /// Whether the last message is text that may go on.
    speaking: bool,
    tools: HashMap<String, usize>,
    approvals: HashMap<String, usize>,
}

impl Fold {
    fn of(turn: &Turn) -> Self {
        let turn_id = turn.id.to_string();
        let said = Message::User { turn_id: turn_id.clone(), text: turn.prompt.text(), at: turn.created_at };
        Self {
            turn_id,
            messages: vec![said],
            speaking: false,
            tools: HashMap::new(),
            approvals: HashMap::new(),
        }
    }

    fn take(&mut self, event: &Event) {
        // The store wrote it as JSON; if it is not, there is nothing to show of it.
        let data: Value = serde_json::from_str(&event.data).unwrap_or(Value::Null);
        let speaks = event.kind == "text.delta";
        match event.kind.as_str() {
            "text.delta" => self.speak(text_of(&data, "text"), event.at),
            "text.rewound" => self.rewind(&data),
            "tool.started" => self.tool(&data, "started", event.at),
            "tool.completed" => self.tool(&data, &text_of(&data, "status"), event.at),
            kind if kind.starts_with("approval.") => self.approval(&data, event.at),
            _ => {}
        }
        self.speaking = speaks;
    }

    fn speak(&mut self, more: String, at: Timestamp) {
        match self.messages.last_mut() {
            Some(Message::Assistant { text, .. }) if self.speaking => text.push_str(&more),
            _ => self.messages.push(Message::Assistant { turn_id: self.turn_id.clone(), text: more, at }),
        }
    }

    /// The last words are void: what the agent has said in all is so long. They come after everything else that it did.
    fn rewind(&mut self, data: &Value) {
        let Some(length) = data["length"].as_u64() else { return };
        let said = |message: &Message| match message {
            Message::Assistant { text, .. } => text.chars().count() as u64,
            _ => 0,
        };
        let mut void = self.messages.iter().map(said).sum::<u64>().saturating_sub(length);
        while void > 0
            && let Some(Message::Assistant { text, .. }) = self.messages.last_mut()
        {
            let stays = (text.chars().count() as u64).saturating_sub(void);
            void = void.saturating_sub(text.chars().count() as u64);
            let end = text.char_indices().nth(usize::try_from(stays).unwrap_or(usize::MAX));
            text.truncate(end.map_or(text.len(), |(end, _)| end));
            if text.is_empty() {
                self.messages.pop();
            }
        }
    }

    /// A call stands where it began; its end completes it.
    fn tool(&mut self, data: &Value, status: &str, begun: Timestamp) {
        let tool_call_id = text_of(data, "tool_call_id");
        let known = self.tools.get(&tool_call_id).copied();
        let (at, known_kind) = match known.and_then(|index| self.messages.get(index)) {
            Some(Message::Tool { at, kind, .. }) => (*at, kind.clone()),
            _ => (begun, String::new()),
        };
        let (input, input_cut) = capped(&data["input"]);
        let (result, result_cut) = capped(&data["result"]);
        let kind = if data["kind"].is_string() { text_of(data, "kind") } else { known_kind };
        let message = Message::Tool {
            turn_id: self.turn_id.clone(),
            tool_call_id: tool_call_id.clone(),
            name: text_of(data, "name"),
            kind,
            status: status.to_owned(),
            input,
            result,
            truncated: input_cut || result_cut,
            at,
        };
        // A harness may use an id again for another call: a call that has ended is not overwritten by a new beginning. One that has not
        // is the same call, told again by a process that goes on.
        let is_open = |index: &usize| matches!(&self.messages[*index], Message::Tool { status, .. } if status == "started");
        let known = known.filter(|index| status != "started" || is_open(index));
        match known.and_then(|index| self.messages.get_mut(index)) {
            Some(place) => *place = message,
            None => {
                self.tools.insert(tool_call_id, self.messages.len());
                self.messages.push(message);
            }
        }
    }

    /// A question stands where it was asked, in its latest state.
    fn approval(&mut self, data: &Value, asked: Timestamp) {
        let shown = data["approval"].clone();
        let id = text_of(&shown, "id");
        let known = self.approvals.get(&id).and_then(|index| self.messages.get_mut(*index));
        if let Some(Message::Approval { approval, .. }) = known {
            *approval = shown;
            return;
        }
        self.approvals.insert(id, self.messages.len());
        self.messages.push(Message::Approval { turn_id: self.turn_id.clone(), approval: shown, at: asked });
    }

    /// Events may be purged by now; what the agent said is in the turn's row as well.
    fn finish(mut self, turn: &Turn) -> Vec<Message> {
        let spoke = self.messages.iter().any(|message| matches!(message, Message::Assistant { .. }));
        let text = turn.text.as_ref().filter(|text| !spoke && !text.is_empty());
        if let Some(text) = text {
            let at = turn.ended_at.unwrap_or(turn.created_at);
            self.messages.push(Message::Assistant { turn_id: self.turn_id, text: text.clone(), at });
        }
        self.messages
    }
}

fn text_of(data: &Value, name: &str) -> String {
    data[name].as_str().unwrap_or_default().to_owned()
}

/// A value, or as much of its text as fits, and whether it was cut.
fn capped(value: &Value) -> (Value, bool) {
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match text.char_indices().nth(TRANSCRIPT_VALUE_MAX_CHARS) {
        None => (value.clone(), false),
        Some((end, _)) => (Value::from(format!("{}{MARKER}", &text[..end])), true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::views::tests::turn;
    use serde_json::json;

    fn folded(events: &[(&str, Value)]) -> Value {
        let turn = turn();
        let event = |(n, (kind, data)): (usize, &(&str, Value))| Event {
            seq: n as i64 + 1,
            kind: (*kind).into(),
            turn_id: Some(turn.id.clone()),
            at: Timestamp(n as i64),
            data: data.to_string(),
        };
        let events: Vec<Event> = events.iter().enumerate().map(event).collect();
        let mut messages = serde_json::to_value(fold(&turn, &events)).unwrap();
        for message in messages.as_array_mut().unwrap() {
            let message = message.as_object_mut().unwrap();
            message.remove("at");
            message.remove("turn_id");
        }
        messages
    }

    fn said() -> Value {
        json!({"role": "user", "text": "hi"})
    }

    #[test]
    fn a_turn_without_events_is_its_prompt() {
        assert_eq!(folded(&[]), json!([said()]));
    }

    #[test]
    fn deltas_run_together_until_something_else_happens() {
        let text = |text: &str| ("text.delta", json!({"text": text}));
        assert_eq!(
            folded(&[
                ("turn.started", json!({})),
                text("a"),
                text("b"),
                ("thinking.delta", json!({"text": "hm"})),
                text("c"),
                ("turn.completed", json!({"stop_reason": "end_turn"})),
            ]),
            json!([said(), {"role": "assistant", "text": "ab"}, {"role": "assistant", "text": "c"}])
        );
    }

    #[test]
    fn a_beginning_that_is_told_again_is_shown_once() {
        let started =
            ("tool.started", json!({"tool_call_id": "1", "name": "bash", "kind": "execute", "input": {}}));
        let ended = (
            "tool.completed",
            json!({"tool_call_id": "1", "name": "bash", "status": "succeeded", "input": {}}),
        );
        let shown = |events: &[_]| folded(events).as_array().unwrap().len() - 1;
        assert_eq!(shown(&[started.clone(), started.clone(), ended.clone()]), 1);
        assert_eq!(shown(&[started.clone(), ended, started]), 2, "another call");
    }

    #[test]
    fn words_that_are_void_are_not_shown() {
        let text = |text: &str| ("text.delta", json!({"text": text}));
        let rewound = |length: u64| ("text.rewound", json!({"length": length, "reason": "retried"}));
        let shown = |events: &[_]| {
            let messages = folded(events);
            let texts = messages.as_array().unwrap().iter().map(|message| message["text"].clone());
            texts.skip(1).collect::<Vec<_>>()
        };
        assert_eq!(shown(&[text("é"), text("bc"), rewound(1), text("d")]), [json!("é"), json!("d")]);
        assert_eq!(
            shown(&[text("ab"), ("activity", json!({})), text("cd"), rewound(1), text("e")]),
            [json!("a"), json!("e")]
        );
        assert_eq!(shown(&[text("ab"), rewound(0)]), [] as [Value; 0]);
        assert_eq!(shown(&[text("ab"), rewound(9)]), [json!("ab")]);
    }

    #[test]
    fn a_tool_call_stands_where_it_began_with_what_came_of_it() {
        let started = json!({"tool_call_id": "1", "name": "bash", "kind": "execute", "input": {"c": "ls"}});
        let completed = json!({"tool_call_id": "1", "name": "bash", "status": "succeeded", "input": {"c": "ls"}, "result": "x"});
        let message = |status: &str, result: Value| {
            json!({"role": "tool", "tool_call_id": "1", "name": "bash", "kind": "execute", "status": status,
                   "input": {"c": "ls"}, "result": result, "truncated": false})
        };
        assert_eq!(
            folded(&[("tool.started", started.clone())]),
            json!([said(), message("started", Value::Null)])
        );
        assert_eq!(
            folded(&[
                ("tool.started", started),
                ("text.delta", json!({"text": "…"})),
                ("tool.completed", completed)
            ]),
            json!([said(), message("succeeded", json!("x")), {"role": "assistant", "text": "…"}])
        );
    }

    #[test]
    fn an_approval_stands_where_it_was_asked_in_its_latest_state() {
        let approval = |status: &str| json!({"approval": {"id": "apr_1", "status": status}});
        assert_eq!(
            folded(&[
                ("approval.requested", approval("pending")),
                ("text.delta", json!({"text": "x"})),
                ("approval.resolved", approval("approved")),
            ]),
            json!([said(), {"role": "approval", "approval": {"id": "apr_1", "status": "approved"}},
                   {"role": "assistant", "text": "x"}])
        );
    }

    #[test]
    fn row_76_a_value_is_cut_at_12_000_characters_and_says_so() {
        let (whole, cut) = capped(&json!("é".repeat(12_000)));
        assert_eq!((whole.as_str().unwrap().chars().count(), cut), (12_000, false));
        let (short, cut) = capped(&json!("é".repeat(12_001)));
        assert_eq!((short, cut), (json!(format!("{}{MARKER}", "é".repeat(12_000))), true));
        let (object, cut) = capped(&json!({"k": "x".repeat(12_000)}));
        assert!(cut && object.as_str().unwrap().starts_with("{\"k\":\"xxx"));
        assert_eq!(capped(&json!({"k": 1})), (json!({"k": 1}), false));
    }

    #[test]
    fn what_was_said_outlives_its_events() {
        let mut turn = turn();
        turn.text = Some("done".into());
        let messages = fold(&turn, &[]);
        assert!(matches!(&messages[1], Message::Assistant { text, .. } if text == "done"));
    }

    #[test]
    fn a_place_is_read_back_and_nothing_else_is() {
        let place = Place { turn: Ordinal(3), index: 7 };
        assert_eq!(Place::decode(&place.encode()), Some(place));
        for wrong in ["m0.1", "m1", "t3", "m1.-1", "mx.1"] {
            assert_eq!(Place::read(wrong), None, "{wrong}");
        }
    }
}
