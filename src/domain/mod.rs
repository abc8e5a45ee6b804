//! What Ostler is about, as values: sessions, turns, events, approvals, and the decisions over them.
//!
//! Pure: nothing here is async, knows SQL or HTTP, or reads a clock; the time comes in as an argument.

pub mod agent_files;
pub mod approval;
pub mod event;
pub mod lease;
pub mod limits;
pub mod policy;
pub mod recovery;
pub mod scope;
pub mod session;
pub mod sweep;
pub mod turn;
