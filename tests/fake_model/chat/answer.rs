//! A step as an HTTP answer: streamed or whole.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::Response;
use hyper::body::Frame;
use hyper::header::{CONTENT_TYPE, RETRY_AFTER};
use serde_json::{Value, json};

use super::script::{Call, Step, step_for};
use super::whole;

pub(super) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// The connection is to close before any byte.
#[derive(Debug)]
pub(super) struct Refused;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("as the script says")
    }
}

impl std::error::Error for Refused {}

/// What a request is answered with.
pub(super) struct Answer {
    step: Step,
    key: u64,
    streams: bool,
    counts: bool,
    model: String,
}

/// What is sent, one after the other.
enum Part {
    Bytes(String),
    Wait(Duration),
    /// Nothing more, and no end.
    Hang,
    /// The connection closes without an end.
    Break,
}

impl Answer {
    pub(super) fn to(request: &Value) -> Self {
        let (step, key) = step_for(request);
        Self {
            streams: request["stream"] == true && !step.whole,
            step,
            key,
            counts: request["stream_options"]["include_usage"] == true,
            model: quoted(request["model"].as_str().unwrap_or("scripted")),
        }
    }

    /// Keeps of the step's misfortunes those that still happen; `happens` uses one of so many times up.
    pub(super) fn suffer(&mut self, happens: impl Fn(u64, u64) -> bool) {
        let step = &mut self.step;
        if step.refuse > 0 && happens(self.key ^ 1, step.refuse) {
            return;
        }
        step.refuse = 0;
        if let Some(status) = &step.status {
            if status.times == u64::MAX || happens(self.key ^ 2, status.times) {
                return;
            }
            step.status = None;
        }
        if step.cut.as_ref().is_some_and(|cut| !happens(self.key ^ 4, cut.times)) {
            step.cut = None;
        }
    }

    pub(super) fn respond(self) -> Result<Response<Body>, Refused> {
        let step = &self.step;
        if step.refuse > 0 {
            return Err(Refused);
        }
        if let Some(status) = &step.status {
            let mut answer = error(status.code, None, &format!("The script wants status {}.", status.code));
            if let Some(wait) = &status.retry_after {
                answer.headers_mut().insert(RETRY_AFTER, wait.parse().unwrap());
            }
            return Ok(answer);
        }
        if let Some((code, text)) = &step.error {
            return Ok(error(400, Some(code), text));
        }
        let (kind, sends) = if self.streams {
            ("text/event-stream", self.streamed())
        } else {
            ("application/json", self.whole())
        };
        Ok(Response::builder().header(CONTENT_TYPE, kind).body(body(sends)).unwrap())
    }

    fn finish(&self) -> String {
        let ordinary = if self.step.calls.is_empty() { "stop" } else { "tool_calls" };
        quoted(self.step.finish.as_deref().unwrap_or(ordinary))
    }

    fn usage(&self) -> String {
        let (read, written) = self.step.usage.unwrap_or((10, 5));
        format!(
            r#"{{"prompt_tokens":{read},"completion_tokens":{written},"total_tokens":{}}}"#,
            read.saturating_add(written)
        )
    }

