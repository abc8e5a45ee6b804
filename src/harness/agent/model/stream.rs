//! An answer's bytes and events: bounded, and never waited for without end.

use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use reqwest::Response;
use sse_stream::{Error, Sse, SseStream};
use thiserror::Error;
use tokio::time::timeout;

use super::super::http::root_cause;

/// The largest event, in bytes, and so the longest line.
const EVENT_MAX: usize = 1 << 20;

/// Why there is no more of an answer.
#[derive(Debug, Error, PartialEq, Eq)]
pub(super) enum Fault {
    /// Nothing came for so long.
    #[error("nothing came for {} s", .0.as_secs())]
    Silent(Duration),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Lost(String),
    /// It is larger than anything that is taken.
    #[error("the answer is too large")]
    TooLarge,
    /// It is not an event stream.
    #[error("the answer is not an event stream: {0}")]
    Garbled(String),
}

/// The events of an answer.
pub(super) struct Events(Pin<Box<dyn Stream<Item = Result<Sse, Error>> + Send>>);

impl Events {
    /// The events of an answer; each byte, a comment's as well, ends a silence.
    pub(super) fn of(response: Response, silence: Duration) -> Self {
        Self(Box::pin(SseStream::from_bytes_stream(bytes(response, silence))))
    }

    /// The data of the next event that has some; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<String>, Fault> {
        loop {
            match self.0.next().await {
                Some(Ok(Sse { data: Some(data), .. })) => return Ok(Some(data)),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(fault(error)),
                None => return Ok(None),
            }
        }
    }
}

fn fault(error: Error) -> Fault {
    match error {
        Error::Body(error) => match error.downcast() {
            Ok(fault) => *fault,
            Err(error) => Fault::Lost(error.to_string()),
        },
        error => Fault::Garbled(error.to_string()),
    }
}

fn bytes(response: Response, silence: Duration) -> impl Stream<Item = Result<Bytes, Fault>> + Send {
    stream::unfold(Some((response, Gauge::default())), move |open: Option<(Response, Gauge)>| async move {
        let (mut response, mut gauge) = open?;
        let measured = match chunk(&mut response, silence).await {
            Ok(None) => return None,
            Ok(Some(bytes)) => gauge.take(&bytes).map(|()| bytes),
            Err(fault) => Err(fault),
        };
        let open = measured.is_ok().then_some((response, gauge));
        Some((measured, open))
    })
}

async fn chunk(response: &mut Response, silence: Duration) -> Result<Option<Bytes>, Fault> {
    match timeout(silence, response.chunk()).await {
        Ok(Ok(chunk)) => Ok(chunk),
        Ok(Err(error)) => Err(Fault::Lost(root_cause(&error))),
        Err(_) => Err(Fault::Silent(silence)),
    }
}

/// The whole of an answer.
pub(super) async fn whole(response: &mut Response, silence: Duration, max: usize) -> Result<Vec<u8>, Fault> {
    let mut body = Vec::new();
    while let Some(bytes) = chunk(response, silence).await? {
        if body.len() + bytes.len() > max {
            return Err(Fault::TooLarge);
        }
        body.extend_from_slice(&bytes);
    }
    Ok(body)
}

/// As much of an answer as comes, up to that many bytes: for what is only shown.
pub(super) async fn beginning(response: &mut Response, silence: Duration, max: usize) -> Vec<u8> {
    let mut body = Vec::new();
    while let (true, Ok(Some(bytes))) = (body.len() < max, chunk(response, silence).await) {
        body.extend_from_slice(&bytes[..bytes.len().min(max - body.len())]);
    }
    body
}

/// How large the event is that is being read.
#[derive(Debug, Default)]
struct Gauge {
    event: usize,
    line: usize,
    /// The last byte was a CR: an LF that follows belongs to the same line end.
    after_cr: bool,
}

impl Gauge {
    fn take(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        for &byte in bytes {
            let ends_crlf = std::mem::take(&mut self.after_cr) && byte == b'\n';
            match byte {
                _ if ends_crlf => {}
                b'\n' | b'\r' => {
                    self.after_cr = byte == b'\r';
                    // An empty line ends the event.
                    if self.line == 0 {
                        self.event = 0;
                    }
                    self.line = 0;
                }
                _ => {
                    self.line += 1;
                    self.event += 1;
                    if self.event > EVENT_MAX {
                        return Err(Fault::TooLarge);
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_measured_over_all_its_lines_whatever_their_ends() {
        for end in ["\n", "\r\n", "\r"] {
            let mut gauge = Gauge::default();
            let half = format!("{}{end}", "x".repeat(EVENT_MAX / 2));
            for _ in 0..5 {
                assert_eq!(gauge.take(half.as_bytes()), Ok(()));
                assert_eq!(gauge.take(half.as_bytes()), Ok(()));
                assert_eq!(gauge.take(end.as_bytes()), Ok(()));
            }
            assert_eq!(gauge.take(half.as_bytes()), Ok(()));
            assert_eq!(gauge.take(half.as_bytes()), Ok(()));
            assert_eq!(gauge.take(b"x"), Err(Fault::TooLarge), "{end:?}");
        }
    }
}
