//! The built-in harness: a model behind an OpenAI-compatible API, and tools, in a loop that survives anything.
//!
//! - `config`: what the operator says; `settings`: what a session says, and what is allowed;
//! - `message`, `state`: the conversation and the resume state;
//! - `runtime`: the way through a turn; `thinking`, `calls`, `verifying`: its steps;
//! - `model`: the client of the endpoint; `tools`: what the model may call;
//! - `planning`, `context`, `verification`, `links`: the judgements, pure.

mod calls;
pub mod config;
mod context;
mod http;
mod links;
mod message;
mod model;
mod planning;
mod runtime;
mod settings;
mod state;
mod stopwatch;
mod thinking;
mod tools;
mod verification;
mod verifying;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;

use self::config::AgentConfig;
use self::config::McpServerConfig;
use self::context::Budget;
use self::http::Clients;
use self::model::{Models, ToolSpec};
use self::runtime::Agent;
use self::settings::{Caps, Offer, SessionServer, Settings, ToolPolicy};
use self::state::State;
use self::stopwatch::Stopwatch;
use self::tools::{ToolPlan, Toolbox};
use self::verification::ProjectCheck;
use super::child::{self, Launcher};
use super::{
    ApprovalRecovery, Availability, Capabilities, Continuity, Harness, StartError, StartOptions, Started,
    TurnInput, TurnRecovery, task,
};
use crate::clock::Clock;
use crate::domain::turn::Failure;
use crate::ids::SessionId;

/// What the model is told of its place where neither the session nor the operator says anything.
const SYSTEM: &str = "You are an agent at work on a person's requests. Use the tools that you have where they help, and look at what they \
     give before you go on. Say only what is so: a file, a link or a message that you tell of must come out of a tool's result.";

/// The built-in harness.
pub struct AgentHarness {
    name: String,
    config: AgentConfig,
    models: Models,
    defaults: Settings,
    project: Option<Arc<ProjectCheck>>,
    /// For MCP servers.
    clients: Clients,
    launcher: Launcher,
    clock: Clock,
}

impl AgentHarness {
    /// An agent under a name, as the operator wants it.
    ///
    /// # Errors
    /// All complaints about the configuration.
    pub fn new(name: &str, config: AgentConfig, launcher: Launcher) -> Result<Self, Vec<String>> {
        let mut complaints: Vec<String> =
            tools::check(&config.tools, &config.mcp).err().into_iter().collect();
        let models = Models::new(&config.models, own_variable).unwrap_or_else(|wrong| {
            complaints.extend(wrong);
            Models::default()
        });
        let default_model = default_model(&config).unwrap_or_else(|complaint| {
            complaints.push(complaint);
            ""
        });
        let defaults = Settings::built_in(default_model);
        let project = config.project.as_ref().map(ProjectCheck::new).transpose();
        let project = project.unwrap_or_else(|complaint| {
            complaints.push(format!("project.{complaint}"));
            None
        });
        let (name, project, clients, clock) =
            (name.to_owned(), project.map(Arc::new), Clients::fresh(), Clock::System);
        let mut harness = Self { name, config, models, defaults, project, clients, launcher, clock };
        match serde_json::to_value(&harness.config.settings) {
            Err(error) => complaints.push(format!("settings: {error}")),
            Ok(table) => match Settings::of_operator(&table, &harness) {
                Ok(defaults) => harness.defaults = defaults,
                Err(wrong) => {
                    complaints.extend(wrong.into_iter().map(|complaint| format!("settings.{complaint}")))
                }
            },
        }
        if complaints.is_empty() { Ok(harness) } else { Err(complaints) }
    }

    /// Why no session can be started at all.
    fn why_missing(&self) -> Option<String> {
        if self.config.models.is_empty() {
            return Some("no model is configured".to_owned());
        }
        let complaints: Vec<&str> =
            self.models.names().filter_map(|name| self.models.get(name)?.why_unavailable()).collect();
        (complaints.len() == self.config.models.len()).then(|| complaints.join("; "))
    }

