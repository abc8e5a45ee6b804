//! The load generator: a child process that writes prepared requests and reads their answers, so that its CPU time is not the
//! server's. It gets its task as JSON on stdin, and says `go` and `stop` around what it measures, then what it found as JSON.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::{Duration, Instant};

use ostler::clock::{Clock, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::Command;

use super::report::{Sample, Watch, quantiles};

/// The argument that makes this program the child.
pub const CHILD: &str = "load-generator";

/// What the child is to do.
#[derive(Debug, Serialize, Deserialize)]
pub enum Task {
    /// Each connection asks one request after the other; together they go round through all.
    Requests { address: SocketAddr, connections: usize, time: Duration, requests: Vec<String> },
    /// Each stream is read to its last word; then each prompt is posted.
    Streams { address: SocketAddr, time: Duration, words: u64, streams: Vec<String>, prompts: Vec<String> },
}

/// What it found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Found {
    /// Answers (words) between `go` and `stop`.
    pub count: u64,
    /// Accepted requests (words) in all.
    pub total: u64,
    /// What was not as it should be: refusals, lost and repeated words, holes in the numbers.
    pub wrong: u64,
    /// The first of it.
    pub complaint: Option<String>,
    /// Events, where words came in them.
    pub events: u64,
    /// Microseconds.
    pub p50: f64,
    /// Microseconds.
    pub p99: f64,
}

impl Found {
    fn complain(&mut self, words: impl FnOnce() -> String) {
        self.wrong += 1;
        self.complaint.get_or_insert_with(words);
    }
}

/// What a child found, and what the server's process used meanwhile.
pub struct Loaded {
    pub found: Found,
    /// Seconds.
    pub wall: f64,
    /// Seconds.
    pub cpu: f64,
}

impl Loaded {
    pub fn sample(&self) -> Sample {
        let count = self.found.count as f64;
        let (p50, p99) = (self.found.p50, self.found.p99);
        Sample { rate: count / self.wall, p50, p99, cpu: self.cpu * 1e6 / count }
    }
}

/// Puts load on a server of this process.
pub async fn put(task: &Task) -> Loaded {
    put_on(None, task).await
}

/// Puts load on a server of that process; of this one where it is none.
async fn put_on(server: Option<u32>, task: &Task) -> Loaded {
    let program = std::env::current_exe().unwrap();
    let mut child = Command::new(program)
        .arg(CHILD)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(serde_json::to_string(task).unwrap().as_bytes()).await.unwrap();
    drop(stdin);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("go"), "the load generator failed");
    let watch = server.map_or_else(Watch::start, Watch::of);
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("stop"), "the load generator failed");
    let (wall, cpu) = watch.stop();
    let found: Found = serde_json::from_str(&lines.next_line().await.unwrap().unwrap()).unwrap();
    if found.wrong > 0 {
        super::report::note(&format!(
            "{} of {} went wrong, first: {}",
            found.wrong,
            found.total,
            found.complaint.as_deref().unwrap_or_default()
        ));
    }
    child.wait().await.unwrap();
    Loaded { found, wall, cpu }
}

/// One round of requests.
pub async fn requests(
    address: SocketAddr,
    connections: usize,
    time: Duration,
    requests: &[String],
) -> Loaded {
    put(&Task::Requests { address, connections, time, requests: requests.to_vec() }).await
}

/// One round of requests to a server that is a child of this process.
pub async fn requests_to(
    server: u32,
    address: SocketAddr,
    connections: usize,
    time: Duration,
    requests: &[String],
) -> Loaded {
    put_on(Some(server), &Task::Requests { address, connections, time, requests: requests.to_vec() }).await
}

/// A request as it goes over the wire.
pub fn request(method: &str, path: &str, token: &str, body: Option<&Value>) -> String {
    let body = body.map(Value::to_string);
    let content = body.as_ref().map_or_else(String::new, |body| {
        format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len())
    });
    let body = body.unwrap_or_default();
    format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n{content}\r\n{body}"
    )
}

/// The same request, to be answered when its turn has ended.
pub fn waiting(request: &str) -> String {
    request.replacen("\r\n", "\r\nprefer: wait=60\r\n", 1)
}

