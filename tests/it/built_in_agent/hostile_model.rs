//! A model that means harm: it answers whatever it is made to, bytes that no scripted model would send.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// What the model answers to one call.
pub enum Said {
    /// These bytes of a stream.
    Bytes(Vec<u8>),
    /// Its beginning, and then this for ever.
    Endless(Vec<u8>, Vec<u8>),
    /// A byte at a time, with such a wait before each.
    Drip(Vec<u8>, Duration),
}

type Answers = dyn Fn(usize) -> Said + Send + Sync;

/// The model, on a port of its own until it is dropped. Where a prompt is `say …` it says that; else the attack goes on, with the
/// number of answers that it has given to this prompt.
pub struct HostileModel {
    address: SocketAddr,
    serving: JoinHandle<()>,
}

impl HostileModel {
    pub async fn start(answers: Arc<Answers>) -> Self {
        let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let answers = Arc::clone(&answers);
                // Whoever asked may go away in mid-word.
                tokio::spawn(async move { drop(converse(socket, &*answers).await) });
            }
        });
        Self { address, serving }
    }

    /// The address up to and with `/v1`.
    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }
}

impl Drop for HostileModel {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn converse(mut socket: TcpStream, answers: &Answers) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
    let request = request(&mut socket).await?;
    let messages = request["messages"].as_array().unwrap();
    let is_prompt = |text: &str| !text.starts_with("[ostler]") && !text.starts_with("Before you work");
    let own =
        |message: &Value| message["role"] == "user" && message["content"].as_str().is_some_and(is_prompt);
    let at = messages.iter().rposition(own).unwrap();
    let step = messages[at..].iter().filter(|message| message["role"] == "assistant").count();
    let prompt = messages[at]["content"].as_str().unwrap();
    let plans = request["response_format"]["type"] == "json_object";
    let said = match prompt.strip_prefix("say ") {
        Some(_) if plans => said([text(r#"{"mode": "direct", "reason": "it is simple"}"#), end("stop")]),
        Some(words) => said([text(words), end("stop")]),
        None => answers(step),
    };
    socket
        .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        .await?;
    match said {
        Said::Bytes(bytes) => socket.write_all(&bytes).await?,
        Said::Endless(beginning, rest) => {
            socket.write_all(&beginning).await?;
            let _: Infallible = loop {
                socket.write_all(&rest).await?;
            };
        }
        Said::Drip(bytes, wait) => {
            for byte in bytes {
                tokio::time::sleep(wait).await;
                socket.write_all(&[byte]).await?;
            }
        }
    }
    socket.shutdown().await
}

async fn request(socket: &mut TcpStream) -> std::io::Result<Value> {
    let mut bytes = Vec::new();
    loop {
        if socket.read_buf(&mut bytes).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&bytes[..at]).to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        let length: usize = length.trim().parse().unwrap();
        let mut body = bytes.split_off(at + 4);
        let so_far = body.len();
        body.resize(length, 0);
        socket.read_exact(&mut body[so_far..]).await?;
        return Ok(serde_json::from_slice(&body)?);
    }
}

/// An answer of these parts.
pub fn said(parts: impl IntoIterator<Item = String>) -> Said {
    Said::Bytes(parts.into_iter().collect::<String>().into_bytes())
}

/// A part of an answer.
pub fn part(delta: &Value) -> String {
    format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": delta}]}))
}

/// Words of an answer.
pub fn text(words: &str) -> String {
    part(&json!({"content": words}))
}

/// Reasoning.
pub fn thought(words: &str) -> String {
    part(&json!({"reasoning_content": words}))
}

/// The beginning of a call, or all of it.
pub fn call(index: usize, id: &str, name: &str, arguments: &str) -> String {
    part(&json!({"tool_calls": [{
        "index": index, "id": id, "type": "function", "function": {"name": name, "arguments": arguments}
    }]}))
}

/// More of a call's arguments.
pub fn more(index: usize, arguments: &str) -> String {
    part(&json!({"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}))
}

/// The end of an answer.
pub fn end(finish: &str) -> String {
    let last = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]});
    format!("data: {last}\n\ndata: [DONE]\n\n")
}
