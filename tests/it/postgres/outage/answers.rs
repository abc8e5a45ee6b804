//! The database did it, and its answer was lost.

use std::time::Duration;

use serde_json::{Value, json};

use super::{LONG, SHORT, far, id, lasts, log, tokens, until_well, words};
use crate::support::fleet::Fleet;
use crate::support::processes::eventually;
use crate::support::within;

fn body(prompt: &str) -> Value {
    json!({"harness": "demo", "prompt": prompt, "settings": {"token_delay_ms": 0}})
}

#[tokio::test]
async fn f02_a_session_a_prompt_and_a_decision_whose_commits_answer_is_lost_are_there_once() {
    let (fleet, proxy) = far(Fleet::of(1).with(LONG)).await;
    let api = fleet.api(0);
    let creating = api.post("/v1/sessions", json!({"harness": "demo"}));
    let ((), session) = tokio::join!(proxy.lose_answer("COMMIT"), creating);
    let session = id(&session.expect(201));
    let path = format!("/v1/sessions/{session}/prompts");
    let prompting = api.post(&path, json!({"prompt": "/ask shell {}"}));
    let ((), turn) = tokio::join!(proxy.lose_answer("COMMIT"), prompting);
    turn.expect(202);
    let row = api.until_status(&session, "awaiting_approval").await;
    let approval = id(&row["pending_approval"]);
    let ((), decided) = tokio::join!(proxy.lose_answer("COMMIT"), api.decide(&approval, "approve"));
    assert_eq!(decided.expect(200)["idempotent"], false);
    let row = api.until_status(&session, "idle").await;
    assert_eq!(row["turn"]["status"], "completed");
    assert_eq!(api.get("/v1/sessions").await.expect(200)["data"].as_array().unwrap().len(), 1);
    let turns = api.get(&format!("/v1/sessions/{session}/turns")).await.expect(200);
    assert_eq!(turns["data"].as_array().unwrap().len(), 1);
    for kind in ["prompt", "decision", "tool"] {
        assert_eq!(fleet.home().effects(&session, kind), 1, "{kind}");
    }
    let kinds = api.kinds(&session).await;
    for kind in ["session.created", "turn.queued", "approval.resolved", "turn.completed"] {
        assert_eq!(kinds.iter().filter(|other| *other == kind).count(), 1, "{kind} in {kinds:?}");
    }
    log(&api, &session).await;
}

#[tokio::test]
async fn f02_a_session_of_which_nobody_could_learn_whether_it_was_made_is_made_once_and_whole() {
    let (fleet, proxy) = far(Fleet::of(1).with(LONG)).await;
    let api = fleet.api(0).with_header("idempotency-key", "k");
    let creating = api.post("/v1/sessions", body("/say x\n/tool free {}"));
    let ((), refused) = tokio::join!(proxy.lose_answer_and_cut("COMMIT"), creating);
    assert_eq!(refused.problem(503, "storage_unavailable")["retryable"], true);
    proxy.pass().await;
    let again = within("a retry", async {
        loop {
            let again = api.post("/v1/sessions", body("/say x\n/tool free {}")).await;
            if again.status == 201 {
                return again;
            }
            assert!(matches!(again.status, 409 | 503), "{}", again.text);
        }
    })
    .await;
    let session = id(&again.json());
    let row = api.until_status(&session, "idle").await;
    assert_eq!(row["turn"]["status"], "completed", "{row}");
    assert_eq!(api.get("/v1/sessions").await.expect(200)["data"].as_array().unwrap().len(), 1);
    assert_eq!((fleet.home().effects(&session, "prompt"), fleet.home().effects(&session, "tool")), (1, 1));
    log(&api, &session).await;
}

