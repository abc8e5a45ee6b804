//! Points at which a debug build dies on request, as a killed process does: so that a test can kill the service exactly between
//! two steps. A release build has none of this.

/// Dies here when `OSTLER_FAULT` names this point: `NAME`, or `NAME:3` for the third time.
#[cfg(debug_assertions)]
#[expect(clippy::disallowed_methods, reason = "no setting of the service: it exists in debug builds alone")]
pub fn point(name: &str) {
    use std::sync::atomic::{AtomicU64, Ordering};
    static PASSED: AtomicU64 = AtomicU64::new(0);
    let Ok(fault) = std::env::var("OSTLER_FAULT") else { return };
    let (point, time) = match fault.split_once(':') {
        Some((point, time)) => (point, time.parse().unwrap_or(1)),
        None => (fault.as_str(), 1),
    };
    if point == name && PASSED.fetch_add(1, Ordering::SeqCst) + 1 == time {
        std::process::abort();
    }
}

/// Nothing, in a release build.
#[cfg(not(debug_assertions))]
pub fn point(_name: &str) {}
