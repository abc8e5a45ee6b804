//! The built-in agent, in the service, with the scripted model at the other end.

mod bounds;
mod door;
mod hostile;
mod hostile_model;
mod mcp;
mod races;
mod recovery;
mod replicas;
mod secrecy;
mod service;
mod steps;

use serde_json::{Value, json};

use crate::support::api::Api;
use crate::support::chat_model::ChatModel;
use crate::support::server::Home;
use crate::support::within;

/// The MCP server of these tests.
pub(super) const FAKE_MCP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake_mcp/server.py");

/// A home whose agent works with that model, unasked in a shell, with that below `[harness.agent]`.
pub(super) fn home(model: &ChatModel, table: &str) -> Home {
    Home::new().with_config(&config(model, table))
}

pub(super) fn config(model: &ChatModel, table: &str) -> String {
    let base_url = model.base_url();
    format!(
        "[harness.agent.models.main]\nbase_url = \"{base_url}\"\nmodel = \"scripted\"\ncontext_window = 100000\n\
         [harness.agent.tools]\nshell = \"allow\"\n{table}\n"
    )
}

/// Settings without a plan, and with that.
pub(super) fn settings(more: Value) -> Value {
    let mut settings = json!({"version": 1, "planning": {"mode": "off"}});
    settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    settings
}

/// Creates a session and waits until its turn has ended or asks.
pub(super) async fn create(api: &Api, prompt: &str, more: Value) -> Value {
    let body = json!({"harness": "agent", "prompt": prompt, "settings": settings(more)});
    let answer = api.post_and_wait("/v1/sessions", body).await;
    assert!(matches!(answer.status, 201 | 202), "{}", answer.text);
    answer.json()
}

/// Creates a session and does not wait.
pub(super) async fn create_detached(api: &Api, prompt: &str, more: Value) -> String {
    let body = json!({"harness": "agent", "prompt": prompt, "settings": settings(more)});
    api.post("/v1/sessions", body).await.expect(201)["id"].as_str().unwrap().to_owned()
}

/// Approves what is asked until the session's turn is over; gives the session.
pub(super) async fn approve_all(api: &Api, session: &str) -> Value {
    within("the turn's end", async {
        loop {
            let row = api.session(session).await;
            match row["status"].as_str().unwrap() {
                "running" => drop(api.follow(session, "?until=pause").await.all().await),
                "awaiting_approval" => {
                    let approval = row["pending_approval"]["id"].as_str().unwrap().to_owned();
                    let answer = api.decide(&approval, "approve").await;
                    assert!(matches!(answer.status, 200 | 409), "{}", answer.text);
                    api.follow(session, "?until=pause").await.all().await;
                }
                _ => return row,
            }
        }
    })
    .await
}
