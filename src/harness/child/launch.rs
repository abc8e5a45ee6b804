//! From a program to its start: where it is, what its environment holds, and the mark that all its processes carry.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::Access;
use serde::Deserialize;

use super::exec_agent::ExecAgentArgs;
use super::process::Launch;
use super::run_as::RunAs;
use super::{descendants, sandbox};
use crate::ids::SessionId;

/// What an agent gets of the service's own environment without being named. Everything else stays with the service:
/// its secrets, and variables of its own start that are known to break agents.
const ALWAYS_INHERITED: [&str; 5] = ["PATH", "LANG", "LC_ALL", "TZ", "TERM"];

/// How agents are launched here, whichever they are.
#[derive(Clone, Debug)]
pub struct Launcher {
    /// The program that has the subcommand `exec-agent`: this one.
    program: PathBuf,
    /// What confined agents may not read.
    private: Vec<PathBuf>,
}

/// Limits of the kernel, as `setrlimit` sets them. Without a number the service's own limit stays.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Open files of one process.
    #[serde(default)]
    pub open_files: Option<u64>,
    /// Processes and threads of the user, wherever they come from; root has no such limit.
    #[serde(default)]
    pub processes: Option<u64>,
    /// Address space of one process, in MiB. Node reserves many times what it uses.
    #[serde(default)]
    pub memory_mib: Option<u64>,
}

/// A program of a session, and the surroundings that it is to have.
pub(in crate::harness) struct Program<'a> {
    /// The session.
    pub session_id: &'a SessionId,
    /// The session's own directory: the program's home. Absolute; exists.
    pub state_dir: &'a Path,
    /// The directory to start in. Absolute; exists.
    pub workspace: &'a Path,
    /// The program, absolute, and its arguments.
    pub argv: Vec<OsString>,
    /// Names of variables that pass from the service's own environment, where they are set.
    pub inherit_env: &'a [String],
    /// Variables on top of those and of the few that each program gets; they win.
    pub env: BTreeMap<OsString, OsString>,
    /// The user to become, by name or `UID:GID`.
    pub run_as: Option<&'a str>,
    /// Whether landlock confines it, where the kernel has it.
    pub landlock: bool,
    /// What each of its processes may use.
    pub limits: Limits,
    /// The name of the file in the state directory that its last words on stderr go to, when it fails.
    pub last_words: &'a str,
}

impl Launcher {
    /// By this program, which is found also when its file has been replaced meanwhile. What is private are files and directories
    /// of the service.
    pub fn of_this_program(private: Vec<PathBuf>) -> Self {
        Self::new(PathBuf::from("/proc/self/exe"), private)
    }

    /// By another program with the subcommand.
    pub fn new(program: PathBuf, private: Vec<PathBuf>) -> Self {
        Self { program, private }
    }

    /// Tells how to start the program. There must be a directory `tmp` in its state directory.
    ///
    /// # Errors
    /// When there is no such user as it is to become.
    pub(in crate::harness) fn launch(&self, program: Program<'_>) -> io::Result<Launch> {
        let env = environment(&program, own_variable);
        let directories = vec![program.state_dir.to_owned(), program.workspace.to_owned()];
        let run_as = program.run_as.map(RunAs::resolve).transpose().map_err(io::Error::other)?;
        let mut give = Vec::new();
        if run_as.is_some() {
            // A workspace that the caller chose is somebody's already.
            let is_made_here = |path: &&Path| self.private.iter().any(|private| path.starts_with(private));
            give.push(program.state_dir.to_owned());
            give.extend(Some(program.workspace).filter(is_made_here).map(Path::to_owned));
        }
        let agent = ExecAgentArgs {
            parent: 0,
            tag: mint_tag(program.session_id),
            open_files: program.limits.open_files,
            processes: program.limits.processes,
            memory_mib: program.limits.memory_mib,
            run_as,
            give,
            landlock: program.landlock && sandbox::level() > 0,
            writable: directories.clone(),
            private: self.private.clone(),
            argv: program.argv,
        };
        Ok(Launch {
            launcher: self.program.clone(),
            agent,
            env,
            cwd: program.workspace.to_owned(),
            last_words: program.state_dir.join(program.last_words),
            directories,
        })
    }
}

