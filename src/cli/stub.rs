//! A scripted service for tests: it answers as it is told, cuts connections where it is told, and keeps what it was asked.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::ClientArgs;
use super::client::Client;

/// A request that arrived.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) method: String,
    /// Path and query.
    pub(super) target: String,
    headers: Vec<(String, String)>,
    pub(super) body: Value,
}

impl Seen {
    /// A header's value; empty where it was not sent.
    pub(super) fn header(&self, name: &str) -> String {
        self.headers
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.clone())
            .unwrap_or_default()
    }

    /// Method and target.
    pub(super) fn line(&self) -> String {
        format!("{} {}", self.method, self.target)
    }
}

/// What the service does about a request.
pub(super) enum Reply {
    /// Hangs up without a word.
    Cut,
    /// Answers.
    Whole { status: u16, headers: Vec<(String, String)>, body: String },
    /// Sends events and ends the answer properly, or hangs up in the middle of it.
    Stream { frames: String, cut: bool },
    /// Sends whatever comes, and ends with the channel.
    Live(mpsc::UnboundedReceiver<String>),
}

impl Reply {
    pub(super) fn raw(status: u16, kind: &str, body: &str) -> Self {
        let headers = vec![
            ("content-type".to_owned(), kind.to_owned()),
            ("date".to_owned(), "Tue, 01 Jul 2025 12:00:00 GMT".to_owned()),
        ];
        Self::Whole { status, headers, body: body.to_owned() }
    }

    pub(super) fn json(status: u16, body: Value) -> Self {
        Self::raw(status, "application/json", &body.to_string())
    }

    pub(super) fn problem(status: u16, code: &str) -> Self {
        let body = json!({"status": status, "code": code, "detail": format!("It is {code}."), "request_id": "req_1"});
        Self::raw(status, "application/problem+json", &body.to_string())
    }

    /// A page that is the last one.
    pub(super) fn page(data: impl IntoIterator<Item = Value>) -> Self {
        Self::json(200, json!({"data": data.into_iter().collect::<Vec<_>>(), "next_cursor": null}))
    }

    pub(super) fn header(mut self, name: &str, value: &str) -> Self {
        if let Self::Whole { headers, .. } = &mut self {
            headers.push((name.to_owned(), value.to_owned()));
        }
        self
    }
}

/// An event as the service frames it.
pub(super) fn frame(event: &Value) -> String {
    format!("id: {}\nevent: {}\ndata: {event}\n\n", event["seq"], event["type"].as_str().unwrap_or_default())
}

/// An event of the turn `trn_1` in the session `ses_1`.
pub(super) fn event(seq: i64, kind: &str, data: Value) -> Value {
    let turn = if kind.starts_with("session.") { Value::Null } else { json!("trn_1") };
    json!({"seq": seq, "type": kind, "session_id": "ses_1", "run_id": "run_1", "turn_id": turn,
           "at": format!("2025-07-01T12:00:{:02}.000Z", seq % 60), "data": data})
}

/// Arguments that lead to a service, with a key.
pub(super) fn args_for(url: &str) -> ClientArgs {
    ClientArgs {
        url: url.to_owned(),
        key: Some("ostler_key_1_secret".into()),
        data_dir: PathBuf::from("/nowhere"),
        json: false,
        owner: None,
    }
}

/// The service. It ends when it is dropped.
pub(super) struct Stub {
    url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    task: AbortHandle,
}

impl Stub {
    /// Gives these replies, in this order; after the last one it hangs up.
    pub(super) async fn start(replies: impl IntoIterator<Item = Reply>) -> Self {
        let mut replies: VecDeque<Reply> = replies.into_iter().collect();
        Self::serve(move |_| replies.pop_front().unwrap_or(Reply::Cut)).await
    }

    /// Replies as `answer` says.
    pub(super) async fn serve(mut answer: impl FnMut(&Seen) -> Reply + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            let mut open = tokio::task::JoinSet::new();
            loop {
                let (mut socket, _) = listener.accept().await.unwrap();
                let Some(request) = read_request(&mut socket).await else { continue };
                kept.lock().unwrap().push(request.clone());
                open.spawn(write_reply(socket, answer(&request)));
            }
        });
        Self { url, seen, task: task.abort_handle() }
    }

    pub(super) fn url(&self) -> String {
        self.url.clone()
    }

    pub(super) fn client(&self) -> Client {
        Client::new(&args_for(&self.url)).unwrap().impatient()
    }

    /// What has been asked so far.
    pub(super) fn requests(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// The same as lines.
    pub(super) fn lines(&self) -> Vec<String> {
        self.requests().iter().map(Seen::line).collect()
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn read_request(socket: &mut TcpStream) -> Option<Seen> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end;
        }
        if socket.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..head_end].to_vec()).unwrap();
    let mut lines = head.split("\r\n");
    let mut words = lines.next()?.split(' ').map(str::to_owned);
    let (method, target) = (words.next()?, words.next()?);
    let header = |line: &str| line.split_once(": ").map(|(name, value)| (name.to_owned(), value.to_owned()));
    let headers: Vec<(String, String)> = lines.filter_map(header).collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length = length.map_or(0, |(_, value)| value.parse().unwrap());
    let mut body = bytes[head_end + 4..].to_vec();
    while body.len() < length {
        socket.read_buf(&mut body).await.ok()?;
    }
    Some(Seen { method, target, headers, body: serde_json::from_slice(&body).unwrap_or_default() })
}

async fn write_reply(mut socket: TcpStream, reply: Reply) {
    // The client may have gone away, which is its right.
    let _ = match reply {
        Reply::Cut => Ok(()),
        Reply::Whole { status, headers, body } => {
            let mut text = format!("HTTP/1.1 {status} X\r\nconnection: close\r\n");
            if status != 204 {
                text.push_str(&format!("content-length: {}\r\n", body.len()));
            }
            for (name, value) in headers {
                text.push_str(&format!("{name}: {value}\r\n"));
            }
            socket.write_all(format!("{text}\r\n{body}").as_bytes()).await
        }
        Reply::Stream { frames, cut } => {
            let end = if cut { "" } else { "0\r\n\r\n" };
            let text = format!("{STREAM_HEAD}{}{end}", chunk(&frames));
            socket.write_all(text.as_bytes()).await
        }
        Reply::Live(mut frames) => {
            let mut written = socket.write_all(STREAM_HEAD.as_bytes()).await;
            while let (Ok(()), Some(frame)) = (&written, frames.recv().await) {
                written = socket.write_all(chunk(&frame).as_bytes()).await;
            }
            socket.write_all(b"0\r\n\r\n").await
        }
    };
}

const STREAM_HEAD: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/event-stream\r\n\
                           transfer-encoding: chunked\r\n\r\n";

fn chunk(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("{:x}\r\n{text}\r\n", text.len()) }
}
