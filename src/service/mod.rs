//! The use cases, one verb per file, free of any transport: who asks, what is asked, what comes of it.
//!
//! Every verb that changes a session loads it, decides, and commits, under the session's mutex, in a unit of work that
//! finishes even when whoever asked has gone. What takes longer than a commit is the driver's: one task per live session.

mod cancel;
mod check;
mod create;
mod decide;
mod destroy;
mod driver;
mod error;
mod keys;
mod live;
mod lookup;
mod membership;
mod news;
mod once;
mod outbox;
mod prompt;
mod rate;
mod ready;
mod recovery;
mod rehydrate;
mod room;
mod rows;
mod run_locks;
mod shutdown;
mod so_far;
mod stop;
mod stream;
mod sweeper;
mod turn_end;
mod workspace;

use std::future::Future;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

pub use self::cancel::Wished;
pub use self::check::Checked;
pub use self::create::CreateSession;
pub use self::decide::Decided;
pub use self::error::{ServiceError, ServiceResult, chain};
pub use self::keys::{KeySecret, KeySpec};
pub use self::lookup::{SessionPatch, SessionView};
pub use self::once::{Begun, Effect, OnceGuard, OnceKey, OnceRequest, RenderAnswer};
pub use self::prompt::{PromptSession, WhenBusy};
use self::rows::Rows;
pub use self::stream::{Tail, Until};
use crate::clock::Clock;
use crate::domain::policy::Policy;
use crate::domain::session::Session;
use crate::harness::Registry;
pub use crate::harness::{Availability, Harness, Introduction, Mode, Restore};
use crate::ids::SessionKey;
pub use crate::store::{
    ApiKey, ApprovalFilter, Cursor, EventPage, OnceAnswer, Page, PageRequest, Published, Seen, SessionFilter,
    SessionRef, StoreError,
};
use crate::store::{Change, Commit, SharedStore};

/// How the service is set up.
#[derive(Clone, Debug)]
pub struct ServiceOptions {
    /// Where workspaces and agents' state directories are made, absolute.
    pub data_dir: PathBuf,
    /// Directories in which callers may choose their own workspace.
    pub workspace_roots: Vec<PathBuf>,
    /// What the operator allows, whatever a session or a person says.
    pub policy: Policy,
    /// How long a live session may be idle before it is put away.
    pub idle_ttl: Duration,
    /// How often the sweeper looks.
    pub sweep_interval: Duration,
    /// How long a harness has to end a turn that was cancelled.
    pub cancel_grace: Duration,
    /// How long a harness has to take a prompt or an answer, or to give its state away.
    pub harness_deadline: Duration,
    /// How long a running turn may still work when the service goes down.
    pub shutdown_grace: Duration,
    /// Most live sessions at once.
    pub max_live: usize,
    /// Most requests that one key may send in a second; `None` for no limit.
    pub requests_per_second: Option<NonZeroU32>,
    /// How long idempotency keys are kept.
    pub idempotency_ttl: Duration,
    /// How long events of ended turns are kept; `None` for ever.
    pub event_retention: Option<Duration>,
    /// How long this replica's leases outlive its last sign of life, where there may be others.
    pub replica_ttl: Duration,
    /// How often rows are looked at that another replica may have changed.
    pub poll_interval: Duration,
    /// How long a verb waits for the driver to carry a wish out.
    pub wish_deadline: Duration,
}

impl ServiceOptions {
    /// The defaults, in a data directory.
    pub fn new(data_dir: PathBuf) -> Self {
        Self {
            data_dir,
            workspace_roots: Vec::new(),
            policy: Policy::open(),
            idle_ttl: Duration::from_secs(900),
            sweep_interval: Duration::from_secs(5),
            cancel_grace: Duration::from_secs(5),
            harness_deadline: Duration::from_secs(30),
            shutdown_grace: Duration::from_secs(10),
            max_live: 1000,
            requests_per_second: None,
            idempotency_ttl: Duration::from_secs(7 * 24 * 3600),
            event_retention: None,
            replica_ttl: Duration::from_secs(10),
            poll_interval: Duration::from_millis(300),
            wish_deadline: Duration::from_secs(15),
        }
    }
}

