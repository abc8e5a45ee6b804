//! Text for the model within a limit, with a word of what was left out.

use std::collections::VecDeque;

/// The text, or its beginning and how many bytes were left out; at most `max` bytes, however few these are.
pub(super) fn capped(text: String, max: usize) -> String {
    if text.len() <= max {
        return text;
    }
    // The number may lose a digit once the marker is there, and never gains one.
    let room = max.saturating_sub(marker(text.len()).len());
    let end = text.floor_char_boundary(room);
    let mut kept = text[..end].to_owned();
    kept.push_str(&marker(text.len() - end));
    kept.truncate(kept.floor_char_boundary(max));
    kept
}

/// The text, or its beginning and a sign that more followed.
pub(super) fn clipped(text: &str, max: usize) -> String {
    if text.len() <= max { text.to_owned() } else { format!("{}…", &text[..text.floor_char_boundary(max)]) }
}

fn marker(bytes: usize) -> String {
    format!("\n[{bytes} bytes left out]\n")
}

/// What came out of a pipe: its beginning and its end, each at most half of a limit.
#[derive(Debug)]
pub(super) struct HeadAndTail {
    half: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    left_out: usize,
}

impl HeadAndTail {
    pub(super) fn new(max: usize) -> Self {
        Self { half: max / 2, head: Vec::new(), tail: VecDeque::new(), left_out: 0 }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(bytes.len().min(self.half - self.head.len()));
        self.head.extend_from_slice(first);
        self.tail.extend(rest);
        let surplus = self.tail.len().saturating_sub(self.half);
        self.tail.drain(..surplus);
        self.left_out += surplus;
    }

    /// As text; bytes that are none are shown as `\u{fffd}`.
    pub(super) fn into_text(self) -> String {
        let tail = Vec::from(self.tail);
        if self.left_out == 0 {
            return String::from_utf8_lossy(&[self.head, tail].concat()).into_owned();
        }
        let head = String::from_utf8_lossy(&self.head).into_owned();
        format!("{head}{}{}", marker(self.left_out), String::from_utf8_lossy(&tail))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_within_the_limit_is_whole_and_longer_text_says_what_it_lacks() {
        assert_eq!(capped("añb".to_owned(), 4), "añb");
        let long = "ñ".repeat(1000);
        let kept = capped(long.clone(), 101);
        assert!(kept.len() <= 101, "{}", kept.len());
        let said: usize = kept.split(['[', ' ']).nth(1).unwrap().parse().unwrap();
        assert_eq!(kept.matches('ñ').count() * 2 + said, 2000);
        for max in 0..30 {
            assert!(capped(long.clone(), max).len() <= max);
        }
    }

    #[test]
    fn descriptions_are_clipped_between_characters() {
        assert_eq!((clipped("añb", 4).as_str(), clipped("añb", 2).as_str()), ("añb", "a…"));
    }

    #[test]
    fn of_a_pipe_the_beginning_and_the_end_are_kept_and_the_rest_is_counted() {
        let mut kept = HeadAndTail::new(8);
        for part in ["ab", "cdef", "gh"] {
            kept.push(part.as_bytes());
        }
        assert_eq!(kept.into_text(), "abcdefgh");
        let mut kept = HeadAndTail::new(8);
        for _ in 0..1000 {
            kept.push(b"0123456789");
        }
        assert!(kept.tail.capacity() < 1000 && kept.head.capacity() < 1000);
        assert_eq!(kept.into_text(), "0123\n[9992 bytes left out]\n6789");
    }
}
