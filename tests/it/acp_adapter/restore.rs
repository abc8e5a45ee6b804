//! A conversation in a later process.

use ostler::domain::turn::Failure;
use ostler::harness::{Continuity, StartError};
use serde_json::json;

use super::rig::{Agent, Rig};

async fn remembering(rig: &Rig) -> (Agent, serde_json::Value) {
    let mut agent = rig.start().await;
    assert_eq!(agent.continuity, Continuity::New);
    agent.turn("remember zebra").await;
    let state = agent.session.detach().await.unwrap().unwrap();
    (agent, state)
}

fn code(error: &StartError) -> &str {
    let StartError::Failed(Failure { code, .. }) = error else { panic!("{error:?}") };
    code
}

#[tokio::test]
async fn row_83_a_conversation_is_taken_up_with_its_id_and_its_memory() {
    for flag in ["--resume", "--load"] {
        let rig = Rig::new(&["script", flag]);
        let (agent, state) = remembering(&rig).await;
        agent.stop().await;
        let mut again = rig.take_up(Some(state)).await;
        assert_eq!(
            (&again.continuity, &again.native_id),
            (&Continuity::Restored, &agent.native_id),
            "{flag}"
        );
        // Nothing of the replay comes through, neither before the turn nor in it.
        let turn = again.turn("recall").await;
        assert_eq!((turn.text().as_str(), turn.outputs.len()), ("zebra", 1), "{flag}");
        again.stop().await;
    }
}

#[tokio::test]
async fn a_conversation_survives_a_process_that_was_killed() {
    let rig = Rig::new(&["script"]);
    let (agent, state) = remembering(&rig).await;
    drop(agent);
    let mut again = rig.take_up(Some(state)).await;
    assert_eq!(again.turn("recall").await.text(), "zebra");
    again.stop().await;
}

#[tokio::test]
async fn row_83_an_unknown_conversation_is_lost_and_a_new_one_begins() {
    for flag in ["--resume", "--load"] {
        let rig = Rig::new(&["script", flag]);
        let state = json!({"session_id": "s-unknown", "cwd": rig.workspace.path()});
        let mut agent = rig.take_up(Some(state)).await;
        assert_eq!(agent.continuity, Continuity::Lost { reason: "Session not found".to_owned() });
        assert_ne!(agent.native_id, "s-unknown");
        assert_eq!(agent.turn("recall").await.text(), "NOTHING");
        agent.stop().await;
    }
}

#[tokio::test]
async fn an_agent_that_cannot_take_up_says_so() {
    let rig = Rig::new(&["script", "--no-restore"]);
    let (agent, state) = remembering(&rig).await;
    agent.stop().await;
    let mut again = rig.take_up(Some(state)).await;
    assert!(matches!(&again.continuity, Continuity::Lost { reason } if reason.contains("cannot take")));
    assert_eq!(again.turn("recall").await.text(), "NOTHING");
    again.stop().await;
    let stranger = rig.take_up(Some(json!(["not", "ours"]))).await;
    assert!(matches!(stranger.continuity, Continuity::Lost { .. }));
    stranger.stop().await;
}

#[tokio::test]
async fn row_83_missing_credentials_are_told_and_lose_nothing() {
    let rig = Rig::new(&["script"]);
    let (agent, state) = remembering(&rig).await;
    agent.stop().await;
    let rig = rig.command(&["script", "--auth-on-restore"]);
    let error = rig.start_error(Some(state.clone())).await;
    assert_eq!(code(&error), "agent_resume_failed");
    assert!(error.to_string().contains("Authentication required"), "{error}");
    rig.assert_nothing_runs();
    let rig = rig.command(&["script"]);
    let mut again = rig.take_up(Some(state)).await;
    assert_eq!(again.turn("recall").await.text(), "zebra");
    again.stop().await;
}

#[tokio::test]
async fn an_agent_that_wants_credentials_gets_the_method_that_is_configured() {
    let rig = Rig::new(&["script", "--auth"]);
    let error = rig.start_error(None).await;
    assert_eq!(code(&error), "agent_start_failed");
    assert!(error.to_string().contains("credentials"), "{error}");
    let rig = rig.config("authenticate = \"key\"\n");
    rig.start().await.stop().await;
}

#[tokio::test]
async fn the_requests_after_new_are_sent_after_each_restore_too() {
    let after = "after_new = [{ method = \"session/set_mode\", params = { modeId = \"ask\" } }]\n";
    let without = Rig::new(&["script", "--mode"]);
    let mut agent = without.start().await;
    assert!(matches!(agent.turn("say x").await.outcome, ostler::harness::TurnOutcome::Failed(_)));
    agent.stop().await;
    let rig = without.config(after);
    let mut agent = rig.start().await;
    assert_eq!(agent.turn("say set").await.text(), "set");
    let state = agent.session.detach().await.unwrap();
    agent.stop().await;
    let mut agent = rig.take_up(state).await;
    assert_eq!(agent.turn("say set").await.text(), "set");
    agent.stop().await;
    let refusing = rig.command(&["script", "--no-mode"]).config(after);
    let error = refusing.start_error(None).await;
    assert_eq!(code(&error), "agent_start_failed");
    assert!(error.to_string().contains("session/set_mode"), "{error}");
    refusing.assert_nothing_runs();
}
