//! What a request says, taken apart strictly: JSON bodies, queries, the names in a path.

use std::time::Duration;

use axum::body::Body;
use axum::extract::path::RawPathParams;
use axum::extract::rejection::JsonRejection;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;

use super::error::{ApiError, ApiResult, ErrorCode};
use crate::clock::Timestamp;
use crate::ids::{ApprovalId, KeyId, SessionId, TurnId};
use crate::service::{Cursor, PageRequest, SessionRef};

/// The largest body, where nothing else is said.
pub const BODY_MAX_BYTES: usize = 1024 * 1024;
/// The largest body with a prompt in it.
pub const PROMPT_MAX_BYTES: usize = 8 * 1024 * 1024;
/// A body that brings nothing for this long is given up.
const BODY_IDLE: Duration = Duration::from_secs(10);
/// A body that is not whole after this long is given up.
const BODY_DEADLINE: Duration = Duration::from_secs(60);

/// A JSON body of at most `MAX` bytes, and the bytes themselves.
#[derive(Debug)]
pub struct Json<T, const MAX: usize = BODY_MAX_BYTES> {
    /// What it says.
    pub value: T,
    /// As it was sent.
    pub raw: Bytes,
}

/// A JSON body that may hold a prompt.
pub type PromptJson<T> = Json<T, PROMPT_MAX_BYTES>;

impl<S, T, const MAX: usize> FromRequest<S> for Json<T, MAX>
where
    S: Send + Sync,
    T: DeserializeOwned,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> ApiResult<Self> {
        let (parts, body) = request.into_parts();
        require_json(&parts.headers)?;
        let raw = read_body(&parts.headers, body, MAX).await?;
        Ok(Self { value: parse_json(&raw)?, raw })
    }
}

/// The body of a route that takes none: nothing, or an empty JSON object.
#[derive(Debug)]
pub struct NoBody {
    /// As it was sent.
    pub raw: Bytes,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

impl<S: Send + Sync> FromRequest<S> for NoBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> ApiResult<Self> {
        let (parts, body) = request.into_parts();
        // A form of a foreign page is refused even when it is empty.
        if parts.headers.contains_key(header::CONTENT_TYPE) {
            require_json(&parts.headers)?;
        }
        let raw = read_body(&parts.headers, body, BODY_MAX_BYTES).await?;
        if !raw.is_empty() {
            require_json(&parts.headers)?;
            parse_json::<Nothing>(&raw)?;
        }
        Ok(Self { raw })
    }
}

fn require_json(headers: &HeaderMap) -> ApiResult<()> {
    let declared = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    if declared.is_some_and(is_json) {
        return Ok(());
    }
    let words = "send the body as content-type: application/json";
    Err(ApiError::new(ErrorCode::UnsupportedMediaType, words))
}

fn is_json(content_type: &str) -> bool {
    let (essence, parameters) = content_type.split_once(';').unwrap_or((content_type, ""));
    let parameters = parameters.trim();
    let charset =
        parameters.split_once('=').map(|(name, value)| (name.trim(), value.trim().trim_matches('"')));
    let utf_8 = charset.is_some_and(|(name, value)| {
        name.eq_ignore_ascii_case("charset") && value.eq_ignore_ascii_case("utf-8")
    });
    essence.trim().eq_ignore_ascii_case("application/json") && (parameters.is_empty() || utf_8)
}

/// How much of a body that is too large is read all the same.
const DRAINED: usize = 16 * 1024 * 1024;

async fn read_body(headers: &HeaderMap, body: Body, max: usize) -> ApiResult<Bytes> {
    let declared =
        headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|length| length > (max + DRAINED) as u64) {
        return Err(too_large(max));
    }
    match tokio::time::timeout(BODY_DEADLINE, collect(body, max)).await {
        Ok(collected) => collected,
        Err(_) => Err(late()),
    }
}

/// The body, or its refusal. A little more than is taken is still read, and dropped: a client that is cut off while it sends
/// would never see the answer.
async fn collect(mut body: Body, max: usize) -> ApiResult<Bytes> {
    let mut whole = BytesMut::new();
    let mut length = 0;
    loop {
        let frame = match tokio::time::timeout(BODY_IDLE, body.frame()).await {
            Ok(Some(frame)) => frame,
            Ok(None) if length > max => return Err(too_large(max)),
            Ok(None) => return Ok(whole.freeze()),
            Err(_) => return Err(late()),
        };
        let broken = |_| ApiError::new(ErrorCode::InvalidBody, "the body did not arrive whole");
        let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
        length += data.len();
        if length > max + DRAINED {
            return Err(too_large(max));
        }
        if length <= max {
            whole.extend_from_slice(&data);
        } else {
            whole = BytesMut::new();
        }
    }
}

fn late() -> ApiError {
    ApiError::new(ErrorCode::InvalidBody, "the body did not arrive in time")
}

