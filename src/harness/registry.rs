//! The harnesses that this service has: the built-in ones and those that the operator configured.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use thiserror::Error;

use super::Harness;
use super::acp::{AcpConfig, AcpHarness, presets};
use super::agent::AgentHarness;
use super::agent::config::AgentConfig;
use super::child::Launcher;
use super::scripted::ScriptedHarness;

/// One `[harness.NAME]` table of the operator's configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum HarnessConfig {
    /// An ACP agent as a child process.
    Acp(Box<AcpConfig>),
    /// The built-in loop of model and tools.
    Agent(Box<AgentConfig>),
}

/// The name of the built-in agent. Its table need not say which kind it is of.
const AGENT: &str = "agent";

impl HarnessConfig {
    /// Reads the `[harness]` tables.
    ///
    /// # Errors
    /// The first one that cannot be read, by its name.
    pub fn read_all<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, Self>, D::Error> {
        let tables: BTreeMap<String, toml::Table> = Deserialize::deserialize(deserializer)?;
        let read = |(name, mut table): (String, toml::Table)| {
            if name == AGENT {
                table.entry("kind").or_insert_with(|| AGENT.into());
            }
            let read = Self::deserialize(table).map_err(|error| format!("harness.{name}: {error}"));
            Ok((name, read?))
        };
        tables.into_iter().map(read).collect::<Result<_, String>>().map_err(D::Error::custom)
    }
}

/// A harness that the configuration describes wrongly.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("harness.{name}: {complaint}")]
pub struct RegistryError {
    /// The harness.
    pub name: String,
    /// What is wrong with it.
    pub complaint: String,
}

/// Harnesses by name.
#[derive(Clone, Default)]
pub struct Registry(BTreeMap<String, Arc<dyn Harness>>);

impl Registry {
    /// The built-in harnesses, the configured ones, whose agents are launched like that, and the known agents that are not configured.
    ///
    /// # Errors
    /// Every complaint about the configuration.
    pub fn new(
        configured: &BTreeMap<String, HarnessConfig>,
        launcher: &Launcher,
    ) -> Result<Self, Vec<RegistryError>> {
        let mut registry = Self::default();
        registry.insert(Arc::new(ScriptedHarness));
        if let Ok(agent) = AgentHarness::new(AGENT, AgentConfig::default(), launcher.clone()) {
            registry.insert(Arc::new(agent));
        }
        let mut complaints = Vec::new();
        let mut used = BTreeSet::new();
        for (name, config) in configured {
            let complain = |complaint: String| RegistryError { name: name.clone(), complaint };
            let is_agent = name == AGENT && matches!(config, HarnessConfig::Agent(_));
            if registry.get(name).is_some() && !is_agent {
                complaints.push(complain("this name is taken by a built-in harness".to_owned()));
                continue;
            }
            match config {
                HarnessConfig::Acp(config) => {
                    match AcpHarness::new(name, config.as_ref().clone(), launcher.clone()) {
                        Ok(harness) => {
                            used.extend(harness.preset().map(str::to_owned));
                            registry.insert(Arc::new(harness));
                        }
                        Err(complaint) => complaints.push(complain(complaint)),
                    }
                }
                HarnessConfig::Agent(config) => {
                    match AgentHarness::new(name, config.as_ref().clone(), launcher.clone()) {
                        Ok(harness) => registry.insert(Arc::new(harness)),
                        Err(wrong) => complaints.extend(wrong.into_iter().map(complain)),
                    }
                }
            }
        }
        let unused = presets::names().filter(|name| !used.contains(*name) && registry.get(name).is_none());
        for harness in
            unused.filter_map(|name| AcpHarness::not_configured(name, launcher.clone())).collect::<Vec<_>>()
        {
            registry.insert(Arc::new(harness));
        }
        if complaints.is_empty() { Ok(registry) } else { Err(complaints) }
    }

    /// Adds a harness under its own name, in place of one of the same name.
    pub fn insert(&mut self, harness: Arc<dyn Harness>) {
        self.0.insert(harness.name().to_owned(), harness);
    }

    /// The harness of that name.
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Harness>> {
        self.0.get(name)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn Harness>> {
        self.0.values()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Availability;
    use super::*;

    fn registry(text: &str) -> Registry {
        Registry::new(
            &HarnessConfig::read_all(toml::de::Deserializer::parse(text).unwrap()).unwrap(),
            &Launcher::of_this_program(Vec::new()),
        )
        .unwrap()
    }

    fn not_configured(registry: &Registry) -> Vec<&str> {
        let missing = |harness: &&Arc<dyn Harness>| {
            matches!(harness.availability(), Availability::Missing { configure: Some(_), .. })
        };
        registry.iter().filter(missing).map(|harness| harness.name()).collect()
    }

    #[test]
    fn a_known_agent_is_told_of_until_it_is_configured_or_its_name_is_taken() {
        let all = ["agent", "claude", "claude2", "codex", "codex2", "gemini", "opencode", "qwen"];
        assert_eq!(not_configured(&registry("")), all);
        let some = registry(
            "[coder]\nkind = \"acp\"\npreset = \"codex\"\n[gemini]\nkind = \"acp\"\ncommand = [\"sh\"]",
        );
        assert_eq!(not_configured(&some), ["agent", "claude", "claude2", "codex2", "opencode", "qwen"]);
        assert_eq!(some.get("coder").unwrap().label(), "Codex");
        assert_eq!(some.get("gemini").unwrap().availability(), Availability::Available);
    }
}
