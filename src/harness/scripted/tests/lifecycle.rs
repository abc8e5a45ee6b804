//! Start, cancel, detach, stop, death, and a reader that is slow.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

#[test]
fn settings_are_completed_or_refused_with_all_complaints_at_once() {
    let default = json!({ "token_delay_ms": 15 });
    assert_eq!(ScriptedHarness.validate(&json!({})), Ok(default));
    for delay in [0, 1000] {
        let given = json!({ "token_delay_ms": delay });
        assert_eq!(ScriptedHarness.validate(&given), Ok(given.clone()));
    }
    let complaints =
        ScriptedHarness.validate(&json!({ "colour": 1, "token_delay_ms": 1001, "model": "x" })).unwrap_err();
    for key in ["colour", "model", "token_delay_ms"] {
        assert!(complaints.iter().any(|complaint| complaint.starts_with(key)), "{key}: {complaints:?}");
    }
    for wrong in [json!(-1), json!("15"), json!(1.5), Value::Null] {
        assert_eq!(ScriptedHarness.validate(&json!({ "token_delay_ms": wrong })).unwrap_err().len(), 1);
    }
    assert!(ScriptedHarness.validate(&json!([])).is_err());
}

#[tokio::test]
async fn a_new_session_is_new_and_one_whose_state_cannot_be_read_has_lost_it() {
    assert_eq!(live().await.continuity, Continuity::New);
    for state in [json!({}), json!({ "version": 2 }), json!({ "version": 1 }), json!("x")] {
        let mut live = start(tempfile::tempdir().unwrap(), Some(state.clone())).await;
        assert!(matches!(live.continuity, Continuity::Lost { .. }), "{state}");
        assert_eq!(live.turn("/recall").await.text(), "nothing");
    }
}

#[tokio::test]
async fn a_workspace_that_is_not_there_is_a_start_that_fails() {
    let workspace = tempfile::tempdir().unwrap();
    let options = StartOptions { workspace: workspace.path().join("none"), ..options(&workspace, None) };
    let error = ScriptedHarness.start(options).await.err().unwrap();
    assert_eq!(error.failure().code, "workspace_unavailable");
}

#[tokio::test]
async fn f34_behind_a_closed_fence_nothing_is_done() {
    let workspace = tempfile::tempdir().unwrap();
    let open = Arc::new(AtomicBool::new(true));
    let is_open = Arc::clone(&open);
    let fence = Fence::new(move || is_open.load(Ordering::SeqCst));
    let options = StartOptions { fence, ..options(&workspace, None) };
    let mut live = Live::start_with(Arc::new(ScriptedHarness), workspace, options).await;
    assert!(live.turn("/tool one {}").await.completed());
    live.prompt("/tokens 1\n/hang").await;
    live.output(|output| matches!(output, Output::TextDelta { .. })).await;
    open.store(false, Ordering::SeqCst);
    within(live.session.cancel()).await.unwrap();
    live.end().await;
    let turn = TurnInput { turn_id: TurnId::mint(), prompt: Prompt::Text("/write a.txt x".to_owned()) };
    assert!(within(live.session.prompt(turn)).await.is_err(), "not even taken up");
    assert_eq!(
        (live.effects("prompt").len(), live.effects("tool"), live.file("a.txt")),
        (2, vec!["one".to_owned()], None)
    );
}

#[tokio::test]
async fn instructions_are_kept_in_the_state() {
    let workspace = tempfile::tempdir().unwrap();
    let options = StartOptions { instructions: Some("Be kind.".to_owned()), ..options(&workspace, None) };
    let started = ScriptedHarness.start(options).await.map_err(|error| error.to_string()).unwrap();
    let state = within(started.session.detach()).await.unwrap().unwrap();
    assert_eq!(state["instructions"], "Be kind.");
}

#[tokio::test]
async fn cancel_without_a_turn_is_nothing() {
    let mut live = live().await;
    within(live.session.cancel()).await.unwrap();
    assert!(live.turn("/say here").await.completed());
    within(live.session.cancel()).await.unwrap();
    assert!(live.turn("/say here").await.completed());
}

#[tokio::test]
async fn cancel_ends_a_stream_a_sleep_and_a_hang() {
    let mut live = live().await;
    for script in ["/tokens 4000000000", "/tokens 1000000 10", "/say now\n/sleep 600000", "/say now\n/hang"] {
        live.prompt(script).await;
        live.output(|output| matches!(output, Output::TextDelta { .. })).await;
        within(live.session.cancel()).await.unwrap();
        assert_eq!(live.end().await.ended, Some(TurnOutcome::Cancelled), "{script}");
    }
}

#[tokio::test]
async fn cancel_is_heard_by_a_stream_that_nobody_reads() {
    let mut live = live().await;
    live.prompt("/tokens 4000000000").await;
    live.output(|_| true).await;
    within(live.session.cancel()).await.unwrap();
    assert!(live.end().await.outputs.len() <= crate::harness::EVENT_QUEUE);
}

