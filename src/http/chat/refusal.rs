//! Refusals in the shape that clients of this format read: the codes are those of every other route, 422 is 400.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::http::error::{ApiError, ErrorCode};
use crate::http::views::json_text;

/// The official clients repeat a 409 and a failure by themselves unless this says that they should not.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// A refusal.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatError)]
pub struct RefusalView {
    error: ChatErrorObject,
}

/// What went wrong.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatErrorObject {
    /// For people.
    message: String,
    /// invalid_request_error, authentication_error, permission_error, not_found_error, conflict_error, rate_limit_error or server_error.
    r#type: &'static str,
    /// What of the request it is about.
    param: Option<String>,
    /// What a program looks at: as on every other route, or the code of the turn's failure.
    code: String,
    /// What the error is about: `session_id`, `turn_id`, `approval_ids`, …
    #[schema(value_type = Object)]
    ostler: Map<String, Value>,
}

/// The status of a code on this door.
fn status_of(code: ErrorCode) -> StatusCode {
    match code.status() {
        StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
        status => status,
    }
}

fn type_of(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::CONFLICT => "conflict_error",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        status if status.is_server_error() => "server_error",
        _ => "invalid_request_error",
    }
}

/// A refusal of that status.
pub fn document(status: StatusCode, code: &str, message: &str, about: Map<String, Value>) -> String {
    let error = ChatErrorObject {
        message: message.to_owned(),
        r#type: type_of(status),
        param: None,
        code: code.to_owned(),
        ostler: about,
    };
    json_text(&RefusalView { error })
}

/// An error of the service's, as it stands in a body and in a stream.
pub fn document_of(error: &ApiError) -> String {
    let mut about = error.members().clone();
    let named = ["param", "parameter"].iter().find_map(|member| match about.remove(*member) {
        Some(Value::String(name)) => Some(name),
        _ => None,
    });
    let error = ChatErrorObject {
        message: error.detail().to_owned(),
        r#type: type_of(status_of(error.code())),
        param: named.or_else(|| field_of(error)),
        code: error.code().as_str().to_owned(),
        ostler: about,
    };
    json_text(&RefusalView { error })
}

/// The field that a body was refused for: it stands in the words, in front of a colon or between backticks.
fn field_of(error: &ApiError) -> Option<String> {
    if error.code() != ErrorCode::InvalidBody {
        return None;
    }
    let words = error.detail();
    let missing = words.strip_prefix("missing field `").and_then(|rest| rest.split('`').next());
    let path = words.split_once(": ").map(|(path, _)| path);
    let is_path = |path: &&str| path.bytes().all(|b| b.is_ascii_alphanumeric() || b"_[].".contains(&b));
    missing.or(path.filter(is_path)).map(str::to_owned)
}

