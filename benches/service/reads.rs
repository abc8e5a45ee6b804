//! Looking a session up: one that a driver has in hand, and one that is only stored.

use std::time::Duration;

use serde_json::json;

use super::floor::{Floor, ROWS, row_id};
use super::home::Home;
use super::report::{Sample, Series, Target, floor, row};
use super::{ROUNDS, load, round_time};

const CONNECTIONS: usize = 16;
const LIVE: usize = 16;

pub async fn run() {
    let (home, bare) = (Home::open().await, Floor::open().await);
    home.service.run_background().await.unwrap();
    let cold = home.sessions(ROWS).await;
    let get = |id: &str| home.request("GET", &format!("/v1/sessions/{id}"), None);
    let cold: Vec<_> = cold.iter().map(|session| get(session.id.as_str())).collect();
    let live: Vec<_> = live_sessions(&home).await.iter().map(|id| get(id)).collect();
    let echo = [home.request("POST", "/echo", Some(&json!({"title": "x".repeat(160)})))];
    let rows: Vec<_> = (0..ROWS).map(|n| home.request("GET", &format!("/row/{}", row_id(n)), None)).collect();
    let mut series: [Series; 4] = Default::default();
    let time = round_time();
    for _ in 0..ROUNDS {
        series[0].push(load::requests(bare.address, CONNECTIONS, time, &echo).await.sample());
        series[1].push(load::requests(home.address, CONNECTIONS, time, &live).await.sample());
        series[2].push(load::requests(bare.address, CONNECTIONS, time, &rows).await.sample());
        series[3].push(load::requests(home.address, CONNECTIONS, time, &cold).await.sample());
    }
    let [echo, live, select, cold] = &series;
    let cpu = |s: &Sample| s.cpu;
    floor("floor: JSON echo", echo);
    row("GET a live session, CPU to the echo", live, Some(live.ratio(echo, cpu)), Target::AtMost(2.0));
    floor("floor: axum, indexed SELECT", select);
    row("GET a cold session, CPU to the SELECT", cold, Some(cold.ratio(select, cpu)), Target::AtMost(1.3));
}

/// Sessions whose drivers wait for the next prompt.
async fn live_sessions(home: &Home) -> Vec<String> {
    let principal = home.service.authenticate(&home.token).await.unwrap();
    let mut ids = Vec::new();
    for _ in 0..LIVE {
        let input = ostler::service::CreateSession {
            harness: "demo".to_owned(),
            prompt: Some(ostler::domain::turn::Prompt::Text("/say hello".to_owned())),
            settings: json!({"token_delay_ms": 0}),
            ..Default::default()
        };
        let view = home.service.create(&principal, input, None).await.unwrap();
        let session = ostler::service::SessionRef::Id(view.session.id.clone());
        loop {
            let view = home.service.lookup(&principal.scope(), &session).await.unwrap();
            if view.live && view.session.state.turn().is_none() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        ids.push(view.session.id.to_string());
    }
    ids
}
