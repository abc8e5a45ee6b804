#![doc = include_str!("ARCHITECTURE.md")]

pub mod app;
pub mod cli;
pub mod clock;
pub mod config;
pub mod domain;
mod fault;
pub mod harness;
pub mod http;
pub mod ids;
pub mod operator;
pub mod service;
pub mod store;
pub mod telemetry;
