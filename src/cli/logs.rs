//! `ostler logs`: what happened in a session, as events or as a conversation.

use clap::Args;
use serde_json::Value;

use super::client::{Client, session_path};
use super::error::CliResult;
use super::pages::Pages;
use super::render::{Renderer, brief, question};
use super::sse::Event;
use super::terminal::{Look, Terminal, one_line};
use super::watch::follow;
use super::{Exit, text_of};

/// How many events are read at once.
const PAGE: u32 = 200;

/// `ostler logs`.
#[derive(Args, Clone, Debug)]
pub struct LogsArgs {
    /// Session id or run id
    #[arg(value_name = "SESSION")]
    id: String,

    /// Keep showing events as they happen, until the session is destroyed
    #[arg(short, long)]
    follow: bool,

    /// Begin after the event with this number
    #[arg(long, value_name = "SEQ", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
    after: i64,

    /// Show the conversation instead of events: who said what, and what was done
    #[arg(long, conflicts_with_all = ["follow", "after"])]
    transcript: bool,
}

/// Shows what happened.
pub(super) async fn logs(client: &Client, terminal: &mut Terminal, args: LogsArgs) -> CliResult<Exit> {
    if args.transcript {
        return transcript(client, terminal, &args.id).await;
    }
    if args.follow {
        // A stream is tried again for long: what cannot be reached, or does not exist, is told at once.
        client.get(&session_path(&args.id, &[]), &[]).await?;
        return follow(client, terminal, &args.id, args.after).await;
    }
    let path = session_path(&args.id, &["events"]);
    let (mut renderer, mut after) = (Renderer::default(), args.after);
    loop {
        let query = [("after", after.to_string()), ("limit", PAGE.to_string())];
        let mut page = client.get(&path, &query).await?;
        for event in page.take_list()?.into_iter().filter_map(Event::read) {
            after = after.max(event.seq);
            renderer.log(terminal, &event)?;
        }
        if page.body["next_cursor"].is_null() {
            terminal.end_line()?;
            return Ok(Exit::Ok);
        }
    }
}

async fn transcript(client: &Client, terminal: &mut Terminal, id: &str) -> CliResult<Exit> {
    let mut pages = Pages::new(client, session_path(id, &["transcript"]), Vec::new(), None);
    while let Some(page) = pages.next().await? {
        for message in &page.items {
            if terminal.json {
                terminal.json_line(message)?;
            } else {
                show_message(terminal, message)?;
            }
        }
    }
    Ok(Exit::Ok)
}

/// Shows a message of the transcript: speech with who said it, anything else on a line.
fn show_message(terminal: &mut Terminal, message: &Value) -> CliResult<()> {
    match text_of(message, "role") {
        "user" => {
            let text = text_of(message, "text");
            for line in text.lines() {
                terminal.line(&format!("> {line}"), Look::Bold)?;
            }
            Ok(())
        }
        "assistant" => terminal.line(text_of(message, "text"), Look::Plain),
        "tool" => {
            let (mark, look) = match text_of(message, "status") {
                "started" => ("→", Look::Cyan),
                "failed" => ("✗", Look::Red),
                _ => ("✓", Look::Green),
            };
            terminal.line(&format!("{mark} {}", one_line(text_of(message, "name"))), look)?;
            for name in ["input", "result"] {
                let value = brief(&message[name]);
                if !value.is_empty() {
                    terminal.line(&format!("  {name}: {}", one_line(&value)), Look::Dim)?;
                }
            }
            Ok(())
        }
        "approval" => {
            let approval = &message["approval"];
            let by = approval["decided_by"].as_str().map(|who| format!(" by {who}")).unwrap_or_default();
            let text = format!("── {}{by}: {}", text_of(approval, "status"), question(approval));
            terminal.line(&one_line(&text), Look::Yellow)
        }
        other => terminal.line(&format!("· {other} {}", brief(message)), Look::Dim),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::stub::{Reply, Stub, event, frame};
    use super::*;

    fn delta(seq: i64) -> Value {
        event(seq, "text.delta", json!({"text": format!("{seq} ")}))
    }

    fn args(follow: bool, after: i64, transcript: bool) -> LogsArgs {
        LogsArgs { id: "ses_1".into(), follow, after, transcript }
    }

    #[tokio::test]
    async fn all_pages_of_events_are_read_from_the_given_seq_on() {
        let first: Vec<Value> = (8..208).map(delta).collect();
        let first = Reply::json(200, json!({"data": first, "next_cursor": "207"}));
        let stub = Stub::start([first, Reply::page((208..=210).map(delta))]).await;
        let (mut terminal, out, _) = Terminal::kept(true, None);
        logs(&stub.client(), &mut terminal, args(false, 7, false)).await.unwrap();
        let seqs: Vec<i64> = out
            .text()
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["seq"].as_i64().unwrap())
            .collect();
        assert_eq!(seqs, (8..=210).collect::<Vec<_>>());
        let lines = [
            "GET /v1/sessions/ses_1/events?after=7&limit=200",
            "GET /v1/sessions/ses_1/events?after=207&limit=200",
        ];
        assert_eq!(stub.lines(), lines);
    }

    #[tokio::test]
    async fn following_outlasts_a_cut_and_ends_with_the_session() {
        let frames =
            |events: &[Value]| format!("retry: 0\n\n{}", events.iter().map(frame).collect::<String>());
        let stub = Stub::start([
            Reply::json(200, json!({"id": "ses_1"})),
            Reply::Stream { frames: frames(&[delta(4), delta(5)]), cut: true },
            Reply::Stream { frames: frames(&[event(6, "session.destroyed", json!({}))]), cut: false },
        ])
        .await;
        let (mut terminal, out, _) = Terminal::kept(false, None);
        let exit = logs(&stub.client(), &mut terminal, args(true, 3, false)).await.unwrap();
        assert_eq!((exit, out.text().as_str()), (Exit::Ok, "4 5 \n── session destroyed\n"));
    }

    #[tokio::test]
    async fn the_transcript_reads_like_a_conversation() {
        let messages = [
            json!({"role": "user", "text": "Fix it.\nPlease."}),
            json!({"role": "assistant", "text": "I look."}),
            json!({"role": "tool", "name": "read", "status": "succeeded", "input": {"path": "a"}, "result": "b\nc"}),
            json!({"role": "approval", "approval": {"status": "denied", "decided_by": "bob", "title": "Run: ls"}}),
        ];
        let stub = Stub::start([Reply::page(messages)]).await;
        let (mut terminal, out, _) = Terminal::kept(false, None);
        logs(&stub.client(), &mut terminal, args(false, 0, true)).await.unwrap();
        insta::assert_snapshot!(out.text(), @r#"
        > Fix it.
        > Please.
        I look.
        ✓ read
          input: {"path":"a"}
          result: b c
        ── denied by bob: Run: ls
        "#);
    }
}
