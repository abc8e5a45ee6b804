//! A turn whose replica cannot reach the database for longer than its lease: another may have the session by now, so that its agent is
//! ended before the database is back.

use std::time::Duration;

use serde_json::json;

use super::{LONG, SHORT, far, follow_through, id, lasts, log, seconds, until_well};
use crate::support::fleet::Fleet;
use crate::support::postgres::shared;
use crate::support::processes::{eventually, of_agent};
use crate::support::proxy::Proxy;

const FAKE: &str = env!("CARGO_BIN_EXE_fake-acp-agent");

/// Cut off, or without a word: the agent is ended at the end of the lease, and the turn is `interrupted` once that can be stored.
async fn is_interrupted(silent: bool, time: Duration) {
    let config = format!("[harness.fake]\nkind = \"acp\"\ncommand = [{FAKE:?}, \"script\"]\n");
    let (fleet, proxy) = far(Fleet::of(1).with_config(&config).with(SHORT)).await;
    let api = fleet.api(0);
    let body = json!({"harness": "fake", "prompt": "say on \nhang"});
    let session = id(&api.post("/v1/sessions", body).await.expect(201));
    api.follow(&session, "").await.until("text.delta").await;
    assert!(!of_agent(&session).is_empty());
    let reader = tokio::spawn(follow_through(api.clone(), session.clone(), 1));
    if silent {
        proxy.half_open().await;
    } else {
        proxy.cut().await;
    }
    eventually("the agent to be ended", || of_agent(&session).is_empty()).await;
    lasts(time).await;
    proxy.pass().await;
    let took = until_well(&api).await;
    println!("well {took:?} after the way to the database was free again");
    let shown = reader.await.unwrap();
    assert_eq!(shown.last().unwrap().event, "turn.interrupted");
    let row = api.until_status(&session, "idle").await;
    assert_eq!(row["turn"]["status"], "interrupted");
    let again = api.prompt(&session, "say again").await;
    assert_eq!((again["status"].as_str(), again["text"].as_str()), (Some("completed"), Some("again")));
    log(&api, &session).await;
}

#[tokio::test]
async fn f15_cut_off_for_longer_than_its_lease_a_turn_is_interrupted_its_agent_ended_and_nothing_hangs() {
    is_interrupted(false, seconds()).await;
}

#[tokio::test]
async fn f35_without_a_word_for_longer_than_its_lease_a_turn_is_interrupted_its_agent_ended_and_nothing_hangs()
 {
    is_interrupted(true, Duration::from_secs(2)).await;
}

/// The session is the other replica's then, which does not know of it.
#[tokio::test]
async fn a_session_whose_takeover_nobody_learned_of_is_taken_care_of_all_the_same() {
    let plan = Fleet::of(2).with(LONG);
    let proxy = Proxy::start(shared().await);
    let url = proxy.url(plan.database());
    let mut fleet = plan.with_url_of(1, &url).start().await;
    let session = id(&fleet.api(0).create_detached("/say on\n/hang").await);
    fleet.api(0).follow(&session, "").await.until("text.delta").await;
    fleet.kill(0).await;
    let database = fleet.home().postgres().unwrap();
    let gone = database.execute("UPDATE replicas SET expires_at = 0 WHERE instance LIKE 'r0 %'");
    // The claim is the only transaction that the other one has to commit.
    tokio::join!(proxy.lose_answer_and_cut("COMMIT"), gone);
    // Longer than it asks what became of it.
    lasts(Duration::from_secs(8)).await;
    proxy.pass().await;
    let row = fleet.api(1).until_status(&session, "idle").await;
    assert_eq!(row["turn"]["status"], "interrupted");
}
