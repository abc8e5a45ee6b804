//! The only place with SQL: what is kept, and the one way to change it.
//!
//! Reads are plain questions, each scoped by org (and owner). Every change of a session is one [`Change`]: its columns, turns,
//! approvals and events together in one transaction, under a condition on the row's version. Writes of all sessions go through
//! one writer that commits them in groups; an event is shown to nobody before the commit that holds it has returned.

mod change;
mod dialect;
mod hints;
mod migrate;
mod pulse;
mod query;
mod remembered;
mod seal;
mod sql;
mod wakeup;
mod writer;

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;
use thiserror::Error;

pub use self::change::{
    ApprovalWrite, Change, Commit, NewSession, OnceAnswer, OnceRow, Seen, SessionSet, Target, TurnSet,
    TurnWrite,
};
pub use self::dialect::{Postgres, Sqlite};
pub use self::migrate::Schema;
pub use self::pulse::Pulse;
pub use self::query::{
    ApprovalFilter, Cursor, EventPage, NewReplica, Page, PageRequest, Replica, SessionFilter, SessionRef,
    StrandedSession, Takeover,
};
pub use self::seal::{Seal, SealError, Sealed};
pub use self::sql::{
    ApiKey, Instance, Location, Migrations, SqlStore, StoreOptions, guarded, open, read_schema,
};
#[doc(hidden)]
pub use self::sql::{Planned, plan_every_statement};
pub use self::wakeup::{Published, Subscription};
pub use self::writer::WriterStats;
use crate::clock::Timestamp;
use crate::domain::agent_files::{AgentFiles, FilesDigest};
use crate::domain::approval::Approval;
use crate::domain::event::NewEvent;
use crate::domain::lease::{Lease, LeaseRef};
use crate::domain::scope::Scope;
use crate::domain::session::Session;
use crate::domain::turn::{Ordinal, Turn};
use crate::ids::{ApprovalId, KeyId, ReplicaId, SessionId, SessionKey, TurnId};

/// Why the store could not answer.
#[derive(Clone, Debug, Error)]
pub enum StoreError {
    /// The database cannot be reached, is busy, full or broken; a later try may succeed. Nothing was changed.
    #[error("the database cannot be used now")]
    Unavailable(#[source] Arc<sqlx::Error>),
    /// The commit's fate is unknown even after asking again.
    #[error("the database did not say whether the change was kept")]
    Unknown(#[source] Arc<sqlx::Error>),
    /// The schema refuses what was written: a bug.
    #[error("the schema refuses the change")]
    Rejected(#[source] Arc<sqlx::Error>),
    /// A row holds what this program never writes.
    #[error("table {table}, column {column}, row {row}: {complaint}")]
    Corrupt {
        /// The table.
        table: &'static str,
        /// The column.
        column: String,
        /// The row's id, or its key where it has none.
        row: String,
        /// What is wrong.
        complaint: String,
    },
    /// A write did not find the row it was made for: a bug, or a foreign hand.
    #[error("a write of table {table} changed {rows} rows instead of one")]
    Mismatch {
        /// The table.
        table: &'static str,
        /// The rows changed.
        rows: u64,
    },
    /// A resume state or an agent's files cannot be sealed or opened.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// This process does not hold the session any more, or cannot be sure that it does. Nothing was changed.
    #[error("the session's lease is lost")]
    LeaseLost,
    /// The store is shutting down.
    #[error("the store is closed")]
    Closed,
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        let refused = error.as_database_error().is_some_and(|error| {
            error.is_unique_violation() || error.is_check_violation() || error.is_foreign_key_violation()
        });
        if refused { Self::Rejected(Arc::new(error)) } else { Self::Unavailable(Arc::new(error)) }
    }
}

/// The database could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The data directory cannot be used.
    #[error("{path}: {complaint}")]
    Path {
        /// The path.
        path: String,
        /// What is wrong.
        complaint: String,
    },
    /// Another process has it.
    #[error("{path} is in use by another process: one service at a time may use a SQLite database")]
    InUse {
        /// The lock file.
        path: String,
    },
    /// The database was made by a later version of this program.
    #[error("the database has schema {found}, this program knows up to {known}: use a newer ostler")]
    TooNew {
        /// The schema's number.
        found: i64,
        /// The latest number known here.
        known: i64,
    },
    /// The database is older than this program, which is not to migrate it.
    #[error("the database has schema {found}, this program needs {known}: run `ostler migrate up` first")]
    Behind {
        /// The schema's number.
        found: i64,
        /// The one that is needed.
        known: i64,
    },
    /// Another process runs at that place.
    #[error(
        "the instance {instance} is in use by another process on this data directory: give each replica its own --instance"
    )]
    InstanceInUse {
        /// The place's name.
        instance: String,
    },
    /// Resume states are sealed with another key.
    #[error(
        "the database's resume states are sealed with another key: give all replicas the same one, with --seal-key"
    )]
    OtherSeal,
    /// The database has lost what this place has seen.
    #[error(
        "the database is older than this replica has seen it: it was restored, or failed over to a copy that lost commits. \
         To go on with it as it is, remove {path}"
    )]
    WentBack {
        /// The file that remembers.
        path: String,
    },
    /// A migration failed, or an applied one is not the one that this program knows.
    #[error("migrating the database failed")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    /// The database cannot be opened.
    #[error("the database cannot be opened")]
    Database(#[from] sqlx::Error),
    /// The URL cannot be read. It is not shown: it may hold a password.
    #[error("is not a postgres:// URL")]
    Url,
    /// The URL is for a database that this program does not know.
    #[error("{scheme}: only sqlite: and postgres: are supported")]
    Scheme {
        /// The URL's scheme.
        scheme: String,
    },
}

