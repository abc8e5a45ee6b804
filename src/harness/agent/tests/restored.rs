//! A process that is lost, and the one that goes on.

use super::*;

const SCRIPT: &str = r#"/say First.
/call write_file {"path": "a", "content": "1"}
/next
/call write_file {"path": "b", "content": "2"}
/next
/say Last."#;

/// Goes on from a stored state, and lives to the turn's end.
async fn restored(rig: Rig, state: &Value) -> (Rig, Seen) {
    let Rig { model, live } = rig;
    let mut live = live.lost_and_restored(state).await;
    assert_eq!(live.continuity, Continuity::Exact);
    let seen = live.end().await;
    (Rig { model, live }, seen)
}

#[tokio::test]
async fn from_every_state_that_is_given_away_the_turn_ends_as_it_would_have() {
    let mut whole = Rig::new(json!({})).await;
    let seen = whole.turn(SCRIPT).await;
    let states: Vec<Value> =
        seen.states.iter().flatten().filter(|state| !state["turn"].is_null()).cloned().collect();
    assert!(states.len() >= 4, "{}", states.len());
    for state in states {
        let started =
            state["turn"]["calls"].as_array().unwrap().iter().any(|call| call["phase"]["is"] == "started");
        let (mut rig, seen) = restored(Rig::new(json!({})).await, &state).await;
        if started {
            assert_eq!(seen.ended, Some(TurnOutcome::Interrupted));
            assert_eq!(seen.tools()[0].result["uncertain"], json!(true), "it is told and not run again");
            assert_eq!(rig.model.count(), 0);
            assert!(rig.turn("/say on").await.completed());
            let told = rig.last_messages();
            assert!(
                told.iter().any(|(role, words)| role == "tool" && words.contains("not known")),
                "{told:?}"
            );
        } else {
            assert!(seen.completed(), "{state}: {:?}", seen.ended);
            let said = state["turn"]["said"].as_u64().unwrap() as usize;
            let all = format!("First.{}", if words(&seen).contains("Last.") { "Last." } else { "" });
            assert!(all.starts_with("First.") && said <= "First.Last.".len());
            let made = rig.model.count() as u64;
            let answers = state["turn"]["model_calls"].as_u64().unwrap();
            assert_eq!(answers + made, 3, "no finished model call is made again");
        }
    }
}

#[tokio::test]
async fn a_question_that_waited_is_asked_again_under_its_id_and_answered_once() {
    let more = || json!({"tool_policy": {"require_approval": ["write_file"]}});
    let mut first = Rig::new(more()).await;
    first.live.prompt(SCRIPT).await;
    let seen = first.live.asked(1).await;
    let state = seen.state().clone();
    let Rig { model, live } = first;
    let mut live = live.lost_and_restored(&state).await;
    assert_eq!(live.waits_for, ["q1"]);
    assert_eq!(live.asked(1).await.asked[0].native_id, "q1");
    live.approve("q1").await;
    let seen = live.asked(1).await;
    assert_eq!(seen.asked[0].native_id, "q2");
    assert_eq!(seen.tools().len(), 1);
    live.approve("q2").await;
    let seen = live.end().await;
    assert!(seen.completed(), "{:?}", seen.ended);
    assert_eq!((live.file("a"), live.file("b")), (Some("1".into()), Some("2".into())));
    assert_eq!(model.count(), 3);
}

#[tokio::test]
async fn where_a_question_is_open_beside_an_uncertain_call_the_turn_goes_on_when_it_is_decided() {
    let more = json!({"tool_policy": {"require_approval": ["write_file"]}});
    let mut rig = Rig::new(more).await;
    rig.live
        .prompt(
            "/call list_files {}\n/call write_file {\"path\": \"a\", \"content\": \"1\"}\n/next\n/say done",
        )
        .await;
    let state = loop {
        let (state, durable) = rig.live.durable_checkpoint().await;
        if state["turn"]["calls"][0]["phase"]["is"] == "started" {
            break state;
        }
        durable.send(()).unwrap();
    };
    let Rig { model, live } = rig;
    let mut live = live.lost_and_restored(&state).await;
    let seen = live.asked(1).await;
    assert_eq!(seen.tools()[0].result["uncertain"], json!(true));
    live.approve("q1").await;
    let seen = live.end().await;
    assert!(seen.completed(), "{:?}", seen.ended);
    assert_eq!(live.file("a"), Some("1".into()));
    assert_eq!(model.count(), 2);
}

