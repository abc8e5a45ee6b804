//! What differs between the databases, and nothing else: how a value is bound and read, how a write begins, how many events go
//! in with one statement. Everything above speaks [`Statement`]s and [`Record`]s. The module is private: `pub` here means the store.

use std::future::Future;
use std::sync::Arc;

use sqlx::{AssertSqlSafe, Column, Database, Row, SqlSafeStr, TypeInfo, ValueRef};

use crate::clock::Timestamp;

/// A value of the three kinds that the schema uses, each of which may be null.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Int(Option<i64>),
    Text(Option<String>),
    Blob(Option<Vec<u8>>),
}

macro_rules! value_from {
    ($($type:ty => $variant:ident, $convert:expr);+ $(;)?) => {$(
        impl From<$type> for Value {
            fn from(value: $type) -> Self {
                Self::$variant(Some($convert(value)))
            }
        }
        impl From<Option<$type>> for Value {
            fn from(value: Option<$type>) -> Self {
                Self::$variant(value.map($convert))
            }
        }
    )+};
}
value_from! {
    i64 => Int, |n| n;
    bool => Int, i64::from;
    Timestamp => Int, |at: Timestamp| at.0;
    crate::domain::turn::Ordinal => Int, |n: crate::domain::turn::Ordinal| n.0;
    crate::ids::SessionKey => Int, |key: crate::ids::SessionKey| key.0;
    String => Text, |text| text;
    &str => Text, str::to_owned;
    Vec<u8> => Blob, |bytes| bytes;
}

/// SQL with its values. Placeholders are `$1`, `$2` … on every database.
#[derive(Clone, Debug)]
pub struct Statement {
    sql: Sql,
    pub(super) binds: Vec<Value>,
}

/// Text that is cheap to hand on: the driver keeps its own for as long as a statement runs.
#[derive(Clone, Debug)]
enum Sql {
    Literal(&'static str),
    Assembled(Arc<str>),
}

impl Statement {
    pub(super) fn new(sql: &'static str) -> Self {
        Self { sql: Sql::Literal(sql), binds: Vec::new() }
    }

    /// SQL that was put together from fragments of this program. Never from anything that came from outside.
    pub(super) fn assembled(sql: String, binds: Vec<Value>) -> Self {
        Self { sql: Sql::Assembled(sql.into()), binds }
    }

    pub(super) fn bind(mut self, value: impl Into<Value>) -> Self {
        self.binds.push(value.into());
        self
    }

    /// The question how this one would be answered.
    #[cfg(test)]
    pub(super) fn explained(&self) -> Self {
        let sql = match &self.sql {
            Sql::Literal(sql) => (*sql).to_owned(),
            Sql::Assembled(sql) => sql.to_string(),
        };
        Self::assembled(format!("EXPLAIN QUERY PLAN {sql}"), self.binds.clone())
    }

    fn sql_str(&self) -> sqlx::SqlStr {
        match &self.sql {
            Sql::Literal(sql) => sql.into_sql_str(),
            Sql::Assembled(sql) => AssertSqlSafe(Arc::clone(sql)).into_sql_str(),
        }
    }
}

/// A row that was read.
#[derive(Clone, Debug)]
pub struct Record {
    pub(super) columns: Arc<[String]>,
    pub(super) values: Vec<Value>,
}

impl Record {
    pub(super) fn get(&self, column: &str) -> Option<&Value> {
        self.columns.iter().position(|name| name == column).and_then(|i| self.values.get(i))
    }
}

/// One event's row.
#[derive(Clone, Debug, serde::Serialize)]
pub struct EventRow(
    /// session_key
    pub(super) i64,
    /// seq
    pub(super) i64,
    /// turn
    pub(super) Option<i64>,
    /// at
    pub(super) i64,
    /// kind
    pub(super) &'static str,
    /// data
    pub(super) String,
);

/// A connection of a dialect's database.
pub type Connection<D> = <<D as Dialect>::Database as Database>::Connection;

/// A database that the store can be on.
pub trait Dialect: Send + Sync + 'static {
    /// The driver.
    type Database: Database;
    /// Begins a transaction that will write.
    const BEGIN: &'static str;

    /// Runs a statement; gives how many rows it changed.
    fn execute(
        connection: &mut Connection<Self>,
        statement: &Statement,
    ) -> impl Future<Output = sqlx::Result<u64>> + Send
    where
        Self: Sized;

    /// Runs a statement; gives the rows that it returns. Reads all of them, so that an error at the end is not lost.
    fn fetch(
        connection: &mut Connection<Self>,
        statement: &Statement,
    ) -> impl Future<Output = sqlx::Result<Vec<Record>>> + Send
    where
        Self: Sized;

    /// One statement that inserts many events.
    fn insert_events(rows: &[EventRow]) -> Result<Statement, serde_json::Error>;
}

/// Binding and reading are the same words for every driver, but their types are not: so they are written once, as a macro.
macro_rules! dialect_io {
    ($database:ty, int: $int:pat, blob: $blob:pat) => {
        async fn execute(connection: &mut Connection<Self>, statement: &Statement) -> sqlx::Result<u64> {
            let mut query = sqlx::query::<$database>(statement.sql_str());
            for value in &statement.binds {
                query = match value {
                    Value::Int(value) => query.bind(*value),
                    Value::Text(value) => query.bind(value.as_deref()),
                    Value::Blob(value) => query.bind(value.as_deref()),
                };
            }
            Ok(query.execute(connection).await?.rows_affected())
        }

        async fn fetch(
            connection: &mut Connection<Self>,
            statement: &Statement,
        ) -> sqlx::Result<Vec<Record>> {
            let mut query = sqlx::query::<$database>(statement.sql_str());
            for value in &statement.binds {
                query = match value {
                    Value::Int(value) => query.bind(*value),
                    Value::Text(value) => query.bind(value.as_deref()),
                    Value::Blob(value) => query.bind(value.as_deref()),
                };
            }
            let rows = query.fetch_all(connection).await?;
            let Some(first) = rows.first() else { return Ok(Vec::new()) };
            let columns: Arc<[String]> =
                first.columns().iter().map(|column| column.name().to_owned()).collect();
            let read = |row: &<$database as Database>::Row| {
                let values = (0..columns.len()).map(|i| {
                    let raw = row.try_get_raw(i)?;
                    if raw.is_null() {
                        return Ok(Value::Text(None));
                    }
                    let info = raw.type_info();
                    match info.name() {
                        $int => row.try_get(i).map(Value::Int),
                        $blob => row.try_get(i).map(Value::Blob),
                        _ => row.try_get(i).map(Value::Text),
                    }
                });
                Ok(Record { columns: Arc::clone(&columns), values: values.collect::<sqlx::Result<_>>()? })
            };
            rows.iter().map(read).collect()
        }
    };
}

/// SQLite: the embedded default.
#[derive(Debug)]
pub struct Sqlite;

impl Dialect for Sqlite {
    type Database = sqlx::Sqlite;
    // A deferred transaction that turns to writing fails at once when another has written since, whatever the busy timeout.
    const BEGIN: &'static str = "BEGIN IMMEDIATE";

    dialect_io!(sqlx::Sqlite, int: "INTEGER", blob: "BLOB");

    fn insert_events(rows: &[EventRow]) -> Result<Statement, serde_json::Error> {
        let rows = serde_json::to_string(rows)?;
        Ok(Statement::new(
            "INSERT INTO events (session_key, seq, turn, at, kind, data)
             SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5 FROM json_each($1)",
        )
        .bind(rows))
    }
}
