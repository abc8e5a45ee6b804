//! What can be asked of the store: references, filters and pages.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

use crate::clock::Timestamp;
use crate::domain::approval::ApprovalStatus;
use crate::domain::event::{Event, NewEvent};
use crate::domain::session::SessionStatus;
use crate::ids::{ApprovalId, KeyId, ReplicaId, SessionId, SessionKey};

/// A session as a caller names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionRef {
    /// By its id.
    Id(SessionId),
    /// By the host's name for it.
    Run(String),
}

/// Which sessions. All conditions hold together, and before the limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionFilter {
    /// Of this status.
    pub status: Option<SessionStatus>,
    /// Of this harness.
    pub harness: Option<String>,
    /// Of this thread.
    pub thread_id: Option<String>,
    /// Of this run id.
    pub run_id: Option<String>,
    /// Of this owner, within the scope.
    pub owner: Option<String>,
    /// With, or without, an approval that waits.
    pub needs_approval: Option<bool>,
    /// Created later than this.
    pub created_after: Option<Timestamp>,
    /// Not destroyed.
    pub alive: bool,
}

/// Which approvals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApprovalFilter {
    /// Of this status.
    pub status: Option<ApprovalStatus>,
    /// Of this session.
    pub session_id: Option<SessionId>,
    /// Of this owner, within the scope.
    pub owner: Option<String>,
}

/// The part of a list that is asked for: at most `limit` rows, beyond `before` (exclusive; newest first).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRequest<K> {
    /// At most this many rows.
    pub limit: i64,
    /// Older than this one.
    pub before: Option<K>,
}

/// Rows, and whether there are more.
#[derive(Clone, Debug, PartialEq)]
pub struct Page<T> {
    /// The rows.
    pub rows: Vec<T>,
    /// Whether others follow.
    pub more: bool,
}

impl<T> Page<T> {
    /// A page from rows of which one more than the limit was asked for.
    pub(super) fn of(mut rows: Vec<T>, limit: i64) -> Self {
        let limit = usize::try_from(limit).unwrap_or(0);
        let more = rows.len() > limit;
        rows.truncate(limit);
        Self { rows, more }
    }
}

/// The place in a list where the next page begins, as an opaque word.
pub trait Cursor: Sized {
    /// The key as plain text.
    fn write(&self) -> String;
    /// The key that a plain text stands for.
    fn read(text: &str) -> Option<Self>;

    /// The opaque word.
    fn encode(&self) -> String {
        BASE64_URL_SAFE_NO_PAD.encode(self.write())
    }

    /// The key that an opaque word stands for; `None` when it was not made here.
    fn decode(word: &str) -> Option<Self> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(word).ok()?;
        Self::read(std::str::from_utf8(&bytes).ok()?)
    }
}

macro_rules! id_cursor {
    ($($id:ident),+) => {$(
        impl Cursor for $id {
            fn write(&self) -> String {
                self.as_str().to_owned()
            }
            fn read(text: &str) -> Option<Self> {
                Self::parse(text)
            }
        }
    )+};
}
id_cursor!(SessionId, ApprovalId, KeyId);

impl Cursor for crate::domain::turn::Ordinal {
    fn write(&self) -> String {
        format!("t{}", self.0)
    }
    fn read(text: &str) -> Option<Self> {
        text.strip_prefix('t')?.parse().ok().filter(|n| *n > 0).map(Self)
    }
}

/// Events, and where the log begins and ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventPage {
    /// The events, oldest first.
    pub events: Vec<Event>,
    /// The first seq that is still kept, 0 when there is none.
    pub first_seq: i64,
    /// The last seq.
    pub last_seq: i64,
}

/// A session whose holder is gone, or whose turn nobody has taken up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StrandedSession {
    /// The session.
    pub key: SessionKey,
    /// Its id, for the log.
    pub id: SessionId,
    /// Who held it.
    pub holder: Option<ReplicaId>,
}

/// A session is taken over from a holder that is gone.
#[derive(Clone, Debug)]
pub struct Takeover<'a> {
    /// The one that is gone.
    pub from: &'a ReplicaId,
    /// What the session's log says of it.
    pub event: NewEvent,
}

/// A process that joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewReplica {
    /// Its id.
    pub id: ReplicaId,
    /// The version of its program.
    pub version: &'static str,
}

/// A process that works, or worked, on the database. Times are by the database's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Its id.
    pub id: ReplicaId,
    /// The place where it runs.
    pub instance: String,
    /// The version of its program.
    pub version: String,
    /// When it joined.
    pub started_at: Timestamp,
    /// When it was last heard of.
    pub renewed_at: Timestamp,
    /// Whether its leases are valid.
    pub alive: bool,
    /// It takes nothing new any more.
    pub draining: bool,
    /// Sessions that it holds.
    pub held: i64,
    /// The moment of the look.
    pub now: Timestamp,
}
