//! Harnesses: agent runtimes behind one interface. An adapter translates one kind of runtime to it and knows nothing of
//! rows, tenants or HTTP; the service drives all of them alike.
//!
//! A [`Harness`] makes [`HarnessSession`]s. What a session does comes back through one ordered channel of
//! [`HarnessEvent`]s, so that updates and the end of a turn can never overtake each other.

pub mod acp;
pub mod agent;
pub mod child;
mod fence;
pub mod memory;
mod registry;
#[cfg(test)]
mod rig;
pub mod scripted;
mod task;
mod workspace;

use std::path::PathBuf;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};

pub use self::fence::Fence;
pub use self::memory::StatePaths;
pub use self::registry::{HarnessConfig, Registry, RegistryError};
use crate::domain::approval::{ApprovalOption, Decision, PermissionMode};
use crate::domain::event::{Output, weight};
use crate::domain::policy::DeniedTools;
use crate::domain::turn::{Failure, Prompt};
use crate::ids::{SessionId, TurnId};

/// How many events wait between a harness and its driver. A full channel makes the harness wait: that is the back-pressure.
pub const EVENT_QUEUE: usize = 256;

/// What becomes of an approval whose process has died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalRecovery {
    /// A new process stands at the very call that asked: the decision is delivered there.
    Exact,
    /// A new process asks again: the decision goes to the first call with the same tool and input digest.
    Reask,
    /// It cannot be told; the approval is orphaned.
    None,
}

/// What becomes of a turn whose process has died, where nobody is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnRecovery {
    /// A new process goes on with it by itself: it knows each step that was taken, and takes none twice. Where a step may or may not
    /// have been taken, it ends the turn as interrupted.
    Resume,
    /// It is interrupted.
    Interrupt,
}

/// What a harness can do. What it cannot is refused with a clear code, never skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Capabilities {
    /// Runs its tools in a sandbox of its own.
    pub sandbox: bool,
    /// A conversation can go on in a new process.
    pub resumable: bool,
    /// Asks before it acts.
    pub approvals: bool,
    /// Takes tools of the host.
    pub host_tools: bool,
    /// Reports the files it changes.
    pub file_events: bool,
    /// A decision may change the tool's input.
    pub edited_input: bool,
    /// Takes system instructions.
    pub instructions: bool,
    /// What becomes of an approval whose process has died.
    pub approval_recovery: ApprovalRecovery,
    /// What becomes of a turn whose process has died.
    pub recovery: TurnRecovery,
}

/// Whether a harness can be started on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Availability {
    /// It can.
    Available,
    /// It cannot.
    Missing {
        /// What is missing.
        why: String,
        /// How to install what it needs.
        install: Option<String>,
        /// What to add to the configuration file.
        configure: Option<String>,
    },
}

/// How a runtime takes a conversation up in a new process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Restore {
    /// Silently.
    Resume,
    /// It first tells the whole history again.
    Load,
    /// Not at all.
    None,
}

/// A way of working that a runtime offers, such as one in which it asks before it acts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mode {
    /// The runtime's id of it.
    pub id: String,
    /// For people.
    pub name: Option<String>,
}

/// What a runtime says of itself as it starts. Empty for those that have nothing to say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Introduction {
    /// Its own name.
    pub agent_name: Option<String>,
    /// Its own version.
    pub agent_version: Option<String>,
    /// The version of the protocol that it speaks.
    pub protocol_version: Option<u64>,
    /// How it takes a conversation up.
    pub restore: Option<Restore>,
    /// The modes that it offers.
    pub modes: Vec<Mode>,
    /// The mode that it is in, set up as the operator wants it.
    pub mode: Option<String>,
}

/// An agent runtime.
#[async_trait]
pub trait Harness: Send + Sync {
    /// Its name in the API and in the configuration.
    fn name(&self) -> &str;
    /// Its name for people.
    fn label(&self) -> &str;
    /// One sentence about it.
    fn description(&self) -> &str;
    /// What it can do.
    fn capabilities(&self) -> Capabilities;
    /// Whether it can be started here. Cheap; looks at the machine anew each time.
    fn availability(&self) -> Availability;
    /// The version of what is installed here, where it is known.
    fn version(&self) -> Option<String> {
        None
    }

    /// The models that sessions may choose from by their settings' `model`; none where that is not theirs to choose.
    fn models(&self) -> Vec<&str> {
        Vec::new()
    }

    /// Checks a session's settings and gives them back complete, with defaults filled in. Unknown keys are refused. Null is what a
    /// caller gives that says nothing of them.
    ///
    /// # Errors
    /// All complaints, in words that name the key.
    fn validate(&self, settings: &Value) -> Result<Value, Vec<String>>;

