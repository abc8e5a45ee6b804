//! What a turn has put out so far: followed by the driver that hears it, or read from the log where that one is gone.

use serde::Deserialize;
use serde_json::Value;

use super::lookup::EVENTS_AT_ONCE;
use super::{Service, ServiceResult};
use crate::domain::event::{Event, NewEvent, Output, ToolEnd, ToolStart, ToolStatus};
use crate::domain::session::Session;
use crate::domain::turn::{Turn, Usage};
use crate::ids::SessionKey;

/// The most of the agent's words that a turn's row keeps, in bytes; the events have them all.
const TEXT_MAX: usize = 1 << 20;
/// So many tool calls are open at once; a harness that opens more does not get the others closed.
const OPEN_MAX: usize = 1000;
/// So much of their inputs is kept for the end of those that are open; beyond it their ends do not tell it again.
const OPEN_MAX_BYTES: usize = 4 << 20;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct SoFar {
    /// What the agent said.
    pub(super) text: String,
    /// Tokens used, as the harness said last.
    pub(super) usage: Option<Usage>,
    /// Whether the harness put anything out: then the prompt had arrived.
    pub(super) any: bool,
    /// Tool calls that began and have not ended.
    open_calls: Vec<ToolStart>,
    open_bytes: usize,
}

/// As much of an event's data as is looked at here.
#[derive(Deserialize)]
struct ToolData {
    tool_call_id: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    input: Value,
}

impl SoFar {
    /// Takes what the harness puts out.
    pub(super) fn take(&mut self, output: &Output) {
        self.any = true;
        match output {
            Output::TextDelta { text } => self.say(text),
            Output::TextRewound { length, .. } => self.rewind(*length),
            Output::Usage(usage) => self.usage = Some(*usage),
            Output::ToolStarted(start) => self.begin(start.clone()),
            Output::ToolCompleted(end) => self.end(&end.tool_call_id),
            _ => {}
        }
    }

    fn read(&mut self, event: &Event) {
        self.any |= !event.kind.starts_with("turn.") && !event.kind.starts_with("session.");
        match event.kind.as_str() {
            "text.delta" => {
                let data = serde_json::from_str::<Value>(&event.data).unwrap_or_default();
                self.say(data["text"].as_str().unwrap_or_default());
            }
            "text.rewound" => {
                let data = serde_json::from_str::<Value>(&event.data).unwrap_or_default();
                if let Some(length) = data["length"].as_u64() {
                    self.rewind(length);
                }
            }
            "tool.started" => {
                if let Ok(ToolData { tool_call_id, name, kind, input }) = serde_json::from_str(&event.data) {
                    self.begin(ToolStart { tool_call_id, name, kind, input });
                }
            }
            "tool.completed" => {
                if let Ok(ToolData { tool_call_id, .. }) = serde_json::from_str(&event.data) {
                    self.end(&tool_call_id);
                }
            }
            _ => {}
        }
    }

    fn say(&mut self, text: &str) {
        let room = TEXT_MAX.saturating_sub(self.text.len());
        self.text.push_str(&text[..text.floor_char_boundary(room)]);
    }

    fn rewind(&mut self, length: u64) {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if let Some((end, _)) = self.text.char_indices().nth(length) {
            self.text.truncate(end);
        }
    }

    fn begin(&mut self, mut start: ToolStart) {
        // Told again by a process that goes on, it is the same call.
        self.end(&start.tool_call_id);
        if self.open_bytes + start.weight() > OPEN_MAX_BYTES {
            start.input = Value::Null;
        }
        let bytes = self.open_bytes + start.weight();
        if self.open_calls.len() < OPEN_MAX && bytes <= OPEN_MAX_BYTES {
            self.open_bytes = bytes;
            self.open_calls.push(start);
        }
    }

    fn end(&mut self, id: &str) {
        let mut freed = 0;
        self.open_calls.retain(|open| {
            let stays = open.tool_call_id != id;
            freed += if stays { 0 } else { open.weight() };
            stays
        });
        self.open_bytes -= freed;
    }

    /// Ends the tool calls whose process was lost, in the order of their beginnings: nobody else will.
    pub(super) fn end_open_calls(&mut self) -> Vec<Output> {
        let lost = |start: ToolStart| {
            Output::ToolCompleted(ToolEnd {
                tool_call_id: start.tool_call_id,
                name: start.name,
                status: ToolStatus::Failed,
                input: start.input,
                result: Value::from("the process that ran this call was lost"),
            })
        };
        self.open_bytes = 0;
        self.open_calls.drain(..).map(lost).collect()
    }

    /// [`SoFar::end_open_calls`], as events of the turn.
    pub(super) fn close_calls(&mut self, turn: &Turn, at: crate::clock::Timestamp) -> Vec<NewEvent> {
        let event = |output: Output| NewEvent { turn: Some(turn.reference()), at, body: output.into() };
        self.end_open_calls().into_iter().map(event).collect()
    }
}

