//! What the model can do: built-in tools within the workspace, and the tools of MCP servers, under one set of names.
//!
//! - `files`, `shell`: the built-in tools; `place`: where child processes run;
//! - `mcp`: the servers, their start and end, their tools and what a call of one gives;
//! - `names`: which names there can be, and what is left out;
//! - `input`, `cap`: what a tool gets, and how much of its result the model is given.
//!
//! Which tools a server has is asked once, when a session starts: later changes of its list are not followed. What servers say,
//! descriptions above all, is text of strangers: it is bounded, and given to the model as descriptions and results alone.

mod cap;
mod files;
mod input;
mod mcp;
mod names;
mod place;
mod shell;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::Value;
use tokio::time::timeout;

use self::cap::capped;
use self::mcp::{Plan, Server};
use self::names::{Catalogue, mcp_name};
pub(super) use self::names::{check, known_name};
use self::place::Place;
use super::config::{McpServerConfig, Shell, ToolsConfig};
use super::http::Clients;
use super::message::Outcome;
use crate::domain::event::Output;
use crate::domain::turn::Failure;
use crate::harness::StartOptions;
use crate::harness::child::Launcher;
use crate::harness::workspace::Workspace;

/// A tool, as the model is told of it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ToolSpec {
    /// Unique among a session's tools.
    pub name: String,
    /// For the model; at most [`names::DESCRIPTION_MAX_BYTES`].
    pub description: String,
    /// The label of an approval: read, edit, delete, move, search, execute, think, fetch, other.
    pub kind: String,
    /// A JSON schema of an object.
    pub input_schema: Value,
    /// Whether the operator wants a person to be asked.
    pub asks: bool,
}

/// What came of a call.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Called {
    /// How it ended.
    pub outcome: Outcome,
    /// For the model; at most [`ToolsConfig::result_max_bytes`].
    pub content: String,
    /// The file that it changed.
    pub changed: Option<Output>,
}

impl Called {
    fn succeeded(content: String) -> Self {
        Self { outcome: Outcome::Succeeded, content, changed: None }
    }

    fn failed(content: String) -> Self {
        Self { outcome: Outcome::Failed, content, changed: None }
    }

    fn uncertain(content: String) -> Self {
        Self { outcome: Outcome::Uncertain, content, changed: None }
    }
}

/// What the tools of a session are made from.
pub(super) struct ToolPlan<'a> {
    /// The built-in tools.
    pub tools: &'a ToolsConfig,
    /// The operator's servers.
    pub mcp: &'a BTreeMap<String, McpServerConfig>,
    /// The session's own, which are addresses and nothing else. Whoever opens them has compared them with what is allowed.
    pub session_mcp: &'a BTreeMap<String, McpServerConfig>,
    /// How child processes are started.
    pub launcher: &'a Launcher,
    /// The session.
    pub options: &'a StartOptions,
    /// For servers over HTTP.
    pub clients: &'a Clients,
}

/// The tools of a session. Dropping it ends its servers at once.
pub(super) struct Toolbox {
    catalogue: Catalogue,
    workspace: Workspace,
    place: Place,
    servers: BTreeMap<String, Arc<Server>>,
    limit: Duration,
    result_max_bytes: usize,
}

