//! A session and its lifecycle: one state, one transition function.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use super::approval::{Approval, PermissionMode};
use super::limits::{Limits, RESOLVED_IDS_SHOWN};
use super::scope::named_values;
use super::turn::{Failure, Ordinal, Turn, Usage};
use crate::clock::Timestamp;
use crate::ids::{ApprovalId, ReplicaId, SessionId, SessionKey, mint_run_id};

/// Why a session was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopCause {
    /// Somebody asked for it.
    User,
    /// It was idle for longer than its time.
    IdleTtl,
    /// The service went down.
    Shutdown,
}

named_values!(StopCause { User => "user", IdleTtl => "idle_ttl", Shutdown => "shutdown" });

/// Where a session stands, with what is true only then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// Waits for a prompt.
    Idle,
    /// A turn is queued or at work.
    Running {
        /// The turn.
        turn: Ordinal,
    },
    /// The turn at work waits for a person.
    AwaitingApproval {
        /// The turn.
        turn: Ordinal,
    },
    /// Put away; a prompt brings it back.
    Stopped {
        /// Why.
        cause: StopCause,
        /// Since when.
        at: Timestamp,
    },
    /// Its last turn, or the start of its harness, failed; a prompt may bring it back.
    Errored {
        /// Why.
        failure: Failure,
        /// Since when.
        at: Timestamp,
    },
    /// Gone for good; its transcript can be read.
    Destroyed {
        /// Since when.
        at: Timestamp,
    },
}

/// The name of a state, as it stands in JSON and in the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionStatus {
    /// See [`SessionState::Idle`].
    Idle,
    /// See [`SessionState::Running`].
    Running,
    /// See [`SessionState::AwaitingApproval`].
    AwaitingApproval,
    /// See [`SessionState::Stopped`].
    Stopped,
    /// See [`SessionState::Errored`].
    Errored,
    /// See [`SessionState::Destroyed`].
    Destroyed,
}

named_values!(SessionStatus {
    Idle => "idle",
    Running => "running",
    AwaitingApproval => "awaiting_approval",
    Stopped => "stopped",
    Errored => "errored",
    Destroyed => "destroyed",
});

/// What happens to a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transition {
    /// A prompt was accepted.
    Queue {
        /// The turn that runs next when none does.
        turn: Ordinal,
    },
    /// The harness asks a person.
    Ask,
    /// An approval was closed: decided, expired, cancelled.
    Answer {
        /// Whether others still wait.
        others_wait: bool,
    },
    /// The turn is over.
    EndTurn {
        /// The turn that runs next, where one is queued.
        next: Option<Ordinal>,
    },
    /// The turn or the harness failed and nothing is queued.
    Fail {
        /// Why.
        failure: Failure,
        /// When.
        at: Timestamp,
    },
    /// The harness is put away.
    Stop {
        /// Why.
        cause: StopCause,
        /// When.
        at: Timestamp,
    },
    /// The session is ended for good.
    Destroy {
        /// When.
        at: Timestamp,
    },
}

/// A transition that the state does not have.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("a session that is {from} cannot {transition:?}")]
pub struct IllegalTransition {
    /// The state it was in.
    pub from: SessionStatus,
    /// What was asked of it.
    pub transition: Transition,
}

impl SessionState {
    /// The state's name.
    pub fn status(&self) -> SessionStatus {
        match self {
            Self::Idle => SessionStatus::Idle,
            Self::Running { .. } => SessionStatus::Running,
            Self::AwaitingApproval { .. } => SessionStatus::AwaitingApproval,
            Self::Stopped { .. } => SessionStatus::Stopped,
            Self::Errored { .. } => SessionStatus::Errored,
            Self::Destroyed { .. } => SessionStatus::Destroyed,
        }
    }

    /// The turn that is queued or at work.
    pub fn turn(&self) -> Option<Ordinal> {
        match self {
            Self::Running { turn } | Self::AwaitingApproval { turn } => Some(*turn),
            Self::Idle | Self::Stopped { .. } | Self::Errored { .. } | Self::Destroyed { .. } => None,
        }
    }

