//! Decide an approval: at exactly one place, stored before the harness is told.

use std::sync::Arc;

use super::once::Effect;
use super::rows::Rows;
use super::{Counters, OnceRequest, Service, ServiceError, ServiceResult};
use crate::clock::Timestamp;
use crate::domain::approval::{self, Approval, ApprovalStatus, DecisionRequest, Resolution};
use crate::domain::event::{EventBody, NewEvent};
use crate::domain::limits::{VALUE_MAX_LEVELS, is_too_deep};
use crate::domain::scope::Scope;
use crate::domain::session::{Session, Transition, pending_of};
use crate::domain::turn::TurnRef;
use crate::fault;
use crate::ids::{ApprovalId, SessionKey};
use crate::store::{ApprovalWrite, Change};

/// What came of a decision.
#[derive(Debug)]
pub struct Decided {
    /// The approval as it stands.
    pub approval: Approval,
    /// It stood before.
    pub idempotent: bool,
}

impl Service {
    /// Decides an approval.
    ///
    /// # Errors
    /// `NotFound`; `AlreadyResolved`, `ApprovalExpired`, `ApprovalClosed`, `ApprovalChanged` with the approval as it stands;
    /// `Unsupported` for an edited input that the harness cannot take.
    pub async fn decide(
        self: &Arc<Self>,
        scope: &Scope,
        id: &ApprovalId,
        request: DecisionRequest,
        once: Option<OnceRequest>,
    ) -> ServiceResult<Decided> {
        self.refuse_when_closing()?;
        self.store.find_approval(scope, id).await?.ok_or(ServiceError::NotFound)?;
        let session = self.store.find_session_of_approval(id).await?.ok_or(ServiceError::NotFound)?;
        let edits =
            self.harnesses.get(&session.harness).is_some_and(|harness| harness.capabilities().edited_input);
        if request.edited_input.is_some() && !edits {
            let words = format!("the harness {} cannot take an edited input", session.harness);
            return Err(ServiceError::Unsupported(words));
        }
        if request.edited_input.as_ref().is_some_and(is_too_deep) {
            let words = format!("edited_input: must not be nested deeper than {VALUE_MAX_LEVELS} levels");
            return Err(ServiceError::invalid(words));
        }
        let (this, scope, id) = (Arc::clone(self), scope.clone(), id.clone());
        self.unit(async move { this.decide_locked(&scope, session.key, &id, &request, once).await }).await
    }

    async fn decide_locked(
        self: &Arc<Self>,
        scope: &Scope,
        key: SessionKey,
        id: &ApprovalId,
        request: &DecisionRequest,
        once: Option<OnceRequest>,
    ) -> ServiceResult<Decided> {
        let _guard = self.locks.lock(key).await;
        let now = self.clock.now();
        let decide = |Rows { session, open, .. }: &Rows| {
            let waits = |a: &&Approval| a.id == *id && a.status == ApprovalStatus::Pending;
            let Some(approval) = open.iter().find(waits) else { return Ok((None, None)) };
            let option_id = match approval::resolve(approval, request, now) {
                Ok(Resolution::Decide { option_id }) => option_id,
                Ok(Resolution::Standing) => return Ok((None, None)),
                Err(refusal) => return Err(ServiceError::of_refusal(refusal, approval.clone())),
            };
            let decided = decided(approval, request, option_id, now);
            let mut change = Change::of(session, now);
            let body = EventBody::ApprovalResolved { approval: Box::new(decided.clone()) };
            answer(&mut change, session, &decided, open, body)?;
            change.set.resolved_approval_ids = Some(session.resolved_ids_with([decided.id.clone()]));
            let view = self.view(session.clone());
            let effect = Effect { session: &view, turn: None, approval: Some(&decided) };
            change.once = once.as_ref().map(|once| once.row(&effect, now));
            Ok((Some(change), Some(decided)))
        };
        let (session, Some(decided)) = self.change(key, decide).await? else {
            return self.standing(scope, id, request, now).await;
        };
        fault::point("decide.committed");
        tracing::info!(session = %decided.session_id, approval = %decided.id, status = %decided.status, "approval decided");
        Counters::add(&self.counters.approvals_decided);
        self.wake(&session).await;
        Ok(Decided { approval: decided, idempotent: false })
    }

    /// The answer for an approval that does not wait any more.
    async fn standing(
        &self,
        scope: &Scope,
        id: &ApprovalId,
        request: &DecisionRequest,
        now: Timestamp,
    ) -> ServiceResult<Decided> {
        let approval = self.store.find_approval(scope, id).await?.ok_or(ServiceError::NotFound)?;
        match approval::resolve(&approval, request, now) {
            Ok(Resolution::Standing) => Ok(Decided { approval, idempotent: true }),
            Ok(Resolution::Decide { .. }) => Err(ServiceError::Overloaded("the session changes too fast")),
            Err(refusal) => Err(ServiceError::of_refusal(refusal, approval)),
        }
    }
}

fn decided(
    approval: &Approval,
    request: &DecisionRequest,
    option_id: Option<String>,
    now: Timestamp,
) -> Approval {
    Approval {
        status: request.decision.status(),
        decision: Some(request.decision),
        option_id,
        reason: request.reason.clone(),
        edited_input: request.edited_input.clone(),
        decided_by: Some(request.decided_by.clone()),
        decided_at: Some(now),
        ..approval.clone()
    }
}

/// An approval that does not wait any more: its row, its event, and what the session shows of the others.
pub(super) fn answer(
    change: &mut Change,
    session: &Session,
    answered: &Approval,
    open: &[Approval],
    body: EventBody,
) -> ServiceResult<()> {
    let still_open: Vec<Approval> = open.iter().filter(|other| other.id != answered.id).cloned().collect();
    let (oldest, count) = pending_of(&still_open);
    let shown = oldest.map(serde_json::to_value).transpose();
    let shown = shown.map_err(|error| ServiceError::Bug(error.to_string()))?;
    let turn = TurnRef { ordinal: answered.turn, id: answered.turn_id.clone() };
    change.set.state = Some(session.state.clone().apply(Transition::Answer { others_wait: count > 0 })?);
    if count == 0 {
        let status = crate::domain::turn::TurnStatus::Running;
        change
            .turns
            .push(crate::store::TurnWrite::Update(crate::store::TurnSet::status(answered.turn, status)));
    }
    change.set.pending = Some((shown, count));
    change.approvals.push(ApprovalWrite::Update(Box::new(answered.clone())));
    change.events.push(NewEvent { turn: Some(turn), at: change.set.at, body });
    Ok(())
}

impl Service {
    /// Ends the wait of approvals that nobody answered in time, which the harness hears as a refusal.
    pub(super) async fn expire(self: &Arc<Self>, key: SessionKey) -> ServiceResult<()> {
        let _guard = self.locks.lock(key).await;
        let now = self.clock.now();
        let due =
            |a: &&Approval| a.status == ApprovalStatus::Pending && a.expires_at.is_some_and(|at| at <= now);
        loop {
            let (session, more) = self
                .change(key, |Rows { session, open, .. }| {
                    let Some(approval) = open.iter().find(due) else { return Ok((None, false)) };
                    let expired = Approval {
                        status: ApprovalStatus::Expired,
                        decided_at: Some(now),
                        ..approval.clone()
                    };
                    let mut change = Change::of(session, now);
                    let body = EventBody::ApprovalExpired { approval: Box::new(expired.clone()) };
                    answer(&mut change, session, &expired, open, body)?;
                    Ok((Some(change), true))
                })
                .await?;
            if !more {
                self.wake(&session).await;
                return Ok(());
            }
        }
    }
}