/// Completes the answer of a route of this door. An error that is not written yet is written; one that is has come of a turn.
pub fn finish(error: Option<&ApiError>, response: &mut Response) {
    let Some(error) = error else {
        if response.status().is_client_error() || response.status().is_server_error() {
            // A repeat would begin another turn, or come to the same.
            declare(response.headers_mut());
            response.headers_mut().remove(header::RETRY_AFTER);
            response.headers_mut().insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        return;
    };
    *response.status_mut() = status_of(error.code());
    let headers = response.headers_mut();
    headers.remove(header::CONTENT_LENGTH);
    error.set_headers(headers);
    declare(headers);
    if !may_be_repeated(error) {
        headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
    }
    *response.body_mut() = Body::from(document_of(error));
}

fn declare(headers: &mut HeaderMap) {
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
}

/// Whether a client may send the request again by itself. Not where a turn has begun: the repeat would begin another. Where a request
/// of the same idempotency key is being answered, a repeat is the same request.
fn may_be_repeated(error: &ApiError) -> bool {
    let conflict =
        error.code().status() == StatusCode::CONFLICT && error.code() != ErrorCode::IdempotencyInProgress;
    !conflict && !error.members().contains_key("turn_id")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::http::error::ErrorCode as C;

    fn finished(error: &ApiError) -> Response {
        let mut response = Response::new(Body::empty());
        finish(Some(error), &mut response);
        response
    }

    #[test]
    fn every_code_keeps_its_status_but_422_and_has_a_type() {
        for code in C::ALL {
            let response = finished(&ApiError::new(*code, "x"));
            let expected = if code.status().as_u16() == 422 { 400 } else { code.status().as_u16() };
            assert_eq!(response.status().as_u16(), expected, "{}", code.as_str());
            assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
            let document: Value = serde_json::from_str(&document_of(&ApiError::new(*code, "x"))).unwrap();
            assert_eq!(document["error"]["code"], code.as_str());
            let kind = document["error"]["type"].as_str().unwrap();
            assert_eq!(kind == "server_error", expected >= 500, "{kind}");
            assert_eq!(kind == "conflict_error", expected == 409, "{kind}");
        }
    }

    #[test]
    fn the_headers_of_a_problem_are_kept() {
        assert_eq!(
            finished(&ApiError::new(C::Unauthenticated, "x")).headers()[header::WWW_AUTHENTICATE],
            "Bearer"
        );
        assert!(finished(&ApiError::new(C::RateLimited, "x")).headers().contains_key(header::RETRY_AFTER));
    }

    #[test]
    fn clients_are_told_not_to_repeat_a_conflict_or_what_began_a_turn() {
        let told = |error: &ApiError| {
            finished(error).headers().get(SHOULD_RETRY).map(|value| value.to_str().unwrap().to_owned())
        };
        let no = Some("false".to_owned());
        assert_eq!(told(&ApiError::new(C::TurnInProgress, "x")), no);
        assert_eq!(told(&ApiError::new(C::ApprovalPending, "x")), no);
        assert_eq!(told(&ApiError::new(C::StorageUnavailable, "x").with("turn_id", "trn_1")), no);
        assert_eq!(told(&ApiError::new(C::StorageUnavailable, "x")), None);
        assert_eq!(told(&ApiError::new(C::RateLimited, "x")), None);
        assert_eq!(told(&ApiError::new(C::IdempotencyInProgress, "x")), None);
        let mut failed = Response::new(Body::from("{}"));
        *failed.status_mut() = StatusCode::BAD_GATEWAY;
        finish(None, &mut failed);
        assert_eq!(failed.headers()[SHOULD_RETRY], "false");
        let mut good = Response::new(Body::from("{}"));
        finish(None, &mut good);
        assert!(good.headers().is_empty());
    }

    #[test]
    fn an_error_has_the_members_of_the_format_and_names_what_it_is_about() {
        let error = ApiError::new(C::ApprovalPending, "wait")
            .with("session_id", "ses_1")
            .with("approval_ids", json!(["a"]));
        assert_eq!(
            serde_json::from_str::<Value>(&document_of(&error)).unwrap(),
            json!({"error": {"message": "wait", "type": "conflict_error", "param": null, "code": "approval_pending",
                             "ostler": {"session_id": "ses_1", "approval_ids": ["a"]}}})
        );
        let param = |error: &ApiError| {
            let document: Value = serde_json::from_str(&document_of(error)).unwrap();
            document["error"]["param"].as_str().map(str::to_owned)
        };
        assert_eq!(param(&ApiError::new(C::InvalidInput, "x").with("param", "n")).as_deref(), Some("n"));
        let body = |words: &str| param(&ApiError::new(C::InvalidBody, words));
        assert_eq!(body("messages[0].content: content is a text").as_deref(), Some("messages[0].content"));
        assert_eq!(body("missing field `model` at line 1 column 2").as_deref(), Some("model"));
        assert_eq!(body("the body did not arrive whole"), None);
        assert_eq!(body("EOF while parsing: at the end"), None);
    }
}