    fn streamed(&self) -> Vec<Part> {
        let step = &self.step;
        if step.hang {
            return vec![Part::Hang];
        }
        let mut sends = Vec::new();
        let mut text = String::new();
        self.chunk(&mut text, r#"{"role":"assistant","content":""}"#, "null");
        for word in words(&step.think) {
            self.chunk(&mut text, &format!(r#"{{"reasoning_content":{}}}"#, quoted(word)), "null");
        }
        let all = words(&step.say);
        let until = step.cut.as_ref().map_or(all.len(), |cut| cut.words.min(all.len()));
        for word in &all[..until] {
            if !step.slow.is_zero() {
                sends.push(Part::Bytes(std::mem::take(&mut text)));
                sends.push(Part::Wait(step.slow));
            }
            self.chunk(&mut text, &format!(r#"{{"content":{}}}"#, quoted(word)), "null");
        }
        if step.cut.is_some() {
            sends.extend([Part::Bytes(text), Part::Break]);
            return sends;
        }
        for line in &step.raw {
            let _ = write!(text, "{line}\n\n");
        }
        if step.long > 0 {
            let _ = write!(text, "data: {}\n\n", "x".repeat(step.long));
        }
        if let Some(words) = &step.error_mid {
            let _ =
                write!(text, "data: {}\n\n", json!({"error": {"message": words, "type": "server_error"}}));
            sends.push(Part::Bytes(text));
            return sends;
        }
        for (index, call) in step.calls.iter().enumerate() {
            self.stream_call(&mut text, index, call);
        }
        self.chunk(&mut text, "{}", &self.finish());
        if self.counts {
            let (model, usage) = (&self.model, self.usage());
            let _ = write!(text, "data: {{{HEAD}\"model\":{model},\"choices\":[],\"usage\":{usage}}}\n\n");
        }
        text.push_str("data: [DONE]\n\n");
        sends.push(Part::Bytes(text));
        sends
    }

    fn chunk(&self, text: &mut String, delta: &str, finish: &str) {
        let model = &self.model;
        let _ = write!(
            text,
            "data: {{{HEAD}\"model\":{model},\"choices\":[{{\"index\":0,\"delta\":{delta},\"finish_reason\":{finish}}}]}}\n\n"
        );
    }

    /// The call's id and name, and then its arguments in three pieces.
    fn stream_call(&self, text: &mut String, index: usize, call: &Call) {
        let (id, name) = (quoted(&call.id), quoted(&call.name));
        let first = format!(
            r#"{{"tool_calls":[{{"index":{index},"id":{id},"type":"function","function":{{"name":{name},"arguments":""}}}}]}}"#
        );
        self.chunk(text, &first, "null");
        let arguments = &call.arguments;
        let (a, b) = (arguments.len() / 3, arguments.len() * 2 / 3);
        let (a, b) = (arguments.floor_char_boundary(a), arguments.floor_char_boundary(b));
        for piece in [&arguments[..a], &arguments[a..b], &arguments[b..]] {
            let piece = quoted(piece);
            let delta =
                format!(r#"{{"tool_calls":[{{"index":{index},"function":{{"arguments":{piece}}}}}]}}"#);
            self.chunk(text, &delta, "null");
        }
    }

    fn whole(&self) -> Vec<Part> {
        let step = &self.step;
        if step.hang {
            return vec![Part::Hang];
        }
        let words = u32::try_from(words(&step.say).len()).unwrap();
        let mut sends = Vec::new();
        if !step.slow.is_zero() {
            sends.push(Part::Wait(step.slow.saturating_mul(words)));
        }
        if let Some(words) = &step.error_mid {
            sends.push(Part::Bytes(json!({"error": {"message": words, "type": "server_error"}}).to_string()));
            return sends;
        }
        let mut message = json!({"role": "assistant", "content": step.say});
        if !step.think.is_empty() {
            message["reasoning_content"] = step.think.as_str().into();
        }
        if !step.calls.is_empty() {
            let call = |call: &Call| {
                let function = json!({"name": call.name, "arguments": call.arguments});
                json!({"id": call.id, "type": "function", "function": function})
            };
            message["tool_calls"] = step.calls.iter().map(call).collect();
        }
        let (model, finish, usage) = (&self.model, self.finish(), self.usage());
        let mut text = format!(
            r#"{{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":{model},"choices":[{{"index":0,"message":{message},"finish_reason":{finish}}}],"usage":{usage}}}"#
        );
        text.extend(step.raw.iter().map(String::as_str));
        text.push_str(&" ".repeat(step.long));
        if step.cut.is_some() {
            text.truncate(text.floor_char_boundary(text.len() / 2));
            sends.extend([Part::Bytes(text), Part::Break]);
            return sends;
        }
        sends.push(Part::Bytes(text));
        sends
    }
}

const HEAD: &str = r#""id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"#;

/// An error as OpenAI words it.
pub(super) fn error(status: u16, code: Option<&str>, text: &str) -> Response<Body> {
    let kind = if status < 500 { "invalid_request_error" } else { "server_error" };
    let body = json!({"error": {"message": text, "type": kind, "param": null, "code": code}});
    let answer = Response::builder().status(status).header(CONTENT_TYPE, "application/json");
    answer.body(whole(body.to_string())).unwrap()
}

fn body(mut sends: Vec<Part>) -> Body {
    if let [Part::Bytes(text)] = &mut sends[..] {
        return whole(std::mem::take(text));
    }
    let frames = stream::unfold(VecDeque::from(sends), async |mut sends| {
        loop {
            match sends.pop_front()? {
                Part::Bytes(text) => return Some((Ok(Frame::data(Bytes::from(text))), sends)),
                Part::Wait(time) => tokio::time::sleep(time).await,
                Part::Hang => std::future::pending().await,
                Part::Break => {
                    // What stands before it is sent while this waits.
                    tokio::task::yield_now().await;
                    return Some((Err(io::ErrorKind::ConnectionReset.into()), sends));
                }
            }
        }
    });
    StreamBody::new(frames).boxed_unsync()
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

/// The words of a text, each with the white space that follows it.
fn words(text: &str) -> Vec<&str> {
    text.split_inclusive(char::is_whitespace).collect()
}
