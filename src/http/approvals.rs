//! Approvals: the inbox, and decisions.

use std::sync::Arc;

use async_trait::async_trait;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Http;
use super::auth::{Decides, Reads};
use super::error::{ApiError, ApiResult};
use super::extract::{ApprovalPath, Json, Params, SessionPath, one_of, page};
use super::idempotency::{Answer, Outcome, Repeatable, Verb};
use super::views::{ApprovalSchema, List, View, json_text};
use crate::domain::approval::{Approval, ApprovalStatus, Decision, DecisionRequest};
use crate::domain::scope::Scope;
use crate::ids::{ApprovalId, SessionId};
use crate::service::{
    ApprovalFilter, Decided, OnceAnswer, OnceRequest, RenderAnswer, Seen, Service, ServiceError,
};

/// The routes over all sessions.
pub fn routes() -> OpenApiRouter<Http> {
    OpenApiRouter::default().routes(routes!(list)).routes(routes!(lookup)).routes(routes!(decide))
}

/// The routes below a session.
pub fn item_routes() -> OpenApiRouter<Http> {
    OpenApiRouter::default().routes(routes!(list_of_session))
}

/// Which approvals.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    /// pending, approved, denied, expired, cancelled or orphaned.
    status: Option<String>,
    /// Of this session.
    session_id: Option<String>,
    /// Of this owner, within the scope.
    owner: Option<String>,
    /// 1 to 200, 50 where nothing is said.
    limit: Option<String>,
    /// From the page before.
    cursor: Option<String>,
}

/// List approvals over all sessions in scope, newest first: the inbox.
#[utoipa::path(
    get, path = "/v1/approvals", tag = "approvals", operation_id = "list_approvals", params(ListQuery),
    responses((status = 200, description = "A page", body = List<ApprovalSchema>)),
)]
async fn list(
    State(service): State<Arc<Service>>,
    Reads(principal): Reads,
    Params(query): Params<ListQuery>,
) -> ApiResult<View<List<Approval>>> {
    let request = page(query.limit.as_deref(), query.cursor.as_deref())?;
    let status = one_of("status", query.status.as_deref(), ApprovalStatus::parse)?;
    let session_id = match query.session_id.as_deref().map(SessionId::parse) {
        // An id of the wrong form is the id of no session.
        Some(None) => return Ok(View(List::empty())),
        found => found.flatten(),
    };
    let filter = ApprovalFilter { status, session_id, owner: query.owner };
    let found = service.list_approvals(&principal.scope(), &filter, request).await?;
    Ok(View(List::of(&found, |approval| approval.id.clone(), Approval::clone)))
}

/// Which approvals of a session.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct OfSessionQuery {
    /// pending, approved, denied, expired, cancelled or orphaned.
    status: Option<String>,
    /// 1 to 200, 50 where nothing is said.
    limit: Option<String>,
    /// From the page before.
    cursor: Option<String>,
}

/// List a session's approvals, newest first.
#[utoipa::path(
    get, path = "/approvals", tag = "approvals", operation_id = "list_session_approvals", params(OfSessionQuery),
    responses((status = 200, description = "A page", body = List<ApprovalSchema>)),
)]
async fn list_of_session(
    State(service): State<Arc<Service>>,
    Reads(principal): Reads,
    SessionPath(session): SessionPath,
    Params(query): Params<OfSessionQuery>,
) -> ApiResult<View<List<Approval>>> {
    let request = page(query.limit.as_deref(), query.cursor.as_deref())?;
    let status = one_of("status", query.status.as_deref(), ApprovalStatus::parse)?;
    let scope = principal.scope();
    let session = service.lookup(&scope, &session).await?.session;
    let filter = ApprovalFilter { status, session_id: Some(session.id), owner: None };
    let found = service.list_approvals(&scope, &filter, request).await?;
    Ok(View(List::of(&found, |approval| approval.id.clone(), Approval::clone)))
}

