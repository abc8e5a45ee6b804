//! Group commit. One task owns the only writing connection; whatever waits while a commit is in flight makes up the next one.
//! Nobody lingers to fill a batch: a lone write goes out at once.
//!
//! The writer gives each event its seq, 1, 2, 3 … per session, from memory: it is the only one who appends. Nothing is published
//! and nobody is told "done" before COMMIT has returned.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sqlx::{ConnectOptions, Connection as _};
use tokio::sync::{mpsc, oneshot};

use super::dialect::{Connection, Dialect, EventRow, Record, Statement, Value};
use super::wakeup::Wakeups;
use super::{Commit, Result, StoreError};
use crate::domain::event::{Event, NewEvent};
use crate::ids::SessionKey;

/// Most writes of one commit.
const BATCH_MAX: usize = 256;
/// Most writes that wait. Beyond it, writers wait in turn for a place.
const QUEUE: usize = 4096;
/// Sessions whose last seq is remembered; beyond it the memory starts anew.
const SEQS_MAX: usize = 100_000;

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
    pub(super) steps: Vec<Step>,
    pub(super) events: Vec<(SessionKey, NewEvent)>,
    /// Run last; its rows come back.
    pub(super) returning: Option<Statement>,
    /// The session is new: its events begin at 1.
    pub(super) new_session: bool,
}

/// What a committed write did.
#[derive(Debug)]
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

/// The way to the writer.
#[derive(Debug)]
pub(super) struct WriterHandle {
    queue: mpsc::Sender<Job>,
    counters: Arc<Counters>,
    ended: tokio::sync::watch::Receiver<bool>,
}

impl WriterHandle {
    /// Hands a write in and waits until it is committed. Once handed in it is carried out, whether the caller still waits or not.
    pub(super) async fn write(&self, write: Write) -> Result<Written> {
        let (reply, answer) = oneshot::channel();
        self.queue.send(Job { write, reply }).await.map_err(|_| StoreError::Closed)?;
        answer.await.map_err(|_| StoreError::Closed)?
    }

    /// Waits until every write handed in so far is committed, then ends the writer.
    pub(super) async fn close(&self) {
        let (reply, answer) = oneshot::channel();
        // An empty write after which the writer stops: see `Writer::run`.
        let job = Job { write: Write::default(), reply };
        if self.queue.send(job).await.is_ok() {
            drop(answer.await);
        }
        let mut ended = self.ended.clone();
        // The sender is dropped only after it said true.
        drop(ended.wait_for(|ended| *ended).await);
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

/// How a batch failed.
enum BatchError {
    /// Before COMMIT: nothing of it is kept.
    Undone(StoreError),
    /// At COMMIT: it may be kept.
    Unsure(Arc<sqlx::Error>),
}

impl From<sqlx::Error> for BatchError {
    fn from(error: sqlx::Error) -> Self {
        Self::Undone(StoreError::from(error))
    }
}

type Options<D> = <Connection<D> as sqlx::Connection>::Options;

struct Writer<D: Dialect> {
    options: Options<D>,
    connection: Option<Connection<D>>,
    jobs: mpsc::Receiver<Job>,
    wakeups: Arc<Wakeups>,
    counters: Arc<Counters>,
    seqs: HashMap<SessionKey, i64>,
}

/// Starts the writer of a database.
pub(super) fn spawn<D: Dialect>(options: Options<D>, wakeups: Arc<Wakeups>) -> WriterHandle {
    let (queue, jobs) = mpsc::channel(QUEUE);
    let counters = Arc::new(Counters::default());
    let (end, ended) = tokio::sync::watch::channel(false);
    let writer = Writer::<D> {
        options,
        connection: None,
        jobs,
        wakeups,
        counters: Arc::clone(&counters),
        seqs: HashMap::new(),
    };
    tokio::spawn(async move {
        writer.run().await;
        end.send_replace(true);
    });
    WriterHandle { queue, counters, ended }
}

impl<D: Dialect> Writer<D> {
    async fn run(mut self) {
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

    /// Commits a batch together; if that fails, each of its writes by itself, so that one bad write fails alone.
    async fn carry_out(&mut self, batch: Vec<Job>) {
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
                Err(BatchError::Undone(error)) => {
                    tracing::debug!(%error, writes = batch.len(), "a batch was undone; its writes are tried one by one");
                }
            }
        }
        for job in batch {
            let written = match self.commit(std::slice::from_ref(&job)).await {
                Ok(mut written) => written.pop().ok_or(StoreError::Closed),
                Err(BatchError::Undone(error)) => Err(error),
                Err(BatchError::Unsure(error)) => Err(StoreError::Unknown(error)),
            };
            answer(job, written);
        }
    }

    async fn commit(&mut self, batch: &[Job]) -> Result<Vec<Written>, BatchError> {
        let begun = Instant::now();
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.options.connect().await?,
        };
        match self.transact(&mut connection, batch).await {
            Ok(done) => {
                self.connection = Some(connection);
                self.count(begun.elapsed(), &done);
                for (session, events) in done.heard {
                    self.wakeups.publish(session, events);
                }
                for session in done.unheard {
                    self.wakeups.wake(session);
                }
                Ok(done.written)
            }
            Err(error) => {
                // What was given out as seqs is not there; and a connection that cannot roll back is not used again.
                self.seqs.clear();
                self.counters.failures.fetch_add(1, Ordering::Relaxed);
                if D::execute(&mut connection, &Statement::new("ROLLBACK")).await.is_ok() {
                    self.connection = Some(connection);
                }
                Err(error)
            }
        }
    }

