//! The directories of a session: its workspace, and a place for what its agent keeps.

use std::io;
use std::path::{Component, Path, PathBuf};

use super::ServiceOptions;
use crate::domain::session::Session;
use crate::ids::SessionId;

/// The workspace of a new session: a fresh directory, or the one that the caller chose inside an allowed root.
///
/// # Errors
/// What is wrong with the chosen one.
pub(super) fn choose(
    options: &ServiceOptions,
    id: &SessionId,
    wanted: Option<&str>,
) -> Result<String, String> {
    let Some(wanted) = wanted else {
        return to_text(workspaces(options).join(id.as_str()));
    };
    let path = Path::new(wanted);
    let plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if !path.is_absolute() || !plain || wanted.contains('\0') {
        return Err("must be an absolute path without . or ..".to_owned());
    }
    // Resolved, so that a symlink inside a root cannot lead out of it. Whether anything exists elsewhere is not told.
    let outside = || "must be an existing directory inside a root that the operator allows".to_owned();
    let resolved = path.canonicalize().map_err(|_| outside())?;
    let allowed = options.workspace_roots.iter().filter_map(|root| root.canonicalize().ok());
    if !resolved.is_dir() || !allowed.into_iter().any(|root| resolved.starts_with(&root)) {
        return Err(outside());
    }
    to_text(resolved)
}

fn to_text(path: PathBuf) -> Result<String, String> {
    path.into_os_string().into_string().map_err(|_| "must be UTF-8".to_owned())
}

// Where the sessions have their workspaces whose callers chose none.
fn workspaces(options: &ServiceOptions) -> PathBuf {
    options.data_dir.join("workspaces")
}

// Where the agents of all sessions keep what they keep.
fn state_dirs(options: &ServiceOptions) -> PathBuf {
    options.data_dir.join("agents")
}

/// The directories in which each session has one of its own.
pub(super) fn directories_of_all(options: &ServiceOptions) -> [PathBuf; 2] {
    [state_dirs(options), workspaces(options)]
}

/// The directories that no other session uses.
pub(super) fn own_directories(options: &ServiceOptions, session: &Session) -> Vec<PathBuf> {
    let workspace = is_fresh(session).then(|| PathBuf::from(&session.workspace));
    std::iter::once(state_dir(options, &session.id)).chain(workspace).collect()
}

/// Where the session's agent keeps what it keeps.
pub(super) fn state_dir(options: &ServiceOptions, id: &SessionId) -> PathBuf {
    state_dirs(options).join(id.as_str())
}

/// Whether the workspace was made for the session and no other, by this replica or by one with another data directory: no caller
/// knows a session's id before it is created.
fn is_fresh(session: &Session) -> bool {
    Path::new(&session.workspace).ends_with(Path::new("workspaces").join(session.id.as_str()))
}

/// Makes the session's directories, closed to everybody else, and tells whether the workspace had to be made. It has the path that
/// the session's row names, whichever replica chose it: agents look a conversation up by where it was held. What exists is left
/// as it is.
pub(super) async fn make(options: &ServiceOptions, session: &Session) -> io::Result<bool> {
    let mut builder = tokio::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700);
    let is_there = tokio::fs::metadata(&session.workspace).await.is_ok_and(|metadata| metadata.is_dir());
    if is_fresh(session) {
        builder.create(&session.workspace).await.map_err(|error| named(&session.workspace, error))?;
    } else if !is_there {
        return Err(named(&session.workspace, io::ErrorKind::NotFound.into()));
    }
    builder.create(state_dir(options, &session.id)).await?;
    Ok(!is_there)
}

fn named(path: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{path}: {error}"))
}

/// Erases what the session's agent kept, and, when nothing is to be left, the workspace that was made for it.
pub(super) async fn erase(options: &ServiceOptions, session: &Session, everything: bool) {
    let mut paths = vec![state_dir(options, &session.id)];
    if everything && is_fresh(session) {
        paths.push(PathBuf::from(&session.workspace));
    }
    for path in paths {
        match tokio::fs::remove_dir_all(&path).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(session = %session.id, %error, "a directory of the session cannot be erased");
            }
            Ok(()) | Err(_) => {}
        }
    }
}

/// Makes the directories of a check, workspace and state directory, where a session with this id would have its own: what is left
/// running in them when the service dies is found there.
pub(super) async fn make_check(options: &ServiceOptions, id: &SessionId) -> io::Result<(PathBuf, PathBuf)> {
    let places = (options.data_dir.join("workspaces").join(id.as_str()), state_dir(options, id));
    let mut builder = tokio::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder.create(&places.0).await?;
    builder.create(&places.1).await?;
    Ok(places)
}

/// Erases the directories of a check.
pub(super) async fn erase_check(options: &ServiceOptions, id: &SessionId) {
    for path in [options.data_dir.join("workspaces").join(id.as_str()), state_dir(options, id)] {
        match tokio::fs::remove_dir_all(&path).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %path.display(), %error, "a directory of a check cannot be erased");
            }
            Ok(()) | Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chosen_workspace_lies_inside_an_allowed_root_also_when_a_symlink_says_otherwise() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().canonicalize().unwrap();
        for name in ["allowed/project", "allowed-not/project"] {
            std::fs::create_dir_all(base.join(name)).unwrap();
        }
        std::os::unix::fs::symlink(base.join("allowed-not"), base.join("allowed/out")).unwrap();
        let options = ServiceOptions {
            workspace_roots: vec![base.join("allowed")],
            ..ServiceOptions::new(base.join("data"))
        };
        let choose = |path: &str| choose(&options, &SessionId::mint(), Some(path));
        let at = |name: &str| base.join(name).into_os_string().into_string().unwrap();
        assert_eq!(choose(&at("allowed/project")), Ok(at("allowed/project")));
        for wrong in [
            at("allowed-not/project"),
            at("allowed/out/project"),
            at("allowed/../allowed-not"),
            at("allowed/absent"),
            "relative".to_owned(),
            String::new(),
            "/etc".to_owned(),
        ] {
            assert!(choose(&wrong).is_err(), "{wrong}");
        }
    }
}
