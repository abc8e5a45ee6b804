//! What a refused request is answered with: RFC 9457 problem documents with a closed list of codes.
//!
//! A handler gives an [`ApiError`]; it becomes a document where the request's id is known, in `request_id`. There, too, a
//! failure of ours is logged, once, with its causes. Bodies and secrets are in neither.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::domain::approval::Approval;
use crate::domain::scope::{Permission, ScopeError};
use crate::domain::session::Session;
use crate::domain::turn::{Failure, Turn};
use crate::service::{ServiceError, StoreError, chain};

/// How long a caller should wait before it tries again.
const RETRY_AFTER_SECONDS: u32 = 1;

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $status:literal $name:literal $title:literal $(, $retry:ident)?;)+) => {
        /// Every code that an error can have. Codes are stable; titles and details are for people.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum ErrorCode {
            $($(#[$doc])* $variant,)+
        }

        impl ErrorCode {
            /// Every code, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The code as it stands in JSON.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            const fn number(self) -> u16 {
                match self { $(Self::$variant => $status),+ }
            }

            /// A few words that are the same each time.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$variant => $title),+ }
            }

            /// Whether the same request may succeed later.
            pub const fn is_retryable(self) -> bool {
                match self { $(Self::$variant => codes!(@retry $($retry)?)),+ }
            }
        }
    };
    (@retry later) => { true };
    (@retry) => { false };
}

codes! {
    /// The body is not the JSON that this route takes.
    InvalidBody = 400 "invalid_body" "The body is not what this route takes";
    /// The cursor was not made here, or lies beyond the end.
    InvalidCursor = 400 "invalid_cursor" "The cursor is not valid";
    /// A parameter or header is not what this route takes.
    InvalidQuery = 400 "invalid_query" "A parameter is not what this route takes";
    /// A service key creates on behalf of an owner and named none.
    OwnerRequired = 400 "owner_required" "The Ostler-Owner header is required";
    /// No credential, or not a valid one.
    Unauthenticated = 401 "unauthenticated" "A valid API key is required";
    /// The key lacks a scope.
    InsufficientScope = 403 "insufficient_scope" "The key lacks a scope";
    /// The request was not meant for this host, or comes from a page that may not send any.
    HostNotAllowed = 403 "host_not_allowed" "The Host or Origin is not allowed";
    /// There is none, or not in scope: the two look alike.
    NotFound = 404 "not_found" "There is no such resource";
    /// The route has no such method.
    MethodNotAllowed = 405 "method_not_allowed" "The route has no such method";
    /// The route has no answer in any of the forms that are accepted.
    NotAcceptable = 406 "not_acceptable" "No acceptable form of the answer";
    /// The body is larger than the route takes.
    BodyTooLarge = 413 "body_too_large" "The body is too large";
    /// The body is not declared as JSON.
    UnsupportedMediaType = 415 "unsupported_media_type" "The body must be application/json";
    /// A turn is at work.
    TurnInProgress = 409 "turn_in_progress" "A turn is in progress", later;
    /// An approval waits.
    ApprovalPending = 409 "approval_pending" "An approval is pending";
    /// The opposite was decided before.
    ApprovalAlreadyResolved = 409 "approval_already_resolved" "The approval is already resolved";
    /// Nobody answered in time.
    ApprovalExpired = 409 "approval_expired" "The approval expired";
    /// The approval's turn is over.
    ApprovalClosed = 409 "approval_closed" "The approval is closed";
    /// What the decider saw is not what would run.
    ApprovalChanged = 409 "approval_changed" "The approval is not the one that was shown";
    /// The conversation cannot be taken up again.
    NotResumable = 409 "not_resumable" "The session cannot be resumed";
    /// The session is gone for good.
    SessionDestroyed = 409 "session_destroyed" "The session is destroyed";
    /// A session of that run id exists.
    RunExists = 409 "run_exists" "The run id is taken";
    /// The turn is not queued any more.
    TurnStarted = 409 "turn_started" "The turn has started";
    /// A request of the same idempotency key is being answered.
    IdempotencyInProgress = 409 "idempotency_in_progress" "A request with this key is in progress", later;
    /// The events asked for are purged.
    CursorExpired = 410 "cursor_expired" "The events asked for are gone";
    /// The request is well formed, and what it says cannot be.
    InvalidInput = 422 "invalid_input" "The request cannot be carried out as it stands";
    /// No harness of that name.
    UnknownHarness = 422 "unknown_harness" "There is no such harness";
    /// The harness cannot do it.
    Unsupported = 422 "unsupported" "The harness cannot do this";
    /// The idempotency key was used with another request.
    IdempotencyKeyReused = 422 "idempotency_key_reused" "The idempotency key was used with another request";
    /// Too many requests.
    RateLimited = 429 "rate_limited" "Too many requests", later;
    /// The org has as much as it may have.
    QuotaExceeded = 429 "quota_exceeded" "The quota is used up", later;
    /// A failure of ours.
    Internal = 500 "internal" "Internal error";
    /// The harness failed before the turn began.
    HarnessFailed = 502 "harness_failed" "The harness failed";
    /// The harness cannot be started here and now.
    HarnessUnavailable = 503 "harness_unavailable" "The harness is not available", later;
    /// The database does not answer.
    StorageUnavailable = 503 "storage_unavailable" "The storage does not answer", later;
    /// The service has as much in hand as it can.
    Overloaded = 503 "overloaded" "The service is overloaded", later;
    /// The service goes down.
    ShuttingDown = 503 "shutting_down" "The service is shutting down", later;
    /// The turn that was waited for worked for too long.
    TurnTimedOut = 504 "turn_timed_out" "The turn timed out";
}

