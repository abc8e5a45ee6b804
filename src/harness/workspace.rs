//! A session's files, served inside its workspace and nowhere else.
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
use thiserror::Error;

use super::Fence;
use crate::domain::event::FileOperation;

/// Larger files are neither read nor written.
pub(super) const FILE_MAX_BYTES: u64 = 4 << 20;
/// So many entries are looked at for one list, and directories so deep.
const LISTED_MAX: usize = 10_000;
const DEPTH_MAX: usize = 32;

/// Why a file was not served, in words that name it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum Refusal {
    /// It is not there.
    #[error("{0}")]
    Missing(String),
    /// It is nothing that is served.
    #[error("{0}")]
    Unfit(String),
    /// The system did not do it.
    #[error("{0}")]
    Broken(String),
}

/// What is in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listing {
    /// Paths below the directory, sorted: `/` after a directory, `@` after a link, which is not followed.
    pub entries: Vec<String>,
    /// Whether there is more than was looked at.
    pub is_cut: bool,
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
    pub(super) fn locate(&self, path: &str) -> Result<PathBuf, Refusal> {
        let outside = || Refusal::Unfit(format!("{path:?} lies outside the workspace"));
        self.roots.relative(path).ok_or_else(outside)
    }

    /// Reads a text file, or `limit` lines of it from `line` on, which is counted from 1. Blocks.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn read(
        &self,
        path: &str,
        line: Option<usize>,
        limit: Option<usize>,
    ) -> Result<String, Refusal> {
        let place = self.locate(path)?;
        let explain = |error| io_error(path, &error);
        let file = self.dir.open_with(&place, unblocked(OpenOptions::new().read(true))).map_err(explain)?;
        let length = regular(&file, path)?;
        if length > FILE_MAX_BYTES {
            return Err(too_large(path));
        }
        let mut text = String::new();
        // The file may grow while it is read.
        file.take(FILE_MAX_BYTES + 1).read_to_string(&mut text).map_err(explain)?;
        if text.len() as u64 > FILE_MAX_BYTES {
            return Err(too_large(path));
        }
        Ok(window(text, line, limit))
    }

    /// Writes a text file whole, with the directories above it. Blocks.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn write(&self, path: &str, content: &str) -> Result<FileOperation, Refusal> {
        let place = self.locate(path)?;
        if content.len() as u64 > FILE_MAX_BYTES {
            return Err(too_large(path));
        }
        let explain = |error| io_error(path, &error);
        self.fence.pass().map_err(explain)?;
        if let Some(parent) = place.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            self.dir.create_dir_all(parent).map_err(explain)?;
        }
        let new = self.dir.open_with(&place, unblocked(OpenOptions::new().write(true).create_new(true)));
        let (mut file, operation) = match new {
            Ok(file) => (file, FileOperation::Create),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let old = self.dir.open_with(&place, unblocked(OpenOptions::new().write(true)));
                let old = old.map_err(explain)?;
                regular(&old, path)?;
                old.set_len(0).map_err(explain)?;
                (old, FileOperation::Update)
            }
            Err(error) => return Err(explain(error)),
        };
        file.write_all(content.as_bytes()).map_err(explain)?;
        Ok(operation)
    }

    /// Lists a directory, with those below it where that is wanted. Blocks.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn list(&self, path: &str, recursive: bool) -> Result<Listing, Refusal> {
        let explain = |error| io_error(path, &error);
        let dir = self.dir.open_dir(self.locate(path)?).map_err(explain)?;
        let mut listing = Listing { entries: Vec::new(), is_cut: false };
        let depth = if recursive { DEPTH_MAX } else { 0 };
        list_into(&mut listing, &dir, "", depth).map_err(explain)?;
        listing.entries.sort_unstable();
        Ok(listing)
    }
}

