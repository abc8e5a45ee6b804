//! 200 agents that say 50 words a second each, stored before they are streamed, one reader per agent.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::routing::{get, post};
use bytes::Bytes;
use ostler::clock::{Clock, Timestamp};
use ostler::domain::event::{EventBody, NewEvent, Output};
use ostler::domain::lease::Lease;
use ostler::ids::{ReplicaId, SessionKey};
use ostler::store::{NewReplica, SharedStore};
use serde_json::json;
use sqlx::{ConnectOptions, PgConnection, SqliteConnection};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnboundedReceiverStream;

use super::home::{Home, listen};
use super::load::{self, Loaded, Task};
use super::postgres::server::{self, Server};
use super::report::{Sample, Series, Target, Watch, note, row};
use super::support::postgres::Database;
use super::{floor, measure_time};

const SESSIONS: usize = 200;
const PER_SECOND: u32 = 50;

/// Where the words are stored.
#[derive(Clone, Copy)]
pub enum Place {
    /// In a SQLite file.
    File,
    /// On PostgreSQL.
    Server(Server),
}

pub async fn run() {
    run_on(Place::File).await;
}

pub async fn run_on(place: Place) {
    let time = measure_time();
    let words = (time.as_secs_f64() + 4.0) * f64::from(PER_SECOND);
    let words = words as u32;
    let mut series: [Series; 4] = Default::default();
    let mut notes = Vec::new();
    for _ in 0..2 {
        series[0].push(pipeline_alone(place, words, time).await);
        let (appended, exact) = appended(place, words, time).await;
        series[1].push(appended);
        series[2].push(pipeline_streamed(place, words, time).await.sample());
        let ostler = service(place, words, time).await;
        series[3].push(ostler.sample());
        let wanted = SESSIONS as u64 * u64::from(words);
        let streamed = ostler.found.total == wanted && ostler.found.wrong == 0;
        let verdict = |exact| if exact { "met" } else { "missed" };
        notes.push(format!(
            "Store::append: {wanted} words, each stored and heard once and in order: {}",
            verdict(exact)
        ));
        notes.push(format!(
            "service: {:.2} cores; {} of {wanted} words in {} events, each once and in order: {}",
            ostler.cpu / ostler.wall,
            ostler.found.total,
            ostler.found.events,
            verdict(streamed)
        ));
    }
    let [bare, store, floor, ours] = &series;
    let cpu = |s: &Sample| s.cpu;
    let pg = if let Place::Server(_) = place { "pg " } else { "" };
    let name = |words: &str| format!("{pg}10k tokens/s {words}");
    row(&name("floor: stored, then heard"), bare, None, Target::None);
    row(&name("Store::append, CPU to it"), store, Some(store.ratio(bare, cpu)), Target::AtMost(1.5));
    row(&name("floor: stored, then SSE"), floor, None, Target::None);
    row(&name("service, CPU to the SSE floor"), ours, Some(ours.ratio(floor, cpu)), Target::AtMost(1.5));
    let late = ours.median(|s| s.p99) / (3.0 * floor.median(|s| s.p99) + 5000.0);
    row(&name("p99 to 3x the floor's + 5 ms"), ours, Some(late.max(0.01)), Target::AtMost(1.0));
    notes.iter().for_each(|words| note(words));
    let cores = |series: &Series| series.median(|s| s.cpu * s.rate / 1e6);
    note(&format!(
        "cores: floor {:.2}, Store::append {:.2}, SSE floor {:.2}",
        cores(bare),
        cores(store),
        cores(floor)
    ));
}

impl Place {
    /// The service on a fresh database.
    async fn home(self) -> (Home, Option<Database>) {
        match self {
            Self::File => (Home::open().await, None),
            Self::Server(server) => {
                let database = server.database().await;
                (server::home(&database, true).await, Some(database))
            }
        }
    }
}

