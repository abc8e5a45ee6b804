//! What became of a commit that did not answer. Never guessed: the database is asked, for as long as it takes within reason.
//!
//! Reading is not enough where a server does the work: it does not notice that a client is gone, and may do later what it was told
//! last. So the question is one that waits for the answer: the same rows are inserted again, at the same seqs. Of two inserts of one
//! key the second waits until the first is decided, and only one of them can be kept.

use std::sync::Arc;
use std::time::Duration;

use sqlx::ConnectOptions;
use sqlx::error::ErrorKind;

use super::batch::BatchError;
use super::task::{CONNECT_DEADLINE, within};
use crate::store::StoreError;
use crate::store::dialect::{Connection, Dialect, EventRow, Statement, Value};

/// How long a database is asked that does not answer. Who waits for the write waits this long, and so do those behind it.
pub(super) const PATIENCE: Duration = Duration::from_secs(6);
const PAUSE: Duration = Duration::from_millis(200);

type Options<D> = <Connection<D> as sqlx::Connection>::Options;

/// A batch that may be kept: all of it is when one of its events is, and otherwise nothing. One without events has left nothing to
/// be known by.
pub(super) struct Lost<'a> {
    pub(super) rows: &'a [EventRow],
    /// It had changed rows before it was to be committed. If not, the events are all of it.
    pub(super) whole: bool,
}

/// Asks on another connection whether the batch is there, and sees to it that it will not come later where it is not.
pub(super) async fn settle<D: Dialect>(
    options: &Options<D>,
    error: Arc<sqlx::Error>,
    lost: Lost<'_>,
    patience: Duration,
) -> Result<(), BatchError> {
    let Some(evidence) = lost.rows.first() else { return Err(BatchError::Unsure(error)) };
    let ask = async {
        loop {
            let asked = async {
                let mut other = options.connect().await?;
                match (D::SHARED, lost.whole) {
                    (false, _) => is_there::<D>(&mut other, evidence).await,
                    (true, true) => was_committed::<D>(&mut other, evidence).await,
                    (true, false) => is_kept_now::<D>(&mut other, lost.rows).await,
                }
            };
            match within::<D, _>(CONNECT_DEADLINE, asked).await {
                Ok(Ok(there)) => return Ok(there),
                Ok(Err(refused)) if kind(&refused) == Some(ErrorKind::NotNullViolation) => {
                    return Err(BatchError::LeaseLost);
                }
                Ok(Err(again)) => tracing::warn!(error = %again, "asking what became of a commit"),
                Err(again) => tracing::warn!(error = %again, "asking what became of a commit"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    match tokio::time::timeout(patience, ask).await {
        Ok(Ok(true)) => Ok(()),
        Ok(Ok(false)) => Err(BatchError::Undone(StoreError::Unavailable(error))),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(BatchError::Unsure(error)),
    }
}

fn kind(error: &sqlx::Error) -> Option<ErrorKind> {
    error.as_database_error().map(|error| error.kind())
}

/// A transaction that was about to commit has its events in the table, seen by nobody yet: whoever wants the place of one waits
/// until it is decided.
async fn was_committed<D: Dialect>(other: &mut Connection<D>, evidence: &EventRow) -> sqlx::Result<bool> {
    let evidence = EventRow { epoch: None, ..evidence.clone() };
    D::execute(other, &Statement::new(D::BEGIN)).await?;
    let place = D::insert_events(other, std::slice::from_ref(&evidence)).await;
    D::execute(other, &Statement::new("ROLLBACK")).await?;
    match place {
        Ok(()) => Ok(false),
        Err(taken) if kind(&taken) == Some(ErrorKind::UniqueViolation) => {
            is_there::<D>(other, &evidence).await
        }
        Err(error) => Err(error),
    }
}

/// Events alone may not even be in the table yet. Inserted again, they are kept, now or before.
async fn is_kept_now<D: Dialect>(other: &mut Connection<D>, rows: &[EventRow]) -> sqlx::Result<bool> {
    match (D::insert_events(other, rows).await, rows.first()) {
        (Err(taken), Some(evidence)) if kind(&taken) == Some(ErrorKind::UniqueViolation) => {
            is_there::<D>(other, evidence).await
        }
        (kept, _) => kept.map(|()| true),
    }
}

pub(in crate::store) fn event_at(session_key: i64, seq: i64) -> Statement {
    Statement::new("SELECT turn, at, kind, data FROM events WHERE session_key = $1 AND seq = $2")
        .bind(session_key)
        .bind(seq)
}

/// The place alone says nothing: where this batch failed, another process may have written there.
async fn is_there<D: Dialect>(other: &mut Connection<D>, evidence: &EventRow) -> sqlx::Result<bool> {
    let found = D::fetch(other, &event_at(evidence.session_key, evidence.seq)).await?;
    let is = |column: &str, value: &Value| {
        found.first().and_then(|row| row.get(column)).is_some_and(|found| found == value)
    };
    let same_turn = evidence.turn.is_none() || is("turn", &Value::Int(evidence.turn));
    Ok(same_turn
        && is("at", &evidence.at.into())
        && is("kind", &evidence.kind.into())
        && is("data", &evidence.data.as_str().into()))
}