    /// The conversation to begin with, and how it relates to the one so far.
    fn take_up(
        &self,
        resume: Option<Value>,
        open_turn: Option<TurnInput>,
        settings: &Settings,
    ) -> (State, Continuity) {
        let known = open_turn.is_some();
        let (mut state, continuity) = match resume.map(State::restore) {
            // Before anything is done it is stored that it may be: where nothing is stored, nothing was done.
            None => (State::default(), if known { Continuity::Exact } else { Continuity::New }),
            Some(Ok(state)) => (state, Continuity::Exact),
            Some(Err(reason)) => return (State::default(), Continuity::Lost { reason }),
        };
        let goes_on =
            |turn: &state::Turn| open_turn.as_ref().is_some_and(|open| open.turn_id == turn.turn_id);
        if state.turn.as_ref().is_some_and(|turn| !goes_on(turn)) {
            state.end_turn(&super::TurnOutcome::Interrupted, settings, self.clock.now());
        }
        if let Some(open) = open_turn.filter(|_| state.turn.is_none()) {
            state.begin(open, settings, self.clock.now());
        }
        (state, continuity)
    }
}

/// The model of sessions that name none.
fn default_model(config: &AgentConfig) -> Result<&str, String> {
    match (&config.default_model, config.models.len()) {
        (Some(name), _) if config.models.contains_key(name) => Ok(name),
        (Some(name), _) => Err(format!("default_model: there is no model {name:?}")),
        (None, 0) => Ok(""),
        (None, 1) => Ok(config.models.keys().next().map_or("", String::as_str)),
        (None, _) => Err("default_model: which of the models is it?".to_owned()),
    }
}

impl Offer for AgentHarness {
    fn defaults(&self) -> &Settings {
        &self.defaults
    }

    fn caps(&self) -> &Caps {
        &self.config.caps
    }

    fn has_model(&self, name: &str) -> bool {
        self.models.get(name).is_some()
    }

    fn model_names(&self) -> Vec<&str> {
        self.models.names().collect()
    }

    fn has_tool(&self, name: &str, own: &BTreeMap<String, SessionServer>) -> bool {
        let is_own = |server: &String| {
            name.strip_prefix("mcp__").is_some_and(|rest| rest.starts_with(&format!("{server}__")))
        };
        tools::known_name(&self.config, name) || own.keys().any(is_own)
    }

    fn server_complaint(&self, name: &str, url: &str) -> Option<String> {
        if self.config.mcp.contains_key(name) {
            return Some("the operator has one of that name".to_owned());
        }
        if let Err(complaint) =
            tools::check(&self.config.tools, &BTreeMap::from([(name.to_owned(), address(url))]))
        {
            return Some(complaint);
        }
        let origin = |text: &str| reqwest::Url::parse(text).ok().map(|url| url.origin());
        let allowed = self.config.session_mcp_origins.iter().any(|allowed| origin(allowed) == origin(url));
        (!allowed).then(|| "the operator does not allow sessions a server there".to_owned())
    }

    fn has_project_check(&self) -> bool {
        self.project.is_some()
    }
}

#[async_trait]
impl Harness for AgentHarness {
    fn name(&self) -> &str {
        &self.name
    }

    fn label(&self) -> &str {
        self.config.label.as_deref().unwrap_or("Agent")
    }

