//! The store on a SQL database: one file per concern, SQL beside its binds.

mod agent_files;
mod approvals;
mod catalogue;
mod events;
mod keys;
mod leases;
mod lent;
mod once;
mod open;
mod replicas;
mod rows;
mod sessions;
mod tickets;
mod turns;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use sqlx::Pool;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use self::catalogue::Planned;
pub use self::keys::ApiKey;
use self::lent::Lent;
pub use self::open::{
    Instance, Location, Migrations, StoreOptions, guarded, open, plan_every_statement, read_schema,
};
use super::dialect::{Dialect, Record, Statement};
use super::hints::Incoming;
use super::migrate;
use super::pulse::Pulse;
use super::remembered::{Remembered, Stamp};
use super::wakeup::Wakeups;
use super::writer::{Expect, LastSeq, Step, Write, Writers, Written};
use super::{
    ApprovalFilter, Change, Commit, EventPage, NewReplica, OnceAnswer, Page, PageRequest, Replica, Result,
    Schema, Seal, Seen, SessionFilter, SessionRef, Store, StoreError, StrandedSession, Subscription,
    Takeover, WriterStats,
};
use crate::clock::Timestamp;
use crate::domain::agent_files::{AgentFiles, FilesDigest};
use crate::domain::approval::Approval;
use crate::domain::event::NewEvent;
use crate::domain::lease::{Lease, LeaseRef};
use crate::domain::scope::Scope;
use crate::domain::session::Session;
use crate::domain::turn::{Ordinal, Turn};
use crate::ids::{ApprovalId, KeyId, ReplicaId, SessionId, SessionKey, TurnId};

/// How long a question may take, where it goes over a network: the database's own limit on statements, and a little more.
const READ_DEADLINE: Duration = Duration::from_secs(12);

/// A store on the database of a dialect.
pub struct SqlStore<D: Dialect> {
    readers: Pool<D::Database>,
    /// Connections for the sign of life alone, where there are others to give it to.
    heart: Option<Pool<D::Database>>,
    writers: Writers,
    wakeups: Arc<Wakeups>,
    remembered: Arc<Remembered>,
    pulse: Arc<Pulse>,
    incoming: Incoming,
    seal: Arc<Seal>,
    /// How long leases outlive the last sign of life; `None` where nobody else could take them over.
    replica_ttl: Option<Duration>,
    /// The place that this process has taken, where there may be others.
    instance: Option<String>,
    /// Versions of sessions at the last look for news.
    seen: Mutex<HashMap<SessionKey, i64>>,
    closing: CancellationToken,
    /// Held for as long as the store lives: another process is kept out.
    _lock: Option<open::FileLock>,
}

impl<D: Dialect> SqlStore<D> {
    async fn fetch(&self, statement: Statement) -> Result<Vec<Record>> {
        self.fetch_from(&self.readers, statement).await
    }

    async fn fetch_from(&self, pool: &Pool<D::Database>, statement: Statement) -> Result<Vec<Record>> {
        let mut connection = Lent::from(pool).await?;
        if !D::SHARED {
            return Ok(D::fetch(&mut connection, &statement).await?);
        }
        let late = |_| sqlx::Error::Io(std::io::ErrorKind::TimedOut.into());
        let read = tokio::time::timeout(READ_DEADLINE, D::fetch(&mut connection, &statement));
        Ok(read.await.map_err(late)??)
    }

    async fn fetch_one(&self, statement: Statement) -> Result<Option<Record>> {
        Ok(self.fetch(statement).await?.into_iter().next())
    }

    /// Reads a session's row, and remembers it.
    async fn read_session(&self, find: Statement, stamp: Option<Stamp>) -> Result<Option<Session>> {
        let Some(record) = self.fetch_one(find).await? else { return Ok(None) };
        let bytes = record.bytes();
        let session = sessions::read(record)?;
        self.remembered.keep(stamp, &session, bytes);
        Ok(Some(session))
    }

    /// Seals or opens something: where it is large, beside the threads that everybody waits for.
    async fn with_seal<T: Send + 'static>(
        &self,
        large: bool,
        work: impl FnOnce(&Seal) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if !large {
            return work(&self.seal);
        }
        let seal = Arc::clone(&self.seal);
        // This fails only at the end of the runtime.
        tokio::task::spawn_blocking(move || work(&seal)).await.map_err(|_| StoreError::Closed)?
    }

    /// Statements that are no session's change, committed together.
    async fn run(&self, statements: impl IntoIterator<Item = Statement>) -> Result<Written> {
        let steps = statements.into_iter().map(|statement| Step::new(statement, Expect::Any)).collect();
        self.writers.write(Write { steps, ..Write::default() }).await
    }

    /// Runs a statement that must not wait behind others.
    async fn run_vital(&self, statement: Statement) -> Result<u64> {
        let Some(heart) = &self.heart else {
            return self.run([statement]).await.map(|written| written.changed);
        };
        let run = async {
            let mut connection = Lent::from(heart).await?;
            Ok(D::execute(&mut connection, &statement).await?)
        };
        let late = |_| StoreError::from(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()));
        tokio::time::timeout(self.replica_ttl.unwrap_or(READ_DEADLINE) / 3, run).await.map_err(late)?
    }

    /// The lease is fresh from the moment the word was sent.
    fn note_renewal(&self, sent: Instant) {
        match self.replica_ttl {
            Some(ttl) => self.pulse.renewed(sent, ttl),
            None => self.pulse.never_ends(),
        }
    }
}

