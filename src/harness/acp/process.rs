//! The agent's process: its start, its exit, and its end together with everything that it has started.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::descendants::{self, Found};
use super::stderr::Tail;
use crate::ids::SessionId;

/// How long an agent may take to end by itself once its stdin is closed.
const CLOSE_GRACE: Duration = Duration::from_secs(1);
/// How long it may take after SIGTERM.
const TERM_GRACE: Duration = Duration::from_secs(2);
/// How long the kernel may take after SIGKILL; a process that hangs in a device takes for ever.
const KILL_GRACE: Duration = Duration::from_secs(10);
/// How long to wait for the last words on stderr.
const STDERR_GRACE: Duration = Duration::from_millis(200);
/// Processes may fork while they are looked for, and take a moment to die: so often, and after such a pause, we look again.
const KILL_ROUNDS: usize = 50;
const KILL_PAUSE: Duration = Duration::from_millis(5);

/// What to start, and in which surroundings.
pub(super) struct Launch {
    /// Absolute.
    pub program: PathBuf,
    /// The rest of argv.
    pub args: Vec<String>,
    /// The whole environment.
    pub env: BTreeMap<OsString, OsString>,
    /// The directory to start in.
    pub cwd: PathBuf,
    /// The value of [`descendants::TAG`] in the environment.
    pub tag: String,
    /// The file that its last words on stderr go to, when it fails.
    pub last_words: PathBuf,
}

/// The two pipes that the protocol runs over.
pub(super) struct Pipes {
    /// Towards the agent.
    pub stdin: ChildStdin,
    /// From the agent.
    pub stdout: ChildStdout,
}

/// A running agent. Dropping it kills the agent and all it started.
pub(super) struct Process {
    pid: Pid,
    tree: Arc<Tree>,
    exit: watch::Receiver<Option<Exit>>,
    tail: Tail,
    stderr: Mutex<Option<JoinHandle<()>>>,
    last_words: PathBuf,
}

/// How a process ended; empty when the system could not tell.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exit(Option<ExitStatus>);

// The agent's process group and what has left it.
struct Tree {
    pid: Pid,
    tag: String,
    // Found while the line of parents was still whole.
    seen: Mutex<HashSet<Found>>,
}

impl Exit {
    /// In words that follow the command's name.
    pub(super) fn words(self) -> String {
        let Self(Some(status)) = self else { return "is gone".to_owned() };
        match (status.code(), status.signal()) {
            (Some(code), _) => format!("exited with code {code}"),
            (None, Some(signal)) => format!("was killed by signal {signal}"),
            (None, None) => "is gone".to_owned(),
        }
    }
}

impl Process {
    /// Starts an agent in a process group of its own.
    ///
    /// # Errors
    /// When the system cannot start it.
    pub(super) fn spawn(launch: Launch) -> io::Result<(Self, Pipes)> {
        let mut child = Command::new(&launch.program)
            .args(&launch.args)
            .env_clear()
            .envs(&launch.env)
            .current_dir(&launch.cwd)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let parts = (child.stdin.take(), child.stdout.take(), child.stderr.take(), pid);
        let (Some(stdin), Some(stdout), Some(stderr), Some(pid)) = parts else {
            return Err(io::Error::other("the child came without its pipes"));
        };
        let tail = Tail::default();
        let drain = tokio::spawn(tail.clone().drain(stderr));
        let tree = Arc::new(Tree { pid, tag: launch.tag, seen: Mutex::default() });
        let exit = reap(child, Arc::clone(&tree));
        let (stderr, last_words) = (Mutex::new(Some(drain)), launch.last_words);
        let process = Self { pid, tree, exit, tail, stderr, last_words };
        Ok((process, Pipes { stdin, stdout }))
    }

    /// Waits for the agent's own exit; by then nothing of what it started runs any more.
    pub(super) async fn exited(&self) -> Exit {
        let mut exit = self.exit.clone();
        match exit.wait_for(Option::is_some).await {
            Ok(exit) => exit.unwrap_or(Exit(None)),
            // The one who waits for the child is gone, as at the end of the runtime, and has killed it.
            Err(_) => Exit(None),
        }
    }

    /// Ends the agent: gently, by closing its stdin, then not.
    pub(super) async fn stop(&self, close_stdin: impl FnOnce()) {
        if self.has_exited() {
            return;
        }
        // Before: an agent that goes at once leaves children that nothing but their parent tells from others.
        self.tree.look().await;
        close_stdin();
        if timeout(CLOSE_GRACE, self.exited()).await.is_ok() {
            return;
        }
        self.tree.look().await;
        self.tree.signal_group(Signal::TERM);
        if timeout(TERM_GRACE, self.exited()).await.is_ok() {
            return;
        }
        self.kill().await;
    }

