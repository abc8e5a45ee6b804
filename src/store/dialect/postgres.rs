//! PostgreSQL: for replicas that share the work. Nothing here that a Postgres-compatible database may lack: no sequences, no
//! advisory locks, no triggers.

use std::borrow::Cow;
use std::sync::Arc;

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Column, Database, Row, SqlSafeStr, TypeInfo, ValueRef};

use super::{Connection, Dialect, EventRow, Record, Statement, Uncommitted, Value, dialect_io};

/// See the module.
#[derive(Debug)]
pub struct Postgres;

pub(super) const INSERT_EVENTS: &str = "INSERT INTO events (session_key, seq, turn, at, kind, data)
    SELECT e.session_key,
        CASE WHEN e.epoch IS NULL OR e.epoch =
            (SELECT s.lease_epoch FROM agent_harness_sessions s WHERE s.session_key = e.session_key)
        THEN e.seq END,
        e.turn, e.at, e.kind, e.data
    FROM UNNEST($1, $2, $3, $4, $5, $6, $7) AS e (session_key, seq, turn, at, kind, data, epoch)";

impl Dialect for Postgres {
    type Database = sqlx::Postgres;
    const BEGIN: &'static str = "BEGIN";
    const NOW: &'static str = "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)";
    const AMONG: &'static str = "= ANY (CAST(string_to_array($1, ',') AS BIGINT[]))";
    const WRITERS: usize = 4;
    const SHARED: bool = true;

    dialect_io!(sqlx::Postgres, text: holdable, read: read);

    async fn begin_with(
        connection: &mut Connection<Self>,
        statements: &[&Statement],
    ) -> sqlx::Result<Vec<u64>> {
        Self::execute(connection, &Statement::new(Self::BEGIN)).await?;
        Self::execute_alike(connection, statements).await
    }

    async fn execute_alike(
        connection: &mut Connection<Self>,
        statements: &[&Statement],
    ) -> sqlx::Result<Vec<u64>> {
        let together = match statements {
            [first, _, ..] => together(first),
            _ => None,
        };
        let Some(together) = together else {
            let mut changed = Vec::with_capacity(statements.len());
            for statement in statements {
                changed.push(Self::execute(connection, statement).await?);
            }
            return Ok(changed);
        };
        let mut query = sqlx::query::<sqlx::Postgres>(AssertSqlSafe(together.sql).into_sql_str());
        for (place, kind) in together.kinds.iter().enumerate() {
            query = match kind {
                Kind::Int => query.bind(column(statements, place, int)),
                Kind::Text => query.bind(column(statements, place, text)),
                Kind::Blob => query.bind(column(statements, place, blob)),
            };
        }
        if !together.tells_which {
            let changed = query.execute(connection).await?.rows_affected();
            // A row each, or else it is not known which were left out: the caller finds one count that is wrong.
            let each = if changed == statements.len() as u64 { 1 } else { changed };
            return Ok(vec![each; statements.len()]);
        }
        let mut changed = vec![0; statements.len()];
        for row in query.fetch_all(connection).await? {
            let which = usize::try_from(row.try_get::<i64, _>(0)?).unwrap_or(0);
            if let Some(count) = which.checked_sub(1).and_then(|which| changed.get_mut(which)) {
                *count += 1;
            }
        }
        Ok(changed)
    }

    fn alike_at_once(statement: &Statement) -> bool {
        together(statement).is_some()
    }

    async fn insert_events(connection: &mut Connection<Self>, rows: &[EventRow]) -> sqlx::Result<()> {
        sqlx::query::<sqlx::Postgres>(INSERT_EVENTS)
            .bind(rows.iter().map(|row| row.session_key).collect::<Vec<_>>())
            .bind(rows.iter().map(|row| row.seq).collect::<Vec<_>>())
            .bind(rows.iter().map(|row| row.turn).collect::<Vec<_>>())
            .bind(rows.iter().map(|row| row.at).collect::<Vec<_>>())
            .bind(rows.iter().map(|row| row.kind).collect::<Vec<_>>())
            .bind(rows.iter().map(|row| holdable(&row.data)).collect::<Vec<_>>())
            .bind(rows.iter().map(|row| row.epoch).collect::<Vec<_>>())
            .execute(connection)
            .await
            .map(drop)
    }

    async fn insert_events_and_commit(
        connection: &mut Connection<Self>,
        rows: &[EventRow],
    ) -> Result<(), Uncommitted> {
        Self::insert_events(connection, rows).await.map_err(Uncommitted::Events)?;
        let committed = Self::execute(connection, &Statement::new("COMMIT")).await;
        committed.map(drop).map_err(Uncommitted::Commit)
    }
}

/// PostgreSQL holds every character but NUL. What an agent says may have one; it is shown as the sign for what cannot be shown.
fn holdable(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(text.replace('\0', "\u{fffd}")) } else { Cow::Borrowed(text) }
}

