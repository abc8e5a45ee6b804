//! Prompts: taken, refused, lined up, interrupting; cancelled and stopped; how a caller waits.

use serde_json::{Value, json};

use crate::support::processes::eventually;
use crate::support::server::Home;
use crate::support::within;

fn id(value: &Value) -> String {
    value["id"].as_str().unwrap().to_owned()
}

fn prompts(session: &str) -> String {
    format!("/v1/sessions/{session}/prompts")
}

#[tokio::test]
async fn rows_48_and_59_a_follow_up_is_trimmed_and_answered_by_the_live_session() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let session = id(&api.create("/remember one").await);
    let turn = api.prompt(&session, "  /recall \n").await;
    assert_eq!(
        (turn["text"].as_str(), turn["prompt"].as_str(), turn["rehydrated"].as_bool()),
        (Some("one"), Some("/recall"), Some(false))
    );
    assert_eq!((turn["ordinal"].as_i64(), turn["status"].as_str()), (Some(2), Some("completed")));
    // Its events follow those of the first turn in one sequence.
    let events = api.events(&session).await;
    let seqs: Vec<i64> = events.iter().map(|event| event["seq"].as_i64().unwrap()).collect();
    assert_eq!(seqs, (1..=seqs.len() as i64).collect::<Vec<_>>());
    assert_eq!(events.last().unwrap()["turn_id"], turn["id"]);
}

#[tokio::test]
async fn row_49_a_blank_prompt_is_refused_after_the_session_was_looked_for() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let session = id(&api.create("/say x").await);
    api.post(&prompts(&session), json!({"prompt": " \n"})).await.problem(422, "invalid_input");
    api.post(&prompts("ses_00000000000000000000000000000000"), json!({"prompt": " "}))
        .await
        .problem(404, "not_found");
}

#[tokio::test]
async fn rows_50_51_and_53_a_busy_session_refuses_and_its_turn_is_left_alone() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let waiting = api.create("/ask shell {}\n/say a").await;
    let refused =
        api.post(&prompts(&id(&waiting)), json!({"prompt": "x"})).await.problem(409, "approval_pending");
    assert_eq!(refused["approval_ids"], json!([waiting["pending_approval"]["id"]]));
    let working = id(&api.create_detached("/hang").await);
    api.follow(&working, "").await.until("turn.started").await;
    let refused = api.post(&prompts(&working), json!({"prompt": "x"})).await.problem(409, "turn_in_progress");
    assert_eq!(refused["session_id"], *working);
    // The turn has started when the prompt is on its way: it arrives a moment later.
    eventually("the prompt arrives", || home.effects(&working, "prompt") == 1).await;
    // Row 53: also while the first turn is only queued.
    let queued = id(&api.create_detached("/hang").await);
    api.post(&prompts(&queued), json!({"prompt": "x"})).await.problem(409, "turn_in_progress");
}

#[tokio::test]
async fn queued_prompts_run_in_order_and_one_that_waits_can_be_removed() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let session = id(&api.create("/ask shell {}").await);
    let mut turns = Vec::new();
    for word in ["a", "b", "c"] {
        let body = json!({"prompt": format!("/remember {word}\n/recall"), "when_busy": "queue"});
        turns.push(id(&api.post(&prompts(&session), body).await.expect(202)));
    }
    let row = api.session(&session).await;
    assert_eq!((row["queued_turns"].as_i64(), row["status"].as_str()), (Some(3), Some("awaiting_approval")));
    api.delete(&format!("/v1/sessions/{session}/turns/{}", turns[1])).await.expect(204);
    api.delete(&format!("/v1/sessions/{session}/turns/{}", turns[1])).await.problem(409, "turn_started");
    api.decide(&id(&row["pending_approval"]), "approve").await.expect(200);
    api.follow(&session, "?until=idle").await.all().await;
    let row = api.session(&session).await;
    assert_eq!((row["queued_turns"].as_i64(), row["turn"]["text"].as_str()), (Some(0), Some("a c")));
    let list = api.get(&format!("/v1/sessions/{session}/turns")).await.expect(200);
    let statuses: Vec<_> =
        list["data"].as_array().unwrap().iter().map(|turn| turn["status"].as_str().unwrap()).collect();
    assert_eq!(statuses, ["completed", "cancelled", "completed", "completed"]);
}