impl ErrorCode {
    /// The HTTP status.
    pub fn status(self) -> StatusCode {
        // Every number of the table is a status: a test says so.
        StatusCode::from_u16(self.number()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

/// An RFC 9457 problem. Members beyond these name what the error is about: `session_id`, `turn_id`, `approval_ids`, …
#[derive(Serialize, ToSchema)]
pub struct Problem {
    /// `urn:ostler:error:` and the code.
    r#type: String,
    /// A few words that are the same each time.
    title: &'static str,
    /// The HTTP status.
    status: u16,
    /// This case in words.
    detail: String,
    /// What a program looks at.
    code: ErrorCode,
    /// The id of the request, as in `Ostler-Request-Id`.
    request_id: String,
    /// Whether the same request may succeed later.
    retryable: bool,
    /// What the error is about.
    #[serde(flatten)]
    #[schema(additional_properties)]
    members: Map<String, Value>,
}

/// Why a request was refused. Boxed: results are handed on far more often than refused.
#[derive(Clone, Debug)]
pub struct ApiError(Box<Refusal>);

#[derive(Clone, Debug)]
struct Refusal {
    code: ErrorCode,
    detail: String,
    members: Map<String, Value>,
    /// What is logged and not shown.
    cause: Option<String>,
}

/// A result of a handler.
pub type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    /// An error with words for this case.
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        Self(Box::new(Refusal { code, detail: detail.into(), members: Map::new(), cause: None }))
    }

    /// A failure of ours: the cause is logged, the caller hears only that there was one.
    pub fn internal(cause: impl Into<String>) -> Self {
        let shown = "the service failed; the request id names the record of it";
        Self::new(ErrorCode::Internal, shown).caused_by(cause)
    }

    /// With a cause that is logged and not shown.
    pub fn caused_by(mut self, cause: impl Into<String>) -> Self {
        self.0.cause = Some(cause.into());
        self
    }

    /// What does not exist, or not in scope. The words are the same for both.
    pub fn not_found() -> Self {
        Self::new(ErrorCode::NotFound, "there is no such resource")
    }

    /// With one more member.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.members.insert(name.to_owned(), value.into());
        self
    }

    /// What a program looks at.
    pub fn code(&self) -> ErrorCode {
        self.0.code
    }

    /// This case in words.
    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    /// What the error is about.
    pub fn members(&self) -> &Map<String, Value> {
        &self.0.members
    }

    /// The causes, for the log.
    pub fn cause(&self) -> Option<&str> {
        self.0.cause.as_deref()
    }

    /// A turn that was waited for and went wrong in a way that has a status of its own; `None` for every other end.
    pub fn of_awaited(session: &Session, turn: &Turn) -> Option<Self> {
        use crate::domain::turn::TurnStatus;
        let failed = |failure: &Failure| match failure.code.as_str() {
            "harness_unavailable" => Self::new(ErrorCode::HarnessUnavailable, &failure.message),
            _ => Self::new(ErrorCode::HarnessFailed, &failure.message),
        };
        let error = match (turn.status, &turn.error, turn.started_at) {
            (TurnStatus::TimedOut, ..) => {
                Self::new(ErrorCode::TurnTimedOut, "the turn worked for longer than its limit")
            }
            (TurnStatus::Failed, Some(failure), None) => failed(failure),
            _ => return None,
        };
        let error = error.with("session_id", session.id.as_str()).with("run_id", session.run_id.as_str());
        Some(error.with("turn_id", turn.id.as_str()))
    }

