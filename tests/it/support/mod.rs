//! What the tests share: a service as a real process, a client of its API, a reader of its event streams.

pub mod api;
pub mod server;
pub mod sse;

use std::future::Future;
use std::time::Duration;

/// Long enough for the slowest machine; a test that waits longer has found a hang.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Fails the test when `work` takes longer than [`DEADLINE`].
pub async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    match tokio::time::timeout(DEADLINE, work).await {
        Ok(done) => done,
        Err(_) => panic!("waited {DEADLINE:?} for {what}"),
    }
}
