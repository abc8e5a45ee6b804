//! Event streams. A task reads the session's events and feeds the body through a short queue; it ends with the stream, with
//! its reader, with its key, or with the service. What it says is its [`Voice`]'s.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, timeout};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tracing::Instrument;

use super::views::event_text;
use crate::domain::event::Event;
use crate::domain::session::Session;
use crate::ids::KeyId;
use crate::service::{Published, Service, ServiceError, Tail};

/// Chunks that wait between the task and the socket.
const QUEUE: usize = 4;
/// Frames that are ready together go out in chunks of about this size.
const CHUNK_BYTES: usize = 64 * 1024;
/// How often a silent stream says that it lives.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How often the stream's key is checked: with the service's own memory of keys, a revoked one is found within 5 s.
const KEY_CHECK: Duration = Duration::from_secs(2);
/// How long a reader may take nothing.
const STUCK: Duration = Duration::from_secs(30);

const RETRY: &[u8] = b"retry: 2000\n\n";
const ALIVE: &[u8] = b": keep-alive\n\n";
const INTERRUPTED: &[u8] = b": interrupted, reconnect\n\n";

/// Why a stream ends before its end.
#[derive(Debug)]
pub enum Broken {
    /// The service goes down.
    Closing,
    /// Its key is not valid any more.
    Revoked,
    /// The events could not be read.
    Unread(ServiceError),
}

/// What events come to.
#[derive(Debug)]
pub struct Said {
    /// Frames, several in one chunk.
    pub chunks: Vec<Bytes>,
    /// Whether nothing follows.
    pub last: bool,
}

/// How a stream says what it has to say. What is empty is not sent.
#[async_trait]
pub trait Voice: Send + Sync + 'static {
    /// What comes first.
    fn head(&mut self) -> Bytes;

    /// What events come to.
    fn events(&mut self, session: &Session, events: &[Arc<Published>]) -> Said;

    /// The last words, when the tail has nothing more; `None` when it may have more after all.
    async fn end(&mut self) -> Option<Bytes>;

    /// The last words when it ends before its end.
    fn broken(&mut self, why: Broken) -> Bytes;
}

/// What is streamed, and how.
pub struct Feed {
    tail: Tail,
    voice: Box<dyn Voice>,
}

impl Feed {
    /// What a tail gives, said by that voice.
    pub fn new(tail: Tail, voice: Box<dyn Voice>) -> Self {
        Self { tail, voice }
    }

    /// What a tail gives, as events.
    pub fn events(tail: Tail) -> Self {
        Self::new(tail, Box::new(Events))
    }
}

/// The answer that streams a feed.
pub fn answer(service: &Arc<Service>, feed: Feed, key: KeyId) -> Response {
    let (out, chunks) = mpsc::channel(QUEUE);
    let Feed { tail, voice } = feed;
    let stream =
        Stream { service: Arc::clone(service), tail, voice, key, check: ticks(KEY_CHECK), out: Out(out) };
    tokio::spawn(stream.run().in_current_span());
    let body = Body::from_stream(ReceiverStream::new(chunks).map(Ok::<_, std::convert::Infallible>));
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// The stream is over; why does not matter to anybody.
struct Over;

/// The way to the reader.
struct Out(mpsc::Sender<Bytes>);

impl Out {
    async fn send(&self, chunk: Bytes) -> Result<(), Over> {
        if chunk.is_empty() {
            return Ok(());
        }
        match timeout(STUCK, self.0.send(chunk)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Over),
        }
    }
}

struct Stream {
    service: Arc<Service>,
    tail: Tail,
    voice: Box<dyn Voice>,
    key: KeyId,
    /// When the key is looked at again: a time of the stream's own, for a stream may never pause.
    check: Interval,
    out: Out,
}

impl Stream {
    async fn run(mut self) {
        // The error only says that it is over.
        let _ = self.feed().await;
    }

