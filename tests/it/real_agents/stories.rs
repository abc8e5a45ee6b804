//! What must hold with every agent. Each story has a service of its own.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::KEY;
use super::stage::{self, Agent, Stage};
use crate::support::{assert_soon, processes};

const NONE: [u32; 0] = [];

pub async fn the_check_tells_what_it_is(agent: &'static Agent) {
    let stage = Stage::set(agent).await;
    let path = format!("/v1/harnesses/{}", agent.name);
    let harness = stage.api.get(&path).await.expect(200);
    assert_eq!(harness["available"], true, "{harness}");
    let checked = stage.api.post(&format!("{path}/check"), json!({})).await.expect(200);
    println!("{}: {checked}", agent.name);
    assert_eq!(checked["ok"], true, "{checked}");
    assert_eq!(checked["agent_version"], harness["version"], "{checked} {harness}");
    // What has ended is reaped at the next look.
    let no_child = || processes::children_of(stage.server.pid()).is_empty();
    processes::eventually("nothing of the agent is left", no_child).await;
}

pub async fn an_approved_command_runs_and_a_denied_one_does_not(agent: &'static Agent) {
    let stage = Stage::set(agent).await;
    let session = stage.session("heron").await;
    let approval = stage.asked_to_run(&session, "echo made > made.txt").await;
    assert!(!stage.file(&session, "made.txt").exists(), "nothing runs before it is approved");
    stage.api.decide(&approval, "approve").await.expect(200);
    let turn = stage.ended(&session).await;
    assert_eq!(turn["status"], "completed", "{turn}");
    assert!(turn["text"].as_str().unwrap().contains("DONE"), "{turn}");
    stage.until_written(&session, "made.txt", "made\n").await;

    let approval = stage.asked_to_run(&session, "echo bad > denied.txt").await;
    stage.api.decide(&approval, "deny").await.expect(200);
    // Agents end a turn that was refused something in three different ways; none of them is a cancel or a failure.
    let turn = stage.ended(&session).await;
    assert_eq!(turn["status"], "completed", "{turn}");
    assert!(!stage.file(&session, "denied.txt").exists());
    stage.remembers(&session, "heron").await;
    assert!(!stage.file(&session, "denied.txt").exists());
    let shown = [stage.api.events(&session).await.into(), stage.api.session(&session).await];
    assert!(!Value::from(shown.to_vec()).to_string().contains(KEY));
}

pub async fn a_turn_is_cancelled_while_it_speaks_and_the_session_goes_on(agent: &'static Agent) {
    let stage = Stage::set(agent).await;
    let session = stage.session("heron").await;
    stage.speaking(&session).await;
    stage.api.post(&format!("/v1/sessions/{session}/cancel"), json!({})).await.expect(200);
    let turn = stage.ended(&session).await;
    assert_eq!(turn["status"], "cancelled", "{turn}");
    let next = stage.api.prompt(&session, "Are you there?").await;
    println!("{}: the turn after a cancel: {} {:?}", agent.name, next["status"], next["text"]);
    assert_eq!(next["status"], "completed", "{next}");
    assert!(next["text"].as_str().unwrap().contains("Are you there?"), "{next}");
    stage.remembers(&session, "heron").await;
}

pub async fn when_the_agent_is_killed_the_turn_fails_at_once_and_the_next_one_remembers(
    agent: &'static Agent,
) {
    let stage = Stage::set(agent).await;
    let session = stage.session("heron").await;
    stage.speaking(&session).await;
    let [started] = processes::children_of(stage.server.pid()).try_into().expect("one agent");
    let killed = Instant::now();
    processes::kill(started);
    let turn = stage.ended(&session).await;
    let took = killed.elapsed();
    println!("{}: the turn of a killed agent ended after {took:?}", agent.name);
    assert_eq!(turn["status"], "failed", "{turn}");
    assert_eq!(turn["error"]["code"], "agent_exited", "{turn}");
    assert_soon(took, Duration::from_secs(1));
    processes::eventually("nothing of the agent is left", || processes::of_agent(&session).is_empty()).await;
    let turn = stage.remembers(&session, "heron").await;
    assert_eq!(turn["rehydrated"], true, "{turn}");
    assert_eq!(stage.api.events_of(&session, "session.context_lost").await, [Value::Null; 0]);
}

