//! One async mutex per session: whatever changes one session in this process takes turns. Held for load → decide → commit, never
//! across a turn and never while a harness is called. Between processes the version of the row decides.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use crate::ids::SessionKey;

type Map = Arc<Mutex<HashMap<SessionKey, Arc<AsyncMutex<()>>>>>;

/// The mutexes of the sessions that somebody holds or waits for; others cost nothing.
#[derive(Debug, Default)]
pub(super) struct RunLocks {
    map: Map,
}

/// The right to change a session in this process.
#[derive(Debug)]
pub(super) struct RunGuard {
    // Declared first, so released first: the place is given up after the lock.
    _lock: OwnedMutexGuard<()>,
    _place: Place,
}

/// Somebody's place at a mutex, held while waiting and while holding; the last one out removes the mutex.
#[derive(Debug)]
struct Place {
    map: Map,
    key: SessionKey,
    mutex: Arc<AsyncMutex<()>>,
}

impl RunLocks {
    fn place(&self, key: SessionKey) -> Place {
        let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        let mutex = Arc::clone(map.entry(key).or_default());
        Place { map: Arc::clone(&self.map), key, mutex }
    }

    /// Waits for the session's mutex.
    pub(super) async fn lock(&self, key: SessionKey) -> RunGuard {
        let place = self.place(key);
        let lock = Arc::clone(&place.mutex).lock_owned().await;
        RunGuard { _lock: lock, _place: place }
    }

    /// The session's mutex, if nobody holds it.
    #[cfg(test)]
    pub(super) fn try_lock(&self, key: SessionKey) -> Option<RunGuard> {
        let place = self.place(key);
        let lock = Arc::clone(&place.mutex).try_lock_owned().ok()?;
        Some(RunGuard { _lock: lock, _place: place })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        // The map's own and this one: nobody else waits or holds.
        if Arc::strong_count(&self.mutex) == 2 {
            map.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: SessionKey = SessionKey(1);

    #[tokio::test]
    async fn one_at_a_time_holds_a_session_and_others_are_free() {
        let locks = RunLocks::default();
        let guard = locks.lock(KEY).await;
        assert!(locks.try_lock(KEY).is_none());
        assert!(locks.try_lock(SessionKey(2)).is_some());
        drop(guard);
        assert!(locks.try_lock(KEY).is_some());
    }

    #[tokio::test]
    async fn nothing_is_left_of_a_session_that_nobody_holds_also_after_a_cancelled_waiter() {
        let locks = Arc::new(RunLocks::default());
        let guard = locks.lock(KEY).await;
        let waiter = tokio::spawn({
            let locks = Arc::clone(&locks);
            async move { locks.lock(KEY).await }
        });
        tokio::task::yield_now().await;
        waiter.abort();
        drop(waiter.await);
        drop(guard);
        assert!(locks.map.lock().unwrap().is_empty());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_hundred_thousand_runs_leave_no_entry() {
        let locks = Arc::new(RunLocks::default());
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let locks = Arc::clone(&locks);
                tokio::spawn(async move {
                    for key in 0..12_500 {
                        drop(locks.lock(SessionKey(key % 1000)).await);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert!(locks.map.lock().unwrap().is_empty());
    }
}
