//! The service is killed, at every point that matters, and started again on the same data: what was acknowledged is there, nothing
//! ran twice, and no session stays stuck. The oracle is the demo harness's ledger of effects.

use serde_json::{Value, json};

use crate::support::api::Api;
use crate::support::server::{Home, Server};
use crate::support::within;

/// Remembers a word, asks, and runs a tool that nobody approves.
const PROMPT: &str = "/remember blue\n/ask shell {\"command\":\"ls\"}\n/tool free {}\n/say done";

fn id(value: &Value) -> &str {
    value["id"].as_str().unwrap()
}

/// No more than one effect of each kind for one turn of [`PROMPT`]: the two tools differ by name.
fn assert_effects_at_most_once(home: &Home, session: &str, prompts: usize) {
    assert!(home.effects(session, "prompt") <= prompts);
    assert!(home.effects(session, "decision") <= 1);
    assert!(home.effects(session, "tool") <= 2);
}

async fn assert_events_have_no_hole(api: &Api, session: &str) {
    let events = api.events(session).await;
    let seqs: Vec<i64> = events.iter().map(|event| event["seq"].as_i64().unwrap()).collect();
    assert_eq!(seqs, (1..=seqs.len() as i64).collect::<Vec<_>>());
}

/// Starts again and waits until nothing is under way: whatever ran is over, or waits for a person.
async fn settle(home: &Home, session: &str) -> (Server, Value) {
    let server = home.start().await;
    let api = server.api();
    let row = within("recovery", async {
        loop {
            let row = api.session(session).await;
            if row["status"] != "running" {
                return row;
            }
            // The next event, or the end of what was under way, is what can change it.
            api.follow(session, "?until=pause").await.all().await;
        }
    })
    .await;
    (server, row)
}

/// Sends a request that the service may not live to answer.
async fn send_and_die(server: Server, request: reqwest::RequestBuilder) -> Option<u16> {
    let answered =
        within("an answer or the end", request.send()).await.ok().map(|answer| answer.status().as_u16());
    server.wait_dead().await;
    answered
}

#[tokio::test]
async fn row_70_killed_in_mid_turn_the_turn_is_interrupted_and_a_follow_up_remembers() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let session = id(&api.create("/remember blue").await).to_owned();
    let turn = api
        .post(&format!("/v1/sessions/{session}/prompts"), json!({"prompt": "/say working\n/hang"}))
        .await
        .expect(202);
    api.follow(&session, "").await.until("text.delta").await;
    server.kill().await;
    let (server, row) = settle(&home, &session).await;
    let api = server.api();
    assert_eq!(row["status"], "idle");
    let turn = api.get(&format!("/v1/sessions/{session}/turns/{}", id(&turn))).await.expect(200);
    assert_eq!(turn["status"], "interrupted");
    let interrupted =
        api.events(&session).await.into_iter().find(|event| event["type"] == "turn.interrupted").unwrap();
    assert_eq!(interrupted["data"]["delivery"], "delivered");
    let recalled = api.prompt(&session, "/recall").await;
    assert_eq!((recalled["text"].as_str(), recalled["rehydrated"].as_bool()), (Some("blue"), Some(true)));
    assert_eq!(home.effects(&session, "prompt"), 3);
    assert_events_have_no_hole(&api, &session).await;
}

#[tokio::test]
async fn killed_while_an_approval_waits_it_is_still_decidable_and_the_turn_goes_on_exactly_there() {
    let home = Home::new();
    let server = home.start().await;
    let session = server.api().create(PROMPT).await;
    let session_id = id(&session).to_owned();
    let approval = id(&session["pending_approval"]).to_owned();
    server.kill().await;
    let (server, row) = settle(&home, &session_id).await;
    let api = server.api();
    assert_eq!((row["status"].as_str(), row["live"].as_bool()), (Some("awaiting_approval"), Some(false)));
    assert_eq!(row["pending_approval"]["id"], *approval);
    let decided = api.decide(&approval, "approve").await.expect(200);
    assert_eq!(decided["idempotent"], false);
    let row = api.until_status(&session_id, "idle").await;
    assert_eq!(
        (row["turn"]["status"].as_str(), row["turn"]["text"].as_str()),
        (Some("completed"), Some("done"))
    );
    for kind in ["prompt", "decision"] {
        assert_eq!(home.effects(&session_id, kind), 1, "{kind}");
    }
    assert_eq!(home.effects(&session_id, "tool"), 2);
    let kinds = api.kinds(&session_id).await;
    let rehydrated =
        api.events(&session_id).await.into_iter().find(|e| e["type"] == "session.rehydrated").unwrap();
    assert_eq!(rehydrated["data"]["exact"], true, "{kinds:?}");
    // It was taken up for this turn, and not for the next.
    assert_eq!(row["turn"]["rehydrated"], true);
    assert_eq!(api.prompt(&session_id, "/recall").await["rehydrated"], false);
    assert_events_have_no_hole(&api, &session_id).await;
}

