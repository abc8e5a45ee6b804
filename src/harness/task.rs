//! A runtime inside the service: one task that carries turns out and serves commands meanwhile.
//!
//! Wherever it waits, for time, for room in the event channel, for a state to be stored or for a decision, it goes on
//! serving commands. So no command ever depends on somebody reading the events, and cancel is heard in mid-word.

use std::future::Future;

use async_trait::async_trait;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::AbortOnDropHandle;

use super::{Answer, EVENT_QUEUE, HarnessError, HarnessEvent, HarnessSession, TurnInput, TurnOutcome};
use crate::domain::event::Output;
use crate::domain::turn::Failure;

const COMMAND_QUEUE: usize = 16;
/// So many bytes of an event make it heavy: it is put out when nothing else waits to be read, so that there is one of its kind at most.
const HEAVY: usize = 64 << 10;

/// What one kind of runtime is beside its task: what it remembers, and what it does.
pub(super) trait Runtime: Send + Sync + Sized + 'static {
    /// Whether a turn is at work.
    fn at_work(&self) -> bool;
    /// Takes a prompt up, whose turn is at work from then on. None is when it is called.
    fn take_prompt(&mut self, input: TurnInput) -> impl Future<Output = Result<(), Failure>> + Send;
    /// Whether this question waits for an answer.
    fn waits_for(&self, native_id: &str) -> bool;
    /// Takes an answer to a question that waits for one.
    fn take_answer(&mut self, answer: Answer) -> impl Future<Output = Result<(), Failure>> + Send;
    /// Carries the turn at work out, from wherever it stands.
    fn carry_out(task: &mut Task<Self>) -> impl Future<Output = Result<(), End>> + Send;
    /// The turn at work has ended like that.
    fn end_turn(&mut self, outcome: &TurnOutcome);
    /// The state as it is given away; `None` when there is nothing to resume from.
    fn stored(&self) -> Option<Value>;
    /// Ends what it has started, before the task ends.
    fn close(&mut self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// A live runtime at work.
pub(super) struct Task<R> {
    /// The runtime.
    pub runtime: R,
    commands: mpsc::Receiver<Command>,
    events: mpsc::Sender<HarnessEvent>,
    /// The turn at work is to end.
    cancelled: bool,
    /// The task is to end.
    stopped: bool,
}

/// Why a turn does not go on.
#[derive(Debug)]
pub(super) enum End {
    /// It is over.
    Outcome(TurnOutcome),
    /// The harness is gone; nothing more is heard at all.
    Gone,
}

/// What interrupts a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heed {
    /// Cancel and all else.
    Cancel,
    /// All but cancel: what has happened is told, whoever cancelled meanwhile.
    StopAlone,
}

impl End {
    /// With an error.
    pub fn failed(failure: Failure) -> Self {
        Self::Outcome(TurnOutcome::Failed(failure))
    }

    /// In the ordinary way.
    pub fn completed(stop_reason: impl Into<String>) -> Self {
        Self::Outcome(TurnOutcome::Completed { stop_reason: stop_reason.into() })
    }
}

/// Starts a task, and gives its controls and what it does.
pub(super) fn spawn<R: Runtime>(runtime: R) -> (Box<dyn HarnessSession>, mpsc::Receiver<HarnessEvent>) {
    let (commands, receiver) = mpsc::channel(COMMAND_QUEUE);
    let (sender, events) = mpsc::channel(EVENT_QUEUE);
    let task = Task { runtime, commands: receiver, events: sender, cancelled: false, stopped: false };
    let task = AbortOnDropHandle::new(tokio::spawn(task.run()));
    (Box::new(Controls { commands, _task: task }), events)
}

impl<R: Runtime> Task<R> {
    /// Lives until it is stopped, dropped, or dies by itself.
    async fn run(mut self) {
        loop {
            let lived = if self.runtime.at_work() { self.turn().await } else { self.next_command().await };
            if matches!(lived, Err(End::Gone)) {
                self.runtime.close().await;
                return;
            }
        }
    }

    async fn turn(&mut self) -> Result<(), End> {
        let outcome = match R::carry_out(self).await {
            Ok(()) => TurnOutcome::Completed { stop_reason: "end_turn".to_owned() },
            Err(End::Outcome(outcome)) => outcome,
            Err(End::Gone) => return Err(End::Gone),
        };
        self.runtime.end_turn(&outcome);
        self.cancelled = false;
        // Together: the state is stored with the end, and not just before it as well.
        let state = HarnessEvent::Checkpoint { state: self.runtime.stored(), durable: None };
        self.emit_together([state, HarnessEvent::TurnEnded(outcome)], Heed::StopAlone).await
    }

    /// Waits for `work` and serves commands meanwhile.
    pub async fn wait<F: Future + Send>(&mut self, work: F, heed: Heed) -> Result<F::Output, End> {
        tokio::pin!(work);
        loop {
            self.heed(heed)?;
            tokio::select! {
                // Commands first: a stream that never has to wait must hear them too.
                biased;
                command = self.commands.recv() => self.serve(command).await,
                output = &mut work => return Ok(output),
            }
        }
    }

    /// Waits for one command and serves it.
    pub async fn next_command(&mut self) -> Result<(), End> {
        let command = self.commands.recv().await;
        self.serve(command).await;
        self.heed(Heed::Cancel)
    }

