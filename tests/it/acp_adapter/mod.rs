//! The ACP adapter with a real child process: the fake agent in `tests/fake_acp_agent`.

mod conversation;
mod files;
mod launch;
mod matrix;
mod permissions;
mod processes;
mod restore;
pub mod rig;
