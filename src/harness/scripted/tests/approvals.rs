//! Questions: asked when they are stored, run at most once, restored exactly.

use super::*;
use crate::domain::approval::{ApprovalOption, OptionKind};
use crate::domain::event::ToolStatus;
use crate::harness::scripted::tools;

const ASK: &str = "/ask shell {\"command\":\"make\"}\n/say over";
const ASK_THREE: &str = "/ask-all a {\"n\":\"1|1\"} | b {\"n\":2} | c {\"n\":3}\n/say over";

#[tokio::test]
async fn a_question_is_asked_when_its_state_is_stored_and_not_before() {
    let mut live = live().await;
    live.prompt(ASK).await;
    let started = live.next().await;
    assert!(matches!(started, Some(HarnessEvent::Output(Output::ToolStarted(_)))), "{started:?}");
    let (state, durable) = live.durable_checkpoint().await;
    assert_eq!(state["version"], 1);
    assert_eq!(state["turn"]["questions"][0]["native_id"], "q1");
    assert_eq!(state["turn"]["questions"][0]["phase"], json!({ "is": "asked" }));
    // A command is served while it waits, and still nothing follows.
    within(live.session.detach()).await.unwrap();
    assert!(live.events.try_recv().is_err());
    durable.send(()).unwrap();
    let seen = live.asked(1).await;
    let expected = ApprovalRequest {
        native_id: "q1".to_owned(),
        tool: "shell".to_owned(),
        title: "Run shell: make".to_owned(),
        kind: "execute".to_owned(),
        input: json!({ "command": "make" }),
        options: vec![
            ApprovalOption { id: "allow".to_owned(), kind: OptionKind::AllowOnce, name: "Allow".to_owned() },
            ApprovalOption { id: "deny".to_owned(), kind: OptionKind::RejectOnce, name: "Deny".to_owned() },
        ],
    };
    assert_eq!((seen.order, seen.asked), (vec!["asked"], vec![expected]));
}

#[tokio::test]
async fn an_approved_tool_runs_once_and_the_turn_goes_on() {
    let mut live = live().await;
    let turn_id = live.prompt(ASK).await;
    live.asked(1).await;
    live.approve("q1").await;
    let decision = json!({ "turn_id": turn_id, "kind": "decision", "name": "q1", "approval": "q1", "decision": "approve" });
    assert_eq!(live.ledger()[1], decision, "on disk when answer() returns");
    let seen = live.end().await;
    assert_eq!(seen.order, ["stored", "tool.completed", "state", "text.delta", "state", "ended"]);
    let input = json!({ "command": "make" });
    assert_eq!(seen.tools()[0].status, ToolStatus::Succeeded);
    assert_eq!(seen.tools()[0].result, json!({ "ok": true, "input": input }));
    assert!(seen.completed());
    assert_eq!((live.effects("decision"), live.effects("tool")), (vec!["q1".into()], vec!["shell".into()]));
}

#[tokio::test]
async fn a_denied_tool_does_not_run_and_the_turn_goes_on() {
    let mut live = live().await;
    live.prompt(ASK).await;
    live.asked(1).await;
    live.answer("q1", Decision::Deny).await.unwrap();
    let seen = live.end().await;
    assert_eq!(seen.tools()[0].status, ToolStatus::Failed);
    assert_eq!(seen.tools()[0].result, json!({ "ok": false, "denied": true, "reason": "because" }));
    assert_eq!(seen.text(), "over");
    assert_eq!(live.ledger()[1]["decision"], "deny");
    assert_eq!(live.effects("tool"), Vec::<String>::new());
}

#[tokio::test]
async fn an_approved_tool_gets_the_edited_input() {
    let mut live = live().await;
    live.prompt(ASK).await;
    live.asked(1).await;
    let edited = json!({ "command": "make test" });
    let answer = Answer { edited_input: Some(edited.clone()), ..answer("q1", Decision::Approve) };
    within(live.session.answer(answer)).await.unwrap();
    let seen = live.end().await;
    assert_eq!(seen.tools()[0].input, edited);
    assert_eq!(seen.tools()[0].result, json!({ "ok": true, "input": edited }));
}

