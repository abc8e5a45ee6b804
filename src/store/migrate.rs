//! Migrations: compiled in, applied in order at start, never changed once released.

use std::borrow::Cow;

use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{AssertSqlSafe, Connection as _, SqlSafeStr, SqliteConnection};

use super::OpenError;

macro_rules! migrations {
    ($($version:literal $name:literal),+ $(,)?) => {
        const SQLITE: &[(i64, &str, &str)] =
            &[$(($version, $name, include_str!(concat!("../../migrations/sqlite/", $name, ".sql")))),+];
        #[cfg(test)]
        const POSTGRES: &[(i64, &str, &str)] =
            &[$(($version, $name, include_str!(concat!("../../migrations/postgres/", $name, ".sql")))),+];
    };
}
migrations! {
    1 "0001_sessions",
}

/// Brings a SQLite database to the schema of this program.
///
/// # Errors
/// When the schema is newer than this program, when an applied migration was changed, and when one fails.
pub(super) async fn migrate(connection: &mut SqliteConnection) -> Result<(), OpenError> {
    let migrations = SQLITE.iter().map(|(version, name, sql)| {
        let sql = AssertSqlSafe(Cow::Borrowed(*sql).into_owned()).into_sql_str();
        Migration::new(*version, Cow::Borrowed(*name), MigrationType::Simple, sql, false)
    });
    let mut migrator = Migrator::with_migrations(migrations.collect());
    // What was applied and is not known here is told apart below, with both numbers.
    migrator.set_ignore_missing(true);
    migrator.run(&mut *connection).await?;
    let known = SQLITE.iter().map(|(version, ..)| *version).max().unwrap_or(0);
    let found: i64 =
        sqlx::query_scalar("SELECT MAX(version) FROM _sqlx_migrations").fetch_one(&mut *connection).await?;
    if found > known {
        return Err(OpenError::TooNew { found, known });
    }
    connection.ping().await?;
    Ok(())
}

#[cfg(test)]
mod tests {
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
        migrate(&mut connection).await.unwrap();
        migrate(&mut connection).await.unwrap();
        sqlx::query("INSERT INTO _sqlx_migrations VALUES (9999, 'later', CURRENT_TIMESTAMP, 1, x'00', 0)")
            .execute(&mut connection)
            .await
            .unwrap();
        assert!(matches!(migrate(&mut connection).await, Err(OpenError::TooNew { found: 9999, known: 1 })));
    }
}
