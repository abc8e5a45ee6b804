//! Event streams: a parser that takes bytes as they come, and a reader that survives cut connections.

use std::collections::VecDeque;
use std::time::Duration;

use reqwest::Response;
use serde_json::Value;

use super::client::{Client, session_path};
use super::error::{CliError, CliResult};

/// The largest line that is taken. What a person approves is shown whole, so it is generous.
const LINE_MAX_BYTES: usize = 64 << 20;
/// The service sends a comment each 15 s: a stream that is silent for so long is dead.
const SILENCE_MAX: Duration = Duration::from_secs(45);
/// Until the service says otherwise.
const RETRY: Duration = Duration::from_secs(2);
/// The longest wait between two attempts, whatever the service says.
const RETRY_MAX: Duration = Duration::from_secs(30);
/// How often a stream is opened in vain, one after the other, before we give up: about half a minute.
const ATTEMPTS: u32 = 15;

/// What a stream holds that we need: events name their own place and type, so that `id` and `event` are not read.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Item {
    /// The `data` lines of a message, joined.
    Message(String),
    /// How long to wait before a new connection.
    Retry(Duration),
}

/// The parser of the WHATWG event stream format. Bytes in, in any portions; whole messages out.
#[derive(Debug, Default)]
struct Parser {
    line: Vec<u8>,
    /// The last byte was a CR: an LF that follows belongs to the same line end.
    after_cr: bool,
    /// The data of the message that is being read, once it has some.
    data: Option<String>,
}

impl Parser {
    /// Takes more bytes.
    ///
    /// # Errors
    /// When a line is larger than any of the service.
    fn push(&mut self, bytes: &[u8]) -> Result<Vec<Item>, &'static str> {
        let mut items = Vec::new();
        for &byte in bytes {
            let ends_crlf = std::mem::take(&mut self.after_cr) && byte == b'\n';
            match byte {
                _ if ends_crlf => {}
                b'\n' | b'\r' => {
                    self.after_cr = byte == b'\r';
                    let line = std::mem::take(&mut self.line);
                    items.extend(self.take_line(&String::from_utf8_lossy(&line)));
                }
                _ if self.line.len() >= LINE_MAX_BYTES => {
                    return Err("the event stream holds a line too large");
                }
                _ => self.line.push(byte),
            }
        }
        Ok(items)
    }

    fn take_line(&mut self, line: &str) -> Option<Item> {
        if line.is_empty() {
            return self.data.take().map(Item::Message);
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => match &mut self.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => self.data = Some(value.to_owned()),
            },
            // `parse` alone would take a sign as well.
            "retry" if value.bytes().all(|byte| byte.is_ascii_digit()) => {
                return value.parse().ok().map(Duration::from_millis).map(Item::Retry);
            }
            // A comment has an empty field.
            _ => {}
        }
        None
    }
}

/// An event of a session.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Event {
    /// Its place in the session.
    pub seq: i64,
    /// Its type.
    pub kind: String,
    /// The turn it belongs to.
    pub turn_id: Option<String>,
    /// When it happened.
    pub at: String,
    /// What it says.
    pub data: Value,
    /// All of it on one line, as it came.
    pub json: String,
}

impl Event {
    /// Reads an event of a stream; `None` when it is none.
    pub(super) fn parse(json: &str) -> Option<Self> {
        let event = Self::read(serde_json::from_str(json).ok()?)?;
        // Line ends can only stand between its tokens, and then it must be written anew to be one line.
        Some(if json.contains(['\n', '\r']) { event } else { Self { json: json.to_owned(), ..event } })
    }

    /// Reads an event of a list; `None` when it is none.
    pub(super) fn read(mut whole: Value) -> Option<Self> {
        let json = whole.to_string();
        let text = |name: &str| whole.get(name).and_then(Value::as_str).map(str::to_owned);
        let (kind, turn_id, at) = (text("type")?, text("turn_id"), text("at").unwrap_or_default());
        let seq = whole.get("seq")?.as_i64()?;
        let data = whole.get_mut("data").map(Value::take).unwrap_or_default();
        Some(Self { seq, kind, turn_id, at, data, json })
    }

    /// A text of its data; empty where there is none.
    pub(super) fn text(&self, name: &str) -> &str {
        self.data.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    /// Whether it ends its turn.
    pub(super) fn ends_turn(&self) -> bool {
        matches!(
            self.kind.as_str(),
            "turn.completed" | "turn.failed" | "turn.cancelled" | "turn.interrupted" | "turn.timed_out"
        )
    }
}

/// What a reader has to tell.
#[derive(Debug)]
pub(super) enum Step {
    /// The next event, each exactly once and in order.
    Event(Box<Event>),
    /// The service is out of reach; the reader goes on trying.
    Lost,
}

/// Follows a session's events over as many connections as it takes. [`EventReader::next`] may be dropped at any point.
pub(super) struct EventReader<'a> {
    client: &'a Client,
    session: &'a str,
    /// The last seq that was given out, or that the reader began after.
    last: i64,
    connection: Option<(Response, Parser)>,
    waiting: VecDeque<Event>,
    retry: Duration,
    failures: u32,
    pause: bool,
    /// Whether the service is out of reach, as far as we know.
    outage: bool,
    /// Whether that was told.
    told: bool,
    /// Whether the session is destroyed: nothing follows then.
    is_destroyed: bool,
    /// Whether all was read.
    over: bool,
}

