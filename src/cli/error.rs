//! What can go wrong for a client: in words, with what to do about it, and as an exit code.

use std::io;

use serde_json::{Value, json};

use super::Exit;

/// See the module.
#[derive(Debug)]
pub(super) enum CliError {
    /// The command line asks for what cannot be.
    Usage(String),
    /// No answer came from the service.
    Unreachable { url: String, why: String },
    /// The service said no.
    Problem(Box<Problem>),
    /// Something answered, but not as the service does.
    Unexpected(String),
    /// The command found that it cannot go on.
    Refused { exit: Exit, code: &'static str, detail: String, hint: Option<String> },
    /// The terminal, or whoever reads our output, could not take it.
    Output(io::Error),
}

/// A result of a client command.
pub(super) type CliResult<T> = Result<T, CliError>;

/// A problem document, RFC 9457.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    /// The HTTP status.
    pub status: u16,
    /// The stable word for it.
    pub code: String,
    /// The sentence for it.
    pub detail: String,
    /// What an operator finds the request by.
    pub request_id: Option<String>,
    /// How long the service asks to wait, in seconds.
    pub retry_after: Option<u64>,
    /// All of it.
    pub body: Value,
}

impl Problem {
    /// Reads an answer that is not a success; `None` when it is no problem document of the service.
    pub(super) fn read(
        status: u16,
        body: &[u8],
        request_id: Option<String>,
        retry_after: Option<u64>,
    ) -> Option<Self> {
        let body: Value = serde_json::from_slice(body).ok()?;
        let code = body.get("code")?.as_str()?.to_owned();
        let text = |name: &str| body.get(name).and_then(Value::as_str).map(str::to_owned);
        let detail = text("detail").or_else(|| text("title")).unwrap_or_else(|| code.clone());
        let request_id = text("request_id").or(request_id);
        Some(Self { status, code, detail, request_id, retry_after, body })
    }

    /// The exit code: scripts tell the cases apart by it.
    pub(super) fn exit(&self) -> Exit {
        match (self.status, self.code.as_str()) {
            (_, "approval_pending") => Exit::WaitingForApproval,
            (401 | 403, _) => Exit::Forbidden,
            (404 | 410, _) => Exit::NotFound,
            (409, _) => Exit::Conflict,
            _ => Exit::Failed,
        }
    }

    /// What to do about it, where there is something to do.
    fn hint(&self) -> Option<String> {
        let session = self.body.get("session_id").and_then(Value::as_str).unwrap_or("SESSION");
        let hint = match self.code.as_str() {
            "unauthenticated" => {
                "pass a key with --key or OSTLER_KEY, or --data-dir when the service runs on this machine; \
                 `ostler keys create` makes one"
            }
            "insufficient_scope" => {
                "this key may not do that; use one that may (`ostler keys create --scopes …`)"
            }
            "host_not_allowed" => "call the service by one of the names that it is configured for",
            "owner_required" => "a service key acts for an owner: name it with --owner",
            "not_found" => "`ostler ls` lists the sessions that this key sees",
            "unknown_harness" => "`ostler harnesses` lists the ones there are",
            "harness_unavailable" => "`ostler harnesses` says what is missing and how to install it",
            "approval_pending" => return Some(decide_hint(&self.body, session)),
            "turn_in_progress" => {
                return Some(format!(
                    "wait for it (`ostler logs -f {session}`), or pass --when-busy queue or interrupt"
                ));
            }
            "approval_already_resolved" | "approval_expired" | "approval_closed" => {
                return Some(format!("`ostler show {session}` tells how it stands"));
            }
            "approval_changed" => "look at it again before you decide: `ostler approvals`",
            "not_resumable" | "session_destroyed" => {
                "start a new session with `ostler run`; the transcript stays: `ostler logs --transcript`"
            }
            "run_exists" => "go on with that session: `ostler run --session RUN_ID \"…\"`",
            "cursor_expired" => "the older events are purged: `ostler logs --transcript`",
            "rate_limited" | "quota_exceeded" | "overloaded" | "shutting_down" | "storage_unavailable" => {
                return Some(match self.retry_after {
                    Some(seconds) => format!("try again in {seconds} s"),
                    None => "try again later".to_owned(),
                });
            }
            _ => return None,
        };
        Some(hint.to_owned())
    }
}

/// The commands that answer the approvals which a problem names.
fn decide_hint(body: &Value, session: &str) -> String {
    let named = body.get("approval_ids").and_then(Value::as_array);
    match named.map(Vec::as_slice) {
        Some([one]) => {
            let id = one.as_str().unwrap_or("APPROVAL");
            format!("decide it first: `ostler approve {id}` or `ostler deny {id}`; or pass --when-busy queue")
        }
        _ => format!("decide first: `ostler approvals --session {session}`; or pass --when-busy queue"),
    }
}

impl CliError {
    /// A local refusal that is an ordinary failure.
    pub(super) fn failed(code: &'static str, detail: impl Into<String>) -> Self {
        Self::Refused { exit: Exit::Failed, code, detail: detail.into(), hint: None }
    }

