//! MCP servers: a child process for each session, or a streamable HTTP server, with the same tools to the model.
//!
//! - `live`: a server that runs, from its start to its end; `offers`: the tools that it has;
//! - `pipes`, `http`: the two ways to one; `sieve`: what of its messages we hear;
//! - `reply`: what the model is given of an answer;
//! - here: a call, and what becomes of it when the server does not answer.
//!
//! A call is made once. A server that was lost is started anew by the next call, not by the one that it was lost in.

mod http;
mod live;
mod offers;
mod pipes;
mod reply;
mod sieve;

use std::sync::Arc;
use std::time::Duration;

use rmcp::model::CallToolRequestParams;
use rmcp::service::ServiceError;
use serde_json::{Map, Value};
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::live::{Live, Way};
use super::Called;
use super::cap::capped;
use super::names::Offer;
use super::place::Place;
use crate::harness::Fence;
use crate::harness::agent::config::McpServerConfig;
use crate::harness::agent::http::Clients;

/// How long the answer of a server that has ended may take to be read.
const LAST_ANSWER_GRACE: Duration = Duration::from_millis(200);

/// What a server is started from.
pub(super) struct Plan<'a> {
    /// Its name.
    pub name: &'a str,
    /// What the operator, or the session, says of it.
    pub config: &'a McpServerConfig,
    /// Where it runs, if it is a child process.
    pub place: &'a Place,
    /// The way to it, if it is not.
    pub clients: &'a Clients,
    /// How long a call may take.
    pub limit: Duration,
    /// How much of a result the model is given.
    pub result_max_bytes: usize,
}

/// A server of a session. Dropping it ends it at once.
pub(super) struct Server {
    name: String,
    way: Way,
    fence: Fence,
    limit: Duration,
    max: usize,
    live: Mutex<Option<Arc<Live>>>,
    closing: CancellationToken,
}

impl Server {
    /// Starts it and asks for its tools.
    ///
    /// # Errors
    /// In words that follow its name.
    pub(super) async fn start(plan: Plan<'_>) -> Result<(Self, Vec<Offer>), String> {
        let way = Way::of(&plan)?;
        let live = Live::start(plan.name, &way).await?;
        let offers = match timeout(live::START_DEADLINE, offers::list(&live.peer, plan.config)).await {
            Ok(Ok(offers)) => offers,
            Ok(Err(words)) => return Err(live.abandon(words).await),
            Err(_) => return Err(live.abandon("it did not say in time which tools it has".to_owned()).await),
        };
        let server = Self {
            name: plan.name.to_owned(),
            way,
            fence: plan.place.fence.clone(),
            limit: plan.limit,
            max: plan.result_max_bytes,
            live: Mutex::new(Some(Arc::new(live))),
            closing: CancellationToken::new(),
        };
        Ok((server, offers))
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Calls a tool by the server's own name of it. Dropping the future tells the server that it is not wanted any more.
    pub(super) async fn call(&self, tool: &str, input: Map<String, Value>) -> Called {
        if self.closing.is_cancelled() {
            return Called::failed(self.words("was ended with its session"));
        }
        let called = tokio::select! {
            biased;
            () = self.closing.cancelled() => Called::uncertain(self.words("was ended in mid-call")),
            called = self.call_now(tool, input) => called,
        };
        Called { content: capped(called.content, self.max), ..called }
    }

    async fn call_now(&self, tool: &str, input: Map<String, Value>) -> Called {
        let live = match self.live().await {
            Ok(live) => live,
            Err(words) => return Called::failed(format!("The MCP server {} {words}", self.name)),
        };
        if let Err(error) = self.fence.pass() {
            return Called::failed(error.to_string());
        }
        let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(input);
        let mut answer = std::pin::pin!(timeout(self.limit, live.peer.call_tool_once(params)));
        let answer = tokio::select! {
            biased;
            answer = &mut answer => answer,
            () = live.gone() => match timeout(LAST_ANSWER_GRACE, answer).await {
                Ok(answer) => answer,
                Err(_) => Ok(Err(ServiceError::TransportClosed)),
            },
        };
        match answer {
            Ok(Ok(response)) => reply::read(response),
            Ok(Err(error)) => self.unanswered(error, &live).await,
            Err(_) => {
                let seconds = self.limit.as_secs();
                Called::uncertain(self.words(&format!(
                    "did not answer within {seconds} s and was told to stop; the call may have happened"
                )))
            }
        }
    }

    async fn unanswered(&self, error: ServiceError, live: &Live) -> Called {
        match error {
            ServiceError::McpError(error) => Called::failed(error.message.into_owned()),
            // Over HTTP it is the one request that was lost.
            ServiceError::TransportSend(error) if !live.is_child() => {
                match http::refusal(error.error.as_ref()) {
                    Some(why) => Called::failed(self.words(&why)),
                    None => {
                        let why = http::words(error.error.as_ref());
                        Called::uncertain(self.words(&format!("was lost: {why}; the call may have happened")))
                    }
                }
            }
            ServiceError::TransportClosed | ServiceError::TransportSend(_) => {
                let how = live.lose().await;
                Called::uncertain(self.words(&format!("{how} in mid-call; the call may have happened")))
            }
            // Nothing in it but how the answer did not look.
            _ => Called::uncertain(
                self.words("gave an answer that cannot be read; the call may have happened"),
            ),
        }
    }

    // The server as it runs, or started anew where it does not run any more.
    async fn live(&self) -> Result<Arc<Live>, String> {
        let mut slot = self.live.lock().await;
        if let Some(live) = slot.as_ref().filter(|live| !live.is_gone()) {
            return Ok(Arc::clone(live));
        }
        if let Some(lost) = slot.take() {
            lost.end().await;
        }
        tracing::info!(server = self.name, "an MCP server is started anew");
        let live = Live::start(&self.name, &self.way).await;
        let live =
            Arc::new(live.map_err(|words| format!("has ended and could not be started anew: {words}"))?);
        *slot = Some(Arc::clone(&live));
        Ok(live)
    }

    /// Ends it and all that it has started, gently at first. May be called twice, and while a call is at work.
    pub(super) async fn close(&self) {
        self.closing.cancel();
        let live = self.live.lock().await.take();
        if let Some(live) = live {
            live.end().await;
        }
    }

    fn words(&self, what: &str) -> String {
        format!("The MCP server {} {what}.", self.name)
    }
}
