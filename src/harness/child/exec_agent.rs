//! `ostler exec-agent`: what becomes an agent. The service starts it in place of the agent; it sets itself up, from the inside
//! where that can only be done there, and then executes the agent under the same process id.
//!
//! It is one thread without a runtime, and knows nothing of the service but its command line, which holds no secret: the
//! environment is the agent's already and is handed on, with the tag added. It is added this late because what carries the tag is
//! taken for a process of an agent, together with its session, and before `setsid` that session is the service's own.
//!
//! When a step fails it says so in one line on stderr, after [`COMPLAINT`], and exits with 126 or 127 where the agent's program
//! could not be executed or is not there, and with 125 for anything else, as `env` and `nohup` do.

use std::convert::Infallible;
use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::Args;
use rustix::process::{Pid, Resource, Rlimit, Signal, getppid, setrlimit, setsid};

use super::descendants::TAG;
use super::run_as::RunAs;
use super::sandbox::Sandbox;

/// The subcommand.
pub const EXEC_AGENT: &str = "exec-agent";
/// What a line on stderr that tells of a failure begins with.
pub(super) const COMPLAINT: &str = "ostler exec-agent: ";
/// The exit code of a step before the last.
const SETUP_FAILED: u8 = 125;
/// The exit codes of the last one.
const NOT_EXECUTED: u8 = 126;
const NOT_FOUND: u8 = 127;

/// What the agent is to be, and in which confines.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecAgentArgs {
    /// The service's process id: without the service there is to be no agent.
    #[arg(long)]
    pub(super) parent: i32,
    /// The value of the variable that marks the agent's processes.
    #[arg(long)]
    pub(super) tag: String,
    /// Most open files per process.
    #[arg(long)]
    pub(super) open_files: Option<u64>,
    /// Most processes of the agent's user.
    #[arg(long)]
    pub(super) processes: Option<u64>,
    /// Largest address space per process, in MiB.
    #[arg(long)]
    pub(super) memory_mib: Option<u64>,
    /// The user to become.
    #[arg(long)]
    pub(super) run_as: Option<RunAs>,
    /// Directories that are given to that user, with all that is in them.
    #[arg(long)]
    pub(super) give: Vec<PathBuf>,
    /// Whether landlock confines the agent.
    #[arg(long)]
    pub(super) landlock: bool,
    /// Directories that the agent may write.
    #[arg(long)]
    pub(super) writable: Vec<PathBuf>,
    /// Files and directories that it may not even read, but for what is writable in them.
    #[arg(long)]
    pub(super) private: Vec<PathBuf>,
    /// The agent's program, absolute, and its arguments.
    #[arg(last = true, required = true)]
    pub(super) argv: Vec<OsString>,
}

struct Failure {
    code: u8,
    words: String,
}

impl ExecAgentArgs {
    /// The command line that is read back as these.
    pub(super) fn to_argv(&self) -> Vec<OsString> {
        let mut argv = vec![OsString::from(EXEC_AGENT)];
        let mut option = |name: &str, value: OsString| {
            let mut word = OsString::from(format!("--{name}="));
            word.push(value);
            argv.push(word);
        };
        option("parent", self.parent.to_string().into());
        option("tag", self.tag.clone().into());
        let numbers =
            [("open-files", self.open_files), ("processes", self.processes), ("memory-mib", self.memory_mib)];
        for (name, number) in numbers {
            if let Some(number) = number {
                option(name, number.to_string().into());
            }
        }
        if let Some(user) = self.run_as {
            option("run-as", user.to_string().into());
        }
        let lists = [("give", &self.give), ("writable", &self.writable), ("private", &self.private)];
        for (name, paths) in lists {
            for path in paths {
                option(name, path.into());
            }
        }
        if self.landlock {
            argv.push("--landlock".into());
        }
        argv.push("--".into());
        argv.extend(self.argv.iter().cloned());
        argv
    }

    /// Becomes the agent; comes back only when that fails, which it has told then.
    pub fn run(self) -> ExitCode {
        let Err(failure) = self.become_agent();
        // Where stderr is closed nobody can be told; the exit code says the rest.
        let _ = writeln!(io::stderr(), "{COMPLAINT}{}", failure.words);
        ExitCode::from(failure.code)
    }