fn too_large(max: usize) -> ApiError {
    let words = format!("the body may have at most {max} bytes");
    ApiError::new(ErrorCode::BodyTooLarge, words).with("limit", max as u64)
}

fn parse_json<T: DeserializeOwned>(raw: &[u8]) -> ApiResult<T> {
    match axum::Json::from_bytes(raw) {
        Ok(axum::Json(value)) => Ok(value),
        Err(rejection) => Err(ApiError::new(ErrorCode::InvalidBody, complaint(&rejection))),
    }
}

/// The innermost words: they name the field and what is wrong with it.
fn complaint(rejection: &JsonRejection) -> String {
    let mut innermost: &dyn std::error::Error = rejection;
    while let Some(source) = innermost.source() {
        // The path to the field stands in the words of the error that has serde_json's as its source.
        if source.source().is_none() && source.is::<serde_json::Error>() {
            break;
        }
        innermost = source;
    }
    innermost.to_string()
}

/// A query without any parameter that the route does not know.
#[derive(Clone, Copy, Debug)]
pub struct Params<T>(pub T);

impl<S, T> FromRequestParts<S> for Params<T>
where
    S: Send + Sync,
    T: DeserializeOwned,
{
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> ApiResult<Self> {
        match Query::try_from_uri(&parts.uri) {
            Ok(Query(value)) => Ok(Self(value)),
            Err(rejection) => {
                let mut innermost: &dyn std::error::Error = &rejection;
                while let Some(source) = innermost.source() {
                    innermost = source;
                }
                Err(ApiError::new(ErrorCode::InvalidQuery, innermost.to_string()))
            }
        }
    }
}

/// A refusal of one parameter.
pub fn bad_parameter(name: &str, words: &str) -> ApiError {
    ApiError::new(ErrorCode::InvalidQuery, format!("{name}: {words}")).with("parameter", name)
}

/// One of the values that a parameter may have.
///
/// # Errors
/// `invalid_query`.
pub fn one_of<T>(name: &str, value: Option<&str>, parse: fn(&str) -> Option<T>) -> ApiResult<Option<T>> {
    value
        .map(|text| parse(text).ok_or_else(|| bad_parameter(name, "is not one of the values it may have")))
        .transpose()
}

/// A yes or no.
///
/// # Errors
/// `invalid_query`.
pub fn yes_or_no(name: &str, value: Option<&str>) -> ApiResult<Option<bool>> {
    let parse = |text: &str| match text {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(bad_parameter(name, "is true or false")),
    };
    value.map(parse).transpose()
}

/// A moment.
///
/// # Errors
/// `invalid_query`.
pub fn moment(name: &str, value: Option<&str>) -> ApiResult<Option<Timestamp>> {
    let parse = |text| Timestamp::parse(text).ok_or_else(|| bad_parameter(name, "is not an RFC 3339 time"));
    value.map(parse).transpose()
}

/// How many rows a list gives when nothing is said, and at most.
const LIMIT_DEFAULT: i64 = 50;
const LIMIT_MAX: i64 = 200;

/// How many rows are asked for, brought into bounds.
///
/// # Errors
/// `invalid_query` for what is not a number.
pub fn limit(value: Option<&str>) -> ApiResult<i64> {
    let Some(text) = value else { return Ok(LIMIT_DEFAULT) };
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(bad_parameter("limit", "is not a number"));
    }
    // A number that does not fit is beyond the bounds on its side.
    let beyond = if text.starts_with('-') { 1 } else { LIMIT_MAX };
    Ok(text.parse().unwrap_or(beyond).clamp(1, LIMIT_MAX))
}

/// The place where a page begins.
///
/// # Errors
/// `invalid_cursor` for a word that was not made here.
pub fn cursor<K: Cursor>(value: Option<&str>) -> ApiResult<Option<K>> {
    let invalid = || ApiError::new(ErrorCode::InvalidCursor, "the cursor was not made by this list");
    value.map(|word| K::decode(word).ok_or_else(invalid)).transpose()
}

/// The part of a list that is asked for.
///
/// # Errors
/// `invalid_query`, `invalid_cursor`.
pub fn page<K: Cursor>(limit_text: Option<&str>, cursor_word: Option<&str>) -> ApiResult<PageRequest<K>> {
    Ok(PageRequest { limit: limit(limit_text)?, before: cursor(cursor_word)? })
}

/// A name in the path. What is not in it, or not text, names nothing.
async fn path_param<S: Send + Sync>(parts: &mut Parts, state: &S, name: &str) -> ApiResult<Option<String>> {
    let params = RawPathParams::from_request_parts(parts, state).await.map_err(|_| ApiError::not_found())?;
    Ok(params.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_owned()))
}

/// The session that the path names, by its id or by its run id.
#[derive(Clone, Debug)]
pub struct SessionPath(pub SessionRef);

