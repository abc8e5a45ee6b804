//! The ordered end: nothing new, turns get their grace, harnesses are put away, the store closes last.

use std::sync::Arc;
use std::time::Duration;

use super::Service;

/// What harnesses have to end in beyond the grace of their turns, before the process ends regardless.
const LAST_WAIT: Duration = Duration::from_secs(30);

impl Service {
    /// Begins to go down: verbs refuse, streams end, drivers put their sessions away.
    pub fn begin_shutdown(&self) {
        self.closing.cancel();
    }

    /// Goes down: returns when every driver and unit of work has finished. [`Service::close`] follows.
    pub async fn shut_down(self: &Arc<Self>) {
        self.begin_shutdown();
        if let Err(error) = self.store.drain_replica(&self.membership.term().replica).await {
            tracing::warn!(error = super::chain(&error), "others are not told that this replica goes down");
        }
        for live in self.live.all() {
            live.ring();
        }
        self.tasks.close();
        let patience = self.options.shutdown_grace + self.options.cancel_grace + LAST_WAIT;
        tokio::select! {
            () = self.tasks.wait() => {}
            () = self.clock.sleep(patience) => {
                tracing::error!(live = self.live.count(), "sessions are still live; the next start takes care of them");
            }
        }
    }

    /// Closes the store, when nothing needs it any more: what was accepted is committed first.
    pub async fn close(&self) {
        self.ended.cancel();
        // While a harness may still run, nobody else is to start one: then the lease ends by its time.
        if self.live.count() == 0
            && let Err(error) = self.store.forget_replica(&self.membership.term().replica).await
        {
            tracing::warn!(error = super::chain(&error), "this replica's row is left behind");
        }
        self.store.close().await;
    }
}
