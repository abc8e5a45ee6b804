//! One writer: takes what waits, commits it together, tells who waits and who listens.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sqlx::{ConnectOptions, Connection as _};
use tokio::sync::mpsc;

use super::batch::{Batch, BatchError, Done};
use super::settle::{PATIENCE, settle};
use super::{Commit, Counters, Job, Shared, Written};
use crate::ids::SessionKey;
use crate::store::dialect::{Connection, Dialect, Statement};
use crate::store::pulse::Pulse;
use crate::store::{Result, StoreError};

/// Most writes of one commit.
const BATCH_MAX: usize = 256;
/// Sessions whose last seq is remembered; beyond it the memory starts anew.
const SEQS_MAX: usize = 100_000;
/// How often a write is tried that another process got in the way of.
const CONTENDED_TRIES: usize = 10;
/// How long a connection may take to be made, where that goes over a network.
pub(super) const CONNECT_DEADLINE: Duration = Duration::from_secs(5);
/// How long a batch may take before its connection is given up, where that goes over a network. The statement timeout of the
/// database ends what is slow there; this ends waiting for a peer that is not there any more.
const BATCH_DEADLINE: Duration = Duration::from_secs(15);
/// How long a connection rests before it is asked whether it is well, and how long it has to say so.
const RESTED: Duration = Duration::from_secs(1);
const ASKED: Duration = Duration::from_secs(1);
/// The longest that it is asked what became of a holder's write: as long as a driver tries to write at all.
const HELD_PATIENCE: Duration = Duration::from_secs(30);

/// See the module.
pub(super) struct Task<D: Dialect> {
    shared: Arc<Shared<D>>,
    connection: Option<Connection<D>>,
    /// When the connection last did something.
    used: Instant,
    jobs: mpsc::Receiver<Job>,
    counters: Arc<Counters>,
    seqs: HashMap<SessionKey, i64>,
}

impl<D: Dialect> Task<D> {
    pub(super) fn new(shared: Arc<Shared<D>>, jobs: mpsc::Receiver<Job>, counters: Arc<Counters>) -> Self {
        Self { shared, connection: None, used: Instant::now(), jobs, counters, seqs: HashMap::new() }
    }

