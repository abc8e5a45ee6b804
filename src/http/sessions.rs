//! Sessions: create, list, look up, change, destroy, cancel, stop.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Http;
use super::auth::{Reads, Writes};
use super::effects::{awaited, seen_session};
use super::error::{ApiError, ApiResult, ErrorCode};
use super::extract::{
    Json, NamePath, NoBody, Params, PromptJson, SessionPath, TraceParent, moment, one_of, page, yes_or_no,
};
use super::idempotency::{Answer, Outcome, Repeatable, Verb};
use super::prefer::{Format, Wait};
use super::sse::Feed;
use super::views::{List, PromptSchema, SessionJson, View, json_text};
use crate::domain::approval::PermissionMode;
use crate::domain::limits::Limits;
use crate::domain::scope::{Principal, Scope};
use crate::domain::session::{OnContextLoss, SessionStatus};
use crate::domain::turn::{Prompt, Turn};
use crate::service::{
    CreateSession, Effect, OnceAnswer, OnceRequest, RenderAnswer, Seen, Service, SessionFilter, SessionPatch,
    SessionRef, SessionView, Wished,
};

/// The routes of the collection.
pub fn routes() -> OpenApiRouter<Http> {
    OpenApiRouter::default().routes(routes!(create, list)).routes(routes!(latest_of_thread))
}

/// The routes of one session.
pub fn item_routes() -> OpenApiRouter<Http> {
    OpenApiRouter::default()
        .routes(routes!(lookup, patch, destroy))
        .routes(routes!(cancel))
        .routes(routes!(stop))
}

/// A new session.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateBody {
    /// A name from `GET /v1/harnesses`.
    harness: String,
    /// Text, or content blocks.
    #[schema(value_type = Option<PromptSchema>)]
    prompt: Option<Prompt>,
    /// 1 to 200 characters, unique in the org; minted when absent.
    run_id: Option<String>,
    /// 1 to 200 characters; groups sessions.
    thread_id: Option<String>,
    /// 1 to 200 characters; else the prompt's first 80.
    title: Option<String>,
    /// At most 16 pairs; keys up to 64, values up to 512 characters.
    metadata: Option<BTreeMap<String, String>>,
    /// System instructions, where the harness takes them.
    instructions: Option<String>,
    /// ask, allow_reads, allow_edits or allow_all.
    #[schema(value_type = Option<String>)]
    permission_mode: Option<PermissionMode>,
    /// What becomes of the session when a new process cannot take its conversation up: fresh (the default) to go on without it and say
    /// so in the log, or fail.
    #[schema(value_type = Option<String>)]
    on_context_loss: Option<OnContextLoss>,
    /// A path inside a root that the operator allows; else a fresh directory.
    workspace: Option<String>,
    /// Time limits.
    #[schema(value_type = Option<LimitsSchema>)]
    limits: Option<Limits>,
    /// The harness's own settings.
    #[schema(value_type = Option<Object>)]
    settings: Option<Value>,
}

/// Time limits.
#[derive(ToSchema)]
#[schema(as = Limits)]
#[expect(dead_code, reason = "the schema of domain::limits::Limits")]
pub struct LimitsSchema {
    /// A turn's time at work, 900 where nothing is said.
    turn_seconds: Option<u64>,
    /// How long an approval waits, 86,400 where nothing is said; 0 for ever.
    approval_seconds: Option<u64>,
}

impl CreateBody {
    fn input(self, traceparent: Option<String>) -> CreateSession {
        CreateSession {
            harness: self.harness,
            prompt: self.prompt,
            run_id: self.run_id,
            thread_id: self.thread_id,
            title: self.title,
            metadata: self.metadata.unwrap_or_default(),
            instructions: self.instructions,
            permission_mode: self.permission_mode.unwrap_or_default(),
            on_context_loss: self.on_context_loss.unwrap_or_default(),
            workspace: self.workspace,
            limits: self.limits.unwrap_or_default(),
            settings: self.settings.unwrap_or(Value::Null),
            traceparent,
        }
    }
}

