//! What a turn of the built-in agent costs, of the real program on SQLite. Its model is in this process and answers at once, so that
//! what is measured is all that a turn takes beside the model: through HTTP, with a session for each caller, kept warm.
//!
//! The floor is the model alone: the request of such a turn, sent by a client of the kind that the agent has. CPU time is the
//! service's own, but three programs share the cores: the service, the model, and the load generator.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use reqwest::Client;
use reqwest::header::CONTENT_TYPE;
use serde_json::{Value, json};
use sqlx::Connection as _;

use super::report::{Sample, Series, Target, floor, median, note, row};
use super::support::api::Api;
use super::support::chat_model::ChatModel;
use super::support::fake_agent::id;
use super::support::server::{Home, Server};
use super::writes::repeat;
use super::{ROUNDS, load, round_time};

/// How many callers there are at once.
const CALLERS: [usize; 3] = [1, 16, 64];
const MOST: usize = CALLERS[2];
/// Sessions that are prompted, more than there are callers: none gets a long past.
const SESSIONS: usize = 4 * MOST;
/// New sessions are measured for so many times as long: they take longer to begin.
const NEW: u32 = 4;
/// Turns that lie behind the session with a long past.
const EARLIER: usize = 1_000;
/// Turns per second that there are to be.
const WANTED: f64 = 300.0;
const PROMPT: &str = "Please look at the failing test and say what is wrong with it.";
/// The model answers that of itself; the demo harness is told to.
const ANSWER: &str = "/say echo: Please look at the failing test and say what is wrong with it.";
const TOOL: &str = "/call list_files {}\n/next\n/say done";

/// The service, and who asks it.
struct Bench {
    home: Home,
    server: Server,
    api: Api,
    address: SocketAddr,
    token: String,
    model: ChatModel,
    /// The request that a turn makes of the model.
    request: Bytes,
}

pub async fn run() {
    let bench = Bench::open().await;
    let agents = bench.sessions("agent", SESSIONS).await;
    let demos = bench.sessions("demo", SESSIONS).await;
    let turns = bench.prompts(&agents, PROMPT);
    let tools = bench.prompts(&agents, TOOL);
    let scripted = bench.prompts(&demos, ANSWER);
    let created = [bench.post("/v1/sessions", &creation("agent", PROMPT))];

    let mut bare: [Series; 3] = Default::default();
    let mut turn: [Series; 3] = Default::default();
    let (mut called, mut demo, mut create) = (Series::default(), Series::default(), Series::default());
    let mut counts = Vec::new();
    for _ in 0..ROUNDS {
        for (at, callers) in CALLERS.into_iter().enumerate() {
            bare[at].push(bench.ask_the_model(callers).await);
            let before = bench.written().await;
            turn[at].push(bench.load(callers, &turns).await);
            counts.push((at, before, bench.written().await));
        }
        called.push(bench.load(MOST, &tools).await);
        demo.push(bench.load(MOST, &scripted).await);
        create.push(bench.load_for(NEW * round_time(), MOST, &created).await);
    }
    for (at, callers) in CALLERS.into_iter().enumerate() {
        floor(&format!("c={callers} floor: the model alone"), &bare[at]);
        let (name, rate) =
            (format!("c={callers} turn, rate in the ratio's place"), turn[at].median(|s| s.rate));
        row(&name, &turn[at], Some(rate), if callers == 1 { Target::None } else { Target::AtLeast(WANTED) });
        let overhead = turn[at].0.iter().zip(&bare[at].0).map(|(turn, bare)| turn.p50 - bare.p50);
        note(&format!("{:.2} ms of it are not the model's", median(overhead.collect()) / 1000.0));
        note(&per_turn(
            counts.iter().filter(|count| count.0 == at).map(|(_, before, after)| (*before, *after)),
        ));
    }
    let rate = |series: &Series| Some(series.median(|s| s.rate));
    row("c=64 turn that calls a tool, rate likewise", &called, rate(&called), Target::None);
    row("c=64 new session and its turn, rate likewise", &create, rate(&create), Target::None);
    row("c=64 turn of demo, rate likewise", &demo, rate(&demo), Target::None);
    let [.., most] = &turn;
    note(&format!(
        "the agent makes {:.2} of its turns, at {:.2} of its CPU time each",
        most.ratio(&demo, |s| s.rate),
        most.ratio(&demo, |s| s.cpu)
    ));
    bench.long_past(&turn[0]).await;
}

impl Bench {
    async fn open() -> Self {
        let (model, keeps) = (ChatModel::forgetful((Ipv4Addr::LOCALHOST, 0).into()), ChatModel::start());
        let table = |name: &str, model: &ChatModel| {
            format!(
                "[harness.agent.models.{name}]\nbase_url = \"{}\"\nmodel = \"scripted\"\ncontext_window = 100000\n",
                model.base_url()
            )
        };
        let config = format!(
            "[harness.agent]\ndefault_model = \"main\"\n{}{}",
            table("main", &model),
            table("keeps", &keeps)
        );
        let home = Home::on_sqlite().with_config(&config).with(&["--sweep-interval-seconds", "5"]);
        let server = home.start().await;
        let api = server.api();
        let mut body = creation("agent", PROMPT);
        body["settings"]["model"] = json!("keeps");
        api.post_and_wait("/v1/sessions", body).await.expect(201);
        let request = Bytes::from(keeps.requests()[0].to_string());
        let address = server.url.strip_prefix("http://").unwrap().parse().unwrap();
        let token = std::fs::read_to_string(home.path().join("admin.key")).unwrap().trim().to_owned();
        Self { home, server, api, address, token, model, request }
    }

