//! Files of the workspace, through a directory handle: no path and no symbolic link leads out of it.
//!
//! The file system blocks, so that each action runs on tokio's blocking threads. An action that has begun there runs to
//! its end, even when the task that waits for it is aborted.

use std::io::{self, Write as _};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use cap_std::ambient_authority;
use cap_std::fs::{Dir, OpenOptions};

use super::effects::LEDGER;
use crate::domain::event::FileOperation;
use crate::harness::Fence;

/// The session's workspace.
#[derive(Clone, Debug)]
pub(super) struct Workspace {
    dir: Arc<Dir>,
    fence: Fence,
}

impl Workspace {
    /// Opens a directory.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub async fn open(path: PathBuf, fence: Fence) -> io::Result<Self> {
        let dir = blocking(move || Dir::open_ambient_dir(path, ambient_authority())).await?;
        Ok(Self { dir: Arc::new(dir), fence })
    }

    /// Appends to a file and returns when that is on disk. One write to a file in append mode: lines never mix.
    ///
    /// # Errors
    /// As the file system has them; and when the session may be another's by now.
    pub async fn append(&self, name: &'static str, line: String) -> io::Result<()> {
        let Self { dir, fence } = self.clone();
        blocking(move || {
            let mut file = dir.open_with(name, OpenOptions::new().create(true).append(true))?;
            fence.pass()?;
            file.write_all(line.as_bytes())?;
            file.sync_data()
        })
        .await
    }

    /// What writing this file would be, without touching anything.
    ///
    /// # Errors
    /// Why the path cannot be written: it leads outside, is a directory, or is the ledger, which the harness alone writes.
    pub async fn probe(&self, path: &str) -> Result<FileOperation, String> {
        let (dir, path) = (self.dir.clone(), PathBuf::from(path));
        let shown = path.display().to_string();
        blocking(move || probe(&dir, &path)).await.map_err(|error| format!("{shown}: {error}"))
    }

    /// Writes a file whole, with the directories above it. The handle refuses what leads outside, whatever
    /// [`Self::probe`] saw.
    ///
    /// # Errors
    /// As the file system has them; and when the session may be another's by now.
    pub async fn write(&self, path: &str, contents: String) -> io::Result<()> {
        let Self { dir, fence } = self.clone();
        let path = PathBuf::from(path);
        blocking(move || {
            fence.pass()?;
            if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                dir.create_dir_all(parent)?;
            }
            dir.write(&path, contents)
        })
        .await
    }
}

fn probe(dir: &Dir, path: &Path) -> io::Result<FileOperation> {
    let inside = path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if !inside {
        return Err(io::Error::other("the path must be relative and stay inside the workspace"));
    }
    let named: PathBuf = path.components().filter(|part| matches!(part, Component::Normal(_))).collect();
    if named == Path::new(LEDGER) {
        return Err(io::Error::other("the ledger is the harness's own"));
    }
    match dir.metadata(path) {
        Ok(found) if found.is_dir() => Err(io::Error::other("this is a directory")),
        Ok(_) => Ok(FileOperation::Update),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(FileOperation::Create),
        Err(error) => Err(error),
    }
}

async fn blocking<T: Send + 'static>(
    action: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(action).await.map_err(io::Error::other)?
}
