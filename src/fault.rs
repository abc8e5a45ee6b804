//! Points at which a debug build dies on request, as a killed process does: so that a test can kill the service exactly between
//! two steps. A release build has none of this.

/// Dies here when `OSTLER_FAULT` names this point.
#[cfg(debug_assertions)]
#[expect(clippy::disallowed_methods, reason = "no setting of the service: it exists in debug builds alone")]
pub fn point(name: &str) {
    if std::env::var("OSTLER_FAULT").is_ok_and(|fault| fault == name) {
        std::process::abort();
    }
}

/// Nothing, in a release build.
#[cfg(not(debug_assertions))]
pub fn point(_name: &str) {}
