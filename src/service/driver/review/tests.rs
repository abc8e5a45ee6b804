use serde_json::Value;

use super::*;
use crate::clock::Timestamp;
use crate::domain::session::SessionState;
use crate::domain::turn::{Prompt, Turn, TurnRef};
use crate::ids::{SessionId, SessionKey, TurnId};

const AT: Timestamp = Timestamp(0);
const ONE: Ordinal = Ordinal(1);

fn turn(status: TurnStatus) -> Turn {
    Turn { status, ..Turn::queued(ONE, Prompt::Text("x".into()), AT) }
}

fn session(state: SessionState, turn: Option<Turn>, wish: Option<Wish>) -> Session {
    Session { state, turn, wish, ..Session::new(SessionKey(1), "o".into(), "w".into(), "demo".into(), AT) }
}

fn busy(status: TurnStatus, wish: Option<Wish>) -> Session {
    session(SessionState::Running { turn: ONE }, Some(turn(status)), wish)
}

fn approval(turn: Ordinal, status: ApprovalStatus) -> Approval {
    let turn = TurnRef { ordinal: turn, id: TurnId::mint() };
    Approval { status, ..Approval::asked(SessionId::mint(), &turn, "t", Value::Null, AT) }
}

fn working() -> Posture {
    Posture { at_work: Some(ONE), harness_runs: true, keeps_questions: true, ..Posture::default() }
}

fn alone() -> Posture {
    Posture { keeps_questions: true, ..Posture::default() }
}

#[test]
fn stopping_and_destroying_go_before_everything() {
    for wish in [Wish::Stop, Wish::Destroy] {
        for posture in [working(), alone()] {
            assert_eq!(next_step(&busy(TurnStatus::Running, Some(wish)), &[], posture), Step::Fulfil(wish));
        }
    }
}

#[test]
fn a_turn_at_work_is_cancelled_once_answered_when_owed_and_else_left_alone() {
    let running = busy(TurnStatus::Running, None);
    let cancelled = busy(TurnStatus::Running, Some(Wish::Cancel));
    assert_eq!(next_step(&running, &[], working()), Step::Rest);
    assert_eq!(next_step(&cancelled, &[], working()), Step::Cancel);
    assert_eq!(next_step(&cancelled, &[], Posture { ending: true, ..working() }), Step::Rest);
    let owed = [approval(ONE, ApprovalStatus::Approved)];
    assert_eq!(next_step(&running, &owed, working()), Step::Deliver(Box::new(owed[0].clone())));
    let of_another_turn = [approval(Ordinal(9), ApprovalStatus::Approved)];
    assert_eq!(next_step(&running, &of_another_turn, working()), Step::Rest);
}

#[test]
fn a_turn_without_a_harness_is_started_taken_up_kept_or_ended_by_what_is_known_of_it() {
    let pending = [approval(ONE, ApprovalStatus::Pending)];
    let owed = [approval(ONE, ApprovalStatus::Denied)];
    let dispatched = busy(TurnStatus::Running, None);
    assert_eq!(next_step(&busy(TurnStatus::Queued, None), &[], alone()), Step::Start);
    assert_eq!(next_step(&busy(TurnStatus::Queued, Some(Wish::Cancel)), &[], alone()), Step::EndUnattended);
    assert_eq!(next_step(&dispatched, &owed, alone()), Step::TakeUp);
    assert_eq!(next_step(&dispatched, &pending, alone()), Step::Leave);
    assert_eq!(next_step(&dispatched, &[], alone()), Step::EndUnattended);
    for open in [&pending, &owed] {
        assert_eq!(next_step(&dispatched, open, Posture::default()), Step::EndUnattended);
    }
}

#[test]
fn a_turn_that_can_be_resumed_is_taken_up_unless_a_person_alone_is_waited_for() {
    let resumes = Posture { resumes: true, ..alone() };
    let dispatched = busy(TurnStatus::Running, None);
    let pending = approval(ONE, ApprovalStatus::Pending);
    let on_its_way = Approval { dispatched_at: Some(AT), ..approval(ONE, ApprovalStatus::Approved) };
    assert_eq!(next_step(&dispatched, &[], resumes), Step::TakeUp);
    assert_eq!(next_step(&dispatched, &[pending.clone(), on_its_way], resumes), Step::TakeUp);
    assert_eq!(next_step(&dispatched, &[pending], resumes), Step::Leave);
    assert_eq!(next_step(&dispatched, &[], Posture { closing: true, ..resumes }), Step::Leave);
    assert_eq!(next_step(&busy(TurnStatus::Running, Some(Wish::Cancel)), &[], resumes), Step::EndUnattended);
}

#[test]
fn going_down_a_question_is_suspended_where_it_can_be_restored_and_nothing_new_is_begun() {
    let pending = [approval(ONE, ApprovalStatus::Pending)];
    let closing = |posture| Posture { closing: true, ..posture };
    let running = busy(TurnStatus::AwaitingApproval, None);
    assert_eq!(next_step(&running, &pending, closing(working())), Step::Suspend);
    let inexact = Posture { keeps_questions: false, ..working() };
    assert_eq!(next_step(&running, &pending, closing(inexact)), Step::Rest);
    assert_eq!(next_step(&busy(TurnStatus::Queued, None), &[], closing(alone())), Step::Leave);
}

#[test]
fn a_session_at_rest_is_kept_warm_put_away_or_left() {
    let idle = session(SessionState::Idle, None, None);
    let warm = Posture { harness_runs: true, ..alone() };
    assert_eq!(next_step(&idle, &[], warm), Step::Rest);
    assert_eq!(next_step(&idle, &[], alone()), Step::Leave);
    let swept = Posture { put_away: Some(StopCause::IdleTtl), ..warm };
    assert_eq!(next_step(&idle, &[], swept), Step::PutAway(StopCause::IdleTtl));
    assert_eq!(next_step(&idle, &[], Posture { closing: true, ..warm }), Step::PutAway(StopCause::Shutdown));
}
