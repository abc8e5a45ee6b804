//! The names that tools have, and which offers of servers become tools.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;

use super::cap::clipped;
use super::{ToolSpec, files, shell, shell_asks};
use crate::harness::agent::config::{AgentConfig, McpServerConfig, ToolsConfig};

/// A session has no more tools.
pub(super) const TOOLS_MAX: usize = 128;
/// No name is longer: models take no longer ones.
const NAME_MAX_BYTES: usize = 64;
const SERVER_NAME_MAX_BYTES: usize = 32;
/// A longer description is cut.
pub(super) const DESCRIPTION_MAX_BYTES: usize = 4 << 10;
/// A tool with a larger schema is left out.
const SCHEMA_MAX_BYTES: usize = 32 << 10;
/// So many of what is left out are named; the others are counted.
const LEFT_OUT_MAX: usize = 32;

/// A tool as a server offers it, not looked at yet.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Offer {
    /// The server's name of it.
    pub tool: String,
    /// The server's words.
    pub description: String,
    /// What the server says that it takes.
    pub input_schema: Value,
    /// Whether the server says that it only reads.
    pub is_read_only: bool,
    /// Whether the operator wants a person to be asked.
    pub asks: bool,
}

/// The tools of a session, and what did not become one.
#[derive(Debug, Default)]
pub(super) struct Catalogue {
    specs: Vec<ToolSpec>,
    left_out: Vec<String>,
    not_named: usize,
}

impl Catalogue {
    /// The built-in tools that are on.
    pub(super) fn of_built_in(tools: &ToolsConfig) -> Self {
        let mut specs = if tools.files { files::specs() } else { Vec::new() };
        let limit = Duration::from_secs(tools.timeout_seconds);
        specs.extend(shell_asks(tools.shell).map(|asks| shell::spec(asks, limit)));
        Self { specs, ..Self::default() }
    }

    /// Adds what a server offers, but for what cannot be a tool.
    pub(super) fn add(&mut self, server: &str, offers: Vec<Offer>) {
        for offer in offers {
            let name = format!("mcp__{server}__{}", offer.tool);
            if let Err(why) = self.take(name, offer) {
                self.leave_out(format!("the MCP server {server} offers {why}"));
            }
        }
    }

    /// Tells of tools that the operator names and the server does not have: a person who is to be asked about one is not.
    pub(super) fn tell_missing(&mut self, server: &str, config: &McpServerConfig) {
        let named: BTreeSet<&String> =
            config.tools.iter().flatten().chain(&config.require_approval).collect();
        for tool in named.into_iter().filter(|tool| *tool != "*") {
            let name = format!("mcp__{server}__{tool}");
            if !self.specs.iter().any(|spec| spec.name == name) {
                let shown = clipped(tool, NAME_MAX_BYTES);
                self.leave_out(format!(
                    "the MCP server {server} has no tool {shown:?}, which its table names"
                ));
            }
        }
    }

    pub(super) fn specs(&self) -> &[ToolSpec] {
        &self.specs
    }

    pub(super) fn left_out(&self) -> &[String] {
        &self.left_out
    }

    fn take(&mut self, name: String, offer: Offer) -> Result<(), String> {
        let shown = clipped(&offer.tool, NAME_MAX_BYTES);
        if !is_name(&name) {
            return Err(format!("{shown:?}: with its server's a name of letters, digits, _ and -, up to 64"));
        }
        if self.specs.iter().any(|spec| spec.name == name) {
            return Err(format!("{shown:?}: it is offered twice"));
        }
        if self.specs.len() >= TOOLS_MAX {
            return Err(format!("{shown:?}: a session has at most {TOOLS_MAX} tools"));
        }
        if offer.input_schema["type"] != "object" {
            return Err(format!("{shown:?}: its input is no object"));
        }
        if offer.input_schema.to_string().len() > SCHEMA_MAX_BYTES {
            return Err(format!("{shown:?}: its schema is larger than {SCHEMA_MAX_BYTES} bytes"));
        }
        let kind = if offer.is_read_only { "read" } else { "other" };
        self.specs.push(ToolSpec {
            name,
            description: clipped(&offer.description, DESCRIPTION_MAX_BYTES - '…'.len_utf8()),
            kind: kind.to_owned(),
            input_schema: offer.input_schema,
            asks: offer.asks,
        });
        Ok(())
    }

    fn leave_out(&mut self, words: String) {
        if self.left_out.len() < LEFT_OUT_MAX {
            tracing::warn!("a tool is not there: {words}");
            self.left_out.push(words);
            return;
        }
        // With the one whose place these words take.
        self.not_named = if self.not_named == 0 { 2 } else { self.not_named + 1 };
        let more = format!("and {} more", self.not_named);
        if let Some(last) = self.left_out.last_mut() {
            *last = more;
        }
    }
}

