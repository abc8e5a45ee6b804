//! The right to write as a session's holder.

use crate::ids::{ReplicaId, SessionKey};

/// Proof that a replica holds a session: made by the store when a claim succeeds, demanded by every write of the holder.
///
/// The epoch rises with each claim and fences what an earlier holder still has in flight. A lease cannot be copied:
///
/// ```compile_fail
/// fn twice(lease: ostler::domain::lease::Lease) -> (ostler::domain::lease::Lease, ostler::domain::lease::Lease) {
///     (lease.clone(), lease)
/// }
/// ```
///
/// and cannot be forged:
///
/// ```compile_fail
/// let lease = ostler::domain::lease::Lease {
///     session: ostler::ids::SessionKey(1), holder: ostler::ids::ReplicaId::mint(), epoch: 1,
/// };
/// ```
#[derive(Debug)]
pub struct Lease {
    session: SessionKey,
    holder: ReplicaId,
    epoch: i64,
}

impl Lease {
    /// Only the store makes leases, from the row that a claim changed.
    pub(crate) fn granted(session: SessionKey, holder: ReplicaId, epoch: i64) -> Self {
        Self { session, holder, epoch }
    }

    /// The session that is held.
    pub fn session(&self) -> SessionKey {
        self.session
    }

    /// The replica that holds it.
    pub fn holder(&self) -> &ReplicaId {
        &self.holder
    }

    /// The fencing token.
    pub fn epoch(&self) -> i64 {
        self.epoch
    }

    /// The lease's name, for what is written under it elsewhere.
    pub fn reference(&self) -> LeaseRef {
        LeaseRef { session: self.session, epoch: self.epoch }
    }
}

/// Names a lease, without being it: what is written under it is refused when it is not held any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRef {
    session: SessionKey,
    epoch: i64,
}

impl LeaseRef {
    /// The session that is held.
    pub fn session(&self) -> SessionKey {
        self.session
    }

    /// The fencing token.
    pub fn epoch(&self) -> i64 {
        self.epoch
    }
}