#[tokio::test]
async fn an_interrupting_prompt_ends_the_turn_at_work_and_runs_before_those_that_wait() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    for first in ["/hang", "/ask shell {}\n/say never"] {
        let session = id(&api.create_detached(first).await);
        api.follow(&session, "")
            .await
            .until(if first == "/hang" { "turn.started" } else { "approval.requested" })
            .await;
        let queue = json!({"prompt": "/say second", "when_busy": "queue"});
        api.post(&prompts(&session), queue).await.expect(202);
        let interrupt = json!({"prompt": "/say first", "when_busy": "interrupt"});
        api.post(&prompts(&session), interrupt).await.expect(202);
        api.follow(&session, "?until=idle").await.all().await;
        let list = api.get(&format!("/v1/sessions/{session}/turns")).await.expect(200);
        let turns = list["data"].as_array().unwrap();
        assert_eq!(turns[2]["status"], "cancelled");
        assert!(turns[0]["started_at"].as_str() <= turns[1]["started_at"].as_str(), "{list}");
        assert_eq!((turns[0]["text"].as_str(), turns[1]["text"].as_str()), (Some("first"), Some("second")));
        assert_eq!(home.effects(&session, "tool"), 0);
    }
}

#[tokio::test]
async fn row_86_a_cancelled_turn_keeps_what_it_said_and_the_session_stays_usable() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let session = id(&api.create_detached("/say before\n/sleep 600000").await);
    api.follow(&session, "").await.until("text.delta").await;
    let row = api.post(&format!("/v1/sessions/{session}/cancel"), json!({})).await.expect(200);
    assert_eq!(
        (row["status"].as_str(), row["turn"]["status"].as_str(), row["turn"]["text"].as_str()),
        (Some("idle"), Some("cancelled"), Some("before"))
    );
    // Nothing to cancel is fine.
    api.post(&format!("/v1/sessions/{session}/cancel"), json!({})).await.expect(200);
    assert_eq!(api.prompt(&session, "/say after").await["text"], "after");
}

#[tokio::test]
async fn row_24_a_deaf_harness_is_killed_after_its_grace_and_the_session_goes_on() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let session = id(&api.create("/remember blue").await);
    let body = json!({"prompt": "/deaf"});
    api.post(&prompts(&session), body).await.expect(202);
    let mut stream = api.follow(&session, "").await;
    stream.until("turn.completed").await;
    stream.until("turn.started").await;
    let row = api.post(&format!("/v1/sessions/{session}/cancel"), json!({})).await.expect(200);
    assert_eq!((row["status"].as_str(), row["turn"]["status"].as_str()), (Some("idle"), Some("cancelled")));
    let turn = api.prompt(&session, "/recall").await;
    assert_eq!((turn["text"].as_str(), turn["rehydrated"].as_bool()), (Some("blue"), Some(true)));
}

#[tokio::test]
async fn rows_60_and_62_stopping_ends_turn_and_harness_keeps_the_memory_and_may_be_repeated() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let session = id(&api.create("/remember blue").await);
    api.post(&prompts(&session), json!({"prompt": "/hang"})).await.expect(202);
    api.post(&prompts(&session), json!({"prompt": "/say queued", "when_busy": "queue"})).await.expect(202);
    for _ in 0..2 {
        let row = api.post(&format!("/v1/sessions/{session}/stop"), json!({})).await.expect(200);
        assert_eq!(
            (row["status"].as_str(), row["stop_cause"].as_str(), row["live"].as_bool()),
            (Some("stopped"), Some("user"), Some(false))
        );
        assert!(row["stopped_at"].is_string());
    }
    let list = api.get(&format!("/v1/sessions/{session}/turns")).await.expect(200);
    assert!(list["data"].as_array().unwrap()[..2].iter().all(|turn| turn["status"] == "cancelled"));
    let turn = api.prompt(&session, "/recall").await;
    assert_eq!((turn["text"].as_str(), turn["rehydrated"].as_bool()), (Some("blue"), Some(true)));
    assert_eq!(api.session(&session).await["stopped_at"], Value::Null, "row 6: the stop is forgotten");
}