#[tokio::test]
async fn a_turn_that_the_state_does_not_know_is_begun_and_one_that_was_given_up_is_told_of() {
    let model = ChatModel::start();
    let harness = harness(&model, "", true);
    let stored = harness.validate(&settings(json!({}))).unwrap();
    let workspace = tempfile::tempdir().unwrap();
    let open = crate::harness::TurnInput {
        turn_id: crate::ids::TurnId::mint(),
        prompt: crate::domain::turn::Prompt::Text("/say begun".into()),
    };
    let options = StartOptions { open_turn: Some(open.clone()), ..rig::options(&workspace, &stored, None) };
    let mut live = Live::start_with(Arc::clone(&harness), workspace, options).await;
    assert_eq!(live.continuity, Continuity::Exact);
    assert_eq!(words(&live.end().await), "begun");

    live.prompt("/say never heard\n/hang").await;
    model.wait_for_count(2).await;
    let state = loop {
        // The hanging turn has given no state away: the last one is that of the turn before, with this one put into it.
        let mut state = live.session.detach().await.unwrap().unwrap();
        if !state["turn"].is_null() {
            state["turn"]["turn_id"] = json!(crate::ids::TurnId::mint());
            break state;
        }
    };
    let workspace = std::mem::replace(&mut live.workspace, tempfile::tempdir().unwrap());
    let options = StartOptions { open_turn: None, ..rig::options(&workspace, &stored, Some(state)) };
    let mut live = Live::start_with(harness, workspace, options).await;
    assert!(live.turn("/say on").await.completed());
    assert_eq!(model.count(), 3, "what was given up is not gone on with");
}

#[tokio::test]
async fn a_state_that_cannot_be_read_is_a_conversation_that_is_lost() {
    let model = ChatModel::start();
    let harness = harness(&model, "", true);
    let stored = harness.validate(&settings(json!({}))).unwrap();
    let live = Live::start(harness, stored, tempfile::tempdir().unwrap(), Some(json!({"version": 9}))).await;
    assert!(matches!(live.continuity, Continuity::Lost { .. }));
}

#[tokio::test]
async fn a_turn_that_takes_its_processes_with_it_is_given_up_after_some() {
    let mut rig = Rig::new(json!({})).await;
    rig.live.prompt("/say First.\n/call list_files {}\n/next\n/hang").await;
    let stored = |seen: &Seen| !seen.tools().is_empty() && seen.order.last() == Some(&"stored");
    let mut state = rig.live.read(stored).await.state().clone();
    let Rig { model, mut live } = rig;
    for lost in 1..=5 {
        live = live.lost_and_restored(&state).await;
        state = live.durable_checkpoint().await.0;
        assert_eq!(state["turn"]["stalls"], json!(lost));
    }
    let mut live = live.lost_and_restored(&state).await;
    assert_eq!(live.end().await.ended, Some(TurnOutcome::Interrupted));
    assert_eq!(live.turn("/say on").await.text(), "on");
    drop(model);
}

#[tokio::test]
async fn waiting_for_a_person_is_no_work() {
    let more = json!({"tool_policy": {"require_approval": ["write_file"]}, "execution": {"max_duration_seconds": 1}});
    let mut rig = Rig::new(more).await;
    rig.live.prompt(SCRIPT).await;
    let seen = rig.live.asked(1).await;
    let worked = |state: &Value| state["turn"]["worked_ms"].as_u64().unwrap();
    let before = worked(seen.state());
    tokio::time::pause();
    tokio::time::advance(std::time::Duration::from_secs(3600)).await;
    tokio::time::resume();
    rig.live.approve("q1").await;
    let seen = rig.live.asked(1).await;
    assert!(worked(seen.state()) < before + 1000, "{before} {}", seen.state());
    rig.live.approve("q2").await;
    assert!(rig.live.end().await.completed());
}
