//! The tool calls of a turn: what was told of each in pieces, put together.
//!
//! An agent tells the name and the input once, in the first update or with the question for permission, and the end much
//! later. Some never tell the beginning at all: then the first word of a call is its beginning.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Value, json};

use crate::domain::event::{FileOperation, Output, ToolEnd, ToolStart, ToolStatus, weight};
use crate::harness::workspace::Roots;

/// A larger value of a call is told as the word of its size: an event is in memory several times while it is stored.
pub(super) const KEPT_MAX_BYTES: usize = 1 << 20;
/// The word for a value that was not kept is no larger.
const NOT_KEPT_BYTES: usize = 64;
/// More calls are not remembered at the same time.
const OPEN_MAX: usize = 1024;
/// Nor is more than this remembered of all of them together; what was told of one that comes then is shown, and not again at its end.
const OPEN_MAX_BYTES: usize = 4 << 20;
/// So many ended calls are known, so that a late word about one does not begin it anew.
const ENDED_MAX: usize = 1024;

/// What the protocol leaves open about tool calls, and an agent's description says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ToolCustoms {
    /// Where in a call its tool's name is, as a JSON pointer.
    pub tool_name_at: Option<String>,
    /// Keys of an input that name the occasion and not what would run. A question is shown without them, so that the same call is
    /// the same question when a later process asks it again.
    pub occasional_input: Vec<String>,
}

/// The calls that have not ended, by the agent's id.
#[derive(Debug, Default)]
pub(super) struct ToolCalls {
    customs: ToolCustoms,
    open: BTreeMap<String, Call>,
    open_bytes: usize,
    ended: VecDeque<u64>,
    order: u64,
}

#[derive(Clone, Debug, Default)]
struct Call {
    // As the first event of the call had it; a later title does not rename the tool.
    started_as: Option<String>,
    order: u64,
    name: Option<String>,
    title: Option<String>,
    kind: Option<String>,
    input: Option<Value>,
    output: Option<Value>,
    text: Option<String>,
    edits: Vec<Edit>,
}

#[derive(Clone, Debug, PartialEq)]
struct Edit {
    path: String,
    operation: FileOperation,
}

/// A call as the question for permission shows it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Question {
    /// The tool's name.
    pub tool: String,
    /// The question in words.
    pub title: String,
    /// The agent's label.
    pub kind: String,
    /// What the tool would get.
    pub input: Value,
}

impl ToolCustoms {
    fn name<'a>(&self, call: &'a Value) -> Option<&'a str> {
        let elsewhere = self.tool_name_at.as_deref().and_then(|place| call.pointer(place));
        [&call["name"]].into_iter().chain(elsewhere).filter_map(Value::as_str).find(|name| !name.is_empty())
    }

    fn without_occasion(&self, mut input: Value) -> Value {
        if let Some(input) = input.as_object_mut() {
            input.retain(|key, _| !self.occasional_input.contains(key));
        }
        input
    }
}

impl ToolCalls {
    /// None yet.
    pub(super) fn of(customs: ToolCustoms) -> Self {
        Self { customs, ..Self::default() }
    }

    /// The outputs of a `tool_call` or `tool_call_update`.
    pub(super) fn update(&mut self, mut update: Value, roots: &Roots) -> Vec<Output> {
        let Some(id) = update["toolCallId"].as_str().map(str::to_owned) else { return Vec::new() };
        if self.ended.contains(&digest(&id)) {
            return Vec::new();
        }
        let mut call = self.take(&id).unwrap_or_default();
        let status = update["status"].take();
        call.merge(&mut update, &self.customs, roots);
        let mut outputs = Vec::new();
        if call.started_as.is_none() {
            self.order += 1;
            call.order = self.order;
            let name = call.tool();
            call.started_as = Some(name.clone());
            let (kind, input) = (call.kind(), call.input.clone().unwrap_or_default());
            outputs.push(Output::ToolStarted(ToolStart { tool_call_id: id.clone(), name, kind, input }));
        }
        match status.as_str() {
            Some("completed") => {
                outputs.extend(call.edits.drain(..).map(Edit::output));
                outputs.push(call.end(&id, ToolStatus::Succeeded));
                self.forget(&id);
            }
            // A change that failed is no change.
            Some("failed") => {
                outputs.push(call.end(&id, ToolStatus::Failed));
                self.forget(&id);
            }
            _ => self.remember(id, call),
        }
        outputs
    }

