//! Questions: permissions and writes.

use ostler::domain::approval::{Decision, OptionKind, PermissionMode};
use ostler::domain::event::{FileOperation, Output, ToolStatus};
use ostler::harness::{Answer, HarnessEvent, TurnOutcome};
use serde_json::json;

use super::rig::{Rig, Turn, completed};

fn end_status(turn: &Turn) -> Option<ToolStatus> {
    turn.outputs.iter().find_map(|output| match output {
        Output::ToolCompleted(end) => Some(end.status),
        _ => None,
    })
}

#[tokio::test]
async fn a_question_shows_what_would_run_and_a_yes_runs_it_once() {
    let rig = Rig::new(&["script"]);
    let mut agent = rig.start().await;
    agent.prompt("run make").await;
    let (outputs, request) = agent.until_asked().await;
    assert_eq!(outputs.len(), 1);
    assert_eq!(
        (request.tool.as_str(), request.title.as_str(), request.kind.as_str()),
        ("Run: make", "Run: make", "execute")
    );
    assert_eq!(request.input, json!({"command": "make"}));
    let options: Vec<_> = request.options.iter().map(|option| (option.id.as_str(), option.kind)).collect();
    assert_eq!(
        options,
        [
            ("yes-always", OptionKind::AllowAlways),
            ("yes", OptionKind::AllowOnce),
            ("no", OptionKind::RejectOnce)
        ]
    );
    assert_eq!(rig.effects().len(), 0);
    agent.answer(&request.native_id, Decision::Approve).await.unwrap();
    let turn = agent.until_end().await;
    assert_eq!(end_status(&turn), Some(ToolStatus::Succeeded));
    assert_eq!(rig.effects(), [json!({"command": "make", "option": "yes"})]);
    let again = agent.answer(&request.native_id, Decision::Approve).await.unwrap_err();
    assert_eq!(again.0.code, "approval_unknown");
    agent.stop().await;
}

#[tokio::test]
async fn a_no_runs_nothing_and_the_turn_goes_on() {
    let rig = Rig::new(&["script"]);
    let mut agent = rig.start().await;
    agent.prompt("run rm\nsay after").await;
    let (_, request) = agent.until_asked().await;
    agent.answer(&request.native_id, Decision::Deny).await.unwrap();
    let turn = agent.until_end().await;
    assert_eq!((end_status(&turn), turn.text().as_str()), (Some(ToolStatus::Failed), "after"));
    assert_eq!(rig.effects().len(), 0);
    agent.stop().await;
}

#[tokio::test]
async fn a_named_option_is_taken_and_one_that_is_not_on_the_list_is_not() {
    let rig = Rig::new(&["script"]);
    let mut agent = rig.start().await;
    for (named, taken) in [("yes-always", "yes-always"), ("sudo", "yes"), ("no", "yes")] {
        agent.prompt("run make").await;
        let (_, request) = agent.until_asked().await;
        agent.answer_with(&request.native_id, Decision::Approve, Some(named)).await.unwrap();
        agent.until_end().await;
        assert_eq!(rig.effects().last().unwrap()["option"], taken);
    }
    agent.stop().await;
}

#[tokio::test]
async fn a_turn_that_the_agent_ends_as_cancelled_after_a_no_was_not_cancelled() {
    let rig = Rig::new(&["script"]);
    let mut agent = rig.start().await;
    agent.prompt("deny-ends\nrun rm\nsay never").await;
    let (_, request) = agent.until_asked().await;
    agent.answer(&request.native_id, Decision::Deny).await.unwrap();
    let turn = agent.until_end().await;
    assert_eq!((turn.outcome.clone(), turn.text().as_str()), (completed("cancelled"), ""));
    agent.stop().await;
}

#[tokio::test]
async fn a_question_may_come_before_the_agent_tells_of_the_call() {
    let rig = Rig::new(&["script"]);
    let mut agent = rig.start().await;
    agent.prompt("permission-first make").await;
    let (outputs, request) = agent.until_asked().await;
    assert_eq!(outputs, []);
    assert_eq!(request.input, json!({"command": "make"}));
    agent.answer(&request.native_id, Decision::Approve).await.unwrap();
    let turn = agent.until_end().await;
    assert_eq!(turn.kinds(), ["tool.started", "tool.completed"]);
    assert_eq!(rig.effects().len(), 1);
    agent.stop().await;
}

#[tokio::test]
async fn row_40_two_questions_wait_at_once_and_each_gets_its_own_answer() {
    let rig = Rig::new(&["script"]);
    let mut agent = rig.start().await;
    agent.prompt("ask-twice make").await;
    let (_, first) = agent.until_asked().await;
    let (_, second) = agent.until_asked().await;
    assert_ne!(first.native_id, second.native_id);
    agent.answer(&second.native_id, Decision::Deny).await.unwrap();
    agent.answer(&first.native_id, Decision::Approve).await.unwrap();
    assert_eq!(agent.until_end().await.text(), "\"no\" \"yes\" ");
    agent.stop().await;
}

