//! Approvals: the inbox, and the two answers.

use clap::Args;
use serde_json::{Value, json};

use super::client::{Answer, Client, session_path};
use super::error::{CliError, CliResult};
use super::pages::Pages;
use super::render::{brief, question};
use super::table::{Cell, Table};
use super::terminal::{Look, Terminal, clean_json};
use super::when::{Moment, ago, until};
use super::{Exit, json_object, text_of};

/// `ostler approvals`.
#[derive(Args, Clone, Debug)]
pub struct ApprovalsArgs {
    /// Only those of this session, by id or run id
    #[arg(short, long, value_name = "SESSION")]
    session: Option<String>,

    /// Only those with this status
    #[arg(long, default_value = "pending", value_parser = STATUSES)]
    status: String,

    /// At most this many
    #[arg(short = 'n', long, default_value_t = 50, value_name = "N")]
    limit: usize,

    /// All of them
    #[arg(short, long, conflicts_with = "limit")]
    all: bool,
}

const STATUSES: [&str; 7] = ["pending", "approved", "denied", "expired", "cancelled", "orphaned", "all"];

/// `ostler approve`.
#[derive(Args, Clone, Debug)]
pub struct ApproveArgs {
    /// Approval id, or the id or run id of a session where exactly one approval waits
    #[arg(value_name = "APPROVAL|SESSION")]
    id: String,

    /// Why; kept with the decision and told to the agent
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    /// One of the options that the agent offers, where it offers several
    #[arg(long, value_name = "OPTION_ID")]
    option: Option<String>,

    /// Run the tool with this input instead of the agent's, where the harness supports it
    #[arg(long, value_name = "JSON", value_parser = json_object)]
    edited_input: Option<Value>,
}

/// `ostler deny`.
#[derive(Args, Clone, Debug)]
pub struct DenyArgs {
    /// Approval id, or the id or run id of a session where exactly one approval waits
    #[arg(value_name = "APPROVAL|SESSION")]
    id: String,

    /// Why; kept with the decision and told to the agent
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Approve,
    Deny,
}

/// What goes with an answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Details {
    pub(super) reason: Option<String>,
    pub(super) option: Option<String>,
    pub(super) edited_input: Option<Value>,
}

/// Lists approvals.
pub(super) async fn list(client: &Client, terminal: &mut Terminal, args: ApprovalsArgs) -> CliResult<Exit> {
    let mut query = Vec::new();
    if args.status != "all" {
        query.push(("status", args.status.clone()));
    }
    let session = args.session.as_deref();
    let path = session.map_or_else(|| vec!["v1", "approvals"], |id| session_path(id, &["approvals"]));
    let pages = Pages::new(client, path, query, (!args.all).then_some(args.limit));
    let table = Table::new(&["APPROVAL", "STATUS", "TOOL", "ASKS", "SESSION", "ASKED"], 3);
    pages.show(terminal, table, row, "no approvals").await
}

fn row(approval: &Value, now: Option<Moment>) -> [Cell; 6] {
    let status = text_of(approval, "status");
    [
        text_of(approval, "id").into(),
        Cell::new(status, status_look(status)),
        text_of(approval, "tool").into(),
        question(approval).into(),
        text_of(approval, "session_id").into(),
        ago(text_of(approval, "requested_at"), now).into(),
    ]
}

fn status_look(status: &str) -> Look {
    match status {
        "pending" => Look::Yellow,
        "approved" => Look::Green,
        "denied" => Look::Red,
        _ => Look::Dim,
    }
}

/// Approves.
pub(super) async fn approve(client: &Client, terminal: &mut Terminal, args: ApproveArgs) -> CliResult<Exit> {
    let details = Details { reason: args.reason, option: args.option, edited_input: args.edited_input };
    decide_and_tell(client, terminal, &args.id, Decision::Approve, &details).await
}

/// Denies.
pub(super) async fn deny(client: &Client, terminal: &mut Terminal, args: DenyArgs) -> CliResult<Exit> {
    let details = Details { reason: args.reason, ..Details::default() };
    decide_and_tell(client, terminal, &args.id, Decision::Deny, &details).await
}

