//! ACP agents through the real service: what a client sees of an agent that works, asks, dies, hangs, talks nonsense or is
//! not there at all. The oracle of effects is the agent's own record in its workspace.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::assert_soon;
use crate::support::fake_agent::{
    FAKE, approval, create, create_with, effects, harness, id, post, prompt_detached, service, settled,
};
use crate::support::processes::{self, eventually, is_alive};
use crate::support::server::Home;

const NONE: [u32; 0] = [];

#[tokio::test]
async fn an_approved_tool_runs_once() {
    let (home, _server, api) = service(&["script"]).await;
    let session = create(&api, "say first \nrun make\nsay then").await;
    assert_eq!(session["status"], "awaiting_approval");
    let (session, pending) = (id(&session), session["pending_approval"].clone());
    assert_eq!(
        (pending["title"].as_str(), pending["kind"].as_str(), &pending["input"]),
        (Some("Run: make"), Some("execute"), &json!({"command": "make"}))
    );
    assert_eq!(pending["options"].as_array().unwrap().len(), 3);
    assert!(effects(&home, &session).is_empty(), "nothing runs before it is approved");
    let decided = api.decide(&id(&pending), "approve").await.expect(200);
    assert_eq!(decided["idempotent"], false);
    assert_eq!(api.decide(&id(&pending), "approve").await.expect(200)["idempotent"], true);
    let row = settled(&api, &session).await;
    assert_eq!(
        (row["turn"]["status"].as_str(), row["turn"]["text"].as_str()),
        (Some("completed"), Some("first then"))
    );
    assert_eq!(effects(&home, &session), [json!({"command": "make", "option": "yes"})]);
    let kinds = api.kinds(&session).await;
    let from = kinds.iter().position(|kind| kind == "turn.started").unwrap();
    assert_eq!(
        kinds[from..],
        [
            "turn.started",
            "text.delta",
            "tool.started",
            "approval.requested",
            "approval.resolved",
            "approval.delivered",
            "tool.completed",
            "text.delta",
            "turn.completed"
        ]
    );
    assert!(approval(&api, &id(&pending)).await["delivered_at"].is_string());
}

#[tokio::test]
async fn a_chosen_option_is_the_one_that_the_agent_hears() {
    let (home, _server, api) = service(&["script"]).await;
    let session = create(&api, "run make").await;
    let path = format!("/v1/approvals/{}/decision", id(&session["pending_approval"]));
    let body = json!({"decision": "approve", "option_id": "yes-always"});
    api.post(&path, body).await.expect(200);
    settled(&api, &id(&session)).await;
    assert_eq!(effects(&home, &id(&session))[0]["option"], "yes-always");
}

#[tokio::test]
async fn a_denied_tool_does_not_run_whether_or_not_the_agent_goes_on() {
    let (home, _server, api) = service(&["script"]).await;
    // Some agents tell their model and go on; Codex ends the turn as cancelled, though nobody cancelled it.
    for (script, reason, text) in
        [("run make\nsay on", "end_turn", "on"), ("deny-ends\nrun make\nsay on", "cancelled", "")]
    {
        let session = create(&api, script).await;
        api.decide(&id(&session["pending_approval"]), "deny").await.expect(200);
        let turn = settled(&api, &id(&session)).await["turn"].take();
        assert_eq!(
            (turn["status"].as_str(), turn["stop_reason"].as_str(), turn["text"].as_str()),
            (Some("completed"), Some(reason), Some(text))
        );
        assert!(effects(&home, &id(&session)).is_empty());
        let ended = api.events_of(&id(&session), "tool.completed").await;
        assert_eq!(ended[0]["status"], "failed");
    }
}

