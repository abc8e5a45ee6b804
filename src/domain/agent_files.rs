//! The files in which a session's agent keeps its memory, on their way between a disk and the database.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::approval::hex;

/// Says which files they are: equal files have equal digests, whatever the disk. `sha256:` and 64 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilesDigest(String);

impl FilesDigest {
    /// The digest of an archive, as it is before it is compressed.
    pub fn of(archive: &[u8]) -> Self {
        Self(format!("sha256:{}", hex(&Sha256::digest(archive))))
    }

    /// One that was stored.
    pub fn from_row(text: String) -> Self {
        Self(text)
    }

    /// As it is stored.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The files as one archive. What it holds is the harness's to say, see [`crate::harness::memory`].
#[derive(Clone, PartialEq, Eq)]
pub struct AgentFiles {
    /// Which files they are.
    pub digest: FilesDigest,
    /// The archive, compressed.
    pub content: Arc<[u8]>,
}

impl fmt::Debug for AgentFiles {
    /// Without the content, which is a tenant's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AgentFiles({}, {} bytes)", self.digest.as_str(), self.content.len())
    }
}
