//! Tenants: what belongs to another is neither read, changed nor detected.

use serde_json::{Value, json};

use crate::support::api::Api;
use crate::support::server::Home;

fn id(value: &Value) -> String {
    value["id"].as_str().unwrap().to_owned()
}

/// Everything of an answer that a stranger could learn from, the request id aside.
fn learned(answer: &crate::support::api::Answer) -> (u16, Vec<(String, String)>, String) {
    let mut headers: Vec<(String, String)> = answer
        .headers
        .iter()
        .filter(|(name, _)| !matches!(name.as_str(), "ostler-request-id" | "date"))
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
        .collect();
    headers.sort();
    let mut body = answer.text.clone();
    if let Some(request) = answer.header("ostler-request-id") {
        body = body.replace(request, "REQ");
    }
    (answer.status, headers, body)
}

/// Every route that names a session, turn or approval.
async fn ask_everything(
    api: &Api,
    session: &str,
    run: &str,
    turn: &str,
    approval: &str,
) -> Vec<(String, crate::support::api::Answer)> {
    let mut answers = Vec::new();
    let mut note = |what: String, answer| answers.push((what, answer));
    for base in [format!("/v1/sessions/{session}"), format!("/v1/runs/{run}")] {
        let shape = base.rsplit_once('/').unwrap().0.to_owned();
        for path in ["", "/turns", "/events", "/transcript", "/approvals"] {
            note(format!("GET {shape}/…{path}"), api.get(&format!("{base}{path}")).await);
        }
        note(format!("GET {shape}/…/turns/…"), api.get(&format!("{base}/turns/{turn}")).await);
        note(format!("DELETE {shape}/…/turns/…"), api.delete(&format!("{base}/turns/{turn}")).await);
        note(format!("PATCH {shape}/…"), api.patch(&base, json!({"title": "x"})).await);
        note(format!("DELETE {shape}/…"), api.delete(&base).await);
        note(format!("DELETE {shape}/…?purge"), api.delete(&format!("{base}?purge=true")).await);
        for path in ["/cancel", "/stop", "/events/tickets"] {
            note(format!("POST {shape}/…{path}"), api.post(&format!("{base}{path}"), json!({})).await);
        }
        note(
            format!("POST {shape}/…/prompts"),
            api.post(&format!("{base}/prompts"), json!({"prompt": "x"})).await,
        );
        let stream = api
            .request(reqwest::Method::GET, &format!("{base}/events"))
            .header("accept", "text/event-stream");
        note(format!("SSE {shape}/…"), api.send(stream).await);
    }
    note("GET approval".to_owned(), api.get(&format!("/v1/approvals/{approval}")).await);
    note("decide".to_owned(), api.decide(approval, "approve").await);
    answers
}

#[tokio::test]
async fn rows_12_32_45_52_and_sec_05_a_foreign_and_an_absent_id_are_answered_byte_for_byte_alike_while_a_turn_runs()
 {
    let home = Home::new();
    let server = home.start().await;
    let alice =
        server.api_with(&home.make_key(&["--org", "o1", "--owner", "alice", "--role", "owner"]).await);
    let strangers = [
        home.make_key(&["--org", "o1", "--owner", "bob", "--role", "owner"]).await,
        home.make_key(&["--org", "o2", "--owner", "alice", "--role", "owner"]).await,
        home.make_key(&["--org", "o2", "--role", "admin"]).await,
        home.make_key(&["--org", "o2", "--role", "service"]).await,
    ];
    let waiting = alice.create("/ask shell {}\n/say done").await;
    let working = alice.create_detached("/hang").await;
    alice.follow(&id(&working), "").await.until("turn.started").await;
    let approval = id(&waiting["pending_approval"]);
    let before = (alice.session(&id(&waiting)).await, alice.session(&id(&working)).await);
    for key in &strangers {
        let stranger = server.api_with(key);
        let absent = ask_everything(
            &stranger,
            "ses_0197a0c0c0c07000a000a000a000a000",
            "no-such-run",
            "trn_0197a0c0c0c07000a000a000a000a000",
            "apr_0197a0c0c0c07000a000a000a000a000",
        )
        .await;
        let malformed = ask_everything(&stranger, "ses_x", "no-such-run", "trn_x", "%F0%9F%90%B4").await;
        for row in [&waiting, &working] {
            let run = row["run_id"].as_str().unwrap();
            let foreign = ask_everything(&stranger, &id(row), run, &id(&row["turn"]), &approval).await;
            for (((what, foreign), (_, absent)), (_, malformed)) in
                foreign.iter().zip(&absent).zip(&malformed)
            {
                assert_eq!(foreign.status, 404, "{what}: {}", foreign.text);
                assert_eq!(learned(foreign), learned(absent), "{what}");
                assert_eq!(learned(foreign), learned(malformed), "{what}");
            }
        }
        for list in ["/v1/sessions", "/v1/approvals", "/v1/sessions?owner=alice"] {
            let seen = stranger.get(list).await.expect(200);
            assert_eq!(seen["data"], json!([]), "{list}");
        }
    }
    assert_eq!(alice.session(&id(&waiting)).await, before.0, "nothing of it was changed");
    assert_eq!(alice.session(&id(&working)).await["status"], before.1["status"]);
    assert_eq!(home.effects(&id(&waiting), "decision"), 0);
}