#[tokio::test]
async fn allow_reads_answers_what_is_labelled_a_read_and_asks_for_the_rest() {
    let (home, _server, api) = service(&["script"]).await;
    let body = json!({"harness": "fake", "prompt": "look notes\nrun make", "permission_mode": "allow_reads"});
    let session = create_with(&api, body).await;
    let pending = &session["pending_approval"];
    assert_eq!((pending["kind"].as_str(), &session["pending_approval_count"]), (Some("execute"), &json!(1)));
    // Never the option that would allow it for good, though that is the first on the list.
    assert_eq!(effects(&home, &id(&session)), [json!({"command": "notes", "option": "yes"})]);
    let answered = api.events_of(&id(&session), "approval.resolved").await[0]["approval"].take();
    assert_eq!(answered["decided_by"], "permission_mode:allow_reads");
    api.decide(&id(pending), "deny").await.expect(200);
    settled(&api, &id(&session)).await;
    assert_eq!(effects(&home, &id(&session)).len(), 1);
}

#[tokio::test]
async fn a_turn_is_cancelled_in_the_middle_and_the_agent_goes_on_with_the_next() {
    let (_home, _server, api) = service(&["script"]).await;
    let session = id(&create(&api, "remember blue").await);
    prompt_detached(&api, &session, "say working\nhang").await;
    api.follow(&session, "").await.until("text.delta").await;
    let row = post(&api, &session, "cancel").await;
    assert_eq!((row["status"].as_str(), row["turn"]["status"].as_str()), (Some("idle"), Some("cancelled")));
    let turn = api.prompt(&session, "recall").await;
    assert_eq!((turn["text"].as_str(), turn["rehydrated"].as_bool()), (Some("blue"), Some(false)));
}

#[tokio::test]
async fn an_agent_that_ignores_a_cancel_is_ended_and_its_conversation_taken_up() {
    let (_home, _server, api) = service(&["script"]).await;
    let session = id(&create(&api, "remember blue").await);
    prompt_detached(&api, &session, "say working\ndeaf-cancel").await;
    api.follow(&session, "").await.until("text.delta").await;
    let row = post(&api, &session, "cancel").await;
    assert_eq!((row["status"].as_str(), row["turn"]["status"].as_str()), (Some("idle"), Some("cancelled")));
    assert_eq!(processes::of_agent(&session), NONE);
    let turn = api.prompt(&session, "recall").await;
    assert_eq!((turn["text"].as_str(), turn["rehydrated"].as_bool()), (Some("blue"), Some(true)));
}

#[tokio::test]
async fn a_cancel_voids_the_question_that_waits_and_the_agent_hears_of_it() {
    let (home, _server, api) = service(&["script"]).await;
    let created = create(&api, "run make").await;
    let (session, asked) = (id(&created), id(&created["pending_approval"]));
    let row = post(&api, &session, "cancel").await;
    assert_eq!((row["status"].as_str(), row["turn"]["status"].as_str()), (Some("idle"), Some("cancelled")));
    assert_eq!(approval(&api, &asked).await["status"], "cancelled");
    api.decide(&asked, "approve").await.problem(409, "approval_closed");
    // The same process: one that had not heard would still wait, and would have been killed.
    let turn = api.prompt(&session, "run other").await;
    assert_eq!(turn["status"], "awaiting_approval");
    let row = api.session(&session).await;
    api.decide(&id(&row["pending_approval"]), "approve").await.expect(200);
    let row = settled(&api, &session).await;
    assert_eq!(row["turn"]["rehydrated"], false);
    assert_eq!(effects(&home, &session), [json!({"command": "other", "option": "yes"})]);
}

#[tokio::test]
async fn a_question_that_the_agent_takes_back_is_void_and_the_turn_goes_on() {
    let (home, _server, api) = service(&["script"]).await;
    let session = create(&api, "withdraw make").await;
    let row = settled(&api, &id(&session)).await;
    assert_eq!(row["turn"]["text"], "withdrawn -32800");
    let void = api.events_of(&id(&session), "approval.cancelled").await;
    api.decide(void[0]["approval"]["id"].as_str().unwrap(), "approve").await.problem(409, "approval_closed");
    assert!(effects(&home, &id(&session)).is_empty());
}

