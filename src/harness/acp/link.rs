//! A running agent with its pipes in our hands: what the pump and the session's controls have in common.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::connection::Connection;
use super::outlet::Outlet;
use super::permission::Questions;
use super::pump::{Ignored, Job, Pump, open_workspace};
use super::tool_calls::{ToolCalls, ToolCustoms};
use crate::harness::child::{LINE_MAX_BYTES, Lines, Pipes, Process};
use crate::harness::{EVENT_QUEUE, Fence, HarnessEvent};

/// What a later process needs to take the conversation up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State {
    /// The agent's id of the conversation; the conversation itself is in the agent's state directory.
    pub session_id: String,
    /// Where it was held: some agents look it up by that.
    pub cwd: String,
    /// Whether the first prompt, which carries the instructions, is still to come.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub instructions_pending: bool,
}

/// What the pump and the controls share.
#[derive(Debug)]
pub(super) struct Shared {
    /// The agent, for messages: the first word of its command.
    pub name: String,
    /// The workspace.
    pub cwd: String,
    /// The way to the agent.
    pub connection: Connection,
    /// The questions that wait.
    pub questions: Questions,
    /// Cancelled when the agent is to end.
    pub closing: CancellationToken,
    /// Cancelled when the agent does not take what we write.
    pub broken: CancellationToken,
    turn: Mutex<TurnAtWork>,
}

/// The turn that the agent works at, or the last one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TurnAtWork {
    /// 1, 2, 3 … in this process.
    pub number: u64,
    /// Whether it is still at work.
    pub at_work: bool,
    /// Whether somebody cancelled it.
    pub cancelled: bool,
}

/// A running agent. Dropping it kills the agent and all it started.
pub(super) struct Link {
    /// What is shared with the pump.
    pub shared: Arc<Shared>,
    /// The agent.
    pub process: Arc<Process>,
    /// The way to the pump.
    pub jobs: mpsc::UnboundedSender<Job>,
    // Its end releases the pump's hold on the process.
    _pump: AbortOnDropHandle<()>,
}

/// Whom to talk to, and how.
pub(super) struct Terms<'a> {
    /// The agent, for messages.
    pub name: String,
    /// The workspace; UTF-8, as the protocol wants it.
    pub cwd: &'a str,
    /// How long a message may take to be written.
    pub write_deadline: Duration,
    /// Whether the agent may write files unasked.
    pub writes_allowed: bool,
    /// How it tells of its tools.
    pub tools: ToolCustoms,
    /// Asked before each write.
    pub fence: Fence,
}

impl TurnAtWork {
    /// Begins the next turn; `false` when one is at work.
    pub(super) fn begin(&mut self) -> bool {
        if self.at_work {
            return false;
        }
        *self = Self { number: self.number + 1, at_work: true, cancelled: false };
        true
    }

    /// Ends it and tells how it stood.
    pub(super) fn end(&mut self) -> Self {
        let turn = *self;
        self.at_work = false;
        turn
    }
}

impl Shared {
    pub(super) fn lock_turn(&self) -> MutexGuard<'_, TurnAtWork> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn state(&self, session_id: &str, instructions_pending: bool) -> State {
        State { session_id: session_id.to_owned(), cwd: self.cwd.clone(), instructions_pending }
    }
}

impl State {
    pub(super) fn to_value(&self) -> Value {
        // A struct of strings always serializes.
        serde_json::to_value(self).unwrap_or_default()
    }
}

impl Link {
    /// Takes the pipes of an agent and begins to read.
    ///
    /// # Errors
    /// When the workspace cannot be opened.
    pub(super) async fn attach(
        process: Process,
        pipes: Pipes,
        terms: Terms<'_>,
    ) -> std::io::Result<(Self, mpsc::Receiver<HarnessEvent>)> {
        let workspace = open_workspace(Path::new(terms.cwd), terms.fence).await?;
        let (closing, broken) = (CancellationToken::new(), CancellationToken::new());
        let shared = Arc::new(Shared {
            name: terms.name,
            cwd: terms.cwd.to_owned(),
            connection: Connection::new(pipes.stdin, terms.write_deadline, closing.clone(), broken.clone()),
            questions: Questions::default(),
            closing,
            broken,
            turn: Mutex::default(),
        });
        let process = Arc::new(process);
        let (jobs, jobs_of_pump) = mpsc::unbounded_channel();
        let (events, heard) = mpsc::channel(EVENT_QUEUE);
        let pump = Pump {
            shared: Arc::clone(&shared),
            process: Arc::clone(&process),
            lines: Lines::new(pipes.stdout, LINE_MAX_BYTES),
            jobs: jobs_of_pump,
            events: Outlet::new(events),
            workspace,
            writes_allowed: terms.writes_allowed,
            session_id: None,
            calls: ToolCalls::of(terms.tools),
            ignored: Ignored::default(),
        };
        let pump = AbortOnDropHandle::new(tokio::spawn(pump.run()));
        Ok((Self { shared, process, jobs, _pump: pump }, heard))
    }

    /// Ends the agent at once, because its start has failed, and tells why it has ended where it had done so by itself.
    pub(super) async fn abandon(&self) -> Option<String> {
        self.shared.closing.cancel();
        self.process.kill().await;
        let stderr = self.process.keep_last_words().await;
        tracing::warn!(harness = %self.shared.name, stderr, "an agent did not come up");
        self.process.failure()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.closing.cancel();
        self.process.kill_now();
    }
}
