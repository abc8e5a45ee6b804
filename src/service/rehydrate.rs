//! From a session's row to a live harness: a new one, or one that takes the conversation up.

use std::path::PathBuf;
use std::sync::Arc;

use super::{Service, ServiceError, ServiceResult, workspace};
use crate::domain::event::EventBody;
use crate::domain::session::Session;
use crate::domain::turn::Failure;
use crate::harness::{Continuity, Fence, Harness, StartError, StartOptions};
use crate::ids::TurnId;

impl Service {
    /// The harness of a session.
    pub(super) fn harness_of(&self, session: &Session) -> Result<Arc<dyn Harness>, StartError> {
        self.harnesses.get(&session.harness).cloned().ok_or_else(|| {
            let words = format!("the harness {} is not configured any more", session.harness);
            StartError::Unavailable(Failure::new("harness_unavailable", words))
        })
    }

    /// What a harness is started with: all that the session was created with, and its resume state.
    pub(super) async fn start_options(
        &self,
        session: &Session,
        open_turn: Option<TurnId>,
    ) -> ServiceResult<StartOptions> {
        let (store, lost) = (Arc::clone(&self.store), self.membership.term().lost);
        let policy = &self.options.policy;
        let fence = Fence::new(move || store.pulse().is_alive() && !lost.is_cancelled());
        // The directories may be gone: the database is what lasts.
        workspace::make(&self.options, session).await.map_err(ServiceError::Directory)?;
        Ok(StartOptions {
            session_id: session.id.clone(),
            workspace: PathBuf::from(&session.workspace),
            state_dir: workspace::state_dir(&self.options, &session.id),
            instructions: session.instructions.clone(),
            permission_mode: session.permission_mode.min(policy.max_mode(&session.harness)),
            denied_tools: policy.denied_in(&session.org_id),
            settings: session.settings.clone(),
            resume: self.store.find_resume_state(session.key).await?,
            open_turn,
            fence,
        })
    }
}

/// Why the conversation so far is lost to a harness that has started; `None` when it is not.
pub(super) fn lost_context(session: &Session, continuity: &Continuity) -> Option<String> {
    match continuity {
        Continuity::Lost { reason } => Some(reason.clone()),
        Continuity::New => session.started.then(|| "there was no state to resume from".to_owned()),
        Continuity::Exact | Continuity::Restored => None,
    }
}

/// What the session's log says about a harness that has started: never silent about a conversation that was lost.
pub(super) fn continuity_event(session: &Session, continuity: &Continuity) -> Option<EventBody> {
    match continuity {
        Continuity::Exact => Some(EventBody::SessionRehydrated { exact: true }),
        Continuity::Restored => Some(EventBody::SessionRehydrated { exact: false }),
        Continuity::New | Continuity::Lost { .. } => {
            lost_context(session, continuity).map(|reason| EventBody::SessionContextLost { reason })
        }
    }
}
