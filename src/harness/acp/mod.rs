//! The Agent Client Protocol (version 1) over stdio: any ACP agent as a child process.
//!
//! One process per session, started from a description of the operator's ([`AcpConfig`]). Who owns what:
//!
//! - `presets`, `config`, `installed`, `launch`: the agent's description, what is there of it, and its surroundings;
//! - `protocol`, `connection`: messages, and the two pipes they go through;
//! - `handshake`: from a fresh process to an open conversation;
//! - `pump`: everything that comes from the agent, in order, and `outlet`, its way out; `translate` and `tool_calls` say what it means;
//! - `permission`, `files`: what the agent asks of us;
//! - `session`: the controls, as the service holds them.
//!
//! The process itself, from its start to its end, is [`super::child`]'s; what files it gets is `workspace`'s.
//!
//! Instructions are not part of the protocol: they go before the first prompt of a conversation, as a block of their own.

mod config;
mod connection;
mod files;
mod handshake;
mod installed;
mod launch;
mod link;
mod outlet;
mod permission;
pub(super) mod presets;
mod protocol;
mod pump;
mod session;
mod tool_calls;
mod translate;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;

use self::config::Places;
pub use self::config::{AcpConfig, AfterNew, Needs};
use self::handshake::Opened;
use self::link::{Link, Terms};
use self::pump::WRITE_TOOL;
use self::session::AcpSession;
use super::child::{self, Launcher, Pipes, Process};
use super::{
    ApprovalRecovery, Availability, Capabilities, Harness, HarnessEvent, Introduction, Restore, StartError,
    StartOptions, Started, StatePaths, TurnRecovery,
};
use crate::domain::approval::hex;
use crate::domain::turn::Failure;
use crate::ids::SessionId;

/// An ACP agent.
#[derive(Debug)]
pub struct AcpHarness {
    name: String,
    config: AcpConfig,
    launcher: Launcher,
    state_paths: StatePaths,
    configured: bool,
    /// How it takes a conversation up, as its last start has shown.
    restore: Mutex<Option<Restore>>,
}

impl AcpHarness {
    /// An agent under a name, as its description says.
    ///
    /// # Errors
    /// A complaint about the description.
    pub fn new(name: &str, config: AcpConfig, launcher: Launcher) -> Result<Self, String> {
        config.check()?;
        let state_paths = StatePaths::parse(&config.state_paths)?;
        let (configured, restore) = (true, Mutex::default());
        Ok(Self { name: name.to_owned(), config, launcher, state_paths, configured, restore })
    }

    /// A known agent that the operator has not configured: it is told of, and not started.
    pub(super) fn not_configured(preset: &str, launcher: Launcher) -> Option<Self> {
        let harness = Self::new(preset, presets::description(preset)?, launcher).ok()?;
        Some(Self { configured: false, ..harness })
    }

    /// The preset that it is made from.
    pub(super) fn preset(&self) -> Option<&str> {
        self.config.preset.as_deref()
    }

    // The program, if this agent can be started here.
    fn program(&self) -> Result<PathBuf, String> {
        if !self.configured {
            return Err("not configured".to_owned());
        }
        self.installed()
    }

    fn installed(&self) -> Result<PathBuf, String> {
        let program = launch::find_program(&self.config)?;
        installed::suits(&self.config, &program)?;
        Ok(program)
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

    async fn spawn(
        &self,
        options: &StartOptions,
        places: Places<'_>,
    ) -> Result<(Process, Pipes), StartError> {
        let program = self.program().map_err(|why| self.unavailable(&why))?;
        let launch = launch::prepare(&self.config, &self.launcher, program, &options.session_id, places)
            .map_err(|error| self.failed("agent_start_failed", &format!("its state directory: {error}")))?;
        let failed = |error| self.failed("agent_start_failed", &format!("it could not be launched: {error}"));
        Process::spawn(launch).await.map_err(failed)
    }

    async fn open(
        &self,
        options: &StartOptions,
    ) -> Result<(Link, mpsc::Receiver<HarnessEvent>, Opened), StartError> {
        let not_text = || self.failed("agent_start_failed", "ACP can only name directories in UTF-8");
        let text = |path: &Path| path.to_str().map(str::to_owned).ok_or_else(not_text);
        let (state_dir, workspace) = (text(&options.state_dir)?, text(&options.workspace)?);
        let random = random().map_err(|error| self.failed("agent_start_failed", &error))?;
        let places = Places { state_dir: &state_dir, workspace: &workspace, random: &random };
        let (process, pipes) = self.spawn(options, places).await?;
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
        let failure = match timeout(deadline, handshake::open(&link, &self.config, options)).await {
            Ok(Ok(opened)) => {
                *self.lock_restore() = opened.introduction.restore;
                return Ok((link, events, opened));
            }
            Ok(Err(failure)) => failure,
            Err(_) => {
                let why = format!("{} was not ready within {} s", self.name, deadline.as_secs());
                Failure::new("agent_start_timeout", why)
            }
        };
        let message = match link.abandon().await {
            Some(why) => format!("{}: {why}", failure.message),
            None => failure.message,
        };
        Err(StartError::Failed(Failure { message, ..failure }))
    }

    // A panic while it is held leaves nothing half done.
    fn lock_restore(&self) -> MutexGuard<'_, Option<Restore>> {
        self.restore.lock().unwrap_or_else(PoisonError::into_inner)
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
        let restores = *self.lock_restore() != Some(Restore::None);
        Capabilities {
            sandbox: self.config.landlock && child::level() > 0,
            resumable: restores,
            approvals: true,
            host_tools: false,
            file_events: true,
            edited_input: false,
            instructions: true,
            // Whoever does not know the conversation cannot be told how a question of it was answered.
            approval_recovery: if restores { self.config.approval_recovery } else { ApprovalRecovery::None },
            recovery: TurnRecovery::Interrupt,
        }
    }

