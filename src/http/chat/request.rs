//! What a completion request asks for. Clients of this format know more fields each year: what is not known here is let pass.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::conversation::{Conversation, Message};
use crate::domain::limits::is_name;
use crate::http::error::{ApiError, ApiResult, ErrorCode};
use crate::ids::{SessionId, TurnId};

/// A completion request. Sampling parameters (temperature, top_p, max_tokens, stop, seed, …) and `user` are taken and without effect:
/// the operator's model configuration decides.
#[derive(Deserialize, ToSchema)]
pub struct ChatCompletionBody {
    /// A name from `GET /v1/models`, or `HARNESS/MODEL`: that harness, with MODEL in its settings.
    model: String,
    /// The last one is the user's. A fresh session gets system and developer texts as its instructions, and what was said before as a
    /// transcript in front of the prompt; one that is named in `metadata` has its own history, and gets the user's last messages alone.
    messages: Vec<ChatMessageBody>,
    /// Whether the answer comes as it is said.
    stream: Option<bool>,
    /// Of a stream.
    stream_options: Option<ChatStreamOptionsBody>,
    /// At most 16 pairs. `session_id` follows up in that session; with `turn_id` nothing is asked, and the answer is that turn's. The
    /// rest is kept with the session, or in a follow-up with its turn.
    metadata: Option<BTreeMap<String, String>>,
    /// 1.
    n: Option<u64>,
    /// Refused unless empty: tools are the session's.
    #[schema(value_type = Option<Vec<Object>>)]
    tools: Option<Value>,
    /// Likewise.
    #[schema(value_type = Option<Vec<Object>>)]
    functions: Option<Value>,
    /// `{"type":"text"}`.
    #[schema(value_type = Option<Object>)]
    response_format: Option<Value>,
    /// `["text"]`.
    modalities: Option<Vec<String>>,
}

/// What a stream tells beside the words.
#[derive(Deserialize, ToSchema)]
pub struct ChatStreamOptionsBody {
    /// A last chunk with the usage.
    include_usage: Option<bool>,
}

/// Who says something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = ChatRole)]
pub enum Role {
    /// Instructions.
    System,
    /// Instructions as well.
    Developer,
    /// The one who asks.
    User,
    /// The one who answers.
    Assistant,
    /// What a tool gave.
    Tool,
}

/// One message.
#[derive(Deserialize, ToSchema)]
pub struct ChatMessageBody {
    #[schema(inline)]
    role: Role,
    /// Text, or parts; may be null where an assistant called tools.
    #[schema(inline)]
    content: Option<ChatContentBody>,
    /// Of an assistant's message: told in the transcript.
    #[schema(value_type = Option<Vec<Object>>)]
    tool_calls: Option<Vec<Value>>,
    /// Of a tool's message: told in the transcript.
    tool_call_id: Option<String>,
}

/// Text, or parts.
#[derive(Deserialize, ToSchema)]
#[serde(untagged, expecting = "content is a text or a list of parts {\"type\":\"text\",\"text\":…}")]
pub enum ChatContentBody {
    /// Text.
    Text(String),
    /// Parts, one below the other.
    Parts(#[schema(inline)] Vec<ChatPartBody>),
}

/// A part of a message.
#[derive(Deserialize, ToSchema)]
pub struct ChatPartBody {
    /// `text`.
    r#type: String,
    /// The text.
    text: Option<String>,
}

/// The harness, and its model where one is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelName {
    /// As it was asked.
    pub asked: String,
    /// The harness's name.
    pub harness: String,
    /// What becomes `settings.model`.
    pub model: Option<String>,
}

/// What a request asks for.
#[derive(Debug)]
pub struct Asked {
    /// Of whom.
    pub model: ModelName,
    /// Whether the answer comes as it is said.
    pub streams: bool,
    /// Whether a stream tells the usage.
    pub usage: bool,
    /// What.
    pub question: Question,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// A fresh session.
    Fresh(Conversation, BTreeMap<String, String>),
    /// A follow-up in a session.
    FollowUp(SessionId, String, BTreeMap<String, String>),
    /// Nothing: the answer is wanted that a turn has come to.
    Collect(SessionId, TurnId),
}

fn wrong(param: impl Into<String>, words: &str) -> ApiError {
    let param = param.into();
    ApiError::new(ErrorCode::InvalidInput, format!("{param}: {words}")).with("param", param)
}

fn unsupported(param: impl Into<String>, words: &str) -> ApiError {
    let param = param.into();
    ApiError::new(ErrorCode::Unsupported, format!("{param}: {words}")).with("param", param)
}

