//! What an agent has started, found in `/proc`: also what left its process group, or outlived its parent.
//!
//! Agents run their tools in sessions of their own, where a signal to the agent's group does not reach them, and a tool
//! whose parent has died belongs to nobody any more. These marks find them:
//!
//! - the line of parents, and the session: an agent begins one, so that whoever is in it, or in one begun by somebody of its
//!   family, is of its family;
//! - a variable in the environment that no other agent has;
//! - for those that have lost their parent, and cleared their environment before, the directory that they are in.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};

use crate::ids::SessionId;

/// The variable that marks an agent's processes; its value is new for each start.
pub(super) const TAG: &str = "OSTLER_AGENT";

/// A process, told from a later one with the same number by the time of its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Found {
    pub(super) pid: i32,
    started: u64,
}

/// All processes of the machine at one moment, this one aside.
#[derive(Debug)]
pub(super) struct Table {
    me: i32,
    my_session: i32,
    running: HashMap<i32, Stat>,
    zombies: HashMap<i32, Stat>,
}

#[derive(Clone, Copy, Debug)]
struct Stat {
    parent: i32,
    session: i32,
    has_terminal: bool,
    started: u64,
    zombie: bool,
}

impl Table {
    pub(super) fn read() -> Self {
        let me = std::process::id().cast_signed();
        let stats = pids().into_iter().filter_map(|pid| stat(pid).map(|stat| (pid, stat)));
        let (zombies, mut running): (HashMap<_, _>, HashMap<_, _>) = stats.partition(|(_, stat)| stat.zombie);
        let my_session = running.remove(&me).map_or(0, |stat| stat.session);
        Self { me, my_session, running, zombies }
    }

    /// Whether it still runs.
    pub(super) fn has(&self, found: &Found) -> bool {
        self.running.get(&found.pid).is_some_and(|stat| stat.started == found.started)
    }

    /// The agent's family, as far as the line of parents and sessions goes, without the agent.
    pub(super) fn family(&self, agent: Found) -> HashSet<Found> {
        let mut ours = self.pick(|_, stat| stat.session == agent.pid);
        ours.extend(self.has(&agent).then_some(agent.pid));
        self.with_families(ours).into_iter().filter(|found| found.pid != agent.pid).collect()
    }

    /// Everybody who carries the tag, or is picked, with their families.
    pub(super) fn marked(&self, tag: &str, is_picked: impl Fn(Found) -> bool) -> HashSet<Found> {
        let is_ours = |pid: i32, stat: &Stat| {
            is_picked(Found { pid, started: stat.started }) || tag_of(pid).is_some_and(|found| found == tag)
        };
        self.with_families(self.pick(is_ours))
    }

    /// The children that this process did not start itself: they were left by somebody whom it has started. What it starts is of
    /// its own session, and an agent, which is not, must be told by its number.
    pub(super) fn adopted(&self, agents: &HashSet<i32>) -> Vec<Found> {
        let adopted = self.running.iter().filter(|(pid, stat)| self.is_adopted(**pid, stat, agents));
        adopted.map(|(pid, stat)| Found { pid: *pid, started: stat.started }).collect()
    }

    /// Those among them that have ended, and wait to be reaped.
    pub(super) fn adopted_zombies(&self, agents: &HashSet<i32>) -> Vec<i32> {
        let dead = self.zombies.iter().filter(|(pid, stat)| self.is_adopted(**pid, stat, agents));
        dead.map(|(pid, _)| *pid).collect()
    }

    fn is_adopted(&self, pid: i32, stat: &Stat, agents: &HashSet<i32>) -> bool {
        stat.parent == self.me && stat.session != self.my_session && !agents.contains(&pid)
    }

    fn pick(&self, matches: impl Fn(i32, &Stat) -> bool) -> HashSet<i32> {
        self.running.iter().filter(|(pid, stat)| matches(**pid, stat)).map(|(pid, _)| *pid).collect()
    }

    // Children of children, and whoever shares a session with one: as often round as there is something new. Never for being in
    // this process's own session: nobody of an agent's family is.
    fn with_families(&self, mut ours: HashSet<i32>) -> HashSet<Found> {
        loop {
            let before = ours.len();
            let mut sessions: HashSet<i32> =
                ours.iter().filter_map(|pid| self.running.get(pid)).map(|stat| stat.session).collect();
            sessions.remove(&self.my_session);
            let joins = |_, stat: &Stat| ours.contains(&stat.parent) || sessions.contains(&stat.session);
            let joined = self.pick(joins);
            ours.extend(joined);
            if ours.len() == before {
                break;
            }
        }
        let found = |pid: i32| Some(Found { pid, started: self.running.get(&pid)?.started });
        ours.into_iter().filter_map(found).collect()
    }

