//! What the end of a turn changes: the turn, its open approvals, the session, and which turn comes next.

use super::ServiceResult;
use crate::domain::approval::{Approval, ApprovalStatus};
use crate::domain::event::{EventBody, NewEvent};
use crate::domain::session::{Session, Transition, Wish};
use crate::domain::turn::{Turn, TurnEnd, TurnStatus, Usage};
use crate::store::{ApprovalWrite, Change, TurnSet, TurnWrite};

/// A turn that ends, and all that ends with it.
#[derive(Debug)]
pub(super) struct Ending<'a> {
    /// The turn.
    pub(super) turn: &'a Turn,
    /// How.
    pub(super) end: TurnEnd,
    /// What the agent said.
    pub(super) text: Option<String>,
    /// Tokens used, where the harness said.
    pub(super) usage: Option<Usage>,
    /// Its approvals that are pending, or decided and not delivered.
    pub(super) open: &'a [Approval],
    /// What becomes of them.
    pub(super) close_as: ApprovalStatus,
}

impl Ending<'_> {
    fn usage(&self) -> Usage {
        // A turn that never started used nothing; one that did and said nothing used something unknown.
        match (self.usage, self.turn.started_at) {
            (Some(usage), _) => usage,
            (None, None) => Usage::NONE,
            (None, Some(_)) => Usage::UNKNOWN,
        }
    }

    /// Ends the turn and closes its approvals, but leaves the session's state to the caller.
    pub(super) fn close(&self, change: &mut Change, session: &Session) {
        let at = change.set.at;
        close_approvals(change, self.open, self.close_as);
        let (stop_reason, error) = match &self.end {
            TurnEnd::Completed { stop_reason } => (Some(stop_reason.clone()), None),
            TurnEnd::Failed(failure) => (None, Some(failure.clone())),
            TurnEnd::Cancelled | TurnEnd::Interrupted { .. } | TurnEnd::TimedOut => (None, None),
        };
        change.turns.push(TurnWrite::Update(TurnSet {
            stop_reason,
            error,
            text: self.text.clone(),
            usage: Some(self.usage()),
            ended_at: Some(at),
            ..TurnSet::status(self.turn.ordinal, self.end.status())
        }));
        change.set.usage = Some(session.usage.plus(self.usage()));
        change.events.push(NewEvent {
            turn: Some(self.turn.reference()),
            at,
            body: EventBody::of_end(&self.end),
        });
        if session.wish == Some(Wish::Cancel) {
            change.set.wish = Some(None);
        }
    }

    /// Ends the turn, and takes the session on to the next one, to rest, or to its failure.
    pub(super) fn apply(
        &self,
        change: &mut Change,
        session: &Session,
        next: Option<&Turn>,
    ) -> ServiceResult<()> {
        self.close(change, session);
        let at = change.set.at;
        let transition = match (&self.end, next) {
            (TurnEnd::Failed(failure), None) => {
                let body = EventBody::SessionErrored(failure.clone());
                change.events.push(NewEvent { turn: None, at, body });
                Transition::Fail { failure: failure.clone(), at }
            }
            _ => Transition::EndTurn { next: next.map(|turn| turn.ordinal) },
        };
        change.set.state = Some(session.state.clone().apply(transition)?);
        if next.is_some() {
            change.set.queued_turns = Some((session.queued_turns - 1).max(0));
        }
        Ok(())
    }
}

/// Ends the current turn, with what its agent said, and all that wait; true when there was a current one. The session's state is
/// the caller's to set.
pub(super) fn end_all_turns(
    change: &mut Change,
    session: &Session,
    open: &[Approval],
    queued: &[Turn],
    text: Option<String>,
    usage: Option<Usage>,
) -> bool {
    let current = session.turn.as_ref().filter(|turn| Some(turn.ordinal) == session.state.turn());
    if let Some(turn) = current {
        let close_as = ApprovalStatus::Cancelled;
        let started = turn.started_at.is_some();
        let text = text.filter(|_| started);
        Ending { turn, end: TurnEnd::Cancelled, text, usage, open, close_as }.close(change, session);
    }
    for turn in queued.iter().filter(|turn| Some(turn.ordinal) != session.state.turn()) {
        put_cancelled(change, turn);
    }
    change.set.queued_turns = Some(0);
    current.is_some()
}

fn put_cancelled(change: &mut Change, turn: &Turn) {
    let at = change.set.at;
    change.turns.push(TurnWrite::Update(TurnSet {
        ended_at: Some(at),
        ..TurnSet::status(turn.ordinal, TurnStatus::Cancelled)
    }));
    change.events.push(NewEvent { turn: Some(turn.reference()), at, body: EventBody::TurnCancelled {} });
}

/// Closes approvals; those that were decided keep their decision.
pub(super) fn close_approvals(change: &mut Change, open: &[Approval], status: ApprovalStatus) {
    let at = change.set.at;
    for approval in open {
        let closed = Approval { status, ..approval.clone() };
        let turn = crate::domain::turn::TurnRef { ordinal: approval.turn, id: approval.turn_id.clone() };
        let shown = Box::new(closed.clone());
        let body = match status {
            ApprovalStatus::Orphaned => EventBody::ApprovalOrphaned { approval: shown },
            _ => EventBody::ApprovalCancelled { approval: shown },
        };
        change.events.push(NewEvent { turn: Some(turn), at, body });
        change.approvals.push(ApprovalWrite::Update(Box::new(closed)));
    }
    change.set.pending = Some((None, 0));
}

/// Takes a turn that waits out of the line.
pub(super) fn withdraw_queued(
    change: &mut Change,
    session: &Session,
    turn: &Turn,
    next: Option<&Turn>,
) -> ServiceResult<()> {
    put_cancelled(change, turn);
    if session.state.turn() == Some(turn.ordinal) {
        let transition = Transition::EndTurn { next: next.map(|turn| turn.ordinal) };
        change.set.state = Some(session.state.clone().apply(transition)?);
        if next.is_some() {
            change.set.queued_turns = Some((session.queued_turns - 1).max(0));
        }
    } else {
        change.set.queued_turns = Some((session.queued_turns - 1).max(0));
    }
    Ok(())
}
