//! API keys: made, checked, revoked.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use secrecy::SecretString;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::{Service, ServiceError, ServiceResult};
use crate::clock::Timestamp;
use crate::domain::approval::hex;
use crate::domain::scope::{
    ORG_MAX_CHARS, OWNER_MAX_CHARS, Permission, Principal, Role, is_tenant_name, permissions_of,
};
use crate::ids::KeyId;
use crate::store::{ApiKey, Page, PageRequest};

/// How long a key that was checked is trusted without asking the database again: the longest that a revoked key can live on.
const TRUST: Duration = Duration::from_secs(5);
/// Keys that are remembered; beyond it the memory starts anew.
const REMEMBERED: usize = 10_000;
/// How often a key's last use is written down.
const TOUCH_EVERY: Duration = Duration::from_secs(60);

/// What a new key is to be.
#[derive(Clone, Debug)]
pub struct KeySpec {
    /// The org.
    pub org: String,
    /// The owner that it names.
    pub owner: Option<String>,
    /// What it is for.
    pub role: Role,
    /// What it may do; empty for all that its role can.
    pub permissions: Vec<Permission>,
    /// When it ends.
    pub expires_at: Option<Timestamp>,
}

/// A new key with its secret, which is shown once.
#[derive(Debug)]
pub struct KeySecret {
    /// The row.
    pub key: ApiKey,
    /// `ostler_<key id>_<secret>`.
    pub token: SecretString,
}

/// 256 random bits as hexadecimal.
pub(super) fn random_secret() -> ServiceResult<String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| ServiceError::Bug(error.to_string()))?;
    Ok(hex(&bytes))
}

/// SHA-256. What is hashed has 256 random bits, so that nothing slower is needed.
pub(super) fn hash(secret: &str) -> Vec<u8> {
    Sha256::digest(secret.as_bytes()).to_vec()
}

impl KeySpec {
    fn complaints(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        if !is_tenant_name(&self.org, ORG_MAX_CHARS) {
            complaints.push(format!(
                "org: must be 1 to {ORG_MAX_CHARS} characters, none of them a control character"
            ));
        }
        match &self.owner {
            Some(owner) if !is_tenant_name(owner, OWNER_MAX_CHARS) => {
                complaints.push(format!(
                    "owner: must be 1 to {OWNER_MAX_CHARS} characters, none of them a control character"
                ));
            }
            None if self.role == Role::Owner => {
                complaints.push("owner: an owner key names its owner".to_owned())
            }
            Some(_) if self.role == Role::Service => {
                complaints.push("owner: a service key names the owner with each request".to_owned());
            }
            Some(_) | None => {}
        }
        complaints
    }

    /// Makes a key that is not kept yet.
    ///
    /// # Errors
    /// `InvalidInput` with all complaints.
    pub fn prepare(self, now: Timestamp) -> ServiceResult<KeySecret> {
        let mut complaints = self.complaints();
        let permissions = permissions_of(self.role, &self.permissions).unwrap_or_else(|excess| {
            complaints.push(format!("scopes: a key of role {} cannot have {excess}", self.role));
            BTreeSet::new()
        });
        if !complaints.is_empty() {
            return Err(ServiceError::InvalidInput(complaints));
        }
        let (id, secret) = (KeyId::mint(), random_secret()?);
        let token = SecretString::from(format!("ostler_{id}_{secret}"));
        let key = ApiKey {
            id,
            org: self.org,
            owner: self.owner,
            role: self.role,
            permissions,
            secret_hash: hash(&secret),
            created_at: now,
            expires_at: self.expires_at,
            revoked_at: None,
            last_used_at: None,
        };
        Ok(KeySecret { key, token })
    }
}

/// Keys that were checked lately.
#[derive(Debug, Default)]
pub(super) struct KeyCache(Mutex<HashMap<KeyId, (Timestamp, ApiKey)>>);

impl KeyCache {
    fn get(&self, id: &KeyId, now: Timestamp) -> Option<ApiKey> {
        let cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cache
            .get(id)
            .filter(|(read_at, _)| now.since(*read_at) < TRUST && now >= *read_at)
            .map(|(_, key)| key.clone())
    }

    fn put(&self, now: Timestamp, key: ApiKey) {
        let mut cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.len() >= REMEMBERED {
            cache.clear();
        }
        cache.insert(key.id.clone(), (now, key));
    }

    fn forget(&self, id: &KeyId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }
}

fn split(token: &str) -> Option<(KeyId, &str)> {
    let rest = token.strip_prefix("ostler_")?;
    let (id, secret) = rest.rsplit_once('_')?;
    Some((KeyId::parse(id)?, secret))
}

