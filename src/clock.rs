//! The only clock. Everything that asks what time it is, or waits for a time, asks here, so that a test can turn the hands.

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Serialize, Serializer};
use tokio::sync::watch;

/// A moment: milliseconds since the Unix epoch, UTC. Stored as such; shown as RFC 3339 with milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// This moment plus a duration, saturating.
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)))
    }

    /// This moment minus a duration, saturating.
    pub fn minus(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)))
    }

    /// How long from `earlier` until this moment; zero when it lies in the future.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Reads an RFC 3339 time, as the API takes it.
    pub fn parse(text: &str) -> Option<Self> {
        DateTime::parse_from_rfc3339(text).ok().map(|at| Self(at.timestamp_millis()))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match DateTime::<Utc>::from_timestamp_millis(self.0) {
            Some(at) => f.write_str(&at.to_rfc3339_opts(SecondsFormat::Millis, true)),
            None => write!(f, "{} ms", self.0),
        }
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Tells the time and waits for it.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// The machine's clock; waits are monotonic.
    #[default]
    System,
    /// A clock that moves only when told to.
    Manual(ManualClock),
}

impl Clock {
    /// What time it is.
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
    pub fn now(&self) -> Timestamp {
        match self {
            Self::System => Timestamp(Utc::now().timestamp_millis()),
            Self::Manual(clock) => *clock.0.borrow(),
        }
    }

    /// Waits until `duration` has passed on this clock.
    pub async fn sleep(&self, duration: Duration) {
        match self {
            Self::System => tokio::time::sleep(duration).await,
            Self::Manual(_) => self.sleep_until(self.now().plus(duration)).await,
        }
    }

    /// Waits until this clock shows `moment`; returns at once when it is past.
    pub async fn sleep_until(&self, moment: Timestamp) {
        match self {
            Self::System => tokio::time::sleep(moment.since(self.now())).await,
            Self::Manual(clock) => {
                let mut hands = clock.0.subscribe();
                // The sender lives in `clock`, so waiting can only end with the moment.
                while hands.wait_for(|now| *now >= moment).await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        }
    }
}

/// A clock for tests: it stands still until [`ManualClock::advance`].
#[derive(Clone, Debug)]
pub struct ManualClock(std::sync::Arc<watch::Sender<Timestamp>>);

impl ManualClock {
    /// A clock that shows `start`.
    pub fn new(start: Timestamp) -> Self {
        Self(std::sync::Arc::new(watch::Sender::new(start)))
    }

    /// Moves the hands forward and wakes all that waited for a moment up to then.
    pub fn advance(&self, duration: Duration) {
        self.0.send_modify(|now| *now = now.plus(duration));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_as_rfc_3339_with_milliseconds_and_read_back() {
        let at = Timestamp(1_700_000_000_007);
        assert_eq!(at.to_string(), "2023-11-14T22:13:20.007Z");
        assert_eq!(Timestamp::parse("2023-11-14T23:13:20.007+01:00"), Some(at));
        assert_eq!(Timestamp::parse("yesterday"), None);
    }

    #[tokio::test]
    async fn a_manual_clock_wakes_its_sleepers_when_it_is_moved_and_not_before() {
        let hands = ManualClock::new(Timestamp(0));
        let clock = Clock::Manual(hands.clone());
        let sleeper = tokio::spawn({
            let clock = clock.clone();
            async move { clock.sleep_until(Timestamp(1000)).await }
        });
        hands.advance(Duration::from_millis(999));
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        hands.advance(Duration::from_millis(1));
        sleeper.await.unwrap();
    }
}