#[tokio::test]
async fn a_service_key_creates_for_the_owner_it_names_and_reads_its_whole_org() {
    let home = Home::new();
    let server = home.start().await;
    let service = server.api_with(&home.make_key(&["--org", "o1", "--role", "service"]).await);
    let body = json!({"harness": "demo"});
    service.post("/v1/sessions", body.clone()).await.problem(400, "owner_required");
    let hers = service.on_behalf_of("alice").post("/v1/sessions", body.clone()).await.expect(201);
    assert_eq!((hers["owner_id"].as_str(), hers["org_id"].as_str()), (Some("alice"), Some("o1")));
    service.on_behalf_of("bob").get(&format!("/v1/sessions/{}", id(&hers))).await.problem(404, "not_found");
    service.get(&format!("/v1/sessions/{}", id(&hers))).await.expect(200);
    let alice =
        server.api_with(&home.make_key(&["--org", "o1", "--owner", "alice", "--role", "owner"]).await);
    alice.get(&format!("/v1/sessions/{}", id(&hers))).await.expect(200);
    // The header of an owner key changes nothing.
    let own = alice.on_behalf_of("bob").post("/v1/sessions", body).await.expect(201);
    assert_eq!(own["owner_id"], "alice");
}

#[tokio::test]
async fn an_admin_makes_lists_and_ends_keys_and_nobody_else_does() {
    let home = Home::new();
    let server = home.start().await;
    let admin = server.api();
    let made = admin
        .post("/v1/keys", json!({"role": "owner", "owner": "alice", "scopes": ["sessions:read"]}))
        .await
        .expect(201);
    let token = made["token"].as_str().unwrap();
    let alice = server.api_with(token);
    let me = alice.get("/v1/me").await.expect(200);
    assert_eq!(
        (me["role"].as_str(), me["owner_id"].as_str(), me["org_id"].as_str()),
        (Some("owner"), Some("alice"), Some("default"))
    );
    alice.get("/v1/sessions").await.expect(200);
    alice.post("/v1/sessions", json!({"harness": "demo"})).await.problem(403, "insufficient_scope");
    for answer in [alice.get("/v1/keys").await, alice.post("/v1/keys", json!({"role": "admin"})).await] {
        answer.problem(403, "insufficient_scope");
    }
    let listed = admin.get("/v1/keys").await.expect(200);
    assert!(!listed.to_string().contains(token.rsplit_once('_').unwrap().1), "a secret is shown once");
    admin.delete(&format!("/v1/keys/{}", id(&made))).await.expect(204);
    alice.get("/v1/me").await.problem(401, "unauthenticated");
    admin.delete("/v1/keys/key_0197a0c0c0c07000a000a000a000a000").await.problem(404, "not_found");
}

#[tokio::test]
async fn rows_11_and_97_a_run_id_that_another_owner_has_is_taken_and_its_session_stays_as_it_is() {
    let home = Home::new();
    let server = home.start().await;
    let key = async |owner: &str| {
        server.api_with(&home.make_key(&["--org", "o1", "--owner", owner, "--role", "owner"]).await)
    };
    let (alice, bob) = (key("alice").await, key("bob").await);
    let body = json!({"harness": "demo", "run_id": "job-1"});
    let hers = alice.post("/v1/sessions", body.clone()).await.expect(201);
    bob.post("/v1/sessions", body.clone()).await.problem(409, "run_exists");
    bob.get("/v1/runs/job-1").await.problem(404, "not_found");
    alice.post("/v1/sessions", body).await.problem(409, "run_exists");
    assert_eq!(alice.get("/v1/runs/job-1").await.expect(200)["id"], hers["id"]);
}

#[tokio::test]
async fn sec_06_no_body_says_who_somebody_is() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    for field in [
        "org_id",
        "owner_id",
        "owner",
        "id",
        "session_id",
        "status",
        "resume_state",
        "cwd",
        "lease_epoch",
        "scopes",
        "command",
        "args",
        "env",
        "mcp_servers",
    ] {
        let mut body = json!({"harness": "demo"});
        body[field] = json!("x");
        let problem = api.post("/v1/sessions", body).await.problem(400, "invalid_body");
        assert!(problem["detail"].as_str().unwrap().contains(field), "{problem}");
    }
    let inert = api
        .post("/v1/sessions", json!({"harness": "demo", "metadata": {"org_id": "other"}}))
        .await
        .expect(201);
    assert_eq!(
        (inert["org_id"].as_str(), inert["metadata"]["org_id"].as_str()),
        (Some("default"), Some("other"))
    );
}
