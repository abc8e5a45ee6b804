//! Who holds which session.

use super::super::dialect::{Record, Statement};
use super::super::{StrandedSession, Takeover};
use super::rows::Reader;
use super::{Expect, LastSeq, Step, Write, Written};
use crate::domain::lease::Lease;
use crate::ids::{ReplicaId, SessionId, SessionKey};
use crate::store::{Commit, Result};

/// Compare and set: whoever changes the row is the holder, and the epoch has risen. Only a replica that lives can become one.
///
/// Taking over from another appends an event in the same transaction: what the old holder may still have in flight would have
/// to take the same seq, and is refused whole.
pub(super) fn claim(
    session: SessionKey,
    replica: &ReplicaId,
    from: Option<Takeover<'_>>,
    now: &'static str,
) -> Write {
    let holder_is = if from.is_some() { "= $3" } else { "IS NULL" };
    let sql = format!(
        "UPDATE agent_harness_sessions SET lease_holder = $1, lease_epoch = lease_epoch + 1, version = version + 1
         WHERE session_key = $2 AND lease_holder {holder_is}
            AND EXISTS (SELECT 1 FROM replicas r WHERE r.id = $1 AND r.expires_at > {now})"
    );
    let mut take = Statement::assembled(sql, Vec::new()).bind(replica.as_str()).bind(session);
    let mut events = Vec::new();
    if let Some(Takeover { from, event }) = from {
        take = take.bind(from.as_str());
        events.push(event);
    }
    let read =
        Statement::new("SELECT session_key, lease_epoch FROM agent_harness_sessions WHERE session_key = $1");
    Write {
        session: Some(session),
        steps: vec![Step::new(take, Expect::Guard(Commit::Stale))],
        events,
        returning: Some(read.bind(session)),
        last_seq: LastSeq::Asked,
        epoch: None,
        is_large: false,
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

/// Three questions, each with its own index: whose holder is gone, who runs without a holder, and to whom an answer is owed while
/// another question waits on.
pub(super) fn list_stranded(limit: i64, now: &'static str) -> Statement {
    let sql = format!(
        "SELECT s.session_key, s.id, s.lease_holder FROM agent_harness_sessions s
            WHERE s.lease_holder IS NOT NULL
                AND NOT EXISTS (SELECT 1 FROM replicas r WHERE r.id = s.lease_holder AND r.expires_at > {now})
         UNION ALL
         SELECT session_key, id, lease_holder FROM agent_harness_sessions
            WHERE status = 'running' AND lease_holder IS NULL
         UNION ALL
         SELECT o.session_key, o.id, CAST(NULL AS TEXT) AS lease_holder FROM (
            SELECT DISTINCT a.session_key, (SELECT s.id FROM agent_harness_sessions s WHERE s.session_key = a.session_key
                AND s.status = 'awaiting_approval' AND s.lease_holder IS NULL) AS id
            FROM approvals a WHERE a.status IN ('approved', 'denied', 'expired')
                AND a.dispatched_at IS NULL AND a.delivered_at IS NULL) o
         WHERE o.id IS NOT NULL
         LIMIT $1"
    );
    Statement::assembled(sql, Vec::new()).bind(limit)
}

pub(super) fn read_stranded(records: Vec<Record>) -> Result<Vec<StrandedSession>> {
    let read = |record| {
        let row = Reader::new(record, "agent_harness_sessions", "session_key");
        let holder = row.opt_text("lease_holder")?.map(ReplicaId::from_row);
        Ok(StrandedSession {
            key: SessionKey(row.int("session_key")?),
            id: SessionId::from_row(row.text("id")?),
            holder,
        })
    };
    records.into_iter().map(read).collect()
}

/// Where the rows and the logs of some sessions stand. `among` is the dialect's condition on a list of keys.
pub(super) fn heads(keys: &[SessionKey], among: &'static str) -> Statement {
    let sql = format!(
        "SELECT s.session_key, s.version,
            COALESCE((SELECT MAX(e.seq) FROM events e WHERE e.session_key = s.session_key), 0) AS last_seq
         FROM agent_harness_sessions s WHERE s.session_key {among}"
    );
    let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
    Statement::assembled(sql, Vec::new()).bind(keys.join(","))
}

/// A session's version and last seq.
pub(super) fn read_head(record: Record) -> Result<(SessionKey, i64, i64)> {
    let row = Reader::new(record, "agent_harness_sessions", "session_key");
    Ok((SessionKey(row.int("session_key")?), row.int("version")?, row.int("last_seq")?))
}
