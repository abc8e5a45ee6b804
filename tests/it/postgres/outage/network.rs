//! The way to the database: cut, silent, slow.

use std::time::Duration;

use serde_json::json;

use super::{LONG, SHORT, far, follow_through, id, lasts, log, seconds, tokens, until_well, words};
use crate::support::assert_soon;
use crate::support::fleet::Fleet;
use crate::support::proxy::Proxy;

/// What the way to the database does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Cut,
    HalfOpen,
}

impl Fault {
    async fn happens(self, proxy: &Proxy) {
        match self {
            Self::Cut => proxy.cut().await,
            Self::HalfOpen => proxy.half_open().await,
        }
    }
}

/// A turn that says a word every 20 ms, until some time after the fault is over, completes with all its words.
async fn completes_through(fault: Fault, time: Duration) {
    let (fleet, proxy) = far(Fleet::of(1).with(LONG)).await;
    let api = fleet.api(0);
    let count = usize::try_from(time.as_millis() / 20).unwrap() + 100;
    let session = id(&api.create_detached(&format!("/tokens {count} 50")).await);
    api.follow(&session, "").await.until("text.delta").await;
    let reader = tokio::spawn(follow_through(api.clone(), session.clone(), 1));
    fault.happens(&proxy).await;
    lasts(time).await;
    proxy.pass().await;
    let shown = reader.await.unwrap();
    assert_eq!(shown.last().unwrap().event, "turn.completed", "{fault:?} for {time:?}: {:?}", shown.last());
    assert_eq!(words(shown.iter().map(|frame| &frame.data)), tokens(count), "{fault:?} for {time:?}");
    let events = log(&api, &session).await;
    assert_eq!(words(&events), tokens(count), "{fault:?} for {time:?}");
    assert_eq!(fleet.home().effects(&session, "prompt"), 1);
}

/// The longest of them is longer than anybody who does not hold a lease would wait to learn what became of a commit.
#[tokio::test]
async fn f15_a_turn_whose_database_is_cut_off_for_less_than_its_lease_completes_with_all_its_words() {
    let times = [1, 5, 8].map(|time| completes_through(Fault::Cut, Duration::from_secs(time)));
    futures_util::future::join_all(times).await;
}

#[tokio::test]
async fn a_turn_whose_database_says_nothing_for_a_while_completes_with_all_its_words() {
    let times = [1, 4].map(|time| completes_through(Fault::HalfOpen, Duration::from_secs(time)));
    futures_util::future::join_all(times).await;
}

#[tokio::test]
async fn a_turn_whose_database_is_far_away_completes_with_all_its_words() {
    let (fleet, proxy) = far(Fleet::of(1).with(LONG)).await;
    proxy.delay(Duration::from_millis(40)).await;
    let api = fleet.api(0);
    let session = id(&api.create_detached("/tokens 200 200\n/ask shell {}\n/tokens 10").await);
    let row = api.until_status(&session, "awaiting_approval").await;
    api.decide(&id(&row["pending_approval"]), "approve").await.expect(200);
    api.until_status(&session, "idle").await;
    assert_eq!(words(&log(&api, &session).await), tokens(200) + &tokens(10));
    assert_eq!(fleet.home().effects(&session, "decision"), 1);
}

#[tokio::test]
async fn while_the_database_is_cut_off_every_request_is_told_to_come_later_and_soon_afterwards_none_is() {
    let (fleet, proxy) = far(Fleet::of(1).with(SHORT)).await;
    let api = fleet.api(0);
    let session = id(&api.create("/say x").await);
    proxy.cut().await;
    let refused = futures_util::future::join_all([
        api.send(api.request(reqwest::Method::POST, "/v1/sessions").json(&json!({"harness": "demo"}))),
        api.send(api.request(reqwest::Method::GET, "/v1/sessions")),
        api.send(api.request(reqwest::Method::GET, &format!("/v1/sessions/{session}"))),
        api.send(api.request(reqwest::Method::GET, &format!("/v1/sessions/{session}/events"))),
        api.send(api.request(reqwest::Method::GET, "/readyz")),
        api.send(
            api.request(reqwest::Method::POST, &format!("/v1/sessions/{session}/prompts"))
                .json(&json!({"prompt": "/say y"})),
        ),
        api.send(
            api.request(reqwest::Method::PATCH, &format!("/v1/sessions/{session}"))
                .json(&json!({"title": "y"})),
        ),
        api.send(api.request(reqwest::Method::DELETE, &format!("/v1/sessions/{session}"))),
    ])
    .await;
    for answer in refused {
        assert_eq!(answer.problem(503, "storage_unavailable")["retryable"], true);
        assert!(answer.header("retry-after").is_some());
    }
    assert_eq!(api.get("/healthz").await.status, 200, "the process itself is well");
    lasts(seconds()).await;
    proxy.pass().await;
    let took = until_well(&api).await;
    println!("well {took:?} after the way to the database was free again");
    assert_soon(took, Duration::from_secs(5));
    assert_eq!(api.prompt(&session, "/say y").await["text"], "y");
}
