//! The driver's cancelled BEGIN: its connection goes back to the pool inside a transaction of which nobody knows, and what the next
//! borrower writes is acknowledged and never kept. The service's pools find such a connection before it is lent.

use std::collections::BTreeSet;
use std::time::Duration;

use ostler::store::guarded;
use sqlx::postgres::PgPoolOptions;
use sqlx::{PgConnection, PgPool};

use crate::support::postgres::{Database, shared};
use crate::support::processes::eventually;
use crate::support::proxy::Proxy;
use crate::support::within;

const BEGINS: u64 = 300;

/// What came of a storm of cancelled BEGINs.
#[derive(Debug)]
struct Storm {
    /// Rows whose INSERT was answered with success.
    acknowledged: i64,
    kept: i64,
    /// Connections that lay in the pool inside a transaction.
    poisoned: usize,
}

/// Three connections: who begins and who writes take turns, and with an even number each would have its own.
fn options() -> PgPoolOptions {
    PgPoolOptions::new().min_connections(3).max_connections(3).test_before_acquire(false)
}

/// A pool on a database that is 3 ms away.
async fn far_pool(options: PgPoolOptions, database: &Database) -> (PgPool, Proxy) {
    let proxy = Proxy::start(shared().await);
    proxy.delay(Duration::from_millis(3)).await;
    let pool = within("a pool", options.connect(&proxy.url(database))).await.unwrap();
    (pool, proxy)
}

/// Begins, and goes away at a different moment each time, up to 18 ms; then another one writes.
#[expect(clippy::disallowed_methods, reason = "to show why it is disallowed")]
async fn storm(options: PgPoolOptions) -> Storm {
    let database = shared().await.database().await;
    database.execute("CREATE TABLE kept (n BIGINT)").await;
    let (pool, _proxy) = far_pool(options, &database).await;
    let mut beside = database.connect().await;
    let (mut acknowledged, mut poisoned) = (0, BTreeSet::new());
    for n in 0..BEGINS {
        let patience = Duration::from_micros(18_000 * n / BEGINS);
        drop(tokio::time::timeout(patience, pool.begin()).await);
        all_are_back(&pool).await;
        poisoned.extend(in_transaction(&mut beside).await);
        let insert = sqlx::query("INSERT INTO kept VALUES ($1)").bind(n.cast_signed());
        acknowledged += i64::from(within("an INSERT", insert.execute(&pool)).await.is_ok());
        all_are_back(&pool).await;
    }
    within("the pool to close", pool.close()).await;
    let kept = sqlx::query_scalar("SELECT count(*) FROM kept").fetch_one(&mut beside).await.unwrap();
    Storm { acknowledged, kept, poisoned: poisoned.len() }
}

/// Waits until every connection is in the pool, so that nobody is inside a transaction on purpose.
async fn all_are_back(pool: &PgPool) {
    eventually("the connections to be back", || pool.num_idle() == pool.size() as usize).await;
}

/// The other connections that are inside a transaction: process, and when it began.
async fn in_transaction(beside: &mut PgConnection) -> Vec<(i32, String)> {
    let inside = "SELECT pid, xact_start::text FROM pg_stat_activity
        WHERE datname = current_database() AND state LIKE 'idle in transaction%' AND xact_start IS NOT NULL";
    sqlx::query_as(inside).fetch_all(beside).await.unwrap()
}

/// Storms until one has shown it: which moment hits is up to the machine.
async fn storm_until(options: fn() -> PgPoolOptions, shown: fn(&Storm) -> bool) -> Storm {
    for _ in 0..5 {
        let storm = storm(options()).await;
        if shown(&storm) {
            return storm;
        }
    }
    panic!("five storms did not hit the moment: is the driver cured, and the guard to go?");
}

#[tokio::test]
async fn without_the_guard_a_cancelled_begin_loses_writes_that_were_acknowledged() {
    let storm = storm_until(options, |storm| storm.kept < storm.acknowledged).await;
    assert!(storm.poisoned > 0, "they were lost for another reason: {storm:?}");
}

#[tokio::test]
async fn behind_the_guard_cancelled_begins_lose_nothing() {
    let storm = storm_until(|| guarded(options()), |storm| storm.poisoned > 0).await;
    assert_eq!((storm.acknowledged, storm.kept), (BEGINS.cast_signed(), BEGINS.cast_signed()), "{storm:?}");
}

#[tokio::test]
async fn the_guard_keeps_connections_that_are_well() {
    let database = shared().await.database().await;
    let (pool, proxy) = far_pool(guarded(options()), &database).await;
    for _ in 0..100 {
        sqlx::query("SELECT 1").execute(&pool).await.unwrap();
    }
    assert_eq!(proxy.accepted(), 3);
}
