//! The harness in a driver's hands: started, asked with a deadline, read without a gap, stopped.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::mpsc;

use super::Driver;
use super::memory::Place;
use crate::domain::event::Output;
use crate::domain::session::{OnContextLoss, Session};
use crate::domain::turn::{Failure, Turn, TurnEnd};
use crate::fault;
use crate::harness::{
    Continuity, HarnessError, HarnessEvent, HarnessSession, StartError, Started, TurnInput,
};
use crate::service::rehydrate::{Preparation, continuity_event, lost_context};
use crate::service::{Counters, ServiceResult};

/// The longest that any harness may take to start; adapters have their own, shorter one.
const START_DEADLINE: Duration = Duration::from_secs(180);
/// Events that are read while the harness is asked something; beyond it the harness waits.
const BACKLOG_MAX: usize = 4096;
/// So many bytes of them, likewise.
const BACKLOG_MAX_BYTES: usize = 1 << 20;

/// See the module.
pub(super) struct RunningHarness {
    session: Box<dyn HarnessSession>,
    events: mpsc::Receiver<HarnessEvent>,
    /// What it did while it was asked something.
    backlog: VecDeque<HarnessEvent>,
    /// It took the conversation up from another process, for the turn that it is given first.
    pub(super) rehydrated: bool,
    /// See [`Started::waits_for`].
    pub(super) waits_for: Vec<String>,
}

impl RunningHarness {
    /// The next thing it does; `None` when it is gone. Never resolves without a harness.
    pub(super) async fn next(harness: &mut Option<Self>) -> Option<HarnessEvent> {
        let Some(harness) = harness else { return std::future::pending().await };
        match harness.backlog.pop_front() {
            Some(event) => Some(event),
            None => harness.events.recv().await,
        }
    }

    /// Whether the next prompt is for a new process.
    pub(super) fn is_spent(&self) -> bool {
        self.session.is_spent()
    }

    /// Whether nothing more of it waits to be read.
    pub(super) fn is_quiet(&self) -> bool {
        self.backlog.is_empty() && self.events.is_empty()
    }