fn read(row: &PgRow, i: usize, kind: &str) -> sqlx::Result<Value> {
    match kind {
        "INT8" => row.try_get(i).map(Value::Int),
        "INT4" => row.try_get::<i32, _>(i).map(|n| Value::Int(Some(i64::from(n)))),
        "BOOL" => row.try_get::<bool, _>(i).map(|is| Value::Int(Some(i64::from(is)))),
        "BYTEA" => row.try_get(i).map(Value::Blob),
        _ => row.try_get(i).map(Value::Text),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Int,
    Text,
    Blob,
}

impl Kind {
    fn of(value: &Value) -> Self {
        match value {
            Value::Int(_) => Self::Int,
            Value::Text(_) => Self::Text,
            Value::Blob(_) => Self::Blob,
        }
    }

    fn array(self) -> &'static str {
        match self {
            Self::Int => "BIGINT[]",
            Self::Text => "TEXT[]",
            Self::Blob => "BYTEA[]",
        }
    }
}

/// One statement that does what many of the same words do, from arrays instead of values.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Together {
    pub(super) sql: String,
    kinds: Vec<Kind>,
    /// It returns the place, from 1, of each of the many that changed a row.
    tells_which: bool,
}

/// The rows that the placeholders are taken from, `v.p1`, `v.p2` … instead of `$1`, `$2` ….
fn rows(kinds: &[Kind]) -> String {
    let arrays: Vec<_> =
        kinds.iter().enumerate().map(|(i, kind)| format!("${}::{}", i + 1, kind.array())).collect();
    let names: Vec<_> = (1..=kinds.len()).map(|i| format!("p{i}")).collect();
    format!("UNNEST({}) WITH ORDINALITY AS v ({}, place)", arrays.join(", "), names.join(", "))
}

/// Two shapes are known: `UPDATE … SET … WHERE …`, and `INSERT INTO … VALUES (…)` without more. Others are run one by one.
pub(super) fn together(statement: &Statement) -> Option<Together> {
    let words = statement.words();
    let kinds: Vec<Kind> = statement.binds.iter().map(Kind::of).collect();
    let taken = words.replace('$', "v.p");
    if words.starts_with("UPDATE ") {
        let (set, condition) = taken.split_once(" WHERE ")?;
        let sql = format!("{set} FROM {} WHERE {condition} RETURNING v.place", rows(&kinds));
        return Some(Together { sql, kinds, tells_which: true });
    }
    let (into, values) = taken.split_once("VALUES (").filter(|_| words.starts_with("INSERT INTO "))?;
    let values = values.strip_suffix(')').filter(|values| !values.contains(')'))?;
    let sql = format!("{into}SELECT {values} FROM {}", rows(&kinds));
    Some(Together { sql, kinds, tells_which: false })
}

fn column<'a, T>(
    statements: &[&'a Statement],
    place: usize,
    of: impl Fn(&'a Value) -> Option<T>,
) -> Vec<Option<T>> {
    statements.iter().map(|statement| statement.binds.get(place).and_then(&of)).collect()
}

fn int(value: &Value) -> Option<i64> {
    if let Value::Int(value) = value { *value } else { None }
}

fn text(value: &Value) -> Option<Cow<'_, str>> {
    if let Value::Text(value) = value { value.as_deref().map(holdable) } else { None }
}

fn blob(value: &Value) -> Option<&[u8]> {
    if let Value::Blob(value) = value { value.as_deref() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_updates_become_one_that_tells_which_rows_were_there() {
        let one =
            Statement::new("UPDATE t SET a = $1, n = n + 1 WHERE k = $2 AND a <> $1").bind("x").bind(7_i64);
        let many = together(&one).unwrap();
        assert_eq!(
            many.sql,
            "UPDATE t SET a = v.p1, n = n + 1 FROM UNNEST($1::TEXT[], $2::BIGINT[]) WITH ORDINALITY AS v (p1, p2, place) \
             WHERE k = v.p2 AND a <> v.p1 RETURNING v.place"
        );
        assert_eq!((many.kinds.as_slice(), many.tells_which), (&[Kind::Text, Kind::Int][..], true));
    }

    #[test]
    fn many_plain_inserts_become_one_and_others_stay_themselves() {
        let one = Statement::new("INSERT INTO t (a, b)\n VALUES ($1, $2)").bind(1_i64).bind(vec![1_u8]);
        assert_eq!(
            together(&one).unwrap().sql,
            "INSERT INTO t (a, b)\n SELECT v.p1, v.p2 FROM UNNEST($1::BIGINT[], $2::BYTEA[]) WITH ORDINALITY AS v (p1, p2, place)"
        );
        for other in [
            "INSERT INTO t (a) VALUES ($1) ON CONFLICT (a) DO NOTHING",
            "DELETE FROM t WHERE a = $1",
            "COMMIT",
        ] {
            assert_eq!(together(&Statement::new(other).bind(1_i64)), None, "{other}");
        }
    }

    #[test]
    fn a_text_with_a_character_that_postgres_cannot_hold_is_kept_with_a_sign_in_its_place() {
        assert_eq!(holdable("a\0b"), "a\u{fffd}b");
        assert!(matches!(holdable("ab"), Cow::Borrowed("ab")));
    }
}
