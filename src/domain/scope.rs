//! Who asks, and whose rows they may see.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::ids::KeyId;

/// Longest owner id, in characters.
pub const OWNER_MAX_CHARS: usize = 320;
/// Longest org id, in characters.
pub const ORG_MAX_CHARS: usize = 200;

/// What a key is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Sees and drives its own sessions.
    Owner,
    /// Sees its org; drives sessions on behalf of an owner it names.
    Service,
    /// Everything in its org.
    Admin,
}

/// What a key may do within what its role allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Permission {
    /// Read sessions, turns, events and approvals.
    #[serde(rename = "sessions:read")]
    SessionsRead,
    /// Create, prompt, cancel, stop, change and destroy sessions.
    #[serde(rename = "sessions:write")]
    SessionsWrite,
    /// Decide approvals.
    #[serde(rename = "approvals:decide")]
    ApprovalsDecide,
    /// Manage keys. Only an admin key can have it.
    #[serde(rename = "admin")]
    Admin,
}

macro_rules! named_values {
    ($type:ident { $($variant:ident => $name:literal),+ $(,)? }) => {
        impl $type {
            /// Every value, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The value's name, as it stands in JSON and in the database.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// The value of that name.
            pub fn parse(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)+ _ => None }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}
pub(crate) use named_values;

named_values!(Role { Owner => "owner", Service => "service", Admin => "admin" });
named_values!(Permission {
    SessionsRead => "sessions:read",
    SessionsWrite => "sessions:write",
    ApprovalsDecide => "approvals:decide",
    Admin => "admin",
});

/// The rows that a request may touch. There is no "everything": every query names an org.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The rows of one owner.
    Own {
        /// The org.
        org: String,
        /// The owner within it.
        owner: String,
    },
    /// All rows of one org.
    Org {
        /// The org.
        org: String,
    },
}

impl Scope {
    /// The org that every query of this scope names.
    pub fn org(&self) -> &str {
        match self {
            Self::Own { org, .. } | Self::Org { org } => org,
        }
    }

    /// Whether a row of that org and owner is among them. The queries have it as a condition; this is for a row that was read before.
    pub fn covers(&self, org: &str, owner: &str) -> bool {
        self.org() == org && self.owner().is_none_or(|own| own == owner)
    }

    /// The owner, where the scope is one owner's.
    pub fn owner(&self) -> Option<&str> {
        match self {
            Self::Own { owner, .. } => Some(owner),
            Self::Org { .. } => None,
        }
    }
}

/// Who sent a request: the key's record, and the owner that the request speaks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// The key that was presented.
    pub key: KeyId,
    /// The org that the key belongs to.
    pub org: String,
    /// The key's role.
    pub role: Role,
    /// The owner that the key names: always for [`Role::Owner`], maybe for [`Role::Admin`].
    pub owner: Option<String>,
    /// The owner that the request names in `Ostler-Owner`.
    pub on_behalf_of: Option<String>,
    /// What the key may do.
    pub permissions: BTreeSet<Permission>,
}

/// Why a principal may not do what it asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ScopeError {
    /// A service key creates on behalf of an owner and named none.
    #[error("a service key names the owner in the Ostler-Owner header")]
    OwnerRequired,
    /// The key lacks the permission.
    #[error("this key lacks the scope {0}")]
    Insufficient(Permission),
}

impl Principal {
    /// The rows that this principal may read and act on.
    pub fn scope(&self) -> Scope {
        let owner = match self.role {
            Role::Owner => self.owner.clone(),
            Role::Service | Role::Admin => self.on_behalf_of.clone(),
        };
        let org = self.org.clone();
        match owner {
            Some(owner) => Scope::Own { org, owner },
            None => Scope::Org { org },
        }
    }

    /// The owner of what this principal creates.
    ///
    /// # Errors
    /// [`ScopeError::OwnerRequired`] for a service key that named nobody.
    pub fn creates_as(&self) -> Result<String, ScopeError> {
        let named = match self.role {
            Role::Owner => self.owner.clone(),
            Role::Service => self.on_behalf_of.clone(),
            Role::Admin => {
                self.on_behalf_of.clone().or_else(|| self.owner.clone()).or_else(|| Some("admin".to_owned()))
            }
        };
        named.ok_or(ScopeError::OwnerRequired)
    }

