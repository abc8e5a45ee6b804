//! An approval outlives the process that asked for it, also where a new process cannot stand at that very call: the agent is told what
//! was decided and asks again, and the first call with the same tool and input gets the decision, once.

use serde_json::{Value, json};

use crate::support::api::Api;
use crate::support::fake_agent::{
    approval, create, create_with, effects, harness, id, post, prompt_detached, settled,
};
use crate::support::processes::{self, eventually};
use crate::support::server::{Home, Server};

/// A session whose agent asks for `make`, its service killed and started again.
struct Killed {
    home: Home,
    server: Server,
    session: String,
    asked: String,
}

impl Killed {
    async fn while_asking(flags: &[&str], script: &str) -> Self {
        Self::while_so_many_wait(1, flags, script).await
    }

    async fn while_so_many_wait(questions: usize, flags: &[&str], script: &str) -> Self {
        let arguments: Vec<&str> = ["script"].iter().chain(flags).copied().collect();
        let home = Home::new().with_config(&harness("fake", &arguments));
        let server = home.start().await;
        let created = create(&server.api(), script).await;
        let (session, asked) = (id(&created), id(&created["pending_approval"]));
        let mut events = server.api().follow(&session, "").await;
        for _ in 0..questions {
            events.until("approval.requested").await;
        }
        server.kill().await;
        let server = home.start().await;
        Self { home, server, session, asked }
    }

    fn api(&self) -> Api {
        self.server.api()
    }

    fn effects(&self) -> Vec<Value> {
        effects(&self.home, &self.session)
    }
}

/// Approves where the service dies of it: the answer may be cut off.
async fn approve_and_see_it_die(api: &Api, approval: &str) {
    let request = api.request(reqwest::Method::POST, &format!("/v1/approvals/{approval}/decision"));
    drop(request.json(&json!({"decision": "approve"})).send().await);
}

fn made() -> [Value; 1] {
    [json!({"command": "make", "option": "yes"})]
}

async fn kinds_since(api: &Api, session: &str, kind: &str) -> Vec<String> {
    let kinds = api.kinds(session).await;
    let from = kinds.iter().position(|this| this == kind).unwrap();
    kinds[from..].to_vec()
}

#[tokio::test]
async fn killed_while_an_approval_waits_it_can_still_be_approved_and_its_call_runs_once() {
    for flags in [&[][..], &["--load"]] {
        let killed = Killed::while_asking(flags, "say first \nrun make\nsay then").await;
        let (api, session) = (killed.api(), &killed.session);
        let row = api.session(session).await;
        assert_eq!(
            (row["status"].as_str(), row["live"].as_bool(), &row["pending_approval"]["id"]),
            (Some("awaiting_approval"), Some(false), &json!(killed.asked))
        );
        assert_eq!(processes::of_agent(session).len(), 0, "nothing runs for a question alone");
        let lost = &api.events_of(session, "tool.completed").await[0];
        assert_eq!(lost["status"], "failed", "what was under way is over: {lost}");

        assert_eq!(api.decide(&killed.asked, "approve").await.expect(200)["idempotent"], false);
        let row = settled(&api, session).await;
        assert_eq!(
            (row["status"].as_str(), row["turn"]["status"].as_str(), row["turn"]["text"].as_str()),
            (Some("idle"), Some("completed"), Some("first then"))
        );
        assert_eq!(row["turn"]["rehydrated"], true);
        assert_eq!(killed.effects(), made());
        assert!(approval(&api, &killed.asked).await["delivered_at"].is_string());
        assert_eq!(
            kinds_since(&api, session, "approval.resolved").await,
            [
                "approval.resolved",
                "session.rehydrated",
                "activity",
                "tool.started",
                "approval.delivered",
                "tool.completed",
                "text.delta",
                "turn.completed"
            ]
        );
        assert_eq!(api.events_of(session, "session.rehydrated").await, [json!({"exact": false})]);
        assert_eq!(api.events_of(session, "approval.requested").await.len(), 1, "it is the same question");
        assert_eq!(api.decide(&killed.asked, "approve").await.expect(200)["idempotent"], true);
        assert_eq!(killed.effects(), made());
    }
}

