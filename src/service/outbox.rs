//! Events on their way into the store. One append is in flight at a time; what comes meanwhile waits and is merged, so that the
//! commit in flight makes the batch: a lone word goes out at once, a flood goes out in large pieces.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::task::JoinHandle;

use crate::domain::event::{EventBody, NewEvent};
use crate::domain::lease::LeaseRef;
use crate::store::{SharedStore, StoreError};

/// Events that may wait. Beyond it the harness is not read any more.
const WAITING_MAX: usize = 512;
/// Bytes that may wait, likewise.
const WAITING_MAX_BYTES: usize = 1 << 20;

/// A task of its own, so that it is carried out whether or not the driver looks. Gives what could not be stored.
type Append = JoinHandle<Result<(), (Vec<NewEvent>, StoreError)>>;

/// See the module.
pub(super) struct Outbox {
    store: SharedStore,
    lease: LeaseRef,
    waiting: VecDeque<NewEvent>,
    waiting_bytes: usize,
    in_flight: Option<Append>,
}

impl Outbox {
    pub(super) fn new(store: SharedStore, lease: LeaseRef) -> Self {
        Self { store, lease, waiting: VecDeque::new(), waiting_bytes: 0, in_flight: None }
    }

    /// Puts an event behind the others; adjacent deltas become one.
    pub(super) fn push(&mut self, event: NewEvent) {
        self.waiting_bytes += weight(&event);
        let rest = match self.waiting.back_mut() {
            Some(last) => last.absorb(event),
            None => Some(event),
        };
        self.waiting.extend(rest);
    }

    /// Whether the harness has to wait.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= WAITING_MAX || self.waiting_bytes >= WAITING_MAX_BYTES
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether an append is in flight.
    pub(super) fn is_busy(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Sends what waits, unless an append is in flight.
    pub(super) fn send(&mut self) {
        if self.in_flight.is_none() && !self.waiting.is_empty() {
            let events = self.take();
            let (store, lease) = (Arc::clone(&self.store), self.lease);
            self.in_flight = Some(tokio::spawn(async move {
                store.append(lease, events.clone()).await.map_err(|error| (events, error))
            }));
        }
    }

    /// Waits until the append in flight is done; returns at once when none is. Safe to cancel. What could not be stored waits
    /// again, in its place.
    pub(super) async fn settle(&mut self) -> Result<(), StoreError> {
        let Some(append) = self.in_flight.as_mut() else { return Ok(()) };
        let sent = append.await;
        self.in_flight = None;
        match sent {
            Ok(Ok(())) => Ok(()),
            Ok(Err((events, error))) => {
                self.put_back(events);
                Err(error)
            }
            // The task was ended with the runtime.
            Err(_) => Err(StoreError::Closed),
        }
    }

    /// What waits, to be committed with a change that comes after it. Nothing may be in flight.
    pub(super) fn take(&mut self) -> Vec<NewEvent> {
        self.waiting_bytes = 0;
        std::mem::take(&mut self.waiting).into()
    }

    /// Puts back what was taken, in front of what came since.
    pub(super) fn put_back(&mut self, events: Vec<NewEvent>) {
        for event in events.into_iter().rev() {
            self.waiting_bytes += weight(&event);
            self.waiting.push_front(event);
        }
    }
}

fn weight(event: &NewEvent) -> usize {
    match &event.body {
        EventBody::Output(output) => output.weight(),
        _ => 0,
    }
}
