//! Hints that more events are committed. A channel is only a hint, and a short memory of what was committed last; the table is
//! the truth, and whoever falls behind reads it there.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use tokio::sync::watch;

use crate::domain::event::Event;
use crate::ids::SessionKey;

/// How many events a channel remembers.
const REMEMBERED: usize = 512;
/// And how many bytes of them, about; but always the last one.
const REMEMBERED_BYTES: usize = 4 << 20;

/// A committed event, and its encoding for the wire, made once for all who want it.
#[derive(Debug)]
pub struct Published {
    /// The event.
    pub event: Event,
    frame: OnceLock<Bytes>,
}

impl Published {
    /// An event that is committed.
    pub fn new(event: Event) -> Self {
        Self { event, frame: OnceLock::new() }
    }

    /// The event's encoding; `encode` is called for the first who asks.
    pub fn frame(&self, encode: impl FnOnce(&Event) -> Bytes) -> Bytes {
        self.frame.get_or_init(|| encode(&self.event)).clone()
    }
}

#[derive(Debug)]
struct Channel {
    committed: watch::Sender<i64>,
    recent: Mutex<VecDeque<Arc<Published>>>,
}

/// The channels of the sessions that somebody listens to.
#[derive(Debug, Default)]
pub(super) struct Wakeups {
    channels: Mutex<HashMap<SessionKey, Arc<Channel>>>,
}

impl Wakeups {
    /// Whether somebody listens: if not, there is nothing to prepare.
    pub(super) fn is_heard(&self, session: SessionKey) -> bool {
        lock(&self.channels).contains_key(&session)
    }

    /// Tells the listeners of a session what was committed. Called after the commit, in order of seq.
    pub(super) fn publish(&self, session: SessionKey, events: Vec<Event>) {
        let Some(channel) = lock(&self.channels).get(&session).cloned() else { return };
        let Some(last) = events.last().map(|event| event.seq) else { return };
        {
            let mut recent = lock(&channel.recent);
            // After a commit whose fate was unknown, events may be in the table that were never published: what is remembered
            // has no hole, so that it begins anew behind one.
            let follows = recent.back().map(|last| last.event.seq + 1);
            if follows.is_some_and(|seq| events.first().is_some_and(|first| first.seq != seq)) {
                recent.clear();
            }
            recent.extend(events.into_iter().map(|event| Arc::new(Published::new(event))));
            let mut bytes = 0;
            let kept = recent.iter().rev().take(REMEMBERED).take_while(|published| {
                bytes += published.event.data.len();
                bytes <= REMEMBERED_BYTES
            });
            let kept = kept.count().max(1);
            let excess = recent.len().saturating_sub(kept);
            recent.drain(..excess);
        }
        channel.committed.send_replace(last);
    }

    /// Tells those who began to listen while events were committed that the table has more than they may have read there.
    /// Nothing is remembered of these events, and nothing from before them: the listeners' channel is younger.
    pub(super) fn wake(&self, session: SessionKey) {
        if let Some(channel) = lock(&self.channels).get(&session) {
            channel.committed.send_modify(|_| {});
        }
    }

    /// Tells the listeners of a session that another process appended to its log. What is remembered here has a hole then, or
    /// ends too early: it begins anew.
    pub(super) fn wake_foreign(&self, session: SessionKey, last: Option<i64>) {
        let Some(channel) = lock(&self.channels).get(&session).cloned() else { return };
        lock(&channel.recent).clear();
        channel.committed.send_modify(|committed| *committed = last.unwrap_or(*committed));
    }

    /// The last seq that the listeners of a session were told of; `None` when nobody listens.
    pub(super) fn told(&self, session: SessionKey) -> Option<i64> {
        lock(&self.channels).get(&session).map(|channel| *channel.committed.borrow())
    }

    /// The sessions that somebody listens to.
    pub(super) fn heard(&self) -> Vec<SessionKey> {
        lock(&self.channels).keys().copied().collect()
    }

    /// Listens to a session. Events committed from now on are heard; earlier ones are in the table.
    pub(super) fn subscribe(self: &Arc<Self>, session: SessionKey) -> Subscription {
        let mut channels = lock(&self.channels);
        let channel = channels.entry(session).or_insert_with(|| {
            Arc::new(Channel { committed: watch::Sender::new(0), recent: Mutex::new(VecDeque::new()) })
        });
        let doorbell = channel.committed.subscribe();
        Subscription { session, channel: Arc::clone(channel), doorbell, wakeups: Arc::clone(self) }
    }

    /// How many listen.
    pub(super) fn count(&self) -> usize {
        lock(&self.channels).values().map(|channel| channel.committed.receiver_count()).sum()
    }
}