async fn service(place: Place, words: u32, time: Duration) -> Loaded {
    let (home, _database) = place.home().await;
    home.service.run_background().await.unwrap();
    let principal = home.service.authenticate(&home.token).await.unwrap();
    let (mut streams, mut prompts) = (Vec::new(), Vec::new());
    let prompt = json!({"prompt": format!("/tokens {words} {PER_SECOND}")});
    for _ in 0..SESSIONS {
        let input = ostler::service::CreateSession {
            harness: "demo".to_owned(),
            settings: json!({}),
            ..Default::default()
        };
        let id = home.service.create(&principal, input, None).await.unwrap().session.id;
        streams.push(load::stream(&format!("/v1/sessions/{id}/events"), &home.token));
        prompts.push(home.request("POST", &format!("/v1/sessions/{id}/prompts"), Some(&prompt)));
    }
    let loaded = put(home.address, words, time, streams, prompts).await;
    home.service.shut_down().await;
    home.service.close().await;
    loaded
}

/// Sessions whose holder appends each word to the log, and a listener for each, in this process. Also gives whether every word was
/// stored and heard once and in its place.
async fn appended(place: Place, words: u32, time: Duration) -> (Sample, bool) {
    let (home, _database) = place.home().await;
    let replica = ReplicaId::mint();
    home.store.register_replica(&NewReplica { id: replica.clone(), version: "bench" }).await.unwrap();
    let sessions = home.sessions(SESSIONS).await;
    let heard = Arc::new(Mutex::new(Vec::new()));
    let (mut agents, mut ears) = (Vec::new(), Vec::new());
    for session in &sessions {
        let lease = home.store.claim(session.key, &replica, None).await.unwrap().unwrap();
        ears.push(tokio::spawn(hear(Arc::clone(&home.store), session.key, words, Arc::clone(&heard))));
        agents.push((Arc::clone(&home.store), lease));
    }
    let agents = agents.into_iter().map(|(store, lease)| tokio::spawn(speak(store, lease, words)));
    let agents: Vec<_> = agents.collect();
    let renewing = Arc::clone(&home.store);
    let alive = tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(3)).await;
            renewing.renew_replica(&replica).await.unwrap();
        }
    });
    tokio::time::sleep(Duration::from_millis(500)).await;
    heard.lock().unwrap().clear();
    let watch = Watch::start();
    tokio::time::sleep(time).await;
    let lags = std::mem::take(&mut *heard.lock().unwrap());
    let sample = watch.sample(lags);
    let mut exact = true;
    for agent in agents {
        agent.await.unwrap();
    }
    for ear in ears {
        exact &= tokio::time::timeout(Duration::from_secs(30), ear).await.is_ok_and(|heard| heard.unwrap());
    }
    for session in &sessions {
        let log = home.store.list_events(session.key, 0, i64::from(words) + 1).await.unwrap().events;
        let said = (1..).zip(&log).all(|(n, event)| {
            let data: serde_json::Value = serde_json::from_str(&event.data).unwrap();
            event.seq == n && data["text"] == format!("w{n} ")
        });
        exact &= said && log.len() == words as usize;
    }
    alive.abort();
    home.store.close().await;
    (sample, exact)
}

/// One append is in flight at a time; what is due meanwhile goes with the next.
async fn speak(store: SharedStore, lease: Lease, words: u32) {
    let begun = tokio::time::Instant::now();
    let mut said = 0;
    while said < words {
        let due = Duration::from_secs_f64(f64::from(said) / f64::from(PER_SECOND));
        tokio::time::sleep_until(begun + due).await;
        let due = (begun.elapsed().as_secs_f64() * f64::from(PER_SECOND)) as u32 + 1;
        let mut events = Vec::new();
        while said < due.min(words) {
            said += 1;
            let text = format!("w{said} ");
            let body = EventBody::Output(Output::TextDelta { text });
            events.push(NewEvent { turn: None, at: Clock::System.now(), body });
        }
        store.append(lease.reference(), events).await.unwrap();
    }
}

