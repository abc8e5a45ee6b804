//! Follow a session's events: read the table, then wait for more. The hint only says when to look.

use std::sync::Arc;

use super::lookup::{EVENTS_AT_ONCE, check_cursor};
use super::{Service, ServiceError, ServiceResult};
use crate::domain::event::{DELTA_KINDS, EventBody, TURN_END_KINDS};
use crate::domain::scope::Scope;
use crate::domain::session::{Session, SessionState};
use crate::domain::turn::{Turn, TurnRef};
use crate::ids::{KeyId, TurnId};
use crate::store::{Published, SessionRef, SharedStore, Subscription};

/// When a stream has nothing more to come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Until {
    /// When the session is destroyed.
    Destroyed,
    /// When no turn is at work or queued.
    Idle,
    /// Also when an approval waits.
    Pause,
    /// With the end of one turn; other turns' events are left out.
    Turn(TurnId),
    /// As `Turn`, also when that turn waits for a person.
    Answer(TurnRef),
}

impl Until {
    /// The one turn that is followed.
    fn turn(&self) -> Option<&TurnId> {
        match self {
            Self::Turn(turn) => Some(turn),
            Self::Answer(turn) => Some(&turn.id),
            Self::Destroyed | Self::Idle | Self::Pause => None,
        }
    }
}

/// A reader that follows one session. It never skips and never repeats an event.
#[derive(Debug)]
pub struct Tail {
    store: SharedStoreDebug,
    session: Session,
    ear: Subscription,
    cursor: i64,
    until: Until,
    ended: bool,
    /// What came since the row was last looked at may have ended the stream.
    may_be_over: bool,
}

/// A store in a struct that wants to be `Debug`.
struct SharedStoreDebug(SharedStore);

impl std::fmt::Debug for SharedStoreDebug {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("store")
    }
}

impl Service {
    /// Follows a session in scope from after a seq; `None` when it is destroyed and was read to the end.
    ///
    /// # Errors
    /// `NotFound`, `InvalidCursor`, `CursorExpired`.
    pub async fn follow(
        &self,
        scope: &Scope,
        session: &SessionRef,
        after: i64,
        until: Until,
    ) -> ServiceResult<Option<Tail>> {
        let session = self.get_session(scope, session).await?;
        let tail = self.tail(session, after, until);
        let page = self.store.list_events(tail.session.key, after, 1).await?;
        check_cursor(after, page.first_seq, page.last_seq)?;
        let over = matches!(tail.session.state, SessionState::Destroyed { .. });
        Ok((!over || after < page.last_seq).then_some(tail))
    }

    /// Follows one turn from its first event to its end.
    ///
    /// # Errors
    /// What the store says.
    pub async fn follow_turn(&self, session: Session, turn: &Turn) -> ServiceResult<Tail> {
        self.tail_of_turn(session, turn, Until::Turn(turn.id.clone())).await
    }

    /// Follows one turn from its first event to its end, or to where it waits for a person. A turn that goes on after that is
    /// followed further.
    ///
    /// # Errors
    /// What the store says.
    pub async fn follow_answer(&self, session: Session, turn: &Turn) -> ServiceResult<Tail> {
        self.tail_of_turn(session, turn, Until::Answer(turn.reference())).await
    }

    async fn tail_of_turn(&self, session: Session, turn: &Turn, until: Until) -> ServiceResult<Tail> {
        let first = self.store.list_turn_events(session.key, turn.ordinal, 0, 1).await?;
        let first = first.events.first();
        let mut tail = self.tail(session, first.map_or(0, |event| event.seq - 1), until);
        // Of a turn that ended long ago the events may be purged, its last one as well: nothing is to come.
        let whole = first.is_some_and(|event| event.kind == EventBody::TurnQueued {}.kind());
        tail.ended = turn.status.is_terminal() && !whole;
        Ok(tail)
    }