    /// What a person is asked, from the question's own tool call and what was told of it before.
    pub(super) fn question(&mut self, asked: Value, roots: &Roots) -> Question {
        let mut asked = if asked.is_object() { asked } else { json!({}) };
        let id = asked["toolCallId"].as_str().map(str::to_owned);
        let known = id.as_deref().and_then(|id| self.take(id));
        let word = |key: &str| asked[key].as_str().filter(|word| !word.is_empty()).map(str::to_owned);
        let (title, kind) = (word("title"), word("kind"));
        let input = [
            &asked["rawInput"],
            known.as_ref().and_then(|call| call.input.as_ref()).unwrap_or(&Value::Null),
            &asked["content"],
        ]
        .into_iter()
        .find(|value| !is_blank(value))
        .unwrap_or(&asked["rawInput"])
        .clone();
        let mut call = known.unwrap_or_default();
        call.merge(&mut asked, &self.customs, roots);
        let question = Question {
            tool: call.name.clone().or_else(|| title.clone()).unwrap_or_else(|| call.tool()),
            title: title.or_else(|| call.title.clone()).unwrap_or_else(|| call.tool()),
            kind: kind.unwrap_or_else(|| call.kind()),
            input: self.customs.without_occasion(input),
        };
        if let Some(id) = id {
            self.remember(id, call);
        }
        question
    }

    /// Ends the calls that are still open, in the order of their beginnings, and forgets all.
    pub(super) fn end_all(&mut self, why: &str) -> Vec<Output> {
        let mut open: Vec<_> = std::mem::take(&mut self.open).into_iter().collect();
        self.open_bytes = 0;
        open.sort_by_key(|(_, call)| call.order);
        open.retain(|(_, call)| call.started_as.is_some());
        open.into_iter()
            .map(|(id, mut call)| {
                call.output = Some(Value::from(why));
                self.forget(&id);
                call.end(&id, ToolStatus::Failed)
            })
            .collect()
    }

    fn remember(&mut self, id: String, mut call: Call) {
        if self.open_bytes + call.weight() > OPEN_MAX_BYTES {
            call.shrink();
        }
        let bytes = self.open_bytes + call.weight();
        if self.open.len() < OPEN_MAX && bytes <= OPEN_MAX_BYTES {
            self.open_bytes = bytes;
            self.open.insert(id, call);
        }
    }

    fn take(&mut self, id: &str) -> Option<Call> {
        let call = self.open.remove(id)?;
        self.open_bytes -= call.weight();
        Some(call)
    }

    fn forget(&mut self, id: &str) {
        if self.ended.len() == ENDED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back(digest(id));
    }
}

impl Call {
    // What an update leaves out stays as it was; what it brings replaces it.
    fn merge(&mut self, update: &mut Value, customs: &ToolCustoms, roots: &Roots) {
        if let Some(name) = customs.name(update) {
            self.name = Some(name.to_owned());
        }
        for (field, key) in [(&mut self.title, "title"), (&mut self.kind, "kind")] {
            if let Some(word) = update[key].as_str().filter(|word| !word.is_empty()) {
                *field = Some(word.to_owned());
            }
        }
        for (field, key) in [(&mut self.input, "rawInput"), (&mut self.output, "rawOutput")] {
            match update[key].take() {
                Value::Null => {}
                value => *field = Some(kept(value, KEPT_MAX_BYTES)),
            }
        }
        if let Some(content) = update["content"].as_array() {
            self.text = text_of(content).map(|mut text| {
                text.truncate(text.floor_char_boundary(KEPT_MAX_BYTES));
                text
            });
            self.edits = content.iter().filter_map(|item| Edit::read(item, roots)).collect();
        }
    }

