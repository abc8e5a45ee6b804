//! Turns: what an agent puts out and how a turn ends.

use ostler::domain::approval::PermissionMode;
use ostler::domain::event::{FileOperation, Output, ToolStatus};
use ostler::domain::turn::{Failure, Usage};
use ostler::harness::{EVENT_QUEUE, TurnOutcome};
use serde_json::json;

use super::rig::{Rig, completed, eventually};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_comes_in_order_and_its_usage_before_its_end() {
    let rig = Rig::new(&["script"]);
    let mut agent = rig.start().await;
    let turn = agent.turn("think Hm\nsay Hello\nplan Read; Write\nusage 3 4\nsay !").await;
    let kinds = ["thinking.delta", "text.delta", "plan.updated", "text.delta", "usage"];
    assert_eq!(turn.kinds(), kinds);
    assert_eq!(turn.text(), "Hello!");
    let usage = Usage { input_tokens: 3, output_tokens: 4, complete: true };
    assert_eq!(turn.outputs.last(), Some(&Output::Usage(usage)));
    assert_eq!(turn.outcome, completed("end_turn"));
    assert_eq!(agent.turn("say again").await.text(), "again");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_ends_with_the_agent_s_own_word_for_why() {
    let rig = Rig::new(&["script"]);
    let mut agent = rig.start().await;
    assert_eq!(agent.turn("refuse").await.outcome, completed("refusal"));
    assert_eq!(agent.turn("stop max_tokens").await.outcome, completed("max_tokens"));
    assert_eq!(agent.turn("stop brand_new").await.outcome, completed("brand_new"));
    let failed = TurnOutcome::Failed(Failure::new("agent_error", "the model is down"));
    assert_eq!(agent.turn("error -32603 the model is down").await.outcome, failed);
    assert_eq!(agent.turn("say fine").await.text(), "fine");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn updates_of_another_conversation_are_ignored() {
    let rig = Rig::new(&["script"]);
    let mut agent = rig.start().await;
    let turn = agent.turn("other-session\nsay mine").await;
    assert_eq!((turn.text().as_str(), turn.outputs.len()), ("mine", 1));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_82_an_edit_tells_the_file_before_the_end_of_the_call() {
    let rig = Rig::new(&["script"]);
    let mut agent = rig.start().await;
    let turn = agent.turn("edit a.txt one\nedit a.txt two").await;
    let kinds = ["tool.started", "file.changed", "tool.completed"].repeat(2);
    assert_eq!(turn.kinds(), kinds);
    let operations: Vec<_> = turn
        .outputs
        .iter()
        .filter_map(|output| match output {
            Output::FileChanged { path, operation, .. } => Some((path.as_str(), *operation)),
            _ => None,
        })
        .collect();
    assert_eq!(operations, [("a.txt", FileOperation::Create), ("a.txt", FileOperation::Update)]);
    let Output::ToolCompleted(end) = &turn.outputs[5] else { panic!("{turn:?}") };
    assert_eq!((end.name.as_str(), end.status), ("Edit a.txt", ToolStatus::Succeeded));
    assert_eq!(end.input, json!({"path": "a.txt"}));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_open_at_the_end_of_the_turn_is_closed_as_failed() {
    let rig = Rig::new(&["script"]);
    let mut agent = rig.start().await;
    let turn = agent.turn("open something").await;
    assert_eq!(turn.kinds(), ["tool.started", "tool.completed"]);
    let Output::ToolCompleted(end) = &turn.outputs[1] else { panic!("{turn:?}") };
    assert_eq!(end.status, ToolStatus::Failed);
    assert_eq!(end.result, json!("the turn ended before this call did"));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_driver_makes_the_agent_wait_and_loses_nothing() {
    let rig = Rig::new(&["script"]);
    let mut agent = rig.start().await;
    agent.prompt("flood 20000").await;
    eventually("a full queue", || agent.events.len() == EVENT_QUEUE).await;
    let turn = agent.until_end().await;
    let expected: String = (0..20_000).map(|i| format!("{i} ")).collect();
    assert!(turn.text() == expected, "{} outputs", turn.outputs.len());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_prompt_is_refused_while_a_turn_is_at_work() {
    let rig = Rig::new(&["script"]);
    let mut agent = rig.start().await;
    agent.prompt("say working\nhang").await;
    assert_eq!(agent.try_prompt("say more").await.unwrap_err().0.code, "agent_busy");
    agent.cancel().await;
    assert_eq!(agent.until_end().await.outcome, TurnOutcome::Cancelled);
    assert_eq!(agent.turn("say more").await.text(), "more");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_86_a_cancelled_turn_ends_as_cancelled_and_the_next_one_works() {
    let rig = Rig::new(&["script"]);
    let mut agent = rig.start().await;
    agent.prompt("hang").await;
    agent.cancel().await;
    let turn = agent.until_end().await;
    assert_eq!((turn.outcome, turn.outputs.len()), (TurnOutcome::Cancelled, 0));
    // The mark of the cancel does not stay for the next turn.
    assert_eq!(agent.turn("stop cancelled").await.outcome, completed("cancelled"));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instructions_go_before_the_first_prompt_of_a_conversation_alone() {
    let mut rig = Rig::new(&["script"]);
    rig.instructions = Some("Be brief.".to_owned());
    let mut agent = rig.start().await;
    assert_eq!(agent.session.detach().await.unwrap().unwrap()["instructions_pending"], true);
    assert_eq!(agent.turn("instructions").await.text(), "Be brief.");
    assert_eq!(agent.turn("instructions").await.text(), "");
    let state = agent.session.detach().await.unwrap().unwrap();
    assert!(state.get("instructions_pending").is_none(), "{state}");
    agent.stop().await;
    let mut agent = rig.take_up(Some(state)).await;
    assert_eq!(agent.turn("instructions").await.text(), "");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instructions_that_no_prompt_has_taken_along_are_given_by_the_next_process() {
    let mut rig = Rig::new(&["script"]);
    rig.instructions = Some("Be brief.".to_owned());
    let agent = rig.start().await;
    let state = agent.session.detach().await.unwrap();
    agent.stop().await;
    let mut agent = rig.take_up(state).await;
    assert_eq!(agent.turn("instructions").await.text(), "Be brief.");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_environment_is_an_allow_list() {
    let rig = Rig::new(&["script"]).config(
        "env = { CODEX_HOME = \"{state_dir}/.codex\" }\nfiles = { \".codex/c\" = \"{workspace}\" }\n",
    );
    let mut agent = rig.start().await;
    let text = agent.turn("env").await.text();
    let state = rig.state.path().to_str().unwrap();
    assert!(
        text.contains(&format!("HOME={state}\n")) && text.contains(&format!("TMPDIR={state}/tmp")),
        "{text}"
    );
    assert!(text.contains(&format!("CODEX_HOME={state}/.codex")), "{text}");
    let allowed = ["PATH", "LANG", "LC_ALL", "TZ", "TERM", "HOME", "TMPDIR", "CODEX_HOME", "OSTLER_AGENT"];
    for line in text.lines() {
        let name = line.split('=').next().unwrap();
        assert!(allowed.contains(&name), "{line}");
    }
    let file = std::fs::read_to_string(rig.state.path().join(".codex/c")).unwrap();
    assert_eq!(file, rig.workspace.path().to_str().unwrap());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn noise_between_the_messages_does_no_harm() {
    for mode in ["noise", "crlf", "split", "dup"] {
        let rig = Rig::new(&[mode]);
        let mut agent = rig.start().await;
        for _ in 0..3 {
            let turn = agent.turn("Hi").await;
            assert_eq!((turn.text().as_str(), turn.outcome), ("hello", completed("end_turn")), "{mode}");
        }
        agent.stop().await;
        rig.assert_nothing_runs();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_of_three_megabytes_comes_whole() {
    let rig = Rig::new(&["big"]);
    let mut agent = rig.start().await;
    assert_eq!(agent.turn("Hi").await.text().len(), "hello".len() + (3 << 20));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_knows_is_handed_on_and_requests_of_it_are_refused() {
    let rig = Rig::new(&["unknown"]).mode(PermissionMode::AllowAll);
    let mut agent = rig.start().await;
    let turn = agent.turn("Hi").await;
    assert_eq!(turn.kinds(), ["text.delta", "activity", "activity", "text.delta"]);
    assert_eq!(turn.text(), "hello\"str-id-7\" -32601");
    let raw = Some(json!({"sessionUpdate": "brand_new_kind", "x": 1}));
    let activity = Output::Activity { label: "brand_new_kind".to_owned(), tool: None, raw };
    assert_eq!(turn.outputs[1], activity);
    assert_eq!(turn.outcome, completed("some_new_reason"));
    agent.stop().await;
}
