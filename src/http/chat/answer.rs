//! What a completion is answered with, whole and in chunks.

use axum::http::StatusCode;
use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::refusal;
use crate::domain::session::Session;
use crate::domain::turn::{Failure, Turn, TurnStatus, Usage};
use crate::http::views::json_text;
use crate::ids::ApprovalId;

/// What the answer is of.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = ChatTurn)]
pub struct AboutView {
    session_id: String,
    run_id: String,
    turn_id: String,
    /// queued, running, awaiting_approval or completed.
    turn_status: &'static str,
    /// The approvals that the turn waits for, oldest first.
    approvals: Vec<String>,
}

/// Tokens used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ChatUsage)]
pub struct UsageView {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
}

/// What the assistant says.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatMessage)]
pub struct MessageView {
    /// assistant.
    role: &'static str,
    /// What the turn has said, so far where it has not ended.
    content: String,
    /// Always null.
    refusal: Option<String>,
}

/// The answer.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatChoice)]
pub struct ChoiceView {
    /// 0.
    index: u32,
    message: MessageView,
    /// stop, length or content_filter where the turn has ended; approval_required where it waits for a person; in_progress where the
    /// time of waiting is over.
    finish_reason: &'static str,
    /// Always null.
    #[schema(value_type = Option<Object>)]
    logprobs: Value,
}

/// An answer.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatCompletion)]
pub struct CompletionView {
    /// The same for the same turn.
    id: String,
    /// chat.completion.
    object: &'static str,
    /// When the turn was asked for, in seconds since 1970.
    created: i64,
    /// As it was asked.
    model: String,
    choices: Vec<ChoiceView>,
    /// Null where it is not known, or not yet.
    usage: Option<UsageView>,
    ostler: AboutView,
}

impl AboutView {
    /// Of a turn, and the approvals that it waits for.
    pub fn of(session: &Session, turn: &Turn, approvals: &[ApprovalId]) -> Self {
        Self {
            session_id: session.id.to_string(),
            run_id: session.run_id.clone(),
            turn_id: turn.id.to_string(),
            turn_status: turn.status.as_str(),
            approvals: approvals.iter().map(ToString::to_string).collect(),
        }
    }
}

/// The tokens of a turn; `None` where they are not known, or not yet.
pub fn usage_of(turn: &Turn) -> Option<UsageView> {
    let Usage { input_tokens, output_tokens, complete } = turn.usage;
    (turn.status.is_terminal() && complete).then(|| UsageView {
        prompt_tokens: input_tokens,
        completion_tokens: output_tokens,
        total_tokens: input_tokens.saturating_add(output_tokens),
    })
}

/// How a turn ended that ended without an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The status of the whole answer.
    pub status: StatusCode,
    code: String,
    message: String,
}

/// Why the answer ends here, or that there is none. Only a turn that has completed has come to a stop.
pub fn finish_reason(turn: &Turn) -> Result<&'static str, Failed> {
    let failed = |status, code: &str, message: &str| {
        Err(Failed { status, code: code.to_owned(), message: message.to_owned() })
    };
    match turn.status {
        TurnStatus::Queued | TurnStatus::Running => Ok("in_progress"),
        TurnStatus::AwaitingApproval => Ok("approval_required"),
        TurnStatus::Completed => Ok(match turn.stop_reason.as_deref() {
            Some("max_tokens" | "max_turn_requests") => "length",
            Some("refusal") => "content_filter",
            _ => "stop",
        }),
        TurnStatus::Failed => {
            let unknown = Failure::new("harness_failed", "the turn failed");
            let Failure { code, message } = turn.error.as_ref().unwrap_or(&unknown);
            let status = match code.as_str() {
                "harness_unavailable" | "model_unavailable" => StatusCode::SERVICE_UNAVAILABLE,
                "context_overflow" => StatusCode::BAD_REQUEST,
                _ => StatusCode::BAD_GATEWAY,
            };
            failed(status, code, message)
        }
        TurnStatus::TimedOut => {
            failed(StatusCode::GATEWAY_TIMEOUT, "turn_timed_out", "the turn worked for longer than its limit")
        }
        TurnStatus::Cancelled => failed(StatusCode::CONFLICT, "turn_cancelled", "the turn was cancelled"),
        TurnStatus::Interrupted => failed(
            StatusCode::CONFLICT,
            "turn_interrupted",
            "the process that ran the turn was lost; it is not run again by itself",
        ),
    }
}

