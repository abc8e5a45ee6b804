//! What becomes of a turn whose process dies, or goes down.

use super::*;

#[tokio::test]
async fn killed_while_the_model_thinks_the_turn_goes_on_by_itself_and_says_the_same() {
    let model = ChatModel::start();
    let home = home(&model, "");
    let server = home.start().await;
    let script = "/say First.\n/call write_file {\"path\": \"a\", \"content\": \"1\"}\n/next\n/say one two three four\n/slow 100";
    let session = create_detached(&server.api(), script, json!({})).await;
    let mut events = server.api().follow(&session, "").await;
    events.until("tool.completed").await;
    events.until("text.delta").await;
    server.kill().await;
    let server = home.start().await;
    let api = server.api();
    let row = api.until_status(&session, "idle").await;
    assert_eq!(row["turn"]["status"], "completed", "{row}");
    assert_eq!(row["turn"]["text"], "First.one two three four");
    assert_eq!(row["turn"]["rehydrated"], true);
    let rewound = api.events_of(&session, "text.rewound").await;
    assert_eq!(rewound, [json!({"length": 6, "reason": "resumed"})]);
    assert_eq!(model.count(), 3, "the finished call is not made again");
    let transcript = api.get(&format!("/v1/sessions/{session}/transcript")).await.expect(200);
    let said: Vec<_> = transcript["data"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|m| m["role"] == "assistant")
        .map(|m| m["text"].clone())
        .collect();
    assert_eq!(said, [json!("First."), json!("one two three four")]);
}

#[tokio::test]
async fn killed_while_a_tool_runs_the_turn_is_interrupted_and_the_model_is_told() {
    let model = ChatModel::start();
    let home = home(&model, "");
    let server = home.start().await;
    let script = "/call shell {\"command\": \"echo ran >> ledger; sleep 600\"}\n/next\n/say never";
    let session = create_detached(&server.api(), script, json!({})).await;
    let ledger = home.workspace(&session).join("ledger");
    within("the tool to run", async {
        // The shell makes the file before the command writes.
        while std::fs::read_to_string(&ledger).unwrap_or_default().is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    server.kill().await;
    let server = home.start().await;
    let api = server.api();
    let row = api.until_status(&session, "idle").await;
    assert_eq!(row["turn"]["status"], "interrupted", "{row}");
    let completed = api.events_of(&session, "tool.completed").await;
    assert_eq!(completed[0]["result"]["uncertain"], true, "{completed:?}");
    assert_eq!(api.prompt(&session, "/say on").await["text"], "on");
    let told = model.requests().last().unwrap()["messages"].to_string();
    assert!(told.contains("may or may not have taken effect"), "{told}");
    assert_eq!(std::fs::read_to_string(&ledger).unwrap(), "ran\n");
}

#[tokio::test]
async fn going_down_in_mid_turn_is_no_end_of_it() {
    let model = ChatModel::start();
    let home = home(&model, "").with(&["--shutdown-grace-seconds", "0.2"]);
    let server = home.start().await;
    let session = create_detached(&server.api(), "/say one two three\n/slow 300", json!({})).await;
    server.api().follow(&session, "").await.until("text.delta").await;
    assert!(server.terminate().await.success());
    let server = home.start().await;
    let row = server.api().until_status(&session, "idle").await;
    assert_eq!(
        (row["turn"]["status"].as_str(), row["turn"]["text"].as_str()),
        (Some("completed"), Some("one two three"))
    );
}

#[tokio::test]
async fn a_session_that_was_put_away_remembers() {
    let model = ChatModel::start();
    let home = home(&model, "").with(&["--idle-ttl-seconds", "0.1"]);
    let server = home.start().await;
    let api = server.api();
    let row = create(&api, "/say I am here", json!({})).await;
    let session = row["id"].as_str().unwrap();
    api.until_status(session, "stopped").await;
    let turn = api.prompt(session, "/say still").await;
    assert_eq!((turn["text"].as_str(), turn["rehydrated"].as_bool()), (Some("still"), Some(true)));
    assert!(model.requests().last().unwrap()["messages"].to_string().contains("I am here"));
}

#[tokio::test]
async fn cancelled_while_no_process_works_on_it_the_turn_is_over() {
    let model = ChatModel::start();
    let home = home(&model, "");
    let server = home.start().await;
    let more = json!({"tool_policy": {"require_approval": ["write_file"]}});
    let row =
        create(&server.api(), "/call write_file {\"path\": \"a\", \"content\": \"1\"}\n/next\n/say x", more)
            .await;
    let session = row["id"].as_str().unwrap().to_owned();
    server.kill().await;
    let server = home.start().await;
    let api = server.api();
    assert_eq!(api.session(&session).await["status"], "awaiting_approval");
    api.post(&format!("/v1/sessions/{session}/cancel"), json!({})).await;
    let row = api.until_status(&session, "idle").await;
    assert_eq!(row["turn"]["status"], "cancelled");
    assert_eq!(api.prompt(&session, "/say on").await["text"], "on");
    assert!(!home.workspace(&session).join("a").exists());
}