    /// Kills the agent and all it started, and returns when the agent is reaped.
    pub(super) async fn kill(&self) {
        if self.has_exited() {
            return;
        }
        self.tree.look().await;
        self.tree.signal_group(Signal::KILL);
        if timeout(KILL_GRACE, self.exited()).await.is_err() {
            tracing::error!(pid = self.pid.as_raw_nonzero().get(), "an agent survives SIGKILL");
        }
    }

    /// Kills the agent and all it started, without waiting for the end. Blocks for some milliseconds.
    pub(super) fn kill_now(&self) {
        if !self.has_exited() {
            self.tree.kill_all();
        }
    }

    /// Keeps the last words on stderr in the session's state directory, for the operator, and gives the file. They may hold
    /// anything, secrets too, and so are no part of a log.
    pub(super) async fn keep_last_words(&self) -> String {
        let drain = self.stderr.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(drain) = drain {
            // When somebody else still holds the pipe, what we have must do.
            let _ = timeout(STDERR_GRACE, drain).await;
        }
        let mut options = tokio::fs::OpenOptions::new();
        let opened = options.write(true).create(true).truncate(true).mode(0o600).open(&self.last_words).await;
        let written = match opened {
            Ok(mut file) => {
                let text = self.tail.text();
                file.write_all(text.as_bytes()).await.and(file.flush().await)
            }
            Err(error) => Err(error),
        };
        match written {
            Ok(()) => self.last_words.display().to_string(),
            Err(error) => format!("not kept: {error}"),
        }
    }

    fn has_exited(&self) -> bool {
        self.exit.borrow().is_some()
    }
}

/// Kills what the agents of a session have left running, and returns when nothing of it is found any more.
pub(super) async fn end_left(session_id: SessionId) {
    end_found(move || descendants::find_left(&session_id)).await;
}

/// Kills what agents with their home in that directory have left running, and whose process of the service is gone.
pub(super) async fn end_orphans(homes: PathBuf) {
    end_found(move || descendants::find_orphans(&homes)).await;
}

async fn end_found(find: impl Fn() -> HashSet<Found> + Clone + Send + 'static) {
    for round in 0..KILL_ROUNDS {
        let find = find.clone();
        let left = tokio::task::spawn_blocking(move || {
            let left = find();
            descendants::kill(&left);
            left.len()
        })
        .await;
        match left {
            Ok(0) => return,
            Ok(left) if round == 0 => {
                tracing::warn!(left, "processes of agents had outlived their service and were killed")
            }
            Ok(_) => {}
            // This fails only at the end of the runtime.
            Err(_) => return,
        }
        tokio::time::sleep(KILL_PAUSE).await;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill_now();
    }
}

// The child is waited for in one place, from its start on. What it leaves behind is killed before anyone hears of its
// exit: a pipe that a left-over holds open would otherwise look like an agent that still speaks.
fn reap(mut child: Child, tree: Arc<Tree>) -> watch::Receiver<Option<Exit>> {
    let (tell, exit) = watch::channel(None);
    tokio::spawn(async move {
        let status = child.wait().await.ok();
        for _ in 0..KILL_ROUNDS {
            let tree = Arc::clone(&tree);
            // This fails only at the end of the runtime.
            if tokio::task::spawn_blocking(move || tree.kill_all()).await.unwrap_or(true) {
                break;
            }
            tokio::time::sleep(KILL_PAUSE).await;
        }
        let _ = tell.send(Some(Exit(status)));
    });
    exit
}

impl Tree {
    // Remembers who belongs to the agent, while the line of parents is still whole.
    async fn look(self: &Arc<Self>) {
        let tree = Arc::clone(self);
        // This fails only at the end of the runtime.
        let _ = tokio::task::spawn_blocking(move || {
            let found = descendants::find(tree.pid, &tree.tag);
            tree.remember(found);
        })
        .await;
    }

    // The group's number cannot go to somebody else while one of the group lives, and it does not come round again
    // in the moment after the last one.
    fn signal_group(&self, signal: Signal) {
        let _ = kill_process_group(self.pid, signal);
    }

    // Kills what belongs to the agent, and the agent; `true` when nothing of it was found any more.
    fn kill_all(&self) -> bool {
        self.remember(descendants::find(self.pid, &self.tag));
        self.signal_group(Signal::KILL);
        descendants::kill(&self.seen.lock().unwrap_or_else(PoisonError::into_inner)) == 0
    }

    fn remember(&self, found: Vec<Found>) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).extend(found);
    }
}