impl<S: Send + Sync> FromRequestParts<S> for SessionPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> ApiResult<Self> {
        if let Some(run) = path_param(parts, state, "run_id").await? {
            return Ok(Self(SessionRef::Run(run)));
        }
        let id = path_param(parts, state, "session_id").await?;
        let id = id.as_deref().and_then(SessionId::parse).ok_or_else(ApiError::not_found)?;
        Ok(Self(SessionRef::Id(id)))
    }
}

macro_rules! path_ids {
    ($($(#[$doc:meta])* $name:ident($id:ty) from $param:literal;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name(pub $id);

        impl<S: Send + Sync> FromRequestParts<S> for $name {
            type Rejection = ApiError;

            async fn from_request_parts(parts: &mut Parts, state: &S) -> ApiResult<Self> {
                let text = path_param(parts, state, $param).await?;
                // An id of the wrong form is the id of nothing.
                text.as_deref().and_then(<$id>::parse).map(Self).ok_or_else(ApiError::not_found)
            }
        }
    )+};
}

path_ids! {
    /// The turn that the path names.
    TurnPath(TurnId) from "turn_id";
    /// The approval that the path names.
    ApprovalPath(ApprovalId) from "approval_id";
    /// The key that the path names.
    KeyPath(KeyId) from "key_id";
}

/// A plain name in the path; one with strokes in it may be in several parts.
#[derive(Clone, Debug)]
pub struct NamePath(pub String);

impl<S: Send + Sync> FromRequestParts<S> for NamePath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> ApiResult<Self> {
        let params =
            RawPathParams::from_request_parts(parts, state).await.map_err(|_| ApiError::not_found())?;
        let parts: Vec<&str> = params.iter().map(|(_, value)| value).collect();
        Ok(Self(parts.join("/")))
    }
}

/// The request's W3C trace context, where it has a sound one.
#[derive(Clone, Debug)]
pub struct TraceParent(pub Option<String>);

impl<S: Sync> FromRequestParts<S> for TraceParent {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let value = parts.headers.get("traceparent").and_then(|value| value.to_str().ok());
        Ok(Self(value.filter(|text| is_traceparent(text)).map(str::to_owned)))
    }
}

/// `version-trace id-parent id-flags`, lower-case hexadecimal, ids not all zero. One that is not sound is ignored, as W3C says.
fn is_traceparent(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let hex = |part: &str, length: usize| {
        part.len() == length && part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    let id = |part: &str, length| hex(part, length) && part.bytes().any(|b| b != b'0');
    matches!(parts.as_slice(), [version, trace, parent, flags]
        if hex(version, 2) && *version != "ff" && id(trace, 32) && id(parent, 16) && hex(flags, 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_declared_with_utf_8_or_nothing() {
        for good in [
            "application/json",
            "Application/JSON",
            "application/json; charset=utf-8",
            "application/json;charset=\"UTF-8\"",
        ] {
            assert!(is_json(good), "{good}");
        }
        for other in [
            "text/plain",
            "application/jsonx",
            "application/json; charset=latin1",
            "application/json, text/plain",
            "",
            "application/x-www-form-urlencoded",
        ] {
            assert!(!is_json(other), "{other}");
        }
    }

    #[test]
    fn a_limit_is_brought_into_bounds_and_must_be_a_number() {
        for (text, expected) in [
            ("0", 1),
            ("-5", 1),
            ("1", 1),
            ("200", 200),
            ("201", 200),
            ("99999999999999999999", 200),
            ("-99999999999999999999", 1),
        ] {
            assert_eq!(limit(Some(text)).unwrap(), expected, "{text}");
        }
        assert_eq!(limit(None).unwrap(), 50);
        for wrong in ["", "-", "x", "1.5", "+1", " 1"] {
            assert_eq!(limit(Some(wrong)).unwrap_err().code(), ErrorCode::InvalidQuery, "{wrong}");
        }
    }

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        #[serde(rename = "inner")]
        _inner: Inner,
    }

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        #[serde(rename = "count")]
        _count: u64,
    }

    #[test]
    fn a_refused_body_names_the_field() {
        let words = |text: &str| parse_json::<Outer>(text.as_bytes()).unwrap_err().document("r");
        assert!(words(r#"{"inner":{"count":"x"}}"#).contains("inner.count"));
        assert!(words(r#"{"inner":{"count":1,"org_id":"x"}}"#).contains("org_id"));
        assert!(words(r#"{"owner_id":1}"#).contains("owner_id"));
        assert!(words(r#"{"inner":{"count":1}} x"#).contains("invalid_body"));
        let deep = format!("{{\"inner\":{}1{}}}", "[".repeat(1000), "]".repeat(1000));
        assert!(words(&deep).contains("invalid_body"));
    }

    #[test]
    fn a_trace_context_is_kept_when_it_is_sound() {
        assert!(is_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"));
        for wrong in [
            "",
            "00-0-0-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert!(!is_traceparent(wrong), "{wrong}");
        }
    }
}
