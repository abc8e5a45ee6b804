//! Commands that come to a replica that does not hold their session: they are rows, and the holder acts on them. Replica 0 holds,
//! replica 1 is asked.

use futures_util::future::{LocalBoxFuture, join_all};
use reqwest::Method;
use serde_json::{Value, json};

use super::{
    ASKS, LONG, SHORT, assert_nothing_ran_twice, begin, create_at, effects_of, ended, holder, id, idle_at,
    number, one_log, poll, prompts, queue, turn,
};
use crate::support::api::{Answer, Api};
use crate::support::fleet::Fleet;

async fn fleet(replicas: usize, hints: &str) -> Fleet {
    Fleet::of(replicas).with(LONG).with_variable("OSTLER_HINTS", hints).start().await
}

fn millis(approval: &Value, field: &str) -> i64 {
    let text = approval[field].as_str().unwrap_or_else(|| panic!("no {field} in {approval}"));
    chrono::DateTime::parse_from_rfc3339(text).unwrap().timestamp_millis()
}

/// Decides at that replica, as often as the environment says, and gives the median time from the decision to its delivery, in
/// milliseconds.
async fn median_delivery(fleet: &Fleet, decider: usize, what: &str) -> i64 {
    let mut took = Vec::new();
    for _ in 0..number("OSTLER_DECISIONS", 9) {
        let asked = create_at(fleet, 0, ASKS).await;
        let (session, approval) = (id(&asked), id(&asked["pending_approval"]));
        let decided = fleet.api(decider).decide(&approval, "approve").await.expect(200);
        assert_eq!(decided["idempotent"], false);
        assert_eq!(ended(&fleet.api(1), &session, &id(&asked["turn"])).await["status"], "completed");
        let log = one_log(fleet, &[0, 1], &session).await;
        let from = log.iter().position(|event| event["type"] == "approval.requested").unwrap();
        let kinds: Vec<&str> = log[from..].iter().map(|event| event["type"].as_str().unwrap()).collect();
        assert_eq!(kinds[..3], ["approval.requested", "approval.resolved", "approval.delivered"]);
        assert_eq!(log[from + 1]["data"]["approval"]["decided_at"], decided["approval"]["decided_at"]);
        assert_eq!(effects_of(fleet, &session, &id(&asked["turn"])), ["prompt", "decision", "tool", "tool"]);
        assert_eq!(holder(fleet, &session).await.as_deref(), Some("r0"), "the holder carried it out");
        took.push(millis(&log[from + 2], "at") - millis(&decided["approval"], "decided_at"));
    }
    took.sort_unstable();
    let median = took[took.len() / 2];
    println!("a decision taken {what}: median {median} ms of {took:?}");
    median
}

/// Decisions are delivered faster than they would be found by looking. What they take at the holder itself is the machine's own
/// time; noise passes, so that there are a few tries.
async fn assert_hinted(fleet: &Fleet) {
    let bound = i64::try_from(number("OSTLER_HINT_MS", 100)).unwrap();
    let mut late = Vec::new();
    while late.last().is_none_or(|late| *late > bound) {
        assert!(late.len() < 5, "later than at the holder by {late:?} ms");
        let here = median_delivery(fleet, 0, "at the holder").await;
        late.push(median_delivery(fleet, 1, "elsewhere, with hints").await - here);
    }
}

#[tokio::test]
async fn f22_a_decision_taken_elsewhere_reaches_the_harness_at_once_by_a_hint() {
    assert_hinted(&fleet(2, "on").await).await;
}

#[tokio::test]
async fn f22_a_decision_taken_elsewhere_reaches_the_harness_within_a_second_without_hints() {
    let fleet = fleet(2, "off").await;
    assert!(median_delivery(&fleet, 1, "elsewhere, without hints").await <= 1000);
}

/// What other sessions are changed meanwhile, and how fast, says nothing about this one.
#[tokio::test]
async fn f45_a_command_of_which_no_hint_came_is_found_though_hints_of_others_never_pause() {
    let plan = Fleet::of(2).with(LONG).with_variable_of(1, "OSTLER_HINTS", "off");
    let fleet = plan.start().await;
    let asked = create_at(&fleet, 0, ASKS).await;
    let mut loud = fleet.home().postgres().unwrap().connect().await;
    let flood = tokio::spawn(async move {
        // As fast as they come, each of them another session that nobody has.
        for n in 1_i64.. {
            let hint = format!("somebody {n}");
            sqlx::query("SELECT pg_notify('ostler_hints', $1)").bind(hint).execute(&mut loud).await.unwrap();
        }
    });
    fleet.api(1).decide(&id(&asked["pending_approval"]), "approve").await.expect(200);
    assert_eq!(ended(&fleet.api(1), &id(&asked), &id(&asked["turn"])).await["status"], "completed");
    assert!(!flood.is_finished(), "hints came all the while");
    flood.abort();
}

