//! The REST API: what the service can do, over HTTP/1.1. One file per resource; everything that all of them share has its own. `chat` is
//! a second door to the same sessions, for clients that know another API.
//!
//! A request passes these layers, outermost first: `request_id` (id, span, measure, problem documents), a net for panics,
//! `host` (which hosts and pages may ask at all), `prefer` (the form of the answer); then its handler, whose first extractor is
//! one of `auth`. Nothing here decides anything about sessions: that is the service's.

mod approvals;
mod auth;
mod chat;
mod effects;
mod error;
mod events;
mod extract;
mod harnesses;
mod host;
mod idempotency;
mod keys;
mod me;
mod openapi;
mod ops;
mod prefer;
mod request_id;
mod server;
mod sessions;
mod sse;
mod transcript;
mod turns;
mod views;

#[cfg(test)]
mod tests;

use std::any::Any;
use std::sync::Arc;

use axum::Router;
use axum::extract::FromRef;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;

pub use self::error::ErrorCode;
pub use self::host::AllowedHosts;
pub use self::server::{ServerOptions, serve};
use crate::service::Service;

/// How the API is set up.
#[derive(Clone, Debug, Default)]
pub struct HttpOptions {
    /// The hosts that requests may be meant for, beside the loopback names.
    pub hosts: AllowedHosts,
}

/// What the handlers share.
#[derive(Clone)]
struct Http {
    service: Arc<Service>,
    hosts: Arc<AllowedHosts>,
    metrics: ops::HttpMetrics,
}

impl FromRef<Http> for Arc<Service> {
    fn from_ref(http: &Http) -> Self {
        Self::clone(&http.service)
    }
}

/// The API.
pub fn router(service: Arc<Service>, options: HttpOptions) -> Router {
    let http = Http { service, hosts: Arc::new(options.hosts), metrics: ops::HttpMetrics::default() };
    let (routes, _) = api().split_for_parts();
    routes
        .fallback(unknown_route)
        .layer(from_fn_with_state(http.clone(), host::layer))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn_with_state(http.clone(), request_id::layer))
        .with_state(http)
}

/// The OpenAPI document, as indented JSON.
pub fn openapi() -> String {
    let (_, document) = api().split_for_parts();
    // It is made of maps with text keys, which always serialize.
    openapi::complete(document).to_pretty_json().unwrap_or_default()
}

fn api() -> OpenApiRouter<Http> {
    let versioned = OpenApiRouter::default()
        .merge(sessions::routes())
        .merge(approvals::routes())
        .merge(harnesses::routes())
        .merge(keys::routes())
        .merge(me::routes())
        .merge(chat::routes())
        .nest("/v1/sessions/{session_id}", session_routes())
        .nest("/v1/runs/{run_id}", session_routes())
        .layer(from_fn(prefer::layer));
    OpenApiRouter::with_openapi(openapi::Base::openapi())
        .merge(versioned)
        .merge(ops::routes())
        .merge(openapi::routes())
}

/// Everything below one session, whichever way it is named.
fn session_routes() -> OpenApiRouter<Http> {
    OpenApiRouter::default()
        .merge(sessions::item_routes())
        .merge(turns::routes())
        .merge(events::routes())
        .merge(transcript::routes())
        .merge(approvals::item_routes())
}

async fn unknown_route() -> error::ApiError {
    error::ApiError::not_found()
}

/// The panic's words go to the log alone.
fn panicked(panic: Box<dyn Any + Send + 'static>) -> Response {
    let words = panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|words| (*words).to_owned()));
    error::ApiError::internal(format!("a handler panicked: {}", words.unwrap_or_default())).into_response()
}