impl Service {
    /// Who a bearer token stands for.
    ///
    /// # Errors
    /// `Unauthenticated` for every token that is not valid now, whatever is wrong with it; `RateLimited` for a key that is used
    /// too often.
    pub async fn authenticate(&self, token: &str) -> ServiceResult<Principal> {
        let (id, secret) = split(token).ok_or(ServiceError::Unauthenticated)?;
        let presented = hash(secret);
        let key = self.find_live_key(&id).await?;
        // An absent key costs a comparison as well.
        let kept = key.as_ref().map_or_else(|| vec![0; presented.len()], |key| key.secret_hash.clone());
        let equal = bool::from(presented.ct_eq(&kept));
        match key {
            Some(key) if equal => {
                self.rate.count(&key.id)?;
                Ok(principal(key))
            }
            _ => Err(ServiceError::Unauthenticated),
        }
    }

    /// Who a key stands for, for a credential that was derived from it.
    pub(super) async fn principal_of(&self, id: &KeyId) -> ServiceResult<Principal> {
        self.find_live_key(id).await?.map(principal).ok_or(ServiceError::Unauthenticated)
    }

    /// Whether a key is still valid: for what outlives its request.
    ///
    /// # Errors
    /// What the store says.
    pub async fn is_key_valid(&self, id: &KeyId) -> ServiceResult<bool> {
        Ok(self.find_live_key(id).await?.is_some())
    }

    async fn find_live_key(&self, id: &KeyId) -> ServiceResult<Option<ApiKey>> {
        let now = self.clock.now();
        let valid = |key: &ApiKey| key.revoked_at.is_none() && key.expires_at.is_none_or(|at| at > now);
        if let Some(key) = self.keys.get(id, now) {
            return Ok(Some(key).filter(valid));
        }
        let Some(key) = self.store.find_key(id).await? else { return Ok(None) };
        self.keys.put(now, key.clone());
        if valid(&key) && key.last_used_at.is_none_or(|at| now.since(at) >= TOUCH_EVERY) {
            self.note_use(id.clone(), now);
        }
        Ok(Some(key).filter(valid))
    }

    /// Beside the request, which need not wait for it.
    fn note_use(&self, id: KeyId, now: Timestamp) {
        let store = std::sync::Arc::clone(&self.store);
        self.tasks.spawn(async move {
            if let Err(error) = store.touch_key(&id, now).await {
                tracing::warn!(key = %id, %error, "a key's last use was not written down");
            }
        });
    }

    /// Makes a key in the principal's org.
    ///
    /// # Errors
    /// `Scope` without the permission, `InvalidInput`.
    pub async fn create_key(&self, principal: &Principal, spec: KeySpec) -> ServiceResult<KeySecret> {
        principal.require(Permission::Admin)?;
        let spec = KeySpec { org: principal.org.clone(), ..spec };
        let made = spec.prepare(self.clock.now())?;
        self.store.insert_key(&made.key).await?;
        Ok(made)
    }

    /// The keys of the principal's org, newest first.
    ///
    /// # Errors
    /// `Scope` without the permission.
    pub async fn list_keys(
        &self,
        principal: &Principal,
        page: PageRequest<KeyId>,
    ) -> ServiceResult<Page<ApiKey>> {
        principal.require(Permission::Admin)?;
        Ok(self.store.list_keys(&principal.org, page).await?)
    }

    /// Ends a key of the principal's org. Ending it again is fine.
    ///
    /// # Errors
    /// `Scope` without the permission, `NotFound`.
    pub async fn revoke_key(&self, principal: &Principal, id: &KeyId) -> ServiceResult<()> {
        principal.require(Permission::Admin)?;
        if !self.store.revoke_key(&principal.org, id, self.clock.now()).await? {
            return Err(ServiceError::NotFound);
        }
        self.keys.forget(id);
        Ok(())
    }
}

fn principal(key: ApiKey) -> Principal {
    Principal {
        key: key.id,
        org: key.org,
        role: key.role,
        owner: key.owner,
        on_behalf_of: None,
        permissions: key.permissions,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_its_key_id_and_its_secret() {
        let (id, secret) = (KeyId::mint(), random_secret().unwrap());
        assert_eq!(secret.len(), 64);
        let token = format!("ostler_{id}_{secret}");
        assert_eq!(split(&token), Some((id, secret.as_str())));
        for wrong in ["", "ostler_", "ostler_key_1_x", "key_1_x", "Bearer", "ostler__"] {
            assert_eq!(split(wrong), None, "{wrong}");
        }
    }
}
