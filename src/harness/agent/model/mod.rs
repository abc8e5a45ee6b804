//! Models behind OpenAI-compatible chat-completions endpoints.
//!
//! A [`ModelCall`] gives the words as they come and the whole reply at the end. It makes the call again where that may help; the
//! reply is acted on only when it is whole, so that nothing happens twice by it.

mod assemble;
mod call;
mod refusal;
mod retry;
mod stream;
mod wire;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::HeaderValue;
use reqwest::{Client, Url};
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use serde_json::Value;
use thiserror::Error;

pub(super) use self::call::ModelCall;
use super::config::ModelConfig;
use super::http::Clients;
use super::message::{Message, ToolCall};
use crate::domain::turn::{Failure, Usage};

/// Tokens kept for an answer where the operator has not said how many; a quarter of a window that is too small for so many.
const RESERVE: u64 = 4096;
/// Most attempts that a call may have.
const ATTEMPTS_MAX: u32 = 20;
/// The longest silence that may be waited for, in seconds.
const SILENCE_MAX: u64 = 3600;

/// All models that are configured, by their names.
#[derive(Debug, Default)]
pub(super) struct Models(BTreeMap<String, Model>);

/// A model.
#[derive(Clone)]
pub(super) struct Model(Arc<Inner>);

struct Inner {
    name: String,
    /// The provider's name of it.
    model: String,
    /// Of the endpoint itself.
    url: Url,
    access: Result<Access, String>,
    window: u64,
    max_output_tokens: Option<u64>,
    streams: bool,
    attempts: u32,
    silence: Duration,
}

/// What a call needs.
struct Access {
    http: Client,
    key: Option<SecretString>,
    authorization: Option<HeaderValue>,
}

/// A tool as a model is told of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct ToolSpec {
    /// Unique among the tools of a call.
    pub name: String,
    /// What it does.
    pub description: String,
    /// A JSON schema of its input.
    pub parameters: Value,
}

/// What a model is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct ModelRequest<'a> {
    /// The conversation.
    pub messages: &'a [Message],
    /// The tools that it may call.
    pub tools: &'a [ToolSpec],
    /// Whether the answer must be a JSON object.
    pub json_mode: bool,
}

/// Something that comes of a call.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Piece {
    /// Words of the answer.
    Text(String),
    /// Words of the reasoning.
    Thinking(String),
    /// The answer broke off. What was given of it is void, reasoning as well: it comes again from its beginning, in other words
    /// perhaps.
    Restarted,
    /// The whole answer. Nothing follows.
    Done(Reply),
}

/// A whole answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Reply {
    /// All its words.
    pub text: String,
    /// The calls that it wants made, in its order. Their ids are the model's own, and may repeat; where it gave none, `call_` and
    /// the place.
    pub tool_calls: Vec<ToolCall>,
    /// The provider's word for why it ended: stop, tool_calls, length, …
    pub finish: String,
    /// Tokens that it took, where the provider tells.
    pub usage: Option<Usage>,
}

/// A kind of failure of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ModelErrorCode {
    /// The provider cannot be reached, is silent, or was overloaded whenever it was asked; or the model cannot be used as it is
    /// configured.
    Unavailable,
    /// The provider refuses, or answers what the protocol does not know.
    Rejected,
    /// The conversation is too long for the model.
    Overflow,
}

/// A call that failed. It never holds the key.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub(super) struct ModelError {
    /// Its kind.
    pub code: ModelErrorCode,
    /// For people.
    pub message: String,
}

impl ModelErrorCode {
    /// Stable, snake_case.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Unavailable => "model_unavailable",
            Self::Rejected => "model_rejected",
            Self::Overflow => "context_overflow",
        }
    }
}

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Self {
        Self::new(error.code.as_str(), error.message)
    }
}

