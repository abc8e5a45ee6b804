//! Events: read here; the writer alone appends them.

use super::super::EventPage;
use super::super::dialect::{Record, Statement};
use super::rows::Reader;
use crate::clock::Timestamp;
use crate::domain::event::Event;
use crate::domain::turn::Ordinal;
use crate::ids::{SessionKey, TurnId};
use crate::store::Result;

/// Two look-ups in the key, so that both ends are found without reading what lies between.
pub(super) fn bounds(session: SessionKey) -> Statement {
    Statement::new(
        "SELECT COALESCE((SELECT MIN(seq) FROM events WHERE session_key = $1), 0) AS first_seq,
            COALESCE((SELECT MAX(seq) FROM events WHERE session_key = $1), 0) AS last_seq",
    )
    .bind(session)
}

pub(super) fn list(session: SessionKey, after: i64, limit: i64) -> Statement {
    Statement::new(
        "SELECT e.session_key, e.seq, e.kind, e.at, e.data, t.id AS turn_id
         FROM events e LEFT JOIN turns t ON t.session_key = e.session_key AND t.ordinal = e.turn
         WHERE e.session_key = $1 AND e.seq > $2 ORDER BY e.seq LIMIT $3",
    )
    .bind(session)
    .bind(after)
    .bind(limit)
}

pub(super) fn list_of_turn(session: SessionKey, turn: Ordinal, after: i64, limit: i64) -> Statement {
    Statement::new(
        "SELECT e.session_key, e.seq, e.kind, e.at, e.data, t.id AS turn_id
         FROM events e LEFT JOIN turns t ON t.session_key = e.session_key AND t.ordinal = e.turn
         WHERE e.session_key = $1 AND e.turn = $2 AND e.seq > $3 ORDER BY e.seq LIMIT $4",
    )
    .bind(session)
    .bind(turn)
    .bind(after)
    .bind(limit)
}

/// Events that one purge erases; more would keep other writers waiting.
pub(super) const PURGED_AT_ONCE: u64 = 5000;
/// Sessions that are looked at together for old events.
pub(super) const AGED_AT_ONCE: i64 = 500;

/// Sessions behind a key whose first event is old, and not the last one, and none of whose turns is open: a few look-ups for each,
/// however many events there are.
pub(super) fn list_aged(after: SessionKey, before: Timestamp) -> Statement {
    Statement::new(
        "SELECT s.session_key FROM agent_harness_sessions s
         WHERE s.session_key > $1 AND s.created_at < $2
            AND (SELECT e.at FROM events e WHERE e.session_key = s.session_key ORDER BY e.seq LIMIT 1) < $2
            AND (SELECT e.seq FROM events e WHERE e.session_key = s.session_key ORDER BY e.seq LIMIT 1 OFFSET 1) IS NOT NULL
            AND (SELECT t.ordinal FROM turns t WHERE t.session_key = s.session_key AND t.ended_at IS NULL LIMIT 1) IS NULL
         ORDER BY s.session_key LIMIT $3",
    )
    .bind(after)
    .bind(before)
    .bind(AGED_AT_ONCE)
}

pub(super) fn read_aged(records: Vec<Record>) -> Result<Vec<SessionKey>> {
    let key = |record| {
        Reader::new(record, "agent_harness_sessions", "session_key").int("session_key").map(SessionKey)
    };
    records.into_iter().map(key).collect()
}

/// The old events at the front of a session's log; the last of all stays, so that its sequence goes on from there.
pub(super) fn purge(session: SessionKey, before: Timestamp) -> Statement {
    Statement::new(
        "DELETE FROM events WHERE session_key = $1
            AND seq < (SELECT MAX(l.seq) FROM events l WHERE l.session_key = $1)
            AND seq < (SELECT MIN(f.seq) + $3 FROM events f WHERE f.session_key = $1)
            AND seq < COALESCE((SELECT k.seq FROM events k WHERE k.session_key = $1 AND k.at >= $2 ORDER BY k.seq LIMIT 1),
                9223372036854775807)
            AND NOT EXISTS (SELECT 1 FROM turns t WHERE t.session_key = $1 AND t.ended_at IS NULL)",
    )
    .bind(session)
    .bind(before)
    .bind(PURGED_AT_ONCE as i64)
}

pub(super) fn page(bounds: Option<Record>, records: Vec<Record>) -> Result<EventPage> {
    let (first_seq, last_seq) = match bounds {
        Some(record) => {
            let row = Reader::new(record, "events", "first_seq");
            (row.int("first_seq")?, row.int("last_seq")?)
        }
        None => (0, 0),
    };
    let events = records.into_iter().map(read).collect::<Result<Vec<_>>>()?;
    // Events that were committed between the two reads are part of the log as well.
    let last_seq = events.last().map_or(last_seq, |event| event.seq.max(last_seq));
    Ok(EventPage { events, first_seq, last_seq })
}

fn read(record: Record) -> Result<Event> {
    let row = Reader::new(record, "events", "seq");
    Ok(Event {
        seq: row.int("seq")?,
        kind: row.text("kind")?,
        turn_id: row.opt_text("turn_id")?.map(TurnId::from_row),
        at: row.time("at")?,
        data: row.text("data")?,
    })
}
