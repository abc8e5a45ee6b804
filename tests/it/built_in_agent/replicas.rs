//! Two replicas share the work; the one that holds a session is lost, or sleeps past its time. The oracle is the ledger that the
//! tools write.

use std::time::Duration;

use super::*;
use crate::replicas::holder;
use crate::support::fleet::Fleet;

/// As short as a busy machine allows.
const SHORT: &[&str] = &["--replica-ttl-seconds", "4"];

async fn fleet(model: &ChatModel) -> Fleet {
    Fleet::of(2).with(SHORT).with_config(&config(model, "")).start().await
}

/// A session of that replica, which has said hello.
async fn session_at(fleet: &Fleet, i: usize, more: &Value) -> String {
    let created = async {
        loop {
            let row = create(&fleet.api(i), "/say hello", more.clone()).await;
            let session = row["id"].as_str().unwrap().to_owned();
            if holder(fleet, &session).await == Some(format!("r{i}")) {
                return session;
            }
            // Another one was faster to take it up.
            fleet.api(i).delete(&format!("/v1/sessions/{session}?purge=true")).await.expect(204);
        }
    };
    Box::pin(within("a session at that replica", created)).await
}

async fn prompt_detached(api: &Api, session: &str, prompt: &str) {
    let body = json!({"prompt": prompt});
    api.post(&format!("/v1/sessions/{session}/prompts"), body).await.expect(202);
}

/// What is asked about, and how often it was had.
const ASKS: &str = "/call shell {\"command\": \"echo asked >> ledger\"}\n/next\n/say done";

fn ledger(fleet: &Fleet, session: &str) -> Vec<String> {
    let text = std::fs::read_to_string(fleet.home().workspace(session).join("ledger")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Three sessions of the first replica: one whose model thinks and will then want a tool, one that asks, and one that asks and is
/// answered while the replica cannot hear of it. That replica sleeps when they are given back.
struct Three {
    thinking: String,
    asking: String,
    answered: String,
}

impl Three {
    async fn begin(fleet: &mut Fleet, model: &ChatModel) -> Self {
        let asks = json!({"tool_policy": {"require_approval": ["shell"]}});
        let thinking = session_at(fleet, 0, &json!({})).await;
        let (asking, answered) = (session_at(fleet, 0, &asks).await, session_at(fleet, 0, &asks).await);
        let (here, other) = (fleet.api(0), fleet.api(1));
        for session in [&asking, &answered] {
            prompt_detached(&here, session, ASKS).await;
            here.until_status(session, "awaiting_approval").await;
        }
        let calls = model.count();
        let script = "/say one two three four\n/slow 300\n/call shell {\"command\": \"echo ran >> ledger\"}\n/next\n/say done";
        prompt_detached(&here, &thinking, script).await;
        model.wait_for_count(calls + 1).await;
        here.follow(&thinking, "?after=3").await.until("text.delta").await;
        fleet.stop(0);
        let approval = other.session(&answered).await["pending_approval"]["id"].as_str().unwrap().to_owned();
        other.decide(&approval, "approve").await.expect(200);
        Self { thinking, asking, answered }
    }

    /// The other replica goes on, and nothing is had twice.
    async fn go_on(&self, fleet: &Fleet) {
        let api = fleet.api(1);
        let row = api.until_status(&self.thinking, "idle").await;
        assert_eq!(row["turn"]["text"], "one two three fourdone", "{row}");
        let row = api.until_status(&self.answered, "idle").await;
        assert_eq!(row["turn"]["text"], "done", "{row}");
        let approval = api.session(&self.asking).await["pending_approval"]["id"].as_str().unwrap().to_owned();
        api.decide(&approval, "approve").await.expect(200);
        let row = api.until_status(&self.asking, "idle").await;
        assert_eq!(row["turn"]["text"], "done", "{row}");
        self.had_once(fleet);
    }

    fn had_once(&self, fleet: &Fleet) {
        assert_eq!(ledger(fleet, &self.thinking), ["ran"]);
        assert_eq!(ledger(fleet, &self.asking), ["asked"]);
        assert_eq!(ledger(fleet, &self.answered), ["asked"]);
    }
}

#[tokio::test]
async fn when_the_holder_is_killed_the_other_goes_on_where_the_model_the_question_and_the_decision_stood() {
    let model = ChatModel::start();
    let mut fleet = fleet(&model).await;
    let three = Three::begin(&mut fleet, &model).await;
    fleet.kill(0).await;
    three.go_on(&fleet).await;
}

#[tokio::test]
async fn a_holder_that_slept_past_its_time_runs_no_tool_when_it_wakes() {
    let model = ChatModel::start();
    let mut fleet = fleet(&model).await;
    let three = Three::begin(&mut fleet, &model).await;
    three.go_on(&fleet).await;
    let calls = model.count();
    // All that the model said meanwhile is in its sockets, and the decision in the rows.
    fleet.cont(0);
    within("it to join anew", async {
        while fleet.api(0).anonymous().get("/readyz").await.status != 200 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    // It joins only when none of its harnesses is left: whatever it would have done, it has done by now.
    three.had_once(&fleet);
    assert_eq!(model.count(), calls, "it has asked the model nothing");
    for session in [&three.thinking, &three.asking, &three.answered] {
        let turn = fleet.api(0).prompt(session, "/say still").await;
        assert_eq!(turn["text"], "still", "{turn}");
        let log: Vec<_> =
            fleet.api(0).events(session).await.iter().map(|event| event["seq"].as_u64()).collect();
        assert_eq!(log, (1..=log.len() as u64).map(Some).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn a_holder_that_dies_with_a_decision_on_its_way_leaves_it_to_the_other_and_the_tool_runs_once() {
    let model = ChatModel::start();
    for point in ["answer.before", "answer.given", "agent.tool.before", "agent.tool.ran", "agent.tool.stored"]
    {
        let mut fleet = fleet(&model).await;
        fleet.restart_with_fault(0, point).await;
        let asks = json!({"tool_policy": {"require_approval": ["shell"]}});
        let session = session_at(&fleet, 0, &asks).await;
        prompt_detached(&fleet.api(0), &session, ASKS).await;
        let row = fleet.api(1).until_status(&session, "awaiting_approval").await;
        let approval = row["pending_approval"]["id"].as_str().unwrap().to_owned();
        fleet.api(1).decide(&approval, "approve").await.expect(200);
        fleet.wait_dead(0).await;
        let row = fleet.api(1).until_status(&session, "idle").await;
        let ran = ledger(&fleet, &session).len();
        match point {
            // The tool had begun, and its end was not stored.
            "agent.tool.before" => {
                assert_eq!((row["turn"]["status"].as_str(), ran), (Some("interrupted"), 0), "{row}")
            }
            "agent.tool.ran" => {
                assert_eq!((row["turn"]["status"].as_str(), ran), (Some("interrupted"), 1), "{row}")
            }
            point => assert_eq!((row["turn"]["text"].as_str(), ran), (Some("done"), 1), "{point}: {row}"),
        }
    }
}
