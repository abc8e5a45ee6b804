//! Times for people. What time it is now is the service's to say (its `Date` header): its times are compared with its own clock.

use chrono::{DateTime, FixedOffset};

/// A moment as the service writes it.
pub(super) type Moment = DateTime<FixedOffset>;

/// Reads the `Date` header of an answer.
pub(super) fn parse_date(header: &str) -> Option<Moment> {
    DateTime::parse_from_rfc2822(header).ok()
}

/// How long ago, where "now" is known and the time can be read; else the time as it is.
pub(super) fn ago(at: &str, now: Option<Moment>) -> String {
    let (Ok(then), Some(now)) = (DateTime::parse_from_rfc3339(at), now) else { return at.to_owned() };
    match (now - then).num_seconds() {
        // `Date` has no milliseconds, so that what is new seems to lie a little ahead.
        ..1 => "now".to_owned(),
        seconds => format!("{} ago", span(seconds)),
    }
}

/// How long until, like [`ago`].
pub(super) fn until(at: &str, now: Option<Moment>) -> String {
    let (Ok(then), Some(now)) = (DateTime::parse_from_rfc3339(at), now) else { return at.to_owned() };
    match (then - now).num_seconds() {
        ..1 => "now".to_owned(),
        seconds => format!("in {}", span(seconds)),
    }
}

/// The time between two moments of the service, with a tenth of a second.
pub(super) fn between(start: &str, end: &str) -> Option<String> {
    let (start, end) = (DateTime::parse_from_rfc3339(start).ok()?, DateTime::parse_from_rfc3339(end).ok()?);
    let milliseconds = (end - start).num_milliseconds().max(0);
    Some(match milliseconds {
        ..60_000 => format!("{}.{} s", milliseconds / 1000, milliseconds % 1000 / 100),
        _ => span(milliseconds / 1000),
    })
}

fn span(seconds: i64) -> String {
    match seconds {
        ..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_in_the_largest_unit_that_fits() {
        let now = parse_date("Tue, 01 Jul 2025 12:00:00 GMT");
        for (at, told) in [
            ("2025-07-01T12:00:00.600Z", "now"),
            ("2025-07-01T11:59:18.000Z", "42s ago"),
            ("2025-07-01T11:57:00.000Z", "3m ago"),
            ("2025-07-01T07:00:00.000Z", "5h ago"),
            ("2025-06-01T12:00:00.000Z", "30d ago"),
        ] {
            assert_eq!(ago(at, now), told);
        }
        assert_eq!(until("2025-07-02T12:00:00.000Z", now), "in 1d");
        assert_eq!(between("2025-07-01T12:00:00.000Z", "2025-07-01T12:00:04.250Z").unwrap(), "4.2 s");
        assert_eq!(between("2025-07-01T12:00:00.000Z", "2025-07-01T12:02:04.250Z").unwrap(), "2m");
    }

    #[test]
    fn a_time_that_cannot_be_compared_is_shown_as_it_is() {
        assert_eq!(ago("2025-07-01T12:00:00.000Z", None), "2025-07-01T12:00:00.000Z");
        assert_eq!(ago("soon", parse_date("Tue, 01 Jul 2025 12:00:00 GMT")), "soon");
    }
}
