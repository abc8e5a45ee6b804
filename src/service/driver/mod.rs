//! One task per live session: it owns the harness and the lease. It looks at the rows, does the next step that they ask for, and
//! writes down what the harness does. Commands never talk to it; they change rows and ring.

mod ask;
mod ask_again;
mod finish;
mod harness;
mod memory;
mod review;
mod turns;
mod work;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::Value;
use tracing::{Instrument, field};

use self::harness::RunningHarness;
use self::memory::Memory;
use self::review::{Posture, Step, next_step};
use self::work::Work;
use super::live::Live;
use super::membership::Term;
use super::outbox::Outbox;
use super::rows::Rows;
use super::{Service, ServiceError, ServiceResult, chain};
use crate::clock::Timestamp;
use crate::domain::event::{EventBody, NewEvent};
use crate::domain::lease::Lease;
use crate::domain::session::Session;
use crate::harness::{ApprovalRecovery, TurnRecovery};
use crate::store::{Change, Commit, StoreError};

/// How long a driver tries again when the database cannot be used, before it gives its harness up.
const STORAGE_PATIENCE: Duration = Duration::from_secs(30);
/// How many things in a row a harness may add to what it said before that is sent.
const HELD_BACK_MAX: usize = 16;

/// See the module.
struct Driver {
    service: Arc<Service>,
    live: Arc<Live>,
    lease: Lease,
    harness: Option<RunningHarness>,
    work: Option<Work>,
    outbox: Outbox,
    /// A resume state that is not stored yet; it goes with the next change.
    unsaved: Option<Option<Arc<Value>>>,
    memory: Memory,
    /// The last state could not be kept at all: too large, or not sealable.
    state_refused: bool,
    /// The service goes down: until when a turn may still work.
    closing_until: Option<Timestamp>,
}

impl Service {
    /// Makes sure that a driver looks at the session's rows: this process's own, unless another process holds the session and
    /// hears of it there. Gives whether it is this one's. Called with the session's mutex held, after reading the session.
    pub(super) fn ensure_driver(self: &Arc<Self>, session: &Session) -> bool {
        if let Some(live) = self.live.get(session.key) {
            live.ring();
            return true;
        }
        if session.holder.is_some() || self.membership.term().lost.is_cancelled() {
            return false;
        }
        let Some(live) = self.live.take(session.key) else { return true };
        let this = Arc::clone(self);
        // The driver outlives the request that woke it; its log lines go by the session alone.
        let span = tracing::info_span!(parent: None, "driver", session = field::Empty);
        self.tasks.spawn(async move { this.drive(live).await }.instrument(span));
        true
    }

    async fn drive(self: Arc<Self>, live: Arc<Live>) {
        let key = live.key;
        let term = self.membership.term();
        let driven = AssertUnwindSafe(Driver::claim_and_run(Arc::clone(&self), Arc::clone(&live), &term))
            .catch_unwind()
            .await;
        match driven {
            Ok(Ok(())) => {}
            Ok(Err(ServiceError::LeaseLost | ServiceError::Store(StoreError::LeaseLost))) => {
                tracing::warn!("a session was let go: its lease is lost");
            }
            Ok(Err(error)) => {
                tracing::error!(error = chain(&error), "a driver gave up")
            }
            Err(_) => tracing::error!("a driver panicked"),
        }
        // A driver that ended as it should has let go already. One that did not leaves its lease to recovery.
        if self.live.get(key).is_some_and(|other| Arc::ptr_eq(&other, &live)) {
            let _guard = self.locks.lock(key).await;
            self.live.let_go(&live);
            self.abandoned.add(key, term.replica);
        }
    }
}

impl Driver {
    async fn claim_and_run(service: Arc<Service>, live: Arc<Live>, term: &Term) -> ServiceResult<()> {
        let Some(lease) = service.store.claim(live.key, &term.replica, None).await? else {
            // Somebody else has it, or recovery has not got to it yet.
            return Ok(());
        };
        let outbox = Outbox::new(Arc::clone(&service.store), lease.reference());
        let mut driver = Self {
            service,
            live,
            lease,
            harness: None,
            work: None,
            outbox,
            unsaved: None,
            memory: Memory::default(),
            state_refused: false,
            closing_until: None,
        };
        let session = driver.read().await?.session.id;
        tracing::Span::current().record("session", session.as_str());
        let ended = tokio::select! {
            biased;
            // Whatever it was about to do, it may not any more.
            () = term.lost.cancelled() => Err(ServiceError::LeaseLost),
            ended = driver.run() => ended,
        };
        if term.lost.is_cancelled() {
            // Another replica may start one of its own at any moment: this one is not asked to end, it is killed.
            drop(driver.harness.take());
        }
        // Whatever ended it, nothing of the harness is left when this returns.
        driver.stop_harness().await;
        ended
    }

