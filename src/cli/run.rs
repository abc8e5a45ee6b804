//! `ostler run`: a prompt, and its turn as it happens.

use std::io::Read;

use clap::Args;
use serde_json::{Value, json};

use super::client::{Client, session_path};
use super::error::{CliError, CliResult};
use super::terminal::{Look, Terminal};
use super::watch::{Begun, Manner, prompt_body, watch};
use super::{Exit, json_object, text_of};

/// The harness of a newcomer.
const DEFAULT_HARNESS: &str = "demo";

/// `ostler run`.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// What to tell the agent; `-` reads it from standard input
    prompt: String,

    /// Go on with this session, by id or run id, instead of creating one
    #[arg(short, long, value_name = "SESSION")]
    session: Option<String>,

    /// What to do while another turn is at work [default: reject]
    #[arg(long, value_name = "WHAT", requires = "session", value_parser = WHEN_BUSY)]
    when_busy: Option<String>,

    /// Print the session's id and return; the turn goes on by itself
    #[arg(short, long)]
    detach: bool,

    /// Without a terminal, wait until an approval is decided elsewhere instead of exiting with 7
    #[arg(long)]
    wait_approvals: bool,

    #[command(flatten)]
    create: CreateArgs,
}

/// What only a new session takes.
#[derive(Args, Clone, Debug)]
#[group(conflicts_with = "session")]
#[command(next_help_heading = "New session")]
struct CreateArgs {
    /// Harness, as `ostler harnesses` lists them [default: demo]
    #[arg(short = 'H', long, value_name = "NAME")]
    harness: Option<String>,

    /// Thread that the session belongs to
    #[arg(long, value_name = "ID")]
    thread: Option<String>,

    /// Your own id for the session, unique in the org
    #[arg(long, value_name = "ID")]
    run_id: Option<String>,

    /// Title [default: the beginning of the prompt]
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,

    /// Metadata to keep with the session; may be given more than once
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    metadata: Vec<(String, String)>,

    /// Directory to work in, inside a root that the operator allows [default: a fresh one]
    #[arg(long, value_name = "PATH")]
    workspace: Option<String>,

    /// What is allowed without asking; this trusts what the agent says about its own tools [default: ask]
    #[arg(long, value_name = "MODE", value_parser = PERMISSION_MODES)]
    permission_mode: Option<String>,

    /// What becomes of the session when its agent cannot take its conversation up: go on without it, or fail [default: fresh]
    #[arg(long, value_name = "fresh|fail", value_parser = ["fresh", "fail"])]
    on_context_loss: Option<String>,

    /// Seconds that a turn may work; waiting for a person does not count [default: 900]
    #[arg(long, value_name = "SECONDS")]
    turn_seconds: Option<u64>,

    /// Seconds that an approval waits before it counts as denied; 0 for ever [default: 86400]
    #[arg(long, value_name = "SECONDS")]
    approval_seconds: Option<u64>,

    /// System instructions, where the harness supports them
    #[arg(long, value_name = "TEXT")]
    instructions: Option<String>,

    /// Settings of the harness
    #[arg(long, value_name = "JSON", value_parser = json_object)]
    settings: Option<Value>,
}

const PERMISSION_MODES: [&str; 4] = ["ask", "allow_reads", "allow_edits", "allow_all"];
/// What a session that is busy does with a prompt.
pub(super) const WHEN_BUSY: [&str; 3] = ["reject", "queue", "interrupt"];

/// Begins a turn and watches it.
pub(super) async fn run(client: &Client, terminal: &mut Terminal, args: RunArgs) -> CliResult<Exit> {
    let prompt = read_prompt(&args.prompt)?;
    let begun = tokio::select! {
        begun = begin(client, &args, &prompt) => begun?,
        pressed = tokio::signal::ctrl_c() => {
            pressed?;
            let text = "interrupted before the answer came; `ostler ls` shows whether the turn was begun";
            terminal.note(text, Look::Yellow)?;
            return Ok(Exit::Interrupted);
        }
    };
    let (begun, answer) = begun;
    if args.detach {
        match terminal.json {
            true => terminal.json_line(&answer)?,
            false => terminal.line(&begun.session, Look::Plain)?,
        }
        return Ok(Exit::Ok);
    }
    terminal.note(&begun.session, Look::Dim)?;
    watch(client, terminal, &begun, Manner { quiet: false, wait_approvals: args.wait_approvals }).await
}

