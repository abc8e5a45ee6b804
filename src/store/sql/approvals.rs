//! Approvals.

use super::super::dialect::{Record, Statement};
use super::super::{ApprovalFilter, ApprovalWrite, PageRequest};
use super::rows::{Reader, json};
use super::sessions::Conditions;
use crate::clock::Timestamp;
use crate::domain::approval::{Approval, ApprovalStatus, Decision};
use crate::domain::scope::Scope;
use crate::domain::turn::Ordinal;
use crate::ids::{ApprovalId, SessionId, SessionKey, TurnId};
use crate::store::Result;

macro_rules! select_approval {
    ($rest:literal) => {
        concat!(
            "SELECT a.id, a.session_id, a.run_id, a.turn_ordinal, a.turn_id, a.native_id, a.tool, a.title, a.kind, a.input,
                a.input_digest, a.options, a.status, a.decision, a.option_id, a.reason, a.edited_input, a.decided_by,
                a.requested_at, a.expires_at, a.decided_at, a.dispatched_at, a.delivered_at
             FROM approvals a ",
            $rest
        )
    };
}

pub(super) fn find(scope: &Scope, approval: &ApprovalId) -> Statement {
    Statement::new(select_approval!(
        "WHERE a.id = $1 AND a.org_id = $2 AND a.owner_id = COALESCE($3, a.owner_id)"
    ))
    .bind(approval.as_str())
    .bind(scope.org())
    .bind(scope.owner())
}

pub(super) fn list(scope: &Scope, filter: &ApprovalFilter, page: &PageRequest<ApprovalId>) -> Statement {
    let mut conditions = Conditions::new(select_approval!(""));
    // What waits is rare, and so is what one session asked: both have their index; see the same of sessions.
    let of_session = filter.session_id.is_some();
    let rare = of_session || filter.status == Some(ApprovalStatus::Pending);
    let (org_is, order) = match of_session {
        true => ("a.org_id || '' = ?", "a.id"),
        false => ("a.org_id IN (?, ?)", "a.org_id DESC, a.id"),
    };
    let owner_is = if rare { "a.owner_id || '' = ?" } else { "a.owner_id = ?" };
    conditions.and(org_is, scope.org());
    for owner in [scope.owner(), filter.owner.as_deref()].into_iter().flatten() {
        conditions.and(owner_is, owner);
    }
    match filter.status {
        // A literal, so that the index of the pending ones serves.
        Some(ApprovalStatus::Pending) => {
            conditions.plain("a.status = 'pending'");
        }
        Some(status) => {
            conditions.and("a.status = ?", status.as_str());
        }
        None => {}
    }
    if let Some(session) = &filter.session_id {
        conditions.and(
            "a.session_key = (SELECT s.session_key FROM agent_harness_sessions s WHERE s.id = ?)",
            session.as_str(),
        );
    }
    if let Some(before) = &page.before {
        conditions.and("a.id < ?", before.as_str());
    }
    conditions.page(order, page.limit)
}

pub(super) fn list_open(session: SessionKey) -> Statement {
    Statement::new(select_approval!(
        "WHERE a.session_key = $1 AND a.delivered_at IS NULL
            AND a.status IN ('pending', 'approved', 'denied', 'expired')
         ORDER BY a.id"
    ))
    .bind(session)
}

pub(super) fn list_expired(now: Timestamp, limit: i64) -> Statement {
    Statement::new(
        "SELECT DISTINCT session_key FROM approvals
         WHERE status = 'pending' AND expires_at IS NOT NULL AND expires_at <= $1 LIMIT $2",
    )
    .bind(now)
    .bind(limit)
}

pub(super) fn read_expired(records: Vec<Record>) -> Result<Vec<SessionKey>> {
    let key = |record| Reader::new(record, "approvals", "session_key").int("session_key").map(SessionKey);
    records.into_iter().map(key).collect()
}

/// The owner of the session is read from its row, unless the session is as new as the approval.
pub(super) fn write(
    session: SessionKey,
    owner: Option<&(String, String)>,
    write: ApprovalWrite,
) -> Result<Statement> {
    match write {
        ApprovalWrite::Insert(approval) => insert(session, owner, &approval),
        ApprovalWrite::Update(approval) => update(&approval),
    }
}

