//! The agent's file requests: inside of the workspace or not at all, whatever the path is, and whatever changes meanwhile.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use ostler::domain::approval::PermissionMode;
use rustix::fs::{CWD, FileType, Mode, RenameFlags, makedev, mknodat, renameat_with};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::rig::Rig;

const CANARY: &str = "canary: nobody reads or writes this";

/// A directory outside of the workspace with a file that must stay as it is.
struct Outside {
    directory: TempDir,
    before: (Vec<u8>, i64, i64, u64),
}

impl Outside {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("canary"), CANARY).unwrap();
        fs::write(directory.path().join("f"), CANARY).unwrap();
        let before = state(&directory.path().join("canary"));
        Self { directory, before }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn canary(&self) -> String {
        self.path().join("canary").display().to_string()
    }

    #[track_caller]
    fn assert_untouched(&self) {
        assert_eq!(state(&self.path().join("canary")), self.before);
        assert_eq!(fs::read_to_string(self.path().join("f")).unwrap(), CANARY);
        assert_eq!(fs::read_dir(self.path()).unwrap().count(), 2, "something was made outside");
    }
}

fn state(path: &Path) -> (Vec<u8>, i64, i64, u64) {
    let metadata = fs::metadata(path).unwrap();
    (fs::read(path).unwrap(), metadata.mtime(), metadata.mtime_nsec(), metadata.ino())
}

/// What lies in the workspace and leads, or seems to lead, out of it.
fn lay_traps(rig: &Rig, outside: &Outside) {
    let root = rig.workspace.path();
    let link = |target: &str, name: &str| symlink(target, root.join(name)).unwrap();
    fs::create_dir(root.join("dir")).unwrap();
    fs::write(root.join("dir/own"), "own").unwrap();
    fs::write(root.join("own"), "own").unwrap();
    link(outside.path().to_str().unwrap(), "out");
    link(&outside.canary(), "leaf");
    link("leaf", "chain1");
    link("chain1", "chain2");
    link("chain2", "chain3");
    link("../../../../../../../../../../etc", "up");
    link("..", "dir/parent");
    link("/proc/self/root", "root");
    link("/proc/self/fd", "fds");
    link("/proc/self/cwd", "cwd");
    link(outside.path().join("new").to_str().unwrap(), "dangling");
    link(outside.path().join("none/new").to_str().unwrap(), "dangling2");
    link("loop2", "loop1");
    link("loop1", "loop2");
    link("/dev/zero", "zero-link");
    fs::hard_link(outside.canary(), root.join("hard")).unwrap();
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, root.join("fifo"), FileType::Fifo, mode, 0).unwrap();
    // Only root makes devices; for others it is one more pipe.
    let device = mknodat(CWD, root.join("zero"), FileType::CharacterDevice, mode, makedev(1, 5));
    device.or_else(|_| mknodat(CWD, root.join("zero"), FileType::Fifo, mode, 0)).unwrap();
    drop(UnixListener::bind(root.join("socket")).unwrap());
    fs::write(root.join(OsStr::from_bytes(b"not-\xff-text")), "own").unwrap();
}

