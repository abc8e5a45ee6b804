//! A service with a real agent, and the scripted model of tests/fake_model in place of the one that the agent would call.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::support::api::Api;
use crate::support::disks::Disks;
use crate::support::processes;
use crate::support::server::{Home, Server};
use crate::support::within;

/// A real agent: a preset, and what an operator adds to point it at a model.
pub struct Agent {
    /// The preset, and the harness.
    pub name: &'static str,
    /// The Node that it needs, where it needs one.
    pub node: Option<u32>,
    /// The lines of its table in ostler.toml, for a model at this address.
    pub lines: fn(&str) -> String,
}

// Some agents go on when their stdin is closed, as it is at the end of a test, and nobody starts the service again to end them.
impl Drop for Stage {
    fn drop(&mut self) {
        processes::end_with_home_below(&self.home.path().join("agents"));
    }
}

/// The scripted model. Dropping it ends it.
pub struct Model {
    url: String,
    _child: Child,
}

/// A service, and the harness under test.
pub struct Stage {
    pub home: Home,
    pub api: Api,
    pub server: Server,
    agent: &'static Agent,
    _model: Model,
}

impl Model {
    async fn start() -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake_model/server.py");
        let mut command = Command::new("python3");
        command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("python3 is there: tests/run installs it");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = within("the model to listen", lines.next_line()).await.unwrap().unwrap();
        let port = line.strip_prefix("PORT ").unwrap();
        Self { url: format!("http://127.0.0.1:{port}"), _child: child }
    }
}

impl Agent {
    /// Where its programs are: its own and those of its Node first, then what the machine has.
    fn path(&self) -> String {
        let agents = std::env::var_os("OSTLER_AGENTS_DIR").map(PathBuf::from);
        let agents =
            agents.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target").join("agents"));
        let bin = |folder: &str| agents.join(folder).join("node_modules").join(".bin");
        let own = bin(self.name);
        assert!(
            own.is_dir(),
            "{} is not there. This test drives the real agent: tests/agents {} installs it, as tests/run does.",
            own.display(),
            self.name
        );
        let node = self.node.map(|node| bin(&format!("node{node}")));
        let machine = std::env::var("PATH").unwrap();
        let machine = std::env::split_paths(&machine);
        std::env::join_paths([own].into_iter().chain(node).chain(machine)).unwrap().into_string().unwrap()
    }

    fn config(&self, model: &Model) -> String {
        let Self { name, lines, .. } = self;
        let path = self.path();
        let lines = lines(&model.url);
        format!("[harness.{name}]\nkind = \"acp\"\npreset = \"{name}\"\nenv.PATH = \"{path}\"\n{lines}\n")
    }
}

/// Two replicas with the agent that have no disk in common.
pub async fn disks(agent: &Agent) -> (Disks, Model) {
    let model = Model::start().await;
    (Disks::of(Home::on_postgres().with_config(&agent.config(&model))), model)
}

impl Stage {
    pub async fn set(agent: &'static Agent) -> Self {
        let model = Model::start().await;
        let home = Home::new().with_config(&agent.config(&model));
        let server = home.start().await;
        Self { api: server.api(), home, server, agent, _model: model }
    }

    /// kill -9 of the service, and a new start.
    pub async fn kill_the_service(&mut self) {
        processes::kill(self.server.pid());
        processes::eventually("the service is gone", || !processes::is_alive(self.server.pid())).await;
        self.server = self.home.start().await;
        self.api = self.server.api();
    }

    /// A session that has been told a word to remember.
    pub async fn session(&self, word: &str) -> String {
        let prompt = format!("CODEWORD={word}");
        let body = json!({"harness": self.agent.name, "prompt": prompt});
        let created = self.api.post_and_wait("/v1/sessions", body).await.expect(201);
        assert_eq!(created["turn"]["status"], "completed", "{created}");
        assert!(created["turn"]["text"].as_str().unwrap().contains("ECHO("), "{created}");
        created["id"].as_str().unwrap().to_owned()
    }

    /// Prompts for a command, and gives the approval that the agent asks for before it runs it.
    pub async fn asked_to_run(&self, session: &str, command: &str) -> String {
        let turn = self.api.prompt(session, &format!("RUN{{{command}}}")).await;
        assert_eq!(turn["status"], "awaiting_approval", "{turn}");
        let row = self.api.session(session).await;
        let approval = &row["pending_approval"];
        assert_eq!(approval["kind"], "execute", "{approval}");
        // Some agents tell the input, some only a title.
        assert!(format!("{} {}", approval["title"], approval["input"]).contains(command), "{approval}");
        approval["id"].as_str().unwrap().to_owned()
    }

    /// The turn when nothing is under way any more.
    pub async fn ended(&self, session: &str) -> Value {
        self.api.follow(session, "?until=idle").await.all().await;
        self.api.session(session).await["turn"].clone()
    }

    /// Asks for the word that the session was told; gives the answer's turn.
    pub async fn remembers(&self, session: &str, word: &str) -> Value {
        let turn = self.api.prompt(session, "RECALL").await;
        assert_eq!(turn["status"], "completed", "{turn}");
        assert!(turn["text"].as_str().unwrap().contains(&format!("RECALLED({word})")), "{turn}");
        turn
    }

    pub fn file(&self, session: &str, name: &str) -> PathBuf {
        self.home.workspace(session).join(name)
    }

    /// Waits until the file holds that: an agent may go on before its command has ended.
    pub async fn until_written(&self, session: &str, name: &str, text: &str) {
        let path = self.file(session, name);
        let holds = || std::fs::read_to_string(&path).is_ok_and(|found| found == text);
        let written = processes::eventually(name, holds);
        if tokio::time::timeout(Duration::from_secs(30), written).await.is_err() {
            panic!("{name} does not hold {text:?}: {:#?}", self.api.events(session).await);
        }
    }

    /// Prompts for words that take a minute, and returns when the first has come.
    pub async fn speaking(&self, session: &str) {
        let path = format!("/v1/sessions/{session}/prompts");
        let turn = self.api.post(&path, json!({"prompt": "SLOW{120}"})).await.expect(202);
        let mut events = self.api.follow(session, "").await;
        within("the first word", async {
            loop {
                let event = events.next().await.expect("the stream goes on").data;
                if event["type"] == "text.delta" && event["turn_id"] == turn["id"] {
                    return;
                }
            }
        })
        .await;
    }

    /// Has a command at work that does not end by itself, and gives its process.
    pub async fn tool_at_work(&self, session: &str) -> u32 {
        let file = self.file(session, "tool.pid");
        let command = "echo $$ > partial && mv partial tool.pid && exec sleep 600";
        let approval = self.asked_to_run(session, command).await;
        self.api.decide(&approval, "approve").await.expect(200);
        processes::eventually("the command runs", || file.exists()).await;
        let pid = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
        std::fs::remove_file(file).unwrap();
        assert!(processes::is_alive(pid));
        pid
    }
}