#[tokio::test]
async fn rows_20_and_58_a_failed_turn_leaves_an_errored_session_that_a_follow_up_takes_back() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let session = api.create("/remember blue\n/fail tool_broke The tool broke").await;
    assert_eq!(
        (session["status"].as_str(), session["turn"]["status"].as_str()),
        (Some("errored"), Some("failed"))
    );
    assert_eq!(session["turn"]["error"], json!({"code": "tool_broke", "message": "The tool broke"}));
    let kinds = api.kinds(&id(&session)).await;
    assert_eq!(kinds[kinds.len() - 2..], ["turn.failed", "session.errored"]);
    let turn = api.prompt(&id(&session), "/recall").await;
    assert_eq!(turn["text"], "blue");
    assert_eq!(api.session(&id(&session)).await["status"], "idle");
}

#[tokio::test]
async fn f12_a_harness_that_dies_in_mid_turn_fails_the_turn_and_a_follow_up_remembers() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let session = api.create("/remember blue").await;
    let turn = api.prompt(&id(&session), "/say x\n/die").await;
    assert_eq!(
        (turn["status"].as_str(), turn["error"]["code"].as_str()),
        (Some("failed"), Some("agent_exited"))
    );
    let turn = api.prompt(&id(&session), "/recall").await;
    assert_eq!((turn["text"].as_str(), turn["rehydrated"].as_bool()), (Some("blue"), Some(true)));
}

#[tokio::test]
async fn row_56_a_session_that_left_no_state_refuses_a_follow_up() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let session = id(&api.create("/lose-state").await);
    api.post(&format!("/v1/sessions/{session}/stop"), json!({})).await.expect(200);
    let row = api.session(&session).await;
    assert_eq!(row["resumable"], false);
    api.post(&prompts(&session), json!({"prompt": "x"})).await.problem(409, "not_resumable");
    assert_eq!(api.session(&session).await["updated_at"], row["updated_at"]);
}

#[tokio::test]
async fn row_99_a_turn_that_works_too_long_is_timed_out_and_a_waiting_caller_is_told_so() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let body = json!({"harness": "demo", "prompt": "/hang", "limits": {"turn_seconds": 1}});
    let request = api.request(reqwest::Method::POST, "/v1/sessions").header("prefer", "wait=30").json(&body);
    let problem = api.send(request).await.problem(504, "turn_timed_out");
    let session = problem["session_id"].as_str().unwrap();
    let row = api.session(session).await;
    assert_eq!((row["turn"]["status"].as_str(), row["status"].as_str()), (Some("timed_out"), Some("idle")));
}

#[tokio::test]
async fn row_98_a_caller_that_waits_is_answered_when_a_person_is_asked() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let body = json!({"harness": "demo", "prompt": "/ask shell {}"});
    let request = api.request(reqwest::Method::POST, "/v1/sessions").header("prefer", "wait=30").json(&body);
    let session = api.send(request).await.expect(202);
    assert_eq!(session["status"], "awaiting_approval");
    let request = api.request(reqwest::Method::POST, "/v1/sessions").header("prefer", "wait=1");
    let answer = api.send(request.json(&json!({"harness": "demo", "prompt": "/hang"}))).await;
    assert_eq!(
        (answer.expect(202)["status"].as_str(), answer.header("preference-applied")),
        (Some("running"), Some("wait=1"))
    );
}

