//! Watches the rows from outside: a session at work whose holder is gone is found by another replica in time.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use sqlx::{Connection as _, PgConnection};

/// How long each session has been at work without a living holder, at the longest.
pub struct Watch {
    since: HashMap<String, Instant>,
    pub longest: Duration,
    connection: PgConnection,
}

const STRANDED: &str = "SELECT s.id FROM agent_harness_sessions s WHERE s.status = 'running' AND NOT EXISTS (
    SELECT 1 FROM replicas r WHERE r.id = s.lease_holder
        AND r.expires_at > CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT))";

impl Watch {
    pub async fn on(url: &str) -> Self {
        let connection = PgConnection::connect(url).await.unwrap();
        Self { since: HashMap::new(), longest: Duration::ZERO, connection }
    }

    /// Looks once.
    pub async fn look(&mut self) {
        let stranded: Vec<String> =
            sqlx::query_scalar(STRANDED).fetch_all(&mut self.connection).await.unwrap();
        let now = Instant::now();
        self.since.retain(|session, _| stranded.contains(session));
        for session in stranded {
            let since = *self.since.entry(session).or_insert(now);
            self.longest = self.longest.max(now - since);
        }
    }
}