async fn begin(client: &Client, args: &RunArgs, prompt: &str) -> CliResult<(Begun, Value)> {
    match &args.session {
        Some(session) => begin_in(client, session, prompt, args.when_busy.as_deref()).await,
        None => create(client, args, prompt).await,
    }
}

async fn create(client: &Client, args: &RunArgs, prompt: &str) -> CliResult<(Begun, Value)> {
    let create = &args.create;
    let mut body = prompt_body(prompt)?;
    body["harness"] = json!(create.harness.as_deref().unwrap_or(DEFAULT_HARNESS));
    let optional = [
        ("thread_id", json!(create.thread)),
        ("run_id", json!(create.run_id)),
        ("title", json!(create.title)),
        ("workspace", json!(create.workspace)),
        ("permission_mode", json!(create.permission_mode)),
        ("on_context_loss", json!(create.on_context_loss)),
        ("instructions", json!(create.instructions)),
        ("settings", json!(create.settings)),
    ];
    for (name, value) in optional {
        if !value.is_null() {
            body[name] = value;
        }
    }
    for (key, value) in &create.metadata {
        body["metadata"][key] = json!(value);
    }
    for (name, seconds) in
        [("turn_seconds", create.turn_seconds), ("approval_seconds", create.approval_seconds)]
    {
        if let Some(seconds) = seconds {
            body["limits"][name] = json!(seconds);
        }
    }
    let session = client.post(&["v1", "sessions"], Some(&body)).await?.body;
    let begun = Begun { session: id_of(&session)?, turn: id_of(&session["turn"])?, after: 0 };
    Ok((begun, session))
}

fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("must be KEY=VALUE".to_owned()),
    }
}

/// Gives a session its next prompt. The answer is the turn.
pub(super) async fn begin_in(
    client: &Client,
    session: &str,
    prompt: &str,
    when_busy: Option<&str>,
) -> CliResult<(Begun, Value)> {
    let mut body = prompt_body(prompt)?;
    if let Some(when_busy) = when_busy {
        body["when_busy"] = json!(when_busy);
    }
    // Whatever the turn does comes after what has happened by now.
    let before = client.get(&session_path(session, &[]), &[]).await?.body;
    let session = id_of(&before)?;
    let after = before["last_event_seq"].as_i64().unwrap_or_default();
    let turn = client.post(&session_path(&session, &["prompts"]), Some(&body)).await?.body;
    let begun = Begun { turn: id_of(&turn)?, session, after };
    Ok((begun, turn))
}

fn id_of(value: &Value) -> CliResult<String> {
    match text_of(value, "id") {
        "" => Err(CliError::Unexpected("the answer names no id".to_owned())),
        id => Ok(id.to_owned()),
    }
}