#[tokio::test]
async fn an_agent_that_is_killed_while_it_asks_leaves_its_question_open() {
    let home = Home::new().with_config(&harness("fake", &["script"]));
    let server = home.start().await;
    let api = server.api();
    let created = create(&api, "remember blue\nrun make\nrecall").await;
    let (session, asked) = (id(&created), id(&created["pending_approval"]));
    for pid in processes::of_agent(&session) {
        processes::kill(pid);
    }
    api.follow(&session, "").await.until("activity").await;
    let activity = api.events_of(&session, "activity").await[0]["label"].take();
    assert!(activity.as_str().unwrap().contains("killed by signal 9"), "{activity}");
    assert_eq!(api.session(&session).await["status"], "awaiting_approval");
    api.decide(&asked, "approve").await.expect(200);
    let row = settled(&api, &session).await;
    assert_eq!(
        (row["turn"]["status"].as_str(), row["turn"]["text"].as_str()),
        (Some("completed"), Some("blue"))
    );
    assert_eq!(effects(&home, &session), made());
}

#[tokio::test]
async fn a_shutdown_keeps_the_question_for_the_next_process() {
    let home = Home::new().with_config(&harness("fake", &["script"]));
    let server = home.start().await;
    let created = create(&server.api(), "run make\nsay then").await;
    assert!(server.terminate().await.success());
    let server = home.start().await;
    let api = server.api();
    api.decide(&id(&created["pending_approval"]), "approve").await.expect(200);
    assert_eq!(settled(&api, &id(&created)).await["turn"]["text"], "then");
    assert_eq!(effects(&home, &id(&created)), made());
}

#[tokio::test]
async fn denied_after_a_crash_the_call_does_not_run_and_the_agent_is_told() {
    let killed = Killed::while_asking(&[], "run make\nsay then").await;
    let (api, session) = (killed.api(), &killed.session);
    api.decide(&killed.asked, "deny").await.expect(200);
    let row = settled(&api, session).await;
    assert_eq!(
        (row["turn"]["status"].as_str(), row["turn"]["text"].as_str()),
        (Some("completed"), Some("then"))
    );
    assert!(killed.effects().is_empty());
    let denied = approval(&api, &killed.asked).await;
    assert_eq!(denied["status"], "denied");
    assert!(denied["delivered_at"].is_string(), "it was told in words: {denied}");
}

#[tokio::test]
async fn an_agent_that_never_asks_again_is_told_of_and_nothing_runs() {
    let killed = Killed::while_asking(&["--forgetful"], "run make").await;
    let (api, session) = (killed.api(), &killed.session);
    api.decide(&killed.asked, "approve").await.expect(200);
    let row = settled(&api, session).await;
    assert_eq!(
        (row["turn"]["status"].as_str(), row["turn"]["text"].as_str()),
        (Some("completed"), Some("forgotten"))
    );
    let orphaned = approval(&api, &killed.asked).await;
    assert_eq!(
        (orphaned["status"].as_str(), orphaned["decision"].as_str(), &orphaned["delivered_at"]),
        (Some("orphaned"), Some("approve"), &Value::Null)
    );
    let said = api.events_of(session, "activity").await;
    let label = said.last().unwrap()["label"].as_str().unwrap();
    assert_eq!(label, "the agent did not ask again for what was approved: Run: make");
    assert!(killed.effects().is_empty());
}

