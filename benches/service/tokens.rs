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
use serde_json::json;
use sqlx::{ConnectOptions, SqliteConnection};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnboundedReceiverStream;

use super::home::{Home, listen};
use super::load::{self, Loaded, Task};
use super::report::{Sample, Series, Target, Watch, note, row};
use super::{floor, measure_time};

const SESSIONS: usize = 200;
const PER_SECOND: u32 = 50;

pub async fn run() {
    let time = measure_time();
    let words = (time.as_secs_f64() + 4.0) * f64::from(PER_SECOND);
    let words = words as u32;
    let bare = pipeline_alone(words, time).await;
    let streamed = pipeline_streamed(words, time).await;
    let ostler = service(words, time).await;
    let bare_again = pipeline_alone(words, time).await;
    let streamed_again = pipeline_streamed(words, time).await;
    let ostler_again = service(words, time).await;
    let bare = Series(vec![bare, bare_again]);
    let floor = Series(vec![streamed.sample(), streamed_again.sample()]);
    let ours = Series(vec![ostler.sample(), ostler_again.sample()]);
    let cpu = |s: &Sample| s.cpu;
    row("10k tokens/s floor: stored, then heard", &bare, None, Target::None);
    row("10k tokens/s floor: stored, then SSE", &floor, None, Target::None);
    row("10k tokens/s, CPU to the SSE floor", &ours, Some(ours.ratio(&floor, cpu)), Target::AtMost(1.5));
    let late = ours.median(|s| s.p99) / (3.0 * floor.median(|s| s.p99) + 5000.0);
    row("10k tokens/s, p99 to 3x the floor's + 5 ms", &ours, Some(late.max(0.01)), Target::AtMost(1.0));
    for loaded in [&ostler, &ostler_again] {
        let wanted = SESSIONS as u64 * u64::from(words);
        let exact = loaded.found.total == wanted && loaded.found.wrong == 0;
        note(&format!(
            "{:.2} cores; {} of {wanted} words in {} events, each once and in order: {}",
            loaded.cpu / loaded.wall,
            loaded.found.total,
            loaded.found.events,
            if exact { "met" } else { "missed" }
        ));
    }
    let cores = floor.median(|s| s.cpu * s.rate / 1e6);
    note(&format!(
        "the floor with SSE took {cores:.2} cores, without {:.2}",
        bare.median(|s| s.cpu * s.rate / 1e6)
    ));
}

async fn service(words: u32, time: Duration) -> Loaded {
    let home = Home::open().await;
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
    put(home.address, words, time, streams, prompts).await
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
    _directory: TempDir,
}

impl Pipeline {
    async fn open(words: u32) -> Arc<Self> {
        let directory = tempfile::tempdir().unwrap();
        let mut connection = floor::options(&directory.path().join("floor.db")).connect().await.unwrap();
        sqlx::query(
            "CREATE TABLE events (session_key INTEGER NOT NULL, seq INTEGER NOT NULL, at INTEGER NOT NULL, data TEXT NOT NULL,
             PRIMARY KEY (session_key, seq))",
        )
        .execute(&mut connection)
        .await
        .unwrap();
        let (say, said) = mpsc::channel(4096);
        let (mut ears, mut mouths) = (HashMap::new(), Vec::new());
        for session in 0..SESSIONS as i64 {
            let (mouth, ear) = mpsc::unbounded_channel();
            mouths.push(mouth);
            ears.insert(session, ear);
        }
        tokio::spawn(store_then_publish(connection, said, mouths));
        Arc::new(Self { say, ears: Mutex::new(ears), words, _directory: directory })
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
    mut connection: SqliteConnection,
    mut said: mpsc::Receiver<Word>,
    mouths: Vec<mpsc::UnboundedSender<Word>>,
) {
    let mut batch = Vec::new();
    while said.recv_many(&mut batch, 2048).await > 0 {
        let rows: Vec<_> = batch
            .iter()
            .map(|(session, seq, at)| (session, seq, at.0, format!(r#"{{"text":"w{seq} "}}"#)))
            .collect();
        // One statement is its own transaction.
        sqlx::query(
            "INSERT INTO events (session_key, seq, at, data)
             SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each($1)",
        )
        .bind(serde_json::to_string(&rows).unwrap())
        .execute(&mut connection)
        .await
        .unwrap();
        for word in batch.drain(..) {
            let _ = mouths[word.0 as usize].send(word);
        }
    }
}

/// The pipeline with readers in this process.
async fn pipeline_alone(words: u32, time: Duration) -> Sample {
    let pipeline = Pipeline::open(words).await;
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
async fn pipeline_streamed(words: u32, time: Duration) -> Loaded {
    let pipeline = Pipeline::open(words).await;
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
