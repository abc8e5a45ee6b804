//! How a database would go about a statement: parsed, typed and planned, but not executed. A test asks it of every statement that
//! there is; the service never does.

use std::future::Future;

use sqlx::{AssertSqlSafe, Row as _};

use super::{Connection, Dialect, Postgres, Sqlite, Statement, Value, postgres, sqlite};

/// A statement in one of the forms in which a database gets it.
#[derive(Clone, Debug)]
pub struct Form {
    pub(in crate::store) name: String,
    pub(in crate::store) words: String,
    binds: Vec<Bound>,
}

/// What a placeholder stands for.
#[derive(Clone, Debug)]
pub enum Bound {
    One(Value),
    /// An array of some such values.
    Each(Value),
}

impl Form {
    pub(in crate::store) fn new(
        name: impl Into<String>,
        words: impl Into<String>,
        binds: Vec<Bound>,
    ) -> Self {
        Self { name: name.into(), words: words.into(), binds }
    }
}

/// A database that tells its plans.
pub trait Plans: Dialect {
    /// The forms in which a statement is sent: alone, and where it can be, many together.
    fn forms(name: String, statement: &Statement) -> Vec<Form>;

    /// [`Dialect::insert_events`].
    fn events() -> Form;

    /// The plan, in the database's own words.
    fn plan(
        connection: &mut Connection<Self>,
        form: &Form,
    ) -> impl Future<Output = sqlx::Result<String>> + Send
    where
        Self: Sized;
}

fn alone(name: String, statement: &Statement) -> Form {
    let binds = statement.binds.iter().cloned().map(Bound::One).collect();
    Form::new(name, statement.words(), binds)
}

impl Plans for Sqlite {
    fn forms(name: String, statement: &Statement) -> Vec<Form> {
        vec![alone(name, statement)]
    }

    fn events() -> Form {
        Form::new("events::insert", sqlite::INSERT_EVENTS, vec![Bound::One("[]".into())])
    }

    async fn plan(connection: &mut Connection<Self>, form: &Form) -> sqlx::Result<String> {
        let value = |bound: &Bound| match bound {
            Bound::One(value) | Bound::Each(value) => value.clone(),
        };
        let binds = form.binds.iter().map(value).collect();
        let question = Statement::assembled(format!("EXPLAIN QUERY PLAN {}", form.words), binds);
        let rows = Self::fetch(connection, &question).await?;
        let line = |row: &super::Record| match row.get("detail") {
            Some(Value::Text(Some(text))) => text.clone(),
            _ => String::new(),
        };
        Ok(rows.iter().map(line).collect::<Vec<_>>().join("\n"))
    }
}

impl Plans for Postgres {
    fn forms(name: String, statement: &Statement) -> Vec<Form> {
        let together = postgres::together(statement).map(|together| {
            let binds = statement.binds.iter().cloned().map(Bound::Each).collect();
            Form::new(format!("{name}, many"), together.sql, binds)
        });
        [alone(name, statement)].into_iter().chain(together).collect()
    }

    fn events() -> Form {
        let (int, text) = (|| Bound::Each(1_i64.into()), || Bound::Each("x".into()));
        let binds = vec![int(), int(), int(), int(), text(), text(), int()];
        Form::new("events::insert", postgres::INSERT_EVENTS, binds)
    }

    /// With the types that the driver declares. Whether the plan is for these values or for any is the database's setting
    /// `plan_cache_mode`.
    async fn plan(connection: &mut Connection<Self>, form: &Form) -> sqlx::Result<String> {
        let kinds: Vec<_> = form.binds.iter().map(kind).collect();
        let literals: Vec<_> = form.binds.iter().map(literal).collect();
        let brackets = |inside: Vec<String>| match inside.as_slice() {
            [] => String::new(),
            inside => format!("({})", inside.join(", ")),
        };
        let sql = format!(
            "DEALLOCATE ALL; PREPARE it {} AS {}; EXPLAIN EXECUTE it {}",
            brackets(kinds),
            form.words,
            brackets(literals)
        );
        let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(connection).await?;
        let lines = rows.iter().map(|row| row.try_get(0)).collect::<sqlx::Result<Vec<String>>>()?;
        Ok(lines.join("\n"))
    }
}

fn kind(bound: &Bound) -> String {
    let of = |value: &Value| match value {
        Value::Int(_) => "BIGINT",
        Value::Text(_) => "TEXT",
        Value::Blob(_) => "BYTEA",
    };
    match bound {
        Bound::One(value) => of(value).to_owned(),
        Bound::Each(value) => format!("{}[]", of(value)),
    }
}

fn literal(bound: &Bound) -> String {
    let of = |value: &Value| match value {
        Value::Int(Some(number)) => number.to_string(),
        Value::Text(Some(text)) => format!("'{}'", text.replace('\'', "''")),
        Value::Blob(Some(bytes)) => format!("'\\x{}'", crate::domain::approval::hex(bytes)),
        Value::Int(None) | Value::Text(None) | Value::Blob(None) => "NULL".to_owned(),
    };
    match bound {
        Bound::One(value) => of(value),
        Bound::Each(value) => format!("ARRAY[{0}, {0}, {0}]::{1}", of(value), kind(bound)),
    }
}
