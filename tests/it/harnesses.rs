//! The harnesses of a service: what is installed, what is known and not configured, and what one says of itself when it is started.

use std::fs;

use serde_json::{Value, json};

use crate::support::api::Api;
use crate::support::fake_agent;
use crate::support::processes;
use crate::support::server::{Home, Server};

/// The lines of ostler.toml for the fake agent with these arguments, under a name, with more of them.
fn harness(name: &str, arguments: &[&str], lines: &str) -> String {
    format!("{}{lines}\n", fake_agent::harness(name, arguments))
}

async fn service(config: &str) -> (Home, Server, Api) {
    let home = Home::new().with_config(config);
    let server = home.start().await;
    let api = server.api();
    (home, server, api)
}

async fn check(api: &Api, name: &str) -> Value {
    api.post(&format!("/v1/harnesses/{name}/check"), json!({})).await.expect(200)
}

/// What the sessions, or checks, of a service have left in its data directory.
fn directories(home: &Home) -> Vec<String> {
    let of = |name: &str| fs::read_dir(home.path().join(name)).into_iter().flatten();
    let entries = ["agents", "workspaces"].into_iter().flat_map(of);
    entries.map(|entry| entry.unwrap().path().display().to_string()).collect()
}

#[tokio::test]
async fn a_known_agent_is_told_of_with_what_to_add_and_a_session_with_it_fails_as_with_any_that_is_missing() {
    let (_home, _server, api) = service("").await;
    let codex = api.get("/v1/harnesses/codex").await.expect(200);
    assert_eq!(codex["available"], false, "{codex}");
    assert_eq!(codex["unavailable_reason"], "not configured");
    assert!(codex["configure"].as_str().unwrap().contains("preset = \"codex\""), "{codex}");
    assert!(codex["capabilities"]["approvals"] == true, "{codex}");
    let body = json!({"harness": "codex", "prompt": "Hi"});
    api.post_and_wait("/v1/sessions", body).await.problem(503, "harness_unavailable");
    let checked = check(&api, "codex").await;
    assert_eq!(
        (checked["ok"].as_bool(), checked["error"]["code"].as_str()),
        (Some(false), Some("harness_unavailable"))
    );
}

#[tokio::test]
async fn a_preset_is_completed_by_the_operators_own_keys() {
    let (home, _server, api) =
        service(&harness("coder", &[], "preset = \"gemini\"\nargs = [\"script\"]\ndescription = \"Ours.\""))
            .await;
    let coder = api.get("/v1/harnesses/coder").await.expect(200);
    assert_eq!((coder["label"].as_str(), coder["description"].as_str()), (Some("Gemini CLI"), Some("Ours.")));
    assert_eq!((coder["available"].as_bool(), &coder["version"]), (Some(true), &Value::Null));
    api.get("/v1/harnesses/gemini").await.problem(404, "not_found");
    // What the preset has it authenticate with and set, it did: the agent would refuse otherwise.
    let created =
        api.post_and_wait("/v1/sessions", json!({"harness": "coder", "prompt": "env"})).await.expect(201);
    let environment = created["turn"]["text"].as_str().unwrap();
    assert!(environment.contains("GEMINI_CLI_NO_RELAUNCH=true"), "{environment}");
    let session = created["id"].as_str().unwrap();
    assert!(home.state_dir(session).join(".gemini/settings.json").is_file());
}

#[tokio::test]
async fn a_random_value_is_another_one_at_each_start() {
    let lines = "env = { PASSWORD = \"{random}\" }";
    let (_home, _server, api) = service(&harness("fake", &["script"], lines)).await;
    let mut seen = Vec::new();
    for _ in 0..2 {
        let created =
            api.post_and_wait("/v1/sessions", json!({"harness": "fake", "prompt": "env"})).await.expect(201);
        let text = created["turn"]["text"].as_str().unwrap().to_owned();
        let password =
            text.split_whitespace().find_map(|word| word.strip_prefix("PASSWORD=")).unwrap().to_owned();
        assert!(password.len() == 32 && password.chars().all(|c| c.is_ascii_hexdigit()), "{text}");
        seen.push(password);
    }
    assert_ne!(seen[0], seen[1]);
}

