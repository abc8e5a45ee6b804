//! Identifiers. All are minted here: a prefix that names the kind and a UUIDv7 in simple form, so that they sort by time.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

#[expect(clippy::disallowed_methods, reason = "the one place that mints ids")]
fn mint(prefix: &str) -> String {
    format!("{prefix}_{}", Uuid::now_v7().simple())
}

fn is_minted(prefix: &str, text: &str) -> bool {
    text.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('_')).is_some_and(|hex| {
        hex.len() == 32 && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    })
}

macro_rules! minted_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// A new id, later than all minted before it in this process.
            pub fn mint() -> Self {
                Self(mint($prefix))
            }

            /// Reads an id; `None` when the text does not have its form.
            pub fn parse(text: &str) -> Option<Self> {
                is_minted($prefix, text).then(|| Self(text.to_owned()))
            }

            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

minted_id!(
    /// A session: one durable conversation with one harness.
    SessionId, "ses"
);
minted_id!(
    /// A turn: one prompt and all that it causes.
    TurnId, "trn"
);
minted_id!(
    /// An approval: one question that a person answers.
    ApprovalId, "apr"
);
minted_id!(
    /// The public half of an API key.
    KeyId, "key"
);
minted_id!(
    /// One HTTP request.
    RequestId, "req"
);
minted_id!(
    /// One process of the service, from its start to its end. Never used again.
    ReplicaId, "rep"
);

macro_rules! stored_id {
    ($($name:ident),+) => {$(
        impl $name {
            /// Takes the text of a row as it is: the store wrote it.
            pub(crate) fn from_row(text: String) -> Self {
                Self(text)
            }
        }
    )+};
}
stored_id!(SessionId, TurnId, ApprovalId, KeyId, ReplicaId);

/// A run id for a session whose caller gave none. Run ids are the caller's own words, so this kind is plain text.
pub fn mint_run_id() -> String {
    mint("run")
}

/// The integer that stands for a session inside the database: short where the id would be long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionKey(pub i64);

impl SessionKey {
    /// A random positive key. Random, not counted, so that replicas need not agree on a next one.
    ///
    /// # Errors
    /// When the system has no randomness to give.
    pub fn mint() -> Result<Self, getrandom::Error> {
        Ok(Self((getrandom::u64()? >> 1) as i64))
    }
}

impl fmt::Display for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_carry_their_prefix_sort_by_time_and_are_read_back() {
        let ids: Vec<SessionId> = (0..1000).map(|_| SessionId::mint()).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(SessionId::parse(ids[0].as_str()).as_ref(), Some(&ids[0]));
    }

    #[test]
    fn what_has_not_the_form_of_an_id_is_none() {
        for text in [
            "",
            "ses_",
            "ses_1",
            "trn_0197a0c0c0c07000a000a000a000a000",
            "ses_0197A0C0C0C07000A000A000A000A000",
        ] {
            assert_eq!(SessionId::parse(text), None, "{text}");
        }
    }
}