/// Listens to the last word; whether each was heard once and in its place.
async fn hear(store: SharedStore, session: SessionKey, words: u32, heard: Arc<Mutex<Vec<u32>>>) -> bool {
    let (mut ear, mut last, mut exact) = (store.subscribe(session), 0, true);
    while last < i64::from(words) {
        ear.changed().await;
        let events: Vec<_> = match ear.remembered_after(last) {
            Some(events) => {
                events.iter().map(|published| (published.event.seq, published.event.at)).collect()
            }
            None => {
                let page = store.list_events(session, last, i64::from(words)).await.unwrap();
                page.events.iter().map(|event| (event.seq, event.at)).collect()
            }
        };
        for (seq, at) in events {
            exact &= seq == last + 1;
            last = seq;
            let lag = Clock::System.now().since(at).as_millis() as u32 * 1000;
            heard.lock().unwrap().push(lag);
        }
    }
    exact
}

async fn put(
    address: SocketAddr,
    words: u32,
    time: Duration,
    streams: Vec<String>,
    prompts: Vec<String>,
) -> Loaded {
    load::put(&Task::Streams { address, time, words: u64::from(words), streams, prompts }).await
}

/// A word on its way: its session, its number there, and when it was said.
type Word = (i64, i64, Timestamp);

/// Producers, one writer with one statement per commit, and a way to each reader.
struct Pipeline {
    say: mpsc::Sender<Word>,
    ears: Mutex<HashMap<i64, mpsc::UnboundedReceiver<Word>>>,
    words: u32,
}

/// The pipeline's table, and the way to it. The connection is dropped before what it is to.
enum Log {
    File { connection: SqliteConnection, _directory: TempDir },
    Server { connection: PgConnection, _database: Database },
}

const TABLE: &str =
    "CREATE TABLE events (session_key BIGINT NOT NULL, seq BIGINT NOT NULL, at BIGINT NOT NULL,
    data TEXT NOT NULL, PRIMARY KEY (session_key, seq))";

impl Log {
    async fn open(place: Place) -> Self {
        match place {
            Place::File => {
                let directory = tempfile::tempdir().unwrap();
                let options = floor::options(&directory.path().join("floor.db"));
                let mut connection = options.connect().await.unwrap();
                sqlx::query(TABLE).execute(&mut connection).await.unwrap();
                Self::File { connection, _directory: directory }
            }
            Place::Server(server) => {
                let database = server.database().await;
                let mut connection = server::connect(&database).await;
                sqlx::query(TABLE).execute(&mut connection).await.unwrap();
                Self::Server { connection, _database: database }
            }
        }
    }

    /// One statement is its own transaction.
    async fn store(&mut self, batch: &[Word]) {
        let data = |seq: &i64| format!(r#"{{"text":"w{seq} "}}"#);
        match self {
            Self::File { connection, .. } => {
                let row = |(session, seq, at): &Word| (*session, *seq, at.0, data(seq));
                let rows = batch.iter().map(row).collect::<Vec<_>>();
                sqlx::query(
                    "INSERT INTO events (session_key, seq, at, data)
                     SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each($1)",
                )
                .bind(serde_json::to_string(&rows).unwrap())
                .execute(connection)
                .await
                .unwrap();
            }
            Self::Server { connection, .. } => {
                sqlx::query(
                    "INSERT INTO events (session_key, seq, at, data)
                     SELECT * FROM UNNEST($1::BIGINT[], $2::BIGINT[], $3::BIGINT[], $4::TEXT[])",
                )
                .bind(batch.iter().map(|(session, ..)| *session).collect::<Vec<_>>())
                .bind(batch.iter().map(|(_, seq, _)| *seq).collect::<Vec<_>>())
                .bind(batch.iter().map(|(.., at)| at.0).collect::<Vec<_>>())
                .bind(batch.iter().map(|(_, seq, _)| data(seq)).collect::<Vec<_>>())
                .execute(connection)
                .await
                .unwrap();
            }
        }
    }
}

impl Pipeline {
    async fn open(place: Place, words: u32) -> Arc<Self> {
        let log = Log::open(place).await;
        let (say, said) = mpsc::channel(4096);
        let (mut ears, mut mouths) = (HashMap::new(), Vec::new());
        for session in 0..SESSIONS as i64 {
            let (mouth, ear) = mpsc::unbounded_channel();
            mouths.push(mouth);
            ears.insert(session, ear);
        }
        tokio::spawn(store_then_publish(log, said, mouths));
        Arc::new(Self { say, ears: Mutex::new(ears), words })
    }