/// Kills the service at each point on the way of a first turn, and says what must come of it.
#[tokio::test]
async fn killed_at_any_point_of_a_turn_nothing_is_lost_doubled_or_stuck() {
    // The point; whether the request was acknowledged before; what the first turn has become after the restart.
    let table = [
        ("create.before", "none"),
        ("create.committed", "awaiting_approval"),
        ("harness.started", "awaiting_approval"),
        ("prompt.before", "interrupted"),
        ("prompt.given", "interrupted"),
        ("ask.stored", "awaiting_approval"),
    ];
    for (point, expected) in table {
        let home = Home::new();
        // Made by a start without the fault: the key, and the database.
        home.start().await.kill().await;
        let server = home.start_with_fault(point).await;
        let api = server.api();
        let body =
            json!({"harness": "demo", "prompt": PROMPT, "run_id": "job", "settings": {"token_delay_ms": 0}});
        let request = api
            .with_header("idempotency-key", "k")
            .request(reqwest::Method::POST, "/v1/sessions")
            .json(&body);
        send_and_die(server, request).await;
        let server = home.start().await;
        let api = server.api();
        let found = api.get("/v1/runs/job").await;
        if expected == "none" {
            found.problem(404, "not_found");
        } else {
            let session = id(&found.expect(200)).to_owned();
            let row = within("recovery", async {
                loop {
                    let row = api.session(&session).await;
                    if row["status"] != "running" {
                        return row;
                    }
                    api.follow(&session, "?until=pause").await.all().await;
                }
            })
            .await;
            assert_eq!(row["turn"]["status"], expected, "{point}: {row}");
            assert_effects_at_most_once(&home, &session, 1);
            assert_events_have_no_hole(&api, &session).await;
        }
        // F02: the same request again makes no second session, whether or not its first answer got through.
        let again = api.with_header("idempotency-key", "k").post("/v1/sessions", body).await;
        assert_eq!(again.status, 201, "{point}: {}", again.text);
        assert_eq!(again.header("idempotency-replayed").is_some(), expected != "none", "{point}");
        assert_eq!(api.get("/v1/sessions").await.expect(200)["data"].as_array().unwrap().len(), 1, "{point}");
    }
}

/// Kills the service at each point on the way of a decision.
#[tokio::test]
async fn rows_39_and_100_killed_at_any_point_of_a_decision_it_is_delivered_once_or_said_to_be_unknown() {
    let table = [
        ("decide.committed", "completed"),
        ("answer.before", "interrupted"),
        ("answer.given", "interrupted"),
        ("end.before", "interrupted"),
    ];
    for (point, expected) in table {
        let home = Home::new();
        let server = home.start().await;
        let session = server.api().create(PROMPT).await;
        let (session, approval) = (id(&session).to_owned(), id(&session["pending_approval"]).to_owned());
        server.kill().await;
        let server = home.start_with_fault(point).await;
        let path = format!("/v1/approvals/{approval}/decision");
        let request =
            server.api().request(reqwest::Method::POST, &path).json(&json!({"decision": "approve"}));
        send_and_die(server, request).await;
        let (server, row) = settle(&home, &session).await;
        let api = server.api();
        assert_eq!(row["turn"]["status"], expected, "{point}: {row}");
        assert_effects_at_most_once(&home, &session, 1);
        if expected == "completed" {
            assert_eq!(
                (home.effects(&session, "decision"), home.effects(&session, "tool")),
                (1, 2),
                "{point}"
            );
        }
        // Decided is decided, whatever became of the turn.
        let again = api.decide(&approval, "approve").await;
        match again.status {
            200 => assert_eq!(again.json()["idempotent"], true, "{point}"),
            _ => drop(again.problem(409, "approval_closed")),
        }
        assert_eq!(api.prompt(&session, "/recall").await["text"], "blue", "{point}");
        assert_events_have_no_hole(&api, &session).await;
    }
}

