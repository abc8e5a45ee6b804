//! Child processes: how a session's programs are started, confined, watched and ended, whichever harness wants them.
//!
//! - `launch`: where a program is, what its environment holds, and the mark that its processes carry;
//! - `exec_agent`, `sandbox`, `run_as`: the child's side of its start, in which it sets itself up before it becomes the program;
//! - `spawner`, `process`, `tree`, `descendants`, `stderr`: its start, its exit, and its end with everything that it has started;
//! - `lines`: what it says, line by line.
//!
//! What is started is called an agent here, also where it is a tool of one.

mod descendants;
mod exec_agent;
mod launch;
mod lines;
mod process;
mod run_as;
mod sandbox;
mod spawner;
mod stderr;
mod tree;

pub use self::exec_agent::{EXEC_AGENT, ExecAgentArgs};
pub use self::launch::{Launcher, Limits};
pub(super) use self::launch::{Program, find_program, inherited_env, own_variable};
pub(super) use self::lines::{LINE_MAX_BYTES, Line, Lines, VALUES_MAX, is_too_wide};
pub(super) use self::process::{Exit, Launch, Pipes, Process, end_left, end_orphans};
pub(super) use self::run_as::RunAs;
pub(super) use self::sandbox::level;
pub use self::tree::adopt_orphans;
