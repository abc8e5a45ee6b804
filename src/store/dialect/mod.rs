//! What differs between the databases, and nothing else: how a value is bound and read, how a write begins, what the clock is
//! called, how many rows go in with one statement. Everything above speaks [`Statement`]s and [`Record`]s. The module is private:
//! `pub` here means the store.

mod plan;
mod postgres;
mod sqlite;

use std::future::Future;
use std::sync::Arc;

use sqlx::migrate::Migrate;
use sqlx::{AssertSqlSafe, Database, SqlSafeStr};

pub use self::plan::{Bound, Form, Plans};
pub use self::postgres::Postgres;
pub use self::sqlite::Sqlite;

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

    /// The words, without the values.
    pub(super) fn words(&self) -> &str {
        match &self.sql {
            Sql::Literal(sql) => sql,
            Sql::Assembled(sql) => sql,
        }
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
    /// How many bytes its texts have.
    pub(super) fn bytes(&self) -> usize {
        let bytes = |value: &Value| match value {
            Value::Int(_) | Value::Text(None) | Value::Blob(None) => 0,
            Value::Text(Some(text)) => text.len(),
            Value::Blob(Some(bytes)) => bytes.len(),
        };
        self.values.iter().map(bytes).sum()
    }

    pub(super) fn get(&self, column: &str) -> Option<&Value> {
        self.columns.iter().position(|name| name == column).and_then(|i| self.values.get(i))
    }
}

/// One event's row.
#[derive(Clone, Debug, PartialEq)]
pub struct EventRow {
    pub(super) session_key: i64,
    pub(super) seq: i64,
    pub(super) turn: Option<i64>,
    pub(super) at: i64,
    pub(super) kind: &'static str,
    pub(super) data: String,
    /// The epoch that the session's lease must still have; `None` where the transaction has checked its right to write already.
    pub(super) epoch: Option<i64>,
}

/// A connection of a dialect's database.
pub type Connection<D> = <<D as Dialect>::Database as Database>::Connection;

/// A database that the store can be on.
pub trait Dialect: Send + Sync + 'static {
    /// The driver.
    type Database: Database<Connection: Migrate>;
    /// Begins a transaction that will write.
    const BEGIN: &'static str;
    /// The database's clock in epoch milliseconds, as an expression.
    const NOW: &'static str;
    /// The condition that a key is among those of a list, which is bound as one text with commas.
    const AMONG: &'static str;
    /// How many connections write side by side, each for its share of the sessions.
    const WRITERS: usize;
    /// Whether other processes may work on the same sessions.
    const SHARED: bool;

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

    /// Begins a transaction that will write, and runs its first statements in it, as [`Dialect::execute_alike`] does.
    fn begin_with(
        connection: &mut Connection<Self>,
        statements: &[&Statement],
    ) -> impl Future<Output = sqlx::Result<Vec<u64>>> + Send
    where
        Self: Sized;

    /// Runs statements of the same words, each of which changes one row of its own or none; gives how many each changed.
    fn execute_alike(
        connection: &mut Connection<Self>,
        statements: &[&Statement],
    ) -> impl Future<Output = sqlx::Result<Vec<u64>>> + Send
    where
        Self: Sized;

    /// Whether [`Dialect::execute_alike`] does it with one statement, which then needs no transaction around it.
    fn alike_at_once(statement: &Statement) -> bool;

    /// Inserts events with one statement. A row whose epoch is not the lease's any more has no seq there, which the schema
    /// refuses, and with it all of them.
    fn insert_events(
        connection: &mut Connection<Self>,
        rows: &[EventRow],
    ) -> impl Future<Output = sqlx::Result<()>> + Send
    where
        Self: Sized;

    /// Inserts events as the last of a transaction, and commits it.
    fn insert_events_and_commit(
        connection: &mut Connection<Self>,
        rows: &[EventRow],
    ) -> impl Future<Output = Result<(), Uncommitted>> + Send
    where
        Self: Sized;
}

/// Why a transaction is not known to be committed.
#[derive(Debug)]
pub enum Uncommitted {
    /// Its events were refused.
    Events(sqlx::Error),
    /// The commit did not say that it is done.
    Commit(sqlx::Error),
}

/// Binding and reading are the same words for every driver, but their types are not: so they are written once, as a macro.
macro_rules! dialect_io {
    ($database:ty, text: $text:expr, read: $read:expr) => {
        async fn execute(connection: &mut Connection<Self>, statement: &Statement) -> sqlx::Result<u64> {
            let query = dialect_io!(@bound $database, statement, $text);
            Ok(query.execute(connection).await?.rows_affected())
        }

        async fn fetch(
            connection: &mut Connection<Self>,
            statement: &Statement,
        ) -> sqlx::Result<Vec<Record>> {
            let query = dialect_io!(@bound $database, statement, $text);
            let rows = query.fetch_all(connection).await?;
            let Some(first) = rows.first() else { return Ok(Vec::new()) };
            let columns: Arc<[String]> =
                first.columns().iter().map(|column| column.name().to_owned()).collect();
            let record = |row: &<$database as Database>::Row| {
                let value = |i: usize| {
                    let raw = row.try_get_raw(i)?;
                    if raw.is_null() {
                        return Ok(Value::Text(None));
                    }
                    let info = raw.type_info();
                    let read: fn(&<$database as Database>::Row, usize, &str) -> sqlx::Result<Value> = $read;
                    read(row, i, info.name())
                };
                let values = (0..columns.len()).map(value).collect::<sqlx::Result<_>>()?;
                Ok(Record { columns: Arc::clone(&columns), values })
            };
            rows.iter().map(record).collect()
        }
    };
    (@bound $database:ty, $statement:expr, $text:expr) => {{
        let mut query = sqlx::query::<$database>($statement.sql_str());
        for value in &$statement.binds {
            query = match value {
                Value::Int(value) => query.bind(*value),
                Value::Text(value) => query.bind(value.as_deref().map($text)),
                Value::Blob(value) => query.bind(value.as_deref()),
            };
        }
        query
    }};
}
use dialect_io;
