//! Whether this process may still write as a holder. It may for as long as its last renewal is fresh, by its own monotonic clock and
//! counted from before the renewal was sent, less a margin: so it stops before anybody else may take its sessions over, however
//! long it was stopped, cut off or starved.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// The part of the time to live that is not used.
const MARGIN: u32 = 5;
const FOR_EVER: u64 = u64::MAX;

/// See the module.
#[derive(Debug)]
pub struct Pulse {
    born: Instant,
    /// In milliseconds since `born`.
    alive_until: AtomicU64,
}

impl Default for Pulse {
    /// Not alive until the first renewal.
    fn default() -> Self {
        Self { born: Instant::now(), alive_until: AtomicU64::new(0) }
    }
}

impl Pulse {
    /// Nobody else can take anything over: there is only this process.
    pub(super) fn never_ends(&self) {
        self.alive_until.store(FOR_EVER, Ordering::SeqCst);
    }

    /// A renewal that was sent at that moment has been confirmed for that long.
    pub(super) fn renewed(&self, sent: Instant, ttl: Duration) {
        let until = sent.duration_since(self.born) + ttl.saturating_sub(ttl / MARGIN);
        self.alive_until.store(u64::try_from(until.as_millis()).unwrap_or(FOR_EVER - 1), Ordering::SeqCst);
    }

    /// The lease is lost, whatever the clock says.
    pub(super) fn stop(&self) {
        self.alive_until.store(0, Ordering::SeqCst);
    }

    /// Whether this process may write as a holder.
    pub fn is_alive(&self) -> bool {
        u128::from(self.alive_until.load(Ordering::SeqCst)) > self.born.elapsed().as_millis()
    }

    /// Until when, without another renewal; `None` for ever.
    pub fn alive_until(&self) -> Option<Instant> {
        match self.alive_until.load(Ordering::SeqCst) {
            FOR_EVER => None,
            millis => Some(self.born + Duration::from_millis(millis)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn f34_it_ends_a_fifth_before_the_time_to_live_counted_from_the_sending() {
        let pulse = Pulse::default();
        assert!(!pulse.is_alive());
        let sent = Instant::now();
        tokio::time::advance(Duration::from_secs(1)).await;
        pulse.renewed(sent, Duration::from_secs(10));
        tokio::time::advance(Duration::from_millis(6999)).await;
        assert!(pulse.is_alive());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!pulse.is_alive());
        pulse.never_ends();
        assert!(pulse.is_alive() && pulse.alive_until().is_none());
        pulse.stop();
        assert!(!pulse.is_alive());
    }
}