    fn tool(&self) -> String {
        let words = [&self.started_as, &self.name, &self.title, &self.kind];
        words.into_iter().flatten().next().cloned().unwrap_or_else(|| "tool".to_owned())
    }

    fn kind(&self) -> String {
        self.kind.clone().unwrap_or_else(|| "other".to_owned())
    }

    fn end(&mut self, id: &str, status: ToolStatus) -> Output {
        let result = self.output.take().or_else(|| self.text.take().map(Value::from));
        Output::ToolCompleted(ToolEnd {
            tool_call_id: id.to_owned(),
            name: self.tool(),
            status,
            input: self.input.take().unwrap_or_default(),
            result: result.unwrap_or_default(),
        })
    }

    // All that can be large is kept as the word of its size, or not.
    fn shrink(&mut self) {
        for value in [&mut self.input, &mut self.output].into_iter().flatten() {
            *value = kept(value.take(), NOT_KEPT_BYTES);
        }
        self.text = None;
    }

    fn weight(&self) -> usize {
        let words = [&self.started_as, &self.name, &self.title, &self.kind, &self.text];
        let words: usize = words.into_iter().flatten().map(String::len).sum();
        let values: usize = [&self.input, &self.output].into_iter().flatten().map(weight).sum();
        words + values + self.edits.iter().map(|edit| edit.path.len() + 32).sum::<usize>()
    }
}

impl Edit {
    fn read(item: &Value, roots: &Roots) -> Option<Self> {
        if item["type"] != "diff" {
            return None;
        }
        let operation = if item["oldText"].is_null() { FileOperation::Create } else { FileOperation::Update };
        Some(Self { path: roots.shown(item["path"].as_str()?), operation })
    }

    fn output(self) -> Output {
        changed(self.path, self.operation)
    }
}

/// The output for a file that is new or has new contents.
pub(super) fn changed(path: String, operation: FileOperation) -> Output {
    let verb = if operation == FileOperation::Create { "Created" } else { "Changed" };
    Output::FileChanged { summary: format!("{verb} {path}"), path, operation }
}

/// The value, or the word of its size where it is larger than that.
pub(super) fn kept(value: Value, most: usize) -> Value {
    let bytes = weight(&value);
    if bytes > most { json!({"not_kept": format!("about {bytes} bytes")}) } else { value }
}

fn text_of(content: &[Value]) -> Option<String> {
    let texts: Vec<&str> = content.iter().filter_map(|item| item["content"]["text"].as_str()).collect();
    (!texts.is_empty()).then(|| texts.join("\n"))
}