    /// Who this principal is in a record of what was done: the owner it acts for, else its key.
    pub fn actor(&self) -> String {
        self.creates_as().unwrap_or_else(|_| self.key.to_string())
    }

    /// Checks one permission.
    ///
    /// # Errors
    /// [`ScopeError::Insufficient`] when the key lacks it.
    pub fn require(&self, permission: Permission) -> Result<(), ScopeError> {
        if self.permissions.contains(&permission) {
            Ok(())
        } else {
            Err(ScopeError::Insufficient(permission))
        }
    }

    /// The name under which idempotency keys are kept: the same key string of two principals are two keys.
    pub fn idempotency_space(&self) -> String {
        format!("{}/{}", self.key, self.on_behalf_of.as_deref().unwrap_or(""))
    }
}

/// The permissions of a key: those asked for, narrowed to what its role can have; all of the role's when none are named.
///
/// # Errors
/// The first permission that the role cannot have.
pub fn permissions_of(role: Role, asked: &[Permission]) -> Result<BTreeSet<Permission>, Permission> {
    let may = |permission: &Permission| role == Role::Admin || *permission != Permission::Admin;
    if let Some(excess) = asked.iter().find(|p| !may(p)) {
        return Err(*excess);
    }
    let all = if asked.is_empty() { Permission::ALL } else { asked };
    Ok(all.iter().copied().filter(|p| may(p)).collect())
}

/// Whether a text can be an org or owner id: not blank, no control characters, at most `max` characters.
pub fn is_tenant_name(text: &str, max: usize) -> bool {
    !text.trim().is_empty() && text.chars().count() <= max && !text.chars().any(char::is_control)
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The owner is personal data and stays out of every text that may be logged.
        f.write_str(self.org())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal(role: Role, owner: Option<&str>, on_behalf_of: Option<&str>) -> Principal {
        Principal {
            key: KeyId::mint(),
            org: "acme".into(),
            role,
            owner: owner.map(Into::into),
            on_behalf_of: on_behalf_of.map(Into::into),
            permissions: permissions_of(role, &[]).unwrap(),
        }
    }

    #[test]
    fn an_owner_key_sees_its_own_whatever_the_header_says() {
        let alice = principal(Role::Owner, Some("alice"), Some("bob"));
        assert_eq!(alice.scope(), Scope::Own { org: "acme".into(), owner: "alice".into() });
        assert_eq!(alice.creates_as().as_deref(), Ok("alice"));
    }

    #[test]
    fn a_service_key_reads_the_org_and_creates_only_for_a_named_owner() {
        let service = principal(Role::Service, None, None);
        assert_eq!(service.scope(), Scope::Org { org: "acme".into() });
        assert_eq!(service.creates_as(), Err(ScopeError::OwnerRequired));
        let for_bob = principal(Role::Service, None, Some("bob"));
        assert_eq!(for_bob.scope(), Scope::Own { org: "acme".into(), owner: "bob".into() });
    }

    #[test]
    fn an_admin_key_creates_as_the_header_says_else_as_its_own_owner_else_as_admin() {
        assert_eq!(principal(Role::Admin, None, None).creates_as().as_deref(), Ok("admin"));
        assert_eq!(principal(Role::Admin, Some("root"), None).creates_as().as_deref(), Ok("root"));
        assert_eq!(principal(Role::Admin, Some("root"), Some("bob")).creates_as().as_deref(), Ok("bob"));
    }

    #[test]
    fn only_an_admin_key_can_have_the_admin_permission() {
        assert_eq!(permissions_of(Role::Owner, &[Permission::Admin]), Err(Permission::Admin));
        assert!(!permissions_of(Role::Service, &[]).unwrap().contains(&Permission::Admin));
        let narrow = permissions_of(Role::Owner, &[Permission::SessionsRead]).unwrap();
        assert_eq!(narrow.into_iter().collect::<Vec<_>>(), [Permission::SessionsRead]);
    }
}