/// Look an approval up.
#[utoipa::path(
    get, path = "/v1/approvals/{approval_id}", tag = "approvals", operation_id = "get_approval",
    params(("approval_id" = String, Path, description = "The approval")),
    responses((status = 200, description = "The approval", body = ApprovalSchema)),
)]
async fn lookup(
    State(service): State<Arc<Service>>,
    Reads(principal): Reads,
    ApprovalPath(id): ApprovalPath,
) -> ApiResult<View<Approval>> {
    Ok(View(service.lookup_approval(&principal.scope(), &id).await?))
}

/// A decision.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DecisionBody {
    /// `approve` or `deny`.
    #[schema(value_type = String)]
    decision: Value,
    /// A particular option; else the first that fits.
    option_id: Option<String>,
    /// Words for the harness and the record.
    reason: Option<String>,
    /// Another input for the tool, where the harness can take it.
    edited_input: Option<Value>,
    /// The digest of what the decider saw.
    input_digest: Option<String>,
}

impl DecisionBody {
    fn request(self, decided_by: String) -> ApiResult<DecisionRequest> {
        // A yes that was meant as anything else is never taken for one: only the two words count.
        let decision = self.decision.as_str().and_then(Decision::parse);
        let decision = decision.ok_or_else(|| ServiceError::invalid("decision: must be approve or deny"))?;
        Ok(DecisionRequest {
            decision,
            option_id: self.option_id,
            reason: self.reason,
            edited_input: self.edited_input,
            input_digest: self.input_digest,
            decided_by,
        })
    }
}

/// A decision as it stands.
#[derive(Serialize, ToSchema)]
#[schema(as = Decided)]
pub struct DecidedView {
    /// The approval.
    #[schema(value_type = ApprovalSchema)]
    approval: Approval,
    /// Whether it stood before.
    idempotent: bool,
}

fn decided(approval: &Approval, idempotent: bool) -> String {
    json_text(&DecidedView { approval: approval.clone(), idempotent })
}

/// Decide an approval. The same decision again changes nothing; the opposite one is refused.
#[utoipa::path(
    post, path = "/v1/approvals/{approval_id}/decision", tag = "approvals", operation_id = "decide_approval",
    params(("approval_id" = String, Path, description = "The approval")), request_body = DecisionBody,
    responses((status = 200, description = "The approval as it stands", body = DecidedView)),
)]
async fn decide(
    State(service): State<Arc<Service>>,
    Decides(principal): Decides,
    ApprovalPath(id): ApprovalPath,
    once: Repeatable,
    Json { value, raw }: Json<DecisionBody>,
) -> ApiResult<Response> {
    let scope = principal.scope();
    // What does not exist is said before what is wrong with the decision.
    service.lookup_approval(&scope, &id).await?;
    let request = value.request(principal.actor())?;
    let verb = Decide { service: Arc::clone(&service), scope, id, request };
    once.run(&service, &principal, &raw, verb).await
}

struct Decide {
    service: Arc<Service>,
    scope: Scope,
    id: ApprovalId,
    request: DecisionRequest,
}

#[async_trait]
impl Verb for Decide {
    type Done = Decided;

    fn render(&self) -> Option<RenderAnswer> {
        Some(|effect| {
            let body = decided(effect.approval?, false);
            Some(OnceAnswer { status: StatusCode::OK.as_u16(), body })
        })
    }

    async fn effect(&mut self, once: Option<OnceRequest>) -> ApiResult<Decided> {
        Ok(self.service.decide(&self.scope, &self.id, self.request.clone(), once).await?)
    }

    async fn rebuild(&self, seen: &Seen) -> ApiResult<Decided> {
        let id = seen
            .approval
            .as_ref()
            .ok_or_else(|| ApiError::internal("a decision was kept without its approval"))?;
        Ok(Decided { approval: self.service.lookup_approval(&self.scope, id).await?, idempotent: false })
    }

    async fn finish(&self, done: Decided) -> ApiResult<(String, Outcome)> {
        let answer = Answer::new(StatusCode::OK, decided(&done.approval, done.idempotent));
        Ok((done.approval.session_id.to_string(), Outcome::Answer(answer)))
    }
}
