//! Opens the database: lock, migrate, one writer, a few readers.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use sqlx::ConnectOptions;
use sqlx::pool::PoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};

use super::super::dialect::Sqlite;
use super::super::migrate::migrate;
use super::super::{OpenError, Seal, wakeup, writer};
use super::SqlStore;

/// Readers beside the writer: as many as the cores can use, within reason.
const READERS_MAX: u32 = 4;

/// Where the database is and how it is opened.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// The file.
    pub path: PathBuf,
    /// Whether this process must be the only one, as the service must; the key commands need not.
    pub exclusive: bool,
}

/// An advisory lock on a file beside the database, held until it is dropped or the process ends.
#[derive(Debug)]
pub(super) struct DirectoryLock(
    #[expect(dead_code, reason = "held, not used: closing the file gives the lock up")] File,
);

impl DirectoryLock {
    fn take(database: &Path) -> Result<Self, OpenError> {
        let mut path = database.as_os_str().to_owned();
        path.push(".lock");
        let path = PathBuf::from(path);
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(|error| unusable(&path, &error))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| OpenError::InUse { path: path.display().to_string() })?;
        Ok(Self(file))
    }
}

fn unusable(path: &Path, error: &std::io::Error) -> OpenError {
    OpenError::Path { path: path.display().to_string(), complaint: error.to_string() }
}

impl StoreOptions {
    /// Reads a database URL: `sqlite:PATH`.
    ///
    /// # Errors
    /// [`OpenError::Scheme`] for another database.
    pub fn from_url(url: &str) -> Result<Self, OpenError> {
        let scheme = || OpenError::Scheme { scheme: url.split(':').next().unwrap_or_default().to_owned() };
        let path = url.strip_prefix("sqlite:").ok_or_else(scheme)?;
        let path = path.strip_prefix("//").unwrap_or(path);
        if path.is_empty() || path.starts_with(":memory:") {
            return Err(OpenError::Path { path: url.to_owned(), complaint: "a file is needed".to_owned() });
        }
        Ok(Self { path: PathBuf::from(path), exclusive: true })
    }
}

impl SqlStore<Sqlite> {
    /// Opens, and where needed makes and migrates, a SQLite database.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub async fn open(options: &StoreOptions, seal: Seal) -> Result<Self, OpenError> {
        let path = options.path.as_path();
        if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
            std::fs::create_dir_all(directory).map_err(|error| unusable(directory, &error))?;
        }
        let lock = if options.exclusive { Some(DirectoryLock::take(path)?) } else { None };
        let writing = SqliteConnectOptions::from_str("sqlite:")?
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            // What is acknowledged must survive a power cut; with group commit this costs next to nothing.
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(Duration::from_secs(5))
            .statement_cache_capacity(256)
            .disable_statement_logging();
        let mut connection = writing.connect().await?;
        migrate(&mut connection).await?;
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
        let writer = writer::spawn::<Sqlite>(writing, Arc::clone(&wakeups));
        Ok(Self { readers, writer, wakeups, seal, _lock: lock })
    }
}
