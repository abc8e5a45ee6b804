//! The client commands of the real binary against the real service, as a script meets them: no terminal anywhere.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::support::server::{Home, Server, free_port};
use crate::support::within;

/// Says something, asks, and says what came of it.
const ASKS: &str = "/say one two\n/ask shell {\"command\":\"ls\"}\n/say done";
const FAST: [&str; 2] = ["--settings", r#"{"token_delay_ms":0}"#];

/// What a command did.
#[derive(Debug)]
struct Ran {
    code: i32,
    out: String,
    err: String,
}

impl Ran {
    async fn of(mut command: Command) -> Self {
        let output = within("a command", command.stdin(Stdio::null()).output()).await.unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
    }

    #[track_caller]
    fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }

    /// The objects on stdout, one a line.
    #[track_caller]
    fn json(&self) -> Vec<Value> {
        json_lines(&self.out)
    }

    /// The problem document on stderr.
    #[track_caller]
    fn problem(&self) -> Value {
        let lines = json_lines(&self.err);
        assert_eq!(lines.len(), 1, "{self:?}");
        lines[0].clone()
    }
}

#[track_caller]
fn json_lines(text: &str) -> Vec<Value> {
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}"));
    text.lines().map(parse).collect()
}

/// A home and the service on it.
struct House {
    server: Server,
    // After the service, so that it is dead when its database is dropped.
    home: Home,
}

impl House {
    async fn new() -> Self {
        let home = Home::new();
        let server = home.start().await;
        Self { home, server }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.home.command(words);
        command.env("OSTLER_URL", &self.server.url);
        command
    }

    async fn ostler(&self, words: &[&str]) -> Ran {
        Ran::of(self.command(words)).await
    }

    /// Runs a prompt without delays between words.
    async fn run(&self, prompt: &str) -> Ran {
        self.ostler(&[&["run"], &FAST[..], &[prompt]].concat()).await
    }

    /// Begins a turn and gives the session's id.
    async fn detach(&self, prompt: &str) -> String {
        let ran = self.ostler(&[&["run", "--detach"], &FAST[..], &[prompt]].concat()).await.expect(0);
        assert!(ran.err.is_empty(), "{ran:?}");
        ran.out.strip_suffix('\n').unwrap().to_owned()
    }

    /// A session where an approval waits, and the approval.
    async fn asking(&self) -> (String, String) {
        let session = self.detach(ASKS).await;
        let row = self.server.api().until_status(&session, "awaiting_approval").await;
        (session, row["pending_approval"]["id"].as_str().unwrap().to_owned())
    }

    async fn status(&self, session: &str) -> String {
        self.server.api().session(session).await["status"].as_str().unwrap().to_owned()
    }

    fn follow(&self, words: &[&str]) -> Following {
        let mut child = self.command(words).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Following { child, lines, seqs: Vec::new() }
    }
}

/// A command that prints events as they happen.
struct Following {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    seqs: Vec<i64>,
}

impl Following {
    /// Reads up to and with the next event of that type.
    async fn until(&mut self, kind: &str) -> Value {
        within(&format!("an event {kind}"), async {
            loop {
                let event = self.next().await.unwrap_or_else(|| panic!("no {kind} after {:?}", self.seqs));
                if event["type"] == kind {
                    return event;
                }
            }
        })
        .await
    }

    async fn next(&mut self) -> Option<Value> {
        let event: Value = serde_json::from_str(&self.lines.next_line().await.unwrap()?).unwrap();
        self.seqs.push(event["seq"].as_i64().unwrap());
        Some(event)
    }

    /// Reads to the end, makes sure that each event came once and in order, and gives the exit code.
    async fn end(mut self) -> i32 {
        let status = within("the command's end", async {
            while self.next().await.is_some() {}
            self.child.wait().await.unwrap()
        })
        .await;
        assert_eq!(self.seqs, (1..=self.seqs.len() as i64).collect::<Vec<_>>());
        status.code().unwrap()
    }
}

fn id_in<'a>(text: &'a str, prefix: &str) -> &'a str {
    let start = text.find(prefix).unwrap_or_else(|| panic!("no {prefix} in {text}"));
    text[start..].split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap()
}

