//! Idempotency: a request that is sent again has its effect once and gets the first answer again.

use serde_json::{Value, json};

use crate::support::server::Home;
use crate::support::sse::Events;

fn id(value: &Value) -> String {
    value["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn f03_of_64_clients_with_one_key_one_makes_the_session() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api().with_header("idempotency-key", "k-1");
    let body = json!({"harness": "demo", "prompt": "/say x"});
    let racing: Vec<_> = (0..64)
        .map(|_| {
            let (api, body) = (api.clone(), body.clone());
            tokio::spawn(async move { api.post("/v1/sessions", body).await })
        })
        .collect();
    let mut made = std::collections::BTreeSet::new();
    for answer in racing {
        let answer = answer.await.unwrap();
        match answer.status {
            201 => drop(made.insert(answer.text.clone())),
            _ => {
                answer.problem(409, "idempotency_in_progress");
                assert!(answer.header("retry-after").is_some());
            }
        }
    }
    assert_eq!(made.len(), 1, "all who were answered got the same bytes");
    assert_eq!(server.api().get("/v1/sessions").await.expect(200)["data"].as_array().unwrap().len(), 1);
    let replayed = api.post("/v1/sessions", body).await;
    assert_eq!((replayed.status, replayed.header("idempotency-replayed")), (201, Some("true")));
    assert!(made.contains(&replayed.text));
}

#[tokio::test]
async fn f04_the_same_key_with_another_body_or_path_is_refused() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api().with_header("idempotency-key", "k-1");
    let session = id(&api.post("/v1/sessions", json!({"harness": "demo"})).await.expect(201));
    api.post("/v1/sessions", json!({"harness": "demo", "title": "x"}))
        .await
        .problem(422, "idempotency_key_reused");
    api.post(&format!("/v1/sessions/{session}/stop"), json!({})).await.problem(422, "idempotency_key_reused");
    // Another principal's key of the same name is another key.
    let other = server.api_with(&home.make_key(&["--org", "default", "--role", "admin"]).await);
    let other = other.with_header("idempotency-key", "k-1");
    assert_ne!(id(&other.post("/v1/sessions", json!({"harness": "demo"})).await.expect(201)), session);
    for bad in ["", " ", "ü", &"x".repeat(256)] {
        let request =
            server.api().request(reqwest::Method::POST, "/v1/sessions").json(&json!({"harness": "demo"}));
        let header = reqwest::header::HeaderValue::from_bytes(bad.as_bytes()).unwrap();
        let answer = server.api().send(request.header("idempotency-key", header)).await;
        assert_eq!(answer.status, 400, "{bad:?}: {}", answer.text);
    }
}

#[tokio::test]
async fn every_verb_with_a_key_has_its_effect_once_and_its_answer_again() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let keyed = |key: &str| api.with_header("idempotency-key", key);
    let session = api.create("/ask shell {}").await;
    let (session, approval) = (id(&session), id(&session["pending_approval"]));
    let decide = format!("/v1/approvals/{approval}/decision");
    let prompts = format!("/v1/sessions/{session}/prompts");
    let steps = [
        ("decide", decide, json!({"decision": "approve"})),
        ("prompt", prompts, json!({"prompt": "/tool once {}", "when_busy": "queue"})),
        ("cancel", format!("/v1/sessions/{session}/cancel"), json!({})),
        ("stop", format!("/v1/sessions/{session}/stop"), json!({})),
    ];
    for (key, path, body) in steps {
        let first = keyed(key).post(&path, body.clone()).await;
        assert!(matches!(first.status, 200 | 202), "{key}: {}", first.text);
        api.follow(&session, "?until=pause").await.all().await;
        let again = keyed(key).post(&path, body).await;
        assert_eq!((again.status, &again.text), (first.status, &first.text), "{key}");
        assert_eq!(again.header("idempotency-replayed"), Some("true"), "{key}");
    }
    assert_eq!((home.effects(&session, "prompt"), home.effects(&session, "decision")), (2, 1));
}

#[tokio::test]
async fn a_cancel_that_is_sent_again_does_not_cancel_the_turn_after() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let session = id(&api.create_detached("/hang").await);
    api.follow(&session, "").await.until("turn.started").await;
    let cancel = format!("/v1/sessions/{session}/cancel");
    let keyed = api.with_header("idempotency-key", "c");
    keyed.post(&cancel, json!({})).await.expect(200);
    api.post(&format!("/v1/sessions/{session}/prompts"), json!({"prompt": "/ask shell {}"}))
        .await
        .expect(202);
    api.until_status(&session, "awaiting_approval").await;
    keyed.post(&cancel, json!({})).await.expect(200);
    assert_eq!(api.session(&session).await["status"], "awaiting_approval");
}

#[tokio::test]
async fn a_waiting_request_sent_again_is_answered_as_the_first_was() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let body = json!({"harness": "demo", "prompt": "/tool once {}\n/say done"});
    let send = || {
        let request = api.request(reqwest::Method::POST, "/v1/sessions").header("prefer", "wait=30");
        api.send(request.header("idempotency-key", "w").json(&body))
    };
    let (first, again) = (send().await, send().await);
    assert_eq!(first.expect(201)["turn"]["text"], "done");
    assert_eq!((again.status, &again.text), (first.status, &first.text));
    assert_eq!(home.effects(&id(&first.json()), "tool"), 1);
}

#[tokio::test]
async fn a_streaming_request_sent_again_streams_the_same_turn_from_its_first_event() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let body = json!({"harness": "demo", "prompt": "/tool once {}\n/say done"});
    let send = || {
        let request =
            api.request(reqwest::Method::POST, "/v1/sessions").header("accept", "text/event-stream");
        request.header("idempotency-key", "s").json(&body).send()
    };
    let first = Events::new(send().await.unwrap()).all().await;
    let response = send().await.unwrap();
    assert_eq!(response.headers().get("idempotency-replayed").unwrap(), "true");
    assert_eq!(Events::new(response).all().await, first);
    assert_eq!(home.effects(first[0].data["session_id"].as_str().unwrap(), "tool"), 1);
}
