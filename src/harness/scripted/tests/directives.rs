//! A test for each directive that asks nothing.

use super::*;
use crate::domain::event::{FileOperation, PlanEntry, ToolStart, ToolStatus};
use crate::domain::turn::Usage;

#[tokio::test]
async fn say_and_think_stream_word_by_word_and_add_up_to_the_text() {
    let mut live = live().await;
    let seen = live.turn("/think let me  see\n/say Hello wide  world").await;
    let thought = |text: &str| Output::ThinkingDelta { text: text.to_owned() };
    let said = |text: &str| Output::TextDelta { text: text.to_owned() };
    let expected =
        [thought("let "), thought("me  "), thought("see"), said("Hello "), said("wide  "), said("world")];
    assert_eq!(seen.outputs, expected);
    assert!(seen.completed());
}

#[tokio::test]
async fn words_come_at_the_delay_that_the_settings_name() {
    let workspace = tempfile::tempdir().unwrap();
    let slow = StartOptions { settings: json!({ "token_delay_ms": 20 }), ..options(&workspace, None) };
    let mut started = ScriptedHarness.start(slow).await.map_err(|error| error.to_string()).unwrap();
    let before = std::time::Instant::now();
    let turn =
        TurnInput { turn_id: TurnId::mint(), prompt: Prompt::Text("/say one two three four".to_owned()) };
    started.session.prompt(turn).await.unwrap();
    while !matches!(within(started.events.recv()).await, Some(HarnessEvent::TurnEnded(_))) {}
    assert!(before.elapsed() >= Duration::from_millis(60), "three gaps");
}

#[tokio::test]
async fn tokens_are_counted_words_at_once_or_at_their_rate() {
    let mut live = live().await;
    assert_eq!(live.turn("/tokens 3").await.text(), "w1 w2 w3 ");
    let before = std::time::Instant::now();
    assert_eq!(live.turn("/tokens 5 100").await.outputs.len(), 5);
    assert!(before.elapsed() >= Duration::from_millis(40), "the fifth is due 40 ms after the first");
}

#[tokio::test]
async fn a_tool_gives_its_input_back_and_is_in_the_ledger() {
    let mut live = live().await;
    let turn_id = live.prompt("/tool grep {\"pattern\":\"a|b\"}").await;
    let seen = live.end().await;
    let input = json!({ "pattern": "a|b" });
    let start = ToolStart {
        tool_call_id: "call_1".to_owned(),
        name: "grep".to_owned(),
        kind: "search".to_owned(),
        input: input.clone(),
    };
    let end = ToolEnd {
        tool_call_id: "call_1".to_owned(),
        name: "grep".to_owned(),
        status: ToolStatus::Succeeded,
        input: input.clone(),
        result: json!({ "ok": true, "input": input }),
    };
    assert_eq!(seen.outputs, [Output::ToolStarted(start), Output::ToolCompleted(end)]);
    let prompt = json!({ "turn_id": turn_id, "kind": "prompt", "name": "/tool grep {\"pattern\":\"a|b\"}" });
    let tool = json!({ "turn_id": turn_id, "kind": "tool", "name": "grep", "call": "call_1" });
    assert_eq!(live.ledger(), [prompt, tool]);
}

#[tokio::test]
async fn the_ledger_names_a_prompt_by_its_first_forty_characters() {
    let mut live = live().await;
    live.turn(&format!("/say {}", "é".repeat(60))).await;
    assert_eq!(live.effects("prompt"), [format!("/say {}", "é".repeat(35))]);
}

#[tokio::test]
async fn write_creates_then_overwrites_a_file() {
    let mut live = live().await;
    let seen = live.turn("/write notes/a.txt first\n/write notes/a.txt the second").await;
    let changed = |operation, summary: &str| Output::FileChanged {
        path: "notes/a.txt".to_owned(),
        operation,
        summary: summary.to_owned(),
    };
    let expected = [
        changed(FileOperation::Create, "Created notes/a.txt: 5 bytes"),
        changed(FileOperation::Update, "Overwrote notes/a.txt: 10 bytes"),
    ];
    assert_eq!(seen.outputs, expected);
    assert_eq!(live.file("notes/a.txt").as_deref(), Some("the second"));
    assert_eq!(live.effects("tool"), ["write", "write"]);
}

#[tokio::test]
async fn nothing_is_written_outside_the_workspace_or_into_the_ledger() {
    let outside = tempfile::tempdir().unwrap();
    let mut live = live().await;
    std::os::unix::fs::symlink(outside.path(), live.workspace.path().join("link")).unwrap();
    std::os::unix::fs::symlink(outside.path().join("new"), live.workspace.path().join("dangling")).unwrap();
    let absolute = outside.path().join("x").display().to_string();
    for path in ["../x", &absolute, "link/x", "dangling", "a/../../x", ".", "./effects.jsonl"] {
        let seen = live.turn(&format!("/write {path} text")).await;
        assert_eq!(seen.failure_code(), "invalid_path", "{path}");
    }
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
    assert_eq!(live.effects("tool"), Vec::<String>::new());
    assert_eq!(live.effects("prompt").len(), 7);
}

#[tokio::test]
async fn plan_activity_and_compact_are_told() {
    let mut live = live().await;
    let seen = live.turn("/plan Look; Act\n/activity looks around\n/compact all so far").await;
    let entry = |content: &str| PlanEntry {
        content: content.to_owned(),
        status: "pending".to_owned(),
        priority: None,
    };
    let expected = [
        Output::PlanUpdated { entries: vec![entry("Look"), entry("Act")] },
        Output::Activity { label: "looks around".to_owned(), tool: None, raw: None },
        Output::Compaction { summary: "all so far".to_owned(), tokens_before: None, tokens_after: None },
    ];
    assert_eq!(seen.outputs, expected);
}

