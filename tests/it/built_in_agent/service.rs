//! What a caller of the service meets.

use super::*;
use crate::support::processes::{eventually, is_alive};

#[tokio::test]
async fn a_turn_runs_through_the_service_and_is_told_as_any_other() {
    let model = ChatModel::start();
    let home = home(&model, "");
    let server = home.start().await;
    let api = server.api();
    let script = "/say I look.\n/call shell {\"command\": \"echo hi; cat /proc/self/status | grep -c Seccomp\"}\n/usage 10 2\n/next\n/say Done.\n/usage 20 3";
    let row = create(&api, script, json!({})).await;
    let turn = &row["turn"];
    assert_eq!((turn["status"].as_str(), turn["text"].as_str()), (Some("completed"), Some("I look.Done.")));
    assert_eq!(
        turn["usage"],
        json!({"input_tokens": 30, "output_tokens": 5, "total_tokens": 35, "complete": true})
    );
    let session = row["id"].as_str().unwrap();
    let kinds = api.kinds(session).await;
    let order: Vec<&str> =
        kinds.iter().map(String::as_str).filter(|kind| kind.starts_with("tool.")).collect();
    assert_eq!(order, ["tool.started", "tool.completed"]);
    let again = api.prompt(session, "/say again").await;
    assert_eq!(again["text"], "again");
}

#[tokio::test]
async fn settings_are_refused_with_all_their_mistakes_and_the_harness_says_what_it_can() {
    let model = ChatModel::start();
    let home = home(&model, "");
    let server = home.start().await;
    let api = server.api();
    let body = json!({"harness": "agent", "settings": {"version": 2, "memory": {"recent_turns": 4}, "x": 1}});
    let refused = api.post("/v1/sessions", body).await.problem(422, "invalid_input");
    let detail = refused["detail"].as_str().unwrap();
    for words in ["settings.version", "settings.memory.recent_turns", "settings.x"] {
        assert!(detail.contains(words), "{detail}");
    }
    api.post("/v1/sessions", json!({"harness": "agent", "settings": {}})).await.problem(422, "invalid_input");
    api.post("/v1/sessions", json!({"harness": "agent"})).await.expect(201);
    let agent = api.get("/v1/harnesses/agent").await.expect(200);
    let can = &agent["capabilities"];
    assert_eq!(
        (can["approval_recovery"].as_str(), can["recovery"].as_str()),
        (Some("exact"), Some("resume"))
    );
}

#[tokio::test]
async fn without_a_model_the_agent_says_what_to_configure() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let agent = api.get("/v1/harnesses/agent").await.expect(200);
    assert_eq!(agent["available"], false);
    assert!(agent["configure"].as_str().unwrap().contains("[harness.agent.models.main]"), "{agent}");
    api.post("/v1/sessions", json!({"harness": "agent"})).await.problem(422, "invalid_input");
}

#[tokio::test]
async fn a_command_that_is_cancelled_or_too_slow_ends_with_its_whole_family() {
    let model = ChatModel::start();
    let home = home(&model, "timeout_seconds = 1");
    let server = home.start().await;
    let api = server.api();
    let command = "(sleep 600 & echo $! > child; wait)";
    let session = create_detached(
        &api,
        &format!("/call shell {{\"command\": \"{command}\"}}\n/next\n/say on"),
        json!({}),
    )
    .await;
    let row = api.until_status(&session, "idle").await;
    assert_eq!(row["turn"]["text"], "on");
    let completed = api.events_of(&session, "tool.completed").await;
    assert_eq!(completed[0]["result"]["uncertain"], true, "{completed:?}");
    let child = std::fs::read_to_string(home.workspace(&session).join("child")).unwrap();
    let child = child.trim().parse().unwrap();
    eventually("the command to be gone", || !is_alive(child)).await;
}