/// Another replica finds the session and works in its directory while the first still asks what became of it.
#[tokio::test]
async fn a_session_of_which_one_replica_could_not_learn_whether_it_was_made_keeps_its_files() {
    let (fleet, proxy) = far(Fleet::of(2).with(LONG)).await;
    let (far, near) = (fleet.api(0), fleet.api(1));
    let creating = far.post("/v1/sessions", body("/write kept hello\n/tool free {}"));
    let ((), refused) = tokio::join!(proxy.lose_answer_and_cut("COMMIT"), creating);
    refused.problem(503, "storage_unavailable");
    let session = id(&near.get("/v1/sessions").await.expect(200)["data"][0]);
    near.until_status(&session, "idle").await;
    assert_eq!(std::fs::read_to_string(fleet.home().workspace(&session).join("kept")).unwrap(), "hello");
    assert_eq!((fleet.home().effects(&session, "prompt"), fleet.home().effects(&session, "tool")), (1, 2));
    assert!(fleet.home().state_dir(&session).is_dir());
}

#[tokio::test]
async fn words_whose_answer_is_lost_are_neither_lost_nor_said_twice() {
    let (fleet, proxy) = far(Fleet::of(1).with(LONG)).await;
    let api = fleet.api(0);
    let session = id(&api.create_detached("/tokens 300 100").await);
    api.follow(&session, "").await.until("text.delta").await;
    for _ in 0..5 {
        proxy.lose_answer("INSERT 0 ").await;
    }
    let row = api.until_status(&session, "idle").await;
    assert_eq!(row["turn"]["status"], "completed");
    assert_eq!(words(&log(&api, &session).await), tokens(300));
}

/// The server does not notice that a client is gone while it works for it: what it was asked last it does nevertheless, later.
#[tokio::test]
async fn words_that_the_database_still_works_on_when_their_connection_is_lost_are_not_said_twice() {
    let (fleet, proxy) = far(Fleet::of(1).with(LONG)).await;
    let api = fleet.api(0);
    let database = fleet.home().postgres().unwrap();
    let session = id(&api.create_detached("/tokens 300 100").await);
    api.follow(&session, "").await.until("text.delta").await;
    let mut thief = database.connect().await;
    sqlx::raw_sql("BEGIN; LOCK TABLE events IN EXCLUSIVE MODE").execute(&mut thief).await.unwrap();
    let waiting = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE 'INSERT INTO events%'";
    let mut beside = database.connect().await;
    within("words to wait for the lock", async {
        while sqlx::query_scalar::<_, i64>(waiting).fetch_one(&mut beside).await.unwrap() == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let before = proxy.accepted();
    proxy.reset_once().await;
    // Somebody has asked what became of them.
    eventually("new connections", || proxy.accepted() > before + 1).await;
    lasts(Duration::from_millis(500)).await;
    sqlx::raw_sql("ROLLBACK").execute(&mut thief).await.unwrap();
    let row = api.until_status(&session, "idle").await;
    assert_eq!(row["turn"]["status"], "completed");
    assert_eq!(words(&log(&api, &session).await), tokens(300));
}

#[tokio::test]
async fn words_of_which_nobody_could_learn_whether_they_are_kept_are_not_said_twice() {
    let (fleet, proxy) = far(Fleet::of(1).with(SHORT)).await;
    let api = fleet.api(0);
    let session = id(&api.create("/remember x").await);
    let path = format!("/v1/sessions/{session}/prompts");
    api.post(&path, json!({"prompt": "/tokens 1000 100"})).await.expect(202);
    api.follow(&session, "").await.until("text.delta").await;
    proxy.lose_answer_and_cut("INSERT 0 ").await;
    // Longer than its lease.
    lasts(Duration::from_secs(3)).await;
    proxy.pass().await;
    until_well(&api).await;
    let row = api.until_status(&session, "idle").await;
    assert_eq!(row["turn"]["status"], "interrupted");
    let said = words(&log(&api, &session).await);
    assert!(!said.is_empty() && tokens(1000).starts_with(&said), "{said}");
    assert_eq!(api.prompt(&session, "/recall").await["text"], "x");
}