impl OpenError {
    fn in_use(path: &Path) -> Self {
        Self::InUse { path: path.display().to_string() }
    }
}

/// A result of the store.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// What is kept. `find_*` gives an option, `get_*` an error where nothing is, `list_*` a page.
#[async_trait]
pub trait Store: Send + Sync {
    /// Whether other processes may work on the same database.
    fn is_shared(&self) -> bool;
    /// The schema of the database as it is now. That it answers is a sign of life.
    async fn schema(&self) -> Result<Schema>;
    /// Commits one session's change, or says why its condition did not hold.
    async fn commit(&self, change: Change) -> Result<Commit>;
    /// Appends events that change nothing else, as the session's holder. Returns when they are committed.
    async fn append(&self, lease: LeaseRef, events: Vec<NewEvent>) -> Result<()>;
    /// Waits until all writes so far are committed, then takes no more.
    async fn close(&self);
    /// What the writer has done so far.
    fn writer_stats(&self) -> WriterStats;

    /// A session in scope.
    async fn find_session(&self, scope: &Scope, session: &SessionRef) -> Result<Option<Session>>;
    /// A session by its key, for the service itself.
    async fn find_session_by_key(&self, session: SessionKey) -> Result<Option<Session>>;
    /// Sessions in scope, newest first.
    async fn list_sessions(
        &self,
        scope: &Scope,
        filter: &SessionFilter,
        page: PageRequest<SessionId>,
    ) -> Result<Page<Session>>;
    /// What the harness needs to take the conversation up.
    async fn find_resume_state(&self, session: SessionKey) -> Result<Option<Value>>;
    /// Which files of the session's agent are stored, and since when.
    async fn find_agent_files_digest(&self, session: SessionKey) -> Result<Option<(FilesDigest, Timestamp)>>;
    /// The stored files of the session's agent.
    async fn find_agent_files(&self, session: SessionKey) -> Result<Option<AgentFiles>>;
    /// Erases a session with everything that belongs to it.
    async fn purge_session(&self, session: SessionKey) -> Result<()>;

    /// One turn of a session.
    async fn find_turn(&self, session: SessionKey, turn: &TurnId) -> Result<Option<Turn>>;
    /// One turn of a session, by its place.
    async fn find_turn_at(&self, session: SessionKey, turn: Ordinal) -> Result<Option<Turn>>;
    /// The turns that wait, the one that runs next first.
    async fn list_queued_turns(&self, session: SessionKey, limit: i64) -> Result<Vec<Turn>>;
    /// A session's turns, newest first.
    async fn list_turns(&self, session: SessionKey, page: PageRequest<Ordinal>) -> Result<Page<Turn>>;
    /// A session's turns from one on, oldest first.
    async fn list_turns_from(&self, session: SessionKey, from: Ordinal, limit: i64) -> Result<Vec<Turn>>;

    /// An approval in scope.
    async fn find_approval(&self, scope: &Scope, approval: &ApprovalId) -> Result<Option<Approval>>;
    /// The session of an approval.
    async fn find_session_of_approval(&self, approval: &ApprovalId) -> Result<Option<Session>>;
    /// Approvals in scope, newest first.
    async fn list_approvals(
        &self,
        scope: &Scope,
        filter: &ApprovalFilter,
        page: PageRequest<ApprovalId>,
    ) -> Result<Page<Approval>>;
    /// All approvals of a session that are pending, or decided and not delivered, oldest first.
    async fn list_open_approvals(&self, session: SessionKey) -> Result<Vec<Approval>>;
    /// Sessions with approvals that should have been answered by `now`.
    async fn list_expired(&self, now: Timestamp, limit: i64) -> Result<Vec<SessionKey>>;

