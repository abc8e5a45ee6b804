//! The turn at work, as its driver keeps it in mind.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::domain::turn::{Turn, TurnEnd, TurnRef, Usage};

/// The most of the agent's words that a turn's row keeps, in bytes; the events have them all.
const TEXT_MAX: usize = 1 << 20;

/// See the module.
pub(super) struct Work {
    pub(super) turn: TurnRef,
    /// What the agent said so far.
    pub(super) text: String,
    /// Tokens used, as the harness said last.
    pub(super) usage: Option<Usage>,
    /// It was told to end.
    pub(super) ending: Option<Ending>,
    /// It began in another process.
    pub(super) taken_up: bool,
    /// The questions that this process has answered.
    pub(super) answered: Vec<String>,
    stopwatch: Stopwatch,
}

/// How a turn is to end, and how long its harness has for that.
#[derive(Clone, Debug)]
pub(super) struct Ending {
    pub(super) end: TurnEnd,
    pub(super) until: Timestamp,
}

/// Measures the time at work; it stands still while a person is waited for.
struct Stopwatch {
    left: Duration,
    running_since: Option<Timestamp>,
}

impl Work {
    pub(super) fn new(turn: &Turn, limit: Duration, now: Timestamp) -> Self {
        Self {
            turn: turn.reference(),
            text: String::new(),
            usage: None,
            ending: None,
            taken_up: false,
            answered: Vec::new(),
            stopwatch: Stopwatch { left: limit, running_since: Some(now) },
        }
    }

    /// A turn that began in another process and waits for a decision. How long it had worked there is not known; it gets its
    /// whole time again.
    pub(super) fn taken_up(turn: &Turn, limit: Duration) -> Self {
        let stopwatch = Stopwatch { left: limit, running_since: None };
        Self { taken_up: true, stopwatch, ..Self::new(turn, limit, Timestamp::default()) }
    }

    /// Keeps what the agent says, up to a bound.
    pub(super) fn say(&mut self, text: &str) {
        let room = TEXT_MAX.saturating_sub(self.text.len());
        let end = (0..=room.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        self.text.push_str(&text[..end]);
    }

    /// A person is waited for.
    pub(super) fn pause(&mut self, now: Timestamp) {
        if let Some(since) = self.stopwatch.running_since.take() {
            self.stopwatch.left = self.stopwatch.left.saturating_sub(now.since(since));
        }
    }

    /// The harness works on.
    pub(super) fn go_on(&mut self, now: Timestamp) {
        self.stopwatch.running_since.get_or_insert(now);
    }

    /// When the turn has worked for as long as it may, or has had its time to end.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        match &self.ending {
            Some(ending) => Some(ending.until),
            None => self.stopwatch.running_since.map(|since| since.plus(self.stopwatch.left)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::turn::{Ordinal, Prompt};

    fn work(limit: u64) -> Work {
        let prompt = Prompt::Text("x".into());
        let turn = Turn::queued(Ordinal(1), prompt, Timestamp(0));
        Work::new(&turn, Duration::from_millis(limit), Timestamp(0))
    }

    #[test]
    fn row_99_waiting_for_a_person_does_not_count_as_work() {
        let mut work = work(100);
        assert_eq!(work.deadline(), Some(Timestamp(100)));
        work.pause(Timestamp(40));
        assert_eq!(work.deadline(), None);
        work.go_on(Timestamp(5000));
        assert_eq!(work.deadline(), Some(Timestamp(5060)));
        work.go_on(Timestamp(5050));
        assert_eq!(work.deadline(), Some(Timestamp(5060)), "going on twice gives no time back");
    }

    #[test]
    fn a_turn_that_was_told_to_end_has_the_time_to_end_and_no_more() {
        let mut work = work(100);
        work.ending = Some(Ending { end: TurnEnd::Cancelled, until: Timestamp(7) });
        assert_eq!(work.deadline(), Some(Timestamp(7)));
    }

    #[test]
    fn what_the_agent_says_is_kept_up_to_a_bound_and_never_cut_inside_a_character() {
        let mut work = work(1);
        work.say(&"x".repeat(TEXT_MAX - 1));
        work.say("é");
        assert_eq!(work.text.len(), TEXT_MAX - 1);
        work.say("y");
        assert_eq!(work.text.len(), TEXT_MAX);
    }
}