    /// The files below a session's state directory in which the runtime keeps its memory. They travel with the session.
    fn state_paths(&self) -> &StatePaths {
        StatePaths::NONE
    }

    /// Ends what a process of the service that is gone has left running of a session, and returns when nothing of it is left:
    /// two runtimes of one conversation would not know of each other, and nobody watches over the old one. The directories are
    /// those that the session has to itself.
    async fn end_left(&self, _session_id: &SessionId, _directories: &[PathBuf]) {}

    /// Ends what processes of the service that are gone have left running of any session, by the directories in which all
    /// sessions of this place have their own: for the start, when nobody asks for those sessions yet, or ever.
    async fn end_orphans(&self, _directories: &[PathBuf]) {}

    /// Starts a runtime for one session, from `options.resume` where there is one.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left running then.
    async fn start(&self, options: StartOptions) -> Result<Started, StartError>;

    /// Starts a runtime as for a session, hears what it says of itself, and ends it.
    ///
    /// # Errors
    /// As for [`Harness::start`].
    async fn introduce(&self, options: StartOptions) -> Result<Introduction, StartError> {
        self.start(options).await?.session.stop().await;
        Ok(Introduction::default())
    }
}

/// Everything that a runtime is started with: the same for the first process of a session and for each that follows.
#[derive(Clone, Debug)]
pub struct StartOptions {
    /// The session.
    pub session_id: SessionId,
    /// Absolute; exists.
    pub workspace: PathBuf,
    /// A directory of the session's own, outside the workspace, for what the runtime keeps on disk. Absolute; exists.
    pub state_dir: PathBuf,
    /// System instructions.
    pub instructions: Option<String>,
    /// The session's permission mode. The service answers permissions; a runtime needs it only to choose what it asks.
    pub permission_mode: PermissionMode,
    /// Tools that the operator refuses. The service answers questions about them; a runtime runs none of them unasked.
    pub denied_tools: DeniedTools,
    /// As [`Harness::validate`] gave them back.
    pub settings: Value,
    /// What [`HarnessEvent::Checkpoint`] or [`HarnessSession::detach`] gave last.
    pub resume: Option<Value>,
    /// The turn that the service still waits for the end of. A turn that `resume` knows as being at work goes on if it is
    /// this one, its open questions asked again under the same ids; any other has been given up and is dropped. A harness whose
    /// turns are resumed begins this one where `resume` does not know it: no step of it was taken then.
    pub open_turn: Option<TurnInput>,
    /// What an adapter does by itself, in files above all, it does only while this says so.
    pub fence: Fence,
}

/// A runtime that has started.
pub struct Started {
    /// Its controls.
    pub session: Box<dyn HarnessSession>,
    /// What it does, in order.
    pub events: mpsc::Receiver<HarnessEvent>,
    /// How it relates to the conversation so far.
    pub continuity: Continuity,
    /// The runtime's own id of the conversation.
    pub native_id: Option<String>,
    /// The questions of the turn that goes on which wait for an answer, by the runtime's own ids, of a harness whose turns are resumed:
    /// an answer that was given to an earlier process and is not known here has had no effect.
    pub waits_for: Vec<String>,
}

/// How a new process relates to the conversation so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Continuity {
    /// There was nothing to take up.
    New,
    /// It stands exactly where the last one stood, in mid-turn where that was in mid-turn.
    Exact,
    /// It knows the conversation up to the last completed step; a turn that was at work is not going on.
    Restored,
    /// It could not take the conversation up and starts empty.
    Lost {
        /// Why.
        reason: String,
    },
}

/// A prompt on its way to a runtime.
#[derive(Clone, Debug)]
pub struct TurnInput {
    /// The turn.
    pub turn_id: TurnId,
    /// What was said.
    pub prompt: Prompt,
}

/// A decision on its way to a runtime.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The runtime's own id of the question, as in [`ApprovalRequest::native_id`].
    pub native_id: String,
    /// Yes or no; an expired question is a no.
    pub decision: Decision,
    /// The option that carries it out, where the runtime offered one.
    pub option_id: Option<String>,
    /// The decider's words.
    pub reason: Option<String>,
    /// The input that the tool gets instead.
    pub edited_input: Option<Value>,
}

/// The controls of a live runtime. Dropping them ends the runtime at once, whatever it does.
#[async_trait]
pub trait HarnessSession: Send + Sync {
    /// Gives a prompt to the runtime and returns when it has been handed over, not when the turn has ended:
    /// that is [`HarnessEvent::TurnEnded`]. The service calls it only while no turn is at work.
    ///
    /// # Errors
    /// When the runtime cannot be reached or refuses; the turn has failed then.
    async fn prompt(&self, turn: TurnInput) -> Result<(), HarnessError>;

