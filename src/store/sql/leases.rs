//! Who holds which session.

use super::super::HeldSession;
use super::super::dialect::{Record, Statement};
use super::rows::Reader;
use super::{Expect, Step, Write, Written};
use crate::clock::Timestamp;
use crate::domain::lease::Lease;
use crate::ids::{ReplicaId, SessionId, SessionKey};
use crate::store::{Commit, Result};

/// Compare and set: whoever changes the row is the holder, and the epoch has risen.
pub(super) fn claim(session: SessionKey, replica: &ReplicaId, from: Option<&ReplicaId>) -> Write {
    let take = match from {
        None => Statement::new(
            "UPDATE agent_harness_sessions SET lease_holder = $1, lease_epoch = lease_epoch + 1, version = version + 1
             WHERE session_key = $2 AND lease_holder IS NULL",
        )
        .bind(replica.as_str())
        .bind(session),
        Some(dead) => Statement::new(
            "UPDATE agent_harness_sessions SET lease_holder = $1, lease_epoch = lease_epoch + 1, version = version + 1
             WHERE session_key = $2 AND lease_holder = $3",
        )
        .bind(replica.as_str())
        .bind(session)
        .bind(dead.as_str()),
    };
    let read =
        Statement::new("SELECT session_key, lease_epoch FROM agent_harness_sessions WHERE session_key = $1");
    Write {
        steps: vec![Step::new(take, Expect::Guard(Commit::Stale))],
        returning: Some(read.bind(session)),
        ..Write::default()
    }
}

pub(super) fn read_claim(
    written: &Written,
    session: SessionKey,
    replica: &ReplicaId,
) -> Result<Option<Lease>> {
    match written.rows.first() {
        Some(record) if written.commit == Commit::Done => {
            let row = Reader::new(record.clone(), "agent_harness_sessions", "session_key");
            Ok(Some(Lease::granted(session, replica.clone(), row.int("lease_epoch")?)))
        }
        _ => Ok(None),
    }
}

/// Two questions, each with its own index: who is held, and who runs without a holder.
pub(super) fn list_held(limit: i64) -> Statement {
    Statement::new(
        "SELECT session_key, id, lease_holder FROM agent_harness_sessions WHERE lease_holder IS NOT NULL
         UNION ALL
         SELECT session_key, id, lease_holder FROM agent_harness_sessions
            WHERE status = 'running' AND lease_holder IS NULL
         LIMIT $1",
    )
    .bind(limit)
}

pub(super) fn read_held(records: Vec<Record>) -> Result<Vec<HeldSession>> {
    let read = |record| {
        let row = Reader::new(record, "agent_harness_sessions", "session_key");
        let holder = row.opt_text("lease_holder")?.map(ReplicaId::from_row);
        Ok(HeldSession {
            key: SessionKey(row.int("session_key")?),
            id: SessionId::from_row(row.text("id")?),
            holder,
        })
    };
    records.into_iter().map(read).collect()
}

pub(super) fn register(replica: &ReplicaId, now: Timestamp, expires_at: Timestamp) -> Statement {
    Statement::new("INSERT INTO replicas (id, started_at, expires_at) VALUES ($1, $2, $3)")
        .bind(replica.as_str())
        .bind(now)
        .bind(expires_at)
}

pub(super) fn forget(replica: &ReplicaId) -> Statement {
    Statement::new("DELETE FROM replicas WHERE id = $1").bind(replica.as_str())
}
