//! The store on a SQL database: one file per concern, SQL beside its binds.

mod approvals;
mod events;
mod keys;
mod leases;
mod once;
mod open;
mod rows;
mod sessions;
mod tickets;
mod turns;

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;
use sqlx::Pool;

pub use self::keys::ApiKey;
pub use self::open::StoreOptions;
use super::dialect::{Dialect, Record, Statement};
use super::wakeup::Wakeups;
use super::writer::{Expect, Step, Write, WriterHandle, Written};
use super::{
    ApprovalFilter, Change, Commit, EventPage, HeldSession, OnceAnswer, Page, PageRequest, Result, Seal,
    Seen, SessionFilter, SessionRef, Store, Subscription, WriterStats,
};
use crate::clock::Timestamp;
use crate::domain::approval::Approval;
use crate::domain::event::NewEvent;
use crate::domain::lease::Lease;
use crate::domain::scope::Scope;
use crate::domain::session::Session;
use crate::domain::turn::{Ordinal, Turn};
use crate::ids::{ApprovalId, KeyId, ReplicaId, SessionId, SessionKey, TurnId};

/// A store on the database of a dialect.
pub struct SqlStore<D: Dialect> {
    readers: Pool<D::Database>,
    writer: WriterHandle,
    wakeups: Arc<Wakeups>,
    seal: Seal,
    /// Held for as long as the store lives: another process is kept out.
    _lock: Option<open::DirectoryLock>,
}

impl<D: Dialect> SqlStore<D> {
    async fn fetch(&self, statement: Statement) -> Result<Vec<Record>> {
        let mut connection = self.readers.acquire().await?;
        Ok(D::fetch(&mut connection, &statement).await?)
    }

    async fn fetch_one(&self, statement: Statement) -> Result<Option<Record>> {
        Ok(self.fetch(statement).await?.into_iter().next())
    }

    /// Statements that are no session's change, committed together.
    async fn run(&self, statements: impl IntoIterator<Item = Statement>) -> Result<Written> {
        let steps = statements.into_iter().map(|statement| Step::new(statement, Expect::Any)).collect();
        self.writer.write(Write { steps, ..Write::default() }).await
    }
}

/// Every method is one call into the file of its concern.
#[async_trait]
impl<D: Dialect> Store for SqlStore<D> {
    async fn ping(&self) -> Result<()> {
        self.fetch(Statement::new("SELECT 1 AS alive")).await.map(drop)
    }
    async fn commit(&self, change: Change) -> Result<Commit> {
        let write = sessions::write_of(change, &self.seal)?;
        self.writer.write(write).await.map(|written| written.commit)
    }
    async fn append(&self, session: SessionKey, events: Vec<NewEvent>) -> Result<()> {
        let events = events.into_iter().map(|event| (session, event)).collect();
        self.writer.write(Write { events, ..Write::default() }).await.map(drop)
    }
    async fn close(&self) {
        self.writer.close().await;
        self.readers.close().await;
    }
    fn writer_stats(&self) -> WriterStats {
        self.writer.stats()
    }

    async fn find_session(&self, scope: &Scope, session: &SessionRef) -> Result<Option<Session>> {
        self.fetch_one(sessions::find(scope, session)).await?.map(sessions::read).transpose()
    }
    async fn find_session_by_key(&self, session: SessionKey) -> Result<Option<Session>> {
        self.fetch_one(sessions::find_by_key(session)).await?.map(sessions::read).transpose()
    }
    async fn list_sessions(
        &self,
        scope: &Scope,
        filter: &SessionFilter,
        page: PageRequest<SessionId>,
    ) -> Result<Page<Session>> {
        let rows = self.fetch(sessions::list(scope, filter, &page)).await?;
        page_of(rows, page.limit, sessions::read)
    }
    async fn find_resume_state(&self, session: SessionKey) -> Result<Option<Value>> {
        match self.fetch_one(sessions::find_resume_state(session)).await? {
            Some(row) => sessions::read_resume_state(row, &self.seal),
            None => Ok(None),
        }
    }
    async fn purge_session(&self, session: SessionKey) -> Result<()> {
        self.run(sessions::purge(session)).await.map(drop)
    }

    async fn find_turn(&self, session: SessionKey, turn: &TurnId) -> Result<Option<Turn>> {
        self.fetch_one(turns::find(session, turn)).await?.map(turns::read).transpose()
    }
    async fn find_turn_at(&self, session: SessionKey, turn: Ordinal) -> Result<Option<Turn>> {
        self.fetch_one(turns::find_at(session, turn)).await?.map(turns::read).transpose()
    }
    async fn list_queued_turns(&self, session: SessionKey, limit: i64) -> Result<Vec<Turn>> {
        self.fetch(turns::list_queued(session, limit)).await?.into_iter().map(turns::read).collect()
    }
    async fn list_turns(&self, session: SessionKey, page: PageRequest<Ordinal>) -> Result<Page<Turn>> {
        let rows = self.fetch(turns::list(session, &page)).await?;
        page_of(rows, page.limit, turns::read)
    }
    async fn list_turns_from(&self, session: SessionKey, from: Ordinal, limit: i64) -> Result<Vec<Turn>> {
        self.fetch(turns::list_from(session, from, limit)).await?.into_iter().map(turns::read).collect()
    }