/// The request of an event stream.
pub fn stream(path: &str, token: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\naccept: text/event-stream\r\n\r\n"
    )
}

/// The child.
pub async fn child() {
    let mut text = String::new();
    tokio::io::stdin().read_to_string(&mut text).await.unwrap();
    let found = match serde_json::from_str(&text).unwrap() {
        Task::Requests { address, connections, time, requests } => {
            ask(address, connections, time, &requests).await
        }
        Task::Streams { address, time, words, streams, prompts } => {
            read_streams(address, time, words, streams, &prompts).await
        }
    };
    println!("{}", serde_json::to_string(&found).unwrap());
}

/// A connection, and what was read of it and not used.
struct Line {
    socket: TcpStream,
    buffer: Vec<u8>,
}

impl Line {
    async fn open(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).await.unwrap();
        socket.set_nodelay(true).unwrap();
        Self { socket, buffer: Vec::with_capacity(16 * 1024) }
    }

    async fn fill(&mut self) {
        assert!(self.socket.read_buf(&mut self.buffer).await.unwrap() > 0, "the server hung up");
    }

    /// Sends a request and reads the head of its answer: the status, and the length of the body where it has one.
    async fn head(&mut self, request: &str) -> (u16, Option<usize>) {
        self.socket.write_all(request.as_bytes()).await.unwrap();
        let end = loop {
            if let Some(end) = self.buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break end;
            }
            self.fill().await;
        };
        let head = String::from_utf8_lossy(&self.buffer[..end]).to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
        let status = head.get(9..12).and_then(|status| status.parse().ok()).unwrap_or(0);
        self.buffer.drain(..end + 4);
        (status, length)
    }

    /// Sends a request and reads its answer. Gives the status and, when it is a refusal, the body.
    async fn ask(&mut self, request: &str) -> (u16, String) {
        let (status, length) = self.head(request).await;
        let length = length.unwrap_or(0);
        while self.buffer.len() < length {
            self.fill().await;
        }
        let body = if status < 300 {
            String::new()
        } else {
            String::from_utf8_lossy(&self.buffer[..length]).into_owned()
        };
        self.buffer.drain(..length);
        (status, body)
    }

    /// The next chunk of a chunked body.
    async fn chunk(&mut self) -> Vec<u8> {
        let (size, begin) = loop {
            if let Some(end) = self.buffer.windows(2).position(|bytes| bytes == b"\r\n") {
                let size = std::str::from_utf8(&self.buffer[..end]).unwrap();
                break (usize::from_str_radix(size, 16).unwrap(), end + 2);
            }
            self.fill().await;
        };
        while self.buffer.len() < begin + size + 2 {
            self.fill().await;
        }
        let chunk = self.buffer[begin..begin + size].to_vec();
        self.buffer.drain(..begin + size + 2);
        chunk
    }
}

/// The part of the time for which connections, caches and branch predictors get used to it.
fn warm_up(time: Duration) -> Duration {
    (time / 4).min(Duration::from_millis(500))
}

