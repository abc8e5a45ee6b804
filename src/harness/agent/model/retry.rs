//! Whether and when a call is made again.
//!
//! A reply counts only when it is whole, so that no call that is made again can have run a tool already: it costs tokens at most.

use std::time::Duration;

use chrono::DateTime;

use crate::clock::Timestamp;

/// The wait before the second attempt; it doubles.
const BACKOFF: Duration = Duration::from_millis(500);
/// The longest wait of our own.
const BACKOFF_MAX: Duration = Duration::from_secs(8);
/// The longest wait that a provider can ask for. When it asks for more, it is asked again after this.
const ASKED_MAX: Duration = Duration::from_secs(30);

/// Whether a status may be another one next time.
pub(super) fn passes(status: u16) -> bool {
    matches!(status, 408 | 409 | 425 | 429) || status >= 500 && !matches!(status, 501 | 505)
}

/// How long to wait after so many attempts, of so many at most; `None` when it was the last one. `chance` is from 0 to 1:
/// sessions that failed together do not come back together.
pub(super) fn wait(tried: u32, attempts: u32, asked: Option<Duration>, chance: f64) -> Option<Duration> {
    if tried >= attempts {
        return None;
    }
    let doubled = BACKOFF.saturating_mul(1 << tried.saturating_sub(1).min(16)).min(BACKOFF_MAX);
    let own = doubled.mul_f64(0.5 + 0.5 * chance.clamp(0.0, 1.0));
    Some(own.max(asked.unwrap_or_default().min(ASKED_MAX)))
}

/// What a `Retry-After` header asks for: seconds, or a date. `now` is the provider's own time, where it tells it.
pub(super) fn asked(retry_after: &str, now: Timestamp) -> Option<Duration> {
    let text = retry_after.trim();
    if let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    date(text).map(|until| until.since(now))
}

/// A date of a header.
pub(super) fn date(text: &str) -> Option<Timestamp> {
    DateTime::parse_from_rfc2822(text.trim()).ok().map(|at| Timestamp(at.timestamp_millis()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn what_passes_by_itself_is_tried_again_and_nothing_else() {
        for status in [408, 409, 429, 500, 502, 503, 504, 529] {
            assert!(passes(status), "{status}");
        }
        for status in [301, 400, 401, 403, 404, 413, 422, 501] {
            assert!(!passes(status), "{status}");
        }
    }

    #[test]
    fn waits_double_within_their_jitter_and_end_with_the_attempts() {
        assert_eq!(wait(1, 4, None, 0.0), Some(ms(250)));
        assert_eq!(wait(1, 4, None, 1.0), Some(ms(500)));
        assert_eq!(wait(3, 4, None, 1.0), Some(ms(2000)));
        assert_eq!(wait(4, 4, None, 1.0), None);
        assert_eq!(wait(1, 1, None, 1.0), None);
        assert_eq!(wait(60, 99, None, 1.0), Some(ms(8000)));
    }

    #[test]
    fn what_a_provider_asks_for_is_honoured_up_to_half_a_minute() {
        assert_eq!(wait(1, 4, Some(ms(7000)), 0.0), Some(ms(7000)));
        assert_eq!(wait(1, 4, Some(ms(90_000)), 0.0), Some(ms(30_000)));
        assert_eq!(wait(1, 4, Some(ms(0)), 0.0), Some(ms(250)));
        assert_eq!(wait(4, 4, Some(ms(1)), 0.0), None);
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = date("Tue, 01 Jul 2025 12:00:00 GMT").unwrap();
        assert_eq!(asked(" 7 ", now), Some(ms(7000)));
        assert_eq!(asked("0.5", now), Some(ms(500)));
        assert_eq!(asked("Tue, 01 Jul 2025 12:00:09 GMT", now), Some(ms(9000)));
        assert_eq!(asked("Tue, 01 Jul 2025 11:00:00 GMT", now), Some(ms(0)));
        for nonsense in ["soon", "-3", "NaN", "1e300", ""] {
            assert_eq!(asked(nonsense, now), None, "{nonsense}");
        }
    }
}
