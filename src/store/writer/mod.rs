//! Group commit. A task owns a writing connection; whatever waits while a commit is in flight makes up the next one. Nobody lingers
//! to fill a batch: a lone write goes out at once. Where the database can commit side by side, several tasks share the sessions.
//!
//! The writer gives each event its seq, 1, 2, 3 … per session. Nothing is published and nobody is told "done" before COMMIT has
//! returned.

mod batch;
mod settle;
mod task;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{mpsc, oneshot, watch};

pub(super) use self::batch::last_seqs;
pub(super) use self::settle::event_at;
pub(super) use self::task::sign_of_life;
use super::dialect::{Connection, Dialect, Record, Statement};
use super::hints::Outgoing;
use super::pulse::Pulse;
use super::remembered::Remembered;
use super::wakeup::Wakeups;
use super::{Commit, Result, StoreError};
use crate::domain::event::NewEvent;
use crate::ids::SessionKey;

/// Most writes that wait. Beyond it, writers wait in turn for a place.
const QUEUE: usize = 4096;

/// What must be true of the number of rows that a step changed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Expect {
    /// Whatever it is.
    Any,
    /// One row of that table; anything else is a bug and undoes the batch.
    One(&'static str),
    /// None changed ends the write with that outcome. A guard comes before anything that would have to be undone.
    Guard(Commit),
}

/// One statement of a write.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) statement: Statement,
    pub(super) expect: Expect,
    /// What takes back the guards before it, when this guard fails.
    pub(super) undo: Option<Statement>,
}

impl Step {
    pub(super) fn new(statement: Statement, expect: Expect) -> Self {
        Self { statement, expect, undo: None }
    }
}

/// A write: statements and events that are committed together.
#[derive(Debug, Default)]
pub(super) struct Write {
    /// The session that it is about, if it is about one.
    pub(super) session: Option<SessionKey>,
    pub(super) steps: Vec<Step>,
    /// The session's.
    pub(super) events: Vec<NewEvent>,
    /// Run last; its rows come back.
    pub(super) returning: Option<Statement>,
    pub(super) last_seq: LastSeq,
    /// The epoch of the lease under which it is made.
    pub(super) epoch: Option<i64>,
    /// It takes long enough that others should not share its commit.
    pub(super) is_large: bool,
}

/// What is known of the last seq of the session before a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum LastSeq {
    /// The session is new: its events begin at 1.
    None,
    /// Only its holder appends at this time, and the holder is here: what is remembered is right, else the insert fails.
    #[default]
    Remembered,
    /// Another process may have appended: the table is asked.
    Asked,
}

/// What a committed write did.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub(super) commit: Commit,
    /// Rows changed by the steps, summed.
    pub(super) changed: u64,
    pub(super) rows: Vec<Record>,
}

struct Job {
    write: Write,
    reply: oneshot::Sender<Result<Written>>,
}

/// What the writer has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriterStats {
    /// Commits.
    pub commits: u64,
    /// Writes in them.
    pub writes: u64,
    /// Events in them.
    pub events: u64,
    /// Commits that failed.
    pub failures: u64,
    /// Time spent from BEGIN to the end of COMMIT, in microseconds.
    pub busy_micros: u64,
    /// The largest batch.
    pub largest_batch: u64,
}

#[derive(Debug, Default)]
struct Counters {
    commits: AtomicU64,
    writes: AtomicU64,
    events: AtomicU64,
    failures: AtomicU64,
    busy_micros: AtomicU64,
    largest_batch: AtomicU64,
}

/// The way to the writers of a database.
#[derive(Debug)]
pub(super) struct Writers {
    queues: Vec<mpsc::Sender<Job>>,
    counters: Arc<Counters>,
    ended: Vec<watch::Receiver<bool>>,
}

/// What all writers of a database share.
pub(super) struct Shared<D: Dialect> {
    pub(super) options: <Connection<D> as sqlx::Connection>::Options,
    pub(super) wakeups: Arc<Wakeups>,
    /// What is not so any more after a commit.
    pub(super) remembered: Arc<Remembered>,
    /// Whether this process may write as a holder.
    pub(super) pulse: Arc<Pulse>,
    /// Where other processes hear of what was committed.
    pub(super) hints: Outgoing,
}

/// Starts the writers of a database.
pub(super) fn spawn<D: Dialect>(shared: Shared<D>) -> Writers {
    let shared = Arc::new(shared);
    let counters = Arc::new(Counters::default());
    let mut writers = Writers { queues: Vec::new(), counters: Arc::clone(&counters), ended: Vec::new() };
    for _ in 0..D::WRITERS {
        let (queue, jobs) = mpsc::channel(QUEUE);
        let (end, ended) = watch::channel(false);
        let task = task::Task::new(Arc::clone(&shared), jobs, Arc::clone(&counters));
        tokio::spawn(async move {
            task.run().await;
            end.send_replace(true);
        });
        writers.queues.push(queue);
        writers.ended.push(ended);
    }
    writers
}

impl Writers {
    /// All that concerns one session goes one way, so that it keeps its order.
    fn queue_of(&self, session: Option<SessionKey>) -> Result<&mpsc::Sender<Job>> {
        let share = session.map_or(0, |key| key.0.unsigned_abs() as usize) % self.queues.len().max(1);
        self.queues.get(share).ok_or(StoreError::Closed)
    }

    /// Hands a write in and waits until it is committed. Once handed in it is carried out, whether the caller still waits or not.
    pub(super) async fn write(&self, write: Write) -> Result<Written> {
        let (reply, answer) = oneshot::channel();
        let queue = self.queue_of(write.session)?;
        queue.send(Job { write, reply }).await.map_err(|_| StoreError::Closed)?;
        answer.await.map_err(|_| StoreError::Closed)?
    }

    /// Waits until every write handed in so far is committed, then ends the writers.
    pub(super) async fn close(&self) {
        for queue in &self.queues {
            let (reply, answer) = oneshot::channel();
            // An empty write after which the writer stops: see `Task::run`.
            if queue.send(Job { write: Write::default(), reply }).await.is_ok() {
                drop(answer.await);
            }
        }
        for ended in &self.ended {
            // The sender is dropped only after it said true.
            drop(ended.clone().wait_for(|ended| *ended).await);
        }
    }

    pub(super) fn stats(&self) -> WriterStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        WriterStats {
            commits: read(&self.counters.commits),
            writes: read(&self.counters.writes),
            events: read(&self.counters.events),
            failures: read(&self.counters.failures),
            busy_micros: read(&self.counters.busy_micros),
            largest_batch: read(&self.counters.largest_batch),
        }
    }
}
