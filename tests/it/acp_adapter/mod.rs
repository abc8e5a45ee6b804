//! The ACP adapter with a real child process: the fake agent in `tests/fake_acp_agent`.

mod conversation;
mod launch;
mod permissions;
mod processes;
mod restore;
pub mod rig;
