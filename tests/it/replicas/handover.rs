//! Replicas that go down in order: what they held goes on elsewhere, without waiting for anything to run out.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::json;

use super::{
    ASKS, LONG, assert_nothing_ran_twice, begin, create_at, effects_of, ended, id, idle_at, listed, number,
    one_log, poll, queue, turn,
};
use crate::chaos::clients::Crowd;
use crate::support::api::Api;
use crate::support::fleet::Fleet;
use crate::support::within;

/// Whether a replica takes requests; one that goes down refuses connections, or says so.
async fn takes_requests(api: &Api) -> bool {
    let request = api.anonymous().request(Method::GET, "/readyz").send();
    match within("an answer, or none", request).await {
        Ok(answer) if answer.status() == 200 => true,
        Ok(answer) => {
            assert_eq!(answer.status(), 503);
            false
        }
        Err(_) => false,
    }
}

/// How many sessions are held by anybody but that replica.
async fn held_elsewhere(fleet: &Fleet, i: usize) -> i64 {
    let sql =
        "SELECT COUNT(*) FROM agent_harness_sessions s WHERE s.lease_holder IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM replicas r WHERE r.id = s.lease_holder AND split_part(r.instance, ' ', 1) = $1)";
    let mut connection = fleet.home().postgres().unwrap().connect().await;
    sqlx::query_scalar(sql).bind(format!("r{i}")).fetch_one(&mut connection).await.unwrap()
}

/// It went down in order, and left nothing to the other.
async fn assert_gone(fleet: &mut Fleet) {
    let status = fleet.ended(0).await;
    assert!(status.success(), "{status}");
    assert_eq!(held_elsewhere(fleet, 1).await, 0);
    let left: Vec<_> = listed(fleet).await.into_iter().filter(|(instance, ..)| instance == "r0").collect();
    assert!(left.iter().all(|(_, state, held)| (&**state, *held) == ("left", 0)), "{left:?}");
}

#[tokio::test]
async fn f51_what_waits_or_rests_is_handed_over_while_a_turn_still_has_its_grace() {
    let mut fleet = Fleet::of(2).with(LONG).with(&["--shutdown-grace-seconds", "600"]).start().await;
    let (leaving, other) = (fleet.api(0), fleet.api(1));
    let idle = idle_at(&fleet, 0).await;
    let waiting = create_at(&fleet, 0, ASKS).await;
    let busy = idle_at(&fleet, 0).await;
    let at_work = begin(&leaving, &busy, "/say working\n/hang").await;
    let queued = queue(&other, &busy, "/tool later {}").await;
    let short = idle_at(&fleet, 0).await;
    let nearly_done = begin(&leaving, &short, "/say on\n/sleep 500\n/tool soon {}").await;
    let mut stream = leaving.follow(&busy, "").await;
    stream.until("text.delta").await;
    fleet.begin_end(0);
    poll("it to take nothing new", async || (!takes_requests(&leaving).await).then_some(())).await;
    while stream.next().await.is_some() {}
    let retries = stream.asides.iter().filter(|aside| aside.starts_with("retry")).count();
    assert_eq!(retries, 2, "one at the beginning, one at the end: {:?}", stream.asides);
    let (asked, asking) = (id(&waiting), id(&waiting["turn"]));
    other.decide(&id(&waiting["pending_approval"]), "approve").await.expect(200);
    assert_eq!(ended(&other, &asked, &asking).await["text"], "done");
    let row = other.until_status(&idle, "stopped").await;
    assert_eq!((row["stop_cause"].as_str(), row["live"].as_bool()), (Some("shutdown"), Some(false)));
    let recalled = other.prompt(&idle, "/recall").await;
    assert_eq!((recalled["text"].as_str(), recalled["rehydrated"].as_bool()), (Some("blue"), Some(true)));
    assert_eq!(ended(&other, &short, &nearly_done).await["status"], "completed");
    // It is still there, and does what is wished of it.
    assert_eq!(turn(&other, &busy, &at_work).await["status"], "running");
    other.post(&format!("/v1/sessions/{busy}/cancel"), json!({})).await.expect(200);
    assert_eq!(turn(&other, &busy, &at_work).await["status"], "cancelled");
    assert_eq!(ended(&other, &busy, &queued).await["status"], "completed");
    assert_gone(&mut fleet).await;
    assert_eq!(effects_of(&fleet, &asked, &asking), ["prompt", "decision", "tool", "tool"]);
    assert_eq!(effects_of(&fleet, &busy, &at_work), ["prompt"]);
    assert_eq!(effects_of(&fleet, &busy, &queued), ["prompt", "tool"]);
    assert_eq!(effects_of(&fleet, &short, &nearly_done), ["prompt", "tool"]);
    for session in [&idle, &asked, &busy, &short] {
        one_log(&fleet, &[1], session).await;
        assert_nothing_ran_twice(&fleet, session);
    }
}

#[tokio::test]
async fn f51_a_turn_that_outlasts_its_grace_is_interrupted_and_the_next_one_runs_elsewhere() {
    let mut fleet = Fleet::of(2).with(LONG).with(&["--shutdown-grace-seconds", "1"]).start().await;
    let (leaving, other) = (fleet.api(0), fleet.api(1));
    let busy = idle_at(&fleet, 0).await;
    let at_work = begin(&leaving, &busy, "/say working\n/hang").await;
    let queued = queue(&leaving, &busy, "/tool later {}").await;
    fleet.begin_end(0);
    assert_eq!(ended(&other, &busy, &at_work).await["status"], "interrupted");
    assert_eq!(ended(&other, &busy, &queued).await["status"], "completed");
    assert_gone(&mut fleet).await;
    assert_eq!(effects_of(&fleet, &busy, &at_work), ["prompt"]);
    assert_eq!(effects_of(&fleet, &busy, &queued), ["prompt", "tool"]);
    one_log(&fleet, &[1], &busy).await;
}

