//! Files as bytes: a line that names the format, then for each file its path's length, whether it is a program, its own length,
//! the path and the content. Numbers are little-endian. The whole is compressed as one.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use miniz_oxide::deflate::compress_to_vec_zlib;
use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;

use crate::domain::agent_files::{AgentFiles, FilesDigest};
use crate::domain::limits::AGENT_FILES_MAX_BYTES;

const FORMAT: &[u8] = b"ostler agent files 1\n";
/// What the archive may be beyond its files: paths and lengths.
const OVERHEAD_MAX: usize = 8 << 20;
/// Conversations are text: they become a fifth, and more effort gains little.
const LEVEL: u8 = 4;

/// An archive that is being made. Files are added in the order of their paths.
pub(super) struct Archive {
    bytes: Vec<u8>,
    content: usize,
}

/// A file of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry<'a> {
    pub path: &'a Path,
    pub is_program: bool,
    pub content: &'a [u8],
}

/// The bytes of an archive that was opened, which its entries are parts of.
pub(super) struct Opened(Vec<u8>);

impl Default for Archive {
    fn default() -> Self {
        Self { bytes: FORMAT.to_vec(), content: 0 }
    }
}

impl Archive {
    /// How much more content it may take.
    pub(super) fn room(&self) -> usize {
        AGENT_FILES_MAX_BYTES - self.content
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.len() == FORMAT.len()
    }

    /// Adds a file.
    pub(super) fn add(&mut self, path: &Path, is_program: bool, content: &[u8]) {
        let path = path.as_os_str().as_bytes();
        self.bytes.extend((path.len() as u32).to_le_bytes());
        self.bytes.push(u8::from(is_program));
        self.bytes.extend((content.len() as u64).to_le_bytes());
        self.bytes.extend(path);
        self.bytes.extend(content);
        self.content += content.len();
    }

    pub(super) fn digest(&self) -> FilesDigest {
        FilesDigest::of(&self.bytes)
    }

    pub(super) fn compress(&self) -> Vec<u8> {
        compress_to_vec_zlib(&self.bytes, LEVEL)
    }
}

/// Opens an archive.
///
/// # Errors
/// In words, when it is not what was stored.
pub(super) fn open(files: &AgentFiles) -> Result<Opened, &'static str> {
    let bytes = decompress_to_vec_zlib_with_limit(&files.content, AGENT_FILES_MAX_BYTES + OVERHEAD_MAX)
        .map_err(|_| "they cannot be decompressed")?;
    if FilesDigest::of(&bytes) != files.digest {
        return Err("they are not those that were stored");
    }
    Ok(Opened(bytes))
}

impl Opened {
    /// All its files.
    ///
    /// # Errors
    /// In words, when it is no archive, or one whose paths lead out of the directory.
    pub(super) fn entries(&self) -> Result<Vec<Entry<'_>>, &'static str> {
        let mut rest = self.0.strip_prefix(FORMAT).ok_or("the format is unknown")?;
        let mut entries = Vec::new();
        while !rest.is_empty() {
            let entry = next(&mut rest).ok_or("a file is incomplete")?;
            if !is_below(entry.path) {
                return Err("a path leads out of the directory");
            }
            entries.push(entry);
        }
        Ok(entries)
    }
}

fn next<'a>(rest: &mut &'a [u8]) -> Option<Entry<'a>> {
    let path = u32::from_le_bytes(*rest.split_off(..4)?.first_chunk()?);
    let is_program = *rest.split_off_first()? == 1;
    let content = u64::from_le_bytes(*rest.split_off(..8)?.first_chunk()?);
    let path = rest.split_off(..usize::try_from(path).ok()?)?;
    let content = rest.split_off(..usize::try_from(content).ok()?)?;
    Some(Entry { path: Path::new(OsStr::from_bytes(path)), is_program, content })
}

fn is_below(path: &Path) -> bool {
    let mut parts = path.components();
    let ours = |part: &OsStr| part.as_bytes().starts_with(b".ostler-");
    matches!(parts.next(), Some(Component::Normal(first)) if !ours(first))
        && parts.all(|part| matches!(part, Component::Normal(_)))
        && !path.as_os_str().as_bytes().contains(&0)
}