    async fn run(&mut self) -> ServiceResult<()> {
        loop {
            let rows = self.read().await?;
            match next_step(&rows.session, &rows.open, self.posture(&rows.session)) {
                Step::Rest => self.wait().await?,
                Step::Start => {
                    // A change that came before it was seen by it, and one that comes from now on rings.
                    if self.start_turn(rows).await? {
                        self.wait().await?;
                    }
                }
                Step::TakeUp => self.take_up_turn(&rows.session).await?,
                Step::Deliver(approval) => self.deliver(&approval).await?,
                Step::Cancel => self.cancel_turn().await?,
                Step::EndUnattended => self.end_unattended().await?,
                Step::Fulfil(wish) => return self.fulfil(wish).await,
                Step::PutAway(cause) => {
                    if self.put_away(cause).await? {
                        return Ok(());
                    }
                }
                Step::Suspend => self.suspend().await?,
                Step::Leave => {
                    if self.leave().await? {
                        return Ok(());
                    }
                }
            }
        }
    }

    fn posture(&self, session: &Session) -> Posture {
        Posture {
            at_work: self.work.as_ref().map(|work| work.turn.ordinal),
            ending: self.work.as_ref().is_some_and(|work| work.ending.is_some()),
            harness_runs: self.harness.is_some(),
            put_away: self.live.wants_put_away(),
            closing: self.service.closing.is_cancelled(),
            keeps_questions: self.service.keeps_questions(session),
            resumes: self.service.resumes(session),
        }
    }

    fn now(&self) -> Timestamp {
        self.service.clock.now()
    }

    /// Waits until the rows or the harness ask for a next step.
    async fn wait(&mut self) -> ServiceResult<()> {
        if self.work.is_none() {
            self.live.rests_since(self.now());
        }
        let mut held_back = 0;
        loop {
            if !self.outbox.is_busy()
                && self.unsaved.is_some()
                && self.harness.as_ref().is_none_or(RunningHarness::is_quiet)
            {
                self.save_state().await?;
            }
            if self.says_more(held_back).await {
                held_back += 1;
            } else {
                self.outbox.send();
                held_back = 0;
            }
            let (deadline, late_files) = (self.deadline(), self.late_files_due());
            let clock = &self.service.clock;
            tokio::select! {
                biased;
                stored = self.outbox.settle(), if self.outbox.is_busy() => self.after_append(stored).await?,
                () = self.live.rung() => return Ok(()),
                event = RunningHarness::next(&mut self.harness), if self.harness.is_some() && !self.outbox.is_full() => {
                    if self.take_event(event).await? {
                        return Ok(());
                    }
                }
                () = clock.sleep_until(deadline.unwrap_or_default()), if deadline.is_some() => {
                    return self.after_deadline().await;
                }
                () = clock.sleep_until(late_files.unwrap_or_default()), if late_files.is_some() => {
                    self.take_late_files().await?;
                }
                () = self.service.closing.cancelled(), if self.closing_until.is_none() => {
                    self.closing_until = Some(self.now().plus(self.service.options.shutdown_grace));
                    return Ok(());
                }
            }
        }
    }

    /// Whether the harness has more to say already, which goes out with what waits instead of after it. Nothing is waited for: the
    /// harness gets to run if it can, once. `held_back` is how often that was so since something was sent.
    async fn says_more(&self, held_back: usize) -> bool {
        if self.outbox.is_busy()
            || self.outbox.is_empty()
            || self.outbox.is_full()
            || held_back >= HELD_BACK_MAX
        {
            return false;
        }
        tokio::task::yield_now().await;
        self.harness.as_ref().is_some_and(|harness| !harness.is_quiet())
    }

    /// An append that could not be stored waits in the outbox; it is tried again for a while.
    async fn after_append(&mut self, stored: Result<(), StoreError>) -> ServiceResult<()> {
        match stored {
            Err(StoreError::Unavailable(error)) => {
                tracing::warn!(error = chain(&error), "events cannot be stored; trying again");
                self.settle_outbox().await
            }
            stored => Ok(stored?),
        }
    }

    /// Waits until nothing is in flight, trying again while the database cannot be used.
    async fn settle_outbox(&mut self) -> ServiceResult<()> {
        let mut patience = Patience::new(&self.service);
        loop {
            match self.outbox.settle().await {
                Err(StoreError::Unavailable(error)) => {
                    patience.wait(StoreError::Unavailable(error)).await?;
                    self.outbox.send();
                }
                stored => return Ok(stored?),
            }
        }
    }

    async fn read(&self) -> ServiceResult<Rows> {
        let mut patience = Patience::new(&self.service);
        loop {
            match self.read_once().await {
                Err(ServiceError::Store(error @ StoreError::Unavailable(_))) => patience.wait(error).await?,
                read => return read,
            }
        }
    }

    async fn read_once(&self) -> ServiceResult<Rows> {
        let rows = self.service.read_rows(self.live.key).await?.ok_or(ServiceError::NotFound)?;
        if rows.session.holder.as_ref() == Some(self.lease.holder()) {
            Ok(rows)
        } else {
            Err(ServiceError::LeaseLost)
        }
    }