#[tokio::test]
async fn a_question_that_the_agent_takes_back_is_void() {
    let rig = Rig::new(&["script"]);
    let mut agent = rig.start().await;
    agent.prompt("withdraw make").await;
    let (_, request) = agent.until_asked().await;
    let HarnessEvent::ApprovalWithdrawn { native_id } = agent.next().await else { panic!("not withdrawn") };
    assert_eq!(native_id, request.native_id);
    assert_eq!(agent.until_end().await.text(), "withdrawn -32800");
    let late = agent.answer(&native_id, Decision::Approve).await.unwrap_err();
    assert_eq!(late.0.code, "approval_unknown");
    agent.stop().await;
}

#[tokio::test]
async fn a_question_outside_a_turn_is_asked_and_answered() {
    let rig = Rig::new(&["script"]);
    let mut agent = rig.start().await;
    assert_eq!(agent.turn("outside").await.outcome, completed("end_turn"));
    let (_, request) = agent.until_asked().await;
    agent.answer(&request.native_id, Decision::Approve).await.unwrap();
    let HarnessEvent::Output(output) = agent.next().await else { panic!("no output") };
    assert_eq!(output, Output::TextDelta { text: "outside \"yes\"".to_owned() });
    agent.stop().await;
}

#[tokio::test]
async fn row_86_a_cancel_answers_the_questions_that_wait() {
    let rig = Rig::new(&["script"]);
    let mut agent = rig.start().await;
    agent.prompt("run make").await;
    let (_, request) = agent.until_asked().await;
    agent.cancel().await;
    assert_eq!(agent.until_end().await.outcome, TurnOutcome::Cancelled);
    let late = agent.answer(&request.native_id, Decision::Approve).await.unwrap_err();
    assert_eq!(late.0.code, "approval_unknown");
    assert_eq!(rig.effects().len(), 0);
    agent.stop().await;
}

#[tokio::test]
async fn a_question_that_comes_after_the_cancel_is_answered_like_those_before() {
    let rig = Rig::new(&["script"]);
    let mut agent = rig.start().await;
    agent.prompt("cancel-then-ask make").await;
    agent.cancel().await;
    // Nobody is asked: the turn ends without an event between.
    assert_eq!(agent.until_end().await.outcome, TurnOutcome::Cancelled);
    assert_eq!(rig.effects().len(), 0);
    agent.stop().await;
}

#[tokio::test]
async fn an_answer_that_would_change_the_input_is_refused_and_the_question_still_waits() {
    let rig = Rig::new(&["script"]);
    let mut agent = rig.start().await;
    agent.prompt("run make").await;
    let (_, request) = agent.until_asked().await;
    let edited = Answer {
        native_id: request.native_id.clone(),
        decision: Decision::Approve,
        option_id: None,
        reason: None,
        edited_input: Some(json!({})),
    };
    assert_eq!(agent.session.answer(edited).await.unwrap_err().0.code, "unsupported");
    agent.answer(&request.native_id, Decision::Approve).await.unwrap();
    agent.until_end().await;
    agent.stop().await;
}

#[tokio::test]
async fn row_81_with_edits_allowed_a_write_is_done_and_told() {
    let rig = Rig::new(&["script"]).mode(PermissionMode::AllowEdits);
    let mut agent = rig.start().await;
    let turn = agent.turn("write a/b one\nwrite a/b two\nread a/b").await;
    assert_eq!(turn.text(), "writtenwrittentwo");
    let changed = |operation, verb: &str| Output::FileChanged {
        path: "a/b".to_owned(),
        operation,
        summary: format!("{verb} a/b"),
    };
    assert_eq!(turn.outputs[0], changed(FileOperation::Create, "Created"));
    assert_eq!(turn.outputs[2], changed(FileOperation::Update, "Changed"));
    assert_eq!(rig.file("a/b"), "two");
    agent.stop().await;
}

#[tokio::test]
async fn row_81_without_a_write_is_asked_for_and_done_only_after_a_yes() {
    for mode in [PermissionMode::Ask, PermissionMode::AllowReads] {
        let rig = Rig::new(&["script"]).mode(mode);
        let mut agent = rig.start().await;
        agent.prompt("write a one\nwrite a two").await;
        let (_, request) = agent.until_asked().await;
        assert_eq!((request.tool.as_str(), request.kind.as_str()), ("fs/write_text_file", "edit"));
        assert_eq!(request.input, json!({"path": "a", "content": "one"}));
        assert!(!rig.path("a").exists());
        agent.answer(&request.native_id, Decision::Approve).await.unwrap();
        let (outputs, request) = agent.until_asked().await;
        assert_eq!(outputs[0].kind(), "file.changed");
        agent.answer(&request.native_id, Decision::Deny).await.unwrap();
        let turn = agent.until_end().await;
        assert_eq!(turn.kinds(), ["text.delta"]);
        assert_eq!((turn.text().as_str(), rig.file("a").as_str()), ("refused -32800", "one"));
        agent.stop().await;
    }
}

#[tokio::test]
async fn row_80_files_outside_the_workspace_are_neither_read_nor_written() {
    let rig = Rig::new(&["script"]).mode(PermissionMode::AllowAll);
    std::os::unix::fs::symlink("/etc", rig.path("link")).unwrap();
    let beside = format!("{}2/x", rig.workspace.path().display());
    let mut agent = rig.start().await;
    for path in ["/etc/passwd", "../x", "link/passwd", &beside] {
        let turn = agent.turn(&format!("read {path}\nwrite {path} x")).await;
        assert!(turn.text().starts_with("refused -32") && turn.outputs.len() == 2, "{path}: {turn:?}");
    }
    agent.stop().await;
}