pub(super) fn insert(
    session: SessionKey,
    owner: Option<&(String, String)>,
    a: &Approval,
) -> Result<Statement> {
    Ok(Statement::new(
        "INSERT INTO approvals (id, session_key, org_id, owner_id, session_id, run_id, turn_ordinal, turn_id, native_id,
            tool, title, kind, input, input_digest, options, status, decision, option_id, reason, edited_input, decided_by,
            requested_at, expires_at, decided_at, dispatched_at, delivered_at)
         SELECT $1, s.session_key, COALESCE($24, s.org_id), COALESCE($25, s.owner_id), $2, $3, $4, $5, $6, $7, $8, $9, $10,
            $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23
         FROM agent_harness_sessions s WHERE s.session_key = $26",
    )
    .bind(a.id.as_str())
    .bind(a.session_id.as_str())
    .bind(a.run_id.as_str())
    .bind(a.turn)
    .bind(a.turn_id.as_str())
    .bind(a.native_id.as_str())
    .bind(a.tool.as_str())
    .bind(a.title.as_str())
    .bind(a.kind.as_str())
    .bind(json(&a.input)?)
    .bind(a.input_digest.as_str())
    .bind(json(&a.options)?)
    .bind(a.status.as_str())
    .bind(a.decision.map(Decision::as_str))
    .bind(a.option_id.as_deref())
    .bind(a.reason.as_deref())
    .bind(a.edited_input.as_ref().map(json).transpose()?)
    .bind(a.decided_by.as_deref())
    .bind(a.requested_at)
    .bind(a.expires_at)
    .bind(a.decided_at)
    .bind(a.dispatched_at)
    .bind(a.delivered_at)
    .bind(owner.map(|(org, _)| org.as_str()))
    .bind(owner.map(|(_, owner)| owner.as_str()))
    .bind(session))
}

/// The condition is the second wall behind the session's version: what was decided or dispatched is not so once more.
pub(super) fn update(a: &Approval) -> Result<Statement> {
    Ok(Statement::new(
        "UPDATE approvals SET status = $2, decision = $3, option_id = $4, reason = $5, edited_input = $6, decided_by = $7,
            decided_at = $8, dispatched_at = $9, delivered_at = $10, native_id = $11
         WHERE id = $1 AND delivered_at IS NULL AND (status = 'pending' OR status = $2 OR $2 IN ('cancelled', 'orphaned'))",
    )
    .bind(a.id.as_str())
    .bind(a.status.as_str())
    .bind(a.decision.map(Decision::as_str))
    .bind(a.option_id.as_deref())
    .bind(a.reason.as_deref())
    .bind(a.edited_input.as_ref().map(json).transpose()?)
    .bind(a.decided_by.as_deref())
    .bind(a.decided_at)
    .bind(a.dispatched_at)
    .bind(a.delivered_at)
    .bind(a.native_id.as_str()))
}

pub(super) fn read(record: Record) -> Result<Approval> {
    let row = Reader::new(record, "approvals", "id");
    Ok(Approval {
        id: ApprovalId::from_row(row.text("id")?),
        native_id: row.text("native_id")?,
        session_id: SessionId::from_row(row.text("session_id")?),
        run_id: row.text("run_id")?,
        turn_id: TurnId::from_row(row.text("turn_id")?),
        turn: Ordinal(row.int("turn_ordinal")?),
        tool: row.text("tool")?,
        title: row.text("title")?,
        kind: row.text("kind")?,
        input: row.json("input")?,
        input_digest: row.text("input_digest")?,
        options: row.json("options")?,
        status: row.word("status", ApprovalStatus::parse)?,
        decision: row.opt_word("decision", Decision::parse)?,
        option_id: row.opt_text("option_id")?,
        reason: row.opt_text("reason")?,
        edited_input: row.opt_json("edited_input")?,
        decided_by: row.opt_text("decided_by")?,
        requested_at: row.time("requested_at")?,
        expires_at: row.opt_time("expires_at")?,
        decided_at: row.opt_time("decided_at")?,
        dispatched_at: row.opt_time("dispatched_at")?,
        delivered_at: row.opt_time("delivered_at")?,
    })
}
