//! Opens the database that a URL names.

mod instance;
mod lock;
mod postgres;
mod sqlite;

use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr as _;
use std::sync::Arc;
use std::time::Duration;

use sqlx::ConnectOptions as _;
use sqlx::postgres::PgConnectOptions;

pub use self::instance::Instance;
use self::instance::Taken;
pub(super) use self::lock::FileLock;
pub use self::postgres::guarded;
use super::super::dialect::{Connection, Dialect, Postgres, Record, Sqlite};
use super::super::migrate::{Schema, migrate, schema};
use super::super::{OpenError, Seal, SharedStore};
use super::catalogue::{Planned, plan_all};
use super::replicas;
use crate::ids::ReplicaId;

/// A database.
#[derive(Clone)]
pub enum Location {
    /// A file.
    Sqlite(PathBuf),
    /// A server.
    Postgres(Box<PgConnectOptions>),
}

impl fmt::Debug for Location {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_string())
    }
}

impl fmt::Display for Location {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Postgres(options) => {
                let database = options.get_database().unwrap_or_else(|| options.get_username());
                write!(f, "postgres://{}:{}/{database}", options.get_host(), options.get_port())
            }
        }
    }
}

/// What becomes of a database that lacks migrations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Migrations {
    /// They are applied.
    Apply,
    /// They are applied when there are none at all; a database that others may work on is not changed under them.
    ApplyToEmpty,
    /// It is refused.
    Refuse,
}

/// Where the database is and how it is opened.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// The database.
    pub location: Location,
    /// Whether this process is the service: it takes its place, and a SQLite file for itself alone. The operator's commands work
    /// beside it.
    pub exclusive: bool,
    /// Whether a schema that is behind is migrated; where it is not, it is refused.
    pub migrate: Migrations,
    /// Whether replicas tell each other what they changed. Without, they find out by looking.
    pub hints: bool,
    /// How long a replica's leases outlive its last sign of life.
    pub replica_ttl: Duration,
    /// The place where this replica runs, where others may work on the same database.
    pub instance: Option<Instance>,
}

impl StoreOptions {
    /// The defaults for a database.
    pub fn new(location: Location) -> Self {
        Self {
            location,
            exclusive: true,
            migrate: Migrations::Apply,
            hints: true,
            replica_ttl: Duration::from_secs(10),
            instance: None,
        }
    }

    /// Reads a database URL: `sqlite:PATH` or `postgres://…`.
    ///
    /// # Errors
    /// [`OpenError::Scheme`] for another database, [`OpenError::Path`] and [`OpenError::Url`] for one that is not a URL of its kind.
    pub fn from_url(url: &str) -> Result<Self, OpenError> {
        if url.starts_with("postgres:") || url.starts_with("postgresql:") {
            let options = PgConnectOptions::from_str(url).map_err(|_| OpenError::Url)?;
            return Ok(Self::new(Location::Postgres(Box::new(options))));
        }
        let scheme = || OpenError::Scheme { scheme: url.split(':').next().unwrap_or_default().to_owned() };
        let path = url.strip_prefix("sqlite:").ok_or_else(scheme)?;
        let path = path.strip_prefix("//").unwrap_or(path);
        if path.is_empty() || path.starts_with(":memory:") {
            return Err(OpenError::Path { path: url.to_owned(), complaint: "a file is needed".to_owned() });
        }
        Ok(Self::new(Location::Sqlite(PathBuf::from(path))))
    }
}

/// Opens, and where wanted makes and migrates, a database.
///
/// # Errors
/// See [`OpenError`].
pub async fn open(options: &StoreOptions, seal: Seal) -> Result<SharedStore, OpenError> {
    match &options.location {
        Location::Sqlite(path) => Ok(Arc::new(sqlite::open(options, path, seal).await?)),
        Location::Postgres(url) => Ok(Arc::new(postgres::open(options, url, seal).await?)),
    }
}