impl ChatCompletionBody {
    /// What it asks for.
    ///
    /// # Errors
    /// `invalid_input` and `unsupported`, naming the parameter; `not_found` for ids of the wrong form.
    pub fn read(self) -> ApiResult<Asked> {
        self.refuse_unsupported()?;
        let model = ModelName::read(self.model)?;
        let usage = self.stream_options.and_then(|options| options.include_usage).unwrap_or_default();
        let mut metadata = self.metadata.unwrap_or_default();
        let (session, turn) = (metadata.remove("session_id"), metadata.remove("turn_id"));
        let messages = read_messages(self.messages)?;
        let question = match (session, turn) {
            (None, None) => Question::Fresh(converse(messages)?, metadata),
            (None, Some(_)) => return Err(wrong("metadata.turn_id", "goes with a session_id")),
            (Some(session), turn) => {
                let session = SessionId::parse(&session).ok_or_else(ApiError::not_found)?;
                match turn {
                    None => Question::FollowUp(session, converse(messages)?.message, metadata),
                    Some(turn) => {
                        Question::Collect(session, TurnId::parse(&turn).ok_or_else(ApiError::not_found)?)
                    }
                }
            }
        };
        Ok(Asked { model, streams: self.stream.unwrap_or_default(), usage, question })
    }

    fn refuse_unsupported(&self) -> ApiResult<()> {
        if self.n.is_some_and(|n| n != 1) {
            return Err(unsupported("n", "is 1: a turn has one answer"));
        }
        for (param, value) in [("tools", &self.tools), ("functions", &self.functions)] {
            let none =
                value.as_ref().is_none_or(|value| value.is_null() || *value == Value::Array(Vec::new()));
            if !none {
                return Err(unsupported(
                    param,
                    "tools are the session's: the operator and its settings name them",
                ));
            }
        }
        let text = |format: &Value| format.is_null() || format["type"] == "text";
        if !self.response_format.as_ref().is_none_or(text) {
            return Err(unsupported("response_format", "the answer is text"));
        }
        if self.modalities.iter().flatten().any(|modality| modality != "text") {
            return Err(unsupported("modalities", "the answer is text"));
        }
        Ok(())
    }
}

impl ModelName {
    fn read(asked: String) -> ApiResult<Self> {
        let (harness, model) = match asked.split_once('/') {
            Some((harness, model)) => (harness, Some(model)),
            None => (asked.as_str(), None),
        };
        if !is_name(&asked) || harness.is_empty() || model.is_some_and(str::is_empty) {
            return Err(wrong("model", "is a harness of GET /v1/models, or HARNESS/MODEL"));
        }
        let (harness, model) = (harness.to_owned(), model.map(str::to_owned));
        Ok(Self { asked, harness, model })
    }
}

fn read_messages(bodies: Vec<ChatMessageBody>) -> ApiResult<Vec<Message>> {
    if bodies.is_empty() {
        return Err(wrong("messages", "has at least one message"));
    }
    bodies.into_iter().enumerate().map(|(index, body)| read_message(index, body)).collect()
}

fn converse(messages: Vec<Message>) -> ApiResult<Conversation> {
    Conversation::of(messages).ok_or_else(|| wrong("messages", "the last message is the user's"))
}

fn read_message(index: usize, body: ChatMessageBody) -> ApiResult<Message> {
    let param = || format!("messages[{index}].content");
    let text = match body.content {
        Some(ChatContentBody::Text(text)) => text,
        Some(ChatContentBody::Parts(parts)) => {
            let mut texts = Vec::with_capacity(parts.len());
            for part in parts {
                if part.r#type != "text" {
                    let shown: String = part.r#type.chars().take(SHOWN_CHARS).collect();
                    return Err(unsupported(
                        param(),
                        &format!("a part of type {shown:?} is not taken, only text"),
                    ));
                }
                texts.push(part.text.ok_or_else(|| wrong(param(), "a part of type text has a text"))?);
            }
            texts.join("\n")
        }
        None if body.role == Role::Assistant => String::new(),
        None => return Err(wrong(param(), "is required")),
    };
    let tool_calls = body.tool_calls.unwrap_or_default();
    Ok(Message { role: body.role, text, tool_calls, tool_call_id: body.tool_call_id })
}

