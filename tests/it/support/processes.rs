//! What still runs, by what the kernel says.

use std::fs;
use std::time::Duration;

use super::within;

/// Whether the process runs; one that is dead but not reaped does not.
pub fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// The processes that are marked as belonging to the agent of a session.
pub fn of_agent(session: &str) -> Vec<u32> {
    let mark = format!("OSTLER_AGENT={session}/");
    let marked = |pid: &u32| {
        let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        is_alive(*pid) && environ.split(|byte| *byte == 0).any(|entry| entry.starts_with(mark.as_bytes()))
    };
    let pids = fs::read_dir("/proc").unwrap().flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(marked).collect()
}

/// kill -9 for a process that is not a child of the test.
pub fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
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