    /// Sessions of a harness whose first turn has ended, and which wait for the next.
    async fn sessions(&self, harness: &str, count: usize) -> Vec<String> {
        let mut sessions = Vec::new();
        for _ in 0..count {
            let prompt = if harness == "demo" { ANSWER } else { PROMPT };
            let made = self.api.post_and_wait("/v1/sessions", creation(harness, prompt)).await.expect(201);
            assert_eq!((&made["status"], &made["live"]), (&json!("idle"), &json!(true)), "{made}");
            sessions.push(id(&made));
        }
        sessions
    }

    fn post(&self, path: &str, body: &Value) -> String {
        load::waiting(&load::request("POST", path, &self.token, Some(body)))
    }

    fn prompts(&self, sessions: &[String], prompt: &str) -> Vec<String> {
        let path = |session: &String| format!("/v1/sessions/{session}/prompts");
        sessions.iter().map(|session| self.post(&path(session), &json!({"prompt": prompt}))).collect()
    }

    async fn load(&self, callers: usize, requests: &[String]) -> Sample {
        self.load_for(round_time(), callers, requests).await
    }

    async fn load_for(&self, time: Duration, callers: usize, requests: &[String]) -> Sample {
        load::requests_to(self.server.pid(), self.address, callers, time, requests).await.sample()
    }

    /// What a turn asks the model, without the turn.
    async fn ask_the_model(&self, callers: usize) -> Sample {
        let client =
            Client::builder().no_proxy().tls_certs_only([]).pool_max_idle_per_host(MOST).build().unwrap();
        let (url, request) = (format!("{}/chat/completions", self.model.base_url()), self.request.clone());
        repeat(callers, round_time(), move |_| {
            let asked = client.post(&url).header(CONTENT_TYPE, "application/json").body(request.clone());
            async move {
                let answer = asked.send().await.unwrap().error_for_status().unwrap().bytes().await.unwrap();
                assert!(answer.ends_with(b"[DONE]\n\n"), "the model did not come to an end");
            }
        })
        .await
    }

    /// Turns, commits, writes in them, and events so far.
    async fn written(&self) -> [f64; 4] {
        let text = self.api.get("/metrics").await.text;
        let total = |name: &str| -> f64 {
            let lines = text.lines().filter(|line| line.starts_with(name));
            lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
        };
        ["turns", "writer_commits", "writer_writes", "writer_events"]
            .map(|name| total(&format!("ostler_{name}_total")))
    }

    /// A turn of a session that has had many, beside one that has had few.
    async fn long_past(&self, fresh: &Series) {
        let session = self.sessions("agent", 1).await.remove(0);
        for _ in 1..EARLIER {
            self.api.prompt(&session, PROMPT).await;
        }
        let path = self.home.database();
        let mut database = sqlx::SqliteConnection::connect(path.to_str().unwrap()).await.unwrap();
        let size: i64 =
            sqlx::query_scalar("SELECT LENGTH(resume_state) FROM agent_harness_sessions WHERE id = $1")
                .bind(&session)
                .fetch_one(&mut database)
                .await
                .unwrap();
        let requests = self.prompts(&[session], PROMPT);
        let mut long = Series::default();
        for _ in 0..ROUNDS {
            long.push(self.load(1, &requests).await);
        }
        let ratio = long.median(|s| s.p50) / fresh.median(|s| s.p50);
        row(&format!("c=1 turn after {EARLIER} others, p50 to few"), &long, Some(ratio), Target::None);
        note(&format!("its resume state has {:.1} kB", size as f64 / 1000.0));
    }
}

/// What a session of a harness is made with, so that a turn is one answer of the model.
fn creation(harness: &str, prompt: &str) -> Value {
    let settings = match harness {
        "demo" => json!({"token_delay_ms": 0}),
        _ => json!({"version": 1, "planning": {"mode": "off"}}),
    };
    json!({"harness": harness, "prompt": prompt, "settings": settings})
}

/// What the turns between two counts wrote.
fn per_turn(counts: impl Iterator<Item = ([f64; 4], [f64; 4])>) -> String {
    let mut sums = [0.0; 4];
    for (before, after) in counts {
        for (sum, (before, after)) in sums.iter_mut().zip(before.into_iter().zip(after)) {
            *sum += after - before;
        }
    }
    let [turns, commits, writes, events] = sums;
    format!(
        "{:.1} writes and {:.1} events each, {:.2} commits",
        writes / turns,
        events / turns,
        commits / turns
    )
}