    async fn feed(&mut self) -> Result<(), Over> {
        let head = self.voice.head();
        self.out.send(head).await?;
        loop {
            match self.next().await {
                Ok(Some(events)) => {
                    let said = self.voice.events(self.tail.session(), &events);
                    for chunk in said.chunks {
                        self.out.send(chunk).await?;
                    }
                    if said.last {
                        return Ok(());
                    }
                }
                Ok(None) => {
                    if let Some(words) = self.voice.end().await {
                        return self.out.send(words).await;
                    }
                }
                Err(why) => {
                    let words = why.map(|why| self.voice.broken(why)).unwrap_or_default();
                    return self.out.send(words).await;
                }
            }
        }
    }

    /// The next events; `None` after the last. Meanwhile the stream says that it lives and its key is watched. An error without a
    /// reason is a reader that has gone.
    async fn next(&mut self) -> Result<Option<Vec<Arc<Published>>>, Option<Broken>> {
        let Self { service, tail, key, check, out, .. } = self;
        let mut alive = ticks(KEEP_ALIVE);
        // Held across ticks: to ask anew at each tick would be to read the database at each tick.
        let mut next = pin!(tail.next());
        loop {
            tokio::select! {
                biased;
                () = service.closing().cancelled() => return Err(Some(Broken::Closing)),
                () = out.0.closed() => return Err(None),
                _ = check.tick() => {
                    // When the database does not answer, the key is not known to be revoked.
                    if matches!(service.is_key_valid(key).await, Ok(false)) {
                        return Err(Some(Broken::Revoked));
                    }
                }
                found = &mut next => {
                    return found.map_err(|error| {
                        tracing::warn!(%error, "an event stream was interrupted");
                        Some(Broken::Unread(error))
                    });
                }
                _ = alive.tick() => out.send(Bytes::from_static(ALIVE)).await.map_err(|Over| None)?,
            }
        }
    }
}

/// Each event as it is.
struct Events;

#[async_trait]
impl Voice for Events {
    fn head(&mut self) -> Bytes {
        Bytes::from_static(RETRY)
    }

    fn events(&mut self, session: &Session, events: &[Arc<Published>]) -> Said {
        Said { chunks: chunks(session, events), last: false }
    }

    async fn end(&mut self) -> Option<Bytes> {
        Some(Bytes::new())
    }

    fn broken(&mut self, why: Broken) -> Bytes {
        Bytes::from_static(match why {
            Broken::Closing => RETRY,
            Broken::Revoked => b"",
            Broken::Unread(_) => INTERRUPTED,
        })
    }
}

fn ticks(period: Duration) -> Interval {
    let mut ticks = interval_at(Instant::now() + period, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Frames, several in one chunk.
fn chunks(session: &Session, events: &[Arc<Published>]) -> Vec<Bytes> {
    let mut chunks = Vec::new();
    let mut chunk = BytesMut::new();
    for published in events {
        chunk.extend_from_slice(&published.frame(|event| frame(session, event)));
        if chunk.len() >= CHUNK_BYTES {
            chunks.push(chunk.split().freeze());
        }
    }
    if !chunk.is_empty() {
        chunks.push(chunk.freeze());
    }
    chunks
}

fn frame(session: &Session, event: &Event) -> Bytes {
    let data = event_text(session, event);
    Bytes::from(format!("id: {}\nevent: {}\ndata: {data}\n\n", event.seq, event.kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;
    use crate::http::views::tests::session;

    fn published(seq: i64, size: usize) -> Arc<Published> {
        let data = format!(r#"{{"text":"{}"}}"#, "x".repeat(size));
        Arc::new(Published::new(Event {
            seq,
            kind: "text.delta".into(),
            turn_id: None,
            at: Timestamp(0),
            data,
        }))
    }

    #[test]
    fn frames_that_are_ready_together_go_out_together_up_to_a_size() {
        let session = session();
        let small: Vec<_> = (1..=10).map(|seq| published(seq, 1)).collect();
        let together = chunks(&session, &small);
        assert_eq!(together.len(), 1);
        let text = String::from_utf8(together[0].to_vec()).unwrap();
        assert!(text.starts_with("id: 1\nevent: text.delta\ndata: {\"seq\":1,"), "{text}");
        assert_eq!(text.matches("\n\n").count(), 10);
        let large: Vec<_> = (1..=4).map(|seq| published(seq, CHUNK_BYTES)).collect();
        assert_eq!(chunks(&session, &large).len(), 4);
        assert!(chunks(&session, &[]).is_empty());
    }
}
