//! Reads a record's columns into values, and says exactly what is wrong with one that cannot be read.

use std::cell::Cell;

use serde::de::DeserializeOwned;

use super::super::StoreError;
use super::super::dialect::{Record, Value};
use crate::clock::Timestamp;
use crate::store::Result;

/// A row on its way into a value of the domain.
pub(super) struct Reader {
    record: Record,
    table: &'static str,
    /// The column that names the row in an error.
    id: &'static str,
    /// Columns are read about in the order of the query: the next one is looked for where the last one was found.
    next: Cell<usize>,
}

impl Reader {
    pub(super) fn new(record: Record, table: &'static str, id: &'static str) -> Self {
        Self { record, table, id, next: Cell::new(0) }
    }

    fn get(&self, column: &str) -> Option<&Value> {
        let columns = &self.record.columns;
        let next = self.next.get();
        let mut places = (next..columns.len()).chain(0..next.min(columns.len()));
        let place = places.find(|place| columns.get(*place).is_some_and(|name| name == column))?;
        self.next.set(place + 1);
        self.record.values.get(place)
    }

    pub(super) fn corrupt(&self, column: &str, complaint: impl Into<String>) -> StoreError {
        let row = match self.record.get(self.id) {
            Some(Value::Text(Some(text))) => text.clone(),
            Some(Value::Int(Some(number))) => number.to_string(),
            _ => "unknown".to_owned(),
        };
        StoreError::Corrupt { table: self.table, column: column.to_owned(), row, complaint: complaint.into() }
    }

    pub(super) fn opt_int(&self, column: &str) -> Result<Option<i64>> {
        match self.get(column) {
            Some(Value::Int(value)) => Ok(*value),
            Some(Value::Text(None) | Value::Blob(None)) => Ok(None),
            Some(_) => Err(self.corrupt(column, "is not an integer")),
            None => Err(self.corrupt(column, "was not read")),
        }
    }

    pub(super) fn int(&self, column: &str) -> Result<i64> {
        self.opt_int(column)?.ok_or_else(|| self.corrupt(column, "is null"))
    }

    pub(super) fn flag(&self, column: &str) -> Result<bool> {
        match self.int(column)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(self.corrupt(column, format!("is {other}, not 0 or 1"))),
        }
    }

    pub(super) fn count(&self, column: &str) -> Result<u64> {
        u64::try_from(self.int(column)?).map_err(|_| self.corrupt(column, "is negative"))
    }

    pub(super) fn time(&self, column: &str) -> Result<Timestamp> {
        self.int(column).map(Timestamp)
    }

    pub(super) fn opt_time(&self, column: &str) -> Result<Option<Timestamp>> {
        Ok(self.opt_int(column)?.map(Timestamp))
    }

    fn opt_str(&self, column: &str) -> Result<Option<&str>> {
        match self.get(column) {
            Some(Value::Text(value)) => Ok(value.as_deref()),
            Some(_) => Err(self.corrupt(column, "is not text")),
            None => Err(self.corrupt(column, "was not read")),
        }
    }

    fn str(&self, column: &str) -> Result<&str> {
        self.opt_str(column)?.ok_or_else(|| self.corrupt(column, "is null"))
    }

    pub(super) fn opt_text(&self, column: &str) -> Result<Option<String>> {
        Ok(self.opt_str(column)?.map(str::to_owned))
    }

    pub(super) fn text(&self, column: &str) -> Result<String> {
        self.str(column).map(str::to_owned)
    }

    pub(super) fn opt_blob(&self, column: &str) -> Result<Option<Vec<u8>>> {
        match self.get(column) {
            Some(Value::Blob(value)) => Ok(value.clone()),
            Some(Value::Text(None) | Value::Int(None)) => Ok(None),
            Some(_) => Err(self.corrupt(column, "is not a blob")),
            None => Err(self.corrupt(column, "was not read")),
        }
    }

    /// A word that stands for one of a list of values.
    pub(super) fn word<T>(&self, column: &str, parse: impl Fn(&str) -> Option<T>) -> Result<T> {
        let text = self.str(column)?;
        parse(text).ok_or_else(|| self.corrupt(column, format!("holds the unknown word {text:?}")))
    }

    pub(super) fn opt_word<T>(&self, column: &str, parse: impl Fn(&str) -> Option<T>) -> Result<Option<T>> {
        match self.opt_str(column)? {
            None => Ok(None),
            Some(_) => self.word(column, parse).map(Some),
        }
    }

    pub(super) fn json<T: DeserializeOwned>(&self, column: &str) -> Result<T> {
        // The value itself may be a tenant's secret: the complaint says where it breaks, not what it is.
        serde_json::from_str(self.str(column)?).map_err(|error| {
            self.corrupt(column, format!("is not the JSON it should be, at byte {}", error.column()))
        })
    }

    pub(super) fn opt_json<T: DeserializeOwned>(&self, column: &str) -> Result<Option<T>> {
        match self.opt_str(column)? {
            None => Ok(None),
            Some(_) => self.json(column).map(Some),
        }
    }
}

/// A count as it is stored: one that no column holds is the largest that any holds. Whoever counted, a row must be readable.
pub(super) fn stored_count(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// JSON as it is stored. Values of this program always have a form in JSON: keys are strings, floats are finite.
pub(super) fn json<T: serde::Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|error| StoreError::from(sqlx::Error::Encode(Box::new(error))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(value: Value) -> Reader {
        let columns = std::sync::Arc::from(["id".to_owned(), "it".to_owned()]);
        let values = vec![Value::Text(Some("ses_1".into())), value];
        Reader::new(Record { columns, values }, "agent_harness_sessions", "id")
    }

    #[test]
    fn row_13_an_unknown_word_or_broken_json_is_an_error_that_names_table_column_and_row() {
        let weird = reader(Value::Text(Some("weird".into())));
        let error = weird.word("it", crate::domain::session::SessionStatus::parse).unwrap_err().to_string();
        for part in ["agent_harness_sessions", "column it", "row ses_1", "weird"] {
            assert!(error.contains(part), "{error}");
        }
        let broken = reader(Value::Text(Some("{\"secret\":".into())));
        let error = broken.json::<serde_json::Value>("it").unwrap_err().to_string();
        assert!(error.contains("column it") && !error.contains("secret"), "{error}");
    }

    #[test]
    fn null_where_a_value_must_be_is_an_error() {
        assert!(reader(Value::Text(None)).text("it").is_err());
        assert!(reader(Value::Text(None)).int("it").is_err());
        assert_eq!(reader(Value::Text(None)).opt_int("it").unwrap(), None);
    }
}
