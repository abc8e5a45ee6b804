//! A session's settings, version 1: complete, checked, and never changed after the session was made.

mod reader;

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use self::reader::Reader;
use crate::domain::approval::digest_of;

/// The one version that there is.
const VERSION: u64 = 1;
/// The most names in a list.
const NAMES_MAX: usize = 200;
/// The most MCP servers of a session's own.
const SERVERS_MAX: usize = 8;
/// Where the stored settings have their own digest.
const DIGEST: &str = "digest";

/// See the module.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Settings {
    pub version: u64,
    /// A name of the operator's list.
    pub model: String,
    pub memory: Memory,
    pub history: History,
    pub planning: Planning,
    pub context: Context,
    pub execution: Execution,
    pub tool_policy: ToolPolicy,
    pub verification: Verification,
    pub thinking: Thinking,
    /// MCP servers of the session's own, by the names that their tools go under.
    pub mcp_servers: BTreeMap<String, SessionServer>,
}

/// The short memory: the turns just before this one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Memory {
    /// Whether the model sees anything of earlier turns.
    pub enabled: bool,
    /// How many turns before this one it surely sees.
    pub recent_turns: u64,
    /// Without a history, how long after its last turn a session remembers anything, in seconds.
    pub idle_ttl_seconds: u64,
}

/// The long memory: all turns before the recent ones, as far as the context has room for them; it does not fade.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct History {
    pub enabled: bool,
}

/// Whether the model is asked for a plan before its first step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Planning {
    pub mode: PlanningMode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PlanningMode {
    /// It is not.
    Off,
    /// It is, and may say that none is needed.
    Auto,
    /// It is, and must make one.
    Always,
}

/// How much the model is given, in parts of one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Context {
    /// Of the model's window, what its input may take.
    pub input_budget_ratio: f64,
    /// Whether old tool results are condensed.
    pub compaction_enabled: bool,
    /// Of what is available, from where on they are.
    pub compact_at_ratio: f64,
    /// Of what is available, down to where they are.
    pub compact_to_ratio: f64,
}

/// Where a turn ends, whatever the model wants.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Execution {
    pub max_model_calls: u64,
    pub max_tool_calls: u64,
    /// At work: waiting for a person does not count, nor does the time in which no process runs.
    pub max_duration_seconds: u64,
}

/// Which tools are not there, and which need a person's word. Names as the model knows them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct ToolPolicy {
    pub disabled: Vec<String>,
    pub require_approval: Vec<String>,
}

/// What an answer is held against before it is the turn's.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Verification {
    pub mode: VerificationMode,
    /// How often the model is told what is wrong and asked again.
    pub max_repair_attempts: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum VerificationMode {
    /// Nothing.
    Off,
    /// What the tools have given.
    ToolEvidence,
    /// That, and the operator's own command.
    Project,
}

/// What is seen of the model's thoughts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Thinking {
    /// Whether they become events.
    pub forward_to_frontend: bool,
}

/// An MCP server of a session's own: an address, never a command.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct SessionServer {
    pub url: String,
}

/// What settings are checked against, and what fills their gaps.
pub(super) trait Offer {
    /// What a session has that says nothing.
    fn defaults(&self) -> &Settings;
    /// The furthest that a session may go.
    fn caps(&self) -> &Caps;
    /// Whether there is a model of this name.
    fn has_model(&self, name: &str) -> bool;
    /// The names of all models.
    fn model_names(&self) -> Vec<&str>;
    /// Whether there can be a tool of this name, with these servers of the session's own.
    fn has_tool(&self, name: &str, own: &BTreeMap<String, SessionServer>) -> bool;
    /// Why a session may not have this server.
    fn server_complaint(&self, name: &str, url: &str) -> Option<String>;
    /// Whether the operator has a command that verifies.
    fn has_project_check(&self) -> bool;
}

/// `[harness.agent.caps]`: the furthest that any session may go.
#[derive(Clone, Debug, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Caps {
    /// See the settings of the same name.
    pub max_model_calls: u64,
    /// See the settings of the same name.
    pub max_tool_calls: u64,
    /// See the settings of the same name.
    pub max_duration_seconds: u64,
    /// See the settings of the same name.
    pub max_repair_attempts: u64,
}

impl Default for Caps {
    fn default() -> Self {
        Self {
            max_model_calls: 1000,
            max_tool_calls: 1000,
            max_duration_seconds: 86_400,
            max_repair_attempts: 10,
        }
    }
}