#[tokio::test]
async fn usage_adds_up_within_a_turn_and_begins_anew_with_the_next() {
    let mut live = live().await;
    let usage =
        |input_tokens, output_tokens| Output::Usage(Usage { input_tokens, output_tokens, complete: true });
    assert_eq!(live.turn("/usage 1 2\n/usage 10 20").await.outputs, [usage(1, 2), usage(11, 22)]);
    assert_eq!(live.turn("/usage 5 6").await.outputs, [usage(5, 6)]);
}

#[tokio::test]
async fn words_are_remembered_over_turns_and_processes() {
    let mut live = live().await;
    assert_eq!(live.turn("/recall").await.text(), "nothing");
    let seen = live.turn("/remember blue\n/remember door").await;
    assert_eq!(seen.order, ["state", "state", "state", "ended"]);
    assert_eq!(live.turn("/recall").await.text(), "blue door");
    let mut live = live.lost_and_restored(seen.state()).await;
    assert_eq!(live.continuity, Continuity::Exact);
    assert_eq!(live.turn("/recall").await.text(), "blue door");
}

#[tokio::test]
async fn sleep_goes_on_when_the_time_is_over() {
    let mut live = live().await;
    let before = std::time::Instant::now();
    assert_eq!(live.turn("/sleep 30\n/say awake").await.text(), "awake");
    assert!(before.elapsed() >= Duration::from_millis(30));
}

#[tokio::test]
async fn fail_and_stop_reason_end_the_turn_in_their_words() {
    let mut live = live().await;
    let seen = live.turn("/say a\n/fail too_bad It broke.\n/say b").await;
    let failure = crate::domain::turn::Failure::new("too_bad", "It broke.");
    assert_eq!((seen.text().as_str(), seen.ended), ("a", Some(TurnOutcome::Failed(failure))));
    let seen = live.turn("/say a\n/stop-reason refusal\n/say b").await;
    let refusal = TurnOutcome::Completed { stop_reason: "refusal".to_owned() };
    assert_eq!((seen.text().as_str(), seen.ended), ("a", Some(refusal)));
}

#[tokio::test]
async fn a_prompt_with_a_bad_line_fails_before_anything_ran() {
    let mut live = live().await;
    let seen = live.turn("/say a\n/tool read {}\n/dance").await;
    assert_eq!(seen.failure_code(), "invalid_directive");
    assert_eq!(seen.outputs, []);
    assert_eq!(live.effects("tool"), Vec::<String>::new());
    assert!(live.turn("/say still here").await.completed());
}

#[tokio::test]
async fn lose_state_gives_no_state_from_then_on() {
    let mut live = live().await;
    assert!(within(live.session.detach()).await.unwrap().is_some());
    let seen = live.turn("/remember a\n/lose-state\n/remember b").await;
    let some: Vec<bool> = seen.states.iter().map(Option::is_some).collect();
    assert_eq!(some, [true, false, false]);
    assert_eq!(live.turn("/recall").await.states, [None]);
    assert_eq!(within(live.session.detach()).await, Ok(None));
}

#[tokio::test]
async fn the_greeting_shows_every_kind_of_event_and_writes_the_file_once_approved() {
    let mut live = live().await;
    live.prompt("Hello, who are you?").await;
    let before = live.asked(1).await;
    let mut kinds = before.order.clone();
    kinds.dedup();
    let expected =
        ["thinking.delta", "text.delta", "tool.started", "tool.completed", "tool.started", "stored", "asked"];
    assert_eq!(kinds, expected);
    let request = &before.asked[0];
    assert_eq!(request.title, "Run shell: echo 'Hello from Ostler.' > hello.txt");
    assert_eq!((request.kind.as_str(), live.file("hello.txt")), ("execute", None));

    live.approve(&request.native_id).await;
    let after = live.end().await;
    assert_eq!(after.order[..4], ["stored", "file.changed", "tool.completed", "state"]);
    assert!(after.completed() && after.text().starts_with("Done"));
    assert_eq!(live.file("hello.txt").as_deref(), Some("Hello from Ostler.\n"));
    assert_eq!(live.effects("tool"), ["read", "shell"]);
}

#[tokio::test]
async fn the_greeting_ends_in_other_words_when_it_was_denied() {
    let mut live = live().await;
    live.prompt("Hello").await;
    let asked = live.asked(1).await;
    live.answer(&asked.asked[0].native_id, Decision::Deny).await.unwrap();
    let seen = live.end().await;
    assert!(seen.completed() && seen.text().starts_with("As you wish"));
    assert_eq!((live.file("hello.txt"), live.effects("tool")), (None, vec!["read".to_owned()]));
}

#[tokio::test]
async fn the_greeting_runs_the_edited_command_and_no_other() {
    let mut live = live().await;
    for (command, status) in
        [("echo Bonjour > salut.txt", ToolStatus::Succeeded), ("rm -rf .", ToolStatus::Failed)]
    {
        live.prompt("Hello").await;
        let asked = live.asked(1).await;
        let edited_input = Some(json!({ "command": command }));
        let edited = Answer { edited_input, ..answer(&asked.asked[0].native_id, Decision::Approve) };
        within(live.session.answer(edited)).await.unwrap();
        let seen = live.end().await;
        assert_eq!((seen.tools()[0].status, seen.completed()), (status, true), "{command}");
    }
    assert_eq!((live.file("salut.txt").as_deref(), live.file("hello.txt")), (Some("Bonjour\n"), None));
}