/// Paths that must be refused, both to read and to write.
fn refused(rig: &Rig, outside: &Outside) -> Vec<String> {
    let root = rig.workspace.path().display().to_string();
    let name = rig.workspace.path().file_name().unwrap().to_str().unwrap();
    let (out, canary) = (outside.path().display().to_string(), outside.canary());
    let climb = "../".repeat(12);
    let long = "x".repeat(300);
    let forms = [
        canary.as_str(),
        "/etc/passwd",
        "//etc/passwd",
        "/",
        "//",
        "",
        ".",
        "./",
        "..",
        "../",
        "./..",
        "dir/..",
        "dir/",
        "dir",
        "dir/../..",
        "dir/../../etc/passwd",
        &format!("{climb}etc/passwd"),
        &format!("{climb}{canary}"),
        &format!("dir/{climb}etc/passwd"),
        &format!("{root}/../{name}-evil/x"),
        &format!("{root}-evil/x"),
        &format!("{root}x"),
        &format!("{root}/../../../../etc/passwd"),
        &format!("{root}/.."),
        &root,
        &format!("{root}/"),
        "out/canary",
        "out/./canary",
        "out/new",
        "out/new/deep",
        "dir/../out/canary",
        "leaf",
        "chain1",
        "chain3",
        "up/passwd",
        "up/ostler-new",
        "dir/parent/../../etc/passwd",
        &format!("root{canary}"),
        "root/etc/passwd",
        "cwd/canary",
        "fds/0",
        "fds/1",
        "fds/3",
        "/proc/self/root/etc/passwd",
        "/proc/self/environ",
        "/proc/1/root/etc/passwd",
        "/dev/zero",
        "dangling",
        "dangling2",
        "loop1",
        "loop1/x",
        "zero-link",
        "zero",
        "hard",
        &format!("{root}/hard"),
        "fifo",
        "socket",
        "own/x",
        "nul\0byte",
        &format!("own\0{canary}"),
        &long,
        &"long/".repeat(1000),
        &format!("{}own", "dir/../".repeat(800)),
        &format!("file://{out}/canary/"),
    ];
    forms.into_iter().map(str::to_owned).collect()
}

/// Paths that look as if they led out, and are names like any other: inside.
const NAMES: &[&str] = &[
    "..foo",
    "...",
    "dir/...",
    "..\u{2215}etc\u{2215}passwd",
    "\u{ff0e}\u{ff0e}/\u{ff45}tc",
    "%2e%2e/etc/passwd",
    "..%2fetc%2fpasswd",
    "..\\..\\etc\\passwd",
    "OUT/canary",
    "Leaf",
    "~/canary",
    "$HOME/canary",
    "not-\u{fffd}-text",
    "a\u{301}",
    "dir/../dir/./own2",
    " ",
    "-rf",
    "new\nline",
];