/// Finds a program as an agent would whose `PATH` is this one; the service's own where none is given.
///
/// # Errors
/// In words, when there is none.
pub(in crate::harness) fn find_program(name: &str, path: Option<&str>) -> Result<PathBuf, String> {
    if name.contains('/') {
        // Made absolute against the service's directory: the agent's own is a workspace, whose files are not trusted.
        let path = std::path::absolute(name).map_err(|error| format!("{name}: {error}"))?;
        return if is_program(&path) { Ok(path) } else { Err(format!("{name} is not an executable file")) };
    }
    let path = path.map(OsString::from).or_else(|| own_variable("PATH"));
    let found = std::env::split_paths(&path.unwrap_or_default())
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(name))
        .find(|path| is_program(path));
    found.ok_or_else(|| format!("{name} is not on the PATH"))
}

fn environment(
    program: &Program<'_>,
    own: impl Fn(&str) -> Option<OsString>,
) -> BTreeMap<OsString, OsString> {
    let mut env = inherited(program.inherit_env, own);
    env.insert("HOME".into(), program.state_dir.into());
    env.insert("TMPDIR".into(), program.state_dir.join("tmp").into());
    env.extend(program.env.iter().map(|(name, value)| (name.clone(), value.clone())));
    env
}

/// What a program gets of the service's own environment: what every one gets, and what is named.
pub(in crate::harness) fn inherited_env(named: &[String]) -> BTreeMap<OsString, OsString> {
    inherited(named, own_variable)
}

fn inherited(named: &[String], own: impl Fn(&str) -> Option<OsString>) -> BTreeMap<OsString, OsString> {
    let names = ALWAYS_INHERITED.into_iter().chain(named.iter().map(String::as_str));
    names.filter_map(|name| Some((name.into(), own(name)?))).collect()
}

// A new process of a session must not be taken for the old one, so the session's id alone will not do.
fn mint_tag(session_id: &SessionId) -> String {
    static STARTS: AtomicU64 = AtomicU64::new(1);
    format!("{session_id}/{}.{}", descendants::this_process(), STARTS.fetch_add(1, Ordering::Relaxed))
}

fn is_program(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, Access::EXEC_OK).is_ok()
}

/// A variable of the service's own environment.
pub(in crate::harness) fn own_variable(name: &str) -> Option<OsString> {
    std::env::vars_os().find_map(|(own, value)| (own == OsStr::new(name)).then_some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(session_id: &SessionId) -> Program<'_> {
        Program {
            session_id,
            state_dir: Path::new("/state"),
            workspace: Path::new("/space"),
            argv: vec!["/bin/sh".into()],
            inherit_env: &[],
            env: BTreeMap::new(),
            run_as: None,
            landlock: true,
            limits: Limits::default(),
            last_words: "stderr.log",
        }
    }

    #[test]
    fn a_program_is_found_by_its_path_or_on_the_search_path() {
        let find = |word: &str| find_program(word, None);
        assert_eq!(find("/bin/sh"), Ok(PathBuf::from("/bin/sh")));
        assert!(find("sh").unwrap().is_absolute());
        for missing in ["no-such-agent", "/no/such/agent", "./Cargo.toml", "/bin", "src/lib.rs"] {
            assert!(find(missing).is_err(), "{missing}");
        }
        // A relative directory on the search path would be looked up in the workspace.
        assert!(find_program("sh", Some("bin:.:")).is_err());
    }

    #[test]
    fn the_environment_is_the_allow_list_and_what_the_operator_named() {
        let session_id = SessionId::mint();
        let inherit_env = ["KEY".to_owned(), "UNSET".to_owned()];
        let variables = [("X", "/space"), ("TERM", "dumb")];
        let env = variables.map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let program = Program { inherit_env: &inherit_env, env: env.into(), ..program(&session_id) };
        let own = |name: &str| match name {
            "PATH" | "TERM" | "KEY" | "SECRET" => Some(OsString::from(format!("own {name}"))),
            _ => None,
        };
        let shown: Vec<String> = environment(&program, own)
            .iter()
            .map(|(name, value)| format!("{}={}", name.to_str().unwrap(), value.to_str().unwrap()))
            .collect();
        assert_eq!(
            shown,
            ["HOME=/state", "KEY=own KEY", "PATH=own PATH", "TERM=dumb", "TMPDIR=/state/tmp", "X=/space"]
        );
    }

    #[test]
    fn each_start_has_a_mark_of_its_own() {
        let (session_id, launcher) = (SessionId::mint(), Launcher::of_this_program(Vec::new()));
        let tag = || launcher.launch(program(&session_id)).unwrap().agent.tag;
        let (first, second) = (tag(), tag());
        assert_ne!(first, second);
        assert!([first, second].iter().all(|tag| tag.starts_with(&format!("{session_id}/"))));
    }
}
