//! Who the caller is.

use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Http;
use super::auth::Anyone;
use super::views::View;

/// The routes.
pub fn routes() -> OpenApiRouter<Http> {
    OpenApiRouter::default().routes(routes!(me))
}

/// The principal of a request.
#[derive(Serialize, ToSchema)]
#[schema(as = Principal)]
pub struct PrincipalView {
    key_id: String,
    org_id: String,
    /// owner, service or admin.
    role: &'static str,
    /// The owner whose sessions the request sees; null for all of the org.
    owner_id: Option<String>,
    scopes: Vec<&'static str>,
}

/// Who the caller is, and whose sessions it sees.
#[utoipa::path(
    get, path = "/v1/me", tag = "keys", operation_id = "get_me",
    responses((status = 200, description = "The principal", body = PrincipalView)),
)]
async fn me(Anyone(principal): Anyone) -> View<PrincipalView> {
    View(PrincipalView {
        key_id: principal.key.to_string(),
        org_id: principal.org.clone(),
        role: principal.role.as_str(),
        owner_id: principal.scope().owner().map(str::to_owned),
        scopes: principal.permissions.iter().map(|permission| permission.as_str()).collect(),
    })
}