impl Service {
    /// What the agent has said in a turn so far, its first MiB.
    ///
    /// # Errors
    /// What the store says.
    pub async fn words_so_far(&self, session: &Session, turn: &Turn) -> ServiceResult<String> {
        Ok(self.so_far(session.key, turn).await?.text)
    }

    /// Reads what a turn has put out so far.
    pub(super) async fn so_far(&self, key: SessionKey, turn: &Turn) -> ServiceResult<SoFar> {
        let mut so_far = SoFar::default();
        let mut after = 0;
        loop {
            let page = self.store.list_turn_events(key, turn.ordinal, after, EVENTS_AT_ONCE).await?;
            let Some(last) = page.events.last() else { return Ok(so_far) };
            after = last.seq;
            page.events.iter().for_each(|event| so_far.read(event));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::clock::Timestamp;
    use crate::domain::event::RewindReason;

    fn event(kind: &str, data: &Value) -> Event {
        Event { seq: 1, kind: kind.into(), turn_id: None, at: Timestamp(0), data: data.to_string() }
    }

    #[test]
    fn what_the_agent_says_is_kept_up_to_a_bound_and_never_cut_inside_a_character() {
        let mut so_far = SoFar::default();
        so_far.say(&"x".repeat(TEXT_MAX - 1));
        so_far.say("é");
        assert_eq!(so_far.text.len(), TEXT_MAX - 1);
        so_far.say("y");
        assert_eq!(so_far.text.len(), TEXT_MAX);
    }

    #[test]
    fn heard_or_read_it_is_the_same_and_calls_without_an_end_are_ended_once() {
        let start = |id: &str| ToolStart {
            tool_call_id: id.into(),
            name: "bash".into(),
            kind: "execute".into(),
            input: json!({"command": id}),
        };
        let end = ToolEnd {
            tool_call_id: "a".into(),
            name: "bash".into(),
            status: ToolStatus::Succeeded,
            input: Value::Null,
            result: Value::Null,
        };
        let outputs = [
            Output::TextDelta { text: "one ".into() },
            Output::ToolStarted(start("a")),
            Output::ToolStarted(start("b")),
            Output::ToolStarted(start("b")),
            Output::ToolCompleted(end),
            Output::TextDelta { text: "two".into() },
        ];
        let (mut heard, mut read) = (SoFar::default(), SoFar::default());
        for output in &outputs {
            heard.take(output);
            read.read(&event(output.kind(), &serde_json::to_value(output).unwrap()));
        }
        for so_far in [&mut heard, &mut read] {
            assert_eq!((so_far.text.as_str(), so_far.any), ("one two", true));
            let ended = so_far.end_open_calls();
            let [Output::ToolCompleted(lost)] = ended.as_slice() else { panic!("{ended:?}") };
            assert_eq!((lost.tool_call_id.as_str(), lost.status), ("b", ToolStatus::Failed));
            assert_eq!(lost.input, json!({"command": "b"}));
            assert!(so_far.end_open_calls().is_empty());
        }
    }

    #[test]
    fn words_that_are_void_are_not_what_was_said() {
        let (mut heard, mut read) = (SoFar::default(), SoFar::default());
        let rewound = |length| Output::TextRewound { length, reason: RewindReason::Retried };
        let say = |text: &str| Output::TextDelta { text: text.into() };
        for (output, text) in [
            (say("één "), "één "),
            (say("broken off"), "één broken off"),
            (rewound(4), "één "),
            (say("whole"), "één whole"),
            (rewound(100), "één whole"),
            (rewound(0), ""),
        ] {
            heard.take(&output);
            read.read(&event(output.kind(), &serde_json::to_value(&output).unwrap()));
            assert_eq!((heard.text.as_str(), read.text.as_str()), (text, text));
        }
    }

    #[test]
    fn what_is_kept_of_open_calls_is_bounded() {
        let mut so_far = SoFar::default();
        let call = |id: usize| ToolStart {
            tool_call_id: id.to_string(),
            name: "bash".into(),
            kind: "execute".into(),
            input: json!("x".repeat(OPEN_MAX_BYTES / 10)),
        };
        (0..100).for_each(|id| so_far.begin(call(id)));
        assert!(so_far.open_bytes <= OPEN_MAX_BYTES);
        assert_eq!(so_far.open_bytes, so_far.open_calls.iter().map(ToolStart::weight).sum::<usize>());
        (0..50).for_each(|id| so_far.end(&id.to_string()));
        assert_eq!(so_far.open_bytes, so_far.open_calls.iter().map(ToolStart::weight).sum::<usize>());
        assert_eq!(so_far.end_open_calls().len(), 50, "each is closed, with its input or without");
        assert_eq!(so_far.open_bytes, 0);
    }

    #[test]
    fn what_the_service_itself_says_of_a_turn_does_not_show_that_its_prompt_arrived() {
        let mut so_far = SoFar::default();
        for kind in ["turn.queued", "turn.started", "session.rehydrated"] {
            so_far.read(&event(kind, &json!({})));
        }
        assert!(!so_far.any);
        so_far.read(&event("approval.requested", &json!({})));
        assert!(so_far.any);
    }
}
