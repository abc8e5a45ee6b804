//! A commit whose answer is lost while it is still under way.

use crate::support::fleet::Fleet;
use crate::support::postgres::{Cluster, Database};
use crate::support::proxy::Proxy;
use crate::support::within;

/// The commit is held up where it is, as by a slow disk: it waits for a standby that is not there.
#[tokio::test]
async fn a_commit_that_is_still_under_way_when_its_connection_is_lost_is_neither_lost_nor_doubled() {
    let cluster = Cluster::start().await;
    let database = cluster.database().await;
    let proxy = Proxy::start(&cluster);
    let url = proxy.url(&database);
    let fleet = Fleet::on_database(database, 1)
        .with(&["--replica-ttl-seconds", "30"])
        .with_url_of(0, &url)
        .start()
        .await;
    let api = fleet.api(0);
    let session = api.create_detached("/tokens 600 200").await["id"].as_str().unwrap().to_owned();
    let database = fleet.home().postgres().unwrap();
    for _ in 0..3 {
        let after = api.session(&session).await["last_event_seq"].as_i64().unwrap();
        hold_commits(database, "'nobody'").await;
        until_commits_wait(database, true).await;
        proxy.reset_once().await;
        // The service has asked what became of the commit, and goes on, when another one waits or none does.
        hold_commits(database, "''").await;
        until_commits_wait(database, false).await;
        api.follow(&session, &format!("?after={after}")).await.until("text.delta").await;
    }
    let row = api.until_status(&session, "idle").await;
    assert_eq!(row["turn"]["status"], "completed", "{row}");
    let words: String = api
        .events_of(&session, "text.delta")
        .await
        .iter()
        .map(|data| data["text"].as_str().unwrap())
        .collect();
    let words: Vec<&str> = words.split_whitespace().collect();
    let expected: Vec<String> = (1..=600).map(|n| format!("w{n}")).collect();
    assert_eq!(words, expected);
}

async fn hold_commits(database: &Database, standby: &str) {
    database.execute(&format!("ALTER SYSTEM SET synchronous_standby_names = {standby}")).await;
    database.execute("SELECT pg_reload_conf()").await;
}

async fn until_commits_wait(database: &Database, wanted: bool) {
    let mut connection = database.connect().await;
    within("commits to wait, or not", async {
        loop {
            let question = "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
            let waiting: i64 = sqlx::query_scalar(question).fetch_one(&mut connection).await.unwrap();
            if (waiting > 0) == wanted {
                return;
            }
        }
    })
    .await;
}
