//! Turns.

use super::super::dialect::{Record, Statement, Value};
use super::super::{PageRequest, TurnSet, TurnWrite};
use super::rows::{Reader, json, stored_count};
use super::sessions::Conditions;
use crate::domain::turn::{Failure, Ordinal, Turn, TurnStatus, Usage};
use crate::ids::{SessionKey, TurnId};
use crate::store::Result;

/// The columns under the names that a session's row gives them as well, so that one function reads both.
macro_rules! select_turn {
    ($rest:literal) => {
        concat!(
            "SELECT t.id AS t_id, t.ordinal AS t_ordinal, t.prompt AS t_prompt, t.status AS t_status,
                t.stop_reason AS t_stop_reason, t.text AS t_text, t.error_code AS t_error_code,
                t.error_message AS t_error_message, t.input_tokens AS t_input_tokens, t.output_tokens AS t_output_tokens,
                t.usage_complete AS t_usage_complete, t.rehydrated AS t_rehydrated, t.metadata AS t_metadata,
                t.traceparent AS t_traceparent, t.created_at AS t_created_at, t.started_at AS t_started_at,
                t.ended_at AS t_ended_at
             FROM turns t ",
            $rest
        )
    };
}

pub(super) fn find(session: SessionKey, turn: &TurnId) -> Statement {
    Statement::new(select_turn!("WHERE t.session_key = $1 AND t.id = $2")).bind(session).bind(turn.as_str())
}

pub(super) fn find_at(session: SessionKey, turn: Ordinal) -> Statement {
    Statement::new(select_turn!("WHERE t.session_key = $1 AND t.ordinal = $2")).bind(session).bind(turn)
}

/// Those that interrupt go before those that wait, each in the order of their coming.
pub(super) fn list_queued(session: SessionKey, limit: i64) -> Statement {
    Statement::new(select_turn!(
        "WHERE t.session_key = $1 AND t.status = 'queued' ORDER BY t.urgent DESC, t.ordinal LIMIT $2"
    ))
    .bind(session)
    .bind(limit)
}

pub(super) fn list(session: SessionKey, page: &PageRequest<Ordinal>) -> Statement {
    let mut conditions = Conditions::new(select_turn!(""));
    conditions.and("t.session_key = ?", session);
    if let Some(before) = page.before {
        conditions.and("t.ordinal < ?", before);
    }
    conditions.page("t.ordinal", page.limit)
}

pub(super) fn list_from(session: SessionKey, from: Ordinal, limit: i64) -> Statement {
    Statement::new(select_turn!("WHERE t.session_key = $1 AND t.ordinal >= $2 ORDER BY t.ordinal LIMIT $3"))
        .bind(session)
        .bind(from)
        .bind(limit)
}

pub(super) fn write(session: SessionKey, write: TurnWrite) -> Result<Statement> {
    match write {
        TurnWrite::Insert { turn, urgent } => insert(session, &turn, urgent),
        TurnWrite::Update(set) => Ok(update(session, set)),
    }
}

pub(super) fn insert(session: SessionKey, turn: &Turn, urgent: bool) -> Result<Statement> {
    Ok(Statement::new(
        "INSERT INTO turns (session_key, ordinal, id, prompt, status, urgent, input_tokens, output_tokens, usage_complete,
            rehydrated, metadata, traceparent, created_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)",
    )
    .bind(session)
    .bind(turn.ordinal)
    .bind(turn.id.as_str())
    .bind(json(&turn.prompt)?)
    .bind(turn.status.as_str())
    .bind(urgent)
    .bind(stored_count(turn.usage.input_tokens))
    .bind(stored_count(turn.usage.output_tokens))
    .bind(turn.usage.complete)
    .bind(turn.rehydrated)
    .bind(json(&turn.metadata)?)
    .bind(turn.traceparent.as_deref())
    .bind(turn.created_at))
}

pub(super) fn update(session: SessionKey, set: TurnSet) -> Statement {
    let mut binds: Vec<Value> = Vec::new();
    let mut sql = String::from("UPDATE turns SET ");
    let mut assign = |column: &'static str, value: Value| {
        binds.push(value);
        let comma = if binds.len() > 1 { ", " } else { "" };
        sql.push_str(&format!("{comma}{column} = ${}", binds.len()));
    };
    assign("status", set.status.as_str().into());
    if let Some(reason) = set.stop_reason {
        assign("stop_reason", reason.into());
    }
    if let Some(text) = set.text {
        assign("text", text.into());
    }
    if let Some(error) = set.error {
        assign("error_code", error.code.into());
        assign("error_message", error.message.into());
    }
    if let Some(usage) = set.usage {
        assign("input_tokens", stored_count(usage.input_tokens).into());
        assign("output_tokens", stored_count(usage.output_tokens).into());
        assign("usage_complete", usage.complete.into());
    }
    if let Some(rehydrated) = set.rehydrated {
        assign("rehydrated", rehydrated.into());
    }
    if let Some(at) = set.started_at {
        assign("started_at", at.into());
    }
    if let Some(at) = set.ended_at {
        assign("ended_at", at.into());
    }
    binds.push(session.into());
    sql.push_str(&format!(" WHERE session_key = ${}", binds.len()));
    binds.push(set.ordinal.into());
    sql.push_str(&format!(" AND ordinal = ${}", binds.len()));
    // What is over stays over.
    sql.push_str(" AND ended_at IS NULL");
    Statement::assembled(sql, binds)
}

pub(super) fn read(record: Record) -> Result<Turn> {
    read_prefixed(&Reader::new(record, "turns", "t_id"))
}

pub(super) fn read_prefixed(row: &Reader) -> Result<Turn> {
    let error = match row.opt_text("t_error_code")? {
        None => None,
        Some(code) => Some(Failure { code, message: row.opt_text("t_error_message")?.unwrap_or_default() }),
    };
    Ok(Turn {
        id: TurnId::from_row(row.text("t_id")?),
        ordinal: Ordinal(row.int("t_ordinal")?),
        prompt: row.json("t_prompt")?,
        status: row.word("t_status", TurnStatus::parse)?,
        stop_reason: row.opt_text("t_stop_reason")?,
        text: row.opt_text("t_text")?,
        error,
        usage: Usage {
            input_tokens: row.count("t_input_tokens")?,
            output_tokens: row.count("t_output_tokens")?,
            complete: row.flag("t_usage_complete")?,
        },
        rehydrated: row.flag("t_rehydrated")?,
        metadata: row.json("t_metadata")?,
        traceparent: row.opt_text("t_traceparent")?,
        created_at: row.time("t_created_at")?,
        started_at: row.opt_time("t_started_at")?,
        ended_at: row.opt_time("t_ended_at")?,
    })
}
