//! What a driver does next, from the rows as they are. Pure.

use crate::domain::approval::{Approval, ApprovalStatus};
use crate::domain::session::{Session, StopCause, Wish};
use crate::domain::turn::{Ordinal, TurnStatus};

/// What the driver itself knows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Posture {
    /// The turn that its harness works on.
    pub(super) at_work: Option<Ordinal>,
    /// Whether the turn at work has been told to end.
    pub(super) ending: bool,
    /// Whether a harness runs.
    pub(super) harness_runs: bool,
    /// Whether, and why, the session should be put away when it is at rest.
    pub(super) put_away: Option<StopCause>,
    /// Whether the service goes down.
    pub(super) closing: bool,
    /// Whether a new harness can be told what is decided of a question that the last one asked.
    pub(super) keeps_questions: bool,
    /// Whether a new harness goes on with the turn by itself.
    pub(super) resumes: bool,
}

/// The next step.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// Nothing to do until something happens.
    Rest,
    /// End everything as wished: stop or destroy.
    Fulfil(Wish),
    /// Tell the harness to end the turn at work.
    Cancel,
    /// End a turn that no harness works on.
    EndUnattended,
    /// Tell the harness what was decided.
    Deliver(Box<Approval>),
    /// Give the queued turn to a harness, starting one where none runs.
    Start,
    /// Start a harness that stands in the middle of the turn, to tell it what was decided, or to go on.
    TakeUp,
    /// Put the session away.
    PutAway(StopCause),
    /// Let go of the session as it is.
    Leave,
    /// The service goes down while a question waits that a later process can be told the answer of.
    Suspend,
}

pub(super) fn next_step(session: &Session, open: &[Approval], posture: Posture) -> Step {
    if let Some(wish @ (Wish::Stop | Wish::Destroy)) = session.wish {
        return Step::Fulfil(wish);
    }
    match (posture.at_work, session.state.turn()) {
        (Some(turn), _) => step_at_work(session, open, turn, posture),
        (None, Some(turn)) => step_unattended(session, open, turn, posture),
        (None, None) => step_at_rest(posture),
    }
}

fn owed(open: &[Approval], turn: Ordinal) -> Option<&Approval> {
    open.iter().find(|approval| approval.turn == turn && approval.owed_answer().is_some())
}

fn on_its_way(open: &[Approval], turn: Ordinal) -> bool {
    open.iter().any(|approval| approval.turn == turn && approval.is_on_its_way())
}

fn waits(open: &[Approval], turn: Ordinal) -> bool {
    open.iter().any(|approval| approval.turn == turn && approval.status == ApprovalStatus::Pending)
}

fn step_at_work(session: &Session, open: &[Approval], turn: Ordinal, posture: Posture) -> Step {
    if posture.ending {
        return Step::Rest;
    }
    if session.wish == Some(Wish::Cancel) {
        return Step::Cancel;
    }
    if let Some(approval) = owed(open, turn) {
        return Step::Deliver(Box::new(approval.clone()));
    }
    if posture.closing && posture.keeps_questions && waits(open, turn) {
        return Step::Suspend;
    }
    Step::Rest
}

fn step_unattended(session: &Session, open: &[Approval], turn: Ordinal, posture: Posture) -> Step {
    if session.wish == Some(Wish::Cancel) {
        return Step::EndUnattended;
    }
    if posture.closing {
        return Step::Leave;
    }
    let queued = session.turn.as_ref().is_some_and(|turn| turn.status == TurnStatus::Queued);
    match (queued, owed(open, turn)) {
        (true, _) => Step::Start,
        (false, Some(_)) if posture.keeps_questions => Step::TakeUp,
        (false, None) if posture.resumes && on_its_way(open, turn) => Step::TakeUp,
        (false, None) if waits(open, turn) && posture.keeps_questions => Step::Leave,
        (false, None) if posture.resumes => Step::TakeUp,
        (false, _) => Step::EndUnattended,
    }
}

fn step_at_rest(posture: Posture) -> Step {
    match (posture.harness_runs, posture.put_away) {
        (false, _) => Step::Leave,
        (true, Some(cause)) => Step::PutAway(cause),
        (true, None) if posture.closing => Step::PutAway(StopCause::Shutdown),
        (true, None) => Step::Rest,
    }
}

#[cfg(test)]
mod tests;
