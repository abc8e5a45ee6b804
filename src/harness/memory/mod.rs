//! The files in which an agent keeps its memory, taken from its state directory and put back into one: on another machine, or
//! where an older process of the session has left older files.
//!
//! - `paths`: which files they are, and how they are found without following a link;
//! - `archive`: files as bytes, and bytes as files again;
//! - here: taking them while the agent rests, putting them back, and the mark that says which of the two is due.
//!
//! The mark is a file in the state directory. It names the archives that this disk was equal to last: the one that the database
//! is known to have, and the one that was taken for it since. As long as the database has one of these, the disk is as new or
//! newer, and is left alone. So replicas that share a disk put nothing back, a disk that missed some turns is brought up to
//! date, and files of a turn that was cut short stay where they are.

mod archive;
mod paths;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

use cap_std::ambient_authority;
use cap_std::fs::{Dir, OpenOptions, OpenOptionsExt};
use rustix::fs::OFlags;
use tokio::sync::Semaphore;

use self::archive::{Archive, Entry};
pub use self::paths::StatePaths;
use self::paths::{Found, Trouble};
use super::Fence;
use crate::domain::agent_files::{AgentFiles, FilesDigest};
use crate::domain::limits::{AGENT_ARCHIVE_MAX_BYTES, AGENT_FILES_MAX_BYTES};
use crate::domain::turn::Failure;

/// The mark's file, and the directory in which files are complete before they are put in their places.
const MARK: &str = ".ostler-memory";
const ARRIVING: &str = ".ostler-arriving";
/// How often files are taken that change while they are read, and the pause before the next time.
const TRIES: usize = 5;
const PAUSE: Duration = Duration::from_millis(50);
/// An archive is in memory while it is made or opened; no more than so many at once.
const AT_ONCE: usize = 4;
static PLACES: Semaphore = Semaphore::const_new(AT_ONCE);

/// Whether the disk lacks what the archive of that digest holds.
pub async fn is_behind(state_dir: &Path, stored: &FilesDigest) -> bool {
    let (state_dir, stored) = (state_dir.to_owned(), stored.clone());
    let read = move || Ok(!read_mark(&open(&state_dir)?)?.contains(&stored));
    // A directory that cannot be read is behind: what is put back says why it cannot be used.
    blocking(read).await.unwrap_or(true)
}

/// Takes the files while the agent rests or is gone; `None` when they are those that the database is `known` to have, or when
/// there are none.
///
/// # Errors
/// `agent_files_too_large`, `agent_files_unreadable`. The words are the same each time, so that they need be said only once.
pub async fn take(
    state_dir: &Path,
    paths: &StatePaths,
    known: Option<&FilesDigest>,
    fence: &Fence,
) -> Result<Option<AgentFiles>, Failure> {
    for _ in 0..TRIES {
        let (state_dir, paths) = (state_dir.to_owned(), paths.clone());
        let (known, fence) = (known.cloned(), fence.clone());
        let taken = blocking(move || match take_now(&open(&state_dir)?, &paths, known.as_ref(), &fence) {
            Ok(files) => Ok(Some(files)),
            Err(Trouble::Changed) => Ok(None),
            Err(Trouble::Failed(failure)) => Err(failure),
        });
        if let Some(files) = taken.await? {
            return Ok(files);
        }
        tokio::time::sleep(PAUSE).await;
    }
    Err(unreadable("they change all the time"))
}

/// Puts files back in place of those that are there. Nothing is put anywhere before all of it is known to be good.
///
/// # Errors
/// `agent_files_corrupt`: it is not what was stored. `agent_files_unwritable`: the disk, or the session, which may be held
/// elsewhere by now.
pub async fn put_back(
    state_dir: &Path,
    paths: &StatePaths,
    files: AgentFiles,
    fence: &Fence,
) -> Result<(), Failure> {
    let (state_dir, paths, fence) = (state_dir.to_owned(), paths.clone(), fence.clone());
    blocking(move || {
        let corrupt = |words| Failure::new("agent_files_corrupt", format!("its stored files: {words}"));
        let opened = archive::open(&files).map_err(corrupt)?;
        let entries = opened.entries().map_err(corrupt)?;
        let placed = place(&open(&state_dir)?, &paths, &entries, &files.digest, &fence);
        placed.map_err(|error| match error {
            Trouble::Failed(failure) => failure,
            Trouble::Changed => Failure::new("agent_files_unwritable", "its files change all the time"),
        })
    })
    .await
}

/// Runs work on files beside the threads that everybody waits for. It keeps its place also when nobody waits for it any more.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let ended = || unreadable("the service ends");
    let place = PLACES.acquire().await.map_err(|_| ended())?;
    let work = move || {
        let _place = place;
        work()
    };
    tokio::task::spawn_blocking(work).await.map_err(|_| ended())?
}

fn open(state_dir: &Path) -> Result<Dir, Failure> {
    Dir::open_ambient_dir(state_dir, ambient_authority()).map_err(unreadable)
}

fn unreadable(why: impl std::fmt::Display) -> Failure {
    Failure::new("agent_files_unreadable", format!("its files cannot be read: {why}"))
}

