//! A second door to the same sessions, for clients of OpenAI's chat completions: a completion is a turn, asked for and waited for like
//! any other. A request without a session's id has a fresh session; with it, it is a follow-up there.
//!
//! What such clients know no word for is said in theirs: a turn that waits for a person ends its answer with the reason
//! `approval_required`, one that is still at work with `in_progress`, and each answer names its session and turn in `ostler`.
//! Refusals have the shape that these clients read, with the codes of all other routes.

mod answer;
mod conversation;
mod models;
mod refusal;
mod request;
mod rewind;
mod stream;

use std::sync::Arc;

use async_trait::async_trait;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::answer::{AboutView, CompletionView, Header, finish_reason, usage_of};
use self::conversation::Conversation;
pub(super) use self::refusal::{RefusalView, finish as finish_refusal};
use self::request::{Asked, ChatCompletionBody, ModelName, Question};
use self::stream::{Speaker, Words};
use super::Http;
use super::auth::Writes;
use super::effects::seen_session;
use super::error::{ApiError, ApiResult, ErrorCode};
use super::extract::{Json, PromptJson, TraceParent};
use super::idempotency::{Answer, Outcome, Repeatable, Verb};
use super::prefer::{Format, WAIT_MAX_SECONDS, Wait};
use super::sse::Feed;
use crate::domain::approval::ApprovalStatus;
use crate::domain::scope::{Principal, Scope};
use crate::domain::session::Session;
use crate::domain::turn::{Prompt, Turn, TurnStatus};
use crate::ids::ApprovalId;
use crate::service::{
    ApprovalFilter, CreateSession, OnceRequest, PageRequest, PromptSession, Seen, Service, SessionRef,
    WhenBusy,
};

/// The path of completions.
pub(super) const COMPLETIONS: &str = "/v1/chat/completions";
/// The path of the models' names, and the beginning of those of each.
const MODELS: &str = "/v1/models";

/// The routes of the door.
pub(super) fn routes() -> OpenApiRouter<Http> {
    OpenApiRouter::default().routes(routes!(complete)).merge(models::routes())
}

/// Whether a route belongs to the door, and refuses in its shape.
pub(super) fn is_door(route: &str) -> bool {
    route == COMPLETIONS || route.starts_with(MODELS)
}

/// Complete a chat, as OpenAI's clients ask for it.
///
/// A completion is a turn. Without `metadata.session_id` it is the first one of a fresh session; with it, a follow-up there; with
/// `metadata.turn_id` as well nothing is asked, and the answer is that turn's: to collect the rest after an approval was decided.
/// The answer comes when the turn has ended, waits for a person, or has worked for 300 seconds (`Prefer: wait=N` shortens them); with
/// `stream` as it is said. `finish_reason` is `stop`, `length` or `content_filter` only where the turn has ended; else
/// `approval_required` or `in_progress`. A turn that fails is an error: 502 with the failure's code, 503 where harness or model is not
/// available, 400 where the context is too long, 504 `turn_timed_out`, 409 `turn_cancelled` or `turn_interrupted`; in a stream,
/// `data: {"error":…}` in place of the finish and of `[DONE]`. Words that were streamed and taken back since end the stream with
/// the code `answer_rewound`. A client that goes away never stops a turn. A repeat with the same Idempotency-Key gets the first
/// answer, or streams the same turn again; where nothing is asked the key changes nothing.
#[utoipa::path(
    post, path = "/v1/chat/completions", tag = "chat", operation_id = "create_chat_completion",
    request_body = ChatCompletionBody,
    responses(
        (status = 200, description = "The answer; or its chunks, and `[DONE]`",
         content((CompletionView = "application/json"), (String = "text/event-stream"))),
    ),
)]
async fn complete(
    State(service): State<Arc<Service>>,
    Writes(principal): Writes,
    once: Repeatable,
    wait: Wait,
    TraceParent(traceparent): TraceParent,
    Json { value, raw }: PromptJson<ChatCompletionBody>,
) -> ApiResult<Response> {
    let Asked { model, streams, usage, question } = value.read()?;
    let once = if matches!(question, Question::Collect(..)) { once.without_key() } else { once };
    let complete = Complete {
        service: Arc::clone(&service),
        principal: principal.clone(),
        model,
        question: Some(question),
        streams,
        usage,
        wait,
        traceparent,
    };
    once.run(&service, &principal, &raw, complete).await
}

struct Complete {
    service: Arc<Service>,
    principal: Principal,
    model: ModelName,
    question: Option<Question>,
    streams: bool,
    usage: bool,
    wait: Wait,
    traceparent: Option<String>,
}

#[async_trait]
impl Verb for Complete {
    type Done = (Session, Turn);

    fn format(&self) -> Format {
        if self.streams { Format::EventStream } else { Format::Json }
    }