/// Every method is one call into the file of its concern.
#[async_trait]
impl<D: Dialect> Store for SqlStore<D> {
    fn is_shared(&self) -> bool {
        D::SHARED
    }
    async fn schema(&self) -> Result<Schema> {
        let applied = self.fetch(migrate::applied()).await?;
        Ok(Schema::of::<D>(&applied))
    }
    async fn commit(&self, change: Change) -> Result<Commit> {
        // A large archive takes its time to be sealed.
        let large = agent_files::are_large(&change);
        let write = self.with_seal(large, |seal| sessions::write_of(change, seal)).await?;
        self.writers.write(write).await.map(|written| written.commit)
    }
    async fn append(&self, lease: LeaseRef, events: Vec<NewEvent>) -> Result<()> {
        let (session, epoch) = (Some(lease.session()), Some(lease.epoch()));
        let written = self.writers.write(Write { session, events, epoch, ..Write::default() }).await?;
        if written.commit == Commit::Done { Ok(()) } else { Err(StoreError::LeaseLost) }
    }
    async fn close(&self) {
        self.writers.close().await;
        self.closing.cancel();
        self.readers.close().await;
        if let Some(heart) = &self.heart {
            heart.close().await;
        }
    }
    fn writer_stats(&self) -> WriterStats {
        self.writers.stats()
    }