impl Settings {
    /// What a session has where neither it nor the operator says anything.
    pub fn built_in(model: &str) -> Self {
        Self {
            version: VERSION,
            model: model.to_owned(),
            memory: Memory { enabled: true, recent_turns: 3, idle_ttl_seconds: 3600 },
            history: History { enabled: true },
            planning: Planning { mode: PlanningMode::Auto },
            context: Context {
                input_budget_ratio: 0.7,
                compaction_enabled: true,
                compact_at_ratio: 0.8,
                compact_to_ratio: 0.55,
            },
            execution: Execution { max_model_calls: 30, max_tool_calls: 60, max_duration_seconds: 900 },
            tool_policy: ToolPolicy::default(),
            verification: Verification { mode: VerificationMode::ToolEvidence, max_repair_attempts: 1 },
            thinking: Thinking { forward_to_frontend: false },
            mcp_servers: BTreeMap::new(),
        }
    }

    /// What the operator's `[harness.agent.settings]` makes of the built-in ones: no version is needed there.
    ///
    /// # Errors
    /// All complaints.
    pub fn of_operator(table: &Value, offer: &dyn Offer) -> Result<Self, Vec<String>> {
        read(table, offer, Version::Implied)
    }

    /// Checks what a caller gives, fills its gaps, and gives the settings as they are stored, with their digest. Null is nothing
    /// given at all; an object says which version it is of.
    ///
    /// # Errors
    /// All complaints.
    pub fn complete(given: &Value, offer: &dyn Offer) -> Result<Value, Vec<String>> {
        let settings = match given {
            Value::Null => Self { ..offer.defaults().clone() }.within(offer.caps()),
            given => read(given, offer, Version::Said)?,
        };
        let mut stored = serde_json::to_value(&settings).map_err(|error| vec![error.to_string()])?;
        let digest = digest_of(&stored);
        if let Value::Object(map) = &mut stored {
            map.insert(DIGEST.to_owned(), Value::from(digest));
        }
        Ok(stored)
    }

    /// Reads settings as [`Settings::complete`] gave them. The operator may have taken things away since: what a session may not go
    /// beyond is what the operator says now.
    ///
    /// # Errors
    /// All complaints: they were changed where they are stored, or name what is not there any more.
    pub fn stored(stored: &Value, offer: &dyn Offer) -> Result<Self, Vec<String>> {
        let mut settings = stored.clone();
        let digest = settings.as_object_mut().and_then(|map| map.remove(DIGEST));
        if digest != Some(Value::from(digest_of(&settings))) {
            return Err(vec![
                "the stored settings are not those that were stored: their digest differs".to_owned(),
            ]);
        }
        let settings = read_within(&settings, offer, Version::Said, &Caps::default())?;
        Ok(settings.within(offer.caps()))
    }