impl Failed {
    /// In the shape of a refusal.
    pub fn document(&self, session: &Session, turn: &Turn) -> String {
        let mut about = Map::new();
        about.insert("session_id".to_owned(), json!(session.id));
        about.insert("run_id".to_owned(), json!(session.run_id));
        about.insert("turn_id".to_owned(), json!(turn.id));
        about.insert("turn_status".to_owned(), json!(turn.status.as_str()));
        refusal::document(self.status, &self.code, &self.message, about)
    }
}

/// What all parts of one answer begin with.
#[derive(Clone, Debug)]
pub struct Header {
    id: String,
    created: i64,
    model: String,
}

impl Header {
    /// Of a turn that was asked of that model.
    pub fn new(turn: &Turn, model: &str) -> Self {
        let hex = turn.id.as_str().rsplit('_').next().unwrap_or_default();
        Self {
            id: format!("chatcmpl-{hex}"),
            created: turn.created_at.0.div_euclid(1000),
            model: model.to_owned(),
        }
    }

    /// The whole answer.
    pub fn completion(
        self,
        content: String,
        finish_reason: &'static str,
        usage: Option<UsageView>,
        ostler: AboutView,
    ) -> String {
        let message = MessageView { role: "assistant", content, refusal: None };
        json_text(&CompletionView {
            id: self.id,
            object: "chat.completion",
            created: self.created,
            model: self.model,
            choices: vec![ChoiceView { index: 0, message, finish_reason, logprobs: Value::Null }],
            usage,
            ostler,
        })
    }

    /// One chunk of it.
    pub fn chunk(&self, part: Part, with_usage: bool) -> String {
        let mut chunk = json!({
            "id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": self.model,
            "choices": [],
        });
        let choice = |delta: Value, reason: Option<&str>| json!([{"index": 0, "delta": delta, "finish_reason": reason, "logprobs": null}]);
        if with_usage {
            chunk["usage"] = Value::Null;
        }
        match part {
            Part::Head(about) => {
                chunk["choices"] = choice(json!({"role": "assistant", "content": "", "refusal": null}), None);
                chunk["ostler"] = json!(about);
            }
            Part::Words(words) => chunk["choices"] = choice(json!({ "content": words }), None),
            Part::Thought(words) => chunk["choices"] = choice(json!({ "reasoning_content": words }), None),
            Part::Finish(reason, about) => {
                chunk["choices"] = choice(json!({}), Some(reason));
                chunk["ostler"] = json!(about);
            }
            Part::Usage(usage) => chunk["usage"] = json!(usage),
        }
        json_text(&chunk)
    }
}

