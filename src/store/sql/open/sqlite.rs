//! Opens a SQLite database: lock, migrate, one writer, a few readers.

use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlx::pool::PoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, SqliteConnection};
use tokio_util::sync::CancellationToken;

use super::super::super::dialect::Sqlite;
use super::super::super::hints::{Incoming, Outgoing};
use super::super::super::pulse::Pulse;
use super::super::super::remembered::Remembered;
use super::super::super::{OpenError, Seal, wakeup, writer};
use super::super::SqlStore;
use super::lock::FileLock;
use super::{StoreOptions, prepare, unusable};

/// Readers beside the writer: as many as the cores can use, within reason.
const READERS_MAX: u32 = 4;

pub(super) fn connect_options(path: &Path) -> Result<SqliteConnectOptions, OpenError> {
    Ok(SqliteConnectOptions::from_str("sqlite:")?
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        // What is acknowledged must survive a power cut; with group commit this costs next to nothing.
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .busy_timeout(Duration::from_secs(5))
        .statement_cache_capacity(256)
        .disable_statement_logging())
}

/// Opens, and where needed makes and migrates, a SQLite database.
pub(super) async fn open(
    options: &StoreOptions,
    path: &Path,
    seal: Seal,
) -> Result<SqlStore<Sqlite>, OpenError> {
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        std::fs::create_dir_all(directory).map_err(|error| unusable(directory, &error))?;
    }
    let lock = if options.exclusive {
        let mut beside = path.as_os_str().to_owned();
        beside.push(".lock");
        Some(FileLock::take(beside.as_ref(), OpenError::in_use)?)
    } else {
        None
    };
    let writing = connect_options(path)?;
    let mut connection: SqliteConnection = writing.connect().await?;
    prepare::<Sqlite>(&mut connection, options, &seal).await?;
    sqlx::Connection::close(connection).await?;
    // Not `read_only`: a read-only connection cannot recover the log of a killed process. `query_only` keeps it from writing.
    let reading = writing.clone().create_if_missing(false).pragma("query_only", "ON");
    let cores = std::thread::available_parallelism().map_or(2, |n| u32::try_from(n.get()).unwrap_or(2));
    let readers = PoolOptions::new()
        .max_connections(cores.clamp(2, READERS_MAX))
        .max_lifetime(None)
        .idle_timeout(None)
        .test_before_acquire(false)
        .acquire_timeout(Duration::from_secs(5))
        .connect_with(reading)
        .await?;
    let wakeups = Arc::new(wakeup::Wakeups::default());
    // Only who has the lock knows of every change.
    let remembered =
        Arc::new(if lock.is_some() { Remembered::of_sole_process() } else { Remembered::nothing() });
    let pulse = Arc::new(Pulse::default());
    let writers = writer::spawn::<Sqlite>(writer::Shared {
        options: writing,
        wakeups: Arc::clone(&wakeups),
        remembered: Arc::clone(&remembered),
        pulse: Arc::clone(&pulse),
        hints: Outgoing::default(),
    });
    Ok(SqlStore {
        readers,
        heart: None,
        writers,
        wakeups,
        remembered,
        pulse,
        incoming: Incoming::none(),
        seal: Arc::new(seal),
        replica_ttl: None,
        instance: None,
        seen: Mutex::default(),
        closing: CancellationToken::new(),
        _lock: lock,
    })
}