#[tokio::test]
async fn run_streams_the_text_and_exits_with_7_where_nobody_can_be_asked() {
    let house = House::new().await;
    let ran = house.run(ASKS).await.expect(7);
    assert!(ran.out.starts_with("one two\n"), "{ran:?}");
    assert!(!ran.out.contains("done"), "{ran:?}");
    let (session, approval) = (id_in(&ran.err, "ses_"), id_in(&ran.err, "apr_"));
    for line in [
        "Approval needed: ",
        "\"command\": \"ls\"",
        &format!("  ostler approve {approval}\n"),
        &format!("  ostler deny {approval} --reason \"…\"\n"),
        &format!("ostler logs -f {session}"),
    ] {
        assert!(ran.err.contains(line), "{line} is missing in {}", ran.err);
    }
    let decided = house.ostler(&["approve", approval]).await.expect(0);
    assert!(decided.out.starts_with("approved: "), "{decided:?}");
    house.server.api().until_status(session, "idle").await;
    assert!(house.ostler(&["logs", "--transcript", session]).await.out.contains("done\n"));
}

#[tokio::test]
async fn a_session_where_one_approval_waits_stands_for_it() {
    let house = House::new().await;
    let (session, approval) = house.asking().await;
    let denied = house.ostler(&["deny", &session, "--reason", "not on a friday"]).await.expect(0);
    assert!(denied.out.starts_with("denied: ") && denied.out.contains(&approval), "{denied:?}");
    let row = house.server.api().get(&format!("/v1/approvals/{approval}")).await.expect(200);
    assert_eq!((row["status"].as_str(), row["reason"].as_str()), (Some("denied"), Some("not on a friday")));
    house.server.api().until_status(&session, "idle").await;
    house.ostler(&["approve", &session]).await.expect(5);
    let again = house.ostler(&["deny", &approval]).await.expect(0);
    assert!(again.out.starts_with("denied before: "), "{again:?}");
    let late = house.ostler(&["approve", &approval, "--json"]).await.expect(6);
    assert_eq!(late.problem()["code"], "approval_already_resolved");
}

#[tokio::test]
async fn of_several_approvals_one_must_be_named() {
    let house = House::new().await;
    let session = house.detach("/ask-all one {} | two {}").await;
    let api = house.server.api();
    let mut events = api.follow(&session, "").await;
    events.until("approval.requested").await;
    events.until("approval.requested").await;
    let several = house.ostler(&["approve", &session]).await.expect(6);
    assert!(several.err.contains("2 approvals wait"), "{several:?}");
    let listed = house.ostler(&["approvals", "--session", &session, "--json"]).await.expect(0).json();
    for approval in &listed {
        house.ostler(&["approve", approval["id"].as_str().unwrap()]).await.expect(0);
    }
    assert_eq!(listed.len(), 2);
    api.until_status(&session, "idle").await;
}

