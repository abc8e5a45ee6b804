//! A live agent: what it remembers, what it works with, and the way through a turn.
//!
//! A turn is a row of steps: a plan, an answer of the model, the calls of that answer, the verification of the last one. After each the
//! state is given away, and before a tool runs it is stored that it may have run. So whatever process dies, the next one knows where
//! this one stood. What it cannot know is whether a tool that had begun has taken effect: that call is told to the model as uncertain,
//! and the turn ends as interrupted, unless a person was asked something that is still to be answered or acted upon.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::context::{Budget, TokenEstimate};
use super::message::Outcome;
use super::model::{Model, ToolSpec};
use super::settings::{PlanningMode, Settings};
use super::state::{Phase, Stage, State, Turn, UNCERTAIN};
use super::stopwatch::Stopwatch;
use super::tools::Toolbox;
use super::verification::ProjectCheck;
use crate::clock::Clock;
use crate::domain::event::{Output, RewindReason};
use crate::domain::policy::DeniedTools;
use crate::domain::turn::Failure;
use crate::harness::task::{End, Heed, Runtime, Task};
use crate::harness::{Answer, TurnInput, TurnOutcome};

/// So many processes may be lost at one and the same step.
const STALLS_MAX: u64 = 5;

/// See the module.
pub(super) struct Agent {
    pub state: State,
    pub settings: Settings,
    pub model: Model,
    pub estimate: TokenEstimate,
    pub budget: Budget,
    pub tools: Arc<Toolbox>,
    /// The tools that the model is told of.
    pub offered: Vec<ToolSpec>,
    /// What these take of the context.
    pub offered_tokens: u64,
    /// What servers offered and the model is not told of, until the log says so.
    pub left_out: Vec<String>,
    pub denied: DeniedTools,
    /// What the model is told of its place.
    pub system: String,
    pub project: Option<Arc<ProjectCheck>>,
    pub clock: Clock,
    pub stopwatch: Stopwatch,
    /// The turn at work began in a process that is lost.
    pub restored: bool,
}

impl Agent {
    /// What is left of the turn's time.
    ///
    /// # Errors
    /// `duration_limit` when nothing is.
    pub fn time_left(&self) -> Result<Duration, End> {
        let most = Duration::from_secs(self.settings.execution.max_duration_seconds);
        let left = most.saturating_sub(self.stopwatch.elapsed());
        if left.is_zero() { Err(self.out_of_time()) } else { Ok(left) }
    }

    /// How a turn ends that has no time left.
    pub fn out_of_time(&self) -> End {
        let most = self.settings.execution.max_duration_seconds;
        End::failed(Failure::new(
            "duration_limit",
            format!("the turn has worked for {most} s, and may not work longer"),
        ))
    }

    /// The turn at work.
    ///
    /// # Errors
    /// There is one wherever this is asked.
    pub fn turn(&mut self) -> Result<&mut Turn, End> {
        self.state.turn.as_mut().ok_or(End::Gone)
    }
}

impl Runtime for Agent {
    fn at_work(&self) -> bool {
        self.state.turn.is_some()
    }

    async fn take_prompt(&mut self, input: TurnInput) -> Result<(), Failure> {
        self.state.begin(input, &self.settings, self.clock.now());
        self.restored = false;
        Ok(())
    }

    fn waits_for(&self, native_id: &str) -> bool {
        self.state.all_asked().iter().any(|call| call.native_id.as_deref() == Some(native_id))
    }

    async fn take_answer(&mut self, answer: Answer) -> Result<(), Failure> {
        if let Some(call) = self.state.asked(&answer.native_id) {
            let Answer { decision, reason, edited_input, .. } = answer;
            call.phase = Phase::Decided { decision, reason, edited_input };
        }
        Ok(())
    }

    async fn carry_out(task: &mut Task<Self>) -> Result<(), End> {
        let worked = Duration::from_millis(task.runtime.turn()?.worked_ms);
        task.runtime.stopwatch = Stopwatch::from(worked);
        if std::mem::take(&mut task.runtime.restored) {
            task.take_up().await?;
        }
        for label in std::mem::take(&mut task.runtime.left_out) {
            task.put(Output::Activity { label, tool: None, raw: None }).await?;
        }
        loop {
            task.heed(Heed::Cancel)?;
            task.settle_calls().await?;
            match task.runtime.turn()?.stage.clone() {
                Stage::Plan => task.plan().await?,
                Stage::Model => task.think().await?,
                Stage::Verify { stop_reason } => {
                    if task.verify().await? {
                        return Err(End::completed(stop_reason));
                    }
                }
            }
        }
    }

    fn end_turn(&mut self, outcome: &TurnOutcome) {
        self.state.end_turn(outcome, &self.settings, self.clock.now());
    }

    fn stored(&self) -> Option<Value> {
        self.state.stored()
    }

    async fn close(&mut self) {
        self.tools.close().await;
    }
}

impl Task<Agent> {
    /// Goes on where a lost process stood.
    async fn take_up(&mut self) -> Result<(), End> {
        let turn = self.runtime.turn()?;
        turn.stalls += 1;
        if turn.stalls > STALLS_MAX {
            return Err(End::Outcome(TurnOutcome::Interrupted));
        }
        let uncertain: Vec<usize> =
            (0..turn.calls.len()).filter(|at| turn.calls[*at].phase == Phase::Started).collect();
        if uncertain.is_empty()
            && turn.calls.iter().all(|call| call.phase == Phase::Done)
            && turn.stage == Stage::Model
        {
            // The answer that it was hearing is asked for again.
            let length = turn.said;
            self.put(Output::TextRewound { length, reason: RewindReason::Resumed }).await?;
        }
        for at in &uncertain {
            self.record(*at, Outcome::Uncertain, UNCERTAIN.to_owned()).await?;
        }
        self.note_durably().await?;
        let goes_on = uncertain.is_empty() || self.runtime.turn()?.has_question();
        if !goes_on {
            return Err(End::Outcome(TurnOutcome::Interrupted));
        }
        self.ask_again().await
    }

    /// Gives the state away, with the time that the turn has worked.
    pub(super) async fn note(&mut self) -> Result<(), End> {
        self.note_time()?;
        self.checkpoint(None).await
    }

    /// [`Task::note`], and returns when it is stored.
    pub(super) async fn note_durably(&mut self) -> Result<(), End> {
        self.note_time()?;
        self.checkpoint_durably().await
    }

    fn note_time(&mut self) -> Result<(), End> {
        let worked = self.runtime.stopwatch.elapsed().as_millis();
        self.runtime.turn()?.worked_ms = u64::try_from(worked).unwrap_or(u64::MAX);
        Ok(())
    }

    /// How the session wants its plans.
    pub(super) fn planning(&self) -> PlanningMode {
        self.runtime.settings.planning.mode
    }
}