    /// Answers a question and returns when the runtime has the answer.
    ///
    /// # Errors
    /// When the runtime cannot be reached, or does not know the question.
    async fn answer(&self, answer: Answer) -> Result<(), HarnessError>;

    /// Asks the runtime to end the turn at work, open questions included. The turn still ends with [`HarnessEvent::TurnEnded`].
    ///
    /// # Errors
    /// When the runtime cannot be reached.
    async fn cancel(&self) -> Result<(), HarnessError>;

    /// Whether it should get no other prompt: the next one is for a later process, which takes the conversation up.
    fn is_spent(&self) -> bool {
        false
    }

    /// What a later process needs to take the conversation up; `None` when the runtime has nothing to give.
    /// Called while no turn is at work; [`HarnessSession::stop`] follows.
    ///
    /// # Errors
    /// When the runtime cannot be reached.
    async fn detach(&self) -> Result<Option<Value>, HarnessError>;

    /// Ends the runtime and all it started, gently at first, and returns when nothing of it is left. May be called twice.
    async fn stop(&self);
}

/// A question of the runtime that a person answers.
#[derive(Clone, Debug, PartialEq)]
pub struct ApprovalRequest {
    /// The runtime's own id; unique only within this process of it.
    pub native_id: String,
    /// The tool's name.
    pub tool: String,
    /// The question in words.
    pub title: String,
    /// The agent's label: read, edit, delete, move, search, execute, think, fetch, other.
    pub kind: String,
    /// What the tool would get, whole.
    pub input: Value,
    /// The answers on offer; empty when the runtime takes a plain yes or no.
    pub options: Vec<ApprovalOption>,
}

/// What a runtime does.
#[derive(Debug)]
pub enum HarnessEvent {
    /// It puts something out. May come outside a turn.
    Output(Output),
    /// It asks a person and waits. May come outside a turn.
    ApprovalRequested(ApprovalRequest),
    /// It does not wait for the answer any more.
    ApprovalWithdrawn {
        /// The runtime's own id of the question.
        native_id: String,
    },
    /// A new state to resume from. `durable` is told when it is stored: a runtime that must not do a thing twice
    /// waits for that before it does the thing.
    Checkpoint {
        /// The state; `None` from when on there is nothing to resume from.
        state: Option<Value>,
        /// Told when the state is stored; dropped when it could not be.
        durable: Option<oneshot::Sender<()>>,
    },
    /// The turn is over.
    TurnEnded(TurnOutcome),
    /// The runtime is gone; nothing follows.
    Exited(Failure),
}

impl HarnessEvent {
    /// About how many bytes it holds.
    pub fn weight(&self) -> usize {
        match self {
            Self::Output(output) => output.weight(),
            Self::ApprovalRequested(request) => request.weight(),
            Self::Checkpoint { state, .. } => state.as_ref().map_or(0, weight),
            Self::ApprovalWithdrawn { .. } | Self::TurnEnded(_) | Self::Exited(_) => 0,
        }
    }
}

impl ApprovalRequest {
    /// About how many bytes it holds.
    pub fn weight(&self) -> usize {
        let options = self.options.iter().map(|option| option.id.len() + option.name.len() + 32);
        let words = [&self.native_id, &self.tool, &self.title, &self.kind];
        weight(&self.input) + options.sum::<usize>() + words.into_iter().map(String::len).sum::<usize>()
    }
}

/// How the runtime says that a turn ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TurnOutcome {
    /// In the ordinary way, with the runtime's own word for why.
    Completed {
        /// end_turn, max_tokens, refusal, …
        stop_reason: String,
    },
    /// With an error.
    Failed(Failure),
    /// Because it was cancelled.
    Cancelled,
    /// Because something that it had begun may or may not have been done, by a process that is lost.
    Interrupted,
}

/// A runtime could not be started.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StartError {
    /// What it needs is not there: `harness_unavailable`.
    #[error("{}", .0.message)]
    Unavailable(Failure),
    /// It was there and failed, or took too long.
    #[error("{}", .0.message)]
    Failed(Failure),
}

impl StartError {
    /// The code and words for the session's record.
    pub fn failure(&self) -> &Failure {
        match self {
            Self::Unavailable(failure) | Self::Failed(failure) => failure,
        }
    }
}

/// A live runtime did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}", .0.message)]
pub struct HarnessError(pub Failure);
