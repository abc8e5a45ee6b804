//! Migrations: compiled in, applied in order at start, never changed once released. A new one only adds, so that replicas of the
//! version before can work on beside (expand); what nobody uses any more goes a version later (contract).

use std::borrow::Cow;
use std::time::Duration;

use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{AssertSqlSafe, SqlSafeStr};

use super::OpenError;
use super::dialect::{Connection, Dialect, Record, Statement, Value};

macro_rules! migrations {
    ($($version:literal $name:literal),+ $(,)?) => {
        const SQLITE: &[(i64, &str, &str)] =
            &[$(($version, $name, include_str!(concat!("../../migrations/sqlite/", $name, ".sql")))),+];
        const POSTGRES: &[(i64, &str, &str)] =
            &[$(($version, $name, include_str!(concat!("../../migrations/postgres/", $name, ".sql")))),+];
    };
}
migrations! {
    1 "0001_sessions",
    2 "0002_replicas",
    3 "0003_agents",
}

/// How often two that migrate at once may get in each other's way.
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(100);

/// The schema of this program, and the one of a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {
    /// The migrations that this program knows, in order: their numbers and names, and whether they were applied.
    pub migrations: Vec<(i64, &'static str, bool)>,
    /// The latest that was applied, known here or not; 0 for an empty database.
    pub found: i64,
}

impl Schema {
    pub(super) fn of<D: Dialect>(applied: &[Record]) -> Self {
        let version = |row: &Record| match row.get("version") {
            Some(Value::Int(version)) => *version,
            _ => None,
        };
        let versions: Vec<i64> = applied.iter().filter_map(version).collect();
        let known = if D::SHARED { POSTGRES } else { SQLITE };
        let migrations = known.iter().map(|(version, name, _)| (*version, *name, versions.contains(version)));
        Self { migrations: migrations.collect(), found: versions.iter().copied().max().unwrap_or(0) }
    }

    /// The latest migration that this program knows.
    pub fn known(&self) -> i64 {
        self.migrations.last().map_or(0, |(version, ..)| *version)
    }

    /// What a process that works already needs: nothing is missing. What a newer one has added does no harm.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check_suffices(&self) -> Result<(), String> {
        match self.check() {
            Err(error @ OpenError::Behind { .. }) => Err(error.to_string()),
            _ => Ok(()),
        }
    }

    /// Refuses a database that this program does not know.
    ///
    /// # Errors
    /// [`OpenError::TooNew`], [`OpenError::Behind`].
    pub fn check(&self) -> Result<(), OpenError> {
        let (found, known) = (self.found, self.known());
        if found > known {
            return Err(OpenError::TooNew { found, known });
        }
        if self.migrations.iter().any(|(.., applied)| !applied) {
            return Err(OpenError::Behind { found, known });
        }
        Ok(())
    }
}

/// The schema of a database.
///
/// # Errors
/// When the database cannot be read.
pub(super) async fn schema<D: Dialect>(connection: &mut Connection<D>) -> sqlx::Result<Schema> {
    match D::fetch(connection, &applied()).await {
        Ok(applied) => Ok(Schema::of::<D>(&applied)),
        // No such table: nothing was ever applied.
        Err(sqlx::Error::Database(error))
            if error.code().as_deref() == Some("42P01") || error.message().contains("no such table") =>
        {
            Ok(Schema::of::<D>(&[]))
        }
        Err(error) => Err(error),
    }
}

/// The migrations that were applied.
pub(super) fn applied() -> Statement {
    Statement::new("SELECT version FROM _sqlx_migrations")
}

/// Brings a database to the schema of this program. Two may do so at once, without a lock that a database may lack: each migration
/// is one transaction that writes its own row, so that the slower one fails, finds it done and goes on.
///
/// # Errors
/// When the schema is newer than this program, when an applied migration was changed, and when one fails.
pub(super) async fn migrate<D: Dialect>(connection: &mut Connection<D>) -> Result<(), OpenError> {
    let known = if D::SHARED { POSTGRES } else { SQLITE };
    let migrations = known.iter().map(|(version, name, sql)| {
        let sql = AssertSqlSafe(Cow::Borrowed(*sql).into_owned()).into_sql_str();
        Migration::new(*version, Cow::Borrowed(*name), MigrationType::Simple, sql, false)
    });
    let mut migrator = Migrator::with_migrations(migrations.collect());
    migrator.set_locking(false);
    // What was applied and is not known here is told apart below, with both numbers.
    migrator.set_ignore_missing(true);
    for tries in 1.. {
        match migrator.run_direct(None, connection, false).await {
            Ok(()) => break,
            Err(error) if tries >= TRIES || !may_be_contended(&error) => return Err(error.into()),
            Err(error) => tracing::debug!(%error, "another process may be migrating; looking again"),
        }
        tokio::time::sleep(PAUSE).await;
    }
    schema::<D>(connection).await?.check()
}

fn may_be_contended(error: &sqlx::migrate::MigrateError) -> bool {
    use sqlx::migrate::MigrateError as E;
    matches!(error, E::Execute(sqlx::Error::Database(_)) | E::ExecuteMigration(sqlx::Error::Database(_), _))
}

#[cfg(test)]
mod tests {
    use sqlx::{Connection as _, SqliteConnection};

    use super::super::dialect::Sqlite;
    use super::*;

    /// A schema as words that mean the same on both databases.
    fn in_common_words(sql: &str) -> Vec<String> {
        let without_comments = sql.lines().filter(|line| !line.trim_start().starts_with("--"));
        let text = without_comments.collect::<Vec<_>>().join("\n");
        text.replace("INTEGER PRIMARY KEY", "BIGINT NOT NULL PRIMARY KEY")
            .replace("INTEGER", "BIGINT")
            .replace("BLOB", "BYTEA")
            .split_whitespace()
            .map(|word| word.replace("BIGINT,", "BIGINT ,"))
            .flat_map(|word| word.split(' ').map(str::to_owned).collect::<Vec<_>>())
            .collect()
    }

    #[test]
    fn both_schemas_have_the_same_migrations_that_say_the_same() {
        for ((version, name, sqlite), (_, _, postgres)) in SQLITE.iter().zip(POSTGRES) {
            assert_eq!(in_common_words(sqlite), in_common_words(postgres), "{version} {name}");
        }
    }

    #[test]
    fn no_migration_uses_what_a_postgres_compatible_database_may_lack() {
        for (_, name, sql) in POSTGRES {
            for word in ["SERIAL", "IDENTITY", "TRIGGER", "DEFERRABLE", "AUTOINCREMENT", "advisory"] {
                assert!(!sql.to_uppercase().contains(&word.to_uppercase()), "{name} uses {word}");
            }
        }
    }

    #[tokio::test]
    async fn migrating_twice_changes_nothing_and_a_newer_schema_is_refused() {
        let mut connection = SqliteConnection::connect("sqlite::memory:").await.unwrap();
        assert_eq!(schema::<Sqlite>(&mut connection).await.unwrap().found, 0);
        migrate::<Sqlite>(&mut connection).await.unwrap();
        migrate::<Sqlite>(&mut connection).await.unwrap();
        sqlx::query("INSERT INTO _sqlx_migrations VALUES (9999, 'later', CURRENT_TIMESTAMP, 1, x'00', 0)")
            .execute(&mut connection)
            .await
            .unwrap();
        let refused = migrate::<Sqlite>(&mut connection).await;
        assert!(matches!(refused, Err(OpenError::TooNew { found: 9999, known: 3 })), "{refused:?}");
    }
}
