//! Durable changes by 64 callers at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ostler::clock::{Clock, Timestamp};
use ostler::domain::event::{EventBody, NewEvent};
use ostler::domain::session::{Session, SessionState};
use ostler::domain::turn::{Ordinal, Prompt, Turn, TurnStatus, Usage};
use ostler::ids::TurnId;
use ostler::store::{Change, Commit, SharedStore, TurnWrite};
use serde_json::json;

use super::floor::{Floor, row_id};
use super::home::Home;
use super::report::{Sample, Series, Target, Watch, floor, note, row};
use super::{ROUNDS, load, round_time};

const CALLERS: usize = 64;

pub async fn run() {
    let (home, bare) = (Home::open().await, Floor::open().await);
    let mut titles = home.sessions(CALLERS).await;
    let mut prompts = home.sessions(CALLERS).await;
    let patched = home.sessions(CALLERS).await;
    let title = json!({"title": "A title that says a little more"});
    let requests = |path: &dyn Fn(usize) -> String| {
        (0..CALLERS).map(|n| home.request("PATCH", &path(n), Some(&title))).collect::<Vec<_>>()
    };
    let patches = requests(&|n| format!("/v1/sessions/{}", patched[n].id));
    let (group, naive) =
        (requests(&|n| format!("/group/{}", row_id(n))), requests(&|n| format!("/naive/{}", row_id(n))));

    let mut series: [Series; 6] = Default::default();
    let time = round_time();
    for _ in 0..ROUNDS {
        series[0].push(group_floor(&bare, time).await);
        series[1].push(commits(&home.store, &mut titles, time, retitled).await);
        series[2].push(commits(&home.store, &mut prompts, time, prompted).await);
        series[3].push(load::requests(bare.address, CALLERS, time, &group).await.sample());
        series[4].push(load::requests(home.address, CALLERS, time, &patches).await.sample());
        series[5].push(load::requests(bare.address, CALLERS, time, &naive).await.sample());
    }
    let [floor_store, title, prompt, floor_http, patch, naive] = &series;
    let rate = |s: &Sample| s.rate;
    floor("c=64 floor: UPDATE, group commit", floor_store);
    row("c=64 Store::commit, title", title, Some(title.ratio(floor_store, rate)), Target::AtLeast(0.6));
    row("c=64 Store::commit, turn and event", prompt, Some(prompt.ratio(floor_store, rate)), Target::None);
    floor("c=64 floor: axum, group commit", floor_http);
    floor("c=64 floor: axum, pool of 1, autocommit", naive);
    row(
        "c=64 PATCH session, rate to the group floor",
        patch,
        Some(patch.ratio(floor_http, rate)),
        Target::None,
    );
    row(
        "c=64 PATCH session, CPU to the group floor",
        patch,
        Some(patch.ratio(floor_http, |s| s.cpu)),
        Target::AtMost(2.5),
    );
    row(
        "c=64 PATCH session, rate to the pool of 1",
        patch,
        Some(patch.ratio(naive, rate)),
        Target::AtLeast(4.0),
    );
    let stats = home.store.writer_stats();
    note(&format!(
        "writer: {:.1} writes per commit, largest {}",
        stats.writes as f64 / stats.commits as f64,
        stats.largest_batch
    ));
}

async fn group_floor(bare: &Arc<Floor>, time: Duration) -> Sample {
    let group = bare.group.clone();
    repeat(CALLERS, time, move |number| {
        let group = group.clone();
        async move { group.update(row_id(number)).await }
    })
    .await
}

/// So many callers, each of which does it again and again.
pub async fn repeat<F: Future<Output = ()> + Send>(
    callers: usize,
    time: Duration,
    act: impl Fn(usize) -> F + Clone + Send + 'static,
) -> Sample {
    let watch = Watch::start();
    let end = Instant::now() + time;
    let callers = (0..callers).map(|number| {
        let act = act.clone();
        tokio::spawn(async move {
            let mut latencies = Vec::new();
            while Instant::now() < end {
                let begun = Instant::now();
                act(number).await;
                latencies.push(micros(begun));
            }
            latencies
        })
    });
    let callers: Vec<_> = callers.collect();
    let mut all = Vec::new();
    for caller in callers {
        all.extend(caller.await.unwrap());
    }
    watch.sample(all)
}

/// Each caller changes its own session, again and again.
pub async fn commits(
    store: &SharedStore,
    sessions: &mut [Session],
    time: Duration,
    change: fn(&mut Session) -> Change,
) -> Sample {
    let watch = Watch::start();
    let end = Instant::now() + time;
    let callers = sessions.iter_mut().map(|session| {
        let (store, mut mine) = (Arc::clone(store), session.clone());
        // It comes back changed; what is lost with the task is only counted.
        tokio::spawn(async move {
            let mut latencies = Vec::new();
            while Instant::now() < end {
                let begun = Instant::now();
                assert_eq!(store.commit(change(&mut mine)).await.unwrap(), Commit::Done);
                mine.version += 1;
                latencies.push(micros(begun));
            }
            (latencies, mine)
        })
    });
    let callers: Vec<_> = callers.collect();
    let mut all = Vec::new();
    for (caller, session) in callers.into_iter().zip(sessions) {
        let (latencies, mine) = caller.await.unwrap();
        *session = mine;
        all.extend(latencies);
    }
    watch.sample(all)
}

fn now() -> Timestamp {
    Clock::System.now()
}

/// A title that a person changes.
pub fn retitled(session: &mut Session) -> Change {
    let mut change = Change::of(session, now());
    change.set.title = Some("A title that says a little more".to_owned());
    change
}

/// What a prompt writes.
pub fn prompted(session: &mut Session) -> Change {
    let at = now();
    session.turn_count += 1;
    let turn = turn(session.turn_count, at);
    let mut change = Change::of(session, at);
    change.set.state = Some(SessionState::Running { turn: turn.ordinal });
    change.set.turn_count = Some(session.turn_count);
    change.set.queued_turns = Some(1);
    change.events.push(NewEvent { turn: Some(turn.reference()), at, body: EventBody::TurnQueued {} });
    change.turns.push(TurnWrite::Insert { turn: Box::new(turn), urgent: false });
    change
}

/// A turn that waits.
pub fn turn(ordinal: i64, at: Timestamp) -> Turn {
    Turn {
        id: TurnId::mint(),
        ordinal: Ordinal(ordinal),
        prompt: Prompt::Text("Please look at the failing test and say what is wrong with it.".to_owned()),
        status: TurnStatus::Queued,
        stop_reason: None,
        text: None,
        error: None,
        usage: Usage::NONE,
        rehydrated: false,
        metadata: Default::default(),
        traceparent: None,
        created_at: at,
        started_at: None,
        ended_at: None,
    }
}

pub fn micros(begun: Instant) -> u32 {
    u32::try_from(begun.elapsed().as_micros()).unwrap_or(u32::MAX)
}
