//! An agent's memory goes with its session: from one disk to another by way of the database, sealed, and only where it has to.
//!
//! The agent is the fake one, which keeps its words in `fake-sessions/` of its home. The real ones have their stories in
//! `real_agents`.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::api::Api;
use crate::support::disks::Disks;
use crate::support::fake_agent::{harness, id};
use crate::support::processes;
use crate::support::server::Home;
use crate::support::within;

/// Between two looks at the database.
const PAUSE: Duration = Duration::from_millis(20);

/// A home with the fake agent, whose files travel.
fn with_agent(home: Home) -> Home {
    home.with_config(&(harness("fake", &["script"]) + "state_paths = [\"fake-sessions\"]\n"))
}

fn disks() -> Disks {
    Disks::of(with_agent(Home::on_postgres()))
}

/// What the agent of a session keeps on a disk.
fn kept(disks: &Disks, name: &str, session: &str) -> std::path::PathBuf {
    disks.disk(name).join("agents").join(session).join("fake-sessions")
}

/// A session of the agent whose first turn has ended, or asks.
async fn create(api: &Api, script: &str) -> String {
    let answer = api.post_and_wait("/v1/sessions", json!({"harness": "fake", "prompt": script})).await;
    assert!(matches!(answer.status, 201 | 202), "{}", answer.text);
    id(&answer.json())
}

async fn recalled(api: &Api, session: &str) -> String {
    let turn = api.prompt(session, "recall").await;
    assert_eq!(turn["status"], "completed", "{turn}");
    turn["text"].as_str().unwrap().to_owned()
}

/// A turn that fails because its agent does not start: why it does not.
async fn start_failure(api: &Api, session: &str) -> Value {
    let path = format!("/v1/sessions/{session}/prompts");
    api.post_and_wait(&path, json!({"prompt": "recall"})).await;
    let row = api.session(session).await;
    assert_eq!((&row["status"], &row["turn"]["status"]), (&json!("errored"), &json!("failed")), "{row}");
    row["turn"]["error"].clone()
}

/// The session's log says it, so often.
async fn assert_told(api: &Api, session: &str, words: &str, times: usize) {
    let told = api.events_of(session, "activity").await;
    let found = told.iter().filter(|event| event["label"].as_str().unwrap().contains(words)).count();
    assert_eq!(found, times, "{words:?} in {told:#?}");
}

async fn assert_never_lost(api: &Api, session: &str) {
    assert_eq!(api.events_of(session, "session.context_lost").await, Vec::<Value>::new());
}

#[tokio::test]
async fn what_an_agent_remembers_is_known_on_another_disk_after_its_own_was_lost() {
    let disks = disks();
    let a = disks.start("a").await;
    let session = create(&a.api(), "remember zebra").await;
    let workspace = a.api().session(&session).await["workspace"].clone();
    // As a machine that is lost: nothing is put away, nothing is left.
    a.kill().await;
    disks.lose("a").await;
    let b = disks.start("b").await;
    let api = b.api();
    assert_eq!(recalled(&api, &session).await, "zebra");
    assert_eq!(api.events_of(&session, "session.rehydrated").await, [json!({"exact": false})]);
    assert_never_lost(&api, &session).await;
    assert_told(&api, &session, "memory was put in place as it was stored at 20", 1).await;
    // Agents look a conversation up by the directory that it was held in.
    assert_eq!(api.session(&session).await["workspace"], workspace);
    assert!(Path::new(workspace.as_str().unwrap()).is_dir());
    assert_told(&api, &session, "workspace is not on this disk", 1).await;
    assert_eq!(recalled(&api, &session).await, "zebra");
    assert_told(&api, &session, "on this disk", 1).await;
}

#[tokio::test]
async fn a_disk_that_missed_turns_is_brought_up_to_date_and_one_that_did_not_is_left_alone() {
    let disks = disks();
    let a = disks.start("a").await;
    let session = create(&a.api(), "remember one").await;
    assert!(a.terminate().await.success());
    let b = disks.start("b").await;
    b.api().prompt(&session, "remember two").await;
    assert!(b.terminate().await.success());
    let a = disks.start("a").await;
    assert_eq!(recalled(&a.api(), &session).await, "two");
    assert_told(&a.api(), &session, "memory was put in place", 2).await;
    assert!(a.terminate().await.success());
    let a = disks.start("a").await;
    assert_eq!(recalled(&a.api(), &session).await, "two");
    assert_told(&a.api(), &session, "memory was put in place", 2).await;
    assert_never_lost(&a.api(), &session).await;
}

