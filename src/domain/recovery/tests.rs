use serde_json::Value;

use super::*;
use crate::clock::Timestamp;
use crate::domain::session::StopCause;
use crate::domain::turn::{Ordinal, TurnRef};
use crate::ids::{SessionId, TurnId};

const RUNNING: SessionState = SessionState::Running { turn: Ordinal(1) };
const AWAITING: SessionState = SessionState::AwaitingApproval { turn: Ordinal(1) };
const LOST: RecoveryPlan = RecoveryPlan::End(TurnEnd::Interrupted { delivery_known: false });
const BROKEN_OFF: RecoveryPlan = RecoveryPlan::End(TurnEnd::Interrupted { delivery_known: true });

fn approval(status: ApprovalStatus, dispatched: bool) -> Approval {
    let turn = TurnRef { ordinal: Ordinal(1), id: TurnId::mint() };
    Approval {
        status,
        dispatched_at: dispatched.then_some(Timestamp(1)),
        ..Approval::asked(SessionId::mint(), &turn, "bash", Value::Null, Timestamp(0))
    }
}

fn dispatched<'a>(state: &'a SessionState, approvals: &'a [Approval], exact: bool) -> Stranded<'a> {
    Stranded {
        state,
        turn: Some(TurnStatus::Running),
        wish: None,
        open_approvals: approvals,
        output_seen: true,
        keeps_questions: exact,
        resumes: false,
    }
}

#[test]
fn a_session_at_rest_is_only_released() {
    let at = Timestamp(0);
    for state in [SessionState::Idle, SessionState::Stopped { cause: StopCause::User, at }] {
        assert_eq!(plan(&Stranded { turn: None, ..dispatched(&state, &[], true) }), RecoveryPlan::Release);
    }
}

#[test]
fn f05_a_queued_turn_is_run() {
    let queued = Stranded { turn: Some(TurnStatus::Queued), ..dispatched(&RUNNING, &[], true) };
    assert_eq!(plan(&queued), RecoveryPlan::RunQueued);
}

#[test]
fn row_70_a_dispatched_turn_is_interrupted_and_says_whether_its_prompt_had_arrived() {
    assert_eq!(plan(&dispatched(&RUNNING, &[], true)), BROKEN_OFF);
    assert_eq!(plan(&Stranded { output_seen: false, ..dispatched(&RUNNING, &[], true) }), LOST);
}

#[test]
fn a_turn_that_can_be_resumed_goes_on_unless_a_person_alone_is_waited_for() {
    fn resumed(state: &SessionState, approvals: &[Approval]) -> RecoveryPlan {
        plan(&Stranded { resumes: true, ..dispatched(state, approvals, true) })
    }
    assert_eq!(resumed(&RUNNING, &[]), RecoveryPlan::Resume);
    let pending = approval(ApprovalStatus::Pending, false);
    assert_eq!(resumed(&AWAITING, std::slice::from_ref(&pending)), RecoveryPlan::KeepWaiting);
    for decided in [approval(ApprovalStatus::Approved, false), approval(ApprovalStatus::Denied, true)] {
        let open = [pending.clone(), decided];
        assert_eq!(resumed(&AWAITING, &open), RecoveryPlan::Resume);
    }
    let first = Stranded { resumes: true, output_seen: false, ..dispatched(&RUNNING, &[], false) };
    assert_eq!(plan(&first), RecoveryPlan::Resume, "also before anything was stored");
    let unwanted = Stranded { wish: Some(Wish::Cancel), ..first };
    assert_eq!(plan(&unwanted), RecoveryPlan::End(TurnEnd::Cancelled));
}

#[test]
fn an_approval_stays_decidable_where_its_call_can_be_restored_and_ends_with_its_turn_where_not() {
    let pending = [approval(ApprovalStatus::Pending, false)];
    assert_eq!(plan(&dispatched(&AWAITING, &pending, true)), RecoveryPlan::KeepWaiting);
    assert_eq!(plan(&dispatched(&AWAITING, &pending, false)), BROKEN_OFF);
}

#[test]
fn f19_a_decision_that_was_not_sent_is_delivered_where_its_call_can_be_restored() {
    for status in [ApprovalStatus::Approved, ApprovalStatus::Denied, ApprovalStatus::Expired] {
        let owed = [approval(status, false)];
        assert_eq!(plan(&dispatched(&RUNNING, &owed, true)), RecoveryPlan::Deliver);
        assert_eq!(plan(&dispatched(&RUNNING, &owed, false)), BROKEN_OFF);
    }
}

#[test]
fn f20_a_decision_that_may_have_arrived_is_not_sent_again() {
    let both = [approval(ApprovalStatus::Approved, true), approval(ApprovalStatus::Pending, false)];
    assert_eq!(plan(&dispatched(&AWAITING, &both, true)), LOST);
}

#[test]
fn what_was_asked_for_is_finished() {
    for wish in [Wish::Stop, Wish::Destroy] {
        let wished = Stranded { wish: Some(wish), ..dispatched(&RUNNING, &[], true) };
        assert_eq!(plan(&wished), RecoveryPlan::Fulfil(wish));
    }
    let cancelled = Stranded { wish: Some(Wish::Cancel), ..dispatched(&RUNNING, &[], true) };
    assert_eq!(plan(&cancelled), RecoveryPlan::End(TurnEnd::Cancelled));
}
