//! The built-in harness: a model behind an OpenAI-compatible API, and tools.
#![allow(dead_code, unused_imports, reason = "its parts come one by one")]

pub mod config;
mod context;
mod links;
mod message;
mod model;
mod planning;
mod settings;
mod tools;
mod verification;