    async fn transact(&mut self, connection: &mut Connection<D>, batch: &[Job]) -> Result<Done, BatchError> {
        D::execute(connection, &Statement::new(D::BEGIN)).await?;
        let mut done = Done::default();
        let mut rows: Vec<EventRow> = Vec::new();
        for job in batch {
            let mut written = run_steps::<D>(connection, &job.write.steps).await?;
            if written.commit == Commit::Done {
                if let Some(statement) = &job.write.returning {
                    written.rows = D::fetch(connection, statement).await?;
                }
                for (session, event) in &job.write.events {
                    let seq = self.next_seq(connection, *session, job.write.new_session).await?;
                    let row = event_row(*session, seq, event)?;
                    if done.is_heard(*session, &self.wakeups) {
                        done.hear(*session, shown(&row, event));
                    }
                    rows.push(row);
                }
            }
            done.written.push(written);
        }
        if !rows.is_empty() {
            D::execute(connection, &D::insert_events(&rows).map_err(encoding)?).await?;
        }
        done.events = rows.len();
        match D::execute(connection, &Statement::new("COMMIT")).await {
            Ok(_) => Ok(done),
            Err(error) => settle::<D>(&self.options, error, rows.first()).await.map(|()| done),
        }
    }

    async fn next_seq(
        &mut self,
        connection: &mut Connection<D>,
        session: SessionKey,
        is_new: bool,
    ) -> Result<i64, BatchError> {
        if !self.seqs.contains_key(&session) {
            let last = if is_new { 0 } else { last_seq::<D>(connection, session).await? };
            if self.seqs.len() >= SEQS_MAX {
                self.seqs.clear();
            }
            self.seqs.insert(session, last);
        }
        let last = self.seqs.entry(session).or_insert(0);
        *last += 1;
        Ok(*last)
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

/// What a batch did.
#[derive(Default)]
struct Done {
    written: Vec<Written>,
    events: usize,
    /// Events that somebody listens for, by session, in order.
    heard: Vec<(SessionKey, Vec<Event>)>,
    /// Sessions with events that nobody listened for when they were written; by the commit somebody may.
    unheard: HashSet<SessionKey>,
}

impl Done {
    /// Asked once for each session and batch: what a channel remembers has no hole.
    fn is_heard(&mut self, session: SessionKey, wakeups: &Wakeups) -> bool {
        let known = self.heard.iter().any(|(heard, _)| *heard == session);
        let heard = known || (!self.unheard.contains(&session) && wakeups.is_heard(session));
        if !heard {
            self.unheard.insert(session);
        }
        heard
    }

    fn hear(&mut self, session: SessionKey, event: Event) {
        match self.heard.iter_mut().find(|(heard, _)| *heard == session) {
            Some((_, events)) => events.push(event),
            None => self.heard.push((session, vec![event])),
        }
    }
}

/// COMMIT failed: asks on another connection whether the batch is there all the same. Never guesses.
async fn settle<D: Dialect>(
    options: &Options<D>,
    error: sqlx::Error,
    evidence: Option<&EventRow>,
) -> Result<(), BatchError> {
    let error = Arc::new(error);
    let unsure = |_| BatchError::Unsure(Arc::clone(&error));
    let Some(EventRow(session, seq, ..)) = evidence else { return Err(BatchError::Unsure(error)) };
    let mut other = options.connect().await.map_err(unsure)?;
    let question = Statement::new("SELECT seq FROM events WHERE session_key = $1 AND seq = $2");
    let found = D::fetch(&mut other, &question.bind(*session).bind(*seq)).await.map_err(unsure)?;
    if found.is_empty() { Err(BatchError::Undone(StoreError::Unavailable(error))) } else { Ok(()) }
}

async fn run_steps<D: Dialect>(
    connection: &mut Connection<D>,
    steps: &[Step],
) -> Result<Written, BatchError> {
    let mut written = Written { commit: Commit::Done, changed: 0, rows: Vec::new() };
    for step in steps {
        let rows = D::execute(connection, &step.statement).await?;
        match step.expect {
            Expect::Any => {}
            Expect::One(_) if rows == 1 => {}
            Expect::One(table) => return Err(BatchError::Undone(StoreError::Mismatch { table, rows })),
            Expect::Guard(_) if rows == 1 => {}
            Expect::Guard(outcome) => {
                if let Some(undo) = &step.undo {
                    D::execute(connection, undo).await?;
                }
                written.commit = outcome;
                return Ok(written);
            }
        }
        written.changed += rows;
    }
    Ok(written)
}

async fn last_seq<D: Dialect>(
    connection: &mut Connection<D>,
    session: SessionKey,
) -> Result<i64, BatchError> {
    let question = Statement::new("SELECT MAX(seq) AS last FROM events WHERE session_key = $1").bind(session);
    let rows = D::fetch(connection, &question).await?;
    match rows.first().and_then(|row| row.get("last")) {
        Some(Value::Int(Some(last))) => Ok(*last),
        _ => Ok(0),
    }
}

fn event_row(session: SessionKey, seq: i64, event: &NewEvent) -> Result<EventRow, BatchError> {
    let data = serde_json::to_string(&event.body).map_err(encoding)?;
    let turn = event.turn.as_ref().map(|turn| turn.ordinal.0);
    Ok(EventRow(session.0, seq, turn, event.at.0, event.body.kind(), data))
}

fn shown(row: &EventRow, event: &NewEvent) -> Event {
    Event {
        seq: row.1,
        kind: row.4.to_owned(),
        turn_id: event.turn.as_ref().map(|turn| turn.id.clone()),
        at: event.at,
        data: row.5.clone(),
    }
}

fn encoding(error: serde_json::Error) -> BatchError {
    BatchError::Undone(StoreError::from(sqlx::Error::Encode(Box::new(error))))
}

fn answer(job: Job, written: Result<Written>) {
    // A caller that went away has its write all the same.
    drop(job.reply.send(written));
}
