//! Look sessions, turns and approvals up, and change what is only words about a session.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Service, ServiceError, ServiceResult};
use crate::clock::Timestamp;
use crate::domain::approval::Approval;
use crate::domain::event::{APPROVAL_REQUESTED, TURN_END_KINDS};
use crate::domain::limits::{is_name, metadata_complaint};
use crate::domain::scope::Scope;
use crate::domain::session::Session;
use crate::domain::turn::{Ordinal, Turn, TurnStatus};
use crate::ids::{ApprovalId, SessionId, SessionKey, TurnId};
use crate::store::{
    ApprovalFilter, Change, Commit, EventPage, Page, PageRequest, SessionFilter, SessionRef, Subscription,
};

/// A session with what only this process knows of it.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionView {
    /// The row.
    pub session: Session,
    /// Whether a process has it in hand, this one or another.
    pub live: bool,
    /// Whether it takes a prompt.
    pub resumable: bool,
}

/// What a caller may change about a session.
#[derive(Clone, Debug, Default)]
pub struct SessionPatch {
    /// Words for lists.
    pub title: Option<String>,
    /// The caller's own pairs, all of them.
    pub metadata: Option<BTreeMap<String, String>>,
}

impl Service {
    /// A session with what only this process knows of it.
    pub fn view(&self, session: Session) -> SessionView {
        let live = session.holder.is_some();
        let resumes =
            self.harnesses.get(&session.harness).is_some_and(|harness| harness.capabilities().resumable);
        SessionView { live, resumable: session.is_resumable(live, resumes), session }
    }

    /// The row of a session in scope.
    pub(super) async fn get_session(&self, scope: &Scope, session: &SessionRef) -> ServiceResult<Session> {
        self.store.find_session(scope, session).await?.ok_or(ServiceError::NotFound)
    }

    /// A session in scope.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn lookup(&self, scope: &Scope, session: &SessionRef) -> ServiceResult<SessionView> {
        Ok(self.view(self.get_session(scope, session).await?))
    }

    /// Sessions in scope, newest first.
    ///
    /// # Errors
    /// What the store says.
    pub async fn list(
        &self,
        scope: &Scope,
        filter: &SessionFilter,
        page: PageRequest<SessionId>,
    ) -> ServiceResult<Page<SessionView>> {
        let page = self.store.list_sessions(scope, filter, page).await?;
        Ok(Page { more: page.more, rows: page.rows.into_iter().map(|session| self.view(session)).collect() })
    }

    /// The newest session of a thread that is not destroyed.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn latest_of_thread(
        &self,
        scope: &Scope,
        thread: &str,
        harness: Option<String>,
    ) -> ServiceResult<SessionView> {
        let filter = SessionFilter {
            thread_id: Some(thread.to_owned()),
            harness,
            alive: true,
            ..SessionFilter::default()
        };
        let page = self.store.list_sessions(scope, &filter, PageRequest { limit: 1, before: None }).await?;
        page.rows.into_iter().next().map(|session| self.view(session)).ok_or(ServiceError::NotFound)
    }

    /// Changes title and metadata.
    ///
    /// # Errors
    /// `NotFound`, `InvalidInput`.
    pub async fn patch(
        self: &Arc<Self>,
        scope: &Scope,
        session: &SessionRef,
        patch: SessionPatch,
    ) -> ServiceResult<SessionView> {
        let found = self.get_session(scope, session).await?;
        let mut complaints = Vec::new();
        if patch.title.as_deref().is_some_and(|title| !is_name(title)) {
            complaints
                .push("title: must be 1 to 200 characters, none of them a control character".to_owned());
        }
        complaints.extend(patch.metadata.as_ref().and_then(metadata_complaint));
        if !complaints.is_empty() {
            return Err(ServiceError::InvalidInput(complaints));
        }
        let this = Arc::clone(self);
        self.unit(async move {
            let _guard = this.locks.lock(found.key).await;
            let session = this.change_words(found, patch).await?;
            Ok(this.view(session))
        })
        .await
    }

    /// Changes the row as it was found. Nothing else is decided from it, so it is read again only when it has changed since;
    /// and the row afterwards is known without reading it, for the change is made of that version or not at all.
    async fn change_words(&self, found: Session, patch: SessionPatch) -> ServiceResult<Session> {
        let at = self.clock.now();
        let change_of = |session: &Session| {
            let mut change = Change::of(session, at);
            change.set.title.clone_from(&patch.title);
            change.set.metadata.clone_from(&patch.metadata);
            change
        };
        if self.store.commit(change_of(&found)).await? != Commit::Done {
            let changed = self.change(found.key, |rows| Ok((Some(change_of(&rows.session)), ()))).await?;
            return Ok(changed.0);
        }
        Ok(Session {
            title: patch.title.unwrap_or(found.title),
            metadata: patch.metadata.unwrap_or(found.metadata),
            version: found.version + 1,
            last_active_at: at,
            ..found
        })
    }

    /// One turn of a session in scope.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn lookup_turn(
        &self,
        scope: &Scope,
        session: &SessionRef,
        turn: &TurnId,
    ) -> ServiceResult<(Session, Turn)> {
        let session = self.get_session(scope, session).await?;
        let turn = self.store.find_turn(session.key, turn).await?.ok_or(ServiceError::NotFound)?;
        Ok((session, turn))
    }

    /// The turns of a session in scope, newest first.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn list_turns(
        &self,
        scope: &Scope,
        session: &SessionRef,
        page: PageRequest<Ordinal>,
    ) -> ServiceResult<(Session, Page<Turn>)> {
        let session = self.get_session(scope, session).await?;
        let page = self.store.list_turns(session.key, page).await?;
        Ok((session, page))
    }

    /// One approval in scope.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn lookup_approval(&self, scope: &Scope, approval: &ApprovalId) -> ServiceResult<Approval> {
        self.store.find_approval(scope, approval).await?.ok_or(ServiceError::NotFound)
    }

    /// Approvals in scope, newest first.
    ///
    /// # Errors
    /// What the store says.
    pub async fn list_approvals(
        &self,
        scope: &Scope,
        filter: &ApprovalFilter,
        page: PageRequest<ApprovalId>,
    ) -> ServiceResult<Page<Approval>> {
        Ok(self.store.list_approvals(scope, filter, page).await?)
    }

    /// A page of a session's events after a seq.
    ///
    /// # Errors
    /// `NotFound`, `InvalidCursor`, `CursorExpired`.
    pub async fn list_events(
        &self,
        scope: &Scope,
        session: &SessionRef,
        after: i64,
        limit: i64,
    ) -> ServiceResult<(Session, EventPage)> {
        let session = self.get_session(scope, session).await?;
        let page = self.store.list_events(session.key, after, limit).await?;
        check_cursor(after, page.first_seq, page.last_seq)?;
        Ok((session, page))
    }

    /// Turns of a session from one on, oldest first, each with all its events: what a transcript is folded from.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn turn_with_events(
        &self,
        session: &Session,
        from: Ordinal,
    ) -> ServiceResult<Option<(Turn, Vec<crate::domain::event::Event>)>> {
        let Some(turn) = self.store.list_turns_from(session.key, from, 1).await?.into_iter().next() else {
            return Ok(None);
        };
        let mut events = Vec::new();
        let mut after = 0;
        loop {
            let page = self.store.list_turn_events(session.key, turn.ordinal, after, EVENTS_AT_ONCE).await?;
            let Some(last) = page.events.last() else { return Ok(Some((turn, events))) };
            after = last.seq;
            events.extend(page.events);
        }
    }

    /// Waits until a turn has ended or waits for a person, at most until `deadline`. Gives the turn as it is then.
    ///
    /// # Errors
    /// `NotFound` when the session is purged meanwhile.
    pub async fn wait_for_turn(
        &self,
        session: &Session,
        turn: &TurnId,
        deadline: Timestamp,
    ) -> ServiceResult<Turn> {
        let mut ear = self.store.subscribe(session.key);
        let mut seen = session.last_event_seq;
        loop {
            // Asked before the table is, which then has all that was told.
            seen = seen.max(ear.told());
            let turn = self.read_turn(session.key, turn).await?;
            if turn.status.is_terminal() || turn.status == TurnStatus::AwaitingApproval {
                return Ok(turn);
            }
            tokio::select! {
                () = halts(&mut ear, &mut seen) => {}
                () = self.clock.sleep_until(deadline) => break,
                () = self.closing.cancelled() => break,
            }
        }
        // It may have begun meanwhile.
        self.read_turn(session.key, turn).await
    }

    async fn read_turn(&self, key: SessionKey, turn: &TurnId) -> ServiceResult<Turn> {
        self.store.find_turn(key, turn).await?.ok_or(ServiceError::NotFound)
    }
}

