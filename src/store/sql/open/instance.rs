//! The place where a replica runs: a file in its data directory, with a name that outlives the process. Whoever holds the file is
//! the only process there, so that its predecessor is dead without any waiting.

use std::path::PathBuf;

use super::super::super::{OpenError, Result};
use super::lock::FileLock;
use super::unusable;
use crate::domain::limits::is_name;
use crate::ids::ReplicaId;

/// Where a replica runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// What the operator calls it.
    pub name: String,
    /// The directory of the files of all places that share a data directory.
    pub directory: PathBuf,
}

impl Instance {
    /// A place of that name, or named as the machine names itself.
    pub fn new(name: Option<String>, directory: PathBuf) -> Self {
        let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self { name: name.unwrap_or_else(host), directory }
    }
}

/// A place that this process has taken.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) lock: FileLock,
    path: PathBuf,
    /// The name, with a word that tells it from a place of the same name elsewhere.
    pub(super) id: String,
    /// The database that this place last joined, and how often a replica had joined it then.
    last: Option<(String, i64)>,
}

impl Taken {
    pub(super) fn take(instance: &Instance) -> Result<Self, OpenError> {
        let Instance { name, directory } = instance;
        if !is_name(name) || name.contains(['/', '\0']) || name.starts_with('.') {
            return Err(OpenError::Path {
                path: name.clone(),
                complaint: "is no name for an instance".to_owned(),
            });
        }
        std::fs::create_dir_all(directory).map_err(|error| unusable(directory, &error))?;
        let path = directory.join(name);
        let mut lock = FileLock::take(&path, |_| OpenError::InstanceInUse { instance: name.clone() })?;
        let text = lock.read().map_err(|error| unusable(&path, &error))?;
        let mut lines = text.lines();
        let (mark, last) = match (lines.next(), lines.next(), lines.next()) {
            (Some(mark), Some(database), Some(joins)) => {
                (mark.to_owned(), joins.parse().ok().map(|joins| (database.to_owned(), joins)))
            }
            // New, or its process died before it was written.
            _ => (ReplicaId::mint().to_string(), None),
        };
        Ok(Self { lock, id: format!("{name} {mark}"), path, last })
    }

    /// Notes how often a replica had joined the database; a number that is not higher than the last one is that of a database
    /// that has lost what this place has seen.
    pub(super) fn joined(&mut self, database: &str, joins: i64) -> Result<(), OpenError> {
        if self.last.as_ref().is_some_and(|(same, last)| same == database && joins <= *last) {
            return Err(OpenError::WentBack { path: self.path.display().to_string() });
        }
        let mark = self.id.rsplit(' ').next().unwrap_or_default();
        self.lock
            .write(&format!("{mark}\n{database}\n{joins}\n"))
            .map_err(|error| unusable(&self.path, &error))
    }
}
