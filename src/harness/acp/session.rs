//! The controls of a live agent.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use serde_json::{Value, json};

use super::connection::{Gone, Waiter};
use super::handshake::Opened;
use super::link::{Link, State};
use super::permission::{self, Ask};
use super::protocol::{REQUEST_CANCELLED, RpcError, SendPrompt, TextBlock};
use super::pump::Job;
use crate::domain::turn::{ContentBlock, Failure, Prompt};
use crate::harness::{Answer, HarnessError, HarnessSession, TurnInput};

/// A live agent with an open conversation.
pub(super) struct AcpSession {
    link: Link,
    session_id: String,
    // Until the first prompt has taken them along.
    instructions: Mutex<Option<String>>,
    restart_after_cancel: bool,
    was_cancelled: AtomicBool,
}

impl AcpSession {
    pub(super) fn new(link: Link, opened: Opened, restart_after_cancel: bool) -> Self {
        Self {
            link,
            session_id: opened.session_id,
            instructions: Mutex::new(opened.instructions),
            restart_after_cancel,
            was_cancelled: AtomicBool::new(false),
        }
    }

    fn state(&self) -> State {
        let pending = self.instructions.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        self.link.shared.state(&self.session_id, pending)
    }

    fn gone(&self, Gone: Gone) -> HarnessError {
        let message = format!("{} cannot be reached", self.link.shared.name);
        HarnessError(Failure::new("agent_unreachable", message))
    }

    // True when these were the instructions' turn.
    fn forget_instructions(&self) -> bool {
        self.instructions.lock().unwrap_or_else(PoisonError::into_inner).take().is_some()
    }

    fn blocks(&self, prompt: Prompt) -> Vec<TextBlock> {
        let instructions = self.instructions.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let said = match prompt {
            Prompt::Text(text) => vec![text],
            Prompt::Blocks(blocks) => blocks.into_iter().map(|ContentBlock::Text { text }| text).collect(),
        };
        instructions.into_iter().chain(said).map(|text| TextBlock { text }).collect()
    }
}

#[async_trait]
impl HarnessSession for AcpSession {
    async fn prompt(&self, turn: TurnInput) -> Result<(), HarnessError> {
        let shared = &self.link.shared;
        if !shared.lock_turn().begin() {
            // No two agents do the same with a second prompt, and some never answer it.
            return Err(HarnessError(Failure::new("agent_busy", "a turn is at work")));
        }
        let params = SendPrompt { session_id: &self.session_id, prompt: self.blocks(turn.prompt) };
        if let Err(gone) = shared.connection.call("session/prompt", &params, Waiter::Prompt).await {
            shared.lock_turn().end();
            return Err(self.gone(gone));
        }
        if self.forget_instructions() {
            // The pump goes on as long as the agent; without it nobody needs a state any more.
            let _ = self.link.jobs.send(Job::Checkpoint(self.state()));
        }
        Ok(())
    }

    async fn answer(&self, answer: Answer) -> Result<(), HarnessError> {
        let error = |code: &str, message: &str| Err(HarnessError(Failure::new(code, message)));
        if answer.edited_input.is_some() {
            return error("unsupported", "ACP has no way to change a tool's input");
        }
        let shared = &self.link.shared;
        let Some(question) = shared.questions.take(&answer.native_id) else {
            return error("approval_unknown", "the agent does not wait for this answer");
        };
        let outcome = match question.ask {
            Ask::Permission(options) => Ok(permission::outcome(&options, &answer)),
            Ask::Write(write) if permission::allows_write(&answer) => {
                let job = Job::Write { request_id: question.request_id, write };
                return self.link.jobs.send(job).map_err(|_| self.gone(Gone));
            }
            Ask::Write(_) => Err(RpcError::new(REQUEST_CANCELLED, "the write was refused")),
        };
        let answered = shared.connection.answer(&question.request_id, outcome).await;
        answered.map_err(|gone| self.gone(gone))
    }

    async fn cancel(&self) -> Result<(), HarnessError> {
        let shared = &self.link.shared;
        // First the mark, so that a question which comes from now on is answered like those that wait.
        let at_work = {
            let mut turn = shared.lock_turn();
            turn.cancelled = true;
            turn.at_work
        };
        let questions = shared.questions.take_all();
        // To an agent at rest a cancel is no use, and one is known that takes its next prompt for cancelled then.
        if at_work {
            self.was_cancelled.store(true, Ordering::Relaxed);
            let params = json!({"sessionId": self.session_id});
            shared.connection.notify("session/cancel", &params).await.map_err(|gone| self.gone(gone))?;
        }
        for (_, question) in questions {
            let answered = shared.connection.answer(&question.request_id, question.ask.cancelled()).await;
            answered.map_err(|gone| self.gone(gone))?;
        }
        Ok(())
    }

    fn is_spent(&self) -> bool {
        self.restart_after_cancel && self.was_cancelled.load(Ordering::Relaxed)
    }

    async fn detach(&self) -> Result<Option<Value>, HarnessError> {
        Ok(Some(self.state().to_value()))
    }

    async fn stop(&self) {
        self.link.process.stop(|| self.link.shared.closing.cancel()).await;
    }
}
