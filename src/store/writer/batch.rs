//! One transaction: the steps of many writes, and all their events.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::settle::Lost;
use super::{Expect, Job, LastSeq, Step, Write, Written};
use crate::domain::event::{Event, NewEvent};
use crate::ids::SessionKey;
use crate::store::dialect::{Connection, Dialect, EventRow, Statement, Uncommitted, Value};
use crate::store::wakeup::Wakeups;
use crate::store::{Commit, StoreError};

/// How a batch failed.
#[derive(Debug)]
pub(super) enum BatchError {
    /// Nothing of it is kept, and the database has said why.
    Undone(StoreError),
    /// Nothing of it is kept: the database was not reached, or was lost before the end.
    Unreachable(Arc<sqlx::Error>),
    /// Nothing of it is kept: another process was faster, or waited for the same rows. A new try may do.
    Contended(Arc<sqlx::Error>),
    /// Nothing of it is kept: a lease that it was made under is not held any more.
    LeaseLost,
    /// It may be kept.
    Unsure(Arc<sqlx::Error>),
}

impl BatchError {
    /// Whether the connection can be used on.
    pub(super) fn is_of_a_living_connection(&self) -> bool {
        !matches!(self, Self::Unreachable(_) | Self::Unsure(_))
    }
}

impl From<sqlx::Error> for BatchError {
    /// Before the commit: whatever happened, nothing is kept.
    fn from(error: sqlx::Error) -> Self {
        match error.as_database_error().and_then(|error| error.code()).as_deref() {
            // Serialization failure, deadlock.
            Some("40001" | "40P01") => Self::Contended(Arc::new(error)),
            _ if is_lost(&error) => Self::Unreachable(Arc::new(error)),
            _ => Self::Undone(StoreError::from(error)),
        }
    }
}

/// Whether the connection was lost, or the database is going down: then it did not say what became of the statement.
pub(in crate::store) fn is_lost(error: &sqlx::Error) -> bool {
    match error.as_database_error() {
        Some(error) => error.code().is_some_and(|code| code.starts_with("57P") || code.starts_with("08")),
        None => matches!(
            error,
            sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed
        ),
    }
}

/// See the module.
pub(super) struct Batch<'a> {
    jobs: &'a [Job],
    wakeups: &'a Wakeups,
    seqs: &'a mut HashMap<SessionKey, i64>,
    /// The last seqs in the table, where it was asked.
    asked: HashMap<SessionKey, i64>,
    /// The last seqs that this very batch has given out: they are not in the table yet.
    given: HashMap<SessionKey, i64>,
    rows: Vec<EventRow>,
    done: Done,
    begun: bool,
    committing: bool,
}

impl<'a> Batch<'a> {
    pub(super) fn new(jobs: &'a [Job], wakeups: &'a Wakeups, seqs: &'a mut HashMap<SessionKey, i64>) -> Self {
        Self {
            jobs,
            wakeups,
            seqs,
            asked: HashMap::new(),
            given: HashMap::new(),
            rows: Vec::new(),
            done: Done::default(),
            begun: false,
            committing: false,
        }
    }

    /// Whether what was sent last may have been the commit.
    pub(super) fn is_committing(&self) -> bool {
        self.committing
    }

    /// Whether there is a transaction to roll back.
    pub(super) fn has_begun(&self) -> bool {
        self.begun
    }

