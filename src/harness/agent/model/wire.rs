//! Chat completions as they are on the wire: strict in what is sent, tolerant of what comes.

use bytes::Bytes;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use super::{ModelRequest, ToolSpec};
use crate::domain::turn::Usage;
use crate::harness::agent::message::{Message, ToolCall};

/// What of a request is the model's own.
pub(super) struct Customs<'a> {
    pub(super) model: &'a str,
    pub(super) stream: bool,
    pub(super) max_tokens: Option<u64>,
}

#[derive(Serialize)]
struct Request<'a> {
    model: &'a str,
    messages: Vec<Said<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tagged<'a, &'a ToolSpec>>,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_options: Option<StreamOptions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_format: Option<ResponseFormat>,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Serialize)]
struct ResponseFormat {
    r#type: &'static str,
}

/// A message. An assistant's that has only calls has null as its content: some providers refuse an empty text there.
#[derive(Serialize)]
struct Said<'a> {
    role: &'static str,
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Tagged<'a, Called<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<&'a str>,
}

/// A function, with the id of a call where it is one.
struct Tagged<'a, T> {
    id: Option<&'a str>,
    function: T,
}

#[derive(Serialize)]
struct Called<'a> {
    name: &'a str,
    arguments: &'a str,
}

impl<T: Serialize> Serialize for Tagged<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Whole<'a, T> {
            #[serde(skip_serializing_if = "Option::is_none")]
            id: Option<&'a str>,
            r#type: &'static str,
            function: &'a T,
        }
        Whole { id: self.id, r#type: "function", function: &self.function }.serialize(serializer)
    }
}

impl<'a> Said<'a> {
    fn plain(role: &'static str, content: &'a str) -> Self {
        Self { role, content: Some(content), tool_calls: Vec::new(), tool_call_id: None }
    }

    fn from(message: &'a Message) -> Self {
        match message {
            Message::System { content } => Self::plain("system", content),
            Message::User { content } | Message::Note { content } => Self::plain("user", content),
            Message::Assistant { content, tool_calls } => Self {
                content: (!content.is_empty() || tool_calls.is_empty()).then_some(content),
                tool_calls: tool_calls.iter().map(called).collect(),
                ..Self::plain("assistant", content)
            },
            Message::Tool { tool_call_id, content, .. } => {
                Self { tool_call_id: Some(tool_call_id), ..Self::plain("tool", content) }
            }
        }
    }
}

fn called(call: &ToolCall) -> Tagged<'_, Called<'_>> {
    Tagged { id: Some(&call.id), function: Called { name: &call.name, arguments: &call.arguments } }
}

/// A request's body.
pub(super) fn body(customs: &Customs<'_>, request: &ModelRequest<'_>) -> serde_json::Result<Bytes> {
    let whole = Request {
        model: customs.model,
        messages: request.messages.iter().map(Said::from).collect(),
        tools: request.tools.iter().map(|tool| Tagged { id: None, function: tool }).collect(),
        stream: customs.stream,
        stream_options: customs.stream.then_some(StreamOptions { include_usage: true }),
        max_tokens: customs.max_tokens,
        response_format: request.json_mode.then_some(ResponseFormat { r#type: "json_object" }),
    };
    serde_json::to_vec(&whole).map(Bytes::from)
}

/// A part of a streamed answer, or the whole of one that is not.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Chunk {
    pub(super) choices: Option<Vec<Choice>>,
    usage: Option<Value>,
    pub(super) error: Option<Value>,
}

/// A choice. We ask for one, and so the first is the one.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Choice {
    /// What is new; whole answers call it a message.
    #[serde(alias = "message")]
    pub(super) delta: Option<Delta>,
    pub(super) finish_reason: Option<String>,
}

/// What is new.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Delta {
    content: Option<Content>,
    /// The words with which a model refuses. They are its answer.
    refusal: Option<String>,
    reasoning_content: Option<String>,
    /// Other providers' name for it; not always a text.
    reasoning: Option<Value>,
    pub(super) tool_calls: Option<Vec<CallDelta>>,
}

/// A text, or parts of which some are texts.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Value>),
}

/// What is new of a tool call.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct CallDelta {
    pub(super) index: Option<u64>,
    pub(super) id: Option<String>,
    pub(super) function: Option<FunctionDelta>,
}

/// What is new of its function.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct FunctionDelta {
    pub(super) name: Option<String>,
    arguments: Option<Value>,
}

impl Chunk {
    /// The tokens of the call so far, where it tells them.
    pub(super) fn usage(&self) -> Option<Usage> {
        let usage = self.usage.as_ref()?;
        let count = |names: [&str; 2]| names.into_iter().find_map(|name| usage.get(name)?.as_u64());
        Some(Usage {
            input_tokens: count(["prompt_tokens", "input_tokens"])?,
            output_tokens: count(["completion_tokens", "output_tokens"])?,
            complete: true,
        })
    }
}

