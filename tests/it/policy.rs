//! What the operator allows, whatever a session or a person says; what a caller says about a lost conversation; and how many sessions may
//! be live at once.

use serde_json::{Value, json};

use crate::support::api::Api;
use crate::support::fake_agent::{
    create, create_with, effects, harness, id, prompt_detached, service, settled,
};
use crate::support::processes;
use crate::support::server::{Home, Server};

async fn start(config: &str, arguments: &[&str]) -> (Home, Server, Api) {
    let home = Home::new().with_config(config).with(arguments);
    let server = home.start().await;
    let api = server.api();
    (home, server, api)
}

#[tokio::test]
async fn a_mode_beyond_the_harness_s_cap_is_refused_and_one_from_before_the_cap_counts_as_the_cap() {
    let home = Home::new().with_config(&harness("fake", &["script"]));
    let server = home.start().await;
    let body =
        |prompt: Option<&str>| json!({"harness": "fake", "prompt": prompt, "permission_mode": "allow_all"});
    let session = id(&create_with(&server.api(), body(Some("run make"))).await);
    assert_eq!(effects(&home, &session).len(), 1, "allowed without asking");
    assert!(server.terminate().await.success());

    let cap = "\n[policy.harness.fake]\nmax_permission_mode = \"allow_reads\"\n";
    std::fs::write(home.path().join("ostler.toml"), harness("fake", &["script"]) + cap).unwrap();
    let server = home.start().await;
    let api = server.api();
    let refused = api.post("/v1/sessions", body(None)).await.problem(422, "invalid_input");
    assert!(refused["detail"].as_str().unwrap().contains("at most allow_reads"), "{refused}");
    api.post("/v1/sessions", json!({"harness": "demo", "permission_mode": "allow_all"})).await.expect(201);
    assert_eq!(api.prompt(&session, "run make").await["status"], "awaiting_approval");
    assert_eq!(effects(&home, &session).len(), 1);
}

#[tokio::test]
async fn a_tool_that_the_operator_denies_an_org_is_never_run_and_never_asked_about() {
    let policy =
        "\n[policy]\ndeny_tools = [\"kind:delete\"]\n\n[policy.org.acme]\ndeny_tools = [\"Run: mak*\"]\n";
    let (home, server, api) = start(&(harness("fake", &["script"]) + policy), &[]).await;
    let acme = home.make_key(&["--org", "acme", "--owner", "alice", "--role", "owner"]).await;
    let acme = server.api_with(&acme);
    for mode in ["ask", "allow_all"] {
        let body = json!({"harness": "fake", "prompt": "run make\nsay on", "permission_mode": mode});
        let denied = create_with(&acme, body.clone()).await;
        assert_eq!(
            (denied["status"].as_str(), denied["turn"]["text"].as_str()),
            (Some("idle"), Some("on")),
            "{denied}"
        );
        let resolved = acme.events_of(&id(&denied), "approval.resolved").await[0]["approval"].take();
        assert_eq!(
            (resolved["status"].as_str(), resolved["decided_by"].as_str()),
            (Some("denied"), Some("policy"))
        );
        acme.decide(&id(&resolved), "approve").await.problem(409, "approval_already_resolved");
        assert!(effects(&home, &id(&denied)).is_empty());
        // Another org, and another tool of this one.
        let elsewhere = create_with(&api, body).await;
        assert_eq!(elsewhere["status"], if mode == "ask" { "awaiting_approval" } else { "idle" });
    }
    let other = create_with(&acme, json!({"harness": "fake", "prompt": "run other"})).await;
    assert_eq!(other["status"], "awaiting_approval");
}

#[tokio::test]
async fn what_is_denied_is_denied_also_where_the_harness_would_not_ask() {
    let policy = "\n[policy]\ndeny_tools = [\"fs/write_text_file\", \"web_fetch\"]\n";
    let (home, _server, api) = start(&(harness("fake", &["script"]) + policy), &[]).await;
    let body = json!({"harness": "fake", "prompt": "write a.txt hello", "permission_mode": "allow_edits"});
    let session = create_with(&api, body).await;
    assert!(session["turn"]["text"].as_str().unwrap().starts_with("refused"), "{session}");
    assert!(!home.workspace(&id(&session)).join("a.txt").exists());
    let demo = create_with(&api, json!({"harness": "demo", "prompt": "/tool web_fetch {}"})).await;
    assert_eq!(home.effects(&id(&demo), "tool"), 0);
    assert_eq!(api.events_of(&id(&demo), "tool.completed").await[0]["status"], "failed");
}

