//! A service with the fake agent of tests/fake_acp_agent as its harness `fake`, and what a client does with it. The oracle of effects is
//! the agent's own record in its workspace.

use serde_json::{Value, json};

use super::api::Api;
use super::server::{Home, Server};

pub const FAKE: &str = env!("CARGO_BIN_EXE_fake-acp-agent");

/// The lines of ostler.toml for the fake agent with these arguments, under a name.
pub fn harness(name: &str, arguments: &[&str]) -> String {
    let command: Vec<&str> = [FAKE].into_iter().chain(arguments.iter().copied()).collect();
    format!("[harness.{name}]\nkind = \"acp\"\ncommand = {command:?}\n")
}

/// A service that has the fake agent as the harness `fake`.
pub async fn service(arguments: &[&str]) -> (Home, Server, Api) {
    let home = Home::new().with_config(&harness("fake", arguments));
    let server = home.start().await;
    let api = server.api();
    (home, server, api)
}

pub fn id(value: &Value) -> String {
    value["id"].as_str().unwrap().to_owned()
}

/// A session of the fake agent whose first turn has ended, or asks.
pub async fn create(api: &Api, script: &str) -> Value {
    create_with(api, json!({"harness": "fake", "prompt": script})).await
}

pub async fn create_with(api: &Api, body: Value) -> Value {
    let answer = api.post_and_wait("/v1/sessions", body).await;
    assert!(matches!(answer.status, 201 | 202), "{}", answer.text);
    answer.json()
}

pub async fn prompt_detached(api: &Api, session: &str, script: &str) -> Value {
    api.post(&format!("/v1/sessions/{session}/prompts"), json!({"prompt": script})).await.expect(202)
}

pub async fn post(api: &Api, session: &str, verb: &str) -> Value {
    api.post(&format!("/v1/sessions/{session}/{verb}"), json!({})).await.expect(200)
}

/// The session when nothing of it is under way any more.
pub async fn settled(api: &Api, session: &str) -> Value {
    api.follow(session, "?until=idle").await.all().await;
    api.session(session).await
}

/// What the agent of a session did, by its own record.
pub fn effects(home: &Home, session: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(home.workspace(session).join("effects.jsonl")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub async fn approval(api: &Api, approval: &str) -> Value {
    api.get(&format!("/v1/approvals/{approval}")).await.expect(200)
}
