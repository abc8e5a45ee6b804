//! This process among others on the same database: it gives a sign of life, and stops being a holder before anybody else can
//! become one in its place. Where no others can be, it is a member for ever.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{Service, ServiceResult, chain};
use crate::ids::ReplicaId;
use crate::store::NewReplica;

/// One membership, from joining to the end or to the loss of it.
#[derive(Clone, Debug)]
pub(super) struct Term {
    /// The id of this process in it. Who has lost a membership joins anew, under another.
    pub(super) replica: ReplicaId,
    /// Cancelled when the membership is lost: what is held under it is let go at once, and nothing more is written for it.
    pub(super) lost: CancellationToken,
}

impl Term {
    fn new() -> Self {
        Self { replica: ReplicaId::mint(), lost: CancellationToken::new() }
    }
}

/// The current membership.
#[derive(Debug)]
pub(super) struct Membership(Mutex<Term>);

impl Default for Membership {
    fn default() -> Self {
        Self(Mutex::new(Term::new()))
    }
}

impl Membership {
    /// The current one, or the one that was lost last.
    pub(super) fn term(&self) -> Term {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn renew(&self, term: Term) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = term;
    }
}

impl Service {
    /// Joins for the first time.
    pub(super) async fn join(&self) -> ServiceResult<()> {
        self.register(&self.membership.term()).await
    }

    async fn register(&self, term: &Term) -> ServiceResult<()> {
        let replica = NewReplica { id: term.replica.clone(), version: env!("CARGO_PKG_VERSION") };
        Ok(self.store.register_replica(&replica).await?)
    }

    /// Gives the sign of life, each third of the time that leases live, until the service has ended. After a loss it joins anew.
    pub(super) async fn stay_a_member(self: Arc<Self>) {
        let every = self.options.replica_ttl / 3;
        let mut pause = every;
        loop {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.ended.cancelled() => return,
            }
            let term = self.membership.term();
            pause = every;
            if !term.lost.is_cancelled() {
                match self.store.renew_replica(&term.replica).await {
                    Ok(true) => continue,
                    Ok(false) => tracing::warn!(replica = %term.replica, "a sign of life came too late"),
                    Err(error) => {
                        tracing::warn!(error = chain(&error), "a sign of life could not be given");
                        pause = every / 4;
                    }
                }
            }
            if !self.store.pulse().is_alive() {
                self.lose(&term);
                pause = self.join_anew().await;
            }
        }
    }

    /// Loses the membership the moment that the last sign of life is too old, whatever the database does meanwhile.
    pub(super) async fn watch_pulse(self: Arc<Self>) {
        while let Some(until) = self.store.pulse().alive_until() {
            // A pulse that has stopped begins again with a new membership; how soon that is noticed is of no importance.
            let until = until.max(tokio::time::Instant::now() + Duration::from_millis(20));
            tokio::select! {
                () = tokio::time::sleep_until(until) => {}
                () = self.ended.cancelled() => return,
            }
            let term = self.membership.term();
            if !self.store.pulse().is_alive() {
                self.lose(&term);
            }
        }
    }

    fn lose(&self, term: &Term) {
        if !term.lost.is_cancelled() {
            tracing::error!(
                replica = %term.replica, live = self.live.count(),
                "this replica may have lost its leases: its harnesses are ended"
            );
            term.lost.cancel();
        }
    }

    /// Joins under a new id, once nothing of the last membership is left. Gives the time until the next sign of life.
    async fn join_anew(&self) -> Duration {
        for live in self.live.all() {
            live.wait_gone().await;
        }
        let term = Term::new();
        match self.register(&term).await {
            Ok(()) => {
                tracing::warn!(replica = %term.replica, "this replica has joined anew");
                self.membership.renew(term);
                self.options.replica_ttl / 3
            }
            Err(error) => {
                tracing::warn!(error = chain(&error), "this replica cannot join anew yet");
                (self.options.replica_ttl / 12).max(Duration::from_millis(500))
            }
        }
    }
}
