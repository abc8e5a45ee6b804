//! Reads settings key by key: what is absent keeps what it had, what is wrong is told together with all else that is wrong.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

/// One object of the settings, and the complaints about all of them.
pub(super) struct Reader<'a> {
    at: String,
    object: Option<&'a Map<String, Value>>,
    known: BTreeSet<&'static str>,
    complaints: &'a mut Vec<String>,
}

impl<'a> Reader<'a> {
    /// Reads the whole.
    pub fn new(value: &'a Value, complaints: &'a mut Vec<String>) -> Self {
        if !value.is_object() {
            complaints.push("settings: must be an object".to_owned());
        }
        Self { at: String::new(), object: value.as_object(), known: BTreeSet::new(), complaints }
    }

    /// Reads an object in it.
    pub fn section(&mut self, key: &'static str, read: impl FnOnce(&mut Reader<'_>)) {
        let at = self.path(key);
        let value = self.value(key);
        let object = value.and_then(Value::as_object);
        if value.is_some() && object.is_none() {
            self.complaints.push(format!("{at}: must be an object"));
        }
        let mut inner = Reader { at, object, known: BTreeSet::new(), complaints: self.complaints };
        read(&mut inner);
        inner.finish();
    }

    /// Refuses the keys that nobody asked for.
    pub fn finish(self) {
        for key in self.object.into_iter().flat_map(Map::keys) {
            if !self.known.contains(key.as_str()) {
                let at = self.path(key);
                let known: Vec<_> = self.known.iter().copied().collect();
                self.complaints.push(format!("{at}: unknown; there are {}", known.join(", ")));
            }
        }
    }

    /// A value as it is.
    pub fn value(&mut self, key: &'static str) -> Option<&'a Value> {
        self.known.insert(key);
        self.object?.get(key)
    }

    /// What is wrong with a key.
    pub fn complain(&mut self, key: &str, words: impl std::fmt::Display) {
        let at = self.path(key);
        self.complaints.push(format!("{at}: {words}"));
    }

    /// Yes or no.
    pub fn flag(&mut self, key: &'static str, into: &mut bool) {
        match self.value(key).map(Value::as_bool) {
            None => {}
            Some(Some(flag)) => *into = flag,
            Some(None) => self.complain(key, "must be true or false"),
        }
    }

    /// A whole number.
    pub fn number(&mut self, key: &'static str, bounds: RangeInclusive<u64>, into: &mut u64) {
        match self.value(key).map(|value| value.as_u64().filter(|number| bounds.contains(number))) {
            None => {}
            Some(Some(number)) => *into = number,
            Some(None) => self
                .complain(key, format!("must be a whole number from {} to {}", bounds.start(), bounds.end())),
        }
    }

    /// A part of one: more than nothing, at most all of it.
    pub fn ratio(&mut self, key: &'static str, into: &mut f64) {
        match self.value(key).map(|value| value.as_f64().filter(|ratio| *ratio > 0.0 && *ratio <= 1.0)) {
            None => {}
            Some(Some(ratio)) => *into = ratio,
            Some(None) => self.complain(key, "must be a number above 0 and up to 1"),
        }
    }

    /// One of some words.
    pub fn word<T: Copy>(&mut self, key: &'static str, words: &[(&str, T)], into: &mut T) {
        let Some(value) = self.value(key) else { return };
        match words.iter().find(|(word, _)| value.as_str() == Some(word)) {
            Some((_, named)) => *into = *named,
            None => {
                let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
                self.complain(key, format!("must be one of {}", words.join(", ")));
            }
        }
    }

    /// Names: none blank, none with space around it, none twice.
    pub fn names(&mut self, key: &'static str, into: &mut Vec<String>) {
        let Some(value) = self.value(key) else { return };
        let names =
            value.as_array().and_then(|names| names.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
        let Some(names) = names else { return self.complain(key, "must be a list of names") };
        if names.len() > super::NAMES_MAX {
            return self.complain(key, format!("must be at most {} names", super::NAMES_MAX));
        }
        let mut seen = BTreeSet::new();
        for name in &names {
            if name.trim().is_empty() {
                self.complain(key, "a name is blank");
            } else if name.trim() != *name {
                self.complain(key, format!("{name:?} has space around it"));
            } else if !seen.insert(*name) {
                self.complain(key, format!("{name:?} is there twice"));
            }
        }
        *into = names.into_iter().map(str::to_owned).collect();
    }

    fn path(&self, key: &str) -> String {
        if self.at.is_empty() { key.to_owned() } else { format!("{}.{key}", self.at) }
    }
}