    async fn effect(&mut self, once: Option<OnceRequest>) -> ApiResult<Self::Done> {
        let question =
            self.question.take().ok_or_else(|| ApiError::internal("a completion is asked for once"))?;
        let traceparent = self.traceparent.take();
        match question {
            Question::Fresh(conversation, metadata) => {
                let input = CreateSession { metadata, traceparent, ..self.opening(conversation) };
                let view = self.service.create(&self.principal, input, once).await?;
                let turn = view.session.turn.clone();
                let turn =
                    turn.ok_or_else(|| ApiError::internal("a session was created without its turn"))?;
                Ok((view.session, turn))
            }
            Question::FollowUp(session, message, metadata) => {
                let session = SessionRef::Id(session);
                self.refuse_other_model(&self.service.lookup(&self.scope(), &session).await?.session)?;
                let (prompt, when_busy) = (Prompt::Text(message), WhenBusy::Reject);
                let input = PromptSession { prompt, metadata, when_busy, traceparent };
                let (view, turn) = self.service.prompt(&self.scope(), &session, input, once).await?;
                Ok((view.session, turn))
            }
            Question::Collect(session, turn) => {
                let session = SessionRef::Id(session);
                let (session, turn) = self.service.lookup_turn(&self.scope(), &session, &turn).await?;
                self.refuse_other_model(&session)?;
                Ok((session, turn))
            }
        }
    }

    async fn rebuild(&self, seen: &Seen) -> ApiResult<Self::Done> {
        let view = seen_session(&self.service, &self.scope(), seen).await?;
        let turn =
            seen.turn.as_ref().ok_or_else(|| ApiError::internal("a completion was kept without its turn"))?;
        Ok(self.service.lookup_turn(&self.scope(), &SessionRef::Id(view.session.id), turn).await?)
    }

    async fn finish(&self, (session, turn): Self::Done) -> ApiResult<(String, Outcome)> {
        let (id, turn_id) = (session.id.to_string(), turn.id.clone());
        // Named from here on: whoever repeats the request by itself would begin another turn.
        let begun = |error: ApiError| error.with("session_id", id.as_str()).with("turn_id", turn_id.as_str());
        let outcome = self.answer(session, turn).await.map_err(begun)?;
        Ok((id, outcome))
    }
}

impl Complete {
    fn scope(&self) -> Scope {
        self.principal.scope()
    }

    /// The session that a conversation begins.
    fn opening(&self, conversation: Conversation) -> CreateSession {
        let harness = self.service.harnesses().get(&self.model.harness);
        // One that is not there is refused by the service.
        let opening = conversation.open(harness.is_none_or(|harness| harness.capabilities().instructions));
        let settings = self.model.model.as_ref().map(|model| json!({"version": 1, "model": model}));
        CreateSession {
            harness: self.model.harness.clone(),
            prompt: Some(Prompt::Text(opening.prompt)),
            title: opening.title,
            instructions: opening.instructions,
            settings: settings.unwrap_or(Value::Null),
            ..CreateSession::default()
        }
    }

    /// A session keeps its harness and its model: another one is not what would answer.
    fn refuse_other_model(&self, session: &Session) -> ApiResult<()> {
        let model = self.model.model.as_deref();
        let same = session.harness == self.model.harness
            && model.is_none_or(|model| session.settings["model"].as_str() == Some(model));
        if same {
            return Ok(());
        }
        let words = format!("model: this session's is {}", session.harness);
        Err(ApiError::new(ErrorCode::InvalidInput, words).with("param", "model"))
    }

    async fn answer(&self, session: Session, turn: Turn) -> ApiResult<Outcome> {
        let (service, scope) = (&self.service, self.scope());
        let header = Header::new(&turn, &self.model.asked);
        if self.streams {
            let tail = service.follow_answer(session.clone(), &turn).await?;
            let (service, words) = (Arc::clone(service), Words::new(header, self.usage));
            let speaker = Speaker { service, scope, session, turn, words };
            return Ok(Outcome::Stream(Box::new(Feed::new(tail, Box::new(speaker)))));
        }
        let wait = Wait(self.wait.0.or(Some(WAIT_MAX_SECONDS)));
        let deadline = service.clock().now().plus(wait.duration().unwrap_or_default());
        let turn = service.wait_for_turn(&session, &turn.id, deadline).await?;
        let applied = self.wait.applied();
        let reason = match finish_reason(&turn) {
            Ok(reason) => reason,
            Err(failed) => {
                let body = failed.document(&session, &turn);
                return Ok(Outcome::Answer(Answer { applied, ..Answer::new(failed.status, body) }));
            }
        };
        let content = match &turn.text {
            Some(text) => text.clone(),
            None if turn.status.is_terminal() => String::new(),
            None => service.words_so_far(&session, &turn).await?,
        };
        let about = AboutView::of(&session, &turn, &pending(service, &scope, &session, &turn).await?);
        let body = header.completion(content, reason, usage_of(&turn), about);
        Ok(Outcome::Answer(Answer { applied, ..Answer::new(StatusCode::OK, body) }))
    }
}

/// The approvals that a turn waits for, oldest first.
async fn pending(
    service: &Service,
    scope: &Scope,
    session: &Session,
    turn: &Turn,
) -> ApiResult<Vec<ApprovalId>> {
    if turn.status != TurnStatus::AwaitingApproval {
        return Ok(Vec::new());
    }
    let filter = ApprovalFilter {
        status: Some(ApprovalStatus::Pending),
        session_id: Some(session.id.clone()),
        owner: None,
    };
    let page = PageRequest { limit: PENDING_SHOWN, before: None };
    let found = service.list_approvals(scope, &filter, page).await?;
    let of_turn = found.rows.into_iter().filter(|approval| approval.turn_id == turn.id);
    let mut ids: Vec<ApprovalId> = of_turn.map(|approval| approval.id).collect();
    ids.reverse();
    Ok(ids)
}

/// So many approvals that wait are named.
const PENDING_SHOWN: i64 = 200;
