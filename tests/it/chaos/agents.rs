//! Agents are processes of their own: they go on while their replica is frozen, unless somebody ends them.

use serde_json::json;

use crate::support::api::Api;
use crate::support::fleet::Fleet;
use crate::support::processes::{eventually, of_agent};
use crate::support::server::Home;

const TTL: &[&str] = &["--replica-ttl-seconds", "2"];

async fn fleet() -> Fleet {
    let command = [env!("CARGO_BIN_EXE_fake-acp-agent"), "script"];
    let config = format!("[harness.fake]\nkind = \"acp\"\ncommand = {command:?}\n");
    Fleet::on_home(Home::on_postgres().with_config(&config), 2).with(TTL).start().await
}

async fn hanging(api: &Api) -> String {
    let session =
        api.post("/v1/sessions", json!({"harness": "fake", "prompt": "say on\nhang"})).await.expect(201);
    let session = session["id"].as_str().unwrap().to_owned();
    api.follow(&session, "").await.until("text.delta").await;
    session
}

#[tokio::test]
async fn f38_a_frozen_replicas_agent_is_ended_by_the_one_that_takes_over_and_never_are_there_two() {
    let mut fleet = fleet().await;
    let session = hanging(&fleet.api(0)).await;
    let old = of_agent(&session);
    assert_eq!(old.len(), 1);
    fleet.stop(0);
    let api = fleet.api(1);
    api.follow(&session, "").await.until("turn.interrupted").await;
    assert_eq!(of_agent(&session), [] as [u32; 0], "it was ended before anybody was told that its turn was");
    assert_eq!(api.prompt(&session, "say again").await["status"], "completed");
    let new = of_agent(&session);
    assert!(new.len() == 1 && new != old);
    fleet.cont(0);
    let ready = fleet.api(0).anonymous();
    crate::support::within("the frozen one to join anew", async {
        while ready.get("/readyz").await.status != 200 {}
    })
    .await;
    assert_eq!(of_agent(&session), new, "the one that was frozen leaves the other's agent alone");
    assert_eq!(fleet.api(0).prompt(&session, "say more").await["status"], "completed");
}

#[tokio::test]
async fn f38_a_killed_replicas_agents_are_ended_before_its_sessions_go_on() {
    let mut fleet = fleet().await;
    let session = hanging(&fleet.api(0)).await;
    fleet.kill(0).await;
    let api = fleet.api(1);
    api.follow(&session, "").await.until("turn.interrupted").await;
    assert_eq!(of_agent(&session), [] as [u32; 0]);
    assert_eq!(api.prompt(&session, "say again").await["status"], "completed");
    assert_eq!(of_agent(&session).len(), 1);
    assert!(fleet.terminate(1).await.success());
    eventually("the agent to end with its replica", || of_agent(&session).is_empty()).await;
}