    /// The document.
    pub fn document(&self, request_id: &str) -> String {
        let problem = Problem {
            r#type: format!("urn:ostler:error:{}", self.0.code.as_str()),
            title: self.0.code.title(),
            status: self.0.code.number(),
            detail: self.0.detail.clone(),
            code: self.0.code,
            request_id: request_id.to_owned(),
            retryable: self.0.code.is_retryable(),
            members: self.0.members.clone(),
        };
        // Maps with text keys always serialize.
        serde_json::to_string(&problem).unwrap_or_default()
    }

    /// The headers that go with the document.
    pub fn set_headers(&self, headers: &mut HeaderMap) {
        set_problem_headers(self.0.code.status(), self.0.code.is_retryable(), headers);
    }
}

/// The headers of a problem of that status.
pub(super) fn set_problem_headers(status: StatusCode, retryable: bool, headers: &mut HeaderMap) {
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if retryable {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_SECONDS));
    }
}

impl IntoResponse for ApiError {
    /// The status alone; the document is written where the request's id is known.
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = self.0.code.status();
        response.extensions_mut().insert(self);
        response
    }
}

fn about(code: ErrorCode, error: &ServiceError, approval: &Approval) -> ApiError {
    let shown = serde_json::to_value(approval).unwrap_or(Value::Null);
    ApiError::new(code, error.to_string())
        .with("approval_id", approval.id.as_str())
        .with("session_id", approval.session_id.as_str())
        .with("turn_id", approval.turn_id.as_str())
        .with("approval", shown)
}

fn of_store(error: &StoreError) -> ApiError {
    let code = match error {
        StoreError::Unavailable(_) | StoreError::Unknown(_) => ErrorCode::StorageUnavailable,
        StoreError::Closed => ErrorCode::ShuttingDown,
        StoreError::LeaseLost => ErrorCode::Overloaded,
        StoreError::Rejected(_)
        | StoreError::Corrupt { .. }
        | StoreError::Mismatch { .. }
        | StoreError::Seal(_) => return ApiError::internal(chain(error)),
    };
    ApiError::new(code, error.to_string()).caused_by(chain(error))
}

fn of_scope(error: ScopeError) -> ApiError {
    match error {
        ScopeError::OwnerRequired => ApiError::new(ErrorCode::OwnerRequired, error.to_string()),
        ScopeError::Insufficient(permission) => insufficient(permission),
    }
}

fn insufficient(permission: Permission) -> ApiError {
    let words = ScopeError::Insufficient(permission).to_string();
    ApiError::new(ErrorCode::InsufficientScope, words).with("required_scope", permission.as_str())
}

impl From<ScopeError> for ApiError {
    fn from(error: ScopeError) -> Self {
        of_scope(error)
    }
}

