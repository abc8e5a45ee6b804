//! What the tests share: a service as a real process, on either database and as several replicas; a client of its API, a reader of its
//! event streams.

pub mod api;
#[path = "../../fake_model/chat.rs"]
pub mod chat_model;
pub mod disks;
pub mod fake_agent;
pub mod fleet;
pub mod postgres;
pub mod processes;
pub mod proxy;
pub mod server;
pub mod sse;

use std::future::Future;
use std::time::Duration;

/// Long enough for the slowest machine; a test that waits longer has found a hang.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// The time that something may take: as long as is promised when the full figure is asked for, on a machine that has time for it,
/// and three times as long in every other run, which is there to find what hangs.
pub fn bound(variable: &str, promised: Duration) -> Duration {
    if std::env::var(variable).is_ok() { promised } else { promised * 3 }
}

/// Fails the test when something took so much longer than is promised that no busy machine explains it.
pub fn assert_soon(took: Duration, promised: Duration) {
    assert!(took < promised * 5, "{took:?}, where {promised:?} is promised");
}

/// Fails the test when `work` takes longer than [`DEADLINE`].
pub async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    match tokio::time::timeout(DEADLINE, work).await {
        Ok(done) => done,
        Err(_) => panic!("waited {DEADLINE:?} for {what}"),
    }
}

/// Every error code of the contract.
pub const CODES: &[&str] = &[
    "invalid_body",
    "invalid_cursor",
    "invalid_query",
    "owner_required",
    "unauthenticated",
    "insufficient_scope",
    "host_not_allowed",
    "not_found",
    "unknown_harness",
    "method_not_allowed",
    "not_acceptable",
    "body_too_large",
    "unsupported_media_type",
    "turn_in_progress",
    "approval_pending",
    "approval_already_resolved",
    "approval_expired",
    "approval_closed",
    "approval_changed",
    "not_resumable",
    "session_destroyed",
    "run_exists",
    "turn_started",
    "idempotency_in_progress",
    "cursor_expired",
    "invalid_input",
    "unsupported",
    "idempotency_key_reused",
    "rate_limited",
    "quota_exceeded",
    "internal",
    "harness_failed",
    "harness_unavailable",
    "storage_unavailable",
    "overloaded",
    "shutting_down",
    "turn_timed_out",
];