/// So much of a word of the caller's stands in a refusal.
const SHOWN_CHARS: usize = 64;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: &Value) -> ApiResult<Asked> {
        let body: ChatCompletionBody = serde_json::from_value(body.clone())
            .map_err(|error| ApiError::new(ErrorCode::InvalidBody, error.to_string()))?;
        body.read()
    }

    fn refused(body: &Value) -> (ErrorCode, String) {
        let error = read(body).expect_err("refused");
        (error.code(), error.detail().to_owned())
    }

    fn ask(messages: &Value) -> Value {
        json!({"model": "demo", "messages": messages})
    }

    #[test]
    fn row_96_what_is_no_conversation_is_refused() {
        for wrong in [
            json!({}),
            json!({"model": "demo"}),
            json!({"messages": [{"role": "user", "content": "x"}]}),
            ask(&json!(5)),
            ask(&json!([5])),
            ask(&json!([{}])),
            ask(&json!([{"role": "user", "content": {}}])),
            ask(&json!([{"role": "user", "content": 5}])),
            ask(&json!([{"role": "narrator", "content": "x"}])),
        ] {
            assert_eq!(refused(&wrong).0, ErrorCode::InvalidBody, "{wrong}");
        }
        for wrong in [
            ask(&json!([])),
            ask(&json!([{"role": "user"}])),
            ask(&json!([{"role": "user", "content": null}])),
            ask(&json!([{"role": "system", "content": "x"}])),
            ask(&json!([{"role": "assistant", "content": "x"}])),
            ask(&json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}])),
            ask(&json!([{"role": "user", "content": [{"type": "text"}]}])),
            json!({"model": "", "messages": [{"role": "user", "content": "x"}]}),
            json!({"model": "x".repeat(201), "messages": [{"role": "user", "content": "x"}]}),
            json!({"model": "demo/", "messages": [{"role": "user", "content": "x"}]}),
            json!({"model": "/m", "messages": [{"role": "user", "content": "x"}]}),
            json!({"model": "demo", "messages": [{"role": "user", "content": "x"}], "metadata": {"turn_id": "x"}}),
        ] {
            assert_eq!(refused(&wrong).0, ErrorCode::InvalidInput, "{wrong}");
        }
    }

    #[test]
    fn what_a_turn_cannot_give_is_refused_by_name_and_what_is_not_known_is_let_pass() {
        let with = |field: &str, value: Value| {
            let mut body = ask(&json!([{"role": "user", "content": "x"}]));
            body[field] = value;
            body
        };
        for (field, value) in [
            ("n", json!(2)),
            ("n", json!(0)),
            ("tools", json!([{"type": "function"}])),
            ("functions", json!([{"name": "f"}])),
            ("response_format", json!({"type": "json_object"})),
            ("modalities", json!(["text", "audio"])),
        ] {
            let (code, words) = refused(&with(field, value));
            assert_eq!(code, ErrorCode::Unsupported, "{field}");
            assert!(words.starts_with(&format!("{field}: ")), "{words}");
        }
        let image =
            ask(&json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]));
        let (code, words) = refused(&image);
        assert_eq!(code, ErrorCode::Unsupported);
        assert!(words.contains("messages[0].content") && words.contains("image_url"), "{words}");
        for (field, value) in [
            ("n", json!(1)),
            ("tools", json!([])),
            ("tools", Value::Null),
            ("response_format", json!({"type": "text"})),
            ("modalities", json!(["text"])),
            ("temperature", json!(0.2)),
            ("max_completion_tokens", json!(5)),
            ("stop", json!(["a"])),
            ("user", json!("alice")),
            ("something_of_next_year", json!({"a": [1]})),
        ] {
            assert!(read(&with(field, value)).is_ok(), "{field}");
        }
    }

    #[test]
    fn a_model_is_a_harness_or_a_harness_and_its_model() {
        let of = |model: &str| ModelName::read(model.to_owned()).unwrap();
        assert_eq!((of("agent").harness.as_str(), of("agent").model), ("agent", None));
        let named = of("agent/openai/gpt-x");
        assert_eq!(
            (named.harness.as_str(), named.model.as_deref(), named.asked.as_str()),
            ("agent", Some("openai/gpt-x"), "agent/openai/gpt-x")
        );
    }

    #[test]
    fn a_session_that_is_named_gets_the_users_last_messages_alone() {
        let (session, turn) = (SessionId::mint(), TurnId::mint());
        let mut body = ask(&json!([
            {"role": "system", "content": "s"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"}, {"role": "user", "content": "d"},
        ]));
        body["metadata"] = json!({"session_id": session, "k": "v"});
        let rest = BTreeMap::from([("k".to_owned(), "v".to_owned())]);
        assert_eq!(read(&body).unwrap().question, Question::FollowUp(session.clone(), "c\n\nd".into(), rest));
        // To collect an answer nothing needs to be asked.
        body["messages"] = json!([{"role": "assistant", "content": "b"}]);
        assert_eq!(refused(&body).0, ErrorCode::InvalidInput);
        body["metadata"]["turn_id"] = json!(turn);
        assert_eq!(read(&body).unwrap().question, Question::Collect(session, turn));
        body["metadata"]["turn_id"] = json!("nonsense");
        assert_eq!(refused(&body).0, ErrorCode::NotFound);
        body["metadata"] = json!({"session_id": "nonsense"});
        body["messages"] = json!([{"role": "user", "content": "c"}]);
        assert_eq!(refused(&body).0, ErrorCode::NotFound);
    }
}