    /// Commits a change of the session together with all that waits in the outbox before it. `decide` sees the rows as they are
    /// and may find that there is nothing to change any more: `None`.
    async fn commit<T: Send>(
        &mut self,
        decide: impl FnMut(&mut Change, &Rows) -> ServiceResult<Option<T>> + Send,
    ) -> ServiceResult<Option<T>> {
        self.commit_from(None, decide).await
    }

    /// [`Driver::commit`], from rows that were read a moment ago where they are known: if they are not so any more, it is decided anew.
    async fn commit_from<T: Send>(
        &mut self,
        known: Option<Rows>,
        decide: impl FnMut(&mut Change, &Rows) -> ServiceResult<Option<T>> + Send,
    ) -> ServiceResult<Option<T>> {
        let service = Arc::clone(&self.service);
        let _guard = service.locks.lock(self.live.key).await;
        self.commit_locked_from(known, decide).await
    }

    /// [`Driver::commit`], for a caller that holds the session's mutex.
    async fn commit_locked<T: Send>(
        &mut self,
        decide: impl FnMut(&mut Change, &Rows) -> ServiceResult<Option<T>> + Send,
    ) -> ServiceResult<Option<T>> {
        self.commit_locked_from(None, decide).await
    }

    async fn commit_locked_from<T: Send>(
        &mut self,
        mut known: Option<Rows>,
        mut decide: impl FnMut(&mut Change, &Rows) -> ServiceResult<Option<T>> + Send,
    ) -> ServiceResult<Option<T>> {
        self.settle_outbox().await?;
        let mut patience = Patience::new(&self.service);
        loop {
            let rows = match known.take() {
                Some(rows) => rows,
                None => self.read().await?,
            };
            let mut change = Change::held(&rows.session, &self.lease, self.now());
            let before = self.outbox.take();
            change.events.clone_from(&before);
            change.set.resume_state.clone_from(&self.unsaved);
            change.set.agent_files = self.memory.unsaved.clone().map(Some);
            let value = match decide(&mut change, &rows) {
                Ok(Some(value)) => value,
                nothing => {
                    self.outbox.put_back(before);
                    return nothing;
                }
            };
            let silent = change.events.is_empty();
            match self.service.store.commit(change).await {
                Ok(Commit::Done) => {
                    self.unsaved = None;
                    self.memory.is_stored();
                    return Ok(Some(value));
                }
                Ok(Commit::Stale) => self.outbox.put_back(before),
                Ok(Commit::Repeated | Commit::RunExists) => {
                    return Err(ServiceError::Bug("a driver's change has no idempotency key".to_owned()));
                }
                Err(error @ StoreError::Unavailable(_)) => {
                    self.outbox.put_back(before);
                    patience.wait(error).await?;
                }
                // Nothing was said in it, so that nothing can be said twice: it is decided anew from the rows as they are.
                Err(error @ StoreError::Unknown(_)) if silent => patience.wait(error).await?,
                Err(StoreError::Seal(error)) => {
                    // The change is made without it: an older state, or none, is what the next process starts from.
                    tracing::error!(%error, "the resume state cannot be kept");
                    self.outbox.put_back(before);
                    self.unsaved = None;
                    self.memory.unsaved = None;
                    self.state_refused = true;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn event(&self, body: impl Into<EventBody>) -> NewEvent {
        let turn = self.work.as_ref().map(|work| work.turn.clone());
        NewEvent { turn, at: self.now(), body: body.into() }
    }
}

impl Service {
    /// Whether what a lost process of the session asked can still be decided: a new one can be told.
    pub(super) fn keeps_questions(&self, session: &Session) -> bool {
        self.approval_recovery(session) != ApprovalRecovery::None
    }

    /// Whether a new process of the session's harness would stand exactly where the last one stood.
    pub(super) fn restores_exactly(&self, session: &Session) -> bool {
        self.approval_recovery(session) == ApprovalRecovery::Exact
    }

    /// Whether a new process of the session's harness goes on with a turn by itself.
    pub(super) fn resumes(&self, session: &Session) -> bool {
        let harness = self.harnesses.get(&session.harness);
        harness.is_some_and(|harness| harness.capabilities().recovery == TurnRecovery::Resume)
    }

    fn approval_recovery(&self, session: &Session) -> ApprovalRecovery {
        let harness = self.harnesses.get(&session.harness).filter(|_| session.has_resume_state);
        harness.map_or(ApprovalRecovery::None, |harness| harness.capabilities().approval_recovery)
    }
}

/// Tries again for a while, ever more slowly.
struct Patience {
    clock: crate::clock::Clock,
    since: Timestamp,
    pause: Duration,
}

impl Patience {
    fn new(service: &Service) -> Self {
        Self { clock: service.clock.clone(), since: service.clock.now(), pause: Duration::from_millis(20) }
    }

    /// Waits before the next try; gives the error back when patience is over.
    async fn wait(&mut self, error: StoreError) -> ServiceResult<()> {
        if self.clock.now().since(self.since) >= STORAGE_PATIENCE {
            return Err(error.into());
        }
        self.clock.sleep(self.pause).await;
        self.pause = (self.pause * 2).min(Duration::from_secs(1));
        Ok(())
    }
}