#[tokio::test]
async fn a_check_starts_the_agent_hears_what_it_says_of_itself_and_leaves_nothing() {
    let lines = "after_new = [{ method = \"session/set_mode\", params = { modeId = \"ask\" } }]";
    let (home, server, api) = service(&harness("fake", &["script", "--stay"], lines)).await;
    let checked = check(&api, "fake").await;
    assert_eq!(checked["ok"], true, "{checked}");
    let said = ["agent_name", "agent_version", "restore", "mode"].map(|key| checked[key].as_str().unwrap());
    assert_eq!(said, ["fake-acp-agent", "7", "resume", "ask"]);
    assert_eq!((checked["protocol_version"].as_u64(), &checked["error"]), (Some(1), &Value::Null));
    assert_eq!(checked["modes"], json!([{"id": "auto", "name": null}, {"id": "ask", "name": "Ask"}]));
    assert!(checked["took_ms"].as_u64().unwrap() > 0);
    assert_eq!(directories(&home), [""; 0]);
    assert_eq!(processes::children_of(server.pid()), [0; 0]);
    assert_eq!(check(&api, "demo").await["ok"], true);
    api.post("/v1/harnesses/nobody/check", json!({})).await.problem(404, "not_found");
}

#[tokio::test]
async fn a_check_that_fails_says_why_as_a_start_does_and_leaves_nothing() {
    let config = [
        harness("dead", &["early-death"], ""),
        harness(
            "modeless",
            &["script", "--no-mode"],
            "after_new = [{ method = \"session/set_mode\", params = { modeId = \"x\" } }]",
        ),
        harness("keyless", &["script", "--auth"], ""),
        harness("ahead", &["version"], ""),
        harness("deaf", &["deaf"], "start_seconds = 1"),
    ];
    let (home, server, api) = service(&config.concat()).await;
    for (name, code, words) in [
        ("dead", "agent_start_failed", "went away at initialize"),
        ("modeless", "agent_start_failed", "refused session/set_mode"),
        ("keyless", "agent_start_failed", "wants credentials"),
        ("ahead", "agent_protocol_error", "version 2"),
        ("deaf", "agent_start_timeout", "within 1 s"),
    ] {
        let checked = check(&api, name).await;
        assert_eq!(
            (checked["ok"].as_bool(), checked["error"]["code"].as_str()),
            (Some(false), Some(code)),
            "{checked}"
        );
        assert!(checked["error"]["message"].as_str().unwrap().contains(words), "{checked}");
    }
    assert_eq!(directories(&home), [""; 0]);
    assert_eq!(processes::children_of(server.pid()), [0; 0]);
}

#[tokio::test]
async fn one_check_of_a_harness_is_at_work_at_a_time_and_only_for_an_admin() {
    let config = [harness("deaf", &["deaf"], "start_seconds = 3"), harness("fake", &["script"], "")];
    let (home, server, api) = service(&config.concat()).await;
    let (first, second) = tokio::join!(
        api.post("/v1/harnesses/deaf/check", json!({})),
        api.post("/v1/harnesses/deaf/check", json!({})),
    );
    let mut statuses = [first.status, second.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 503], "{first:?} {second:?}");
    let refused = if first.status == 503 { first } else { second };
    refused.problem(503, "overloaded");
    let owner = home.make_key(&["--org", "default", "--role", "owner", "--owner", "alice"]).await;
    let answer = server.api_with(&owner).post("/v1/harnesses/fake/check", json!({})).await;
    answer.problem(403, "insufficient_scope");
}

#[tokio::test]
async fn what_a_start_has_shown_of_how_an_agent_is_taken_up_is_told_from_then_on() {
    let config =
        [harness("forgetful", &["script", "--no-restore"], ""), harness("fake", &["script", "--load"], "")];
    let (_home, _server, api) = service(&config.concat()).await;
    let resumable = async |name: &str| {
        let harness = api.get(&format!("/v1/harnesses/{name}")).await.expect(200);
        harness["capabilities"]["resumable"].as_bool().unwrap()
    };
    let recovery = async |name: &str| {
        let harness = api.get(&format!("/v1/harnesses/{name}")).await.expect(200);
        harness["capabilities"]["approval_recovery"].as_str().unwrap().to_owned()
    };
    assert!(resumable("forgetful").await, "nobody has asked it yet");
    assert_eq!(check(&api, "forgetful").await["restore"], "none");
    assert!(!resumable("forgetful").await);
    assert_eq!(recovery("forgetful").await, "none");
    assert_eq!(check(&api, "fake").await["restore"], "load");
    assert!(resumable("fake").await);
    assert_eq!(recovery("fake").await, "reask");
    let created = api
        .post_and_wait("/v1/sessions", json!({"harness": "forgetful", "prompt": "say hello"}))
        .await
        .expect(201);
    let session = created["id"].as_str().unwrap();
    api.post(&format!("/v1/sessions/{session}/stop"), json!({})).await.expect(200);
    assert_eq!(api.session(session).await["resumable"], false);
    // It goes on all the same, and says what that means.
    assert_eq!(api.prompt(session, "say again").await["status"], "completed");
    assert_eq!(api.events_of(session, "session.context_lost").await.len(), 1);
}
