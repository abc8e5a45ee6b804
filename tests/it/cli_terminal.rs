//! The client commands at a terminal, with a person who answers. util-linux's `script` makes the terminal.
#![cfg(target_os = "linux")]

use std::process::Stdio;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::support::server::{Home, Server};
use crate::support::within;

const ASKS: &str = "/say one\n/ask shell {\"command\":\"ls\"}\n/say done";
const QUESTION: &str = "[a]pprove  [d]eny [reason]  [s]kip:";

/// A command on a terminal of its own.
struct Screen {
    child: Child,
    keyboard: ChildStdin,
    output: ChildStdout,
    /// All that was shown.
    text: String,
}

impl Screen {
    /// Starts `ostler` with these words of the shell; `$WORD` is what is hard to quote.
    fn of(home: &Home, server: &Server, words: &str, word: &str, set: &[(&str, &str)]) -> Self {
        let mut command = Command::new("script");
        let line = format!("exec '{}' {words}", env!("CARGO_BIN_EXE_ostler"));
        command
            .args(["--quiet", "--return", "--command", &line, "/dev/null"])
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("SHELL", "/bin/sh")
            .env("TERM", "xterm-256color")
            .env("OSTLER_DATA_DIR", home.path())
            .env("OSTLER_URL", &server.url)
            .env("WORD", word)
            .envs(set.iter().copied())
            .kill_on_drop(true);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (keyboard, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, keyboard, output, text: String::new() }
    }

    /// Returns when that is shown, after all that was waited for before.
    async fn until(&mut self, shown: &str) {
        let from = self.text.len();
        within(&format!("{shown} on the screen"), async {
            while !self.text[from..].contains(shown) {
                assert!(self.read().await, "the command ended before {shown}: {}", self.text);
            }
        })
        .await;
    }

    async fn read(&mut self) -> bool {
        let mut bytes = Vec::new();
        let count = self.output.read_buf(&mut bytes).await.unwrap_or(0);
        // A character may be cut in two; none that a test looks for is.
        self.text.push_str(&String::from_utf8_lossy(&bytes));
        count > 0
    }

    async fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).await.unwrap();
        self.keyboard.flush().await.unwrap();
    }

    /// Reads to the end; gives the exit code and all that was shown.
    async fn end(mut self) -> (i32, String) {
        let status = within("the command's end", async {
            while self.read().await {}
            self.child.wait().await.unwrap()
        })
        .await;
        (status.code().unwrap(), self.text)
    }
}

async fn house() -> (Home, Server) {
    let home = Home::new();
    let server = home.start().await;
    (home, server)
}

/// The session that exists.
async fn only_session(server: &Server) -> String {
    let page = server.api().get("/v1/sessions").await.expect(200);
    page["data"][0]["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn run_asks_on_the_terminal_and_goes_on_with_the_answer() {
    let (home, server) = house().await;
    let mut screen = Screen::of(&home, &server, "run \"$WORD\"", ASKS, &[]);
    screen.until(QUESTION).await;
    screen.press("what?\n").await;
    screen.until(QUESTION).await;
    screen.press("a\n").await;
    let (code, text) = screen.end().await;
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("approved by admin") && text.contains("done"), "{text}");
    assert!(text.contains("\u{1b}[32m"), "a terminal has colours: {text:?}");
    assert_eq!(home.effects(&only_session(&server).await, "tool"), 1);
}

#[tokio::test]
async fn a_question_can_be_left_to_others() {
    let (home, server) = house().await;
    let mut screen = Screen::of(&home, &server, "run \"$WORD\"", ASKS, &[]);
    screen.until(QUESTION).await;
    screen.press("s\n").await;
    screen.until("  ostler approve apr_").await;
    let api = server.api();
    let session = api.session(&only_session(&server).await).await;
    api.decide(session["pending_approval"]["id"].as_str().unwrap(), "approve").await.expect(200);
    let (code, text) = screen.end().await;
    assert_eq!(code, 0, "{text}");
}

