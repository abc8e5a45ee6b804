//! An agent as the operator describes it: `[harness.NAME] kind = "acp"`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path};
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::presets;
use super::tool_calls::ToolCustoms;
use crate::harness::child::{Limits, RunAs};
use crate::harness::{ApprovalRecovery, StatePaths};

/// An ACP agent: its command, its surroundings, and what it needs to hear before the first prompt.
///
/// Values of `env` and `files` may hold the placeholders `{state_dir}`, `{workspace}` and `{random}`: 32 hexadecimal digits,
/// others at each start. `Debug` shows neither values of the environment nor contents of files nor parameters: they may be
/// secrets.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct AcpConfig {
    /// A known agent, whose description holds where this one says nothing.
    #[serde(default)]
    pub preset: Option<String>,
    /// The program and, where another runs it, what that needs. No shell reads it.
    #[serde(default)]
    pub command: Vec<String>,
    /// Arguments that follow the command, whichever it is.
    #[serde(default)]
    pub args: Vec<String>,
    /// Variables for the agent, on top of the few that it gets anyway; they win over those.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Names of variables that pass from the service's own environment, where they are set.
    #[serde(default)]
    pub inherit_env: Vec<String>,
    /// Files that are written before the start where they do not exist: path below the state directory, content.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// Where below the state directory the agent keeps its memory: files and directories, a `*` for any characters of one
    /// name. They travel with the session; where nothing is named, nothing does.
    #[serde(default)]
    pub state_paths: Vec<String>,
    /// The id of the method to authenticate with, for agents that want to be asked.
    #[serde(default)]
    pub authenticate: Option<String>,
    /// Requests that follow a new conversation and each one taken up, in order. They set, say, the mode in which the
    /// agent asks before it acts; an agent that refuses one is not used.
    #[serde(default)]
    pub after_new: Vec<AfterNew>,
    /// The user that the agent becomes: the name of one, or `UID:GID`. Only a service that runs as root can do that.
    #[serde(default)]
    pub run_as: Option<String>,
    /// Whether landlock confines the agent, where the kernel has it: it writes only in its workspace and its state directory,
    /// and reads nothing that is private to the service.
    #[serde(default = "default_landlock")]
    pub landlock: bool,
    /// What the agent and each process that it starts may use.
    #[serde(default)]
    pub limits: Limits,
    /// Its name for people; the harness's name when absent.
    #[serde(default)]
    pub label: Option<String>,
    /// One sentence about it.
    #[serde(default)]
    pub description: Option<String>,
    /// What to do when its command is missing; follows from `needs` when absent.
    #[serde(default)]
    pub install: Option<String>,
    /// Where in a tool call its tool's name is, as a JSON pointer, for agents that tell it in their own way; else the call's title
    /// stands for it.
    #[serde(default)]
    pub tool_name_at: Option<String>,
    /// Keys of a tool's input that name the occasion (an id, a time) and not what would run. An approval is shown without them, so
    /// that the same call is recognised when a later process asks for it again.
    #[serde(default)]
    pub occasional_input: Vec<String>,
    /// What must be installed.
    #[serde(default)]
    pub needs: Option<Needs>,
    /// What becomes of a question whose process has died: `reask`, or `none` for an agent that does not ask again when it is told.
    #[serde(default = "default_approval_recovery")]
    pub approval_recovery: ApprovalRecovery,
    /// For agents that lose count after a cancel (claude-agent-acp 0.23.1 answers the next prompt at once, before it has worked at it,
    /// and each one after it with the result of the one before): the prompt that follows a cancelled turn is given to a fresh process
    /// that takes the conversation up. Nothing else would do: which of its answers belongs to which prompt cannot be told from outside,
    /// and an agent that has nothing to say looks the same.
    #[serde(default)]
    pub restart_after_cancel: bool,
    /// How many seconds the agent has from its start to its conversation.
    #[serde(default = "default_start_seconds")]
    pub start_seconds: u64,
    /// How many seconds the agent has to take a message. One that does not read is ended.
    #[serde(default = "default_write_seconds")]
    pub write_seconds: u64,
}

/// What an agent needs to be installed.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Needs {
    /// Its npm package.
    pub package: String,
    /// The version that it was tried with.
    pub version: String,
    /// The lowest major version of Node that runs it; absent where none is needed.
    #[serde(default)]
    pub node: Option<u32>,
}

/// A request that follows a new conversation and each one taken up.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AfterNew {
    /// The method, such as `session/set_mode`.
    pub method: String,
    /// Its parameters; `sessionId` is filled in where it is absent.
    #[serde(default)]
    pub params: Map<String, Value>,
}

/// The directories that placeholders stand for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places<'a> {
    /// `{state_dir}`
    pub state_dir: &'a str,
    /// `{workspace}`
    pub workspace: &'a str,
    /// `{random}`
    pub random: &'a str,
}

fn default_approval_recovery() -> ApprovalRecovery {
    ApprovalRecovery::Reask
}

fn default_landlock() -> bool {
    true
}