/// What the service has counted since it started.
#[derive(Debug, Default)]
pub struct Counters {
    /// Turns by how they ended: completed, failed, cancelled, interrupted, timed out.
    pub turns: [AtomicU64; 5],
    /// Approvals asked.
    pub approvals_requested: AtomicU64,
    /// Approvals decided by a person.
    pub approvals_decided: AtomicU64,
    /// Sweeps done.
    pub sweeps: AtomicU64,
    /// Sessions put away by them.
    pub swept: AtomicU64,
    /// Sessions brought back from the database.
    pub rehydrated: AtomicU64,
}

impl Counters {
    fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// The service. One per process.
pub struct Service {
    store: SharedStore,
    harnesses: Registry,
    clock: Clock,
    options: ServiceOptions,
    membership: membership::Membership,
    live: Arc<live::LiveSessions>,
    locks: run_locks::RunLocks,
    once: once::InFlight,
    checks: check::Checks,
    keys: keys::KeyCache,
    rate: rate::RateLimit,
    counters: Counters,
    /// Units of work and drivers: what must finish before the store closes.
    tasks: TaskTracker,
    /// Sessions whose driver gave up under a lease that is still this replica's.
    abandoned: recovery::Abandoned,
    /// Turns that nobody has taken up yet.
    unclaimed: recovery::Unclaimed,
    /// Cancelled when the service begins to go down.
    closing: CancellationToken,
    /// Cancelled when it has gone down, and the store is about to close.
    ended: CancellationToken,
}

impl Service {
    /// A service on an open store. [`Service::run_background`] sets it to work.
    pub fn new(store: SharedStore, harnesses: Registry, clock: Clock, options: ServiceOptions) -> Arc<Self> {
        Arc::new(Self {
            store,
            harnesses,
            clock,
            rate: rate::RateLimit::new(options.requests_per_second),
            options,
            membership: membership::Membership::default(),
            live: Arc::default(),
            locks: run_locks::RunLocks::default(),
            once: once::InFlight::default(),
            checks: check::Checks::default(),
            keys: keys::KeyCache::default(),
            counters: Counters::default(),
            tasks: TaskTracker::new(),
            abandoned: recovery::Abandoned::default(),
            unclaimed: recovery::Unclaimed::default(),
            closing: CancellationToken::new(),
            ended: CancellationToken::new(),
        })
    }

    /// The store, for what asks it directly: readiness and metrics.
    pub fn store(&self) -> &SharedStore {
        &self.store
    }

    /// The harnesses.
    pub fn harnesses(&self) -> &Registry {
        &self.harnesses
    }

    /// The clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// What was counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How many sessions are live.
    pub fn live_count(&self) -> usize {
        self.live.count()
    }

    /// Cancelled when the service begins to go down: streams end then.
    pub fn closing(&self) -> &CancellationToken {
        &self.closing
    }

    /// Runs a unit of work that finishes even when whoever waits for it goes away.
    async fn unit<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl Future<Output = ServiceResult<T>> + Send + 'static,
    ) -> ServiceResult<T> {
        match self.tasks.spawn(work.in_current_span()).await {
            Ok(result) => result,
            Err(panicked) => Err(ServiceError::Bug(panicked.to_string())),
        }
    }

    /// Nothing new is taken on once the service goes down.
    fn refuse_when_closing(&self) -> ServiceResult<()> {
        if self.closing.is_cancelled() { Err(ServiceError::ShuttingDown) } else { Ok(()) }
    }

    /// Load, decide, commit: `decide` makes a change of the rows as they are now, or none. It is called again, with the rows as
    /// they are then, when another process was faster. The caller holds the session's mutex.
    async fn change<T: Send>(
        &self,
        key: SessionKey,
        mut decide: impl FnMut(&Rows) -> ServiceResult<(Option<Change>, T)> + Send,
    ) -> ServiceResult<(Session, T)> {
        for _ in 0..STALE_TRIES {
            let rows = self.read_rows(key).await?.ok_or(ServiceError::NotFound)?;
            let (change, value) = decide(&rows)?;
            let Some(change) = change else { return Ok((rows.session, value)) };
            match self.store.commit(change).await? {
                Commit::Done => {
                    let session = self.store.find_session_by_key(key).await?.ok_or(ServiceError::NotFound)?;
                    return Ok((session, value));
                }
                Commit::Stale => {}
                Commit::Repeated => return Err(ServiceError::IdempotencyInProgress),
                Commit::RunExists => return Err(ServiceError::RunExists),
            }
        }
        Err(ServiceError::Overloaded("the session changes too fast"))
    }
}

/// How often a change is made anew when another process was faster.
const STALE_TRIES: usize = 20;

#[cfg(test)]
mod tests;
