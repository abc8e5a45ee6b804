//! A turn of ten steps with two approvals, killed between any two of them. The oracle is the ledger that its tools write.

use std::collections::BTreeSet;

use futures_util::StreamExt as _;

use super::*;

/// A plan, four answers with calls, and the last words: ten steps with the tools' own.
const SCRIPT: &str = r#"/plan {"mode": "plan", "reason": "it takes some steps", "steps": ["act", "tell"]}
/say One.
/call shell {"command": "echo one >> ledger"}
/next
/say Two.
/call mcp__fx__effect {"text": "two"}
/next
/call shell {"command": "echo three >> ledger"}
/call mcp__fx__effect {"text": "four"}
/next
/say Three.
/call write_file {"path": "five", "content": "5"}
/next
/say All is done."#;

const TEXT: &str = "One.Two.Three.All is done.";

/// Where the service dies: a point, and how often a turn comes by there.
const POINTS: &[(&str, usize)] = &[
    ("harness.started", 1),
    ("prompt.before", 1),
    ("prompt.given", 1),
    ("agent.model.planned", 1),
    ("agent.model.words", 4),
    ("agent.model.answered", 5),
    ("agent.asks", 2),
    ("ask.stored", 2),
    ("decide.committed", 2),
    ("answer.before", 2),
    ("answer.given", 2),
    ("agent.tool.before", 5),
    ("agent.tool.ran", 5),
    ("agent.tool.stored", 5),
    ("end.before", 1),
];

/// At these a tool has begun whose end is not stored.
fn is_uncertain(point: &str) -> bool {
    matches!(point, "agent.tool.before" | "agent.tool.ran")
}

/// And at these one may have: the second question waits beside a command that runs.
fn may_be_uncertain(point: &str, time: usize) -> bool {
    time == 2 && matches!(point, "ask.stored" | "decide.committed" | "answer.before" | "answer.given")
}

fn table() -> String {
    format!(
        "[harness.agent.mcp.fx]\ncommand = [\"python3\", {FAKE_MCP:?}]\n\
         env = {{ FAKE_MCP_LEDGER = \"{{workspace}}/mcp.jsonl\" }}\nrequire_approval = [\"effect\"]\n"
    )
}

/// Each effect, as often as it was had.
fn effects(home: &Home, session: &str) -> Vec<String> {
    let read = |name: &str| std::fs::read_to_string(home.workspace(session).join(name)).unwrap_or_default();
    let notes = read("mcp.jsonl");
    let notes = notes.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let asked = notes.filter_map(|note| note["effect"].as_str().map(str::to_owned));
    let mut had: Vec<String> = read("ledger").lines().map(str::to_owned).chain(asked).collect();
    had.sort();
    had
}

async fn killed_at(point: &str, time: usize) {
    let what = format!("{point}:{time}");
    let model = ChatModel::start();
    let home = home(&model, &table());
    home.start().await.kill().await;
    let server = home.start_with_fault(&what).await;
    let api = server.api();
    let body = json!({"harness": "agent", "prompt": SCRIPT, "run_id": "job",
                      "settings": {"version": 1, "planning": {"mode": "always"}}});
    // Whoever asks the service may find it dead by now; it is asked again when it is there again.
    drop(api.request(reqwest::Method::POST, "/v1/sessions").json(&body).send().await);
    let approve = async {
        loop {
            let Ok(answer) = api.request(reqwest::Method::GET, "/v1/runs/job").send().await else { return };
            let Ok(row) = answer.json::<Value>().await else { return };
            let Some(approval) = row["pending_approval"]["id"].as_str() else {
                tokio::task::yield_now().await;
                continue;
            };
            let path = format!("/v1/approvals/{approval}/decision");
            let decision = json!({"decision": "approve"});
            if api.request(reqwest::Method::POST, &path).json(&decision).send().await.is_err() {
                return;
            }
        }
    };
    within(&format!("the end at {what}"), approve).await;
    server.wait_dead().await;

    let server = home.start().await;
    let api = server.api();
    let session = api.get("/v1/runs/job").await.expect(200)["id"].as_str().unwrap().to_owned();
    let row = approve_all(&api, &session).await;
    let (status, text) =
        (row["turn"]["status"].as_str().unwrap(), row["turn"]["text"].as_str().unwrap_or_default());
    let had = effects(&home, &session);
    let once: BTreeSet<_> = had.iter().cloned().collect();
    assert_eq!(once.len(), had.len(), "{what}: {had:?}: a tool has run twice");
    let seqs: Vec<_> =
        api.events(&session).await.iter().map(|event| event["seq"].as_i64().unwrap()).collect();
    assert_eq!(seqs, (1..=seqs.len() as i64).collect::<Vec<_>>(), "{what}");
    let ends = api.events_of(&session, "tool.completed").await;
    if ends.iter().any(|end| end["result"]["uncertain"] == true) {
        assert!(is_uncertain(point) || may_be_uncertain(point, time), "{what}: {row}");
        // Where a person's word was still to be acted upon the turn went on, and the model knew.
        assert!(status == "interrupted" || (status == "completed" && text == TEXT), "{what}: {row}");
    } else {
        assert!(!is_uncertain(point), "{what}: {ends:?}");
        assert_eq!((status, text), ("completed", TEXT), "{what}: {row}");
        assert_eq!(had, ["four", "one", "three", "two"], "{what}");
        assert_eq!(std::fs::read_to_string(home.workspace(&session).join("five")).unwrap(), "5", "{what}");
        let approvals = api.get(&format!("/v1/sessions/{session}/approvals")).await.expect(200);
        for approval in approvals["data"].as_array().unwrap() {
            assert!(
                approval["status"] == "approved" && !approval["delivered_at"].is_null(),
                "{what}: {approval}"
            );
        }
    }
    let next = "/plan {\"mode\": \"plan\", \"reason\": \"r\", \"steps\": [\"s\"]}\n/say on";
    assert_eq!(api.prompt(&session, next).await["text"], "on", "{what}");
}

#[tokio::test]
async fn killed_between_any_two_steps_each_effect_is_had_at_most_once_and_the_turn_ends_as_if_nothing_had_been()
 {
    // Half of them on the one database, the other half on the other; all of them with OSTLER_AGENT_STEPS=all.
    let step = if std::env::var("OSTLER_AGENT_STEPS").as_deref() == Ok("all") { 1 } else { 2 };
    let skip = (step - 1) * usize::from(std::env::var("OSTLER_TEST_DATABASE").as_deref() == Ok("postgres"));
    let all = POINTS.iter().flat_map(|(point, times)| (1..=*times).map(move |time| (*point, time)));
    let some = all.skip(skip).step_by(step);
    let runs = futures_util::stream::iter(some).map(|(point, time)| killed_at(point, time));
    let count = runs.buffer_unordered(3).count().await;
    println!("killed at {count} places");
}

#[tokio::test]
async fn a_turn_of_ten_steps_is_the_same_without_any_death() {
    let model = ChatModel::start();
    let home = home(&model, &table());
    let server = home.start().await;
    let api = server.api();
    let body = json!({"harness": "agent", "prompt": SCRIPT, "settings": {"version": 1, "planning": {"mode": "always"}}});
    let session = api.post("/v1/sessions", body).await.expect(201)["id"].as_str().unwrap().to_owned();
    let row = approve_all(&api, &session).await;
    assert_eq!(row["turn"]["status"], "completed", "{row}");
    assert_eq!(row["turn"]["text"], TEXT);
    let had = effects(&home, &session);
    assert_eq!(had, ["four", "one", "three", "two"]);
    assert_eq!(model.count(), 6);
}
