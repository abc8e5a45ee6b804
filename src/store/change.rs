//! What a transaction changes: one session, and everything about it together.

use std::sync::Arc;

use serde_json::Value;

use crate::clock::Timestamp;
use crate::domain::agent_files::AgentFiles;
use crate::domain::approval::Approval;
use crate::domain::event::NewEvent;
use crate::domain::lease::Lease;
use crate::domain::limits::Limits;
use crate::domain::session::{Session, SessionState, Wish};
use crate::domain::turn::{Failure, Ordinal, Turn, TurnStatus, Usage};
use crate::ids::{ApprovalId, ReplicaId, SessionId, SessionKey, TurnId};

/// One transaction: a session's columns, turns, approvals and events. All or nothing.
#[derive(Debug)]
pub struct Change {
    /// The session, and the condition under which it is changed.
    pub target: Target,
    /// The session's columns.
    pub set: SessionSet,
    /// Its turns.
    pub turns: Vec<TurnWrite>,
    /// Its approvals.
    pub approvals: Vec<ApprovalWrite>,
    /// What happened, in order.
    pub events: Vec<NewEvent>,
    /// The idempotency key of the request that asked for it.
    pub once: Option<OnceRow>,
}

/// A new session's row: everything that [`SessionSet`] does not say.
#[derive(Debug, Clone)]
pub struct NewSession {
    /// The row as it will be read.
    pub session: Session,
}

/// The session that a change is for.
#[derive(Debug)]
pub enum Target {
    /// It does not exist yet.
    New(Box<NewSession>),
    /// It exists, and must still be what the change was made from.
    Existing {
        /// The session.
        key: SessionKey,
        /// Its id, to which its resume state is bound.
        id: SessionId,
        /// Its org, likewise.
        org: String,
        /// The version that was read.
        version: i64,
        /// The epoch of the lease under which the change is made; `None` for a command that needs none.
        epoch: Option<i64>,
    },
}

/// The columns of a session that a change sets. What is `None` stays as it is.
#[derive(Debug, Default)]
pub struct SessionSet {
    /// Where it stands.
    pub state: Option<SessionState>,
    /// What is wanted of the holder.
    pub wish: Option<Option<Wish>>,
    /// The turn shown with it.
    pub turn: Option<Ordinal>,
    /// Turns it ever had.
    pub turn_count: Option<i64>,
    /// Turns that wait.
    pub queued_turns: Option<i64>,
    /// The oldest approval that waits, as clients see it, and how many do.
    pub pending: Option<(Option<Value>, i64)>,
    /// The last resolved approvals.
    pub resolved_approval_ids: Option<Vec<ApprovalId>>,
    /// The harness's own id of the conversation.
    pub native_id: Option<String>,
    /// A harness has taken the conversation up.
    pub started: bool,
    /// What the harness needs to take it up again; `Some(None)` erases it. It may be large, and is shared with who tries again.
    pub resume_state: Option<Option<Arc<Value>>>,
    /// The files of the agent's memory; `Some(None)` erases them.
    pub agent_files: Option<Option<AgentFiles>>,
    /// Tokens used.
    pub usage: Option<Usage>,
    /// Words for lists.
    pub title: Option<String>,
    /// The caller's own pairs.
    pub metadata: Option<std::collections::BTreeMap<String, String>>,
    /// The holder gives the session up.
    pub release: bool,
    /// The moment of the change.
    pub at: Timestamp,
}

/// A turn to write.
#[derive(Debug)]
pub enum TurnWrite {
    /// A new one.
    Insert {
        /// Its row.
        turn: Box<Turn>,
        /// Whether it goes before the others that wait.
        urgent: bool,
    },
    /// Columns of one.
    Update(TurnSet),
}

/// The columns of a turn that a change sets. What is `None` stays as it is.
#[derive(Debug)]
pub struct TurnSet {
    /// The turn.
    pub ordinal: Ordinal,
    /// Where it stands.
    pub status: TurnStatus,
    /// The harness's word for why it ended.
    pub stop_reason: Option<String>,
    /// What the agent said.
    pub text: Option<String>,
    /// Why it failed.
    pub error: Option<Failure>,
    /// Tokens used.
    pub usage: Option<Usage>,
    /// A new process took the conversation up for it.
    pub rehydrated: Option<bool>,
    /// When it was given to the harness.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
}

