//! The agents that are known: their descriptions are data, in `presets.toml`, and an operator's own keys win over them.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use toml::{Table, Value};

use super::config::AcpConfig;

// The text is part of the program, and a test reads all of it.
static PRESETS: LazyLock<BTreeMap<String, Table>> =
    LazyLock::new(|| toml::from_str(include_str!("presets.toml")).unwrap_or_default());

/// The names of the presets.
pub(in crate::harness) fn names() -> impl Iterator<Item = &'static str> {
    PRESETS.keys().map(String::as_str)
}

/// The description that a preset makes on its own.
pub(super) fn description(name: &str) -> Option<AcpConfig> {
    let table = Table::from_iter([("preset".to_owned(), Value::from(name))]);
    table.try_into().ok()
}

/// The preset for the agent in a package.
pub(super) fn for_package(package: &str) -> Option<&'static str> {
    let is_for =
        |table: &Table| table.get("needs").and_then(|needs| needs.get("package")?.as_str()) == Some(package);
    PRESETS.iter().find_map(|(name, table)| is_for(table).then_some(name.as_str()))
}

/// A table of the configuration with the keys of the preset that it names.
///
/// # Errors
/// When there is no such preset.
pub(super) fn complete(own: Table) -> Result<Table, String> {
    let Some(name) = own.get("preset") else { return Ok(own) };
    let preset = name.as_str().and_then(|name| PRESETS.get(name));
    let Some(preset) = preset else {
        return Err(format!("preset: {name} is none of {}", names().collect::<Vec<_>>().join(", ")));
    };
    let mut whole = preset.clone();
    join(&mut whole, own);
    Ok(whole)
}

fn join(whole: &mut Table, own: Table) {
    for (key, value) in own {
        match (whole.get_mut(&key), value) {
            (Some(Value::Table(theirs)), Value::Table(ours)) => join(theirs, ours),
            (_, value) => {
                whole.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<AcpConfig, toml::de::Error> {
        toml::from_str(text)
    }

    #[test]
    fn every_preset_is_a_description_that_can_work() {
        assert_eq!(
            names().collect::<Vec<_>>(),
            ["claude", "claude2", "codex", "codex2", "gemini", "opencode", "qwen"]
        );
        for name in names() {
            let config = description(name).unwrap_or_else(|| panic!("{name} cannot be read"));
            assert_eq!(config.check(), Ok(()), "{name}");
            assert_eq!(config.preset.as_deref(), Some(name));
            let needs = config.needs.as_ref().unwrap_or_else(|| panic!("{name}: how is it installed?"));
            assert_eq!(for_package(&needs.package), Some(name), "no two presets are for one package");
            assert!(config.label.is_some() && config.description.is_some(), "{name}");
            assert!(!config.state_paths.is_empty(), "{name}: where does it keep its conversations?");
            for (path, content) in &config.files {
                let is_read = match path.rsplit_once('.') {
                    Some((_, "json")) => serde_json::from_str::<serde_json::Value>(content).is_ok(),
                    Some((_, "toml")) => toml::from_str::<Table>(content).is_ok(),
                    _ => false,
                };
                assert!(is_read, "{name}: {path}");
            }
        }
    }

    // Each of these starts in a mode that approves by itself, or may.
    #[test]
    fn an_agent_that_would_approve_by_itself_is_set_to_ask_whenever_a_conversation_opens() {
        for (name, mode) in [("claude2", "default"), ("codex2", "read-only"), ("qwen", "default")] {
            let config = description(name).unwrap();
            let request = config.after_new.iter().find(|request| request.method == "session/set_mode");
            assert_eq!(request.unwrap().params["modeId"], mode, "{name}");
        }
        let asks =
            |config: &AcpConfig| config.args.iter().any(|word| word == "approval_policy=\"untrusted\"");
        assert!(asks(&description("codex").unwrap()));
        let content = &description("opencode").unwrap().env["OPENCODE_CONFIG_CONTENT"];
        let content: serde_json::Value = serde_json::from_str(content).unwrap();
        assert_eq!(content["permission"]["bash"], "ask");
    }

    #[test]
    fn the_operators_keys_win_and_tables_are_joined_key_by_key() {
        let config = read(
            r#"
            preset = "opencode"
            command = ["/opt/opencode"]
            env = { OPENCODE_DISABLE_AUTOUPDATE = "0", MINE = "1" }
            label = "Ours"
            "#,
        )
        .unwrap();
        assert_eq!(config.command, ["/opt/opencode"]);
        assert_eq!(config.args, ["acp"]);
        assert_eq!(config.label.as_deref(), Some("Ours"));
        assert_eq!(config.env["OPENCODE_DISABLE_AUTOUPDATE"], "0");
        assert_eq!(config.env["OPENCODE_SERVER_PASSWORD"], "{random}");
        assert_eq!(config.env["MINE"], "1");
        assert_eq!(config.needs.unwrap().package, "opencode-ai");
    }

    #[test]
    fn a_preset_that_is_not_known_is_refused_with_those_that_are() {
        for preset in ["\"nobody\"", "7"] {
            let complaint = read(&format!("preset = {preset}")).unwrap_err().to_string();
            assert!(complaint.contains("claude2, codex, codex2"), "{complaint}");
        }
    }
}
