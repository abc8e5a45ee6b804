//! Questions of the harness: stored and shown, withdrawn, answered once.

use super::Driver;
use super::work::Origin;
use crate::domain::approval::{Approval, ApprovalStatus, Decision, choose_option};
use crate::domain::event::{EventBody, NewEvent, Output};
use crate::domain::policy::Policy;
use crate::domain::scope::Scope;
use crate::domain::session::{Session, Transition, pending_of};
use crate::domain::turn::{TurnEnd, TurnRef, TurnStatus};
use crate::fault;
use crate::harness::{Answer, ApprovalRequest};
use crate::ids::TurnId;
use crate::service::decide::answer;
use crate::service::rows::Rows;
use crate::service::{Counters, ServiceError, ServiceResult};
use crate::store::{ApprovalFilter, ApprovalWrite, Change, PageRequest, TurnSet, TurnWrite};

/// The failure with which a harness says that it does not wait for this answer any more.
const NOT_ASKED: &str = "approval_unknown";

impl Driver {
    /// A question of the harness becomes an approval; the session's permission mode may answer it at once.
    pub(super) async fn ask(&mut self, request: ApprovalRequest) -> ServiceResult<()> {
        let Some(work) = &self.work else { return self.refuse_outside_turn(request).await };
        if work.ending.is_some() {
            // The harness was told to end the turn, its questions included.
            return Ok(());
        }
        let turn = work.turn.clone();
        let known = match &work.origin {
            Origin::Here => false,
            Origin::RestoredExactly => self.restored_question(&turn.id, &request.native_id).await?,
            Origin::AskingAgain { .. } => self.asked_again(&request).await?,
        };
        if known {
            return Ok(());
        }
        let policy = self.service.options.policy.clone();
        let asked = self
            .commit(|change, rows| put_question(change, rows, &request, &turn, &policy).map(Some))
            .await?;
        fault::point("ask.stored");
        Counters::add(&self.service.counters.approvals_requested);
        let now = self.now();
        if let (Some(asked), Some(work)) = (asked, &mut self.work) {
            work.asked.push(asked.id);
            if asked.status == ApprovalStatus::Pending {
                work.pause(now);
                self.remember_now().await?;
            }
        }
        // What the permission mode answered is owed to the harness now, and delivered as any other answer is.
        Ok(())
    }

    /// Whether an earlier process of the same turn has asked this already, and what follows from it is done.
    async fn restored_question(&mut self, turn: &TurnId, native_id: &str) -> ServiceResult<bool> {
        let Some(known) = self.known_question(turn, native_id).await? else { return Ok(false) };
        // It may have been answered here before that was read.
        let answered_here = self.work.as_ref().is_some_and(|work| work.answered.contains(&known.native_id));
        if known.dispatched_at.is_some() && !answered_here {
            // The answer went to a process that died without noting it. It is not given twice.
            self.stop_harness().await;
            self.end_turn(TurnEnd::Interrupted { delivery_known: false }).await?;
        }
        Ok(true)
    }

    /// A question that an earlier process of the same turn has asked.
    async fn known_question(&self, turn: &TurnId, native_id: &str) -> ServiceResult<Option<Approval>> {
        let known = self.known_questions(turn).await?;
        Ok(known.into_iter().find(|known| known.native_id == native_id))
    }

    /// The questions that processes of this turn have asked, as many as can be open.
    async fn known_questions(&self, turn: &TurnId) -> ServiceResult<Vec<Approval>> {
        let session = self.read().await?.session;
        let filter = ApprovalFilter { session_id: Some(session.id), ..ApprovalFilter::default() };
        let scope = Scope::Org { org: session.org_id };
        let page = PageRequest { limit: 200, before: None };
        let known = self.service.store.list_approvals(&scope, &filter, page).await?;
        Ok(known.rows.into_iter().filter(|known| known.turn_id == *turn).collect())
    }

    /// Answers that an earlier process was given, or was about to be: the harness that goes on knows which of them have arrived there.
    /// The others have had no effect, and are given to it.
    pub(super) async fn settle_earlier_answers(&mut self, turn: &TurnId) -> ServiceResult<()> {
        let waits_for = self.harness.as_mut().map(|harness| std::mem::take(&mut harness.waits_for));
        let waits_for = waits_for.unwrap_or_default();
        let given = |known: &Approval| known.dispatched_at.is_some();
        for known in self.known_questions(turn).await?.into_iter().filter(given) {
            if waits_for.contains(&known.native_id) {
                let native_id = known.native_id.clone();
                self.give_answer(known, native_id).await?;
            } else if known.is_on_its_way() {
                self.close_answer(&known, AnswerEnd::Delivered).await?;
            }
            if self.work.is_none() {
                return Ok(());
            }
        }
        self.go_on_unless_waiting().await
    }

