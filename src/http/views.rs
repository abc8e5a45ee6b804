//! What clients see: the JSON of sessions, turns, events and approvals. Every field is always there, null where there is nothing.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::clock::Timestamp;
use crate::domain::event::Event;
use crate::domain::session::{Session, SessionState};
use crate::domain::turn::{Failure, Prompt, Turn, Usage};
use crate::service::{Cursor, Page, SessionView};

/// A text as JSON. What is shown has only text keys, so it always serializes; if ever it does not, that is a failure of ours.
pub fn json_text(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| {
        tracing::error!(%error, "an answer does not serialize");
        "null".to_owned()
    })
}

/// A text that is JSON already, as an answer.
pub fn json_body(text: String) -> Response {
    let json = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, json)], text).into_response()
}

/// A value as a JSON answer.
#[derive(Clone, Debug)]
pub struct View<T>(pub T);

impl<T: Serialize> IntoResponse for View<T> {
    fn into_response(self) -> Response {
        json_body(json_text(&self.0))
    }
}

/// Tokens used.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Usage)]
pub struct UsageView {
    /// Tokens read.
    input_tokens: u64,
    /// Tokens written.
    output_tokens: u64,
    /// Their sum.
    total_tokens: u64,
    /// False when a turn ended without a word about its usage.
    complete: bool,
}

impl From<Usage> for UsageView {
    fn from(usage: Usage) -> Self {
        Self {
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
            total_tokens: usage.input_tokens.saturating_add(usage.output_tokens),
            complete: usage.complete,
        }
    }
}

/// Why a turn failed.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Failure)]
pub struct FailureView {
    /// Stable.
    code: String,
    /// For people.
    message: String,
}

impl From<&Failure> for FailureView {
    fn from(failure: &Failure) -> Self {
        Self { code: failure.code.clone(), message: failure.message.clone() }
    }
}

/// One block of a prompt.
#[derive(ToSchema)]
#[schema(as = ContentBlock)]
#[expect(dead_code, reason = "the schema of domain::turn::ContentBlock")]
pub struct ContentBlockSchema {
    /// `text`.
    r#type: String,
    /// The text.
    text: String,
}

/// A prompt: text, or content blocks.
#[derive(ToSchema)]
#[serde(untagged)]
#[schema(as = Prompt)]
#[expect(dead_code, reason = "the schema of domain::turn::Prompt")]
pub enum PromptSchema {
    /// Text.
    Text(String),
    /// Content blocks.
    Blocks(Vec<ContentBlockSchema>),
}

/// One prompt and all that it causes.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Turn)]
pub struct TurnView {
    id: String,
    session_id: String,
    /// Its place in the session: 1, 2, 3 …
    ordinal: i64,
    #[schema(value_type = PromptSchema)]
    prompt: Prompt,
    /// queued, running, awaiting_approval, completed, failed, cancelled, interrupted or timed_out.
    status: &'static str,
    /// The harness's own word for why it ended.
    stop_reason: Option<String>,
    /// What the agent said, once the turn has ended.
    text: Option<String>,
    error: Option<FailureView>,
    usage: UsageView,
    /// Whether a new process took the conversation up for it.
    rehydrated: bool,
    metadata: BTreeMap<String, String>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    started_at: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime)]
    ended_at: Option<Timestamp>,
}

impl TurnView {
    /// A turn of a session.
    pub fn of(session: &Session, turn: &Turn) -> Self {
        Self {
            id: turn.id.to_string(),
            session_id: session.id.to_string(),
            ordinal: turn.ordinal.0,
            prompt: turn.prompt.clone(),
            status: turn.status.as_str(),
            stop_reason: turn.stop_reason.clone(),
            text: turn.text.clone(),
            error: turn.error.as_ref().map(FailureView::from),
            usage: turn.usage.into(),
            rehydrated: turn.rehydrated,
            metadata: turn.metadata.clone(),
            created_at: turn.created_at,
            started_at: turn.started_at,
            ended_at: turn.ended_at,
        }
    }
}

