//! The ways in which a driver lets a session go.

use std::sync::Arc;

use super::Driver;
use super::review::{Posture, Step, next_step};
use crate::domain::session::{SessionState, StopCause, Wish};
use crate::domain::turn::TurnEnd;
use crate::fault;
use crate::harness::HarnessEvent;
use crate::service::ServiceResult;
use crate::service::destroy::destroyed;
use crate::service::rows::Rows;
use crate::service::stop::stopped;
use crate::service::turn_end::end_all_turns;
use crate::service::workspace;

impl Driver {
    /// Ends turn and harness, then stops or destroys the session.
    pub(super) async fn fulfil(&mut self, wish: Wish) -> ServiceResult<()> {
        let ended_well = self.end_work().await?;
        if wish == Wish::Stop && ended_well {
            self.detach().await;
        }
        fault::point("stop.detached");
        self.stop_harness().await;
        if wish == Wish::Stop {
            self.remember().await;
        }
        let work = self.work.take();
        let (text, usage) = self.close_work(work);
        let service = Arc::clone(&self.service);
        let _guard = service.locks.lock(self.live.key).await;
        let had_turn = self
            .commit_locked(|change, rows| {
                let Rows { session, open, queued } = rows;
                let ended = end_all_turns(change, session, open, queued, text.clone(), usage);
                match rows.session.wish {
                    Some(Wish::Destroy) => destroyed(change, &rows.session)?,
                    _ => stopped(change, &rows.session, StopCause::User)?,
                }
                change.set.release = true;
                Ok(Some(ended))
            })
            .await?;
        if had_turn == Some(true) {
            service.count_turn(&TurnEnd::Cancelled);
        }
        if wish == Wish::Destroy
            && let Some(session) = service.store.find_session_by_key(self.live.key).await?
        {
            // Here, where the agent has kept it; the one who asked may be elsewhere.
            workspace::erase(&service.options, &session, false).await;
        }
        tracing::info!(%wish, "session let go as wished");
        service.live.let_go(&self.live);
        Ok(())
    }

    /// Tells the harness to end the turn at work and takes what it still does; true when it ended in its time, so that its state
    /// is one to go on from.
    async fn end_work(&mut self) -> ServiceResult<bool> {
        if self.work.is_none() || self.harness.is_none() {
            return Ok(true);
        }
        let until = self.now().plus(self.service.options.cancel_grace);
        if self.ask_harness(|harness| harness.cancel()).await.is_err() {
            return Ok(false);
        }
        loop {
            self.outbox.send();
            let clock = self.service.clock.clone();
            tokio::select! {
                biased;
                stored = self.outbox.settle(), if self.outbox.is_busy() => self.after_append(stored).await?,
                event = super::RunningHarness::next(&mut self.harness), if !self.outbox.is_full() => match event {
                    Some(HarnessEvent::Output(output)) => self.put_out(output),
                    Some(HarnessEvent::Checkpoint { state, durable }) => self.keep_state(state, durable).await?,
                    Some(HarnessEvent::TurnEnded(_)) => return Ok(true),
                    Some(HarnessEvent::ApprovalRequested(_) | HarnessEvent::ApprovalWithdrawn { .. }) => {}
                    Some(HarnessEvent::Exited(_)) | None => return Ok(false),
                },
                () = clock.sleep_until(until) => return Ok(false),
            }
        }
    }

    /// Takes the harness's state from it; where it gives none in time, the last one stands.
    async fn detach(&mut self) {
        if self.harness.is_none() {
            return;
        }
        match self.ask_harness(|harness| harness.detach()).await {
            Ok(state) => self.unsaved = Some(state.map(Arc::new)),
            Err(failure) => {
                tracing::warn!(code = failure.code, "a harness gave no state when it was put away");
            }
        }
    }

    /// Ends the harness of a session at rest, so that a new one can go on where it stood.
    pub(super) async fn put_harness_away(&mut self) {
        self.detach().await;
        self.stop_harness().await;
        // Its last words are on the disk now.
        self.remember().await;
    }

    /// Puts a session at rest away; false when work came meanwhile, which then begins with a new harness.
    pub(super) async fn put_away(&mut self, cause: StopCause) -> ServiceResult<bool> {
        // Before the session is let go: there is never more than one live harness of it.
        self.put_harness_away().await;
        let service = Arc::clone(&self.service);
        let _guard = service.locks.lock(self.live.key).await;
        let at_rest = self
            .commit_locked(|change, rows| {
                if rows.session.state.turn().is_some() || rows.session.wish.is_some() {
                    return Ok(Some(false));
                }
                // One that failed stays as it is: its error says more than that it is put away.
                if matches!(rows.session.state, SessionState::Idle) {
                    stopped(change, &rows.session, cause)?;
                }
                change.set.release = true;
                Ok(Some(true))
            })
            .await?;
        if at_rest != Some(true) {
            return Ok(false);
        }
        tracing::info!(%cause, "session put away");
        service.live.let_go(&self.live);
        Ok(true)
    }

    /// The service goes down while a question waits, or in the middle of a turn that a later process goes on with. What is left is to
    /// let go.
    pub(super) async fn suspend(&mut self) -> ServiceResult<()> {
        self.stop_harness().await;
        self.leave_question().await
    }

    /// Lets a session go as it is; false when there is something to do for it after all.
    pub(super) async fn leave(&mut self) -> ServiceResult<bool> {
        let service = Arc::clone(&self.service);
        let _guard = service.locks.lock(self.live.key).await;
        let posture = self.posture(&self.read().await?.session);
        let left = self
            .commit_locked(|change, rows| {
                let keeps_questions = service.keeps_questions(&rows.session);
                let step = next_step(&rows.session, &rows.open, Posture { keeps_questions, ..posture });
                // Another process may have wished for something while this was on its way: nobody else would hear of it.
                change.set.release = step == Step::Leave;
                Ok(change.set.release.then_some(()))
            })
            .await?;
        if left.is_some() {
            service.live.let_go(&self.live);
        }
        Ok(left.is_some())
    }
}
