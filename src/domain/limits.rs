//! The limits of a session, and the bounds of what callers may send.

use std::time::Duration;

use serde::{Deserialize, Serialize};

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
/// The longest time a turn or an approval can be given: a year.
pub const LIMIT_MAX_SECONDS: u64 = 366 * 24 * 3600;

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
