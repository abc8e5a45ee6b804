//! For operators: whether the process lives, whether it takes requests, what it has counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::prometheus_text::{CONTENT_TYPE, encode};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Http;
use super::auth::Anyone;
use super::error::{ApiError, ApiResult};
use super::views::View;
use crate::service::Service;

/// The routes.
pub fn routes() -> OpenApiRouter<Http> {
    OpenApiRouter::default().routes(routes!(healthz)).routes(routes!(readyz)).routes(routes!(metrics))
}

/// A state in one word.
#[derive(Serialize, ToSchema)]
#[schema(as = Health)]
pub struct HealthView {
    status: &'static str,
}

/// Whether the process lives. Needs no key.
#[utoipa::path(
    get, path = "/healthz", tag = "operations", operation_id = "healthz", security(()),
    responses((status = 200, description = "It does", body = HealthView)),
)]
async fn healthz() -> View<HealthView> {
    View(HealthView { status: "ok" })
}

/// Whether it takes requests: the database answers and has the schema that is needed, this replica may hold sessions, and it is
/// not going down. If not, the problem says what is wrong. Needs no key.
#[utoipa::path(
    get, path = "/readyz", tag = "operations", operation_id = "readyz", security(()),
    responses((status = 200, description = "It does", body = HealthView)),
)]
async fn readyz(State(service): State<Arc<Service>>) -> ApiResult<View<HealthView>> {
    service.check_ready().await?;
    Ok(View(HealthView { status: "ready" }))
}

/// What was counted, in Prometheus' text format. No label names a tenant.
#[utoipa::path(
    get, path = "/metrics", tag = "operations", operation_id = "metrics",
    responses((status = 200, description = "The metrics", body = String, content_type = "text/plain")),
)]
async fn metrics(State(http): State<Http>, _reader: Anyone) -> ApiResult<Response> {
    let mut text = String::new();
    encode(&mut text, &registry(&http)).map_err(|error| ApiError::internal(error.to_string()))?;
    let kind = HeaderValue::from_static(CONTENT_TYPE);
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabels {
    method: &'static str,
    route: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AnswerLabels {
    method: &'static str,
    route: String,
    status: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

/// What the HTTP layer counts itself.
#[derive(Clone, Debug)]
pub struct HttpMetrics {
    answers: Family<AnswerLabels, Counter>,
    seconds: Family<RouteLabels, Histogram, fn() -> Histogram>,
}

fn latency() -> Histogram {
    Histogram::new([0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 300.0])
}

impl Default for HttpMetrics {
    fn default() -> Self {
        Self { answers: Family::default(), seconds: Family::new_with_constructor(latency) }
    }
}

impl HttpMetrics {
    /// Notes an answer. `route` is the pattern, so that there are as many series as routes.
    pub fn note(&self, method: &Method, route: &str, status: StatusCode, elapsed: Duration) {
        let (method, route) = (method_label(method), route.to_owned());
        let labels = AnswerLabels { method, route: route.clone(), status: class(status) };
        self.answers.get_or_create(&labels).inc();
        self.seconds.get_or_create(&RouteLabels { method, route }).observe(elapsed.as_secs_f64());
    }
}

/// A client can send any word as its method.
fn method_label(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        _ => "other",
    }
}

fn class(status: StatusCode) -> &'static str {
    match status.as_u16() / 100 {
        1 => "1xx",
        2 => "2xx",
        3 => "3xx",
        4 => "4xx",
        _ => "5xx",
    }
}

const OUTCOMES: [&str; 5] = ["completed", "failed", "cancelled", "interrupted", "timed_out"];

/// All metrics as they stand now. The counters live where the things are counted; they are gathered here when they are asked for.
fn registry(http: &Http) -> Registry {
    let mut registry = Registry::with_prefix("ostler");
    registry.register("http_requests", "Requests answered", http.metrics.answers.clone());
    registry.register("http_request_seconds", "Time until the answer began", http.metrics.seconds.clone());
    let counters = http.service.counters();
    let turns: Family<OutcomeLabels, Counter> = Family::default();
    for (outcome, count) in OUTCOMES.into_iter().zip(&counters.turns) {
        turns.get_or_create(&OutcomeLabels { outcome }).inc_by(count.load(Ordering::Relaxed));
    }
    registry.register("turns", "Turns ended, by outcome", turns);
    let read = |count: &AtomicU64| ConstCounter::new(count.load(Ordering::Relaxed));
    let writer = http.service.store().writer_stats();
    let counts = [
        ("approvals_requested", "Approvals asked", read(&counters.approvals_requested)),
        ("approvals_decided", "Approvals decided by a person", read(&counters.approvals_decided)),
        ("sweeps", "Sweeps done", read(&counters.sweeps)),
        ("sessions_swept", "Sessions put away by sweeps", read(&counters.swept)),
        ("sessions_rehydrated", "Sessions brought back from the database", read(&counters.rehydrated)),
        ("writer_commits", "Commits of the writer", ConstCounter::new(writer.commits)),
        ("writer_writes", "Writes in its commits", ConstCounter::new(writer.writes)),
        ("writer_events", "Events in its commits", ConstCounter::new(writer.events)),
        ("writer_failures", "Commits that failed", ConstCounter::new(writer.failures)),
    ];
    for (name, help, count) in counts {
        add(&mut registry, name, help, count);
    }
    let busy = Duration::from_micros(writer.busy_micros).as_secs_f64();
    add(
        &mut registry,
        "writer_busy_seconds",
        "Time from BEGIN to the end of COMMIT",
        ConstCounter::new(busy),
    );
    let gauge = |value: u64| ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
    add(&mut registry, "writer_largest_batch", "Most writes in one commit", gauge(writer.largest_batch));
    add(
        &mut registry,
        "sessions_live",
        "Sessions whose harness runs here",
        gauge(http.service.live_count() as u64),
    );
    let readers = http.service.store().subscriber_count() as u64;
    add(&mut registry, "event_subscribers", "Listeners to sessions' events", gauge(readers));
    registry
}

fn add(registry: &mut Registry, name: &str, help: &str, metric: impl Metric) {
    registry.register(name, help, metric);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_counted_by_method_route_and_class() {
        let metrics = HttpMetrics::default();
        metrics.note(&Method::GET, "/v1/me", StatusCode::OK, Duration::from_millis(2));
        let odd = Method::from_bytes(b"BREW").unwrap();
        metrics.note(&odd, "none", StatusCode::NOT_FOUND, Duration::ZERO);
        let mut registry = Registry::with_prefix("ostler");
        registry.register("http_requests", "x", metrics.answers);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        assert!(
            text.contains(r#"ostler_http_requests_total{method="GET",route="/v1/me",status="2xx"} 1"#),
            "{text}"
        );
        assert!(text.contains(r#"method="other",route="none",status="4xx""#), "{text}");
    }
}
