//! Opens a PostgreSQL database: migrate, a few writers, readers, and a connection of its own for the sign of life.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection, PgPoolOptions};
use sqlx::{ConnectOptions, Row as _};
use tokio_util::sync::CancellationToken;

use super::super::super::dialect::Postgres;
use super::super::super::hints::{self, Incoming, Outgoing};
use super::super::super::pulse::Pulse;
use super::super::super::remembered::Remembered;
use super::super::super::{OpenError, Seal, wakeup, writer};
use super::super::SqlStore;
use super::instance::Taken;
use super::{StoreOptions, join, prepare};

/// Readers beside the writers. More than a server has cores gain nothing.
const READERS_MAX: u32 = 16;
/// How long a connection may be used before a new one takes its place.
const LIFETIME: Duration = Duration::from_secs(300);
/// How long a connection has to say that it is well. One that has no peer any more says nothing, and the borrower waits for this.
const ASKED: Duration = Duration::from_secs(1);

/// The rules of every pool of connections.
///
/// sqlx 0.9.0 gives a connection back with an open transaction when a `begin()` is cancelled: what the next borrower writes is
/// acknowledged and never committed. So a connection is asked before it is used; the question also finds those that are dead.
///
/// One simple query: a prepared one begins its transaction at its Bind and sets its clock again at its Execute, so that every
/// connection would look as if it were inside a transaction.
pub fn guarded(options: PgPoolOptions) -> PgPoolOptions {
    options
        .test_before_acquire(false)
        .max_lifetime(LIFETIME)
        .acquire_timeout(Duration::from_secs(5))
        .before_acquire(|connection, _| {
            Box::pin(async move {
                // Equal outside a transaction, where each statement is its own.
                let asked = sqlx::raw_sql("SELECT now() = statement_timestamp()").fetch_one(connection);
                let late = |_| sqlx::Error::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
                tokio::time::timeout(ASKED, asked).await.map_err(late)??.try_get(0)
            })
        })
}

/// What every connection is told when it begins.
fn connect_options(options: &PgConnectOptions) -> PgConnectOptions {
    options
        .clone()
        .application_name("ostler")
        .statement_cache_capacity(256)
        .options([
            ("synchronous_commit", "on"),
            ("statement_timeout", "10s"),
            ("lock_timeout", "5s"),
            ("idle_in_transaction_session_timeout", "10s"),
        ])
        .disable_statement_logging()
}

/// Opens, and where needed migrates, a PostgreSQL database.
pub(super) async fn open(
    options: &StoreOptions,
    url: &PgConnectOptions,
    seal: Seal,
) -> Result<SqlStore<Postgres>, OpenError> {
    let taken = match &options.instance {
        Some(instance) if options.exclusive => Some(Taken::take(instance)?),
        _ => None,
    };
    let writing = connect_options(url);
    // Migrations may take their time.
    let mut connection: PgConnection =
        writing.clone().options([("statement_timeout", "0")]).connect().await?;
    prepare::<Postgres>(&mut connection, options, &seal).await?;
    let taken = match taken {
        Some(taken) => Some(join::<Postgres>(&mut connection, taken).await?),
        None => None,
    };
    sqlx::Connection::close(connection).await?;
    // A reader that could write could lose a write.
    let reading = writing.clone().options([("default_transaction_read_only", "on")]);
    let readers = guarded(PgPoolOptions::new()).max_connections(READERS_MAX).connect_lazy_with(reading);
    // Load must not keep the sign of life waiting.
    let heart = guarded(PgPoolOptions::new())
        .max_connections(2)
        .acquire_timeout(Duration::from_secs(2))
        .connect_lazy_with(writing.clone());
    let wakeups = Arc::new(wakeup::Wakeups::default());
    // Other replicas change the same sessions.
    let remembered = Arc::new(Remembered::nothing());
    let pulse = Arc::new(Pulse::default());
    let closing = CancellationToken::new();
    let (outgoing, incoming) = if options.hints && options.exclusive {
        hints::exchange(writing.clone(), Arc::clone(&wakeups), closing.clone())
    } else {
        (Outgoing::default(), Incoming::none())
    };
    let writers = writer::spawn::<Postgres>(writer::Shared {
        options: writing,
        wakeups: Arc::clone(&wakeups),
        remembered: Arc::clone(&remembered),
        pulse: Arc::clone(&pulse),
        hints: outgoing,
    });
    let (instance, lock) = taken.map(|taken| (taken.id, taken.lock)).unzip();
    Ok(SqlStore {
        readers,
        heart: Some(heart),
        writers,
        wakeups,
        remembered,
        pulse,
        incoming,
        seal: Arc::new(seal),
        replica_ttl: Some(options.replica_ttl),
        instance,
        seen: Mutex::default(),
        closing,
        _lock: lock,
    })
}
