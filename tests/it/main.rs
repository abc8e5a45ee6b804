//! The integration tests, in one binary: the real service as a process of its own, spoken to over HTTP.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a test that cannot go on should say where, and takes its counts from the environment, and tells what it measured"
)]

mod acp_adapter;
mod acp_service;
mod agent_hostile;
mod agent_processes;
mod approvals;
mod architecture;
mod asking_again;
mod bad_input;
mod built_in_agent;
mod chaos;
mod chat;
mod chat_clients;
mod cli;
mod cli_terminal;
mod crash;
mod deployment;
mod harnesses;
mod idempotency;
mod policy;
mod postgres;
mod real_agents;
mod replicas;
mod scope;
mod sessions;
mod startup;
mod state_travels;
mod statements;
mod storage;
mod store_contract;
mod stream;
mod support;
mod sweep;
mod turns;
