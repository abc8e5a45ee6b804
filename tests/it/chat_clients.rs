//! The second door with the official clients of OpenAI's API, for Python and for Node: one play in tests/clients for each, which
//! prints what its client saw. tests/run installs them.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value, json};
use tokio::process::Command;

use crate::support::server::{Home, Server};
use crate::support::within;

/// Where the clients are.
fn clients() -> PathBuf {
    let clients = std::env::var_os("OSTLER_CLIENTS_DIR").map(PathBuf::from);
    clients.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("target").join("clients"))
}

/// A part of the clients that is there.
fn installed(part: &str) -> PathBuf {
    let path = clients().join(part);
    let words = "This test drives the official client: tests/clients/install installs it, as tests/run does.";
    assert!(path.exists(), "{} is not there. {words}", path.display());
    path
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join("clients").join(name)
}

fn python(server: &Server, key: &str) -> Command {
    let mut command = Command::new(installed("python/bin/python"));
    command.arg(script("play.py")).args([&server.url, key]);
    command
}

fn node(server: &Server, key: &str) -> Command {
    installed("node/node_modules/openai");
    // The machine's own where it is late enough: then none was installed.
    let own = clients().join("node22/node_modules/.bin/node");
    let mut command = Command::new(if own.exists() { own } else { "node".into() });
    command.arg(script("play.mjs")).args([&server.url, key]).arg(clients().join("node"));
    command
}

/// What both see.
fn expected() -> Value {
    let told = |content: &str, reason: &str, usage: Value, approvals: u64| json!({"content": content, "reason": reason, "usage": usage, "approvals": approvals});
    let raised = |class: &str, code: &str, status: Value, param: Value| json!({"class": class, "code": code, "status": status, "param": param});
    let null = || Value::Null;
    json!({
        "models": ["demo"],
        "model": "demo",
        "no_model": raised("NotFoundError", "not_found", json!(404), null()),
        "completion": told("hello", "stop", json!(15), 0),
        "streamed": told("hello again", "stop", json!(15), 0),
        "conversation": told("blue", "stop", null(), 0),
        "paused": told("before", "approval_required", null(), 1),
        "busy": raised("ConflictError", "approval_pending", json!(409), null()),
        "paused_stream": told("before", "approval_required", null(), 1),
        "collected": told("beforeafter", "stop", null(), 0),
        "failed": raised("InternalServerError", "tool_broke", json!(502), null()),
        "failed_stream": raised("APIError", "tool_broke", null(), null()),
        "refused": raised("BadRequestError", "unsupported", json!(400), json!("n")),
        "absent": raised("NotFoundError", "not_found", json!(404), null()),
        "stranger": raised("AuthenticationError", "unauthenticated", json!(401), null()),
    })
}

async fn plays(command: impl FnOnce(&Server, &str) -> Command) {
    let home = Home::new();
    let server = home.start().await;
    let key = std::fs::read_to_string(home.path().join("admin.key")).unwrap();
    let mut command = command(&server, key.trim());
    // A proxy of the machine's is none for a service on it.
    command.env("NO_PROXY", "127.0.0.1").env("no_proxy", "127.0.0.1").stdin(Stdio::null()).kill_on_drop(true);
    let output = within("the play", command.output()).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let seen: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(seen, expected());
    // Each request that makes a session was sent once: no client has repeated one that had failed.
    let sessions = server.api().get("/v1/sessions").await.expect(200);
    assert_eq!(sessions["data"].as_array().unwrap().len(), 6);
}

#[tokio::test]
async fn the_official_client_for_python_plays_all_stories() {
    plays(python).await;
}

#[tokio::test]
async fn the_official_client_for_node_plays_all_stories() {
    plays(node).await;
}