impl Toolbox {
    /// Starts the servers, all at once, and asks which tools they have.
    ///
    /// # Errors
    /// `tools_unavailable`, when one of them cannot be started or the directories cannot be used; nothing is left running then.
    pub(super) async fn open(plan: ToolPlan<'_>) -> Result<Self, Failure> {
        let unavailable = |words: String| Failure::new("tools_unavailable", words);
        let (launcher, options) = (plan.launcher.clone(), plan.options.clone());
        let prepare = move || {
            let workspace = Workspace::open(&options.workspace, options.fence.clone())?;
            Ok::<_, std::io::Error>((workspace, Place::prepare(&launcher, &options)?))
        };
        let prepared = tokio::task::spawn_blocking(prepare).await.map_err(std::io::Error::other).flatten();
        let (workspace, place) =
            prepared.map_err(|error| unavailable(format!("the session's directories: {error}")))?;
        let mut catalogue = Catalogue::of_built_in(plan.tools);
        let limit = Duration::from_secs(plan.tools.timeout_seconds);
        let started = join_all(named(&plan).map_err(unavailable)?.into_iter().map(async |(name, config)| {
            let plan = Plan {
                name,
                config,
                place: &place,
                clients: plan.clients,
                limit: config.timeout_seconds.map_or(limit, Duration::from_secs),
                result_max_bytes: plan.tools.result_max_bytes,
            };
            let started = Server::start(plan).await;
            let started = started.map(|(server, offers)| (server, offers, config));
            started.map_err(|words| format!("the MCP server {name}: {words}"))
        }));
        let mut servers = BTreeMap::new();
        let mut complaints = Vec::new();
        for started in started.await {
            match started {
                Ok((server, offers, config)) => {
                    catalogue.add(server.name(), offers);
                    catalogue.tell_missing(server.name(), config);
                    servers.insert(server.name().to_owned(), Arc::new(server));
                }
                Err(complaint) => complaints.push(complaint),
            }
        }
        let toolbox = Self {
            catalogue,
            workspace,
            place,
            servers,
            limit,
            result_max_bytes: plan.tools.result_max_bytes,
        };
        if complaints.is_empty() {
            return Ok(toolbox);
        }
        toolbox.close().await;
        Err(unavailable(complaints.join("; ")))
    }

    /// The tools.
    pub(super) fn specs(&self) -> &[ToolSpec] {
        self.catalogue.specs()
    }

    /// The tool of that name.
    pub(super) fn find(&self, name: &str) -> Option<&ToolSpec> {
        self.specs().iter().find(|spec| spec.name == name)
    }

    /// What servers offered and the model is not told of, and what the operator named and no server has, in words.
    pub(super) fn left_out(&self) -> &[String] {
        self.catalogue.left_out()
    }

    /// Does what the model wants, within its time. Dropping the future cancels it: a command is killed, a server is told.
    pub(super) async fn call(&self, name: &str, input: &Value) -> Called {
        let max = self.result_max_bytes;
        if self.find(name).is_none() {
            return Called::failed(capped(format!("there is no tool {name:?}"), max));
        }
        if files::NAMES.contains(&name) {
            let call = files::call(&self.workspace, max, name, input);
            let late = || Called::uncertain(format!("{name} did not come to its end in time; it may still"));
            return timeout(self.limit, call).await.unwrap_or_else(|_| late());
        }
        if name == shell::NAME {
            return shell::call(&self.place, self.limit, max, input).await;
        }
        let server = mcp_name(name).and_then(|(server, tool)| Some((self.servers.get(server)?, tool)));
        match (server, input) {
            (Some((server, tool)), Value::Object(input)) => server.call(tool, input.clone()).await,
            (Some(_), _) => Called::failed(capped(format!("the input of {name} must be an object"), max)),
            (None, _) => Called::failed(capped(format!("there is no server of the tool {name:?}"), max)),
        }
    }

    /// Ends the servers and all that they have started. May be called twice, and while a call is at work, which it ends.
    pub(super) async fn close(&self) {
        join_all(self.servers.values().map(|server| server.close())).await;
    }
}

// The session's servers may not take the operator's names, nor anything of the machine.
fn named<'a>(plan: &ToolPlan<'a>) -> Result<Vec<(&'a str, &'a McpServerConfig)>, String> {
    for (name, config) in plan.session_mcp {
        if plan.mcp.contains_key(name) {
            return Err(format!("the MCP server {name}: the operator has one of that name"));
        }
        names::check_server(name, config)?;
        if !names::is_address_alone(config) {
            return Err(format!(
                "the MCP server {name}: a session's own server is an address and nothing else"
            ));
        }
    }
    let all = plan.mcp.iter().chain(plan.session_mcp);
    Ok(all.map(|(name, config)| (name.as_str(), config)).collect())
}

// Whether a person is asked about each command; `None` where there is no shell.
fn shell_asks(shell: Shell) -> Option<bool> {
    match shell {
        Shell::Off => None,
        Shell::Ask => Some(true),
        Shell::Allow => Some(false),
    }
}
