//! A model that does as the conversation tells it to: chat completions over HTTP, for the tests of the built-in harness, for
//! benches, and by hand (`cargo run --bin fake-model`).
//!
//! It keeps no conversation: an answer follows from its request alone, so that a service can be killed and started again beside it.
//! What it is to do stands in the user messages; see [`script`].
#![allow(dead_code, reason = "each of its users needs another part of it")]

#[path = "chat/answer.rs"]
mod answer;
#[path = "chat/script.rs"]
mod script;

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::AUTHORIZATION;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use self::answer::{Answer, Body, Refused};

/// No request is larger, in bytes.
const REQUEST_MAX: usize = 64 << 20;
/// How many requests are kept; the oldest go first.
const KEPT: usize = 4096;
/// How many misfortunes are counted; more are forgotten.
const COUNTED: usize = 65_536;
/// How long a test waits for a request.
const DEADLINE: Duration = Duration::from_secs(60);

/// The model, on a port of its own until it is dropped.
pub struct ChatModel {
    address: SocketAddr,
    inner: Arc<Inner>,
    serving: JoinHandle<()>,
}

struct Inner {
    keeps: bool,
    kept: Mutex<VecDeque<Seen>>,
    count: watch::Sender<usize>,
    /// How often each misfortune of a script has happened already.
    happened: Mutex<HashMap<u64, u64>>,
}

/// A request that arrived.
struct Seen {
    body: Value,
    authorization: Option<String>,
}

impl ChatModel {
    /// A model on a free port of loopback, which keeps what it is asked.
    pub fn start() -> Self {
        Self::serve((std::net::Ipv4Addr::LOCALHOST, 0).into(), true)
    }

    /// A model there, which keeps what it is asked.
    pub fn start_at(address: SocketAddr) -> Self {
        Self::serve(address, true)
    }

    /// A model there that keeps nothing, so that it can be asked for days.
    pub fn forgetful(address: SocketAddr) -> Self {
        Self::serve(address, false)
    }

    fn serve(address: SocketAddr, keeps: bool) -> Self {
        let listener = std::net::TcpListener::bind(address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let inner = Arc::new(Inner {
            keeps,
            kept: Mutex::default(),
            count: watch::Sender::new(0),
            happened: Mutex::default(),
        });
        let listener = TcpListener::from_std(listener).unwrap();
        let serving = tokio::spawn(accept(listener, Arc::clone(&inner)));
        Self { address, inner, serving }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address up to and with `/v1`.
    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// How many calls have arrived.
    pub fn count(&self) -> usize {
        *self.inner.count.borrow()
    }

    /// The bodies of the calls so far, the last 4096.
    pub fn requests(&self) -> Vec<Value> {
        self.inner.kept.lock().unwrap().iter().map(|seen| seen.body.clone()).collect()
    }

    /// Their `Authorization` headers.
    pub fn authorizations(&self) -> Vec<Option<String>> {
        self.inner.kept.lock().unwrap().iter().map(|seen| seen.authorization.clone()).collect()
    }

    /// Waits until what has been asked so far is as it should be, and gives it back.
    pub async fn wait_for(&self, what: &str, holds: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let mut count = self.inner.count.subscribe();
        let asked = async {
            loop {
                count.borrow_and_update();
                let requests = self.requests();
                if holds(&requests) {
                    return requests;
                }
                count.changed().await.unwrap();
            }
        };
        match tokio::time::timeout(DEADLINE, asked).await {
            Ok(requests) => requests,
            Err(_) => panic!("waited {DEADLINE:?} for {what}; the model was asked {:#?}", self.requests()),
        }
    }

    /// Waits until so many calls have arrived.
    pub async fn wait_for_count(&self, calls: usize) {
        let mut count = self.inner.count.subscribe();
        let reached = count.wait_for(|count| *count >= calls);
        assert!(
            tokio::time::timeout(DEADLINE, reached).await.is_ok(),
            "waited {DEADLINE:?} for {calls} calls; there were {}",
            self.count()
        );
    }

    /// Closes all connections and the port, and returns when they are closed.
    pub async fn stop(mut self) {
        self.serving.abort();
        assert!((&mut self.serving).await.is_err_and(|error| error.is_cancelled()));
    }
}

impl Drop for ChatModel {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn accept(listener: TcpListener, inner: Arc<Inner>) {
    let mut connections = JoinSet::new();
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        while connections.try_join_next().is_some() {}
        connections.spawn(converse(socket, Arc::clone(&inner)));
    }
}

async fn converse(socket: TcpStream, inner: Arc<Inner>) {
    socket.set_nodelay(true).unwrap();
    let service = service_fn(|request| inner.answer(request));
    // Clients go away as they please, and a script may want the connection to break.
    drop(http1::Builder::new().serve_connection(TokioIo::new(socket), service).await);
}

impl Inner {
    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Body>, Refused> {
        let (head, body) = request.into_parts();
        let body = match Limited::new(body, REQUEST_MAX).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) => return Ok(answer::error(400, None, &error.to_string())),
        };
        if head.method != Method::POST || !head.uri.path().ends_with("/chat/completions") {
            return Ok(answer::error(404, None, &format!("no {} {}", head.method, head.uri.path())));
        }
        let body: Value = match serde_json::from_slice(&body) {
            Ok(body) => body,
            Err(error) => return Ok(answer::error(400, None, &format!("the body is not JSON: {error}"))),
        };
        let mut answer = Answer::to(&body);
        let authorization = head.headers.get(AUTHORIZATION);
        self.note(body, authorization.and_then(|value| value.to_str().ok()).map(str::to_owned));
        answer.suffer(|misfortune, times| self.happens(misfortune, times));
        answer.respond()
    }

    fn note(&self, body: Value, authorization: Option<String>) {
        if self.keeps {
            let mut kept = self.kept.lock().unwrap();
            if kept.len() == KEPT {
                kept.pop_front();
            }
            kept.push_back(Seen { body, authorization });
        }
        self.count.send_modify(|count| *count += 1);
    }

    /// Whether a misfortune that happens so many times still has one of them left, which is used up.
    fn happens(&self, misfortune: u64, times: u64) -> bool {
        let mut happened = self.happened.lock().unwrap();
        if happened.len() >= COUNTED {
            happened.clear();
        }
        let so_far = happened.entry(misfortune).or_default();
        *so_far += 1;
        *so_far <= times
    }
}

/// A whole body.
fn whole(text: impl Into<Bytes>) -> Body {
    http_body_util::Full::new(text.into()).map_err(|never: Infallible| match never {}).boxed_unsync()
}

#[cfg(test)]
#[path = "chat/tests.rs"]
mod tests;
