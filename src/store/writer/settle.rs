//! What became of a commit that did not answer. Never guessed: the table is asked, for as long as it takes within reason.

use std::sync::Arc;
use std::time::Duration;

use sqlx::ConnectOptions;

use super::batch::BatchError;
use super::task::{CONNECT_DEADLINE, within};
use crate::store::StoreError;
use crate::store::dialect::{Connection, Dialect, EventRow, Statement, Value};

/// How long a database is asked that does not answer. Who waits for the write waits this long, and so do those behind it.
const PATIENCE: Duration = Duration::from_secs(6);
const PAUSE: Duration = Duration::from_millis(200);

type Options<D> = <Connection<D> as sqlx::Connection>::Options;

/// Asks on another connection whether the batch is there: all of it is when one event of it is, and otherwise nothing. A batch
/// without events has left nothing to be known by.
pub(super) async fn settle<D: Dialect>(
    options: &Options<D>,
    error: Arc<sqlx::Error>,
    evidence: Option<&EventRow>,
) -> Result<(), BatchError> {
    let Some(evidence) = evidence else { return Err(BatchError::Unsure(error)) };
    let ask = async {
        loop {
            match within::<D, _>(CONNECT_DEADLINE, is_there::<D>(options, evidence)).await {
                Ok(Ok(there)) => return there,
                Ok(Err(again)) => tracing::warn!(error = %again, "asking what became of a commit"),
                Err(again) => tracing::warn!(error = %again, "asking what became of a commit"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    match tokio::time::timeout(PATIENCE, ask).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(BatchError::Undone(StoreError::Unavailable(error))),
        Err(_) => Err(BatchError::Unsure(error)),
    }
}

/// The place alone says nothing: where this batch failed, another process may have written there.
async fn is_there<D: Dialect>(options: &Options<D>, evidence: &EventRow) -> sqlx::Result<bool> {
    let mut other = options.connect().await?;
    let question =
        Statement::new("SELECT turn, at, kind, data FROM events WHERE session_key = $1 AND seq = $2")
            .bind(evidence.session_key)
            .bind(evidence.seq);
    let found = D::fetch(&mut other, &question).await?;
    let is = |column: &str, value: &Value| {
        found.first().and_then(|row| row.get(column)).is_some_and(|found| found == value)
    };
    let same_turn = evidence.turn.is_none() || is("turn", &Value::Int(evidence.turn));
    Ok(same_turn
        && is("at", &evidence.at.into())
        && is("kind", &evidence.kind.into())
        && is("data", &evidence.data.as_str().into()))
}