/// What a connection brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Received {
    Some,
    /// The service ended the stream in order.
    End,
    /// The connection broke.
    Cut,
}

impl<'a> EventReader<'a> {
    /// A reader of a session's events that come after a seq.
    pub(super) fn new(client: &'a Client, session: &'a str, after: i64) -> Self {
        Self {
            client,
            session,
            last: after,
            connection: None,
            waiting: VecDeque::new(),
            retry: RETRY,
            failures: 0,
            pause: false,
            outage: false,
            told: false,
            is_destroyed: false,
            over: false,
        }
    }

    /// The next step; `None` when nothing more is to come: the session is destroyed and was read to its end.
    ///
    /// # Errors
    /// When the service refuses, or stays out of reach.
    pub(super) async fn next(&mut self) -> CliResult<Option<Step>> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                if event.seq > self.last {
                    self.last = event.seq;
                    return Ok(Some(Step::Event(Box::new(event))));
                }
                continue;
            }
            if self.connection.is_none() {
                if self.over || !self.connect().await? {
                    return Ok(None);
                }
            } else {
                self.receive().await?;
            }
            if self.outage && !self.told {
                self.told = true;
                return Ok(Some(Step::Lost));
            }
        }
    }

    /// Opens a connection, or notes the failure; `false` when the service has nothing more to tell.
    async fn connect(&mut self) -> CliResult<bool> {
        if self.pause {
            tokio::time::sleep(self.retry.max(self.client.backoff())).await;
            self.pause = false;
        }
        let path = session_path(self.session, &["events"]);
        match self.client.open_stream(&path, &[("after", self.last.to_string())]).await {
            Ok(response) if response.status().as_u16() == 204 => Ok(false),
            Ok(response) => {
                self.failures = 0;
                self.connection = Some((response, Parser::default()));
                Ok(true)
            }
            Err(error) => {
                self.failures += 1;
                self.outage = true;
                if self.failures >= ATTEMPTS || !passes(&error) {
                    return Err(error);
                }
                self.pause = true;
                Ok(true)
            }
        }
    }

    /// Takes the next bytes of the connection, or its end.
    async fn receive(&mut self) -> CliResult<()> {
        match self.take_bytes().await? {
            Received::Some => return Ok(()),
            Received::End => self.over = self.is_destroyed,
            Received::Cut => self.outage = true,
        }
        self.connection = None;
        self.pause = true;
        Ok(())
    }

    async fn take_bytes(&mut self) -> CliResult<Received> {
        let Some((response, parser)) = &mut self.connection else { return Ok(Received::End) };
        let bytes = match tokio::time::timeout(SILENCE_MAX, response.chunk()).await {
            Ok(Ok(Some(bytes))) => bytes,
            Ok(Ok(None)) => return Ok(Received::End),
            Ok(Err(_)) | Err(_) => return Ok(Received::Cut),
        };
        for item in parser.push(&bytes).map_err(|why| CliError::Unexpected(why.to_owned()))? {
            match item {
                Item::Retry(wait) => self.retry = wait.min(RETRY_MAX),
                Item::Message(message) => {
                    let event = Event::parse(&message).ok_or_else(|| {
                        CliError::Unexpected("the event stream holds something that is no event".to_owned())
                    })?;
                    self.outage = false;
                    self.told = false;
                    self.is_destroyed = event.kind == "session.destroyed";
                    self.waiting.push_back(event);
                }
            }
        }
        Ok(Received::Some)
    }
}

