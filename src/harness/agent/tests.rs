//! The agent driven as the service drives it, with the scripted model at the other end.

mod answers;
mod limits;
mod policy;
mod restored;

use std::sync::Arc;

use serde_json::{Value, json};

use super::AgentHarness;
use super::model::tests::chat::ChatModel;
use crate::domain::approval::Decision;
use crate::domain::event::{Output, RewindReason, ToolEnd, ToolStatus};
use crate::harness::child::Launcher;
use crate::harness::rig::{self, Live, Seen, answer, code};
use crate::harness::{Answer, Availability, Continuity, Harness, HarnessConfig, StartOptions, TurnOutcome};

/// A model and an agent at work with it.
struct Rig {
    model: ChatModel,
    live: Live,
}

/// An agent with that in its table beside the model, streaming or not.
fn harness(model: &ChatModel, table: &str, stream: bool) -> Arc<dyn Harness> {
    let text = format!(
        "{table}\n[models.main]\nbase_url = {:?}\nmodel = \"scripted\"\ncontext_window = 100000\nstream = {stream}\nattempts = 3\n",
        model.base_url(),
    );
    let launcher = Launcher::of_this_program(Vec::new());
    Arc::new(AgentHarness::new("agent", toml::from_str(&text).unwrap(), launcher).unwrap())
}

/// Settings without a plan, and with that.
fn settings(more: Value) -> Value {
    let mut settings = json!({"version": 1, "planning": {"mode": "off"}});
    settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    settings
}

impl Rig {
    async fn new(more: Value) -> Self {
        Self::with("", more, true).await
    }

    async fn with(table: &str, more: Value, stream: bool) -> Self {
        let model = ChatModel::start();
        let harness = harness(&model, table, stream);
        let settings = harness.validate(&settings(more)).unwrap();
        let live = Live::start(harness, settings, tempfile::tempdir().unwrap(), None).await;
        Self { model, live }
    }

    /// Runs a whole turn that asks nothing.
    async fn turn(&mut self, script: &str) -> Seen {
        self.live.turn(script).await
    }

    /// The messages of the last request, each as its role and its words.
    fn last_messages(&self) -> Vec<(String, String)> {
        let requests = self.model.requests();
        let messages = requests.last().unwrap()["messages"].as_array().unwrap().clone();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        messages.iter().map(|message| (text(&message["role"]), text(&message["content"]))).collect()
    }
}

/// The words that stand when all is read.
fn words(seen: &Seen) -> String {
    let mut words = String::new();
    for output in &seen.outputs {
        match output {
            Output::TextDelta { text } => words.push_str(text),
            Output::TextRewound { length, .. } => words = words.chars().take(*length as usize).collect(),
            _ => {}
        }
    }
    words
}

fn failure(seen: &Seen) -> (&str, &str) {
    match &seen.ended {
        Some(TurnOutcome::Failed(failure)) => (&failure.code, &failure.message),
        other => panic!("not failed: {other:?}"),
    }
}