fn too_large(what: &str) -> Failure {
    Failure::new("agent_files_too_large", format!("its files are {what}"))
}

fn take_now(
    state: &Dir,
    paths: &StatePaths,
    known: Option<&FilesDigest>,
    fence: &Fence,
) -> Result<Option<AgentFiles>, Trouble> {
    let archive = read(state, paths)?;
    let digest = archive.digest();
    if archive.is_empty() && known.is_none() || known == Some(&digest) {
        return Ok(None);
    }
    let content = archive.compress();
    drop(archive);
    if content.len() > AGENT_ARCHIVE_MAX_BYTES {
        return Err(too_large("more than 16 MiB when compressed").into());
    }
    // What the mark says must be so after a loss of power as well.
    paths::walk(state, paths, &mut |found| Ok(found.file.sync_data()?))?;
    // A database and its log are of one moment if both are the same when they are read again. The system's times would not
    // tell: two writes within a few milliseconds have the same.
    if read(state, paths)?.digest() != digest {
        return Err(Trouble::Changed);
    }
    fence.pass()?;
    write_mark(state, known.into_iter().chain([&digest]))?;
    Ok(Some(AgentFiles { digest, content: content.into() }))
}

fn read(state: &Dir, paths: &StatePaths) -> Result<Archive, Trouble> {
    let mut archive = Archive::default();
    paths::walk(state, paths, &mut |found| {
        if !found.is_rebuilt() {
            archive.add(&found.path, found.is_program, &content(found, archive.room())?);
        }
        Ok(())
    })?;
    Ok(archive)
}

fn content(found: &Found, room: usize) -> Result<Vec<u8>, Trouble> {
    let mut content = Vec::new();
    (&found.file).take(room as u64 + 1).read_to_end(&mut content)?;
    if content.len() > room {
        let most = AGENT_FILES_MAX_BYTES >> 20;
        return Err(too_large(&format!("more than {most} MiB")).into());
    }
    Ok(content)
}

fn place(
    state: &Dir,
    paths: &StatePaths,
    archive: &[Entry<'_>],
    digest: &FilesDigest,
    fence: &Fence,
) -> Result<(), Trouble> {
    clear(state, Path::new(ARRIVING))?;
    state.create_dir(ARRIVING)?;
    let arriving = state.open_dir(ARRIVING)?;
    for entry in archive {
        make_parents(&arriving, entry.path)?;
        let mode = if entry.is_program { 0o700 } else { 0o600 };
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(mode);
        let mut file = arriving.open_with(entry.path, &options)?;
        file.write_all(entry.content)?;
        file.sync_all()?;
    }
    let mut old = Vec::new();
    paths::walk(state, paths, &mut |found| {
        old.push(found.path.clone());
        Ok(())
    })?;
    fence.pass()?;
    // Until all are in their places the disk is equal to nothing.
    clear(state, Path::new(MARK))?;
    let kept: HashSet<&Path> = archive.iter().map(|entry| entry.path).collect();
    for path in old.iter().filter(|path| !kept.contains(path.as_path())) {
        state.remove_file(path)?;
    }
    for entry in archive {
        fence.pass()?;
        make_way(state, entry.path)?;
        make_parents(state, entry.path)?;
        arriving.rename(entry.path, state, entry.path)?;
    }
    clear(state, Path::new(ARRIVING))?;
    Ok(write_mark(state, [digest])?)
}

fn make_parents(dir: &Dir, path: &Path) -> io::Result<()> {
    match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => dir.create_dir_all(parent),
        None => Ok(()),
    }
}

/// Takes away what stands where a file, or a directory above it, has to be.
fn make_way(state: &Dir, path: &Path) -> io::Result<()> {
    for above in path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
        if state.symlink_metadata(above).is_ok_and(|metadata| !metadata.is_dir()) {
            state.remove_file(above)?;
        }
    }
    match state.symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => state.remove_dir_all(path),
        _ => Ok(()),
    }
}

fn clear(state: &Dir, path: &Path) -> io::Result<()> {
    match state.symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => state.remove_dir_all(path),
        Ok(_) => state.remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn read_mark(state: &Dir) -> Result<Vec<FilesDigest>, Failure> {
    let mut options = OpenOptions::new();
    // The agent could have put anything in its place.
    options.read(true).custom_flags((OFlags::NONBLOCK | OFlags::NOFOLLOW).bits().cast_signed());
    let mut text = String::new();
    let read = state.open_with(MARK, &options).and_then(|file| file.take(1024).read_to_string(&mut text));
    match read {
        Ok(_) => Ok(text.lines().map(|line| FilesDigest::from_row(line.to_owned())).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(unreadable(error)),
    }
}

fn write_mark<'a>(state: &Dir, digests: impl IntoIterator<Item = &'a FilesDigest>) -> io::Result<()> {
    const NEW: &str = ".ostler-memory.new";
    clear(state, Path::new(NEW))?;
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let mut file = state.open_with(NEW, &options)?;
    for digest in digests {
        writeln!(file, "{}", digest.as_str())?;
    }
    file.sync_all()?;
    state.rename(NEW, state, MARK)
}
