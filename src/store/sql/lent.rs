//! A connection lent by a pool.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{Database, Pool};

/// How long a connection has to come back.
const BACK: Duration = Duration::from_secs(2);

/// Given back within a time, whether what it was lent for has ended or was given up. The pool asks each that comes back whether it is
/// well, and waits for the answer without a limit: one that has no peer any more would be missing for as long as the system tries
/// to reach it, and a few of them are the whole pool.
pub(super) struct Lent<DB: Database>(PoolConnection<DB>);

impl<DB: Database> Lent<DB> {
    pub(super) async fn from(pool: &Pool<DB>) -> sqlx::Result<Self> {
        pool.acquire().await.map(Self)
    }
}

impl<DB: Database> Deref for Lent<DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<DB: Database> DerefMut for Lent<DB> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl<DB: Database> Drop for Lent<DB> {
    fn drop(&mut self) {
        let back = self.0.return_to_pool();
        // One that is late is dropped, and the pool makes another.
        tokio::spawn(async move { drop(tokio::time::timeout(BACK, back).await) });
    }
}
