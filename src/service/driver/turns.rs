//! Turns: given to the harness, followed, ended.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::oneshot;

use super::Driver;
use super::harness::{RunningHarness, input_of};
use super::work::{Ending, Work};
use crate::clock::Timestamp;
use crate::domain::approval::{Approval, ApprovalStatus};
use crate::domain::event::{EventBody, NewEvent, Output};
use crate::domain::session::{Session, Wish};
use crate::domain::turn::{Failure, TurnEnd, TurnStatus, Usage};
use crate::fault;
use crate::harness::{Continuity, HarnessEvent, TurnOutcome};
use crate::service::rows::Rows;
use crate::service::turn_end::Ending as Closing;
use crate::service::{Counters, ServiceResult};
use crate::store::{TurnSet, TurnWrite};

impl Driver {
    /// Gives the queued turn to the harness, starting one where none runs. That the prompt is on its way is stored before it is:
    /// from then on it is never given to a harness again. Gives whether it is at work.
    pub(super) async fn start_turn(&mut self, rows: Rows) -> ServiceResult<bool> {
        if self.harness.as_ref().is_some_and(RunningHarness::is_spent) {
            self.put_harness_away().await;
            self.save_state().await?;
        }
        // A start takes its time, and writes: what was read before it is old.
        let known = if self.harness.is_some() {
            Some(rows)
        } else if self.start_harness(&rows.session, None).await?.is_some() {
            None
        } else {
            return Ok(false);
        };
        let rehydrated = self.take_rehydrated();
        let dispatched = self
            .commit_from(known, |change, rows| {
                let current = rows.current_turn().filter(|turn| turn.status == TurnStatus::Queued);
                let (Some(turn), None) = (current, rows.session.wish) else { return Ok(None) };
                let at = change.set.at;
                change.turns.push(TurnWrite::Update(TurnSet {
                    started_at: Some(at),
                    rehydrated: Some(rehydrated),
                    ..TurnSet::status(turn.ordinal, TurnStatus::Running)
                }));
                change.events.push(NewEvent {
                    turn: Some(turn.reference()),
                    at,
                    body: EventBody::TurnStarted {},
                });
                Ok(Some((turn.clone(), rows.session.limits.turn())))
            })
            .await?;
        let Some((turn, limit)) = dispatched else { return Ok(false) };
        self.work = Some(Work::new(&turn, limit, self.now()));
        self.live.works();
        fault::point("prompt.before");
        let input = input_of(&turn);
        match self.ask_harness(|harness| harness.prompt(input)).await {
            Ok(()) => {
                fault::point("prompt.given");
                Ok(true)
            }
            Err(failure) => {
                self.stop_harness().await;
                self.end_turn(TurnEnd::Failed(failure)).await?;
                Ok(false)
            }
        }
    }

    /// Starts a harness that stands in the middle of the current turn.
    pub(super) async fn take_up_turn(&mut self, session: &Session) -> ServiceResult<()> {
        let Some(turn) = session.turn.clone() else { return Ok(()) };
        let so_far = self.service.so_far(session.key, &turn).await?;
        self.work = Some(Work::taken_up(&turn, so_far, session.limits.turn()));
        self.live.works();
        match self.start_harness(session, Some(input_of(&turn))).await? {
            Some(Continuity::Exact) if self.service.resumes(session) => {
                self.note_taken_up().await?;
                self.settle_earlier_answers(&turn.id).await
            }
            Some(Continuity::Exact) => self.note_taken_up().await,
            Some(Continuity::Restored) => {
                self.note_taken_up().await?;
                self.tell_what_was_decided(turn.id).await
            }
            Some(Continuity::New | Continuity::Lost { .. }) => {
                self.stop_harness().await;
                self.end_turn(TurnEnd::Interrupted { delivery_known: true }).await
            }
            // It was not wanted any more, or failed to start and the turn with it.
            None => {
                self.work = None;
                Ok(())
            }
        }
    }

    /// This is the turn that the conversation was taken up for; the next one is not.
    async fn note_taken_up(&mut self) -> ServiceResult<()> {
        self.take_rehydrated();
        self.commit(|change, rows| {
            let Some(turn) = rows.current_turn() else { return Ok(None) };
            let noted = TurnSet { rehydrated: Some(true), ..TurnSet::status(turn.ordinal, turn.status) };
            change.turns.push(TurnWrite::Update(noted));
            Ok(Some(()))
        })
        .await
        .map(drop)
    }

    /// Whether the harness took the conversation up for the turn that is about to run. Asking makes it so for this turn alone.
    fn take_rehydrated(&mut self) -> bool {
        self.harness.as_mut().is_some_and(|harness| std::mem::take(&mut harness.rehydrated))
    }

