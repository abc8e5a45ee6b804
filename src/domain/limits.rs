//! The limits of a session, and the bounds of what callers may send.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Longest run id and thread id, in characters.
pub const NAME_MAX_CHARS: usize = 200;
/// A title made from a prompt is cut to this many characters; one that is given may be as long as a name.
pub const TITLE_CHARS: usize = 80;
/// Most metadata pairs.
pub const METADATA_MAX_PAIRS: usize = 16;
/// Longest metadata key, in characters.
pub const METADATA_KEY_MAX_CHARS: usize = 64;
/// Longest metadata value, in characters.
pub const METADATA_VALUE_MAX_CHARS: usize = 512;
/// How many resolved approval ids a session shows; the approvals themselves are all kept.
pub const RESOLVED_IDS_SHOWN: usize = 32;
/// A tool's input or result is cut to this many characters in a transcript.
pub const TRANSCRIPT_VALUE_MAX_CHARS: usize = 12_000;
/// The largest resume state that is stored, in bytes.
pub const RESUME_STATE_MAX_BYTES: usize = 16 * 1024 * 1024;
/// The most that the files of an agent's memory are together, in bytes, before they are compressed.
pub const AGENT_FILES_MAX_BYTES: usize = 64 << 20;
/// The largest archive of an agent's files that is stored, in bytes, compressed.
pub const AGENT_ARCHIVE_MAX_BYTES: usize = 16 << 20;
/// The longest time a turn or an approval can be given: a year.
pub const LIMIT_MAX_SECONDS: u64 = 366 * 24 * 3600;

/// How deep JSON of others may be nested where it is kept: what holds it must be readable again, and text of more than 127 levels is not.
pub const VALUE_MAX_LEVELS: usize = 64;

/// Whether a value is nested deeper than [`VALUE_MAX_LEVELS`].
pub fn is_too_deep(value: &Value) -> bool {
    !fits(value, VALUE_MAX_LEVELS)
}

fn fits(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(values) => levels > 0 && values.iter().all(|value| fits(value, levels - 1)),
        Value::Object(values) => levels > 0 && values.values().all(|value| fits(value, levels - 1)),
        _ => true,
    }
}

/// How long a session's turns and approvals may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// A turn's time at work, in seconds; waiting for a person does not count.
    pub turn_seconds: u64,
    /// How long an approval waits for its decision, in seconds; 0 means for ever.
    pub approval_seconds: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { turn_seconds: 900, approval_seconds: 86_400 }
    }
}

impl Limits {
    /// A turn's time at work.
    pub fn turn(self) -> Duration {
        Duration::from_secs(self.turn_seconds)
    }

    /// How long an approval waits; `None` for ever.
    pub fn approval(self) -> Option<Duration> {
        (self.approval_seconds > 0).then(|| Duration::from_secs(self.approval_seconds))
    }

    /// The first limit that is out of bounds, said in words.
    pub fn complaint(self) -> Option<String> {
        if !(1..=LIMIT_MAX_SECONDS).contains(&self.turn_seconds) {
            return Some(format!("limits.turn_seconds must be 1 to {LIMIT_MAX_SECONDS}"));
        }
        if self.approval_seconds > LIMIT_MAX_SECONDS {
            return Some(format!("limits.approval_seconds must be 0 to {LIMIT_MAX_SECONDS}"));
        }
        None
    }
}

/// Whether a text can be a run id, a thread id or a title.
pub fn is_name(text: &str) -> bool {
    !text.trim().is_empty() && text.chars().count() <= NAME_MAX_CHARS && !text.chars().any(char::is_control)
}

/// What is wrong with a caller's own pairs.
pub fn metadata_complaint(metadata: &BTreeMap<String, String>) -> Option<String> {
    if metadata.len() > METADATA_MAX_PAIRS {
        return Some(format!("metadata: at most {METADATA_MAX_PAIRS} pairs"));
    }
    let fits = |text: &str, max: usize| text.chars().count() <= max;
    metadata
        .iter()
        .any(|(key, value)| {
            key.is_empty() || !fits(key, METADATA_KEY_MAX_CHARS) || !fits(value, METADATA_VALUE_MAX_CHARS)
        })
        .then(|| {
            format!(
                "metadata: keys are 1 to {METADATA_KEY_MAX_CHARS} characters, values at most {METADATA_VALUE_MAX_CHARS}"
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_to_two_hundred_characters_without_control_characters() {
        for name in ["a", "job-1", &"é".repeat(200)] {
            assert!(is_name(name), "{name}");
        }
        for wrong in ["", " ", "a\nb", &"x".repeat(201)] {
            assert!(!is_name(wrong), "{wrong:?}");
        }
    }

    #[test]
    fn metadata_is_bounded_in_pairs_keys_and_values() {
        let pairs =
            |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let complains = |metadata: &BTreeMap<String, String>| metadata_complaint(metadata).is_some();
        assert!(!complains(&pairs(&[("k", "")])));
        assert!(complains(&pairs(&[("", "v")])));
        assert!(complains(&pairs(&[(&"k".repeat(65), "v")])));
        assert!(complains(&pairs(&[("k", &"v".repeat(513))])));
        assert!(complains(&(0..17).map(|n| (n.to_string(), String::new())).collect()));
    }

    #[test]
    fn limits_are_within_a_year_and_a_turn_has_some_time() {
        assert_eq!(Limits::default().complaint(), None);
        assert!(Limits { turn_seconds: 0, ..Limits::default() }.complaint().is_some());
        assert!(
            Limits { approval_seconds: LIMIT_MAX_SECONDS + 1, ..Limits::default() }.complaint().is_some()
        );
        assert_eq!(Limits { approval_seconds: 0, ..Limits::default() }.approval(), None);
    }

    #[test]
    fn a_value_is_too_deep_by_its_levels_and_not_by_its_size() {
        let nested =
            |levels| (0..levels).fold(Value::Null, |inner, _| serde_json::json!({ "a": [inner, 1] }));
        assert!(!is_too_deep(&nested(VALUE_MAX_LEVELS / 2)));
        assert!(is_too_deep(&nested(VALUE_MAX_LEVELS / 2 + 1)));
        assert!(!is_too_deep(&serde_json::json!(vec![vec![0; 100]; 100])));
    }
}
