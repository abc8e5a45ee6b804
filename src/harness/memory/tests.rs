use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};

use miniz_oxide::deflate::compress_to_vec_zlib;
use tempfile::TempDir;

use super::*;

fn paths(paths: &[&str]) -> StatePaths {
    StatePaths::parse(&paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>()).unwrap()
}

fn put(state: &TempDir, path: &str, content: &str) {
    let path = state.path().join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

fn text(state: &TempDir, path: &str) -> Option<String> {
    fs::read_to_string(state.path().join(path)).ok()
}

fn empty() -> TempDir {
    tempfile::tempdir().unwrap()
}

async fn take_from(state: &TempDir, of: &[&str], known: Option<&FilesDigest>) -> Option<AgentFiles> {
    take(state.path(), &paths(of), known, &Fence::open()).await.unwrap()
}

async fn failure_of(state: &TempDir) -> Failure {
    take(state.path(), &paths(&["d"]), None, &Fence::open()).await.unwrap_err()
}

async fn put_to(state: &TempDir, of: &[&str], files: AgentFiles) -> Result<(), Failure> {
    put_back(state.path(), &paths(of), files, &Fence::open()).await
}

async fn behind(state: &TempDir, files: &AgentFiles) -> bool {
    is_behind(state.path(), &files.digest).await
}

/// All paths below a directory.
fn listed(state: &TempDir) -> Vec<String> {
    fn below(root: &Path, dir: &Path, into: &mut Vec<String>) {
        for entry in fs::read_dir(dir).unwrap().flatten() {
            let path = entry.path();
            if entry.file_type().unwrap().is_dir() {
                below(root, &path, into);
            } else {
                into.push(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    let mut all = Vec::new();
    below(state.path(), state.path(), &mut all);
    all.sort();
    all
}

#[tokio::test]
async fn what_was_taken_from_one_disk_is_the_same_on_another() {
    let (here, there) = (empty(), empty());
    let of = [".agent/sessions", ".agent/*.db*", "tool"];
    for (path, content) in [
        (".agent/sessions/2026/a.jsonl", "one"),
        (".agent/sessions/b.jsonl", ""),
        (".agent/state.db", "base"),
        (".agent/state.db-wal", "log"),
        (".agent/state.db-shm", "index"),
        (".agent/config.toml", "token"),
        ("tool", "#!"),
        ("other", "x"),
    ] {
        put(&here, path, content);
    }
    fs::set_permissions(here.path().join("tool"), fs::Permissions::from_mode(0o755)).unwrap();
    let files = take_from(&here, &of, None).await.unwrap();
    put_to(&there, &of, files.clone()).await.unwrap();
    assert_eq!(
        listed(&there),
        [
            ".agent/sessions/2026/a.jsonl",
            ".agent/sessions/b.jsonl",
            ".agent/state.db",
            ".agent/state.db-wal",
            MARK,
            "tool"
        ]
    );
    assert_eq!(text(&there, ".agent/state.db-wal").as_deref(), Some("log"));
    let mode = |path: &str| fs::metadata(there.path().join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("tool"), mode(".agent/state.db")), (0o700, 0o600));
    assert_eq!(take_from(&there, &of, Some(&files.digest)).await, None, "it is what is known");
    assert_eq!(take_from(&there, &of, None).await.as_ref(), Some(&files), "byte for byte");
}

#[tokio::test]
async fn what_is_no_file_or_lies_behind_a_link_is_not_taken() {
    let (state, outside) = (empty(), empty());
    put(&outside, "secret", "hush");
    put(&state, "d/file", "x");
    symlink(outside.path(), state.path().join("d/dir")).unwrap();
    symlink(outside.path().join("secret"), state.path().join("d/leaf")).unwrap();
    symlink(state.path().join("d"), state.path().join("d/loop")).unwrap();
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, state.path().join("d/pipe"), rustix::fs::FileType::Fifo, mode, 0)
        .unwrap();
    let with = take_from(&state, &["d"], None).await.unwrap();
    symlink(outside.path(), state.path().join("whole")).unwrap();
    assert_eq!(take_from(&state, &["d", "whole", "whole/secret"], None).await.unwrap(), with);
    for odd in ["dir", "leaf", "loop", "pipe"] {
        fs::remove_file(state.path().join("d").join(odd)).unwrap();
    }
    assert_eq!(take_from(&state, &["d"], None).await.unwrap(), with);
}

#[tokio::test]
async fn nothing_is_taken_where_nothing_is_and_emptiness_is_taken_where_something_was() {
    let state = empty();
    assert_eq!(take_from(&state, &["d"], None).await, None);
    put(&state, "d/file", "x");
    let files = take_from(&state, &["d"], None).await.unwrap();
    fs::remove_dir_all(state.path().join("d")).unwrap();
    assert!(take_from(&state, &["d"], Some(&files.digest)).await.is_some());
}

#[tokio::test]
async fn the_disk_is_behind_only_when_the_database_has_what_it_was_never_equal_to() {
    let (here, there) = (empty(), empty());
    put(&here, "d/file", "one");
    let one = take_from(&here, &["d"], None).await.unwrap();
    assert!(!behind(&here, &one).await);
    assert!(behind(&there, &one).await);
    put_to(&there, &["d"], one.clone()).await.unwrap();
    assert!(!behind(&there, &one).await);
    put(&there, "d/file", "two");
    let two = take_from(&there, &["d"], Some(&one.digest)).await.unwrap();
    // Whether the second was stored is not known yet: either way these files are the newest.
    assert!(!behind(&there, &one).await && !behind(&there, &two).await);
    assert!(behind(&here, &two).await);
    put_to(&here, &["d"], two.clone()).await.unwrap();
    assert_eq!(text(&here, "d/file").as_deref(), Some("two"));
    // It went on, was cut short before it was taken, and keeps what it has.
    put(&here, "d/file", "three");
    assert!(!behind(&here, &two).await);
    assert!(behind(&here, &one).await, "of what was equal long ago nothing is known");
}

#[tokio::test]
async fn what_is_put_back_takes_the_place_of_all_that_was_there() {
    let (here, there, outside) = (empty(), empty(), empty());
    for path in ["d/kept", "d/below/file", "d/was-dir", "d/link/file"] {
        put(&here, path, "new");
    }
    let files = take_from(&here, &["d"], None).await.unwrap();
    for path in ["d/kept", "d/gone", "d/below", "d/was-dir/x", "d/x.db-shm", "other"] {
        put(&there, path, "old");
    }
    symlink(outside.path(), there.path().join("d/link")).unwrap();
    put(&there, ".ostler-arriving/left", "of a crash");
    put_to(&there, &["d"], files).await.unwrap();
    assert_eq!(listed(&there), [MARK, "d/below/file", "d/kept", "d/link/file", "d/was-dir", "other"]);
    assert_eq!(text(&there, "d/kept").as_deref(), Some("new"));
    assert!(listed(&outside).is_empty());
}

#[tokio::test]
async fn files_are_too_large_and_too_many_beyond_a_limit_and_in_the_same_words_each_time() {
    let state = empty();
    put(&state, "d/sparse", "");
    let file = fs::File::options().write(true).open(state.path().join("d/sparse")).unwrap();
    file.set_len(AGENT_FILES_MAX_BYTES as u64 + 1).unwrap();
    let failure = failure_of(&state).await;
    assert_eq!(
        (failure.code.as_str(), failure.message.as_str()),
        ("agent_files_too_large", "its files are more than 64 MiB")
    );
    file.set_len(AGENT_FILES_MAX_BYTES as u64 * 2).unwrap();
    assert_eq!(failure_of(&state).await, failure);
    // What does not become small.
    let mut noise = vec![0; 17 << 20];
    getrandom::fill(&mut noise).unwrap();
    fs::write(state.path().join("d/sparse"), noise).unwrap();
    assert_eq!(failure_of(&state).await.message, "its files are more than 16 MiB when compressed");
    assert!(!state.path().join(MARK).exists(), "nothing was equal to anything");
    fs::remove_file(state.path().join("d/sparse")).unwrap();
    for i in 0..=10_000 {
        fs::write(state.path().join(format!("d/{i}")), "").unwrap();
    }
    assert_eq!(failure_of(&state).await.message, "its files are more than 10000");
    let deep = empty();
    put(&deep, &format!("d/{}file", "x/".repeat(40)), "x");
    assert!(failure_of(&deep).await.message.contains("directories"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_files_that_belong_together_are_of_one_moment_or_not_taken() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let state = empty();
    put(&state, "d/a.db", &format!("{:020}", 0));
    put(&state, "d/b.db-wal", &format!("{:020}", 0));
    let [one, two] = ["d/a.db", "d/b.db-wal"]
        .map(|path| fs::File::options().write(true).open(state.path().join(path)).unwrap());
    let stop = std::sync::Arc::new(AtomicBool::new(false));
    let until = std::sync::Arc::clone(&stop);
    // The second is always written after the first, and is never ahead of it. Between them, now and then, is a pause.
    let writer = std::thread::spawn(move || {
        for n in 1_u64.. {
            for file in [&one, &two] {
                file.write_all_at(format!("{n:020}").as_bytes(), 0).unwrap();
            }
            if until.load(Ordering::Relaxed) {
                return;
            }
            if n % 50 == 0 {
                std::thread::park_timeout(Duration::from_millis(20));
            }
        }
    });
    let mut taken = 0;
    for _ in 0..20 {
        match take(state.path(), &paths(&["d"]), None, &Fence::open()).await {
            Err(failure) => assert_eq!(failure.message, "its files cannot be read: they change all the time"),
            Ok(files) => {
                taken += 1;
                let copy = empty();
                put_to(&copy, &["d"], files.unwrap()).await.unwrap();
                let number = |path| text(&copy, path).unwrap().parse::<u64>().unwrap();
                assert!(number("d/a.db").abs_diff(number("d/b.db-wal")) <= 1);
            }
        }
    }
    assert!(taken > 0, "there were pauses");
    stop.store(true, Ordering::Relaxed);
    writer.join().unwrap();
    let files = take_from(&state, &["d"], None).await.unwrap();
    let copy = empty();
    put_to(&copy, &["d"], files).await.unwrap();
    assert_eq!(text(&copy, "d/a.db"), text(&copy, "d/b.db-wal"));
}

fn archive_of(bytes: &[u8]) -> AgentFiles {
    AgentFiles { digest: FilesDigest::of(bytes), content: compress_to_vec_zlib(bytes, 1).into() }
}

#[tokio::test]
async fn f31_what_is_not_what_was_stored_is_refused_and_nothing_is_touched() {
    let state = empty();
    put(&state, "d/file", "one");
    let one = take_from(&state, &["d"], None).await.unwrap();
    put(&state, "d/file", "two");
    let before = (listed(&state), fs::read(state.path().join(MARK)).unwrap());
    let mut evil = Archive::default();
    evil.add(Path::new("d/../../evil"), false, b"x");
    let mut absolute = Archive::default();
    absolute.add(Path::new("/tmp/evil"), false, b"x");
    let mut mark = Archive::default();
    mark.add(Path::new(MARK), false, b"x");
    let whole = {
        let mut archive = Archive::default();
        archive.add(Path::new("d/file"), false, b"content");
        miniz_oxide::inflate::decompress_to_vec_zlib(&archive.compress()).unwrap()
    };
    let cut = (1..whole.len()).map(|end| archive_of(&whole[..end]));
    let of = |archive: Archive| AgentFiles { digest: archive.digest(), content: archive.compress().into() };
    let good = miniz_oxide::inflate::decompress_to_vec_zlib(&one.content).unwrap();
    // Some bits mean nothing.
    let bent = (0..one.content.len()).filter_map(|i| {
        let mut content = one.content.to_vec();
        content[i] ^= 1 << (i % 8);
        let same = miniz_oxide::inflate::decompress_to_vec_zlib(&content).is_ok_and(|bytes| bytes == good);
        (!same).then(|| AgentFiles { digest: one.digest.clone(), content: content.into() })
    });
    let bomb = archive_of(&vec![0; (AGENT_FILES_MAX_BYTES) + (9 << 20)]);
    let wrong = [of(evil), of(absolute), of(mark), archive_of(b"another format"), bomb];
    for files in wrong.into_iter().chain(bent).chain(cut) {
        // The line that names the format is an archive without files.
        if *files.digest.as_str() == *Archive::default().digest().as_str() {
            continue;
        }
        let failure = put_to(&state, &["d"], files).await.unwrap_err();
        assert_eq!(failure.code, "agent_files_corrupt", "{failure:?}");
    }
    assert_eq!((listed(&state), fs::read(state.path().join(MARK)).unwrap()), before);
    assert_eq!(text(&state, "d/file").as_deref(), Some("two"));
}

#[tokio::test]
async fn a_session_that_may_be_held_elsewhere_is_not_written_to() {
    let (here, there) = (empty(), empty());
    put(&here, "d/file", "one");
    let files = take_from(&here, &["d"], None).await.unwrap();
    let closed = Fence::new(|| false);
    let of = paths(&["d"]);
    assert!(put_back(there.path(), &of, files.clone(), &closed).await.is_err());
    assert_eq!(text(&there, "d/file"), None);
    put(&here, "d/file", "two");
    assert!(take(here.path(), &of, Some(&files.digest), &closed).await.is_err());
    assert!(!behind(&here, &files).await, "the mark is as it was");
}

#[tokio::test]
async fn a_mark_that_an_agent_has_made_its_own_of_is_no_mark() {
    let (state, outside) = (empty(), empty());
    put(&state, "d/file", "one");
    let files = take_from(&state, &["d"], None).await.unwrap();
    fs::write(outside.path().join("mark"), files.digest.as_str()).unwrap();
    fs::remove_file(state.path().join(MARK)).unwrap();
    symlink(outside.path().join("mark"), state.path().join(MARK)).unwrap();
    assert!(behind(&state, &files).await);
    put_to(&state, &["d"], files.clone()).await.unwrap();
    assert!(!behind(&state, &files).await);
    fs::remove_file(state.path().join(MARK)).unwrap();
    fs::create_dir(state.path().join(MARK)).unwrap();
    assert!(behind(&state, &files).await);
    put_to(&state, &["d"], files.clone()).await.unwrap();
    assert!(!behind(&state, &files).await);
}