// The slowest agent seen took 11 s on a loaded machine.
fn default_start_seconds() -> u64 {
    60
}

fn default_write_seconds() -> u64 {
    30
}

impl AcpConfig {
    /// Looks for what cannot work.
    ///
    /// # Errors
    /// The first complaint, in words that name the key.
    pub fn check(&self) -> Result<(), String> {
        if self.command.first().is_none_or(String::is_empty) {
            return Err("an ACP harness requires a command".to_owned());
        }
        if self.argv().any(|word| word.contains('\0')) {
            return Err("command and args: no NUL characters".to_owned());
        }
        for name in self.env.keys().chain(&self.inherit_env) {
            if name.is_empty() || name.contains(['=', '\0']) {
                return Err(format!("env: {name:?} cannot be the name of a variable"));
            }
        }
        if let Some(path) = self.files.keys().find(|path| !is_below(Path::new(path))) {
            return Err(format!("files: {path:?} is not a path below the state directory"));
        }
        StatePaths::parse(&self.state_paths)?;
        if self.approval_recovery == ApprovalRecovery::Exact {
            return Err(
                "approval_recovery: no ACP agent stands at the call that it asked for; reask or none"
                    .to_owned(),
            );
        }
        if let Some(needs) = &self.needs
            && (needs.package.is_empty() || needs.version.is_empty())
        {
            return Err("needs: a package and its version".to_owned());
        }
        if self.after_new.iter().any(|request| request.method.is_empty()) {
            return Err("after_new: a request requires a method".to_owned());
        }
        if self.tool_name_at.as_ref().is_some_and(|place| !place.starts_with('/')) {
            return Err("tool_name_at: a JSON pointer begins with /".to_owned());
        }
        if let Some(user) = &self.run_as {
            RunAs::resolve(user).map_err(|complaint| format!("run_as: {complaint}"))?;
            if !rustix::process::geteuid().is_root() {
                return Err("run_as: only a service that runs as root can become somebody else".to_owned());
            }
        }
        let limits = [self.limits.open_files, self.limits.processes, self.limits.memory_mib];
        if limits.contains(&Some(0)) {
            return Err("limits: at least 1".to_owned());
        }
        if self.start_seconds == 0 || self.write_seconds == 0 {
            return Err("start_seconds and write_seconds: at least 1".to_owned());
        }
        Ok(())
    }

    pub(super) fn tool_customs(&self) -> ToolCustoms {
        ToolCustoms {
            tool_name_at: self.tool_name_at.clone(),
            occasional_input: self.occasional_input.clone(),
        }
    }

    /// The program and all its arguments.
    pub(super) fn argv(&self) -> impl Iterator<Item = &str> {
        self.command.iter().chain(&self.args).map(String::as_str)
    }

    /// How to install what it needs.
    pub(super) fn install(&self) -> Option<String> {
        let needed = |needs: &Needs| {
            let command = format!("npm install --global {}@{}", needs.package, needs.version);
            match needs.node {
                Some(node) => format!("{command} (with Node {node} or later)"),
                None => command,
            }
        };
        self.install.clone().or_else(|| self.needs.as_ref().map(needed))
    }

    pub(super) fn start_deadline(&self) -> Duration {
        Duration::from_secs(self.start_seconds)
    }

    pub(super) fn write_deadline(&self) -> Duration {
        Duration::from_secs(self.write_seconds)
    }
}

impl Places<'_> {
    /// The text with its placeholders filled in.
    pub(super) fn fill(&self, text: &str) -> String {
        text.replace("{state_dir}", self.state_dir)
            .replace("{workspace}", self.workspace)
            .replace("{random}", self.random)
    }
}

impl AfterNew {
    /// The parameters for one conversation.
    pub(super) fn params_for(&self, session_id: &str) -> Value {
        let mut params = self.params.clone();
        params.entry("sessionId").or_insert_with(|| Value::from(session_id));
        Value::Object(params)
    }
}

impl<'de> Deserialize<'de> for AcpConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let own = toml::Table::deserialize(deserializer)?;
        let whole = presets::complete(own).map_err(D::Error::custom)?;
        // The one that is derived, of the table with all its keys.
        Self::deserialize(toml::Value::Table(whole)).map_err(|error| D::Error::custom(error.message()))
    }
}

impl fmt::Debug for AcpConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let env: Vec<_> = self.env.keys().collect();
        let files: Vec<_> = self.files.keys().collect();
        f.debug_struct("AcpConfig")
            .field("preset", &self.preset)
            .field("command", &self.command)
            .field("args", &self.args)
            .field("env", &env)
            .field("inherit_env", &self.inherit_env)
            .field("files", &files)
            .field("state_paths", &self.state_paths)
            .field("after_new", &self.after_new)
            .field("run_as", &self.run_as)
            .field("landlock", &self.landlock)
            .field("limits", &self.limits)
            .field("start_seconds", &self.start_seconds)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for AfterNew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AfterNew").field("method", &self.method).finish_non_exhaustive()
    }
}