    /// There is no turn that a person could be shown; the harness is told no, and the log says so.
    async fn refuse_outside_turn(&mut self, request: ApprovalRequest) -> ServiceResult<()> {
        let label = format!("refused outside a turn: {}", request.title);
        let event = self.event(Output::Activity { label, tool: Some(request.tool), raw: None });
        self.outbox.push(event);
        let no = Answer {
            native_id: request.native_id,
            decision: Decision::Deny,
            option_id: None,
            reason: Some("no turn is at work".to_owned()),
            edited_input: None,
        };
        if let Err(failure) = self.ask_harness(|harness| harness.answer(no)).await {
            tracing::warn!(code = failure.code, "a harness did not take a refusal");
        }
        Ok(())
    }

    /// The harness does not wait for the answer any more.
    pub(super) async fn withdraw(&mut self, native_id: &str) -> ServiceResult<()> {
        let Some(turn) = self.work.as_ref().map(|work| work.turn.ordinal) else { return Ok(()) };
        self.commit(|change, rows| {
            let waits = |a: &&Approval| {
                a.turn == turn && a.native_id == native_id && a.status == ApprovalStatus::Pending
            };
            let Some(approval) = rows.open.iter().find(waits) else { return Ok(None) };
            let void = Approval { status: ApprovalStatus::Cancelled, ..approval.clone() };
            let body = EventBody::ApprovalCancelled { approval: Box::new(void.clone()) };
            answer(change, &rows.session, &void, &rows.open, body).map(Some)
        })
        .await?;
        self.go_on_unless_waiting().await
    }

    /// Tells the harness what was decided: that it is on its way is stored before it is, so that it never goes out twice.
    pub(super) async fn deliver(&mut self, approval: &Approval) -> ServiceResult<()> {
        let Some(dispatched) = self.dispatch(approval).await? else { return Ok(()) };
        if let Some(work) = &mut self.work
            && let Origin::AskingAgain { promised } = &mut work.origin
            && !work.asked.contains(&dispatched.id)
        {
            // The process that asked is lost, and this one has not asked yet.
            promised.push(dispatched);
            return Ok(());
        }
        let native_id = dispatched.native_id.clone();
        self.give_answer(dispatched, native_id).await
    }

    /// Stores that a decision is on its way to the harness; `None` when it is not owed any more.
    async fn dispatch(&mut self, approval: &Approval) -> ServiceResult<Option<Approval>> {
        self.commit(|change, rows| {
            let owed = |a: &&Approval| a.id == approval.id && a.owed_answer().is_some();
            let Some(current) = rows.open.iter().find(owed) else { return Ok(None) };
            let dispatched = Approval { dispatched_at: Some(change.set.at), ..current.clone() };
            change.approvals.push(ApprovalWrite::Update(Box::new(dispatched.clone())));
            Ok(Some(dispatched))
        })
        .await
    }

    /// Gives a dispatched decision to the question that the harness knows by this id.
    pub(super) async fn give_answer(&mut self, dispatched: Approval, native_id: String) -> ServiceResult<()> {
        fault::point("answer.before");
        if let Some(work) = &mut self.work {
            work.answered.push(native_id.clone());
        }
        let told = Answer {
            native_id,
            // Nobody says yes but a person or the permission mode.
            decision: dispatched.decision.unwrap_or(Decision::Deny),
            option_id: dispatched.option_id.clone(),
            reason: dispatched.reason.clone(),
            edited_input: dispatched.edited_input.clone(),
        };
        match self.ask_harness(|harness| harness.answer(told)).await {
            Ok(()) => {
                fault::point("answer.given");
                // An earlier process may have had it before.
                if dispatched.delivered_at.is_none() {
                    self.close_answer(&dispatched, AnswerEnd::Delivered).await?;
                }
                self.go_on_unless_waiting().await
            }
            Err(failure) if failure.code == NOT_ASKED => {
                self.close_answer(&dispatched, AnswerEnd::Void).await?;
                self.go_on_unless_waiting().await
            }
            Err(failure) => {
                tracing::warn!(code = failure.code, "a harness did not take a decision");
                self.stop_harness().await;
                self.end_turn(TurnEnd::Interrupted { delivery_known: false }).await
            }
        }
    }

    /// Stores what became of a decision that was on its way.
    pub(super) async fn close_answer(
        &mut self,
        dispatched: &Approval,
        outcome: AnswerEnd,
    ) -> ServiceResult<()> {
        self.commit(|change, _| {
            let at = change.set.at;
            let closed = match outcome {
                AnswerEnd::Delivered => Approval { delivered_at: Some(at), ..dispatched.clone() },
                AnswerEnd::Void => Approval { status: ApprovalStatus::Cancelled, ..dispatched.clone() },
                AnswerEnd::NeverAskedFor => {
                    Approval { status: ApprovalStatus::Orphaned, ..dispatched.clone() }
                }
            };
            let turn = TurnRef { ordinal: closed.turn, id: closed.turn_id.clone() };
            let approval = Box::new(closed.clone());
            let body = match outcome {
                AnswerEnd::Delivered => EventBody::ApprovalDelivered { approval },
                AnswerEnd::Void => EventBody::ApprovalCancelled { approval },
                AnswerEnd::NeverAskedFor => EventBody::ApprovalOrphaned { approval },
            };
            change.events.push(NewEvent { turn: Some(turn), at, body });
            change.approvals.push(ApprovalWrite::Update(Box::new(closed)));
            Ok(Some(()))
        })
        .await
        .map(drop)
    }

