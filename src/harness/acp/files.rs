//! The agent's file requests, served inside the workspace and nowhere else.
//!
//! Paths are first compared part by part, so that a refusal is in clear words; what holds is the directory handle, through
//! which neither `..` nor a symbolic link leads out. Only regular files are served, and of these only such as have one name: a
//! second one may be a file outside, which the service may be able to read or write where the agent may not.

use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use cap_std::ambient_authority;
use cap_std::fs::{Dir, File, MetadataExt, OpenOptions, OpenOptionsExt};
use rustix::fs::OFlags;
use serde::Deserialize;

use super::protocol::{INTERNAL_ERROR, INVALID_PARAMS, NOT_FOUND, RpcError};
use crate::domain::event::FileOperation;
use crate::harness::Fence;

/// Larger files are neither read nor written. What is written must fit into a message, [`crate::harness::child::LINE_MAX_BYTES`].
pub(super) const FILE_MAX_BYTES: u64 = 4 << 20;

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

/// The parameters of `fs/write_text_file`.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct WriteFile {
    /// Absolute, or relative to the workspace.
    pub path: String,
    /// The whole new content.
    pub content: String,
}

/// The workspace's path, under its own name and under the one that symbolic links in it resolve to.
#[derive(Clone, Debug)]
pub(super) struct Roots(Vec<PathBuf>);

/// The workspace as a directory that file requests cannot leave.
#[derive(Clone)]
pub(super) struct Workspace {
    roots: Roots,
    dir: Arc<Dir>,
    fence: Fence,
}

impl Roots {
    fn of(root: &Path) -> Self {
        let mut roots = vec![root.to_owned()];
        roots.extend(root.canonicalize().ok().filter(|real| real != root));
        Self(roots)
    }

    /// A workspace that need not exist.
    #[cfg(test)]
    pub(super) fn plain(root: &str) -> Self {
        Self(vec![root.into()])
    }

    /// The path relative to the workspace; `None` when it lies outside.
    pub(super) fn relative(&self, path: &str) -> Option<PathBuf> {
        let path = Path::new(path);
        let inside = if path.is_absolute() {
            self.0.iter().find_map(|root| path.strip_prefix(root).ok())?
        } else if path.as_os_str().is_empty() {
            return None;
        } else {
            path
        };
        let mut depth = 0_usize;
        for part in inside.components() {
            match part {
                Component::Normal(_) => depth += 1,
                Component::ParentDir => depth = depth.checked_sub(1)?,
                Component::CurDir => {}
                Component::RootDir | Component::Prefix(_) => return None,
            }
        }
        Some(if depth == 0 { PathBuf::from(".") } else { inside.to_owned() })
    }

    /// The path as events show it: relative where it lies in the workspace, else as it is.
    pub(super) fn shown(&self, path: &str) -> String {
        self.relative(path).map_or_else(|| path.to_owned(), |inside| inside.to_string_lossy().into_owned())
    }
}

