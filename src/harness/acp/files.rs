//! The agent's file requests, which [`Workspace`] serves.

use serde::Deserialize;

use super::protocol::{INTERNAL_ERROR, INVALID_PARAMS, NOT_FOUND, RpcError};
use crate::domain::event::FileOperation;
use crate::harness::workspace::{Refusal, Workspace};

/// The parameters of `fs/read_text_file`.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct ReadFile {
    /// Absolute, or relative to the workspace.
    pub path: String,
    /// The first line, counted from 1.
    pub line: Option<usize>,
    /// How many lines.
    pub limit: Option<usize>,
}

/// The parameters of `fs/write_text_file`. They fit into a message, [`crate::harness::child::LINE_MAX_BYTES`].
#[derive(Clone, Debug, Deserialize)]
pub(super) struct WriteFile {
    /// Absolute, or relative to the workspace.
    pub path: String,
    /// The whole new content.
    pub content: String,
}

impl ReadFile {
    /// Reads it. Blocks.
    ///
    /// # Errors
    /// As the agent hears them.
    pub(super) fn serve(&self, workspace: &Workspace) -> Result<String, RpcError> {
        Ok(workspace.read(&self.path, self.line, self.limit)?)
    }
}

impl WriteFile {
    /// Writes it. Blocks.
    ///
    /// # Errors
    /// As the agent hears them.
    pub(super) fn serve(&self, workspace: &Workspace) -> Result<FileOperation, RpcError> {
        Ok(workspace.write(&self.path, &self.content)?)
    }
}

impl From<Refusal> for RpcError {
    fn from(refusal: Refusal) -> Self {
        let code = match refusal {
            Refusal::Missing(_) => NOT_FOUND,
            Refusal::Unfit(_) => INVALID_PARAMS,
            Refusal::Broken(_) => INTERNAL_ERROR,
        };
        Self::new(code, refusal.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_the_schema_s() {
        use agent_client_protocol_schema::v1 as acp;
        let mut read = acp::ReadTextFileRequest::new("s-1", "/space/a");
        read.line = Some(2);
        let read = ReadFile::deserialize(serde_json::to_value(read).unwrap()).unwrap();
        assert_eq!((read.path.as_str(), read.line, read.limit), ("/space/a", Some(2), None));
        let write = acp::WriteTextFileRequest::new("s-1", "/space/a", "x");
        let write = WriteFile::deserialize(serde_json::to_value(write).unwrap()).unwrap();
        assert_eq!((write.path.as_str(), write.content.as_str()), ("/space/a", "x"));
    }

    #[test]
    fn a_missing_file_has_a_code_of_its_own() {
        let workspace = tempfile::tempdir().unwrap();
        let workspace = Workspace::open(workspace.path(), crate::harness::Fence::open()).unwrap();
        for (path, code) in [("none", NOT_FOUND), ("../x", INVALID_PARAMS), (".", INVALID_PARAMS)] {
            let read = ReadFile { path: path.into(), line: None, limit: None };
            assert_eq!(read.serve(&workspace).unwrap_err().code, code, "{path}");
        }
    }
}
