//! Turns: one prompt and all that it causes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::limits::TITLE_CHARS;
use super::scope::named_values;
use crate::clock::Timestamp;
use crate::ids::TurnId;

/// A turn's place in its session: 1, 2, 3 …
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Ordinal(pub i64);

/// A turn's place and id, as its events need them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnRef {
    /// Its place.
    pub ordinal: Ordinal,
    /// Its id.
    pub id: TurnId,
}

/// Where a turn stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnStatus {
    /// Accepted, not yet given to the harness.
    Queued,
    /// Given to the harness.
    Running,
    /// Given to the harness, which waits for a person.
    AwaitingApproval,
    /// Ended by the harness in the ordinary way.
    Completed,
    /// Ended with an error.
    Failed,
    /// Ended because somebody asked for it.
    Cancelled,
    /// The process that ran it was lost. Never replayed on its own.
    Interrupted,
    /// Worked for longer than its limit.
    TimedOut,
}

named_values!(TurnStatus {
    Queued => "queued",
    Running => "running",
    AwaitingApproval => "awaiting_approval",
    Completed => "completed",
    Failed => "failed",
    Cancelled => "cancelled",
    Interrupted => "interrupted",
    TimedOut => "timed_out",
});

impl TurnStatus {
    /// Whether nothing more comes of the turn.
    pub fn is_terminal(self) -> bool {
        !matches!(self, Self::Queued | Self::Running | Self::AwaitingApproval)
    }
}

/// One block of a prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ContentBlock {
    /// Plain text.
    Text {
        /// The text.
        text: String,
    },
}

/// What a person or a program says to the harness: text, or content blocks. Never blank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Prompt {
    /// Plain text.
    Text(String),
    /// Content blocks.
    Blocks(Vec<ContentBlock>),
}

/// A prompt without a word in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the prompt is blank")]
pub struct BlankPrompt;

impl Prompt {
    /// The prompt with white space trimmed from both ends.
    ///
    /// # Errors
    /// [`BlankPrompt`] when nothing is left.
    pub fn trimmed(self) -> Result<Self, BlankPrompt> {
        let trimmed = match self {
            Self::Text(text) => Self::Text(text.trim().to_owned()),
            Self::Blocks(blocks) => Self::Blocks(
                blocks
                    .into_iter()
                    .map(|ContentBlock::Text { text }| ContentBlock::Text { text: text.trim().to_owned() })
                    .filter(|ContentBlock::Text { text }| !text.is_empty())
                    .collect(),
            ),
        };
        if trimmed.text().is_empty() { Err(BlankPrompt) } else { Ok(trimmed) }
    }

    /// The prompt as one text, blocks one below the other.
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Blocks(blocks) => {
                let texts: Vec<&str> =
                    blocks.iter().map(|ContentBlock::Text { text }| text.as_str()).collect();
                texts.join("\n")
            }
        }
    }

    /// A session's title when its caller gave none: the first characters of the first line.
    pub fn title(&self) -> String {
        self.text().lines().next().unwrap_or_default().chars().take(TITLE_CHARS).collect()
    }
}

/// Why a turn or a session failed: a stable code and words for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Stable, snake_case.
    pub code: String,
    /// For people; may change.
    pub message: String,
}

impl Failure {
    /// A failure of that code.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into() }
    }
}

/// Tokens that a model used. `complete` is false when a turn ended without a word about its usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens read.
    pub input_tokens: u64,
    /// Tokens written.
    pub output_tokens: u64,
    /// Whether every turn reported its usage.
    pub complete: bool,
}

impl Usage {
    /// Nothing used yet, nothing missing.
    pub const NONE: Self = Self { input_tokens: 0, output_tokens: 0, complete: true };
    /// Nothing is known.
    pub const UNKNOWN: Self = Self { input_tokens: 0, output_tokens: 0, complete: false };

    /// The sum of both; complete only when both are.
    pub fn plus(self, other: Self) -> Self {
        Self {
            input_tokens: self.input_tokens.saturating_add(other.input_tokens),
            output_tokens: self.output_tokens.saturating_add(other.output_tokens),
            complete: self.complete && other.complete,
        }
    }
}