const EARS: &str =
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'";

async fn until_all_listen(fleet: &Fleet) {
    let mut connection = fleet.home().postgres().unwrap().connect().await;
    poll("all to listen", async || {
        let ears: Vec<i32> = sqlx::query_scalar(EARS).fetch_all(&mut connection).await.unwrap();
        (ears.len() == fleet.len()).then_some(())
    })
    .await;
}

/// Takes their ears from all replicas, decides, and gives the time to the delivery in milliseconds.
async fn unheard_delivery(fleet: &Fleet) -> i64 {
    let asked = create_at(fleet, 0, ASKS).await;
    until_all_listen(fleet).await;
    let kill = format!("SELECT pg_terminate_backend(pid, 5000) FROM ({EARS}) AS ears");
    fleet.home().tamper(&kill).await;
    let decided = fleet.api(1).decide(&id(&asked["pending_approval"]), "approve").await.expect(200);
    ended(&fleet.api(1), &id(&asked), &id(&asked["turn"])).await;
    let delivered = fleet.api(1).events_of(&id(&asked), "approval.delivered").await;
    assert_eq!(delivered.len(), 1);
    millis(&delivered[0]["approval"], "delivered_at") - millis(&decided["approval"], "decided_at")
}

#[tokio::test]
async fn f45_when_nobody_hears_hints_decisions_arrive_by_looking_and_hints_come_back() {
    let fleet = fleet(2, "on").await;
    let mut took = Vec::new();
    while took.last().is_none_or(|took| *took > 1000) {
        assert!(took.len() < 5, "none in a second: {took:?} ms");
        took.push(unheard_delivery(&fleet).await);
    }
    println!("a decision that nobody heard of: {took:?} ms");
    until_all_listen(&fleet).await;
    assert_hinted(&fleet).await;
}

/// What every command does when it is sent to replica 1.
async fn every_command(hints: &str) {
    let fleet = &fleet(2, hints).await;
    let stories: [LocalBoxFuture<'_, ()>; 8] = [
        Box::pin(a_queued_prompt_runs_at_the_holder(fleet)),
        Box::pin(a_queued_turn_is_taken_back(fleet)),
        Box::pin(an_interrupting_prompt_runs_next(fleet)),
        Box::pin(a_cancel_ends_the_turn_alone(fleet)),
        Box::pin(a_stop_puts_the_session_away(fleet)),
        Box::pin(a_destroyed_session_can_be_read(fleet)),
        Box::pin(a_purged_session_is_gone(fleet)),
        Box::pin(a_waiting_caller_is_answered(fleet)),
    ];
    join_all(stories).await;
}

#[tokio::test]
async fn f22_every_command_is_carried_out_by_the_holder_and_answered_by_whoever_took_it() {
    every_command("on").await;
}

#[tokio::test]
async fn f22_every_command_is_carried_out_by_the_holder_without_hints_as_well() {
    every_command("off").await;
}

async fn a_queued_prompt_runs_at_the_holder(fleet: &Fleet) {
    let (holding, other) = (fleet.api(0), fleet.api(1));
    let asked = create_at(fleet, 0, "/ask shell {}").await;
    let session = id(&asked);
    other.post(&prompts(&session), json!({"prompt": "/say x"})).await.problem(409, "approval_pending");
    let (second, third) =
        (queue(&other, &session, "/say second").await, queue(&holding, &session, "/say third").await);
    assert_eq!(holding.session(&session).await["queued_turns"], 2);
    other.decide(&id(&asked["pending_approval"]), "deny").await.expect(200);
    assert_eq!(ended(&other, &session, &third).await["text"], "third");
    assert_eq!(turn(&holding, &session, &second).await["text"], "second");
    assert_eq!(holder(fleet, &session).await.as_deref(), Some("r0"));
    let log = one_log(fleet, &[0, 1], &session).await;
    let started = log.iter().filter(|event| event["type"] == "turn.started");
    let started: Vec<&str> = started.map(|event| event["turn_id"].as_str().unwrap()).collect();
    assert_eq!(started, [id(&asked["turn"]), second, third]);
    assert_nothing_ran_twice(fleet, &session);
}

