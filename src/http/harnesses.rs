//! The harnesses that this service has.

use std::sync::Arc;

use axum::extract::State;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Http;
use super::auth::{Administers, Reads};
use super::error::{ApiError, ApiResult};
use super::extract::NamePath;
use super::idempotency::Repeatable;
use super::views::View;
use crate::domain::turn::Failure;
use crate::service::{Availability, Introduction, Mode, Restore, Service};

/// The routes.
pub fn routes() -> OpenApiRouter<Http> {
    OpenApiRouter::default().routes(routes!(list)).routes(routes!(lookup)).routes(routes!(check))
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
    /// What becomes of a turn whose process has died while nobody was waited for: resume or interrupt.
    recovery: String,
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
    /// The version of what is installed, where it is known.
    version: Option<String>,
    /// Why it cannot be started.
    unavailable_reason: Option<String>,
    /// How to install what it needs.
    install: Option<String>,
    /// What to add to the service's configuration file.
    configure: Option<String>,
}

/// All harnesses.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = HarnessList)]
pub struct HarnessesView {
    data: Vec<HarnessView>,
    /// Always null: there is one page.
    next_cursor: Option<String>,
}

/// A way of working that an agent offers.
#[derive(ToSchema)]
#[schema(as = HarnessMode)]
#[expect(dead_code, reason = "the schema of the harness interface's Mode, which writes itself")]
pub struct ModeSchema {
    /// The agent's id of it.
    id: String,
    /// For people.
    name: Option<String>,
}

/// What came of a check.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = HarnessCheck)]
pub struct CheckView {
    harness: String,
    /// Whether it started, took a conversation, and was set up as it is configured.
    ok: bool,
    /// Why not.
    error: Option<CheckFailure>,
    /// Its own name.
    agent_name: Option<String>,
    /// Its own version.
    agent_version: Option<String>,
    /// The version of the Agent Client Protocol that it speaks.
    protocol_version: Option<u64>,
    /// How it takes a conversation up in a new process: resume, load (it tells the history again) or none.
    #[schema(value_type = Option<String>)]
    restore: Option<Restore>,
    /// The modes that it offers.
    #[schema(value_type = Vec<ModeSchema>)]
    modes: Vec<Mode>,
    /// The mode that it is in, set up as it is configured.
    mode: Option<String>,
    /// From its start to its end, in milliseconds.
    took_ms: u64,
}

/// Why a harness did not start.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = HarnessCheckFailure)]
pub struct CheckFailure {
    /// As in the error of a turn: harness_unavailable, agent_start_timeout, agent_start_failed, agent_protocol_error.
    code: String,
    message: String,
}

fn views(service: &Service) -> ApiResult<Vec<HarnessView>> {
    let view = |harness: &Arc<dyn crate::service::Harness>| {
        let (unavailable_reason, install, configure) = match harness.availability() {
            Availability::Available => (None, None, None),
            Availability::Missing { why, install, configure } => (Some(why), install, configure),
        };
        let capabilities = serde_json::to_value(harness.capabilities());
        Ok(HarnessView {
            name: harness.name().to_owned(),
            label: harness.label().to_owned(),
            description: harness.description().to_owned(),
            capabilities: capabilities.map_err(|error| ApiError::internal(error.to_string()))?,
            available: unavailable_reason.is_none(),
            version: harness.version(),
            unavailable_reason,
            install,
            configure,
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

/// Check a harness: start it in directories of its own, open a conversation, and end it. It has as long for it as for a session's
/// start; one check of a harness is at work at a time. An Idempotency-Key changes nothing: whoever asks again wants to know anew.
#[utoipa::path(
    post, path = "/v1/harnesses/{name}/check", tag = "harnesses", operation_id = "check_harness",
    params(("name" = String, Path, description = "Its name")),
    responses((status = 200, description = "What came of it, also where it did not start", body = CheckView)),
)]
async fn check(
    State(service): State<Arc<Service>>,
    _admin: Administers,
    _once: Repeatable,
    NamePath(name): NamePath,
) -> ApiResult<View<CheckView>> {
    let checked = service.check_harness(&name).await?;
    let (introduction, error) = match checked.outcome {
        Ok(introduction) => (introduction, None),
        Err(Failure { code, message }) => (Introduction::default(), Some(CheckFailure { code, message })),
    };
    Ok(View(CheckView {
        harness: name,
        ok: error.is_none(),
        error,
        restore: introduction.restore,
        modes: introduction.modes,
        agent_name: introduction.agent_name,
        agent_version: introduction.agent_version,
        protocol_version: introduction.protocol_version,
        mode: introduction.mode,
        took_ms: u64::try_from(checked.took.as_millis()).unwrap_or(u64::MAX),
    }))
}
