//! The `demo` harness: deterministic, no network, no credentials.

use async_trait::async_trait;
use serde_json::Value;

use super::{ApprovalRecovery, Availability, Capabilities, Harness, StartError, StartOptions, Started};

/// The `demo` harness.
#[derive(Debug, Default)]
pub struct ScriptedHarness;

#[async_trait]
impl Harness for ScriptedHarness {
    fn name(&self) -> &str {
        "demo"
    }
    fn label(&self) -> &str {
        "Demo"
    }
    fn description(&self) -> &str {
        "A deterministic harness inside the service: no network, no credentials."
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            sandbox: false,
            resumable: true,
            approvals: true,
            host_tools: false,
            file_events: true,
            edited_input: true,
            instructions: true,
            approval_recovery: ApprovalRecovery::Exact,
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