    /// The turn waits for a person, and none can be asked here. A problem in the service's form, so that a program finds
    /// the approval in it.
    pub(super) fn waiting_for(approval: &Value) -> Self {
        let id = super::text_of(approval, "id");
        let detail = format!("{id} waits for a decision: {}", super::render::question(approval));
        let body = json!({
            "type": "about:blank", "title": "An approval is pending", "code": "approval_pending", "detail": detail,
            "session_id": approval["session_id"], "turn_id": approval["turn_id"], "approval_ids": [id],
        });
        let code = "approval_pending".to_owned();
        Self::Problem(Box::new(Problem {
            status: 409,
            code,
            detail,
            request_id: None,
            retry_after: None,
            body,
        }))
    }

    /// The exit code.
    pub(super) fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) => Exit::Usage,
            Self::Unreachable { .. } => Exit::Unreachable,
            Self::Problem(problem) => problem.exit(),
            Self::Refused { exit, .. } => *exit,
            Self::Unexpected(_) => Exit::Failed,
            // The reader had enough, which is its right: `ostler ls | head -1`.
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Ok,
            Self::Output(_) => Exit::Failed,
        }
    }

    /// The sentence.
    pub(super) fn detail(&self) -> String {
        match self {
            Self::Usage(detail) | Self::Unexpected(detail) => detail.clone(),
            Self::Unreachable { url, why } => format!("cannot reach {url}: {why}"),
            Self::Problem(problem) => problem.detail.clone(),
            Self::Refused { detail, .. } => detail.clone(),
            Self::Output(error) => format!("cannot write: {error}"),
        }
    }

    fn code(&self) -> &str {
        match self {
            Self::Usage(_) => "usage",
            Self::Unreachable { .. } => "unreachable",
            Self::Problem(problem) => &problem.code,
            Self::Unexpected(_) => "unexpected_answer",
            Self::Refused { code, .. } => code,
            Self::Output(_) => "output",
        }
    }

    fn request_id(&self) -> Option<&str> {
        match self {
            Self::Problem(problem) => problem.request_id.as_deref(),
            _ => None,
        }
    }

    /// What to do about it, where there is something to do.
    pub(super) fn hint(&self) -> Option<String> {
        match self {
            Self::Unreachable { .. } => Some(
                "is `ostler serve` running there? `ostler doctor` looks; --url or OSTLER_URL says where"
                    .to_owned(),
            ),
            Self::Problem(problem) => problem.hint(),
            Self::Unexpected(_) => Some("does --url point at an Ostler service?".to_owned()),
            Self::Refused { hint, .. } => hint.clone(),
            Self::Usage(_) | Self::Output(_) => None,
        }
    }

    /// The line for a person: what, and in brackets what a search or an operator finds it by.
    pub(super) fn line(&self) -> String {
        match self.request_id() {
            Some(id) => format!("{} ({}, {id})", self.detail(), self.code()),
            None => format!("{} ({})", self.detail(), self.code()),
        }
    }

    /// The problem document for a program: the service's own, or one in its form.
    pub(super) fn json(&self) -> Value {
        match self {
            Self::Problem(problem) => problem.body.clone(),
            _ => {
                json!({"type": "about:blank", "title": self.code(), "code": self.code(), "detail": self.detail()})
            }
        }
    }
}

impl From<io::Error> for CliError {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(status: u16, code: &str) -> CliError {
        let body = json!({"code": code, "detail": "No.", "request_id": "req_1", "session_id": "ses_1"});
        let body = serde_json::to_vec(&body).unwrap();
        CliError::Problem(Box::new(Problem::read(status, &body, None, Some(7)).unwrap()))
    }

    #[test]
    fn each_problem_has_the_exit_code_that_scripts_rely_on() {
        for (status, code, exit) in [
            (400, "invalid_body", Exit::Failed),
            (401, "unauthenticated", Exit::Forbidden),
            (403, "insufficient_scope", Exit::Forbidden),
            (404, "not_found", Exit::NotFound),
            (410, "cursor_expired", Exit::NotFound),
            (409, "turn_in_progress", Exit::Conflict),
            (409, "approval_already_resolved", Exit::Conflict),
            (409, "approval_pending", Exit::WaitingForApproval),
            (422, "unknown_harness", Exit::Failed),
            (429, "rate_limited", Exit::Failed),
            (503, "overloaded", Exit::Failed),
        ] {
            assert_eq!(problem(status, code).exit(), exit, "{code}");
        }
        let refused = CliError::Unreachable { url: "http://x".into(), why: "refused".into() };
        assert_eq!(refused.exit(), Exit::Unreachable);
        let closed = CliError::Output(io::ErrorKind::BrokenPipe.into());
        assert_eq!(closed.exit(), Exit::Ok);
    }

    #[test]
    fn an_error_names_what_an_operator_finds_the_request_by() {
        assert_eq!(problem(404, "not_found").line(), "No. (not_found, req_1)");
        assert_eq!(problem(429, "rate_limited").hint().as_deref(), Some("try again in 7 s"));
    }

    #[test]
    fn a_pending_approval_comes_with_the_command_that_decides_it() {
        let body = json!({"code": "approval_pending", "detail": "No.", "approval_ids": ["apr_1"]});
        let problem = Problem::read(409, body.to_string().as_bytes(), None, None).unwrap();
        assert!(problem.hint().unwrap().contains("`ostler approve apr_1`"));
    }

    #[test]
    fn an_answer_that_is_no_problem_document_is_not_taken_for_one() {
        assert!(Problem::read(502, b"<html>Bad Gateway</html>", None, None).is_none());
        assert!(Problem::read(502, b"{\"error\":\"x\"}", None, None).is_none());
    }
}