#[tokio::test]
async fn an_unknown_or_answered_question_takes_no_answer_and_no_ledger_line() {
    let mut live = live().await;
    assert_eq!(code(live.answer("q1", Decision::Approve).await), "approval_unknown");
    live.prompt("/ask-all a {} | b {}").await;
    live.asked(2).await;
    live.approve("q1").await;
    for native_id in ["q1", "q3", ""] {
        assert_eq!(code(live.answer(native_id, Decision::Deny).await), "approval_unknown");
    }
    live.approve("q2").await;
    live.end().await;
    assert_eq!(code(live.answer("q2", Decision::Approve).await), "approval_unknown");
    assert_eq!(live.effects("decision"), ["q1", "q2"]);
}

#[tokio::test]
async fn question_ids_never_come_again_in_a_later_turn_or_process() {
    let mut live = live().await;
    live.prompt(ASK).await;
    live.asked(1).await;
    live.approve("q1").await;
    live.end().await;
    live.prompt(ASK).await;
    let seen = live.asked(1).await;
    assert_eq!(seen.asked[0].native_id, "q2");
    let mut live = live.lost_and_restored(seen.state()).await;
    assert_eq!(live.asked(1).await.asked[0].native_id, "q2", "the same question again");
    within(live.session.cancel()).await.unwrap();
    live.end().await;
    live.prompt(ASK).await;
    assert_eq!(live.asked(1).await.asked[0].native_id, "q3");
}

#[tokio::test]
async fn questions_asked_together_run_as_they_are_decided_in_whatever_order() {
    let mut live = live().await;
    live.prompt(ASK_THREE).await;
    let seen = live.asked(3).await;
    let expected = ["tool.started", "tool.started", "tool.started", "stored", "asked", "asked", "asked"];
    assert_eq!(seen.order, expected);
    assert_eq!(seen.asked[0].input, json!({ "n": "1|1" }));
    // All are decided while the first of them still waits for its state to be stored.
    for native_id in ["q3", "q2", "q1"] {
        live.approve(native_id).await;
    }
    let seen = live.end().await;
    let names: Vec<&str> = seen.tools().iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["c", "b", "a"]);
    assert_eq!(
        (seen.text().as_str(), live.effects("tool")),
        ("over", vec!["c".into(), "b".into(), "a".into()])
    );
}

#[tokio::test]
async fn a_decided_question_runs_while_another_still_waits() {
    let mut live = live().await;
    live.prompt(ASK_THREE).await;
    live.asked(3).await;
    live.approve("q2").await;
    let seen = live.output(|output| matches!(output, Output::ToolCompleted(_))).await;
    assert_eq!(seen.tools()[0].name, "b");
    live.approve("q1").await;
    live.answer("q3", Decision::Deny).await.unwrap();
    assert!(live.end().await.completed());
    assert_eq!(live.effects("tool"), ["b", "a"]);
}

#[tokio::test]
async fn a_turn_that_waits_is_restored_where_it_stood_and_asks_again_under_the_same_id() {
    let mut live = live().await;
    live.prompt("/say before\n/usage 1 2\n/ask shell {}\n/usage 1 2\n/say after").await;
    let seen = live.asked(1).await;
    let mut live = live.lost_and_restored(seen.state()).await;
    assert_eq!(live.continuity, Continuity::Exact);
    live.approve("q1").await;
    let seen = live.end().await;
    assert_eq!(
        seen.order,
        ["asked", "stored", "tool.completed", "state", "usage", "text.delta", "state", "ended"]
    );
    assert!(seen.completed() && seen.text() == "after");
    assert_eq!(serde_json::to_value(&seen.outputs[1]).unwrap()["input_tokens"], 2, "counted on");
    assert_eq!(live.effects("tool"), ["shell"]);
    assert_eq!(live.effects("prompt").len(), 1);
    // The state after is one without a turn, and the session takes prompts.
    assert_eq!(seen.state()["turn"], Value::Null);
    assert!(live.turn("/say next").await.completed());
}

