//! Turns: prompt, list, look up, take back.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Http;
use super::auth::{Reads, Writes};
use super::effects::{awaited, seen_session};
use super::error::{ApiError, ApiResult};
use super::extract::{Json, Params, PromptJson, SessionPath, TraceParent, TurnPath, page};
use super::idempotency::{Answer, Outcome, Repeatable, Verb};
use super::prefer::{Format, Wait};
use super::sse::Feed;
use super::views::{List, PromptSchema, TurnView, View, json_text};
use crate::domain::scope::Scope;
use crate::domain::session::Session;
use crate::domain::turn::{Prompt, Turn};
use crate::service::{
    Effect, OnceAnswer, OnceRequest, PromptSession, RenderAnswer, Seen, Service, SessionRef, WhenBusy,
};

/// The routes, below a session.
pub fn routes() -> OpenApiRouter<Http> {
    OpenApiRouter::default().routes(routes!(prompt)).routes(routes!(list)).routes(routes!(lookup, remove))
}

/// What becomes of a prompt while a turn is at work.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WhenBusyBody {
    /// It is refused.
    Reject,
    /// It runs after the turns before it.
    Queue,
    /// The turn at work is cancelled, and it runs next.
    Interrupt,
}

impl From<WhenBusyBody> for WhenBusy {
    fn from(body: WhenBusyBody) -> Self {
        match body {
            WhenBusyBody::Reject => Self::Reject,
            WhenBusyBody::Queue => Self::Queue,
            WhenBusyBody::Interrupt => Self::Interrupt,
        }
    }
}

/// A prompt.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PromptBody {
    /// Text, or content blocks.
    #[schema(value_type = PromptSchema)]
    prompt: Prompt,
    /// At most 16 pairs; keys up to 64, values up to 512 characters.
    metadata: Option<BTreeMap<String, String>>,
    /// `reject` where nothing is said.
    when_busy: Option<WhenBusyBody>,
}

/// Prompt a session.
///
/// Answers at once (202); with `Prefer: wait=N` when the turn has ended (200), waits for a person or time is over (202); with
/// `Accept: text/event-stream` with the turn's events.
#[utoipa::path(
    post, path = "/prompts", tag = "turns", operation_id = "prompt_session", request_body = PromptBody,
    responses(
        (status = 200, description = "The turn, which has ended; or its events",
         content((TurnView = "application/json"), (String = "text/event-stream"))),
        (status = 202, description = "The turn", body = TurnView),
    ),
)]
#[expect(clippy::too_many_arguments, reason = "each is an extractor: what the request says, part by part")]
async fn prompt(
    State(service): State<Arc<Service>>,
    Writes(principal): Writes,
    SessionPath(session): SessionPath,
    once: Repeatable,
    format: Format,
    wait: Wait,
    TraceParent(traceparent): TraceParent,
    Json { value, raw }: PromptJson<PromptBody>,
) -> ApiResult<Response> {
    let input = PromptSession {
        prompt: value.prompt,
        metadata: value.metadata.unwrap_or_default(),
        when_busy: value.when_busy.map(WhenBusy::from).unwrap_or_default(),
        traceparent,
    };
    let (scope, input) = (principal.scope(), Some(input));
    let verb = SendPrompt { service: Arc::clone(&service), scope, session, input, format, wait };
    once.run(&service, &principal, &raw, verb).await
}

struct SendPrompt {
    service: Arc<Service>,
    scope: Scope,
    session: SessionRef,
    input: Option<PromptSession>,
    format: Format,
    wait: Wait,
}

#[async_trait]
impl Verb for SendPrompt {
    type Done = (Session, Turn);