// A directory that cannot be read is listed and not entered: another may belong to somebody else.
fn list_into(listing: &mut Listing, dir: &Dir, prefix: &str, depth: usize) -> io::Result<()> {
    for entry in dir.entries()? {
        let entry = entry?;
        if listing.entries.len() == LISTED_MAX {
            listing.is_cut = true;
            return Ok(());
        }
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        let kind = entry.file_type()?;
        if kind.is_dir() {
            let below = format!("{name}/");
            listing.entries.push(below.clone());
            let inside = (depth > 0).then(|| entry.open_dir());
            if let Some(Ok(inside)) = inside {
                // What was read of it before it failed stays listed.
                let _ = list_into(listing, &inside, &below, depth - 1);
            }
        } else if kind.is_symlink() {
            listing.entries.push(format!("{name}@"));
        } else {
            listing.entries.push(name);
        }
    }
    Ok(())
}

// Opening a named pipe would wait for its other end.
fn unblocked(options: &mut OpenOptions) -> &OpenOptions {
    options.custom_flags(OFlags::NONBLOCK.bits().cast_signed())
}

fn regular(file: &File, path: &str) -> Result<u64, Refusal> {
    let metadata = file.metadata().map_err(|error| io_error(path, &error))?;
    if !metadata.is_file() {
        return Err(Refusal::Unfit(format!("{path:?} is not a regular file")));
    }
    if metadata.nlink() > 1 {
        return Err(Refusal::Unfit(format!("{path:?} has other names, which may lie outside")));
    }
    Ok(metadata.len())
}

fn too_large(path: &str) -> Refusal {
    Refusal::Unfit(format!("{path:?} is larger than {FILE_MAX_BYTES} bytes"))
}

fn io_error(path: &str, error: &io::Error) -> Refusal {
    let words = format!("{path:?}: {error}");
    if error.kind() == io::ErrorKind::NotFound { Refusal::Missing(words) } else { Refusal::Broken(words) }
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
        fn read(&self, path: &str) -> Result<String, Refusal> {
            self.workspace.read(path, None, None)
        }

        fn write(&self, path: &str, content: &str) -> Result<FileOperation, Refusal> {
            self.workspace.write(path, content)
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
        assert!(matches!(case.read("none"), Err(Refusal::Missing(_))));
        fs::hard_link(case.outside.path().join("secret"), case.root.path().join("hard")).unwrap();
        assert!(case.read("hard").unwrap_err().to_string().contains("other names"));
        assert!(case.write("hard", "x").unwrap_err().to_string().contains("other names"));
        assert_eq!(fs::read_to_string(case.outside.path().join("secret")).unwrap(), "hush");
    }

    #[test]
    fn files_beyond_the_limit_and_files_that_are_not_text_are_refused() {
        let case = case();
        let large = fs::File::create(case.root.path().join("large")).unwrap();
        large.set_len(FILE_MAX_BYTES + 1).unwrap();
        assert!(case.read("large").unwrap_err().to_string().contains("larger"));
        let content = "x".repeat(usize::try_from(FILE_MAX_BYTES).unwrap() + 1);
        assert!(case.write("new", &content).unwrap_err().to_string().contains("larger"));
        assert!(!case.root.path().join("new").exists());
        fs::write(case.root.path().join("binary"), b"\xff\xfe").unwrap();
        assert!(case.read("binary").is_err());
    }

    #[test]
    fn a_list_is_sorted_and_follows_no_link() {
        let case = case();
        for path in ["b/inner/deep", "b/first", "a"] {
            case.write(path, "").unwrap();
        }
        symlink(case.outside.path(), case.root.path().join("c")).unwrap();
        let list = |path: &str, recursive| case.workspace.list(path, recursive).unwrap().entries;
        assert_eq!(list(".", false), ["a", "b/", "c@"]);
        assert_eq!(list(".", true), ["a", "b/", "b/first", "b/inner/", "b/inner/deep", "c@"]);
        assert_eq!(list("b", true), ["first", "inner/", "inner/deep"]);
        assert!(matches!(case.workspace.list("none", false), Err(Refusal::Missing(_))));
        for path in ["..", "c", "a", "/"] {
            assert!(case.workspace.list(path, false).is_err(), "{path}");
        }
    }

    #[test]
    fn a_list_ends_at_its_limit_and_says_so() {
        let case = case();
        for number in 0..=LISTED_MAX {
            fs::File::create(case.root.path().join(format!("{number:05}"))).unwrap();
        }
        let listing = case.workspace.list(".", true).unwrap();
        assert_eq!((listing.entries.len(), listing.is_cut), (LISTED_MAX, true));
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
