//! How many sessions may be live at once: room is reserved before work is taken on, and where there is none, the session that has
//! been idle for longest is put away.

use std::sync::Arc;
use std::time::Duration;

pub(super) use super::live::Room;
use super::{Service, ServiceError, ServiceResult};
use crate::domain::session::{Session, StopCause};

/// How long whoever needs room waits for idle sessions to be put away.
const PATIENCE: Duration = Duration::from_secs(10);

impl Service {
    /// Room for one more live session, held until it is dropped: by then the session is live itself.
    ///
    /// # Errors
    /// `Overloaded` when as many sessions are live as may be and none of them is idle.
    pub(super) async fn make_room(&self) -> ServiceResult<Room> {
        let deadline = self.clock.now().plus(PATIENCE);
        let mut seat = Arc::clone(&self.live).queue();
        loop {
            let left = self.live.left();
            if let Some(room) = seat.reserve(self.options.max_live) {
                return Ok(room);
            }
            // Its state is kept; a prompt brings it back.
            if !self.live.put_idle_away(StopCause::IdleTtl) {
                return Err(ServiceError::Overloaded("as many sessions are live as this service may have"));
            }
            tokio::select! {
                () = left => {}
                () = self.clock.sleep_until(deadline) => {
                    return Err(ServiceError::Overloaded("no idle session was put away in time"));
                }
            }
        }
    }

    /// Has a driver look at a session whose rows changed. Where there is no room for one now, a later pass of recovery finds them.
    /// Called with the session's mutex held.
    pub(super) async fn wake(self: &Arc<Self>, session: &Session) {
        let is_live = session.holder.is_some() || self.live.get(session.key).is_some();
        let room = if is_live { None } else { self.make_room().await.ok() };
        if is_live || room.is_some() {
            self.ensure_driver(session);
        }
    }
}