fn is_below(path: &Path) -> bool {
    path.file_name().is_some() && path.components().all(|part| matches!(part, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::HarnessConfig;

    fn read(text: &str) -> Result<AcpConfig, toml::de::Error> {
        toml::from_str(text).map(|config| match config {
            HarnessConfig::Acp(config) => *config,
            HarnessConfig::Agent(_) => panic!("no ACP agent"),
        })
    }

    const WHOLE: &str = r#"
        kind = "acp"
        command = ["codex-acp"]
        env = { CODEX_HOME = "{state_dir}/.codex", KEY = "hush" }
        inherit_env = ["OPENAI_API_KEY"]
        files = { ".codex/config.toml" = "token = \"hush\"" }
        state_paths = [".codex/sessions", ".codex/*.sqlite*"]
        authenticate = "api-key"
        label = "Codex"
        start_seconds = 90

        [[after_new]]
        method = "session/set_mode"
        params = { modeId = "read-only" }
    "#;

    #[test]
    fn a_table_of_the_configuration_is_read_whole() {
        let config = read(WHOLE).unwrap();
        assert_eq!(config.check(), Ok(()));
        assert_eq!(config.start_deadline(), Duration::from_secs(90));
        assert_eq!(
            config.after_new[0].params_for("s-1"),
            serde_json::json!({"sessionId": "s-1", "modeId": "read-only"})
        );
        let places = Places { state_dir: "/state", workspace: "/space", random: "0f" };
        assert_eq!(places.fill(&config.env["CODEX_HOME"]), "/state/.codex");
        assert_eq!(places.fill("{workspace}:{other}:{random}"), "/space:{other}:0f");
    }

    #[test]
    fn an_unknown_key_is_refused_also_behind_the_kind() {
        let complaint = read("kind = \"acp\"\ncommand = [\"a\"]\ncomand = 1").unwrap_err().to_string();
        assert!(complaint.contains("comand"), "{complaint}");
        let complaint = read("kind = \"acp\"\n[limits]\nfiles = 1").unwrap_err().to_string();
        assert!(complaint.contains("files"), "{complaint}");
        let complaint = read("kind = \"acp\"\n[[after_new]]\nmethod = \"m\"\nparam = {}").unwrap_err();
        assert!(complaint.to_string().contains("param"), "{complaint}");
    }

    #[test]
    fn row_15_a_harness_without_a_command_is_refused() {
        for text in ["kind = \"acp\"", "kind = \"acp\"\ncommand = []", "kind = \"acp\"\ncommand = [\"\"]"] {
            let complaint = read(text).unwrap().check().unwrap_err();
            assert!(complaint.contains("requires a command"), "{complaint}");
        }
    }

    #[test]
    fn what_cannot_work_is_refused_with_the_key_in_the_words() {
        for (line, key) in [
            ("env = { \"A=B\" = \"\" }", "env"),
            ("inherit_env = [\"\"]", "env"),
            ("files = { \"../x\" = \"\" }", "files"),
            ("files = { \"/etc/x\" = \"\" }", "files"),
            ("files = { \"\" = \"\" }", "files"),
            ("state_paths = [\".codex/sessions\", \"../x\"]", "state_paths"),
            ("state_paths = [\"/etc\"]", "state_paths"),
            ("after_new = [{ method = \"\" }]", "after_new"),
            ("tool_name_at = \"name\"", "tool_name_at"),
            ("args = [\"\\u0000\"]", "args"),
            ("state_paths = [\"a/../../b\"]", "state_paths"),
            ("approval_recovery = \"exact\"", "approval_recovery"),
            ("needs = { package = \"\", version = \"1\" }", "needs"),
            ("start_seconds = 0", "start_seconds"),
            ("run_as = \"no-such-user\"", "run_as"),
            ("run_as = \"0:0\"", "run_as"),
            ("limits = { open_files = 0 }", "limits"),
        ] {
            let config = read(&format!("kind = \"acp\"\ncommand = [\"a\"]\n{line}")).unwrap();
            let complaint = config.check().unwrap_err();
            assert!(complaint.contains(key), "{line}: {complaint}");
        }
    }

    #[test]
    fn how_to_install_it_is_told_by_the_operator_or_follows_from_what_it_needs() {
        let install = |line: &str| read(&format!("kind = \"acp\"\n{line}")).unwrap().install();
        assert_eq!(install(""), None);
        let needs = "needs = { package = \"@a/b\", version = \"1.2\", node = 22 }";
        assert_eq!(install(needs).as_deref(), Some("npm install --global @a/b@1.2 (with Node 22 or later)"));
        assert_eq!(install(&format!("{needs}\ninstall = \"ask me\"")).as_deref(), Some("ask me"));
    }

    #[test]
    fn secrets_are_not_printed() {
        let shown = format!("{:?}", read(WHOLE).unwrap());
        assert!(shown.contains("CODEX_HOME") && !shown.contains("hush"), "{shown}");
    }
}