    /// A session's events after a seq, oldest first.
    async fn list_events(&self, session: SessionKey, after: i64, limit: i64) -> Result<EventPage>;
    /// The events of one turn after a seq, oldest first.
    async fn list_turn_events(
        &self,
        session: SessionKey,
        turn: Ordinal,
        after: i64,
        limit: i64,
    ) -> Result<EventPage>;
    /// Wakes whenever more events of the session are committed.
    fn subscribe(&self, session: SessionKey) -> Subscription;
    /// How many listen.
    fn subscriber_count(&self) -> usize;

    /// Makes this replica the holder of a session that nobody holds, or whose holder is gone; `None` when another was faster, or
    /// when this replica does not live any more.
    async fn claim(
        &self,
        session: SessionKey,
        replica: &ReplicaId,
        from: Option<Takeover<'_>>,
    ) -> Result<Option<Lease>>;
    /// Sessions whose holder is gone, or that have a turn under way or an answer to deliver, and no holder.
    async fn list_stranded(&self, limit: i64) -> Result<Vec<StrandedSession>>;

    /// Joins. Whoever was at this replica's place before is gone.
    async fn register_replica(&self, replica: &NewReplica) -> Result<()>;
    /// Gives a sign of life; false when it came too late: then this replica is gone for good.
    async fn renew_replica(&self, replica: &ReplicaId) -> Result<bool>;
    /// Says that this replica takes nothing new any more.
    async fn drain_replica(&self, replica: &ReplicaId) -> Result<()>;
    /// Says that this replica is gone.
    async fn forget_replica(&self, replica: &ReplicaId) -> Result<()>;
    /// Forgets replicas that are gone for long and hold nothing.
    async fn forget_old_replicas(&self) -> Result<()>;
    /// All replicas that are known of, the oldest first.
    async fn list_replicas(&self) -> Result<Vec<Replica>>;
    /// Whether this process may still write as a holder.
    fn pulse(&self) -> &Pulse;
    /// Waits for the next session that another process says it changed.
    async fn next_hint(&self) -> SessionKey;
    /// Looks at the rows of sessions that somebody listens to, or that are `held` here: wakes the listeners, and gives those of the
    /// held that have changed since the last look.
    async fn look_for_news(&self, held: &[SessionKey]) -> Result<Vec<SessionKey>>;

    /// What was answered under an idempotency key.
    async fn find_once(&self, org: &str, space: &str, key: &str) -> Result<Option<Seen>>;
    /// Keeps the answer that was not yet known when the effect was committed.
    async fn finish_once(&self, org: &str, space: &str, key: &str, answer: OnceAnswer) -> Result<()>;
    /// Forgets idempotency keys older than `before`. Returns how many.
    async fn purge_once(&self, before: Timestamp) -> Result<u64>;
    /// Erases events of ended turns older than `before`, always keeping each session's last. Returns how many.
    async fn purge_events(&self, before: Timestamp) -> Result<u64>;

    /// Whether there is any key at all.
    async fn has_keys(&self) -> Result<bool>;
    /// Keeps a new key.
    async fn insert_key(&self, key: &ApiKey) -> Result<()>;
    /// Says which process makes the first key: the one that said so first, or that takes the place of `instead_of`. Gives the key
    /// that will be it.
    async fn reserve_first_key(&self, key: &KeyId, instead_of: Option<&KeyId>) -> Result<KeyId>;
    /// Keeps the first key, unless another process has taken the place; false then.
    async fn insert_first_key(&self, key: &ApiKey) -> Result<bool>;
    /// A key by its public half.
    async fn find_key(&self, key: &KeyId) -> Result<Option<ApiKey>>;
    /// The keys of an org, newest first.
    async fn list_keys(&self, org: &str, page: PageRequest<KeyId>) -> Result<Page<ApiKey>>;
    /// Ends a key; false when the org has no such key. Ending it again changes nothing.
    async fn revoke_key(&self, org: &str, key: &KeyId, now: Timestamp) -> Result<bool>;
    /// Notes that a key was used.
    async fn touch_key(&self, key: &KeyId, now: Timestamp) -> Result<()>;

    /// Keeps the hash of a ticket for one stream.
    async fn insert_ticket(
        &self,
        hash: &[u8],
        session: SessionKey,
        key: &KeyId,
        expires_at: Timestamp,
    ) -> Result<()>;
    /// Takes a ticket: the session and key that it was made for, once, and not after its time.
    async fn take_ticket(&self, hash: &[u8], now: Timestamp) -> Result<Option<(SessionKey, KeyId)>>;
    /// Forgets tickets that were not taken in time.
    async fn purge_tickets(&self, now: Timestamp) -> Result<()>;
}

/// A store that all parts of the service share.
pub type SharedStore = Arc<dyn Store>;
