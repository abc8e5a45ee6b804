//! The task of a live demo: it carries turns out and serves commands meanwhile.
//!
//! Wherever it waits, for time, for room in the event channel, for a state to be stored or for a decision, it goes on
//! serving commands. So no command ever depends on somebody reading the events, and cancel is heard in mid-word.

use std::future::Future;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::effects::Effect;
use super::session::Command;
use super::state::{Phase, State, Turn, Verdict};
use super::workspace::Workspace;
use crate::domain::event::Output;
use crate::domain::policy::DeniedTools;
use crate::domain::turn::Failure;
use crate::harness::{Answer, HarnessError, HarnessEvent, TurnInput, TurnOutcome};

/// The stop reason of a turn that names none.
const END_TURN: &str = "end_turn";

/// A live demo at work.
pub(super) struct Task {
    commands: mpsc::Receiver<Command>,
    events: mpsc::Sender<HarnessEvent>,
    pub(super) state: State,
    pub(super) workspace: Workspace,
    pub(super) denied: DeniedTools,
    pub(super) token_delay: Duration,
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
    pub fn failed(failure: Failure) -> Self {
        Self::Outcome(TurnOutcome::Failed(failure))
    }

    pub fn completed(stop_reason: impl Into<String>) -> Self {
        Self::Outcome(TurnOutcome::Completed { stop_reason: stop_reason.into() })
    }
}

impl Task {
    pub fn new(
        commands: mpsc::Receiver<Command>,
        events: mpsc::Sender<HarnessEvent>,
        state: State,
        workspace: Workspace,
        denied: DeniedTools,
        token_delay: Duration,
    ) -> Self {
        Self { commands, events, state, workspace, denied, token_delay, cancelled: false, stopped: false }
    }

    /// Lives until it is stopped, dropped, or dies by its script.
    pub async fn run(mut self) {
        loop {
            let lived = if self.state.turn.is_some() { self.turn().await } else { self.next_command().await };
            if matches!(lived, Err(End::Gone)) {
                return;
            }
        }
    }

    async fn turn(&mut self) -> Result<(), End> {
        let outcome = match self.steps().await {
            Ok(()) => TurnOutcome::Completed { stop_reason: END_TURN.to_owned() },
            Err(End::Outcome(outcome)) => outcome,
            Err(End::Gone) => return Err(End::Gone),
        };
        self.state.turn = None;
        self.cancelled = false;
        self.checkpoint(None).await?;
        self.emit(HarnessEvent::TurnEnded(outcome), Heed::StopAlone).await
    }

    async fn steps(&mut self) -> Result<(), End> {
        // A restored turn stands in the middle of a step. Its open questions are asked again, under the same ids: the process
        // may have died before all of them were heard.
        let asked = self.state.asked();
        self.request(&asked).await?;
        self.settle().await?;
        loop {
            self.heed(Heed::Cancel)?;
            let Some(step) = self.state.next_step() else { return Ok(()) };
            self.step(step).await?;
        }
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

    fn heed(&self, heed: Heed) -> Result<(), End> {
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
        let room = self.events.clone().reserve_owned();
        // Nobody reads any more: nothing is left to work for.
        let room = self.wait(room, heed).await?.map_err(|_| End::Gone)?;
        room.send(event);
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
        let state = self.state.stored();
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

    /// Writes a line of the turn at work into the ledger.
    pub async fn record(&self, effect: Effect) -> Result<(), Failure> {
        match &self.state.turn {
            Some(turn) => effect.record(&self.workspace, &turn.turn_id).await,
            None => Err(Failure::new("ledger_failed", "no turn is at work")),
        }
    }

    async fn serve(&mut self, command: Option<Command>) {
        // A reply that nobody waits for any more is no failure of ours.
        match command {
            Some(Command::Prompt { turn, reply }) => {
                let _ = reply.send(self.take_prompt(turn).await.map_err(HarnessError));
            }
            Some(Command::Answer { answer, reply }) => {
                let _ = reply.send(self.take_answer(answer).await.map_err(HarnessError));
            }
            Some(Command::Cancel { reply }) => {
                self.cancelled = self.state.turn.is_some();
                let _ = reply.send(());
            }
            Some(Command::Detach { reply }) => {
                let _ = reply.send(self.state.stored());
            }
            Some(Command::Stop) | None => self.stopped = true,
        }
    }

    async fn take_prompt(&mut self, input: TurnInput) -> Result<(), Failure> {
        if self.state.turn.is_some() {
            return Err(Failure::new("turn_in_progress", "a turn is at work"));
        }
        let text = input.prompt.text();
        Effect::prompt(&text).record(&self.workspace, &input.turn_id).await?;
        self.state.turn = Some(Turn::new(input.turn_id, &text));
        Ok(())
    }

    async fn take_answer(&mut self, answer: Answer) -> Result<(), Failure> {
        if self.cancelled || !self.state.waits_for(&answer.native_id) {
            return Err(Failure::new(
                "approval_unknown",
                format!("no question {} waits for an answer", answer.native_id),
            ));
        }
        self.record(Effect::decision(&answer.native_id, answer.decision)).await?;
        let verdict = Verdict {
            decision: answer.decision,
            reason: answer.reason,
            edited_input: answer.edited_input,
            place: self.state.decisions(),
        };
        self.state.set_phase(&answer.native_id, Phase::Decided(verdict));
        Ok(())
    }
}
