//! A reader of server-sent events, as strict as the standard.

use serde_json::Value;

use super::within;

/// One frame.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    pub id: i64,
    pub event: String,
    pub data: Value,
}

/// The frames of a response, one after the other.
pub struct Events {
    response: reqwest::Response,
    buffer: Vec<u8>,
    /// Comments and retry fields that were seen.
    pub asides: Vec<String>,
}

impl Events {
    pub fn new(response: reqwest::Response) -> Self {
        Self { response, buffer: Vec::new(), asides: Vec::new() }
    }

    /// The next frame; `None` when the stream has ended or was cut.
    pub async fn next(&mut self) -> Option<Frame> {
        within("a frame", async {
            loop {
                if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
                    let block: Vec<u8> = self.buffer.drain(..end + 2).collect();
                    match self.read(std::str::from_utf8(&block).unwrap()) {
                        Some(frame) => return Some(frame),
                        None => continue,
                    }
                }
                match self.response.chunk().await {
                    Ok(Some(chunk)) => self.buffer.extend_from_slice(&chunk),
                    Ok(None) | Err(_) => return None,
                }
            }
        })
        .await
    }

    fn read(&mut self, block: &str) -> Option<Frame> {
        let (mut id, mut event, mut data) = (None, None, None);
        for line in block.lines().filter(|line| !line.is_empty()) {
            match line.split_once(": ") {
                Some(("id", value)) => id = Some(value.parse().unwrap()),
                Some(("event", value)) => event = Some(value.to_owned()),
                Some(("data", value)) => data = Some(serde_json::from_str(value).unwrap()),
                _ => self.asides.push(line.to_owned()),
            }
        }
        data.map(|data| Frame { id: id.unwrap(), event: event.unwrap(), data })
    }

    /// All frames until the stream ends.
    pub async fn all(mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(frame) = self.next().await {
            frames.push(frame);
        }
        frames
    }

    /// Frames up to and with the first of that type.
    pub async fn until(&mut self, kind: &str) -> Vec<Frame> {
        let mut frames = Vec::new();
        loop {
            let frame =
                self.next().await.unwrap_or_else(|| panic!("the stream ended before {kind}: {frames:?}"));
            let found = frame.event == kind;
            frames.push(frame);
            if found {
                return frames;
            }
        }
    }
}
