//! The service with a real agent: Codex over ACP, from npm, with a scripted model in place of the one that it would call.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::support::api::Api;
use crate::support::disks::Disks;
use crate::support::processes;
use crate::support::server::Home;
use crate::support::within;

const NONE: [u32; 0] = [];

/// The scripted model of tests/fake_model. Dropping it ends it.
struct Model {
    port: u16,
    _child: Child,
}

impl Model {
    async fn start() -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake_model/server.py");
        let mut command = Command::new("python3");
        command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("python3 is there: tests/run installs it");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = within("the model to listen", lines.next_line()).await.unwrap().unwrap();
        let port = line.strip_prefix("PORT ").unwrap().parse().unwrap();
        Self { port, _child: child }
    }
}

/// The program itself, without the launcher of its package: that one leaves it behind when it is killed.
fn codex() -> PathBuf {
    let agents = std::env::var_os("OSTLER_AGENTS_DIR").map(PathBuf::from);
    let agents =
        agents.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target").join("agents"));
    let machine = match std::env::consts::ARCH {
        "aarch64" => "arm64",
        _ => "x64",
    };
    let package = format!("codex-acp/node_modules/@zed-industries/codex-acp-linux-{machine}/bin/codex-acp");
    let program = agents.join(package);
    assert!(
        program.is_file(),
        "{} is not there. This test drives the real codex-acp 0.16.0: run tests/run, which installs it from npm.",
        program.display()
    );
    program
}

/// The lines of ostler.toml. Codex keeps conversations, settings and keys in CODEX_HOME, so each session has its own.
fn config(model: &Model) -> String {
    format!(
        r#"
[harness.codex]
kind = "acp"
label = "Codex"
command = ["{program}"]
state_paths = [".codex/sessions"]
env = {{ CODEX_HOME = "{{state_dir}}/.codex", FAKE_KEY = "not-a-key" }}
install = "npm install @zed-industries/codex-acp@0.16.0"
occasional_input = ["call_id", "turn_id", "started_at_ms"]

[harness.codex.files]
".codex/config.toml" = '''
model = "scripted"
model_provider = "fake"
approval_policy = "untrusted"
sandbox_mode = "read-only"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.fake]
name = "Fake"
base_url = "http://127.0.0.1:{port}/v1"
wire_api = "responses"
env_key = "FAKE_KEY"
request_max_retries = 0
stream_max_retries = 0
'''
"#,
        program = codex().display(),
        port = model.port,
    )
}

/// Prompts for a command, and gives the approval that Codex asks for before it runs it.
async fn asked_to_run(api: &Api, session: &str, command: &str) -> String {
    let turn = api.prompt(session, &format!("RUN{{{command}}}")).await;
    assert_eq!(turn["status"], "awaiting_approval", "{turn}");
    let row = api.session(session).await;
    let approval = &row["pending_approval"];
    assert_eq!(approval["kind"], "execute", "{approval}");
    assert!(approval["input"].to_string().contains(command), "{approval}");
    approval["id"].as_str().unwrap().to_owned()
}

/// Has a command at work that does not end by itself, and gives its process.
async fn tool_at_work(api: &Api, home: &Home, session: &str) -> u32 {
    let file = home.workspace(session).join("tool.pid");
    let command = "echo $$ > partial && mv partial tool.pid && exec sleep 600";
    let approval = asked_to_run(api, session, command).await;
    api.decide(&approval, "approve").await.expect(200);
    processes::eventually("the command runs", || file.exists()).await;
    let pid = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
    std::fs::remove_file(file).unwrap();
    assert!(processes::is_alive(pid));
    pid
}

async fn until_turn_ended(api: &Api, session: &str) -> Value {
    api.follow(session, "?until=idle").await.all().await;
    api.session(session).await["turn"].clone()
}

