//! What other processes did: commands for sessions that are held here, events of sessions that somebody listens to here. A hint
//! says it at once, a look at the table finds it in any case.

use std::sync::Arc;

use super::Service;

impl Service {
    /// Follows hints, and looks whether any came or not, until the service has ended.
    pub(super) async fn follow_news(self: Arc<Self>) {
        tokio::select! {
            () = self.follow_hints() => {}
            () = self.look_for_ever() => {}
            () = self.ended.cancelled() => {}
        }
    }

    async fn follow_hints(&self) {
        loop {
            if let Some(live) = self.live.get(self.store.next_hint().await) {
                live.ring();
            }
        }
    }

    /// By itself: however many hints come, the one that is missing may be the one that matters.
    async fn look_for_ever(&self) {
        loop {
            tokio::time::sleep(self.options.poll_interval).await;
            self.look().await;
        }
    }

    async fn look(&self) {
        let held: Vec<_> = self.live.all().iter().map(|live| live.key).collect();
        match self.store.look_for_news(&held).await {
            Ok(changed) => {
                changed.into_iter().filter_map(|key| self.live.get(key)).for_each(|live| live.ring())
            }
            Err(error) => {
                tracing::warn!(error = super::chain(&error), "news of other replicas cannot be read")
            }
        }
    }
}