#[tokio::test]
async fn another_call_than_the_one_that_was_approved_is_a_question_of_its_own() {
    let killed = Killed::while_asking(&["--other-call"], "run make").await;
    let (api, session) = (killed.api(), &killed.session);
    api.decide(&killed.asked, "approve").await.expect(200);
    api.follow(session, "?until=pause").await.all().await;
    let row = api.session(session).await;
    let other = &row["pending_approval"];
    assert_eq!(
        (row["status"].as_str(), other["title"].as_str()),
        (Some("awaiting_approval"), Some("Run: other"))
    );
    assert_ne!(other["id"], json!(killed.asked));
    assert!(killed.effects().is_empty());
    api.decide(&id(other), "deny").await.expect(200);
    settled(&api, session).await;
    assert!(killed.effects().is_empty());
    assert_eq!(approval(&api, &killed.asked).await["status"], "orphaned");
}

#[tokio::test]
async fn two_questions_that_wait_are_answered_one_by_one_by_the_calls_that_ask_again() {
    let killed = Killed::while_so_many_wait(2, &[], "ask-twice make").await;
    let (api, session) = (killed.api(), &killed.session);
    let path = format!("/v1/sessions/{session}/approvals?status=pending");
    let waiting = api.get(&path).await.expect(200)["data"].take();
    let ids: Vec<String> = waiting.as_array().unwrap().iter().map(id).collect();
    assert_eq!(ids.len(), 2);
    let first = ids.iter().find(|id| **id == killed.asked).unwrap();
    let second = ids.iter().find(|id| **id != killed.asked).unwrap();
    api.decide(first, "approve").await.expect(200);
    // The other one is bound to the second call that asks; nothing new is asked.
    api.follow(session, "").await.until("approval.delivered").await;
    api.decide(second, "deny").await.expect(200);
    let row = settled(&api, session).await;
    assert_eq!(row["turn"]["text"], "\"no\" \"yes\" ", "{row}");
    assert_eq!(api.events_of(session, "approval.requested").await.len(), 2);
    assert_eq!(api.events_of(session, "approval.delivered").await.len(), 2);
}

#[tokio::test]
async fn rows_33_and_34_an_agent_that_cannot_go_on_orphans_the_approval_and_the_session_takes_prompts() {
    let killed = Killed::while_asking(&["--no-restore"], "run make").await;
    let (api, session) = (killed.api(), &killed.session);
    api.decide(&killed.asked, "approve").await.expect(200);
    let row = settled(&api, session).await;
    assert_eq!((row["status"].as_str(), row["turn"]["status"].as_str()), (Some("idle"), Some("interrupted")));
    assert_eq!((&row["pending_approval"], &row["pending_approval_count"]), (&Value::Null, &json!(0)));
    assert_eq!(api.events_of(session, "session.context_lost").await.len(), 1);
    assert_eq!(approval(&api, &killed.asked).await["status"], "orphaned");
    api.decide(&killed.asked, "approve").await.problem(409, "approval_closed");
    assert_eq!(api.prompt(session, "say on").await["text"], "on");
    assert!(killed.effects().is_empty());
}

#[tokio::test]
async fn f20_killed_after_the_agent_was_told_nobody_knows_what_it_did_and_it_is_not_told_again() {
    for point in ["continue.before", "continue.given", "answer.before", "answer.given"] {
        let home = Home::new().with_config(&harness("fake", &["script"]));
        let server = home.start().await;
        let created = create(&server.api(), "remember blue\nrun make").await;
        let (session, asked) = (id(&created), id(&created["pending_approval"]));
        server.kill().await;
        let server = home.start_with_fault(point).await;
        let api = server.api();
        approve_and_see_it_die(&api, &asked).await;
        server.wait_dead().await;
        let server = home.start().await;
        let api = server.api();
        let row = settled(&api, &session).await;
        assert_eq!(
            (row["status"].as_str(), row["turn"]["status"].as_str()),
            (Some("idle"), Some("interrupted"))
        );
        assert_eq!(api.events_of(&session, "turn.interrupted").await[0]["delivery"], "unknown", "{point}");
        let orphaned = approval(&api, &asked).await;
        assert_eq!(
            (orphaned["status"].as_str(), orphaned["decision"].as_str()),
            (Some("orphaned"), Some("approve"))
        );
        assert_eq!(api.prompt(&session, "recall").await["text"], "blue");
        // The agent that has the answer dies with its service, before or after it did what was approved.
        let most = usize::from(point == "answer.given");
        assert!(effects(&home, &session).len() <= most, "{point}");
    }
}

