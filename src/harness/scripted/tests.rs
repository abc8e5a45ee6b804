//! The demo driven as the service drives it: through the trait.

mod approvals;
mod directives;
mod lifecycle;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::ScriptedHarness;
use crate::domain::approval::Decision;
use crate::domain::event::{Output, ToolEnd};
use crate::domain::turn::Prompt;
use crate::harness::rig::{self, Live, answer, code, within};
use crate::harness::{
    Answer, ApprovalRequest, Continuity, Fence, Harness, HarnessEvent, StartOptions, TurnInput, TurnOutcome,
};
use crate::ids::TurnId;

fn settings() -> Value {
    json!({ "token_delay_ms": 0 })
}

fn options(workspace: &TempDir, resume: Option<Value>) -> StartOptions {
    rig::options(workspace, &settings(), resume)
}

/// A live demo in a workspace of its own.
async fn live() -> Live {
    start(tempfile::tempdir().unwrap(), None).await
}

async fn start(workspace: TempDir, resume: Option<Value>) -> Live {
    Live::start(Arc::new(ScriptedHarness), settings(), workspace, resume).await
}

impl Live {
    fn ledger(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.workspace.path().join("effects.jsonl")).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The names of the ledger's lines of one kind.
    fn effects(&self, kind: &str) -> Vec<String> {
        let lines = self.ledger().into_iter().filter(|line| line["kind"] == kind);
        lines.map(|line| line["name"].as_str().unwrap().to_owned()).collect()
    }
}
