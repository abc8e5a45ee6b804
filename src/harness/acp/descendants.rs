//! What an agent has started, found in `/proc`: also what left its process group, or outlived its parent.
//!
//! Agents run their tools in sessions of their own, where a signal to the agent's group does not reach them, and a tool
//! whose parent has died belongs to nobody any more. Three marks find them: the process group, the line of parents, and a
//! variable in the environment that no other agent has.

use std::collections::{HashMap, HashSet};
use std::fs;

use rustix::process::{Pid, Signal, kill_process};

use crate::ids::SessionId;

/// The variable that marks an agent's processes; its value is new for each start.
pub(super) const TAG: &str = "OSTLER_AGENT";

/// A process, told from a later one with the same number by the time of its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Found {
    pid: i32,
    started: u64,
}

#[derive(Clone, Copy, Debug)]
struct Stat {
    parent: i32,
    group: i32,
    started: u64,
    zombie: bool,
}

/// All that still runs of the agent with this process id and tag, but not the agent itself.
pub(super) fn find(agent: Pid, tag: &str) -> Vec<Found> {
    let agent = agent.as_raw_nonzero().get();
    let mark = format!("{TAG}={tag}");
    let table = table();
    let marked =
        |pid: i32, stat: &Stat| stat.group == agent || is_marked(pid, |entry| entry == mark.as_bytes());
    let mut ours = pick(&table, marked);
    ours.insert(agent);
    with_children(&table, ours).into_iter().filter(|found| found.pid != agent).collect()
}

/// All that still runs of the agents of a session, whichever process of the service has started them: for when that one is
/// gone. This process is not among them, though an agent may have started it.
pub(super) fn find_left(session_id: &SessionId) -> HashSet<Found> {
    let mark = format!("{TAG}={session_id}/");
    let mut table = table();
    table.remove(&std::process::id().cast_signed());
    let marked = pick(&table, |pid, _| is_marked(pid, |entry| entry.starts_with(mark.as_bytes())));
    let groups: HashSet<i32> =
        marked.iter().filter_map(|pid| table.get(pid)).map(|stat| stat.group).collect();
    let ours = pick(&table, |pid, stat| marked.contains(&pid) || groups.contains(&stat.group));
    with_children(&table, ours).into_iter().collect()
}

/// Kills those that still run, and tells how many they were.
pub(super) fn kill(found: &HashSet<Found>) -> usize {
    let lives = |process: &&Found| {
        stat(process.pid).is_some_and(|stat| stat.started == process.started && !stat.zombie)
    };
    let pids: Vec<Pid> =
        found.iter().filter(lives).filter_map(|process| Pid::from_raw(process.pid)).collect();
    for pid in &pids {
        // It may have ended just now.
        let _ = kill_process(*pid, Signal::KILL);
    }
    pids.len()
}

// What runs, by process id.
fn table() -> HashMap<i32, Stat> {
    let stats = pids().into_iter().filter_map(|pid| stat(pid).map(|stat| (pid, stat)));
    stats.filter(|(_, stat)| !stat.zombie).collect()
}

fn pick(table: &HashMap<i32, Stat>, matches: impl Fn(i32, &Stat) -> bool) -> HashSet<i32> {
    table.iter().filter(|(pid, stat)| matches(**pid, stat)).map(|(pid, _)| *pid).collect()
}

// Children of children: as often round as there is something new.
fn with_children(table: &HashMap<i32, Stat>, mut ours: HashSet<i32>) -> Vec<Found> {
    loop {
        let before = ours.len();
        ours.extend(pick(table, |_, stat| ours.contains(&stat.parent)));
        if ours.len() == before {
            break;
        }
    }
    ours.into_iter().filter_map(|pid| Some(Found { pid, started: table.get(&pid)?.started })).collect()
}

fn pids() -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn stat(pid: i32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the name in brackets, which may hold anything.
    let fields: Vec<&str> = text[text.rfind(')')? + 1..].split_ascii_whitespace().collect();
    Some(Stat {
        zombie: matches!(*fields.first()?, "Z" | "X"),
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
    })
}

fn is_marked(pid: i32, is_mark: impl Fn(&[u8]) -> bool) -> bool {
    // Unreadable for processes of others, which are not ours then.
    fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(is_mark))
}

#[cfg(test)]
mod tests {
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
        assert_eq!(find_left(&SessionId::mint()), HashSet::new());
        let mut agent = std::process::Command::new("/bin/sleep");
        let session_id = SessionId::mint();
        let mut agent = agent.arg("600").env_clear().env(TAG, format!("{session_id}1/2.3")).spawn().unwrap();
        assert_eq!(find_left(&session_id), HashSet::new());
        agent.kill().unwrap();
        agent.wait().unwrap();
    }

    #[test]
    fn a_process_with_another_start_time_is_left_alone() {
        let me = std::process::id().cast_signed();
        assert_eq!(kill(&HashSet::from([Found { pid: me, started: 1 }])), 0);
    }
}
