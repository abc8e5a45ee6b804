//! From a fresh process to an open conversation: the old one where it can be taken up, else a new one.

use serde_json::Value;
use tokio::sync::oneshot;

use super::config::AcpConfig;
use super::connection::{CallError, Gone, Waiter};
use super::link::{Link, State};
use super::protocol::{AUTH_REQUIRED, Initialize, OpenSession, RpcError, read_initialize, read_modes};
use crate::domain::turn::Failure;
use crate::harness::{Continuity, Introduction, Restore, StartOptions};

/// An open conversation.
#[derive(Debug)]
pub(super) struct Opened {
    /// The agent's id of it.
    pub session_id: String,
    /// How it relates to the conversation so far.
    pub continuity: Continuity,
    /// The instructions, where the first prompt is still to carry them.
    pub instructions: Option<String>,
    /// What the agent said of itself.
    pub introduction: Introduction,
}

// What taking up, or beginning, a conversation came to.
struct Conversation {
    session_id: String,
    answer: Value,
    continuity: Continuity,
    instructions: Option<String>,
}

/// Speaks with the agent until a conversation is open and set up as the operator wants it.
///
/// # Errors
/// What the session's record tells. The agent still runs then.
pub(super) async fn open(link: &Link, config: &AcpConfig, options: &StartOptions) -> Result<Opened, Failure> {
    let connection = &link.shared.connection;
    let answer = connection.request("initialize", &Initialize::ours()).await;
    let answer = answer.map_err(|error| failure(link, "initialize", error))?;
    let mut introduction = read_initialize(&answer)
        .map_err(|words| Failure::new("agent_protocol_error", format!("{}: {words}", link.shared.name)))?;
    if let Some(method_id) = &config.authenticate {
        let params = serde_json::json!({"methodId": method_id});
        let answer = connection.request("authenticate", &params).await;
        answer.map_err(|error| failure(link, "authenticate", error))?;
    }
    let restore = introduction.restore.unwrap_or(Restore::None);
    let opened = conversation(link, restore, options).await?;
    read_modes(&opened.answer, &mut introduction);
    for request in &config.after_new {
        // It sets, say, when the agent asks before it acts. Going on without it would be less safe than the operator said.
        let params = request.params_for(&opened.session_id);
        let answer = connection.request(&request.method, &params).await;
        answer.map_err(|error| failure(link, &request.method, error))?;
        if request.method == "session/set_mode" {
            introduction.mode = params["modeId"].as_str().map(str::to_owned);
        }
    }
    let Conversation { session_id, continuity, instructions, .. } = opened;
    Ok(Opened { session_id, continuity, instructions, introduction })
}

async fn conversation(
    link: &Link,
    restore: Restore,
    options: &StartOptions,
) -> Result<Conversation, Failure> {
    let reason = match &options.resume {
        None => None,
        Some(state) => match (serde_json::from_value::<State>(state.clone()), restore) {
            (Err(_), _) => Some("the stored state is not one of an ACP agent".to_owned()),
            // Agents look a conversation up by its directory, and one that does not would work on in a place that it does not know.
            (Ok(state), _) if state.cwd != link.shared.cwd => {
                Some(format!("the conversation was held in another directory, {}", state.cwd))
            }
            (Ok(_), Restore::None) => Some(format!("{} cannot take a conversation up", link.shared.name)),
            (Ok(state), Restore::Resume) => match take_up(link, "session/resume", state, options).await? {
                Ok(opened) => return Ok(opened),
                Err(refusal) => Some(refusal.message),
            },
            (Ok(state), Restore::Load) => match take_up(link, "session/load", state, options).await? {
                Ok(opened) => return Ok(opened),
                Err(refusal) => Some(refusal.message),
            },
        },
    };
    let opened = call(link, "session/new", None, options.instructions.is_some()).await;
    let (session_id, answer) = opened.map_err(|error| failure(link, "session/new", error))?;
    let continuity = reason.map_or(Continuity::New, |reason| Continuity::Lost { reason });
    Ok(Conversation { session_id, answer, continuity, instructions: options.instructions.clone() })
}

// Agents have different codes for a conversation that they do not know, so every refusal counts as that, but for those
// that a new conversation would meet just the same.
async fn take_up(
    link: &Link,
    method: &str,
    state: State,
    options: &StartOptions,
) -> Result<Result<Conversation, RpcError>, Failure> {
    let pending = state.instructions_pending;
    match call(link, method, Some(&state.session_id), pending).await {
        Ok((session_id, answer)) => {
            let instructions = options.instructions.clone().filter(|_| pending);
            Ok(Ok(Conversation { session_id, answer, continuity: Continuity::Restored, instructions }))
        }
        Err(CallError::Refused(refusal)) if refusal.code != AUTH_REQUIRED => Ok(Err(refusal)),
        Err(error) => Err(Failure { code: "agent_resume_failed".to_owned(), ..failure(link, method, error) }),
    }
}

async fn call(
    link: &Link,
    method: &str,
    session_id: Option<&str>,
    instructions_pending: bool,
) -> Result<(String, Value), CallError> {
    let (reply, answer) = oneshot::channel();
    let waiter = Waiter::Open { session_id: session_id.map(str::to_owned), instructions_pending, reply };
    let params = OpenSession { session_id, cwd: &link.shared.cwd, mcp_servers: [] };
    let sent = link.shared.connection.call(method, &params, waiter).await;
    sent.map_err(|Gone| CallError::Gone)?;
    answer.await.map_err(|_| CallError::Gone)?.map_err(CallError::Refused)
}

fn failure(link: &Link, method: &str, error: CallError) -> Failure {
    let name = &link.shared.name;
    let message = match error {
        CallError::Gone => format!("{name} went away at {method}"),
        CallError::Refused(RpcError { code: AUTH_REQUIRED, message }) => {
            format!("{name} wants credentials: {message}")
        }
        CallError::Refused(RpcError { message, .. }) => format!("{name} refused {method}: {message}"),
    };
    Failure::new("agent_start_failed", message)
}
