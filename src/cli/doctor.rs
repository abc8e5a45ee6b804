//! `ostler doctor`: the way to the service, step by step, and what to do where it breaks.

use clap::Args;
use serde_json::{Value, json};

use super::client::{Client, KeySource};
use super::error::{CliError, CliResult};
use super::harnesses;
use super::table::columns;
use super::terminal::{Look, Terminal, one_line};
use super::{Exit, text_of};

/// `ostler doctor`.
#[derive(Args, Clone, Debug)]
pub struct DoctorArgs {
    /// Check only whether the service takes requests, for health checks; needs no key
    #[arg(long)]
    ready: bool,
    /// Start every harness that can be started, hear what it says of itself, and end it; needs an admin key
    #[arg(long, conflicts_with = "ready")]
    agents: bool,
}

/// What one step showed.
#[derive(Debug)]
struct Check {
    name: String,
    verdict: Verdict,
    detail: String,
    hint: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Ok,
    /// Worth knowing; nothing is broken.
    Note,
    Fail,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Fail => "fail",
        }
    }

    fn look(self) -> Look {
        match self {
            Self::Ok => Look::Green,
            Self::Note => Look::Yellow,
            Self::Fail => Look::Red,
        }
    }
}

impl Check {
    fn new(name: &str, verdict: Verdict, detail: impl Into<String>) -> Self {
        Self { name: name.to_owned(), verdict, detail: detail.into(), hint: None }
    }

    fn failed(name: &str, error: &CliError) -> Self {
        Self { hint: error.hint(), ..Self::new(name, Verdict::Fail, error.line()) }
    }

    fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

/// Checks everything and reports; what depends on a step that failed is not tried.
pub(super) async fn doctor(client: &Client, terminal: &mut Terminal, args: DoctorArgs) -> CliResult<Exit> {
    let checks = examine(client, args).await;
    let healthy = checks.iter().all(|check| check.verdict != Verdict::Fail);
    if terminal.json {
        let shown: Vec<Value> = checks
            .iter()
            .map(|check| {
                json!({"name": check.name, "status": check.verdict.word(), "detail": check.detail, "hint": check.hint})
            })
            .collect();
        terminal.json_line(&json!({"ok": healthy, "checks": shown}))?;
    } else {
        for check in &checks {
            show(terminal, check)?;
        }
    }
    Ok(if healthy { Exit::Ok } else { Exit::Failed })
}

fn show(terminal: &mut Terminal, check: &Check) -> CliResult<()> {
    let gap = |text: &str, width: usize| " ".repeat(width.saturating_sub(columns(text)).max(1));
    let (word, name) = (check.verdict.word(), one_line(&check.name));
    terminal.text(word, check.verdict.look())?;
    let rest = format!("{}{name}{}{}\n", gap(word, 6), gap(&name, 12), one_line(&check.detail));
    terminal.text(&rest, Look::Plain)?;
    match &check.hint {
        Some(hint) => terminal.line(&format!("      → {}", one_line(hint)), Look::Dim),
        None => Ok(()),
    }
}

async fn examine(client: &Client, args: DoctorArgs) -> Vec<Check> {
    let mut checks = vec![address(client)];
    match client.get(&["healthz"], &[]).await {
        Ok(_) => checks.push(Check::new("alive", Verdict::Ok, "the service answers")),
        Err(error) => {
            let hint = "start it with `ostler serve`, or say where it is with --url or OSTLER_URL";
            checks.push(Check::failed("alive", &error).with_hint(hint));
            return checks;
        }
    }
    checks.push(match client.get(&["readyz"], &[]).await {
        Ok(_) => Check::new("ready", Verdict::Ok, "database and schema are in order"),
        Err(error) => Check::failed("ready", &error).with_hint("the log of `ostler serve` tells more"),
    });
    if args.ready {
        return checks;
    }
    let me = client.get(&["v1", "me"], &[]).await;
    let is_known = me.is_ok();
    checks.push(key(client, me.map(|answer| answer.body)));
    if is_known {
        // All that follows is told only to those who have a key.
        checks.push(version(client).await);
        checks.extend(harness_checks(client, args.agents).await);
    }
    checks
}

fn address(client: &Client) -> Check {
    if client.is_exposed() {
        return Check::new("address", Verdict::Note, client.url())
            .with_hint("the key travels unencrypted: use https:// where the service is on another machine");
    }
    Check::new("address", Verdict::Ok, client.url())
}

async fn version(client: &Client) -> Check {
    let ours = env!("CARGO_PKG_VERSION");
    match client.get(&["openapi.json"], &[]).await {
        Err(error) => Check::failed("version", &error),
        Ok(answer) => match text_of(&answer.body["info"], "version") {
            "" => Check::new("version", Verdict::Fail, "/openapi.json names no version")
                .with_hint("does --url point at an Ostler service?"),
            theirs if theirs == ours => Check::new("version", Verdict::Ok, theirs),
            theirs => {
                Check::new("version", Verdict::Note, format!("the service has {theirs}, this client {ours}"))
                    .with_hint("update the older one when something does not fit")
            }
        },
    }
}

fn key(client: &Client, me: CliResult<Value>) -> Check {
    let source = match client.key_source() {
        KeySource::Given => "from --key or OSTLER_KEY".to_owned(),
        KeySource::File(file) => format!("from {file}"),
        KeySource::Unreadable(why) => format!("cannot read {why}"),
        KeySource::None => "none was found".to_owned(),
    };
    match me {
        Ok(me) => {
            let who = ["role", "owner_id", "org_id"].map(|name| text_of(&me, name));
            let who: Vec<&str> = who.into_iter().filter(|word| !word.is_empty()).collect();
            Check::new("key", Verdict::Ok, format!("{} ({source})", who.join(" · ")))
        }
        Err(error) => {
            Check { detail: format!("{} ({source})", error.line()), ..Check::failed("key", &error) }
        }
    }
}

async fn harness_checks(client: &Client, start: bool) -> Vec<Check> {
    let harnesses = match harnesses::read(client).await {
        Ok(harnesses) => harnesses,
        Err(error) => return vec![Check::failed("harnesses", &error)],
    };
    let mut checks = Vec::new();
    for harness in &harnesses {
        let name = text_of(harness, "name");
        checks.push(match harnesses::is_available(harness) {
            // One agent is enough to work with, so that the ones that are not installed are no fault.
            false => Check::new(name, Verdict::Note, harnesses::missing(harness)),
            true if start => started(name, client.check_harness(name).await.map(|answer| answer.body)),
            true => {
                let detail = match text_of(harness, "version") {
                    "" => "can be started".to_owned(),
                    version => format!("can be started ({version})"),
                };
                Check::new(name, Verdict::Ok, detail)
            }
        });
    }
    if !harnesses.iter().any(harnesses::is_available) {
        let none = Check::new("harnesses", Verdict::Fail, "none can be started");
        checks.push(none.with_hint("install one of those above, or turn on the demo harness"));
    }
    checks
}

/// What a harness said of itself when it was started, or why it did not start.
fn started(name: &str, checked: CliResult<Value>) -> Check {
    let checked = match checked {
        Ok(checked) => checked,
        Err(error) => return Check::failed(name, &error),
    };
    if checked["ok"] != true {
        let error = &checked["error"];
        let words = format!("{} ({})", text_of(error, "message"), text_of(error, "code"));
        return Check::new(name, Verdict::Fail, words);
    }
    let said = [
        ("", ["agent_name", "agent_version"].map(|key| text_of(&checked, key)).join(" ").trim().to_owned()),
        ("takes up by ", text_of(&checked, "restore").to_owned()),
        ("mode ", text_of(&checked, "mode").to_owned()),
    ];
    let said = said.into_iter().filter(|(_, what)| !what.is_empty());
    let said: String = said.map(|(word, what)| format!(" · {word}{what}")).collect();
    let seconds = checked["took_ms"].as_f64().unwrap_or_default() / 1000.0;
    Check::new(name, Verdict::Ok, format!("started and ended in {seconds:.1} s{said}"))
}

#[cfg(test)]
mod tests {
    use super::super::stub::{Reply, Seen, Stub};
    use super::*;

    const ALL: DoctorArgs = DoctorArgs { ready: false, agents: false };

    fn healthy(seen: &Seen) -> Reply {
        match seen.target.as_str() {
            "/healthz" | "/readyz" => Reply::json(200, json!({"status": "ok"})),
            "/openapi.json" => {
                Reply::json(200, json!({"openapi": "3.1.0", "info": {"version": env!("CARGO_PKG_VERSION")}}))
            }
            "/v1/me" => Reply::json(200, json!({"role": "owner", "owner_id": "alice", "org_id": "acme"})),
            "/v1/harnesses" => Reply::page([
                json!({"name": "demo", "available": true, "version": "1.2.3"}),
                json!({"name": "codex", "available": false, "unavailable_reason": "codex-acp is not on the PATH",
                       "install": "npm i -g codex-acp"}),
            ]),
            other => panic!("{other}"),
        }
    }

