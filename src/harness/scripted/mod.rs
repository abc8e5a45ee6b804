//! The `demo` harness: deterministic, no network, no credentials. It is what a newcomer meets first, what the tests
//! drive, and what benchmarks run on. A prompt is a script: each line that begins with `/` is a directive.
//!
//! Its whole memory is its resume state, so that it restores exactly, and it keeps a ledger of its effects in the
//! workspace, so that a test can prove that nothing ran twice and nothing was lost.

mod effects;
mod runtime;
mod script;
mod state;
mod steps;
mod tools;
mod workspace;

use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};

use self::runtime::Script;
use self::state::State;
use self::workspace::Workspace;
use super::{
    ApprovalRecovery, Availability, Capabilities, Continuity, Harness, StartError, StartOptions, Started,
    TurnRecovery, task,
};
use crate::domain::turn::Failure;
use crate::ids::TurnId;

/// The one setting: how long it waits between two words, in milliseconds.
const TOKEN_DELAY: &str = "token_delay_ms";
/// So that a person sees it stream.
const TOKEN_DELAY_DEFAULT: u64 = 15;
const TOKEN_DELAY_MAX: u64 = 1000;

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
            recovery: TurnRecovery::Interrupt,
        }
    }
    fn availability(&self) -> Availability {
        Availability::Available
    }

    fn version(&self) -> Option<String> {
        Some(env!("CARGO_PKG_VERSION").to_owned())
    }

    fn validate(&self, settings: &Value) -> Result<Value, Vec<String>> {
        token_delay(settings).map(|delay| json!({ TOKEN_DELAY: delay }))
    }

    async fn start(&self, options: StartOptions) -> Result<Started, StartError> {
        let failed = |code: &str, message: String| StartError::Failed(Failure::new(code, message));
        let delay = token_delay(&options.settings)
            .map_err(|complaints| failed("invalid_settings", complaints.join("; ")))?;
        let workspace = Workspace::open(options.workspace, options.fence)
            .await
            .map_err(|error| failed("workspace_unavailable", format!("the workspace: {error}")))?;
        let (mut state, continuity) =
            take_up(options.resume, options.open_turn.map(|turn| turn.turn_id).as_ref());
        state.instructions = options.instructions.or(state.instructions);

        let (denied, token_delay) = (options.denied_tools, Duration::from_millis(delay));
        let (session, events) = task::spawn(Script { state, workspace, denied, token_delay });
        Ok(Started { session, events, continuity, native_id: None, waits_for: Vec::new() })
    }
}

/// The state to begin with. One that cannot be read is a lost conversation, told as such, not a session that cannot start.
fn take_up(resume: Option<Value>, open_turn: Option<&TurnId>) -> (State, Continuity) {
    match resume.map(|stored| State::restore(stored, open_turn)) {
        None => (State::default(), Continuity::New),
        Some(Ok(state)) => (state, Continuity::Exact),
        Some(Err(reason)) => (State::default(), Continuity::Lost { reason }),
    }
}

/// Reads the settings, and names all that is wrong with them at once.
fn token_delay(settings: &Value) -> Result<u64, Vec<String>> {
    if settings.is_null() {
        return Ok(TOKEN_DELAY_DEFAULT);
    }
    let Value::Object(settings) = settings else {
        return Err(vec!["settings: must be an object".to_owned()]);
    };
    let mut delay = TOKEN_DELAY_DEFAULT;
    let mut complaints = Vec::new();
    for (key, value) in settings {
        if key != TOKEN_DELAY {
            complaints.push(format!("{key}: unknown; the demo harness takes {TOKEN_DELAY} alone"));
        } else if let Some(given) = value.as_u64().filter(|given| *given <= TOKEN_DELAY_MAX) {
            delay = given;
        } else {
            complaints.push(format!("{key}: must be a whole number from 0 to {TOKEN_DELAY_MAX}"));
        }
    }
    if complaints.is_empty() { Ok(delay) } else { Err(complaints) }
}

#[cfg(test)]
mod tests;