#[tokio::test]
async fn row_84_an_agent_that_dies_in_mid_turn_is_told_at_once_and_a_follow_up_remembers() {
    for flags in [&["script"][..], &["script", "--load"]] {
        let (_home, _server, api) = service(flags).await;
        let session = id(&create(&api, "remember blue").await);
        let begun = Instant::now();
        let turn = api.prompt(&session, "say last words\ndie").await;
        assert_soon(begun.elapsed(), Duration::from_secs(2));
        assert_eq!(
            (turn["status"].as_str(), turn["error"]["code"].as_str(), turn["text"].as_str()),
            (Some("failed"), Some("agent_exited"), Some("last words"))
        );
        assert!(turn["error"]["message"].as_str().unwrap().ends_with("exited with code 3"), "{turn}");
        let row = api.session(&session).await;
        assert_eq!((row["status"].as_str(), row["resumable"].as_bool()), (Some("errored"), Some(true)));
        assert_eq!(api.events_of(&session, "session.errored").await[0]["code"], "agent_exited");
        let turn = api.prompt(&session, "recall").await;
        assert_eq!((turn["text"].as_str(), turn["rehydrated"].as_bool()), (Some("blue"), Some(true)));
        assert_eq!(api.events_of(&session, "session.rehydrated").await, [json!({"exact": false})]);
        assert!(api.events_of(&session, "session.context_lost").await.is_empty());
    }
}

#[tokio::test]
async fn a_lost_conversation_is_never_silent() {
    for flag in ["--no-restore", "--resume"] {
        let (home, _server, api) = service(&["script", flag]).await;
        let session = id(&create(&api, "remember blue").await);
        api.prompt(&session, "die").await;
        if flag == "--resume" {
            std::fs::remove_dir_all(home.state_dir(&session)).unwrap();
        }
        let turn = api.prompt(&session, "recall").await;
        assert_eq!((turn["status"].as_str(), turn["text"].as_str()), (Some("completed"), Some("NOTHING")));
        assert_eq!(turn["rehydrated"], false, "nothing was taken up");
        let lost = api.events_of(&session, "session.context_lost").await;
        assert_eq!(lost.len(), 1, "{flag}");
        assert!(!lost[0]["reason"].as_str().unwrap().is_empty());
        assert!(api.events_of(&session, "session.rehydrated").await.is_empty());
        // From here on there is a conversation again.
        assert_eq!(api.prompt(&session, "remember red\nrecall").await["text"], "red");
    }
}

#[tokio::test]
async fn an_agent_dies_with_a_killed_service_and_what_it_leaves_is_ended_by_the_next_start() {
    let (home, server, api) = service(&["script", "--stay"]).await;
    let idle = id(&create(&api, "remember blue\nfork").await);
    let at_work = id(&create(&api, "remember red\nfork").await);
    prompt_detached(&api, &at_work, "say on\nhang").await;
    api.follow(&at_work, "").await.until("text.delta").await;
    assert_eq!((processes::of_agent(&idle).len(), processes::of_agent(&at_work).len()), (2, 2));
    server.kill().await;
    // The kernel ends the agents themselves, though they stay when their stdin is closed; what they have started it does not.
    for session in [&idle, &at_work] {
        eventually("the agent is gone", || processes::of_agent(session).len() == 1).await;
    }
    let server = home.start().await;
    let api = server.api();
    for (session, word) in [(&idle, "blue"), (&at_work, "red")] {
        assert_eq!(processes::of_agent(session), NONE, "two on one conversation do not know of each other");
        assert_eq!(api.prompt(session, "recall").await["text"], word);
        assert_eq!(processes::of_agent(session).len(), 1);
    }
    // In order, so that the test leaves none itself.
    assert!(server.terminate().await.success());
}

