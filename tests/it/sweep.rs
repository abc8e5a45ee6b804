//! Idle live sessions are put away and come back; what is at work or waits for a person is left alone.

use std::time::Instant;

use serde_json::{Value, json};

use crate::support::server::Home;

fn id(value: &Value) -> String {
    value["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn rows_18_54_65_66_and_69_an_idle_session_is_put_away_once_and_a_follow_up_brings_it_back() {
    let home = Home::new().with(&["--idle-ttl-seconds", "0.5"]);
    let server = home.start().await;
    let api = server.api();
    let begun = Instant::now();
    let session = id(&api.create("/remember blue").await);
    let row = api.until_status(&session, "stopped").await;
    assert!(begun.elapsed().as_millis() >= 500, "not before its time");
    assert_eq!(
        (row["stop_cause"].as_str(), row["live"].as_bool(), row["resumable"].as_bool()),
        (Some("idle_ttl"), Some(false), Some(true))
    );
    let turn = api.prompt(&session, "/recall").await;
    assert_eq!((turn["text"].as_str(), turn["rehydrated"].as_bool()), (Some("blue"), Some(true)));
    api.until_status(&session, "stopped").await;
    let stops = api.kinds(&session).await.into_iter().filter(|kind| kind == "session.stopped").count();
    assert_eq!(stops, 2);
}

#[tokio::test]
async fn rows_21_and_67_a_turn_at_work_and_a_question_that_waits_keep_a_session_live() {
    let home = Home::new().with(&["--idle-ttl-seconds", "0.2"]);
    let server = home.start().await;
    let api = server.api();
    let working = id(&api.create_detached("/sleep 1500\n/say done").await);
    let waiting = id(&api.create("/ask shell {}\n/say done").await);
    let idle = id(&api.create("/say x").await);
    // Several sweeps later: the idle one is gone, the others are as they were.
    api.until_status(&idle, "stopped").await;
    assert_eq!(api.session(&working).await["status"], "running");
    let row = api.session(&waiting).await;
    assert_eq!((row["status"].as_str(), row["live"].as_bool()), (Some("awaiting_approval"), Some(true)));
    api.decide(&id(&row["pending_approval"]), "approve").await.expect(200);
    assert_eq!(api.until_status(&waiting, "stopped").await["turn"]["text"], "done");
    assert_eq!(api.until_status(&working, "stopped").await["turn"]["text"], "done");
}

#[tokio::test]
async fn row_55_a_session_keeps_what_it_was_created_with_when_it_comes_back() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let body = json!({"harness": "demo", "prompt": "/write note.txt here", "instructions": "be kind", "permission_mode": "allow_reads",
        "settings": {"token_delay_ms": 0}});
    let request = api.request(reqwest::Method::POST, "/v1/sessions").header("prefer", "wait=30").json(&body);
    let session = api.send(request).await.expect(201);
    let session_id = id(&session);
    api.post(&format!("/v1/sessions/{session_id}/stop"), json!({})).await.expect(200);
    // Row 55: mode and workspace are the same in the new process.
    api.prompt(&session_id, "/ask read {}\n/write note.txt again").await;
    let row = api.session(&session_id).await;
    assert_eq!((row["status"].as_str(), &row["workspace"]), (Some("idle"), &session["workspace"]));
    let changes: Vec<Value> =
        api.events(&session_id).await.into_iter().filter(|event| event["type"] == "file.changed").collect();
    assert_eq!(
        (changes[0]["data"]["operation"].as_str(), changes[1]["data"]["operation"].as_str()),
        (Some("create"), Some("update"))
    );
}
