//! Create a session, with its first turn where a prompt came along.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::once::Effect;
use super::{OnceRequest, Service, ServiceError, ServiceResult, SessionView, workspace};
use crate::domain::approval::PermissionMode;
use crate::domain::event::{EventBody, NewEvent};
use crate::domain::limits::{Limits, NAME_MAX_CHARS, is_name, metadata_complaint};
use crate::domain::scope::Principal;
use crate::domain::session::{OnContextLoss, Session, SessionState, Transition};
use crate::domain::turn::{Ordinal, Prompt, Turn};
use crate::fault;
use crate::harness::Harness;
use crate::ids::{SessionId, SessionKey, mint_run_id};
use crate::store::{Change, Commit, StoreError, TurnWrite};

/// What a caller may say about a new session.
#[derive(Clone, Debug, Default)]
pub struct CreateSession {
    /// The harness's name.
    pub harness: String,
    /// The first prompt.
    pub prompt: Option<Prompt>,
    /// The host's name for the session.
    pub run_id: Option<String>,
    /// The caller's group of sessions.
    pub thread_id: Option<String>,
    /// Words for lists.
    pub title: Option<String>,
    /// The caller's own pairs.
    pub metadata: BTreeMap<String, String>,
    /// System instructions.
    pub instructions: Option<String>,
    /// How far the agent's labels are trusted.
    pub permission_mode: PermissionMode,
    /// A directory inside a root that the operator allows.
    pub workspace: Option<String>,
    /// Time limits.
    pub limits: Limits,
    /// The harness's own settings.
    pub settings: Value,
    /// The W3C trace context of the request.
    pub traceparent: Option<String>,
    /// What becomes of the session when its conversation cannot be taken up.
    pub on_context_loss: OnContextLoss,
}

impl Service {
    /// Creates a session and gives it, and its first turn, back. The harness is started afterwards: a start that fails is an
    /// event, never a lost request.
    ///
    /// # Errors
    /// `UnknownHarness`, `InvalidInput` with all complaints, `Unsupported`, `RunExists`, and what the store says.
    pub async fn create(
        self: &Arc<Self>,
        principal: &Principal,
        input: CreateSession,
        once: Option<OnceRequest>,
    ) -> ServiceResult<SessionView> {
        self.refuse_when_closing()?;
        let owner = principal.creates_as()?;
        let org = principal.org.clone();
        let this = Arc::clone(self);
        self.unit(async move { this.create_as(org, owner, input, once).await }).await
    }

    async fn create_as(
        self: &Arc<Self>,
        org: String,
        owner: String,
        input: CreateSession,
        once: Option<OnceRequest>,
    ) -> ServiceResult<SessionView> {
        let (session, turn) = self.compose(org, owner, input)?;
        let _room = if turn.is_some() { Some(self.make_room().await?) } else { None };
        workspace::make(&self.options, &session).await.map_err(ServiceError::Directory)?;
        let at = session.created_at;
        let view = SessionView { live: false, resumable: true, session };
        let mut change = Change::create(view.session.clone());
        change.events.push(NewEvent { turn: None, at, body: EventBody::SessionCreated {} });
        if let Some(turn) = &turn {
            change.events.push(NewEvent { turn: Some(turn.reference()), at, body: EventBody::TurnQueued {} });
            change.turns.push(TurnWrite::Insert { turn: Box::new(turn.clone()), urgent: false });
        }
        let effect = Effect { session: &view, turn: turn.as_ref(), approval: None };
        change.once = once.map(|once| once.row(&effect, at));
        fault::point("create.before");
        if let Err(error) = self.commit_new(change).await {
            // Where nothing was made, no directory is left either. Where nobody knows, somebody may be at work in it by now.
            if !matches!(error, ServiceError::Store(StoreError::Unknown(_))) {
                workspace::erase(&self.options, &view.session, true).await;
            }
            return Err(error);
        }
        fault::point("create.committed");
        tracing::info!(session = %view.session.id, harness = view.session.harness, "session created");
        if turn.is_some() {
            self.ensure_driver(&view.session);
        }
        Ok(view)
    }

