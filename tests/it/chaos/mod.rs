//! Three replicas on one database, clients that pick one at random, and a hand that kills and freezes replicas: what was
//! acknowledged is there, nothing ran twice, all replicas tell the same, and no session is left without a holder.
//!
//! Short by default; the environment asks for more: `OSTLER_CHAOS_SECONDS`, `OSTLER_FAILOVERS`, `OSTLER_FAILOVER_SESSIONS`.

mod agents;
pub mod clients;
mod failover;
pub mod storm;
mod watch;

/// A count from the environment.
pub fn count(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
