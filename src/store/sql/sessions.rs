//! Sessions: their rows, and the one transaction that changes one.

use std::fmt::Write as _;

use serde_json::Value as Json;

use super::super::change::{holder_column, limit_columns};
use super::super::dialect::{Record, Statement, Value};
use super::super::seal::SealError;
use super::super::{
    Change, Commit, NewSession, PageRequest, Seal, Sealed, SessionFilter, SessionRef, SessionSet, StoreError,
    Target,
};
use super::rows::{Reader, json, stored_count};
use super::{Expect, LastSeq, Step, Write, agent_files, approvals, once, turns};
use crate::domain::approval::PermissionMode;
use crate::domain::limits::{Limits, RESUME_STATE_MAX_BYTES};
use crate::domain::scope::Scope;
use crate::domain::session::{OnContextLoss, Session, SessionState, SessionStatus, StopCause, Wish};
use crate::domain::turn::{Failure, Ordinal, Usage};
use crate::ids::{ApprovalId, ReplicaId, SessionId, SessionKey};
use crate::store::Result;

const TABLE: &str = "agent_harness_sessions";

/// A session with its turn. The turn's columns are prefixed; a session that never had one has nulls there.
macro_rules! select_session {
    ($rest:literal) => {
        concat!(
            "SELECT s.session_key, s.id, s.org_id, s.owner_id, s.run_id, s.thread_id, s.harness_name, s.title, s.metadata,
                s.instructions, s.permission_mode, s.on_context_loss, s.workspace_ref, s.turn_seconds, s.approval_seconds, s.settings,
                s.status, s.stop_cause, s.error_code, s.error_message, s.stopped_at, s.wish, s.turn_ordinal, s.turn_count,
                s.queued_turns, s.pending_approval, s.pending_approval_count, s.resolved_approval_ids,
                s.provider_session_id, s.started, s.resume_state IS NOT NULL AS has_resume_state, s.input_tokens,
                s.output_tokens, s.usage_complete, s.lease_holder, s.version, s.created_at, s.updated_at, s.last_active_at,
                COALESCE((SELECT MAX(e.seq) FROM events e WHERE e.session_key = s.session_key), 0) AS last_event_seq,
                (SELECT COUNT(*) FROM approvals a WHERE a.session_key = s.session_key AND a.delivered_at IS NULL
                    AND a.status IN ('pending', 'approved', 'denied', 'expired')) AS open_approval_count,
                t.id AS t_id, t.ordinal AS t_ordinal, t.prompt AS t_prompt, t.status AS t_status,
                t.stop_reason AS t_stop_reason, t.text AS t_text, t.error_code AS t_error_code,
                t.error_message AS t_error_message, t.input_tokens AS t_input_tokens, t.output_tokens AS t_output_tokens,
                t.usage_complete AS t_usage_complete, t.rehydrated AS t_rehydrated, t.metadata AS t_metadata,
                t.traceparent AS t_traceparent, t.created_at AS t_created_at, t.started_at AS t_started_at,
                t.ended_at AS t_ended_at
             FROM agent_harness_sessions s
             LEFT JOIN turns t ON t.session_key = s.session_key AND t.ordinal = s.turn_ordinal ",
            $rest
        )
    };
}

pub(super) fn find(scope: &Scope, session: &SessionRef) -> Statement {
    // An owner that is null in the scope means the whole org; the row is found by its unique key either way.
    let statement = match session {
        SessionRef::Id(id) => Statement::new(select_session!(
            "WHERE s.id = $1 AND s.org_id = $2 AND s.owner_id = COALESCE($3, s.owner_id)"
        ))
        .bind(id.as_str()),
        SessionRef::Run(run) => Statement::new(select_session!(
            "WHERE s.run_id = $1 AND s.org_id = $2 AND s.owner_id = COALESCE($3, s.owner_id)"
        ))
        .bind(run.as_str()),
    };
    statement.bind(scope.org()).bind(scope.owner())
}

pub(super) fn find_by_key(session: SessionKey) -> Statement {
    Statement::new(select_session!("WHERE s.session_key = $1")).bind(session)
}

