//! The built-in harness: a model behind an OpenAI-compatible API, and tools.
#![allow(dead_code, reason = "its parts come one by one")]

pub mod config;
mod message;