#[tokio::test]
async fn an_edited_input_is_what_runs() {
    let house = House::new().await;
    let (session, approval) = house.asking().await;
    house.ostler(&["approve", &approval, "--edited-input", r#"{"command":"pwd"}"#]).await.expect(0);
    house.server.api().until_status(&session, "idle").await;
    assert!(house.ostler(&["logs", &session]).await.expect(0).out.contains("pwd"));
}

#[tokio::test]
async fn a_session_goes_on_and_remembers_by_its_id_and_by_its_run_id() {
    let house = House::new().await;
    house.ostler(&["run", "--run-id", "my-run", "/remember blue"]).await.expect(0);
    let session = house.server.api().get("/v1/runs/my-run").await.expect(200);
    let session = session["id"].as_str().unwrap();
    for name in [session, "my-run"] {
        let ran = house.ostler(&["run", "--session", name, "/recall"]).await.expect(0);
        assert_eq!(ran.out, "blue\n", "{ran:?}");
    }
}

#[tokio::test]
async fn what_a_new_session_is_given_arrives() {
    let house = House::new().await;
    let words = "run --detach --json --title T --thread t1 --metadata a=b --metadata c=d=e --permission-mode allow_reads \
                 --turn-seconds 60 --approval-seconds 30 --instructions i hello";
    let ran = house.ostler(&words.split_whitespace().collect::<Vec<_>>()).await.expect(0);
    let [session] = ran.json().try_into().unwrap();
    assert_eq!(session["metadata"], json!({"a": "b", "c": "d=e"}));
    let texts = ["title", "thread_id", "permission_mode"].map(|name| session[name].as_str().unwrap());
    assert_eq!(texts, ["T", "t1", "allow_reads"]);
    let session = house.server.api().until_status(session["id"].as_str().unwrap(), "awaiting_approval").await;
    let approval = &session["pending_approval"];
    let time = |name: &str| chrono::DateTime::parse_from_rfc3339(approval[name].as_str().unwrap()).unwrap();
    assert_eq!((time("expires_at") - time("requested_at")).num_seconds(), 30);
    let refused = house.ostler(&["run", "--turn-seconds", "0", "hello", "--json"]).await.expect(1);
    assert_eq!(refused.problem()["code"], "invalid_input");
}

#[tokio::test]
async fn a_prompt_is_read_from_standard_input() {
    use tokio::io::AsyncWriteExt as _;
    let house = House::new().await;
    let mut command = house.command(&["run", "-"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"/say from a pipe\n").await.unwrap();
    let output = within("the turn", child.wait_with_output()).await.unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "from a pipe\n");
}

#[tokio::test]
async fn detached_the_sessions_id_alone_is_printed() {
    let house = House::new().await;
    let session = house.detach("/hang").await;
    assert!(session.starts_with("ses_") && !session.contains(char::is_whitespace), "{session:?}");
    assert_eq!(house.status(&session).await, "running");
}

#[tokio::test]
async fn with_json_run_prints_each_event_once_and_nothing_else() {
    let house = House::new().await;
    let ran = house.ostler(&["run", "--json", "/tokens 300\n/tool read {}\n/say done"]).await.expect(0);
    let events = ran.json();
    let session = events[0]["session_id"].as_str().unwrap();
    assert_eq!(events, house.server.api().events(session).await);
    let seqs: Vec<i64> = events.iter().map(|event| event["seq"].as_i64().unwrap()).collect();
    assert_eq!(seqs, (1..=events.len() as i64).collect::<Vec<_>>());
    assert_eq!(events.last().unwrap()["type"], "turn.completed");
    assert_eq!(ran.err, "");
    let waits = house.ostler(&["run", "--json", ASKS]).await.expect(7);
    let problem = waits.problem();
    assert_eq!(problem["code"], "approval_pending");
    assert_eq!(problem["approval_ids"][0], waits.json().last().unwrap()["data"]["approval"]["id"]);
}

#[tokio::test]
async fn a_turn_that_does_not_complete_exits_with_1_and_says_why() {
    let house = House::new().await;
    let ran = house.run("/say so far\n/fail harness_failed It fell over.").await.expect(1);
    assert_eq!(ran.out, "so far\n");
    assert!(ran.err.contains("turn failed: It fell over. (harness_failed)"), "{ran:?}");
}

#[tokio::test]
async fn logs_show_what_happened_as_events_and_as_a_conversation() {
    let house = House::new().await;
    let session = house.detach("/say hello there\n/tool read {\"path\":\"a\"}").await;
    let api = house.server.api();
    api.until_status(&session, "idle").await;
    let ran = house.ostler(&["logs", &session]).await.expect(0);
    for line in ["── turn started\n", "\nhello there\n", "\n→ read  {\"path\":\"a\"}\n", "── turn completed"]
    {
        assert!(ran.out.contains(line), "{line} is missing in {}", ran.out);
    }
    let events = api.events(&session).await;
    assert_eq!(house.ostler(&["logs", "--json", &session]).await.expect(0).json(), events);
    let rest = house.ostler(&["logs", "--json", "--after", "2", &session]).await.expect(0).json();
    assert_eq!(rest, events[2..]);
    let ran = house.ostler(&["logs", "--transcript", &session]).await.expect(0);
    assert!(ran.out.starts_with("> /say hello there\n") && ran.out.contains("✓ read\n"), "{ran:?}");
    let messages = house.ostler(&["logs", "--transcript", "--json", &session]).await.expect(0).json();
    assert_eq!(messages[0]["role"], "user");
    // What was destroyed can be read as long as it is not purged.
    house.ostler(&["rm", "-y", &session]).await.expect(0);
    assert_eq!(
        house.ostler(&["logs", "-f", "--json", &session]).await.expect(0).json().len(),
        events.len() + 1
    );
}

#[tokio::test]
async fn logs_follow_a_session_over_its_turns_until_it_is_destroyed() {
    let house = House::new().await;
    let (session, approval) = house.asking().await;
    let mut following = house.follow(&["logs", "-f", "--json", &session]);
    following.until("approval.requested").await;
    house.ostler(&["approve", &approval]).await.expect(0);
    following.until("turn.completed").await;
    house.ostler(&["run", "--session", &session, "/say more"]).await.expect(0);
    following.until("turn.completed").await;
    house.ostler(&["rm", "-y", &session]).await.expect(0);
    following.until("session.destroyed").await;
    assert_eq!(following.end().await, 0);
}

#[tokio::test]
async fn each_list_is_a_table_and_with_json_one_object_a_line() {
    let house = House::new().await;
    let (waiting, approval) = house.asking().await;
    let idle = house.server.api().create("/say hi").await["id"].as_str().unwrap().to_owned();
    let ids = |ran: Ran| -> Vec<String> {
        ran.json().iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
    };
    let ls = house.ostler(&["ls"]).await.expect(0);
    assert!(ls.out.starts_with("SESSION ") && ls.out.contains("awaiting_approval"), "{ls:?}");
    assert_eq!(ids(house.ostler(&["ls", "--json"]).await.expect(0)), [idle.clone(), waiting.clone()]);
    let filtered = house.ostler(&["ls", "--json", "--needs-approval", "--harness", "demo"]).await;
    assert_eq!(ids(filtered.expect(0)), [waiting.as_str()]);
    let cut = house.ostler(&["ls", "-n", "1"]).await.expect(0);
    assert!(cut.out.lines().count() == 2 && cut.err == "there are more: --all\n", "{cut:?}");
    let none = house.ostler(&["ls", "--status", "errored"]).await.expect(0);
    assert!(none.out.is_empty() && none.err.contains("no sessions"), "{none:?}");

    let inbox = house.ostler(&["approvals"]).await.expect(0);
    assert!(inbox.out.contains(&approval) && inbox.out.contains("pending"), "{inbox:?}");
    assert_eq!(ids(house.ostler(&["approvals", "--json", "--all"]).await.expect(0)), [approval.as_str()]);

    let shown = house.ostler(&["show", &waiting]).await.expect(0);
    for line in ["status      awaiting_approval\n", "harness     demo\n", "approval    "] {
        assert!(shown.out.contains(line), "{line} is missing in {}", shown.out);
    }
    assert!(shown.err.contains(&format!("ostler approve {approval}")), "{shown:?}");
    let [row] = house.ostler(&["show", "--json", &waiting]).await.expect(0).json().try_into().unwrap();
    assert_eq!(row, house.server.api().session(&waiting).await);

    let harnesses = house.ostler(&["harnesses"]).await.expect(0);
    assert!(harnesses.out.contains("\ndemo "), "{harnesses:?}");
    let harnesses = house.ostler(&["harnesses", "--json"]).await.expect(0).json();
    assert!(harnesses.iter().any(|row| row["name"] == "demo" && row["available"] == true));
}

#[tokio::test]
async fn cancel_stop_and_rm_do_what_they_say_and_do_it_again() {
    let house = House::new().await;
    let session = house.detach("/hang").await;
    let api = house.server.api();
    house.ostler(&["cancel", &session]).await.expect(0);
    api.until_status(&session, "idle").await;
    assert_eq!(house.ostler(&["cancel", "--json", &session]).await.expect(0).json().len(), 1);
    for _ in 0..2 {
        let stopped = house.ostler(&["stop", "--json", &session]).await.expect(0);
        assert_eq!(stopped.json().len(), 1);
    }
    assert_eq!(house.status(&session).await, "stopped");
    let unsure = house.ostler(&["rm", &session]).await.expect(2);
    assert!(unsure.err.contains("--yes"), "{unsure:?}");
    assert_eq!(house.status(&session).await, "stopped");
    for _ in 0..2 {
        assert_eq!(house.ostler(&["rm", "-y", &session]).await.expect(0).out, "destroyed\n");
    }
    assert_eq!(house.status(&session).await, "destroyed");
    house.ostler(&["logs", "--transcript", &session]).await.expect(0);
    house.ostler(&["run", "--session", &session, "more"]).await.expect(6);
    assert_eq!(house.ostler(&["rm", "--yes", "--purge", &session]).await.expect(0).out, "purged\n");
    house.ostler(&["show", &session]).await.expect(5);
}

#[tokio::test]
async fn a_busy_session_rejects_queues_or_is_interrupted_as_it_is_told() {
    let house = House::new().await;
    let api = house.server.api();
    let session = house.detach("/hang").await;
    let busy = house.ostler(&["prompt", &session, "/say no"]).await.expect(6);
    assert!(busy.err.contains("turn_in_progress") && busy.err.contains("--when-busy"), "{busy:?}");
    let queued = house.ostler(&["prompt", "--json", "--when-busy", "queue", &session, "/say last"]).await;
    let [last] = queued.expect(0).json().try_into().unwrap();
    assert_eq!(last["status"], "queued");
    let next = house.ostler(&["prompt", "--wait", "--when-busy", "interrupt", &session, "/say next"]).await;
    assert_eq!(next.expect(0).out, "next\n");
    api.until_status(&session, "idle").await;
    let turns = api.get(&format!("/v1/sessions/{session}/turns")).await.expect(200);
    let stand = |turn: &Value| (turn["prompt"].to_string(), turn["status"].as_str().unwrap().to_owned());
    let stands: Vec<_> = turns["data"].as_array().unwrap().iter().map(stand).collect();
    for (prompt, status) in [("/hang", "cancelled"), ("/say next", "completed"), ("/say last", "completed")] {
        assert!(
            stands.iter().any(|(said, stands)| said.contains(prompt) && stands == status),
            "{prompt} is not {status}: {stands:?}"
        );
    }
    let (waiting, approval) = house.asking().await;
    let refused = house.ostler(&["prompt", &waiting, "/say no"]).await.expect(7);
    assert!(refused.err.contains(&format!("ostler approve {approval}")), "{refused:?}");
    house.ostler(&["prompt", "--wait", "--when-busy", "interrupt", &waiting, "/say yes"]).await.expect(0);
}

#[tokio::test]
async fn prompt_waits_for_the_answer_when_it_is_told_to() {
    let house = House::new().await;
    let session = house.server.api().create("/remember blue").await["id"].as_str().unwrap().to_owned();
    let said = house.ostler(&["prompt", &session, "/recall", "--wait"]).await.expect(0);
    assert_eq!((said.out.as_str(), said.err.as_str()), ("blue\n", ""));
    let failed = house.ostler(&["prompt", &session, "/fail harness_failed Oh.", "--wait"]).await.expect(1);
    assert!(failed.err.contains("turn failed: Oh."), "{failed:?}");
    let turn = house.ostler(&["prompt", &session, "/say x", "--wait", "--json"]).await.expect(0).json();
    assert_eq!(turn[0]["text"], "x");
}

#[tokio::test]
async fn each_failure_has_the_exit_code_that_help_lists() {
    let house = House::new().await;
    let nowhere = format!("http://127.0.0.1:{}", free_port());
    for words in [&["ls"][..], &["run", "hi"], &["logs", "-f", "ses_1"], &["show", "ses_1"]] {
        let ran = house.ostler(&[words, &["--url", &nowhere]].concat()).await.expect(3);
        assert!(ran.err.contains(&format!("cannot reach {nowhere}: Connection refused")), "{ran:?}");
        assert!(ran.err.contains("hint: is `ostler serve` running"), "{ran:?}");
    }
    let wrong = house.ostler(&["ls", "--key", "ostler_key_0_wrong"]).await.expect(4);
    assert!(wrong.err.contains("(unauthenticated, req_") && wrong.err.contains("OSTLER_KEY"), "{wrong:?}");
    let mut keyless = house.command(&["ls", "--json"]);
    keyless.env("OSTLER_DATA_DIR", "/nowhere");
    assert_eq!(Ran::of(keyless).await.expect(4).problem()["code"], "unauthenticated");
    let absent = "ses_0197a0c0c0c07000a000a000a000a000";
    for words in
        [&["show"][..], &["logs"], &["logs", "-f"], &["logs", "--transcript"], &["cancel"], &["stop"]]
    {
        house.ostler(&[words, &[absent]].concat()).await.expect(5);
        house.ostler(&[words, &["no-such-run"]].concat()).await.expect(5);
    }
    house.ostler(&["approve", "apr_0197a0c0c0c07000a000a000a000a000"]).await.expect(5);
    house.ostler(&["run", "--session", absent, "hi"]).await.expect(5);
    house.ostler(&["run", "--run-id", "taken", "/say hi"]).await.expect(0);
    let taken = house.ostler(&["run", "--run-id", "taken", "/say hi"]).await.expect(6);
    assert!(taken.err.contains("run_exists"), "{taken:?}");
    let unknown = house.ostler(&["run", "-H", "nobody", "hi"]).await.expect(1);
    assert!(unknown.err.contains("`ostler harnesses`"), "{unknown:?}");
    for words in [
        &["run"][..],
        &["run", " "],
        &["run", "--metadata", "x", "hi"],
        &["run", "--session", "s", "--title", "t", "hi"],
        &["prompt", "s", "hi", "--when-busy", "shout"],
        &["ls", "--url", "ftp://x"],
        &["ls", "--status", "sleepy"],
        &["dance"],
    ] {
        house.ostler(words).await.expect(2);
    }
}

#[tokio::test]
async fn doctor_finds_everything_in_order_or_what_is_broken() {
    let house = House::new().await;
    let healthy = house.ostler(&["doctor"]).await.expect(0);
    for name in ["address", "alive", "ready", "version", "key", "demo"] {
        assert!(healthy.out.contains(&format!("ok    {name} ")), "{name}: {}", healthy.out);
    }
    let [report] = house.ostler(&["doctor", "--json"]).await.expect(0).json().try_into().unwrap();
    assert_eq!(report["ok"], true);
    let failed = |report: &Value| -> Vec<String> {
        let checks = report["checks"].as_array().unwrap().iter().filter(|check| check["status"] == "fail");
        checks.map(|check| check["name"].as_str().unwrap().to_owned()).collect()
    };
    let keyless = house.ostler(&["doctor", "--json", "--key", "ostler_key_0_wrong"]).await.expect(1);
    assert_eq!(failed(&keyless.json()[0]), ["key"]);
    std::fs::create_dir_all(house.home.path().join("closed/admin.key")).unwrap();
    let closed = house.ostler(&["doctor", "--data-dir", "closed"]).await.expect(1);
    assert!(closed.out.contains("(cannot read closed/admin.key: "), "{closed:?}");
    let nowhere = format!("http://127.0.0.1:{}", free_port());
    let dead = house.ostler(&["doctor", "--json", "--url", &nowhere]).await.expect(1);
    assert_eq!(failed(&dead.json()[0]), ["alive"]);
    let shown = house.ostler(&["doctor", "--url", &nowhere]).await.expect(1);
    assert!(shown.out.contains("→ start it with `ostler serve`"), "{shown:?}");
}

#[tokio::test]
async fn a_service_key_acts_for_the_owner_that_is_named() {
    let house = House::new().await;
    let key = house.home.make_key(&["--org", "acme", "--role", "service"]).await;
    let on_behalf = |owner: &'static str, words: &[&'static str]| {
        let mut command = house.command(words);
        command.env("OSTLER_KEY", &key).args(["--owner", owner]);
        Ran::of(command)
    };
    let nobody = house.ostler(&["run", "hi", "--key", &key]).await.expect(1);
    assert!(nobody.err.contains("owner_required") && nobody.err.contains("--owner"), "{nobody:?}");
    on_behalf("alice", &["run", "--run-id", "hers", "/say hi"]).await.expect(0);
    on_behalf("alice", &["show", "hers"]).await.expect(0);
    on_behalf("bob", &["show", "hers"]).await.expect(5);
    assert!(on_behalf("bob", &["ls"]).await.expect(0).out.is_empty());
    let all = house.ostler(&["ls", "--json", "--key", &key]).await.expect(0).json();
    assert_eq!((all.len(), all[0]["owner_id"].as_str()), (1, Some("alice")));
}

#[tokio::test]
async fn on_a_pipe_nothing_is_coloured_and_nothing_that_an_agent_says_commands_the_terminal() {
    let house = House::new().await;
    let evil = "/say \u{1b}[2J\u{1b}]0;pwned\u{7} \u{9b}31m \u{202e}evil\n/tool \u{1b}[1A {\"x\":\"\\u001b[2J\"}\n\
                /ask shell {\"command\":\"\\u001b[2K \\u202e\"}";
    let ran = house.run(evil).await.expect(7);
    let (session, approval) = (id_in(&ran.err, "ses_"), id_in(&ran.err, "apr_"));
    let mut shown = vec![("run", ran.out.clone() + &ran.err)];
    for words in [
        &["show", session][..],
        &["logs", session],
        &["logs", "--json", session],
        &["logs", "--transcript", session],
        &["logs", "--transcript", "--json", session],
        &["ls"],
        &["approvals"],
        &["approvals", "--json"],
        &["doctor"],
        &["harnesses"],
        &["show", "\u{1b}[2J"],
        &["deny", approval],
    ] {
        let mut command = house.command(words);
        command.env("TERM", "xterm-256color");
        let ran = Ran::of(command).await;
        shown.push((words[0], ran.out + &ran.err));
    }
    for (what, text) in shown {
        let is_safe =
            |c: char| c == '\n' || c == '\t' || !(c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c));
        assert!(text.chars().all(is_safe), "{what}: {text:?}");
    }
}

