//! The least that anything could do: one `UPDATE` by primary key and its commit, alone or in groups; an echo; a `SELECT` by key.

use std::net::SocketAddr;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use axum::extract::{Path as UrlPath, State};
use axum::routing::{get, patch, post};
use axum::{Json, Router};
use ostler::clock::Clock;
use serde_json::{Value, json};
use sqlx::pool::PoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Row, SqliteConnection, SqlitePool};
use tempfile::TempDir;
use tokio::sync::{mpsc, oneshot};

use super::home::listen;

/// How the service opens its database.
pub fn options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::from_str("sqlite:")
        .unwrap()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .disable_statement_logging()
}

/// Rows of the floor's table.
pub const ROWS: usize = 1000;

const UPDATE: &str = "UPDATE floor SET title = $1, changed_at = $2 WHERE id = $3";

/// A table as simple as can be, and the ways to it.
pub struct Floor {
    /// Autocommit, one connection.
    pub naive: SqlitePool,
    /// One writer that commits what waits, together.
    pub group: Group,
    pub address: SocketAddr,
    _directory: TempDir,
}

pub fn row_id(number: usize) -> String {
    format!("row_{:032}", number % ROWS)
}

impl Floor {
    pub async fn open() -> Arc<Self> {
        let directory = tempfile::tempdir().unwrap();
        let options = options(&directory.path().join("floor.db"));
        let one = PoolOptions::new().max_connections(1).test_before_acquire(false);
        let naive: SqlitePool = one.connect_with(options.clone()).await.unwrap();
        sqlx::query(
            "CREATE TABLE floor (id TEXT NOT NULL PRIMARY KEY, title TEXT NOT NULL, body TEXT NOT NULL, changed_at INTEGER)",
        )
        .execute(&naive)
        .await
        .unwrap();
        for number in 0..ROWS {
            sqlx::query("INSERT INTO floor VALUES ($1, 'a title', $2, 0)")
                .bind(row_id(number))
                .bind("x".repeat(400))
                .execute(&naive)
                .await
                .unwrap();
        }
        let group = Group::start(options.connect().await.unwrap());
        let four = PoolOptions::new().max_connections(4).test_before_acquire(false);
        let readers = four.connect_with(options).await.unwrap();
        let routes = Routes { naive: naive.clone(), group: group.clone(), readers };
        let address = listen(routes.router()).await;
        Arc::new(Self { naive, group, address, _directory: directory })
    }
}

pub async fn update(connection: &mut SqliteConnection, id: &str) {
    sqlx::query(UPDATE)
        .bind("a title")
        .bind(Clock::System.now().0)
        .bind(id)
        .execute(connection)
        .await
        .unwrap();
}

/// The writer of groups: no more than a queue and a transaction.
#[derive(Clone)]
pub struct Group(mpsc::Sender<(String, oneshot::Sender<()>)>);

impl Group {
    fn start(mut connection: SqliteConnection) -> Self {
        let (queue, mut jobs) = mpsc::channel::<(String, oneshot::Sender<()>)>(4096);
        tokio::spawn(async move {
            let mut batch = Vec::new();
            while jobs.recv_many(&mut batch, 256).await > 0 {
                sqlx::query("BEGIN IMMEDIATE").execute(&mut connection).await.unwrap();
                for (id, _) in &batch {
                    update(&mut connection, id).await;
                }
                sqlx::query("COMMIT").execute(&mut connection).await.unwrap();
                for (_, done) in batch.drain(..) {
                    let _ = done.send(());
                }
            }
        });
        Self(queue)
    }

    pub async fn update(&self, id: String) {
        let (done, committed) = oneshot::channel();
        self.0.send((id, done)).await.unwrap();
        committed.await.unwrap();
    }
}

#[derive(Clone)]
struct Routes {
    naive: SqlitePool,
    group: Group,
    readers: SqlitePool,
}

impl Routes {
    fn router(self) -> Router {
        let echo = async |Json(body): Json<Value>| Json(body);
        let naive =
            async |State(routes): State<Self>, UrlPath(id): UrlPath<String>, Json(body): Json<Value>| {
                update(&mut routes.naive.acquire().await.unwrap(), &id).await;
                Json(body)
            };
        let group =
            async |State(routes): State<Self>, UrlPath(id): UrlPath<String>, Json(body): Json<Value>| {
                routes.group.update(id).await;
                Json(body)
            };
        let row = async |State(routes): State<Self>, UrlPath(id): UrlPath<String>| {
            let select = sqlx::query("SELECT id, title, body, changed_at FROM floor WHERE id = $1").bind(id);
            let row = select.fetch_one(&routes.readers).await.unwrap();
            let text = |column: &str| row.get::<String, _>(column);
            Json(json!({
                "id": text("id"), "title": text("title"), "body": text("body"),
                "changed_at": row.get::<i64, _>("changed_at"),
            }))
        };
        Router::new()
            .route("/echo", post(echo))
            .route("/naive/{id}", patch(naive))
            .route("/group/{id}", patch(group))
            .route("/row/{id}", get(row))
            .with_state(self)
    }
}
