//! What the operator says of the agent harness: `[harness.agent]` in ostler.toml.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

use super::context::TokenEstimate;
use super::settings::Caps;

/// One `[harness.agent]` table.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgentConfig {
    /// Its name for people.
    pub label: Option<String>,
    /// One sentence about it.
    pub description: Option<String>,
    /// The models that sessions may choose from, by the names that they choose them by.
    pub models: BTreeMap<String, ModelConfig>,
    /// The model of a session that names none; needed where there are several.
    pub default_model: Option<String>,
    /// What the model is told of its place where a session has no instructions.
    pub instructions: Option<String>,
    /// Settings of a session that says nothing of them, as a session gives its own.
    pub settings: toml::Table,
    /// The furthest that any session may go.
    pub caps: Caps,
    /// The built-in tools.
    pub tools: ToolsConfig,
    /// MCP servers, by the names that their tools go under.
    pub mcp: BTreeMap<String, McpServerConfig>,
    /// The origins, such as `https://mcp.example.com`, at which sessions may have MCP servers of their own.
    pub session_mcp_origins: Vec<String>,
    /// The command that verifies answers.
    pub project: Option<ProjectConfig>,
}

/// `[harness.agent.project]`: a command that is given the transcript of a turn on its stdin, as JSON, and says whether its answer stands.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProjectConfig {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// How long it may take, in seconds.
    #[serde(default = "ProjectConfig::default_timeout")]
    pub timeout_seconds: u64,
    /// Variables that it gets from the service's environment.
    #[serde(default)]
    pub inherit_env: Vec<String>,
}

/// `[harness.agent.models.NAME]`: a model behind an OpenAI-compatible chat-completions endpoint.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Up to and without `/chat/completions`.
    pub base_url: String,
    /// The provider's name of it.
    pub model: String,
    /// The environment variable that holds the key; none for a provider that wants none.
    pub api_key_env: Option<String>,
    /// Tokens that the model takes and gives in one call.
    pub context_window: u64,
    /// Tokens of these that are kept for its answer. Sent as `max_tokens` where it is given.
    pub max_output_tokens: Option<u64>,
    /// How its tokens are estimated.
    #[serde(default)]
    pub token_estimate: TokenEstimate,
    /// Whether the answer is streamed.
    #[serde(default = "yes")]
    pub stream: bool,
    /// How often a call is tried before it has failed.
    #[serde(default = "ModelConfig::default_attempts")]
    pub attempts: u32,
    /// How long the provider may be silent, in seconds.
    #[serde(default = "ModelConfig::default_silence")]
    pub silence_seconds: u64,
}

/// `[harness.agent.tools]`: the built-in tools.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ToolsConfig {
    /// `read_file`, `write_file` and `list_files` within the workspace.
    pub files: bool,
    /// `shell`.
    pub shell: Shell,
    /// How long a call may take, in seconds.
    pub timeout_seconds: u64,
    /// How much of a result the model is given, in bytes.
    pub result_max_bytes: usize,
}

/// Whether there is a shell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shell {
    /// There is none.
    #[default]
    Off,
    /// A person is asked about each command.
    Ask,
    /// Commands run unasked.
    Allow,
}

/// `[harness.agent.mcp.NAME]`: an MCP server, as a child process of its own for each session, or over HTTP.
#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct McpServerConfig {
    /// The program and its arguments; `{workspace}` and `{state}` are filled in.
    pub command: Vec<String>,
    /// Variables of its environment; the same is filled in.
    pub env: BTreeMap<String, String>,
    /// Variables that it gets from the service's environment.
    pub inherit_env: Vec<String>,
    /// The address of a streamable HTTP server, in place of a command.
    pub url: Option<String>,
    /// The environment variable that holds the bearer token for that address.
    pub token_env: Option<String>,
    /// The tools that there are; all of them where nothing is said.
    pub tools: Option<Vec<String>>,
    /// The tools that a person is asked about; `["*"]` for all of them.
    pub require_approval: Vec<String>,
    /// How long a call may take, in seconds, in place of the built-in tools' time.
    pub timeout_seconds: Option<u64>,
}

/// Without the values of its environment, which may be secrets, and the query of its address.
impl fmt::Debug for McpServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = self.url.as_deref().map(|url| url.split('?').next().unwrap_or_default());
        f.debug_struct("McpServerConfig")
            .field("command", &self.command.first())
            .field("env", &self.env.keys())
            .field("url", &url)
            .finish_non_exhaustive()
    }
}

impl Default for ToolsConfig {
    fn default() -> Self {
        Self { files: true, shell: Shell::Off, timeout_seconds: 60, result_max_bytes: 64 << 10 }
    }
}

impl ModelConfig {
    fn default_attempts() -> u32 {
        4
    }

    fn default_silence() -> u64 {
        120
    }
}

impl ProjectConfig {
    fn default_timeout() -> u64 {
        60
    }
}

fn yes() -> bool {
    true
}