async fn decide_and_tell(
    client: &Client,
    terminal: &mut Terminal,
    id: &str,
    decision: Decision,
    details: &Details,
) -> CliResult<Exit> {
    let approval = find(client, id).await?;
    let answer = decide(client, &approval, decision, details).await?;
    if terminal.json {
        terminal.json_line(&answer.body)?;
        return Ok(Exit::Ok);
    }
    let again = answer.body["idempotent"].as_bool().unwrap_or_default();
    let (word, look) = match decision {
        Decision::Approve => ("approved", Look::Green),
        Decision::Deny => ("denied", Look::Red),
    };
    let before = if again { " before" } else { "" };
    terminal
        .line(&format!("{word}{before}: {} ({})", question(&approval), text_of(&approval, "id")), look)?;
    if decision == Decision::Approve && !again {
        let input = details.edited_input.as_ref().unwrap_or(&approval["input"]);
        terminal.line(&format!("  {} {}", text_of(&approval, "tool"), brief(input)), Look::Dim)?;
    }
    Ok(Exit::Ok)
}

/// The approval of that id, or the one that waits in that session.
async fn find(client: &Client, id: &str) -> CliResult<Value> {
    if id.starts_with("apr_") {
        return Ok(client.get(&["v1", "approvals", id], &[]).await?.body);
    }
    let query = [("status", "pending".to_owned())];
    let mut pending = client.get(&session_path(id, &["approvals"]), &query).await?.take_list()?;
    match pending.len() {
        1 => Ok(pending.remove(0)),
        0 => Err(CliError::Refused {
            exit: Exit::NotFound,
            code: "no_pending_approval",
            detail: format!("no approval waits in {id}"),
            hint: Some(format!("`ostler show {id}` tells how it stands")),
        }),
        count => {
            let ids: Vec<&str> = pending.iter().map(|approval| text_of(approval, "id")).collect();
            Err(CliError::Refused {
                exit: Exit::Conflict,
                code: "several_pending_approvals",
                detail: format!("{count} approvals wait in {id}: {}", ids.join(", ")),
                hint: Some(format!("name one; `ostler approvals --session {id}` tells them apart")),
            })
        }
    }
}

/// Sends an answer to the question as it was shown: the digest makes the service refuse if it is another by now.
pub(super) async fn decide(
    client: &Client,
    approval: &Value,
    decision: Decision,
    details: &Details,
) -> CliResult<Answer> {
    let word = match decision {
        Decision::Approve => "approve",
        Decision::Deny => "deny",
    };
    let mut body = json!({"decision": word, "input_digest": approval["input_digest"]});
    let optional = [
        ("reason", details.reason.clone().map(Value::from)),
        ("option_id", details.option.clone().map(Value::from)),
        ("edited_input", details.edited_input.clone()),
    ];
    for (name, value) in optional {
        if let Some(value) = value {
            body[name] = value;
        }
    }
    client.post(&["v1", "approvals", text_of(approval, "id"), "decision"], Some(&body)).await
}

/// Shows all that a person must know to decide: what runs is shown whole.
pub(super) fn show(terminal: &mut Terminal, approval: &Value, now: Option<Moment>) -> CliResult<()> {
    terminal.note(&format!("Approval needed: {}", question(approval)), Look::Yellow)?;
    let expiry = approval["expires_at"].as_str().map(|at| format!(" · expires {}", until(at, now)));
    let expiry = expiry.unwrap_or_default();
    let [tool, kind, id] =
        ["tool", "kind", "id"].map(|name| super::terminal::one_line(text_of(approval, name)));
    terminal.note(&format!("  {tool} ({kind}){expiry} · {id}"), Look::Dim)?;
    let input = serde_json::to_string_pretty(&approval["input"]).unwrap_or_default();
    for line in clean_json(&input).lines() {
        terminal.note(&format!("  {line}"), Look::Plain)?;
    }
    Ok(())
}

/// Tells how to decide from elsewhere.
pub(super) fn tell_how_to_decide(terminal: &mut Terminal, approval: &Value) -> CliResult<()> {
    let id = text_of(approval, "id");
    terminal.note(&format!("  ostler approve {id}"), Look::Plain)?;
    terminal.note(&format!("  ostler deny {id} --reason \"…\""), Look::Plain)
}

#[cfg(test)]
mod tests {
    use super::super::stub::{Reply, Stub};
    use super::*;

    fn approval(id: &str) -> Value {
        json!({"id": id, "session_id": "ses_1", "tool": "shell", "title": "Run: ls", "kind": "execute", "status": "pending",
               "input": {"command": "ls"}, "input_digest": "sha256:1", "requested_at": "2025-07-01T11:57:00.000Z"})
    }

    fn decided() -> Reply {
        Reply::json(200, json!({"approval": {}, "idempotent": false}))
    }