    fn availability(&self) -> Availability {
        let Err(why) = self.program() else { return Availability::Available };
        let (name, install) = (&self.name, || self.config.install());
        if self.configured {
            return Availability::Missing { why, install: install(), configure: None };
        }
        Availability::Missing {
            why,
            install: self.installed().err().and_then(|_| install()),
            configure: Some(format!("[harness.{name}]\nkind = \"acp\"\npreset = \"{name}\"\n")),
        }
    }

    fn version(&self) -> Option<String> {
        let program = launch::find_program(&self.config).ok()?;
        let package = installed::package(&self.config, &program)?;
        // Two agents may have programs of one name.
        let is_other = installed::is_other_agent(&self.config, &package);
        (!is_other).then_some(package.version)
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

    async fn end_orphans(&self, directories: &[PathBuf]) {
        if self.configured {
            child::end_orphans(directories.to_owned()).await;
        }
    }

    async fn end_left(&self, session_id: &SessionId, directories: &[PathBuf]) {
        child::end_left(session_id.clone(), directories.to_owned()).await;
    }

    async fn start(&self, options: StartOptions) -> Result<Started, StartError> {
        let (link, events, opened) = self.open(&options).await?;
        let (continuity, native_id) = (opened.continuity.clone(), Some(opened.session_id.clone()));
        let session = Box::new(AcpSession::new(link, opened, self.config.restart_after_cancel));
        Ok(Started { session, events, continuity, native_id, waits_for: Vec::new() })
    }

    async fn introduce(&self, options: StartOptions) -> Result<Introduction, StartError> {
        let (link, _events, opened) = self.open(&options).await?;
        link.process.stop(|| link.shared.closing.cancel()).await;
        Ok(opened.introduction)
    }
}

fn random() -> Result<String, String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| format!("no randomness: {error}"))?;
    Ok(hex(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn harness(text: &str) -> AcpHarness {
        let launcher = Launcher::of_this_program(Vec::new());
        AcpHarness::new("agent", toml::from_str(text).unwrap(), launcher).unwrap()
    }

    #[test]
    fn row_16_the_capabilities_are_those_of_any_acp_agent() {
        let capabilities = harness("command = [\"sh\"]").capabilities();
        assert!(capabilities.resumable && capabilities.approvals && capabilities.file_events);
        assert!(!capabilities.host_tools && !capabilities.edited_input);
        assert_eq!(capabilities.sandbox, child::level() > 0);
        assert!(!harness("command = [\"sh\"]\nlandlock = false").capabilities().sandbox);
    }

    #[test]
    fn row_15_a_harness_without_a_command_is_not_made() {
        let launcher = Launcher::of_this_program(Vec::new());
        let complaint = AcpHarness::new("agent", toml::from_str("").unwrap(), launcher).unwrap_err();
        assert!(complaint.contains("requires a command"));
    }

    #[test]
    fn a_missing_command_is_told_with_what_to_do() {
        assert_eq!(harness("command = [\"sh\"]").availability(), Availability::Available);
        let missing = harness("command = [\"no-such-agent\"]\ninstall = \"npm install it\"").availability();
        let install = Some("npm install it".to_owned());
        assert_eq!(
            missing,
            Availability::Missing {
                why: "no-such-agent is not on the PATH".to_owned(),
                install,
                configure: None
            }
        );
    }

    #[tokio::test]
    async fn a_known_agent_that_is_not_configured_is_told_of_and_not_started() {
        let mut harness = AcpHarness::not_configured("codex", Launcher::of_this_program(Vec::new())).unwrap();
        let Availability::Missing { why, install, configure } = harness.availability() else {
            panic!("it is not configured");
        };
        assert_eq!(why, "not configured");
        // Where it happens to be installed there is nothing to install.
        assert_eq!(install.is_some(), harness.version().is_none());
        let configure = configure.unwrap();
        assert!(configure.contains("[harness.codex]\nkind = \"acp\"\npreset = \"codex\""), "{configure}");
        harness.config.command = vec!["sh".to_owned()];
        assert!(matches!(harness.availability(), Availability::Missing { install: None, .. }));
        let directory = tempfile::tempdir().unwrap();
        let options = StartOptions {
            session_id: SessionId::mint(),
            workspace: directory.path().to_owned(),
            state_dir: directory.path().to_owned(),
            instructions: None,
            permission_mode: crate::domain::approval::PermissionMode::Ask,
            denied_tools: crate::domain::policy::DeniedTools::default(),
            settings: json!({}),
            resume: None,
            open_turn: None,
            fence: super::super::Fence::open(),
        };
        let Err(StartError::Unavailable(failure)) = harness.start(options).await else {
            panic!("it was started");
        };
        assert_eq!(failure.code, "harness_unavailable");
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
