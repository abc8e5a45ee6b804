//! One caller alone: what it waits for one durable change.

use std::time::{Duration, Instant};

use serde_json::json;

use super::floor::{Floor, row_id, update};
use super::home::Home;
use super::report::{Sample, Series, Target, Watch, floor, median, note, row};
use super::writes::micros;
use super::{ROUNDS, load, round_time};

pub async fn run() {
    let (home, bare) = (Home::open().await, Floor::open().await);
    let session = home.sessions(1).await.remove(0);
    let title = json!({"title": "A title that says a little more"});
    let patch = [home.request("PATCH", &format!("/v1/sessions/{}", session.id), Some(&title))];
    let echo = [home.request("POST", "/echo", Some(&title))];
    let time = round_time();
    // The first use of a key is written down: once here, so that it is not counted below.
    load::requests(home.address, 1, Duration::from_millis(50), &patch).await;
    let before = home.store.writer_stats().commits;
    let mut accepted = 0;
    let (mut commits, mut echoes, mut patches) = (Series::default(), Series::default(), Series::default());
    for _ in 0..ROUNDS {
        commits.push(bare_commits(&bare, time).await);
        echoes.push(load::requests(bare.address, 1, time, &echo).await.sample());
        let loaded = load::requests(home.address, 1, time, &patch).await;
        accepted += loaded.found.total;
        patches.push(loaded.sample());
    }
    let made = home.store.writer_stats().commits - before;
    let rounds = patches.0.iter().zip(commits.0.iter().zip(&echoes.0));
    let ratio = median(rounds.map(|(patch, (commit, echo))| patch.p50 / (commit.p50 + echo.p50)).collect());
    floor("c=1 floor: UPDATE, autocommit", &commits);
    floor("c=1 floor: JSON echo", &echoes);
    row("c=1 PATCH session, p50 to both floors' sum", &patches, Some(ratio), Target::AtMost(1.5));
    let exact = if made == accepted { "met" } else { "missed" };
    note(&format!("{made} commits for {accepted} accepted requests, one each: {exact}"));
}

async fn bare_commits(bare: &Floor, time: Duration) -> Sample {
    let mut connection = bare.naive.acquire().await.unwrap();
    let watch = Watch::start();
    let end = Instant::now() + time;
    let mut latencies = Vec::new();
    while Instant::now() < end {
        let begun = Instant::now();
        update(&mut connection, &row_id(latencies.len())).await;
        latencies.push(micros(begun));
    }
    watch.sample(latencies)
}
