//! Which calls run, which are asked about, and which are not to be.

use super::*;

const ASKS: &str = r#"{"tool_policy": {"require_approval": ["write_file"]}}"#;
const WRITE: &str = r#"/call write_file {"path": "a", "content": "1"}"#;

async fn asking(stream: bool) -> Rig {
    Rig::with("", serde_json::from_str(ASKS).unwrap(), stream).await
}

#[tokio::test]
async fn a_tool_that_needs_an_approval_waits_for_it_and_takes_the_edited_input() {
    let mut rig = asking(true).await;
    rig.live.prompt(&format!("{WRITE}\n/next\n/say done")).await;
    let seen = rig.live.asked(1).await;
    let request = &seen.asked[0];
    assert_eq!(
        (request.tool.as_str(), request.kind.as_str(), request.title.as_str()),
        ("write_file", "edit", "Use write_file: a")
    );
    assert_eq!(request.input, json!({"path": "a", "content": "1"}));
    assert!(rig.live.file("a").is_none());
    let edited = json!({"path": "b", "content": "2"});
    let told = Answer { edited_input: Some(edited.clone()), ..answer("q1", Decision::Approve) };
    rig.live.session.answer(told).await.unwrap();
    let seen = rig.live.end().await;
    assert!(seen.completed(), "{:?}", seen.ended);
    assert_eq!((rig.live.file("a"), rig.live.file("b")), (None, Some("2".to_owned())));
    assert_eq!(seen.tools()[0].input, edited);
    let told = &rig.last_messages()[3].1;
    assert!(told.starts_with("A person changed the input of this call to {"), "{told}");
}

#[tokio::test]
async fn row_46_a_denied_tool_is_a_result_that_costs_nothing_and_the_loop_goes_on() {
    for stream in [true, false] {
        let policy = json!({"require_approval": ["write_file"]});
        let more = json!({"tool_policy": policy, "execution": {"max_tool_calls": 1}});
        let mut rig = Rig::with("", more, stream).await;
        rig.live.prompt(&format!("{WRITE}\n/next\n/call list_files {{}}\n/next\n/say as you wish")).await;
        rig.live.asked(1).await;
        rig.live.answer("q1", Decision::Deny).await.unwrap();
        let seen = rig.live.end().await;
        assert!(seen.completed(), "{:?}", seen.ended);
        assert_eq!(words(&seen), "as you wish");
        assert!(rig.live.file("a").is_none());
        let denied = seen.tools()[0];
        assert_eq!((denied.status, &denied.result["denied"]), (ToolStatus::Failed, &json!(true)));
        assert_eq!(
            seen.tools()[1].status,
            ToolStatus::Succeeded,
            "the one call that is allowed is still to be had"
        );
        assert!(
            rig.last_messages()[3].1.contains("because"),
            "the model hears the words: {:?}",
            rig.last_messages()
        );
    }
}

#[tokio::test]
async fn row_47_a_call_is_submitted_once() {
    for stream in [true, false] {
        let mut rig = asking(stream).await;
        let submit = format!("/id same\n{WRITE}\n/next\n");
        rig.live.prompt(&format!("{submit}{submit}/say done")).await;
        rig.live.asked(1).await;
        rig.live.answer("q1", Decision::Deny).await.unwrap();
        let seen = rig.live.end().await;
        assert!(seen.completed() && seen.asked.is_empty(), "{:?}", seen.ended);
        assert!(seen.tools()[1].result.as_str().unwrap().contains("submitted before"), "{:?}", seen.tools());
        assert!(rig.live.file("a").is_none());
    }
}

#[tokio::test]
async fn row_92_a_disabled_tool_is_not_offered_and_fails_without_cost() {
    for stream in [true, false] {
        let more = json!({"tool_policy": {"disabled": ["write_file"]}, "execution": {"max_tool_calls": 1}});
        let mut rig = Rig::with("", more, stream).await;
        let seen = rig.turn(&format!("{WRITE}\n/next\n/call list_files {{}}\n/next\n/say done")).await;
        assert!(seen.completed(), "{:?}", seen.ended);
        assert!(seen.tools()[0].result.as_str().unwrap().contains("disabled"));
        let offered = rig.model.requests()[0]["tools"].to_string();
        assert!(!offered.contains("write_file") && offered.contains("read_file"), "{offered}");
    }
}

#[tokio::test]
async fn what_cannot_be_called_is_told_to_the_model() {
    let mut rig = Rig::new(json!({})).await;
    let seen = rig.turn("/call fly {}\n/call-raw read_file {\"path\": \n/call read_file [1]\n/call read_file {}\n/next\n/say done").await;
    assert!(seen.completed(), "{:?}", seen.ended);
    for (tool, words) in
        seen.tools().iter().zip(["no tool fly", "not a JSON object", "not a JSON object", "path"])
    {
        assert!(
            tool.status == ToolStatus::Failed && tool.result.as_str().unwrap().contains(words),
            "{tool:?}"
        );
    }
}

#[tokio::test]
async fn what_the_operator_refuses_is_neither_offered_nor_run() {
    let model = ChatModel::start();
    let harness = harness(&model, "", true);
    let stored = harness.validate(&settings(json!({}))).unwrap();
    let workspace = tempfile::tempdir().unwrap();
    let denied_tools = crate::domain::policy::DeniedTools::parse(["kind:edit"]).unwrap();
    let options = StartOptions { denied_tools, ..rig::options(&workspace, &stored, None) };
    let mut live = Live::start_with(harness, workspace, options).await;
    let seen = live.turn(&format!("{WRITE}\n/next\n/say done")).await;
    assert!(seen.completed() && live.file("a").is_none(), "{:?}", seen.ended);
    assert!(!model.requests()[0]["tools"].to_string().contains("write_file"));
}

