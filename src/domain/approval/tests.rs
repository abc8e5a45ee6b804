use serde_json::json;

use super::*;

fn option(id: &str, kind: OptionKind) -> ApprovalOption {
    ApprovalOption { id: id.into(), kind, name: id.into() }
}

fn pending() -> Approval {
    let turn = TurnRef { ordinal: Ordinal(1), id: TurnId::mint() };
    Approval {
        options: vec![option("a1", OptionKind::AllowOnce), option("r1", OptionKind::RejectOnce)],
        expires_at: Some(Timestamp(1000)),
        ..Approval::asked(SessionId::mint(), &turn, "bash", json!({"command": "cargo test"}), Timestamp(0))
    }
}

fn says(decision: Decision) -> DecisionRequest {
    DecisionRequest {
        decision,
        option_id: None,
        reason: None,
        edited_input: None,
        input_digest: None,
        decided_by: "alice".into(),
    }
}

const NOW: Timestamp = Timestamp(500);

#[test]
fn row_79_options_are_chosen_by_kind_then_by_order() {
    use OptionKind::{AllowAlways, AllowOnce, RejectOnce};
    let all = [option("a2", AllowAlways), option("a1", AllowOnce), option("r1", RejectOnce)];
    assert_eq!(choose_option(&all, Decision::Approve).unwrap().id, "a1");
    assert_eq!(choose_option(&all, Decision::Deny).unwrap().id, "r1");
    let only_always = [option("a2", AllowAlways)];
    assert_eq!(choose_option(&only_always, Decision::Approve).unwrap().id, "a2");
    assert_eq!(choose_option(&only_always, Decision::Deny), None);
    let two = [option("first", AllowOnce), option("second", AllowOnce)];
    assert_eq!(choose_option(&two, Decision::Approve).unwrap().id, "first");
}

#[test]
fn row_78_a_mode_allows_what_its_table_says_and_ask_allows_nothing() {
    let kinds = ["read", "search", "think", "edit", "move", "fetch", "delete", "execute", "other", ""];
    let allowed = |mode: PermissionMode| kinds.iter().filter(|kind| mode.allows(kind)).count();
    assert_eq!(PermissionMode::ALL.iter().map(|mode| allowed(*mode)).collect::<Vec<_>>(), [0, 3, 5, 10]);
}

#[test]
fn nothing_but_allow_once_is_ever_chosen_without_a_person() {
    let always = [option("a2", OptionKind::AllowAlways)];
    assert_eq!(PermissionMode::AllowAll.automatic_option("read", &always), None);
    let once = [option("a2", OptionKind::AllowAlways), option("a1", OptionKind::AllowOnce)];
    assert_eq!(PermissionMode::AllowReads.automatic_option("read", &once).unwrap().id, "a1");
    assert_eq!(PermissionMode::AllowReads.automatic_option("execute", &once), None);
}

#[test]
fn a_pending_approval_takes_either_decision_with_the_option_that_carries_it_out() {
    let decide = |decision| resolve(&pending(), &says(decision), NOW);
    assert_eq!(decide(Decision::Approve), Ok(Resolution::Decide { option_id: Some("a1".into()) }));
    assert_eq!(decide(Decision::Deny), Ok(Resolution::Decide { option_id: Some("r1".into()) }));
}

#[test]
fn rows_27_and_29_the_same_decision_again_stands_and_the_opposite_is_refused_with_the_standing_one() {
    let approved = Approval { status: ApprovalStatus::Approved, ..pending() };
    assert_eq!(resolve(&approved, &says(Decision::Approve), NOW), Ok(Resolution::Standing));
    let opposite = resolve(&approved, &says(Decision::Deny), NOW);
    assert_eq!(opposite, Err(Refusal::Resolved(ApprovalStatus::Approved)));
}

#[test]
fn row_44_a_decision_after_the_deadline_is_refused_even_before_a_sweep_has_seen_it() {
    assert_eq!(resolve(&pending(), &says(Decision::Approve), Timestamp(1000)), Err(Refusal::Expired));
    let forever = Approval { expires_at: None, ..pending() };
    assert!(resolve(&forever, &says(Decision::Approve), Timestamp(i64::MAX)).is_ok());
}

#[test]
fn a_closed_approval_takes_no_decision() {
    for status in [ApprovalStatus::Cancelled, ApprovalStatus::Orphaned] {
        let closed = Approval { status, ..pending() };
        assert_eq!(resolve(&closed, &says(Decision::Approve), NOW), Err(Refusal::Closed(status)));
    }
}

#[test]
fn a_decision_on_another_input_than_the_one_shown_is_refused() {
    let blind = DecisionRequest { input_digest: Some("sha256:00".into()), ..says(Decision::Approve) };
    assert_eq!(resolve(&pending(), &blind, NOW), Err(Refusal::Changed));
    let seen = DecisionRequest { input_digest: Some(pending().input_digest), ..says(Decision::Approve) };
    assert!(resolve(&pending(), &seen, NOW).is_ok());
}

#[test]
fn an_option_must_be_on_the_list_and_say_what_the_decision_says() {
    let pick = |id: &str| DecisionRequest { option_id: Some(id.into()), ..says(Decision::Approve) };
    assert!(matches!(resolve(&pending(), &pick("a1"), NOW), Ok(Resolution::Decide { .. })));
    assert!(matches!(resolve(&pending(), &pick("r1"), NOW), Err(Refusal::Option(_))));
    assert!(matches!(resolve(&pending(), &pick("zz"), NOW), Err(Refusal::Option(_))));
}

#[test]
fn the_digest_does_not_depend_on_the_order_of_keys_and_does_on_everything_else() {
    let one: Value = serde_json::from_str(r#"{"b": [1, {"y": 2, "x": null}], "a": "é"}"#).unwrap();
    let two: Value = serde_json::from_str(r#"{"a": "é", "b": [1, {"x": null, "y": 2}]}"#).unwrap();
    assert_eq!(input_digest("t", &one), input_digest("t", &two));
    assert_ne!(input_digest("t", &one), input_digest("u", &one));
    // Computed with: printf '{"input":{"command":"ls"},"tool":"bash"}' | sha256sum
    assert_eq!(
        input_digest("bash", &json!({"command": "ls"})),
        "sha256:0e0c57e03758869e217edfec236cfc2633cd2a75584c5b8d7af71375cf701c5e"
    );
}

#[test]
fn an_answer_is_owed_only_when_decided_and_not_yet_on_its_way() {
    assert_eq!(pending().owed_answer(), None);
    let denied = Approval { status: ApprovalStatus::Denied, ..pending() };
    assert_eq!(denied.owed_answer(), Some(Decision::Deny));
    let expired = Approval { status: ApprovalStatus::Expired, ..pending() };
    assert_eq!(expired.owed_answer(), Some(Decision::Deny));
    let on_its_way = Approval { dispatched_at: Some(NOW), ..denied };
    assert_eq!(on_its_way.owed_answer(), None);
}
