//! The one thread that starts agents, and looks after what they start.
//!
//! An agent asks the kernel to be killed when its parent ends, and by that the kernel means the thread that has started it: so it
//! is one thread that lives as long as the process. Between two starts it takes its looks, see [`tree`].

use std::io;
use std::sync::OnceLock;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::tree;

/// How far apart the looks are.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

type Job = Box<dyn FnOnce() + Send>;

/// Does the work on that thread. When nobody waits for its result any more, the result is dropped there.
///
/// # Errors
/// When there is no such thread.
pub(super) async fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    static THREAD: OnceLock<Sender<Job>> = OnceLock::new();
    let jobs = THREAD.get_or_init(|| {
        let (jobs, waiting) = mpsc::channel();
        // Without the thread the channel has no other end, which every job meets.
        let _ = thread::Builder::new().name("agents".to_owned()).spawn(move || work_for_ever(&waiting));
        jobs
    });
    let (done, result) = oneshot::channel();
    let job = Box::new(move || drop(done.send(work())));
    let gone = || io::Error::other("there is no thread that starts agents");
    jobs.send(job).map_err(|_| gone())?;
    result.await.map_err(|_| gone())
}

fn work_for_ever(jobs: &Receiver<Job>) {
    let mut looked = Instant::now();
    let mut is_anybody_there = false;
    loop {
        let job = match is_anybody_there {
            true => jobs.recv_timeout(LOOK_INTERVAL.saturating_sub(looked.elapsed())),
            false => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match job {
            Ok(job) => {
                job();
                is_anybody_there = true;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if looked.elapsed() >= LOOK_INTERVAL {
            is_anybody_there = tree::look_at_all();
            looked = Instant::now();
        }
    }
}