    pub(super) async fn run(mut self) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        let mut closing = false;
        while !closing && self.jobs.recv_many(&mut batch, BATCH_MAX).await > 0 {
            closing = batch.iter().any(|job| job.write.steps.is_empty() && job.write.events.is_empty());
            if closing {
                self.jobs.close();
                while let Ok(job) = self.jobs.try_recv() {
                    batch.push(job);
                }
            }
            self.carry_out(std::mem::take(&mut batch)).await;
            // Whoever was just answered, and has more, gets to hand it in before the next batch is cut. This is no waiting: with
            // nobody else to run it returns at once.
            tokio::task::yield_now().await;
        }
        if let Some(connection) = self.connection.take()
            && let Err(error) = connection.close().await
        {
            tracing::warn!(%error, "closing the writing connection failed");
        }
    }

    /// Commits a batch, the large ones of it last and each by itself: nobody's commit waits for what came with it.
    async fn carry_out(&mut self, batch: Vec<Job>) {
        let batch = self.refuse_fenced(batch);
        let (large, small): (Vec<Job>, Vec<Job>) = batch.into_iter().partition(|job| job.write.is_large);
        self.carry_out_together(small).await;
        for job in large {
            let written = self.commit_alone(&job).await;
            answer(job, written);
        }
    }

    /// Commits a batch together; if that fails, each of its writes by itself, so that one bad write fails alone.
    async fn carry_out_together(&mut self, mut batch: Vec<Job>) {
        // Rows are changed in the order of their keys, so that two processes do not wait for each other crosswise.
        batch.sort_by_key(|job| job.write.session);
        if batch.len() > 1 {
            match self.commit(&batch).await {
                Ok(written) => {
                    for (job, written) in batch.into_iter().zip(written) {
                        answer(job, Ok(written));
                    }
                    return;
                }
                Err(BatchError::Unsure(error)) => {
                    for job in batch {
                        answer(job, Err(StoreError::Unknown(Arc::clone(&error))));
                    }
                    return;
                }
                Err(BatchError::Unreachable(error)) => {
                    for job in batch {
                        answer(job, Err(StoreError::Unavailable(Arc::clone(&error))));
                    }
                    return;
                }
                Err(BatchError::Undone(_) | BatchError::Contended(_) | BatchError::LeaseLost) => {
                    tracing::debug!(
                        writes = batch.len(),
                        "a batch was undone; its writes are tried one by one"
                    );
                }
            }
        }
        for job in batch {
            let written = self.commit_alone(&job).await;
            answer(job, written);
        }
    }

    /// A process that may have lost its leases writes nothing as a holder.
    fn refuse_fenced(&self, batch: Vec<Job>) -> Vec<Job> {
        if self.shared.pulse.is_alive() {
            return batch;
        }
        let (held, others): (Vec<Job>, Vec<Job>) =
            batch.into_iter().partition(|job| job.write.epoch.is_some());
        for job in held {
            answer(job, Err(StoreError::LeaseLost));
        }
        others
    }

    async fn commit_alone(&mut self, job: &Job) -> Result<Written> {
        for _ in 1..CONTENDED_TRIES {
            match self.commit(std::slice::from_ref(job)).await {
                Err(BatchError::Contended(error)) => {
                    tracing::debug!(%error, "another process was in the way of a write; it is tried again");
                }
                done => return alone(done),
            }
        }
        alone(self.commit(std::slice::from_ref(job)).await)
    }

    async fn commit(&mut self, jobs: &[Job]) -> Result<Vec<Written>, BatchError> {
        let begun = Instant::now();
        let mut connection = self.connect().await?;
        if self.seqs.len() >= SEQS_MAX {
            self.seqs.clear();
        }
        let mut batch = Batch::new(jobs, &self.shared.wakeups, &mut self.seqs);
        let ended = match within::<D, _>(BATCH_DEADLINE, batch.transact::<D>(&mut connection)).await {
            Ok(ended) => ended,
            Err(late) if batch.is_committing() => Err(BatchError::Unsure(late)),
            Err(late) => Err(BatchError::Unreachable(late)),
        };
        let has_begun = batch.has_begun();
        let (kept, ended) = match ended {
            Err(BatchError::Unsure(error)) => {
                // Dropped, not closed: whoever is at the other end does not answer.
                drop(connection);
                let patience = patience(&self.shared.pulse, jobs);
                (None, settle::<D>(&self.shared.options, error, batch.lost(), patience).await)
            }
            Err(error) if has_begun => (roll_back::<D>(connection, &error).await, Err(error)),
            ended => (Some(connection), ended),
        };
        let done = batch.into_done();
        let ended = ended.map(|()| done);
        // Before anybody is told of it.
        self.forget_what_changed(jobs, ended.as_ref().ok());
        self.finish(kept, begun, ended)
    }

    /// The connection of the last batch, else a new one. One that has rested is asked whether it is well: its peer may be gone
    /// without a word, and then a batch would wait for it in vain.
    async fn connect(&mut self) -> Result<Connection<D>, BatchError> {
        if let Some(mut connection) = self.connection.take() {
            if !D::SHARED || self.used.elapsed() < RESTED {
                return Ok(connection);
            }
            if let Ok(Ok(_)) = within::<D, _>(ASKED, D::execute(&mut connection, &sign_of_life())).await {
                return Ok(connection);
            }
        }
        connect(&self.shared).await
    }

    /// What was remembered of these sessions is not so any more, or may not be where it is not known what was done.
    fn forget_what_changed(&self, jobs: &[Job], done: Option<&Done>) {
        for job in jobs {
            let Some(session) = job.write.session else { continue };
            let appended =
                done.filter(|_| job.write.steps.is_empty()).and_then(|done| done.last_seq(session));
            match appended {
                Some(last_seq) => self.shared.remembered.advance(session, last_seq),
                None => self.shared.remembered.forget(session),
            }
        }
    }

    /// After the batch: tells who listens, or forgets what did not come about.
    fn finish(
        &mut self,
        connection: Option<Connection<D>>,
        begun: Instant,
        ended: Result<Done, BatchError>,
    ) -> Result<Vec<Written>, BatchError> {
        match ended {
            Ok(mut done) => {
                self.connection = connection;
                self.used = Instant::now();
                self.count(begun.elapsed(), &done);
                for session in done.sessions() {
                    self.shared.hints.note(session);
                }
                done.tell(&self.shared.wakeups);
                Ok(done.written)
            }
            Err(error) => {
                // What was given out as seqs is not there.
                self.seqs.clear();
                self.counters.failures.fetch_add(1, Ordering::Relaxed);
                self.connection = connection.filter(|_| error.is_of_a_living_connection());
                Err(error)
            }
        }
    }

    fn count(&self, took: Duration, done: &Done) {
        let add = |counter: &AtomicU64, n: usize| counter.fetch_add(n as u64, Ordering::Relaxed);
        add(&self.counters.commits, 1);
        add(&self.counters.writes, done.written.len());
        add(&self.counters.events, done.events);
        self.counters.largest_batch.fetch_max(done.written.len() as u64, Ordering::Relaxed);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.counters.busy_micros.fetch_add(micros, Ordering::Relaxed);
    }
}

