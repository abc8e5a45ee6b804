//! An agent in a workspace of its own, and its events with a deadline.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ostler::domain::approval::{Decision, PermissionMode};
use ostler::domain::event::Output;
use ostler::domain::policy::DeniedTools;
use ostler::domain::turn::Prompt;
use ostler::harness::child::Launcher;
use ostler::harness::{
    Answer, ApprovalRequest, Capabilities, Continuity, Fence, Harness, HarnessConfig, HarnessError,
    HarnessEvent, HarnessSession, Registry, StartError, StartOptions, Started, TurnInput, TurnOutcome,
};
use ostler::ids::{SessionId, TurnId};
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::time::timeout;

pub use crate::support::processes::{eventually, is_alive};

pub const FAKE: &str = env!("CARGO_BIN_EXE_fake-acp-agent");
pub const OSTLER: &str = env!("CARGO_BIN_EXE_ostler");

/// Nothing takes this long unless it hangs.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// The places of a session, and how its agent is started.
pub struct Rig {
    pub workspace: TempDir,
    pub state: TempDir,
    pub config: String,
    pub mode: PermissionMode,
    pub instructions: Option<String>,
    /// What the agent may not read, but for its own directories.
    pub private: Vec<PathBuf>,
}

/// A started agent.
pub struct Agent {
    pub session: Box<dyn HarnessSession>,
    pub events: mpsc::Receiver<HarnessEvent>,
    pub continuity: Continuity,
    pub native_id: String,
}

/// A turn from its prompt to its end.
#[derive(Debug)]
pub struct Turn {
    pub outputs: Vec<Output>,
    pub outcome: TurnOutcome,
}

impl Rig {
    /// An agent with these arguments.
    pub fn new(args: &[&str]) -> Self {
        let argv: Vec<&str> = [FAKE].iter().chain(args).copied().collect();
        Self::with_command(&argv)
    }

    pub fn with_command(argv: &[&str]) -> Self {
        Self {
            workspace: tempfile::tempdir().unwrap(),
            state: tempfile::tempdir().unwrap(),
            config: format!("command = {argv:?}\nwrite_seconds = 2\n"),
            mode: PermissionMode::Ask,
            instructions: None,
            private: Vec::new(),
        }
    }

    /// The same with another command, for a later process of the same session.
    pub fn command(mut self, args: &[&str]) -> Self {
        let argv: Vec<&str> = [FAKE].iter().chain(args).copied().collect();
        self.config = format!("command = {argv:?}\n");
        self
    }

    pub fn config(mut self, lines: &str) -> Self {
        self.config.push_str(lines);
        self
    }

    pub fn mode(mut self, mode: PermissionMode) -> Self {
        self.mode = mode;
        self
    }

    fn harness(&self) -> Arc<dyn Harness> {
        let config: HarnessConfig = toml::from_str(&format!("kind = \"acp\"\n{}", self.config)).unwrap();
        let launcher = Launcher::new(PathBuf::from(OSTLER), self.private.clone());
        let registry = Registry::new(&BTreeMap::from([("fake".to_owned(), config)]), &launcher).unwrap();
        Arc::clone(registry.get("fake").unwrap())
    }

    pub fn capabilities(&self) -> Capabilities {
        self.harness().capabilities()
    }

    pub async fn try_start(&self, resume: Option<Value>) -> Result<Started, StartError> {
        let harness = self.harness();
        let options = StartOptions {
            session_id: SessionId::mint(),
            workspace: self.workspace.path().to_owned(),
            state_dir: self.state.path().to_owned(),
            instructions: self.instructions.clone(),
            permission_mode: self.mode,
            denied_tools: DeniedTools::default(),
            settings: harness.validate(&Value::Null).unwrap(),
            resume,
            open_turn: None,
            fence: Fence::open(),
        };
        timeout(DEADLINE, harness.start(options)).await.expect("the start hangs")
    }

    /// A new conversation, its first checkpoint read.
    pub async fn start(&self) -> Agent {
        self.take_up(None).await
    }

    pub async fn take_up(&self, resume: Option<Value>) -> Agent {
        let started = self.try_start(resume).await.unwrap();
        let native_id = started.native_id.unwrap();
        let mut agent = Agent {
            session: started.session,
            events: started.events,
            continuity: started.continuity,
            native_id,
        };
        let HarnessEvent::Checkpoint { state: Some(state), durable: None } = agent.next().await else {
            panic!("a conversation begins with a checkpoint");
        };
        assert_eq!(state["session_id"], agent.native_id.as_str());
        assert_eq!(state["cwd"], self.workspace.path().to_str().unwrap());
        agent
    }

    pub async fn start_error(&self, resume: Option<Value>) -> StartError {
        match self.try_start(resume).await {
            Ok(_) => panic!("it started"),
            Err(error) => error,
        }
    }

