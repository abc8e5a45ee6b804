//! MCP servers, through the service: a real one from npm, `@modelcontextprotocol/server-filesystem`, which tests/agents installs, as
//! tests/run does; and one of a session's own.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::*;
use crate::support::processes::{children_of, end_with_home_below, eventually, is_alive, kill, of_agent};
use crate::support::server::Server;

const NAME: &str = "mcp-filesystem";

fn program() -> PathBuf {
    let agents = std::env::var_os("OSTLER_AGENTS_DIR").map(PathBuf::from);
    let agents = agents.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("target/agents"));
    let program = agents.join(NAME).join("node_modules/.bin/mcp-server-filesystem");
    assert!(
        program.is_file(),
        "{} is not there. This test drives the real server: tests/agents {NAME} installs it, as tests/run does.",
        program.display()
    );
    program
}

/// A home with the server, which serves the workspace.
fn home_with(model: &ChatModel, lines: &str) -> Home {
    home(model, &format!("[harness.agent.mcp.fs]\ncommand = [{:?}, \"{{workspace}}\"]\n{lines}", program()))
}

/// A call of one of its tools, as the script has it; `NAME` is a file of the workspace.
fn call(tool: &str, input: &Value) -> String {
    format!("/call mcp__fs__{tool} {input}")
}

/// A session that has said hello, with its workspace: the server wants whole paths, which are known from then on.
async fn session(api: &Api, home: &Home) -> (String, PathBuf) {
    let row = create(api, "/say hello", json!({})).await;
    let session = row["id"].as_str().unwrap_or_else(|| panic!("{row}")).to_owned();
    let workspace = home.workspace(&session);
    (session, workspace)
}

async fn prompt_detached(api: &Api, session: &str, prompt: &str) {
    let body = json!({"prompt": prompt});
    api.post(&format!("/v1/sessions/{session}/prompts"), body).await.expect(202);
}

/// A file that nobody ever writes: reading it takes for ever.
fn endless(workspace: &Path) -> PathBuf {
    let path = workspace.join("endless");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    path
}

/// Returns when the server reads that file. It reads on while what is given back is held.
async fn is_read(endless: &Path) -> OwnedFd {
    let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::NONBLOCK;
    let mut writer = None;
    eventually("the server reads", || {
        writer = rustix::fs::open(endless, flags, rustix::fs::Mode::empty()).ok();
        writer.is_some()
    })
    .await;
    writer.unwrap()
}

/// Starts a turn in which the server reads for ever, and returns when it does.
async fn reads_for_ever(api: &Api, session: &str, workspace: &Path) -> OwnedFd {
    let path = endless(workspace);
    let script = call("read_text_file", &json!({"path": path})) + "\n/next\n/say on";
    prompt_detached(api, session, &script).await;
    is_read(&path).await
}

async fn results(api: &Api, session: &str) -> Vec<Value> {
    api.events_of(session, "tool.completed").await
}

