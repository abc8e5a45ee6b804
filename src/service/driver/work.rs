//! The turn at work, as its driver keeps it in mind.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::domain::approval::Approval;
use crate::domain::turn::{Turn, TurnEnd, TurnRef};
use crate::ids::ApprovalId;
use crate::service::so_far::SoFar;

/// See the module.
pub(super) struct Work {
    pub(super) turn: TurnRef,
    /// What it has put out.
    pub(super) so_far: SoFar,
    /// It was told to end.
    pub(super) ending: Option<Ending>,
    /// Where it began.
    pub(super) origin: Origin,
    /// The questions of this process.
    pub(super) asked: Vec<ApprovalId>,
    /// Those that it has been answered, by its own ids.
    pub(super) answered: Vec<String>,
    stopwatch: Stopwatch,
}

/// Where a turn at work began.
#[derive(Debug)]
pub(super) enum Origin {
    /// In this process.
    Here,
    /// In a process that is lost; this one stands exactly where that one stood.
    RestoredExactly,
    /// In a process that is lost; this one was told what was decided, and asks again.
    AskingAgain {
        /// Decisions that it was told of and that the calls which it asks for again will get.
        promised: Vec<Approval>,
    },
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
            so_far: SoFar::default(),
            ending: None,
            origin: Origin::Here,
            asked: Vec::new(),
            answered: Vec::new(),
            stopwatch: Stopwatch { left: limit, running_since: Some(now) },
        }
    }

    /// A turn that began in another process and waits for a decision. How long it had worked there is not known; it gets its
    /// whole time again.
    pub(super) fn taken_up(turn: &Turn, so_far: SoFar, limit: Duration) -> Self {
        let stopwatch = Stopwatch { left: limit, running_since: None };
        let origin = Origin::RestoredExactly;
        Self { so_far, origin, stopwatch, ..Self::new(turn, limit, Timestamp::default()) }
    }

    /// Takes the decision that was promised to a call with this digest.
    pub(super) fn take_promise(&mut self, digest: &str) -> Option<Approval> {
        let Origin::AskingAgain { promised } = &mut self.origin else { return None };
        let place = promised.iter().position(|promise| promise.input_digest == digest)?;
        Some(promised.remove(place))
    }

    /// Takes the decisions that no call has asked for.
    pub(super) fn take_promises(&mut self) -> Vec<Approval> {
        match &mut self.origin {
            Origin::AskingAgain { promised } => std::mem::take(promised),
            Origin::Here | Origin::RestoredExactly => Vec::new(),
        }
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
}