    fn become_agent(self) -> Result<Infallible, Failure> {
        // A session and a group of its own: signals to the service's terminal are none of its business, and the group is what
        // is killed first.
        setsid().map_err(step("setsid"))?;
        // While it may still read everything: later it could not name what the agent is allowed.
        let sandbox = match self.landlock {
            true => Some(Sandbox::new(&self.writable, &self.private).map_err(step("landlock"))?),
            false => None,
        };
        self.limit().map_err(step("limits"))?;
        if let Some(user) = self.run_as {
            for directory in &self.give {
                user.own(directory).map_err(step("run_as: giving it its directories"))?;
            }
            user.become_user().map_err(step("run_as"))?;
            for directory in &self.writable {
                user.check_access(directory).map_err(step("run_as"))?;
            }
        }
        // Only now: a change of the user takes it back.
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(step("parent"))?;
        // The parent may have gone before that.
        if getppid() != Pid::from_raw(self.parent) {
            return Err(step("parent")("the service is gone"));
        }
        if let Some(sandbox) = sandbox {
            sandbox.enter().map_err(step("landlock"))?;
        }
        let Some((program, arguments)) = self.argv.split_first() else {
            return Err(step("exec")("no program"));
        };
        let error = Command::new(program).args(arguments).env(TAG, &self.tag).exec();
        let code = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTED };
        Err(Failure { code, ..step("exec")(error) })
    }

    fn limit(&self) -> io::Result<()> {
        let set = |resource, most: Option<u64>| match most {
            Some(most) => setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) }),
            None => Ok(()),
        };
        // The memory of an agent holds keys: it is written to no file.
        set(Resource::Core, Some(0))?;
        set(Resource::Nofile, self.open_files)?;
        set(Resource::Nproc, self.processes)?;
        set(Resource::As, self.memory_mib.map(|mib| mib.saturating_mul(1 << 20)))?;
        Ok(())
    }
}

/// What the launcher said on stderr, if it was the launcher that ended so.
pub(super) fn complaint(exit_code: Option<i32>, stderr: &str) -> Option<&str> {
    let is_ours =
        exit_code.is_some_and(|code| (SETUP_FAILED..=NOT_FOUND).any(|ours| code == i32::from(ours)));
    if is_ours { stderr.lines().last()?.strip_prefix(COMPLAINT) } else { None }
}

fn step<E: Display>(name: &str) -> impl Fn(E) -> Failure {
    move |error| Failure { code: SETUP_FAILED, words: format!("{name}: {error}") }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use clap::{Command, FromArgMatches};

    use super::*;

    fn read(argv: Vec<OsString>) -> ExecAgentArgs {
        let command = ExecAgentArgs::augment_args(Command::new(EXEC_AGENT));
        ExecAgentArgs::from_arg_matches(&command.get_matches_from(argv)).unwrap()
    }

    #[test]
    fn what_is_written_is_read_back_byte_by_byte() {
        let odd = |text: &str| OsString::from_vec([text.as_bytes(), b"\xff"].concat());
        let whole = ExecAgentArgs {
            parent: 12,
            tag: "ses_1/2.3".to_owned(),
            open_files: Some(64),
            processes: Some(32),
            memory_mib: Some(4096),
            run_as: Some("65534:65533".parse().unwrap()),
            give: vec![odd("/give ").into()],
            landlock: true,
            writable: vec!["/a b".into(), "-c".into()],
            private: vec![odd("/p=").into()],
            argv: ["/bin/agent", "--", "--parent=1", "", " "].into_iter().map(OsString::from).collect(),
        };
        assert_eq!(read(whole.to_argv()), whole);
        let bare = ExecAgentArgs {
            parent: 1,
            tag: "t".to_owned(),
            argv: vec![odd("/x")],
            ..ExecAgentArgs::default()
        };
        assert_eq!(read(bare.to_argv()), bare);
    }

    #[test]
    fn only_the_launcher_s_own_line_and_exit_code_are_its_complaint() {
        let line = format!("{COMPLAINT}exec: No such file or directory");
        assert_eq!(complaint(Some(127), &line), Some("exec: No such file or directory"));
        assert_eq!(complaint(Some(1), &line), None);
        assert_eq!(complaint(None, &line), None);
        assert_eq!(complaint(Some(127), "sh: no-such-agent: not found"), None);
        assert_eq!(complaint(Some(127), ""), None);
    }
}
