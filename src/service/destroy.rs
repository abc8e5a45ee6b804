//! Destroy a session: it ends for good. Its transcript stays, unless everything is to be erased.

use std::sync::Arc;

use super::rows::Rows;
use super::turn_end::end_all_turns;
use super::{Service, ServiceResult, workspace};
use crate::domain::event::{EventBody, NewEvent};
use crate::domain::scope::Scope;
use crate::domain::session::{Session, SessionState, Transition, Wish};
use crate::domain::turn::TurnEnd;
use crate::fault;
use crate::store::{Change, SessionRef};

impl Service {
    /// Ends the session, erases its resume state and what its agent kept; with `purge` everything. Gives whether it has come
    /// about. Destroying what is destroyed is fine.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn destroy(
        self: &Arc<Self>,
        scope: &Scope,
        session: &SessionRef,
        purge: bool,
    ) -> ServiceResult<bool> {
        let found = self.get_session(scope, session).await?;
        let this = Arc::clone(self);
        self.unit(async move {
            this.wish_destroyed(&found).await?;
            let destroyed = |session: &Session| matches!(session.state, SessionState::Destroyed { .. });
            this.wait_for(found.key, destroyed).await?;
            let _guard = this.locks.lock(found.key).await;
            let Some(session) = this.store.find_session_by_key(found.key).await? else { return Ok(true) };
            if !destroyed(&session) {
                return Ok(false);
            }
            workspace::erase(&this.options, &session, purge).await;
            if purge {
                this.store.purge_session(session.key).await?;
            }
            Ok(true)
        })
        .await
    }

    async fn wish_destroyed(self: &Arc<Self>, found: &Session) -> ServiceResult<()> {
        let _guard = self.locks.lock(found.key).await;
        let (session, (wished, ended)) = self
            .change(found.key, |Rows { session, open, queued }| {
                if matches!(session.state, SessionState::Destroyed { .. }) {
                    return Ok((None, (false, false)));
                }
                let mut change = Change::of(session, self.clock.now());
                if session.holder.is_none() {
                    // There is nobody to wish it of.
                    let ended = end_all_turns(&mut change, session, open, queued, None, None);
                    destroyed(&mut change, session)?;
                    return Ok((Some(change), (false, ended)));
                }
                change.set.wish = Some(Some(Wish::Destroy));
                Ok((Some(change), (true, false)))
            })
            .await?;
        fault::point("wish.committed");
        if ended {
            self.count_turn(&TurnEnd::Cancelled);
        }
        if wished {
            self.ensure_driver(&session);
        }
        Ok(())
    }
}

/// The session is over: its state and its event; what it could be resumed from is erased.
pub(super) fn destroyed(change: &mut Change, session: &Session) -> ServiceResult<()> {
    let at = change.set.at;
    change.set.state = Some(session.state.clone().apply(Transition::Destroy { at })?);
    change.set.wish = Some(None);
    change.set.resume_state = Some(None);
    change.set.agent_files = Some(None);
    change.events.push(NewEvent { turn: None, at, body: EventBody::SessionDestroyed {} });
    Ok(())
}
