//! An answer, put together from its parts.
//!
//! Providers differ in how they cut a tool call: its id and name may come with any part or with each one, its place may be missing,
//! and some give every call the same place.

use super::wire::{CallDelta, Chunk};
use super::{Piece, Reply};
use crate::domain::turn::Usage;
use crate::harness::agent::message::ToolCall;

/// The longest text of an answer, and the longest reasoning, in bytes.
const TEXT_MAX: usize = 4 << 20;
/// Most calls in an answer.
const CALLS_MAX: usize = 128;
/// The longest arguments of a call, in bytes.
const ARGUMENTS_MAX: usize = 1 << 20;
/// The longest arguments of all calls together, in bytes.
const ALL_ARGUMENTS_MAX: usize = 2 << 20;
/// The longest word for why an answer ended, in characters.
const FINISH_MAX: usize = 64;
/// The longest name or id of a call, in bytes.
const NAME_MAX: usize = 1024;

/// Why an answer is none, in words that follow "the answer".
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wrong(pub(super) &'static str);

/// An answer as far as it has come.
#[derive(Debug, Default)]
pub(super) struct Answer {
    text: String,
    /// Bytes of reasoning that have been given out.
    thinking: usize,
    calls: Vec<Call>,
    /// Bytes of the arguments of all calls.
    arguments: usize,
    finish: Option<String>,
    usage: Option<Usage>,
}

/// A tool call as far as it has come.
#[derive(Debug, Default)]
struct Call {
    /// Its place, where it has told it.
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
}

impl Answer {
    /// Takes a part and gives back the words in it.
    ///
    /// # Errors
    /// [`Wrong`] when the answer grows beyond its bounds.
    pub(super) fn take(&mut self, chunk: Chunk) -> Result<Vec<Piece>, Wrong> {
        let mut pieces = Vec::new();
        self.usage = chunk.usage().or(self.usage);
        let Some(choice) = chunk.choices.into_iter().flatten().next() else { return Ok(pieces) };
        if let Some(mut delta) = choice.delta {
            let thinking = delta.take_thinking();
            self.thinking += thinking.len();
            if !thinking.is_empty() {
                pieces.push(Piece::Thinking(thinking));
            }
            let text = delta.take_text();
            self.text.push_str(&text);
            if !text.is_empty() {
                pieces.push(Piece::Text(text));
            }
            if self.text.len().max(self.thinking) > TEXT_MAX {
                return Err(Wrong("is too long"));
            }
            for call in delta.tool_calls.into_iter().flatten() {
                self.take_call(call)?;
            }
        }
        if let Some(finish) = choice.finish_reason.filter(|finish| !finish.is_empty()) {
            self.finish = Some(finish.chars().filter(|char| !char.is_control()).take(FINISH_MAX).collect());
        }
        Ok(pieces)
    }

    fn take_call(&mut self, delta: CallDelta) -> Result<(), Wrong> {
        let (index, id) = (delta.index, delta.id.unwrap_or_default());
        let mut function = delta.function.unwrap_or_default();
        let name = function.name.take().unwrap_or_default();
        let found = self.calls.iter().rposition(|call| call.is_continued_by(index, &id, &name));
        let call = match found {
            Some(at) => &mut self.calls[at],
            None if self.calls.len() == CALLS_MAX => return Err(Wrong("holds too many tool calls")),
            None => {
                self.calls.push(Call { index, ..Call::default() });
                let last = self.calls.len() - 1;
                &mut self.calls[last]
            }
        };
        if call.id.is_empty() {
            call.id = id;
        }
        // Some repeat the whole name with each part.
        if call.name != name {
            call.name.push_str(&name);
        }
        let arguments = function.take_arguments();
        self.arguments += arguments.len();
        call.arguments.push_str(&arguments);
        if self.arguments > ALL_ARGUMENTS_MAX {
            return Err(Wrong("holds tool calls that are too long together"));
        }
        if call.arguments.len() > ARGUMENTS_MAX || call.id.len().max(call.name.len()) > NAME_MAX {
            return Err(Wrong("holds a tool call that is too long"));
        }
        Ok(())
    }

    /// Whether any words have been given out.
    pub(super) fn has_words(&self) -> bool {
        !self.text.is_empty() || self.thinking > 0
    }

    /// Whether the model has said why it ended: what is missing then is at most the usage.
    pub(super) fn is_finished(&self) -> bool {
        self.finish.is_some()
    }

    /// The answer, which has come to its end. One without a word for why it ended must have something in it.
    ///
    /// # Errors
    /// [`Wrong`] when it is not an answer.
    pub(super) fn into_reply(self) -> Result<Reply, Wrong> {
        if self.calls.iter().any(|call| call.name.is_empty()) {
            return Err(Wrong("holds a tool call without a name"));
        }
        let finish = match self.finish {
            Some(finish) => finish,
            None if !self.calls.is_empty() => "tool_calls".to_owned(),
            None if !self.text.is_empty() => "stop".to_owned(),
            None => return Err(Wrong("is empty and does not say why")),
        };
        let call = |(at, call): (usize, Call)| ToolCall {
            id: if call.id.is_empty() { format!("call_{at}") } else { call.id },
            name: call.name,
            arguments: call.arguments,
        };
        let mut calls = self.calls;
        // By place; those that tell none stay in their order.
        calls.sort_by_key(|call| call.index);
        let tool_calls = calls.into_iter().enumerate().map(call).collect();
        Ok(Reply { text: self.text, tool_calls, finish, usage: self.usage })
    }
}

impl Call {
    /// Whether a part with that place, id and name goes on with this call. One with another id and a name begins another call
    /// even at the same place; another id alone does not, since some give each part an id of its own.
    fn is_continued_by(&self, index: Option<u64>, id: &str, name: &str) -> bool {
        let other = !id.is_empty() && !self.id.is_empty() && id != self.id && !name.is_empty();
        !other && (index.is_none() || index == self.index)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn take(answer: &mut Answer, delta: Value) -> Result<Vec<Piece>, Wrong> {
        answer.take(serde_json::from_value(json!({"choices": [{"delta": delta}]})).unwrap())
    }

    fn calls(deltas: &[Value]) -> Result<Vec<(String, String, String)>, Wrong> {
        let mut answer = Answer::default();
        for delta in deltas {
            take(&mut answer, json!({"tool_calls": [delta]}))?;
        }
        let part = |call: ToolCall| (call.id, call.name, call.arguments);
        Ok(answer.into_reply()?.tool_calls.into_iter().map(part).collect())
    }

    fn call(id: &str, name: &str, arguments: &str) -> (String, String, String) {
        (id.to_owned(), name.to_owned(), arguments.to_owned())
    }

    #[test]
    fn parts_of_several_calls_are_told_apart_by_their_place() {
        let got = calls(&[
            json!({"index": 1, "id": "b", "function": {"name": "two", "arguments": "{\"x"}}),
            json!({"index": 0, "function": {"arguments": "{"}}),
            json!({"index": 1, "function": {"arguments": "\":1}"}}),
            json!({"index": 0, "id": "a", "function": {"name": "one", "arguments": "}"}}),
        ]);
        assert_eq!(got.unwrap(), [call("a", "one", "{}"), call("b", "two", "{\"x\":1}")]);
    }

    #[test]
    fn a_provider_that_repeats_names_or_changes_ids_means_one_call() {
        let got = calls(&[
            json!({"index": 0, "id": "a", "function": {"name": "one", "arguments": "{\"x\""}}),
            json!({"index": 0, "id": "a", "function": {"name": "one", "arguments": ":"}}),
            json!({"index": 0, "id": "z", "function": {"arguments": "1}"}}),
        ]);
        assert_eq!(got.unwrap(), [call("a", "one", "{\"x\":1}")]);
    }

    #[test]
    fn whole_calls_at_the_same_place_or_at_none_are_several() {
        for index in [json!(0), Value::Null] {
            let got = calls(&[
                json!({"index": index, "id": "a", "function": {"name": "one", "arguments": {"x": 1}}}),
                json!({"index": index, "id": "b", "function": {"name": "one", "arguments": "{}"}}),
            ]);
            assert_eq!(got.unwrap(), [call("a", "one", "{\"x\":1}"), call("b", "one", "{}")]);
        }
    }

    #[test]
    fn a_call_without_an_id_gets_one_and_a_call_without_a_name_is_refused() {
        let named = json!({"index": 0, "function": {"name": "one"}});
        assert_eq!(calls(&[named]).unwrap(), [call("call_0", "one", "")]);
        let nameless = json!({"index": 0, "id": "a", "function": {"arguments": "{}"}});
        assert_eq!(calls(&[nameless]), Err(Wrong("holds a tool call without a name")));
    }

    #[test]
    fn an_answer_grows_no_further_than_its_bounds() {
        let name = json!({"index": 0, "function": {"name": "one", "arguments": "x".repeat(1 << 20)}});
        assert!(calls(std::slice::from_ref(&name)).is_ok());
        let more = json!({"index": 0, "function": {"arguments": "x"}});
        assert_eq!(calls(&[name, more]), Err(Wrong("holds a tool call that is too long")));
        let many: Vec<Value> =
            (0..129).map(|index| json!({"index": index, "function": {"name": "a"}})).collect();
        assert_eq!(calls(&many[..128]).unwrap().len(), 128);
        assert_eq!(calls(&many), Err(Wrong("holds too many tool calls")));
        for kind in ["content", "reasoning"] {
            let mut answer = Answer::default();
            assert!(take(&mut answer, json!({kind: "x".repeat(4 << 20)})).is_ok());
            assert_eq!(take(&mut answer, json!({kind: "x"})), Err(Wrong("is too long")));
        }
    }

    #[test]
    fn the_reason_for_the_end_is_the_providers_own_and_can_be_missing_where_there_is_an_answer() {
        let reply = |chunk: Value| {
            let mut answer = Answer::default();
            answer.take(serde_json::from_value(chunk).unwrap()).unwrap();
            answer.into_reply().map(|reply| reply.finish)
        };
        let said = |finish: Value| json!({"choices": [{"delta": {"content": "a"}, "finish_reason": finish}]});
        assert_eq!(reply(said(json!("length"))).unwrap(), "length");
        assert_eq!(reply(said(json!(""))).unwrap(), "stop");
        let called = json!({"choices": [{"delta": {"tool_calls": [{"function": {"name": "a"}}]}}]});
        assert_eq!(reply(called).unwrap(), "tool_calls");
        assert_eq!(reply(json!({"choices": []})), Err(Wrong("is empty and does not say why")));
        assert_eq!(reply(json!({"choices": [{"finish_reason": "stop"}]})).unwrap(), "stop");
    }

    #[test]
    fn all_calls_together_are_bounded_and_so_is_the_word_for_why_it_ended() {
        let mut answer = Answer::default();
        let mut call = |index: usize, bytes: usize| {
            let function = json!({"name": "t", "arguments": "x".repeat(bytes)});
            take(
                &mut answer,
                json!({"tool_calls": [{"index": index, "id": format!("c{index}"), "function": function}]}),
            )
        };
        for index in 0..4 {
            assert_eq!(call(index, ALL_ARGUMENTS_MAX / 4), Ok(Vec::new()));
        }
        assert_eq!(call(4, 1), Err(Wrong("holds tool calls that are too long together")));
        let mut answer = Answer::default();
        let long = json!({"choices": [{"delta": {"content": "a"}, "finish_reason": "\0x".repeat(1000)}]});
        assert_eq!(answer.take(serde_json::from_value(long).unwrap()).unwrap().len(), 1);
        assert_eq!(answer.into_reply().unwrap().finish, "x".repeat(FINISH_MAX));
    }
}