#[tokio::test]
async fn a_session_that_is_to_fail_without_its_conversation_fails_and_goes_on_when_it_is_back() {
    let (home, _server, api) = service(&["script"]).await;
    let body = json!({"harness": "fake", "prompt": "remember blue\ndie", "on_context_loss": "fail"});
    let session = id(&api.post_and_wait("/v1/sessions", body).await.json());
    let (kept, away) = (home.state_dir(&session).join("fake-sessions"), home.path().join("away"));
    std::fs::rename(&kept, &away).unwrap();
    let answer =
        api.post_and_wait(&format!("/v1/sessions/{session}/prompts"), json!({"prompt": "recall"})).await;
    answer.problem(502, "harness_failed");
    let row = api.session(&session).await;
    assert_eq!(
        (row["status"].as_str(), row["turn"]["error"]["code"].as_str(), row["on_context_loss"].as_str()),
        (Some("errored"), Some("context_lost"), Some("fail"))
    );
    assert!(api.events_of(&session, "session.context_lost").await.is_empty(), "it does not go on without");
    assert_eq!(processes::of_agent(&session).len(), 0);
    std::fs::remove_dir_all(&kept).unwrap_or_default();
    std::fs::rename(&away, &kept).unwrap();
    assert_eq!(api.prompt(&session, "recall").await["text"], "blue");
}

#[tokio::test]
async fn a_conversation_of_another_directory_is_not_taken_up() {
    let (home, server, api) = service(&["script"]).await;
    let session = id(&create(&api, "remember blue").await);
    server.terminate().await;
    let elsewhere = home.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let column = elsewhere.to_str().unwrap();
    home.tamper(&format!(
        "UPDATE agent_harness_sessions SET workspace_ref = '{column}' WHERE id = '{session}'"
    ))
    .await;
    let server = home.start().await;
    let api = server.api();
    assert_eq!(api.prompt(&session, "recall").await["text"], "NOTHING");
    let lost = api.events_of(&session, "session.context_lost").await;
    assert!(lost[0]["reason"].as_str().unwrap().contains("another directory"), "{lost:?}");
}

#[tokio::test]
async fn where_there_is_no_room_the_session_that_was_idle_for_longest_is_put_away() {
    let (_home, _server, api) = start(&harness("fake", &["script"]), &["--max-live-sessions", "2"]).await;
    let oldest = id(&create(&api, "remember blue").await);
    let asks = id(&create(&api, "run make").await);
    let newest = id(&create(&api, "say hello").await);
    let stopped = api.session(&oldest).await;
    assert_eq!(
        (stopped["status"].as_str(), stopped["stop_cause"].as_str(), stopped["live"].as_bool()),
        (Some("stopped"), Some("idle_ttl"), Some(false))
    );
    assert_eq!(api.session(&asks).await["live"], true, "one that waits for a person is not idle");
    // The room goes round.
    assert_eq!(api.prompt(&oldest, "recall").await["text"], "blue");
    assert_eq!(api.session(&newest).await["status"], "stopped");
    assert_eq!(processes::of_agent(&newest).len(), 0);
    // And ends where nobody is idle.
    prompt_detached(&api, &oldest, "hang").await;
    api.post("/v1/sessions", json!({"harness": "fake", "prompt": "say x"})).await.problem(503, "overloaded");
    api.post(&format!("/v1/sessions/{newest}/prompts"), json!({"prompt": "say x"}))
        .await
        .problem(503, "overloaded");
    api.post("/v1/sessions", json!({"harness": "fake"})).await.expect(201);
}

#[tokio::test]
async fn a_crowd_at_the_door_never_makes_more_sessions_live_than_there_may_be() {
    let (_home, _server, api) = start("", &["--max-live-sessions", "4"]).await;
    let crowd = (0..24).map(|n| {
        let api = api.clone();
        tokio::spawn(async move {
            api.post("/v1/sessions", json!({"harness": "demo", "prompt": format!("/say {n}\n/ask sh {{}}")}))
                .await
        })
    });
    let answers: Vec<Value> = {
        let mut answers = Vec::new();
        for one in crowd.collect::<Vec<_>>() {
            let answer = one.await.unwrap();
            assert!(matches!(answer.status, 201 | 503), "{}", answer.text);
            answers.extend((answer.status == 201).then(|| answer.json()));
        }
        answers
    };
    assert_eq!(answers.len(), 4, "each of them waits for a person, so that none gives room");
    for session in &answers {
        settled_at_question(&api, &id(session)).await;
    }
    api.post(&format!("/v1/sessions/{}/stop", id(&answers[0])), json!({})).await.expect(200);
    let fifth = api.post("/v1/sessions", json!({"harness": "demo", "prompt": "/say x"})).await.expect(201);
    settled(&api, &id(&fifth)).await;
}

async fn settled_at_question(api: &Api, session: &str) {
    api.follow(session, "?until=pause").await.all().await;
    assert_eq!(api.session(session).await["status"], "awaiting_approval");
}
