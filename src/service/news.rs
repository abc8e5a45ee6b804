//! What other processes did: commands for sessions that are held here, events of sessions that somebody listens to here. A hint
//! says it at once, a look at the table finds it in any case.

use std::sync::Arc;

use super::Service;

impl Service {
    /// Looks for news until the service has ended.
    pub(super) async fn follow_news(self: Arc<Self>) {
        loop {
            tokio::select! {
                key = self.store.next_hint() => {
                    if let Some(live) = self.live.get(key) {
                        live.ring();
                    }
                }
                () = tokio::time::sleep(self.options.poll_interval) => self.look().await,
                () = self.ended.cancelled() => return,
            }
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
