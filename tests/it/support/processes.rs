//! What still runs, by what the kernel says.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::within;

/// Whether the process runs; one that is dead but not reaped does not. One whose first thread has ended runs on in the others.
pub fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let Some((_, rest)) = stat.rsplit_once(") ") else { return false };
    let threads = rest.split(' ').nth(17).and_then(|threads| threads.parse::<u32>().ok());
    !rest.starts_with(['Z', 'X']) || threads.is_some_and(|threads| threads > 1)
}

/// The processes that are marked as belonging to the agent of a session.
pub fn of_agent(session: &str) -> Vec<u32> {
    let mark = format!("OSTLER_AGENT={session}/");
    let marked = |pid: &u32| {
        let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        is_alive(*pid) && environ.split(|byte| *byte == 0).any(|entry| entry.starts_with(mark.as_bytes()))
    };
    all().filter(marked).collect()
}

/// kill -9 for the processes whose home is below a directory, those that are going anyway among them.
pub fn end_with_home_below(directory: &Path) {
    for pid in with_home_below(directory) {
        let _ = kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL);
    }
}

/// The same, and waits until they are gone. What outlives a killed service for a moment may still write.
pub async fn ended_with_home_below(directory: &Path) {
    eventually("nobody to be at home", || {
        end_with_home_below(directory);
        with_home_below(directory).is_empty()
    })
    .await;
}

fn with_home_below(directory: &Path) -> Vec<u32> {
    let home = format!("HOME={}/", directory.display());
    let is_below = |pid: &u32| {
        let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        is_alive(*pid) && environ.split(|byte| *byte == 0).any(|entry| entry.starts_with(home.as_bytes()))
    };
    all().filter(is_below).collect()
}

/// The processes whose parent it is.
pub fn children_of(parent: u32) -> Vec<u32> {
    let is_child = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let rest = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        rest.split(' ').nth(1).is_some_and(|pid| pid == parent.to_string())
    };
    all().filter(is_child).collect()
}

fn all() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// MiB of a process's resident memory, from which on the peak is counted anew.
pub fn start_of_growth(pid: u32) -> f64 {
    fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
    memory(pid, "VmRSS:")
}

/// MiB of a process's memory, by the kernel's name of the figure, such as `VmHWM:`.
pub fn memory(pid: u32, figure: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(figure)).unwrap();
    line.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1024.0
}

/// kill -9 for a process that is not a child of the test.
pub fn kill(pid: u32) {
    signal(pid, Signal::KILL);
}

pub fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

/// Waits until it holds: for what the system tells nobody about.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    within(what, async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}