#[tokio::test]
async fn a_state_that_was_detached_while_it_waits_restores_as_well_as_a_stored_one() {
    let mut live = live().await;
    live.prompt(ASK).await;
    let seen = live.asked(1).await;
    let detached = within(live.session.detach()).await.unwrap();
    assert_eq!(detached.as_ref(), Some(seen.state()));
}

#[tokio::test]
async fn what_was_started_is_never_run_again_and_what_was_decided_is_run() {
    let mut live = live().await;
    live.prompt(ASK_THREE).await;
    live.asked(3).await;
    live.approve("q2").await;
    let (_, stored) = live.durable_checkpoint().await;
    live.approve("q1").await;
    let state = within(live.session.detach()).await.unwrap().unwrap();
    let phases: Vec<&Value> = (0..3).map(|i| &state["turn"]["questions"][i]["phase"]["is"]).collect();
    assert_eq!(phases, ["decided", "started", "asked"]);
    // The lost process ran q2, and its end was never stored.
    stored.send(()).unwrap();
    live.output(|output| matches!(output, Output::ToolCompleted(_))).await;

    let mut live = live.lost_and_restored(&state).await;
    let ran_before = live.effects("tool").iter().filter(|tool| *tool == "b").count();
    assert_eq!(ran_before, 1);
    live.approve("q3").await;
    let seen = live.end().await;
    assert!(seen.completed());
    let ended: Vec<_> = seen.tools().iter().map(|tool| (tool.name.as_str(), tool.status)).collect();
    let expected = [("b", ToolStatus::Failed), ("a", ToolStatus::Succeeded), ("c", ToolStatus::Succeeded)];
    assert_eq!(ended, expected);
    let reason = seen.tools()[0].result["reason"].as_str().unwrap();
    assert!(reason.contains("unknown"), "{reason}");
    assert_eq!(live.effects("tool").iter().filter(|tool| *tool == "b").count(), 1);
    assert_eq!(live.effects("tool").last().map(String::as_str), Some("c"));
}

#[tokio::test]
async fn a_started_question_alone_is_told_as_unknown_and_the_turn_goes_on() {
    let mut live = live().await;
    live.prompt(ASK).await;
    live.asked(1).await;
    live.approve("q1").await;
    let (state, _never_stored) = live.durable_checkpoint().await;
    assert_eq!(state["turn"]["questions"][0]["phase"]["is"], "started");
    let mut live = live.lost_and_restored(&state).await;
    let seen = live.end().await;
    assert_eq!(seen.order, ["tool.completed", "state", "text.delta", "state", "ended"]);
    assert_eq!(seen.tools()[0].status, ToolStatus::Failed);
    assert_eq!(live.effects("tool"), Vec::<String>::new());
}

#[tokio::test]
async fn a_tool_does_not_run_when_its_start_could_not_be_stored() {
    let mut live = live().await;
    live.prompt(ASK).await;
    live.asked(1).await;
    live.approve("q1").await;
    let (_, durable) = live.durable_checkpoint().await;
    drop(durable);
    let seen = live.end().await;
    assert_eq!((seen.failure_code(), seen.outputs.len()), ("state_not_stored", 0));
    assert_eq!(live.effects("tool"), Vec::<String>::new());
}

#[tokio::test]
async fn nothing_is_asked_when_the_questions_could_not_be_stored() {
    let mut live = live().await;
    live.prompt(ASK).await;
    let (_, durable) = live.durable_checkpoint().await;
    drop(durable);
    let seen = live.end().await;
    assert_eq!((seen.failure_code(), seen.asked.len()), ("state_not_stored", 0));
}