#[tokio::test]
async fn row_85_a_stop_or_a_destroy_leaves_no_process() {
    for flags in [&["script"][..], &["script", "--stay"]] {
        let (home, _server, api) = service(flags).await;
        for fork in ["fork", "fork-bare"] {
            let session = id(&create(&api, &format!("remember blue\n{fork}")).await);
            let grandchild = || {
                let file = home.workspace(&session).join("grandchild.pid");
                let pid = std::fs::read_to_string(&file).unwrap().parse().unwrap();
                std::fs::remove_file(file).unwrap();
                pid
            };
            let pid = grandchild();
            assert!(is_alive(pid));
            let row = post(&api, &session, "stop").await;
            assert_eq!((row["status"].as_str(), row["live"].as_bool()), (Some("stopped"), Some(false)));
            assert_eq!(processes::of_agent(&session), NONE);
            assert!(!is_alive(pid), "{fork}");
            assert_eq!(api.prompt(&session, "recall").await["text"], "blue");
            prompt_detached(&api, &session, &format!("{fork}\nhang")).await;
            eventually("the second one", || home.workspace(&session).join("grandchild.pid").exists()).await;
            let pid = grandchild();
            assert_eq!(api.delete(&format!("/v1/sessions/{session}")).await.status, 204);
            assert_eq!(processes::of_agent(&session), NONE);
            assert!(!is_alive(pid), "{fork}");
            assert!(!home.state_dir(&session).exists(), "what the agent kept is erased");
        }
    }
}

#[tokio::test]
async fn a_shutdown_leaves_no_process_and_idle_conversations_go_on_after_it() {
    let home = Home::new().with_config(&harness("fake", &["script", "--stay"]));
    let home = home.with(&["--shutdown-grace-seconds", "0.3"]);
    let server = home.start().await;
    let api = server.api();
    let idle = id(&create(&api, "remember blue\nfork").await);
    let asks = id(&create(&api, "run make").await);
    let hangs = id(&create(&api, "remember red").await);
    prompt_detached(&api, &hangs, "say on\nhang").await;
    api.follow(&hangs, "").await.until("text.delta").await;
    assert!(server.terminate().await.success());
    for session in [&idle, &asks, &hangs] {
        assert_eq!(processes::of_agent(session), NONE);
    }
    let server = home.start().await;
    let api = server.api();
    assert_eq!(api.session(&hangs).await["turn"]["status"], "interrupted");
    assert_eq!(api.session(&asks).await["status"], "awaiting_approval", "a question outlives the process");
    assert_eq!(api.prompt(&idle, "recall").await["text"], "blue");
    assert_eq!(api.prompt(&hangs, "recall").await["text"], "red");
    // In order, so that the test leaves none itself.
    assert!(server.terminate().await.success());
}

#[tokio::test]
async fn a_missing_agent_is_told_with_what_to_do_and_works_once_it_is_there() {
    let home = Home::new();
    let program = home.path().join("agent");
    let config = format!(
        "[harness.fake]\nkind = \"acp\"\ncommand = [{program:?}, \"script\"]\ninstall = \"install it so\"\n"
    );
    let home = home.with_config(&config);
    let server = home.start().await;
    let api = server.api();
    let found = api.get("/v1/harnesses/fake").await.expect(200);
    assert_eq!(
        (found["available"].as_bool(), found["install"].as_str()),
        (Some(false), Some("install it so"))
    );
    assert!(found["unavailable_reason"].as_str().unwrap().contains("is not an executable file"), "{found}");
    assert_eq!(found["capabilities"]["approval_recovery"], "reask");
    let listed = api.get("/v1/harnesses").await.expect(200);
    assert!(listed["data"].as_array().unwrap().contains(&found));

    let body = json!({"harness": "fake", "prompt": "say hello", "run_id": "job"});
    let answer = api.post_and_wait("/v1/sessions", body).await;
    let problem = answer.problem(503, "harness_unavailable");
    assert!(answer.header("retry-after").is_some());
    assert_eq!(problem["run_id"], "job");
    let row = api.get("/v1/runs/job").await.expect(200);
    assert_eq!(
        (row["status"].as_str(), row["turn"]["error"]["code"].as_str()),
        (Some("errored"), Some("harness_unavailable"))
    );
    assert_eq!(api.events_of(&id(&row), "session.errored").await[0]["code"], "harness_unavailable");
    let again = api.post_and_wait("/v1/runs/job/prompts", json!({"prompt": "say hello"})).await;
    again.problem(503, "harness_unavailable");

    std::os::unix::fs::symlink(FAKE, &program).unwrap();
    assert_eq!(api.get("/v1/harnesses/fake").await.expect(200)["available"], true);
    let turn = api.prompt(&id(&row), "say hello").await;
    assert_eq!((turn["text"].as_str(), turn["rehydrated"].as_bool()), (Some("hello"), Some(false)));
    api.post("/v1/sessions", json!({"harness": "other"})).await.problem(422, "unknown_harness");
    let settings = json!({"harness": "fake", "settings": {"model": "x"}});
    api.post("/v1/sessions", settings).await.problem(422, "invalid_input");
}