/// Create a session.
///
/// Answers at once; with `Prefer: wait=N` when the first turn has ended (201), waits for a person or time is over (202); with
/// `Accept: text/event-stream` with the events of the first turn.
#[utoipa::path(
    post, path = "/v1/sessions", tag = "sessions", operation_id = "create_session",
    request_body = CreateBody,
    responses(
        (status = 201, description = "The session", body = SessionJson,
         headers(("Location" = String, description = "Its path")),
         content((SessionJson = "application/json"), (String = "text/event-stream"))),
        (status = 202, description = "The session; its turn has not ended", body = SessionJson),
    ),
)]
#[expect(clippy::too_many_arguments, reason = "each is an extractor: what the request says, part by part")]
async fn create(
    State(service): State<Arc<Service>>,
    Writes(principal): Writes,
    once: Repeatable,
    format: Format,
    wait: Wait,
    TraceParent(traceparent): TraceParent,
    Json { value, raw }: PromptJson<CreateBody>,
) -> ApiResult<Response> {
    if format == Format::EventStream && value.prompt.is_none() {
        return Err(ApiError::new(
            ErrorCode::InvalidInput,
            "prompt: an event stream is a turn's, and a turn has a prompt",
        ));
    }
    let wait = if value.prompt.is_some() { wait } else { Wait(None) };
    let input = Some(value.input(traceparent));
    let verb = Create { service: Arc::clone(&service), principal: principal.clone(), input, format, wait };
    once.run(&service, &principal, &raw, verb).await
}

struct Create {
    service: Arc<Service>,
    principal: Principal,
    input: Option<CreateSession>,
    format: Format,
    wait: Wait,
}

fn created(view: &SessionView) -> String {
    json_text(&SessionJson::from(view))
}

#[async_trait]
impl Verb for Create {
    type Done = (SessionView, Option<Turn>);

    fn render(&self) -> Option<RenderAnswer> {
        let at_once = self.format == Format::Json && self.wait.0.is_none();
        at_once.then_some(|effect: &Effect<'_>| {
            Some(OnceAnswer { status: StatusCode::CREATED.as_u16(), body: created(effect.session) })
        })
    }

    fn location(&self, session: &str) -> Option<String> {
        Some(format!("/v1/sessions/{session}"))
    }

    fn format(&self) -> Format {
        self.format
    }

    async fn effect(&mut self, once: Option<OnceRequest>) -> ApiResult<Self::Done> {
        let input = self.input.take().ok_or_else(|| ApiError::internal("a session is created once"))?;
        let view = self.service.create(&self.principal, input, once).await?;
        let turn = view.session.turn.clone();
        Ok((view, turn))
    }

    async fn rebuild(&self, seen: &Seen) -> ApiResult<Self::Done> {
        let scope = self.principal.scope();
        let view = seen_session(&self.service, &scope, seen).await?;
        let turn = match &seen.turn {
            Some(turn) => {
                let session = SessionRef::Id(view.session.id.clone());
                Some(self.service.lookup_turn(&scope, &session, turn).await?.1)
            }
            None => None,
        };
        Ok((view, turn))
    }

    async fn finish(&self, (view, turn): Self::Done) -> ApiResult<(String, Outcome)> {
        let id = view.session.id.to_string();
        let Some(turn) = turn else {
            return Ok((id, Outcome::Answer(Answer::new(StatusCode::CREATED, created(&view)))));
        };
        if self.format == Format::EventStream {
            let tail = self.service.follow_turn(view.session, &turn).await?;
            return Ok((id, Outcome::Stream(Box::new(Feed::events(tail)))));
        }
        if self.wait.0.is_none() {
            return Ok((id, Outcome::Answer(Answer::new(StatusCode::CREATED, created(&view)))));
        }
        let turn = match awaited(&self.service, &view.session, &turn, self.wait).await? {
            Ok(turn) => turn,
            Err(refusal) => return Ok((id, Outcome::Refusal(refusal))),
        };
        let session = SessionRef::Id(view.session.id);
        let view = self.service.lookup(&self.principal.scope(), &session).await?;
        let status = if turn.status.is_terminal() { StatusCode::CREATED } else { StatusCode::ACCEPTED };
        let answer = Answer { applied: self.wait.applied(), ..Answer::new(status, created(&view)) };
        Ok((id, Outcome::Answer(answer)))
    }
}

