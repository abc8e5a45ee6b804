//! From a description to a process: where the command is, what it finds in its surroundings.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use cap_std::ambient_authority;
use cap_std::fs::{Dir, OpenOptions, OpenOptionsExt};

use super::config::{AcpConfig, Places};
use crate::harness::child::{self, Launch, Launcher, Program};
use crate::ids::SessionId;

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
    child::find_program(name, config.env.get("PATH").map(String::as_str))
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
    let arguments = config.argv().skip(1).map(Into::into);
    launcher.launch(Program {
        session_id,
        state_dir: Path::new(places.state_dir),
        workspace: Path::new(places.workspace),
        argv: std::iter::once(program.into_os_string()).chain(arguments).collect(),
        inherit_env: &config.inherit_env,
        env: config.env.iter().map(|(name, value)| (name.into(), places.fill(value).into())).collect(),
        run_as: config.run_as.as_deref(),
        landlock: config.landlock,
        limits: config.limits,
        last_words: "stderr.log",
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> AcpConfig {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn a_program_is_found_as_the_agent_would_find_it() {
        assert!(find_program(&config("command = [\"sh\"]")).unwrap().is_absolute());
        let own_path = config("command = [\"sh\"]\nenv = { PATH = \"/no/such/directory\" }");
        assert!(find_program(&own_path).is_err());
    }

    #[test]
    fn files_are_written_once_and_only_below_the_state_directory() {
        let state = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        let places = Places { state_dir: state.path().to_str().unwrap(), workspace: "/space", random: "0f" };
        let config = config("command = [\"a\"]\nfiles = { \".codex/config.toml\" = \"cwd={workspace}\" }");
        let launcher = Launcher::of_this_program(Vec::new());
        let prepare = || prepare(&config, &launcher, "/bin/sh".into(), &SessionId::mint(), places);
        prepare().unwrap();
        let file = state.path().join(".codex/config.toml");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "cwd=/space");
        std::fs::write(&file, "changed").unwrap();
        prepare().unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "changed");
        assert!(state.path().join("tmp").is_dir());

        std::fs::remove_dir_all(state.path().join(".codex")).unwrap();
        std::os::unix::fs::symlink(outside.path(), state.path().join(".codex")).unwrap();
        assert!(prepare().is_err());
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
    }
}
