//! Clients that do not wait for their answers: no transaction is left open for the next one to fall into.

use std::time::Duration;

use futures_util::StreamExt as _;
use reqwest::Method;
use serde_json::json;
use sqlx::PgConnection;

use super::{LONG, far, id};
use crate::support::fleet::Fleet;
use crate::support::within;

const REQUESTS: u64 = 300;

/// Connections inside a transaction of which nobody goes on.
async fn idle_in_transaction(beside: &mut PgConnection) -> i64 {
    let inside = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND state LIKE 'idle in transaction%'";
    sqlx::query_scalar(inside).fetch_one(beside).await.unwrap()
}

#[tokio::test]
async fn f53_after_a_storm_of_clients_that_disconnect_no_transaction_is_open_and_what_is_acknowledged_is_kept()
 {
    let (fleet, proxy) = far(Fleet::of(1).with(LONG)).await;
    let api = fleet.api(0);
    let mut sessions = Vec::new();
    for n in 0..20 {
        let prompt = if n % 2 == 0 { "/ask shell {}" } else { "/say x" };
        let session = api.create(prompt).await;
        sessions.push((id(&session), session["pending_approval"]["id"].as_str().map(str::to_owned)));
    }
    proxy.delay(Duration::from_millis(3)).await;
    let requests = futures_util::stream::iter(0..REQUESTS).map(|n| {
        let (session, approval) = &sessions[usize::try_from(n).unwrap() / 4 % sessions.len()];
        let request = match (n % 4, approval) {
            (0, _) => api
                .request(Method::POST, "/v1/sessions")
                .json(&json!({"harness": "demo", "prompt": "/say x", "settings": {"token_delay_ms": 0}})),
            (1, _) => api
                .request(Method::POST, &format!("/v1/sessions/{session}/prompts"))
                .json(&json!({"prompt": "/say y", "when_busy": "queue"})),
            (2, _) | (_, None) => api
                .request(Method::PATCH, &format!("/v1/sessions/{session}"))
                .json(&json!({"title": format!("title {n}")})),
            (_, Some(approval)) => api
                .request(Method::POST, &format!("/v1/approvals/{approval}/decision"))
                .json(&json!({"decision": "approve"})),
        };
        // A different moment each time, whatever the request: 7 and 300 have no common factor.
        request.timeout(Duration::from_micros(18_000 * (n * 7 % REQUESTS) / REQUESTS)).send()
    });
    let answered = requests.buffer_unordered(8).filter(|answer| std::future::ready(answer.is_ok())).count();
    let answered = within("the storm", answered).await;
    let database = fleet.home().postgres().unwrap();
    let mut beside = database.connect().await;
    within("what was begun to end", async {
        while idle_in_transaction(&mut beside).await > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let made = "SELECT count(*) - 20 FROM agent_harness_sessions";
    let made: i64 = sqlx::query_scalar(made).fetch_one(&mut beside).await.unwrap();
    println!("{answered} of {REQUESTS} waited for their answers; {made} sessions were made");
    assert!(made > 0, "nobody went away while a request was at work: the storm has shown nothing");
    // More than there are connections, so that each is used.
    let mut acknowledged = Vec::new();
    let writes = futures_util::stream::iter(0..100)
        .map(|_| api.post("/v1/sessions", json!({"harness": "demo"})))
        .buffer_unordered(16);
    for answer in writes.collect::<Vec<_>>().await {
        acknowledged.push(id(&answer.expect(201)));
    }
    for (n, (session, _)) in sessions.iter().enumerate() {
        let title = format!("after {n}");
        let path = format!("/v1/sessions/{session}");
        api.patch(&path, json!({"title": title})).await.expect(200);
        let kept: String = sqlx::query_scalar("SELECT title FROM agent_harness_sessions WHERE id = $1")
            .bind(session)
            .fetch_one(&mut beside)
            .await
            .unwrap();
        assert_eq!(kept, title);
    }
    let kept: i64 = sqlx::query_scalar("SELECT count(*) FROM agent_harness_sessions WHERE id = ANY ($1)")
        .bind(&acknowledged)
        .fetch_one(&mut beside)
        .await
        .unwrap();
    assert_eq!(kept, 100);
    for (session, _) in &sessions {
        within("the session to come to rest", async {
            while api.session(session).await["status"] == "running" {
                api.follow(session, "?until=pause").await.all().await;
            }
        })
        .await;
    }
    let running = api.get("/v1/sessions?status=running").await.expect(200);
    assert_eq!(running["data"].as_array().unwrap().len(), 0, "{running}");
}