// An agent that fills the input in later sends an empty one first.
fn is_blank(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

fn digest(id: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(calls: &mut ToolCalls, update: Value) -> Vec<Output> {
        calls.update(update, &Roots::plain("/space"))
    }

    fn started(id: &str, name: &str, kind: &str, input: Value) -> Output {
        Output::ToolStarted(ToolStart {
            tool_call_id: id.into(),
            name: name.into(),
            kind: kind.into(),
            input,
        })
    }

    fn ended(id: &str, name: &str, status: ToolStatus, input: Value, result: Value) -> Output {
        Output::ToolCompleted(ToolEnd { tool_call_id: id.into(), name: name.into(), status, input, result })
    }

    #[test]
    fn row_82_a_completed_edit_is_its_file_changes_then_the_end_with_name_and_input_from_before() {
        let mut calls = ToolCalls::default();
        let input = json!({"path": "/space/a", "text": "x"});
        let first = feed(
            &mut calls,
            json!({"toolCallId": "c1", "title": "Edit a", "kind": "edit", "status": "pending", "rawInput": input}),
        );
        assert_eq!(first, [started("c1", "Edit a", "edit", input.clone())]);
        let last = feed(
            &mut calls,
            json!({"toolCallId": "c1", "status": "completed", "content": [
                {"type": "diff", "path": "/space/a", "oldText": "", "newText": "x"},
                {"type": "diff", "path": "/space/b/c", "newText": "y"},
                {"type": "content", "content": {"type": "text", "text": "done"}}]}),
        );
        assert_eq!(
            last,
            [
                changed("a".into(), FileOperation::Update),
                changed("b/c".into(), FileOperation::Create),
                ended("c1", "Edit a", ToolStatus::Succeeded, input, json!("done")),
            ]
        );
        assert!(calls.open.is_empty());
    }

    #[test]
    fn a_call_that_was_never_begun_begins_with_its_first_word() {
        let mut calls = ToolCalls::default();
        let outputs = feed(
            &mut calls,
            json!({"toolCallId": "c1", "title": "ls", "status": "completed", "rawOutput": {"code": 0},
                "content": [{"type": "content", "content": {"type": "text", "text": "files"}}]}),
        );
        assert_eq!(
            outputs,
            [
                started("c1", "ls", "other", Value::Null),
                ended("c1", "ls", ToolStatus::Succeeded, Value::Null, json!({"code": 0})),
            ]
        );
    }

    #[test]
    fn a_call_begins_once_keeps_its_name_and_takes_the_input_that_comes_later() {
        let mut calls = ToolCalls::default();
        assert_eq!(feed(&mut calls, json!({"toolCallId": "c1", "title": "bash", "rawInput": {}})).len(), 1);
        let input = json!({"command": "ls"});
        assert_eq!(feed(&mut calls, json!({"toolCallId": "c1", "title": "List", "rawInput": input})), []);
        assert_eq!(
            feed(&mut calls, json!({"toolCallId": "c1", "status": "failed"})),
            [ended("c1", "bash", ToolStatus::Failed, input, Value::Null)]
        );
    }

    #[test]
    fn late_words_about_an_ended_call_and_words_without_an_id_are_dropped() {
        let mut calls = ToolCalls::default();
        let end = json!({"toolCallId": "c1", "title": "ls", "status": "completed"});
        assert_eq!(feed(&mut calls, end.clone()).len(), 2);
        assert_eq!(feed(&mut calls, end), []);
        assert_eq!(feed(&mut calls, json!({"title": "ls", "status": "completed"})), []);
    }

    #[test]
    fn changes_told_before_the_end_count_when_the_end_does_not_tell_them_and_never_when_it_failed() {
        let content = json!([{"type": "diff", "path": "/space/a", "oldText": null, "newText": "x"}]);
        let mut calls = ToolCalls::default();
        feed(&mut calls, json!({"toolCallId": "c1", "title": "Edit", "content": content}));
        let outputs = feed(&mut calls, json!({"toolCallId": "c1", "status": "completed"}));
        assert_eq!(outputs[0], changed("a".into(), FileOperation::Create));
        let outputs = feed(
            &mut calls,
            json!({"toolCallId": "c2", "title": "Edit", "status": "failed", "content": content}),
        );
        assert!(!outputs.iter().any(|output| matches!(output, Output::FileChanged { .. })));
    }

    #[test]
    fn open_calls_end_as_failed_in_the_order_of_their_beginnings() {
        let mut calls = ToolCalls::default();
        feed(&mut calls, json!({"toolCallId": "z", "title": "first"}));
        feed(&mut calls, json!({"toolCallId": "a", "title": "second"}));
        calls.question(json!({"toolCallId": "q", "title": "asked only"}), &Roots::plain("/space"));
        let outputs = calls.end_all("the turn ended");
        let why = json!("the turn ended");
        assert_eq!(
            outputs,
            [
                ended("z", "first", ToolStatus::Failed, Value::Null, why.clone()),
                ended("a", "second", ToolStatus::Failed, Value::Null, why),
            ]
        );
        assert_eq!(calls.end_all("again"), []);
    }

    #[test]
    fn a_question_shows_its_own_words_first_then_what_was_told_before() {
        let roots = Roots::plain("/space");
        let mut calls = ToolCalls::default();
        feed(
            &mut calls,
            json!({"toolCallId": "c1", "name": "bash", "title": "Run ls", "kind": "execute", "rawInput": {"command": "ls"}}),
        );
        let question =
            calls.question(json!({"toolCallId": "c1", "title": "Run: ls", "rawInput": {}}), &roots);
        let input = json!({"command": "ls"});
        assert_eq!(
            question,
            Question { tool: "bash".into(), title: "Run: ls".into(), kind: "execute".into(), input }
        );
        let question = calls.question(json!({"toolCallId": "c1"}), &roots);
        assert_eq!((question.tool.as_str(), question.title.as_str()), ("bash", "Run: ls"));
        let named_elsewhere =
            json!({"toolCallId": "c2", "title": "Terminal", "_meta": {"its": {"toolName": "Bash"}}});
        let mut customs = ToolCalls::of(ToolCustoms {
            tool_name_at: Some("/_meta/its/toolName".into()),
            ..ToolCustoms::default()
        });
        customs.update(named_elsewhere, &roots);
        let question = customs.question(json!({"toolCallId": "c2", "title": "ls -l"}), &roots);
        assert_eq!((question.tool.as_str(), question.title.as_str()), ("Bash", "ls -l"));
        let content = json!([{"type": "content", "content": {"type": "text", "text": "Delete x?"}}]);
        let question =
            calls.question(json!({"toolCallId": "g", "kind": "delete", "content": content}), &roots);
        assert_eq!(
            question,
            Question { tool: "delete".into(), title: "delete".into(), kind: "delete".into(), input: content }
        );
        let question = calls.question(json!({}), &roots);
        assert_eq!((question.tool.as_str(), question.kind.as_str()), ("tool", "other"));
    }

    #[test]
    fn a_question_is_shown_without_what_names_the_occasion_alone() {
        let occasional_input = vec!["call_id".to_owned(), "at".to_owned()];
        let mut calls = ToolCalls::of(ToolCustoms { occasional_input, ..ToolCustoms::default() });
        let mut ask = |call_id: &str| {
            let input = json!({"call_id": call_id, "at": 1, "command": ["ls"]});
            calls.question(
                json!({"toolCallId": call_id, "title": "ls", "rawInput": input}),
                &Roots::plain("/space"),
            )
        };
        assert_eq!(ask("c1").input, json!({"command": ["ls"]}));
        assert_eq!(ask("c1"), ask("c2"));
    }

    #[test]
    fn a_question_that_comes_first_names_the_call_that_follows() {
        let mut calls = ToolCalls::default();
        let input = json!({"command": ["ls"]});
        calls.question(
            json!({"toolCallId": "c1", "title": "ls", "kind": "execute", "rawInput": input}),
            &Roots::plain("/space"),
        );
        assert_eq!(
            feed(&mut calls, json!({"toolCallId": "c1", "status": "completed"})),
            [
                started("c1", "ls", "execute", input.clone()),
                ended("c1", "ls", ToolStatus::Succeeded, input, Value::Null),
            ]
        );
    }

    #[test]
    fn what_is_remembered_of_a_call_is_bounded() {
        let mut calls = ToolCalls::default();
        let large = "x".repeat(KEPT_MAX_BYTES + 1);
        feed(&mut calls, json!({"toolCallId": "c1", "title": "t", "rawInput": {"text": large}}));
        assert!(weight(calls.open["c1"].input.as_ref().unwrap()) < KEPT_MAX_BYTES / 1000);
        for i in 0..2 * OPEN_MAX {
            feed(&mut calls, json!({"toolCallId": format!("n{i}"), "title": "t"}));
            feed(&mut calls, json!({"toolCallId": format!("e{i}"), "title": "t", "status": "completed"}));
        }
        assert_eq!((calls.open.len(), calls.ended.len()), (OPEN_MAX, ENDED_MAX));
        calls.end_all("over");
        for i in 0..100 {
            let input = json!({"text": "x".repeat(KEPT_MAX_BYTES / 2)});
            feed(&mut calls, json!({"toolCallId": format!("m{i}"), "title": "t", "rawInput": input}));
        }
        let kept: usize = calls.open.values().map(Call::weight).sum();
        assert_eq!((calls.open.len(), calls.open_bytes), (100, kept));
        assert!(kept <= OPEN_MAX_BYTES, "{kept}");
        feed(&mut calls, json!({"toolCallId": "m0", "title": "t", "status": "completed"}));
        assert_eq!(calls.open_bytes, calls.open.values().map(Call::weight).sum::<usize>());
    }
}
