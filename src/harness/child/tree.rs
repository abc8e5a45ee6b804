//! An agent and all that it has started, for as long as the agent lives; and those that nobody but this process is left to care for.
//!
//! [`adopt_orphans`] makes the kernel give those to this process whose parent has died: nobody else would reap them, and each is
//! of the family of some agent. By which marks that is told, [`descendants`] says; where there are none, it belongs to one of the
//! agents that lived when it was first seen, and ends with the last of these.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, kill_process_group, pidfd_open, pidfd_send_signal,
    set_child_subreaper, waitpid,
};

use tokio::process::Child;

use super::descendants::{self, Found, Table};

static ADOPTS: AtomicBool = AtomicBool::new(false);
static LIVE: Mutex<Vec<Weak<Tree>>> = Mutex::new(Vec::new());
// To the agents that each may belong to, by their process ids.
static UNCLAIMED: LazyLock<Mutex<HashMap<Found, HashSet<i32>>>> = LazyLock::new(Mutex::default);

/// See the module.
#[derive(Debug)]
pub(super) struct Tree {
    pid: Pid,
    agent: Found,
    // By its handle alone it is certain that a signal reaches the agent and not a later process of that number.
    handle: OwnedFd,
    tag: String,
    directories: Vec<PathBuf>,
    // Found while the line of parents was still whole.
    seen: Mutex<HashSet<Found>>,
}

/// From here on, what has lost its parent and was started by an agent becomes a child of this process, and is reaped.
///
/// # Errors
/// When the kernel refuses.
pub fn adopt_orphans() -> io::Result<()> {
    set_child_subreaper(Some(getpid()))?;
    ADOPTS.store(true, Ordering::Relaxed);
    Ok(())
}

/// All processes and the agents among them, at one moment.
struct View {
    table: Table,
    live: Vec<Arc<Tree>>,
}

/// Starts a child, which becomes an agent that works in these directories.
///
/// # Errors
/// Those of the start, or when the child cannot be looked at.
pub(super) fn start(
    tag: String,
    directories: &[PathBuf],
    spawn: impl FnOnce() -> io::Result<Child>,
) -> io::Result<(Child, Arc<Tree>)> {
    // Nobody takes a view before the child is known as an agent: it would look like an orphan.
    let mut live = lock(&LIVE);
    let child = spawn()?;
    let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    let pid = pid.ok_or_else(|| io::Error::other("the child has no number"))?;
    let handle = pidfd_open(pid, PidfdFlags::empty())?;
    let agent = descendants::look_up(pid.as_raw_nonzero().get());
    let agent = agent.ok_or_else(|| io::Error::other("the child is not in /proc"))?;
    let directories = descendants::real_all(directories);
    let tree = Arc::new(Tree { pid, agent, handle, tag, directories, seen: Mutex::default() });
    live.push(Arc::downgrade(&tree));
    Ok((child, tree))
}

impl Tree {
    /// Remembers who belongs to the agent, while the line of parents is still whole.
    pub(super) async fn look(self: &Arc<Self>) {
        let tree = Arc::clone(self);
        // This fails only at the end of the runtime.
        let _ = tokio::task::spawn_blocking(move || {
            let view = View::take();
            tree.remember(&view.table, tree.find(&view));
        })
        .await;
    }

    /// Signals the agent's group. The group's number cannot go to somebody else while one of the group lives, and it does not
    /// come round again in the moment after the last one.
    pub(super) fn signal_group(&self, signal: Signal) {
        let _ = kill_process_group(self.pid, signal);
    }

    /// Kills the agent, also before it has a group of its own, and its group.
    pub(super) fn kill_agent(&self) {
        let _ = pidfd_send_signal(&self.handle, Signal::KILL);
        self.signal_group(Signal::KILL);
    }

    /// Kills what belongs to the agent, and the agent; `true` when nothing of it was found any more.
    pub(super) fn kill_all(&self) -> bool {
        let view = View::take();
        view.note_orphans();
        let mut found = self.find(&view);
        found.extend(self.unclaimed_but_by_it());
        self.remember(&view.table, found);
        self.kill_agent();
        descendants::kill(&*lock(&self.seen)) == 0
    }

