//! From a description to a process: where the command is, what its environment holds, which files it finds.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use cap_std::ambient_authority;
use cap_std::fs::{Dir, OpenOptions, OpenOptionsExt};
use rustix::fs::Access;

use super::config::{AcpConfig, Places};
use super::descendants;
use super::exec_agent::ExecAgentArgs;
use super::process::Launch;
use super::run_as::RunAs;
use super::sandbox;
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
}

/// Finds the program of the command.
///
/// # Errors
/// In words, when there is none.
pub(super) fn find_program(config: &AcpConfig) -> Result<PathBuf, String> {
    find_named(config, config.command.first().map(String::as_str).unwrap_or_default())
}

/// Finds a program as the agent would.
///
/// # Errors
/// In words, when there is none.
pub(super) fn find_named(config: &AcpConfig, name: &str) -> Result<PathBuf, String> {
    if name.contains('/') {
        // Made absolute against the service's directory: the agent's own is a workspace, whose files are not trusted.
        let path = std::path::absolute(name).map_err(|error| format!("{name}: {error}"))?;
        return if is_program(&path) { Ok(path) } else { Err(format!("{name} is not an executable file")) };
    }
    let path = config.env.get("PATH").map(OsString::from).or_else(|| own_variable("PATH"));
    let found = std::env::split_paths(&path.unwrap_or_default())
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(name))
        .find(|path| is_program(path));
    found.ok_or_else(|| format!("{name} is not on the PATH"))
}

/// Prepares the state directory and tells how to start the agent.
///
/// # Errors
/// When the state directory cannot be written, or there is no such user as the agent is to become.
pub(super) fn prepare(
    config: &AcpConfig,
    launcher: &Launcher,
    program: PathBuf,
    session_id: &SessionId,
    places: Places<'_>,
) -> io::Result<Launch> {
    let state = Dir::open_ambient_dir(places.state_dir, ambient_authority())?;
    state.create_dir_all("tmp")?;
    for (path, content) in &config.files {
        write_absent(&state, Path::new(path), &places.fill(content))?;
    }
    let directories = vec![PathBuf::from(places.state_dir), PathBuf::from(places.workspace)];
    let run_as = config.run_as.as_deref().map(RunAs::resolve).transpose().map_err(io::Error::other)?;
    let mut give = Vec::new();
    if run_as.is_some() {
        // A workspace that the caller chose is somebody's already.
        let is_made_here = |path: &PathBuf| launcher.private.iter().any(|private| path.starts_with(private));
        give.push(PathBuf::from(places.state_dir));
        give.extend(Some(PathBuf::from(places.workspace)).filter(is_made_here));
    }
    let agent = ExecAgentArgs {
        parent: 0,
        tag: mint_tag(session_id),
        open_files: config.limits.open_files,
        processes: config.limits.processes,
        memory_mib: config.limits.memory_mib,
        run_as,
        give,
        landlock: config.landlock && sandbox::level() > 0,
        writable: directories.clone(),
        private: launcher.private.clone(),
        argv: std::iter::once(program.into_os_string())
            .chain(config.argv().skip(1).map(OsString::from))
            .collect(),
    };
    Ok(Launch {
        launcher: launcher.program.clone(),
        agent,
        env: environment(config, places, own_variable),
        cwd: PathBuf::from(places.workspace),
        last_words: Path::new(places.state_dir).join("stderr.log"),
        directories,
    })
}

fn environment(
    config: &AcpConfig,
    places: Places<'_>,
    own: impl Fn(&str) -> Option<OsString>,
) -> BTreeMap<OsString, OsString> {
    let inherited = ALWAYS_INHERITED.into_iter().chain(config.inherit_env.iter().map(String::as_str));
    let mut env: BTreeMap<OsString, OsString> =
        inherited.filter_map(|name| Some((name.into(), own(name)?))).collect();
    env.insert("HOME".into(), places.state_dir.into());
    env.insert("TMPDIR".into(), Path::new(places.state_dir).join("tmp").into());
    env.extend(config.env.iter().map(|(name, value)| (name.into(), places.fill(value).into())));
    env
}

// A new process of a session must not be taken for the old one, so the session's id alone will not do.
fn mint_tag(session_id: &SessionId) -> String {
    static STARTS: AtomicU64 = AtomicU64::new(1);
    format!("{session_id}/{}.{}", descendants::this_process(), STARTS.fetch_add(1, Ordering::Relaxed))
}

// Through a directory handle: what the agent may have linked into its state directory cannot lead out of it.
fn write_absent(state: &Dir, path: &Path, content: &str) -> io::Result<()> {
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        state.create_dir_all(parent)?;
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    match state.open_with(path, &options) {
        Ok(mut file) => file.write_all(content.as_bytes()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

fn is_program(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, Access::EXEC_OK).is_ok()
}

fn own_variable(name: &str) -> Option<OsString> {
    std::env::vars_os().find_map(|(own, value)| (own == OsStr::new(name)).then_some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> AcpConfig {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn a_program_is_found_by_its_path_or_on_the_search_path() {
        let find = |word: &str| find_program(&config(&format!("command = [{word:?}]")));
        assert_eq!(find("/bin/sh"), Ok(PathBuf::from("/bin/sh")));
        assert!(find("sh").unwrap().is_absolute());
        for missing in ["no-such-agent", "/no/such/agent", "./Cargo.toml", "/bin", "src/lib.rs"] {
            assert!(find(missing).is_err(), "{missing}");
        }
        // A relative directory on the search path would be looked up in the workspace.
        let relative = config("command = [\"sh\"]\nenv = { PATH = \"bin:.:\" }");
        assert!(find_program(&relative).is_err());
    }

    #[test]
    fn the_environment_is_the_allow_list_and_what_the_operator_named() {
        let config = config(
            "command = [\"a\"]\ninherit_env = [\"KEY\", \"UNSET\"]\nenv = { X = \"{workspace}\", TERM = \"dumb\" }",
        );
        let own = |name: &str| match name {
            "PATH" | "TERM" | "KEY" | "SECRET" => Some(OsString::from(format!("own {name}"))),
            _ => None,
        };
        let places = Places { state_dir: "/state", workspace: "/space", random: "0f" };
        let env = environment(&config, places, own);
        let shown: Vec<String> = env
            .iter()
            .map(|(name, value)| format!("{}={}", name.to_str().unwrap(), value.to_str().unwrap()))
            .collect();
        assert_eq!(
            shown,
            ["HOME=/state", "KEY=own KEY", "PATH=own PATH", "TERM=dumb", "TMPDIR=/state/tmp", "X=/space"]
        );
    }

    #[test]
    fn files_are_written_once_and_only_below_the_state_directory() {
        let state = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        let places = Places { state_dir: state.path().to_str().unwrap(), workspace: "/space", random: "0f" };
        let config = config("command = [\"a\"]\nfiles = { \".codex/config.toml\" = \"cwd={workspace}\" }");
        let launcher = Launcher::of_this_program(Vec::new());
        let prepare = || prepare(&config, &launcher, "/bin/sh".into(), &SessionId::mint(), places);
        let first = prepare().unwrap();
        let file = state.path().join(".codex/config.toml");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "cwd=/space");
        std::fs::write(&file, "changed").unwrap();
        let second = prepare().unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "changed");
        assert!(state.path().join("tmp").is_dir());
        assert_ne!(first.agent.tag, second.agent.tag);

        std::fs::remove_dir_all(state.path().join(".codex")).unwrap();
        std::os::unix::fs::symlink(outside.path(), state.path().join(".codex")).unwrap();
        assert!(prepare().is_err());
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
    }
}
