//! Idempotency keys.

use super::super::dialect::{Record, Statement};
use super::super::{OnceAnswer, OnceRow, Seen};
use super::rows::Reader;
use crate::clock::Timestamp;
use crate::ids::{ApprovalId, TurnId};
use crate::store::Result;

pub(super) fn insert(row: &OnceRow) -> Statement {
    Statement::new(
        "INSERT INTO idempotency_keys (org_id, space, idem_key, fingerprint, session_id, turn_id, approval_id, status, body,
            created_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
         ON CONFLICT (org_id, space, idem_key) DO NOTHING",
    )
    .bind(row.org.as_str())
    .bind(row.space.as_str())
    .bind(row.key.as_str())
    .bind(row.fingerprint.as_str())
    .bind(row.session.as_str())
    .bind(row.turn.as_ref().map(|id| id.as_str()))
    .bind(row.approval.as_ref().map(|id| id.as_str()))
    .bind(row.answer.as_ref().map(|answer| i64::from(answer.status)))
    .bind(row.answer.as_ref().map(|answer| answer.body.as_str()))
    .bind(row.at)
}

/// Takes an insert back whose change did not come about.
pub(super) fn undo(row: &OnceRow) -> Statement {
    Statement::new("DELETE FROM idempotency_keys WHERE org_id = $1 AND space = $2 AND idem_key = $3")
        .bind(row.org.as_str())
        .bind(row.space.as_str())
        .bind(row.key.as_str())
}

pub(super) fn finish(org: &str, space: &str, key: &str, answer: OnceAnswer) -> Statement {
    Statement::new(
        "UPDATE idempotency_keys SET status = $4, body = $5
         WHERE org_id = $1 AND space = $2 AND idem_key = $3 AND status IS NULL",
    )
    .bind(org)
    .bind(space)
    .bind(key)
    .bind(i64::from(answer.status))
    .bind(answer.body)
}

pub(super) fn find(org: &str, space: &str, key: &str) -> Statement {
    Statement::new(
        "SELECT idem_key, fingerprint, session_id, turn_id, approval_id, status, body FROM idempotency_keys
         WHERE org_id = $1 AND space = $2 AND idem_key = $3",
    )
    .bind(org)
    .bind(space)
    .bind(key)
}

pub(super) fn purge(before: Timestamp) -> Statement {
    Statement::new("DELETE FROM idempotency_keys WHERE created_at < $1").bind(before)
}

pub(super) fn read(record: Record) -> Result<Seen> {
    let row = Reader::new(record, "idempotency_keys", "idem_key");
    let answer = match row.opt_int("status")? {
        None => None,
        Some(status) => Some(OnceAnswer {
            status: u16::try_from(status).map_err(|_| row.corrupt("status", "is not an HTTP status"))?,
            body: row.text("body")?,
        }),
    };
    Ok(Seen {
        fingerprint: row.text("fingerprint")?,
        session: row.text("session_id")?,
        turn: row.opt_text("turn_id")?.map(TurnId::from_row),
        approval: row.opt_text("approval_id")?.map(ApprovalId::from_row),
        answer,
    })
}
