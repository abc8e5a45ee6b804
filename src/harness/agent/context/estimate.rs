//! How many tokens a text takes, without the model's own tokenizer: which one that is, no endpoint says.
//!
//! Two ways, chosen per model by the operator:
//!
//! - `script` (the default) goes by the script of each character, so that a Chinese text is not taken for a quarter of itself as by
//!   the usual "four characters a token". In twelfths of a token: ASCII letters and spaces 3, digits and signs 8, letters and digits in
//!   a run of more than 24 (keys, base64, what is no word) 9 each, other alphabets 6, Hebrew and Arabic 9, everything from Devanagari to
//!   the end of the plane (Indic scripts, kana, Han, Hangul) 12, and characters beyond it (emoji, rare Han) 36. Of what the tokenizers
//!   cl100k and o200k count it gives: English 1.2 and 1.2, Rust 1.4 and 1.4, JSON 1.2 and 1.2, German 1.0 and 1.2, Chinese 1.0 and 1.5,
//!   Japanese 1.0 and 1.4, Korean 1.1 and 1.8, Russian 1.2 and 2.0, Arabic 0.9 and 2.3, Hindi 0.9 and 3.2, base64 1.0 and 1.1;
//!   "four characters a token" gives 0.3 and 0.4 for Chinese.
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
            Self::Script => twelfths_of(text).div_ceil(12),
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

/// A longer run of letters and digits is no word of any language.
const WORD_MAX: usize = 24;

/// What a text takes, in twelfths of a token.
fn twelfths_of(text: &str) -> u64 {
    let mut sum = 0;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let run = rest.bytes().take_while(u8::is_ascii_alphanumeric).count();
        if run > WORD_MAX {
            sum += 9 * run as u64;
        } else if run > 0 {
            sum += rest[..run].chars().map(twelfths).sum::<u64>();
        } else {
            sum += twelfths(first);
        }
        rest = &rest[run.max(first.len_utf8())..];
    }
    sum
}

/// What a character takes where it stands in words.
fn twelfths(c: char) -> u64 {
    match c {
        'a'..='z' | 'A'..='Z' | ' ' => 3,
        '\0'..='\u{7f}' => 8,
        '\u{590}'..='\u{8ff}' => 9,
        '\u{80}'..='\u{58f}' => 6,
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

    /// What cl100k and o200k count, as measured.
    #[test]
    fn no_script_is_taken_for_much_less_than_tokenizers_count() {
        for (text, cl100k, o200k) in [
            ("Before a tool runs, it is stored that it may have run; so nothing runs twice.", 19, 19),
            ("系统会把会话保存在数据库里，进程死掉以后可以继续。每一次工具调用之前都要先记录下来。", 41, 29),
            ("セッションはデータベースに保存され、プロセスが終了しても再開できます。", 32, 22),
            ("세션은 데이터베이스에 저장되며 프로세스가 종료되어도 계속할 수 있습니다.", 31, 22),
            ("Сессии хранятся в базе данных, и работа продолжается, даже если процесс умер.", 29, 21),
            ("تُحفظ الجلسات في قاعدة البيانات ويمكن متابعتها حتى بعد توقف العملية.", 49, 19),
            (r#"{"session_id": 12, "ok": true, "items": [1, 2, 3]}"#, 24, 24),
            ("ZnJvbSB0aGUgYmVnaW5uaW5nIG9mIHRoZSB3b3JsZCB0byBpdHMgZW5k", 42, 40),
        ] {
            let tokens = TokenEstimate::Script.text(text);
            assert!(tokens * 10 >= 9 * cl100k.max(o200k), "{tokens} for {cl100k} and {o200k}: {text}");
            assert!(tokens <= 2 * cl100k, "{tokens} for {cl100k}: {text}");
        }
    }

    #[test]
    fn a_text_weighs_by_its_script_and_not_by_its_length() {
        let estimate = |text: &str| TokenEstimate::Script.text(text);
        assert_eq!(estimate(&"word ".repeat(80)), 100);
        assert_eq!(estimate(&"漢".repeat(100)), 100);
        assert_eq!(estimate(&"ж".repeat(100)), 50);
        assert_eq!(estimate(&"12 ".repeat(12)), 19);
        assert_eq!(estimate(&"a1".repeat(12)), 11, "a long word");
        assert_eq!(estimate(&"a1".repeat(100)), 150, "no word");
        assert_eq!(estimate(&"م".repeat(100)), 75);
        assert_eq!(estimate("🦀"), 3);
        assert_eq!(estimate("a"), 1, "a part of a token is a token");
    }
}
