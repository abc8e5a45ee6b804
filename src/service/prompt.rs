//! Take a prompt for a session: now, after the turns before it, or instead of the one at work.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::once::Effect;
use super::room::Room;
use super::rows::Rows;
use super::{OnceRequest, Service, ServiceError, ServiceResult, SessionView};
use crate::domain::approval::{Approval, ApprovalStatus};
use crate::domain::event::{EventBody, NewEvent};
use crate::domain::limits::metadata_complaint;
use crate::domain::scope::Scope;
use crate::domain::session::{Session, SessionState, Transition, Wish};
use crate::domain::turn::Failure;
use crate::domain::turn::{Ordinal, Prompt, Turn};
use crate::harness::Availability;
use crate::ids::TurnId;
use crate::store::{Change, SessionRef, TurnWrite};

/// What becomes of a prompt while a turn is at work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenBusy {
    /// It is refused.
    #[default]
    Reject,
    /// It runs after the turns before it.
    Queue,
    /// The turn at work is cancelled, and it runs next.
    Interrupt,
}

/// A prompt for a session.
#[derive(Clone, Debug)]
pub struct PromptSession {
    /// What is said.
    pub prompt: Prompt,
    /// The caller's own pairs.
    pub metadata: BTreeMap<String, String>,
    /// What becomes of it while a turn is at work.
    pub when_busy: WhenBusy,
    /// The W3C trace context of the request.
    pub traceparent: Option<String>,
}

/// Most turns that may wait in one session.
pub(super) const QUEUED_TURNS_MAX: i64 = 256;

impl Service {
    /// Takes a prompt and gives the session and the turn back.
    ///
    /// # Errors
    /// `NotFound` before all else; `InvalidInput` for a blank prompt; then what the session's state says.
    pub async fn prompt(
        self: &Arc<Self>,
        scope: &Scope,
        session: &SessionRef,
        input: PromptSession,
        once: Option<OnceRequest>,
    ) -> ServiceResult<(SessionView, Turn)> {
        self.refuse_when_closing()?;
        let found = self.get_session(scope, session).await?;
        let prompt =
            input.prompt.trimmed().map_err(|blank| ServiceError::invalid(format!("prompt: {blank}")))?;
        if let Some(complaint) = metadata_complaint(&input.metadata) {
            return Err(ServiceError::invalid(complaint));
        }
        let input = PromptSession { prompt, ..input };
        let this = Arc::clone(self);
        self.unit(async move {
            match this.queue_prompt(&found, &input, None, once.as_ref()).await {
                // It has no driver and needs one. Room is made without the session's mutex: the session that is put away has one
                // as well.
                Err(ServiceError::Overloaded(_)) => {
                    let room = this.make_room().await?;
                    this.queue_prompt(&found, &input, Some(room), once.as_ref()).await
                }
                queued => queued,
            }
        })
        .await
    }

    async fn queue_prompt(
        self: &Arc<Self>,
        found: &Session,
        input: &PromptSession,
        room: Option<Room>,
        once: Option<&OnceRequest>,
    ) -> ServiceResult<(SessionView, Turn)> {
        let _guard = self.locks.lock(found.key).await;
        let (session, turn) = self
            .change(found.key, |Rows { session, open, .. }| {
                self.refuse_prompt(session, open, input.when_busy, room.is_some())?;
                let (mut change, turn) = self.queue_change(session, input)?;
                let view = self.view(session.clone());
                let effect = Effect { session: &view, turn: Some(&turn), approval: None };
                change.once = once.map(|once| once.row(&effect, turn.created_at));
                Ok((Some(change), turn))
            })
            .await?;
        // With the mutex held: a driver that is about to let go looks again, or has let go.
        self.ensure_driver(&session);
        Ok((self.view(session), turn))
    }