/// The prompt as it was given, or all of standard input.
pub(super) fn read_prompt(given: &str) -> CliResult<String> {
    if given != "-" {
        return Ok(given.to_owned());
    }
    let mut prompt = String::new();
    std::io::stdin().read_to_string(&mut prompt).map_err(|error| {
        CliError::Usage(format!("the prompt cannot be read from standard input: {error}"))
    })?;
    Ok(prompt)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::stub::{Reply, Stub, event, frame};
    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        run: RunArgs,
    }

    fn args(words: &[&str]) -> RunArgs {
        Line::try_parse_from([&["run"], words].concat()).unwrap().run
    }

    fn turn_of(seqs: std::ops::RangeInclusive<i64>) -> Reply {
        let last = *seqs.end();
        let kind = |seq| if seq == last { "turn.completed" } else { "text.delta" };
        let data = |seq| json!({"text": format!("{seq} "), "stop_reason": "end_turn"});
        let frames = seqs.map(|seq| frame(&event(seq, kind(seq), data(seq)))).collect();
        Reply::Stream { frames, cut: false }
    }

    #[tokio::test]
    async fn a_new_session_is_created_and_its_turn_is_streamed() {
        let created = json!({"id": "ses_1", "turn": {"id": "trn_1"}});
        let stub = Stub::start([Reply::json(201, created), turn_of(1..=3)]).await;
        let (mut terminal, out, err) = Terminal::kept(false, None);
        let words = "-H codex --title T --thread t1 --settings {\"model\":\"x\"} --metadata a=b --metadata c=d=e \
                     --turn-seconds 60 --approval-seconds 0 hi";
        let words: Vec<&str> = words.split_whitespace().collect();
        let exit = run(&stub.client(), &mut terminal, args(&words)).await.unwrap();
        assert_eq!((exit, out.text().as_str()), (Exit::Ok, "1 2 \n"));
        assert_eq!(err.text(), "ses_1\nturn completed (end_turn)\n");
        assert_eq!(stub.lines(), ["POST /v1/sessions", "GET /v1/sessions/ses_1/events?after=0"]);
        let body = json!({"harness": "codex", "prompt": "hi", "title": "T", "thread_id": "t1", "settings": {"model": "x"},
                          "metadata": {"a": "b", "c": "d=e"}, "limits": {"turn_seconds": 60, "approval_seconds": 0}});
        assert_eq!(stub.requests()[0].body, body);
    }

    #[tokio::test]
    async fn a_session_goes_on_and_only_the_new_turn_is_streamed() {
        let session = json!({"id": "ses_1", "last_event_seq": 41});
        let stub = Stub::start([
            Reply::json(200, session),
            Reply::json(202, json!({"id": "trn_1"})),
            turn_of(42..=43),
        ])
        .await;
        let (mut terminal, out, _) = Terminal::kept(false, None);
        let words = ["--session", "my-run", "--when-busy", "queue", "go on"];
        run(&stub.client(), &mut terminal, args(&words)).await.unwrap();
        assert_eq!(out.text(), "42 \n");
        let lines = [
            "GET /v1/runs/my-run",
            "POST /v1/sessions/ses_1/prompts",
            "GET /v1/sessions/ses_1/events?after=41",
        ];
        assert_eq!(stub.lines(), lines);
        assert_eq!(stub.requests()[1].body, json!({"prompt": "go on", "when_busy": "queue"}));
    }

    #[tokio::test]
    async fn detached_the_id_alone_is_printed() {
        let created = json!({"id": "ses_1", "turn": {"id": "trn_1"}});
        let stub = Stub::start([Reply::json(201, created)]).await;
        let (mut terminal, out, err) = Terminal::kept(false, None);
        run(&stub.client(), &mut terminal, args(&["--detach", "hi"])).await.unwrap();
        assert_eq!((out.text().as_str(), err.text().as_str()), ("ses_1\n", ""));
        assert_eq!(stub.requests()[0].body, json!({"harness": "demo", "prompt": "hi"}));
    }

    #[tokio::test]
    async fn a_blank_prompt_is_a_usage_error_that_bothers_no_service() {
        let stub = Stub::start([]).await;
        let (mut terminal, _, _) = Terminal::kept(false, None);
        let error = run(&stub.client(), &mut terminal, args(&[" \n"])).await.unwrap_err();
        assert_eq!((error.exit(), stub.requests().len()), (Exit::Usage, 0));
    }

    #[test]
    fn what_only_a_new_session_takes_does_not_go_with_an_old_one() {
        for word in [
            "--harness",
            "--thread",
            "--run-id",
            "--title",
            "--workspace",
            "--instructions",
            "--turn-seconds",
        ] {
            assert!(Line::try_parse_from(["run", "--session", "s", word, "7", "hi"]).is_err(), "{word}");
        }
        assert!(Line::try_parse_from(["run", "--when-busy", "queue", "hi"]).is_err());
        assert!(Line::try_parse_from(["run", "--settings", "[]", "hi"]).is_err());
        assert!(Line::try_parse_from(["run", "--metadata", "novalue", "hi"]).is_err());
    }
}
