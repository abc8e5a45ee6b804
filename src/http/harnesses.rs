//! The harnesses that this service has.

use std::sync::Arc;

use axum::extract::State;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Http;
use super::auth::Reads;
use super::error::{ApiError, ApiResult};
use super::extract::NamePath;
use super::views::View;
use crate::service::{Availability, Service};

/// The routes.
pub fn routes() -> OpenApiRouter<Http> {
    OpenApiRouter::default().routes(routes!(list)).routes(routes!(lookup))
}

/// What a harness can do.
#[derive(ToSchema)]
#[schema(as = Capabilities)]
#[expect(
    dead_code,
    reason = "the schema of the harness interface's Capabilities: a test holds the two together"
)]
pub struct CapabilitiesSchema {
    /// Runs its tools in a sandbox of its own.
    sandbox: bool,
    /// A conversation can go on in a new process.
    resumable: bool,
    /// Asks before it acts.
    approvals: bool,
    /// Takes tools of the host.
    host_tools: bool,
    /// Reports the files it changes.
    file_events: bool,
    /// A decision may change the tool's input.
    edited_input: bool,
    /// Takes system instructions.
    instructions: bool,
    /// What becomes of an approval whose process has died: exact, reask or none.
    approval_recovery: String,
}

/// An agent runtime.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Harness)]
pub struct HarnessView {
    name: String,
    label: String,
    description: String,
    #[schema(value_type = CapabilitiesSchema)]
    capabilities: Value,
    /// Whether it can be started here.
    available: bool,
    /// Why it cannot.
    unavailable_reason: Option<String>,
    /// How to install it.
    install: Option<String>,
}

/// All harnesses.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = HarnessList)]
pub struct HarnessesView {
    data: Vec<HarnessView>,
    /// Always null: there is one page.
    next_cursor: Option<String>,
}

fn views(service: &Service) -> ApiResult<Vec<HarnessView>> {
    let view = |harness: &Arc<dyn crate::service::Harness>| {
        let (unavailable_reason, install) = match harness.availability() {
            Availability::Available => (None, None),
            Availability::Missing { why, install } => (Some(why), install),
        };
        let capabilities = serde_json::to_value(harness.capabilities());
        Ok(HarnessView {
            name: harness.name().to_owned(),
            label: harness.label().to_owned(),
            description: harness.description().to_owned(),
            capabilities: capabilities.map_err(|error| ApiError::internal(error.to_string()))?,
            available: unavailable_reason.is_none(),
            unavailable_reason,
            install,
        })
    };
    service.harnesses().iter().map(view).collect()
}

/// List the harnesses.
#[utoipa::path(
    get, path = "/v1/harnesses", tag = "harnesses", operation_id = "list_harnesses",
    responses((status = 200, description = "All of them, by name", body = HarnessesView)),
)]
async fn list(State(service): State<Arc<Service>>, _reader: Reads) -> ApiResult<View<HarnessesView>> {
    Ok(View(HarnessesView { data: views(&service)?, next_cursor: None }))
}

/// Look a harness up.
#[utoipa::path(
    get, path = "/v1/harnesses/{name}", tag = "harnesses", operation_id = "get_harness",
    params(("name" = String, Path, description = "Its name")),
    responses((status = 200, description = "The harness", body = HarnessView)),
)]
async fn lookup(
    State(service): State<Arc<Service>>,
    _reader: Reads,
    NamePath(name): NamePath,
) -> ApiResult<View<HarnessView>> {
    let found = views(&service)?.into_iter().find(|harness| harness.name == name);
    found.map(View).ok_or_else(ApiError::not_found)
}
