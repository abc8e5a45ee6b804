//! Approvals: decided once, told once, whoever races whom.

use serde_json::{Value, json};

use crate::support::server::Home;

const ASK: &str = "/ask shell {\"command\":\"ls\"}\n/say done";

fn id(value: &Value) -> String {
    value["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn rows_22_and_25_an_approval_is_shown_whole_and_a_decision_moves_the_turn_on() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let session = api.create(ASK).await;
    assert_eq!(session["status"], "awaiting_approval");
    let pending = &session["pending_approval"];
    assert_eq!(pending["tool"], "shell");
    assert_eq!(pending["input"], json!({"command": "ls"}));
    assert_eq!(pending["status"], "pending");
    assert!(pending["input_digest"].as_str().unwrap().starts_with("sha256:"));
    assert!(pending.get("native_id").is_none());
    let inbox = api.get("/v1/approvals?status=pending").await.expect(200);
    assert_eq!(inbox["data"][0]["id"], pending["id"]);
    let decided = api.decide(pending["id"].as_str().unwrap(), "approve").await.expect(200);
    assert_eq!(
        (decided["idempotent"].as_bool(), decided["approval"]["status"].as_str()),
        (Some(false), Some("approved"))
    );
    let row = api.until_status(&id(&session), "idle").await;
    assert_eq!(row["resolved_approval_ids"], json!([pending["id"]]));
    assert_eq!(
        (row["pending_approval"].clone(), row["pending_approval_count"].as_i64()),
        (Value::Null, Some(0))
    );
    assert_eq!(home.effects(&id(&session), "tool"), 1);
}

#[tokio::test]
async fn row_26_a_denied_tool_does_not_run_and_the_turn_goes_on() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let session = api.create(ASK).await;
    let path = format!("/v1/approvals/{}/decision", session["pending_approval"]["id"].as_str().unwrap());
    let decided = api.post(&path, json!({"decision": "deny", "reason": "not today"})).await.expect(200);
    assert_eq!(
        (decided["approval"]["status"].as_str(), decided["approval"]["reason"].as_str()),
        (Some("denied"), Some("not today"))
    );
    let row = api.until_status(&id(&session), "idle").await;
    assert_eq!(
        (row["turn"]["status"].as_str(), row["turn"]["text"].as_str()),
        (Some("completed"), Some("done"))
    );
    assert_eq!(home.effects(&id(&session), "tool"), 0);
    let ended =
        api.events(&id(&session)).await.into_iter().find(|event| event["type"] == "tool.completed").unwrap();
    assert_eq!(ended["data"]["status"], "failed");
}

#[tokio::test]
async fn row_28_of_fifty_identical_decisions_at_once_one_reaches_the_harness() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let session = api.create(ASK).await;
    let approval = id(&session["pending_approval"]);
    let racing: Vec<_> = (0..50)
        .map(|_| {
            let (api, approval) = (api.clone(), approval.clone());
            tokio::spawn(async move {
                api.decide(&approval, "approve").await.expect(200)["idempotent"].as_bool().unwrap()
            })
        })
        .collect();
    let mut first = 0;
    for decision in racing {
        first += usize::from(!decision.await.unwrap());
    }
    assert_eq!(first, 1, "one decided, 49 were told that it stands");
    api.until_status(&id(&session), "idle").await;
    assert_eq!((home.effects(&id(&session), "decision"), home.effects(&id(&session), "tool")), (1, 1));
}

#[tokio::test]
async fn row_29_approve_racing_deny_has_one_winner_and_the_loser_is_shown_the_standing_decision() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    for round in 0..20 {
        let session = api.create(ASK).await;
        let approval = id(&session["pending_approval"]);
        let (yes, no) = tokio::join!(api.decide(&approval, "approve"), api.decide(&approval, "deny"));
        let mut statuses = [yes.status, no.status];
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 409], "round {round}");
        let (won, lost, standing) =
            if yes.status == 200 { (&yes, &no, "approved") } else { (&no, &yes, "denied") };
        assert_eq!(won.json()["approval"]["status"], standing);
        let problem = lost.problem(409, "approval_already_resolved");
        assert_eq!(problem["approval"]["status"], standing, "{problem}");
        api.until_status(&id(&session), "idle").await;
        assert_eq!(home.effects(&id(&session), "decision"), 1);
        assert_eq!(home.effects(&id(&session), "tool"), usize::from(standing == "approved"));
    }
}

