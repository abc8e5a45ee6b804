//! A runtime inside the service, driven as the service drives it: through the trait. For the tests of such runtimes.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::domain::approval::{Decision, PermissionMode};
use crate::domain::event::{Output, ToolEnd};
use crate::domain::turn::Prompt;
use crate::harness::{
    Answer, ApprovalRequest, Continuity, Fence, Harness, HarnessError, HarnessEvent, HarnessSession,
    StartOptions, Started, TurnInput, TurnOutcome,
};
use crate::ids::{SessionId, TurnId};

const DEADLINE: Duration = Duration::from_secs(20);

/// A live runtime in a workspace of its own.
pub(super) struct Live {
    pub harness: Arc<dyn Harness>,
    pub settings: Value,
    pub session: Box<dyn HarnessSession>,
    pub events: mpsc::Receiver<HarnessEvent>,
    pub continuity: Continuity,
    pub waits_for: Vec<String>,
    pub workspace: TempDir,
}

/// What a reader that stores every state has seen.
#[derive(Default)]
pub(super) struct Seen {
    pub outputs: Vec<Output>,
    pub asked: Vec<ApprovalRequest>,
    pub states: Vec<Option<Value>>,
    pub ended: Option<TurnOutcome>,
    /// The kinds of all events, in order.
    pub order: Vec<&'static str>,
}

/// The service still waits for the turn that a stored state has at work.
pub(super) fn options(workspace: &TempDir, settings: &Value, resume: Option<Value>) -> StartOptions {
    let open_turn =
        resume.as_ref().and_then(|state| state["turn"]["turn_id"].as_str()).and_then(TurnId::parse);
    let open_turn = open_turn.map(|turn_id| TurnInput { turn_id, prompt: Prompt::Text("x".to_owned()) });
    StartOptions {
        open_turn,
        session_id: SessionId::mint(),
        workspace: workspace.path().to_owned(),
        state_dir: workspace.path().to_owned(),
        instructions: None,
        permission_mode: PermissionMode::Ask,
        denied_tools: crate::domain::policy::DeniedTools::default(),
        settings: settings.clone(),
        resume,
        fence: Fence::open(),
    }
}

pub(super) async fn within<T>(work: impl Future<Output = T>) -> T {
    timeout(DEADLINE, work).await.expect("it does it in time")
}

impl Live {
    /// Starts one; the settings are those that are stored.
    pub async fn start(
        harness: Arc<dyn Harness>,
        settings: Value,
        workspace: TempDir,
        resume: Option<Value>,
    ) -> Self {
        let options = options(&workspace, &settings, resume);
        Self::start_with(harness, workspace, options).await
    }

    /// Starts one with other options than usual.
    pub async fn start_with(harness: Arc<dyn Harness>, workspace: TempDir, options: StartOptions) -> Self {
        let settings = options.settings.clone();
        let started = within(harness.start(options)).await.map_err(|error| error.to_string()).unwrap();
        let Started { session, events, continuity, waits_for, .. } = started;
        Self { harness, settings, session, events, continuity, waits_for, workspace }
    }

    /// Loses the process and starts a new one from `state` in the same workspace.
    pub async fn lost_and_restored(self, state: &Value) -> Self {
        drop((self.session, self.events));
        Self::start(self.harness, self.settings, self.workspace, Some(state.clone())).await
    }

    pub async fn prompt(&self, text: &str) -> TurnId {
        let turn_id = TurnId::mint();
        let turn = TurnInput { turn_id: turn_id.clone(), prompt: Prompt::Text(text.to_owned()) };
        within(self.session.prompt(turn)).await.unwrap();
        turn_id
    }

    pub async fn answer(&self, native_id: &str, decision: Decision) -> Result<(), HarnessError> {
        within(self.session.answer(answer(native_id, decision))).await
    }

    pub async fn approve(&self, native_id: &str) {
        self.answer(native_id, Decision::Approve).await.unwrap();
    }

