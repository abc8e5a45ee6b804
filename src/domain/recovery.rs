//! What to do about a session whose holder is gone. Rows in, plan out; the one who carries it out holds no conditions.

use super::approval::{Approval, ApprovalStatus};
use super::session::{SessionState, Wish};
use super::turn::{TurnEnd, TurnStatus};

/// What is known of a session whose holder is gone.
#[derive(Clone, Copy, Debug)]
pub struct Stranded<'a> {
    /// Where it stands.
    pub state: &'a SessionState,
    /// The status of the turn that it names.
    pub turn: Option<TurnStatus>,
    /// What was wanted of the holder.
    pub wish: Option<Wish>,
    /// Approvals that are pending, or decided and not known to be delivered.
    pub open_approvals: &'a [Approval],
    /// Whether the harness put anything out in the turn: then the prompt had arrived.
    pub output_seen: bool,
    /// Whether a new process can be told what is decided: it stands exactly where the old one stood, or asks again.
    pub keeps_questions: bool,
    /// Whether a new process goes on with the turn by itself.
    pub resumes: bool,
}

/// What to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecoveryPlan {
    /// Nothing was under way: nobody holds it any more, and that is all.
    Release,
    /// Finish what was asked for.
    Fulfil(Wish),
    /// Take up the turn that waits.
    RunQueued,
    /// Keep the question open; a decision will bring the session back.
    KeepWaiting,
    /// Bring the session back and deliver what was decided.
    Deliver,
    /// Bring the session back: its turn goes on.
    Resume,
    /// The turn is over, and with it its open approvals.
    End(TurnEnd),
}

/// Plans the recovery of one session.
pub fn plan(stranded: &Stranded<'_>) -> RecoveryPlan {
    if let Some(wish @ (Wish::Stop | Wish::Destroy)) = stranded.wish {
        return RecoveryPlan::Fulfil(wish);
    }
    if stranded.state.turn().is_none() {
        return RecoveryPlan::Release;
    }
    match (stranded.turn, stranded.wish) {
        // Whatever ran the turn is gone, and it was wanted gone.
        (_, Some(Wish::Cancel)) => RecoveryPlan::End(TurnEnd::Cancelled),
        (Some(TurnStatus::Queued), _) => RecoveryPlan::RunQueued,
        _ => plan_dispatched(stranded),
    }
}

/// The prompt was given to the harness, or may have been. It is not given again, unless the harness knows that it has had no effect.
fn plan_dispatched(stranded: &Stranded<'_>) -> RecoveryPlan {
    let on_its_way = stranded.open_approvals.iter().any(Approval::is_on_its_way);
    let owed = stranded.open_approvals.iter().any(|a| a.owed_answer().is_some());
    let waiting = stranded.open_approvals.iter().any(|a| a.status == ApprovalStatus::Pending);
    if stranded.resumes {
        // Where a person is waited for and for nothing else, no process need wait as well.
        return if waiting && !owed && !on_its_way {
            RecoveryPlan::KeepWaiting
        } else {
            RecoveryPlan::Resume
        };
    }
    if on_its_way {
        return RecoveryPlan::End(TurnEnd::Interrupted { delivery_known: false });
    }
    match (stranded.keeps_questions, owed, waiting) {
        (true, true, _) => RecoveryPlan::Deliver,
        (true, false, true) => RecoveryPlan::KeepWaiting,
        _ => RecoveryPlan::End(TurnEnd::Interrupted { delivery_known: stranded.output_seen }),
    }
}

#[cfg(test)]
mod tests;
