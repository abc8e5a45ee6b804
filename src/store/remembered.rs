//! Sessions as they were read last. Where no other process can change them, what this one has read and not changed since is what the
//! table says, and needs no question.
//!
//! A read notes a stamp before it asks, and what it found is kept only while the stamp stands. Every write takes the stamp away after
//! its commit and before anybody is told of it: so that nobody who knows of a commit is shown what was before it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::domain::session::Session;
use crate::domain::turn::Turn;
use crate::ids::{SessionId, SessionKey, TurnId};

/// How many bytes of rows are kept, about; beyond it the memory starts anew.
const BYTES_MAX: usize = 16 << 20;
/// What a row weighs beside its texts.
const ROW_BYTES: usize = 1024;

/// See the module.
#[derive(Debug)]
pub(super) struct Remembered(Option<Mutex<Memory>>);

/// Whether what is read now is still so when it has been read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stamp(SessionKey, u64);

#[derive(Debug, Default)]
struct Memory {
    slots: HashMap<SessionKey, Slot>,
    keys: HashMap<SessionId, SessionKey>,
    stamps: u64,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Slot {
    stamp: u64,
    bytes: usize,
    session: Option<Arc<Session>>,
}

impl Remembered {
    /// A memory for a database that no other process changes.
    pub(super) fn of_sole_process() -> Self {
        Self(Some(Mutex::default()))
    }

    /// No memory: others may change what was read.
    pub(super) fn nothing() -> Self {
        Self(None)
    }

    fn memory(&self) -> Option<MutexGuard<'_, Memory>> {
        // A panic while it is held leaves nothing half done that another read would not mend.
        self.0.as_ref().map(|memory| memory.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The session, where it is known.
    pub(super) fn session(&self, key: SessionKey) -> Option<Session> {
        let known = self.memory()?.slots.get(&key)?.session.clone()?;
        Some(Session::clone(&known))
    }

    /// The key of a session that was read before.
    pub(super) fn key_of(&self, id: &SessionId) -> Option<SessionKey> {
        self.memory()?.keys.get(id).copied()
    }

    /// A turn, where it is the current one of a session that is known.
    pub(super) fn turn(&self, key: SessionKey, id: &TurnId) -> Option<Turn> {
        let known = self.memory()?.slots.get(&key)?.session.clone()?;
        known.turn.as_ref().filter(|turn| turn.id == *id).cloned()
    }

    /// To be taken before the session's row is read.
    pub(super) fn stamp(&self, key: SessionKey) -> Option<Stamp> {
        let mut memory = self.memory()?;
        if memory.bytes >= BYTES_MAX {
            let stamps = memory.stamps;
            *memory = Memory { stamps, ..Memory::default() };
        }
        let stamp = match memory.slots.get(&key) {
            Some(slot) => slot.stamp,
            None => memory.put(key, None, 0),
        };
        Some(Stamp(key, stamp))
    }

    /// Keeps what was read since the stamp was taken, unless it may have changed meanwhile. `texts` is how many bytes were read. Of
    /// a session that was read without a stamp, since its key was not known, it keeps the key.
    pub(super) fn keep(&self, stamp: Option<Stamp>, session: &Session, texts: usize) {
        let Some(mut memory) = self.memory() else { return };
        let Some(Stamp(key, stamp)) = stamp else { return memory.learn(session) };
        if memory.slots.get(&key).is_some_and(|slot| slot.stamp == stamp) {
            memory.put(key, Some(Arc::new(session.clone())), texts);
            memory.learn(session);
        }
    }

    /// Notes that a session may have changed.
    pub(super) fn forget(&self, key: SessionKey) {
        if let Some(mut memory) = self.memory()
            && memory.slots.contains_key(&key)
        {
            memory.put(key, None, 0);
        }
    }

    /// Notes that nothing but events were appended to a session's log, the last of them this one.
    pub(super) fn advance(&self, key: SessionKey, last_seq: i64) {
        let Some(mut memory) = self.memory() else { return };
        let Some(slot) = memory.slots.get(&key) else { return };
        let (bytes, known) = (slot.bytes, slot.session.clone());
        let advanced = known.map(|known| {
            let last_event_seq = known.last_event_seq.max(last_seq);
            Arc::new(Session { last_event_seq, ..Session::clone(&known) })
        });
        memory.put(key, advanced, bytes);
    }
}

impl Memory {
    fn learn(&mut self, session: &Session) {
        self.keys.entry(session.id.clone()).or_insert(session.key);
        if !self.slots.contains_key(&session.key) {
            self.put(session.key, None, 0);
        }
    }