#[tokio::test]
async fn rows_27_and_37_the_same_decision_later_stands_and_the_opposite_is_refused_however_many_came_between()
{
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let session = id(&api.create("/remember x").await);
    let mut approvals = Vec::new();
    for _ in 0..40 {
        api.prompt(&session, "/ask shell {}").await;
        let approval = id(&api.session(&session).await["pending_approval"]);
        api.decide(&approval, "approve").await.expect(200);
        api.until_status(&session, "idle").await;
        approvals.push(approval);
    }
    let before = api.session(&session).await;
    assert_eq!(before["resolved_approval_ids"].as_array().unwrap().len(), 32);
    let again = api.decide(&approvals[0], "approve").await.expect(200);
    assert_eq!(again["idempotent"], true);
    api.decide(&approvals[0], "deny").await.problem(409, "approval_already_resolved");
    assert_eq!(home.effects(&session, "decision"), 40);
    assert_eq!(api.session(&session).await["updated_at"], before["updated_at"]);
}

#[tokio::test]
async fn rows_35_and_40_several_wait_at_once_and_each_is_resolved_on_its_own_in_any_order() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let session = api
        .create(
            "/ask-all shell {\"n\":1} | write {\"n\":2} | fetch {\"n\":3}\n/ask shell {\"n\":4}\n/say done",
        )
        .await;
    let session_id = id(&session);
    let mut asked = api.follow(&session_id, "").await;
    for _ in 0..3 {
        asked.until("approval.requested").await;
    }
    let session = api.session(&session_id).await;
    assert_eq!(session["pending_approval_count"], 3);
    let list = api.get(&format!("/v1/sessions/{session_id}/approvals?status=pending")).await.expect(200);
    let ids: Vec<String> = list["data"].as_array().unwrap().iter().map(id).collect();
    assert_eq!(
        session["pending_approval"]["id"].as_str(),
        ids.last().map(String::as_str),
        "the oldest is shown"
    );
    // Newest first in the list, so this is against the order in which they were asked.
    for (n, approval) in ids.iter().enumerate() {
        api.decide(approval, if n == 1 { "deny" } else { "approve" }).await.expect(200);
    }
    let mut events = api.follow(&session_id, "").await;
    loop {
        let row = api.session(&session_id).await;
        let next = &row["pending_approval"];
        if !next.is_null() && !ids.contains(&id(next)) {
            api.decide(&id(next), "approve").await.expect(200);
            break;
        }
        events.next().await.unwrap();
    }
    let row = api.until_status(&session_id, "idle").await;
    assert_eq!(row["turn"]["text"], "done");
    assert_eq!((home.effects(&session_id, "decision"), home.effects(&session_id, "tool")), (4, 3));
}

#[tokio::test]
async fn row_36_question_ids_that_come_again_in_a_new_process_are_new_approvals() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let session = api.create(ASK).await;
    let (session_id, first) = (id(&session), id(&session["pending_approval"]));
    api.decide(&first, "approve").await.expect(200);
    api.until_status(&session_id, "idle").await;
    api.post(&format!("/v1/sessions/{session_id}/stop"), json!({})).await.expect(200);
    api.prompt(&session_id, ASK).await;
    let second = id(&api.session(&session_id).await["pending_approval"]);
    assert_ne!(first, second);
    assert_eq!(api.decide(&second, "approve").await.expect(200)["idempotent"], false);
    api.until_status(&session_id, "idle").await;
    assert_eq!(home.effects(&session_id, "tool"), 2);
}

#[tokio::test]
async fn row_43_a_decision_must_be_one_of_the_two_words() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let session = api.create(ASK).await;
    let path = format!("/v1/approvals/{}/decision", id(&session["pending_approval"]));
    for body in [
        json!({"decision": "yes"}),
        json!({"decision": true}),
        json!({"decision": 1}),
        json!({"decision": null}),
    ] {
        api.post(&path, body).await.problem(422, "invalid_input");
    }
    api.post(&path, json!({"approved": "yes"})).await.problem(400, "invalid_body");
    api.anonymous().post(&path, json!({"decision": "approve"})).await.problem(401, "unauthenticated");
    assert_eq!(api.session(&id(&session)).await["status"], "awaiting_approval");
}

