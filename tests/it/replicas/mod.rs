//! Several replicas on one database: who holds a session and what becomes of it when the holder is lost, commands that come to a
//! replica that does not hold their session, and handing over in order.
//!
//! Short by default; the environment asks for more: `OSTLER_RACES`, `OSTLER_IDLE_SESSIONS`, `OSTLER_DECISIONS`,
//! `OSTLER_CUTS`, `OSTLER_WISHES`.

mod commands;
mod handover;
mod ownership;
mod streams;

use std::collections::HashSet;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::api::Api;
use crate::support::fleet::Fleet;
use crate::support::within;

/// So long that no lease ends by its time in a test: what happens then happens for another reason.
const LONG: &[&str] = &["--replica-ttl-seconds", "600"];
/// As short as a busy machine allows.
const SHORT: &[&str] = &["--replica-ttl-seconds", "4"];

/// Remembers a word, asks, and runs a tool that nobody approves.
const ASKS: &str = "/remember blue\n/ask shell {\"command\":\"ls\"}\n/tool free {}\n/say done";

/// A number from the environment.
fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn id(value: &Value) -> String {
    value["id"].as_str().unwrap_or_else(|| panic!("no id in {value}")).to_owned()
}

/// Asks again until there is an answer: for what nobody is told about.
async fn poll<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    within(what, async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
}

/// The name of the replica that holds the session, whether or not it lives.
pub async fn holder(fleet: &Fleet, session: &str) -> Option<String> {
    let sql = "SELECT split_part(r.instance, ' ', 1) FROM agent_harness_sessions s
        JOIN replicas r ON r.id = s.lease_holder WHERE s.id = $1";
    let mut connection = fleet.home().postgres().unwrap().connect().await;
    sqlx::query_scalar(sql).bind(session).fetch_optional(&mut connection).await.unwrap()
}

/// A session whose first turn has ended, or asks, held by that replica and no other.
async fn create_at(fleet: &Fleet, i: usize, prompt: &str) -> Value {
    let create = async || {
        let session = fleet.api(i).create(prompt).await;
        if holder(fleet, &id(&session)).await == Some(format!("r{i}")) {
            return Some(session);
        }
        // Another one was faster to take it up.
        fleet.api(i).delete(&format!("/v1/sessions/{}?purge=true", id(&session))).await.expect(204);
        None
    };
    Box::pin(poll("a session at that replica", create)).await
}

/// A session that is held by that replica, has nothing to do, and remembers a word.
pub async fn idle_at(fleet: &Fleet, i: usize) -> String {
    id(&create_at(fleet, i, "/remember blue").await)
}

fn prompts(session: &str) -> String {
    format!("/v1/sessions/{session}/prompts")
}

/// Takes a prompt and gives its turn, which has begun to put out words.
pub async fn begin(api: &Api, session: &str, prompt: &str) -> String {
    let after = api.session(session).await["last_event_seq"].clone();
    let turn = id(&api.post(&prompts(session), json!({"prompt": prompt})).await.expect(202));
    api.follow(session, &format!("?after={after}")).await.until("text.delta").await;
    turn
}

/// Takes a prompt that waits for those before it, and gives its turn.
async fn queue(api: &Api, session: &str, prompt: &str) -> String {
    let body = json!({"prompt": prompt, "when_busy": "queue"});
    id(&api.post(&prompts(session), body).await.expect(202))
}

async fn turn(api: &Api, session: &str, turn: &str) -> Value {
    api.get(&format!("/v1/sessions/{session}/turns/{turn}")).await.expect(200)
}

/// The turn, once it has ended.
async fn ended(api: &Api, session: &str, id: &str) -> Value {
    within("the turn's end", async {
        let mut events = api.follow(session, "").await;
        loop {
            let row = turn(api, session, id).await;
            if row["ended_at"].is_string() {
                return row;
            }
            assert!(events.next().await.is_some(), "the stream ended before {row}");
        }
    })
    .await
}

/// What the effects ledger has of one turn, in order.
fn effects_of(fleet: &Fleet, session: &str, turn: &str) -> Vec<String> {
    let ledger = fleet.home().ledger(session).into_iter().filter(|line| line["turn_id"] == turn);
    ledger.map(|line| line["kind"].as_str().unwrap().to_owned()).collect()
}

/// Nothing is in the effects ledger twice.
fn assert_nothing_ran_twice(fleet: &Fleet, session: &str) {
    let mut seen = HashSet::new();
    for line in fleet.home().ledger(session) {
        assert!(seen.insert(line.to_string()), "twice: {line}");
    }
}

fn seqs(events: &[Value]) -> Vec<i64> {
    events.iter().map(|event| event["seq"].as_i64().unwrap()).collect()
}

/// The events of a session at rest, which are 1, 2, 3 … and the same at each of those replicas.
async fn one_log(fleet: &Fleet, replicas: &[usize], session: &str) -> Vec<Value> {
    let events = fleet.api(replicas[0]).events(session).await;
    assert_eq!(seqs(&events), (1..=events.len() as i64).collect::<Vec<_>>());
    for i in &replicas[1..] {
        assert_eq!(fleet.api(*i).events(session).await, events, "replica {i} tells otherwise");
    }
    events
}

/// Returns when the replica says that it takes requests.
async fn until_ready(api: &Api) {
    let anyone = api.anonymous();
    poll("the replica to be ready", async || (anyone.get("/readyz").await.status == 200).then_some(())).await;
}

/// `ostler replicas`, as it prints lines of JSON: instance, state and sessions held.
async fn listed(fleet: &Fleet) -> Vec<(String, String, i64)> {
    let output = fleet.home().command(&["replicas", "--json"]).output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let word = |row: &Value, name: &str| row[name].as_str().unwrap().to_owned();
    let mut rows: Vec<_> = rows
        .map(|row| (word(&row, "instance"), word(&row, "state"), row["sessions"].as_i64().unwrap()))
        .collect();
    rows.sort();
    rows
}