impl Service {
    /// Waits until `done` holds of the session, whoever brings it about, at most as long as a wish is waited for. Gives the row as
    /// it is then; `None` when it is purged.
    pub(super) async fn wait_for(
        &self,
        key: SessionKey,
        done: impl Fn(&Session) -> bool + Send,
    ) -> ServiceResult<Option<Session>> {
        let deadline = self.clock.now().plus(self.options.wish_deadline);
        let mut ear = self.store.subscribe(key);
        loop {
            let session = self.store.find_session_by_key(key).await?;
            if session.as_ref().is_none_or(&done) {
                return Ok(session);
            }
            tokio::select! {
                () = ear.changed() => {}
                () = self.clock.sleep_until(deadline) => return Ok(session),
            }
        }
    }
}

/// Waits until a turn may have ended or may wait for a person: neither happens without an event that says so. `seen` is the last
/// event that was looked at.
async fn halts(ear: &mut Subscription, seen: &mut i64) {
    let is_halt = |kind: &str| TURN_END_KINDS.contains(&kind) || kind == APPROVAL_REQUESTED;
    loop {
        ear.changed().await;
        // What is not remembered may be anything.
        let Some(events) = ear.remembered_after(*seen) else { return };
        *seen = events.last().map_or(*seen, |last| last.event.seq);
        if events.iter().any(|published| is_halt(&published.event.kind)) {
            return;
        }
    }
}

/// How many events are read with one question.
pub(super) const EVENTS_AT_ONCE: i64 = 500;

/// A cursor must lie within the log: at most its last seq, and nothing purged behind it.
pub(super) fn check_cursor(after: i64, first_seq: i64, last_seq: i64) -> ServiceResult<()> {
    if after < 0 || after > last_seq {
        return Err(ServiceError::InvalidCursor(format!("seq {after} is beyond the last, {last_seq}")));
    }
    if after + 1 < first_seq {
        return Err(ServiceError::CursorExpired { first_seq });
    }
    Ok(())
}
