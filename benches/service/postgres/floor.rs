//! The least that anything could do on PostgreSQL: one `UPDATE` of a row as wide as a session's, alone or for many at once; an echo.

use std::net::SocketAddr;

use axum::extract::{Path, State};
use axum::routing::patch;
use axum::{Json, Router};
use ostler::clock::Clock;
use serde_json::Value;
use sqlx::postgres::PgPoolOptions;
use sqlx::{PgConnection, PgPool};
use tokio::sync::{mpsc, oneshot};

use super::super::home::listen;
use super::super::support::postgres::Database;
use super::server::{connect, options};

/// What a floor writes.
const TITLE: &str = "A title that says a little more";
/// Connections of the pool: more gain nothing here.
const POOL: u32 = 16;

/// A table of the sessions' own rows, with no index but its key, and the ways to it.
pub struct Floor {
    /// Autocommit, a statement for each caller.
    pub pool: PgPool,
    /// One connection, a statement for all that wait.
    pub group: Group,
    pub address: SocketAddr,
}

impl Floor {
    /// Copies what sessions there are.
    pub async fn open(database: &Database) -> Self {
        for sql in [
            "CREATE TABLE floor (LIKE agent_harness_sessions)",
            "INSERT INTO floor SELECT * FROM agent_harness_sessions",
            "ALTER TABLE floor ADD PRIMARY KEY (session_key)",
            "VACUUM ANALYZE floor",
        ] {
            database.execute(sql).await;
        }
        let pool = PgPoolOptions::new().max_connections(POOL).test_before_acquire(false);
        let pool = pool.min_connections(POOL).connect_with(options(database)).await.unwrap();
        let group = Group::start(connect(database).await);
        let routes = Routes { pool: pool.clone(), group: group.clone() };
        let address = listen(routes.router()).await;
        Self { pool, group, address }
    }
}

pub async fn update(pool: &PgPool, key: i64) {
    sqlx::query(
        "UPDATE floor SET title = $1, last_active_at = $2, version = version + 1 WHERE session_key = $3",
    )
    .bind(TITLE)
    .bind(Clock::System.now().0)
    .bind(key)
    .execute(pool)
    .await
    .unwrap();
}

/// The writer of groups: no more than a queue and a statement.
#[derive(Clone)]
pub struct Group(mpsc::Sender<(i64, oneshot::Sender<()>)>);

impl Group {
    fn start(mut connection: PgConnection) -> Self {
        let (queue, mut jobs) = mpsc::channel::<(i64, oneshot::Sender<()>)>(4096);
        tokio::spawn(async move {
            let mut batch = Vec::new();
            while jobs.recv_many(&mut batch, 256).await > 0 {
                update_all(&mut connection, &batch).await;
                for (_, done) in batch.drain(..) {
                    let _ = done.send(());
                }
            }
        });
        Self(queue)
    }

    pub async fn update(&self, key: i64) {
        let (done, committed) = oneshot::channel();
        self.0.send((key, done)).await.unwrap();
        committed.await.unwrap();
    }
}

async fn update_all(connection: &mut PgConnection, batch: &[(i64, oneshot::Sender<()>)]) {
    let now = Clock::System.now().0;
    sqlx::query(
        "UPDATE floor SET title = v.title, last_active_at = v.at, version = version + 1
         FROM UNNEST($1::TEXT[], $2::BIGINT[], $3::BIGINT[]) AS v (title, at, key) WHERE session_key = v.key",
    )
    .bind(vec![TITLE; batch.len()])
    .bind(vec![now; batch.len()])
    .bind(batch.iter().map(|(key, _)| *key).collect::<Vec<_>>())
    .execute(connection)
    .await
    .unwrap();
}

#[derive(Clone)]
struct Routes {
    pool: PgPool,
    group: Group,
}

impl Routes {
    fn router(self) -> Router {
        let naive = async |State(routes): State<Self>, Path(key): Path<i64>, Json(body): Json<Value>| {
            update(&routes.pool, key).await;
            Json(body)
        };
        let group = async |State(routes): State<Self>, Path(key): Path<i64>, Json(body): Json<Value>| {
            routes.group.update(key).await;
            Json(body)
        };
        Router::new().route("/naive/{key}", patch(naive)).route("/group/{key}", patch(group)).with_state(self)
    }
}
