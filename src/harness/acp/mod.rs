//! The Agent Client Protocol (version 1) over stdio: any ACP agent as a child process.
//!
//! One process per session, started from a description of the operator's ([`AcpConfig`]). Who owns what:
//!
//! - `config`, `launch`, `process`, `descendants`, `stderr`: the agent's description, surroundings, process and end;
//! - `protocol`, `lines`, `connection`: messages, and the two pipes they go through;
//! - `handshake`: from a fresh process to an open conversation;
//! - `pump`: everything that comes from the agent, in order; `translate` and `tool_calls` say what it means;
//! - `permission`, `files`: what the agent asks of us;
//! - `session`: the controls, as the service holds them.
//!
//! Instructions are not part of the protocol: they go before the first prompt of a conversation, as a block of their own.

mod config;
mod connection;
mod descendants;
mod files;
mod handshake;
mod launch;
mod lines;
mod link;
mod permission;
mod process;
mod protocol;
mod pump;
mod session;
mod stderr;
mod tool_calls;
mod translate;

use std::path::Path;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::time::timeout;

use self::config::Places;
pub use self::config::{AcpConfig, AfterNew};
use self::link::{Link, Terms};
use self::process::Process;
use self::pump::WRITE_TOOL;
use self::session::AcpSession;
use super::{
    ApprovalRecovery, Availability, Capabilities, Harness, StartError, StartOptions, Started, StatePaths,
};
use crate::domain::turn::Failure;
use crate::ids::SessionId;

/// An ACP agent.
#[derive(Debug)]
pub struct AcpHarness {
    name: String,
    config: AcpConfig,
    state_paths: StatePaths,
}

impl AcpHarness {
    /// An agent under a name, as its description says.
    ///
    /// # Errors
    /// A complaint about the description.
    pub fn new(name: &str, config: AcpConfig) -> Result<Self, String> {
        config.check()?;
        let state_paths = StatePaths::parse(&config.state_paths)?;
        Ok(Self { name: name.to_owned(), config, state_paths })
    }

    // For messages: the harness and, where it says more, its command.
    fn shown_name(&self) -> String {
        let command = self.config.command.first().map(Path::new).and_then(Path::file_name);
        match command.map(|command| command.to_string_lossy()) {
            Some(command) if *command != *self.name => format!("{} ({command})", self.name),
            _ => self.name.clone(),
        }
    }

    fn unavailable(&self, why: &str) -> StartError {
        StartError::Unavailable(Failure::new("harness_unavailable", format!("{}: {why}", self.name)))
    }

    fn failed(&self, code: &str, why: &str) -> StartError {
        StartError::Failed(Failure::new(code, format!("{}: {why}", self.name)))
    }

    fn spawn(
        &self,
        options: &StartOptions,
        places: Places<'_>,
    ) -> Result<(Process, process::Pipes), StartError> {
        let program = launch::find_program(&self.config).map_err(|why| self.unavailable(&why))?;
        let launch = launch::prepare(&self.config, program, &options.session_id, places)
            .map_err(|error| self.failed("agent_start_failed", &format!("its state directory: {error}")))?;
        Process::spawn(launch).map_err(|error| self.unavailable(&error.to_string()))
    }
}

#[async_trait]
impl Harness for AcpHarness {
    fn name(&self) -> &str {
        &self.name
    }

    fn label(&self) -> &str {
        self.config.label.as_deref().unwrap_or(&self.name)
    }

