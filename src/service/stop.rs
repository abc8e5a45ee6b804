//! Stop a session: its turn and harness end, its state is kept.

use std::sync::Arc;

use super::cancel::Wished;
use super::rows::Rows;
use super::turn_end::end_all_turns;
use super::{OnceRequest, Service, ServiceError, ServiceResult};
use crate::domain::event::{EventBody, NewEvent};
use crate::domain::scope::Scope;
use crate::domain::session::{Session, SessionState, StopCause, Transition, Wish};
use crate::domain::turn::TurnEnd;
use crate::fault;
use crate::store::{Change, SessionRef};

impl Service {
    /// Ends turn and harness, keeps the resume state. Stopping what is stopped is fine.
    ///
    /// # Errors
    /// `NotFound`, `SessionDestroyed`.
    pub async fn stop(
        self: &Arc<Self>,
        scope: &Scope,
        session: &SessionRef,
        once: Option<OnceRequest>,
    ) -> ServiceResult<Wished> {
        let found = self.get_session(scope, session).await?;
        let this = Arc::clone(self);
        self.unit(async move {
            this.wish_stopped(&found, once).await?;
            // A prompt may have brought it back meanwhile: then it was stopped, and runs again.
            let stopped = |session: &Session| session.wish != Some(Wish::Stop);
            let session = this.wait_for(found.key, stopped).await?.ok_or(ServiceError::NotFound)?;
            let done = stopped(&session);
            Ok(Wished { session: this.view(session), done })
        })
        .await
    }

    async fn wish_stopped(self: &Arc<Self>, found: &Session, once: Option<OnceRequest>) -> ServiceResult<()> {
        let _guard = self.locks.lock(found.key).await;
        let (session, (wished, ended)) = self
            .change(found.key, |Rows { session, open, queued }| match &session.state {
                SessionState::Destroyed { .. } => Err(ServiceError::SessionDestroyed(session.id.clone())),
                SessionState::Stopped { .. } => {
                    Ok((self.remember_only(session, once.as_ref()), (false, false)))
                }
                _ => {
                    let mut change = self.remember(session, once.as_ref());
                    if session.wish == Some(Wish::Destroy) {
                        return Ok((Some(change), (true, false)));
                    }
                    if session.holder.is_none() {
                        // There is nobody to wish it of.
                        let ended = end_all_turns(&mut change, session, open, queued, None, None);
                        stopped(&mut change, session, StopCause::User)?;
                        return Ok((Some(change), (false, ended)));
                    }
                    change.set.wish = Some(Some(Wish::Stop));
                    Ok((Some(change), (true, false)))
                }
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

/// The session is put away: its state and its event.
pub(super) fn stopped(change: &mut Change, session: &Session, cause: StopCause) -> ServiceResult<()> {
    let at = change.set.at;
    change.set.state = Some(session.state.clone().apply(Transition::Stop { cause, at })?);
    change.set.wish = Some(None);
    change.events.push(NewEvent { turn: None, at, body: EventBody::SessionStopped { cause } });
    Ok(())
}