    /// Whether it may go on.
    pub fn heed(&self, heed: Heed) -> Result<(), End> {
        if self.stopped {
            Err(End::Gone)
        } else if self.cancelled && heed == Heed::Cancel {
            Err(End::Outcome(TurnOutcome::Cancelled))
        } else {
            Ok(())
        }
    }

    /// Puts an event out, when there is room for it.
    pub async fn emit(&mut self, event: HarnessEvent, heed: Heed) -> Result<(), End> {
        self.emit_together([event], heed).await
    }

    /// Puts events out that are read one right after the other.
    async fn emit_together<const N: usize>(
        &mut self,
        together: [HarnessEvent; N],
        heed: Heed,
    ) -> Result<(), End> {
        let events = self.events.clone();
        let is_heavy = together.iter().any(|event| event.weight() > HEAVY);
        let slots = if is_heavy { EVENT_QUEUE } else { N };
        // Nobody reads any more: nothing is left to work for.
        let mut room = self.wait(events.reserve_many(slots), heed).await?.map_err(|_| End::Gone)?;
        for event in together {
            room.next().ok_or(End::Gone)?.send(event);
        }
        Ok(())
    }

    /// Puts out something that a cancelled turn need not tell any more.
    pub async fn put(&mut self, output: Output) -> Result<(), End> {
        self.emit(HarnessEvent::Output(output), Heed::Cancel).await
    }

    /// Puts out something that has happened and must be told.
    pub async fn tell(&mut self, output: Output) -> Result<(), End> {
        self.emit(HarnessEvent::Output(output), Heed::StopAlone).await
    }

    /// Gives the state away as it is now.
    pub async fn checkpoint(&mut self, durable: Option<oneshot::Sender<()>>) -> Result<(), End> {
        let state = self.runtime.stored();
        self.emit(HarnessEvent::Checkpoint { state, durable }, Heed::StopAlone).await
    }

    /// Gives the state away and returns when it is stored.
    pub async fn checkpoint_durably(&mut self) -> Result<(), End> {
        let (durable, stored) = oneshot::channel();
        self.checkpoint(Some(durable)).await?;
        self.wait(stored, Heed::Cancel).await?.map_err(|_| {
            End::failed(Failure::new("state_not_stored", "the state could not be stored, so nothing was run"))
        })
    }

    async fn serve(&mut self, command: Option<Command>) {
        // A reply that nobody waits for any more is no failure of ours.
        match command {
            Some(Command::Prompt { turn, reply }) => {
                let taken = match self.runtime.at_work() {
                    true => Err(Failure::new("turn_in_progress", "a turn is at work")),
                    false => self.runtime.take_prompt(turn).await,
                };
                let _ = reply.send(taken.map_err(HarnessError));
            }
            Some(Command::Answer { answer, reply }) => {
                let taken = match !self.cancelled && self.runtime.waits_for(&answer.native_id) {
                    true => self.runtime.take_answer(answer).await,
                    false => {
                        let words = format!("no question {} waits for an answer", answer.native_id);
                        Err(Failure::new("approval_unknown", words))
                    }
                };
                let _ = reply.send(taken.map_err(HarnessError));
            }
            Some(Command::Cancel { reply }) => {
                self.cancelled = self.runtime.at_work();
                let _ = reply.send(());
            }
            Some(Command::Detach { reply }) => {
                let _ = reply.send(self.runtime.stored());
            }
            Some(Command::Stop) | None => self.stopped = true,
        }
    }
}

/// What the task is told. It tells back on the `reply`, and drops it when it ends.
enum Command {
    Prompt { turn: TurnInput, reply: oneshot::Sender<Result<(), HarnessError>> },
    Answer { answer: Answer, reply: oneshot::Sender<Result<(), HarnessError>> },
    Cancel { reply: oneshot::Sender<()> },
    Detach { reply: oneshot::Sender<Option<Value>> },
    Stop,
}

/// The controls: each is a command to the task.
struct Controls {
    commands: mpsc::Sender<Command>,
    /// Ends the task when the controls are dropped.
    _task: AbortOnDropHandle<()>,
}

impl Controls {
    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, HarnessError> {
        let exited = || HarnessError(Failure::new("harness_exited", "the harness is gone"));
        let (reply, told) = oneshot::channel();
        self.commands.send(command(reply)).await.map_err(|_| exited())?;
        told.await.map_err(|_| exited())
    }
}

#[async_trait]
impl HarnessSession for Controls {
    async fn prompt(&self, turn: TurnInput) -> Result<(), HarnessError> {
        self.ask(|reply| Command::Prompt { turn, reply }).await?
    }

    async fn answer(&self, answer: Answer) -> Result<(), HarnessError> {
        self.ask(|reply| Command::Answer { answer, reply }).await?
    }

    async fn cancel(&self) -> Result<(), HarnessError> {
        self.ask(|reply| Command::Cancel { reply }).await
    }

    async fn detach(&self) -> Result<Option<Value>, HarnessError> {
        self.ask(|reply| Command::Detach { reply }).await
    }

    async fn stop(&self) {
        // A task that is gone already has closed the channel: both are done at once then.
        let _ = self.commands.send(Command::Stop).await;
        self.commands.closed().await;
    }
}
