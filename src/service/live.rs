//! The sessions that a driver of this process has in hand.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};

use crate::clock::Timestamp;
use crate::domain::session::StopCause;
use crate::domain::sweep::Resting;
use crate::ids::SessionKey;

/// What others know of a session in hand, and how they reach its driver.
#[derive(Debug)]
pub(super) struct Live {
    /// The session.
    pub(super) key: SessionKey,
    /// Rings when rows changed that the driver should look at.
    doorbell: Notify,
    rest: Mutex<Rest>,
    gone: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Rest {
    /// Since when nothing is at work.
    idle_since: Option<Timestamp>,
    /// Why the driver should put the session away as soon as nothing is at work.
    put_away: Option<StopCause>,
}

impl Live {
    /// Rows changed: the driver looks at them.
    pub(super) fn ring(&self) {
        self.doorbell.notify_one();
    }

    /// Waits for the bell. One ring is remembered while nobody waits.
    pub(super) async fn rung(&self) {
        self.doorbell.notified().await;
    }

    /// Nothing is at work since then.
    pub(super) fn rests_since(&self, moment: Timestamp) {
        lock(&self.rest).idle_since.get_or_insert(moment);
    }

    /// A turn is at work; a wish to put the session away held only while it rested.
    pub(super) fn works(&self) {
        *lock(&self.rest) = Rest::default();
    }

    /// Wants the session put away when it is at rest.
    pub(super) fn put_away(&self, cause: StopCause) {
        lock(&self.rest).put_away = Some(cause);
        self.ring();
    }

    /// Whether, and why, the session should be put away when it is at rest.
    pub(super) fn wants_put_away(&self) -> Option<StopCause> {
        lock(&self.rest).put_away
    }

    /// Waits until the driver has let the session go.
    pub(super) async fn wait_gone(&self) {
        // The sender lives in `self`.
        drop(self.gone.subscribe().wait_for(|gone| *gone).await);
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct LiveSessions {
    map: Mutex<HashMap<SessionKey, Arc<Live>>>,
}

impl LiveSessions {
    /// The session, if it is in hand.
    pub(super) fn get(&self, key: SessionKey) -> Option<Arc<Live>> {
        lock(&self.map).get(&key).cloned()
    }

    /// Takes a session in hand; `None` when it is already.
    pub(super) fn take(&self, key: SessionKey) -> Option<Arc<Live>> {
        let mut map = lock(&self.map);
        if map.contains_key(&key) {
            return None;
        }
        let live = Arc::new(Live {
            key,
            doorbell: Notify::new(),
            rest: Mutex::new(Rest::default()),
            gone: watch::Sender::new(false),
        });
        map.insert(key, Arc::clone(&live));
        Some(live)
    }

    /// Lets a session go. Called with its mutex held, so that no command can find a driver that does not look any more.
    pub(super) fn let_go(&self, live: &Live) {
        lock(&self.map).remove(&live.key);
        live.gone.send_replace(true);
    }

    /// How many are in hand.
    pub(super) fn count(&self) -> usize {
        lock(&self.map).len()
    }

    /// All of them.
    pub(super) fn all(&self) -> Vec<Arc<Live>> {
        lock(&self.map).values().cloned().collect()
    }

    /// All of them as the sweeper sees them.
    pub(super) fn resting(&self) -> Vec<Resting> {
        let idle_since = |live: &Live| lock(&live.rest).idle_since;
        lock(&self.map).values().map(|live| Resting { key: live.key, idle_since: idle_since(live) }).collect()
    }
}

// A panic while one of these is held leaves nothing half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