impl Models {
    /// The models of a configuration. Keys come from the environment, where `lookup` finds a variable; a model whose key is not
    /// there is unavailable and says so.
    ///
    /// # Errors
    /// All complaints, in words that name the key.
    pub(super) fn new(
        configs: &BTreeMap<String, ModelConfig>,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Vec<String>> {
        let (clients, mut models, mut complaints) = (Clients::keeping(), BTreeMap::new(), Vec::new());
        for (name, config) in configs {
            let wrong = complaints_about(config);
            complaints.extend(wrong.into_iter().map(|complaint| format!("models.{name}.{complaint}")));
            match endpoint(&config.base_url) {
                Ok(url) => {
                    let access = access(config, &url, &clients, &lookup);
                    let model = Model(Arc::new(Inner::new(name, config, url, access)));
                    models.insert(name.clone(), model);
                }
                Err(complaint) => complaints.push(format!("models.{name}.base_url {complaint}")),
            }
        }
        if complaints.is_empty() { Ok(Self(models)) } else { Err(complaints) }
    }

    /// The model of that name.
    pub(super) fn get(&self, name: &str) -> Option<&Model> {
        self.0.get(name)
    }

    /// The names, sorted.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

impl Model {
    /// The name that sessions choose it by.
    pub(super) fn name(&self) -> &str {
        &self.0.name
    }

    /// Tokens that it takes and gives in one call.
    pub(super) fn window(&self) -> u64 {
        self.0.window
    }

    /// Tokens of the window that are kept for its answer; fewer than the window.
    pub(super) fn reserve(&self) -> u64 {
        self.0.max_output_tokens.unwrap_or(RESERVE.min(self.0.window / 4))
    }

    /// Why it cannot be called, where that is known beforehand.
    pub(super) fn why_unavailable(&self) -> Option<&str> {
        self.0.access.as_ref().err().map(String::as_str)
    }

    /// Makes a call, from its first [`ModelCall::next`] on.
    pub(super) fn call(&self, request: ModelRequest<'_>) -> ModelCall {
        ModelCall::new(Arc::clone(&self.0), &request)
    }
}

/// Its name alone.
impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Model").field(&self.0.name).finish()
    }
}

impl Inner {
    fn new(name: &str, config: &ModelConfig, url: Url, access: Result<Access, String>) -> Self {
        Self {
            name: name.to_owned(),
            model: config.model.clone(),
            url,
            access,
            window: config.context_window,
            max_output_tokens: config.max_output_tokens,
            streams: config.stream,
            attempts: config.attempts,
            silence: Duration::from_secs(config.silence_seconds),
        }
    }
}

/// What is wrong beside the address.
fn complaints_about(config: &ModelConfig) -> Vec<&'static str> {
    let reserve = config.max_output_tokens;
    let checks = [
        (config.model.trim().is_empty(), "model is empty"),
        (config.context_window == 0, "context_window must be at least 1"),
        (reserve == Some(0), "max_output_tokens must be at least 1"),
        (
            reserve.is_some_and(|reserve| reserve >= config.context_window.max(1)),
            "max_output_tokens must be less than context_window",
        ),
        (!(1..=ATTEMPTS_MAX).contains(&config.attempts), "attempts must be from 1 to 20"),
        (!(1..=SILENCE_MAX).contains(&config.silence_seconds), "silence_seconds must be from 1 to 3600"),
    ];
    checks.into_iter().filter_map(|(wrong, complaint)| wrong.then_some(complaint)).collect()
}

/// The endpoint below a base URL, whose query stays.
fn endpoint(base: &str) -> Result<Url, String> {
    let mut url = Url::parse(base).map_err(|error| format!("is not a URL: {error}"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err("must begin with http:// or https://".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("must not hold a user or a password: keys come from api_key_env".to_owned());
    }
    url.set_fragment(None);
    // URLs of these schemes have a path.
    if let Ok(mut segments) = url.path_segments_mut() {
        segments.pop_if_empty().extend(["chat", "completions"]);
    }
    Ok(url)
}

fn access(
    config: &ModelConfig,
    url: &Url,
    clients: &Clients,
    lookup: impl Fn(&str) -> Option<String>,
) -> Result<Access, String> {
    let http = clients.for_url(url)?;
    let Some(variable) = &config.api_key_env else {
        return Ok(Access { http, key: None, authorization: None });
    };
    let key = lookup(variable).map(|key| key.trim().to_owned()).filter(|key| !key.is_empty());
    let key = SecretString::from(key.ok_or_else(|| format!("{variable} is not set"))?);
    let mut value = HeaderValue::from_str(&format!("Bearer {}", key.expose_secret()))
        .map_err(|_| format!("{variable} holds characters that no key has"))?;
    value.set_sensitive(true);
    Ok(Access { http, key: Some(key), authorization: Some(value) })
}

#[cfg(test)]
pub(super) mod tests;
