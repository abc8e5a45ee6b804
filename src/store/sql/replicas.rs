//! The processes that work on the database, and what they must agree on. All times are the database's own: clocks of several
//! machines are not compared.

use std::time::Duration;

use super::super::dialect::{Record, Statement};
use super::super::{NewReplica, Replica};
use super::rows::Reader;
use crate::ids::ReplicaId;
use crate::store::Result;

/// For a process that no other can follow while it lives.
const FOR_EVER_MILLIS: i64 = 1 << 60;
/// How long a replica that is gone is still shown.
const SHOWN_MILLIS: i64 = 3_600_000;

pub(super) fn millis(ttl: Option<Duration>) -> i64 {
    ttl.map_or(FOR_EVER_MILLIS, |ttl| i64::try_from(ttl.as_millis()).unwrap_or(FOR_EVER_MILLIS))
}

pub(super) fn register(replica: &NewReplica, instance: &str, ttl: i64, now: &'static str) -> Statement {
    let sql = format!(
        "INSERT INTO replicas (id, instance, version, started_at, renewed_at, expires_at, draining)
         VALUES ($1, $2, $3, {now}, {now}, {now} + $4, 0)"
    );
    Statement::assembled(sql, Vec::new())
        .bind(replica.id.as_str())
        .bind(instance)
        .bind(replica.version)
        .bind(ttl)
}

/// Whoever was at this place before is dead: the place's lock is held by this process. Where the whole database can have only one
/// process, so is everybody else.
pub(super) fn expire_predecessors(replica: &ReplicaId, instance: Option<&str>) -> Statement {
    Statement::new(
        "UPDATE replicas SET expires_at = 0 WHERE id <> $1 AND instance = COALESCE($2, instance) AND expires_at > 0",
    )
    .bind(replica.as_str())
    .bind(instance)
}

/// Who has expired cannot revive: somebody may have taken its sessions over.
pub(super) fn renew(replica: &ReplicaId, ttl: i64, now: &'static str) -> Statement {
    let sql = format!(
        "UPDATE replicas SET expires_at = {now} + $2, renewed_at = {now} WHERE id = $1 AND expires_at > {now}"
    );
    Statement::assembled(sql, Vec::new()).bind(replica.as_str()).bind(ttl)
}

pub(super) fn drain(replica: &ReplicaId) -> Statement {
    Statement::new("UPDATE replicas SET draining = 1 WHERE id = $1").bind(replica.as_str())
}

pub(super) fn expire(replica: &ReplicaId) -> Statement {
    Statement::new("UPDATE replicas SET expires_at = 0, draining = 1 WHERE id = $1").bind(replica.as_str())
}

/// The row of a replica that still holds sessions stays, however long it is gone.
pub(super) fn forget(replica: &ReplicaId) -> Statement {
    Statement::new(
        "DELETE FROM replicas WHERE id = $1
            AND NOT EXISTS (SELECT 1 FROM agent_harness_sessions s WHERE s.lease_holder = replicas.id)",
    )
    .bind(replica.as_str())
}

pub(super) fn forget_old(now: &'static str) -> Statement {
    let sql = format!(
        "DELETE FROM replicas WHERE expires_at < {now} - $1 AND renewed_at < {now} - $1
            AND NOT EXISTS (SELECT 1 FROM agent_harness_sessions s WHERE s.lease_holder = replicas.id)"
    );
    Statement::assembled(sql, Vec::new()).bind(SHOWN_MILLIS)
}

pub(super) fn list(now: &'static str) -> Statement {
    let sql = format!(
        "SELECT r.id, r.instance, r.version, r.started_at, r.renewed_at, r.expires_at, r.draining, {now} AS now,
            (SELECT COUNT(*) FROM agent_harness_sessions s WHERE s.lease_holder = r.id) AS held
         FROM replicas r ORDER BY r.started_at, r.id"
    );
    Statement::assembled(sql, Vec::new())
}

pub(super) fn read(record: Record) -> Result<Replica> {
    let row = Reader::new(record, "replicas", "id");
    Ok(Replica {
        id: ReplicaId::from_row(row.text("id")?),
        instance: row.text("instance")?,
        version: row.text("version")?,
        started_at: row.time("started_at")?,
        renewed_at: row.time("renewed_at")?,
        alive: row.int("expires_at")? > row.int("now")?,
        draining: row.flag("draining")?,
        now: row.time("now")?,
        held: row.int("held")?,
    })
}

/// Sets what nobody has set yet.
pub(super) fn agree(name: &'static str, value: &str) -> Statement {
    Statement::new("INSERT INTO cluster (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING")
        .bind(name)
        .bind(value)
}

/// Sets what is still as it was seen.
pub(super) fn replace(name: &'static str, seen: &str, value: &str) -> Statement {
    Statement::new("UPDATE cluster SET value = $3 WHERE name = $1 AND value = $2")
        .bind(name)
        .bind(seen)
        .bind(value)
}

pub(super) fn count_up(name: &'static str) -> Statement {
    Statement::new("UPDATE cluster SET value = CAST(CAST(value AS BIGINT) + 1 AS TEXT) WHERE name = $1")
        .bind(name)
}

pub(super) fn agreed(name: &'static str) -> Statement {
    Statement::new("SELECT name, value FROM cluster WHERE name = $1").bind(name)
}

pub(super) fn read_agreed(record: Record) -> Result<String> {
    Reader::new(record, "cluster", "name").text("value")
}
