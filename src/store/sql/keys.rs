//! API keys: their public half, and a hash of the secret one.

use std::collections::BTreeSet;

use super::super::PageRequest;
use super::super::dialect::{Record, Statement};
use super::rows::Reader;
use super::sessions::Conditions;
use crate::clock::Timestamp;
use crate::domain::scope::{Permission, Role};
use crate::ids::KeyId;
use crate::store::Result;

/// A key's row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    /// The public half.
    pub id: KeyId,
    /// The org it belongs to.
    pub org: String,
    /// The owner that it names.
    pub owner: Option<String>,
    /// What it is for.
    pub role: Role,
    /// What it may do.
    pub permissions: BTreeSet<Permission>,
    /// SHA-256 of the secret half, which has 256 random bits and so needs no slow hash.
    pub secret_hash: Vec<u8>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it ends.
    pub expires_at: Option<Timestamp>,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
    /// When it was last used, to the minute.
    pub last_used_at: Option<Timestamp>,
}

macro_rules! select_key {
    ($rest:literal) => {
        concat!(
            "SELECT k.id, k.org_id, k.owner_id, k.role, k.permissions, k.secret_hash, k.created_at, k.expires_at,
                k.revoked_at, k.last_used_at
             FROM api_keys k ",
            $rest
        )
    };
}

pub(super) fn any() -> Statement {
    Statement::new("SELECT id FROM api_keys LIMIT 1")
}

pub(super) fn insert(key: &ApiKey) -> Statement {
    let permissions: Vec<&str> = key.permissions.iter().map(|permission| permission.as_str()).collect();
    Statement::new(
        "INSERT INTO api_keys (id, org_id, owner_id, role, permissions, secret_hash, created_at, expires_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
    )
    .bind(key.id.as_str())
    .bind(key.org.as_str())
    .bind(key.owner.as_deref())
    .bind(key.role.as_str())
    .bind(permissions.join(" "))
    .bind(key.secret_hash.clone())
    .bind(key.created_at)
    .bind(key.expires_at)
}

/// What all processes agree on: which key is the first.
pub(super) const FIRST: &str = "first_key";

pub(super) fn insert_first(key: &ApiKey) -> Statement {
    let Statement { binds, .. } = insert(key);
    let sql =
        "INSERT INTO api_keys (id, org_id, owner_id, role, permissions, secret_hash, created_at, expires_at)
         SELECT $1, $2, $3, $4, $5, $6, $7, $8
         WHERE EXISTS (SELECT 1 FROM cluster c WHERE c.name = 'first_key' AND c.value = $1)";
    binds.into_iter().fold(Statement::new(sql), Statement::bind)
}

pub(super) fn find(key: &KeyId) -> Statement {
    Statement::new(select_key!("WHERE k.id = $1")).bind(key.as_str())
}

pub(super) fn list(org: &str, page: &PageRequest<KeyId>) -> Statement {
    let mut conditions = Conditions::new(select_key!(""));
    conditions.and("k.org_id IN (?, ?)", org);
    if let Some(before) = &page.before {
        conditions.and("k.id < ?", before.as_str());
    }
    conditions.page("k.org_id DESC, k.id", page.limit)
}

/// The first end counts; a second changes nothing but still finds the row.
pub(super) fn revoke(org: &str, key: &KeyId, now: Timestamp) -> Statement {
    Statement::new("UPDATE api_keys SET revoked_at = COALESCE(revoked_at, $3) WHERE org_id = $1 AND id = $2")
        .bind(org)
        .bind(key.as_str())
        .bind(now)
}

pub(super) fn touch(key: &KeyId, now: Timestamp) -> Statement {
    Statement::new("UPDATE api_keys SET last_used_at = $2 WHERE id = $1").bind(key.as_str()).bind(now)
}

pub(super) fn read(record: Record) -> Result<ApiKey> {
    let row = Reader::new(record, "api_keys", "id");
    let words = row.text("permissions")?;
    let permissions = words.split_whitespace().map(|word| {
        Permission::parse(word).ok_or_else(|| row.corrupt("permissions", format!("unknown word {word:?}")))
    });
    Ok(ApiKey {
        id: KeyId::from_row(row.text("id")?),
        org: row.text("org_id")?,
        owner: row.opt_text("owner_id")?,
        role: row.word("role", Role::parse)?,
        permissions: permissions.collect::<Result<_>>()?,
        secret_hash: row.opt_blob("secret_hash")?.ok_or_else(|| row.corrupt("secret_hash", "is null"))?,
        created_at: row.time("created_at")?,
        expires_at: row.opt_time("expires_at")?,
        revoked_at: row.opt_time("revoked_at")?,
        last_used_at: row.opt_time("last_used_at")?,
    })
}
