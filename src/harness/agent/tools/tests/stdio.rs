//! MCP servers that are child processes.

use super::*;
use crate::harness::child;

async fn call(tools: &Toolbox, tool: &str, input: Value) -> Called {
    tools.call(&format!("mcp__fake__{tool}"), &input).await
}

#[tokio::test]
async fn tools_are_listed_over_all_pages_and_what_cannot_be_one_is_left_out() {
    let rig = Rig::with_fake(&["--odd", "--noise"], "require_approval = [\"effect\"]");
    let tools = rig.open().await;
    assert_eq!(tools.specs().len(), 3 + 14);
    let spec = |name: &str| tools.find(name).unwrap();
    let echo = spec("mcp__fake__echo");
    assert_eq!((echo.kind.as_str(), echo.asks, echo.description.as_str()), ("read", false, "Does echo."));
    assert_eq!(echo.input_schema["properties"]["text"]["type"], "string");
    let effect = spec("mcp__fake__effect");
    assert_eq!((effect.kind.as_str(), effect.asks), ("other", true));
    assert_eq!(tools.left_out().len(), 7, "{:?}", tools.left_out());
    // What the server says of itself is given to nobody.
    assert!(!format!("{:?}", tools.specs()).contains("Ignore all"));
    tools.close().await;
}

#[tokio::test]
async fn only_the_tools_that_the_operator_wants_are_there() {
    let rig = Rig::with_fake(&[], "tools = [\"echo\", \"none\"]\nrequire_approval = [\"*\"]");
    let tools = rig.open().await;
    let names: Vec<_> = tools.specs().iter().skip(3).map(|spec| (spec.name.as_str(), spec.asks)).collect();
    assert_eq!(names, [("mcp__fake__echo", true)]);
    assert_eq!(tools.left_out(), ["the MCP server fake has no tool \"none\", which its table names"]);
    let called = call(&tools, "effect", json!({"text": "x"})).await;
    assert_eq!((called.outcome, rig.ledger("effect").len()), (Outcome::Failed, 0));
    tools.close().await;
}

#[tokio::test]
async fn a_call_gives_text_or_a_word_for_what_is_none() {
    let rig = Rig::with_fake(&["--noise"], "");
    let tools = rig.open().await;
    for (tool, input, outcome, content) in [
        ("echo", json!({"text": "ñ"}), Outcome::Succeeded, "ñ"),
        ("error", json!({"text": "no such thing"}), Outcome::Failed, "no such thing"),
        ("refuse", json!({"text": "not that"}), Outcome::Failed, "not that"),
        ("image", json!({}), Outcome::Succeeded, "[image image/png, 4 bytes left out]\na picture"),
        ("structured", json!({}), Outcome::Succeeded, "{\"answer\":42}"),
        ("effect", json!({"text": "once"}), Outcome::Succeeded, "done"),
        ("ask", json!({"count": 100}), Outcome::Succeeded, "100"),
    ] {
        assert_eq!(said(&call(&tools, tool, input).await), (outcome, content), "{tool}");
    }
    assert_eq!(rig.ledger("effect"), ["once"]);
    let huge = call(&tools, "huge", json!({"bytes": 3_000_000})).await;
    assert_eq!(huge.outcome, Outcome::Succeeded);
    assert!(huge.content.len() <= 4096 && huge.content.contains("bytes left out"));
    let wrong = tools.call("mcp__fake__echo", &json!("text")).await;
    assert_eq!(wrong.outcome, Outcome::Failed);
    tools.close().await;
}

#[tokio::test]
async fn a_server_has_the_environment_that_the_operator_named_and_no_more() {
    let (name, value) = own_variable();
    for is_named in [true, false] {
        let mut rig = Rig::with_fake(&[], "");
        rig.config.tools.result_max_bytes = 64 << 10;
        let named = is_named.then(|| name.clone());
        rig.config.mcp.get_mut("fake").unwrap().inherit_env.extend(named);
        let tools = rig.open().await;
        let env: Value = serde_json::from_str(&call(&tools, "env", json!({})).await.content).unwrap();
        assert_eq!(env["HOME"], rig.state.path().to_str().unwrap());
        assert_eq!(env["FAKE_MCP_LEDGER"], rig.ledger_path().to_str().unwrap());
        let is_there = env.get(&name).is_some_and(|found| *found == value);
        assert_eq!((is_there, env.get(&name).is_some()), (is_named, is_named), "{name}");
        tools.close().await;
    }
}

#[tokio::test]
async fn a_call_that_takes_too_long_is_uncertain_and_the_server_is_told() {
    let rig = Rig::with_fake(&[], "timeout_seconds = 1");
    let tools = rig.open().await;
    let called = call(&tools, "sleep", json!({"seconds": 600})).await;
    assert_eq!(called.outcome, Outcome::Uncertain);
    assert!(called.content.contains("did not answer within 1 s"), "{}", called.content);
    eventually("the server is told", || rig.ledger("cancelled") == rig.ledger("sleeping")).await;
    assert_eq!(said(&call(&tools, "echo", json!({"text": "on"})).await), (Outcome::Succeeded, "on"));
    assert_eq!(rig.ledger("started").len(), 1);
    tools.close().await;
}

