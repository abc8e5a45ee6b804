//! What is done every few seconds: expire approvals, put idle sessions away, forget what is old.

use std::sync::Arc;
use std::time::Duration;

use super::{Counters, Service, ServiceResult, chain, workspace};
use crate::domain::session::StopCause;
use crate::domain::sweep::plan;

/// Sessions with expired approvals that one sweep takes care of; the next takes the rest.
const EXPIRED_AT_ONCE: i64 = 500;
/// How many sweeps lie between two that also forget what is old.
const FORGET_EVERY: u64 = 60;

impl Service {
    /// Takes up what an earlier process left, and begins to sweep. Call once, before the first request.
    ///
    /// # Errors
    /// When the store cannot be used.
    pub async fn run_background(self: &Arc<Self>) -> ServiceResult<()> {
        for harness in self.harnesses.iter() {
            harness.end_orphans(&workspace::directories_of_all(&self.options)).await;
        }
        self.join().await?;
        if self.store.is_shared() {
            tokio::spawn(Arc::clone(self).stay_a_member());
            tokio::spawn(Arc::clone(self).watch_pulse());
            tokio::spawn(Arc::clone(self).follow_news());
        }
        let recovered = self.recover_all().await?;
        if recovered > 0 {
            tracing::info!(recovered, "sessions of an earlier process were taken care of");
        }
        let this = Arc::clone(self);
        self.tasks.spawn(async move { this.sweep_for_ever().await });
        let this = Arc::clone(self);
        self.tasks.spawn(async move { this.recover_for_ever().await });
        Ok(())
    }

    async fn sweep_for_ever(self: Arc<Self>) {
        for round in 1_u64.. {
            tokio::select! {
                () = self.clock.sleep(jittered(self.options.sweep_interval)) => {}
                () = self.closing.cancelled() => return,
            }
            // One failure never ends the loop.
            if let Err(error) = self.sweep(round).await {
                tracing::error!(error = chain(&error), "a sweep failed; the next one tries again");
            }
        }
    }

    async fn sweep(self: &Arc<Self>, round: u64) -> ServiceResult<()> {
        Counters::add(&self.counters.sweeps);
        let now = self.clock.now();
        for key in self.store.list_expired(now, EXPIRED_AT_ONCE).await? {
            self.expire(key).await?;
        }
        for key in plan(&self.live.resting(), self.options.idle_ttl, now) {
            if let Some(live) = self.live.get(key) {
                Counters::add(&self.counters.swept);
                live.put_away(StopCause::IdleTtl);
            }
        }
        if round.is_multiple_of(FORGET_EVERY) {
            self.forget_what_is_old().await?;
        }
        Ok(())
    }

    async fn forget_what_is_old(&self) -> ServiceResult<()> {
        let now = self.clock.now();
        self.store.purge_once(now.minus(self.options.idempotency_ttl)).await?;
        self.store.purge_tickets(now).await?;
        self.store.forget_old_replicas().await?;
        if let Some(retention) = self.options.event_retention {
            let purged = self.store.purge_events(now.minus(retention)).await?;
            tracing::info!(purged, "old events were erased");
        }
        Ok(())
    }
}

/// A tenth more or less, so that replicas do not all look at once.
pub(super) fn jittered(interval: Duration) -> Duration {
    // Without randomness there is no jitter, and no harm.
    let fraction = getrandom::u32().map_or(0.5, |random| f64::from(random) / f64::from(u32::MAX));
    interval.mul_f64(0.9 + 0.2 * fraction)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_jitter_is_at_most_a_tenth_either_way() {
        for _ in 0..1000 {
            let jittered = jittered(Duration::from_secs(10));
            assert!((Duration::from_secs(9)..=Duration::from_secs(11)).contains(&jittered), "{jittered:?}");
        }
    }
}
