//! Check a harness: start it where no session is, hear what it says of itself, and end it.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;

use super::{Service, ServiceError, ServiceResult, workspace};
use crate::domain::approval::PermissionMode;
use crate::domain::policy::DeniedTools;
use crate::domain::turn::Failure;
use crate::harness::{Fence, Harness, Introduction, StartError, StartOptions};
use crate::ids::SessionId;

/// What came of a check.
#[derive(Clone, Debug)]
pub struct Checked {
    /// What the harness said of itself, or why it did not start: the code of a start.
    pub outcome: Result<Introduction, Failure>,
    /// How long it took from its start to its end.
    pub took: Duration,
}

/// The harnesses that are being checked.
#[derive(Debug, Default)]
pub(super) struct Checks(Mutex<HashSet<String>>);

/// A check at work. Dropping it lets the next one begin.
struct AtWork<'a>(&'a Checks, String);

impl Checks {
    fn begin(&self, name: &str) -> ServiceResult<AtWork<'_>> {
        if self.lock().insert(name.to_owned()) {
            return Ok(AtWork(self, name.to_owned()));
        }
        Err(ServiceError::Overloaded("this harness is being checked"))
    }

    // A panic while it is held leaves nothing half done.
    fn lock(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.lock().remove(&self.1);
    }
}

impl Service {
    /// Starts a harness in directories of its own, which are removed afterwards, and ends it. It has as long for it as for the
    /// start of a session.
    ///
    /// # Errors
    /// `NotFound` for an unknown one; `Overloaded` while it is being checked; `ShuttingDown`; `Directory`. A harness that does not
    /// start is no error.
    pub async fn check_harness(self: &Arc<Self>, name: &str) -> ServiceResult<Checked> {
        self.refuse_when_closing()?;
        let harness = self.harnesses.get(name).cloned().ok_or(ServiceError::NotFound)?;
        let this = Arc::clone(self);
        self.unit(async move { this.check_one(harness.as_ref()).await }).await
    }

    async fn check_one(&self, harness: &dyn Harness) -> ServiceResult<Checked> {
        let _at_work = self.checks.begin(harness.name())?;
        let id = SessionId::mint();
        let begun = self.clock.now();
        let outcome = self.introduce(harness, &id).await;
        workspace::erase_check(&self.options, &id).await;
        Ok(Checked { outcome: outcome?, took: self.clock.now().since(begun) })
    }

    async fn introduce(
        &self,
        harness: &dyn Harness,
        id: &SessionId,
    ) -> ServiceResult<Result<Introduction, Failure>> {
        let settings = match harness.validate(&Value::Null) {
            Ok(settings) => settings,
            Err(complaints) => return Ok(Err(Failure::new("invalid_input", complaints.join("; ")))),
        };
        let made = workspace::make_check(&self.options, id).await;
        let (workspace, state_dir) = made.map_err(ServiceError::Directory)?;
        let options = StartOptions {
            session_id: id.clone(),
            workspace,
            state_dir,
            instructions: None,
            permission_mode: PermissionMode::Ask,
            denied_tools: DeniedTools::default(),
            settings,
            resume: None,
            open_turn: None,
            fence: Fence::open(),
        };
        let introduced = self.closing.run_until_cancelled(harness.introduce(options)).await;
        let introduced = introduced.ok_or(ServiceError::ShuttingDown)?;
        Ok(introduced.map_err(|error: StartError| error.failure().clone()))
    }
}