#[tokio::test]
async fn f28_killed_between_detach_and_commit_a_stop_is_finished_by_the_next_start() {
    let home = Home::new();
    let server = home.start().await;
    let session = id(&server.api().create("/remember blue").await).to_owned();
    server.kill().await;
    let server = home.start_with_fault("stop.detached").await;
    let api = server.api();
    api.post(&format!("/v1/sessions/{session}/prompts"), json!({"prompt": "/hang"})).await.expect(202);
    let request = api.request(reqwest::Method::POST, &format!("/v1/sessions/{session}/stop"));
    send_and_die(server, request).await;
    let (server, row) = settle(&home, &session).await;
    assert_eq!((row["status"].as_str(), row["stop_cause"].as_str()), (Some("stopped"), Some("user")));
    assert_eq!(server.api().prompt(&session, "/recall").await["text"], "blue");
}

/// Kills at random moments under load; the count comes from the environment, small by default.
#[tokio::test]
async fn killed_at_random_moments_under_load_every_acknowledged_prompt_has_exactly_one_fate() {
    let kills: u64 = std::env::var("OSTLER_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(5);
    let home = Home::new();
    let mut acknowledged: Vec<(String, String)> = Vec::new();
    let mut server = home.start().await;
    for round in 0..kills {
        let api = server.api();
        let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let (api, sender) = (api.clone(), sender.clone());
                tokio::spawn(async move {
                    let body = json!({"harness": "demo", "prompt": "/tokens 20\n/tool free {}", "settings": {"token_delay_ms": 0}});
                    // Until the service is gone: then a request fails, and this client with it.
                    while let Ok(answer) = api.request(reqwest::Method::POST, "/v1/sessions").json(&body).send().await {
                        let Ok(row) = answer.json::<Value>().await else { return };
                        let pair = (id(&row).to_owned(), id(&row["turn"]).to_owned());
                        if sender.send(pair).is_err() {
                            return;
                        }
                    }
                })
            })
            .collect();
        drop(sender);
        // A different number of acknowledged requests each round, so that the kill falls elsewhere each time.
        let enough = 3 + (round * 7) % 23;
        for _ in 0..enough {
            acknowledged.extend(within("requests", receiver.recv()).await);
        }
        server.kill().await;
        for client in clients {
            client.await.unwrap();
        }
        while let Some(pair) = receiver.recv().await {
            acknowledged.push(pair);
        }
        server = home.start().await;
    }
    let api = server.api();
    for (session, turn) in &acknowledged {
        let turn = within("the turn's end", async {
            loop {
                let row = api.get(&format!("/v1/sessions/{session}/turns/{turn}")).await.expect(200);
                if !matches!(row["status"].as_str(), Some("queued" | "running")) {
                    return row;
                }
                api.follow(session, "?until=idle").await.all().await;
            }
        })
        .await;
        let status = turn["status"].as_str().unwrap();
        assert!(matches!(status, "completed" | "interrupted"), "{turn}");
        let (prompts, tools) = (home.effects(session, "prompt"), home.effects(session, "tool"));
        assert!(prompts <= 1 && tools <= 1, "{session}: {prompts} prompts, {tools} tools");
        assert!(status != "completed" || (prompts, tools) == (1, 1), "{turn}");
        assert_events_have_no_hole(&api, session).await;
    }
    let running = api.get("/v1/sessions?status=running").await.expect(200);
    assert_eq!(running["data"], json!([]));
    assert!(acknowledged.len() as u64 >= kills * 3);
}

#[tokio::test]
async fn f51_sigterm_lets_running_turns_work_on_then_interrupts_them_and_ends_well() {
    let home = Home::new().with(&["--shutdown-grace-seconds", "0.3"]);
    let server = home.start().await;
    let api = server.api();
    let idle = id(&api.create("/remember blue").await).to_owned();
    let hanging = id(&api.create_detached("/say on\n/hang").await).to_owned();
    let waiting = id(&api.create("/ask shell {}").await).to_owned();
    let mut stream = api.follow(&hanging, "").await;
    stream.until("text.delta").await;
    let status = server.terminate().await;
    assert!(status.success(), "{status}");
    while stream.next().await.is_some() {}
    assert!(
        stream.asides.iter().filter(|aside| aside.starts_with("retry")).count() >= 2,
        "{:?}",
        stream.asides
    );
    let server = home.start().await;
    let api = server.api();
    let row = api.session(&idle).await;
    assert_eq!((row["status"].as_str(), row["stop_cause"].as_str()), (Some("stopped"), Some("shutdown")));
    assert_eq!(api.session(&hanging).await["turn"]["status"], "interrupted");
    assert_eq!(api.session(&waiting).await["status"], "awaiting_approval");
    assert_eq!(api.prompt(&idle, "/recall").await["text"], "blue");
}
