//! Limits stop a turn at the number that they name.

use super::*;

/// A script that reads so many times, and then answers.
fn reads(count: usize) -> String {
    "/call list_files {}\n/next\n".repeat(count) + "/say done"
}

#[tokio::test]
async fn row_92_a_model_is_called_as_often_as_is_allowed_and_not_once_more() {
    for stream in [true, false] {
        for most in [1, 3] {
            let execution = json!({"execution": {"max_model_calls": most}});
            let mut rig = Rig::with("", execution, stream).await;
            let seen = rig.turn(&reads(most)).await;
            assert_eq!(failure(&seen).0, "model_call_limit");
            assert_eq!(rig.model.count(), most);
            assert!(rig.turn(&reads(most - 1)).await.completed(), "each turn counts for itself");
        }
    }
}

#[tokio::test]
async fn a_plan_and_a_repair_are_model_calls() {
    let mut rig = Rig::new(json!({"planning": {"mode": "auto"}, "execution": {"max_model_calls": 1}})).await;
    assert_eq!(failure(&rig.turn("/say x").await).0, "model_call_limit");
    assert_eq!(rig.model.count(), 1);
    let mut rig = Rig::new(json!({"execution": {"max_model_calls": 1}})).await;
    let seen = rig.turn("/say [download](x)\n/next\n/say x").await;
    assert_eq!(failure(&seen).0, "model_call_limit");
}

#[tokio::test]
async fn tools_run_as_often_as_is_allowed_and_not_once_more() {
    let mut rig = Rig::new(json!({"execution": {"max_tool_calls": 2}})).await;
    let seen = rig.turn(&reads(3)).await;
    assert_eq!(failure(&seen).0, "tool_call_limit");
    let ran = seen.tools().iter().filter(|tool| tool.status == ToolStatus::Succeeded).count();
    assert_eq!(ran, 2);
    assert!(rig.turn(&reads(2)).await.completed());
}

#[tokio::test]
async fn a_turn_works_no_longer_than_it_may_whatever_hangs() {
    let mut rig = Rig::new(json!({"execution": {"max_duration_seconds": 1}})).await;
    assert_eq!(failure(&rig.turn("/hang").await).0, "duration_limit");
}

#[tokio::test]
async fn row_89_a_conversation_is_condensed_and_fails_when_that_does_not_help() {
    let table = |window: u64| {
        format!(
            "[models.small]\nbase_url = \"http://127.0.0.1:9/v1\"\nmodel = \"x\"\ncontext_window = {window}\ntoken_estimate = \"bytes\"\n"
        )
    };
    let model = ChatModel::start();
    let text = |window: u64| {
        format!(
            "default_model = \"main\"\n{}[models.main]\nbase_url = {:?}\nmodel = \"scripted\"\ncontext_window = {window}\ntoken_estimate = \"bytes\"\nmax_output_tokens = 1\n",
            table(window),
            model.base_url()
        )
    };
    let all_off = json!({"version": 1, "planning": {"mode": "off"}});
    for (window, fits) in [(12_000, true), (5_000, false)] {
        let config = toml::from_str(&text(window)).unwrap();
        let harness = AgentHarness::new("agent", config, Launcher::of_this_program(Vec::new())).unwrap();
        let stored = harness.validate(&all_off).unwrap();
        let mut live = Live::start(Arc::new(harness), stored, tempfile::tempdir().unwrap(), None).await;
        let write = |name: &str| {
            format!(
                "/call write_file {{\"path\": \"{name}\", \"content\": \"{}\"}}\n/next\n",
                "x".repeat(1500)
            )
        };
        let script = format!(
            "{}/call read_file {{\"path\": \"a\"}}\n/next\n/call read_file {{\"path\": \"a\"}}\n/next\n/say done",
            write("a")
        );
        let seen = live.turn(&script).await;
        let compactions: Vec<_> = seen
            .outputs
            .iter()
            .filter_map(|output| match output {
                Output::Compaction { tokens_before, tokens_after, .. } => {
                    Some((tokens_before.unwrap(), tokens_after.unwrap()))
                }
                _ => None,
            })
            .collect();
        if fits {
            assert!(seen.completed(), "{:?}", seen.ended);
            let (before, after) = compactions[0];
            assert!(after < before, "{compactions:?}");
        } else {
            assert_eq!(failure(&seen).0, "context_overflow");
        }
    }
}
