//! What a provider says when it refuses.

use serde_json::Value;

/// Codes and types of errors that mean that the conversation is too long for the model: OpenAI's and what follows it, llama.cpp's,
/// Anthropic's.
const OVERFLOW_CODES: [&str; 3] =
    ["context_length_exceeded", "exceed_context_size_error", "request_too_large"];

/// Parts of messages that mean the same, for providers whose codes say only that the request was bad.
const OVERFLOW_WORDS: [&str; 6] = [
    // vLLM, OpenRouter, DeepSeek, Mistral
    "maximum context length",
    // xAI
    "maximum prompt length",
    // Anthropic
    "prompt is too long",
    // Gemini
    "maximum number of tokens allowed",
    // llama.cpp
    "available context size",
    // Bedrock
    "input is too long",
];

/// An error as a provider words it. All may be missing.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Refusal {
    code: String,
    kind: String,
    /// For people.
    pub(super) message: String,
}

impl Refusal {
    /// Reads the body of a refusal; one that is not JSON is its own message.
    pub(super) fn read(body: &[u8]) -> Self {
        match serde_json::from_slice::<Value>(body) {
            Ok(Value::Array(mut list)) if !list.is_empty() => Self::of_body(&list.swap_remove(0)),
            Ok(body) => Self::of_body(&body),
            Err(_) => Self { message: String::from_utf8_lossy(body).trim().to_owned(), ..Self::default() },
        }
    }

    fn of_body(body: &Value) -> Self {
        Self::of(body.get("error").unwrap_or(body))
    }

    /// Reads an error object, or a text in its place.
    pub(super) fn of(error: &Value) -> Self {
        if let Value::String(message) = error {
            return Self { message: message.clone(), ..Self::default() };
        }
        let word = |name: &str| match error.get(name) {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Number(number)) => number.to_string(),
            _ => String::new(),
        };
        let mut message = word("message");
        if message.is_empty() {
            message = word("detail");
        }
        // A router puts the words of the provider behind it here.
        if let Some(raw) = error.pointer("/metadata/raw").and_then(Value::as_str) {
            message = format!("{message}: {raw}");
        }
        Self { code: word("code"), kind: word("type"), message }
    }

    /// Whether the conversation is too long for the model: by code or type, else by the words.
    pub(super) fn is_overflow(&self) -> bool {
        let words = self.message.to_lowercase();
        OVERFLOW_CODES.iter().any(|code| self.code == *code || self.kind == *code)
            || OVERFLOW_WORDS.iter().any(|part| words.contains(part))
    }

    /// Whether the account has nothing left, which no wait changes.
    pub(super) fn is_spent(&self) -> bool {
        self.code == "insufficient_quota" || self.kind == "insufficient_quota"
    }

    /// The status that an error within an answer stands for, where its code is one.
    pub(super) fn status(&self) -> Option<u16> {
        self.code.parse().ok().filter(|code| (400..600).contains(code))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn errors_are_read_in_the_shapes_that_providers_give_them() {
        for (body, message) in [
            (json!({"error": {"message": "No.", "type": "x", "code": null}}), "No."),
            (json!([{"error": {"message": "No.", "code": 400, "status": "INVALID_ARGUMENT"}}]), "No."),
            (json!({"error": "No."}), "No."),
            (json!({"object": "error", "message": "No.", "code": 400}), "No."),
            (json!({"detail": "No."}), "No."),
            (json!({"error": {"message": "Failed", "metadata": {"raw": "No."}}}), "Failed: No."),
            (json!({"weird": true}), ""),
        ] {
            assert_eq!(Refusal::read(body.to_string().as_bytes()).message, message, "{body}");
        }
        assert_eq!(Refusal::read(b" <html>No.\n").message, "<html>No.");
    }

    #[test]
    fn a_conversation_that_is_too_long_is_known_by_code_type_or_words() {
        for error in [
            json!({"code": "context_length_exceeded"}),
            json!({"type": "exceed_context_size_error", "code": 400}),
            json!({"code": 400, "message": "This model's maximum context length is 8 tokens. However, you …"}),
            json!("Prompt is too long: 9 tokens > 8 maximum"),
        ] {
            assert!(Refusal::of(&error).is_overflow(), "{error}");
        }
        for error in [json!({"code": "invalid_api_key"}), json!("The file is too long."), json!({})] {
            assert!(!Refusal::of(&error).is_overflow(), "{error}");
        }
    }
}