#[tokio::test]
async fn codex_asks_before_it_acts_and_remembers_after_the_service_was_killed() {
    let model = Model::start().await;
    let home = Home::new().with_config(&config(&model));
    let server = home.start().await;
    let api = server.api();
    let harness = api.get("/v1/harnesses/codex").await.expect(200);
    assert_eq!(harness["available"], true, "{harness}");

    let created = api
        .post_and_wait("/v1/sessions", json!({"harness": "codex", "prompt": "CODEWORD=heron"}))
        .await
        .expect(201);
    let session = created["id"].as_str().unwrap();
    assert_eq!(created["turn"]["status"], "completed", "{created}");
    assert!(created["turn"]["text"].as_str().unwrap().contains("ECHO("), "{created}");

    let approval = asked_to_run(&api, session, "echo made > made.txt").await;
    let made = home.workspace(session).join("made.txt");
    assert!(!made.exists(), "nothing runs before it is approved");
    api.decide(&approval, "approve").await.expect(200);
    let turn = until_turn_ended(&api, session).await;
    assert_eq!(turn["status"], "completed", "{turn}");
    assert!(turn["text"].as_str().unwrap().contains("DONE"), "{turn}");
    // On a slow machine Codex goes on before its command has ended.
    let holds = |path: &Path, text: &str| std::fs::read_to_string(path).is_ok_and(|found| found == text);
    processes::eventually("the command has run", || holds(&made, "made\n")).await;

    let approval = asked_to_run(&api, session, "echo bad > denied.txt").await;
    api.decide(&approval, "deny").await.expect(200);
    // Codex ends a turn that was refused something as cancelled; nobody cancelled it.
    let turn = until_turn_ended(&api, session).await;
    assert_eq!(turn["status"], "completed", "{turn}");
    assert!(!home.workspace(session).join("denied.txt").exists());

    // An approval that outlives its process: the service is killed, the decision starts another, and Codex asks again.
    let approval = asked_to_run(&api, session, "echo once >> once.txt").await;
    server.kill().await;
    let server = home.start().await;
    let api = server.api();
    api.decide(&approval, "approve").await.expect(200);
    let turn = until_turn_ended(&api, session).await;
    assert_eq!(turn["status"], "completed", "{:#?}", api.events(session).await);
    let once = home.workspace(session).join("once.txt");
    processes::eventually("the command has run", || holds(&once, "once\n")).await;

    let tool = tool_at_work(&api, &home, session).await;
    let before = processes::of_agent(session);
    assert!(!before.is_empty());
    server.kill().await;
    let server = home.start().await;
    let api = server.api();
    // It does not end by itself when its stdin is closed, and two on one conversation would write over each other.
    assert_eq!(processes::of_agent(session), NONE, "left of the killed service: {before:?}");
    assert!(!processes::is_alive(tool));
    assert_eq!(until_turn_ended(&api, session).await["status"], "interrupted");
    let turn = api.prompt(session, "RECALL").await;
    assert_eq!((turn["status"].as_str(), turn["rehydrated"].as_bool()), (Some("completed"), Some(true)));
    assert!(turn["text"].as_str().unwrap().contains("RECALLED(heron)"), "{turn}");
    assert_eq!(
        api.events_of(session, "session.rehydrated").await,
        [json!({"exact": false}), json!({"exact": false})]
    );

    let tool = tool_at_work(&api, &home, session).await;
    api.post(&format!("/v1/sessions/{session}/stop"), json!({})).await.expect(200);
    assert_eq!(processes::of_agent(session), NONE, "left after the stop");
    assert!(!processes::is_alive(tool));
    let secrets = [api.events(session).await.into(), api.session(session).await, harness];
    assert!(!Value::from(secrets.to_vec()).to_string().contains("not-a-key"));
}

/// An agent of that name, as that configuration describes it, goes on from another disk and remembers.
async fn goes_on_from_another_disk(agent: &str, config: &str) {
    let disks = Disks::of(Home::on_postgres().with_config(config));
    let a = disks.start("a").await;
    let body = json!({"harness": agent, "prompt": "CODEWORD=heron"});
    let created = a.api().post_and_wait("/v1/sessions", body).await.expect(201);
    assert_eq!(created["turn"]["status"], "completed", "{created}");
    let session = created["id"].as_str().unwrap();
    assert!(disks.stored(session).await.is_some());
    a.kill().await;
    disks.lose("a");
    let b = disks.start("b").await;
    for (server, word, next) in [(&b, "heron", "CODEWORD=ibis"), (&b, "ibis", "CODEWORD=kite")] {
        let turn = server.api().prompt(session, "RECALL").await;
        assert!(turn["text"].as_str().unwrap().contains(&format!("RECALLED({word})")), "{turn}");
        assert_eq!(server.api().prompt(session, next).await["status"], "completed");
        println!("{agent}: {} bytes stored", disks.size(session).await);
    }
    assert!(b.terminate().await.success());
    let a = disks.start("a").await;
    let turn = a.api().prompt(session, "RECALL").await;
    assert!(turn["text"].as_str().unwrap().contains("RECALLED(kite)"), "{turn}");
    assert_eq!(a.api().events_of(session, "session.context_lost").await, Vec::<Value>::new());
}

#[tokio::test]
async fn codex_goes_on_from_another_disk_and_remembers() {
    let model = Model::start().await;
    goes_on_from_another_disk("codex", &config(&model)).await;
}
