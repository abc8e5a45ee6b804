//! Takes care of sessions whose holder is gone: at start, and every few seconds. What is to be done is a plan of the domain; here
//! it is carried out, under a lease that fences whatever the old holder may still have in flight.

use std::sync::Arc;

use super::destroy::destroyed;
use super::rows::Rows;
use super::stop::stopped;
use super::turn_end::{Ending, end_all_turns};
use super::{Service, ServiceResult, workspace};
use crate::domain::approval::ApprovalStatus;
use crate::domain::recovery::{RecoveryPlan, Stranded, plan};
use crate::domain::session::{StopCause, Wish};
use crate::domain::turn::TurnEnd;
use crate::ids::SessionKey;
use crate::store::{Change, Commit, HeldSession};

/// Sessions that one pass takes care of, beside those that are live here; the next pass takes the rest.
const PASS: usize = 1000;
/// Events of a turn that are enough to see whether its harness put anything out: it begins with two of ours, or four where the
/// conversation was taken up for it.
const FIRST_EVENTS: i64 = 8;

impl Service {
    /// One pass over all sessions that somebody holds, or should. Gives how many it took care of. One that fails does not keep
    /// the others waiting; the next pass tries it again.
    pub(super) async fn recover_all(self: &Arc<Self>) -> ServiceResult<usize> {
        let mut recovered = 0;
        let limit = i64::try_from(self.live.count() + PASS).unwrap_or(i64::MAX);
        for held in self.store.list_held(limit).await? {
            if self.live.get(held.key).is_some() {
                continue;
            }
            match self.recover(&held).await {
                Ok(true) => recovered += 1,
                Ok(false) => {}
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::error!(session = held.id.as_str(), error, "a session cannot be recovered");
                }
            }
        }
        Ok(recovered)
    }

    async fn recover(self: &Arc<Self>, held: &HeldSession) -> ServiceResult<bool> {
        let key = held.key;
        let _guard = self.locks.lock(key).await;
        if self.live.get(key).is_some() {
            return Ok(false);
        }
        let Some(holder) = &held.holder else {
            // A turn was accepted and its process died before a driver had it.
            self.ensure_driver(key);
            return Ok(true);
        };
        let Some(lease) = self.store.claim(key, &self.replica, Some(holder)).await? else { return Ok(false) };
        let Some(rows) = self.read_rows(key).await? else { return Ok(false) };
        if let Some(harness) = self.harnesses.get(&rows.session.harness) {
            harness.end_left(&rows.session.id).await;
        }
        let planned = self.plan_recovery(&rows).await?;
        tracing::info!(session = %rows.session.id, plan = ?planned, "recovering a session");
        let mut change = Change::held(&rows.session, &lease, self.clock.now());
        change.set.release = true;
        let goes_on = carry_out(&mut change, &rows, &planned)?;
        if self.store.commit(change).await? != Commit::Done {
            // Somebody changed it since it was claimed: what was planned is not what it needs any more. The next pass plans anew.
            return Ok(false);
        }
        if let RecoveryPlan::End(end) = &planned {
            self.count_turn(end);
        }
        if planned == RecoveryPlan::Fulfil(Wish::Destroy) {
            workspace::erase(&self.options, &rows.session, false).await;
        }
        if goes_on {
            self.ensure_driver(key);
        }
        Ok(true)
    }

    async fn plan_recovery(&self, rows: &Rows) -> ServiceResult<RecoveryPlan> {
        let turn = rows.current_turn();
        let output_seen = match turn {
            Some(turn) => self.has_put_out(rows.session.key, turn).await?,
            None => false,
        };
        Ok(plan(&Stranded {
            state: &rows.session.state,
            turn: turn.map(|turn| turn.status),
            wish: rows.session.wish,
            open_approvals: &rows.open,
            output_seen,
            restores_exactly: self.restores_exactly(&rows.session),
        }))
    }

    async fn has_put_out(&self, key: SessionKey, turn: &crate::domain::turn::Turn) -> ServiceResult<bool> {
        let first = self.store.list_turn_events(key, turn.ordinal, 0, FIRST_EVENTS).await?;
        let ours = |kind: &str| kind.starts_with("turn.") || kind.starts_with("session.");
        Ok(first.events.iter().any(|event| !ours(&event.kind)))
    }
}

/// Puts a plan into a change; true when a driver goes on from there.
fn carry_out(change: &mut Change, rows: &Rows, plan: &RecoveryPlan) -> ServiceResult<bool> {
    match plan {
        RecoveryPlan::Release | RecoveryPlan::KeepWaiting => Ok(false),
        RecoveryPlan::RunQueued | RecoveryPlan::Deliver => Ok(true),
        RecoveryPlan::Fulfil(wish) => {
            end_all_turns(change, &rows.session, &rows.open, &rows.queued, None, None);
            match wish {
                Wish::Destroy => destroyed(change, &rows.session)?,
                Wish::Stop | Wish::Cancel => stopped(change, &rows.session, StopCause::User)?,
            }
            Ok(false)
        }
        RecoveryPlan::End(end) => {
            let Some(turn) = rows.current_turn() else { return Ok(false) };
            let cancelled = *end == TurnEnd::Cancelled;
            let close_as = if cancelled { ApprovalStatus::Cancelled } else { ApprovalStatus::Orphaned };
            let ending =
                Ending { turn, end: end.clone(), text: None, usage: None, open: &rows.open, close_as };
            let next = rows.next_after(turn.ordinal);
            ending.apply(change, &rows.session, next)?;
            Ok(next.is_some())
        }
    }
}
