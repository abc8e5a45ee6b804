//! Takes care of sessions whose holder is gone: at start, and every few seconds. What is to be done is a plan of the domain; here
//! it is carried out, under a lease that fences whatever the old holder may still have in flight.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::time::Instant;

use super::destroy::destroyed;
use super::rows::Rows;
use super::so_far::SoFar;
use super::stop::stopped;
use super::sweeper::jittered;
use super::turn_end::{Ending, end_all_turns};
use super::{Service, ServiceResult, chain, workspace};
use crate::domain::approval::ApprovalStatus;
use crate::domain::event::{EventBody, NewEvent, Output};
use crate::domain::recovery::{RecoveryPlan, Stranded, plan};
use crate::domain::session::{Session, StopCause, Wish};
use crate::domain::turn::TurnEnd;
use crate::ids::{ReplicaId, SessionKey};
use crate::store::{Change, Commit, Takeover};

/// Sessions that one pass takes care of; the next pass takes the rest.
const PASS: i64 = 1000;
/// Sessions that are taken care of at the same time: their commits go out together.
const AT_ONCE: usize = 32;

/// How long a turn without a holder is left to the replica that took it, which is about to claim it.
const FIRST_REFUSAL: Duration = Duration::from_millis(500);

/// Sessions with a turn and without a holder, and since when they have been seen so.
#[derive(Debug, Default)]
pub(super) struct Unclaimed(Mutex<HashMap<SessionKey, Instant>>);

impl Unclaimed {
    /// Notes those that are so now, and gives those that have been for long enough.
    fn look(&self, now: &[SessionKey], patience: Duration) -> Vec<SessionKey> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.retain(|key, _| now.contains(key));
        let moment = Instant::now();
        let is_due = |key: &&SessionKey| moment - *seen.entry(**key).or_insert(moment) >= patience;
        now.iter().filter(is_due).copied().collect()
    }
}

/// Sessions whose driver gave up under a lease that may still be valid: nobody else will take care of them.
#[derive(Debug, Default)]
pub(super) struct Abandoned(Mutex<HashMap<SessionKey, ReplicaId>>);

impl Abandoned {
    fn lock(&self) -> MutexGuard<'_, HashMap<SessionKey, ReplicaId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, key: SessionKey, holder: ReplicaId) {
        self.lock().insert(key, holder);
    }
}

impl Service {
    /// Looks for sessions whose holder is gone until the service goes down: often where a lease can run out at any time.
    pub(super) async fn recover_for_ever(self: Arc<Self>) {
        let interval = if self.store.is_shared() {
            (self.options.replica_ttl / 10).clamp(Duration::from_millis(50), Duration::from_secs(1))
        } else {
            self.options.sweep_interval
        };
        loop {
            tokio::select! {
                () = self.clock.sleep(jittered(interval)) => {}
                () = self.closing.cancelled() => return,
            }
            // One failure never ends the loop.
            if let Err(error) = self.recover_all().await {
                tracing::error!(
                    error = chain(&error),
                    "sessions whose holder is gone cannot be read; the next look tries again"
                );
            }
        }
    }

    /// One pass over all sessions whose holder is gone. Gives how many it took care of. One that fails does not keep the others
    /// waiting; the next pass tries it again.
    pub(super) async fn recover_all(self: &Arc<Self>) -> ServiceResult<usize> {
        if self.membership.term().lost.is_cancelled() {
            return Ok(0);
        }
        let stranded = self.store.list_stranded(PASS).await?;
        let abandoned = std::mem::take(&mut *self.abandoned.lock());
        let (held, unclaimed): (Vec<_>, Vec<_>) =
            stranded.into_iter().partition(|stranded| stranded.holder.is_some());
        let unclaimed: Vec<_> = unclaimed.into_iter().map(|stranded| stranded.key).collect();
        let patience = if self.store.is_shared() { FIRST_REFUSAL } else { Duration::ZERO };
        let unclaimed = self.unclaimed.look(&unclaimed, patience).into_iter().map(|key| (key, None));
        let held = held.into_iter().map(|stranded| (stranded.key, stranded.holder));
        let all = held.chain(unclaimed).chain(abandoned.into_iter().map(|(key, holder)| (key, Some(holder))));
        let recoveries = futures_util::stream::iter(all).map(|(key, holder)| {
            let this = Arc::clone(self);
            async move { this.recover_or_say_why(key, holder).await }
        });
        Ok(recoveries
            .buffer_unordered(AT_ONCE)
            .filter(|recovered| std::future::ready(*recovered))
            .count()
            .await)
    }

    async fn recover_or_say_why(self: &Arc<Self>, key: SessionKey, holder: Option<ReplicaId>) -> bool {
        let replica = self.membership.term().replica;
        match self.recover(key, holder.as_ref()).await {
            Ok(recovered) => recovered,
            Err(error) => {
                tracing::error!(session_key = key.0, error = chain(&error), "a session cannot be recovered");
                // It may have been claimed before it failed: then it is this replica's, and nobody else will look at it.
                if holder.is_some() {
                    self.abandoned.add(key, replica);
                }
                false
            }
        }
    }