impl Workspace {
    /// Opens the directory.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub(super) fn open(root: &Path, fence: Fence) -> io::Result<Self> {
        let dir = Dir::open_ambient_dir(root, ambient_authority())?;
        Ok(Self { roots: Roots::of(root), dir: Arc::new(dir), fence })
    }

    pub(super) fn roots(&self) -> &Roots {
        &self.roots
    }

    /// The path below the directory handle.
    ///
    /// # Errors
    /// When it lies outside the workspace.
    pub(super) fn locate(&self, path: &str) -> Result<PathBuf, RpcError> {
        let outside = || RpcError::new(INVALID_PARAMS, format!("{path:?} lies outside the workspace"));
        self.roots.relative(path).ok_or_else(outside)
    }

    /// Reads a text file, or some lines of it. Blocks.
    ///
    /// # Errors
    /// As the agent hears them.
    pub(super) fn read(&self, request: &ReadFile) -> Result<String, RpcError> {
        let path = self.locate(&request.path)?;
        let explain = |error| io_error(&request.path, &error);
        let file = self.dir.open_with(&path, unblocked(OpenOptions::new().read(true))).map_err(explain)?;
        let length = regular(&file, &request.path)?;
        if length > FILE_MAX_BYTES {
            return Err(too_large(&request.path));
        }
        let mut text = String::new();
        // The file may grow while it is read.
        file.take(FILE_MAX_BYTES + 1).read_to_string(&mut text).map_err(explain)?;
        if text.len() as u64 > FILE_MAX_BYTES {
            return Err(too_large(&request.path));
        }
        Ok(window(text, request.line, request.limit))
    }

    /// Writes a text file, with the directories above it. Blocks.
    ///
    /// # Errors
    /// As the agent hears them.
    pub(super) fn write(&self, request: &WriteFile) -> Result<FileOperation, RpcError> {
        let path = self.locate(&request.path)?;
        if request.content.len() as u64 > FILE_MAX_BYTES {
            return Err(too_large(&request.path));
        }
        let explain = |error| io_error(&request.path, &error);
        self.fence.pass().map_err(explain)?;
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            self.dir.create_dir_all(parent).map_err(explain)?;
        }
        let new = self.dir.open_with(&path, unblocked(OpenOptions::new().write(true).create_new(true)));
        let (mut file, operation) = match new {
            Ok(file) => (file, FileOperation::Create),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let old = self.dir.open_with(&path, unblocked(OpenOptions::new().write(true)));
                let old = old.map_err(explain)?;
                regular(&old, &request.path)?;
                old.set_len(0).map_err(explain)?;
                (old, FileOperation::Update)
            }
            Err(error) => return Err(explain(error)),
        };
        file.write_all(request.content.as_bytes()).map_err(explain)?;
        Ok(operation)
    }
}

// Opening a named pipe would wait for its other end.
fn unblocked(options: &mut OpenOptions) -> &OpenOptions {
    options.custom_flags(OFlags::NONBLOCK.bits().cast_signed())
}

fn regular(file: &File, path: &str) -> Result<u64, RpcError> {
    let metadata = file.metadata().map_err(|error| io_error(path, &error))?;
    if !metadata.is_file() {
        return Err(RpcError::new(INVALID_PARAMS, format!("{path:?} is not a regular file")));
    }
    if metadata.nlink() > 1 {
        return Err(RpcError::new(
            INVALID_PARAMS,
            format!("{path:?} has other names, which may lie outside"),
        ));
    }
    Ok(metadata.len())
}

fn too_large(path: &str) -> RpcError {
    RpcError::new(INVALID_PARAMS, format!("{path:?} is larger than {FILE_MAX_BYTES} bytes"))
}

fn io_error(path: &str, error: &io::Error) -> RpcError {
    let code = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { INTERNAL_ERROR };
    RpcError::new(code, format!("{path:?}: {error}"))
}

