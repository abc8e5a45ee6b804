//! What a tool gets, read field by field, with complaints that name the field.

use serde_json::{Map, Value};

/// The fields that nobody has read yet.
pub(super) struct Fields<'a> {
    left: Map<String, Value>,
    tool: &'a str,
}

impl<'a> Fields<'a> {
    /// # Errors
    /// When the input is no object.
    pub(super) fn of(tool: &'a str, input: &Value) -> Result<Self, String> {
        match input {
            Value::Object(left) => Ok(Self { left: left.clone(), tool }),
            _ => Err(format!("the input of {tool} must be an object")),
        }
    }

    /// A text that must be there.
    ///
    /// # Errors
    /// When it is not, or is no text.
    pub(super) fn text(&mut self, name: &str) -> Result<String, String> {
        match self.take(name) {
            Some(Value::String(text)) => Ok(text),
            Some(_) => Err(self.complaint(name, "must be a string")),
            None => Err(self.complaint(name, "is missing")),
        }
    }

    /// A text that may be left out.
    ///
    /// # Errors
    /// When it is no text.
    pub(super) fn optional_text(&mut self, name: &str) -> Result<Option<String>, String> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.complaint(name, "must be a string")),
        }
    }

    /// A count from 1 on, which may be left out.
    ///
    /// # Errors
    /// When it is no such number.
    pub(super) fn count(&mut self, name: &str) -> Result<Option<usize>, String> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let count = value.as_u64().and_then(|count| usize::try_from(count).ok()).filter(|count| *count > 0);
        count.map(Some).ok_or_else(|| self.complaint(name, "must be a whole number from 1 on"))
    }

    /// A switch, which is off where it is left out.
    ///
    /// # Errors
    /// When it is neither on nor off.
    pub(super) fn switch(&mut self, name: &str) -> Result<bool, String> {
        match self.take(name) {
            None => Ok(false),
            Some(Value::Bool(on)) => Ok(on),
            Some(_) => Err(self.complaint(name, "must be true or false")),
        }
    }

    /// # Errors
    /// When there are fields that the tool does not have.
    pub(super) fn end(self) -> Result<(), String> {
        match self.left.keys().next() {
            None => Ok(()),
            Some(name) => Err(self.complaint(name, "is no field of its input")),
        }
    }

    // Models write null for what they leave out.
    fn take(&mut self, name: &str) -> Option<Value> {
        self.left.remove(name).filter(|value| !value.is_null())
    }

    fn complaint(&self, name: &str, words: &str) -> String {
        format!("{}: {name:?} {words}", self.tool)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_complaint_names_the_field() {
        let read = |input: Value| {
            let mut fields = Fields::of("read_file", &input)?;
            let found = (fields.text("path")?, fields.count("limit")?, fields.switch("deep")?);
            fields.end().map(|()| found)
        };
        assert_eq!(read(json!({"path": "a", "limit": 3})), Ok(("a".to_owned(), Some(3), false)));
        assert_eq!(read(json!({"path": "a", "limit": null, "deep": true})), Ok(("a".to_owned(), None, true)));
        for (input, words) in [
            (json!("a"), "the input of read_file must be an object"),
            (json!({}), "read_file: \"path\" is missing"),
            (json!({"path": 7}), "read_file: \"path\" must be a string"),
            (json!({"path": "a", "limit": "3"}), "read_file: \"limit\" must be a whole number from 1 on"),
            (json!({"path": "a", "limit": -3}), "read_file: \"limit\" must be a whole number from 1 on"),
            (json!({"path": "a", "limit": 0}), "read_file: \"limit\" must be a whole number from 1 on"),
            (json!({"path": "a", "deep": 1}), "read_file: \"deep\" must be true or false"),
            (json!({"path": "a", "lines": 1}), "read_file: \"lines\" is no field of its input"),
        ] {
            assert_eq!(read(input), Err(words.to_owned()));
        }
    }
}