#[tokio::test]
async fn a_reader_that_has_enough_is_no_error() {
    let house = House::new().await;
    let session = house.detach("/tokens 2000").await;
    house.server.api().until_status(&session, "idle").await;
    let mut child = house.command(&["logs", "--json", &session]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(within("the end", child.wait()).await.unwrap().code(), Some(0));
}

#[tokio::test]
async fn following_outlasts_a_killed_service_and_shows_each_event_once() {
    let (home, port) = (Home::new(), free_port());
    let house = House { server: home.start_on(port).await, home };
    let session = house.detach("/tokens 100").await;
    let mut following = house.follow(&["logs", "-f", "--json", &session]);
    following.until("turn.completed").await;
    let House { home, server } = house;
    server.kill().await;
    let house = House { server: home.start_on(port).await, home };
    house.ostler(&["run", "--session", &session, "/say back"]).await.expect(0);
    following.until("turn.completed").await;
    house.ostler(&["rm", "-y", &session]).await.expect(0);
    assert_eq!(following.end().await, 0);
}

#[tokio::test]
async fn a_run_whose_service_is_killed_while_it_waits_goes_on_when_it_is_back() {
    let (home, port) = (Home::new(), free_port());
    let house = House { server: home.start_on(port).await, home };
    let words = ["run", "--json", "--wait-approvals", "--run-id", "mine", ASKS];
    let mut running = house.follow(&words);
    running.until("approval.requested").await;
    let House { home, server } = house;
    server.kill().await;
    let house = House { server: home.start_on(port).await, home };
    house.ostler(&["approve", "mine"]).await.expect(0);
    running.until("turn.completed").await;
    assert_eq!(running.end().await, 0);
    let session =
        house.server.api().get("/v1/runs/mine").await.expect(200)["id"].as_str().unwrap().to_owned();
    assert_eq!(house.home.effects(&session, "tool"), 1);
}

#[tokio::test]
async fn a_run_whose_service_is_killed_at_work_ends_with_the_interrupted_turn() {
    let (home, port) = (Home::new(), free_port());
    let house = House { server: home.start_on(port).await, home };
    let mut running = house.follow(&["run", "--json", "/tokens 1000000 100"]);
    running.until("text.delta").await;
    let House { home, server } = house;
    server.kill().await;
    let _server = home.start_on(port).await;
    running.until("turn.interrupted").await;
    assert_eq!(running.end().await, 1);
}