    fn refuse_prompt(
        &self,
        session: &Session,
        open: &[Approval],
        when_busy: WhenBusy,
        has_room: bool,
    ) -> ServiceResult<()> {
        if matches!(session.state, SessionState::Destroyed { .. }) || session.wish == Some(Wish::Destroy) {
            return Err(ServiceError::SessionDestroyed(session.id.clone()));
        }
        if session.queued_turns >= QUEUED_TURNS_MAX {
            return Err(ServiceError::QuotaExceeded { limit: QUEUED_TURNS_MAX, used: session.queued_turns });
        }
        let busy = session.state.turn().is_some();
        if busy && when_busy == WhenBusy::Reject {
            let pending: Vec<_> =
                open.iter().filter(|a| a.status == ApprovalStatus::Pending).map(|a| a.id.clone()).collect();
            if !pending.is_empty() {
                return Err(ServiceError::ApprovalPending {
                    session: session.id.clone(),
                    approvals: pending,
                });
            }
            let turn = session.turn.as_ref().map(|turn| turn.id.clone());
            return Err(ServiceError::TurnInProgress { session: session.id.clone(), turn });
        }
        if session.holder.is_some() {
            return Ok(());
        }
        let Some(harness) = self.harnesses.get(&session.harness) else {
            let words = format!("the harness {} is not configured any more", session.harness);
            return Err(ServiceError::HarnessUnavailable(Failure::new("harness_unavailable", words)));
        };
        // A harness that cannot take up what it left starts empty, which the session's log tells.
        if !session.is_resumable(false, true) {
            return Err(ServiceError::NotResumable(session.id.clone()));
        }
        if let Availability::Missing { why, .. } = harness.availability() {
            return Err(ServiceError::HarnessUnavailable(Failure::new("harness_unavailable", why)));
        }
        if !has_room {
            return Err(ServiceError::Overloaded("as many sessions are live as this service may have"));
        }
        Ok(())
    }

    fn queue_change(&self, session: &Session, input: &PromptSession) -> ServiceResult<(Change, Turn)> {
        let at = self.clock.now();
        let ordinal = Ordinal(session.turn_count + 1);
        let turn = Turn {
            metadata: input.metadata.clone(),
            traceparent: input.traceparent.clone(),
            ..Turn::queued(ordinal, input.prompt.clone(), at)
        };
        let busy = session.state.turn().is_some();
        let interrupts = busy && input.when_busy == WhenBusy::Interrupt;
        let mut change = Change::of(session, at);
        change.set.state = Some(session.state.clone().apply(Transition::Queue { turn: ordinal })?);
        change.set.turn_count = Some(ordinal.0);
        change.set.queued_turns = Some(session.queued_turns + i64::from(busy));
        if interrupts && session.wish.is_none() {
            change.set.wish = Some(Some(Wish::Cancel));
        }
        change.turns.push(TurnWrite::Insert { turn: Box::new(turn.clone()), urgent: interrupts });
        change.events.push(NewEvent { turn: Some(turn.reference()), at, body: EventBody::TurnQueued {} });
        Ok((change, turn))
    }

    /// Removes a turn that still waits.
    ///
    /// # Errors
    /// `TurnStarted` for any other.
    pub async fn remove_turn(
        self: &Arc<Self>,
        scope: &Scope,
        session: &SessionRef,
        turn: &TurnId,
    ) -> ServiceResult<()> {
        let found = self.get_session(scope, session).await?;
        let (this, turn) = (Arc::clone(self), turn.clone());
        self.unit(async move { this.remove_queued(&found, &turn).await }).await
    }

    async fn remove_queued(self: &Arc<Self>, found: &Session, turn: &TurnId) -> ServiceResult<()> {
        let _guard = self.locks.lock(found.key).await;
        let at = self.clock.now();
        let (_, removed) = self
            .change(found.key, |rows| {
                let Some(turn) = rows.queued.iter().find(|queued| queued.id == *turn) else {
                    return Ok((None, false));
                };
                let mut change = Change::of(&rows.session, at);
                let next = rows.next_after(turn.ordinal);
                super::turn_end::withdraw_queued(&mut change, &rows.session, turn, next)?;
                Ok((Some(change), true))
            })
            .await?;
        if !removed {
            let turn = self.store.find_turn(found.key, turn).await?.ok_or(ServiceError::NotFound)?;
            return Err(ServiceError::TurnStarted(Box::new(turn)));
        }
        if let Some(live) = self.live.get(found.key) {
            live.ring();
        }
        Ok(())
    }
}
