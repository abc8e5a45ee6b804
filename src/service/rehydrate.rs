//! From a session's row to a live harness: a new one, or one that takes the conversation up, wherever its last process ran.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::{Service, ServiceResult, chain, workspace};
use crate::domain::agent_files::FilesDigest;
use crate::domain::event::EventBody;
use crate::domain::session::Session;
use crate::domain::turn::Failure;
use crate::harness::{Continuity, Fence, Harness, StartError, StartOptions, TurnInput, memory};
use crate::store::StoreError;

/// How long a disk may take to be brought up to date.
const PUT_BACK_DEADLINE: Duration = Duration::from_secs(60);

/// What a harness is started with, when all that it starts from is in place.
pub(super) struct Preparation {
    pub(super) options: StartOptions,
    /// Which files of its memory the database has.
    pub(super) stored: Option<FilesDigest>,
    /// What the session's log says of how that came about.
    pub(super) notes: Vec<String>,
}

impl Service {
    /// The harness of a session.
    pub(super) fn harness_of(&self, session: &Session) -> Result<Arc<dyn Harness>, StartError> {
        self.harnesses.get(&session.harness).cloned().ok_or_else(|| {
            let words = format!("the harness {} is not configured any more", session.harness);
            StartError::Unavailable(Failure::new("harness_unavailable", words))
        })
    }

    /// All that the session was created with, its resume state, its directories, and in them its agent's memory. What cannot be
    /// had is a start that failed, and changes nothing: what is stored stays as it is, for when it can.
    pub(super) async fn prepare(
        &self,
        session: &Session,
        open_turn: Option<TurnInput>,
        harness: &dyn Harness,
    ) -> ServiceResult<Result<Preparation, StartError>> {
        let (store, lost) = (Arc::clone(&self.store), self.membership.term().lost);
        let policy = &self.options.policy;
        let fence = Fence::new(move || store.pulse().is_alive() && !lost.is_cancelled());
        let mut notes = Vec::new();
        // The directories may be gone, or on another machine: the database is what lasts.
        match workspace::make(&self.options, session).await {
            Ok(true) if session.started => {
                notes.push(
                    "the workspace is not on this disk, and was made anew without its files".to_owned(),
                );
            }
            Ok(_) => {}
            Err(error) => {
                let words = format!("the session's directories cannot be used here: {error}");
                return Ok(Err(StartError::Failed(Failure::new("workspace_unavailable", words))));
            }
        }
        let resume = match readable(self.store.find_resume_state(session.key).await)? {
            Ok(resume) => resume,
            Err(error) => return Ok(Err(error)),
        };
        let options = StartOptions {
            session_id: session.id.clone(),
            workspace: PathBuf::from(&session.workspace),
            state_dir: workspace::state_dir(&self.options, &session.id),
            instructions: session.instructions.clone(),
            permission_mode: session.permission_mode.min(policy.max_mode(&session.harness)),
            denied_tools: policy.denied_in(&session.org_id),
            settings: session.settings.clone(),
            resume,
            open_turn,
            fence,
        };
        if harness.state_paths().is_empty() {
            return Ok(Ok(Preparation { options, stored: None, notes }));
        }
        let bring = self.bring_memory(session, harness, &options, &mut notes);
        let late = || Err(not_resumed("its files could not be put in place in time"));
        let stored = match tokio::time::timeout(PUT_BACK_DEADLINE, bring).await {
            Ok(brought) => brought?,
            Err(_) => late(),
        };
        Ok(stored.map(|stored| Preparation { options, stored, notes }))
    }

    /// Brings the disk up to date with what the database has of the agent's memory, and tells which files that are.
    async fn bring_memory(
        &self,
        session: &Session,
        harness: &dyn Harness,
        options: &StartOptions,
        notes: &mut Vec<String>,
    ) -> ServiceResult<Result<Option<FilesDigest>, StartError>> {
        let Some((digest, at)) = self.store.find_agent_files_digest(session.key).await? else {
            return Ok(Ok(None));
        };
        if !memory::is_behind(&options.state_dir, &digest).await {
            return Ok(Ok(Some(digest)));
        }
        let files = match readable(self.store.find_agent_files(session.key).await)? {
            Ok(Some(files)) => files,
            Ok(None) => return Ok(Ok(None)),
            Err(error) => return Ok(Err(error)),
        };
        let put_back = memory::put_back(&options.state_dir, harness.state_paths(), files, &options.fence);
        if let Err(Failure { message, .. }) = put_back.await {
            return Ok(Err(not_resumed(message)));
        }
        tracing::info!(session = %session.id, "an agent's memory was put in place from the database");
        notes.push(format!("the agent's memory was put in place as it was stored at {at}"));
        Ok(Ok(Some(digest)))
    }
}

/// What was read; a row that cannot be opened is a start that failed, in words, and no trouble of the store's.
fn readable<T>(read: Result<T, StoreError>) -> ServiceResult<Result<T, StartError>> {
    match read {
        Err(error @ (StoreError::Seal(_) | StoreError::Corrupt { .. })) => {
            tracing::error!(error = chain(&error), "what a session goes on from cannot be read");
            Ok(Err(not_resumed(error)))
        }
        read => Ok(Ok(read?)),
    }
}

fn not_resumed(why: impl std::fmt::Display) -> StartError {
    StartError::Failed(Failure::new(
        "agent_resume_failed",
        format!("the conversation cannot be taken up: {why}"),
    ))
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