    /// The turn's time runs again when no person is waited for.
    pub(super) async fn go_on_unless_waiting(&mut self) -> ServiceResult<()> {
        let waits = self.read().await?.open.iter().any(|a| a.status == ApprovalStatus::Pending);
        let now = self.now();
        if let (false, Some(work)) = (waits, &mut self.work) {
            work.go_on(now);
        }
        Ok(())
    }
}

/// What became of a decision that was on its way to the harness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerEnd {
    /// It has arrived.
    Delivered,
    /// The harness did not wait for it any more.
    Void,
    /// The process that asked was lost, and the one after it never asked again.
    NeverAskedFor,
}

/// The approval of a question, pending.
fn question(request: &ApprovalRequest, session: &Session, turn: &TurnRef, change: &Change) -> Approval {
    let at = change.set.at;
    Approval {
        native_id: request.native_id.clone(),
        run_id: session.run_id.clone(),
        title: request.title.clone(),
        kind: request.kind.clone(),
        options: request.options.clone(),
        expires_at: session.limits.approval().map(|wait| at.plus(wait)),
        ..Approval::asked(session.id.clone(), turn, &request.tool, request.input.clone(), at)
    }
}

/// Stores a question, and its answer where the operator's policy or the session's permission mode gives one.
fn put_question(
    change: &mut Change,
    rows: &Rows,
    request: &ApprovalRequest,
    turn: &TurnRef,
    policy: &Policy,
) -> ServiceResult<Approval> {
    let session = &rows.session;
    let asked = question(request, session, turn, change);
    let at = change.set.at;
    let say = |body| NewEvent { turn: Some(turn.clone()), at, body };
    change.events.push(say(EventBody::ApprovalRequested { approval: Box::new(asked.clone()) }));
    let answered =
        denied_by_policy(&asked, session, policy).or_else(|| answered_by_mode(&asked, session, policy));
    if let Some(answered) = answered {
        change.events.push(say(EventBody::ApprovalResolved { approval: Box::new(answered.clone()) }));
        change.set.resolved_approval_ids = Some(session.resolved_ids_with([answered.id.clone()]));
        change.approvals.push(ApprovalWrite::Insert(Box::new(answered.clone())));
        return Ok(answered);
    }
    let mut open = rows.open.clone();
    open.push(asked.clone());
    let (oldest, count) = pending_of(&open);
    let shown = oldest.map(serde_json::to_value).transpose();
    change.set.pending = Some((shown.map_err(|error| ServiceError::Bug(error.to_string()))?, count));
    change.set.state = Some(session.state.clone().apply(Transition::Ask)?);
    change.turns.push(TurnWrite::Update(TurnSet::status(turn.ordinal, TurnStatus::AwaitingApproval)));
    change.approvals.push(ApprovalWrite::Insert(Box::new(asked.clone())));
    Ok(asked)
}

/// The question with a denial, where the operator refuses the tool: no person is asked then.
fn denied_by_policy(asked: &Approval, session: &Session, policy: &Policy) -> Option<Approval> {
    if !policy.denied_in(&session.org_id).denies(&asked.tool, &asked.kind) {
        return None;
    }
    Some(Approval {
        status: ApprovalStatus::Denied,
        decision: Some(Decision::Deny),
        option_id: choose_option(&asked.options, Decision::Deny).map(|option| option.id.clone()),
        reason: Some("the operator does not allow this tool".to_owned()),
        decided_by: Some("policy".to_owned()),
        decided_at: Some(asked.requested_at),
        ..asked.clone()
    })
}

/// The question with the answer that the session's permission mode gives, if it gives one.
fn answered_by_mode(asked: &Approval, session: &Session, policy: &Policy) -> Option<Approval> {
    // What the operator allows may have become less since the session was made.
    let mode = session.permission_mode.min(policy.max_mode(&session.harness));
    let option = mode.automatic_option(&asked.kind, &asked.options);
    // A harness without options takes a plain yes, which is for this call alone.
    if option.is_none() && !(asked.options.is_empty() && mode.allows(&asked.kind)) {
        return None;
    }
    Some(Approval {
        status: ApprovalStatus::Approved,
        decision: Some(Decision::Approve),
        option_id: option.map(|option| option.id.clone()),
        decided_by: Some(format!("permission_mode:{mode}")),
        decided_at: Some(asked.requested_at),
        ..asked.clone()
    })
}