/// Whether a stream that could not be opened may open later.
fn passes(error: &CliError) -> bool {
    match error {
        CliError::Unreachable { .. } => true,
        CliError::Problem(problem) => problem.status == 429 || problem.status >= 500,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Exit;
    use super::super::stub::{Reply, Stub, event, frame};
    use super::*;

    fn message(data: &str) -> Item {
        Item::Message(data.into())
    }

    const STREAM: &str = "retry: 2000\n: keep-alive\n\nid: 1\nevent: text.delta\ndata: {\"a\":1}\n\n\
                          id: 2\r\ndata: über\r\ndata:  two\r\n\r\nid: 3\rdata\r\revent: empty\n\nfuture: x\ndata:x\n\ndata: cut";

    fn expected() -> Vec<Item> {
        vec![
            Item::Retry(Duration::from_secs(2)),
            message("{\"a\":1}"),
            message("über\n two"),
            message(""),
            message("x"),
        ]
    }

    #[test]
    fn a_stream_is_read_alike_wherever_it_is_split() {
        let bytes = STREAM.as_bytes();
        for at in 0..=bytes.len() {
            let mut parser = Parser::default();
            let mut items = parser.push(&bytes[..at]).unwrap();
            items.extend(parser.push(&bytes[at..]).unwrap());
            assert_eq!(items, expected(), "split at {at}");
        }
        let mut parser = Parser::default();
        let items: Vec<Item> = bytes.chunks(1).flat_map(|byte| parser.push(byte).unwrap()).collect();
        assert_eq!(items, expected());
    }

    #[test]
    fn comments_and_bad_retries_say_nothing() {
        let mut parser = Parser::default();
        assert_eq!(parser.push(b": hello\n\n:\n\nretry: soon\nretry:\nretry: -1\nevent: x\n\n").unwrap(), []);
        assert_eq!(parser.push(b"data: y\n\n").unwrap(), [message("y")]);
    }

    fn delta(seq: i64) -> Value {
        event(seq, "text.delta", json!({"text": format!("{seq} ")}))
    }

    fn stream(seqs: std::ops::RangeInclusive<i64>, cut: bool) -> Reply {
        let frames: String = seqs.map(|seq| frame(&delta(seq))).collect();
        Reply::Stream { frames: format!("retry: 0\n\n{frames}"), cut }
    }

    /// Reads to the end: the seqs that were given out, and how often the connection was lost.
    async fn read_all(client: &Client, after: i64) -> CliResult<(Vec<i64>, usize)> {
        let mut reader = EventReader::new(client, "ses_1", after);
        let (mut seqs, mut lost) = (Vec::new(), 0);
        while let Some(step) = reader.next().await? {
            match step {
                Step::Event(event) => seqs.push(event.seq),
                Step::Lost => lost += 1,
            }
        }
        Ok((seqs, lost))
    }

    #[tokio::test]
    async fn a_reader_that_is_cut_off_goes_on_after_the_last_event_and_gives_each_out_once() {
        let half = format!("retry: 0\n\n{}id: 4\ndata: {{\"seq\"", frame(&delta(3)));
        let stub = Stub::start([
            stream(1..=2, true),
            Reply::Stream { frames: half, cut: true },
            // A service that begins too early does no harm.
            stream(2..=6, false),
            Reply::raw(204, "text/plain", ""),
        ])
        .await;
        let (seqs, lost) = read_all(&stub.client(), 0).await.unwrap();
        assert_eq!((seqs, lost), (vec![1, 2, 3, 4, 5, 6], 2), "a stream that ends in order is not lost");
        let seen = stub.requests();
        let targets: Vec<&str> = seen.iter().map(|request| request.target.as_str()).collect();
        assert_eq!(targets, [0, 2, 3, 6].map(|seq| format!("/v1/sessions/ses_1/events?after={seq}")));
        assert!(seen.iter().all(|request| request.header("accept") == "text/event-stream"));
    }

    #[tokio::test]
    async fn a_reader_outlasts_a_service_that_restarts() {
        let stub = Stub::start([
            stream(1..=1, true),
            Reply::Cut,
            Reply::problem(503, "shutting_down"),
            stream(2..=2, false),
            Reply::raw(204, "text/plain", ""),
        ])
        .await;
        assert_eq!(read_all(&stub.client(), 0).await.unwrap(), (vec![1, 2], 1), "one outage is told of once");
    }

    #[tokio::test]
    async fn a_destroyed_session_that_was_read_to_its_end_is_not_asked_for_more() {
        let frames = frame(&event(1, "session.destroyed", json!({})));
        let stub = Stub::start([Reply::Stream { frames, cut: false }]).await;
        assert_eq!(read_all(&stub.client(), 0).await.unwrap(), (vec![1], 0));
        assert_eq!(stub.requests().len(), 1);
    }

    #[test]
    fn an_event_is_kept_as_it_came_on_one_line() {
        let json = r#"{"type":"usage","seq":7,"data":{"z":1.50,"a":2}}"#;
        assert_eq!(Event::parse(json).unwrap().json, json);
        let spread = Event::parse("{\"type\":\"usage\",\n\"seq\":7}").unwrap();
        assert_eq!(spread.json.lines().count(), 1);
        assert_eq!(Event::parse(&spread.json), Some(spread));
    }

    #[tokio::test]
    async fn a_reader_does_not_insist_where_the_service_refuses() {
        let stub = Stub::start([Reply::problem(404, "not_found")]).await;
        let error = read_all(&stub.client(), 7).await.unwrap_err();
        assert_eq!(error.exit(), Exit::NotFound);
        assert_eq!(stub.lines(), ["GET /v1/sessions/ses_1/events?after=7"]);
    }

    #[tokio::test]
    async fn a_stream_that_holds_no_events_is_reported_and_not_read_for_ever() {
        let stub = Stub::start([Reply::Stream { frames: "data: hello\n\n".into(), cut: false }]).await;
        assert!(matches!(read_all(&stub.client(), 0).await, Err(CliError::Unexpected(_))));
    }
}