    async fn approve_by(stub: &Stub, id: &str) -> (CliResult<Exit>, String) {
        let (mut terminal, out, _) = Terminal::kept(false, None);
        let args = ApproveArgs { id: id.into(), reason: None, option: None, edited_input: None };
        let done = approve(&stub.client(), &mut terminal, args).await;
        (done, out.text())
    }

    #[tokio::test]
    async fn an_approval_is_decided_as_it_was_read() {
        let stub = Stub::start([Reply::json(200, approval("apr_1")), decided()]).await;
        let (done, shown) = approve_by(&stub, "apr_1").await;
        assert_eq!(done.unwrap(), Exit::Ok);
        assert_eq!(shown, "approved: Run: ls (apr_1)\n  shell {\"command\":\"ls\"}\n");
        let decision = &stub.requests()[1];
        assert_eq!(decision.line(), "POST /v1/approvals/apr_1/decision");
        assert_eq!(decision.body, json!({"decision": "approve", "input_digest": "sha256:1"}));
    }

    #[tokio::test]
    async fn a_session_stands_for_the_one_approval_that_waits_in_it() {
        let stub = Stub::start([Reply::page([approval("apr_7")]), decided()]).await;
        assert_eq!(approve_by(&stub, "my-run").await.0.unwrap(), Exit::Ok);
        assert_eq!(
            stub.lines(),
            ["GET /v1/runs/my-run/approvals?status=pending", "POST /v1/approvals/apr_7/decision"]
        );
    }

    #[tokio::test]
    async fn a_session_where_none_or_several_wait_is_not_guessed_about() {
        let stub = Stub::start([Reply::page([])]).await;
        assert_eq!(approve_by(&stub, "ses_1").await.0.unwrap_err().exit(), Exit::NotFound);
        let stub = Stub::start([Reply::page([approval("apr_1"), approval("apr_2")])]).await;
        let error = approve_by(&stub, "ses_1").await.0.unwrap_err();
        assert_eq!(error.exit(), Exit::Conflict);
        assert!(error.detail().contains("apr_1, apr_2"));
        assert_eq!(stub.requests().len(), 1);
    }

    #[tokio::test]
    async fn a_denial_carries_its_reason() {
        let stub = Stub::start([Reply::json(200, approval("apr_1")), decided()]).await;
        let (mut terminal, out, _) = Terminal::kept(false, None);
        let args = DenyArgs { id: "apr_1".into(), reason: Some("not now".into()) };
        deny(&stub.client(), &mut terminal, args).await.unwrap();
        assert_eq!(out.text(), "denied: Run: ls (apr_1)\n");
        let body = json!({"decision": "deny", "input_digest": "sha256:1", "reason": "not now"});
        assert_eq!(stub.requests()[1].body, body);
    }

    #[tokio::test]
    async fn the_inbox_is_a_table_and_with_json_one_object_a_line() {
        let args = || ApprovalsArgs { session: None, status: "pending".into(), limit: 50, all: false };
        let stub = Stub::start((0..2).map(|_| Reply::page([approval("apr_1"), approval("apr_2")]))).await;
        let (mut terminal, out, _) = Terminal::kept(false, Some(100));
        list(&stub.client(), &mut terminal, args()).await.unwrap();
        insta::assert_snapshot!(out.text(), @"
        APPROVAL  STATUS   TOOL   ASKS     SESSION  ASKED
        apr_1     pending  shell  Run: ls  ses_1    3m ago
        apr_2     pending  shell  Run: ls  ses_1    3m ago
        ");
        let (mut terminal, out, _) = Terminal::kept(true, None);
        list(&stub.client(), &mut terminal, args()).await.unwrap();
        let lines: Vec<Value> = out.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines, [approval("apr_1"), approval("apr_2")]);
        assert_eq!(stub.lines()[0], "GET /v1/approvals?status=pending&limit=50");
    }

    #[test]
    fn what_a_person_decides_about_is_shown_whole_and_cannot_be_disguised() {
        let (mut terminal, _, err) = Terminal::kept(false, None);
        let command = format!("echo {}\u{202e}\u{1b}[2J\nrm -rf /", "x".repeat(300));
        let approval = json!({"id": "apr_1", "tool": "shell", "kind": "execute", "title": "List\nApproval needed: nothing",
                              "input": {"command": command}, "expires_at": null});
        show(&mut terminal, &approval, None).unwrap();
        let shown = err.text();
        assert!(
            shown.starts_with("Approval needed: List Approval needed: nothing\n  shell (execute) · apr_1\n")
        );
        assert!(shown.contains(&"x".repeat(300)));
        assert!(shown.contains("\\u202e\\u001b[2J\\nrm -rf /"), "{shown}");
    }
}