    /// Ends its part in what nobody claims, when nothing else of it runs any more.
    pub(super) fn close(&self) {
        lock(&LIVE).retain(|tree| tree.upgrade().is_some_and(|tree| tree.agent != self.agent));
        let mut unclaimed = lock(&UNCLAIMED);
        for suspects in unclaimed.values_mut() {
            suspects.remove(&self.agent.pid);
        }
        kill_nobodys(&unclaimed);
    }

    fn find(&self, view: &View) -> HashSet<Found> {
        let adopted: HashSet<Found> = view.adopted().into_iter().collect();
        let is_lost = |found: Found| adopted.contains(&found) && self.is_at_home(found);
        let mut found = view.table.marked(&self.tag, is_lost);
        found.remove(&self.agent);
        found.extend(view.table.family(self.agent));
        found
    }

    // Whether an orphan without a tag is in a directory of this agent's.
    fn is_at_home(&self, found: Found) -> bool {
        descendants::is_in(found.pid, &self.directories) && descendants::tag_of(found.pid).is_none()
    }

    fn remember(&self, table: &Table, found: HashSet<Found>) {
        let mut seen = lock(&self.seen);
        seen.retain(|found| table.has(found));
        seen.extend(found);
    }

    fn unclaimed_but_by_it(&self) -> Vec<Found> {
        let unclaimed = lock(&UNCLAIMED);
        let is_its = |suspects: &HashSet<i32>| suspects.iter().all(|pid| *pid == self.agent.pid);
        let found = unclaimed.iter().filter(|(_, suspects)| is_its(suspects));
        found.map(|(found, _)| *found).collect()
    }
}

/// Takes a look at the families of all agents, and at those that this process has adopted; whether there was anybody. Those that had
/// ended count: what is reaped may leave others to this process, and what could not be reaped yet is looked at again.
pub(super) fn look_at_all() -> bool {
    let view = View::take();
    for tree in &view.live {
        tree.remember(&view.table, view.table.family(tree.agent));
    }
    let ended = view.reap_adopted();
    view.note_orphans();
    !view.live.is_empty() || !view.adopted().is_empty() || ended > 0
}

impl View {
    fn take() -> Self {
        let live = lock(&LIVE);
        Self { table: Table::read(), live: live.iter().filter_map(Weak::upgrade).collect() }
    }

    fn adopted(&self) -> Vec<Found> {
        if ADOPTS.load(Ordering::Relaxed) { self.table.adopted(&self.agents()) } else { Vec::new() }
    }

    fn agents(&self) -> HashSet<i32> {
        self.live.iter().map(|tree| tree.agent.pid).collect()
    }

    // Gives how many have ended.
    fn reap_adopted(&self) -> usize {
        if !ADOPTS.load(Ordering::Relaxed) {
            return 0;
        }
        let ended = self.table.adopted_zombies(&self.agents());
        for pid in &ended {
            // By its number: whoever waits for just any child takes those that others wait for.
            let _ = Pid::from_raw(*pid).map(|pid| waitpid(Some(pid), WaitOptions::NOHANG));
        }
        ended.len()
    }

    // Finds out whose the orphans are. Those that can be nobody's any more are killed.
    fn note_orphans(&self) {
        let mut unclaimed = lock(&UNCLAIMED);
        unclaimed.retain(|found, _| self.table.has(found));
        for found in self.adopted() {
            if self.live.iter().any(|tree| lock(&tree.seen).contains(&found)) {
                continue;
            }
            let suspects = match descendants::tag_of(found.pid) {
                Some(tag) => {
                    self.live.iter().filter(|tree| tree.tag == tag).map(|tree| tree.agent.pid).collect()
                }
                None => self.agents(),
            };
            unclaimed.entry(found).or_insert(suspects);
        }
        kill_nobodys(&unclaimed);
    }
}

fn kill_nobodys(unclaimed: &HashMap<Found, HashSet<i32>>) {
    descendants::kill(unclaimed.iter().filter(|(_, suspects)| suspects.is_empty()).map(|(found, _)| found));
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