/// One durable conversation with one harness.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Session)]
pub struct SessionJson {
    id: String,
    /// The host's name for the session, unique in the org.
    run_id: String,
    thread_id: Option<String>,
    org_id: String,
    owner_id: String,
    harness: String,
    title: String,
    /// idle, running, awaiting_approval, stopped, errored or destroyed.
    status: &'static str,
    /// Whether its harness runs.
    live: bool,
    /// Whether it takes a prompt.
    resumable: bool,
    /// user, idle_ttl or shutdown, while it is stopped.
    stop_cause: Option<&'static str>,
    /// The oldest approval that waits.
    #[schema(value_type = Option<ApprovalSchema>)]
    pending_approval: Option<Value>,
    pending_approval_count: i64,
    /// The last 32.
    resolved_approval_ids: Vec<String>,
    /// The turn at work or queued first, else the last one.
    turn: Option<TurnView>,
    /// How many turns wait beside it.
    queued_turns: i64,
    usage: UsageView,
    /// ask, allow_reads, allow_edits or allow_all.
    permission_mode: &'static str,
    /// fresh or fail.
    on_context_loss: &'static str,
    workspace: String,
    metadata: BTreeMap<String, String>,
    last_event_seq: i64,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    last_active_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    stopped_at: Option<Timestamp>,
}

impl From<&SessionView> for SessionJson {
    fn from(view: &SessionView) -> Self {
        let session = view.session.clone();
        let (stop_cause, stopped_at) = match &session.state {
            SessionState::Stopped { cause, at } => (Some(cause.as_str()), Some(*at)),
            SessionState::Idle
            | SessionState::Running { .. }
            | SessionState::AwaitingApproval { .. }
            | SessionState::Errored { .. }
            | SessionState::Destroyed { .. } => (None, None),
        };
        Self {
            turn: session.turn.as_ref().map(|turn| TurnView::of(&session, turn)),
            id: session.id.to_string(),
            run_id: session.run_id,
            thread_id: session.thread_id,
            org_id: session.org_id,
            owner_id: session.owner_id,
            harness: session.harness,
            title: session.title,
            status: session.state.status().as_str(),
            live: view.live,
            resumable: view.resumable,
            stop_cause,
            pending_approval: session.pending_approval,
            pending_approval_count: session.pending_approval_count,
            resolved_approval_ids: session.resolved_approval_ids.iter().map(ToString::to_string).collect(),
            queued_turns: session.queued_turns,
            usage: session.usage.into(),
            permission_mode: session.permission_mode.as_str(),
            on_context_loss: session.on_context_loss.as_str(),
            workspace: session.workspace,
            metadata: session.metadata,
            last_event_seq: session.last_event_seq,
            created_at: session.created_at,
            updated_at: session.updated_at,
            last_active_at: session.last_active_at,
            stopped_at,
        }
    }
}

/// A page of a list, newest first.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = List)]
pub struct List<T> {
    /// The rows.
    pub data: Vec<T>,
    /// Where the next page begins; null when this is the last.
    pub next_cursor: Option<String>,
}

impl<T> List<T> {
    /// A page of the store as clients see it.
    pub fn of<R, K: Cursor>(page: &Page<R>, key: impl Fn(&R) -> K, view: impl Fn(&R) -> T) -> Self {
        let next_cursor = page.rows.last().filter(|_| page.more).map(|row| key(row).encode());
        Self { data: page.rows.iter().map(view).collect(), next_cursor }
    }

    /// A page with nothing in it.
    pub fn empty() -> Self {
        Self { data: Vec::new(), next_cursor: None }
    }
}

/// One of the answers that the harness offers.
#[derive(ToSchema)]
#[schema(as = ApprovalOption)]
#[expect(dead_code, reason = "the schema of domain::approval::ApprovalOption")]
pub struct ApprovalOptionSchema {
    id: String,
    /// allow_once, allow_always, reject_once or reject_always.
    kind: String,
    name: String,
}

/// A question of the harness and, when it has one, its decision. What is shown is `domain::approval::Approval` itself.
#[derive(ToSchema)]
#[schema(as = Approval)]
#[expect(dead_code, reason = "the schema of domain::approval::Approval: a test holds the two together")]
pub struct ApprovalSchema {
    id: String,
    session_id: String,
    run_id: String,
    turn_id: String,
    tool: String,
    title: String,
    /// read, edit, delete, move, search, execute, think, fetch or other: the agent's own label.
    kind: String,
    /// What the tool would get, whole.
    input: Value,
    /// `sha256:` and the digest of tool and input as canonical JSON.
    input_digest: String,
    options: Vec<ApprovalOptionSchema>,
    /// pending, approved, denied, expired, cancelled or orphaned.
    status: String,
    /// approve or deny.
    decision: Option<String>,
    option_id: Option<String>,
    reason: Option<String>,
    /// What the tool gets instead; only there when the decider changed it.
    edited_input: Option<Value>,
    decided_by: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    requested_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime)]
    decided_at: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime)]
    delivered_at: Option<Timestamp>,
}