#[tokio::test]
async fn a_turn_that_was_cut_short_leaves_its_newer_files_where_they_are() {
    let home = with_agent(Home::new());
    let server = home.start().await;
    let session = create(&server.api(), "remember one").await;
    let path = format!("/v1/sessions/{session}/prompts");
    server.api().post(&path, json!({"prompt": "remember two\nsay x\nhang"})).await.expect(202);
    server.api().follow(&session, "").await.until("text.delta").await;
    server.kill().await;
    let server = home.start().await;
    assert_eq!(server.api().until_status(&session, "idle").await["turn"]["status"], "interrupted");
    assert_eq!(recalled(&server.api(), &session).await, "two");
    assert_told(&server.api(), &session, "put in place", 0).await;
}

#[tokio::test]
async fn a_data_directory_that_has_lost_its_agents_has_their_memory_from_the_database() {
    let home = with_agent(Home::on_sqlite());
    let server = home.start().await;
    let session = create(&server.api(), "remember zebra").await;
    server.kill().await;
    processes::ended_with_home_below(home.path()).await;
    std::fs::remove_dir_all(home.path().join("agents")).unwrap();
    let server = home.start().await;
    assert_eq!(recalled(&server.api(), &session).await, "zebra");
    assert_never_lost(&server.api(), &session).await;
}

#[tokio::test]
async fn what_an_agent_knew_when_it_asked_is_known_though_its_machine_is_lost_before_the_answer() {
    let disks = disks();
    let a = disks.start("a").await;
    let session = create(&a.api(), "remember owl\nrun make").await;
    assert_eq!(a.api().session(&session).await["status"], "awaiting_approval");
    // The client hears of the question before the files are stored, and does not wait for that.
    let stored = Box::pin(async {
        while disks.stored(&session).await.is_none() {
            tokio::time::sleep(PAUSE).await;
        }
    });
    within("the files to be stored", stored).await;
    a.kill().await;
    disks.lose("a").await;
    let b = disks.start("b").await;
    b.api().post(&format!("/v1/sessions/{session}/cancel"), json!({})).await;
    b.api().until_status(&session, "idle").await;
    assert_eq!(recalled(&b.api(), &session).await, "owl");
}

#[tokio::test]
async fn files_are_stored_when_they_have_changed_and_erased_with_the_session() {
    let disks = disks();
    let a = disks.start("a").await;
    let session = create(&a.api(), "say x").await;
    let first = disks.stored(&session).await.unwrap();
    for script in ["say y", "recall"] {
        a.api().prompt(&session, script).await;
        assert_eq!(disks.stored(&session).await.as_ref(), Some(&first), "nothing has changed");
    }
    a.api().prompt(&session, "remember zebra").await;
    let second = disks.stored(&session).await.unwrap();
    assert!(second.0 != first.0 && second.1 > first.1);
    a.api().post(&format!("/v1/sessions/{session}/stop"), json!({})).await.expect(200);
    assert_eq!(disks.stored(&session).await, Some(second), "nothing has changed since");
    a.api().delete(&format!("/v1/sessions/{session}")).await.expect(204);
    assert_eq!(disks.stored(&session).await, None);
    assert!(!kept(&disks, "a", &session).exists());
}

#[tokio::test]
async fn what_an_agent_writes_down_after_it_has_told_the_end_of_its_turn_is_stored_too() {
    let disks = disks();
    let a = disks.start("a").await;
    let session = create(&a.api(), "remember one").await;
    let before = disks.stored(&session).await.unwrap();
    a.api().prompt(&session, "late two").await;
    let stored = Box::pin(async {
        while disks.stored(&session).await.is_none_or(|(digest, _)| digest == before.0) {
            tokio::time::sleep(PAUSE).await;
        }
    });
    within("the files to be stored", stored).await;
    a.kill().await;
    disks.lose("a").await;
    let b = disks.start("b").await;
    assert_eq!(recalled(&b.api(), &session).await, "two");
}

