//! A file that one process at a time may hold.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use super::super::super::OpenError;
use super::unusable;

/// An advisory lock, held until it is dropped or the process ends, however it ends.
#[derive(Debug)]
pub(in super::super) struct FileLock(File);

impl FileLock {
    /// Takes the lock; `in_use` says so when another process has it.
    pub(super) fn take(path: &Path, in_use: impl FnOnce(&Path) -> OpenError) -> Result<Self, OpenError> {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(path)
            .map_err(|error| unusable(path, &error))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| in_use(path))?;
        Ok(Self(file))
    }

    pub(super) fn read(&mut self) -> std::io::Result<String> {
        let mut text = String::new();
        self.0.rewind()?;
        self.0.read_to_string(&mut text)?;
        Ok(text)
    }

    pub(super) fn write(&mut self, text: &str) -> std::io::Result<()> {
        self.0.set_len(0)?;
        self.0.rewind()?;
        self.0.write_all(text.as_bytes())?;
        self.0.sync_all()
    }
}
