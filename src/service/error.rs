//! Why a verb was not carried out: a closed list of things that a caller can act on.

use thiserror::Error;

use crate::domain::approval::{Approval, ApprovalStatus};
use crate::domain::scope::ScopeError;
use crate::domain::turn::{Failure, Turn};
use crate::ids::{ApprovalId, SessionId, TurnId};
use crate::store::StoreError;

/// See the module.
#[derive(Debug, Error)]
pub enum ServiceError {
    /// No such thing, or not in scope: the two look alike.
    #[error("there is no such resource")]
    NotFound,
    /// What was sent cannot be; all complaints together.
    #[error("{}", .0.join("; "))]
    InvalidInput(Vec<String>),
    /// No harness of that name.
    #[error("there is no harness {0:?}")]
    UnknownHarness(String),
    /// The harness cannot do it.
    #[error("{0}")]
    Unsupported(String),
    /// The harness cannot be started here and now.
    #[error("{}", .0.message)]
    HarnessUnavailable(Failure),
    /// A session of that run id exists in the org.
    #[error("a session with this run_id exists")]
    RunExists,
    /// A turn is at work.
    #[error("a turn is in progress")]
    TurnInProgress {
        /// The session.
        session: SessionId,
        /// The turn.
        turn: Option<TurnId>,
    },
    /// An approval waits.
    #[error("an approval is pending; decide it, or send when_busy=queue or interrupt")]
    ApprovalPending {
        /// The session.
        session: SessionId,
        /// The approvals.
        approvals: Vec<ApprovalId>,
    },
    /// The opposite was decided before.
    #[error("the approval is already {}", .0.status)]
    AlreadyResolved(Box<Approval>),
    /// Nobody answered in time.
    #[error("the approval expired")]
    ApprovalExpired(Box<Approval>),
    /// Its turn is over.
    #[error("the approval is closed: {}", .0.status)]
    ApprovalClosed(Box<Approval>),
    /// What the decider saw is not what would run.
    #[error("the input_digest is not that of the approval")]
    ApprovalChanged(Box<Approval>),
    /// The conversation cannot be taken up again.
    #[error("the session cannot be resumed: its harness left no state to resume from")]
    NotResumable(SessionId),
    /// The session is gone for good.
    #[error("the session is destroyed")]
    SessionDestroyed(SessionId),
    /// The turn has started.
    #[error("the turn has started; cancel it instead")]
    TurnStarted(Box<Turn>),
    /// The idempotency key was used for another request.
    #[error("this idempotency key was used with another request")]
    IdempotencyKeyReused,
    /// The request of this idempotency key is still being answered.
    #[error("a request with this idempotency key is in progress")]
    IdempotencyInProgress,
    /// The events asked for are gone.
    #[error("events up to seq {first_seq} are purged")]
    CursorExpired {
        /// The first seq that is still there.
        first_seq: i64,
    },
    /// The cursor is beyond the end, or was not made here.
    #[error("{0}")]
    InvalidCursor(String),
    /// The key is used too often.
    #[error("this key sends too many requests")]
    RateLimited,
    /// A quota is used up.
    #[error("{used} of {limit} are used")]
    QuotaExceeded {
        /// How many there may be.
        limit: i64,
        /// How many there are.
        used: i64,
    },
    /// Too much at once.
    #[error("{0}")]
    Overloaded(&'static str),
    /// The service goes down.
    #[error("the service is shutting down")]
    ShuttingDown,
    /// This process should not be sent requests now.
    #[error("{0}")]
    NotReady(String),
    /// The principal may not do that.
    #[error(transparent)]
    Scope(#[from] ScopeError),
    /// The credential is none, or not valid any more.
    #[error("no valid credential")]
    Unauthenticated,
    /// The store could not answer.
    #[error("the store could not answer")]
    Store(#[from] StoreError),
    /// A directory could not be made or used.
    #[error("a directory of the service cannot be used")]
    Directory(#[source] std::io::Error),
    /// Another replica holds the session now.
    #[error("another replica holds the session")]
    LeaseLost,
    /// A bug of ours.
    #[error("a bug: {0}")]
    Bug(String),
}

/// An error and what caused it, in one line: for logs, which show the outermost alone.
pub fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// A result of a verb.
pub type ServiceResult<T> = Result<T, ServiceError>;

impl ServiceError {
    /// A single complaint about what was sent.
    pub fn invalid(complaint: impl Into<String>) -> Self {
        Self::InvalidInput(vec![complaint.into()])
    }

    /// The refusal of a decision, with the approval as it stands.
    pub(super) fn of_refusal(refusal: crate::domain::approval::Refusal, approval: Approval) -> Self {
        use crate::domain::approval::Refusal;
        match refusal {
            Refusal::Resolved(_) => Self::AlreadyResolved(Box::new(approval)),
            Refusal::Expired => Self::ApprovalExpired(Box::new(approval)),
            Refusal::Closed(ApprovalStatus::Pending) => {
                Self::Bug("a pending approval is not closed".to_owned())
            }
            Refusal::Closed(_) => Self::ApprovalClosed(Box::new(approval)),
            Refusal::Changed => Self::ApprovalChanged(Box::new(approval)),
            Refusal::Option(complaint) => Self::invalid(format!("option_id: {complaint}")),
        }
    }
}

impl From<crate::domain::session::IllegalTransition> for ServiceError {
    fn from(illegal: crate::domain::session::IllegalTransition) -> Self {
        // Verbs ask the state before they ask for a transition.
        Self::Bug(illegal.to_string())
    }
}