fn window(text: String, line: Option<usize>, limit: Option<usize>) -> String {
    if line.is_none() && limit.is_none() {
        return text;
    }
    let skipped = line.unwrap_or(1).saturating_sub(1);
    text.split_inclusive('\n').skip(skipped).take(limit.unwrap_or(usize::MAX)).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    struct Case {
        root: tempfile::TempDir,
        outside: tempfile::TempDir,
        workspace: Workspace,
    }

    fn case() -> Case {
        let root = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret"), "hush").unwrap();
        let workspace = Workspace::open(root.path(), Fence::open()).unwrap();
        Case { root, outside, workspace }
    }

    impl Case {
        fn read(&self, path: &str) -> Result<String, RpcError> {
            self.workspace.read(&ReadFile { path: path.into(), line: None, limit: None })
        }

        fn write(&self, path: &str, content: &str) -> Result<FileOperation, RpcError> {
            self.workspace.write(&WriteFile { path: path.into(), content: content.into() })
        }
    }

    #[test]
    fn row_80_paths_are_compared_part_by_part() {
        let roots = Roots::plain("/space");
        for (path, inside) in [
            ("src/a", "src/a"),
            ("/space/src/a", "src/a"),
            ("/space", "."),
            ("/space/", "."),
            (".", "."),
            ("..foo", "..foo"),
            ("/space/..foo", "..foo"),
            ("a/../b", "a/../b"),
        ] {
            assert_eq!(roots.relative(path), Some(PathBuf::from(inside)), "{path}");
        }
        for path in
            ["../x", "/etc/passwd", "/space2/x", "", "/space/../etc", "a/../../x", "/space/../space/x", "/"]
        {
            assert_eq!(roots.relative(path), None, "{path}");
        }
        assert_eq!(roots.shown("/space/src/a"), "src/a");
        assert_eq!(roots.shown("/etc/passwd"), "/etc/passwd");
    }

    #[test]
    fn row_80_symbolic_links_do_not_lead_out_of_the_workspace() {
        let case = case();
        symlink(case.outside.path(), case.root.path().join("out")).unwrap();
        symlink(case.outside.path().join("secret"), case.root.path().join("leaf")).unwrap();
        symlink("../../../../../../etc", case.root.path().join("up")).unwrap();
        for path in ["out/secret", "leaf", "up/passwd"] {
            assert!(case.read(path).is_err(), "{path}");
            assert!(case.write(path, "x").is_err(), "{path}");
        }
        assert!(case.write("out/new/file", "x").is_err());
        assert_eq!(fs::read_to_string(case.outside.path().join("secret")).unwrap(), "hush");
        assert_eq!(fs::read_dir(case.outside.path()).unwrap().count(), 1);
    }

    #[test]
    fn symbolic_links_inside_the_workspace_are_followed() {
        let case = case();
        case.write("a/file", "here").unwrap();
        symlink("a", case.root.path().join("b")).unwrap();
        assert_eq!(case.read("b/file").unwrap(), "here");
    }

    #[test]
    fn a_workspace_behind_a_symbolic_link_is_known_by_both_names() {
        let case = case();
        let link = case.outside.path().join("link");
        symlink(case.root.path(), &link).unwrap();
        let roots = Roots::of(&link);
        for root in [&link, &case.root.path().canonicalize().unwrap()] {
            assert_eq!(roots.shown(root.join("a").to_str().unwrap()), "a");
        }
    }

    #[test]
    fn row_81_a_written_file_is_new_or_changed() {
        let case = case();
        assert_eq!(case.write("a/b/c", "longer").unwrap(), FileOperation::Create);
        assert_eq!(case.write("a/b/c", "short").unwrap(), FileOperation::Update);
        let path = case.root.path().join("a/b/c");
        assert_eq!(case.read(path.to_str().unwrap()).unwrap(), "short");
    }

    #[test]
    fn only_regular_files_are_served() {
        let case = case();
        fs::create_dir(case.root.path().join("dir")).unwrap();
        let pipe = case.root.path().join("pipe");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        for path in [".", "dir", "pipe"] {
            assert!(case.read(path).is_err(), "{path}");
            assert!(case.write(path, "x").is_err(), "{path}");
        }
        assert_eq!(case.read("none").unwrap_err().code, NOT_FOUND);
        fs::hard_link(case.outside.path().join("secret"), case.root.path().join("hard")).unwrap();
        assert!(case.read("hard").unwrap_err().message.contains("other names"));
        assert!(case.write("hard", "x").unwrap_err().message.contains("other names"));
        assert_eq!(fs::read_to_string(case.outside.path().join("secret")).unwrap(), "hush");
    }

    #[test]
    fn files_beyond_the_limit_and_files_that_are_not_text_are_refused() {
        let case = case();
        let large = fs::File::create(case.root.path().join("large")).unwrap();
        large.set_len(FILE_MAX_BYTES + 1).unwrap();
        assert!(case.read("large").unwrap_err().message.contains("larger"));
        let content = "x".repeat(usize::try_from(FILE_MAX_BYTES).unwrap() + 1);
        assert!(case.write("new", &content).unwrap_err().message.contains("larger"));
        assert!(!case.root.path().join("new").exists());
        fs::write(case.root.path().join("binary"), b"\xff\xfe").unwrap();
        assert!(case.read("binary").is_err());
    }

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
    fn lines_are_counted_from_one() {
        let text = || "a\nb\r\nc".to_owned();
        for (line, limit, part) in [
            (None, None, "a\nb\r\nc"),
            (Some(2), None, "b\r\nc"),
            (Some(0), Some(1), "a\n"),
            (None, Some(2), "a\nb\r\n"),
            (Some(3), Some(9), "c"),
            (Some(4), None, ""),
            (None, Some(0), ""),
        ] {
            assert_eq!(window(text(), line, limit), part, "{line:?} {limit:?}");
        }
    }
}