/// Which sessions.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    /// idle, running, awaiting_approval, stopped, errored or destroyed.
    status: Option<String>,
    /// Of this harness.
    harness: Option<String>,
    /// Of this thread.
    thread_id: Option<String>,
    /// Of this run id.
    run_id: Option<String>,
    /// Of this owner, within the scope.
    owner: Option<String>,
    /// true or false.
    needs_approval: Option<String>,
    /// An RFC 3339 time.
    created_after: Option<String>,
    /// 1 to 200, 50 where nothing is said.
    limit: Option<String>,
    /// From the page before.
    cursor: Option<String>,
}

impl ListQuery {
    fn filter(&self) -> ApiResult<SessionFilter> {
        Ok(SessionFilter {
            status: one_of("status", self.status.as_deref(), SessionStatus::parse)?,
            harness: self.harness.clone(),
            thread_id: self.thread_id.clone(),
            run_id: self.run_id.clone(),
            owner: self.owner.clone(),
            needs_approval: yes_or_no("needs_approval", self.needs_approval.as_deref())?,
            created_after: moment("created_after", self.created_after.as_deref())?,
            alive: false,
        })
    }
}

/// List sessions, newest first.
#[utoipa::path(
    get, path = "/v1/sessions", tag = "sessions", operation_id = "list_sessions", params(ListQuery),
    responses((status = 200, description = "A page", body = List<SessionJson>)),
)]
async fn list(
    State(service): State<Arc<Service>>,
    Reads(principal): Reads,
    Params(query): Params<ListQuery>,
) -> ApiResult<View<List<SessionJson>>> {
    let request = page(query.limit.as_deref(), query.cursor.as_deref())?;
    let found = service.list(&principal.scope(), &query.filter()?, request).await?;
    Ok(View(List::of(&found, |view| view.session.id.clone(), |view| SessionJson::from(view))))
}

/// Of which harness.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LatestQuery {
    /// Of this harness.
    harness: Option<String>,
}

/// The newest session of a thread that is not destroyed.
#[utoipa::path(
    get, path = "/v1/threads/{thread_id}/sessions/latest", tag = "sessions", operation_id = "latest_session",
    params(("thread_id" = String, Path, description = "The thread"), LatestQuery),
    responses((status = 200, description = "The session", body = SessionJson)),
)]
async fn latest_of_thread(
    State(service): State<Arc<Service>>,
    Reads(principal): Reads,
    NamePath(thread): NamePath,
    Params(query): Params<LatestQuery>,
) -> ApiResult<View<SessionJson>> {
    let view = service.latest_of_thread(&principal.scope(), &thread, query.harness).await?;
    Ok(View(SessionJson::from(&view)))
}

/// Look a session up.
#[utoipa::path(
    get, path = "", tag = "sessions", operation_id = "get_session",
    responses((status = 200, description = "The session", body = SessionJson)),
)]
async fn lookup(
    State(service): State<Arc<Service>>,
    Reads(principal): Reads,
    SessionPath(session): SessionPath,
) -> ApiResult<View<SessionJson>> {
    let view = service.lookup(&principal.scope(), &session).await?;
    Ok(View(SessionJson::from(&view)))
}

/// What changes; what is absent stays.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchBody {
    /// 1 to 200 characters.
    title: Option<String>,
    /// All the pairs, in place of those there were.
    metadata: Option<BTreeMap<String, String>>,
}

/// Change a session's title and metadata.
#[utoipa::path(
    patch, path = "", tag = "sessions", operation_id = "update_session", request_body = PatchBody,
    responses((status = 200, description = "The session", body = SessionJson)),
)]
async fn patch(
    State(service): State<Arc<Service>>,
    Writes(principal): Writes,
    SessionPath(session): SessionPath,
    Json { value, .. }: Json<PatchBody>,
) -> ApiResult<View<SessionJson>> {
    let patch = SessionPatch { title: value.title, metadata: value.metadata };
    let view = service.patch(&principal.scope(), &session, patch).await?;
    Ok(View(SessionJson::from(&view)))
}