#[tokio::test]
async fn a_tool_that_ran_is_told_though_the_turn_was_cancelled_meanwhile() {
    let mut live = live().await;
    // Tokens and the start of the tool fill the channel: its end has to wait for the reader.
    live.prompt(&format!("/tokens {}\n/tool once {{}}\n/say late", crate::harness::EVENT_QUEUE - 1)).await;
    within(async {
        while live.effects("tool").is_empty() {
            live.session.detach().await.unwrap();
        }
    })
    .await;
    within(live.session.cancel()).await.unwrap();
    let seen = live.end().await;
    assert_eq!(seen.tools().len(), 1);
    assert_eq!(seen.outputs.len(), crate::harness::EVENT_QUEUE + 1, "and nothing after it");
    assert_eq!(seen.ended, Some(TurnOutcome::Cancelled));
}

#[tokio::test]
async fn a_second_prompt_is_refused_while_a_turn_is_at_work() {
    let live = live().await;
    live.prompt("/hang").await;
    let second = TurnInput { turn_id: TurnId::mint(), prompt: Prompt::Text("/say two".to_owned()) };
    assert_eq!(code(within(live.session.prompt(second)).await), "turn_in_progress");
    assert_eq!(live.effects("prompt"), ["/hang"]);
}

#[tokio::test]
async fn a_prompt_is_in_the_ledger_when_it_was_taken() {
    let live = live().await;
    let turn_id = live.prompt("/hang").await;
    assert_eq!(live.ledger(), [json!({ "turn_id": turn_id, "kind": "prompt", "name": "/hang" })]);
}

#[tokio::test]
async fn a_prompt_that_cannot_be_written_down_is_refused() {
    let live = live().await;
    std::fs::create_dir(live.workspace.path().join("effects.jsonl")).unwrap();
    let turn = TurnInput { turn_id: TurnId::mint(), prompt: Prompt::Text("/say one".to_owned()) };
    assert_eq!(code(within(live.session.prompt(turn)).await), "ledger_failed");
}

#[tokio::test]
async fn the_deaf_do_not_hear_cancel_and_end_by_stop() {
    let mut live = live().await;
    live.prompt("/say now\n/deaf").await;
    live.output(|_| true).await;
    within(live.session.cancel()).await.unwrap();
    // It serves other commands, so that the cancel was served before: and nothing came of it.
    within(live.session.detach()).await.unwrap();
    assert!(live.events.try_recv().is_err());
    within(live.session.stop()).await;
    assert!(live.next().await.is_none());
}

#[tokio::test]
async fn death_closes_the_channel_and_leaves_nothing_behind() {
    let mut live = live().await;
    live.prompt("/say a\n/die\n/tool late {}").await;
    live.output(|_| true).await;
    assert!(live.next().await.is_none());
    let turn = TurnInput { turn_id: TurnId::mint(), prompt: Prompt::Text("/say b".to_owned()) };
    assert_eq!(code(within(live.session.prompt(turn)).await), "harness_exited");
    assert_eq!(code(live.answer("q1", Decision::Approve).await), "harness_exited");
    assert_eq!(code(within(live.session.cancel()).await), "harness_exited");
    assert_eq!(code(within(live.session.detach()).await), "harness_exited");
    within(live.session.stop()).await;
    assert_eq!(live.ledger().len(), 1);
}

#[tokio::test]
async fn stop_ends_any_turn_and_may_be_called_twice() {
    for script in ["/hang", "/sleep 600000", "/tokens 4000000000", "/ask shell {}", "/recall"] {
        let mut live = live().await;
        live.prompt(script).await;
        within(live.session.stop()).await;
        within(live.session.stop()).await;
        assert_eq!(code(within(live.session.detach()).await), "harness_exited");
        while live.next().await.is_some() {}
    }
}

#[tokio::test]
async fn a_session_that_is_dropped_ends_its_task() {
    let Live { session, mut events, workspace, .. } = live().await;
    let turn = TurnInput { turn_id: TurnId::mint(), prompt: Prompt::Text("/deaf".to_owned()) };
    within(session.prompt(turn)).await.unwrap();
    drop(session);
    assert!(within(events.recv()).await.is_none());
    drop(workspace);
}

#[tokio::test]
async fn a_slow_reader_loses_none_of_ten_thousand_tokens() {
    let mut live = live().await;
    live.prompt("/tokens 10000").await;
    let mut text = String::new();
    let mut read = 0_usize;
    loop {
        match live.next().await.expect("it lives") {
            HarnessEvent::Output(Output::TextDelta { text: token }) => text.push_str(&token),
            HarnessEvent::TurnEnded(_) => break,
            _ => {}
        }
        read += 1;
        // The reader lets others run now and then: the demo fills the channel and has to wait.
        if read.is_multiple_of(100) {
            within(live.session.detach()).await.unwrap();
        }
    }
    let expected: String = (1..=10_000).map(|n| format!("w{n} ")).collect();
    assert!(text == expected, "{} bytes of {}", text.len(), expected.len());
}