pub(super) fn find_by_approval(approval: &ApprovalId) -> Statement {
    Statement::new(select_session!(
        "WHERE s.session_key = (SELECT a.session_key FROM approvals a WHERE a.id = $1)"
    ))
    .bind(approval.as_str())
}

/// Conditions that are put together from the fragments of this file; values are always bound.
///
/// A list of an org is `org_id IN (?, ?)`, twice the same, in the order of `org_id, id`. Of an org that is *equal* to something
/// PostgreSQL knows that it does not matter for the order; then the ids alone are in order as well, and it likes to go through those
/// of all orgs from the newest on, leaving out all that others have made since.
pub(super) struct Conditions {
    sql: String,
    binds: Vec<Value>,
}

impl Conditions {
    pub(super) fn new(select: &str) -> Self {
        Self { sql: format!("{select}WHERE "), binds: Vec::new() }
    }

    /// Adds a condition; `?` in the fragment stands for the value.
    pub(super) fn and(&mut self, fragment: &'static str, value: impl Into<Value>) -> &mut Self {
        self.binds.push(value.into());
        let placeholder = format!("${}", self.binds.len());
        self.plain(&fragment.replace('?', &placeholder))
    }

    pub(super) fn plain(&mut self, fragment: &str) -> &mut Self {
        if !self.sql.ends_with("WHERE ") {
            self.sql.push_str(" AND ");
        }
        self.sql.push_str(fragment);
        self
    }

    /// Newest first, one more than the limit, so that the page knows whether others follow.
    pub(super) fn page(mut self, order: &'static str, limit: i64) -> Statement {
        self.binds.push(Value::from(limit + 1));
        let sql = format!("{} ORDER BY {order} DESC LIMIT ${}", self.sql, self.binds.len());
        Statement::assembled(sql, self.binds)
    }
}

pub(super) fn list(scope: &Scope, filter: &SessionFilter, page: &PageRequest<SessionId>) -> Statement {
    let mut conditions = Conditions::new(select_session!(""));
    conditions.and("s.org_id IN (?, ?)", scope.org());
    let status = match filter.needs_approval {
        Some(true) => Some(SessionStatus::AwaitingApproval),
        _ => filter.status,
    };
    // What is busy is rare: it is found by its status, whatever else is asked. The owner's index would lead through all the
    // owner's sessions; a text joined with nothing has no index.
    let rare = matches!(
        status,
        Some(SessionStatus::Running | SessionStatus::AwaitingApproval | SessionStatus::Errored)
    );
    let owner_is = if rare { "s.owner_id || '' = ?" } else { "s.owner_id = ?" };
    for owner in [scope.owner(), filter.owner.as_deref()].into_iter().flatten() {
        conditions.and(owner_is, owner);
    }
    for status in [status, filter.status].into_iter().flatten() {
        conditions.and("s.status = ?", status.as_str());
    }
    if let Some(harness) = &filter.harness {
        conditions.and("s.harness_name = ?", harness.as_str());
    }
    if let Some(thread) = &filter.thread_id {
        conditions.and("s.thread_id = ?", thread.as_str());
    }
    if let Some(run) = &filter.run_id {
        conditions.and("s.run_id = ?", run.as_str());
    }
    if filter.needs_approval == Some(false) {
        conditions.plain("s.status <> 'awaiting_approval'");
    }
    if filter.alive {
        conditions.plain("s.status <> 'destroyed'");
    }
    if let Some(after) = filter.created_after {
        conditions.and("s.created_at > ?", after);
    }
    if let Some(before) = &page.before {
        conditions.and("s.id < ?", before.as_str());
    }
    conditions.page("s.org_id DESC, s.id", page.limit)
}

pub(super) fn find_resume_state(session: SessionKey) -> Statement {
    Statement::new(
        "SELECT id, org_id, resume_state FROM agent_harness_sessions WHERE session_key = $1 AND resume_state IS NOT NULL",
    )
    .bind(session)
}

