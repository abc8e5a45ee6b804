//! The integration tests, in one binary: the real service as a process of its own, spoken to over HTTP.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on should say where"
)]

mod acp_adapter;
mod approvals;
mod architecture;
mod bad_input;
mod crash;
mod idempotency;
mod scope;
mod startup;
mod store_contract;
mod stream;
mod support;
mod sweep;
mod turns;
