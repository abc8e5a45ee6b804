//! The Agent Client Protocol over stdio: any ACP agent as a child process.

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::Value;

use super::{ApprovalRecovery, Availability, Capabilities, Harness, StartError, StartOptions, Started};

/// An agent as the operator describes it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcpConfig {
    /// argv
    pub command: Vec<String>,
}

/// An ACP agent.
#[derive(Debug)]
pub struct AcpHarness {
    name: String,
}

impl AcpHarness {
    /// # Errors
    /// complaint
    pub fn new(name: &str, _config: AcpConfig) -> Result<Self, String> {
        Ok(Self { name: name.to_owned() })
    }
}

#[async_trait]
impl Harness for AcpHarness {
    fn name(&self) -> &str {
        &self.name
    }
    fn label(&self) -> &str {
        &self.name
    }
    fn description(&self) -> &str {
        "An ACP agent"
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            sandbox: false,
            resumable: true,
            approvals: true,
            host_tools: false,
            file_events: true,
            edited_input: false,
            instructions: false,
            approval_recovery: ApprovalRecovery::None,
        }
    }
    fn availability(&self) -> Availability {
        Availability::Available
    }
    fn validate(&self, settings: &Value) -> Result<Value, Vec<String>> {
        Ok(settings.clone())
    }
    async fn start(&self, _options: StartOptions) -> Result<Started, StartError> {
        unimplemented!()
    }
}