async fn a_queued_turn_is_taken_back(fleet: &Fleet) {
    let other = fleet.api(1);
    let session = idle_at(fleet, 0).await;
    let at_work = begin(&fleet.api(0), &session, "/say on\n/hang").await;
    let (gone, stays) =
        (queue(&other, &session, "/tool gone {}").await, queue(&other, &session, "/tool stays {}").await);
    let path = |turn: &str| format!("/v1/sessions/{session}/turns/{turn}");
    other.delete(&path(&gone)).await.expect(204);
    other.delete(&path(&at_work)).await.problem(409, "turn_started");
    other.post(&format!("/v1/sessions/{session}/cancel"), json!({})).await.expect(200);
    assert_eq!(ended(&other, &session, &stays).await["status"], "completed");
    assert_eq!(turn(&other, &session, &gone).await["status"], "cancelled");
    assert_eq!(effects_of(fleet, &session, &gone), [""; 0]);
    assert_eq!(effects_of(fleet, &session, &stays), ["prompt", "tool"]);
    one_log(fleet, &[0, 1], &session).await;
}

async fn an_interrupting_prompt_runs_next(fleet: &Fleet) {
    let other = fleet.api(1);
    let session = idle_at(fleet, 0).await;
    let at_work = begin(&fleet.api(0), &session, "/say on\n/hang").await;
    let waiting = queue(&other, &session, "/say last").await;
    let body = json!({"prompt": "/recall", "when_busy": "interrupt"});
    let urgent = other.post_and_wait(&prompts(&session), body).await.expect(200);
    assert_eq!((urgent["status"].as_str(), urgent["text"].as_str()), (Some("completed"), Some("blue")));
    assert_eq!(turn(&other, &session, &at_work).await["status"], "cancelled");
    assert_eq!(ended(&other, &session, &waiting).await["text"], "last");
    let log = one_log(fleet, &[0, 1], &session).await;
    let over: Vec<_> = log.iter().filter(|event| event["type"] == "turn.completed").collect();
    assert_eq!((&over[1]["turn_id"], over[2]["turn_id"].as_str()), (&urgent["id"], Some(&*waiting)));
    assert_eq!(holder(fleet, &session).await.as_deref(), Some("r0"));
}

async fn a_cancel_ends_the_turn_alone(fleet: &Fleet) {
    let other = fleet.api(1);
    let session = idle_at(fleet, 0).await;
    let path = format!("/v1/sessions/{session}/cancel");
    assert_eq!(other.post(&path, json!({})).await.expect(200)["status"], "idle", "nothing to end is fine");
    let at_work = begin(&fleet.api(0), &session, "/say on\n/hang").await;
    let row = other.post(&path, json!({})).await.expect(200);
    assert_eq!((row["status"].as_str(), row["live"].as_bool()), (Some("idle"), Some(true)));
    assert_eq!(turn(&other, &session, &at_work).await["status"], "cancelled");
    assert_eq!(other.prompt(&session, "/recall").await["rehydrated"], false);
    one_log(fleet, &[0, 1], &session).await;
}

async fn a_stop_puts_the_session_away(fleet: &Fleet) {
    let other = fleet.api(1);
    let asked = create_at(fleet, 0, ASKS).await;
    let (session, approval) = (id(&asked), id(&asked["pending_approval"]));
    let path = format!("/v1/sessions/{session}/stop");
    for _ in 0..2 {
        let row = other.post(&path, json!({})).await.expect(200);
        let shown = (row["status"].as_str(), row["stop_cause"].as_str(), row["live"].as_bool());
        assert_eq!(shown, (Some("stopped"), Some("user"), Some(false)));
    }
    assert_eq!(holder(fleet, &session).await, None);
    for i in [0, 1] {
        fleet.api(i).decide(&approval, "approve").await.problem(409, "approval_closed");
    }
    assert_eq!(other.prompt(&session, "/recall").await["text"], "blue", "it is taken up from where it was");
    assert_eq!(effects_of(fleet, &session, &id(&asked["turn"])), ["prompt"]);
    one_log(fleet, &[0, 1], &session).await;
}

async fn a_destroyed_session_can_be_read(fleet: &Fleet) {
    let other = fleet.api(1);
    let session = idle_at(fleet, 0).await;
    begin(&fleet.api(0), &session, "/say on\n/hang").await;
    let path = format!("/v1/sessions/{session}");
    for i in [1, 1, 0] {
        fleet.api(i).delete(&path).await.expect(204);
    }
    assert_eq!(fleet.api(0).session(&session).await["status"], "destroyed");
    other.post(&prompts(&session), json!({"prompt": "x"})).await.problem(409, "session_destroyed");
    assert!(!fleet.home().state_dir(&session).exists());
    let log = one_log(fleet, &[0, 1], &session).await;
    assert_eq!(log.last().unwrap()["type"], "session.destroyed");
}

