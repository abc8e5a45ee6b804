//! Several replicas on one database: what one of them suffers is not what the others suffer.

use serde_json::json;

use crate::support::api::Api;
use crate::support::fleet::Fleet;
use crate::support::postgres::{Cluster, shared};
use crate::support::proxy::Proxy;
use crate::support::within;

const TTL: &[&str] = &["--replica-ttl-seconds", "2"];

async fn create(api: &Api) -> String {
    api.create("/say x").await["id"].as_str().unwrap().to_owned()
}

/// Creates a session as soon as the replica can.
async fn create_again(api: &Api) {
    within("the database to be usable again", async {
        loop {
            let answer = api.post("/v1/sessions", json!({"harness": "demo"})).await;
            match answer.status {
                201 => return,
                _ => answer.problem(503, "storage_unavailable"),
            };
        }
    })
    .await;
}

#[tokio::test]
async fn what_any_replica_took_every_replica_knows() {
    let fleet = Fleet::start(3).await;
    for _ in 0..6 {
        let session = create(&fleet.api(fleet.any())).await;
        for i in 0..fleet.len() {
            assert_eq!(fleet.api(i).session(&session).await["status"], "idle");
        }
    }
}

#[tokio::test]
async fn a_replica_that_went_away_comes_back_to_its_place_and_the_others_go_on_meanwhile() {
    let mut fleet = Fleet::of(2).with(TTL).start().await;
    let url = fleet.replica(0).url.clone();
    fleet.kill(0).await;
    let session = create(&fleet.api(fleet.any())).await;
    fleet.restart(0).await;
    assert_eq!(fleet.replica(0).url, url);
    assert!(fleet.terminate(1).await.success());
    assert_eq!(fleet.api(fleet.any()).prompt(&session, "/say y").await["text"], "y");
    assert_eq!(fleet.home().effects(&session, "prompt"), 2);
    fleet.restart_with_fault(1, "create.committed").await;
    let dying = fleet.api(1).request(reqwest::Method::POST, "/v1/sessions").json(&json!({"harness": "demo"}));
    assert!(within("its end", dying.send()).await.is_err());
    fleet.wait_dead(1).await;
}

#[tokio::test]
async fn a_replica_that_was_stopped_for_a_while_serves_again() {
    let mut fleet = Fleet::of(2).with(TTL).start().await;
    fleet.stop(0);
    let session = create(&fleet.api(fleet.any())).await;
    fleet.cont(0);
    assert_eq!(fleet.api(0).session(&session).await["status"], "idle");
}

#[tokio::test]
async fn a_replica_that_cannot_reach_the_database_says_so_and_recovers_and_the_others_do_not_notice() {
    let plan = Fleet::of(2).with(TTL).with_variable("OSTLER_HINTS", "off");
    let proxy = Proxy::start(shared().await);
    let url = proxy.url(plan.database());
    let fleet = plan.with_url_of(1, &url).start().await;
    create(&fleet.api(1)).await;
    proxy.cut().await;
    let refused = fleet.api(1).post("/v1/sessions", json!({"harness": "demo"})).await;
    refused.problem(503, "storage_unavailable");
    create(&fleet.api(0)).await;
    proxy.pass().await;
    create_again(&fleet.api(1)).await;
}

#[tokio::test]
async fn when_the_database_was_killed_every_replica_goes_on_after_it_came_back() {
    let cluster = Cluster::start().await;
    let fleet = Fleet::on_database(cluster.database().await, 2).with(TTL).start().await;
    let session = create(&fleet.api(0)).await;
    cluster.kill().await;
    fleet.api(1).post("/v1/sessions", json!({"harness": "demo"})).await.problem(503, "storage_unavailable");
    cluster.start_again().await;
    for i in 0..fleet.len() {
        create_again(&fleet.api(i)).await;
        assert_eq!(fleet.api(i).session(&session).await["status"], "idle");
    }
}