async fn ask(address: SocketAddr, connections: usize, time: Duration, requests: &[String]) -> Found {
    let found = RefCell::new(Found::default());
    let latencies = RefCell::new(Vec::new());
    let mut lines = Vec::new();
    for _ in 0..connections {
        lines.push(Line::open(address).await);
    }
    let begin = Instant::now() + warm_up(time);
    let end = begin + time;
    let client = async |number: usize, mut line: Line| {
        let mut turn = number;
        while Instant::now() < end {
            let sent = Instant::now();
            let (status, body) = line.ask(&requests[turn % requests.len()]).await;
            let took = sent.elapsed();
            turn += connections;
            let mut found = found.borrow_mut();
            if !(200..300).contains(&status) {
                found.complain(|| format!("{status} {body}"));
                continue;
            }
            found.total += 1;
            if sent >= begin {
                latencies.borrow_mut().push(u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
            }
        }
    };
    let clients = futures_util::future::join_all(
        lines.into_iter().enumerate().map(|(number, line)| client(number, line)),
    );
    let signals = async {
        tokio::time::sleep_until(begin.into()).await;
        println!("go");
    };
    tokio::join!(clients, signals);
    println!("stop");
    let mut found = found.into_inner();
    let mut latencies = latencies.into_inner();
    found.count = latencies.len() as u64;
    (found.p50, found.p99) = quantiles(&mut latencies);
    found
}

/// Connections that post prompts.
const POSTERS: usize = 20;

/// What all readers of streams share.
struct Readers {
    found: RefCell<Found>,
    /// Milliseconds from the event's own time to its arrival.
    lags: RefCell<Vec<u32>>,
    measuring: Cell<bool>,
    words: u64,
}

async fn read_streams(
    address: SocketAddr,
    time: Duration,
    words: u64,
    streams: Vec<String>,
    prompts: &[String],
) -> Found {
    let readers = Readers {
        found: RefCell::new(Found::default()),
        lags: RefCell::new(Vec::new()),
        measuring: Cell::new(false),
        words,
    };
    let mut lines = Vec::new();
    for request in &streams {
        let mut line = Line::open(address).await;
        let (status, _) = line.head(request).await;
        assert_eq!(status, 200, "a stream was refused");
        lines.push(line);
    }
    let patience = time * 2 + Duration::from_secs(30);
    let all = futures_util::future::join_all(lines.into_iter().map(|line| async {
        if tokio::time::timeout(patience, readers.read(line)).await.is_err() {
            readers.found.borrow_mut().complain(|| "a stream did not come to its last word".to_owned());
        }
    }));
    let drive = async {
        // Several at once, so that the first is still talking when the last begins.
        let posters = prompts.chunks(prompts.len().div_ceil(POSTERS)).map(async |prompts| {
            let mut line = Line::open(address).await;
            for prompt in prompts {
                let (status, body) = line.ask(prompt).await;
                if !(200..300).contains(&status) {
                    readers.found.borrow_mut().complain(|| format!("{status} {body}"));
                }
            }
        });
        futures_util::future::join_all(posters).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        println!("go");
        readers.measuring.set(true);
        tokio::time::sleep(time).await;
        readers.measuring.set(false);
        println!("stop");
    };
    tokio::join!(all, drive);
    let mut found = readers.found.into_inner();
    let (p50, p99) = quantiles(&mut readers.lags.into_inner());
    (found.p50, found.p99) = (p50 * 1000.0, p99 * 1000.0);
    found
}

impl Readers {
    /// Reads a stream to its last word. The words are `w1 w2 w3 …`; each must come once and in its place.
    async fn read(&self, mut line: Line) {
        let (mut text, mut heard, mut seq) = (Vec::new(), 0, 0);
        while heard < self.words {
            text.extend_from_slice(&line.chunk().await);
            let now = Clock::System.now();
            while let Some(end) = text.windows(2).position(|bytes| bytes == b"\n\n") {
                let frame: Vec<u8> = text.drain(..end + 2).collect();
                let frame = String::from_utf8(frame).unwrap();
                if let Some(data) = frame.lines().find_map(|line| line.strip_prefix("data: ")) {
                    self.take(&serde_json::from_str(data).unwrap(), now, &mut heard, &mut seq);
                }
            }
        }
    }

    fn take(&self, event: &Value, now: Timestamp, heard: &mut u64, seq: &mut i64) {
        let mut found = self.found.borrow_mut();
        let number = event["seq"].as_i64().unwrap_or(0);
        if number != *seq + 1 {
            found.complain(|| format!("after event {seq} came {number}"));
        }
        *seq = number;
        let Some(text) = event["data"]["text"].as_str() else { return };
        found.events += 1;
        for word in text.split_whitespace() {
            *heard += 1;
            found.total += 1;
            found.count += u64::from(self.measuring.get());
            if word != format!("w{heard}") {
                found.complain(|| format!("word {heard} was {word}"));
            }
        }
        if self.measuring.get()
            && let Some(at) = event["at"].as_str().and_then(Timestamp::parse)
        {
            let lag = now.since(at).as_millis();
            self.lags.borrow_mut().push(u32::try_from(lag).unwrap_or(u32::MAX));
        }
    }
}
