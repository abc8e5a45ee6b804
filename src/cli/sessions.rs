//! Sessions: list, show, prompt, cancel, stop, destroy.

use clap::Args;
use serde_json::Value;

use super::client::{Answer, Client, session_path};
use super::error::{CliError, CliResult};
use super::pages::Pages;
use super::render::question;
use super::run::{WHEN_BUSY, begin_in, read_prompt};
use super::table::{Cell, Table, columns};
use super::terminal::{Look, Terminal, one_line};
use super::watch::{Manner, watch};
use super::when::{Moment, ago};
use super::{Exit, text_of};

/// `ostler ls`.
#[derive(Args, Clone, Debug)]
pub struct LsArgs {
    /// Only those with this status
    #[arg(long, value_parser = STATUSES)]
    status: Option<String>,

    /// Only those of this harness
    #[arg(short = 'H', long, value_name = "NAME")]
    harness: Option<String>,

    /// Only those of this thread
    #[arg(long, value_name = "ID")]
    thread: Option<String>,

    /// Only those where an approval waits
    #[arg(long)]
    needs_approval: bool,

    /// At most this many
    #[arg(short = 'n', long, default_value_t = 20, value_name = "N")]
    limit: usize,

    /// All of them
    #[arg(short, long, conflicts_with = "limit")]
    all: bool,
}

const STATUSES: [&str; 6] = ["idle", "running", "awaiting_approval", "stopped", "errored", "destroyed"];

/// What `ostler show`, `cancel` and `stop` take.
#[derive(Args, Clone, Debug)]
pub struct SessionArgs {
    /// Session id or run id
    #[arg(value_name = "SESSION")]
    id: String,
}

/// `ostler prompt`.
#[derive(Args, Clone, Debug)]
pub struct PromptArgs {
    /// Session id or run id
    #[arg(value_name = "SESSION")]
    id: String,

    /// What to tell the agent; `-` reads it from standard input
    prompt: String,

    /// What to do while another turn is at work [default: reject]
    #[arg(long, value_name = "WHAT", value_parser = WHEN_BUSY)]
    when_busy: Option<String>,

    /// Wait until the turn has ended and print what the agent said
    #[arg(short, long)]
    wait: bool,
}

/// `ostler rm`.
#[derive(Args, Clone, Debug)]
pub struct RmArgs {
    /// Session id or run id
    #[arg(value_name = "SESSION")]
    id: String,

    /// Erase everything, the transcript too
    #[arg(long)]
    purge: bool,

    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

/// Lists sessions.
pub(super) async fn ls(client: &Client, terminal: &mut Terminal, args: LsArgs) -> CliResult<Exit> {
    let filters = [("status", &args.status), ("harness", &args.harness), ("thread_id", &args.thread)];
    let mut query: Vec<(&str, String)> =
        filters.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))).collect();
    if args.needs_approval {
        query.push(("needs_approval", "true".to_owned()));
    }
    let pages = Pages::new(client, vec!["v1", "sessions"], query, (!args.all).then_some(args.limit));
    let table = Table::new(&["SESSION", "STATUS", "HARNESS", "TITLE", "ACTIVE"], 3);
    pages.show(terminal, table, row, "no sessions; begin one with: ostler run \"…\"").await
}

fn row(session: &Value, now: Option<Moment>) -> [Cell; 5] {
    let status = text_of(session, "status");
    [
        text_of(session, "id").into(),
        Cell::new(status, status_look(status)),
        text_of(session, "harness").into(),
        text_of(session, "title").into(),
        ago(text_of(session, "last_active_at"), now).into(),
    ]
}

fn status_look(status: &str) -> Look {
    match status {
        "running" => Look::Green,
        "awaiting_approval" => Look::Yellow,
        "errored" => Look::Red,
        "stopped" | "destroyed" => Look::Dim,
        _ => Look::Plain,
    }
}

/// Shows a session.
pub(super) async fn show(client: &Client, terminal: &mut Terminal, args: SessionArgs) -> CliResult<Exit> {
    let answer = client.get(&session_path(&args.id, &[]), &[]).await?;
    if terminal.json {
        terminal.json_line(&answer.body)?;
        return Ok(Exit::Ok);
    }
    let session = &answer.body;
    let now = answer.now.filter(|_| terminal.on_screen());
    terminal.line(&one_line(text_of(session, "title")), Look::Bold)?;
    for (name, value) in facts(session, now) {
        if !value.is_empty() {
            let gap = " ".repeat(12_usize.saturating_sub(columns(name)));
            terminal.line(&format!("  {name}{gap}{}", one_line(&value)), Look::Plain)?;
        }
    }
    let approval = &session["pending_approval"];
    if !approval.is_null() {
        let count = session["pending_approval_count"].as_i64().unwrap_or(1);
        let more = if count > 1 { format!(" and {} more", count - 1) } else { String::new() };
        terminal.line(&format!("  approval    {}{more}", question(approval)), Look::Yellow)?;
        super::approvals::tell_how_to_decide(terminal, approval)?;
    }
    Ok(Exit::Ok)
}