#[tokio::test]
async fn an_agent_that_refuses_what_the_operator_wants_set_is_not_used() {
    let set_mode =
        "\n[[harness.fake.after_new]]\nmethod = \"session/set_mode\"\nparams = { modeId = \"ask\" }\n";
    let home = Home::new().with_config(&(harness("fake", &["script", "--no-mode"]) + set_mode));
    let server = home.start().await;
    let api = server.api();
    let body = json!({"harness": "fake", "prompt": "run make", "run_id": "job"});
    api.post_and_wait("/v1/sessions", body).await.problem(502, "harness_failed");
    let row = api.get("/v1/runs/job").await.expect(200);
    assert_eq!(row["status"], "errored");
    let error = &row["turn"]["error"];
    assert_eq!(error["code"], "agent_start_failed");
    assert!(error["message"].as_str().unwrap().contains("session/set_mode"), "{error}");
    assert_eq!(processes::of_agent(&id(&row)), NONE);
    assert!(effects(&home, &id(&row)).is_empty());

    // Set for a new conversation and for one that is taken up: this agent takes no prompt before it is.
    let home = Home::new().with_config(&(harness("fake", &["script", "--mode"]) + set_mode));
    let server = home.start().await;
    let api = server.api();
    let session = id(&create(&api, "remember blue").await);
    api.prompt(&session, "die").await;
    assert_eq!(api.prompt(&session, "recall").await["text"], "blue");
}

#[tokio::test]
async fn an_update_of_three_megabytes_arrives_whole() {
    let (_home, _server, api) = service(&["big"]).await;
    let session = create(&api, "go").await;
    assert_eq!(session["turn"]["status"], "completed");
    let deltas = api.events_of(&id(&session), "text.delta").await;
    let text: String = deltas.iter().map(|data| data["text"].as_str().unwrap()).collect();
    assert_eq!(text.len(), "hello".len() + (3 << 20));
    assert_eq!(text.trim_start_matches("hello").trim_start_matches('x'), "");
    let frames = api.follow(&id(&session), "?until=idle").await.all().await;
    let streamed: usize = frames
        .iter()
        .filter(|frame| frame.event == "text.delta")
        .map(|frame| frame.data["data"]["text"].as_str().unwrap().len())
        .sum();
    assert_eq!(streamed, text.len());
}

#[tokio::test]
async fn agents_that_talk_nonsense_between_their_messages_are_understood() {
    let modes = ["noise", "split", "crlf", "unknown", "dup"];
    let config: String = modes.iter().map(|mode| harness(mode, &[mode])).collect();
    let home = Home::new().with_config(&config);
    let server = home.start().await;
    let api = server.api();
    for mode in modes {
        let session = create_with(&api, json!({"harness": mode, "prompt": "go"})).await;
        let (text, reason) = match mode {
            "unknown" => ("hello\"str-id-7\" -32601", "some_new_reason"),
            _ => ("hello", "end_turn"),
        };
        // And once more, in the same process: nothing of the first turn is left in its way.
        for turn in [session["turn"].clone(), api.prompt(&id(&session), "again").await] {
            assert_eq!(
                (turn["status"].as_str(), turn["text"].as_str(), turn["stop_reason"].as_str()),
                (Some("completed"), Some(text), Some(reason)),
                "{mode}: {turn}"
            );
            assert_eq!(turn["rehydrated"], false, "{mode}");
        }
    }
}