#[tokio::test]
async fn row_72_a_caller_may_have_the_turn_as_a_stream_that_ends_with_it_and_going_away_stops_nothing() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let session = id(&api.create("/say before").await);
    let stream = |prompt: &str| {
        let request =
            api.request(reqwest::Method::POST, &prompts(&session)).header("accept", "text/event-stream");
        request.json(&json!({"prompt": prompt}))
    };
    let response = stream("/say hello").send().await.unwrap();
    let frames = crate::support::sse::Events::new(response).all().await;
    let kinds: Vec<_> = frames.iter().map(|frame| frame.event.as_str()).collect();
    assert_eq!(kinds, ["turn.queued", "turn.started", "text.delta", "turn.completed"]);
    // Row 72: the client goes away in mid-turn.
    let mut cut = crate::support::sse::Events::new(
        stream("/say x\n/tool slow {}\n/sleep 300\n/say on").send().await.unwrap(),
    );
    cut.until("text.delta").await;
    drop(cut);
    let row = within("the turn", async {
        api.follow(&session, "?until=idle").await.all().await;
        api.session(&session).await
    })
    .await;
    assert_eq!(
        (row["turn"]["status"].as_str(), row["turn"]["text"].as_str()),
        (Some("completed"), Some("xon"))
    );
}

#[tokio::test]
async fn row_77_usage_is_stored_with_the_turn_and_summed_in_the_session() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let session = id(&api.create("/usage 10 5").await);
    api.prompt(&session, "/usage 1 2").await;
    let usage = &api.session(&session).await["usage"];
    assert_eq!(*usage, json!({"input_tokens": 11, "output_tokens": 7, "total_tokens": 18, "complete": true}));
    api.prompt(&session, "/say x").await;
    assert_eq!(api.session(&session).await["usage"]["complete"], false);
}

#[tokio::test]
async fn row_19_a_session_that_is_stopped_before_its_first_event_is_stopped_and_not_errored() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    for _ in 0..10 {
        let session = id(&api.create_detached("/say x\n/hang").await);
        let row = api.post(&format!("/v1/sessions/{session}/stop"), json!({})).await.expect(200);
        assert_eq!(
            (row["status"].as_str(), row["turn"]["status"].as_str()),
            (Some("stopped"), Some("cancelled"))
        );
        assert!(row["stopped_at"].is_string());
    }
}

#[tokio::test]
async fn row_57_a_follow_up_that_asks_goes_on_when_another_request_approves() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let session = id(&api.create("/say x").await);
    let request =
        api.request(reqwest::Method::POST, &prompts(&session)).header("accept", "text/event-stream");
    let response = request.json(&json!({"prompt": "/ask shell {}\n/say done"})).send().await.unwrap();
    let mut stream = crate::support::sse::Events::new(response);
    let asked = stream.until("approval.requested").await;
    let approval = asked.last().unwrap().data["data"]["approval"]["id"].as_str().unwrap().to_owned();
    api.decide(&approval, "approve").await.expect(200);
    let frames = stream.all().await;
    assert_eq!(frames.last().unwrap().event, "turn.completed");
    assert_eq!(api.session(&session).await["pending_approval"], Value::Null);
}

#[tokio::test]
async fn row_61_of_two_follow_ups_at_once_for_a_session_that_is_put_away_one_brings_it_back() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let session = id(&api.create("/remember x").await);
    for round in 0..10 {
        api.post(&format!("/v1/sessions/{session}/stop"), json!({})).await.expect(200);
        let path = prompts(&session);
        let send = || api.post(&path, json!({"prompt": "/sleep 50"}));
        let (one, two) = tokio::join!(send(), send());
        let mut statuses = [one.status, two.status];
        statuses.sort_unstable();
        assert_eq!(statuses, [202, 409], "round {round}");
        api.follow(&session, "?until=idle").await.all().await;
        let rehydrated =
            api.kinds(&session).await.into_iter().filter(|kind| kind == "session.rehydrated").count();
        assert_eq!(rehydrated, round + 1);
    }
}