    /// Makes a ticket for one stream of a session in scope: for pages that cannot send headers.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn make_ticket(
        &self,
        scope: &Scope,
        session: &SessionRef,
        key: &KeyId,
    ) -> ServiceResult<(String, crate::clock::Timestamp)> {
        let session = self.get_session(scope, session).await?;
        let secret = super::keys::random_secret()?;
        let expires_at = self.clock.now().plus(TICKET_TTL);
        self.store.insert_ticket(&super::keys::hash(&secret), session.key, key, expires_at).await?;
        Ok((secret, expires_at))
    }

    /// Takes a ticket: it is valid once, for one session, while its key is.
    ///
    /// # Errors
    /// `Unauthenticated` for one that is not valid, or not for that session.
    pub async fn take_ticket(
        &self,
        ticket: &str,
        session: &SessionRef,
    ) -> ServiceResult<crate::domain::scope::Principal> {
        let taken = self.store.take_ticket(&super::keys::hash(ticket), self.clock.now()).await?;
        let (session_key, key) = taken.ok_or(ServiceError::Unauthenticated)?;
        let mut principal = self.principal_of(&key).await?;
        let found =
            self.store.find_session_by_key(session_key).await?.ok_or(ServiceError::Unauthenticated)?;
        let meant = match session {
            SessionRef::Id(id) => found.id == *id,
            SessionRef::Run(run) => found.run_id == *run && found.org_id == principal.org,
        };
        if !meant {
            return Err(ServiceError::Unauthenticated);
        }
        // A service key's ticket speaks for the owner of the session that it was made for.
        principal.on_behalf_of = Some(found.owner_id);
        Ok(principal)
    }

    fn tail(&self, session: Session, after: i64, until: Until) -> Tail {
        let ear = self.store.subscribe(session.key);
        Tail {
            store: SharedStoreDebug(Arc::clone(&self.store)),
            session,
            ear,
            cursor: after,
            until,
            ended: false,
            may_be_over: true,
        }
    }
}

fn is_delta(kind: &str) -> bool {
    DELTA_KINDS.contains(&kind)
}

/// How long a ticket waits to be taken.
const TICKET_TTL: std::time::Duration = std::time::Duration::from_secs(60);

impl Tail {
    /// The session that is followed, as it was when following began.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The next events, at least one; `None` when nothing more is to come.
    ///
    /// # Errors
    /// What the store says.
    pub async fn next(&mut self) -> ServiceResult<Option<Vec<Arc<Published>>>> {
        while !self.ended {
            let found = self.look().await?;
            let Some(last) = found.last() else {
                if self.may_be_over && self.is_over().await? {
                    break;
                }
                self.ear.changed().await;
                continue;
            };
            self.cursor = last.event.seq;
            // Whatever changes the session is committed together with an event that says so; words change nothing.
            self.may_be_over |= found.iter().any(|published| !is_delta(&published.event.kind));
            let shown = self.shown(found);
            if !shown.is_empty() {
                return Ok(Some(shown));
            }
        }
        Ok(None)
    }

    /// What there is after the cursor: from the channel's memory, which is shared, else from the table.
    async fn look(&mut self) -> ServiceResult<Vec<Arc<Published>>> {
        // A memory that reaches back to the cursor and has nothing after it: nothing is published that was not seen, and
        // what is published next rings.
        if let Some(remembered) = self.ear.remembered_after(self.cursor) {
            return Ok(remembered);
        }
        let page = self.store.0.list_events(self.session.key, self.cursor, EVENTS_AT_ONCE).await?;
        if page.events.is_empty() && self.cursor + 1 < page.first_seq {
            return Err(ServiceError::CursorExpired { first_seq: page.first_seq });
        }
        // A log that has lost its end is that of a session that was purged, its last events before they were shown here.
        self.may_be_over |= page.last_seq < self.cursor;
        Ok(page.events.into_iter().map(|event| Arc::new(Published::new(event))).collect())
    }

    /// The part that this stream shows; the end of its turn ends it.
    fn shown(&mut self, mut found: Vec<Arc<Published>>) -> Vec<Arc<Published>> {
        if let Some(turn) = self.until.turn() {
            found.retain(|published| published.event.turn_id.as_ref().is_none_or(|id| id == turn));
            let end = found.iter().position(|published| {
                published.event.turn_id.is_some() && TURN_END_KINDS.contains(&published.event.kind.as_str())
            });
            if let Some(end) = end {
                found.truncate(end + 1);
                self.ended = true;
            }
        }
        found
    }

    /// Whether nothing more is to come. The row and the last seq are read together, so that nothing slips in between.
    async fn is_over(&mut self) -> ServiceResult<bool> {
        let Some(session) = self.store.0.find_session_by_key(self.session.key).await? else {
            return Ok(true);
        };
        let quiet = match (&self.until, &session.state) {
            (_, SessionState::Destroyed { .. }) => true,
            (Until::Answer(turn), SessionState::AwaitingApproval { turn: asks }) => turn.ordinal == *asks,
            (Until::Destroyed | Until::Turn(_) | Until::Answer(_), _) => false,
            (Until::Pause, SessionState::AwaitingApproval { .. }) => true,
            (Until::Idle | Until::Pause, state) => state.turn().is_none(),
        };
        self.may_be_over = quiet;
        Ok(quiet && session.last_event_seq <= self.cursor)
    }
}