#[tokio::test]
async fn ctrl_c_detaches_and_the_turn_goes_on() {
    let (home, server) = house().await;
    let mut screen = Screen::of(&home, &server, "run \"$WORD\"", "/say working\n/hang", &[]);
    screen.until("working").await;
    screen.press("\u{3}").await;
    let (code, text) = screen.end().await;
    let session = only_session(&server).await;
    assert_eq!(code, 130, "{text}");
    assert!(text.contains(&format!("Come back with: ostler logs -f {session}")), "{text}");
    let api = server.api();
    assert_eq!(api.session(&session).await["status"], "running");
    api.post(&format!("/v1/sessions/{session}/cancel"), serde_json::json!({})).await.expect(200);
    assert_eq!(api.until_status(&session, "idle").await["turn"]["status"], "cancelled");
}

#[tokio::test]
async fn ctrl_c_at_a_question_leaves_it_open() {
    let (home, server) = house().await;
    let mut screen = Screen::of(&home, &server, "run \"$WORD\"", ASKS, &[]);
    screen.until(QUESTION).await;
    screen.press("\u{3}").await;
    let (code, text) = screen.end().await;
    assert_eq!(code, 130, "{text}");
    let session = only_session(&server).await;
    assert_eq!(server.api().session(&session).await["status"], "awaiting_approval");
    assert_eq!(home.effects(&session, "decision"), 0);
}

#[tokio::test]
async fn logs_that_follow_ask_as_run_does() {
    let (home, server) = house().await;
    let api = server.api();
    let session = api.create(ASKS).await["id"].as_str().unwrap().to_owned();
    let mut screen = Screen::of(&home, &server, "logs -f \"$WORD\"", &session, &[]);
    screen.until(QUESTION).await;
    screen.press("d not today\n").await;
    screen.until("turn completed").await;
    // Of the next turn it tells as well; what is answered elsewhere meanwhile is not asked for any more.
    let row = api.prompt(&session, ASKS).await;
    screen.until(QUESTION).await;
    let pending = api.session(&session).await["pending_approval"]["id"].as_str().unwrap().to_owned();
    assert_eq!(row["status"], "awaiting_approval");
    api.decide(&pending, "approve").await.expect(200);
    screen.until("turn completed").await;
    api.delete(&format!("/v1/sessions/{session}")).await.expect(204);
    let (code, text) = screen.end().await;
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("denied by admin (not today)") && text.contains("approved by admin"), "{text}");
    assert_eq!(home.effects(&session, "tool"), 1);

    let old = Screen::of(&home, &server, "logs -f \"$WORD\"", &session, &[]);
    let (code, text) = old.end().await;
    assert!(code == 0 && !text.contains(QUESTION), "what is decided is not asked again: {text}");
}

#[tokio::test]
async fn rm_asks_before_it_destroys() {
    let (home, server) = house().await;
    let api = server.api();
    let session = api.create("/say hi").await["id"].as_str().unwrap().to_owned();
    for (answer, expected, status) in [("\n", 1, "idle"), ("y\n", 0, "destroyed")] {
        let mut screen = Screen::of(&home, &server, "rm \"$WORD\"", &session, &[]);
        screen.until("Its transcript stays. [y/N]").await;
        screen.press(answer).await;
        let (code, text) = screen.end().await;
        assert_eq!(code, expected, "{text}");
        assert_eq!(api.session(&session).await["status"], status);
    }
}

#[tokio::test]
async fn no_color_is_obeyed_on_a_terminal() {
    let (home, server) = house().await;
    for set in [[("NO_COLOR", "1")], [("TERM", "dumb")]] {
        let screen = Screen::of(&home, &server, "run \"$WORD\"", "/think a\n/say b\n/tool read {}", &set);
        let (code, text) = screen.end().await;
        assert!(code == 0 && !text.contains('\u{1b}'), "{text:?}");
    }
}
