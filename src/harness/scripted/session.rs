//! The controls of a live demo: each is a command to the task that does the work.

use async_trait::async_trait;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::AbortOnDropHandle;

use super::task::Task;
use crate::domain::turn::Failure;
use crate::harness::{Answer, HarnessError, HarnessSession, TurnInput};

const COMMAND_QUEUE: usize = 16;

/// What the task is told. It tells back on the `reply`, and drops it when it ends.
pub(super) enum Command {
    Prompt { turn: TurnInput, reply: oneshot::Sender<Result<(), HarnessError>> },
    Answer { answer: Answer, reply: oneshot::Sender<Result<(), HarnessError>> },
    Cancel { reply: oneshot::Sender<()> },
    Detach { reply: oneshot::Sender<Option<Value>> },
    Stop,
}

/// A live demo.
pub(super) struct ScriptedSession {
    commands: mpsc::Sender<Command>,
    /// Ends the task when the session is dropped.
    _task: AbortOnDropHandle<()>,
}

impl ScriptedSession {
    /// Starts the task that `make` gives.
    pub fn spawn(make: impl FnOnce(mpsc::Receiver<Command>) -> Task) -> Self {
        let (commands, receiver) = mpsc::channel(COMMAND_QUEUE);
        let task = AbortOnDropHandle::new(tokio::spawn(make(receiver).run()));
        Self { commands, _task: task }
    }

    async fn tell<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, HarnessError> {
        let (reply, told) = oneshot::channel();
        self.commands.send(command(reply)).await.map_err(|_| exited())?;
        told.await.map_err(|_| exited())
    }
}

fn exited() -> HarnessError {
    HarnessError(Failure::new("harness_exited", "the demo harness is gone"))
}

#[async_trait]
impl HarnessSession for ScriptedSession {
    async fn prompt(&self, turn: TurnInput) -> Result<(), HarnessError> {
        self.tell(|reply| Command::Prompt { turn, reply }).await?
    }

    async fn answer(&self, answer: Answer) -> Result<(), HarnessError> {
        self.tell(|reply| Command::Answer { answer, reply }).await?
    }

    async fn cancel(&self) -> Result<(), HarnessError> {
        self.tell(|reply| Command::Cancel { reply }).await
    }

    async fn detach(&self) -> Result<Option<Value>, HarnessError> {
        self.tell(|reply| Command::Detach { reply }).await
    }

    async fn stop(&self) {
        // A task that is gone already has closed the channel: both are done at once then.
        let _ = self.commands.send(Command::Stop).await;
        self.commands.closed().await;
    }
}