fn facts(session: &Value, now: Option<Moment>) -> Vec<(&'static str, String)> {
    let text = |name: &str| text_of(session, name).to_owned();
    let time = |name: &str| session[name].as_str().map(|at| ago(at, now)).unwrap_or_default();
    let status = match text_of(session, "stop_cause") {
        "" => text("status"),
        cause => format!("{} ({cause})", text_of(session, "status")),
    };
    let usage = &session["usage"];
    let at_least = if usage["complete"] == false { "at least " } else { "" };
    let tokens = format!("{at_least}{} in, {} out", usage["input_tokens"], usage["output_tokens"]);
    let turn = &session["turn"];
    let error = match text_of(&turn["error"], "message") {
        "" => String::new(),
        message => format!(": {message} ({})", text_of(&turn["error"], "code")),
    };
    let turn = match turn["ordinal"].as_i64() {
        Some(ordinal) => {
            format!("{} · {ordinal} · {}{error}", text_of(turn, "id"), text_of(turn, "status"))
        }
        None => String::new(),
    };
    let queued = session["queued_turns"].as_i64().filter(|count| *count > 0);
    vec![
        ("session", text("id")),
        ("run", text("run_id")),
        ("thread", text("thread_id")),
        ("status", status),
        ("harness", text("harness")),
        ("owner", format!("{} · {}", text_of(session, "owner_id"), text_of(session, "org_id"))),
        ("permissions", text("permission_mode")),
        ("workspace", text("workspace")),
        ("created", time("created_at")),
        ("active", time("last_active_at")),
        ("tokens", tokens),
        ("turn", turn),
        ("queued", queued.map(|count| count.to_string()).unwrap_or_default()),
    ]
}

/// Gives a session its next prompt.
pub(super) async fn prompt(client: &Client, terminal: &mut Terminal, args: PromptArgs) -> CliResult<Exit> {
    let prompt = read_prompt(&args.prompt)?;
    let (begun, turn) = begin_in(client, &args.id, &prompt, args.when_busy.as_deref()).await?;
    if !args.wait {
        return tell_turn(terminal, &turn).map(|()| Exit::Ok);
    }
    let exit = watch(client, terminal, &begun, Manner { quiet: true, wait_approvals: false }).await?;
    if !matches!(exit, Exit::Ok | Exit::Failed) {
        return Ok(exit);
    }
    let turn = client.get(&session_path(&begun.session, &["turns", &begun.turn]), &[]).await?.body;
    if terminal.json {
        terminal.json_line(&turn)?;
        return Ok(exit);
    }
    terminal.text(text_of(&turn, "text"), Look::Plain)?;
    terminal.end_line()?;
    if exit != Exit::Ok {
        let error = &turn["error"];
        let why = if error.is_null() { String::new() } else { format!(": {}", text_of(error, "message")) };
        terminal.note(&format!("turn {}{why}", text_of(&turn, "status")), Look::Red)?;
    }
    Ok(exit)
}

fn tell_turn(terminal: &mut Terminal, turn: &Value) -> CliResult<()> {
    if terminal.json {
        return terminal.json_line(turn);
    }
    terminal.line(&format!("{} {}", text_of(turn, "id"), text_of(turn, "status")), Look::Plain)
}

/// Cancels the turn at work.
pub(super) async fn cancel(client: &Client, terminal: &mut Terminal, args: SessionArgs) -> CliResult<Exit> {
    let answer = client.post(&session_path(&args.id, &["cancel"]), None).await?;
    tell_wish(terminal, &answer, "cancelled", "the turn is about to be cancelled")
}

/// Stops a session.
pub(super) async fn stop(client: &Client, terminal: &mut Terminal, args: SessionArgs) -> CliResult<Exit> {
    let answer = client.post(&session_path(&args.id, &["stop"]), None).await?;
    tell_wish(terminal, &answer, "stopped", "the session is about to be stopped")
}

/// A wish is recorded at once, and carried out by the replica that holds the session.
fn tell_wish(terminal: &mut Terminal, answer: &Answer, done: &str, recorded: &str) -> CliResult<Exit> {
    if terminal.json {
        terminal.json_line(&answer.body)?;
    } else {
        terminal.line(if answer.status == 202 { recorded } else { done }, Look::Plain)?;
    }
    Ok(Exit::Ok)
}

