//! The demo driven as the service drives it: through the trait.

mod approvals;
mod directives;
mod lifecycle;

use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::ScriptedHarness;
use crate::domain::approval::{Decision, PermissionMode};
use crate::domain::event::{Output, ToolEnd};
use crate::domain::turn::Prompt;
use crate::harness::{
    Answer, ApprovalRequest, Continuity, Fence, Harness, HarnessError, HarnessEvent, HarnessSession,
    StartOptions, TurnInput, TurnOutcome,
};
use crate::ids::{SessionId, TurnId};

const DEADLINE: Duration = Duration::from_secs(20);

/// A live demo in a workspace of its own.
struct Live {
    session: Box<dyn HarnessSession>,
    events: mpsc::Receiver<HarnessEvent>,
    continuity: Continuity,
    workspace: TempDir,
}

/// What a reader that stores every state has seen.
#[derive(Default)]
struct Seen {
    outputs: Vec<Output>,
    asked: Vec<ApprovalRequest>,
    states: Vec<Option<Value>>,
    ended: Option<TurnOutcome>,
    /// The kinds of all events, in order.
    order: Vec<&'static str>,
}

/// The service still waits for the turn that a stored state has at work.
fn options(workspace: &TempDir, resume: Option<Value>) -> StartOptions {
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
        settings: json!({ "token_delay_ms": 0 }),
        resume,
        fence: Fence::open(),
    }
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    timeout(DEADLINE, work).await.expect("the demo does it in time")
}

impl Live {
    async fn new() -> Self {
        Self::start(tempfile::tempdir().unwrap(), None).await
    }

    async fn start(workspace: TempDir, resume: Option<Value>) -> Self {
        let started = ScriptedHarness.start(options(&workspace, resume)).await;
        let started = started.map_err(|error| error.to_string()).unwrap();
        Self { session: started.session, events: started.events, continuity: started.continuity, workspace }
    }

    /// Loses the process and starts a new one from `state` in the same workspace.
    async fn lost_and_restored(self, state: &Value) -> Self {
        drop((self.session, self.events));
        Self::start(self.workspace, Some(state.clone())).await
    }

    async fn prompt(&self, text: &str) -> TurnId {
        let turn_id = TurnId::mint();
        let turn = TurnInput { turn_id: turn_id.clone(), prompt: Prompt::Text(text.to_owned()) };
        within(self.session.prompt(turn)).await.unwrap();
        turn_id
    }

    async fn answer(&self, native_id: &str, decision: Decision) -> Result<(), HarnessError> {
        within(self.session.answer(answer(native_id, decision))).await
    }

    async fn approve(&self, native_id: &str) {
        self.answer(native_id, Decision::Approve).await.unwrap();
    }

    async fn next(&mut self) -> Option<HarnessEvent> {
        within(self.events.recv()).await
    }

    /// The next checkpoint that waits to be stored, not stored yet. Others before it are passed over.
    async fn durable_checkpoint(&mut self) -> (Value, oneshot::Sender<()>) {
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
    async fn end(&mut self) -> Seen {
        self.read(|seen| seen.ended.is_some()).await
    }

    /// Reads until so many questions were asked.
    async fn asked(&mut self, count: usize) -> Seen {
        self.read(|seen| seen.asked.len() == count).await
    }

    /// Reads until it has put something out that `found` looks for.
    async fn output(&mut self, found: impl Fn(&Output) -> bool) -> Seen {
        self.read(|seen| seen.outputs.last().is_some_and(&found)).await
    }

    async fn read(&mut self, enough: impl Fn(&Seen) -> bool) -> Seen {
        let mut seen = Seen::default();
        while !enough(&seen) {
            let event = self.next().await.expect("it lives");
            seen.take(event);
        }
        seen
    }

    /// Runs a whole turn that asks nothing.
    async fn turn(&mut self, text: &str) -> Seen {
        self.prompt(text).await;
        self.end().await
    }

    fn ledger(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.workspace.path().join("effects.jsonl")).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The names of the ledger's lines of one kind.
    fn effects(&self, kind: &str) -> Vec<String> {
        let lines = self.ledger().into_iter().filter(|line| line["kind"] == kind);
        lines.map(|line| line["name"].as_str().unwrap().to_owned()).collect()
    }

    fn file(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.workspace.path().join(path)).ok()
    }
}

impl Seen {
    fn take(&mut self, event: HarnessEvent) {
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
                panic!("the demo never does this: {other:?}")
            }
        }
    }

    fn text(&self) -> String {
        let text = |output: &Output| match output {
            Output::TextDelta { text } => Some(text.clone()),
            _ => None,
        };
        self.outputs.iter().filter_map(text).collect()
    }

    fn tools(&self) -> Vec<&ToolEnd> {
        self.outputs
            .iter()
            .filter_map(|output| match output {
                Output::ToolCompleted(end) => Some(end),
                _ => None,
            })
            .collect()
    }

    fn state(&self) -> &Value {
        self.states.last().expect("a checkpoint").as_ref().expect("a state")
    }

    fn failure_code(&self) -> &str {
        match &self.ended {
            Some(TurnOutcome::Failed(failure)) => &failure.code,
            other => panic!("not failed: {other:?}"),
        }
    }

    fn completed(&self) -> bool {
        self.ended == Some(TurnOutcome::Completed { stop_reason: "end_turn".to_owned() })
    }
}

fn answer(native_id: &str, decision: Decision) -> Answer {
    Answer {
        native_id: native_id.to_owned(),
        decision,
        option_id: None,
        reason: Some("because".to_owned()),
        edited_input: None,
    }
}

fn code<T>(result: Result<T, HarnessError>) -> String {
    result.err().expect("an error").0.code
}