    async fn commit_new(&self, change: Change) -> ServiceResult<()> {
        match self.store.commit(change).await? {
            Commit::Done => Ok(()),
            Commit::RunExists => Err(ServiceError::RunExists),
            Commit::Repeated => Err(ServiceError::IdempotencyInProgress),
            Commit::Stale => Err(ServiceError::Bug("a new session was stale".to_owned())),
        }
    }

    /// The session's row and its first turn, or everything that is wrong with the input.
    fn compose(
        &self,
        org: String,
        owner: String,
        input: CreateSession,
    ) -> ServiceResult<(Session, Option<Turn>)> {
        let harness = self
            .harnesses
            .get(&input.harness)
            .ok_or_else(|| ServiceError::UnknownHarness(input.harness.clone()))?;
        let id = SessionId::mint();
        let mut complaints = complaints_about(&input);
        let max_mode = self.options.policy.max_mode(&input.harness);
        if input.permission_mode > max_mode {
            complaints.push(format!("permission_mode: the operator allows at most {max_mode}"));
        }
        let prompt = input.prompt.map(Prompt::trimmed).transpose();
        let prompt = prompt.unwrap_or_else(|blank| {
            complaints.push(format!("prompt: {blank}"));
            None
        });
        let settings = harness.validate(&input.settings).unwrap_or_else(|wrong| {
            complaints.extend(wrong.into_iter().map(|complaint| format!("settings.{complaint}")));
            Value::Null
        });
        let workspace =
            workspace::choose(&self.options, &id, input.workspace.as_deref()).unwrap_or_else(|complaint| {
                complaints.push(format!("workspace: {complaint}"));
                String::new()
            });
        if !complaints.is_empty() {
            return Err(ServiceError::InvalidInput(complaints));
        }
        refuse_unsupported(harness.as_ref(), input.instructions.is_some())?;
        let at = self.clock.now();
        let turn = prompt.as_ref().map(|prompt| Turn {
            traceparent: input.traceparent,
            ..Turn::queued(Ordinal(1), prompt.clone(), at)
        });
        let state = match &turn {
            Some(turn) => SessionState::Idle.apply(Transition::Queue { turn: turn.ordinal })?,
            None => SessionState::Idle,
        };
        let key = SessionKey::mint().map_err(|error| ServiceError::Bug(error.to_string()))?;
        let session = Session {
            id,
            run_id: input.run_id.unwrap_or_else(mint_run_id),
            thread_id: input.thread_id,
            title: input.title.unwrap_or_else(|| Session::default_title(prompt.as_ref(), &input.harness)),
            metadata: input.metadata,
            instructions: input.instructions,
            permission_mode: input.permission_mode,
            on_context_loss: input.on_context_loss,
            workspace,
            limits: input.limits,
            settings,
            state,
            turn_count: i64::from(turn.is_some()),
            last_event_seq: 1 + i64::from(turn.is_some()),
            turn: turn.clone(),
            ..Session::new(key, org, owner, input.harness, at)
        };
        Ok((session, turn))
    }
}

fn refuse_unsupported(harness: &dyn Harness, instructions: bool) -> ServiceResult<()> {
    if instructions && !harness.capabilities().instructions {
        return Err(ServiceError::Unsupported(format!(
            "the harness {} takes no instructions",
            harness.name()
        )));
    }
    Ok(())
}

fn complaints_about(input: &CreateSession) -> Vec<String> {
    let mut complaints = Vec::new();
    for (field, value) in
        [("run_id", &input.run_id), ("thread_id", &input.thread_id), ("title", &input.title)]
    {
        if let Some(value) = value
            && !is_name(value)
        {
            complaints.push(format!(
                "{field}: must be 1 to {NAME_MAX_CHARS} characters, none of them a control character"
            ));
        }
    }
    complaints.extend(metadata_complaint(&input.metadata));
    complaints.extend(input.limits.complaint());
    complaints
}