    #[tokio::test]
    async fn a_healthy_service_passes_and_a_missing_harness_is_no_fault() {
        let stub = Stub::serve(healthy).await;
        let (mut terminal, out, _) = Terminal::kept(false, None);
        assert_eq!(doctor(&stub.client(), &mut terminal, ALL).await.unwrap(), Exit::Ok);
        insta::assert_snapshot!(out.text().replace(&stub.url(), "URL").replace(env!("CARGO_PKG_VERSION"), "V"), @"
        ok    address     URL
        ok    alive       the service answers
        ok    ready       database and schema are in order
        ok    key         owner · alice · acme (from --key or OSTLER_KEY)
        ok    version     V
        ok    demo        can be started (1.2.3)
        note  codex       codex-acp is not on the PATH; install it with: npm i -g codex-acp
        ");
    }

    #[tokio::test]
    async fn agents_are_started_where_that_is_asked_for() {
        let stub = Stub::serve(|seen| match seen.line().as_str() {
            "POST /v1/harnesses/demo/check" => Reply::json(200, json!({"harness": "demo", "ok": true, "took_ms": 3})),
            "POST /v1/harnesses/codex/check" => Reply::json(
                200,
                json!({"harness": "codex", "ok": true, "agent_name": "codex-acp", "agent_version": "0.16.0",
                       "restore": "resume", "mode": "read-only", "took_ms": 1234}),
            ),
            "POST /v1/harnesses/qwen/check" => Reply::json(
                200,
                json!({"harness": "qwen", "ok": false, "took_ms": 60000,
                       "error": {"code": "agent_start_timeout", "message": "qwen was not ready within 60 s"}}),
            ),
            "GET /v1/harnesses" => Reply::page([
                json!({"name": "codex", "available": true, "version": "0.16.0"}),
                json!({"name": "demo", "available": true}),
                json!({"name": "gemini", "available": false, "unavailable_reason": "not configured"}),
                json!({"name": "qwen", "available": true}),
            ]),
            _ => healthy(seen),
        })
        .await;
        let (mut terminal, out, _) = Terminal::kept(false, None);
        let args = DoctorArgs { agents: true, ..ALL };
        assert_eq!(doctor(&stub.client(), &mut terminal, args).await.unwrap(), Exit::Failed);
        let harnesses = out.text().lines().skip(5).collect::<Vec<_>>().join("\n");
        insta::assert_snapshot!(harnesses, @"
        ok    codex       started and ended in 1.2 s · codex-acp 0.16.0 · takes up by resume · mode read-only
        ok    demo        started and ended in 0.0 s
        note  gemini      not configured
        fail  qwen        qwen was not ready within 60 s (agent_start_timeout)
        ");
    }

    #[tokio::test]
    async fn a_key_that_is_not_valid_fails_with_what_to_do() {
        let stub = Stub::serve(|seen| match seen.target.as_str() {
            "/v1/me" | "/openapi.json" => Reply::problem(401, "unauthenticated"),
            _ => healthy(seen),
        })
        .await;
        let (mut terminal, out, _) = Terminal::kept(true, None);
        assert_eq!(doctor(&stub.client(), &mut terminal, ALL).await.unwrap(), Exit::Failed);
        let report: Value = serde_json::from_str(&out.text()).unwrap();
        assert_eq!(report["ok"], false);
        let failed: Vec<&Value> =
            report["checks"].as_array().unwrap().iter().filter(|check| check["status"] == "fail").collect();
        assert_eq!(failed.len(), 1);
        assert_eq!(failed[0]["name"], "key");
        assert!(failed[0]["hint"].as_str().unwrap().contains("OSTLER_KEY"));
    }

    #[tokio::test]
    async fn a_health_check_asks_whether_the_service_is_ready_and_nothing_that_needs_a_key() {
        for (status, exit) in [(200, Exit::Ok), (503, Exit::Failed)] {
            let stub = Stub::serve(move |seen| match seen.target.as_str() {
                "/healthz" => healthy(seen),
                "/readyz" if status == 200 => healthy(seen),
                "/readyz" => Reply::problem(status, "storage_unavailable"),
                other => panic!("{other}"),
            })
            .await;
            let (mut terminal, _, _) = Terminal::kept(false, None);
            let args = DoctorArgs { ready: true, ..ALL };
            assert_eq!(doctor(&stub.client(), &mut terminal, args).await.unwrap(), exit);
        }
    }

    #[tokio::test]
    async fn where_nothing_answers_the_rest_is_not_tried() {
        let stub = Stub::start([]).await;
        let client = stub.client();
        let (mut terminal, out, _) = Terminal::kept(false, None);
        drop(stub);
        assert_eq!(doctor(&client, &mut terminal, ALL).await.unwrap(), Exit::Failed);
        assert_eq!(out.text().lines().count(), 3, "{}", out.text());
        assert!(out.text().contains("start it with `ostler serve`"));
    }
}
