//! SQLite: the embedded default. One process, one writer.

use std::sync::Arc;

use futures_util::StreamExt;
use sqlx::sqlite::SqliteRow;
use sqlx::{Column, Database, Either, Executor, Row, TypeInfo, ValueRef};

use super::{Connection, Dialect, EventRow, Record, Statement, Uncommitted, Value, dialect_io};

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

    async fn begin_with(
        connection: &mut Connection<Self>,
        statements: &[&Statement],
    ) -> sqlx::Result<Vec<u64>> {
        let begin = Statement::new(Self::BEGIN);
        let [lone] = statements else {
            Self::execute(connection, &begin).await?;
            return Self::execute_alike(connection, statements).await;
        };
        let last = at_once(connection, &[&begin, lone]).await.map_err(|(_, error)| error)?;
        Ok(vec![last])
    }

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
        Self::execute(connection, &insertion(rows)?).await.map(drop)
    }

    async fn insert_events_and_commit(
        connection: &mut Connection<Self>,
        rows: &[EventRow],
    ) -> Result<(), Uncommitted> {
        let insertion = insertion(rows).map_err(Uncommitted::Events)?;
        match at_once(connection, &[&insertion, &Statement::new("COMMIT")]).await {
            Ok(_) => Ok(()),
            // Where the connection is lost instead, the commit was on its way.
            Err((0, error)) if error.as_database_error().is_some() => Err(Uncommitted::Events(error)),
            Err((_, error)) => Err(Uncommitted::Commit(error)),
        }
    }
}

fn insertion(rows: &[EventRow]) -> sqlx::Result<Statement> {
    let tuples =
        rows.iter().map(|row| (row.session_key, row.seq, row.turn, row.at, row.kind, &row.data, row.epoch));
    let rows = serde_json::to_string(&tuples.collect::<Vec<_>>());
    let rows = rows.map_err(|error| sqlx::Error::Encode(Box::new(error)))?;
    Ok(Statement::new(INSERT_EVENTS).bind(rows))
}

/// Runs statements one after the other, with one message to the connection's thread: it is the messages that cost. At most one of
/// them has values. Gives how many rows the last one changed; on an error, how many were done before, and the others are not.
async fn at_once(
    connection: &mut Connection<Sqlite>,
    statements: &[&Statement],
) -> Result<u64, (usize, sqlx::Error)> {
    let words: Vec<&str> = statements.iter().map(|statement| statement.words()).collect();
    let binds = statements.iter().flat_map(|statement| statement.binds.iter().cloned()).collect();
    let together = Statement::assembled(words.join("; "), binds);
    let mut done = 0;
    let mut changed = 0;
    let mut results = connection.fetch_many(dialect_io!(@bound sqlx::Sqlite, (&together), |text| text));
    while let Some(result) = results.next().await {
        if let Either::Left(result) = result.map_err(|error| (done, error))? {
            // What began or ended a transaction says what the statement before it changed.
            (done, changed) = (done + 1, result.rows_affected());
        }
    }
    Ok(changed)
}

fn read(row: &SqliteRow, i: usize, kind: &str) -> sqlx::Result<Value> {
    match kind {
        "INTEGER" => row.try_get(i).map(Value::Int),
        "BLOB" => row.try_get(i).map(Value::Blob),
        _ => row.try_get(i).map(Value::Text),
    }
}

#[cfg(test)]
mod tests {
    use sqlx::{Connection as _, SqliteConnection};

    use super::*;

    async fn connection() -> SqliteConnection {
        let mut connection = SqliteConnection::connect("sqlite::memory:").await.unwrap();
        let schema = "CREATE TABLE agent_harness_sessions (session_key INTEGER PRIMARY KEY, lease_epoch INTEGER);
            CREATE TABLE events (session_key INTEGER, seq INTEGER NOT NULL, turn INTEGER, at INTEGER, kind TEXT, data TEXT,
                UNIQUE (session_key, seq));
            INSERT INTO agent_harness_sessions VALUES (1, 5), (2, 5), (3, 5);";
        for statement in schema.split_inclusive(';') {
            Sqlite::execute(&mut connection, &Statement::assembled(statement.into(), Vec::new()))
                .await
                .unwrap();
        }
        connection
    }

    fn event(seq: i64, epoch: Option<i64>) -> EventRow {
        EventRow { session_key: 1, seq, turn: None, at: 0, kind: "text.delta", data: "{}".into(), epoch }
    }

    async fn count(connection: &mut SqliteConnection) -> Option<Value> {
        let rows =
            Sqlite::fetch(connection, &Statement::new("SELECT COUNT(*) AS n FROM events")).await.unwrap();
        rows[0].get("n").cloned()
    }

    #[tokio::test]
    async fn a_first_statement_that_changes_nothing_is_not_given_what_another_has_changed() {
        let mut connection = connection().await;
        let all = Statement::new("UPDATE agent_harness_sessions SET lease_epoch = 6");
        assert_eq!(Sqlite::begin_with(&mut connection, &[&all]).await.unwrap(), [3]);
        Sqlite::execute(&mut connection, &Statement::new("COMMIT")).await.unwrap();
        let none =
            Statement::new("UPDATE agent_harness_sessions SET lease_epoch = $1 WHERE session_key = $2");
        let none = none.bind(7_i64).bind(9_i64);
        assert_eq!(Sqlite::begin_with(&mut connection, &[&none]).await.unwrap(), [0]);
        assert_eq!(Sqlite::execute_alike(&mut connection, &[&all, &none]).await.unwrap(), [3, 0]);
        let again = Sqlite::begin_with(&mut connection, &[&all]).await;
        assert!(again.is_err(), "a transaction has begun");
    }

    #[tokio::test]
    async fn events_that_are_refused_are_told_from_a_commit_that_fails_and_nothing_of_either_is_kept() {
        let mut connection = connection().await;
        let touch = Statement::new("UPDATE agent_harness_sessions SET lease_epoch = 5");
        Sqlite::begin_with(&mut connection, &[&touch]).await.unwrap();
        Sqlite::insert_events_and_commit(&mut connection, &[event(1, Some(5))]).await.unwrap();
        for refused in [event(1, None), event(2, Some(4))] {
            Sqlite::begin_with(&mut connection, &[&touch]).await.unwrap();
            let ended = Sqlite::insert_events_and_commit(&mut connection, &[refused]).await;
            assert!(matches!(ended, Err(Uncommitted::Events(_))), "{ended:?}");
            Sqlite::execute(&mut connection, &Statement::new("ROLLBACK")).await.unwrap();
        }
        assert_eq!(count(&mut connection).await, Some(Value::Int(Some(1))));
        // Without a transaction there is nothing to commit.
        let ended = Sqlite::insert_events_and_commit(&mut connection, &[event(2, None)]).await;
        assert!(matches!(ended, Err(Uncommitted::Commit(_))), "{ended:?}");
    }
}