    /// What it is known by when its commit does not answer.
    pub(super) fn lost(&self) -> Lost<'_> {
        Lost { rows: &self.rows, whole: self.begun }
    }

    pub(super) fn into_done(self) -> Done {
        Done { last_seqs: self.given, ..self.done }
    }

    /// Writes all of it, or nothing.
    pub(super) async fn transact<D: Dialect>(
        &mut self,
        connection: &mut Connection<D>,
    ) -> Result<(), BatchError> {
        let whole = !self.is_one_statement::<D>();
        let outcomes = self.take_steps::<D>(connection, whole).await?;
        self.ask_seqs::<D>(connection, &outcomes).await?;
        for (job, mut written) in self.jobs.iter().zip(outcomes) {
            if written.commit == Commit::Done {
                if let Some(statement) = &job.write.returning {
                    written.rows = D::fetch(connection, statement).await?;
                }
                self.number::<D>(&job.write)?;
            }
            self.done.note(&job.write, written);
        }
        match (whole, self.rows.is_empty()) {
            (false, true) => Ok(()),
            (false, false) => {
                self.committing = true;
                D::insert_events(connection, &self.rows).await.map_err(|error| refused_events(error, whole))
            }
            (true, true) => {
                self.committing = true;
                let committed = D::execute(connection, &Statement::new("COMMIT")).await;
                committed.map(drop).map_err(|error| BatchError::Unsure(Arc::new(error)))
            }
            (true, false) => {
                self.committing = true;
                match D::insert_events_and_commit(connection, &self.rows).await {
                    Ok(()) => Ok(()),
                    Err(Uncommitted::Events(error)) => Err(refused_events(error, whole)),
                    Err(Uncommitted::Commit(error)) => Err(BatchError::Unsure(Arc::new(error))),
                }
            }
        }
    }

    /// Whether it goes out as one statement, which is a transaction by itself.
    fn is_one_statement<D: Dialect>(&self) -> bool {
        let appends = |job: &Job| job.write.steps.is_empty();
        if self.jobs.iter().all(appends) {
            return true;
        }
        let Some(first) = self.jobs.first().and_then(|job| job.write.steps.first()) else { return false };
        let alike = |job: &Job| {
            let write = &job.write;
            let [step] = write.steps.as_slice() else { return false };
            write.events.is_empty()
                && write.returning.is_none()
                && !matches!(step.expect, Expect::One(_))
                && step.statement.words() == first.statement.words()
        };
        self.jobs.iter().all(alike) && (self.jobs.len() == 1 || D::alike_at_once(&first.statement))
    }

    /// Takes the first steps of all writes, then the second ones, and so on; those of the same words together.
    async fn take_steps<D: Dialect>(
        &mut self,
        connection: &mut Connection<D>,
        whole: bool,
    ) -> Result<Vec<Written>, BatchError> {
        let mut outcomes: Vec<Written> = self.jobs.iter().map(|_| Written::default()).collect();
        let rounds = self.jobs.iter().map(|job| job.write.steps.len()).max().unwrap_or(0);
        for round in 0..rounds {
            for places in alike(self.jobs, &outcomes, round) {
                let steps: Vec<&Step> =
                    places.iter().filter_map(|place| self.jobs.get(*place)?.write.steps.get(round)).collect();
                let statements: Vec<&Statement> = steps.iter().map(|step| &step.statement).collect();
                self.committing = !whole;
                let changed = if whole && !self.begun {
                    self.begun = true;
                    D::begin_with(connection, &statements).await
                } else {
                    D::execute_alike(connection, &statements).await
                };
                let changed = changed.map_err(|error| if whole { error.into() } else { lone(error) })?;
                for ((place, step), rows) in places.iter().zip(&steps).zip(changed) {
                    let Some(written) = outcomes.get_mut(*place) else { continue };
                    written.changed += rows;
                    match step.expect {
                        Expect::Any => {}
                        Expect::One(_) | Expect::Guard(_) if rows == 1 => {}
                        Expect::One(table) => {
                            return Err(BatchError::Undone(StoreError::Mismatch { table, rows }));
                        }
                        Expect::Guard(outcome) => {
                            if let Some(undo) = &step.undo {
                                D::execute(connection, undo).await?;
                            }
                            written.commit = outcome;
                        }
                    }
                }
            }
        }
        Ok(outcomes)
    }

    /// Asks the table once for all last seqs that are not known. The rows of what was changed are locked by now, so that nobody
    /// else appends to them.
    async fn ask_seqs<D: Dialect>(
        &mut self,
        connection: &mut Connection<D>,
        outcomes: &[Written],
    ) -> Result<(), BatchError> {
        let kept = self.jobs.iter().zip(outcomes).filter(|(_, written)| written.commit == Commit::Done);
        let unknown = kept.filter_map(|(job, _)| {
            let session = job.write.session.filter(|_| !job.write.events.is_empty())?;
            self.known_seq::<D>(session, job.write.last_seq).is_none().then_some(session)
        });
        let unknown: HashSet<SessionKey> = unknown.collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let question = last_seqs(&unknown.into_iter().collect::<Vec<_>>(), D::AMONG);
        for row in D::fetch(connection, &question).await? {
            if let (Some(Value::Int(Some(key))), Some(Value::Int(Some(last)))) =
                (row.get("session_key"), row.get("last"))
            {
                self.asked.insert(SessionKey(*key), *last);
            }
        }
        Ok(())
    }

    /// The last seq of a session before a write; `None` where the table must be asked, and has not been or has nothing.
    fn known_seq<D: Dialect>(&self, session: SessionKey, known: LastSeq) -> Option<i64> {
        let of = |seqs: &HashMap<SessionKey, i64>| seqs.get(&session).copied();
        let asked = || of(&self.asked);
        match known {
            LastSeq::None => Some(0),
            LastSeq::Asked if D::SHARED => of(&self.given).or_else(asked),
            LastSeq::Asked | LastSeq::Remembered => of(&self.given).or_else(|| of(self.seqs)).or_else(asked),
        }
    }

    /// Gives a write's events their seqs.
    fn number<D: Dialect>(&mut self, write: &Write) -> Result<(), BatchError> {
        let Some(session) = write.session.filter(|_| !write.events.is_empty()) else { return Ok(()) };
        let mut last = self.known_seq::<D>(session, write.last_seq).unwrap_or(0);
        // A change has proved its right to write by its row; events alone must prove it when they are inserted.
        let epoch = write.epoch.filter(|_| write.steps.is_empty());
        let heard = self.done.is_heard(session, self.wakeups);
        for event in &write.events {
            last += 1;
            let row = event_row(session, last, epoch, event)?;
            if heard {
                self.done.hear(session, shown(&row, event));
            }
            self.rows.push(row);
        }
        self.given.insert(session, last);
        self.seqs.insert(session, last);
        self.done.events += write.events.len();
        Ok(())
    }
}