#[tokio::test]
async fn a_call_that_is_dropped_is_cancelled_at_the_server() {
    let rig = Rig::with_fake(&[], "");
    let tools = Arc::new(rig.open().await);
    let sleeping = tokio::spawn({
        let tools = Arc::clone(&tools);
        async move { call(&tools, "sleep", json!({"seconds": 600})).await }
    });
    eventually("it has begun", || rig.ledger("sleeping").len() == 1).await;
    sleeping.abort();
    eventually("the server is told", || rig.ledger("cancelled") == rig.ledger("sleeping")).await;
    assert_eq!(said(&call(&tools, "echo", json!({"text": "on"})).await), (Outcome::Succeeded, "on"));
    tools.close().await;
}

#[tokio::test]
async fn a_server_that_dies_in_mid_call_is_an_uncertain_call_at_once_and_the_next_one_starts_it_anew() {
    let rig = Rig::with_fake(&[], "");
    let tools = rig.open().await;
    for deaths in 1..3 {
        let begun = Instant::now();
        let called = call(&tools, "die", json!({})).await;
        assert_eq!(called.outcome, Outcome::Uncertain);
        assert!(called.content.contains("exited with code 7 in mid-call"), "{}", called.content);
        assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
        assert_eq!(rig.ledger("started").len(), deaths, "a call is made once");
        assert_eq!(said(&call(&tools, "echo", json!({"text": "on"})).await), (Outcome::Succeeded, "on"));
        assert_eq!(rig.ledger("started").len(), deaths + 1);
    }
    tools.close().await;
}

#[tokio::test]
async fn a_server_that_cannot_be_started_anew_fails_the_call_in_words() {
    let rig = Rig::with_fake(&["--fragile"], "");
    let tools = rig.open().await;
    assert_eq!(call(&tools, "die", json!({})).await.outcome, Outcome::Uncertain);
    for _ in 0..2 {
        let called = call(&tools, "effect", json!({"text": "x"})).await;
        assert_eq!(called.outcome, Outcome::Failed);
        assert!(called.content.contains("could not be started anew"), "{}", called.content);
        assert!(called.content.contains("exited with code 1"), "{}", called.content);
    }
    let kept = fs::read_to_string(rig.state.path().join("mcp-fake.log")).unwrap();
    assert_eq!(kept, "once is enough", "for the operator");
    assert_eq!(rig.ledger("effect").len(), 0);
}

#[tokio::test]
async fn a_server_that_says_too_much_at_once_is_ended_and_started_anew() {
    let rig = Rig::with_fake(&[], "");
    let tools = rig.open().await;
    let called = call(&tools, "line", json!({"bytes": 64 << 20})).await;
    assert_eq!(called.outcome, Outcome::Uncertain);
    assert!(called.content.contains("said too much at once, was ended in mid-call"), "{}", called.content);
    assert_eq!(said(&call(&tools, "echo", json!({"text": "on"})).await), (Outcome::Succeeded, "on"));
    assert_eq!(rig.ledger("started").len(), 2);
    assert!(!is_alive(rig.ledger("started")[0].as_i64().unwrap().try_into().unwrap()));
    tools.close().await;
}

#[tokio::test]
async fn a_server_that_asks_without_end_and_does_not_listen_holds_nobody_up() {
    let rig = Rig::with_fake(&[], "timeout_seconds = 1");
    let tools = rig.open().await;
    let called = call(&tools, "pester", json!({"count": 20_000})).await;
    // Either it was done in that second or not.
    assert!(called.outcome != Outcome::Failed, "{}", called.content);
    let next = call(&tools, "effect", json!({"text": "x"})).await;
    assert_eq!((next.outcome, rig.ledger("effect").len()), (Outcome::Uncertain, 0), "{}", next.content);
    let begun = Instant::now();
    tools.close().await;
    assert!(begun.elapsed() < DEADLINE && rig.processes().is_empty());
}

#[tokio::test]
async fn closing_ends_a_server_gently_and_all_that_it_started() {
    let rig = Rig::with_fake(&[], "");
    let tools = rig.open().await;
    let child: i32 = call(&tools, "fork", json!({})).await.content.parse().unwrap();
    assert!(is_alive(child));
    tools.close().await;
    assert_eq!(rig.ledger("ended"), rig.ledger("started"), "it ended in order");
    assert!(!is_alive(child) && rig.processes().is_empty());
    tools.close().await;
    let called = call(&tools, "effect", json!({"text": "x"})).await;
    assert_eq!((called.outcome, rig.ledger("effect").len()), (Outcome::Failed, 0));
    assert_eq!(rig.ledger("started").len(), 1);
}