pub(super) fn read_resume_state(record: Record, seal: &Seal) -> Result<Option<Json>> {
    let row = Reader::new(record, TABLE, "id");
    let Some(sealed) = row.opt_blob("resume_state")? else { return Ok(None) };
    let id = SessionId::from_row(row.text("id")?);
    let text = seal.open(Sealed::ResumeState, &row.text("org_id")?, &id, &sealed)?;
    serde_json::from_slice(&text)
        .map(Some)
        .map_err(|_| row.corrupt("resume_state", "is not JSON inside its seal"))
}

pub(super) fn purge(session: SessionKey) -> [Statement; 2] {
    [
        Statement::new("DELETE FROM events WHERE session_key = $1").bind(session),
        // Turns, approvals, tickets and the agent's files go with it.
        Statement::new("DELETE FROM agent_harness_sessions WHERE session_key = $1").bind(session),
    ]
}

/// The whole transaction of a change, guards first.
pub(super) fn write_of(mut change: Change, seal: &Seal) -> Result<Write> {
    let key = change.key();
    let mut steps = Vec::new();
    let is_large = agent_files::are_large(&change);
    let files = agent_files::write(&mut change, seal)?;
    let undo_once = change.once.as_ref().map(once::undo);
    if let Some(row) = change.once {
        steps.push(Step::new(once::insert(&row), Expect::Guard(Commit::Repeated)));
    }
    let (guarded, owner, last_seq, held_epoch) = match change.target {
        Target::New(new) => {
            let owner = Some((new.session.org_id.clone(), new.session.owner_id.clone()));
            (Step::new(insert(&new)?, Expect::Guard(Commit::RunExists)), owner, LastSeq::None, None)
        }
        Target::Existing { key, id, org, version, epoch } => {
            let sealed = match change.set.resume_state.as_ref() {
                Some(Some(state)) => Some(Some(sealed(seal, &org, &id, state)?)),
                Some(None) => Some(None),
                None => None,
            };
            let statement = update(key, version, epoch, change.set, sealed)?;
            // A command may come through a process that is not the holder, and does not know what the holder has appended.
            let last_seq = if epoch.is_some() { LastSeq::Remembered } else { LastSeq::Asked };
            (Step::new(statement, Expect::Guard(Commit::Stale)), None, last_seq, epoch)
        }
    };
    steps.push(Step { undo: undo_once, ..guarded });
    steps.extend(files);
    for turn in change.turns {
        steps.push(Step::new(turns::write(key, turn)?, Expect::One("turns")));
    }
    for approval in change.approvals {
        steps.push(Step::new(approvals::write(key, owner.as_ref(), approval)?, Expect::One("approvals")));
    }
    Ok(Write {
        session: Some(key),
        steps,
        events: change.events,
        returning: None,
        last_seq,
        epoch: held_epoch,
        is_large,
    })
}

fn sealed(seal: &Seal, org: &str, id: &SessionId, state: &Json) -> Result<Vec<u8>> {
    let text = json(state)?;
    if text.len() > RESUME_STATE_MAX_BYTES {
        return Err(StoreError::Seal(SealError::TooLarge));
    }
    Ok(seal.seal(Sealed::ResumeState, org, id, text.as_bytes())?)
}

