//! driver
use std::sync::Arc;

use super::Service;
use crate::ids::SessionKey;

impl Service {
    /// Makes sure that a driver of this process looks at the session's rows.
    pub(super) fn ensure_driver(self: &Arc<Self>, key: SessionKey) {
        if let Some(live) = self.live.get(key) {
            live.ring();
        }
    }
}
