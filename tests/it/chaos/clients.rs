//! Clients that know all replicas and trust none of them: they ask one at random, and ask another when it does not answer.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::api::Api;
use crate::support::fleet::Random;
use crate::support::within;

/// How long a replica may take to answer before another one is asked: one that is frozen never does.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a client that was told to come later leaves the service alone.
const BREATH: Duration = Duration::from_millis(20);

/// What was acknowledged.
#[derive(Default)]
pub struct Acknowledged {
    /// Session and turn.
    pub prompts: Vec<(String, String)>,
    /// Approval and decision.
    pub decisions: Vec<(String, String)>,
    /// Session, and each event that somebody was shown, by its seq.
    pub seen: BTreeMap<(String, i64), Value>,
    /// How often it was said, by its code, that a later try may do.
    pub refused: BTreeMap<String, usize>,
}

/// What a client may be told while the service cannot do what it should.
const LATER: &[&str] = &["storage_unavailable", "overloaded", "shutting_down"];

/// What all clients share.
#[derive(Clone)]
pub struct Crowd {
    replicas: Arc<Vec<Api>>,
    random: Arc<Random>,
    patience: Duration,
    over: Arc<AtomicBool>,
    acknowledged: Arc<Mutex<Acknowledged>>,
}

impl Crowd {
    pub fn new(replicas: Vec<Api>) -> Self {
        Self {
            replicas: Arc::new(replicas),
            random: Arc::new(Random::new()),
            patience: PATIENCE,
            over: Arc::default(),
            acknowledged: Arc::default(),
        }
    }

    /// Waits longer for each answer.
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Sets the clients to work: some talk, some decide, some read.
    pub fn begin(&self) -> Vec<JoinHandle<()>> {
        let mut clients: Vec<_> = (0..3).map(|n| tokio::spawn(self.clone().talk(n))).collect();
        clients.extend((0..2).map(|n| tokio::spawn(self.clone().decide(n))));
        clients.extend((0..2).map(|_| tokio::spawn(self.clone().read())));
        clients
    }

    /// Lets everybody finish what it began, and gives what was acknowledged to them.
    pub async fn end(&self, clients: Vec<JoinHandle<()>>) -> Acknowledged {
        self.over.store(true, Ordering::SeqCst);
        for client in clients {
            within("a client to finish", client).await.unwrap();
        }
        std::mem::take(&mut self.acknowledged.lock().unwrap())
    }

    fn goes_on(&self) -> bool {
        !self.over.load(Ordering::SeqCst)
    }

    /// Sends a request to one replica after the other until one gives an answer that is not "try again".
    async fn ask(&self, method: Method, path: &str, body: Option<Value>, key: Option<&str>) -> (u16, Value) {
        loop {
            let api = &self.replicas[self.random.below(self.replicas.len())];
            let mut request = api.request(method.clone(), path).timeout(self.patience);
            if let Some(body) = &body {
                request = request.json(body);
            }
            if let Some(key) = key {
                request = request.header("idempotency-key", key);
            }
            let Ok(answer) = request.send().await else {
                // Nobody there: the others have the time that a refused connection does not take.
                tokio::task::yield_now().await;
                continue;
            };
            let (status, may_wait) = (answer.status().as_u16(), answer.headers().contains_key("retry-after"));
            let Ok(body) = answer.json::<Value>().await else { continue };
            let code = body["code"].as_str().unwrap_or_default();
            if status == 503 || code == "idempotency_in_progress" {
                assert!(status != 503 || LATER.contains(&code), "{body}");
                assert!(body["retryable"] == true && may_wait, "{body}");
                *self.acknowledged.lock().unwrap().refused.entry(code.to_owned()).or_default() += 1;
                tokio::time::sleep(BREATH).await;
                continue;
            }
            assert!(status < 500, "{body}");
            return (status, body);
        }
    }

