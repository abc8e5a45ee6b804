//! How many tokens a text takes, without the model's own tokenizer: which one that is, no endpoint says.
//!
//! Two ways, chosen per model by the operator:
//!
//! - `script` (the default) goes by the script of each character, with weights a little above what the tokenizers of common models
//!   need, so that a Chinese text is not taken for a quarter of itself as by the usual "four characters a token": ASCII words take a
//!   token for each 4 characters, ASCII digits and signs one for each 2, other alphabets (Latin with accents, Greek, Cyrillic,
//!   Hebrew, Arabic, …) one for each 2 characters, everything from Devanagari to the end of the plane (Indic scripts, kana, Han,
//!   Hangul) one each, and characters beyond the basic plane (emoji, rare Han) three each.
//! - `bytes` counts one token for each byte of UTF-8. No byte-level tokenizer needs more, whatever the text, so that a window is never
//!   overrun; most texts take a quarter of it.
//!
//! Each message takes twelve more, for its role and its frame.

use serde::Deserialize;

use super::super::message::Message;

/// What a message takes beside its words.
pub(in super::super) const PER_MESSAGE: u64 = 12;

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenEstimate {
    /// By the script of each character.
    #[default]
    Script,
    /// A token for each byte: nothing takes more.
    Bytes,
}

impl TokenEstimate {
    /// Tokens of a text.
    pub(in super::super) fn text(self, text: &str) -> u64 {
        match self {
            Self::Bytes => text.len() as u64,
            Self::Script => text.chars().map(twelfths).sum::<u64>().div_ceil(12),
        }
    }

    /// Tokens of a message.
    pub(in super::super) fn message(self, message: &Message) -> u64 {
        let words = match message {
            Message::System { content }
            | Message::User { content }
            | Message::Note { content }
            | Message::Tool { content, .. } => self.text(content),
            Message::Assistant { content, tool_calls } => {
                let calls = tool_calls.iter();
                let calls =
                    calls.map(|call| PER_MESSAGE + self.text(&call.name) + self.text(&call.arguments));
                self.text(content) + calls.sum::<u64>()
            }
        };
        PER_MESSAGE + words
    }

    /// Tokens of several messages.
    pub(in super::super) fn messages<'a>(self, messages: impl IntoIterator<Item = &'a Message>) -> u64 {
        messages.into_iter().map(|message| self.message(message)).sum()
    }
}

/// What a character takes, in twelfths of a token.
fn twelfths(c: char) -> u64 {
    match c {
        'a'..='z' | 'A'..='Z' | ' ' => 3,
        '\0'..='\u{7f}' => 6,
        '\u{80}'..='\u{8ff}' => 6,
        '\u{900}'..='\u{ffff}' => 12,
        _ => 36,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_a_byte_is_the_bound_that_nothing_exceeds() {
        for text in [
            "",
            "plain words",
            "{\"a\": [1, 2]}",
            "日本語のテキスト",
            "안녕하세요",
            "🦀🦀",
            "Ünïcödé",
            "नमस्ते",
        ] {
            assert_eq!(TokenEstimate::Bytes.text(text), text.len() as u64);
            assert!(TokenEstimate::Script.text(text) <= TokenEstimate::Bytes.text(text), "{text}");
        }
    }

    #[test]
    fn a_text_weighs_by_its_script_and_not_by_its_length() {
        let estimate = |text: &str| TokenEstimate::Script.text(text);
        assert_eq!(estimate(&"word ".repeat(80)), 100);
        assert_eq!(estimate(&"漢".repeat(100)), 100);
        assert_eq!(estimate(&"ж".repeat(100)), 50);
        assert_eq!(estimate(&"12".repeat(50)), 50);
        assert_eq!(estimate("🦀"), 3);
        assert_eq!(estimate("a"), 1, "a part of a token is a token");
    }
}