#[tokio::test]
async fn an_agent_that_goes_in_mid_turn_or_in_mid_line_fails_its_turn() {
    let modes = [("exit", "agent_exited"), ("half", "agent_exited"), ("huge", "agent_protocol_error")];
    let config: String = modes.iter().map(|(mode, _)| harness(mode, &[mode])).collect();
    let home = Home::new().with_config(&config);
    let server = home.start().await;
    let api = server.api();
    for (mode, code) in modes {
        let session = create_with(&api, json!({"harness": mode, "prompt": "go"})).await;
        assert_eq!(session["status"], "errored", "{mode}");
        let turn = &session["turn"];
        assert_eq!(
            (turn["status"].as_str(), turn["error"]["code"].as_str(), turn["text"].as_str()),
            (Some("failed"), Some(code), Some("hello")),
            "{mode}"
        );
        assert_eq!(processes::of_agent(&id(&session)), NONE, "{mode}");
    }
}

#[tokio::test]
async fn an_error_of_the_agent_fails_the_turn_and_a_follow_up_works() {
    let (_home, _server, api) = service(&["script"]).await;
    let session = create(&api, "remember blue\nerror -32603 no model today").await;
    assert_eq!(session["turn"]["error"], json!({"code": "agent_error", "message": "no model today"}));
    assert_eq!(session["status"], "errored");
    assert_eq!(api.prompt(&id(&session), "recall").await["text"], "blue");
}

#[tokio::test]
async fn an_agent_that_is_not_ready_in_time_is_given_up() {
    let modes = [("deaf", "agent_start_timeout"), ("early-death", "agent_start_failed")];
    let config: String =
        modes.iter().map(|(mode, _)| harness(mode, &[mode]) + "start_seconds = 1\n").collect();
    let home = Home::new().with_config(&config);
    let server = home.start().await;
    let api = server.api();
    for (mode, code) in modes {
        let begun = Instant::now();
        let body = json!({"harness": mode, "prompt": "go", "run_id": mode});
        api.post_and_wait("/v1/sessions", body).await.problem(502, "harness_failed");
        assert_soon(begun.elapsed(), Duration::from_secs(5));
        let row = api.get(&format!("/v1/runs/{mode}")).await.expect(200);
        assert_eq!(
            (row["status"].as_str(), row["turn"]["error"]["code"].as_str()),
            (Some("errored"), Some(code))
        );
        assert_eq!(processes::of_agent(&id(&row)), NONE, "{mode}");
    }
}

#[tokio::test]
async fn a_start_that_nobody_wants_any_more_ends_at_once() {
    let (_home, _server, api) = service(&["deaf"]).await;
    let session = id(&api.post("/v1/sessions", json!({"harness": "fake", "prompt": "go"})).await.expect(201));
    eventually("the agent starts", || !processes::of_agent(&session).is_empty()).await;
    let row = post(&api, &session, "cancel").await;
    assert_eq!(row["turn"]["status"], "cancelled");
    eventually("the agent is gone", || processes::of_agent(&session).is_empty()).await;
}