/// Whether there can be a tool of that name, as far as is known before any server was asked: a built-in tool that is on, or one of
/// a server that the operator has.
pub(in crate::harness::agent) fn known_name(config: &AgentConfig, name: &str) -> bool {
    if files::NAMES.contains(&name) {
        return config.tools.files;
    }
    if name == shell::NAME {
        return shell_asks(config.tools.shell).is_some();
    }
    let Some((server, tool)) = mcp_name(name) else { return false };
    let allowed =
        |server: &McpServerConfig| server.tools.as_ref().is_none_or(|all| all.iter().any(|one| one == tool));
    is_name(name) && config.mcp.get(server).is_some_and(allowed)
}

/// The server and its own name of a tool.
pub(super) fn mcp_name(name: &str) -> Option<(&str, &str)> {
    // A server's name holds no underscore, a tool's may.
    name.strip_prefix("mcp__")?.split_once("__").filter(|(_, tool)| !tool.is_empty())
}

/// Looks for what cannot work in what the operator says of tools and servers.
///
/// # Errors
/// The first complaint, in words that name the key.
pub(in crate::harness::agent) fn check(
    tools: &ToolsConfig,
    mcp: &BTreeMap<String, McpServerConfig>,
) -> Result<(), String> {
    if tools.timeout_seconds == 0 {
        return Err("tools.timeout_seconds: at least 1".to_owned());
    }
    if !(1 << 10..=1 << 20).contains(&tools.result_max_bytes) {
        return Err("tools.result_max_bytes: from 1 KiB to 1 MiB".to_owned());
    }
    mcp.iter().try_for_each(|(name, config)| check_server(name, config))
}

/// # Errors
/// The first complaint about one server.
pub(super) fn check_server(name: &str, config: &McpServerConfig) -> Result<(), String> {
    let complain = |words: &str| Err(format!("mcp.{}: {words}", clipped(name, SERVER_NAME_MAX_BYTES)));
    let is_server_name = (1..=SERVER_NAME_MAX_BYTES).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if !is_server_name {
        return complain("a name of small letters, digits and -, up to 32");
    }
    match (&config.url, config.command.first()) {
        (Some(_), Some(_)) => return complain("either a command or a url"),
        (None, None) => return complain("a command or a url is required"),
        (None, Some(program)) if program.is_empty() => return complain("command: the program is empty"),
        (Some(url), None) => {
            let is_web = reqwest::Url::parse(url)
                .is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
            if !is_web {
                return complain("url: an http or https address");
            }
            if !config.env.is_empty() || !config.inherit_env.is_empty() {
                return complain("env and inherit_env: only a command has an environment");
            }
        }
        (None, Some(_)) if config.token_env.is_some() => {
            return complain("token_env: only a url has a token");
        }
        (None, Some(_)) => {}
    }
    if config.command.iter().chain(config.env.values()).any(|word| word.contains('\0')) {
        return complain("command and env: no NUL characters");
    }
    let variables = config.env.keys().chain(&config.inherit_env).chain(&config.token_env);
    if variables.into_iter().any(|name| name.is_empty() || name.contains(['=', '\0'])) {
        return complain("env, inherit_env and token_env: names of variables");
    }
    if config.timeout_seconds == Some(0) {
        return complain("timeout_seconds: at least 1");
    }
    Ok(())
}

/// Whether it needs nothing of this machine and none of its secrets.
pub(super) fn is_address_alone(config: &McpServerConfig) -> bool {
    config.url.is_some() && config.token_env.is_none()
}

fn is_name(name: &str) -> bool {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    (1..=NAME_MAX_BYTES).contains(&name.len()) && name.bytes().all(is_fit) && is_complete(name)
}