    fn within(mut self, caps: &Caps) -> Self {
        let Execution { max_model_calls, max_tool_calls, max_duration_seconds } = &mut self.execution;
        *max_model_calls = caps.max_model_calls.min(*max_model_calls);
        *max_tool_calls = caps.max_tool_calls.min(*max_tool_calls);
        *max_duration_seconds = caps.max_duration_seconds.min(*max_duration_seconds);
        let attempts = &mut self.verification.max_repair_attempts;
        *attempts = caps.max_repair_attempts.min(*attempts);
        self
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Version {
    /// It must be there.
    Said,
    /// It goes without saying.
    Implied,
}

fn read(value: &Value, offer: &dyn Offer, version: Version) -> Result<Settings, Vec<String>> {
    read_within(value, offer, version, offer.caps())
}

fn read_within(
    value: &Value,
    offer: &dyn Offer,
    version: Version,
    caps: &Caps,
) -> Result<Settings, Vec<String>> {
    // A default beyond a cap is not the caller's mistake.
    let mut settings = offer.defaults().clone().within(caps);
    let mut complaints = Vec::new();
    let mut reader = Reader::new(value, &mut complaints);
    read_version(&mut reader, version);
    read_model(&mut reader, offer, &mut settings.model);
    reader.section("memory", |reader| {
        reader.flag("enabled", &mut settings.memory.enabled);
        reader.number("recent_turns", 0..=3, &mut settings.memory.recent_turns);
        reader.number("idle_ttl_seconds", 1..=31_536_000, &mut settings.memory.idle_ttl_seconds);
    });
    reader.section("history", |reader| reader.flag("enabled", &mut settings.history.enabled));
    reader.section("planning", |reader| {
        let modes =
            [("off", PlanningMode::Off), ("auto", PlanningMode::Auto), ("always", PlanningMode::Always)];
        reader.word("mode", &modes, &mut settings.planning.mode);
    });
    reader.section("context", |reader| read_context(reader, &mut settings.context));
    reader.section("execution", |reader| {
        let execution = &mut settings.execution;
        reader.number("max_model_calls", 1..=caps.max_model_calls, &mut execution.max_model_calls);
        reader.number("max_tool_calls", 1..=caps.max_tool_calls, &mut execution.max_tool_calls);
        reader.number(
            "max_duration_seconds",
            1..=caps.max_duration_seconds,
            &mut execution.max_duration_seconds,
        );
    });
    read_servers(&mut reader, offer, &mut settings.mcp_servers);
    let own = settings.mcp_servers.clone();
    reader.section("tool_policy", |reader| read_tool_policy(reader, offer, &own, &mut settings.tool_policy));
    reader.section("verification", |reader| {
        read_verification(reader, offer, caps, &mut settings.verification);
    });
    reader.section("thinking", |reader| {
        reader.flag("forward_to_frontend", &mut settings.thinking.forward_to_frontend);
    });
    reader.finish();
    if complaints.is_empty() { Ok(settings) } else { Err(complaints) }
}

fn read_version(reader: &mut Reader<'_>, version: Version) {
    match reader.value("version") {
        Some(value) if value.as_u64() == Some(VERSION) => {}
        None if version == Version::Implied => {}
        None => reader.complain("version", format!("required, and must be {VERSION}")),
        Some(_) => reader.complain("version", format!("must be {VERSION}: this service knows no other")),
    }
}

fn read_model(reader: &mut Reader<'_>, offer: &dyn Offer, model: &mut String) {
    let Some(value) = reader.value("model") else { return };
    match value.as_str().filter(|name| offer.has_model(name)) {
        Some(name) => name.clone_into(model),
        None => reader.complain("model", format!("must be one of {}", offer.model_names().join(", "))),
    }
}

fn read_context(reader: &mut Reader<'_>, context: &mut Context) {
    reader.ratio("input_budget_ratio", &mut context.input_budget_ratio);
    reader.flag("compaction_enabled", &mut context.compaction_enabled);
    reader.ratio("compact_at_ratio", &mut context.compact_at_ratio);
    reader.ratio("compact_to_ratio", &mut context.compact_to_ratio);
    if context.compact_to_ratio >= context.compact_at_ratio {
        reader.complain(
            "compact_to_ratio",
            format!("must be below compact_at_ratio, which is {}", context.compact_at_ratio),
        );
    }
}

fn read_servers(reader: &mut Reader<'_>, offer: &dyn Offer, servers: &mut BTreeMap<String, SessionServer>) {
    const KEY: &str = "mcp_servers";
    let Some(value) = reader.value(KEY) else { return };
    let Some(object) = value.as_object() else { return reader.complain(KEY, "must be an object") };
    if object.len() > SERVERS_MAX {
        return reader.complain(KEY, format!("must be at most {SERVERS_MAX}"));
    }
    servers.clear();
    for (name, server) in object {
        let keys: Vec<_> = server.as_object().into_iter().flatten().map(|(key, _)| key.as_str()).collect();
        let complaint = match (keys.as_slice(), server.get("url").and_then(Value::as_str)) {
            (["url"], Some(url)) => offer.server_complaint(name, url),
            _ => Some("must be an object with one key, url".to_owned()),
        };
        match (complaint, server.get("url").and_then(Value::as_str)) {
            (None, Some(url)) => {
                servers.insert(name.clone(), SessionServer { url: url.to_owned() });
            }
            (complaint, _) => {
                reader.complain(KEY, format!("{name}: {}", complaint.unwrap_or_default()));
            }
        }
    }
}

fn read_tool_policy(
    reader: &mut Reader<'_>,
    offer: &dyn Offer,
    own: &BTreeMap<String, SessionServer>,
    policy: &mut ToolPolicy,
) {
    for (key, names) in
        [("disabled", &mut policy.disabled), ("require_approval", &mut policy.require_approval)]
    {
        reader.names(key, names);
        for name in names.iter().filter(|name| !name.trim().is_empty() && !offer.has_tool(name, own)) {
            reader.complain(key, format!("there is no tool {name:?}"));
        }
    }
    for name in policy.require_approval.iter().filter(|name| policy.disabled.contains(name)) {
        reader.complain("require_approval", format!("{name:?} is disabled too"));
    }
}

fn read_verification(
    reader: &mut Reader<'_>,
    offer: &dyn Offer,
    caps: &Caps,
    verification: &mut Verification,
) {
    let modes = [
        ("off", VerificationMode::Off),
        ("tool_evidence", VerificationMode::ToolEvidence),
        ("project", VerificationMode::Project),
    ];
    reader.word("mode", &modes, &mut verification.mode);
    reader.number("max_repair_attempts", 0..=caps.max_repair_attempts, &mut verification.max_repair_attempts);
    if verification.mode == VerificationMode::Project && !offer.has_project_check() {
        reader.complain("mode", "the operator has no command that verifies");
    }
}

#[cfg(test)]
mod tests;