    /// Fills a slot anew, under a stamp that never was.
    fn put(&mut self, key: SessionKey, session: Option<Arc<Session>>, bytes: usize) -> u64 {
        self.stamps += 1;
        let slot = Slot { stamp: self.stamps, bytes: ROW_BYTES + bytes, session };
        self.bytes += slot.bytes;
        let before = self.slots.insert(key, slot);
        self.bytes -= before.map_or(0, |before| before.bytes);
        self.stamps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;

    const KEY: SessionKey = SessionKey(1);

    fn session(seq: i64) -> Session {
        let session = Session::new(KEY, "acme".into(), "alice".into(), "demo".into(), Timestamp(0));
        Session {
            id: SessionId::from_row("ses_1".into()),
            run_id: "r".into(),
            last_event_seq: seq,
            ..session
        }
    }

    fn remembered() -> Remembered {
        Remembered::of_sole_process()
    }

    #[test]
    fn what_was_read_is_known_by_its_key_and_its_id_until_it_may_have_changed() {
        let remembered = remembered();
        remembered.keep(remembered.stamp(KEY), &session(3), 10);
        assert_eq!(remembered.session(KEY), Some(session(3)));
        assert_eq!(remembered.key_of(&session(3).id), Some(KEY));
        remembered.forget(KEY);
        assert_eq!(remembered.session(KEY), None);
        assert_eq!(remembered.key_of(&session(3).id), Some(KEY), "a key never changes");
    }

    #[test]
    fn what_may_have_changed_while_it_was_read_is_not_kept() {
        let remembered = remembered();
        let stamp = remembered.stamp(KEY);
        remembered.forget(KEY);
        remembered.keep(stamp, &session(3), 10);
        assert_eq!(remembered.session(KEY), None);

        let stamp = remembered.stamp(KEY);
        remembered.advance(KEY, 4);
        remembered.keep(stamp, &session(3), 10);
        assert_eq!(remembered.session(KEY), None);
    }

    #[test]
    fn events_that_are_appended_move_the_last_seq_and_nothing_else() {
        let remembered = remembered();
        remembered.keep(remembered.stamp(KEY), &session(3), 10);
        let stamp = remembered.stamp(KEY);
        remembered.advance(KEY, 5);
        assert_eq!(remembered.session(KEY), Some(session(5)));
        remembered.keep(stamp, &session(3), 10);
        assert_eq!(remembered.session(KEY), Some(session(5)), "it was read before");
    }

    #[test]
    fn a_session_whose_key_was_not_known_is_known_by_its_id_the_next_time() {
        let remembered = remembered();
        remembered.keep(None, &session(3), 10);
        assert_eq!((remembered.session(KEY), remembered.key_of(&session(3).id)), (None, Some(KEY)));
    }

    #[test]
    fn it_holds_a_bounded_number_of_bytes_whatever_is_read_and_changed() {
        let remembered = remembered();
        for round in 0..10_000 {
            for key in [SessionKey(round), KEY] {
                remembered.keep(remembered.stamp(key), &Session { key, ..session(3) }, 100_000);
                remembered.forget(KEY);
            }
        }
        let memory = remembered.memory().unwrap();
        let held: usize = memory.slots.values().map(|slot| slot.bytes).sum();
        assert_eq!(memory.bytes, held);
        assert!(held <= BYTES_MAX + 100_000 + ROW_BYTES, "{held}");
    }

    #[test]
    fn a_stamp_from_before_the_memory_began_anew_is_worth_nothing() {
        let remembered = remembered();
        let stamp = remembered.stamp(KEY);
        let other = SessionKey(2);
        remembered.keep(remembered.stamp(other), &Session { key: other, ..session(3) }, BYTES_MAX);
        assert!(remembered.stamp(KEY).is_some());
        remembered.keep(stamp, &session(3), 10);
        assert_eq!(remembered.session(KEY), None);
    }

    #[test]
    fn where_others_may_change_rows_nothing_is_remembered() {
        let remembered = Remembered::nothing();
        remembered.keep(remembered.stamp(KEY), &session(3), 10);
        assert_eq!((remembered.session(KEY), remembered.key_of(&session(3).id)), (None, None));
    }
}