    async fn recover(self: &Arc<Self>, key: SessionKey, holder: Option<&ReplicaId>) -> ServiceResult<bool> {
        let _guard = self.locks.lock(key).await;
        if self.live.get(key).is_some() {
            return Ok(false);
        }
        let Some(holder) = holder else {
            // A turn was accepted and its process died, or went down, before a driver had it.
            let session = self.store.find_session_by_key(key).await?;
            let room = self.make_room().await.ok();
            return Ok(session
                .filter(|_| room.is_some())
                .is_some_and(|session| self.ensure_driver(&session)));
        };
        let replica = self.membership.term().replica;
        let Some(lease) = self.store.claim(key, &replica, Some(self.takeover(holder))).await? else {
            return Ok(false);
        };
        let Some(rows) = self.read_rows(key).await? else { return Ok(false) };
        if let Some(harness) = self.harnesses.get(&rows.session.harness) {
            let directories = workspace::own_directories(&self.options, &rows.session);
            harness.end_left(&rows.session.id, &directories).await;
        }
        let mut so_far = match rows.current_turn() {
            Some(turn) => self.so_far(key, turn).await?,
            None => SoFar::default(),
        };
        let planned = self.plan_recovery(&rows, &so_far);
        tracing::info!(session = %rows.session.id, plan = ?planned, "recovering a session");
        let mut change = Change::held(&rows.session, &lease, self.clock.now());
        change.set.release = true;
        let stands_still = match planned {
            RecoveryPlan::Resume => true,
            RecoveryPlan::KeepWaiting | RecoveryPlan::Deliver => self.restores_exactly(&rows.session),
            _ => false,
        };
        if let Some(turn) = rows.current_turn().filter(|_| !stands_still) {
            change.events = so_far.close_calls(turn, change.set.at);
        }
        let goes_on = carry_out(&mut change, &rows, &planned, so_far)?;
        if self.store.commit(change).await? != Commit::Done {
            // Somebody changed it since it was claimed: what was planned is not what it needs any more. The next pass plans anew.
            self.abandoned.add(key, replica);
            return Ok(false);
        }
        if let RecoveryPlan::End(end) = &planned {
            self.count_turn(end);
        }
        if planned == RecoveryPlan::Fulfil(Wish::Destroy) {
            workspace::erase(&self.options, &rows.session, false).await;
        }
        // Where there is no room, a later pass finds it without a holder.
        if goes_on && let Ok(_room) = self.make_room().await {
            self.ensure_driver(&Session { holder: None, ..rows.session });
        }
        Ok(true)
    }

    fn takeover<'a>(&self, from: &'a ReplicaId) -> Takeover<'a> {
        let label = "taken over from a process that is gone".to_owned();
        let body = EventBody::Output(Output::Activity { label, tool: None, raw: None });
        Takeover { from, event: NewEvent { turn: None, at: self.clock.now(), body } }
    }

    fn plan_recovery(&self, rows: &Rows, so_far: &SoFar) -> RecoveryPlan {
        plan(&Stranded {
            state: &rows.session.state,
            turn: rows.current_turn().map(|turn| turn.status),
            wish: rows.session.wish,
            open_approvals: &rows.open,
            output_seen: so_far.any,
            keeps_questions: self.keeps_questions(&rows.session),
            resumes: self.resumes(&rows.session),
        })
    }
}

/// Puts a plan into a change; true when a driver goes on from there.
fn carry_out(change: &mut Change, rows: &Rows, plan: &RecoveryPlan, so_far: SoFar) -> ServiceResult<bool> {
    // A turn that never began said nothing.
    let (text, usage) = if so_far.any { (Some(so_far.text), so_far.usage) } else { (None, None) };
    match plan {
        RecoveryPlan::Release | RecoveryPlan::KeepWaiting => Ok(false),
        RecoveryPlan::RunQueued | RecoveryPlan::Deliver | RecoveryPlan::Resume => Ok(true),
        RecoveryPlan::Fulfil(wish) => {
            end_all_turns(change, &rows.session, &rows.open, &rows.queued, text, usage);
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
            let ending = Ending { turn, end: end.clone(), text, usage, open: &rows.open, close_as };
            let next = rows.next_after(turn.ordinal);
            ending.apply(change, &rows.session, next)?;
            Ok(next.is_some())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_turn_without_a_holder_is_left_for_a_while_to_the_one_who_took_it() {
        let (unclaimed, key) = (Unclaimed::default(), SessionKey(1));
        let look = |now: &[SessionKey]| unclaimed.look(now, FIRST_REFUSAL);
        assert_eq!(look(&[key]), []);
        tokio::time::advance(FIRST_REFUSAL).await;
        assert_eq!(look(&[SessionKey(2), key]), [key]);
        assert_eq!(look(&[]), [], "it was claimed meanwhile");
        assert_eq!(look(&[key]), [], "and is seen anew");
        assert_eq!(Unclaimed::default().look(&[key], Duration::ZERO), [key]);
    }
}