#[tokio::test]
async fn f19_killed_right_after_the_decision_it_is_delivered_by_the_next_process() {
    let home = Home::new().with_config(&harness("fake", &["script"]));
    let server = home.start_with_fault("decide.committed").await;
    let created = create(&server.api(), "run make").await;
    approve_and_see_it_die(&server.api(), &id(&created["pending_approval"])).await;
    server.wait_dead().await;
    let server = home.start().await;
    let row = settled(&server.api(), &id(&created)).await;
    assert_eq!(row["turn"]["status"], "completed");
    assert_eq!(effects(&home, &id(&created)), made());
}

#[tokio::test]
async fn a_question_that_nobody_answers_after_a_crash_expires_and_is_told_as_a_denial() {
    let home = Home::new().with_config(&harness("fake", &["script"]));
    let home = home.with(&["--sweep-interval-seconds", "0.1"]);
    let server = home.start().await;
    let body = json!({"harness": "fake", "prompt": "run make\nsay then", "limits": {"approval_seconds": 2}});
    let created = create_with(&server.api(), body).await;
    server.kill().await;
    let server = home.start().await;
    let api = server.api();
    let row = settled(&api, &id(&created)).await;
    assert_eq!(
        (row["turn"]["status"].as_str(), row["turn"]["text"].as_str()),
        (Some("completed"), Some("then"))
    );
    assert_eq!(approval(&api, &id(&created["pending_approval"])).await["status"], "expired");
    assert!(effects(&home, &id(&created)).is_empty());
}

#[tokio::test]
async fn a_question_without_a_process_is_cancelled_stopped_and_interrupted_like_any_other() {
    for verb in ["cancel", "stop", "interrupt"] {
        let killed = Killed::while_asking(&[], "remember blue\nrun make").await;
        let (api, session) = (killed.api(), &killed.session);
        if verb == "interrupt" {
            let body = json!({"prompt": "recall", "when_busy": "interrupt"});
            api.post(&format!("/v1/sessions/{session}/prompts"), body).await.expect(202);
        } else {
            post(&api, session, verb).await;
        }
        let row = settled(&api, session).await;
        assert_eq!(approval(&api, &killed.asked).await["status"], "cancelled", "{verb}: {row}");
        api.decide(&killed.asked, "approve").await.problem(409, "approval_closed");
        if verb == "interrupt" {
            assert_eq!(row["turn"]["text"], "blue");
        } else {
            assert_eq!(api.prompt(session, "recall").await["text"], "blue");
        }
        assert!(killed.effects().is_empty());
    }
}

#[tokio::test]
async fn what_an_interrupted_turn_had_said_stays_with_it_and_its_open_calls_are_closed() {
    let home = Home::new().with_config(&harness("fake", &["script"]));
    let server = home.start().await;
    let session = id(&create(&server.api(), "say ready").await);
    prompt_detached(&server.api(), &session, "say half \nopen long-one\nsay way\nhang").await;
    let mut events = server.api().follow(&session, "?after=5").await;
    events.until("tool.started").await;
    events.until("text.delta").await;
    server.kill().await;
    let server = home.start().await;
    let api = server.api();
    let row = settled(&api, &session).await;
    assert_eq!(
        (row["turn"]["status"].as_str(), row["turn"]["text"].as_str()),
        (Some("interrupted"), Some("half way"))
    );
    let ended = api.events_of(&session, "tool.completed").await;
    assert_eq!((ended.len(), ended[0]["status"].as_str()), (1, Some("failed")), "{ended:?}");
    eventually("nothing of it runs", || processes::of_agent(&session).is_empty()).await;
}
