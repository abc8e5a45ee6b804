//! MCP servers over streamable HTTP.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use super::*;

/// The fake server on loopback. Dropping it ends it.
struct Fake {
    child: Child,
    port: String,
    directory: TempDir,
}

impl Fake {
    fn start(options: &[&str]) -> Self {
        Self::start_at("0", options, tempfile::tempdir().unwrap())
    }

    fn start_at(port: &str, options: &[&str], directory: TempDir) -> Self {
        let mut command = Command::new("python3");
        command.arg(SERVER).arg("--http").args(options).env("FAKE_MCP_PORT", port);
        command
            .env("FAKE_MCP_LEDGER", directory.path().join("ledger"))
            .env("FAKE_MCP_TOKEN", own_variable().1);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim().strip_prefix("PORT ").unwrap().to_owned();
        Self { child, port, directory }
    }

    fn ledger(&self, key: &str) -> Vec<Value> {
        noted(&self.directory.path().join("ledger"), key)
    }

    fn rig(&self, path: &str, lines: &str) -> Rig {
        let port = &self.port;
        Rig::new(&format!("[mcp.web]\nurl = \"http://127.0.0.1:{port}/{path}\"\n{lines}"))
    }

    fn with_token(&self) -> Rig {
        self.rig("mcp", &format!("token_env = {:?}\ntimeout_seconds = 2", own_variable().0))
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.kill();
    }
}

async fn call(tools: &Toolbox, tool: &str, input: Value) -> Called {
    tools.call(&format!("mcp__web__{tool}"), &input).await
}

#[tokio::test]
async fn tools_are_listed_and_called_whether_answers_are_streamed_or_not() {
    for options in [&[][..], &["--sse"]] {
        let fake = Fake::start(options);
        let tools = fake.with_token().open().await;
        assert_eq!(tools.specs().len(), 3 + 14);
        for (tool, input, outcome, content) in [
            ("echo", json!({"text": "ñ"}), Outcome::Succeeded, "ñ"),
            ("error", json!({"text": "no such thing"}), Outcome::Failed, "no such thing"),
            ("refuse", json!({"text": "not that"}), Outcome::Failed, "not that"),
            ("effect", json!({"text": "once"}), Outcome::Succeeded, "done"),
        ] {
            assert_eq!(said(&call(&tools, tool, input).await), (outcome, content), "{tool}");
        }
        assert_eq!(fake.ledger("effect"), ["once"]);
        tools.close().await;
        assert_eq!(fake.ledger("deleted").len(), 1, "the server is told of the end");
        assert_eq!(call(&tools, "echo", json!({"text": "x"})).await.outcome, Outcome::Failed);
    }
}

#[tokio::test]
async fn without_its_token_a_server_is_not_used_and_no_token_is_shown() {
    let fake = Fake::start(&[]);
    for (line, words) in [
        ("", "does not accept our token"),
        ("token_env = \"PATH\"", "does not accept our token"),
        ("token_env = \"NO_SUCH_VARIABLE\"", "NO_SUCH_VARIABLE is not set"),
    ] {
        let failure = fake.rig("mcp", line).try_open().await.err().unwrap();
        assert!(failure.message.contains(words), "{line}: {}", failure.message);
        let path = std::env::var_os("PATH").unwrap().into_string().unwrap();
        assert!(!failure.message.contains(&path), "{}", failure.message);
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let fake = Fake::start(&[]);
    let rig = fake.rig("moved", &format!("token_env = {:?}", own_variable().0));
    let failure = rig.try_open().await.err().unwrap();
    assert_eq!(failure.code, "tools_unavailable");
    assert_eq!(fake.ledger("elsewhere").len(), 0);
}

#[tokio::test]
async fn an_address_where_nobody_is_is_told_without_its_secrets() {
    let mut fake = Fake::start(&[]);
    fake.kill();
    let failure = fake.rig("mcp?key=canary", "").try_open().await.err().unwrap();
    assert!(failure.message.contains("cannot be reached"), "{}", failure.message);
    assert!(!failure.message.contains("canary"), "{}", failure.message);
}

#[tokio::test]
async fn a_server_that_dies_in_mid_call_is_an_uncertain_call_at_once_and_then_cannot_be_reached() {
    for options in [&[][..], &["--sse"]] {
        let mut fake = Fake::start(options);
        let tools = fake.with_token().open().await;
        let begun = Instant::now();
        let called = call(&tools, "die", json!({})).await;
        assert_eq!(called.outcome, Outcome::Uncertain, "{options:?}: {}", called.content);
        assert!(begun.elapsed() < AT_ONCE, "{options:?}: {:?}", begun.elapsed());
        // Until then somebody may still be let in.
        fake.child.wait().unwrap();
        let next = call(&tools, "echo", json!({"text": "x"})).await;
        assert_eq!(next.outcome, Outcome::Failed, "{options:?}: {}", next.content);
        assert!(next.content.contains("cannot be reached"), "{}", next.content);
        tools.close().await;
    }
}

#[tokio::test]
async fn a_call_that_takes_too_long_is_uncertain_and_the_server_is_told() {
    for options in [&[][..], &["--sse"]] {
        let fake = Fake::start(options);
        let tools = fake.with_token().open().await;
        let called = call(&tools, "sleep", json!({"seconds": 600})).await;
        assert_eq!(called.outcome, Outcome::Uncertain);
        assert!(called.content.contains("did not answer within 2 s"), "{}", called.content);
        eventually("the server is told", || fake.ledger("cancelled").len() == 1).await;
        assert_eq!(said(&call(&tools, "echo", json!({"text": "on"})).await), (Outcome::Succeeded, "on"));
        tools.close().await;
    }
}

#[tokio::test]
async fn a_server_that_has_forgotten_us_is_introduced_anew() {
    let mut fake = Fake::start(&[]);
    let tools = fake.with_token().open().await;
    fake.kill();
    let directory = std::mem::replace(&mut fake.directory, tempfile::tempdir().unwrap());
    let again = Fake::start_at(&fake.port, &[], directory);
    assert_eq!(said(&call(&tools, "effect", json!({"text": "once"})).await), (Outcome::Succeeded, "done"));
    assert_eq!(again.ledger("effect"), ["once"]);
    tools.close().await;
}