    /// Creates sessions that put out words and run a tool, and sends follow-ups into them.
    async fn talk(self, name: usize) {
        let mut n = 0;
        while self.goes_on() {
            n += 1;
            let key = format!("talk-{name}-{n}");
            let prompt = "/tokens 20 200\n/tool first {}";
            let body = json!({"harness": "demo", "prompt": prompt, "settings": {"token_delay_ms": 0}});
            let (status, session) = self.ask(Method::POST, "/v1/sessions", Some(body), Some(&key)).await;
            assert_eq!(status, 201, "{session}");
            let id = session["id"].as_str().unwrap().to_owned();
            self.note_prompt(&id, &session["turn"]);
            for follow_up in 0..2 {
                let key = format!("{key}-{follow_up}");
                let body = json!({"prompt": "/tokens 10 200\n/tool next {}", "when_busy": "queue"});
                let path = format!("/v1/sessions/{id}/prompts");
                let (status, turn) = self.ask(Method::POST, &path, Some(body), Some(&key)).await;
                if turn["code"] == "not_resumable" {
                    // Its first turn was interrupted before there was anything to go on from.
                    break;
                }
                assert_eq!(status, 202, "{turn}");
                self.note_prompt(&id, &turn);
            }
        }
    }

    fn note_prompt(&self, session: &str, turn: &Value) {
        let turn = turn["id"].as_str().unwrap().to_owned();
        self.acknowledged.lock().unwrap().prompts.push((session.to_owned(), turn));
    }

    /// Creates sessions that ask, and answers them.
    async fn decide(self, name: usize) {
        let mut n = 0;
        while self.goes_on() {
            n += 1;
            let body = json!({"harness": "demo", "prompt": "/ask shell {}\n/tool after {}", "settings": {"token_delay_ms": 0}});
            let key = format!("decide-{name}-{n}");
            let (status, session) = self.ask(Method::POST, "/v1/sessions", Some(body), Some(&key)).await;
            assert_eq!(status, 201, "{session}");
            let id = session["id"].as_str().unwrap().to_owned();
            self.note_prompt(&id, &session["turn"]);
            let Some(approval) = self.asked(&id).await else { continue };
            let decision = if n % 2 == 0 { "approve" } else { "deny" };
            let path = format!("/v1/approvals/{approval}/decision");
            let (status, answer) =
                self.ask(Method::POST, &path, Some(json!({"decision": decision})), None).await;
            match status {
                200 => self.acknowledged.lock().unwrap().decisions.push((approval, decision.to_owned())),
                // Its turn was lost meanwhile, which orphans what could not be restored.
                _ => {
                    assert_eq!((status, answer["code"].as_str()), (409, Some("approval_closed")), "{answer}")
                }
            }
        }
    }

    /// The session's question, once it is there; `None` when the turn ended without one.
    async fn asked(&self, session: &str) -> Option<String> {
        loop {
            let (_, row) = self.ask(Method::GET, &format!("/v1/sessions/{session}"), None, None).await;
            match row["status"].as_str().unwrap() {
                "awaiting_approval" => {
                    return Some(row["pending_approval"]["id"].as_str().unwrap().to_owned());
                }
                "running" => tokio::time::sleep(Duration::from_millis(20)).await,
                _ => return None,
            }
        }
    }

    /// Follows the newest sessions, from one replica to the next, and keeps what it is shown.
    async fn read(self) {
        while self.goes_on() {
            let newest = self.acknowledged.lock().unwrap().prompts.last().cloned();
            let Some((session, _)) = newest else {
                tokio::task::yield_now().await;
                continue;
            };
            self.read_session(&session).await;
        }
    }

    async fn read_session(&self, session: &str) {
        let mut last = 0;
        // A few connections, each cut after some events or by the end of its replica.
        for _ in 0..4 {
            let api = &self.replicas[self.random.below(self.replicas.len())];
            let path = format!("/v1/sessions/{session}/events?until=idle");
            let request = api.request(Method::GET, &path).header("accept", "text/event-stream");
            let request = request.header("last-event-id", last.to_string()).timeout(self.patience);
            let Ok(response) = request.send().await else { continue };
            if response.status() != 200 {
                continue;
            }
            let mut events = crate::support::sse::Events::new(response);
            let enough = 3 + self.random.below(20);
            for _ in 0..enough {
                let Some(frame) = events.next().await else { break };
                assert_eq!(frame.id, last + 1, "a reader was shown a hole, or an event twice");
                last = frame.id;
                let place = (session.to_owned(), frame.id);
                let before = self.acknowledged.lock().unwrap().seen.insert(place, frame.data.clone());
                assert!(before.is_none_or(|before| before == frame.data), "an event changed: {frame:?}");
            }
        }
    }
}