#[tokio::test]
async fn the_last_words_of_an_agent_that_is_put_away_are_stored() {
    let disks = disks();
    let a = disks.start("a").await;
    let session = create(&a.api(), "remember one").await;
    let before = disks.stored(&session).await;
    // As if it wrote as it went.
    std::fs::write(kept(&disks, "a", &session).join("late"), "words").unwrap();
    a.api().post(&format!("/v1/sessions/{session}/stop"), json!({})).await.expect(200);
    assert_ne!(disks.stored(&session).await, before);
    assert!(a.terminate().await.success());
    let b = disks.start("b").await;
    assert_eq!(recalled(&b.api(), &session).await, "one");
    assert_eq!(std::fs::read_to_string(kept(&disks, "b", &session).join("late")).unwrap(), "words");
}

#[tokio::test]
async fn a_memory_that_is_too_large_is_told_once_and_works_where_it_is() {
    let disks = disks();
    let a = disks.start("a").await;
    let session = create(&a.api(), "remember one").await;
    let before = disks.stored(&session).await;
    let large = kept(&disks, "a", &session).join("large");
    std::fs::File::create(&large).unwrap().set_len(65 << 20).unwrap();
    for word in ["two", "three"] {
        a.api().prompt(&session, &format!("remember {word}")).await;
        assert_told(&a.api(), &session, "memory was not stored: its files are more than 64 MiB", 1).await;
    }
    assert_eq!(disks.stored(&session).await, before, "what was stored before stays");
    assert!(a.terminate().await.success());
    let a = disks.start("a").await;
    assert_eq!(recalled(&a.api(), &session).await, "three", "the disk is newer and is left alone");
    std::fs::remove_file(&large).unwrap();
    a.api().prompt(&session, "say x").await;
    assert_ne!(disks.stored(&session).await, before);
    assert!(a.terminate().await.success());
    let b = disks.start("b").await;
    assert_eq!(recalled(&b.api(), &session).await, "three");
}

#[tokio::test]
async fn f31_a_memory_that_cannot_be_opened_fails_the_start_and_stays_as_it_is() {
    let disks = disks();
    let a = disks.start("a").await;
    let (session, other) = (create(&a.api(), "remember one").await, create(&a.api(), "remember other").await);
    let stored = disks.stored(&session).await;
    assert!(a.terminate().await.success());
    let flip = format!(
        "UPDATE agent_files SET content = set_byte(content, 40, get_byte(content, 40) # 1)
         WHERE session_key = (SELECT session_key FROM agent_harness_sessions WHERE id = '{session}')"
    );
    disks.home.tamper(&flip).await;
    let b = disks.start("b").await;
    for _ in 0..2 {
        assert_eq!(start_failure(&b.api(), &session).await["code"], "agent_resume_failed");
    }
    assert_eq!(recalled(&b.api(), &other).await, "other");
    assert_eq!(disks.stored(&session).await, stored, "it is kept");
    disks.home.tamper(&flip).await;
    assert_eq!(recalled(&b.api(), &session).await, "one", "and is good once it can be opened");
    assert_never_lost(&b.api(), &session).await;
}

#[tokio::test]
async fn f31_a_resume_state_that_cannot_be_opened_fails_the_start() {
    let home = with_agent(Home::on_sqlite());
    let server = home.start().await;
    let session = create(&server.api(), "remember one").await;
    assert!(server.terminate().await.success());
    home.tamper("UPDATE agent_harness_sessions SET resume_state = x'01'").await;
    let server = home.start().await;
    assert_eq!(start_failure(&server.api(), &session).await["code"], "agent_resume_failed");
}

#[tokio::test]
async fn a_chosen_workspace_that_is_not_there_fails_the_start_in_clear_words_and_is_not_made() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path().canonicalize().unwrap();
    let home = with_agent(Home::new()).with(&["--workspace-root", root.to_str().unwrap()]);
    let server = home.start().await;
    let api = server.api();
    let project = root.join("project");
    std::fs::create_dir(&project).unwrap();
    let body = json!({"harness": "fake", "prompt": "remember one", "workspace": project});
    let session = id(&api.post_and_wait("/v1/sessions", body).await.expect(201));
    api.post(&format!("/v1/sessions/{session}/stop"), json!({})).await.expect(200);
    std::fs::rename(&project, root.join("elsewhere")).unwrap();
    let failure = start_failure(&api, &session).await;
    assert_eq!(failure["code"], "workspace_unavailable");
    assert!(failure["message"].as_str().unwrap().contains("project"), "{failure}");
    assert!(!project.exists());
    std::fs::rename(root.join("elsewhere"), &project).unwrap();
    assert_eq!(recalled(&api, &session).await, "one");
}
