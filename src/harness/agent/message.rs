//! The conversation with the model, as it is kept and as the model is given it.

use serde::{Deserialize, Serialize};

/// How a tool call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    /// It did what it should.
    Succeeded,
    /// It did not, was denied, or was not allowed.
    Failed,
    /// It had begun when its process was lost, or when it was cancelled: it may have happened.
    Uncertain,
}

/// A tool call, as the model made it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ToolCall {
    /// Unique in its turn.
    pub id: String,
    /// The tool.
    pub name: String,
    /// The model's text, which should be a JSON object.
    pub arguments: String,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub(super) enum Message {
    /// What the model is told of its place.
    System {
        /// The words.
        content: String,
    },
    /// What a person or the harness says.
    User {
        /// The words.
        content: String,
    },
    /// What the model says and wants done.
    Assistant {
        /// The words; empty where there are only calls.
        content: String,
        /// The calls.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<ToolCall>,
    },
    /// What came of a call.
    Tool {
        /// The call.
        tool_call_id: String,
        /// The words for the model.
        content: String,
        /// How it ended.
        outcome: Outcome,
    },
}
