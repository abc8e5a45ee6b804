//! The rows that a step of a session's life is decided on.

use super::prompt::QUEUED_TURNS_MAX;
use super::{Service, ServiceResult};
use crate::domain::approval::Approval;
use crate::domain::session::Session;
use crate::domain::turn::{Ordinal, Turn, TurnStatus};
use crate::ids::SessionKey;

/// See the module.
#[derive(Debug)]
pub(super) struct Rows {
    pub(super) session: Session,
    /// Approvals that are pending, or decided and not delivered.
    pub(super) open: Vec<Approval>,
    /// The turns that wait, the next one first.
    pub(super) queued: Vec<Turn>,
}

impl Rows {
    /// The turn that follows `current`.
    pub(super) fn next_after(&self, current: Ordinal) -> Option<&Turn> {
        self.queued.iter().find(|turn| turn.ordinal != current)
    }

    /// The turn that is queued or at work.
    pub(super) fn current_turn(&self) -> Option<&Turn> {
        self.session.turn.as_ref().filter(|turn| Some(turn.ordinal) == self.session.state.turn())
    }
}

impl Service {
    /// Reads them; `None` when there is no such session any more.
    pub(super) async fn read_rows(&self, key: SessionKey) -> ServiceResult<Option<Rows>> {
        let Some(session) = self.store.find_session_by_key(key).await? else { return Ok(None) };
        if session.state.turn().is_none() {
            return Ok(Some(Rows { session, open: Vec::new(), queued: Vec::new() }));
        }
        let open = match session.open_approval_count {
            0 => Vec::new(),
            _ => self.store.list_open_approvals(key).await?,
        };
        let queued = match session.queued_turns {
            // None waits behind the current one, and that came with the session.
            0 => session.turn.iter().filter(|turn| turn.status == TurnStatus::Queued).cloned().collect(),
            _ => self.store.list_queued_turns(key, QUEUED_TURNS_MAX + 1).await?,
        };
        Ok(Some(Rows { session, open, queued }))
    }
}