pub(super) fn insert(new: &NewSession) -> Result<Statement> {
    let s = &new.session;
    let (turn_seconds, approval_seconds) = limit_columns(s.limits);
    Ok(Statement::new(
        "INSERT INTO agent_harness_sessions (session_key, id, org_id, owner_id, run_id, thread_id, harness_name, title,
            metadata, instructions, permission_mode, workspace_ref, turn_seconds, approval_seconds, settings, status,
            turn_ordinal, turn_count, queued_turns, pending_approval_count, resolved_approval_ids, started, input_tokens,
            output_tokens, usage_complete, lease_holder, lease_epoch, version, created_at, updated_at, last_active_at, on_context_loss)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, 0, '[]', 0, 0, 0, 1,
            $20, 0, 1, $21, $21, $21, $22)
         ON CONFLICT (org_id, run_id) DO NOTHING",
    )
    .bind(s.key)
    .bind(s.id.as_str())
    .bind(s.org_id.as_str())
    .bind(s.owner_id.as_str())
    .bind(s.run_id.as_str())
    .bind(s.thread_id.as_deref())
    .bind(s.harness.as_str())
    .bind(s.title.as_str())
    .bind(json(&s.metadata)?)
    .bind(s.instructions.as_deref())
    .bind(s.permission_mode.as_str())
    .bind(s.workspace.as_str())
    .bind(turn_seconds)
    .bind(approval_seconds)
    .bind(json(&s.settings)?)
    .bind(s.state.status().as_str())
    .bind(s.state.turn())
    .bind(s.turn_count)
    .bind(s.queued_turns)
    .bind(holder_column(s.holder.as_ref()))
    .bind(s.created_at)
    .bind(s.on_context_loss.as_str()))
}

/// Columns that a change sets, one after the other.
struct Assignments {
    sql: String,
    binds: Vec<Value>,
}

impl Assignments {
    fn of(head: &str) -> Self {
        let mut sql = String::with_capacity(512);
        sql.push_str(head);
        Self { sql, binds: Vec::with_capacity(24) }
    }

    fn set(&mut self, column: &'static str, value: impl Into<Value>) {
        self.binds.push(value.into());
        let place = self.binds.len();
        self.push(format_args!(", {column} = ${place}"));
    }

    /// Writes on, without a text in between.
    fn push(&mut self, words: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = self.sql.write_fmt(words);
    }

    fn bind(&mut self, value: impl Into<Value>) -> usize {
        self.binds.push(value.into());
        self.binds.len()
    }
}

pub(super) fn update(
    key: SessionKey,
    version: i64,
    epoch: Option<i64>,
    set: SessionSet,
    resume_state: Option<Option<Vec<u8>>>,
) -> Result<Statement> {
    let mut columns = Assignments::of("UPDATE agent_harness_sessions SET version = version + 1");
    if let Some(state) = &set.state {
        set_state(&mut columns, state);
        columns.set("updated_at", set.at);
    }
    columns.set("last_active_at", set.at);
    if let Some(wish) = set.wish {
        columns.set("wish", wish.map(Wish::as_str));
    }
    if let Some(turn) = set.turn {
        columns.set("turn_ordinal", turn);
    }
    if let Some(count) = set.turn_count {
        columns.set("turn_count", count);
    }
    if let Some(count) = set.queued_turns {
        columns.set("queued_turns", count);
    }
    if let Some((oldest, count)) = &set.pending {
        columns.set("pending_approval", oldest.as_ref().map(json).transpose()?);
        columns.set("pending_approval_count", *count);
    }
    if let Some(ids) = &set.resolved_approval_ids {
        columns.set("resolved_approval_ids", json(ids)?);
    }
    if let Some(id) = set.native_id {
        columns.set("provider_session_id", id);
    }
    if set.started {
        columns.set("started", true);
    }
    if let Some(state) = resume_state {
        columns.set("resume_state", state);
    }
    if let Some(usage) = set.usage {
        columns.set("input_tokens", stored_count(usage.input_tokens));
        columns.set("output_tokens", stored_count(usage.output_tokens));
        columns.set("usage_complete", usage.complete);
    }
    if let Some(title) = set.title {
        columns.set("title", title);
    }
    if let Some(metadata) = &set.metadata {
        columns.set("metadata", json(metadata)?);
    }
    if set.release {
        columns.set("lease_holder", Value::Text(None));
    }
    let key = columns.bind(key);
    let version = columns.bind(version);
    columns.push(format_args!(" WHERE session_key = ${key} AND version = ${version}"));
    if let Some(epoch) = epoch {
        let epoch = columns.bind(epoch);
        columns.push(format_args!(" AND lease_epoch = ${epoch}"));
    }
    Ok(Statement::assembled(columns.sql, columns.binds))
}

