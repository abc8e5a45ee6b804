//! Idempotency: a request that is sent again has its effect once, and gets the first answer again.
//!
//! The key is kept in the transaction of the effect. Where the answer was not known then (the request waits for a turn, say), it
//! is kept when it is; a process that dies in between leaves the effect and no answer, and a repeat is answered from the rows.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Service, ServiceError, ServiceResult, SessionView};
use crate::clock::Timestamp;
use crate::domain::approval::Approval;
use crate::domain::turn::Turn;
use crate::store::{OnceAnswer, OnceRow, Seen};

/// A request that may be sent again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OnceKey {
    /// The org.
    pub org: String,
    /// The principal's space: see `Principal::idempotency_space`.
    pub space: String,
    /// The client's key.
    pub key: String,
    /// A digest of method, path and body.
    pub fingerprint: String,
}

type Place = (String, String, String);

impl OnceKey {
    fn place(&self) -> Place {
        (self.org.clone(), self.space.clone(), self.key.clone())
    }
}

/// The keys of requests that this process is answering.
#[derive(Clone, Debug, Default)]
pub(super) struct InFlight(Arc<Mutex<HashSet<Place>>>);

/// A key whose request is being answered here; dropped when it is.
#[derive(Debug)]
pub struct OnceGuard {
    key: OnceKey,
    in_flight: InFlight,
}

impl Drop for OnceGuard {
    fn drop(&mut self) {
        self.in_flight.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key.place());
    }
}

/// What is known of a key when its request comes in.
#[derive(Debug)]
pub enum Begun {
    /// Nothing: the effect is to come.
    Fresh(OnceGuard),
    /// The effect was had; the answer may be known.
    Seen(OnceGuard, Seen),
}

/// What a verb did, for an answer that is kept with it.
#[derive(Debug)]
pub struct Effect<'a> {
    /// The session after it.
    pub session: &'a SessionView,
    /// The turn that it made.
    pub turn: Option<&'a Turn>,
    /// The approval that it decided.
    pub approval: Option<&'a Approval>,
}

/// Renders an answer before the effect is committed.
pub type RenderAnswer = fn(&Effect<'_>) -> Option<OnceAnswer>;

/// A key on its way into the transaction of the effect.
#[derive(Clone, Debug)]
pub struct OnceRequest {
    /// The key.
    pub key: OnceKey,
    /// Renders the answer, where it is known that early.
    pub render: Option<RenderAnswer>,
}

impl OnceRequest {
    pub(super) fn row(&self, effect: &Effect<'_>, at: Timestamp) -> OnceRow {
        OnceRow {
            org: self.key.org.clone(),
            space: self.key.space.clone(),
            key: self.key.key.clone(),
            fingerprint: self.key.fingerprint.clone(),
            session: effect.session.session.id.clone(),
            turn: effect.turn.map(|turn| turn.id.clone()),
            approval: effect.approval.map(|approval| approval.id.clone()),
            answer: self.render.and_then(|render| render(effect)),
            at,
        }
    }
}

impl OnceGuard {
    /// The key.
    pub fn key(&self) -> &OnceKey {
        &self.key
    }

    /// The key as the verb takes it.
    pub fn request(&self, render: Option<RenderAnswer>) -> OnceRequest {
        OnceRequest { key: self.key.clone(), render }
    }
}

impl Service {
    /// Begins to answer a request that carries a key.
    ///
    /// # Errors
    /// [`ServiceError::IdempotencyInProgress`] while another request of the same key is being answered,
    /// [`ServiceError::IdempotencyKeyReused`] when the key was used for another request.
    pub async fn begin_once(&self, key: OnceKey) -> ServiceResult<Begun> {
        let fresh = self.once.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key.place());
        if !fresh {
            return Err(ServiceError::IdempotencyInProgress);
        }
        let guard = OnceGuard { key, in_flight: self.once.clone() };
        let key = &guard.key;
        match self.store.find_once(&key.org, &key.space, &key.key).await? {
            None => Ok(Begun::Fresh(guard)),
            Some(seen) if seen.fingerprint != key.fingerprint => Err(ServiceError::IdempotencyKeyReused),
            Some(seen) => Ok(Begun::Seen(guard, seen)),
        }
    }

    /// Keeps the answer that was not known when the effect was committed.
    ///
    /// # Errors
    /// When the store cannot keep it.
    pub async fn finish_once(&self, guard: &OnceGuard, answer: OnceAnswer) -> ServiceResult<()> {
        let key = &guard.key;
        Ok(self.store.finish_once(&key.org, &key.space, &key.key, answer).await?)
    }
}
