//! Lines from a pipe, none longer than a limit and none held in memory beyond it.

use std::io;

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

/// No message is longer. The largest seen from real agents are a few MiB: whole files inside of diffs. A message is in memory
/// several times while it is stored, and one agent is not to take more than its share.
pub(in crate::harness) const LINE_MAX_BYTES: usize = 8 << 20;

/// No message has more values. Each takes many times the room that it has on its line: eight million zeros are a quarter of a GiB.
pub(in crate::harness) const VALUES_MAX: usize = 100_000;

/// Reads a pipe line by line.
pub(in crate::harness) struct Lines<R> {
    pipe: BufReader<R>,
    line: Vec<u8>,
    max: usize,
}

/// What came from the pipe.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::harness) enum Line {
    /// A line without its end.
    Whole(Vec<u8>),
    /// One that grew beyond the limit. Nothing more can be read.
    TooLong,
    /// The pipe is closed. Half a line before it is dropped.
    End,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(in crate::harness) fn new(pipe: R, max: usize) -> Self {
        Self { pipe: BufReader::with_capacity(64 << 10, pipe), line: Vec::new(), max }
    }

    /// The next line. Nothing is lost when the future is dropped before it is ready.
    pub(in crate::harness) async fn next(&mut self) -> io::Result<Line> {
        loop {
            let bytes = self.pipe.fill_buf().await?;
            if bytes.is_empty() {
                return Ok(Line::End);
            }
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let part = &bytes[..end.unwrap_or(bytes.len())];
            if self.line.len() + part.len() > self.max {
                return Ok(Line::TooLong);
            }
            self.line.extend_from_slice(part);
            let used = part.len() + usize::from(end.is_some());
            self.pipe.consume(used);
            if end.is_some() {
                return Ok(Line::Whole(std::mem::take(&mut self.line)));
            }
        }
    }
}

/// Whether a line holds more values than any message, by what stands between them. Names and values of objects count apart.
pub(in crate::harness) fn is_too_wide(line: &[u8]) -> bool {
    // Nothing shorter holds so many.
    if line.len() <= VALUES_MAX {
        return false;
    }
    let (mut values, mut in_text, mut escaped) = (0, false, false);
    for byte in line {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b',' | b':' | b'[' | b'{' if !in_text => values += 1,
            _ => {}
        }
    }
    values > VALUES_MAX
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    async fn all(text: &'static [u8], max: usize) -> Vec<Line> {
        let mut lines = Lines::new(text, max);
        let mut got = Vec::new();
        loop {
            got.push(lines.next().await.unwrap());
            if !matches!(got.last(), Some(Line::Whole(_))) {
                return got;
            }
        }
    }

    fn whole(text: &str) -> Line {
        Line::Whole(text.as_bytes().to_vec())
    }

    #[tokio::test]
    async fn lines_are_cut_at_their_ends_and_half_a_line_is_dropped() {
        assert_eq!(all(b"one\n\ntwo\r\nha", 9).await, [whole("one"), whole(""), whole("two\r"), Line::End]);
    }

    #[tokio::test]
    async fn a_line_beyond_the_limit_ends_the_reading() {
        assert_eq!(all(b"four\nfives\n", 4).await, [whole("four"), Line::TooLong]);
    }

    #[tokio::test]
    async fn an_endless_line_is_given_up_at_the_limit() {
        let mut lines = Lines::new(tokio::io::repeat(b'x'), 1 << 20);
        assert_eq!(lines.next().await.unwrap(), Line::TooLong);
        assert!(lines.line.capacity() <= 4 << 20);
    }

    #[test]
    fn a_line_is_too_wide_by_its_values_and_not_by_its_text() {
        let many = VALUES_MAX + 1;
        let text = json!({"text": ",:[{\"\\".repeat(many)}).to_string();
        assert!(!is_too_wide(text.as_bytes()));
        assert!(!is_too_wide(json!(vec![0; VALUES_MAX - 1]).to_string().as_bytes()));
        assert!(is_too_wide(json!([text, vec![0; many]]).to_string().as_bytes()));
        let nested = "[".repeat(many);
        assert!(is_too_wide(nested.as_bytes()));
    }
}