impl Delta {
    /// The words of the answer; empty where there are none.
    pub(super) fn take_text(&mut self) -> String {
        let mut text = match self.content.take() {
            Some(Content::Text(text)) => text,
            Some(Content::Parts(parts)) => {
                parts.iter().filter_map(|part| part.get("text")?.as_str()).collect()
            }
            None => String::new(),
        };
        text.push_str(&self.refusal.take().unwrap_or_default());
        text
    }

    /// The words of the reasoning; empty where there are none. What comes under both names is the same.
    pub(super) fn take_thinking(&mut self) -> String {
        match (self.reasoning_content.take(), self.reasoning.take()) {
            (Some(text), _) if !text.is_empty() => text,
            (_, Some(Value::String(text))) => text,
            _ => String::new(),
        }
    }
}

impl FunctionDelta {
    /// The text of the arguments; some providers give the object itself.
    pub(super) fn take_arguments(&mut self) -> String {
        match self.arguments.take() {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text,
            Some(object) => object.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::harness::agent::message::Outcome;

    #[test]
    fn a_request_holds_what_the_protocol_says_and_nothing_else() {
        let call = ToolCall { id: "c1".into(), name: "read".into(), arguments: "{\"a\":1}".into() };
        let messages = [
            Message::System { content: "be".into() },
            Message::User { content: "hi".into() },
            Message::Assistant { content: String::new(), tool_calls: vec![call] },
            Message::Tool {
                tool_call_id: "c1".into(),
                content: "A".into(),
                outcome: Outcome::Failed,
                condensed: false,
            },
            Message::Assistant { content: String::new(), tool_calls: vec![] },
        ];
        let tools = [ToolSpec {
            name: "read".into(),
            description: "Reads.".into(),
            parameters: json!({"type": "object"}),
        }];
        let request = ModelRequest { messages: &messages, tools: &tools, json_mode: false };
        let customs = Customs { model: "m", stream: true, max_tokens: Some(9) };
        let sent: Value = serde_json::from_slice(&body(&customs, &request).unwrap()).unwrap();
        let function = json!({"name": "read", "description": "Reads.", "parameters": {"type": "object"}});
        let expected = json!({
            "model": "m",
            "messages": [
                {"role": "system", "content": "be"},
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": null, "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{\"a\":1}"}}]},
                {"role": "tool", "content": "A", "tool_call_id": "c1"},
                {"role": "assistant", "content": ""},
            ],
            "tools": [{"type": "function", "function": function}],
            "stream": true, "stream_options": {"include_usage": true}, "max_tokens": 9,
        });
        assert_eq!(sent, expected);
        let request = ModelRequest { messages: &messages[..1], tools: &[], json_mode: true };
        let customs = Customs { model: "m", stream: false, max_tokens: None };
        let sent: Value = serde_json::from_slice(&body(&customs, &request).unwrap()).unwrap();
        let format = json!({"type": "json_object"});
        let messages = json!([{"role": "system", "content": "be"}]);
        let expected =
            json!({"model": "m", "messages": messages, "stream": false, "response_format": format});
        assert_eq!(sent, expected);
    }

    #[test]
    fn usage_is_read_under_either_pair_of_names_and_half_of_it_is_none() {
        let usage = |usage: Value| {
            serde_json::from_value::<Chunk>(json!({"usage": usage})).unwrap().usage().map(|usage| {
                assert!(usage.complete);
                (usage.input_tokens, usage.output_tokens)
            })
        };
        assert_eq!(usage(json!({"prompt_tokens": 3, "completion_tokens": 4, "more": {}})), Some((3, 4)));
        assert_eq!(usage(json!({"input_tokens": 3, "output_tokens": 4})), Some((3, 4)));
        assert_eq!(usage(json!({"prompt_tokens": 3})), None);
        assert_eq!(usage(json!("many")), None);
        assert_eq!(usage(Value::Null), None);
    }

    #[test]
    fn words_are_found_where_providers_put_them() {
        let delta = |delta: Value| {
            let mut delta: Delta = serde_json::from_value(delta).unwrap();
            (delta.take_text(), delta.take_thinking())
        };
        let both = |text: &str, thinking: &str| (text.to_owned(), thinking.to_owned());
        assert_eq!(delta(json!({"content": "a", "reasoning_content": "b"})), both("a", "b"));
        assert_eq!(delta(json!({"content": null, "reasoning": "b"})), both("", "b"));
        assert_eq!(delta(json!({"reasoning_content": "b", "reasoning": "b"})), both("", "b"));
        let parts = json!([{"type": "thinking", "thinking": []}, {"type": "text", "text": "a"}]);
        assert_eq!(delta(json!({"content": parts, "reasoning": {"x": 1}})), both("a", ""));
        assert_eq!(delta(json!({"content": null, "refusal": "No."})), both("No.", ""));
    }
}