#[tokio::test]
async fn f49_a_wish_that_meets_a_handover_comes_about() {
    let mut fleet = Fleet::of(2).with(LONG).start().await;
    let asking = (0..number("OSTLER_WISHES", 40)).map(|_| create_at(&fleet, 0, ASKS));
    let sessions: Vec<String> = join_all(asking).await.iter().map(id).collect();
    let other = fleet.api(1);
    fleet.begin_end(0);
    // Each at some moment before, while or after its holder lets it go.
    let wishes = sessions.iter().enumerate().map(|(n, session)| {
        let (other, verb) = (other.clone(), if n % 2 == 0 { "stop" } else { "cancel" });
        async move { other.post(&format!("/v1/sessions/{session}/{verb}"), json!({})).await }
    });
    for (n, answer) in join_all(wishes).await.into_iter().enumerate() {
        let row = answer.expect(200);
        assert_eq!(row["status"], if n % 2 == 0 { "stopped" } else { "idle" }, "{row}");
        assert_eq!(row["turn"]["status"], "cancelled");
    }
    assert!(fleet.ended(0).await.success());
    for session in &sessions {
        one_log(&fleet, &[1], session).await;
        assert_eq!(other.prompt(session, "/recall").await["text"], "blue");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f40_replicas_that_are_restarted_one_after_the_other_under_load_lose_and_interrupt_nothing() {
    let mut fleet = Fleet::of(3).with(LONG).with(&["--shutdown-grace-seconds", "30"]).start().await;
    let crowd = Crowd::new((0..fleet.len()).map(|i| fleet.api(i)).collect());
    let clients = crowd.begin();
    for i in 0..fleet.len() {
        assert!(fleet.terminate(i).await.success());
        fleet.restart(i).await;
        // The new one has work before the next one goes.
        create_at(&fleet, i, "/say x").await;
    }
    let acknowledged = crowd.end(clients).await;
    println!("{} prompts, {} decisions", acknowledged.prompts.len(), acknowledged.decisions.len());
    assert!(!acknowledged.prompts.is_empty() && !acknowledged.decisions.is_empty());
    let api = fleet.api(0);
    for (session, turn) in &acknowledged.prompts {
        let row = ended(&api, session, turn).await;
        assert_eq!(row["status"], "completed", "{row}");
        let prompts = effects_of(&fleet, session, turn).into_iter().filter(|kind| kind == "prompt");
        assert_eq!(prompts.count(), 1, "{row}");
    }
    for (approval, decision) in &acknowledged.decisions {
        let row = api.get(&format!("/v1/approvals/{approval}")).await.expect(200);
        assert_eq!(row["decision"], **decision);
        assert!(row["delivered_at"].is_string(), "{row}");
    }
    let sessions: BTreeSet<&String> = acknowledged.prompts.iter().map(|(session, _)| session).collect();
    for session in sessions {
        one_log(&fleet, &[0, 1, 2], session).await;
        assert_nothing_ran_twice(&fleet, session);
    }
    assert_eq!(api.get("/v1/sessions?status=running").await.expect(200)["data"], json!([]));
}

#[tokio::test]
async fn f49_a_wish_for_what_nobody_holds_comes_about_though_its_taker_dies() {
    let mut fleet = Fleet::of(2).with(LONG).start().await;
    let mut sessions = Vec::new();
    for _ in 0..3 {
        sessions.push(id(&create_at(&fleet, 0, ASKS).await));
    }
    let other = fleet.api(1);
    for (session, (method, verb, status)) in sessions.iter().zip([
        (Method::POST, "/stop", "stopped"),
        (Method::POST, "/cancel", "idle"),
        (Method::DELETE, "", "destroyed"),
    ]) {
        // It lets go of what waits, and starts again to die as soon as it has written a wish down.
        assert!(fleet.terminate(0).await.success());
        fleet.restart_with_fault(0, "wish.committed").await;
        let wish = fleet.api(0).request(method, &format!("/v1/sessions/{session}{verb}")).json(&json!({}));
        assert!(within("its end", wish.send()).await.is_err());
        fleet.wait_dead(0).await;
        let row = other.until_status(session, status).await;
        assert_eq!((&row["turn"]["status"], &row["pending_approval"]), (&json!("cancelled"), &json!(null)));
        one_log(&fleet, &[1], session).await;
        fleet.restart(0).await;
    }
    for session in &sessions[..2] {
        assert_eq!(other.prompt(session, "/recall").await["text"], "blue");
    }
}

#[tokio::test]
async fn f19_a_decision_beside_a_question_that_still_waits_is_delivered_though_its_taker_dies() {
    let mut fleet = Fleet::of(2).with(LONG).start().await;
    let session = id(&create_at(&fleet, 0, "/ask-all one {} | two {}").await);
    let mut events = fleet.api(0).follow(&session, "").await;
    for _ in ["one", "two"] {
        within("both questions", events.until("approval.requested")).await;
    }
    drop(events);
    assert!(fleet.terminate(0).await.success());
    fleet.restart_with_fault(0, "decide.committed").await;
    let pending = fleet.api(1).session(&session).await["pending_approval"].clone();
    let path = format!("/v1/approvals/{}/decision", id(&pending));
    let request = fleet.api(0).request(Method::POST, &path).json(&json!({"decision": "approve"}));
    assert!(within("its end", request.send()).await.is_err());
    fleet.wait_dead(0).await;
    fleet.api(1).follow(&session, "").await.until("approval.delivered").await;
    assert_eq!(fleet.home().effects(&session, "decision"), 1);
    assert_eq!(fleet.api(1).session(&session).await["pending_approval_count"], 1);
}