    /// The only way from one state to another.
    ///
    /// # Errors
    /// [`IllegalTransition`] when the state does not have it; nothing leaves `Destroyed`.
    pub fn apply(self, transition: Transition) -> Result<Self, IllegalTransition> {
        use Transition as T;
        match (self, transition) {
            (Self::Idle | Self::Stopped { .. } | Self::Errored { .. }, T::Queue { turn }) => {
                Ok(Self::Running { turn })
            }
            (busy @ (Self::Running { .. } | Self::AwaitingApproval { .. }), T::Queue { .. }) => Ok(busy),
            (Self::Running { turn } | Self::AwaitingApproval { turn }, T::Ask) => {
                Ok(Self::AwaitingApproval { turn })
            }
            (Self::AwaitingApproval { turn }, T::Answer { others_wait: true }) => {
                Ok(Self::AwaitingApproval { turn })
            }
            (Self::AwaitingApproval { turn }, T::Answer { others_wait: false }) => Ok(Self::Running { turn }),
            (Self::Running { .. } | Self::AwaitingApproval { .. }, T::EndTurn { next }) => {
                Ok(next.map_or(Self::Idle, |turn| Self::Running { turn }))
            }
            (Self::Idle | Self::Running { .. } | Self::AwaitingApproval { .. }, T::Fail { failure, at }) => {
                Ok(Self::Errored { failure, at })
            }
            (
                Self::Idle | Self::Running { .. } | Self::AwaitingApproval { .. } | Self::Errored { .. },
                T::Stop { cause, at },
            ) => Ok(Self::Stopped { cause, at }),
            (
                Self::Idle
                | Self::Running { .. }
                | Self::AwaitingApproval { .. }
                | Self::Stopped { .. }
                | Self::Errored { .. },
                T::Destroy { at },
            ) => Ok(Self::Destroyed { at }),
            (state, transition) => Err(IllegalTransition { from: state.status(), transition }),
        }
    }
}

/// What somebody wants of a session that another task or process must carry out. Recorded first, so that it outlives both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// End the current turn.
    Cancel,
    /// Put the harness away.
    Stop,
    /// End the session for good.
    Destroy,
}

named_values!(Wish { Cancel => "cancel", Stop => "stop", Destroy => "destroy" });

/// What becomes of a session when its conversation cannot be taken up by a new process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnContextLoss {
    /// It goes on without, and its log says so.
    #[default]
    Fresh,
    /// The turn fails; what is kept of the conversation stays for another try.
    Fail,
}

named_values!(OnContextLoss { Fresh => "fresh", Fail => "fail" });

/// A session's row, but for its resume state, which only the harness gets to see.
#[derive(Clone, Debug, PartialEq)]
pub struct Session {
    /// Its integer inside the database.
    pub key: SessionKey,
    /// Its id.
    pub id: SessionId,
    /// The host's name for it, unique in the org.
    pub run_id: String,
    /// The caller's group of sessions.
    pub thread_id: Option<String>,
    /// The org.
    pub org_id: String,
    /// The owner within the org.
    pub owner_id: String,
    /// The harness's name.
    pub harness: String,
    /// Words for lists.
    pub title: String,
    /// The caller's own pairs.
    pub metadata: BTreeMap<String, String>,
    /// System instructions for the harness.
    pub instructions: Option<String>,
    /// How far the agent's own labels are trusted.
    pub permission_mode: PermissionMode,
    /// What becomes of it when its conversation cannot be taken up.
    pub on_context_loss: OnContextLoss,
    /// The directory the harness works in, absolute.
    pub workspace: String,
    /// Time limits.
    pub limits: Limits,
    /// The harness's own settings, as validated.
    pub settings: Value,
    /// Where it stands.
    pub state: SessionState,
    /// What is wanted of its holder.
    pub wish: Option<Wish>,
    /// The turn at work or queued first, else the last one.
    pub turn: Option<Turn>,
    /// How many turns it ever had: the next one's ordinal less one.
    pub turn_count: i64,
    /// How many turns wait, the current one not among them.
    pub queued_turns: i64,
    /// The oldest approval that waits, as clients see it.
    pub pending_approval: Option<Value>,
    /// How many wait.
    pub pending_approval_count: i64,
    /// How many wait, or are decided and not delivered.
    pub open_approval_count: i64,
    /// The last approvals that were resolved, newest last.
    pub resolved_approval_ids: Vec<ApprovalId>,
    /// The harness's own id for the conversation.
    pub native_id: Option<String>,
    /// Whether a harness ever took the conversation up: from then on there is something to lose.
    pub started: bool,
    /// Whether there is a state to bring the conversation back from.
    pub has_resume_state: bool,
    /// Tokens used by all turns.
    pub usage: Usage,
    /// The seq of the last stored event.
    pub last_event_seq: i64,
    /// The replica that holds it.
    pub holder: Option<ReplicaId>,
    /// Rises with each change of the row: the condition of the next one.
    pub version: i64,
    /// When it was created.
    pub created_at: Timestamp,
    /// When its status last changed.
    pub updated_at: Timestamp,
    /// When it last did something.
    pub last_active_at: Timestamp,
}

