//! The tools with real child processes, started by this crate's program as the service starts them.

mod http;
mod real;
mod shell;
mod stdio;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::domain::approval::PermissionMode;
use crate::domain::policy::DeniedTools;
use crate::harness::Fence;
use crate::harness::agent::config::AgentConfig;
use crate::ids::SessionId;

/// Nothing takes this long unless it hangs.
const DEADLINE: Duration = Duration::from_secs(20);
/// A second, and what a machine adds that has other things to do. A call's own time is a minute.
const AT_ONCE: Duration = Duration::from_secs(3);
/// The fake server.
const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake_mcp/server.py");

/// A session's places, and what the operator says of its tools.
struct Rig {
    workspace: TempDir,
    state: TempDir,
    session_id: SessionId,
    config: AgentConfig,
    session_mcp: BTreeMap<String, McpServerConfig>,
    fence: Fence,
    private: Vec<PathBuf>,
}

impl Rig {
    fn new(config: &str) -> Self {
        let config: AgentConfig = toml::from_str(config).unwrap();
        check(&config.tools, &config.mcp).unwrap();
        Self {
            workspace: tempfile::tempdir().unwrap(),
            state: tempfile::tempdir().unwrap(),
            session_id: SessionId::mint(),
            config,
            session_mcp: BTreeMap::new(),
            fence: Fence::open(),
            private: Vec::new(),
        }
    }

    /// With the fake server as a child process.
    fn with_fake(options: &[&str], lines: &str) -> Self {
        let command: Vec<&str> = ["python3", SERVER].into_iter().chain(options.iter().copied()).collect();
        let mut rig = Self::new(&format!(
            "[tools]\nresult_max_bytes = 4096\n[mcp.fake]\ncommand = {command:?}\n{lines}"
        ));
        let ledger = rig.ledger_path().to_str().unwrap().to_owned();
        rig.config.mcp.get_mut("fake").unwrap().env.insert("FAKE_MCP_LEDGER".to_owned(), ledger);
        rig
    }

    async fn try_open(&self) -> Result<Toolbox, Failure> {
        let options = StartOptions {
            session_id: self.session_id.clone(),
            workspace: self.workspace.path().to_owned(),
            state_dir: self.state.path().to_owned(),
            instructions: None,
            permission_mode: PermissionMode::Ask,
            denied_tools: DeniedTools::default(),
            settings: json!({}),
            resume: None,
            open_turn: None,
            fence: self.fence.clone(),
        };
        let plan = ToolPlan {
            tools: &self.config.tools,
            mcp: &self.config.mcp,
            session_mcp: &self.session_mcp,
            launcher: &Launcher::new(program(), self.private.clone()),
            options: &options,
            clients: &Clients::fresh(),
        };
        Toolbox::open(plan).await
    }

    async fn open(&self) -> Toolbox {
        self.try_open().await.unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.workspace.path().join(name)
    }

    fn ledger_path(&self) -> PathBuf {
        self.path("ledger.jsonl")
    }

    /// What the fake server has noted under this key.
    fn ledger(&self, key: &str) -> Vec<Value> {
        noted(&self.ledger_path(), key)
    }

    /// The processes that carry the session's mark.
    fn processes(&self) -> Vec<i32> {
        let mark = format!("OSTLER_AGENT={}/", self.session_id);
        let pids = fs::read_dir("/proc").unwrap().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let is_ours = |pid: &i32| {
            let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            is_alive(*pid) && environ.split(|byte| *byte == 0).any(|entry| entry.starts_with(mark.as_bytes()))
        };
        pids.filter(is_ours).collect()
    }
}

/// This crate's program, which cargo builds with the tests.
fn program() -> PathBuf {
    let program = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().join("ostler");
    assert!(program.is_file(), "{} is not there: cargo build", program.display());
    program
}

/// A variable of our own that nobody below gets unasked, and its value.
fn own_variable() -> (String, String) {
    const GIVEN: [&str; 9] =
        ["PATH", "LANG", "LC_ALL", "TZ", "TERM", "HOME", "TMPDIR", "PWD", "OSTLER_AGENT"];
    let all = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let mut fit = all.filter(|(name, value)| {
        !GIVEN.contains(&name.as_str())
            && value.len() > 3
            && value.bytes().all(|byte| byte.is_ascii_graphic())
    });
    fit.next().expect("a test has an environment")
}

fn noted(ledger: &Path, key: &str) -> Vec<Value> {
    let text = fs::read_to_string(ledger).unwrap_or_default();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter_map(|mut line| Some(line.get_mut(key)?.take())).collect()
}

fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Waits until it holds: for what the system tells nobody about.
async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < DEADLINE, "{what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn said(called: &Called) -> (Outcome, &str) {
    (called.outcome, called.content.as_str())
}

#[tokio::test]
async fn a_tool_that_is_not_there_is_a_failed_call() {
    let rig = Rig::new("");
    let tools = rig.open().await;
    let names: Vec<_> = tools.specs().iter().map(|spec| spec.name.as_str()).collect();
    assert_eq!(names, ["read_file", "write_file", "list_files"]);
    for name in ["shell", "mcp__fake__echo", "", "read_file "] {
        let called = tools.call(name, &json!({})).await;
        assert_eq!(called.outcome, Outcome::Failed, "{name}");
        assert!(tools.find(name).is_none());
    }
    fs::write(rig.path("a"), "here").unwrap();
    assert_eq!(said(&tools.call("read_file", &json!({"path": "a"})).await), (Outcome::Succeeded, "here"));
}

#[tokio::test]
async fn what_the_operator_turns_off_is_not_there() {
    let tools = Rig::new("[tools]\nfiles = false\nshell = \"ask\"").open().await;
    let all: Vec<_> = tools.specs().iter().map(|spec| (spec.name.as_str(), spec.asks)).collect();
    assert_eq!(all, [("shell", true)]);
}