#[tokio::test]
async fn cancel_drops_the_open_questions_and_runs_no_tool() {
    let mut live = live().await;
    live.prompt(ASK_THREE).await;
    live.asked(3).await;
    within(live.session.cancel()).await.unwrap();
    let seen = live.end().await;
    assert_eq!((seen.order, seen.ended), (vec!["state", "ended"], Some(TurnOutcome::Cancelled)));
    assert_eq!(code(live.answer("q1", Decision::Approve).await), "approval_unknown");
    assert_eq!(live.effects("tool"), Vec::<String>::new());
    assert!(live.turn("/say next").await.completed());
}

#[tokio::test]
async fn cancel_between_a_decision_and_its_stored_start_runs_no_tool() {
    let mut live = live().await;
    live.prompt(ASK).await;
    live.asked(1).await;
    live.approve("q1").await;
    let (_, durable) = live.durable_checkpoint().await;
    within(live.session.cancel()).await.unwrap();
    drop(durable);
    assert_eq!(live.end().await.ended, Some(TurnOutcome::Cancelled));
    assert_eq!(live.effects("tool"), Vec::<String>::new());
}

#[tokio::test]
async fn a_restored_turn_can_be_cancelled() {
    let mut live = live().await;
    live.prompt(ASK).await;
    let seen = live.asked(1).await;
    let mut live = live.lost_and_restored(seen.state()).await;
    within(live.session.cancel()).await.unwrap();
    assert_eq!(live.end().await.ended, Some(TurnOutcome::Cancelled));
}

#[tokio::test]
async fn a_turn_that_the_service_gave_up_is_dropped_even_where_it_waits() {
    let mut live = live().await;
    live.prompt(ASK).await;
    let seen = live.asked(1).await;
    let mut stored = seen.state().clone();
    stored["turn"]["turn_id"] = json!("trn_00000000000000000000000000000000");
    let another = TurnInput { turn_id: TurnId::mint(), prompt: Prompt::Text("x".to_owned()) };
    let options = StartOptions { open_turn: Some(another), ..options(&live.workspace, Some(stored)) };
    let started = ScriptedHarness.start(options).await.map_err(|error| error.to_string()).unwrap();
    (live.session, live.events) = (started.session, started.events);
    assert_eq!(code(live.answer("q1", Decision::Approve).await), "approval_unknown");
    assert_eq!(live.turn("/say instead").await.text(), "instead");
}

#[tokio::test]
async fn a_turn_that_was_lost_in_mid_work_is_not_taken_up() {
    let mut live = live().await;
    live.prompt("/remember blue\n/sleep 600000\n/tool late {}").await;
    let Some(HarnessEvent::Checkpoint { state: Some(state), .. }) = live.next().await else {
        panic!("no checkpoint")
    };
    assert_ne!(state["turn"], Value::Null);
    let mut live = live.lost_and_restored(&state).await;
    assert_eq!(within(live.session.detach()).await.unwrap().unwrap()["turn"], Value::Null);
    let seen = live.turn("/recall").await;
    assert_eq!(seen.text(), "blue");
    assert_eq!(live.effects("tool"), Vec::<String>::new());
}

#[test]
fn a_tool_is_labelled_and_titled_by_its_name() {
    let table = [
        ("read cat ls", "read"),
        ("search grep", "search"),
        ("write edit", "edit"),
        ("move mv", "move"),
        ("delete rm", "delete"),
        ("fetch", "fetch"),
        ("think", "think"),
        ("shell bash", "execute"),
        ("Read deploy", "other"),
    ];
    for (names, kind) in table {
        for name in names.split(' ') {
            assert_eq!(tools::kind(name), kind, "{name}");
        }
    }
    let input = json!({ "command": "cargo test" });
    assert_eq!(tools::title("bash", &input), "Run bash: cargo test");
    assert_eq!(tools::title("deploy", &input), "Use deploy");
    assert_eq!(tools::title("shell", &json!({})), "Use shell");
}