    // Those of nobody's family in one of these directories, whose service is gone: what it had adopted went to one of the
    // processes above, which are above this process as well. A person who looks around in there has a terminal.
    fn lost(&self, directories: &[PathBuf]) -> HashSet<i32> {
        let (directories, above) = (real_all(directories), self.above());
        let own_group = control_group("self");
        self.pick(|pid, stat| {
            above.contains(&stat.parent)
                && !stat.has_terminal
                && stat.session != self.my_session
                && is_in(pid, &directories)
                && tag_of(pid).is_none()
                && control_group(&pid.to_string()) == own_group
        })
    }

    fn above(&self) -> HashSet<i32> {
        let mut above = HashSet::from([1]);
        let mut next = stat(self.me).map(|stat| stat.parent);
        while let Some(pid) = next.filter(|pid| above.insert(*pid)) {
            next = self.running.get(&pid).map(|stat| stat.parent);
        }
        above
    }
}

/// All that still runs of the agents of a session, whichever process of the service has started them: for when that one is
/// gone. The directories are those that only this session uses. This process is not among them, though an agent may have started it.
pub(super) fn find_left(session_id: &SessionId, directories: &[PathBuf]) -> HashSet<Found> {
    let table = Table::read();
    let prefix = format!("{session_id}/");
    let mut left = table.pick(|pid, _| tag_of(pid).is_some_and(|tag| tag.starts_with(&prefix)));
    left.extend(table.lost(directories));
    table.with_families(left)
}

/// All that still runs of agents that have their home in one of these directories, and whose process of the service does not run
/// any more. Each session has a directory of its own in each of them.
pub(super) fn find_orphans(directories: &[PathBuf]) -> HashSet<Found> {
    let table = Table::read();
    let mut runs: HashSet<String> = table.running.iter().map(|(pid, stat)| name(*pid, stat)).collect();
    runs.insert(this_process());
    let is_orphan = |tag: String| {
        let service =
            tag.split_once('/').and_then(|(_, rest)| rest.split_once('.')).map(|(service, _)| service);
        service.is_some_and(|service| !runs.contains(service))
    };
    let homes: Vec<String> = directories.iter().map(|home| format!("HOME={}/", home.display())).collect();
    let is_of_here =
        |pid| has_variable(pid, |entry| homes.iter().any(|home| entry.starts_with(home.as_bytes())));
    let mut orphans = table.pick(|pid, _| tag_of(pid).is_some_and(is_orphan) && is_of_here(pid));
    orphans.extend(table.lost(directories));
    table.with_families(orphans)
}

/// This process, by a name that no other will have while the machine runs.
pub(super) fn this_process() -> String {
    let pid = std::process::id().cast_signed();
    stat(pid).map_or_else(|| pid.to_string(), |stat| name(pid, &stat))
}

/// A process that runs.
pub(super) fn look_up(pid: i32) -> Option<Found> {
    stat(pid).map(|stat| Found { pid, started: stat.started })
}

fn name(pid: i32, stat: &Stat) -> String {
    format!("{pid}-{}", stat.started)
}

/// Kills those that still run, and tells how many they were.
pub(super) fn kill<'a>(found: impl IntoIterator<Item = &'a Found>) -> usize {
    let lives = |process: &&Found| {
        stat(process.pid).is_some_and(|stat| stat.started == process.started && !stat.zombie)
    };
    let pids: Vec<Pid> =
        found.into_iter().filter(lives).filter_map(|process| Pid::from_raw(process.pid)).collect();
    for pid in &pids {
        // It may have ended just now.
        let _ = kill_process(*pid, Signal::KILL);
    }
    pids.len()
}

/// The tag in the environment of a process. Unreadable for processes of others, which are not ours then.
pub(super) fn tag_of(pid: i32) -> Option<String> {
    let mut tag = None;
    has_variable(pid, |entry| {
        let value = entry.strip_prefix(TAG.as_bytes()).and_then(|rest| rest.strip_prefix(b"="));
        tag = value.map(|value| String::from_utf8_lossy(value).into_owned());
        tag.is_some()
    });
    tag
}

/// Whether a process has its directory, or its root, in one of these.
pub(super) fn is_in(pid: i32, directories: &[PathBuf]) -> bool {
    let links = ["cwd", "root"].map(|link| fs::read_link(format!("/proc/{pid}/{link}")));
    let is_one = |place: &PathBuf| directories.iter().any(|directory| place.starts_with(directory));
    links.iter().flatten().any(is_one)
}

