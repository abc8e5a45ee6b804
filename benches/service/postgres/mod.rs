//! The same measures on PostgreSQL, where the service shares it with other replicas.

mod floor;
pub mod server;

use std::sync::Arc;

use ostler::domain::session::Session;
use serde_json::json;

use self::floor::Floor;
use self::server::{Server, home};
use super::home::Home;
use super::report::{Sample, Series, Target, note, row};
use super::support::postgres::Database;
use super::tokens::{self as words, Place};
use super::writes::{commits, prompted, repeat, retitled};
use super::{ROUNDS, load, round_time};

const CALLERS: [usize; 3] = [1, 16, 64];
const MOST: usize = 64;
/// Sessions that lie in the table beside those that are changed.
const OTHERS: usize = 1000;
/// What hints cost is less than what one round differs from the next.
const HINT_ROUNDS: u32 = 3 * ROUNDS;

/// A table that is not empty, as the database's planner knows.
async fn fill(database: &Database, home: &Home) {
    home.sessions(OTHERS).await;
    database.execute("VACUUM ANALYZE agent_harness_sessions").await;
}

/// One replica alone, at the store.
pub async fn writes() {
    let database = Server::start().await.database().await;
    let home = home(&database, true).await;
    let (mut titles, mut prompts) = (home.sessions(MOST).await, home.sessions(MOST).await);
    fill(&database, &home).await;
    let bare = Floor::open(&database).await;
    for callers in CALLERS {
        at_the_store(&home, &bare, &mut titles[..callers], &mut prompts[..callers]).await;
    }
    home.store.close().await;
}

async fn at_the_store(home: &Home, bare: &Floor, titles: &mut [Session], prompts: &mut [Session]) {
    let (callers, time) = (titles.len(), round_time());
    let keys: Arc<[i64]> = titles.iter().map(|session| session.key.0).collect();
    let mut series: [Series; 4] = Default::default();
    let before = home.store.writer_stats();
    for _ in 0..ROUNDS {
        let (group, of) = (bare.group.clone(), Arc::clone(&keys));
        let grouped = move |n: usize| {
            let (group, key) = (group.clone(), of[n]);
            async move { group.update(key).await }
        };
        series[0].push(repeat(callers, time, grouped).await);
        let (pool, of) = (bare.pool.clone(), Arc::clone(&keys));
        let alone = move |n: usize| {
            let (pool, key) = (pool.clone(), of[n]);
            async move { floor::update(&pool, key).await }
        };
        series[1].push(repeat(callers, time, alone).await);
        series[2].push(commits(&home.store, titles, time, retitled).await);
        series[3].push(commits(&home.store, prompts, time, prompted).await);
    }
    let [group, naive, title, prompt] = &series;
    let rate = |s: &Sample| s.rate;
    let many = callers == MOST;
    let to = |least| if many { Target::AtLeast(least) } else { Target::None };
    let name = |words: &str| format!("pg c={callers} {words}");
    row(&name("floor: UPDATE, unnest group"), group, None, Target::None);
    row(&name("naive: UPDATE, pool of 16"), naive, Some(naive.ratio(group, rate)), Target::None);
    row(&name("Store::commit, title, to the group"), title, Some(title.ratio(group, rate)), to(0.4));
    row(&name("Store::commit, title, to the pool"), title, Some(title.ratio(naive, rate)), to(3.0));
    let prompted = prompt.ratio(group, rate);
    row(&name("Store::commit, turn and event"), prompt, Some(prompted), Target::None);
    let after = home.store.writer_stats();
    let (writes, commits) = (after.writes - before.writes, after.commits - before.commits);
    note(&format!("writers: {:.1} writes per commit", writes as f64 / commits as f64));
}

/// One replica alone, over HTTP.
pub async fn http() {
    let database = Server::start().await.database().await;
    let home = home(&database, true).await;
    let sessions = home.sessions(MOST).await;
    fill(&database, &home).await;
    let bare = Floor::open(&database).await;
    let (callers, time) = (sessions.len(), round_time());
    let title = json!({"title": "A title that says a little more"});
    let requests = |path: &dyn Fn(&Session) -> String| {
        sessions.iter().map(|session| home.request("PATCH", &path(session), Some(&title))).collect::<Vec<_>>()
    };
    let patches = requests(&|session| format!("/v1/sessions/{}", session.id));
    let grouped = requests(&|session| format!("/group/{}", session.key));
    let alone = requests(&|session| format!("/naive/{}", session.key));
    let mut series: [Series; 3] = Default::default();
    for _ in 0..ROUNDS {
        series[0].push(load::requests(bare.address, callers, time, &grouped).await.sample());
        series[1].push(load::requests(bare.address, callers, time, &alone).await.sample());
        series[2].push(load::requests(home.address, callers, time, &patches).await.sample());
    }
    let [group, naive, patch] = &series;
    let rate = |s: &Sample| s.rate;
    let name = |words: &str| format!("pg c={callers} {words}");
    row(&name("floor: axum, unnest group"), group, None, Target::None);
    row(&name("naive: axum, pool of 16"), naive, Some(naive.ratio(group, rate)), Target::None);
    row(&name("PATCH, rate to the group"), patch, Some(patch.ratio(group, rate)), Target::None);
    let cpu = patch.ratio(group, |s| s.cpu);
    row(&name("PATCH, CPU to the group"), patch, Some(cpu), Target::AtMost(2.5));
    row(&name("PATCH, rate to the pool"), patch, Some(patch.ratio(naive, rate)), Target::AtLeast(3.0));
    home.store.close().await;
}

/// One replica changes sessions while another listens, with hints from the first or without.
pub async fn hints() {
    let database = Server::start().await.database().await;
    let (silent, telling, other) =
        (home(&database, false).await, home(&database, true).await, home(&database, true).await);
    let heard = Arc::clone(&other.store);
    let listener = tokio::spawn(async move {
        loop {
            heard.next_hint().await;
        }
    });
    let mut sessions = silent.sessions(MOST).await;
    fill(&database, &silent).await;
    let time = round_time();
    for callers in [16, MOST] {
        let (mut without, mut with) = (Series::default(), Series::default());
        let sessions = &mut sessions[..callers];
        for round in 0..HINT_ROUNDS {
            // Each goes first as often as the other.
            for second in [false, true] {
                let (store, series) = if (round % 2 == 0) == second {
                    (&telling.store, &mut with)
                } else {
                    (&silent.store, &mut without)
                };
                series.push(commits(store, sessions, time, retitled).await);
            }
        }
        row(&format!("pg c={callers} Store::commit, no hints"), &without, None, Target::None);
        let name = format!("pg c={callers} Store::commit, hints");
        row(&name, &with, Some(with.ratio(&without, |s| s.rate)), Target::AtLeast(0.95));
    }
    listener.abort();
    for home in [silent, telling, other] {
        home.store.close().await;
    }
}

/// See [`words`].
pub async fn tokens() {
    words::run_on(Place::Server(Server::start().await)).await;
}