    fn render(&self) -> Option<RenderAnswer> {
        let at_once = self.format == Format::Json && self.wait.0.is_none();
        at_once.then_some(|effect: &Effect<'_>| {
            let body = json_text(&TurnView::of(&effect.session.session, effect.turn?));
            Some(OnceAnswer { status: StatusCode::ACCEPTED.as_u16(), body })
        })
    }

    fn format(&self) -> Format {
        self.format
    }

    async fn effect(&mut self, once: Option<OnceRequest>) -> ApiResult<Self::Done> {
        let input = self.input.take().ok_or_else(|| ApiError::internal("a prompt is sent once"))?;
        let (view, turn) = self.service.prompt(&self.scope, &self.session, input, once).await?;
        Ok((view.session, turn))
    }

    async fn rebuild(&self, seen: &Seen) -> ApiResult<Self::Done> {
        let view = seen_session(&self.service, &self.scope, seen).await?;
        let turn =
            seen.turn.as_ref().ok_or_else(|| ApiError::internal("a prompt was kept without its turn"))?;
        let session = SessionRef::Id(view.session.id);
        Ok(self.service.lookup_turn(&self.scope, &session, turn).await?)
    }

    async fn finish(&self, (session, turn): Self::Done) -> ApiResult<(String, Outcome)> {
        let id = session.id.to_string();
        if self.format == Format::EventStream {
            let tail = self.service.follow_turn(session, &turn).await?;
            return Ok((id, Outcome::Stream(Box::new(Feed::events(tail)))));
        }
        let body = |turn: &Turn| json_text(&TurnView::of(&session, turn));
        if self.wait.0.is_none() {
            return Ok((id, Outcome::Answer(Answer::new(StatusCode::ACCEPTED, body(&turn)))));
        }
        let turn = match awaited(&self.service, &session, &turn, self.wait).await? {
            Ok(turn) => turn,
            Err(refusal) => return Ok((id, Outcome::Refusal(refusal))),
        };
        let status = if turn.status.is_terminal() { StatusCode::OK } else { StatusCode::ACCEPTED };
        let answer = Answer { applied: self.wait.applied(), ..Answer::new(status, body(&turn)) };
        Ok((id, Outcome::Answer(answer)))
    }
}

/// Which page.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PageQuery {
    /// 1 to 200, 50 where nothing is said.
    pub limit: Option<String>,
    /// From the page before.
    pub cursor: Option<String>,
}

/// List a session's turns, newest first.
#[utoipa::path(
    get, path = "/turns", tag = "turns", operation_id = "list_turns", params(PageQuery),
    responses((status = 200, description = "A page", body = List<TurnView>)),
)]
async fn list(
    State(service): State<Arc<Service>>,
    Reads(principal): Reads,
    SessionPath(session): SessionPath,
    Params(query): Params<PageQuery>,
) -> ApiResult<View<List<TurnView>>> {
    let request = page(query.limit.as_deref(), query.cursor.as_deref())?;
    let (session, found) = service.list_turns(&principal.scope(), &session, request).await?;
    Ok(View(List::of(&found, |turn| turn.ordinal, |turn| TurnView::of(&session, turn))))
}

/// Look a turn up.
#[utoipa::path(
    get, path = "/turns/{turn_id}", tag = "turns", operation_id = "get_turn",
    params(("turn_id" = String, Path, description = "The turn")),
    responses((status = 200, description = "The turn", body = TurnView)),
)]
async fn lookup(
    State(service): State<Arc<Service>>,
    Reads(principal): Reads,
    SessionPath(session): SessionPath,
    TurnPath(turn): TurnPath,
) -> ApiResult<View<TurnView>> {
    let (session, turn) = service.lookup_turn(&principal.scope(), &session, &turn).await?;
    Ok(View(TurnView::of(&session, &turn)))
}

/// Take back a turn that is still queued.
#[utoipa::path(
    delete, path = "/turns/{turn_id}", tag = "turns", operation_id = "remove_turn",
    params(("turn_id" = String, Path, description = "The turn")),
    responses((status = 204, description = "It will not run")),
)]
async fn remove(
    State(service): State<Arc<Service>>,
    Writes(principal): Writes,
    SessionPath(session): SessionPath,
    TurnPath(turn): TurnPath,
) -> ApiResult<StatusCode> {
    service.remove_turn(&principal.scope(), &session, &turn).await?;
    Ok(StatusCode::NO_CONTENT)
}