#[tokio::test]
async fn secrets_of_the_service_and_of_the_operator_reach_no_client() {
    let own = "canary-of-the-service";
    let operators = "canary-of-the-operator";
    let mut config = harness("fake", &["script"]);
    for name in ["fake", "loud", "missing", "deaf"] {
        match name {
            "loud" => config.push_str(
                "[harness.loud]\nkind = \"acp\"\ncommand = [\"/bin/sh\", \"-c\", \"env >&2; exit 4\"]\n",
            ),
            "missing" => {
                config.push_str("[harness.missing]\nkind = \"acp\"\ncommand = [\"no-such-agent\"]\n")
            }
            "deaf" => config.push_str(&(harness("deaf", &["deaf"]) + "start_seconds = 1\n")),
            _ => {}
        }
        writeln!(config, "env = {{ KEY = {operators:?} }}\nfiles = {{ \"key\" = {operators:?} }}\ninherit_env = [\"HANDED_ON\"]").unwrap();
    }
    let home = Home::new()
        .with_config(&config)
        .with_variable("SECRET", own)
        .with_variable("OSTLER_SEAL_KEY", &"5ea1".repeat(16))
        .with_variable("HANDED_ON", "handed on");
    let server = home.start().await;
    let api = server.api();
    let mut shown = vec![api.get("/v1/harnesses").await.text];
    for name in ["fake", "loud", "missing", "deaf"] {
        let body =
            json!({"harness": name, "prompt": "error -32603 no\nsay x", "run_id": format!("job-{name}")});
        shown.push(api.post_and_wait("/v1/sessions", body).await.text);
        let session = id(&api.get(&format!("/v1/runs/job-{name}")).await.expect(200));
        let path = format!("/v1/sessions/{session}/prompts");
        shown.push(api.post_and_wait(&path, json!({"prompt": "say last\ndie"})).await.text);
        for page in ["", "/events", "/transcript", "/turns"] {
            shown.push(api.get(&format!("/v1/sessions/{session}{page}")).await.text);
        }
    }
    let shown = shown.concat();
    assert!(shown.contains("exited with code 3") && shown.contains("agent_start_timeout"), "{shown}");
    for secret in [own, operators, "5ea15ea1"] {
        assert!(!shown.contains(secret), "{secret} in {shown}");
    }
    // What the agent itself has, it may say: the operator's variables, and none of the service's but those that were named.
    let session = create(&api, "env").await;
    let text = session["turn"]["text"].as_str().unwrap();
    assert!(text.contains(&format!("KEY={operators}")) && text.contains("HANDED_ON=handed on"), "{text}");
    assert!(
        !text.contains(own) && !text.contains("OSTLER_SEAL_KEY") && !text.contains("OSTLER_DATA_DIR"),
        "{text}"
    );
}

#[tokio::test]
async fn two_sessions_side_by_side_share_nothing() {
    let (home, _server, api) = service(&["script"]).await;
    let (left, right) =
        tokio::join!(create(&api, "remember left\nrun make"), create(&api, "remember right\nrun make"));
    let (asked, kept) = (id(&left["pending_approval"]), id(&right["pending_approval"]));
    let (left, right) = (id(&left), id(&right));
    // Both agents count their questions from 0, and both calls have the same id.
    api.decide(&asked, "approve").await.expect(200);
    settled(&api, &left).await;
    assert_eq!((effects(&home, &left).len(), effects(&home, &right).len()), (1, 0));
    assert_eq!(approval(&api, &kept).await["status"], "pending");
    api.prompt(&left, "die").await;
    assert_eq!(api.session(&right).await["status"], "awaiting_approval");
    api.decide(&kept, "approve").await.expect(200);
    settled(&api, &right).await;
    assert_eq!(effects(&home, &right).len(), 1);
    let (said_left, said_right) = tokio::join!(api.prompt(&left, "recall"), api.prompt(&right, "recall"));
    assert_eq!((said_left["text"].as_str(), said_right["text"].as_str()), (Some("left"), Some("right")));
    assert_eq!(
        (said_left["rehydrated"].as_bool(), said_right["rehydrated"].as_bool()),
        (Some(true), Some(false))
    );
}

#[tokio::test]
async fn prompts_that_line_up_run_one_after_the_other_in_one_conversation() {
    let (_home, _server, api) = service(&["script"]).await;
    let created = create(&api, "run make").await;
    let session = id(&created);
    let path = format!("/v1/sessions/{session}/prompts");
    let mut turns = Vec::new();
    for script in ["remember one\nsay a", "recall\nremember two", "recall"] {
        turns.push(id(&api.post(&path, json!({"prompt": script, "when_busy": "queue"})).await.expect(202)));
    }
    assert_eq!(api.session(&session).await["queued_turns"], 3);
    api.decide(&id(&created["pending_approval"]), "approve").await.expect(200);
    settled(&api, &session).await;
    for (turn, text) in turns.iter().zip(["a", "one", "two"]) {
        let turn = api.get(&format!("/v1/sessions/{session}/turns/{turn}")).await.expect(200);
        assert_eq!((turn["status"].as_str(), turn["text"].as_str()), (Some("completed"), Some(text)));
    }
    // Never two prompts at once: some agents never answer the second.
    let kinds = api.kinds(&session).await;
    let mut at_work = 0;
    for kind in kinds {
        at_work += i32::from(kind == "turn.started") - i32::from(kind == "turn.completed");
        assert!((0..=1).contains(&at_work));
    }
}