    pub fn file(&self, path: &str) -> String {
        fs::read_to_string(self.workspace.path().join(path)).unwrap()
    }

    /// What the agent did, by its own record.
    pub fn effects(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.workspace.path().join("effects.jsonl")).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The processes that run with this session's home.
    pub fn survivors(&self) -> Vec<u32> {
        let home = format!("HOME={}", self.state.path().display());
        let lives = |pid: &u32| {
            let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            is_alive(*pid) && environ.split(|byte| *byte == 0).any(|entry| entry == home.as_bytes())
        };
        let pids = fs::read_dir("/proc").unwrap().flatten();
        pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(lives).collect()
    }

    #[track_caller]
    pub fn assert_nothing_runs(&self) {
        let survivors = self.survivors();
        assert!(survivors.is_empty(), "still run: {survivors:?}");
    }

    pub fn grandchild(&self) -> u32 {
        self.file("grandchild.pid").parse().unwrap()
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.workspace.path().join(path)
    }
}

impl Agent {
    pub async fn next(&mut self) -> HarnessEvent {
        let event = timeout(DEADLINE, self.events.recv()).await.expect("no event comes");
        event.expect("the events have ended")
    }

    /// Waits for the end of the events.
    pub async fn ended(&mut self) {
        let rest = timeout(DEADLINE, self.events.recv()).await.expect("the events do not end");
        assert!(rest.is_none(), "{rest:?}");
    }

    pub async fn prompt(&self, script: &str) {
        self.try_prompt(script).await.unwrap();
    }

    pub async fn try_prompt(&self, script: &str) -> Result<(), HarnessError> {
        let turn = TurnInput { turn_id: TurnId::mint(), prompt: Prompt::Text(script.to_owned()) };
        timeout(DEADLINE, self.session.prompt(turn)).await.expect("the prompt hangs")
    }

    /// The outputs up to a question.
    pub async fn until_asked(&mut self) -> (Vec<Output>, ApprovalRequest) {
        let mut outputs = Vec::new();
        loop {
            match self.next().await {
                HarnessEvent::Output(output) => outputs.push(output),
                HarnessEvent::ApprovalRequested(request) => return (outputs, request),
                event => panic!("{event:?}"),
            }
        }
    }

    /// The outputs up to the end of the turn.
    pub async fn until_end(&mut self) -> Turn {
        let mut outputs = Vec::new();
        loop {
            match self.next().await {
                HarnessEvent::Output(output) => outputs.push(output),
                HarnessEvent::Checkpoint { .. } => {}
                HarnessEvent::TurnEnded(outcome) => return Turn { outputs, outcome },
                event => panic!("{event:?}"),
            }
        }
    }

    pub async fn turn(&mut self, script: &str) -> Turn {
        self.prompt(script).await;
        self.until_end().await
    }

    /// The outputs up to the exit, and how that is told. Nothing follows.
    pub async fn until_exit(&mut self) -> (Vec<Output>, ostler::domain::turn::Failure) {
        let mut outputs = Vec::new();
        loop {
            match self.next().await {
                HarnessEvent::Output(output) => outputs.push(output),
                HarnessEvent::Exited(failure) => {
                    self.ended().await;
                    return (outputs, failure);
                }
                event => panic!("{event:?}"),
            }
        }
    }

    pub async fn answer(&self, native_id: &str, decision: Decision) -> Result<(), HarnessError> {
        self.answer_with(native_id, decision, None).await
    }

    pub async fn answer_with(
        &self,
        native_id: &str,
        decision: Decision,
        option_id: Option<&str>,
    ) -> Result<(), HarnessError> {
        let answer = Answer {
            native_id: native_id.to_owned(),
            decision,
            option_id: option_id.map(str::to_owned),
            reason: None,
            edited_input: None,
        };
        timeout(DEADLINE, self.session.answer(answer)).await.expect("the answer hangs")
    }

    pub async fn cancel(&self) {
        timeout(DEADLINE, self.session.cancel()).await.expect("the cancel hangs").unwrap();
    }

    pub async fn stop(&self) {
        timeout(DEADLINE, self.session.stop()).await.expect("the stop hangs");
    }
}

impl Turn {
    /// All that the agent said.
    pub fn text(&self) -> String {
        text(&self.outputs)
    }

    pub fn kinds(&self) -> Vec<&'static str> {
        self.outputs.iter().map(Output::kind).collect()
    }
}

pub fn text(outputs: &[Output]) -> String {
    let texts = outputs.iter().filter_map(|output| match output {
        Output::TextDelta { text } => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

pub fn completed(stop_reason: &str) -> TurnOutcome {
    TurnOutcome::Completed { stop_reason: stop_reason.to_owned() }
}
