//! The outermost layer: gives each request an id, a span and a measure, and writes problem documents.

use std::time::Instant;

use axum::body::Body;
use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use tracing::{Instrument, Span, field};

use super::Http;
use super::chat;
use super::error::{ApiError, ErrorCode};
use crate::ids;

/// The header that every answer carries.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("ostler-request-id");
const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Longest id that a client may give its request.
const MAX_CHARS: usize = 128;

/// The id of the request that is being answered.
#[derive(Clone, Debug)]
pub struct RequestId(pub String);

impl RequestId {
    /// The client's own id where it is 1 to 128 visible ASCII characters, else a new one.
    fn of(headers: &HeaderMap) -> Self {
        let own = headers.get(X_REQUEST_ID).and_then(|value| value.to_str().ok());
        let own = own.filter(|id| is_visible_ascii(id, MAX_CHARS)).map(str::to_owned);
        Self(own.unwrap_or_else(|| ids::RequestId::mint().to_string()))
    }
}

/// Whether a text is 1 to `max` characters of visible ASCII.
pub(super) fn is_visible_ascii(text: &str, max: usize) -> bool {
    (1..=max).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

impl<S: Sync> FromRequestParts<S> for RequestId {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let id = parts.extensions.get::<Self>().cloned();
        id.ok_or_else(|| ApiError::internal("a request without an id: its layer is missing"))
    }
}

/// The layer. The span names the route, never the path: ids, owners and tickets stay out of it.
pub async fn layer(State(http): State<Http>, mut request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let id = RequestId::of(request.headers());
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map_or("none", MatchedPath::as_str);
    let span = tracing::info_span!(
        "request", request_id = %id.0, %method, route, status = field::Empty
    );
    let chunked = request.headers().contains_key(header::TRANSFER_ENCODING);
    request.extensions_mut().insert(id.clone());
    let mut response = next.run(request).instrument(span.clone()).await;
    span.in_scope(|| finish(&id, route, &mut response));
    if chunked {
        // Where a chunked body also declared a length, a proxy may have read another end of it than we did: what follows on
        // this connection is not taken for a request.
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    span.record("status", response.status().as_u16());
    http.metrics.note(&method, route, response.status(), begun.elapsed());
    span.in_scope(|| tracing::debug!(elapsed_ms = elapsed_ms(begun), "answered"));
    response
}

fn elapsed_ms(begun: Instant) -> u64 {
    u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// Puts the id on the answer, and the document where the answer is a refusal.
fn finish(id: &RequestId, route: &str, response: &mut Response) {
    if response.status() == StatusCode::METHOD_NOT_ALLOWED {
        // The router says so itself, with its Allow header and an empty body.
        response.extensions_mut().insert(ApiError::new(
            ErrorCode::MethodNotAllowed,
            "the methods of this route are in the Allow header",
        ));
    }
    let error = response.extensions_mut().remove::<ApiError>();
    error.iter().for_each(log);
    if chat::is_door(route) {
        chat::finish_refusal(error.as_ref(), response);
    } else if let Some(error) = error {
        let document = error.document(&id.0);
        response.headers_mut().remove(header::CONTENT_LENGTH);
        error.set_headers(response.headers_mut());
        *response.body_mut() = Body::from(document);
    }
    // It was checked to be visible ASCII, or minted.
    if let Ok(value) = HeaderValue::from_str(&id.0) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
}

/// What went wrong on our side is logged here and nowhere else.
fn log(error: &ApiError) {
    if error.code().status().is_server_error() {
        let cause = error.cause().unwrap_or("none");
        tracing::error!(parent: Span::current(), code = error.code().as_str(), cause, "the request failed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clients_own_id_is_kept_when_it_is_visible_ascii_of_a_sane_length() {
        let id = |own: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(X_REQUEST_ID, HeaderValue::from_bytes(own).unwrap());
            RequestId::of(&headers).0
        };
        assert_eq!(id(b"abc-1"), "abc-1");
        let long = [b'x'; MAX_CHARS + 1];
        assert_eq!(id(&long[1..]), "x".repeat(MAX_CHARS));
        for odd in [b"".as_slice(), b"a b", &long, "é".as_bytes()] {
            assert!(id(odd).starts_with("req_"), "{odd:?}");
        }
    }
}