    fn description(&self) -> &str {
        let built_in = "The built-in agent: any model behind an OpenAI-compatible API, with tools.";
        self.config.description.as_deref().unwrap_or(built_in)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            sandbox: child::level() > 0,
            resumable: true,
            approvals: true,
            host_tools: false,
            file_events: true,
            edited_input: true,
            instructions: true,
            approval_recovery: ApprovalRecovery::Exact,
            recovery: TurnRecovery::Resume,
        }
    }

    fn availability(&self) -> Availability {
        let Some(why) = self.why_missing() else { return Availability::Available };
        let name = &self.name;
        let configure = self.config.models.is_empty().then(|| {
            format!(
                "[harness.{name}.models.main]\nbase_url = \"https://api.openai.com/v1\"\nmodel = \"gpt-5\"\n\
                 api_key_env = \"OPENAI_API_KEY\"\ncontext_window = 128000\n"
            )
        });
        Availability::Missing { why, install: None, configure }
    }

    fn version(&self) -> Option<String> {
        Some(env!("CARGO_PKG_VERSION").to_owned())
    }

    fn models(&self) -> Vec<&str> {
        self.models.names().collect()
    }

    fn validate(&self, settings: &Value) -> Result<Value, Vec<String>> {
        if self.config.models.is_empty() {
            return Err(vec!["model: no model is configured".to_owned()]);
        }
        Settings::complete(settings, self)
    }

    async fn end_left(&self, session_id: &SessionId, directories: &[PathBuf]) {
        child::end_left(session_id.clone(), directories.to_owned()).await;
    }

    async fn end_orphans(&self, directories: &[PathBuf]) {
        if !self.config.models.is_empty() {
            child::end_orphans(directories.to_owned()).await;
        }
    }

    async fn start(&self, options: StartOptions) -> Result<Started, StartError> {
        let failed = |failure: Failure| StartError::Failed(failure);
        let settings = Settings::stored(&options.settings, self)
            .map_err(|complaints| failed(Failure::new("invalid_settings", complaints.join("; "))))?;
        let model = self.models.get(&settings.model).ok_or_else(|| {
            failed(Failure::new(
                "model_unavailable",
                format!("there is no model {:?} any more", settings.model),
            ))
        })?;
        if let Some(why) = model.why_unavailable() {
            return Err(StartError::Unavailable(Failure::new(
                "model_unavailable",
                format!("the model {}: {why}", model.name()),
            )));
        }
        let own =
            settings.mcp_servers.iter().map(|(name, server)| (name.clone(), address(&server.url))).collect();
        let plan = ToolPlan {
            tools: &self.config.tools,
            mcp: &self.config.mcp,
            session_mcp: &own,
            launcher: &self.launcher,
            options: &options,
            clients: &self.clients,
        };
        let tools = Toolbox::open(plan).await.map_err(failed)?;
        let unknown = unknown_names(&tools, &settings.tool_policy);
        if !unknown.is_empty() {
            tools.close().await;
            let words = format!("tool_policy names tools that there are not: {}", unknown.join(", "));
            return Err(failed(Failure::new("invalid_settings", words)));
        }
        let estimate =
            self.config.models.get(&settings.model).map(|model| model.token_estimate).unwrap_or_default();
        let offered = offered(&tools, &settings, &options);
        let offered_tokens = match offered.is_empty() {
            true => 0,
            false => serde_json::to_string(&offered).map_or(0, |text| estimate.text(&text)),
        };
        let (state, continuity) = self.take_up(options.resume, options.open_turn, &settings);
        let waits_for = state.all_asked().into_iter().filter_map(|call| call.native_id).collect();
        let budget = Budget::new(model.window(), model.reserve(), &settings.context);
        let left_out = tools.left_out().to_vec();
        let system = options.instructions.or_else(|| self.config.instructions.clone());
        let (session, events) = task::spawn(Agent {
            restored: state.turn.is_some(),
            state,
            model: model.clone(),
            estimate,
            budget,
            tools: Arc::new(tools),
            offered,
            offered_tokens,
            denied: options.denied_tools,
            system: system.unwrap_or_else(|| SYSTEM.to_owned()),
            project: self.project.clone(),
            clock: self.clock.clone(),
            stopwatch: Stopwatch::default(),
            left_out,
            settings,
        });
        Ok(Started { session, events, continuity, native_id: None, waits_for })
    }
}

/// The tools that the model is told of: neither those that the session has disabled, nor those that the operator refuses.
fn offered(tools: &Toolbox, settings: &Settings, options: &StartOptions) -> Vec<ToolSpec> {
    let is_there = |spec: &&tools::ToolSpec| {
        !settings.tool_policy.disabled.contains(&spec.name)
            && !options.denied_tools.denies(&spec.name, &spec.kind)
    };
    let offer = |spec: &tools::ToolSpec| ToolSpec {
        name: spec.name.clone(),
        description: spec.description.clone(),
        parameters: spec.input_schema.clone(),
    };
    tools.specs().iter().filter(is_there).map(offer).collect()
}

/// The names of a session's policy that none of its tools has.
fn unknown_names<'a>(tools: &Toolbox, policy: &'a ToolPolicy) -> Vec<&'a str> {
    let names = policy.disabled.iter().chain(&policy.require_approval).map(String::as_str);
    names.filter(|name| tools.find(name).is_none()).collect()
}

/// An MCP server of a session's own.
fn address(url: &str) -> McpServerConfig {
    McpServerConfig { url: Some(url.to_owned()), ..McpServerConfig::default() }
}

#[expect(
    clippy::disallowed_methods,
    reason = "keys of models come from the environment, by names that the operator chose"
)]
fn own_variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

#[cfg(test)]
mod tests;