impl From<ServiceError> for ApiError {
    fn from(error: ServiceError) -> Self {
        use ErrorCode as C;
        let plain = |code| Self::new(code, error.to_string());
        match &error {
            ServiceError::NotFound => Self::not_found(),
            ServiceError::InvalidInput(complaints) => {
                plain(C::InvalidInput).with("errors", complaints.clone())
            }
            ServiceError::UnknownHarness(name) => plain(C::UnknownHarness).with("harness", name.as_str()),
            ServiceError::Unsupported(_) => plain(C::Unsupported),
            ServiceError::HarnessUnavailable(_) => plain(C::HarnessUnavailable),
            ServiceError::RunExists => plain(C::RunExists),
            ServiceError::TurnInProgress { session, turn } => plain(C::TurnInProgress)
                .with("session_id", session.as_str())
                .with("turn_id", turn.as_ref().map(|turn| turn.as_str().to_owned())),
            ServiceError::ApprovalPending { session, approvals } => {
                let ids: Vec<&str> = approvals.iter().map(|id| id.as_str()).collect();
                plain(C::ApprovalPending)
                    .with("session_id", session.as_str())
                    .with("approval_ids", json!(ids))
            }
            ServiceError::AlreadyResolved(approval) => about(C::ApprovalAlreadyResolved, &error, approval),
            ServiceError::ApprovalExpired(approval) => about(C::ApprovalExpired, &error, approval),
            ServiceError::ApprovalClosed(approval) => about(C::ApprovalClosed, &error, approval),
            ServiceError::ApprovalChanged(approval) => about(C::ApprovalChanged, &error, approval),
            ServiceError::NotResumable(session) => {
                plain(C::NotResumable).with("session_id", session.as_str())
            }
            ServiceError::SessionDestroyed(session) => {
                plain(C::SessionDestroyed).with("session_id", session.as_str())
            }
            ServiceError::TurnStarted(turn) => plain(C::TurnStarted)
                .with("turn_id", turn.id.as_str())
                .with("turn_status", turn.status.as_str()),
            ServiceError::IdempotencyKeyReused => plain(C::IdempotencyKeyReused),
            ServiceError::IdempotencyInProgress => plain(C::IdempotencyInProgress),
            ServiceError::CursorExpired { first_seq } => {
                plain(C::CursorExpired).with("first_seq", *first_seq)
            }
            ServiceError::InvalidCursor(_) => plain(C::InvalidCursor),
            ServiceError::RateLimited => plain(C::RateLimited),
            ServiceError::QuotaExceeded { limit, used } => {
                plain(C::QuotaExceeded).with("limit", *limit).with("used", *used)
            }
            // Another try finds whoever holds it.
            ServiceError::Overloaded(_) | ServiceError::LeaseLost => plain(C::Overloaded),
            ServiceError::ShuttingDown => plain(C::ShuttingDown),
            ServiceError::NotReady(_) => plain(C::StorageUnavailable),
            ServiceError::Scope(error) => of_scope(*error),
            ServiceError::Unauthenticated => plain(C::Unauthenticated),
            ServiceError::Store(error) => of_store(error),
            ServiceError::Directory(_) | ServiceError::Bug(_) => Self::internal(chain(&error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of the wire contract, word for word.
    const CONTRACT: &[(u16, &str)] = &[
        (400, "invalid_body invalid_cursor invalid_query owner_required"),
        (401, "unauthenticated"),
        (403, "insufficient_scope host_not_allowed"),
        (404, "not_found"),
        (405, "method_not_allowed"),
        (406, "not_acceptable"),
        (413, "body_too_large"),
        (415, "unsupported_media_type"),
        (
            409,
            "turn_in_progress approval_pending approval_already_resolved approval_expired approval_closed
             approval_changed not_resumable session_destroyed run_exists turn_started idempotency_in_progress",
        ),
        (410, "cursor_expired"),
        (422, "invalid_input unknown_harness unsupported idempotency_key_reused"),
        (429, "rate_limited quota_exceeded"),
        (500, "internal"),
        (502, "harness_failed"),
        (503, "harness_unavailable storage_unavailable overloaded shutting_down"),
        (504, "turn_timed_out"),
    ];

    #[test]
    fn the_codes_and_their_statuses_are_those_of_the_contract() {
        let contract: Vec<(u16, &str)> = CONTRACT
            .iter()
            .flat_map(|(status, codes)| codes.split_whitespace().map(|code| (*status, code)))
            .collect();
        let ours: Vec<(u16, &str)> =
            ErrorCode::ALL.iter().map(|code| (code.status().as_u16(), code.as_str())).collect();
        assert_eq!(ours, contract);
    }

    #[test]
    fn a_code_serializes_as_its_name() {
        for code in ErrorCode::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
        }
    }

    #[test]
    fn what_may_succeed_later_says_when_to_try_again() {
        for code in ErrorCode::ALL {
            let mut headers = HeaderMap::new();
            ApiError::new(*code, "x").set_headers(&mut headers);
            let must = matches!(code.number(), 429 | 503) || *code == ErrorCode::IdempotencyInProgress;
            assert!(!must || headers.contains_key(header::RETRY_AFTER), "{}", code.as_str());
            assert_eq!(headers.contains_key(header::WWW_AUTHENTICATE), code.number() == 401);
        }
    }

    #[test]
    fn a_failure_of_ours_shows_nothing_of_its_cause() {
        let error = ApiError::from(ServiceError::Bug("the secret is 42".into()));
        assert!(error.cause().unwrap().contains("42"));
        assert!(!error.document("req_1").contains("42"));
    }

    #[test]
    fn a_document_has_the_members_of_the_contract() {
        let error = ApiError::from(ServiceError::CursorExpired { first_seq: 7 });
        let document: Value = serde_json::from_str(&error.document("req_1")).unwrap();
        assert_eq!(
            document,
            json!({"type": "urn:ostler:error:cursor_expired", "title": "The events asked for are gone", "status": 410,
                   "detail": "events up to seq 7 are purged", "code": "cursor_expired", "request_id": "req_1",
                   "retryable": false, "first_seq": 7})
        );
    }
}