    fn description(&self) -> &str {
        self.config.description.as_deref().unwrap_or("A coding agent over the Agent Client Protocol.")
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            sandbox: false,
            resumable: true,
            approvals: true,
            host_tools: false,
            file_events: true,
            edited_input: false,
            instructions: true,
            approval_recovery: ApprovalRecovery::Reask,
        }
    }

    fn availability(&self) -> Availability {
        match launch::find_program(&self.config) {
            Ok(_) => Availability::Available,
            Err(why) => Availability::Missing { why, install: self.config.install.clone() },
        }
    }

    fn validate(&self, settings: &Value) -> Result<Value, Vec<String>> {
        match settings {
            Value::Null => Ok(json!({})),
            Value::Object(map) if map.is_empty() => Ok(json!({})),
            Value::Object(map) => Err(map.keys().map(|key| format!("{key}: unknown setting")).collect()),
            _ => Err(vec!["settings: must be an object".to_owned()]),
        }
    }

    fn state_paths(&self) -> &StatePaths {
        &self.state_paths
    }

    async fn end_orphans(&self, homes: &Path) {
        process::end_orphans(homes.to_owned()).await;
    }

    async fn end_left(&self, session_id: &SessionId) {
        process::end_left(session_id.clone()).await;
    }

    async fn start(&self, options: StartOptions) -> Result<Started, StartError> {
        let not_text = || self.failed("agent_start_failed", "ACP can only name directories in UTF-8");
        let text = |path: &Path| path.to_str().map(str::to_owned).ok_or_else(not_text);
        let (state_dir, workspace) = (text(&options.state_dir)?, text(&options.workspace)?);
        let places = Places { state_dir: &state_dir, workspace: &workspace };
        let (process, pipes) = self.spawn(&options, places)?;
        let terms = Terms {
            name: self.shown_name(),
            cwd: &workspace,
            write_deadline: self.config.write_deadline(),
            writes_allowed: options.permission_mode.allows("edit")
                && !options.denied_tools.denies(WRITE_TOOL, "edit"),
            tools: self.config.tool_customs(),
            fence: options.fence.clone(),
        };
        let (link, events) = Link::attach(process, pipes, terms)
            .await
            .map_err(|error| self.failed("agent_start_failed", &format!("its workspace: {error}")))?;
        let deadline = self.config.start_deadline();
        let failure = match timeout(deadline, handshake::open(&link, &self.config, &options)).await {
            Ok(Ok(opened)) => {
                let (continuity, native_id) = (opened.continuity.clone(), Some(opened.session_id.clone()));
                let session = Box::new(AcpSession::new(link, opened));
                return Ok(Started { session, events, continuity, native_id });
            }
            Ok(Err(failure)) => failure,
            Err(_) => {
                let why = format!("{} was not ready within {} s", self.name, deadline.as_secs());
                Failure::new("agent_start_timeout", why)
            }
        };
        link.abandon().await;
        Err(StartError::Failed(failure))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn harness(text: &str) -> AcpHarness {
        AcpHarness::new("agent", toml::from_str(text).unwrap()).unwrap()
    }

    #[test]
    fn row_16_the_capabilities_are_those_of_any_acp_agent() {
        let capabilities = harness("command = [\"sh\"]").capabilities();
        assert!(capabilities.resumable && capabilities.approvals && capabilities.file_events);
        assert!(!capabilities.sandbox && !capabilities.host_tools && !capabilities.edited_input);
    }

    #[test]
    fn row_15_a_harness_without_a_command_is_not_made() {
        let complaint = AcpHarness::new("agent", toml::from_str("").unwrap()).unwrap_err();
        assert!(complaint.contains("requires a command"));
    }

    #[test]
    fn a_missing_command_is_told_with_what_to_do() {
        assert_eq!(harness("command = [\"sh\"]").availability(), Availability::Available);
        let missing = harness("command = [\"no-such-agent\"]\ninstall = \"npm install it\"").availability();
        let install = Some("npm install it".to_owned());
        assert_eq!(
            missing,
            Availability::Missing { why: "no-such-agent is not on the PATH".to_owned(), install }
        );
    }

    #[test]
    fn there_are_no_settings() {
        let harness = harness("command = [\"sh\"]");
        assert_eq!(harness.validate(&Value::Null), Ok(json!({})));
        assert_eq!(harness.validate(&json!({})), Ok(json!({})));
        assert_eq!(harness.validate(&json!({"mode": 1})), Err(vec!["mode: unknown setting".to_owned()]));
        assert!(harness.validate(&json!([])).is_err());
    }
}