impl TurnSet {
    /// Nothing but a status.
    pub fn status(ordinal: Ordinal, status: TurnStatus) -> Self {
        Self {
            ordinal,
            status,
            stop_reason: None,
            text: None,
            error: None,
            usage: None,
            rehydrated: None,
            started_at: None,
            ended_at: None,
        }
    }
}

/// An approval to write.
#[derive(Debug)]
pub enum ApprovalWrite {
    /// A new one.
    Insert(Box<Approval>),
    /// What came of one: status, decision, delivery. Its question never changes.
    Update(Box<Approval>),
}

/// The idempotency key of a request, kept in the transaction of its effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnceRow {
    /// The org.
    pub org: String,
    /// The principal's space.
    pub space: String,
    /// The key that the client chose.
    pub key: String,
    /// Method, path and body, digested: the same key must mean the same request.
    pub fingerprint: String,
    /// The session that the effect was on.
    pub session: SessionId,
    /// The turn, where there was one.
    pub turn: Option<TurnId>,
    /// The approval, where there was one.
    pub approval: Option<ApprovalId>,
    /// The answer, where it was known before the commit.
    pub answer: Option<OnceAnswer>,
    /// When.
    pub at: Timestamp,
}

/// An answer that is given again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnceAnswer {
    /// The HTTP status.
    pub status: u16,
    /// The body, byte for byte.
    pub body: String,
}

/// What was kept under an idempotency key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// See [`OnceRow::fingerprint`].
    pub fingerprint: String,
    /// The session.
    pub session: String,
    /// The turn.
    pub turn: Option<TurnId>,
    /// The approval.
    pub approval: Option<ApprovalId>,
    /// The answer; `None` while it is not known, or when its process died before it was.
    pub answer: Option<OnceAnswer>,
}

/// What came of a change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Commit {
    /// It is kept.
    #[default]
    Done,
    /// The session is not any more what the change was made from. Nothing was changed.
    Stale,
    /// A session of that run id exists in the org. Nothing was changed.
    RunExists,
    /// The idempotency key was used before. Nothing was changed.
    Repeated,
}

impl Change {
    /// A change of a session as it was read, made by a command.
    pub fn of(session: &Session, at: Timestamp) -> Self {
        Self {
            target: Target::Existing {
                key: session.key,
                id: session.id.clone(),
                org: session.org_id.clone(),
                version: session.version,
                epoch: None,
            },
            set: SessionSet { at, ..SessionSet::default() },
            turns: Vec::new(),
            approvals: Vec::new(),
            events: Vec::new(),
            once: None,
        }
    }

    /// A change of a session as it was read, made by its holder.
    pub fn held(session: &Session, lease: &Lease, at: Timestamp) -> Self {
        let mut change = Self::of(session, at);
        if let Target::Existing { epoch, .. } = &mut change.target {
            *epoch = Some(lease.epoch());
        }
        change
    }

    /// The first change of a session.
    pub fn create(session: Session) -> Self {
        Self {
            set: SessionSet { at: session.created_at, ..SessionSet::default() },
            target: Target::New(Box::new(NewSession { session })),
            turns: Vec::new(),
            approvals: Vec::new(),
            events: Vec::new(),
            once: None,
        }
    }

    /// The session's key.
    pub fn key(&self) -> SessionKey {
        match &self.target {
            Target::New(new) => new.session.key,
            Target::Existing { key, .. } => *key,
        }
    }
}

/// The limits as two columns.
pub(super) fn limit_columns(limits: Limits) -> (i64, i64) {
    // Both are bounded by a year of seconds.
    (limits.turn_seconds as i64, limits.approval_seconds as i64)
}

/// The holder as a column.
pub(super) fn holder_column(holder: Option<&ReplicaId>) -> Option<String> {
    holder.map(|id| id.as_str().to_owned())
}