#[tokio::test]
async fn closing_ends_a_call_that_is_at_work() {
    let rig = Rig::with_fake(&[], "");
    let tools = rig.open().await;
    let (called, ()) = tokio::join!(call(&tools, "sleep", json!({"seconds": 600})), async {
        eventually("it has begun", || rig.ledger("sleeping").len() == 1).await;
        tools.close().await;
    });
    assert_eq!(called.outcome, Outcome::Uncertain);
    assert!(rig.processes().is_empty());
}

#[tokio::test]
async fn dropping_the_tools_ends_servers_at_once() {
    let rig = Rig::with_fake(&[], "");
    let tools = rig.open().await;
    let child: i32 = call(&tools, "fork", json!({})).await.content.parse().unwrap();
    drop(tools);
    eventually("all are dead", || !is_alive(child) && rig.processes().is_empty()).await;
}

#[tokio::test]
async fn what_tools_leave_running_is_found_by_its_session_as_of_any_agent() {
    let mut rig = Rig::with_fake(&[], "");
    rig.config.tools.shell = Shell::Allow;
    let tools = Arc::new(rig.open().await);
    let child: i32 = call(&tools, "fork", json!({})).await.content.parse().unwrap();
    let running = tokio::spawn({
        let tools = Arc::clone(&tools);
        async move { tools.call("shell", &json!({"command": "touch begun; sleep 600"})).await }
    });
    // The server and its child, the shell and its command.
    eventually("the command runs", || rig.path("begun").exists() && rig.processes().len() >= 4).await;
    assert!(is_alive(child));
    let directories = [&rig.workspace, &rig.state].map(|directory| directory.path().to_owned());
    child::end_left(rig.session_id.clone(), directories.to_vec()).await;
    assert!(!is_alive(child) && rig.processes().is_empty());
    assert_eq!(running.await.unwrap().outcome, Outcome::Failed);
}

#[tokio::test]
async fn where_one_server_does_not_start_none_is_left_running() {
    let mut rig = Rig::with_fake(&[], "");
    rig.config.mcp.insert("gone".to_owned(), toml::from_str("command = [\"no-such-server\"]").unwrap());
    rig.config.mcp.insert(
        "dead".to_owned(),
        toml::from_str("command = [\"sh\", \"-c\", \"echo canary >&2; exit 4\"]").unwrap(),
    );
    let failure = rig.try_open().await.err().unwrap();
    assert_eq!(failure.code, "tools_unavailable");
    assert!(
        failure.message.contains("the MCP server gone: no-such-server is not on the PATH"),
        "{}",
        failure.message
    );
    assert!(
        failure.message.contains("the MCP server dead: it ended before it was ready: it exited with code 4")
    );
    assert!(!failure.message.contains("canary"), "{}", failure.message);
    assert_eq!(fs::read_to_string(rig.state.path().join("mcp-dead.log")).unwrap(), "canary");
    assert!(rig.processes().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_says_nothing_is_given_up_at_the_deadline() {
    let rig = Rig::with_fake(&["--silent"], "");
    let failure = rig.try_open().await.err().unwrap();
    assert!(failure.message.contains("was not ready within 30 s"), "{}", failure.message);
    eventually("it is dead", || rig.processes().is_empty()).await;
}

#[tokio::test]
async fn a_session_brings_no_program_no_token_and_no_name_of_the_operator_s() {
    for (name, text, words) in [
        ("fake", "url = \"http://127.0.0.1:1\"", "the operator has one of that name"),
        ("own", "command = [\"sh\"]", "an address and nothing else"),
        ("own", "url = \"http://127.0.0.1:1\"\ntoken_env = \"PATH\"", "an address and nothing else"),
        ("o_wn", "url = \"http://127.0.0.1:1\"", "a name of small letters"),
    ] {
        let mut rig = Rig::with_fake(&[], "");
        rig.session_mcp.insert(name.to_owned(), toml::from_str(text).unwrap());
        let failure = rig.try_open().await.err().unwrap();
        assert!(failure.message.contains(words), "{}", failure.message);
        assert_eq!(rig.ledger("started").len(), 0);
    }
}

#[tokio::test]
async fn nothing_is_called_once_the_session_may_be_another_s() {
    let mut rig = Rig::with_fake(&[], "");
    let open = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let is_open = Arc::clone(&open);
    rig.fence = Fence::new(move || is_open.load(std::sync::atomic::Ordering::Relaxed));
    let tools = rig.open().await;
    open.store(false, std::sync::atomic::Ordering::Relaxed);
    let called = call(&tools, "effect", json!({"text": "x"})).await;
    assert_eq!((called.outcome, rig.ledger("effect").len()), (Outcome::Failed, 0));
    tools.close().await;
}
