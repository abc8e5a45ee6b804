//! Which files of a state directory hold the agent's memory, and how they are found: from the directory's handle down, name by
//! name, so that no link leads out of it.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use cap_std::fs::{Dir, DirEntry, OpenOptions, OpenOptionsExt};
use rustix::fs::{FileType, OFlags};

use super::{too_large, unreadable};
use crate::domain::turn::Failure;

/// Most files, and most directories one in the other.
const FILES_MAX: usize = 10_000;
const DEPTH_MAX: usize = 32;

/// Paths below a state directory. A directory stands for all below it, and a `*` for any characters of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatePaths(Vec<Vec<String>>);

/// A file that was found, open for reading.
pub(super) struct Found {
    /// Below the state directory.
    pub path: PathBuf,
    pub file: File,
    /// Its owner may execute it.
    pub is_program: bool,
}

/// Why files could not be taken.
#[derive(Debug)]
pub(super) enum Trouble {
    /// They changed meanwhile; a new try may do.
    Changed,
    Failed(Failure),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        // It was there a moment before.
        if error.kind() == io::ErrorKind::NotFound { Self::Changed } else { Self::Failed(unreadable(error)) }
    }
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl StatePaths {
    /// No files at all.
    pub const NONE: &Self = &Self(Vec::new());

    /// Reads paths as an operator writes them.
    ///
    /// # Errors
    /// A complaint about the first that does not lie below the state directory.
    pub fn parse(paths: &[String]) -> Result<Self, String> {
        let names = |path: &String| {
            let name = |part: Component<'_>| match part {
                Component::Normal(name) => name.to_str().map(str::to_owned),
                _ => None,
            };
            let names: Option<Vec<String>> = Path::new(path).components().map(name).collect();
            names.filter(|names| !names.is_empty() && !path.contains('\0'))
        };
        let parse = |path| {
            names(path)
                .ok_or_else(|| format!("state_paths: {path:?} is not a path below the state directory"))
        };
        paths.iter().map(parse).collect::<Result<_, _>>().map(Self)
    }

    /// Whether there are any.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Found {
    /// Whether it is the index of SQLite's write-ahead log. Whoever opens the database next makes it anew, and even reading
    /// changes it.
    pub(super) fn is_rebuilt(&self) -> bool {
        self.path.as_os_str().as_bytes().ends_with(b"-shm")
    }
}

/// Visits the files in the order of their paths. What is neither a file nor a directory is passed over.
pub(super) fn walk(
    state: &Dir,
    paths: &StatePaths,
    visit: &mut dyn FnMut(&Found) -> Result<(), Trouble>,
) -> Result<(), Trouble> {
    let mut left = FILES_MAX;
    let patterns = paths.0.iter().map(Vec::as_slice).collect();
    descend(state, Path::new(""), patterns, &mut |found| {
        left = left.checked_sub(1).ok_or_else(|| too_large(&format!("more than {FILES_MAX}")))?;
        visit(found)
    })
}

fn descend(
    dir: &Dir,
    above: &Path,
    patterns: Vec<&[String]>,
    visit: &mut dyn FnMut(&Found) -> Result<(), Trouble>,
) -> Result<(), Trouble> {
    if above.components().count() > DEPTH_MAX {
        return Err(too_large(&format!("in more than {DEPTH_MAX} directories, one in the other")).into());
    }
    let mut entries = dir.entries()?.collect::<io::Result<Vec<DirEntry>>>()?;
    entries.sort_by_key(DirEntry::file_name);
    for entry in entries {
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        let is_ours = above.as_os_str().is_empty() && name.as_bytes().starts_with(b".ostler-");
        // What is left of the patterns below this name; nothing is left of one that has named a directory above.
        let below: Vec<&[String]> = patterns
            .iter()
            .filter_map(|pattern| match pattern.split_first() {
                None => Some(*pattern),
                Some((first, rest)) => matches(first, &name).then_some(rest),
            })
            .collect();
        let path = above.join(&name);
        if is_ours || below.is_empty() {
            continue;
        }
        if kind.is_dir() {
            let opened = open(&entry, OFlags::DIRECTORY)?;
            descend(&Dir::from_std_file(opened), &path, below, visit)?;
        } else if kind.is_file() && below.iter().any(|rest| rest.is_empty()) {
            let file = open(&entry, OFlags::empty())?;
            let mode = rustix::fs::fstat(&file).map_err(io::Error::from)?.st_mode;
            if FileType::from_raw_mode(mode) == FileType::RegularFile {
                visit(&Found { path, file, is_program: mode & 0o100 != 0 })?;
            }
        }
    }
    Ok(())
}

/// Another kind of file may have taken its place: no link is followed, and a pipe is not waited for.
fn open(entry: &DirEntry, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags.bits().cast_signed());
    entry.open_with(&options).map(cap_std::fs::File::into_std)
}

/// Whether a name fits a pattern, in which `*` stands for any characters.
fn matches(pattern: &str, name: &OsStr) -> bool {
    let name = name.as_bytes();
    let Some((first, rest)) = pattern.split_once('*') else { return name == pattern.as_bytes() };
    let Some(mut name) = name.strip_prefix(first.as_bytes()) else { return false };
    let (between, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    for part in between.split('*').map(str::as_bytes).filter(|part| !part.is_empty()) {
        let Some(place) = name.windows(part.len()).position(|window| window == part) else { return false };
        name = &name[place + part.len()..];
    }
    name.ends_with(last.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_characters_of_one_name() {
        for (pattern, name, fits) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("*", "", true),
            ("*", "any", true),
            ("a*", "abc", true),
            ("a*", "ba", false),
            ("*.db", "x.db", true),
            ("*.db", "x.db-wal", false),
            ("s*.db*", "state.db-wal", true),
            ("a*b*c", "a-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("a*bc*d", "abcd", true),
            ("ab*ba", "aba", false),
            ("a**b", "a-b", true),
        ] {
            assert_eq!(matches(pattern, OsStr::new(name)), fits, "{pattern} {name}");
        }
    }

    #[test]
    fn paths_lie_below_the_state_directory() {
        let parse = |path: &str| StatePaths::parse(&[path.to_owned()]);
        for path in [".codex/sessions", ".local/share/x/*.db*", "a", "a/./b/"] {
            assert!(parse(path).is_ok(), "{path}");
        }
        for path in ["", ".", "/", "/etc", "..", "a/../b", "../x", "./..", "a\0b"] {
            assert!(parse(path).unwrap_err().contains("state_paths"), "{path}");
        }
    }
}
