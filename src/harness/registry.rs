//! The harnesses that this service has: the built-in ones and those that the operator configured.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use thiserror::Error;

use super::Harness;
use super::acp::{AcpConfig, AcpHarness};
use super::scripted::ScriptedHarness;

/// One `[harness.NAME]` table of the operator's configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum HarnessConfig {
    /// An ACP agent as a child process.
    Acp(AcpConfig),
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
    /// The built-in harnesses and the configured ones.
    ///
    /// # Errors
    /// Every complaint about the configuration.
    pub fn new(configured: &BTreeMap<String, HarnessConfig>) -> Result<Self, Vec<RegistryError>> {
        let mut registry = Self::default();
        registry.insert(Arc::new(ScriptedHarness));
        let mut complaints = Vec::new();
        for (name, config) in configured {
            let complain = |complaint: String| RegistryError { name: name.clone(), complaint };
            if registry.get(name).is_some() {
                complaints.push(complain("this name is taken by a built-in harness".to_owned()));
                continue;
            }
            match config {
                HarnessConfig::Acp(config) => match AcpHarness::new(name, config.clone()) {
                    Ok(harness) => registry.insert(Arc::new(harness)),
                    Err(complaint) => complaints.push(complain(complaint)),
                },
            }
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