#[tokio::test]
async fn several_questions_wait_together_and_each_runs_as_it_is_decided() {
    let mut rig = asking(true).await;
    let script = r#"/call write_file {"path": "a", "content": "1"}
/call list_files {}
/call write_file {"path": "b", "content": "2"}
/next
/say done"#;
    rig.live.prompt(script).await;
    rig.live.asked(2).await;
    rig.live.approve("q2").await;
    let seen = rig.live.output(|output| matches!(output, Output::ToolCompleted(ToolEnd { tool_call_id, .. }) if tool_call_id == "call_0_2")).await;
    assert_eq!(seen.tools().last().unwrap().status, ToolStatus::Succeeded);
    assert_eq!((rig.live.file("a"), rig.live.file("b")), (None, Some("2".to_owned())));
    assert_eq!(code(rig.live.answer("q2", Decision::Approve).await), "approval_unknown");
    rig.live.approve("q1").await;
    assert!(rig.live.end().await.completed());
    assert_eq!(rig.live.file("a"), Some("1".to_owned()));
}

#[tokio::test]
async fn a_cancelled_turn_ends_at_once_and_its_calls_have_an_end() {
    let mut rig = Rig::new(json!({})).await;
    rig.live.prompt("/say a\n/hang").await;
    rig.model.wait_for_count(1).await;
    rig.live.session.cancel().await.unwrap();
    assert_eq!(rig.live.end().await.ended, Some(TurnOutcome::Cancelled));
    let mut asking = asking(true).await;
    asking.live.prompt(WRITE).await;
    asking.live.asked(1).await;
    asking.live.session.cancel().await.unwrap();
    assert_eq!(asking.live.end().await.ended, Some(TurnOutcome::Cancelled));
    assert!(asking.turn("/say on").await.completed());
    assert!(asking.last_messages().iter().any(|(role, words)| role == "tool" && words.contains("not run")));
}

#[tokio::test]
async fn an_agent_without_a_model_says_what_to_do() {
    let bare = AgentHarness::new("agent", toml::from_str("").unwrap(), Launcher::of_this_program(Vec::new()))
        .unwrap();
    let Availability::Missing { configure, .. } = bare.availability() else { panic!("it is available") };
    assert!(configure.unwrap().contains("[harness.agent.models.main]"));
    assert!(bare.validate(&Value::Null).unwrap_err()[0].contains("no model is configured"));
    for (table, words) in [
        ("default_model = \"x\"", "there is no model \"x\""),
        ("[settings.memory]\nrecent_turns = 9", "settings.memory.recent_turns"),
        ("[project]\ncommand = []", "project.command"),
        ("[models.a]\nbase_url = \"ftp://x\"\nmodel = \"m\"\ncontext_window = 1", "models.a.base_url"),
        ("[mcp.UP]\ncommand = [\"x\"]", "mcp.UP"),
    ] {
        let wrong =
            AgentHarness::new("agent", toml::from_str(table).unwrap(), Launcher::of_this_program(Vec::new()));
        let wrong = wrong.err().unwrap();
        assert!(wrong.iter().any(|complaint| complaint.contains(words)), "{table}: {wrong:?}");
    }
}

#[test]
fn what_the_readme_says_of_the_configuration_is_so() {
    #[derive(serde::Deserialize)]
    struct File {
        #[serde(deserialize_with = "HarnessConfig::read_all")]
        harness: std::collections::BTreeMap<String, HarnessConfig>,
    }
    let readme = include_str!("../../../../README.md");
    let blocks = readme.split("```toml\n").skip(1).filter_map(|block| block.split("```").next());
    let ours: Vec<_> = blocks.filter(|block| block.contains("[harness.agent")).collect();
    assert_eq!(ours.len(), 2);
    let file: File = toml::from_str(&ours.concat()).unwrap();
    let HarnessConfig::Agent(mut config) = file.harness["agent"].clone() else { panic!("no agent") };
    // No such program is on this machine.
    config.project = None;
    let harness = AgentHarness::new("agent", *config, Launcher::of_this_program(Vec::new())).unwrap();
    let stored = harness
        .validate(&json!({"version": 1, "mcp_servers": {"own": {"url": "https://mcp.example.com/x"}}}));
    assert_eq!(stored.unwrap()["planning"]["mode"], "off");
}

#[tokio::test]
async fn a_session_s_own_server_is_where_the_operator_allows_it() {
    let model = ChatModel::start();
    let harness = harness(&model, "session_mcp_origins = [\"http://127.0.0.1:9\"]", true);
    let own = |name: &str, url: &str| settings(json!({"mcp_servers": {name: {"url": url}}}));
    assert!(harness.validate(&own("x", "http://127.0.0.1:9/mcp")).is_ok());
    for (name, url) in [
        ("x", "http://127.0.0.1:10/mcp"),
        ("x", "https://127.0.0.1:9/"),
        ("X y", "http://127.0.0.1:9/"),
        ("x", "file:///etc"),
    ] {
        assert!(harness.validate(&own(name, url)).is_err(), "{name} {url}");
    }
}
