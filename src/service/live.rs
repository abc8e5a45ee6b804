//! The sessions that a driver of this process has in hand.

use std::collections::HashMap;
use std::future::Future;
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

    /// Wants the session put away when it is at rest; false when somebody has wanted it already, or it is at work.
    fn evict(&self, cause: StopCause) -> bool {
        let mut rest = lock(&self.rest);
        if rest.idle_since.is_none() || rest.put_away.is_some() {
            return false;
        }
        rest.put_away = Some(cause);
        drop(rest);
        self.ring();
        true
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
    crowd: Mutex<Crowd>,
    /// Rings when a session, or room for one, is let go.
    left: Notify,
}

/// Those who are about to make a session live.
#[derive(Debug, Default)]
struct Crowd {
    /// They have room.
    reserved: usize,
    /// They wait for it.
    waiting: usize,
}

/// A place among those who want room.
pub(super) struct Seat(Arc<LiveSessions>);

/// Room for one session, until it is dropped.
#[derive(Debug)]
pub(super) struct Room(Arc<LiveSessions>);

impl Seat {
    /// Room, where fewer sessions are live than that.
    pub(super) fn reserve(&mut self, max: usize) -> Option<Room> {
        let live = self.0.count();
        let mut crowd = lock(&self.0.crowd);
        if live + crowd.reserved >= max {
            return None;
        }
        crowd.reserved += 1;
        Some(Room(Arc::clone(&self.0)))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        lock(&self.0.crowd).waiting -= 1;
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        lock(&self.0.crowd).reserved -= 1;
        self.0.left.notify_waiters();
    }
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
        self.left.notify_waiters();
    }

    /// Joins those who want room.
    pub(super) fn queue(self: Arc<Self>) -> Seat {
        lock(&self.crowd).waiting += 1;
        Seat(self)
    }

    /// Resolves when a session, or room for one, is let go from now on.
    pub(super) fn left(&self) -> impl Future<Output = ()> {
        let mut left = Box::pin(self.left.notified());
        left.as_mut().enable();
        left
    }

    /// Has as many of the longest idle sessions put away as there are who want room. False when none is idle, or on its way.
    pub(super) fn put_idle_away(&self, cause: StopCause) -> bool {
        let mut idle: Vec<(Timestamp, Arc<Live>)> = lock(&self.map)
            .values()
            .filter_map(|live| Some((lock(&live.rest).idle_since?, Arc::clone(live))))
            .collect();
        idle.sort_by_key(|(since, _)| *since);
        let leaving = idle.iter().filter(|(_, live)| live.wants_put_away().is_some()).count();
        let wanted = lock(&self.crowd).waiting.saturating_sub(leaving);
        let evicted = idle.iter().filter(|(_, live)| live.evict(cause)).take(wanted).count();
        leaving + evicted > 0
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