fn set_state(columns: &mut Assignments, state: &SessionState) {
    let (cause, failure, at) = match state {
        SessionState::Idle | SessionState::Running { .. } | SessionState::AwaitingApproval { .. } => {
            (None, None, None)
        }
        SessionState::Stopped { cause, at } => (Some(cause.as_str()), None, Some(*at)),
        SessionState::Errored { failure, at } => (None, Some(failure), Some(*at)),
        SessionState::Destroyed { at } => (None, None, Some(*at)),
    };
    columns.set("status", state.status().as_str());
    columns.set("stop_cause", cause);
    columns.set("error_code", failure.map(|failure| failure.code.as_str()));
    columns.set("error_message", failure.map(|failure| failure.message.as_str()));
    columns.set("stopped_at", at);
    // A session that is over shows its last turn on.
    if let Some(turn) = state.turn() {
        columns.set("turn_ordinal", turn);
    }
}

pub(super) fn read(record: Record) -> Result<Session> {
    let row = Reader::new(record, TABLE, "id");
    let turn = match row.opt_text("t_id")? {
        None => None,
        Some(_) => Some(turns::read_prefixed(&row)?),
    };
    Ok(Session {
        key: SessionKey(row.int("session_key")?),
        id: SessionId::from_row(row.text("id")?),
        run_id: row.text("run_id")?,
        thread_id: row.opt_text("thread_id")?,
        org_id: row.text("org_id")?,
        owner_id: row.text("owner_id")?,
        harness: row.text("harness_name")?,
        title: row.text("title")?,
        metadata: row.json("metadata")?,
        instructions: row.opt_text("instructions")?,
        permission_mode: row.word("permission_mode", PermissionMode::parse)?,
        on_context_loss: row.word("on_context_loss", OnContextLoss::parse)?,
        workspace: row.text("workspace_ref")?,
        limits: Limits {
            turn_seconds: row.count("turn_seconds")?,
            approval_seconds: row.count("approval_seconds")?,
        },
        settings: row.json("settings")?,
        state: read_state(&row)?,
        wish: row.opt_word("wish", Wish::parse)?,
        turn,
        turn_count: row.int("turn_count")?,
        queued_turns: row.int("queued_turns")?,
        pending_approval: row.opt_json("pending_approval")?,
        pending_approval_count: row.int("pending_approval_count")?,
        resolved_approval_ids: row
            .json::<Vec<String>>("resolved_approval_ids")?
            .into_iter()
            .map(ApprovalId::from_row)
            .collect(),
        native_id: row.opt_text("provider_session_id")?,
        started: row.flag("started")?,
        has_resume_state: row.flag("has_resume_state")?,
        usage: Usage {
            input_tokens: row.count("input_tokens")?,
            output_tokens: row.count("output_tokens")?,
            complete: row.flag("usage_complete")?,
        },
        last_event_seq: row.int("last_event_seq")?,
        open_approval_count: row.int("open_approval_count")?,
        holder: row.opt_text("lease_holder")?.map(ReplicaId::from_row),
        version: row.int("version")?,
        created_at: row.time("created_at")?,
        updated_at: row.time("updated_at")?,
        last_active_at: row.time("last_active_at")?,
    })
}

fn read_state(row: &Reader) -> Result<SessionState> {
    let turn = || row.int("turn_ordinal").map(Ordinal);
    let at = || row.time("stopped_at");
    Ok(match row.word("status", SessionStatus::parse)? {
        SessionStatus::Idle => SessionState::Idle,
        SessionStatus::Running => SessionState::Running { turn: turn()? },
        SessionStatus::AwaitingApproval => SessionState::AwaitingApproval { turn: turn()? },
        SessionStatus::Stopped => {
            SessionState::Stopped { cause: row.word("stop_cause", StopCause::parse)?, at: at()? }
        }
        SessionStatus::Errored => SessionState::Errored {
            failure: Failure {
                code: row.text("error_code")?,
                message: row.opt_text("error_message")?.unwrap_or_default(),
            },
            at: at()?,
        },
        SessionStatus::Destroyed => SessionState::Destroyed { at: at()? },
    })
}
