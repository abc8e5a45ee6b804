//! `ostler harnesses`: which agents the service can start, and what the others need.

use serde_json::Value;

use super::client::Client;
use super::error::CliResult;
use super::table::{Cell, Table};
use super::terminal::{Look, Terminal, one_line};
use super::{Exit, text_of};

/// Lists the harnesses.
pub(super) async fn list(client: &Client, terminal: &mut Terminal) -> CliResult<Exit> {
    let harnesses = read(client).await?;
    if terminal.json {
        for harness in &harnesses {
            terminal.json_line(harness)?;
        }
        return Ok(Exit::Ok);
    }
    let mut table = Table::new(&["HARNESS", "AVAILABLE", "VERSION", "RESUMES", "ASKS", "DESCRIPTION"], 5);
    for harness in &harnesses {
        let (word, look) = if is_available(harness) { ("yes", Look::Green) } else { ("no", Look::Yellow) };
        let can = |name: &str| {
            if harness["capabilities"][name] == true { "yes" } else { "no" }
        };
        table.row([
            text_of(harness, "name").into(),
            Cell::new(word, look),
            text_of(harness, "version").into(),
            can("resumable").into(),
            can("approvals").into(),
            text_of(harness, "description").into(),
        ]);
    }
    let text = table.render(terminal.width, terminal.colours());
    terminal.painted(&text)?;
    for harness in harnesses.iter().filter(|harness| !is_available(harness)) {
        terminal.note(&format!("{}: {}", one_line(text_of(harness, "name")), missing(harness)), Look::Dim)?;
    }
    Ok(Exit::Ok)
}

/// The harnesses of the service.
pub(super) async fn read(client: &Client) -> CliResult<Vec<Value>> {
    client.get(&["v1", "harnesses"], &[]).await?.take_list()
}

/// Whether it can be started.
pub(super) fn is_available(harness: &Value) -> bool {
    harness["available"] == true
}

/// What a harness that cannot be started needs.
pub(super) fn missing(harness: &Value) -> String {
    let why = match one_line(text_of(harness, "unavailable_reason")) {
        why if why.is_empty() => "not available".to_owned(),
        why => why,
    };
    let steps = [("install", "install it with"), ("configure", "add to ostler.toml")];
    steps.iter().fold(why, |words, (key, step)| match one_line(text_of(harness, key)) {
        what if what.is_empty() => words,
        what => format!("{words}; {step}: {what}"),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::stub::{Reply, Stub};
    use super::*;

    #[tokio::test]
    async fn a_harness_that_is_missing_comes_with_what_to_do() {
        let capabilities = json!({"resumable": true, "approvals": true});
        let stub = Stub::start([Reply::page([
            json!({"name": "demo", "description": "Deterministic.", "available": true, "version": "0.1.0",
                   "capabilities": capabilities}),
            json!({"name": "codex", "description": "OpenAI Codex.", "available": false, "capabilities": capabilities,
                   "version": null, "unavailable_reason": "codex-acp is not on the PATH", "install": "npm i -g codex-acp",
                   "configure": null}),
            json!({"name": "qwen", "description": "Qwen Code.", "available": false, "capabilities": capabilities,
                   "version": "0.24.4", "unavailable_reason": "not configured", "install": null,
                   "configure": "[harness.qwen]\nkind = \"acp\"\npreset = \"qwen\"\n"}),
        ])])
        .await;
        let (mut terminal, out, err) = Terminal::kept(false, None);
        list(&stub.client(), &mut terminal).await.unwrap();
        insta::assert_snapshot!(out.text(), @"
        HARNESS  AVAILABLE  VERSION  RESUMES  ASKS  DESCRIPTION
        demo     yes        0.1.0    yes      yes   Deterministic.
        codex    no                  yes      yes   OpenAI Codex.
        qwen     no         0.24.4   yes      yes   Qwen Code.
        ");
        insta::assert_snapshot!(err.text(), @r#"
        codex: codex-acp is not on the PATH; install it with: npm i -g codex-acp
        qwen: not configured; add to ostler.toml: [harness.qwen] kind = "acp" preset = "qwen"
        "#);
    }
}