/// How much goes.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DestroyQuery {
    /// true: everything is erased, the transcript too.
    purge: Option<String>,
}

/// Destroy a session: its harness ends, its resume state is erased, its transcript stays readable.
#[utoipa::path(
    delete, path = "", tag = "sessions", operation_id = "destroy_session", params(DestroyQuery),
    responses(
        (status = 204, description = "Done, now or before"),
        (status = 202, description = "Recorded; the replica that holds the session has yet to act"),
    ),
)]
async fn destroy(
    State(service): State<Arc<Service>>,
    Writes(principal): Writes,
    SessionPath(session): SessionPath,
    Params(query): Params<DestroyQuery>,
) -> ApiResult<StatusCode> {
    let purge = yes_or_no("purge", query.purge.as_deref())?.unwrap_or(false);
    let done = service.destroy(&principal.scope(), &session, purge).await?;
    Ok(if done { StatusCode::NO_CONTENT } else { StatusCode::ACCEPTED })
}

/// Cancel the current turn; the session stays usable. With nothing to cancel: 200.
#[utoipa::path(
    post, path = "/cancel", tag = "sessions", operation_id = "cancel_turn",
    responses(
        (status = 200, description = "The session; it is done", body = SessionJson),
        (status = 202, description = "The session; the replica that holds it has yet to act", body = SessionJson),
    ),
)]
async fn cancel(
    State(service): State<Arc<Service>>,
    Writes(principal): Writes,
    SessionPath(session): SessionPath,
    once: Repeatable,
    NoBody { raw }: NoBody,
) -> ApiResult<Response> {
    let wish = Wish { service: Arc::clone(&service), scope: principal.scope(), session, stops: false };
    once.run(&service, &principal, &raw, wish).await
}

/// Stop a session: turn and harness process end, what it can be resumed from is kept. A repeat: 200.
#[utoipa::path(
    post, path = "/stop", tag = "sessions", operation_id = "stop_session",
    responses(
        (status = 200, description = "The session; it is done", body = SessionJson),
        (status = 202, description = "The session; the replica that holds it has yet to act", body = SessionJson),
    ),
)]
async fn stop(
    State(service): State<Arc<Service>>,
    Writes(principal): Writes,
    SessionPath(session): SessionPath,
    once: Repeatable,
    NoBody { raw }: NoBody,
) -> ApiResult<Response> {
    let wish = Wish { service: Arc::clone(&service), scope: principal.scope(), session, stops: true };
    once.run(&service, &principal, &raw, wish).await
}

/// Cancel or stop: a wish that is recorded, and comes about.
struct Wish {
    service: Arc<Service>,
    scope: Scope,
    session: SessionRef,
    stops: bool,
}

#[async_trait]
impl Verb for Wish {
    type Done = Wished;

    async fn effect(&mut self, once: Option<OnceRequest>) -> ApiResult<Wished> {
        let wished = if self.stops {
            self.service.stop(&self.scope, &self.session, once).await
        } else {
            self.service.cancel(&self.scope, &self.session, once).await
        };
        Ok(wished?)
    }

    /// The wish is not made again: what it would end now may be another turn.
    async fn rebuild(&self, seen: &Seen) -> ApiResult<Wished> {
        let session = seen_session(&self.service, &self.scope, seen).await?;
        let done = session.session.wish.is_none();
        Ok(Wished { session, done })
    }

    async fn finish(&self, wished: Wished) -> ApiResult<(String, Outcome)> {
        let status = if wished.done { StatusCode::OK } else { StatusCode::ACCEPTED };
        let body = json_text(&SessionJson::from(&wished.session));
        Ok((wished.session.session.id.to_string(), Outcome::Answer(Answer::new(status, body))))
    }
}
