//! SQLite: the embedded default. One process, one writer.

use std::sync::Arc;

use sqlx::sqlite::SqliteRow;
use sqlx::{Column, Database, Row, TypeInfo, ValueRef};

use super::{Connection, Dialect, EventRow, Record, Statement, Value, dialect_io};

/// See the module.
#[derive(Debug)]
pub struct Sqlite;

pub(super) const INSERT_EVENTS: &str = "INSERT INTO events (session_key, seq, turn, at, kind, data)
    SELECT value ->> 0,
        CASE WHEN value ->> 6 IS NULL OR value ->> 6 =
            (SELECT s.lease_epoch FROM agent_harness_sessions s WHERE s.session_key = value ->> 0)
        THEN value ->> 1 END,
        value ->> 2, value ->> 3, value ->> 4, value ->> 5
    FROM json_each($1)";

impl Dialect for Sqlite {
    type Database = sqlx::Sqlite;
    // A deferred transaction that turns to writing fails at once when another has written since, whatever the busy timeout.
    const BEGIN: &'static str = "BEGIN IMMEDIATE";
    const NOW: &'static str = "CAST(unixepoch('subsec') * 1000 AS INTEGER)";
    const AMONG: &'static str = "IN (SELECT value FROM json_each('[' || $1 || ']'))";
    const WRITERS: usize = 1;
    const SHARED: bool = false;

    dialect_io!(sqlx::Sqlite, text: |text| text, read: read);

    async fn execute_alike(
        connection: &mut Connection<Self>,
        statements: &[&Statement],
    ) -> sqlx::Result<Vec<u64>> {
        let mut changed = Vec::with_capacity(statements.len());
        for statement in statements {
            changed.push(Self::execute(connection, statement).await?);
        }
        Ok(changed)
    }

    fn alike_at_once(_: &Statement) -> bool {
        false
    }

    async fn insert_events(connection: &mut Connection<Self>, rows: &[EventRow]) -> sqlx::Result<()> {
        let tuples = rows
            .iter()
            .map(|row| (row.session_key, row.seq, row.turn, row.at, row.kind, &row.data, row.epoch));
        let rows = serde_json::to_string(&tuples.collect::<Vec<_>>());
        let rows = rows.map_err(|error| sqlx::Error::Encode(Box::new(error)))?;
        Self::execute(connection, &Statement::new(INSERT_EVENTS).bind(rows)).await.map(drop)
    }
}

fn read(row: &SqliteRow, i: usize, kind: &str) -> sqlx::Result<Value> {
    match kind {
        "INTEGER" => row.try_get(i).map(Value::Int),
        "BLOB" => row.try_get(i).map(Value::Blob),
        _ => row.try_get(i).map(Value::Text),
    }
}
