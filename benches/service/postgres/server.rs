//! The PostgreSQL that is measured: one of our own, set as in production, or the one that `OSTLER_TEST_DATABASE_URL` names.

use std::str::FromStr;

use ostler::store::{Instance, Location, StoreOptions};
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, PgConnection};
use tokio::sync::OnceCell;

use super::super::home::Home;
use super::super::report::note;
use super::super::support::postgres::{self, Cluster, Database};

const FOREIGN: &str = "OSTLER_TEST_DATABASE_URL";

/// The tests' own server does not care for the disk; what is measured must. Otherwise as it comes.
const SETTINGS: [&str; 5] = [
    "ALTER SYSTEM SET fsync = on",
    "ALTER SYSTEM SET full_page_writes = on",
    "ALTER SYSTEM SET synchronous_commit = on",
    "ALTER SYSTEM SET shared_buffers = '128MB'",
    "ALTER SYSTEM SET max_wal_size = '1GB'",
];

/// See the module.
#[derive(Clone, Copy)]
pub struct Server(&'static Cluster);

impl Server {
    /// Started by the first who asks.
    pub async fn start() -> Self {
        static STARTED: OnceCell<Server> = OnceCell::const_new();
        *STARTED.get_or_init(Self::start_now).await
    }

    async fn start_now() -> Self {
        let cluster = postgres::shared().await;
        let database = cluster.database().await;
        if std::env::var_os(FOREIGN).is_none() {
            for setting in SETTINGS {
                database.execute(setting).await;
            }
            cluster.restart().await;
        }
        let settings = sqlx::query_as(
            "SELECT current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit')",
        );
        let (version, fsync, commit): (String, String, String) =
            settings.fetch_one(&mut database.connect().await).await.unwrap();
        note(&format!("PostgreSQL {version}, fsync {fsync}, synchronous_commit {commit}"));
        Self(cluster)
    }

    pub async fn database(&self) -> Database {
        self.0.database().await
    }
}

/// How a program without a store connects.
pub fn options(database: &Database) -> PgConnectOptions {
    PgConnectOptions::from_str(&database.url)
        .unwrap()
        .options([("synchronous_commit", "on")])
        .disable_statement_logging()
}

/// A connection without a store.
pub async fn connect(database: &Database) -> PgConnection {
    options(database).connect().await.unwrap()
}

/// A replica of the service on that database, in a place of its own.
pub async fn home(database: &Database, hints: bool) -> Home {
    let directory = tempfile::tempdir().unwrap();
    let url = PgConnectOptions::from_str(&database.url).unwrap();
    let place = Instance::new(Some("bench".to_owned()), directory.path().join("instances"));
    let options =
        StoreOptions { hints, instance: Some(place), ..StoreOptions::new(Location::Postgres(Box::new(url))) };
    Home::on(&options, directory).await
}