    async fn find_approval(&self, scope: &Scope, approval: &ApprovalId) -> Result<Option<Approval>> {
        self.fetch_one(approvals::find(scope, approval)).await?.map(approvals::read).transpose()
    }
    async fn find_session_of_approval(&self, approval: &ApprovalId) -> Result<Option<Session>> {
        self.fetch_one(sessions::find_by_approval(approval)).await?.map(sessions::read).transpose()
    }
    async fn list_approvals(
        &self,
        scope: &Scope,
        filter: &ApprovalFilter,
        page: PageRequest<ApprovalId>,
    ) -> Result<Page<Approval>> {
        let rows = self.fetch(approvals::list(scope, filter, &page)).await?;
        page_of(rows, page.limit, approvals::read)
    }
    async fn list_open_approvals(&self, session: SessionKey) -> Result<Vec<Approval>> {
        self.fetch(approvals::list_open(session)).await?.into_iter().map(approvals::read).collect()
    }
    async fn list_expired(&self, now: Timestamp, limit: i64) -> Result<Vec<SessionKey>> {
        approvals::read_expired(self.fetch(approvals::list_expired(now, limit)).await?)
    }

    async fn list_events(&self, session: SessionKey, after: i64, limit: i64) -> Result<EventPage> {
        let bounds = self.fetch_one(events::bounds(session)).await?;
        events::page(bounds, self.fetch(events::list(session, after, limit)).await?)
    }
    async fn list_turn_events(
        &self,
        session: SessionKey,
        turn: Ordinal,
        after: i64,
        limit: i64,
    ) -> Result<EventPage> {
        let bounds = self.fetch_one(events::bounds(session)).await?;
        events::page(bounds, self.fetch(events::list_of_turn(session, turn, after, limit)).await?)
    }
    fn subscribe(&self, session: SessionKey) -> Subscription {
        self.wakeups.subscribe(session)
    }
    fn subscriber_count(&self) -> usize {
        self.wakeups.count()
    }

    async fn claim(
        &self,
        session: SessionKey,
        replica: &ReplicaId,
        from: Option<&ReplicaId>,
    ) -> Result<Option<Lease>> {
        let written = self.writer.write(leases::claim(session, replica, from)).await?;
        leases::read_claim(&written, session, replica)
    }
    async fn list_held(&self, limit: i64) -> Result<Vec<HeldSession>> {
        leases::read_held(self.fetch(leases::list_held(limit)).await?)
    }
    async fn register_replica(
        &self,
        replica: &ReplicaId,
        now: Timestamp,
        expires_at: Timestamp,
    ) -> Result<()> {
        self.run([leases::register(replica, now, expires_at)]).await.map(drop)
    }
    async fn forget_replica(&self, replica: &ReplicaId) -> Result<()> {
        self.run([leases::forget(replica)]).await.map(drop)
    }

    async fn find_once(&self, org: &str, space: &str, key: &str) -> Result<Option<Seen>> {
        self.fetch_one(once::find(org, space, key)).await?.map(once::read).transpose()
    }
    async fn finish_once(&self, org: &str, space: &str, key: &str, answer: OnceAnswer) -> Result<()> {
        self.run([once::finish(org, space, key, answer)]).await.map(drop)
    }
    async fn purge_once(&self, before: Timestamp) -> Result<u64> {
        self.run([once::purge(before)]).await.map(|written| written.changed)
    }
    async fn purge_events(&self, before: Timestamp) -> Result<u64> {
        self.run([events::purge(before)]).await.map(|written| written.changed)
    }

    async fn has_keys(&self) -> Result<bool> {
        self.fetch_one(keys::any()).await.map(|row| row.is_some())
    }
    async fn insert_key(&self, key: &ApiKey) -> Result<()> {
        self.run([keys::insert(key)]).await.map(drop)
    }
    async fn find_key(&self, key: &KeyId) -> Result<Option<ApiKey>> {
        self.fetch_one(keys::find(key)).await?.map(keys::read).transpose()
    }
    async fn list_keys(&self, org: &str, page: PageRequest<KeyId>) -> Result<Page<ApiKey>> {
        let rows = self.fetch(keys::list(org, &page)).await?;
        page_of(rows, page.limit, keys::read)
    }
    async fn revoke_key(&self, org: &str, key: &KeyId, now: Timestamp) -> Result<bool> {
        self.run([keys::revoke(org, key, now)]).await.map(|written| written.changed == 1)
    }
    async fn touch_key(&self, key: &KeyId, now: Timestamp) -> Result<()> {
        self.run([keys::touch(key, now)]).await.map(drop)
    }

    async fn insert_ticket(
        &self,
        hash: &[u8],
        session: SessionKey,
        key: &KeyId,
        expires_at: Timestamp,
    ) -> Result<()> {
        self.run([tickets::insert(hash, session, key, expires_at)]).await.map(drop)
    }
    async fn take_ticket(&self, hash: &[u8], now: Timestamp) -> Result<Option<(SessionKey, KeyId)>> {
        tickets::read(self.writer.write(tickets::take(hash, now)).await?)
    }
    async fn purge_tickets(&self, now: Timestamp) -> Result<()> {
        self.run([tickets::purge(now)]).await.map(drop)
    }
}

fn page_of<T>(rows: Vec<Record>, limit: i64, read: impl Fn(Record) -> Result<T>) -> Result<Page<T>> {
    Ok(Page::of(rows.into_iter().map(read).collect::<Result<_>>()?, limit))
}

#[cfg(test)]
mod tests;