#[tokio::test]
async fn row_44_an_approval_that_nobody_answers_expires_and_the_harness_hears_a_refusal() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let body = json!({"harness": "demo", "prompt": ASK, "limits": {"approval_seconds": 1}, "settings": {"token_delay_ms": 0}});
    let session = api.post("/v1/sessions", body).await.expect(201);
    let row = api.until_status(&id(&session), "idle").await;
    assert_eq!(row["turn"]["text"], "done");
    assert_eq!(home.effects(&id(&session), "tool"), 0);
    let approvals = api.get(&format!("/v1/sessions/{}/approvals", id(&session))).await.expect(200);
    let approval = &approvals["data"][0];
    assert_eq!(approval["status"], "expired");
    api.decide(&id(approval), "approve").await.problem(409, "approval_expired");
    let kinds = api.kinds(&id(&session)).await;
    assert!(
        kinds.contains(&"approval.expired".to_owned()) && kinds.contains(&"approval.delivered".to_owned())
    );
}

#[tokio::test]
async fn sec_09_a_decision_binds_what_was_shown() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let session = api.create(ASK).await;
    let pending = &session["pending_approval"];
    let path = format!("/v1/approvals/{}/decision", id(pending));
    let blind = json!({"decision": "approve", "input_digest": "sha256:0000"});
    api.post(&path, blind).await.problem(409, "approval_changed");
    let other_option = json!({"decision": "approve", "option_id": "deny"});
    api.post(&path, other_option).await.problem(422, "invalid_input");
    let edited = json!({"decision": "approve", "input_digest": pending["input_digest"], "edited_input": {"command": "pwd"}});
    let decided = api.post(&path, edited).await.expect(200);
    assert_eq!(decided["approval"]["edited_input"], json!({"command": "pwd"}));
    api.until_status(&id(&session), "idle").await;
    let ended =
        api.events(&id(&session)).await.into_iter().find(|event| event["type"] == "tool.completed").unwrap();
    assert_eq!(ended["data"]["input"], json!({"command": "pwd"}));
}

#[tokio::test]
async fn f23_stopping_cancels_what_waits_and_a_late_decision_never_revives_it() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    for (verb, status) in [("cancel", "idle"), ("stop", "stopped")] {
        let session = api.create(ASK).await;
        let (session_id, approval) = (id(&session), id(&session["pending_approval"]));
        let row = api.post(&format!("/v1/sessions/{session_id}/{verb}"), json!({})).await.expect(200);
        assert_eq!(row["status"], status);
        assert_eq!(row["turn"]["status"], "cancelled");
        api.decide(&approval, "approve").await.problem(409, "approval_closed");
        assert_eq!(api.get(&format!("/v1/approvals/{approval}")).await.expect(200)["status"], "cancelled");
        assert_eq!(home.effects(&session_id, "tool"), 0);
        assert_eq!(api.session(&session_id).await["status"], status);
    }
}

#[tokio::test]
async fn a_permission_mode_answers_for_a_person_as_far_as_it_reaches() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let prompt = "/ask read {}\n/ask edit {}\n/ask shell {}";
    for (mode, asked) in
        [("ask", "read"), ("allow_reads", "edit"), ("allow_edits", "shell"), ("allow_all", "")]
    {
        let body = json!({"harness": "demo", "prompt": prompt, "permission_mode": mode, "settings": {"token_delay_ms": 0}});
        let request =
            api.request(reqwest::Method::POST, "/v1/sessions").header("prefer", "wait=30").json(&body);
        let session = api.send(request).await.json();
        assert_eq!(session["pending_approval"]["tool"].as_str().unwrap_or_default(), asked, "{mode}");
    }
}

#[tokio::test]
async fn sec_09_a_key_without_the_scope_cannot_decide() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let session = api.create(ASK).await;
    let narrow = home
        .make_key(&["--org", "default", "--role", "admin", "--scopes", "sessions:read,sessions:write"])
        .await;
    let approval = id(&session["pending_approval"]);
    server.api_with(&narrow).decide(&approval, "approve").await.problem(403, "insufficient_scope");
    assert_eq!(api.session(&id(&session)).await["status"], "awaiting_approval");
}

#[tokio::test]
async fn rows_30_and_31_a_decision_on_another_id_is_not_found_and_changes_nothing() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let session = api.create(ASK).await;
    for other in ["apr_0197a0c0c0c07000a000a000a000a000", "q1", "px"] {
        api.decide(other, "approve").await.problem(404, "not_found");
    }
    let row = api.session(&id(&session)).await;
    assert_eq!(
        (row["status"].as_str(), &row["pending_approval"]),
        (Some("awaiting_approval"), &session["pending_approval"])
    );
}