    async fn find_session(&self, scope: &Scope, session: &SessionRef) -> Result<Option<Session>> {
        let known = match session {
            SessionRef::Id(id) => self.remembered.key_of(id),
            SessionRef::Run(_) => None,
        };
        let remembered = known.and_then(|key| self.remembered.session(key));
        // Who may not see it is told so by the table, like of one that is not there: the answers take as long.
        let shown = remembered.filter(|session| scope.covers(&session.org_id, &session.owner_id));
        if shown.is_some() {
            return Ok(shown);
        }
        let stamp = known.and_then(|key| self.remembered.stamp(key));
        self.read_session(sessions::find(scope, session), stamp).await
    }
    async fn find_session_by_key(&self, session: SessionKey) -> Result<Option<Session>> {
        let known = self.remembered.session(session);
        if known.is_some() {
            return Ok(known);
        }
        let stamp = self.remembered.stamp(session);
        self.read_session(sessions::find_by_key(session), stamp).await
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
    async fn find_agent_files_digest(&self, session: SessionKey) -> Result<Option<(FilesDigest, Timestamp)>> {
        self.fetch_one(agent_files::find_digest(session)).await?.map(agent_files::read_digest).transpose()
    }
    async fn find_agent_files(&self, session: SessionKey) -> Result<Option<AgentFiles>> {
        match self.fetch_one(agent_files::find(session)).await? {
            Some(row) => self.with_seal(true, |seal| agent_files::read(row, seal)).await.map(Some),
            None => Ok(None),
        }
    }
    async fn purge_session(&self, session: SessionKey) -> Result<()> {
        let steps = sessions::purge(session).map(|statement| Step::new(statement, Expect::Any)).into();
        self.writers.write(Write { session: Some(session), steps, ..Write::default() }).await.map(drop)
    }

    async fn find_turn(&self, session: SessionKey, turn: &TurnId) -> Result<Option<Turn>> {
        let known = self.remembered.turn(session, turn);
        if known.is_some() {
            return Ok(known);
        }
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
        from: Option<Takeover<'_>>,
    ) -> Result<Option<Lease>> {
        let written = self.writers.write(leases::claim(session, replica, from, D::NOW)).await?;
        leases::read_claim(&written, session, replica)
    }
    async fn list_stranded(&self, limit: i64) -> Result<Vec<StrandedSession>> {
        leases::read_stranded(self.fetch(leases::list_stranded(limit, D::NOW)).await?)
    }

    async fn register_replica(&self, replica: &NewReplica) -> Result<()> {
        let sent = Instant::now();
        let instance = self.instance.as_deref();
        let ttl = replicas::millis(self.replica_ttl);
        let register = replicas::register(replica, instance.unwrap_or_default(), ttl, D::NOW);
        let mut statements = vec![register];
        if instance.is_some() || !D::SHARED {
            statements.push(replicas::expire_predecessors(&replica.id, instance));
        }
        self.run(statements).await?;
        self.note_renewal(sent);
        Ok(())
    }
    async fn renew_replica(&self, replica: &ReplicaId) -> Result<bool> {
        let sent = Instant::now();
        let ttl = replicas::millis(self.replica_ttl);
        let renewed = self.run_vital(replicas::renew(replica, ttl, D::NOW)).await? == 1;
        if renewed {
            self.note_renewal(sent)
        } else {
            self.pulse.stop()
        }
        Ok(renewed)
    }
    async fn drain_replica(&self, replica: &ReplicaId) -> Result<()> {
        self.run_vital(replicas::drain(replica)).await.map(drop)
    }
    async fn forget_replica(&self, replica: &ReplicaId) -> Result<()> {
        self.pulse.stop();
        self.run([replicas::expire(replica), replicas::forget(replica)]).await.map(drop)
    }
    async fn forget_old_replicas(&self) -> Result<()> {
        self.run([replicas::forget_old(D::NOW)]).await.map(drop)
    }
    async fn list_replicas(&self) -> Result<Vec<Replica>> {
        self.fetch(replicas::list(D::NOW)).await?.into_iter().map(replicas::read).collect()
    }
    fn pulse(&self) -> &Pulse {
        &self.pulse
    }
    async fn next_hint(&self) -> SessionKey {
        self.incoming.next().await
    }
    async fn look_for_news(&self, held: &[SessionKey]) -> Result<Vec<SessionKey>> {
        let mut keys = self.wakeups.heard();
        keys.extend(held);
        keys.sort_unstable();
        keys.dedup();
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let heads = self.fetch(leases::heads(&keys, D::AMONG)).await?;
        let heads = heads.into_iter().map(leases::read_head).collect::<Result<Vec<_>>>()?;
        for (key, _, last) in &heads {
            if self.wakeups.told(*key).is_some_and(|told| told < *last) {
                self.wakeups.wake_foreign(*key, Some(*last));
            }
        }
        let now: HashMap<SessionKey, i64> = heads.iter().map(|(key, version, _)| (*key, *version)).collect();
        // Who listens to a session that was purged learns it by looking, and from nothing else.
        for gone in keys.iter().filter(|key| !now.contains_key(*key)) {
            self.wakeups.wake_foreign(*gone, None);
        }
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *seen, now);
        let is_new = |(key, version, _): &(SessionKey, i64, i64)| before.get(key) != Some(version);
        Ok(heads.into_iter().filter(is_new).map(|(key, ..)| key).filter(|key| held.contains(key)).collect())
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
        let (mut purged, mut behind) = (0, SessionKey(i64::MIN));
        loop {
            let aged = events::read_aged(self.fetch(events::list_aged(behind, before)).await?)?;
            let Some(last) = aged.last() else { return Ok(purged) };
            behind = *last;
            for session in aged {
                loop {
                    let some = self.run([events::purge(session, before)]).await?.changed;
                    purged += some;
                    if some < events::PURGED_AT_ONCE {
                        break;
                    }
                }
            }
        }
    }

    async fn has_keys(&self) -> Result<bool> {
        self.fetch_one(keys::any()).await.map(|row| row.is_some())
    }
    async fn insert_key(&self, key: &ApiKey) -> Result<()> {
        self.run([keys::insert(key)]).await.map(drop)
    }
    async fn reserve_first_key(&self, key: &KeyId, instead_of: Option<&KeyId>) -> Result<KeyId> {
        let reserve = match instead_of {
            None => replicas::agree(keys::FIRST, key.as_str()),
            Some(other) => replicas::replace(keys::FIRST, other.as_str(), key.as_str()),
        };
        self.run([reserve]).await?;
        let row = self.fetch_one(replicas::agreed(keys::FIRST)).await?;
        let row = row.ok_or(StoreError::Mismatch { table: "cluster", rows: 0 })?;
        replicas::read_agreed(row).map(KeyId::from_row)
    }
    async fn insert_first_key(&self, key: &ApiKey) -> Result<bool> {
        self.run([keys::insert_first(key)]).await.map(|written| written.changed == 1)
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
        tickets::read(self.writers.write(tickets::take(hash, now)).await?)
    }
    async fn purge_tickets(&self, now: Timestamp) -> Result<()> {
        self.run([tickets::purge(now)]).await.map(drop)
    }
}

fn page_of<T>(rows: Vec<Record>, limit: i64, read: impl Fn(Record) -> Result<T>) -> Result<Page<T>> {
    Ok(Page::of(rows.into_iter().map(read).collect::<Result<_>>()?, limit))
}