/// The schema of a database, which is not changed.
///
/// # Errors
/// See [`OpenError`].
pub async fn read_schema(location: &Location) -> Result<Schema, OpenError> {
    match location {
        Location::Sqlite(path) => {
            let options = sqlite::connect_options(path)?.create_if_missing(false);
            Ok(schema::<Sqlite>(&mut options.connect().await?).await?)
        }
        Location::Postgres(options) => Ok(schema::<Postgres>(&mut options.connect().await?).await?),
    }
}

/// The plans of all statements of the program on a migrated database, where none of them is run. For a test.
///
/// # Errors
/// When the database cannot be opened.
pub async fn plan_every_statement(location: &Location) -> Result<Vec<Planned>, Box<dyn Error>> {
    Ok(match location {
        Location::Sqlite(path) => {
            let options = sqlite::connect_options(path)?.create_if_missing(false);
            plan_all::<Sqlite>(&mut options.connect().await?).await?
        }
        Location::Postgres(options) => plan_all::<Postgres>(&mut options.connect().await?).await?,
    })
}

fn unusable(path: &Path, error: &std::io::Error) -> OpenError {
    OpenError::Path { path: path.display().to_string(), complaint: error.to_string() }
}

/// The schema as this program needs it, and the same sealing key as everybody's.
async fn prepare<D: Dialect>(
    connection: &mut Connection<D>,
    options: &StoreOptions,
    seal: &Seal,
) -> Result<(), OpenError> {
    let apply = match options.migrate {
        Migrations::Apply => true,
        Migrations::ApplyToEmpty => schema::<D>(connection).await?.found == 0,
        Migrations::Refuse => false,
    };
    if apply {
        migrate::<D>(connection).await?;
    } else {
        schema::<D>(connection).await?.check()?;
    }
    if !options.exclusive {
        // The operator's commands seal nothing.
        return Ok(());
    }
    let fingerprint = seal.fingerprint();
    D::execute(connection, &replicas::agree("seal", &fingerprint)).await?;
    let agreed = agreed::<D>(connection, "seal").await?;
    if agreed == fingerprint { Ok(()) } else { Err(OpenError::OtherSeal) }
}

/// Counts this start, and refuses a database that has gone back behind the last one.
async fn join<D: Dialect>(connection: &mut Connection<D>, mut taken: Taken) -> Result<Taken, OpenError> {
    // A copy has the name of what it is a copy of; a new database has one of its own.
    D::execute(connection, &replicas::agree("database", ReplicaId::mint().as_str())).await?;
    D::execute(connection, &replicas::agree("joins", "0")).await?;
    D::execute(connection, &replicas::count_up("joins")).await?;
    let database = agreed::<D>(connection, "database").await?;
    let joins = agreed::<D>(connection, "joins").await?;
    let joins = joins.parse().map_err(|error: std::num::ParseIntError| {
        OpenError::Database(sqlx::Error::Decode(Box::new(error)))
    })?;
    taken.joined(&database, joins)?;
    Ok(taken)
}

async fn agreed<D: Dialect>(connection: &mut Connection<D>, name: &'static str) -> Result<String, OpenError> {
    let rows: Vec<Record> = D::fetch(connection, &replicas::agreed(name)).await?;
    let row = rows.into_iter().next().ok_or(OpenError::Database(sqlx::Error::RowNotFound))?;
    replicas::read_agreed(row).map_err(|error| OpenError::Database(sqlx::Error::Decode(Box::new(error))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_is_shown_without_its_password() {
        let options = StoreOptions::from_url("postgres://me:geheim@db.example:5433/ostler").unwrap();
        assert_eq!(options.location.to_string(), "postgres://db.example:5433/ostler");
        assert!(!format!("{options:?}").contains("geheim"));
    }

    #[test]
    fn a_url_of_another_kind_is_refused_without_being_shown() {
        for url in ["mysql://u:geheim@h/d", "sqlite:", "postgres://u:geheim@h:notaport/d"] {
            let error = StoreOptions::from_url(url).unwrap_err();
            assert!(!error.to_string().contains("geheim"), "{error}");
        }
    }
}