    pub async fn next(&mut self) -> Option<HarnessEvent> {
        within(self.events.recv()).await
    }

    /// The next checkpoint that waits to be stored, not stored yet. Others before it are passed over.
    pub async fn durable_checkpoint(&mut self) -> (Value, oneshot::Sender<()>) {
        loop {
            match self.next().await.expect("it lives") {
                HarnessEvent::Checkpoint { state, durable: Some(durable) } => {
                    return (state.expect("a state"), durable);
                }
                HarnessEvent::TurnEnded(outcome) => panic!("ended with {outcome:?}"),
                _ => {}
            }
        }
    }

    /// Reads, and stores each state, until the turn has ended.
    pub async fn end(&mut self) -> Seen {
        self.read(|seen| seen.ended.is_some()).await
    }

    /// Reads until so many questions were asked.
    pub async fn asked(&mut self, count: usize) -> Seen {
        self.read(|seen| seen.asked.len() == count).await
    }

    /// Reads until it has put something out that `found` looks for.
    pub async fn output(&mut self, found: impl Fn(&Output) -> bool) -> Seen {
        self.read(|seen| seen.outputs.last().is_some_and(&found)).await
    }

    pub async fn read(&mut self, enough: impl Fn(&Seen) -> bool) -> Seen {
        let mut seen = Seen::default();
        while !enough(&seen) {
            let event = self.next().await.expect("it lives");
            seen.take(event);
        }
        seen
    }

    /// Runs a whole turn that asks nothing.
    pub async fn turn(&mut self, text: &str) -> Seen {
        self.prompt(text).await;
        self.end().await
    }

    pub fn file(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.workspace.path().join(path)).ok()
    }
}

impl Seen {
    pub fn take(&mut self, event: HarnessEvent) {
        match event {
            HarnessEvent::Output(output) => {
                self.order.push(output.kind());
                self.outputs.push(output);
            }
            HarnessEvent::ApprovalRequested(request) => {
                self.order.push("asked");
                self.asked.push(request);
            }
            HarnessEvent::Checkpoint { state, durable } => {
                self.order.push(if durable.is_some() { "stored" } else { "state" });
                self.states.push(state);
                if let Some(durable) = durable {
                    let _ = durable.send(());
                }
            }
            HarnessEvent::TurnEnded(outcome) => {
                self.order.push("ended");
                self.ended = Some(outcome);
            }
            other @ (HarnessEvent::ApprovalWithdrawn { .. } | HarnessEvent::Exited(_)) => {
                panic!("it never does this: {other:?}")
            }
        }
    }

    pub fn text(&self) -> String {
        let text = |output: &Output| match output {
            Output::TextDelta { text } => Some(text.clone()),
            _ => None,
        };
        self.outputs.iter().filter_map(text).collect()
    }

    pub fn tools(&self) -> Vec<&ToolEnd> {
        self.outputs
            .iter()
            .filter_map(|output| match output {
                Output::ToolCompleted(end) => Some(end),
                _ => None,
            })
            .collect()
    }

    pub fn state(&self) -> &Value {
        self.states.last().expect("a checkpoint").as_ref().expect("a state")
    }

    pub fn failure_code(&self) -> &str {
        match &self.ended {
            Some(TurnOutcome::Failed(failure)) => &failure.code,
            other => panic!("not failed: {other:?}"),
        }
    }

    pub fn completed(&self) -> bool {
        self.ended == Some(TurnOutcome::Completed { stop_reason: "end_turn".to_owned() })
    }
}

pub(super) fn answer(native_id: &str, decision: Decision) -> Answer {
    Answer {
        native_id: native_id.to_owned(),
        decision,
        option_id: None,
        reason: Some("because".to_owned()),
        edited_input: None,
    }
}

pub(super) fn code<T>(result: Result<T, HarnessError>) -> String {
    result.err().expect("an error").0.code
}
