//! The effects ledger: one JSON line in the workspace for each prompt taken up, each decision received and each tool
//! executed. Tests count its lines; so each is on disk before the demo goes on.

use serde::Serialize;

use super::workspace::Workspace;
use crate::domain::approval::Decision;
use crate::domain::turn::Failure;
use crate::ids::TurnId;

/// The ledger's name in the workspace.
pub(super) const LEDGER: &str = "effects.jsonl";
const NAME_CHARS: usize = 40;

/// One line.
#[derive(Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum Effect {
    /// A prompt was taken up.
    Prompt {
        /// Its first characters.
        name: String,
    },
    /// A decision came.
    Decision {
        /// The question.
        name: String,
        /// The question.
        approval: String,
        /// Yes or no.
        decision: Decision,
    },
    /// A tool is executed: written before it is, so that a line may stand for a tool that did not get to run, but never
    /// a tool run without a line.
    Tool {
        /// The tool.
        name: String,
        /// The call.
        call: String,
    },
}

#[derive(Serialize)]
struct Line<'a> {
    turn_id: &'a TurnId,
    #[serde(flatten)]
    effect: &'a Effect,
}

impl Effect {
    pub fn prompt(text: &str) -> Self {
        Self::Prompt { name: text.chars().take(NAME_CHARS).collect() }
    }

    pub fn decision(native_id: &str, decision: Decision) -> Self {
        Self::Decision { name: native_id.to_owned(), approval: native_id.to_owned(), decision }
    }

    pub fn tool(name: &str, call: &str) -> Self {
        Self::Tool { name: name.to_owned(), call: call.to_owned() }
    }

    /// Appends the line and returns when it is on disk.
    ///
    /// # Errors
    /// `ledger_failed`: what was about to happen must not.
    pub async fn record(&self, workspace: &Workspace, turn_id: &TurnId) -> Result<(), Failure> {
        let failed =
            |error: String| Failure::new("ledger_failed", format!("{LEDGER} cannot be written: {error}"));
        let mut line = serde_json::to_string(&Line { turn_id, effect: self })
            .map_err(|error| failed(error.to_string()))?;
        line.push('\n');
        workspace.append(LEDGER, line).await.map_err(|error| failed(error.to_string()))
    }
}