    fn ear(&self, session: i64) -> mpsc::UnboundedReceiver<Word> {
        self.ears.lock().unwrap().remove(&session).unwrap()
    }

    fn start(self: &Arc<Self>, session: i64) {
        let this = Arc::clone(self);
        tokio::spawn(async move {
            let begun = tokio::time::Instant::now();
            for number in 0..this.words {
                let due = Duration::from_secs_f64(f64::from(number) / f64::from(PER_SECOND));
                tokio::time::sleep_until(begun + due).await;
                this.say.send((session, i64::from(number) + 1, Clock::System.now())).await.unwrap();
            }
        });
    }
}

async fn store_then_publish(
    mut log: Log,
    mut said: mpsc::Receiver<Word>,
    mouths: Vec<mpsc::UnboundedSender<Word>>,
) {
    let mut batch = Vec::new();
    while said.recv_many(&mut batch, 2048).await > 0 {
        log.store(&batch).await;
        for word in batch.drain(..) {
            let _ = mouths[word.0 as usize].send(word);
        }
    }
}

/// The pipeline with readers in this process.
async fn pipeline_alone(place: Place, words: u32, time: Duration) -> Sample {
    let pipeline = Pipeline::open(place, words).await;
    let heard = Arc::new(Mutex::new((0_u64, Vec::new())));
    for session in 0..SESSIONS as i64 {
        let (mut ear, heard) = (pipeline.ear(session), Arc::clone(&heard));
        tokio::spawn(async move {
            while let Some((_, _, at)) = ear.recv().await {
                let lag = Clock::System.now().since(at).as_millis() as u32 * 1000;
                heard.lock().unwrap().1.push(lag);
            }
        });
        pipeline.start(session);
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    heard.lock().unwrap().1.clear();
    let watch = Watch::start();
    tokio::time::sleep(time).await;
    let lags = std::mem::take(&mut heard.lock().unwrap().1);
    let sample = watch.sample(lags);
    drop(pipeline);
    sample
}

/// The pipeline with a reader over HTTP for each session.
async fn pipeline_streamed(place: Place, words: u32, time: Duration) -> Loaded {
    let pipeline = Pipeline::open(place, words).await;
    let events = async |State(pipeline): State<Arc<Pipeline>>, Path(session): Path<i64>| {
        let words = UnboundedReceiverStream::new(pipeline.ear(session));
        Body::from_stream(words.map(|word| Ok::<_, std::convert::Infallible>(frame(word))))
    };
    let begin =
        async |State(pipeline): State<Arc<Pipeline>>, Path(session): Path<i64>| pipeline.start(session);
    let router = Router::new()
        .route("/events/{session}", get(events))
        .route("/start/{session}", post(begin))
        .with_state(pipeline);
    let address = listen(router).await;
    let streams = (0..SESSIONS).map(|n| load::stream(&format!("/events/{n}"), "x")).collect();
    let prompts =
        (0..SESSIONS).map(|n| load::request("POST", &format!("/start/{n}"), "x", Some(&json!({})))).collect();
    put(address, words, time, streams, prompts).await
}

fn frame((session, seq, at): Word) -> Bytes {
    Bytes::from(format!(
        "id: {seq}\nevent: text.delta\ndata: {{\"seq\":{seq},\"session\":{session},\"at\":\"{at}\",\"data\":{{\"text\":\"w{seq} \"}}}}\n\n"
    ))
}