#[tokio::test]
async fn a_real_server_s_tools_are_offered_and_used_and_it_ends_with_its_session() {
    let model = ChatModel::start();
    let home = home_with(&model, "");
    let server = home.start().await;
    let api = server.api();
    let (session, workspace) = session(&api, &home).await;
    let asked = &model.requests()[0];
    let offered: Vec<&str> = asked["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["function"]["name"].as_str().unwrap())
        .collect();
    for name in ["mcp__fs__write_file", "mcp__fs__read_text_file", "mcp__fs__list_directory", "shell"] {
        assert!(offered.contains(&name), "{offered:?}");
    }
    let path = workspace.join("made.txt");
    let script = [
        call("write_file", &json!({"path": path, "content": "one\ntwo\n"})),
        call("read_text_file", &json!({"path": path, "head": 1})),
        call("read_text_file", &json!({"path": "/etc/passwd"})),
        call("read_text_file", &json!({"file": 7})),
    ];
    let turn = api.prompt(&session, &(script.join("\n") + "\n/next\n/say on")).await;
    assert_eq!((turn["status"].as_str(), turn["text"].as_str()), (Some("completed"), Some("on")), "{turn}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\n");
    let results = results(&api, &session).await;
    let statuses: Vec<_> = results.iter().map(|result| result["status"].as_str().unwrap()).collect();
    assert_eq!(statuses, ["succeeded", "succeeded", "failed", "failed"], "{results:?}");
    assert_eq!(results[1]["result"].as_str().unwrap().trim(), "one");
    assert!(results[2]["result"].as_str().unwrap().contains("Access denied"), "{}", results[2]);
    let heard = model.requests().last().unwrap()["messages"].to_string();
    assert!(heard.contains("Access denied") && !heard.contains("root:x"), "{heard}");
    let processes = of_agent(&session);
    assert_eq!(processes.len(), 1, "{processes:?}");
    api.delete(&format!("/v1/sessions/{session}")).await.expect(204);
    assert!(!processes.into_iter().any(is_alive));
}

#[tokio::test]
async fn what_a_person_denies_is_not_done_and_the_model_hears_it() {
    let model = ChatModel::start();
    let home = home_with(&model, "require_approval = [\"write_file\"]");
    let server = home.start().await;
    let api = server.api();
    let (session, workspace) = session(&api, &home).await;
    let path = workspace.join("made.txt");
    let script = call("write_file", &json!({"path": path, "content": "x"})) + "\n/next\n/say on";
    for (decision, had) in [("deny", false), ("approve", true)] {
        let turn = api.prompt(&session, &script).await;
        let approval = api.session(&session).await["pending_approval"].take();
        assert_eq!(approval["tool"], "mcp__fs__write_file", "{turn}");
        assert!(!path.exists());
        let body = json!({"decision": decision, "reason": "my own reason"});
        let id = approval["id"].as_str().unwrap();
        api.post(&format!("/v1/approvals/{id}/decision"), body).await.expect(200);
        let row = api.until_status(&session, "idle").await;
        assert_eq!(row["turn"]["text"], "on", "{row}");
        assert_eq!(path.exists(), had, "{decision}");
    }
    let results = results(&api, &session).await;
    assert_eq!(results[0]["result"]["denied"], true, "{results:?}");
    let heard = model.requests().last().unwrap()["messages"].to_string();
    assert!(heard.contains("did not allow this call. Their words: my own reason"), "{heard}");
    assert_eq!(of_agent(&session).len(), 1);
}

#[tokio::test]
async fn a_call_that_takes_too_long_is_uncertain_and_the_session_goes_on() {
    let model = ChatModel::start();
    let home = home_with(&model, "timeout_seconds = 1");
    let server = home.start().await;
    let api = server.api();
    let (session, workspace) = session(&api, &home).await;
    let reading = reads_for_ever(&api, &session, &workspace).await;
    let row = api.until_status(&session, "idle").await;
    assert_eq!(row["turn"]["text"], "on", "{row}");
    let late = results(&api, &session).await.remove(0);
    assert_eq!(late["result"]["uncertain"], true, "{late}");
    assert!(late["result"]["reason"].as_str().unwrap().contains("within 1 s"), "{late}");
    let listed = call("list_directory", &json!({"path": workspace})) + "\n/next\n/say listed";
    assert_eq!(api.prompt(&session, &listed).await["text"], "listed");
    assert_eq!(results(&api, &session).await[1]["status"], "succeeded");
    drop(reading);
}

#[tokio::test]
async fn killed_in_mid_call_a_real_server_is_an_uncertain_call_and_the_next_one_has_a_new_server() {
    let model = ChatModel::start();
    let home = home_with(&model, "");
    let server = home.start().await;
    let api = server.api();
    let (session, workspace) = session(&api, &home).await;
    let killed = of_agent(&session);
    let reading = reads_for_ever(&api, &session, &workspace).await;
    killed.iter().copied().for_each(kill);
    let row = api.until_status(&session, "idle").await;
    assert_eq!(
        (row["turn"]["status"].as_str(), row["turn"]["text"].as_str()),
        (Some("completed"), Some("on")),
        "{row}"
    );
    let lost = results(&api, &session).await.remove(0);
    assert_eq!(lost["result"]["uncertain"], true, "{lost}");
    let listed = call("list_directory", &json!({"path": workspace})) + "\n/next\n/say listed";
    let turn = api.prompt(&session, &listed).await;
    assert_eq!((turn["text"].as_str(), turn["rehydrated"].as_bool()), (Some("listed"), Some(false)));
    assert_eq!(results(&api, &session).await[1]["status"], "succeeded");
    let now = of_agent(&session);
    assert!(now.len() == 1 && now != killed, "{now:?} after {killed:?}");
    drop(reading);
}

#[tokio::test]
async fn nothing_of_a_server_is_left_after_a_stop_a_shutdown_and_a_kill_of_the_service() {
    let model = ChatModel::start();
    let home = home_with(&model, "");
    let server = home.start().await;
    let api = server.api();
    let (session, workspace) = session(&api, &home).await;
    // In mid-call, so that it does not hear the end of its stdin.
    let reading = reads_for_ever(&api, &session, &workspace).await;
    let stopped = of_agent(&session);
    api.post(&format!("/v1/sessions/{session}/stop"), json!({})).await.expect(200);
    assert_eq!((stopped.len(), stopped.into_iter().filter(|pid| is_alive(*pid)).count()), (1, 0));
    drop(reading);
    assert_eq!(api.prompt(&session, "/say on").await["text"], "on");
    let left = of_agent(&session);
    assert!(server.terminate().await.success());
    assert_eq!((left.len(), left.into_iter().filter(|pid| is_alive(*pid)).count()), (1, 0));
    let server = home.start().await;
    let api = server.api();
    assert_eq!(api.prompt(&session, "/say on").await["text"], "on");
    let left = of_agent(&session);
    assert_eq!(left.len(), 1);
    server.kill().await;
    let server = home.start().await;
    eventually("nothing to be left", || !left.iter().any(|pid| is_alive(*pid))).await;
    let turn = server.api().prompt(&session, "/say back").await;
    assert_eq!((turn["text"].as_str(), turn["rehydrated"].as_bool()), (Some("back"), Some(true)));
    end_with_home_below(home.path());
}

/// A server over HTTP on loopback, as a session may have one of its own.
struct Own {
    _child: Child,
    port: String,
}

impl Own {
    async fn start(ledger: &Path, port: &str) -> Self {
        let mut command = Command::new("python3");
        command.args([FAKE_MCP, "--http"]).env("FAKE_MCP_LEDGER", ledger).env("FAKE_MCP_PORT", port);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        within("the server's port", stdout.read_line(&mut line)).await.unwrap();
        let port = line.trim().strip_prefix("PORT ").unwrap().to_owned();
        Self { _child: child, port }
    }
}

fn own_server(port: &str) -> Value {
    json!({"mcp_servers": {"own": {"url": format!("http://127.0.0.1:{port}/mcp")}}})
}

#[tokio::test]
async fn a_session_s_own_server_is_used_where_the_operator_allows_it_and_nowhere_else() {
    let model = ChatModel::start();
    let directory = tempfile::tempdir().unwrap();
    let ledger = directory.path().join("ledger");
    let own = Own::start(&ledger, "0").await;
    let port = &own.port;
    let config = config(&model, "");
    let home = Home::new().with_config(&format!(
        "[harness.agent]\nsession_mcp_origins = [\"http://127.0.0.1:{port}\"]\n{config}"
    ));
    let server = home.start().await;
    let api = server.api();
    let script = "/call mcp__own__effect {\"text\": \"had\"}\n/next\n/say on";
    let row = create(&api, script, own_server(port)).await;
    assert_eq!(row["turn"]["text"], "on", "{row}");
    assert!(std::fs::read_to_string(&ledger).unwrap().contains("\"effect\": \"had\""));
    let elsewhere = [
        "http://127.0.0.1:1/mcp".to_owned(),
        format!("http://localhost:{port}/mcp"),
        format!("https://127.0.0.1:{port}/mcp"),
        format!("http://127.0.0.1:{port}@evil.example/mcp"),
        format!("http://127.0.0.1.evil.example:{port}/mcp"),
        "file:///etc/passwd".to_owned(),
        "data:text/plain,x".to_owned(),
        String::new(),
    ];
    for url in elsewhere {
        let settings = settings(json!({"mcp_servers": {"own": {"url": url}}}));
        let body = json!({"harness": "agent", "settings": settings});
        let refused = api.post("/v1/sessions", body).await.problem(422, "invalid_input");
        assert!(refused["detail"].as_str().unwrap().contains("mcp_servers"), "{url}: {refused}");
    }
}

#[tokio::test]
async fn a_server_that_does_not_come_up_fails_the_turn_and_the_next_prompt_works_when_it_does() {
    let model = ChatModel::start();
    let directory = tempfile::tempdir().unwrap();
    let own = Own::start(&directory.path().join("ledger"), "0").await;
    let port = own.port.clone();
    drop(own);
    let config = config(&model, "");
    let home = Home::new().with_config(&format!(
        "[harness.agent]\nsession_mcp_origins = [\"http://127.0.0.1:{port}\"]\n{config}"
    ));
    let server = home.start().await;
    let api = server.api();
    let body = json!({"harness": "agent", "run_id": "r", "settings": settings(own_server(&port))});
    let session = api.post("/v1/sessions", body).await.expect(201)["id"].as_str().unwrap().to_owned();
    let script = "/call mcp__own__echo {\"text\": \"hi\"}\n/next\n/say on";
    prompt_detached(&api, &session, script).await;
    let row = api.until_status(&session, "errored").await;
    assert_eq!(row["turn"]["error"]["code"], "tools_unavailable", "{row}");
    let _own = Own::start(&directory.path().join("ledger"), &port).await;
    let turn = api.prompt(&session, script).await;
    assert_eq!((turn["status"].as_str(), turn["text"].as_str()), (Some("completed"), Some("on")), "{turn}");
    assert!(model.count() == 2, "the turn that failed has asked the model nothing");
}

#[tokio::test]
async fn a_server_that_ends_before_it_is_ready_fails_the_turn_and_leaves_nothing() {
    let model = ChatModel::start();
    let home = home(
        &model,
        "[harness.agent.mcp.bad]\ncommand = [\"sh\", \"-c\", \"sleep 600 & test -e {workspace}/ready || exit 3; exec cat\"]\n",
    );
    let server = home.start().await;
    let api = server.api();
    let body = json!({"harness": "agent", "prompt": "/say on", "settings": settings(json!({}))});
    let session = api.post("/v1/sessions", body).await.expect(201)["id"].as_str().unwrap().to_owned();
    let row = api.until_status(&session, "errored").await;
    let error = &row["turn"]["error"];
    assert_eq!(error["code"], "tools_unavailable", "{row}");
    assert!(error["message"].as_str().unwrap().contains("exited with code 3"), "{error}");
    nothing_runs(&server, &session).await;
}

async fn nothing_runs(server: &Server, session: &str) {
    let service = server.pid();
    let runs = || children_of(service).into_iter().any(is_alive) || !of_agent(session).is_empty();
    eventually("nothing to run", || !runs()).await;
}
