//! Which live sessions to put away. Live sessions in, plan out.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::ids::SessionKey;

/// A live session as the sweeper sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resting {
    /// The session.
    pub key: SessionKey,
    /// Since when nothing has been at work in it; `None` while a turn is, waiting for a person included.
    pub idle_since: Option<Timestamp>,
}

/// The sessions whose time is up, the longest idle first.
pub fn plan(live: &[Resting], ttl: Duration, now: Timestamp) -> Vec<SessionKey> {
    let mut due: Vec<(Timestamp, SessionKey)> = live
        .iter()
        .filter_map(|resting| resting.idle_since.map(|since| (since, resting.key)))
        .filter(|(since, _)| since.plus(ttl) <= now)
        .collect();
    due.sort_unstable();
    due.into_iter().map(|(_, key)| key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resting(key: i64, idle_since: Option<i64>) -> Resting {
        Resting { key: SessionKey(key), idle_since: idle_since.map(Timestamp) }
    }

    #[test]
    fn row_65_a_session_is_put_away_when_its_time_is_up_and_not_a_moment_before() {
        let live = [resting(1, Some(0))];
        assert!(plan(&live, Duration::from_millis(100), Timestamp(99)).is_empty());
        assert_eq!(plan(&live, Duration::from_millis(100), Timestamp(100)), [SessionKey(1)]);
    }

    #[test]
    fn row_67_a_session_at_work_is_never_put_away() {
        assert!(plan(&[resting(1, None)], Duration::ZERO, Timestamp(i64::MAX)).is_empty());
    }

    #[test]
    fn the_longest_idle_goes_first() {
        let live = [resting(1, Some(5)), resting(2, Some(3)), resting(3, None)];
        assert_eq!(plan(&live, Duration::ZERO, Timestamp(9)), [SessionKey(2), SessionKey(1)]);
    }
}
