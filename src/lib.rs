#![doc = include_str!("ARCHITECTURE.md")]

pub mod clock;
pub mod domain;
pub mod harness;
pub mod ids;
pub mod service;
pub mod store;