#[tokio::test]
async fn sec_11_no_form_of_a_path_leads_out_of_the_workspace() {
    let rig = Rig::new(&["script"]).mode(PermissionMode::AllowAll);
    let outside = Outside::new();
    lay_traps(&rig, &outside);
    // The link of the hard link is one of the canary's own: from here on nothing may change.
    let outside = Outside { before: state(&outside.path().join("canary")), ..outside };
    let mut agent = rig.start().await;
    let paths = refused(&rig, &outside);
    assert!(paths.len() >= 60, "{}", paths.len());
    for path in &paths {
        let turn = agent.turn(&script(path)).await;
        let heard: Vec<String> = turn.text().split("heard ").skip(1).map(str::to_owned).collect();
        assert_eq!(heard.len(), 3, "{path:?}: {heard:?}");
        for heard in heard {
            assert!(heard.starts_with("error -32"), "{path:?}: {heard}");
        }
        assert!(!turn.kinds().contains(&"file.changed"), "{path:?}");
    }
    for path in NAMES {
        let turn = agent.turn(&script(path)).await;
        assert_eq!(turn.kinds().iter().filter(|kind| **kind == "file.changed").count(), 1, "{path:?}");
        assert!(turn.text().ends_with(r#"heard {"content":"written"}"#), "{path:?}: {}", turn.text());
        assert!(!turn.text().contains(CANARY), "{path:?}");
    }
    agent.stop().await;
    outside.assert_untouched();
    for made in ["-evil", "x"] {
        assert!(!Path::new(&format!("{}{made}", rig.workspace.path().display())).exists());
    }
}

/// Reads, writes and reads again, and says what came of each.
fn script(path: &str) -> String {
    let line = |id: u32, method: &str, content: Option<&str>| {
        let mut params = json!({"sessionId": "$S", "path": path});
        if let Some(content) = content {
            params["content"] = content.into();
        }
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        format!("put {request}\nheard {id}\n")
    };
    let (read, write) = ("fs/read_text_file", "fs/write_text_file");
    [line(1, read, None), line(2, write, Some("written")), line(3, read, None)].concat()
}

/// `OSTLER_SWAPS` swaps, 500 where nothing is said.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sec_11_a_directory_that_is_swapped_for_a_link_while_files_are_served_leads_nowhere() {
    let count = std::env::var("OSTLER_SWAPS").ok().and_then(|text| text.parse().ok()).unwrap_or(500);
    let rig = Rig::new(&["script"]).mode(PermissionMode::AllowAll);
    let outside = Outside::new();
    let root = rig.workspace.path().to_owned();
    fs::create_dir(root.join("d")).unwrap();
    fs::write(root.join("d/f"), "inside").unwrap();
    symlink(outside.path(), root.join("s")).unwrap();
    let mut agent = rig.start().await;
    agent.prompt("hammer d/f").await;
    let swaps = AtomicUsize::new(0);
    let turn = std::thread::scope(|scope| {
        let (swaps, root) = (&swaps, &root);
        scope.spawn(move || {
            let (d, s) = (root.join("d"), root.join("s"));
            while swaps.load(Ordering::Relaxed) < count {
                renameat_with(CWD, &d, CWD, &s, RenameFlags::EXCHANGE).unwrap();
                swaps.fetch_add(1, Ordering::Relaxed);
                // Uneven pauses, so that a swap meets every step of a request.
                for _ in 0..swaps.load(Ordering::Relaxed) % 97 {
                    std::thread::yield_now();
                }
            }
            fs::write(root.join("done"), "").unwrap();
        });
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(agent.until_end()))
    });
    let said: Value = serde_json::from_str(&turn.text()).unwrap();
    println!("{count} swaps: {said}");
    assert_eq!(said["outside"], 0, "{said}");
    assert!(said["inside"].as_u64() > Some(0) && said["refused"].as_u64() > Some(0), "no race: {said}");
    agent.stop().await;
    outside.assert_untouched();
}

#[tokio::test]
async fn a_pipe_without_another_end_and_a_device_hold_nobody_up() {
    let rig = Rig::new(&["script"]).mode(PermissionMode::AllowAll);
    let outside = Outside::new();
    lay_traps(&rig, &outside);
    let mut agent = rig.start().await;
    // More than there are threads for files, if each one hung.
    let script: String = (1000..1560)
        .map(|id| {
            let path = ["fifo", "zero", "socket"][id % 3];
            let params = json!({"sessionId": "$S", "path": path, "content": "x"});
            let method = ["fs/read_text_file", "fs/write_text_file"][id % 2];
            format!("put {}\n", json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
        })
        .collect();
    let turn = agent.turn(&format!("{script}heard 1559\nwrite fine yes\nread fine")).await;
    assert!(turn.text().ends_with("writtenyes"), "{}", turn.text());
    agent.stop().await;
}

#[tokio::test]
async fn files_beyond_the_cap_are_neither_read_nor_written() {
    let rig = Rig::new(&["script"]).mode(PermissionMode::AllowAll);
    let cap = 4 << 20;
    fs::write(rig.path("most"), "x".repeat(cap)).unwrap();
    fs::write(rig.path("more"), "x".repeat(cap + 1)).unwrap();
    let mut agent = rig.start().await;
    assert_eq!(agent.turn("read most").await.text().len(), cap);
    assert_eq!(agent.turn("read more").await.text(), "refused -32602");
    assert_eq!(agent.turn(&format!("write new {}", "x".repeat(cap))).await.text(), "written");
    assert_eq!(agent.turn(&format!("write newer {}", "x".repeat(cap + 1))).await.text(), "refused -32602");
    assert!(rig.path("new").exists() && !rig.path("newer").exists());
    agent.stop().await;
}