async fn a_purged_session_is_gone(fleet: &Fleet) {
    let session = idle_at(fleet, 0).await;
    begin(&fleet.api(0), &session, "/say on\n/hang").await;
    let path = format!("/v1/sessions/{session}");
    fleet.api(1).delete(&format!("{path}?purge=true")).await.expect(204);
    for i in [0, 1] {
        fleet.api(i).get(&path).await.problem(404, "not_found");
        fleet.api(i).get(&format!("{path}/events")).await.problem(404, "not_found");
    }
    assert!(!fleet.home().workspace(&session).exists());
    assert!(!fleet.home().state_dir(&session).exists());
}

async fn a_waiting_caller_is_answered(fleet: &Fleet) {
    let other = fleet.api(1);
    let session = idle_at(fleet, 0).await;
    let done = other.post_and_wait(&prompts(&session), json!({"prompt": "/recall"})).await;
    let applied = done.header("preference-applied").map(str::to_owned);
    let done = done.expect(200);
    assert_eq!((done["status"].as_str(), done["text"].as_str()), (Some("completed"), Some("blue")));
    assert_eq!(applied.as_deref(), Some("wait=60"));
    let asks = other.post_and_wait(&prompts(&session), json!({"prompt": "/ask shell {}"})).await.expect(202);
    assert_eq!(asks["status"], "awaiting_approval");
    assert_eq!(holder(fleet, &session).await.as_deref(), Some("r0"));
}

#[tokio::test]
async fn f22_a_wish_that_the_holder_has_yet_to_hear_of_is_202_and_comes_about() {
    let mut fleet = fleet(2, "on").await;
    let mut sessions = Vec::new();
    for _ in 0..3 {
        let session = idle_at(&fleet, 0).await;
        begin(&fleet.api(0), &session, "/say on\n/hang").await;
        sessions.push(session);
    }
    let [cancelled, stopped, destroyed] = &sessions[..] else { panic!("three sessions") };
    fleet.stop(0);
    let other = fleet.api(1);
    let path = |session: &str| format!("/v1/sessions/{session}");
    let (cancel, stop, destroy) = (path(cancelled) + "/cancel", path(stopped) + "/stop", path(destroyed));
    let (cancel, stop, destroy) =
        tokio::join!(other.post(&cancel, json!({})), other.post(&stop, json!({})), other.delete(&destroy));
    assert_eq!(cancel.expect(202)["status"], "running");
    assert_eq!(stop.expect(202)["status"], "running");
    destroy.expect(202);
    fleet.cont(0);
    for (session, status) in [(cancelled, "idle"), (stopped, "stopped"), (destroyed, "destroyed")] {
        other.until_status(session, status).await;
        one_log(&fleet, &[0, 1], session).await;
    }
}