/// A turn's row.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// The id.
    pub id: TurnId,
    /// Its place in the session.
    pub ordinal: Ordinal,
    /// What was said.
    pub prompt: Prompt,
    /// Where it stands.
    pub status: TurnStatus,
    /// The harness's own word for why it ended, where it gave one.
    pub stop_reason: Option<String>,
    /// What the agent said, once the turn has ended.
    pub text: Option<String>,
    /// Why it failed.
    pub error: Option<Failure>,
    /// Tokens used.
    pub usage: Usage,
    /// Whether a new process took the conversation up for it.
    pub rehydrated: bool,
    /// The caller's own pairs.
    pub metadata: BTreeMap<String, String>,
    /// The W3C trace context that came with the prompt.
    pub traceparent: Option<String>,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When it was given to the harness.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
}

impl Turn {
    /// A turn that waits.
    pub fn queued(ordinal: Ordinal, prompt: Prompt, at: Timestamp) -> Self {
        Self {
            id: TurnId::mint(),
            ordinal,
            prompt,
            status: TurnStatus::Queued,
            stop_reason: None,
            text: None,
            error: None,
            usage: Usage::NONE,
            rehydrated: false,
            metadata: BTreeMap::new(),
            traceparent: None,
            created_at: at,
            started_at: None,
            ended_at: None,
        }
    }

    /// The turn's place and id.
    pub fn reference(&self) -> TurnRef {
        TurnRef { ordinal: self.ordinal, id: self.id.clone() }
    }
}

/// How a turn ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TurnEnd {
    /// The harness is done.
    Completed {
        /// Its own word for why.
        stop_reason: String,
    },
    /// It failed.
    Failed(Failure),
    /// Somebody asked for it.
    Cancelled,
    /// Its process was lost; `delivery_known` tells whether the prompt had surely arrived.
    Interrupted {
        /// False when the prompt or a decision may or may not have reached the harness.
        delivery_known: bool,
    },
    /// It worked for too long.
    TimedOut,
}

impl TurnEnd {
    /// The status that a turn ends with.
    pub fn status(&self) -> TurnStatus {
        match self {
            Self::Completed { .. } => TurnStatus::Completed,
            Self::Failed(_) => TurnStatus::Failed,
            Self::Cancelled => TurnStatus::Cancelled,
            Self::Interrupted { .. } => TurnStatus::Interrupted,
            Self::TimedOut => TurnStatus::TimedOut,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_trimmed_and_a_blank_one_is_refused() {
        assert_eq!(Prompt::Text(" next task\n".into()).trimmed(), Ok(Prompt::Text("next task".into())));
        assert_eq!(Prompt::Text(" \n\t".into()).trimmed(), Err(BlankPrompt));
        assert_eq!(Prompt::Blocks(vec![]).trimmed(), Err(BlankPrompt));
        let blocks: Prompt =
            serde_json::from_str(r#"[{"type":"text","text":" a "},{"type":"text","text":" "}]"#).unwrap();
        assert_eq!(blocks.trimmed().unwrap().text(), "a");
    }

    #[test]
    fn a_title_is_the_first_eighty_characters_of_the_first_line() {
        assert_eq!(Prompt::Text("Fix it\nand more".into()).title(), "Fix it");
        assert_eq!(Prompt::Text("é".repeat(200)).title().chars().count(), 80);
    }

    #[test]
    fn row_77_usage_is_summed_and_is_incomplete_as_soon_as_one_part_is() {
        let known = Usage { input_tokens: 3, output_tokens: 4, complete: true };
        assert_eq!(Usage::NONE.plus(known), known);
        assert!(!known.plus(Usage::UNKNOWN).complete);
    }

    #[test]
    fn every_status_is_read_back_from_its_name() {
        for status in TurnStatus::ALL {
            assert_eq!(TurnStatus::parse(status.as_str()), Some(*status));
        }
        assert_eq!(TurnStatus::parse("weird"), None);
    }
}
