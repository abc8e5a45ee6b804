//! Connections that nobody answers on any more: they cost those who use them a moment, and nobody else anything.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;

use super::{LONG, SHORT, far, follow_through, id, lasts, until_well, words};
use crate::support::fleet::Fleet;
use crate::support::{assert_soon, within};

/// More than there are connections for reading.
const READS: usize = 40;

#[tokio::test]
async fn reads_that_hang_and_are_given_up_leave_the_pool_as_it_was() {
    let (fleet, proxy) = far(Fleet::of(1).with(LONG)).await;
    let api = fleet.api(0);
    let session = id(&api.create("/say x").await);
    let path = format!("/v1/sessions/{session}");
    let database = fleet.home().postgres().unwrap();
    let mut thief = database.connect().await;
    let lock = "BEGIN; LOCK TABLE agent_harness_sessions IN ACCESS EXCLUSIVE MODE";
    sqlx::raw_sql(lock).execute(&mut thief).await.unwrap();
    // Each of the pool's connections is lent, and asks.
    let reads = (0..READS).map(|_| tokio::spawn(api.request(Method::GET, &path).send())).collect::<Vec<_>>();
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let mut beside = database.connect().await;
    within("the reads to wait", async {
        while sqlx::query_scalar::<_, i64>(waiting).fetch_one(&mut beside).await.unwrap() < 16 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    proxy.half_open().await;
    reads.iter().for_each(|read| read.abort());
    lasts(Duration::from_secs(1)).await;
    sqlx::raw_sql("ROLLBACK").execute(&mut thief).await.unwrap();
    // What hangs now hangs for ever; who comes now is answered.
    proxy.strand().await;
    let begun = Instant::now();
    let answers = futures_util::future::join_all((0..READS).map(|_| api.get(&path))).await;
    let took = begun.elapsed();
    println!("{READS} reads after a silence: {took:?}");
    for answer in answers {
        answer.expect(200);
    }
    assert_soon(took, Duration::from_secs(8));
}

#[tokio::test]
async fn a_replica_whose_connections_are_all_stranded_stays_a_member_and_works_again() {
    let (fleet, proxy) = far(Fleet::of(1).with(SHORT)).await;
    let api = fleet.api(0);
    let session = id(&api.create("/say x").await);
    proxy.half_open().await;
    lasts(Duration::from_millis(700)).await;
    proxy.strand().await;
    let took = until_well(&api).await;
    println!("well {took:?} after all connections were stranded");
    // It renews: nobody joins anew from now on.
    let members = || async {
        let database = fleet.home().postgres().unwrap();
        let ids = "SELECT id FROM replicas WHERE draining = 0 ORDER BY started_at DESC LIMIT 1";
        sqlx::query_scalar::<_, String>(ids).fetch_one(&mut database.connect().await).await.unwrap()
    };
    let member = members().await;
    lasts(Duration::from_secs(3)).await;
    assert_eq!(members().await, member, "it lost its membership though the database answers");
    assert_eq!(api.prompt(&session, "/say y").await["text"], "y");
}

#[tokio::test]
async fn who_follows_a_session_hears_of_what_another_replica_did_though_all_connections_are_stranded() {
    let (fleet, proxy) = far(Fleet::of(2).with(LONG)).await;
    let (far, near) = (fleet.api(0), fleet.api(1));
    let session = id(&near.create("/say x").await);
    let mut begun = far.follow(&session, "").await;
    let reader = tokio::spawn(follow_through(far, session.clone(), 2));
    begun.until("turn.completed").await;
    proxy.strand().await;
    near.post(&format!("/v1/sessions/{session}/prompts"), json!({"prompt": "/say y"})).await.expect(202);
    let shown = within("the second turn", reader).await.unwrap();
    assert_eq!(words(shown.iter().map(|frame| &frame.data)), "xy");
}