#[tokio::test]
async fn a_prompt_that_interrupts_ends_the_turn_and_its_question_and_runs_next() {
    let (home, _server, api) = service(&["script"]).await;
    let created = create(&api, "run make").await;
    let (session, asked) = (id(&created), id(&created["pending_approval"]));
    let path = format!("/v1/sessions/{session}/prompts");
    let answer = api.post_and_wait(&path, json!({"prompt": "say instead", "when_busy": "interrupt"})).await;
    assert_eq!(answer.expect(200)["text"], "instead");
    assert_eq!(approval(&api, &asked).await["status"], "cancelled");
    let first = api.get(&format!("/v1/sessions/{session}/turns/{}", id(&created["turn"]))).await.expect(200);
    assert_eq!(first["status"], "cancelled");
    assert!(effects(&home, &session).is_empty());
}

#[tokio::test]
async fn a_turn_that_takes_too_long_is_cancelled_at_the_agent() {
    let (_home, _server, api) = service(&["script"]).await;
    let body =
        json!({"harness": "fake", "prompt": "say on\nhang", "run_id": "job", "limits": {"turn_seconds": 1}});
    api.post_and_wait("/v1/sessions", body).await.problem(504, "turn_timed_out");
    let row = api.get("/v1/runs/job").await.expect(200);
    assert_eq!((row["status"].as_str(), row["turn"]["status"].as_str()), (Some("idle"), Some("timed_out")));
    let turn = api.prompt(&id(&row), "say here").await;
    assert_eq!((turn["text"].as_str(), turn["rehydrated"].as_bool()), (Some("here"), Some(false)));
}

#[tokio::test]
async fn instructions_go_before_the_first_prompt_and_only_there() {
    let (_home, _server, api) = service(&["script"]).await;
    let body = json!({"harness": "fake", "prompt": "instructions", "instructions": "be brief"});
    let session = create_with(&api, body).await;
    assert_eq!(session["turn"]["text"], "be brief");
    api.prompt(&id(&session), "die").await;
    assert_eq!(api.prompt(&id(&session), "instructions").await["text"], "");
}

#[tokio::test]
async fn after_a_cancel_an_agent_that_loses_count_is_replaced_and_one_that_is_not_known_for_it_runs_nothing_unasked()
 {
    let careful = harness("careful", &["script", "--off-by-one"]) + "restart_after_cancel = true\n";
    let home = Home::new().with_config(&(harness("fake", &["script", "--off-by-one"]) + &careful));
    let server = home.start().await;
    let api = server.api();
    for name in ["careful", "fake"] {
        let session = id(&create_with(&api, json!({"harness": name, "prompt": "remember blue"})).await);
        prompt_detached(&api, &session, "say working\nhang").await;
        api.follow(&session, "").await.until("text.delta").await;
        let process = processes::of_agent(&session);
        post(&api, &session, "cancel").await;
        let turn = api.prompt(&session, "run make\nrecall").await;
        if name == "careful" {
            assert_eq!(turn["status"], "awaiting_approval", "{turn}");
            assert_ne!(processes::of_agent(&session), process);
            let row = api.session(&session).await;
            api.decide(&id(&row["pending_approval"]), "approve").await.expect(200);
            let turn = settled(&api, &session).await["turn"].take();
            assert_eq!((turn["text"].as_str(), turn["rehydrated"].as_bool()), (Some("blue"), Some(true)));
            assert_eq!(effects(&home, &session).len(), 1);
            assert_eq!(processes::of_agent(&session).len(), 1);
        } else {
            // What it does then belongs to no turn: the log has it, and its question is refused.
            assert_eq!((turn["status"].as_str(), turn["text"].as_str()), (Some("completed"), Some("")));
            let mut events = api.follow(&session, "").await;
            let refused = events.until("activity").await.pop().unwrap();
            assert_eq!(refused.data["data"]["label"], "refused outside a turn: Run: make");
            events.until("text.delta").await;
            assert!(effects(&home, &session).is_empty());
        }
    }
}