/// Destroys a session.
pub(super) async fn rm(client: &Client, terminal: &mut Terminal, args: RmArgs) -> CliResult<Exit> {
    if !args.yes && !confirm(terminal, &args).await? {
        terminal.note("nothing was done", Look::Dim)?;
        return Ok(Exit::Failed);
    }
    let query = if args.purge { vec![("purge", "true".to_owned())] } else { Vec::new() };
    client.delete(&session_path(&args.id, &[]), &query).await?;
    if !terminal.json {
        terminal.line(if args.purge { "purged" } else { "destroyed" }, Look::Plain)?;
    }
    Ok(Exit::Ok)
}

async fn confirm(terminal: &mut Terminal, args: &RmArgs) -> CliResult<bool> {
    if terminal.person.is_none() {
        return Err(CliError::Usage("nobody can be asked here: pass --yes".to_owned()));
    }
    let what = if args.purge { "and its transcript? Nothing of it stays" } else { "? Its transcript stays" };
    let what = format!("Destroy {}{}{what}. [y/N]", args.id, if args.purge { " " } else { "" });
    terminal.question(&what)?;
    let Some(person) = &mut terminal.person else { return Ok(false) };
    let line = person.line().await.unwrap_or_default();
    Ok(matches!(line.trim().to_lowercase().as_str(), "y" | "yes"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::stub::{Reply, Seen, Stub, event, frame};
    use super::*;

    fn session(id: &str, status: &str, title: &str) -> Value {
        json!({"id": id, "run_id": "run_1", "thread_id": null, "org_id": "acme", "owner_id": "alice@example.com",
               "harness": "demo", "title": title, "status": status, "live": true, "resumable": true, "stop_cause": null,
               "pending_approval": null, "pending_approval_count": 0, "turn": null, "queued_turns": 0,
               "usage": {"input_tokens": 12, "output_tokens": 34, "total_tokens": 46, "complete": true},
               "permission_mode": "ask", "workspace": "/space/1", "metadata": {}, "last_event_seq": 5,
               "created_at": "2025-07-01T11:57:00.000Z", "last_active_at": "2025-07-01T11:59:30.000Z"})
    }

    fn ls_args() -> LsArgs {
        LsArgs { status: None, harness: None, thread: None, needs_approval: false, limit: 20, all: false }
    }

    fn two() -> [Value; 2] {
        [
            session("ses_1", "awaiting_approval", "Fix the failing test that nobody wanted to look at"),
            session("ses_2", "idle", "Say\nhello\x1b"),
        ]
    }

    #[tokio::test]
    async fn sessions_are_a_table_that_fits_the_screen() {
        let stub = Stub::start([Reply::page(two())]).await;
        let (mut terminal, out, _) = Terminal::kept(false, Some(70));
        ls(&stub.client(), &mut terminal, ls_args()).await.unwrap();
        insta::assert_snapshot!(out.text(), @"
        SESSION  STATUS             HARNESS  TITLE                     ACTIVE
        ses_1    awaiting_approval  demo     Fix the failing test th…  30s ago
        ses_2    idle               demo     Say hello�                30s ago
        ");
    }

    #[tokio::test]
    async fn on_a_pipe_nothing_is_cut_and_times_are_exact() {
        let stub = Stub::start([Reply::page(two())]).await;
        let (mut terminal, out, _) = Terminal::kept(false, None);
        ls(&stub.client(), &mut terminal, ls_args()).await.unwrap();
        assert!(out.text().contains("Fix the failing test that nobody wanted to look at"), "{}", out.text());
        assert!(out.text().contains("2025-07-01T11:59:30.000Z"));
    }

    #[tokio::test]
    async fn filters_reach_the_service_and_json_is_one_object_a_line() {
        let stub = Stub::start([Reply::page(two())]).await;
        let (mut terminal, out, err) = Terminal::kept(true, None);
        let args = LsArgs {
            status: Some("idle".into()),
            harness: Some("demo".into()),
            thread: Some("t 1".into()),
            needs_approval: true,
            ..ls_args()
        };
        ls(&stub.client(), &mut terminal, args).await.unwrap();
        let target = "GET /v1/sessions?status=idle&harness=demo&thread_id=t+1&needs_approval=true&limit=20";
        assert_eq!(stub.lines(), [target]);
        let lines: Vec<Value> = out.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((lines.as_slice(), err.text().as_str()), (&two()[..], ""));
    }

    #[tokio::test]
    async fn a_session_is_shown_with_what_waits_in_it() {
        let mut shown = session("ses_1", "awaiting_approval", "Fix it");
        shown["pending_approval"] = json!({"id": "apr_1", "title": "Run: ls", "tool": "shell"});
        shown["pending_approval_count"] = json!(2);
        shown["turn"] = json!({"id": "trn_1", "ordinal": 1, "status": "awaiting_approval", "error": null});
        let stub = Stub::start([Reply::json(200, shown)]).await;
        let (mut terminal, out, err) = Terminal::kept(false, Some(80));
        show(&stub.client(), &mut terminal, SessionArgs { id: "ses_1".into() }).await.unwrap();
        insta::assert_snapshot!(out.text(), @"
        Fix it
          session     ses_1
          run         run_1
          status      awaiting_approval
          harness     demo
          owner       alice@example.com · acme
          permissions ask
          workspace   /space/1
          created     3m ago
          active      30s ago
          tokens      12 in, 34 out
          turn        trn_1 · 1 · awaiting_approval
          approval    Run: ls and 1 more
        ");
        assert!(err.text().contains("ostler approve apr_1"));
    }

    #[tokio::test]
    async fn a_prompt_returns_at_once_or_waits_for_the_words() {
        let answer = |seen: &Seen| match seen.line().as_str() {
            "GET /v1/sessions/ses_1" => Reply::json(200, session("ses_1", "idle", "T")),
            "POST /v1/sessions/ses_1/prompts" => Reply::json(202, json!({"id": "trn_1", "status": "queued"})),
            "GET /v1/sessions/ses_1/turns/trn_1" => {
                Reply::json(200, json!({"id": "trn_1", "status": "completed", "text": "Hello."}))
            }
            _ => {
                let events = [
                    event(6, "text.delta", json!({"text": "Hel"})),
                    event(7, "turn.completed", json!({"stop_reason": "end_turn"})),
                ];
                Reply::Stream { frames: events.iter().map(frame).collect(), cut: false }
            }
        };
        let stub = Stub::serve(answer).await;
        for (wait, expected) in [(false, "trn_1 queued\n"), (true, "Hello.\n")] {
            let (mut terminal, out, _) = Terminal::kept(false, None);
            let args = PromptArgs { id: "ses_1".into(), prompt: "hi".into(), when_busy: None, wait };
            assert_eq!(prompt(&stub.client(), &mut terminal, args).await.unwrap(), Exit::Ok);
            assert_eq!(out.text(), expected);
        }
    }

    #[tokio::test]
    async fn a_wish_that_is_only_recorded_is_not_called_done() {
        let stub = Stub::start([Reply::json(200, json!({})), Reply::json(202, json!({}))]).await;
        let (mut terminal, out, _) = Terminal::kept(false, None);
        cancel(&stub.client(), &mut terminal, SessionArgs { id: "ses_1".into() }).await.unwrap();
        stop(&stub.client(), &mut terminal, SessionArgs { id: "my-run".into() }).await.unwrap();
        assert_eq!(out.text(), "cancelled\nthe session is about to be stopped\n");
        assert_eq!(stub.lines(), ["POST /v1/sessions/ses_1/cancel", "POST /v1/runs/my-run/stop"]);
    }

    #[tokio::test]
    async fn nothing_is_destroyed_without_a_yes() {
        let rm_args = |yes| RmArgs { id: "ses_1".into(), purge: true, yes };
        let stub = Stub::start((0..2).map(|_| Reply::raw(204, "text/plain", ""))).await;
        let (mut terminal, _, _) = Terminal::kept(false, None);
        assert_eq!(
            rm(&stub.client(), &mut terminal, rm_args(false)).await.unwrap_err().exit(),
            Exit::Usage,
            "nobody to ask"
        );
        let (terminal, _, err) = Terminal::kept(false, Some(80));
        let mut terminal = terminal.with_person(&["", "yes"]);
        assert_eq!(rm(&stub.client(), &mut terminal, rm_args(false)).await.unwrap(), Exit::Failed);
        assert_eq!(stub.requests().len(), 0);
        assert_eq!(rm(&stub.client(), &mut terminal, rm_args(false)).await.unwrap(), Exit::Ok);
        assert!(err.text().starts_with("Destroy ses_1 and its transcript? Nothing of it stays. [y/N] "));
        let (mut terminal, out, _) = Terminal::kept(false, None);
        rm(&stub.client(), &mut terminal, rm_args(true)).await.unwrap();
        assert_eq!(out.text(), "purged\n");
        assert_eq!(stub.lines(), ["DELETE /v1/sessions/ses_1?purge=true"; 2]);
    }
}
