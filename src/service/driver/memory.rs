//! The agent's memory, on its way into the database: taken when a turn ends, and again when it rests, since some agents write the
//! end of a turn down after they have told it; when a question is asked, since the process may die before it is answered; and when
//! the session is put away. It goes with the next change of the session.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::Driver;
use crate::clock::Timestamp;
use crate::domain::agent_files::{AgentFiles, FilesDigest};
use crate::domain::event::Output;
use crate::domain::turn::Failure;
use crate::harness::{Fence, Harness, StartOptions, memory};
use crate::service::ServiceResult;

/// How long the files may take to be read. The end of a turn waits for that.
const TAKE_DEADLINE: Duration = Duration::from_secs(10);
/// How long after the end of a turn it is looked whether files came late. Where some did, it is looked again, after twice as long
/// each time: an agent that writes without an end must not be stored without an end.
const LATE: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Default)]
pub(super) struct Memory {
    /// Where it is; `None` until a harness that has one stands where the session stands.
    place: Option<Place>,
    /// What the database has.
    stored: Option<FilesDigest>,
    /// What was taken and is not stored yet.
    pub(super) unsaved: Option<AgentFiles>,
    /// When it is looked whether some came late, and how long that was waited for.
    look_again: Option<(Timestamp, Duration)>,
    /// Why it could not be taken the last time, which the log has.
    told: Option<String>,
}

/// Where a harness keeps the session's files.
#[derive(Clone)]
pub(super) struct Place {
    harness: Arc<dyn Harness>,
    state_dir: PathBuf,
    fence: Fence,
}

impl Place {
    /// Where the files are that a harness is started on; `None` when it keeps none.
    pub(super) fn of(harness: &Arc<dyn Harness>, options: &StartOptions) -> Option<Self> {
        let (state_dir, fence) = (options.state_dir.clone(), options.fence.clone());
        (!harness.state_paths().is_empty()).then(|| Self { harness: Arc::clone(harness), state_dir, fence })
    }
}

impl Memory {
    /// A harness has started on what the database has. Before that the files are not the session's memory: they may be of an
    /// older process, or of a start that failed.
    pub(super) fn begin(&mut self, place: Option<Place>, stored: Option<FilesDigest>) {
        (self.place, self.stored) = (place, stored);
    }

    /// What was taken is stored.
    pub(super) fn is_stored(&mut self) {
        if let Some(files) = self.unsaved.take() {
            self.stored = Some(files.digest);
        }
    }
}

impl Driver {
    /// Takes the agent's memory, where it has changed. A failure is told, once for each reason, and ends nothing: where the files
    /// are, the session goes on with them.
    pub(super) async fn remember(&mut self) {
        let Some(Place { harness, state_dir, fence }) = self.memory.place.clone() else { return };
        let take = memory::take(&state_dir, harness.state_paths(), self.memory.stored.as_ref(), &fence);
        let late = || Failure::new("agent_files_unreadable", "its files cannot be read in time");
        match tokio::time::timeout(TAKE_DEADLINE, take).await.unwrap_or_else(|_| Err(late())) {
            Ok(taken) => {
                self.memory.told = None;
                self.memory.unsaved = taken.or(self.memory.unsaved.take());
            }
            Err(Failure { message, .. }) if self.memory.told.as_ref() == Some(&message) => {}
            Err(Failure { code, message }) => {
                tracing::warn!(code, "an agent's memory cannot be stored: {message}");
                let label = format!(
                    "the agent's memory was not stored: {message}. On another disk the session would go on from what was stored before"
                );
                let event = self.event(Output::Activity { label, tool: None, raw: None });
                self.outbox.push(event);
                self.memory.told = Some(message);
            }
        }
    }

    /// [`Driver::remember`], and stores it at once; gives whether there was something to store.
    pub(super) async fn remember_now(&mut self) -> ServiceResult<bool> {
        self.remember().await;
        let changed = self.memory.unsaved.is_some();
        if changed {
            self.save_state().await?;
        }
        Ok(changed)
    }

    /// The turn is over: what its agent writes down from here on came late.
    pub(super) fn look_again_later(&mut self) {
        self.memory.look_again = self.memory.place.as_ref().map(|_| (self.now().plus(LATE), LATE));
    }

    /// When to look whether files came late; not while a turn is at work, whose end looks for itself.
    pub(super) fn late_files_due(&self) -> Option<Timestamp> {
        let rests = self.work.is_none() && self.harness.is_some();
        self.memory.look_again.filter(|_| rests).map(|(at, _)| at)
    }

    /// Takes what came late, until nothing does.
    pub(super) async fn take_late_files(&mut self) -> ServiceResult<()> {
        let Some((_, waited)) = self.memory.look_again.take() else { return Ok(()) };
        if self.remember_now().await? {
            self.memory.look_again = Some((self.now().plus(waited * 2), waited * 2));
        }
        Ok(())
    }
}
