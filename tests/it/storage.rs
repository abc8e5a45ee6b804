//! A database that cannot be used for a while: clear errors, nothing lost, and everything goes on afterwards.

use serde_json::{Value, json};
use sqlx::Connection as _;

use crate::support::server::Home;

fn id(value: &Value) -> String {
    value["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn f15_and_f54_while_the_database_is_locked_writes_are_refused_and_a_turn_at_work_loses_nothing() {
    let home = Home::on_sqlite();
    let server = home.start().await;
    let api = server.api();
    let session = id(&api.create_detached("/tokens 400 50\n/say done").await);
    api.follow(&session, "").await.until("text.delta").await;
    let path = home.database();
    let mut thief = sqlx::SqliteConnection::connect(path.to_str().unwrap()).await.unwrap();
    sqlx::query("BEGIN IMMEDIATE").execute(&mut thief).await.unwrap();
    // Longer than the driver waits for a lock.
    let refused = api.post("/v1/sessions", json!({"harness": "demo"})).await;
    let problem = refused.problem(503, "storage_unavailable");
    assert_eq!(problem["retryable"], true);
    assert!(refused.header("retry-after").is_some());
    // Reading goes on.
    assert_eq!(api.session(&session).await["status"], "running");
    sqlx::query("ROLLBACK").execute(&mut thief).await.unwrap();
    api.post("/v1/sessions", json!({"harness": "demo"})).await.expect(201);
    let row = api.until_status(&session, "idle").await;
    assert_eq!(row["turn"]["status"], "completed");
    let words: String = api
        .events(&session)
        .await
        .iter()
        .filter(|event| event["type"] == "text.delta")
        .map(|event| event["data"]["text"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(words.split_whitespace().count(), 401);
    let made = api.get("/v1/sessions").await.expect(200);
    assert_eq!(made["data"].as_array().unwrap().len(), 2, "the refused one was not made");
}
