//! The agent's process: its start, its exit, and its end together with everything that it has started.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::runtime::Handle;
use tokio::sync::{OnceCell, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::descendants::{self, Found};
use super::exec_agent::{self, ExecAgentArgs};
use super::stderr::Tail;
use super::tree::{self, Tree};
use super::{sandbox, spawner};
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
pub(in crate::harness) struct Launch {
    /// The service's own program.
    pub launcher: PathBuf,
    /// What it becomes, but for the parent, which is whoever starts it.
    pub agent: ExecAgentArgs,
    /// The whole environment.
    pub env: BTreeMap<OsString, OsString>,
    /// The directory to start in.
    pub cwd: PathBuf,
    /// The directories that the agent works in.
    pub directories: Vec<PathBuf>,
    /// The file that its last words on stderr go to, when it fails.
    pub last_words: PathBuf,
}

/// The two pipes that the protocol runs over.
pub(in crate::harness) struct Pipes {
    /// Towards the agent.
    pub stdin: ChildStdin,
    /// From the agent.
    pub stdout: ChildStdout,
}

/// A running agent. Dropping it kills the agent and all it started.
pub(in crate::harness) struct Process {
    tree: Arc<Tree>,
    exit: watch::Receiver<Option<Exit>>,
    tail: Tail,
    stderr: Mutex<Option<JoinHandle<()>>>,
    last_words: LastWords,
}

struct LastWords {
    path: PathBuf,
    // What was told of them.
    kept: OnceCell<String>,
}

/// How a process ended; empty when the system could not tell.
#[derive(Clone, Copy, Debug)]
pub(in crate::harness) struct Exit(Option<ExitStatus>);

impl Exit {
    // None where a signal has ended it.
    fn code(self) -> Option<i32> {
        self.0.and_then(|status| status.code())
    }

    /// Whether it is the end that a program has when all went well.
    pub(in crate::harness) fn is_success(self) -> bool {
        self.code() == Some(0)
    }

    /// In words that follow the command's name.
    pub(in crate::harness) fn words(self) -> String {
        let Self(Some(status)) = self else { return "is gone".to_owned() };
        match (status.code(), status.signal()) {
            (Some(code), _) => format!("exited with code {code}"),
            (None, Some(signal)) => format!("was killed by signal {signal}"),
            (None, None) => "is gone".to_owned(),
        }
    }
}

impl Process {
    /// Starts an agent in a session of its own. That it could not become the agent shows when it has exited, see [`Self::failure`].
    ///
    /// # Errors
    /// When the system cannot start anything.
    pub(in crate::harness) async fn spawn(launch: Launch) -> io::Result<(Self, Pipes)> {
        sandbox::tell(launch.agent.landlock);
        let runtime = Handle::current();
        spawner::run(move || {
            let _entered = runtime.enter();
            Self::spawn_here(launch)
        })
        .await?
    }

    fn spawn_here(launch: Launch) -> io::Result<(Self, Pipes)> {
        let agent = ExecAgentArgs { parent: std::process::id().cast_signed(), ..launch.agent };
        let mut command = Command::new(&launch.launcher);
        command
            .args(agent.to_argv())
            .env_clear()
            .envs(&launch.env)
            .current_dir(&launch.cwd)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let (mut child, tree) = tree::start(agent.tag, &launch.directories, || command.spawn())?;
        let parts = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = parts else {
            return Err(io::Error::other("the child came without its pipes"));
        };
        let tail = Tail::default();
        let drain = tokio::spawn(tail.clone().drain(stderr));
        let exit = reap(child, Arc::clone(&tree));
        let stderr = Mutex::new(Some(drain));
        let last_words = LastWords { path: launch.last_words, kept: OnceCell::new() };
        Ok((Self { tree, exit, tail, stderr, last_words }, Pipes { stdin, stdout }))
    }

    /// Waits for the agent's own exit; by then nothing of what it started runs any more.
    pub(in crate::harness) async fn exited(&self) -> Exit {
        let mut exit = self.exit.clone();
        match exit.wait_for(Option::is_some).await {
            Ok(exit) => exit.unwrap_or(Exit(None)),
            // The one who waits for the child is gone, as at the end of the runtime, and has killed it.
            Err(_) => Exit(None),
        }
    }

    /// Ends the agent: gently, by closing its stdin, then not.
    pub(in crate::harness) async fn stop(&self, close_stdin: impl FnOnce()) {
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
    pub(in crate::harness) async fn kill(&self) {
        if self.has_exited() {
            return;
        }
        self.tree.look().await;
        self.tree.kill_agent();
        if timeout(KILL_GRACE, self.exited()).await.is_err() {
            tracing::error!(agent = ?self.tree, "an agent survives SIGKILL");
        }
    }

    /// Kills the agent and all it started, without waiting for the end. Blocks for some milliseconds.
    pub(in crate::harness) fn kill_now(&self) {
        if !self.has_exited() {
            self.tree.kill_all();
        }
    }

    /// Keeps the last words on stderr in the session's state directory, for the operator, and gives the file. They may hold
    /// anything, secrets too, and so are no part of a log. Once, whoever asks for it.
    pub(in crate::harness) async fn keep_last_words(&self) -> &str {
        let kept = self.last_words.kept.get_or_init(async || {
            self.drain_stderr().await;
            let path = &self.last_words.path;
            // A new file: what the agent may have put in its place could lead elsewhere.
            let _ = tokio::fs::remove_file(path).await;
            let mut options = tokio::fs::OpenOptions::new();
            let opened = options.write(true).create_new(true).mode(0o600).open(path).await;
            let written = match opened {
                Ok(mut file) => {
                    let text = self.tail.text();
                    file.write_all(text.as_bytes()).await.and(file.flush().await)
                }
                Err(error) => Err(error),
            };
            match written {
                Ok(()) => path.display().to_string(),
                Err(error) => format!("not kept: {error}"),
            }
        });
        kept.await
    }

    /// What stood in the way of its launch, where that is how it ended.
    pub(in crate::harness) async fn launch_complaint(&self) -> Option<String> {
        let exit = (*self.exit.borrow())?;
        self.drain_stderr().await;
        exec_agent::complaint(exit.code(), &self.tail.text()).map(str::to_owned)
    }

    async fn drain_stderr(&self) {
        let drain = self.stderr.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(drain) = drain {
            // When somebody else still holds the pipe, what we have must do.
            let _ = timeout(STDERR_GRACE, drain).await;
        }
    }

    /// Why it ended, where it has done that by itself and before its first word. Read after [`Self::keep_last_words`].
    pub(in crate::harness) fn failure(&self) -> Option<String> {
        let exit = (*self.exit.borrow())?;
        let stderr = self.tail.text();
        match exec_agent::complaint(exit.code(), &stderr) {
            Some(complaint) => Some(format!("it could not be launched: {complaint}")),
            None => exit.code().map(|_| format!("it {}", exit.words())),
        }
    }

    /// Whether it has ended.
    pub(in crate::harness) fn has_exited(&self) -> bool {
        self.exit.borrow().is_some()
    }
}

/// Kills what the agents of a session, which has these directories to itself, have left running, and returns when nothing of it
/// is found any more.
pub(in crate::harness) async fn end_left(session_id: SessionId, directories: Vec<PathBuf>) {
    end_found(move || descendants::find_left(&session_id, &directories)).await;
}

/// Kills what agents have left running whose process of the service is gone, and who have their directories in these.
pub(in crate::harness) async fn end_orphans(directories: Vec<PathBuf>) {
    end_found(move || descendants::find_orphans(&directories)).await;
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
        tree.close();
        let _ = tell.send(Some(Exit(status)));
    });
    exit
}
