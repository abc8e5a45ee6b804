//! API keys of the org.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Http;
use super::auth::Administers;
use super::error::ApiResult;
use super::extract::{Json, KeyPath, Params, page};
use super::idempotency::Repeatable;
use super::turns::PageQuery;
use super::views::{List, View};
use crate::clock::Timestamp;
use crate::domain::scope::{Permission, Role};
use crate::service::{ApiKey, KeySpec, Service, ServiceError};

/// The routes.
pub fn routes() -> OpenApiRouter<Http> {
    OpenApiRouter::default().routes(routes!(create, list)).routes(routes!(revoke))
}

/// A new key.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateKeyBody {
    /// owner, service or admin.
    #[schema(value_type = String)]
    role: Role,
    /// The owner that the key names: always for `owner`, maybe for `admin`, never for `service`.
    owner: Option<String>,
    /// sessions:read, sessions:write, approvals:decide, admin; all that the role can have when there are none.
    #[serde(default)]
    #[schema(value_type = Vec<String>, required = false)]
    scopes: Vec<Permission>,
    /// An RFC 3339 time; never when absent.
    expires_at: Option<String>,
}

/// A key, without its secret.
#[derive(Serialize, ToSchema)]
#[schema(as = Key)]
pub struct KeyView {
    id: String,
    org_id: String,
    owner_id: Option<String>,
    /// owner, service or admin.
    role: &'static str,
    scopes: Vec<&'static str>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime)]
    revoked_at: Option<Timestamp>,
    /// To the minute.
    #[schema(value_type = Option<String>, format = DateTime)]
    last_used_at: Option<Timestamp>,
}

impl From<&ApiKey> for KeyView {
    fn from(key: &ApiKey) -> Self {
        Self {
            id: key.id.to_string(),
            org_id: key.org.clone(),
            owner_id: key.owner.clone(),
            role: key.role.as_str(),
            scopes: key.permissions.iter().map(|permission| permission.as_str()).collect(),
            created_at: key.created_at,
            expires_at: key.expires_at,
            revoked_at: key.revoked_at,
            last_used_at: key.last_used_at,
        }
    }
}

/// A new key with its secret.
#[derive(Serialize, ToSchema)]
#[schema(as = NewKey)]
pub struct NewKeyView {
    #[serde(flatten)]
    key: KeyView,
    /// What goes behind `Authorization: Bearer`. It is shown here and never again.
    token: String,
}

/// Make a key in the caller's org. An Idempotency-Key changes nothing here: the secret is not kept in a form that could be given again.
#[utoipa::path(
    post, path = "/v1/keys", tag = "keys", operation_id = "create_key", request_body = CreateKeyBody,
    responses((status = 201, description = "The key and, this once, its secret", body = NewKeyView)),
)]
async fn create(
    State(service): State<Arc<Service>>,
    Administers(principal): Administers,
    _once: Repeatable,
    Json { value, .. }: Json<CreateKeyBody>,
) -> ApiResult<(StatusCode, View<NewKeyView>)> {
    let time = |text: &str| {
        Timestamp::parse(text).ok_or_else(|| ServiceError::invalid("expires_at: must be an RFC 3339 time"))
    };
    let expires_at = value.expires_at.as_deref().map(time).transpose()?;
    let spec = KeySpec {
        org: principal.org.clone(),
        owner: value.owner,
        role: value.role,
        permissions: value.scopes,
        expires_at,
    };
    let made = service.create_key(&principal, spec).await?;
    let token = made.token.expose_secret().to_owned();
    Ok((StatusCode::CREATED, View(NewKeyView { key: KeyView::from(&made.key), token })))
}

/// List the org's keys, newest first.
#[utoipa::path(
    get, path = "/v1/keys", tag = "keys", operation_id = "list_keys", params(PageQuery),
    responses((status = 200, description = "A page", body = List<KeyView>)),
)]
async fn list(
    State(service): State<Arc<Service>>,
    Administers(principal): Administers,
    Params(query): Params<PageQuery>,
) -> ApiResult<View<List<KeyView>>> {
    let request = page(query.limit.as_deref(), query.cursor.as_deref())?;
    let found = service.list_keys(&principal, request).await?;
    Ok(View(List::of(&found, |key| key.id.clone(), |key| KeyView::from(key))))
}

/// Revoke a key: within seconds no replica takes it any more, and its streams end. A repeat: 204.
#[utoipa::path(
    delete, path = "/v1/keys/{key_id}", tag = "keys", operation_id = "revoke_key",
    params(("key_id" = String, Path, description = "The key")),
    responses((status = 204, description = "Revoked, now or before")),
)]
async fn revoke(
    State(service): State<Arc<Service>>,
    Administers(principal): Administers,
    KeyPath(id): KeyPath,
) -> ApiResult<StatusCode> {
    service.revoke_key(&principal, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
