//! The end of what an agent writes to stderr, for the operator.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt};

const TAIL_MAX_BYTES: usize = 4 << 10;

/// The last 4 KiB. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Tail(Arc<Mutex<Vec<u8>>>);

impl Tail {
    /// Reads the pipe to its end and keeps the tail: an agent whose stderr nobody reads would block.
    pub(super) async fn drain(self, mut pipe: impl AsyncRead + Unpin) {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = pipe.read(&mut bytes).await {
            self.push(&bytes[..count]);
        }
    }

    /// The tail as readable text.
    pub(super) fn text(&self) -> String {
        readable(&String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    fn push(&self, bytes: &[u8]) {
        let mut tail = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tail.extend_from_slice(bytes);
        let surplus = tail.len().saturating_sub(TAIL_MAX_BYTES);
        tail.drain(..surplus);
    }
}

// Without colours and other control sequences: ESC [ … letter, ESC ] … BEL.
fn readable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' => match chars.next() {
                Some('[') => while chars.next().is_some_and(|c| !('\u{40}'..='\u{7e}').contains(&c)) {},
                Some(']') => while chars.next().is_some_and(|c| c != '\u{7}') {},
                _ => {}
            },
            '\n' | '\t' => out.push(c),
            c if c.is_control() => {}
            c => out.push(c),
        }
    }
    out.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_tail_is_kept() {
        let tail = Tail::default();
        let text = format!("start{}end\n", "x".repeat(100_000));
        tail.clone().drain(text.as_bytes()).await;
        assert_eq!(tail.text().len(), TAIL_MAX_BYTES - 1);
        assert!(tail.text().ends_with("xend"));
    }

    #[test]
    fn colours_and_control_characters_are_taken_out() {
        assert_eq!(readable("\u{1b}[33;1mwarn\u{1b}[0m: a\r\n\u{1b}]0;title\u{7}\tb\u{1b}"), "warn: a\n\tb");
    }
}