    /// Asks it something, within a deadline, and reads on meanwhile: a harness that must be read before it can answer is.
    async fn ask<'a, T: Send + 'a>(
        &'a mut self,
        deadline: Duration,
        question: impl FnOnce(&'a dyn HarnessSession) -> BoxFuture<'a, Result<T, HarnessError>>,
    ) -> Result<T, Failure> {
        let answer = tokio::time::timeout(deadline, question(self.session.as_ref()));
        tokio::pin!(answer);
        let mut reads = true;
        let mut bytes: usize = self.backlog.iter().map(HarnessEvent::weight).sum();
        loop {
            tokio::select! {
                biased;
                answered = &mut answer => {
                    return match answered {
                        Ok(Ok(value)) => Ok(value),
                        Ok(Err(HarnessError(failure))) => Err(failure),
                        Err(_) => Err(Failure::new("harness_unresponsive", "the harness did not answer in time")),
                    };
                }
                event = self.events.recv(), if reads && self.backlog.len() < BACKLOG_MAX && bytes < BACKLOG_MAX_BYTES => match event {
                    Some(event) => {
                        bytes += event.weight();
                        self.backlog.push_back(event);
                    }
                    None => reads = false,
                },
            }
        }
    }
}

impl Driver {
    /// Asks the harness something. Without one, there is nobody to answer.
    pub(super) async fn ask_harness<T: Send + 'static>(
        &mut self,
        question: impl for<'a> FnOnce(&'a dyn HarnessSession) -> BoxFuture<'a, Result<T, HarnessError>>,
    ) -> Result<T, Failure> {
        let deadline = self.service.options.harness_deadline;
        match self.harness.as_mut() {
            Some(harness) => harness.ask(deadline, question).await,
            None => Err(Failure::new("harness_exited", "the harness is gone")),
        }
    }

    /// Ends the harness, and with it all that it started.
    pub(super) async fn stop_harness(&mut self) {
        if let Some(harness) = self.harness.take() {
            // Its channel is closed first: a harness that waits for room in it must be able to end.
            drop(harness.events);
            harness.session.stop().await;
        }
    }

    /// Starts the harness; `None` when somebody wants the turn ended before it has started, or when it failed and the turn with it.
    pub(super) async fn start_harness(
        &mut self,
        session: &Session,
        open_turn: Option<TurnInput>,
    ) -> ServiceResult<Option<Continuity>> {
        self.memory.begin(None, None);
        let started = match self.service.harness_of(session) {
            Err(error) => Err(error),
            Ok(harness) => match self.service.prepare(session, open_turn, harness.as_ref()).await? {
                Err(error) => Err(error),
                Ok(Preparation { options, stored, notes }) => {
                    for label in notes {
                        let event = self.event(Output::Activity { label, tool: None, raw: None });
                        self.outbox.push(event);
                    }
                    let place = Place::of(&harness, &options);
                    let start = tokio::time::timeout(START_DEADLINE, harness.start(options));
                    let started = tokio::select! {
                        started = start => started,
                        () = self.unwanted() => return Ok(None),
                    };
                    let late = || Failure::new("harness_failed", "the harness did not start in time");
                    let started = match started.unwrap_or_else(|_| Err(StartError::Failed(late()))) {
                        Ok(started) => refuse_fresh(session, started).await,
                        error => error,
                    };
                    started.inspect(|_| self.memory.begin(place, stored))
                }
            },
        };
        match started {
            Ok(started) => self.welcome(session, started).await.map(Some),
            Err(error) => {
                tracing::warn!(
                    harness = session.harness,
                    code = error.failure().code,
                    "a harness did not start"
                );
                self.end_turn(TurnEnd::Failed(error.failure().clone())).await?;
                Ok(None)
            }
        }
    }

    /// Resolves when the turn that a harness is being started for is not wanted any more.
    async fn unwanted(&self) {
        loop {
            tokio::select! {
                () = self.live.rung() => {}
                () = self.service.closing.cancelled() => return,
            }
            match self.read().await {
                Ok(rows) if rows.session.wish.is_none() => {}
                // Also when the rows cannot be read: whoever asked will see the error itself.
                _ => return,
            }
        }
    }

    async fn welcome(&mut self, session: &Session, started: Started) -> ServiceResult<Continuity> {
        let Started { session: controls, events, continuity, native_id, waits_for } = started;
        fault::point("harness.started");
        let rehydrated = matches!(continuity, Continuity::Exact | Continuity::Restored);
        self.harness = Some(RunningHarness {
            session: controls,
            events,
            backlog: VecDeque::new(),
            rehydrated,
            waits_for,
        });
        let body = continuity_event(session, &continuity);
        let event = body.map(|body| self.event(body));
        self.commit(|change, _| {
            change.set.started = true;
            change.set.native_id.clone_from(&native_id);
            change.events.extend(event.clone());
            Ok(Some(()))
        })
        .await?;
        if rehydrated {
            Counters::add(&self.service.counters.rehydrated);
        }
        Ok(continuity)
    }
}

/// A harness that starts empty is no use to a session that is to fail then. What it had is kept for another try.
async fn refuse_fresh(session: &Session, started: Started) -> Result<Started, StartError> {
    let lost = lost_context(session, &started.continuity);
    match lost.filter(|_| session.on_context_loss == OnContextLoss::Fail) {
        None => Ok(started),
        Some(reason) => {
            drop(started.events);
            started.session.stop().await;
            Err(StartError::Failed(Failure::new("context_lost", reason)))
        }
    }
}

/// The prompt of a turn, as the harness takes it.
pub(super) fn input_of(turn: &Turn) -> TurnInput {
    TurnInput { turn_id: turn.id.clone(), prompt: turn.prompt.clone() }
}