/// Rolls back where there is somebody to tell; a connection that cannot roll back is not used again.
async fn roll_back<D: Dialect>(mut connection: Connection<D>, error: &BatchError) -> Option<Connection<D>> {
    if !error.is_of_a_living_connection() {
        return None;
    }
    let rollback = Statement::new("ROLLBACK");
    let rolled_back = within::<D, _>(CONNECT_DEADLINE, D::execute(&mut connection, &rollback)).await;
    matches!(rolled_back, Ok(Ok(_))).then_some(connection)
}

/// How long it is asked what became of these. What a holder wrote for as long as it is one: its turn goes on if that is known in
/// time, and is interrupted if not.
fn patience(pulse: &Pulse, jobs: &[Job]) -> Duration {
    let held = jobs.iter().any(|job| job.write.epoch.is_some());
    match pulse.alive_until().filter(|_| held) {
        Some(until) => until.saturating_duration_since(Instant::now().into()).clamp(PATIENCE, HELD_PATIENCE),
        None => PATIENCE,
    }
}

/// What a connection is asked to know whether it is well.
pub(in crate::store) fn sign_of_life() -> Statement {
    Statement::new("SELECT 1")
}

async fn connect<D: Dialect>(shared: &Shared<D>) -> Result<Connection<D>, BatchError> {
    match within::<D, _>(CONNECT_DEADLINE, shared.options.connect()).await {
        Ok(connected) => connected.map_err(|error| BatchError::Unreachable(Arc::new(error))),
        Err(late) => Err(BatchError::Unreachable(late)),
    }
}

/// Waits no longer than that for a database on a network. One in a file is waited for: it answers, or the system says why not.
pub(super) async fn within<D: Dialect, T>(
    deadline: Duration,
    work: impl Future<Output = T>,
) -> Result<T, Arc<sqlx::Error>> {
    if !D::SHARED {
        return Ok(work.await);
    }
    let late = |_| Arc::new(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()));
    tokio::time::timeout(deadline, work).await.map_err(late)
}

/// What came of a write that was committed by itself.
fn alone(done: Result<Vec<Written>, BatchError>) -> Result<Written> {
    match done {
        Ok(mut written) => written.pop().ok_or(StoreError::Closed),
        Err(BatchError::Undone(error)) => Err(error),
        Err(BatchError::Unsure(error)) => Err(StoreError::Unknown(error)),
        Err(BatchError::Unreachable(error) | BatchError::Contended(error)) => {
            Err(StoreError::Unavailable(error))
        }
        Err(BatchError::LeaseLost) => Ok(Written { commit: Commit::Stale, ..Written::default() }),
    }
}

fn answer(job: Job, written: Result<Written>) {
    // A caller that went away has its write all the same.
    drop(job.reply.send(written));
}
