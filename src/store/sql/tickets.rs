//! Tickets for event streams: for pages that cannot send headers. Only their hashes are kept.

use super::super::dialect::Statement;
use super::rows::Reader;
use super::{Expect, Step, Write, Written};
use crate::clock::Timestamp;
use crate::ids::{KeyId, SessionKey};
use crate::store::{Commit, Result};

pub(super) fn insert(hash: &[u8], session: SessionKey, key: &KeyId, expires_at: Timestamp) -> Statement {
    Statement::new(
        "INSERT INTO event_tickets (ticket_hash, session_key, key_id, expires_at) VALUES ($1, $2, $3, $4)",
    )
    .bind(hash.to_vec())
    .bind(session)
    .bind(key.as_str())
    .bind(expires_at)
}

/// The ticket is marked as taken by its time going to zero, and read in the same transaction: two takers cannot both see it.
pub(super) fn take(hash: &[u8], now: Timestamp) -> Write {
    let spend =
        Statement::new("UPDATE event_tickets SET expires_at = 0 WHERE ticket_hash = $1 AND expires_at > $2")
            .bind(hash.to_vec())
            .bind(now);
    let read = Statement::new("SELECT session_key, key_id FROM event_tickets WHERE ticket_hash = $1")
        .bind(hash.to_vec());
    Write {
        steps: vec![Step::new(spend, Expect::Guard(Commit::Stale))],
        returning: Some(read),
        ..Write::default()
    }
}

pub(super) fn read(written: Written) -> Result<Option<(SessionKey, KeyId)>> {
    match written.rows.into_iter().next() {
        Some(record) if written.commit == Commit::Done => {
            let row = Reader::new(record, "event_tickets", "session_key");
            Ok(Some((SessionKey(row.int("session_key")?), KeyId::from_row(row.text("key_id")?))))
        }
        _ => Ok(None),
    }
}

pub(super) fn purge(now: Timestamp) -> Statement {
    Statement::new("DELETE FROM event_tickets WHERE expires_at <= $1").bind(now)
}