/// An ear at one session.
#[derive(Debug)]
pub struct Subscription {
    session: SessionKey,
    channel: Arc<Channel>,
    doorbell: watch::Receiver<i64>,
    wakeups: Arc<Wakeups>,
}

impl Subscription {
    /// Waits until more is committed than at the last call.
    pub async fn changed(&mut self) {
        // The sender lives in `channel`, which this subscription holds.
        if self.doorbell.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// The last seq that this session's listeners were told of, 0 where they were told of none. What is committed from now on is a
    /// change.
    pub fn told(&mut self) -> i64 {
        *self.doorbell.borrow_and_update()
    }

    /// The remembered events after `seq` without a hole; `None` when the memory does not reach back that far, so that the table must be read.
    pub fn remembered_after(&self, seq: i64) -> Option<Vec<Arc<Published>>> {
        let recent = lock(&self.channel.recent);
        let first = recent.front()?.event.seq;
        // No hole: a seq says its place.
        let known = usize::try_from(seq.saturating_add(1) - first).ok()?;
        Some(recent.range(known.min(recent.len())..).cloned().collect())
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut channels = lock(&self.wakeups.channels);
        // This subscription's own doorbell still counts as one.
        if self.channel.committed.receiver_count() <= 1 {
            channels.remove(&self.session);
        }
    }
}

// A panic while one of these is held leaves nothing half done: each critical section is one step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;

    fn event(seq: i64) -> Event {
        Event { seq, kind: "text.delta".into(), turn_id: None, at: Timestamp(0), data: "{}".into() }
    }

    const SESSION: SessionKey = SessionKey(1);

    fn seqs(published: Vec<Arc<Published>>) -> Vec<i64> {
        published.iter().map(|p| p.event.seq).collect()
    }

    #[tokio::test]
    async fn a_listener_wakes_and_finds_what_was_committed_since() {
        let wakeups = Arc::new(Wakeups::default());
        let mut ear = wakeups.subscribe(SESSION);
        wakeups.publish(SESSION, vec![event(3), event(4)]);
        ear.changed().await;
        assert_eq!(seqs(ear.remembered_after(3).unwrap()), [4]);
        assert!(ear.remembered_after(1).is_none(), "seq 2 is only in the table");
    }

    #[tokio::test]
    async fn a_listener_who_came_in_the_middle_of_a_commit_is_woken_and_reads_the_table() {
        let wakeups = Arc::new(Wakeups::default());
        wakeups.wake(SESSION);
        let mut ear = wakeups.subscribe(SESSION);
        wakeups.wake(SESSION);
        ear.changed().await;
        assert!(ear.remembered_after(0).is_none());
    }

    #[tokio::test]
    async fn what_another_process_appended_is_read_from_the_table() {
        let wakeups = Arc::new(Wakeups::default());
        let mut ear = wakeups.subscribe(SESSION);
        wakeups.publish(SESSION, vec![event(3)]);
        ear.changed().await;
        assert_eq!(seqs(ear.remembered_after(3).unwrap()), [] as [i64; 0]);
        wakeups.wake_foreign(SESSION, Some(4));
        ear.changed().await;
        assert!(ear.remembered_after(3).is_none(), "seq 4 is only in the table");
        assert_eq!(wakeups.told(SESSION), Some(4));
    }

    #[test]
    fn what_is_remembered_has_no_hole() {
        let wakeups = Arc::new(Wakeups::default());
        let ear = wakeups.subscribe(SESSION);
        wakeups.publish(SESSION, vec![event(3)]);
        wakeups.publish(SESSION, vec![event(5)]);
        assert!(ear.remembered_after(3).is_none(), "seq 4 is only in the table");
        assert_eq!(seqs(ear.remembered_after(4).unwrap()), [5]);
    }

    #[test]
    fn a_channel_ends_with_its_last_listener() {
        let wakeups = Arc::new(Wakeups::default());
        let (one, two) = (wakeups.subscribe(SESSION), wakeups.subscribe(SESSION));
        assert_eq!(wakeups.count(), 2);
        drop(one);
        assert!(wakeups.is_heard(SESSION));
        drop(two);
        assert!(!wakeups.is_heard(SESSION));
    }

    #[test]
    fn a_channel_remembers_a_bounded_number_of_events() {
        let wakeups = Arc::new(Wakeups::default());
        let ear = wakeups.subscribe(SESSION);
        wakeups.publish(SESSION, (1..=2000).map(event).collect());
        assert!(ear.remembered_after(0).is_none());
        assert_eq!(ear.remembered_after(2000 - REMEMBERED as i64).unwrap().len(), REMEMBERED);
    }

    #[test]
    fn a_frame_is_encoded_once() {
        let published = Published::new(event(1));
        assert_eq!(
            published.frame(|_| Bytes::from_static(b"one")),
            published.frame(|_| Bytes::from_static(b"two"))
        );
    }
}
