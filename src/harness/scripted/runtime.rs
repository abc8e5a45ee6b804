//! A live demo: its state, its workspace, and the way through a turn.

use std::time::Duration;

use serde_json::Value;

use super::effects::Effect;
use super::state::{Phase, State, Turn, Verdict};
use super::workspace::Workspace;
use crate::domain::policy::DeniedTools;
use crate::domain::turn::Failure;
use crate::harness::task::{End, Heed, Runtime, Task};
use crate::harness::{Answer, TurnInput, TurnOutcome};

/// See the module.
pub(super) struct Script {
    pub state: State,
    pub workspace: Workspace,
    pub denied: DeniedTools,
    pub token_delay: Duration,
}

impl Script {
    /// Writes a line of the turn at work into the ledger.
    pub async fn record(&self, effect: Effect) -> Result<(), Failure> {
        match &self.state.turn {
            Some(turn) => effect.record(&self.workspace, &turn.turn_id).await,
            None => Err(Failure::new("ledger_failed", "no turn is at work")),
        }
    }
}

impl Runtime for Script {
    fn at_work(&self) -> bool {
        self.state.turn.is_some()
    }

    async fn take_prompt(&mut self, input: TurnInput) -> Result<(), Failure> {
        let text = input.prompt.text();
        Effect::prompt(&text).record(&self.workspace, &input.turn_id).await?;
        self.state.turn = Some(Turn::new(input.turn_id, &text));
        Ok(())
    }

    fn waits_for(&self, native_id: &str) -> bool {
        self.state.waits_for(native_id)
    }

    async fn take_answer(&mut self, answer: Answer) -> Result<(), Failure> {
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

    async fn carry_out(task: &mut Task<Self>) -> Result<(), End> {
        // A restored turn stands in the middle of a step. Its open questions are asked again, under the same ids: the process
        // may have died before all of them were heard.
        let asked = task.runtime.state.asked();
        task.request(&asked).await?;
        task.settle().await?;
        loop {
            task.heed(Heed::Cancel)?;
            let Some(step) = task.runtime.state.next_step() else { return Ok(()) };
            task.step(step).await?;
        }
    }

    fn end_turn(&mut self, _: &TurnOutcome) {
        self.state.turn = None;
    }

    fn stored(&self) -> Option<Value> {
        self.state.stored()
    }
}
