//! A real MCP server from npm, `@modelcontextprotocol/server-filesystem`, which tests/agents installs, as tests/run does.

use super::*;

const NAME: &str = "mcp-filesystem";

/// With the server, which serves the workspace.
fn rig(lines: &str) -> Rig {
    let agents = std::env::var_os("OSTLER_AGENTS_DIR").map(PathBuf::from);
    let agents = agents.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("target/agents"));
    let program = agents.join(NAME).join("node_modules/.bin/mcp-server-filesystem");
    assert!(
        program.is_file(),
        "{} is not there. This test drives the real server: tests/agents {NAME} installs it, as tests/run does.",
        program.display()
    );
    Rig::new(&format!("[mcp.fs]\ncommand = [{program:?}, \"{{workspace}}\"]\n{lines}"))
}

async fn call(tools: &Toolbox, tool: &str, input: Value) -> Called {
    tools.call(&format!("mcp__fs__{tool}"), &input).await
}

/// A file that nobody ever writes: reading it takes for ever.
fn endless(rig: &Rig) -> String {
    let path = rig.path("endless");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    path.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn its_tools_are_listed_and_called() {
    let rig = rig("");
    let tools = rig.open().await;
    assert_eq!(tools.left_out(), [""; 0]);
    let kind = |name: &str| tools.find(name).map(|spec| spec.kind.as_str());
    assert_eq!(kind("mcp__fs__write_file"), Some("other"));
    assert_eq!(kind("mcp__fs__read_text_file"), Some("read"));
    let path = rig.path("made.txt").to_str().unwrap().to_owned();
    let written = call(&tools, "write_file", json!({"path": path, "content": "one\ntwo\n"})).await;
    assert_eq!(written.outcome, Outcome::Succeeded, "{}", written.content);
    assert_eq!(fs::read_to_string(&path).unwrap(), "one\ntwo\n");
    let read = call(&tools, "read_text_file", json!({"path": path, "head": 1})).await;
    assert_eq!((read.outcome, read.content.trim()), (Outcome::Succeeded, "one"));
    tools.close().await;
    assert!(rig.processes().is_empty());
}

#[tokio::test]
async fn a_path_that_the_server_denies_is_a_failed_call_in_its_words() {
    let rig = rig("");
    let tools = rig.open().await;
    let called = call(&tools, "read_text_file", json!({"path": "/etc/passwd"})).await;
    assert_eq!(called.outcome, Outcome::Failed, "{}", called.content);
    assert!(called.content.contains("Access denied"), "{}", called.content);
    let wrong = call(&tools, "read_text_file", json!({"file": 7})).await;
    assert_eq!(wrong.outcome, Outcome::Failed, "{}", wrong.content);
    assert!(wrong.content.contains("path"), "{}", wrong.content);
    tools.close().await;
}

#[tokio::test]
async fn a_call_that_takes_too_long_is_uncertain_and_the_next_one_is_answered() {
    let rig = rig("timeout_seconds = 2");
    let tools = rig.open().await;
    let called = call(&tools, "read_text_file", json!({"path": endless(&rig)})).await;
    assert_eq!(called.outcome, Outcome::Uncertain, "{}", called.content);
    assert!(called.content.contains("did not answer within 2 s"), "{}", called.content);
    let next = call(&tools, "list_directory", json!({"path": rig.workspace.path()})).await;
    assert_eq!(next.outcome, Outcome::Succeeded, "{}", next.content);
    assert!(next.content.contains("endless"), "{}", next.content);
    tools.close().await;
    assert!(rig.processes().is_empty());
}

#[tokio::test]
async fn killed_in_mid_call_it_is_an_uncertain_call_at_once_and_the_next_one_starts_it_anew() {
    let rig = rig("");
    let tools = Arc::new(rig.open().await);
    let before = rig.processes();
    assert_eq!(before.len(), 1);
    let path = endless(&rig);
    let reading = tokio::spawn({
        let tools = Arc::clone(&tools);
        async move { call(&tools, "read_text_file", json!({"path": path})).await }
    });
    // The other end of the pipe can be opened once the server has opened its own. It is held open: else the server would read an end.
    let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::NONBLOCK;
    let mut writer = None;
    eventually("it reads", || {
        writer = rustix::fs::open(rig.path("endless"), flags, rustix::fs::Mode::empty()).ok();
        writer.is_some()
    })
    .await;
    let begun = Instant::now();
    let pid = rustix::process::Pid::from_raw(before[0]).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let called = reading.await.unwrap();
    assert_eq!(called.outcome, Outcome::Uncertain, "{}", called.content);
    assert!(called.content.contains("was killed by signal 9 in mid-call"), "{}", called.content);
    assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    let next = call(&tools, "list_directory", json!({"path": rig.workspace.path()})).await;
    assert_eq!(next.outcome, Outcome::Succeeded, "{}", next.content);
    assert_eq!(rig.processes().len(), 1);
    tools.close().await;
    assert!(rig.processes().is_empty());
}