/// The last seqs of some sessions' logs, as the table has them. `among` is the dialect's condition on a list of keys.
pub(in crate::store) fn last_seqs(sessions: &[SessionKey], among: &'static str) -> Statement {
    let sql = format!(
        "SELECT s.session_key, (SELECT MAX(e.seq) FROM events e WHERE e.session_key = s.session_key) AS last
         FROM agent_harness_sessions s WHERE s.session_key {among}"
    );
    let keys: Vec<String> = sessions.iter().map(ToString::to_string).collect();
    Statement::assembled(sql, Vec::new()).bind(keys.join(","))
}

/// The writes that have a step in this round, those whose steps have the same words together, in the order of their coming.
fn alike(jobs: &[Job], outcomes: &[Written], round: usize) -> Vec<Vec<usize>> {
    let mut places: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    let mut first: HashMap<&str, usize> = HashMap::new();
    for (place, (job, written)) in jobs.iter().zip(outcomes).enumerate() {
        if written.commit != Commit::Done {
            continue;
        }
        if let Some(step) = job.write.steps.get(round) {
            let leader = *first.entry(step.statement.words()).or_insert(place);
            places.entry(leader).or_default().push(place);
        }
    }
    places.into_values().collect()
}

/// A statement that was its own transaction.
fn lone(error: sqlx::Error) -> BatchError {
    if is_lost(&error) { BatchError::Unsure(Arc::new(error)) } else { error.into() }
}

/// Why events were not taken: the seq was given to others meanwhile, or there was none to give.
fn refused_events(error: sqlx::Error, whole: bool) -> BatchError {
    use sqlx::error::ErrorKind;
    match error.as_database_error().map(|error| error.kind()) {
        Some(ErrorKind::UniqueViolation) => BatchError::Contended(Arc::new(error)),
        Some(ErrorKind::NotNullViolation) => BatchError::LeaseLost,
        _ if whole => error.into(),
        _ => lone(error),
    }
}

/// What a batch did.
#[derive(Default)]
pub(super) struct Done {
    pub(super) written: Vec<Written>,
    pub(super) events: usize,
    /// Events that somebody listens for, by session, in order.
    heard: HashMap<SessionKey, Vec<Event>>,
    /// Sessions with events that nobody listened for when they were written; by the commit somebody may.
    unheard: HashSet<SessionKey>,
    /// Sessions that were changed.
    changed: Vec<SessionKey>,
    /// The last events that were appended.
    last_seqs: HashMap<SessionKey, i64>,
}

impl Done {
    fn note(&mut self, write: &Write, written: Written) {
        self.changed.extend(write.session.filter(|_| written.commit == Commit::Done));
        self.written.push(written);
    }

    /// The sessions that were changed, one perhaps more than once.
    pub(super) fn sessions(&self) -> impl Iterator<Item = SessionKey> {
        self.changed.iter().copied()
    }

    /// The last event that was appended to a session's log.
    pub(super) fn last_seq(&self, session: SessionKey) -> Option<i64> {
        self.last_seqs.get(&session).copied()
    }

    /// Tells who listens. Called after the commit.
    pub(super) fn tell(&mut self, wakeups: &Wakeups) {
        for (session, events) in self.heard.drain() {
            wakeups.publish(session, events);
        }
        for session in &self.unheard {
            wakeups.wake(*session);
        }
    }

    /// Asked once for each session and batch: what a channel remembers has no hole.
    fn is_heard(&mut self, session: SessionKey, wakeups: &Wakeups) -> bool {
        let heard = self.heard.contains_key(&session)
            || (!self.unheard.contains(&session) && wakeups.is_heard(session));
        if !heard {
            self.unheard.insert(session);
        }
        heard
    }

    fn hear(&mut self, session: SessionKey, event: Event) {
        self.heard.entry(session).or_default().push(event);
    }
}

fn event_row(
    session: SessionKey,
    seq: i64,
    epoch: Option<i64>,
    event: &NewEvent,
) -> Result<EventRow, BatchError> {
    let encoding = |error| BatchError::Undone(StoreError::from(sqlx::Error::Encode(Box::new(error))));
    let data = serde_json::to_string(&event.body).map_err(|error: serde_json::Error| encoding(error))?;
    let turn = event.turn.as_ref().map(|turn| turn.ordinal.0);
    Ok(EventRow { session_key: session.0, seq, turn, at: event.at.0, kind: event.body.kind(), data, epoch })
}

fn shown(row: &EventRow, event: &NewEvent) -> Event {
    Event {
        seq: row.seq,
        kind: row.kind.to_owned(),
        turn_id: event.turn.as_ref().map(|turn| turn.id.clone()),
        at: event.at,
        data: row.data.clone(),
    }
}
