//! What an agent has started, found in `/proc`: also what left its process group, or outlived its parent.
//!
//! Agents run their tools in sessions of their own, where a signal to the agent's group does not reach them, and a tool
//! whose parent has died belongs to nobody any more. Three marks find them: the process group, the line of parents, and a
//! variable in the environment that no other agent has.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;

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
    find_all(table(), |pid| is_marked(pid, |entry| entry.starts_with(mark.as_bytes())))
}

/// All that still runs of agents that have their home in that directory, and whose process of the service does not run any more.
pub(super) fn find_orphans(homes: &Path) -> HashSet<Found> {
    let table = table();
    let runs: HashSet<String> = table.iter().map(|(pid, stat)| name(*pid, stat)).collect();
    let prefix = format!("{TAG}=");
    let is_orphan = |entry: &[u8]| {
        let tag = std::str::from_utf8(entry).ok().and_then(|entry| entry.strip_prefix(&prefix));
        let service = tag.and_then(|tag| tag.split_once('/')?.1.split_once('.')).map(|(service, _)| service);
        service.is_some_and(|service| !runs.contains(service))
    };
    let home = format!("HOME={}/", homes.display());
    let is_of_here = |pid| is_marked(pid, |entry| entry.starts_with(home.as_bytes()));
    find_all(table, |pid| is_marked(pid, is_orphan) && is_of_here(pid))
}

/// This process, by a name that no other will have while the machine runs.
pub(super) fn this_process() -> String {
    let pid = std::process::id().cast_signed();
    stat(pid).map_or_else(|| pid.to_string(), |stat| name(pid, &stat))
}

fn name(pid: i32, stat: &Stat) -> String {
    format!("{pid}-{}", stat.started)
}

/// Those, their groups and their children, but never this process, and nobody for being in its group alone.
fn find_all(mut table: HashMap<i32, Stat>, is_one: impl Fn(i32) -> bool) -> HashSet<Found> {
    let own = table.remove(&std::process::id().cast_signed());
    let marked = pick(&table, |pid, _| is_one(pid));
    let mut groups: HashSet<i32> =
        marked.iter().filter_map(|pid| table.get(pid)).map(|stat| stat.group).collect();
    if let Some(own) = own {
        groups.remove(&own.group);
    }
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
        assert_eq!(find_left(&SessionId::mint()), HashSet::new());
        let mut agent = std::process::Command::new("/bin/sleep");
        let session_id = SessionId::mint();
        let mut agent = agent.arg("600").env_clear().env(TAG, format!("{session_id}1/2.3")).spawn().unwrap();
        assert_eq!(find_left(&session_id), HashSet::new());
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
        let found: HashSet<i32> = find_orphans(Path::new("/here")).iter().map(|found| found.pid).collect();
        let expected = agents[0].id().cast_signed();
        for agent in &mut agents {
            agent.kill().unwrap();
            agent.wait().unwrap();
        }
        assert_eq!(found, HashSet::from([expected]));
    }

    #[test]
    fn a_process_with_another_start_time_is_left_alone() {
        let me = std::process::id().cast_signed();
        assert_eq!(kill(&HashSet::from([Found { pid: me, started: 1 }])), 0);
    }
}