#[tokio::test]
async fn f19_a_decision_taken_while_the_holder_is_dead_is_delivered_once_after_the_takeover() {
    let mut fleet = Fleet::of(3).with(SHORT).start().await;
    let asked = create_at(&fleet, 0, ASKS).await;
    let (session, approval) = (id(&asked), id(&asked["pending_approval"]));
    fleet.kill(0).await;
    assert_eq!(fleet.api(1).decide(&approval, "approve").await.expect(200)["idempotent"], false);
    assert_eq!(fleet.api(2).decide(&approval, "approve").await.expect(200)["idempotent"], true);
    fleet.api(2).decide(&approval, "deny").await.problem(409, "approval_already_resolved");
    assert_eq!(ended(&fleet.api(2), &session, &id(&asked["turn"])).await["text"], "done");
    assert_eq!(effects_of(&fleet, &session, &id(&asked["turn"])), ["prompt", "decision", "tool", "tool"]);
    let log = one_log(&fleet, &[1, 2], &session).await;
    assert_eq!(log.iter().filter(|event| event["type"] == "approval.delivered").count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f21_of_yes_and_no_at_two_replicas_one_stands_and_the_other_is_told_which() {
    let fleet = fleet(3, "on").await;
    let races = number("OSTLER_RACES", 20);
    let clients = (0..4).map(|client| {
        let fleet = &fleet;
        async move {
            let mut approved = 0;
            for n in (client..races).step_by(4) {
                approved += usize::from(race(fleet, n).await);
            }
            approved
        }
    });
    let approved: usize = join_all(clients).await.into_iter().sum();
    println!("{races} races: {approved} approved, {} denied", races - approved);
}

/// One race, at two replicas of which either, or neither, may hold the session; true when the yes stands.
async fn race(fleet: &Fleet, n: usize) -> bool {
    let asked = fleet.api(n % 3).create("/ask shell {}\n/say done").await;
    let (session, approval) = (id(&asked), id(&asked["pending_approval"]));
    let (one, other) = (fleet.api((n + n / 3) % 3), fleet.api((n + n / 3 + 1) % 3));
    let (yes, no) = tokio::join!(one.decide(&approval, "approve"), other.decide(&approval, "deny"));
    let (winner, loser, stands) =
        if yes.status == 200 { (&yes, &no, "approve") } else { (&no, &yes, "deny") };
    let decided = winner.expect(200);
    assert_eq!((&decided["idempotent"], &decided["approval"]["decision"]), (&json!(false), &json!(stands)));
    let refused = loser.problem(409, "approval_already_resolved");
    for field in ["decision", "option_id", "decided_at", "decided_by"] {
        assert_eq!(refused["approval"][field], decided["approval"][field], "{field}");
    }
    ended(&one, &session, &id(&asked["turn"])).await;
    let ledger = fleet.home().ledger(&session);
    let told: Vec<_> = ledger.iter().filter(|line| line["kind"] == "decision").collect();
    assert!(told.len() == 1 && told[0]["decision"] == stands, "{told:?}");
    one_log(fleet, &[0, 1, 2], &session).await;
    stands == "approve"
}

/// Sends a request with a key to one replica until it is not being answered elsewhere any more.
async fn insist(api: &Api, key: &str, path: &str, body: &Value) -> Answer {
    poll("an answer to the key", async || {
        let request = api.request(Method::POST, path).header("idempotency-key", key).json(body);
        let answer = api.send(request).await;
        if answer.status == 409 {
            answer.problem(409, "idempotency_in_progress");
            return None;
        }
        Some(answer)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f03_sixty_four_clients_with_one_key_at_three_replicas_make_one_session() {
    let fleet = fleet(3, "on").await;
    let body = json!({"harness": "demo", "prompt": "/tool once {}", "settings": {"token_delay_ms": 0}});
    let apis: Vec<Api> = (0..3).map(|i| fleet.api(i)).collect();
    let clients = (0..64).map(|n| insist(&apis[n % 3], "one", "/v1/sessions", &body));
    let answers = join_all(clients).await;
    let first = answers[0].expect(201);
    for answer in &answers {
        assert_eq!((answer.status, &answer.text), (201, &answers[0].text));
    }
    let replayed = answers.iter().filter(|answer| answer.header("idempotency-replayed").is_some()).count();
    assert_eq!(replayed, 63);
    assert_eq!(apis[0].get("/v1/sessions").await.expect(200)["data"].as_array().unwrap().len(), 1);
    ended(&apis[1], &id(&first), &id(&first["turn"])).await;
    assert_eq!(effects_of(&fleet, &id(&first), &id(&first["turn"])), ["prompt", "tool"]);
}

#[tokio::test]
async fn f02_an_answer_is_given_again_byte_for_byte_by_another_replica() {
    let fleet = fleet(2, "on").await;
    let asked = create_at(&fleet, 0, "/ask shell {}").await;
    let session = id(&asked);
    let queued = json!({"prompt": "/say x", "when_busy": "queue"});
    let decision = format!("/v1/approvals/{}/decision", id(&asked["pending_approval"]));
    for (key, path, body) in [
        ("create", "/v1/sessions".to_owned(), json!({"harness": "demo"})),
        ("prompt", prompts(&session), queued),
        ("decide", decision, json!({"decision": "approve"})),
        ("cancel", format!("/v1/sessions/{session}/cancel"), json!({})),
        ("stop", format!("/v1/sessions/{session}/stop"), json!({})),
    ] {
        let first = insist(&fleet.api(0), key, &path, &body).await;
        assert!(first.status < 300 && first.header("idempotency-replayed").is_none(), "{}", first.text);
        let again = insist(&fleet.api(1), key, &path, &body).await;
        assert_eq!(again.header("idempotency-replayed"), Some("true"), "{key}");
        assert_eq!((again.status, again.text, again.headers.get("location")), {
            let location = first.headers.get("location");
            (first.status, first.text.clone(), location)
        });
        let other =
            insist(&fleet.api(1), key, "/v1/sessions", &json!({"harness": "demo", "title": "x"})).await;
        other.problem(422, "idempotency_key_reused");
    }
}
