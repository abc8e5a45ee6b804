//! Whatever is wished while a tool runs or a question waits: nothing hangs, nothing runs twice, nothing is left running.
//! `OSTLER_RACES` is the number of rounds of each race.

use std::time::Duration;

use futures_util::future::join_all;

use super::*;
use crate::support::processes::{eventually, of_agent};

fn rounds() -> u64 {
    std::env::var("OSTLER_RACES").map_or(20, |count| count.parse().unwrap())
}

/// A turn that appends a line, works for a while, and appends another.
fn works(name: &str) -> String {
    let command = format!("echo {name} >> ledger; sleep 0.05; echo {name}-end >> ledger");
    format!("/call shell {}\n/next\n/say on", json!({ "command": command }))
}

fn ledger(home: &Home, session: &str) -> Vec<String> {
    let text = std::fs::read_to_string(home.workspace(session).join("ledger")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

async fn begin(api: &Api, session: &str, prompt: &str) -> String {
    let body = json!({"prompt": prompt});
    let turn = api.post(&format!("/v1/sessions/{session}/prompts"), body).await.expect(202);
    turn["id"].as_str().unwrap().to_owned()
}

/// The moments of a round: each is a little later in the turn than the one before.
async fn moment(round: u64) {
    tokio::time::sleep(Duration::from_millis(round * 4)).await;
}

async fn until_ended(api: &Api, session: &str, turn: &str) -> Value {
    within("the turn's end", async {
        loop {
            let row = api.get(&format!("/v1/sessions/{session}/turns/{turn}")).await.expect(200);
            if row["ended_at"].is_string() {
                return row;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
}

#[tokio::test]
async fn a_turn_that_is_cancelled_stopped_or_interrupted_at_any_moment_ends_and_its_tool_with_it() {
    let model = ChatModel::start();
    let home = home(&model, "");
    let server = home.start().await;
    let api = server.api();
    for how in ["cancel", "stop", "interrupt"] {
        let session = create(&api, "/say ready", json!({})).await["id"].as_str().unwrap().to_owned();
        for round in 0..rounds() {
            let name = format!("{how}-{round}");
            let turn = begin(&api, &session, &works(&name)).await;
            moment(round).await;
            match how {
                "interrupt" => {
                    let body = json!({"prompt": "/say next", "when_busy": "interrupt"});
                    let next = api.post(&format!("/v1/sessions/{session}/prompts"), body).await.expect(202);
                    let next = until_ended(&api, &session, next["id"].as_str().unwrap()).await;
                    assert_eq!(
                        (next["status"].as_str(), next["text"].as_str()),
                        (Some("completed"), Some("next"))
                    );
                }
                how => {
                    let answer = api.post(&format!("/v1/sessions/{session}/{how}"), json!({})).await;
                    assert!(matches!(answer.status, 200 | 409), "{}", answer.text);
                }
            }
            let turn = until_ended(&api, &session, &turn).await;
            let status = turn["status"].as_str().unwrap();
            assert!(matches!(status, "cancelled" | "completed" | "interrupted"), "{name}: {turn}");
            let had = ledger(&home, &session);
            let count = |what: &str| had.iter().filter(|line| *line == what).count();
            assert!(count(&name) <= 1 && count(&format!("{name}-end")) <= count(&name), "{name}: {had:?}");
            if status == "completed" {
                assert_eq!(count(&format!("{name}-end")), 1, "{name}: {turn}");
            }
            eventually("the command to be gone", || of_agent(&session).is_empty()).await;
            assert_eq!(ledger(&home, &session), had, "{name}: it went on");
        }
        assert_eq!(api.prompt(&session, "/say still").await["text"], "still", "{how}");
        let calls = api.events_of(&session, "tool.started").await.len();
        assert_eq!(
            api.events_of(&session, "tool.completed").await.len(),
            calls,
            "{how}: each call has an end"
        );
    }
}

#[tokio::test]
async fn a_session_that_is_destroyed_at_any_moment_leaves_nothing() {
    let model = ChatModel::start();
    let home = home(&model, "");
    let server = home.start().await;
    let api = server.api();
    let api = &api;
    let round = async |round| {
        let session = create_detached(api, &works("x"), json!({})).await;
        moment(round).await;
        api.delete(&format!("/v1/sessions/{session}")).await.expect(204);
        assert!(of_agent(&session).is_empty(), "round {round}");
        assert_eq!(api.session(&session).await["status"], "destroyed", "round {round}");
    };
    for first in (0..rounds()).step_by(4) {
        join_all((first..rounds().min(first + 4)).map(round)).await;
    }
}

#[tokio::test]
async fn of_two_decisions_at_once_one_stands_and_the_tool_does_as_it_says() {
    let model = ChatModel::start();
    let home = home(&model, "");
    let server = home.start().await;
    let api = server.api();
    let more = json!({"tool_policy": {"require_approval": ["write_file"]}});
    let session = create(&api, "/say ready", more).await["id"].as_str().unwrap().to_owned();
    for round in 0..rounds() {
        // The other tool works while the question waits, is decided, and is acted upon.
        let other = format!("echo {round} >> ledger; sleep 0.0{}", round % 8);
        let write = json!({"path": format!("file-{round}"), "content": "x"});
        let script =
            format!("/call shell {}\n/call write_file {write}\n/next\n/say on", json!({"command": other}));
        let turn = begin(&api, &session, &script).await;
        api.until_status(&session, "awaiting_approval").await;
        let approval = api.session(&session).await["pending_approval"]["id"].as_str().unwrap().to_owned();
        moment(round % 5).await;
        let decisions = ["approve", "deny", "approve", "deny"];
        let answers = join_all(decisions.map(|decision| api.decide(&approval, decision))).await;
        let won: Vec<&str> = decisions
            .into_iter()
            .zip(&answers)
            .filter(|(_, answer)| answer.status == 200)
            .map(|(word, _)| word)
            .collect();
        assert!(won.len() == 2 && won[0] == won[1], "{answers:?}");
        let ended = until_ended(&api, &session, &turn).await;
        assert_eq!(
            (ended["status"].as_str(), ended["text"].as_str()),
            (Some("completed"), Some("on")),
            "{ended}"
        );
        assert_eq!(home.workspace(&session).join(format!("file-{round}")).exists(), won[0] == "approve");
        let ran = ledger(&home, &session).into_iter().filter(|line| *line == round.to_string()).count();
        assert_eq!(ran, 1, "round {round}");
    }
}

#[tokio::test]
async fn a_decision_beside_a_cancel_is_had_at_most_once_and_the_turn_ends() {
    let model = ChatModel::start();
    let home = home(&model, "");
    let server = home.start().await;
    let api = server.api();
    let more = json!({"tool_policy": {"require_approval": ["shell"]}});
    let session = create(&api, "/say ready", more).await["id"].as_str().unwrap().to_owned();
    for round in 0..rounds() {
        let turn = begin(&api, &session, &works(&round.to_string())).await;
        let row = api.until_status(&session, "awaiting_approval").await;
        let approval = row["pending_approval"]["id"].as_str().unwrap();
        let cancel = async {
            moment(round % 10).await;
            api.post(&format!("/v1/sessions/{session}/cancel"), json!({})).await
        };
        let (decided, cancelled) = tokio::join!(api.decide(approval, "approve"), cancel);
        assert!(matches!(decided.status, 200 | 409 | 410), "{}", decided.text);
        assert!(matches!(cancelled.status, 200 | 409), "{}", cancelled.text);
        let ended = until_ended(&api, &session, &turn).await;
        assert!(
            matches!(ended["status"].as_str(), Some("cancelled" | "completed" | "interrupted")),
            "{ended}"
        );
        eventually("the command to be gone", || of_agent(&session).is_empty()).await;
        let ran = ledger(&home, &session).into_iter().filter(|line| *line == round.to_string()).count();
        assert!(ran <= 1 && (decided.status == 200 || ran == 0), "round {round}: {ran}, {}", decided.text);
    }
    assert_eq!(api.prompt(&session, "/say still").await["text"], "still");
}

#[tokio::test]
async fn an_edited_input_of_any_kind_is_what_the_tool_gets_and_at_worst_a_failed_call() {
    let model = ChatModel::start();
    let home = home(&model, &format!("[harness.agent.mcp.fx]\ncommand = [\"python3\", {FAKE_MCP:?}]\n"));
    let server = home.start().await;
    let api = server.api();
    let deep = (0..60).fold(json!(0), |inner, _| json!([inner]));
    let edits = [
        (json!([1, 2]), "failed"),
        (json!("text"), "failed"),
        (json!(7), "failed"),
        (json!(true), "failed"),
        (json!({}), "failed"),
        (json!({"path": 7, "content": []}), "failed"),
        (json!({"path": "../out", "content": "x"}), "failed"),
        (json!({"path": "/etc/ostler-test", "content": "x"}), "failed"),
        (json!({"path": "a\u{0}b", "content": "x"}), "failed"),
        (json!({"path": "a", "content": "x", "more": deep}), "failed"),
        (json!({"path": "edited", "content": "x"}), "succeeded"),
        (Value::Null, "succeeded"),
    ];
    let more = json!({"tool_policy": {"require_approval": ["write_file", "mcp__fx__echo"]}});
    let session = create(&api, "/say ready", more).await["id"].as_str().unwrap().to_owned();
    for (edit, status) in edits {
        let script = "/call write_file {\"path\": \"asked\", \"content\": \"x\"}\n/call mcp__fx__echo {\"text\": \"asked\"}\n/next\n/say on";
        let turn = begin(&api, &session, script).await;
        for _ in 0..2 {
            let row = api.until_status(&session, "awaiting_approval").await;
            let approval = row["pending_approval"]["id"].as_str().unwrap();
            let body = json!({"decision": "approve", "edited_input": edit});
            api.post(&format!("/v1/approvals/{approval}/decision"), body).await.expect(200);
        }
        let ended = until_ended(&api, &session, &turn).await;
        assert_eq!(
            (ended["status"].as_str(), ended["text"].as_str()),
            (Some("completed"), Some("on")),
            "{edit}: {ended}"
        );
        let results = api.events_of(&session, "tool.completed").await;
        let result = results.iter().rev().find(|result| result["name"] == "write_file").unwrap();
        assert_eq!(result["status"], status, "{edit}: {result}");
        let input = if edit.is_null() { json!({"path": "asked", "content": "x"}) } else { edit };
        assert_eq!(result["input"], input, "what was run is told");
    }
    let approval = {
        begin(&api, &session, "/call write_file {\"path\": \"asked\", \"content\": \"x\"}\n/next\n/say on")
            .await;
        let row = api.until_status(&session, "awaiting_approval").await;
        row["pending_approval"]["id"].as_str().unwrap().to_owned()
    };
    // As deep as a body can be: it could be taken, and never be read again.
    for levels in [65, 120, 125] {
        let deep = (0..levels).fold(json!(0), |inner, _| json!([inner]));
        let body = json!({"decision": "approve", "edited_input": deep});
        let answer = api.post(&format!("/v1/approvals/{approval}/decision"), body).await;
        answer.problem(422, "invalid_input");
    }
    api.events(&session).await;
    assert!(home.workspace(&session).join("edited").exists());
    assert!(!home.workspace(&session).join("../out").exists());
}