impl Session {
    /// A session of that tenant that has done nothing yet, with the defaults of all that its caller may choose.
    pub fn new(key: SessionKey, org_id: String, owner_id: String, harness: String, at: Timestamp) -> Self {
        Self {
            key,
            id: SessionId::mint(),
            run_id: mint_run_id(),
            thread_id: None,
            org_id,
            owner_id,
            title: Self::default_title(None, &harness),
            harness,
            metadata: BTreeMap::new(),
            instructions: None,
            permission_mode: PermissionMode::default(),
            on_context_loss: OnContextLoss::default(),
            workspace: String::new(),
            limits: Limits::default(),
            settings: Value::Object(serde_json::Map::new()),
            state: SessionState::Idle,
            wish: None,
            turn: None,
            turn_count: 0,
            queued_turns: 0,
            pending_approval: None,
            pending_approval_count: 0,
            resolved_approval_ids: Vec::new(),
            native_id: None,
            started: false,
            has_resume_state: false,
            usage: Usage::NONE,
            last_event_seq: 0,
            open_approval_count: 0,
            holder: None,
            version: 1,
            created_at: at,
            updated_at: at,
            last_active_at: at,
        }
    }

    /// Whether a prompt can be taken: the harness runs, can be brought back, or never started.
    pub fn is_resumable(&self, live: bool, harness_resumes: bool) -> bool {
        if matches!(self.state, SessionState::Destroyed { .. }) {
            return false;
        }
        live || !self.started || (harness_resumes && self.has_resume_state)
    }

    /// The resolved ids after one more, the oldest dropped beyond [`RESOLVED_IDS_SHOWN`].
    pub fn resolved_ids_with(&self, ids: impl IntoIterator<Item = ApprovalId>) -> Vec<ApprovalId> {
        let mut all = self.resolved_approval_ids.clone();
        all.extend(ids);
        all.split_off(all.len().saturating_sub(RESOLVED_IDS_SHOWN))
    }

    /// The title that stands when the caller gave none.
    pub fn default_title(prompt: Option<&super::turn::Prompt>, harness: &str) -> String {
        prompt.map_or_else(|| format!("{harness} session"), super::turn::Prompt::title)
    }
}

/// The oldest of the approvals that wait, and how many do: what the session's row shows of them.
pub fn pending_of(approvals: &[Approval]) -> (Option<&Approval>, i64) {
    let waiting: Vec<&Approval> =
        approvals.iter().filter(|a| a.status == super::approval::ApprovalStatus::Pending).collect();
    let oldest = waiting.iter().min_by(|a, b| (a.requested_at, &a.id).cmp(&(b.requested_at, &b.id))).copied();
    (oldest, i64::try_from(waiting.len()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests;
