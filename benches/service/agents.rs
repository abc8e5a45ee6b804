//! What sessions take in memory and processes, of the real program: 2,000 that are stored and idle, then 100 live ones of the demo
//! harness and 100 of an ACP agent, by whatever the kernel says of the service's process. What an agent's own process takes is the
//! agent's, and comes on top.

use futures_util::StreamExt;
use serde_json::{Value, json};

use super::report::note;
use super::support::api::Api;
use super::support::fake_agent::{self, id};
use super::support::processes;
use super::support::server::{Home, Server};

const IDLE: usize = 2_000;
const LIVE: usize = 100;
/// The harnesses of the live ones, and a turn that ends.
const LIVE_ONES: [(&str, &str); 2] = [("demo", "/say hello"), ("fake", "say hello")];

pub async fn run() {
    let home = Home::on_sqlite().with_config(&fake_agent::harness("fake", &["script"]));
    let server = home.start().await;
    let api = server.api();
    // What the first of each costs is no part of the others.
    for (harness, prompt) in LIVE_ONES {
        end(&api, &make(&api, 1, harness, Some(prompt)).await).await;
    }
    let (memory, began_with) = (resident(&server), processes_of(&server));
    let idle = make(&api, IDLE, "fake", None).await;
    let (stored, processes) = (resident(&server), processes_of(&server) - began_with);
    note(&format!(
        "{IDLE} sessions stored and idle: {:.1} kB of memory and {:.2} processes each, {memory:.1} MB before",
        (stored - memory) * 1000.0 / IDLE as f64,
        processes as f64 / IDLE as f64,
    ));
    for (harness, prompt) in LIVE_ONES {
        let before = resident(&server);
        let live = make(&api, LIVE, harness, Some(prompt)).await;
        let (memory, processes) = (resident(&server), processes_of(&server) - began_with);
        note(&format!(
            "{LIVE} live sessions of the harness {harness}: {:.1} kB of memory and {:.2} processes each, {memory:.1} MB in all",
            (memory - before) * 1000.0 / LIVE as f64,
            processes as f64 / LIVE as f64,
        ));
        end(&api, &live).await;
    }
    assert_eq!(processes_of(&server), began_with, "something is left");
    drop(idle);
}

/// Makes sessions, a few at a time; with a prompt, its turn has ended when this returns.
async fn make(api: &Api, count: usize, harness: &str, prompt: Option<&str>) -> Vec<String> {
    let made = futures_util::stream::iter(0..count).map(|_| async {
        let body = json!({"harness": harness, "prompt": prompt});
        let session: Value = api.post_and_wait("/v1/sessions", body).await.expect(201);
        assert_eq!(session["live"], prompt.is_some(), "{session}");
        id(&session)
    });
    made.buffer_unordered(8).collect().await
}

async fn end(api: &Api, sessions: &[String]) {
    let ended = futures_util::stream::iter(sessions).map(|session| fake_agent::post(api, session, "stop"));
    ended.buffer_unordered(16).collect::<Vec<Value>>().await;
}

fn processes_of(server: &Server) -> usize {
    processes::children_of(server.pid()).len()
}

/// MB.
fn resident(server: &Server) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<f64>().unwrap() * 1024.0 / 1e6
}