/// The directories as the kernel names them.
pub(super) fn real_all(directories: &[PathBuf]) -> Vec<PathBuf> {
    directories.iter().filter_map(|directory| fs::canonicalize(directory).ok()).collect()
}

fn control_group(pid: &str) -> Option<String> {
    fs::read_to_string(Path::new("/proc").join(pid).join("cgroup")).ok()
}

fn pids() -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn stat(pid: i32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the name in brackets, which may hold anything.
    let fields: Vec<&str> = text[text.rfind(')')? + 1..].split_ascii_whitespace().collect();
    let threads: u64 = fields.get(17)?.parse().ok()?;
    Some(Stat {
        // One whose first thread has ended looks like it, and runs on in the others.
        zombie: matches!(*fields.first()?, "Z" | "X") && threads <= 1,
        parent: fields.get(1)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        has_terminal: *fields.get(4)? != "0",
        started: fields.get(19)?.parse().ok()?,
    })
}

fn has_variable(pid: i32, is_one: impl FnMut(&[u8]) -> bool) -> bool {
    fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environ| environ.split(|byte| *byte == 0).any(is_one))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;

    use super::*;

    #[test]
    fn our_own_process_is_read_from_proc() {
        let me = std::process::id().cast_signed();
        let mine = stat(me).unwrap();
        assert!(mine.started > 0 && !mine.zombie);
        assert!(pids().contains(&me));
        assert!(stat(-1).is_none());
    }

    #[test]
    fn nothing_is_left_of_a_session_that_never_ran_and_the_mark_is_the_whole_id() {
        assert_eq!(find_left(&SessionId::mint(), &[]), HashSet::new());
        let mut agent = std::process::Command::new("/bin/sleep");
        let session_id = SessionId::mint();
        let mut agent = agent.arg("600").env_clear().env(TAG, format!("{session_id}1/2.3")).spawn().unwrap();
        assert_eq!(find_left(&session_id, &[]), HashSet::new());
        agent.kill().unwrap();
        agent.wait().unwrap();
    }

    #[test]
    fn f29_an_agent_is_an_orphan_when_its_service_does_not_run_and_its_home_is_here() {
        let agent = |home: &str, service: &str| {
            let tag = format!("{}/{service}.1", SessionId::mint());
            let mut agent = std::process::Command::new("/bin/sleep");
            agent.arg("600").env_clear().env(TAG, tag).env("HOME", home).process_group(0).spawn().unwrap()
        };
        // A process number that was never this one's.
        let gone = format!("{}-1", std::process::id());
        let mut agents = [
            agent("/here/ses_1", &gone),
            agent("/here/ses_2", &this_process()),
            agent("/elsewhere/ses_3", &gone),
        ];
        let found: HashSet<i32> = find_orphans(&["/here".into()]).iter().map(|found| found.pid).collect();
        let expected = agents[0].id().cast_signed();
        for agent in &mut agents {
            agent.kill().unwrap();
            agent.wait().unwrap();
        }
        assert_eq!(found, HashSet::from([expected]));
    }

    #[test]
    fn a_process_whose_first_thread_has_ended_runs_on_and_is_killed() {
        let script = "import ctypes, platform, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).syscall({'aarch64': 93}.get(platform.machine(), 60), 0)";
        let mut child = std::process::Command::new("python3").args(["-c", script]).spawn().unwrap();
        let pid = child.id().cast_signed();
        let state_is = |letter: &str| {
            let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            text.rsplit_once(") ").unwrap().1.starts_with(letter)
        };
        let until = |holds: &dyn Fn() -> bool| {
            let begun = std::time::Instant::now();
            while !holds() {
                assert!(begun.elapsed().as_secs() < 30, "it does not come about");
                std::thread::yield_now();
            }
        };
        until(&|| state_is("Z"));
        let half = stat(pid).unwrap();
        assert!(!half.zombie);
        let found = Found { pid, started: half.started };
        assert!(Table::read().has(&found));
        assert_eq!(kill([&found]), 1);
        until(&|| stat(pid).is_some_and(|stat| stat.zombie));
        assert_eq!(kill([&found]), 0);
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn a_process_with_another_start_time_is_left_alone() {
        let me = std::process::id().cast_signed();
        assert_eq!(kill(&HashSet::from([Found { pid: me, started: 1 }])), 0);
    }
}