/// A part of an answer that is streamed.
#[derive(Debug)]
pub enum Part<'a> {
    /// What comes first.
    Head(&'a AboutView),
    /// The assistant speaks.
    Words(&'a str),
    /// It thinks.
    Thought(&'a str),
    /// Why the answer ends here.
    Finish(&'static str, &'a AboutView),
    /// The tokens, where they are known.
    Usage(Option<UsageView>),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;
    use crate::domain::turn::{Ordinal, Prompt};
    use crate::http::views::tests::session;

    fn turn(status: TurnStatus) -> Turn {
        let turn = Turn::queued(Ordinal(1), Prompt::Text("x".into()), Timestamp(1_999));
        Turn { status, ..turn }
    }

    fn ended(stop_reason: &str) -> Turn {
        Turn { stop_reason: Some(stop_reason.into()), ..turn(TurnStatus::Completed) }
    }

    #[test]
    fn row_102_only_a_turn_that_has_completed_has_come_to_a_stop() {
        for (reason, expected) in [
            ("end_turn", "stop"),
            ("cancelled", "stop"),
            ("max_tokens", "length"),
            ("max_turn_requests", "length"),
            ("refusal", "content_filter"),
        ] {
            assert_eq!(finish_reason(&ended(reason)), Ok(expected), "{reason}");
        }
        for status in TurnStatus::ALL {
            let ends = finish_reason(&turn(*status));
            assert_eq!(ends == Ok("stop"), *status == TurnStatus::Completed, "{status}");
        }
        assert_eq!(finish_reason(&turn(TurnStatus::AwaitingApproval)), Ok("approval_required"));
        assert_eq!(finish_reason(&turn(TurnStatus::Running)), Ok("in_progress"));
        assert_eq!(finish_reason(&turn(TurnStatus::Queued)), Ok("in_progress"));
    }

    #[test]
    fn a_turn_that_ended_without_an_answer_has_the_status_and_the_code_of_its_end() {
        let failed =
            |code: &str| Turn { error: Some(Failure::new(code, "words")), ..turn(TurnStatus::Failed) };
        for (turn, status, code) in [
            (failed("tool_broke"), 502, "tool_broke"),
            (failed("harness_unavailable"), 503, "harness_unavailable"),
            (failed("model_unavailable"), 503, "model_unavailable"),
            (failed("context_overflow"), 400, "context_overflow"),
            (turn(TurnStatus::Failed), 502, "harness_failed"),
            (turn(TurnStatus::TimedOut), 504, "turn_timed_out"),
            (turn(TurnStatus::Cancelled), 409, "turn_cancelled"),
            (turn(TurnStatus::Interrupted), 409, "turn_interrupted"),
        ] {
            let end = finish_reason(&turn).expect_err("no answer");
            let document: Value = serde_json::from_str(&end.document(&session(), &turn)).unwrap();
            assert_eq!(
                (
                    end.status.as_u16(),
                    document["error"]["code"].as_str(),
                    document["error"]["ostler"]["turn_id"].as_str()
                ),
                (status, Some(code), Some(turn.id.as_str()))
            );
        }
    }

    #[test]
    fn usage_is_told_when_the_turn_has_ended_and_said_it() {
        let usage = Usage { input_tokens: 10, output_tokens: 5, complete: true };
        let known = Turn { usage, ..ended("end_turn") };
        assert_eq!(
            usage_of(&known),
            Some(UsageView { prompt_tokens: 10, completion_tokens: 5, total_tokens: 15 })
        );
        assert_eq!(usage_of(&Turn { usage: Usage::UNKNOWN, ..ended("end_turn") }), None);
        assert_eq!(usage_of(&turn(TurnStatus::Running)), None, "nothing is known yet");
    }

    #[test]
    fn an_answer_has_the_members_of_the_format() {
        let (session, turn) = (session(), ended("end_turn"));
        let header = Header::new(&turn, "demo");
        let hex = turn.id.as_str().strip_prefix("trn_").unwrap();
        let about = AboutView::of(&session, &turn, &[]);
        let whole: Value =
            serde_json::from_str(&header.clone().completion("hi".into(), "stop", None, about.clone()))
                .unwrap();
        assert_eq!(
            whole,
            json!({"id": format!("chatcmpl-{hex}"), "object": "chat.completion", "created": 1, "model": "demo",
                   "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi", "refusal": null},
                                "finish_reason": "stop", "logprobs": null}],
                   "usage": null,
                   "ostler": {"session_id": session.id, "run_id": session.run_id, "turn_id": turn.id,
                              "turn_status": "completed", "approvals": []}})
        );
        let chunk = |part: Part| serde_json::from_str::<Value>(&header.chunk(part, true)).unwrap();
        let words = chunk(Part::Words("hi"));
        assert_eq!(words["object"], "chat.completion.chunk");
        assert_eq!(
            words["choices"],
            json!([{"index": 0, "delta": {"content": "hi"}, "finish_reason": null, "logprobs": null}])
        );
        assert_eq!(words.get("usage"), Some(&Value::Null));
        let finish = chunk(Part::Finish("stop", &about));
        assert_eq!(
            (&finish["choices"][0]["finish_reason"], &finish["ostler"]["turn_id"]),
            (&json!("stop"), &json!(turn.id))
        );
        let usage = chunk(Part::Usage(usage_of(&Turn { usage: Usage::NONE, ..turn.clone() })));
        assert_eq!((&usage["choices"], &usage["usage"]["total_tokens"]), (&json!([]), &json!(0)));
        let plain: Value = serde_json::from_str(&header.chunk(Part::Thought("hm"), false)).unwrap();
        assert_eq!(
            (plain.get("usage"), &plain["choices"][0]["delta"]),
            (None, &json!({"reasoning_content": "hm"}))
        );
    }
}