pub async fn an_approval_outlives_the_service_and_takes_effect_once(agent: &'static Agent) {
    let mut stage = Stage::set(agent).await;
    let session = stage.session("heron").await;
    let approval = stage.asked_to_run(&session, "echo once >> once.txt").await;
    stage.kill_the_service().await;
    assert_eq!(stage.api.session(&session).await["status"], "awaiting_approval");
    stage.api.decide(&approval, "approve").await.expect(200);
    let turn = stage.ended(&session).await;
    let events = stage.api.events(&session).await;
    assert_eq!(turn["status"], "completed", "{events:#?}");
    let row = stage.api.get(&format!("/v1/approvals/{approval}")).await.expect(200);
    assert_eq!(
        (row["status"].as_str(), row["delivered_at"].is_string()),
        (Some("approved"), true),
        "{events:#?}"
    );
    stage.until_written(&session, "once.txt", "once\n").await;
    stage.remembers(&session, "heron").await;
    stage.until_written(&session, "once.txt", "once\n").await;
}

pub async fn two_sessions_side_by_side_do_not_mix(agent: &'static Agent) {
    let stage = Stage::set(agent).await;
    let (one, two) = tokio::join!(stage.session("heron"), stage.session("ibis"));
    let (of_one, of_two) = tokio::join!(
        stage.asked_to_run(&one, "echo one > own.txt"),
        stage.asked_to_run(&two, "echo two > own.txt"),
    );
    // Decided in the other order than asked, while both wait.
    stage.api.decide(&of_two, "approve").await.expect(200);
    assert_eq!(stage.ended(&two).await["status"], "completed");
    assert_eq!(stage.api.session(&one).await["status"], "awaiting_approval");
    stage.api.decide(&of_one, "approve").await.expect(200);
    assert_eq!(stage.ended(&one).await["status"], "completed");
    stage.until_written(&one, "own.txt", "one\n").await;
    stage.until_written(&two, "own.txt", "two\n").await;
    tokio::join!(stage.remembers(&one, "heron"), stage.remembers(&two, "ibis"));
}

pub async fn twenty_turns_in_one_session(agent: &'static Agent) {
    let stage = Stage::set(agent).await;
    let session = stage.session("word1").await;
    for number in 2..=19 {
        let turn = stage.api.prompt(&session, &format!("CODEWORD=word{number}")).await;
        assert_eq!(turn["status"], "completed", "{number}: {turn}");
        assert!(turn["text"].as_str().unwrap().contains(&format!("word{number})")), "{number}: {turn}");
    }
    let turn = stage.remembers(&session, "word19").await;
    assert_eq!((turn["ordinal"].as_i64(), turn["rehydrated"].as_bool()), (Some(20), Some(false)));
    assert_eq!(stage.api.events_of(&session, "turn.completed").await.len(), 20);
}

pub async fn nothing_is_left_of_a_killed_service_or_of_a_stopped_session(agent: &'static Agent) {
    let mut stage = Stage::set(agent).await;
    let session = stage.session("heron").await;
    let tool = stage.tool_at_work(&session).await;
    let before = processes::of_agent(&session);
    assert!(!before.is_empty());
    stage.kill_the_service().await;
    // Two on one conversation would write over each other.
    assert_eq!(processes::of_agent(&session), NONE, "left of the killed service: {before:?}");
    assert!(!processes::is_alive(tool));
    assert_eq!(stage.ended(&session).await["status"], "interrupted");
    let turn = stage.remembers(&session, "heron").await;
    assert_eq!(turn["rehydrated"], true, "{turn}");

    let tool = stage.tool_at_work(&session).await;
    stage.api.post(&format!("/v1/sessions/{session}/stop"), json!({})).await.expect(200);
    assert_eq!(processes::of_agent(&session), NONE, "left after the stop");
    assert!(!processes::is_alive(tool));
}

pub async fn it_goes_on_from_another_disk_and_remembers(agent: &'static Agent) {
    let (disks, _model) = stage::disks(agent).await;
    let a = disks.start("a").await;
    let body = json!({"harness": agent.name, "prompt": "CODEWORD=heron"});
    let created = a.api().post_and_wait("/v1/sessions", body).await.expect(201);
    assert_eq!(created["turn"]["status"], "completed", "{created}");
    let session = created["id"].as_str().unwrap();
    assert!(disks.stored(session).await.is_some());
    a.kill().await;
    disks.lose("a").await;
    let b = disks.start("b").await;
    for (word, next) in [("heron", "CODEWORD=ibis"), ("ibis", "CODEWORD=kite")] {
        let turn = b.api().prompt(session, "RECALL").await;
        assert!(turn["text"].as_str().unwrap().contains(&format!("RECALLED({word})")), "{turn}");
        assert_eq!(b.api().prompt(session, next).await["status"], "completed");
        println!("{}: {} bytes stored", agent.name, disks.size(session).await);
    }
    assert!(b.terminate().await.success());
    let a = disks.start("a").await;
    let turn = a.api().prompt(session, "RECALL").await;
    assert!(turn["text"].as_str().unwrap().contains("RECALLED(kite)"), "{turn}");
    assert_eq!(a.api().events_of(session, "session.context_lost").await, [Value::Null; 0]);
    assert!(a.terminate().await.success());
}
