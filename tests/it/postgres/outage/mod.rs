//! A database that goes away, in each way that one can: what was acknowledged is there afterwards, once; whoever asks meanwhile is
//! told to come later; and soon after the database is back everything works again.
//!
//! Short by default; `OSTLER_OUTAGE_SECONDS` asks for more.

mod answers;
mod disconnects;
mod network;
mod pool;
mod server;
mod turns;

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::chaos::count;
use crate::support::api::Api;
use crate::support::fleet::{Fleet, Plan};
use crate::support::postgres::shared;
use crate::support::proxy::Proxy;
use crate::support::sse::{Events, Frame};
use crate::support::within;

/// Leases that outlive every fault but those that are meant to outlive them.
const LONG: &[&str] = &["--replica-ttl-seconds", "60"];
const SHORT: &[&str] = &["--replica-ttl-seconds", "2"];

/// How long the long faults last.
fn seconds() -> Duration {
    Duration::from_secs(count("OSTLER_OUTAGE_SECONDS", 4))
}

/// One replica that reaches the database by way of a proxy.
async fn far(plan: Plan) -> (Fleet, Proxy) {
    let proxy = Proxy::start(shared().await);
    let url = proxy.url(plan.database());
    (plan.with_url_of(0, &url).start().await, proxy)
}

fn id(value: &Value) -> String {
    value["id"].as_str().unwrap().to_owned()
}

/// That much time passes: it is what the fault is made of.
pub async fn lasts(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Waits until the replica is ready and a new session's turn completes; gives how long that took.
async fn until_well(api: &Api) -> Duration {
    let begun = Instant::now();
    let body = json!({"harness": "demo", "prompt": "/say well", "settings": {"token_delay_ms": 0}});
    within("the service to be well", async {
        loop {
            let answer = api.post_and_wait("/v1/sessions", body.clone()).await;
            let completed = answer.status == 201 && answer.json()["turn"]["status"] == "completed";
            if completed && api.get("/readyz").await.status == 200 {
                return;
            }
            assert!(answer.status < 300 || answer.status == 503, "{}", answer.text);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    begun.elapsed()
}

/// Follows so many turns to their ends, from one stream to the next where one is cut. Nothing is left out, nothing shown twice.
async fn follow_through(api: Api, session: String, turns: usize) -> Vec<Frame> {
    let mut ends = 0;
    let mut frames: Vec<Frame> = Vec::new();
    loop {
        let last = frames.last().map_or(0, |frame| frame.id);
        let request = api.request(reqwest::Method::GET, &format!("/v1/sessions/{session}/events"));
        let request = request.header("accept", "text/event-stream").header("last-event-id", last.to_string());
        let response = within("a stream", request.send()).await.unwrap();
        if response.status() != 200 {
            assert_eq!(response.status(), 503);
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        }
        let mut events = Events::new(response);
        loop {
            // A silence may be as long as the fault.
            let Ok(frame) = tokio::time::timeout(Duration::from_secs(5), events.next()).await else {
                continue;
            };
            let Some(frame) = frame else { break };
            assert_eq!(frame.id, frames.last().map_or(0, |frame| frame.id) + 1, "a hole, or an event twice");
            let ended =
                frame.event.starts_with("turn.") && !matches!(&frame.event[5..], "queued" | "started");
            frames.push(frame);
            ends += usize::from(ended);
            if ends == turns {
                return frames;
            }
        }
    }
}

/// The words of some events, one behind the other.
fn words<'a>(events: impl IntoIterator<Item = &'a Value>) -> String {
    let deltas = events.into_iter().filter(|event| event["type"] == "text.delta");
    deltas.map(|event| event["data"]["text"].as_str().unwrap()).collect()
}

/// What `/tokens COUNT` says.
fn tokens(count: usize) -> String {
    (1..=count).map(|n| format!("w{n} ")).collect()
}

/// The log of a session as the table has it: 1, 2, 3 …
async fn log(api: &Api, session: &str) -> Vec<Value> {
    let events = api.events(session).await;
    let seqs: Vec<i64> = events.iter().map(|event| event["seq"].as_i64().unwrap()).collect();
    assert_eq!(seqs, (1..=seqs.len() as i64).collect::<Vec<_>>());
    events
}