/// Something that happened in a session.
#[derive(ToSchema)]
#[schema(as = Event)]
#[expect(dead_code, reason = "the schema of what event_text writes: a test holds the two together")]
pub struct EventSchema {
    /// Its place: 1, 2, 3 … in the session, without a hole.
    seq: i64,
    /// session.created, turn.started, text.delta, …
    r#type: String,
    session_id: String,
    run_id: String,
    turn_id: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    /// What belongs to the type.
    #[schema(value_type = Object)]
    data: Value,
}

/// An event's JSON. Its data is JSON text already and is taken over as it is.
pub fn event_text(session: &Session, event: &Event) -> String {
    let mut text = String::with_capacity(event.data.len() + 256);
    let run_id = json_text(&session.run_id);
    let turn_id = event.turn_id.as_ref().map_or_else(|| "null".to_owned(), |id| format!("\"{id}\""));
    // Writing to a String cannot fail. Ids, types and times have nothing in them that JSON escapes.
    let _ = write!(
        text,
        r#"{{"seq":{},"type":"{}","session_id":"{}","run_id":{run_id},"turn_id":{turn_id},"at":"{}","data":{}}}"#,
        event.seq, event.kind, session.id, event.at, event.data,
    );
    text
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::domain::approval::{Approval, ApprovalStatus, Decision};
    use crate::domain::turn::Ordinal;
    use crate::ids::{SessionId, SessionKey};
    use serde_json::json;
    use utoipa::PartialSchema;

    /// A session that never did anything.
    pub(in crate::http) fn session() -> Session {
        Session {
            run_id: "run \"1\"\n".into(),
            has_resume_state: true,
            usage: Usage { input_tokens: 2, output_tokens: 3, complete: true },
            last_event_seq: 1,
            ..Session::new(SessionKey(1), "acme".into(), "alice".into(), "demo".into(), Timestamp(0))
        }
    }

    /// A turn that waits.
    pub(in crate::http) fn turn() -> Turn {
        Turn::queued(Ordinal(1), Prompt::Text("hi".into()), Timestamp(0))
    }

    fn approval() -> Approval {
        Approval {
            status: ApprovalStatus::Approved,
            decision: Some(Decision::Approve),
            edited_input: Some(json!({})),
            ..Approval::asked(SessionId::mint(), &turn().reference(), "bash", json!({}), Timestamp(0))
        }
    }

    fn keys(value: &Value) -> Vec<String> {
        value.as_object().unwrap().keys().cloned().collect()
    }

    fn properties<T: PartialSchema>() -> Vec<String> {
        keys(&serde_json::to_value(T::schema()).unwrap()["properties"])
    }

    fn sorted(mut names: Vec<String>) -> Vec<String> {
        names.sort();
        names
    }

    #[test]
    fn a_session_has_exactly_the_fields_of_the_contract() {
        let view = SessionView { session: session(), live: false, resumable: true };
        let json = serde_json::to_value(SessionJson::from(&view)).unwrap();
        let contract = "id run_id thread_id org_id owner_id harness title status live resumable stop_cause pending_approval
            pending_approval_count resolved_approval_ids turn queued_turns usage permission_mode on_context_loss workspace metadata
            last_event_seq created_at updated_at last_active_at stopped_at";
        let contract: Vec<String> = contract.split_whitespace().map(Into::into).collect();
        assert_eq!(sorted(keys(&json)), sorted(contract));
        assert_eq!(
            json["usage"],
            json!({"input_tokens":2,"output_tokens":3,"total_tokens":5,"complete":true})
        );
        assert_eq!(json["created_at"], "1970-01-01T00:00:00.000Z");
    }

    #[test]
    fn an_approval_and_its_schema_have_the_same_fields() {
        let shown = keys(&serde_json::to_value(approval()).unwrap());
        assert_eq!(sorted(shown), sorted(properties::<ApprovalSchema>()));
    }

    #[test]
    fn an_event_is_json_whatever_the_run_id_is_and_has_its_schemas_fields() {
        let event = Event {
            seq: 7,
            kind: "text.delta".into(),
            turn_id: None,
            at: Timestamp(0),
            data: r#"{"text":"x"}"#.into(),
        };
        let session = session();
        let json: Value = serde_json::from_str(&event_text(&session, &event)).unwrap();
        assert_eq!(json["run_id"], session.run_id.as_str());
        assert_eq!(json["data"]["text"], "x");
        assert_eq!(sorted(keys(&json)), sorted(properties::<EventSchema>()));
        assert!(!event_text(&session, &event).contains('\n'), "one line of an SSE frame");
    }
}
