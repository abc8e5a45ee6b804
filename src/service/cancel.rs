//! Cancel the current turn; the session stays usable.

use std::sync::Arc;

use super::turn_end::Ending;
use super::{OnceRequest, Service, ServiceError, ServiceResult, SessionView};
use crate::domain::approval::ApprovalStatus;
use crate::domain::scope::Scope;
use crate::domain::session::{Session, SessionState, Wish};
use crate::domain::turn::{Ordinal, TurnEnd};
use crate::fault;
use crate::store::{Change, SessionRef};

/// What came of a wish: the session as it is now, and whether what was wished has come about.
#[derive(Debug)]
pub struct Wished {
    /// The session.
    pub session: SessionView,
    /// Whether it has come about.
    pub done: bool,
}

impl Service {
    /// Ends the current turn. Nothing to end is fine.
    ///
    /// # Errors
    /// `NotFound`, `SessionDestroyed`.
    pub async fn cancel(
        self: &Arc<Self>,
        scope: &Scope,
        session: &SessionRef,
        once: Option<OnceRequest>,
    ) -> ServiceResult<Wished> {
        let found = self.get_session(scope, session).await?;
        let this = Arc::clone(self);
        self.unit(async move {
            let turn = this.wish_cancelled(&found, once).await?;
            if let Some(turn) = turn {
                this.wait_for(found.key, |session| session.state.turn() != Some(turn)).await?;
            }
            let session = this.store.find_session_by_key(found.key).await?.ok_or(ServiceError::NotFound)?;
            let done = turn.is_none_or(|turn| session.state.turn() != Some(turn));
            Ok(Wished { session: this.view(session), done })
        })
        .await
    }

    /// Records the wish; gives the turn that is to end.
    async fn wish_cancelled(
        self: &Arc<Self>,
        found: &Session,
        once: Option<OnceRequest>,
    ) -> ServiceResult<Option<Ordinal>> {
        let _guard = self.locks.lock(found.key).await;
        let (session, (turn, ended)) = self
            .change(found.key, |rows| {
                let session = &rows.session;
                if matches!(session.state, SessionState::Destroyed { .. }) {
                    return Err(ServiceError::SessionDestroyed(session.id.clone()));
                }
                let Some(turn) = rows.current_turn() else {
                    return Ok((self.remember_only(session, once.as_ref()), (None, false)));
                };
                let mut change = self.remember(session, once.as_ref());
                let ends = session.wish.is_none() && session.holder.is_none();
                if ends {
                    // There is nobody to wish it of.
                    let (end, close_as) = (TurnEnd::Cancelled, ApprovalStatus::Cancelled);
                    let ending = Ending { turn, end, text: None, usage: None, open: &rows.open, close_as };
                    ending.apply(&mut change, session, rows.next_after(turn.ordinal))?;
                } else if session.wish.is_none() {
                    change.set.wish = Some(Some(Wish::Cancel));
                }
                Ok((Some(change), (Some(turn.ordinal), ends)))
            })
            .await?;
        fault::point("wish.committed");
        if ended {
            self.count_turn(&TurnEnd::Cancelled);
        }
        if turn.is_some() {
            self.ensure_driver(&session);
        }
        Ok(turn)
    }

    /// A change of the session that holds the request's idempotency key, if it has one, and is open for more.
    pub(super) fn remember(&self, session: &Session, once: Option<&OnceRequest>) -> Change {
        let at = self.clock.now();
        let mut change = Change::of(session, at);
        let view = self.view(session.clone());
        let effect = super::Effect { session: &view, turn: None, approval: None };
        change.once = once.map(|once| once.row(&effect, at));
        change
    }

    /// A change that holds nothing but the idempotency key; none without one.
    pub(super) fn remember_only(&self, session: &Session, once: Option<&OnceRequest>) -> Option<Change> {
        once.map(|once| self.remember(session, Some(once)))
    }
}