fn is_complete(name: &str) -> bool {
    !name.starts_with("mcp__") || mcp_name(name).is_some()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn offer(tool: &str) -> Offer {
        Offer {
            tool: tool.to_owned(),
            description: "words".to_owned(),
            input_schema: json!({"type": "object"}),
            is_read_only: false,
            asks: false,
        }
    }

    fn config(text: &str) -> AgentConfig {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn what_cannot_be_a_tool_is_left_out_and_told() {
        let mut catalogue = Catalogue::default();
        let read_only = Offer { is_read_only: true, asks: true, ..offer("a_b__c") };
        let large = json!({"type": "object", "x": "x".repeat(SCHEMA_MAX_BYTES)});
        catalogue.add(
            "srv",
            vec![
                read_only,
                offer(""),
                offer("two words"),
                offer("ünï"),
                offer(&"x".repeat(55)),
                offer("a_b__c"),
                Offer { input_schema: json!({"type": "string"}), ..offer("text") },
                Offer { input_schema: json!([1]), ..offer("list") },
                Offer { input_schema: large, ..offer("large") },
                Offer { description: "é".repeat(DESCRIPTION_MAX_BYTES), ..offer("long") },
            ],
        );
        let names: Vec<_> = catalogue.specs().iter().map(|spec| spec.name.as_str()).collect();
        assert_eq!(names, ["mcp__srv__a_b__c", "mcp__srv__long"]);
        assert_eq!(mcp_name(names[0]), Some(("srv", "a_b__c")));
        assert_eq!((catalogue.specs()[0].kind.as_str(), catalogue.specs()[0].asks), ("read", true));
        assert_eq!((catalogue.specs()[1].kind.as_str(), catalogue.specs()[1].asks), ("other", false));
        let description = &catalogue.specs()[1].description;
        assert!(description.len() <= DESCRIPTION_MAX_BYTES && description.ends_with("é…"));
        assert_eq!(catalogue.left_out().len(), 8, "{:?}", catalogue.left_out());
        assert!(catalogue.left_out()[5].contains("no object"), "{:?}", catalogue.left_out());
    }

    #[test]
    fn a_session_has_a_bounded_number_of_tools_and_of_words_about_others() {
        let mut catalogue = Catalogue::of_built_in(&ToolsConfig::default());
        catalogue.add("srv", (0..1000).map(|number| offer(&format!("t{number}"))).collect());
        assert_eq!(catalogue.specs().len(), TOOLS_MAX);
        assert_eq!(catalogue.left_out().len(), LEFT_OUT_MAX);
        assert_eq!(catalogue.left_out().last().unwrap(), "and 844 more");
    }

    #[test]
    fn a_tool_that_the_operator_names_and_the_server_does_not_have_is_told_of() {
        let mut catalogue = Catalogue::default();
        catalogue.add("srv", vec![offer("a"), offer("two words")]);
        let text = "tools = [\"a\", \"b\"]\nrequire_approval = [\"b\", \"c\", \"*\"]";
        catalogue.tell_missing("srv", &toml::from_str(text).unwrap());
        let told: Vec<_> = catalogue.left_out().iter().skip(1).map(String::as_str).collect();
        let words = |tool: &str| format!("the MCP server srv has no tool \"{tool}\", which its table names");
        assert_eq!(told, [words("b"), words("c")]);
    }

    #[test]
    fn names_are_known_before_a_server_is_asked() {
        let some = config("[mcp.git]\nurl = \"http://a\"\n[mcp.fs]\ncommand = [\"x\"]\ntools = [\"read\"]");
        for (name, known) in [
            ("read_file", true),
            ("write_file", true),
            ("list_files", true),
            ("shell", false),
            ("bash", false),
            ("mcp__git__log", true),
            ("mcp__git__a__b", true),
            ("mcp__git__", false),
            ("mcp__git__two words", false),
            ("mcp__fs__read", true),
            ("mcp__fs__write", false),
            ("mcp__other__log", false),
        ] {
            assert_eq!(known_name(&some, name), known, "{name}");
        }
        let other = config("[tools]\nfiles = false\nshell = \"ask\"");
        assert!(!known_name(&other, "read_file") && known_name(&other, "shell"));
    }

    #[test]
    fn a_server_that_cannot_work_is_complained_about() {
        for (text, words) in [
            ("[mcp.a_b]\nurl = \"http://a\"", "a name of small letters"),
            ("[mcp.A]\nurl = \"http://a\"", "a name of small letters"),
            ("[mcp.a]", "a command or a url is required"),
            ("[mcp.a]\nurl = \"http://a\"\ncommand = [\"x\"]", "either a command or a url"),
            ("[mcp.a]\ncommand = [\"\"]", "the program is empty"),
            ("[mcp.a]\nurl = \"file:///etc\"", "an http or https address"),
            ("[mcp.a]\nurl = \"http://a\"\ninherit_env = [\"X\"]", "only a command has an environment"),
            ("[mcp.a]\ncommand = [\"x\"]\ntoken_env = \"T\"", "only a url has a token"),
            ("[mcp.a]\ncommand = [\"x\"]\nenv = { \"A=B\" = \"\" }", "names of variables"),
            ("[mcp.a]\ncommand = [\"x\"]\ntimeout_seconds = 0", "timeout_seconds"),
            ("[tools]\ntimeout_seconds = 0", "timeout_seconds"),
            ("[tools]\nresult_max_bytes = 10", "result_max_bytes"),
            ("[tools]\nresult_max_bytes = 2000000", "result_max_bytes"),
        ] {
            let config = config(text);
            let complaint = check(&config.tools, &config.mcp).unwrap_err();
            assert!(complaint.contains(words), "{text}: {complaint}");
        }
        let config =
            config("[mcp.a-1]\ncommand = [\"x\"]\n[mcp.b]\nurl = \"https://a/mcp\"\ntoken_env = \"T\"");
        assert_eq!(check(&config.tools, &config.mcp), Ok(()));
    }
}