    /// Tells the harness to end the turn at work, and gives it a while for that.
    pub(super) async fn cancel_turn(&mut self) -> ServiceResult<()> {
        self.tell_to_end(TurnEnd::Cancelled).await
    }

    async fn tell_to_end(&mut self, end: TurnEnd) -> ServiceResult<()> {
        let until = self.now().plus(self.service.options.cancel_grace);
        if let Some(work) = &mut self.work {
            work.ending = Some(Ending { end, until });
        }
        if let Err(failure) = self.ask_harness(|harness| harness.cancel()).await {
            tracing::warn!(code = failure.code, "a harness could not be told to cancel");
            return self.kill_turn().await;
        }
        Ok(())
    }

    /// The turn did not end in its time: its harness is ended instead.
    async fn kill_turn(&mut self) -> ServiceResult<()> {
        self.stop_harness().await;
        let end = self.work.as_ref().and_then(|work| work.ending.as_ref()).map(|ending| ending.end.clone());
        self.end_turn(end.unwrap_or(TurnEnd::Cancelled)).await
    }

    /// The moment at which something must be done though nothing happens.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        let work = self.work.as_ref()?;
        [work.deadline(), self.closing_until].into_iter().flatten().min()
    }

    pub(super) async fn after_deadline(&mut self) -> ServiceResult<()> {
        let now = self.now();
        let Some(work) = &self.work else { return Ok(()) };
        if work.ending.as_ref().is_some_and(|ending| ending.until <= now) {
            return self.kill_turn().await;
        }
        if self.closing_until.is_some_and(|until| until <= now) {
            if self.service.resumes(&self.read().await?.session) {
                return self.suspend().await;
            }
            self.stop_harness().await;
            return self.end_turn(TurnEnd::Interrupted { delivery_known: true }).await;
        }
        if work.ending.is_none() && work.deadline().is_some_and(|deadline| deadline <= now) {
            return self.tell_to_end(TurnEnd::TimedOut).await;
        }
        Ok(())
    }

    /// Takes what the harness does; true when the rows should be looked at again.
    pub(super) async fn take_event(&mut self, event: Option<HarnessEvent>) -> ServiceResult<bool> {
        match event {
            Some(HarnessEvent::Output(output)) => {
                self.put_out(output);
                Ok(false)
            }
            Some(HarnessEvent::Checkpoint { state, durable }) => {
                self.keep_state(state, durable).await?;
                Ok(false)
            }
            Some(HarnessEvent::ApprovalRequested(request)) => self.ask(request).await.map(|()| true),
            Some(HarnessEvent::ApprovalWithdrawn { native_id }) => {
                self.withdraw(&native_id).await.map(|()| true)
            }
            Some(HarnessEvent::TurnEnded(outcome)) => self.turn_ended(outcome).await.map(|()| true),
            Some(HarnessEvent::Exited(failure)) => self.harness_lost(failure).await.map(|()| true),
            None => {
                let failure = Failure::new("agent_exited", "the harness ended without a word");
                self.harness_lost(failure).await.map(|()| true)
            }
        }
    }

    pub(super) fn put_out(&mut self, output: Output) {
        if let Some(work) = &mut self.work {
            work.so_far.take(&output);
        }
        let event = self.event(output);
        self.outbox.push(event);
    }

    /// Keeps a resume state: at once when the harness waits for it, else with the next change or when the harness is quiet.
    pub(super) async fn keep_state(
        &mut self,
        state: Option<Value>,
        durable: Option<oneshot::Sender<()>>,
    ) -> ServiceResult<()> {
        self.unsaved = Some(state.map(Arc::new));
        let Some(durable) = durable else { return Ok(()) };
        self.state_refused = false;
        self.save_state().await?;
        if !self.state_refused && durable.send(()).is_err() {
            tracing::debug!("a harness did not wait for its state to be stored");
        }
        Ok(())
    }

    pub(super) async fn save_state(&mut self) -> ServiceResult<()> {
        self.commit(|_, _| Ok(Some(()))).await.map(drop)
    }

    async fn turn_ended(&mut self, outcome: TurnOutcome) -> ServiceResult<()> {
        let Some(work) = &self.work else {
            tracing::debug!("the end of a turn that nobody waits for");
            return Ok(());
        };
        let asked = work.ending.as_ref().map(|ending| ending.end.clone());
        let end = match (outcome, asked) {
            // It was done before it heard that it should end.
            (TurnOutcome::Completed { stop_reason }, None | Some(TurnEnd::Cancelled)) => {
                TurnEnd::Completed { stop_reason }
            }
            (_, Some(asked)) => asked,
            (TurnOutcome::Failed(failure), None) => TurnEnd::Failed(failure),
            (TurnOutcome::Cancelled, None) => TurnEnd::Cancelled,
            (TurnOutcome::Interrupted, None) => TurnEnd::Interrupted { delivery_known: true },
        };
        self.close_promises().await?;
        self.end_turn(end).await
    }

    /// The harness is gone. A turn that waits for a person goes on waiting where a new process can be told the answer.
    pub(super) async fn harness_lost(&mut self, failure: Failure) -> ServiceResult<()> {
        self.stop_harness().await;
        let Some(work) = &self.work else { return Ok(()) };
        if let Some(ending) = &work.ending {
            let end = ending.end.clone();
            return self.end_turn(end).await;
        }
        // What waits is stored first: whether the call can be restored depends on the last state.
        self.save_state().await?;
        let rows = self.read().await?;
        let on_its_way = rows.open.iter().any(Approval::is_on_its_way);
        if on_its_way {
            return self.end_turn(TurnEnd::Interrupted { delivery_known: false }).await;
        }
        if rows.open.is_empty() {
            return self.end_turn(TurnEnd::Failed(failure)).await;
        }
        if self.service.keeps_questions(&rows.session) {
            let label = format!("{}; what it asked can still be decided", failure.message);
            self.put_out(Output::Activity { label, tool: None, raw: None });
            // The next step is found from the rows: wait without a harness, or take the turn up to deliver an answer.
            return self.leave_question().await;
        }
        self.end_turn(TurnEnd::Interrupted { delivery_known: true }).await
    }

    /// Leaves the turn at work to a later process, which will be told the answer to its question. What was under way beside the
    /// question is over, unless that process will stand exactly here.
    pub(super) async fn leave_question(&mut self) -> ServiceResult<()> {
        self.remember().await;
        let exactly = self.service.restores_exactly(&self.read().await?.session);
        let mut work = self.work.take();
        if !exactly {
            let ended = work.as_mut().map(|work| work.so_far.end_open_calls()).unwrap_or_default();
            let turn = work.map(|work| work.turn);
            for output in ended {
                self.outbox.push(NewEvent { turn: turn.clone(), at: self.now(), body: output.into() });
            }
        }
        self.save_state().await
    }

    /// The end of the turn at work: its open tool calls end with it. Gives what it said and used.
    pub(super) fn close_work(&mut self, work: Option<Work>) -> (Option<String>, Option<Usage>) {
        let Some(mut work) = work else { return (None, None) };
        for output in work.so_far.end_open_calls() {
            self.outbox.push(NewEvent { turn: Some(work.turn.clone()), at: self.now(), body: output.into() });
        }
        (Some(work.so_far.text), work.so_far.usage)
    }

    /// A turn that no harness works on, and none can take up.
    pub(super) async fn end_unattended(&mut self) -> ServiceResult<()> {
        let end = match self.read().await?.session.wish {
            Some(Wish::Cancel) => TurnEnd::Cancelled,
            _ => TurnEnd::Interrupted { delivery_known: true },
        };
        self.end_turn(end).await
    }

    /// Ends the current turn: its row, its approvals, the session, in one transaction with all that it put out before.
    pub(super) async fn end_turn(&mut self, end: TurnEnd) -> ServiceResult<()> {
        // Questions of a process that was lost cannot be answered any more; those of a turn that ends are void.
        let lost = matches!(end, TurnEnd::Interrupted { .. })
            || (self.harness.is_none() && matches!(end, TurnEnd::Failed(_)));
        let close_as = if lost { ApprovalStatus::Orphaned } else { ApprovalStatus::Cancelled };
        self.remember().await;
        fault::point("end.before");
        let work = self.work.take();
        let (text, usage) = self.close_work(work);
        let ended = self
            .commit(|change, rows| {
                let Some(turn) = rows.current_turn() else { return Ok(None) };
                let closing =
                    Closing { turn, end: end.clone(), text: text.clone(), usage, open: &rows.open, close_as };
                closing.apply(change, &rows.session, rows.next_after(turn.ordinal))?;
                Ok(Some(()))
            })
            .await?;
        if ended.is_some() {
            tracing::info!(status = %end.status(), "turn ended");
            self.service.count_turn(&end);
        }
        self.live.rests_since(self.now());
        self.look_again_later();
        Ok(())
    }
}

impl crate::service::Service {
    /// Counts a turn by how it ended.
    pub(in crate::service) fn count_turn(&self, end: &TurnEnd) {
        let place = match end {
            TurnEnd::Completed { .. } => 0,
            TurnEnd::Failed(_) => 1,
            TurnEnd::Cancelled => 2,
            TurnEnd::Interrupted { .. } => 3,
            TurnEnd::TimedOut => 4,
        };
        Counters::add(&self.counters.turns[place]);
    }
}
