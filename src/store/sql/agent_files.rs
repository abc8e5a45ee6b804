//! The files in which agents keep their memory: one sealed archive for a session.

use super::super::dialect::{Record, Statement};
use super::super::{Change, Seal, Sealed, StoreError, Target};
use super::rows::Reader;
use super::{Expect, Step};
use crate::clock::Timestamp;
use crate::domain::agent_files::{AgentFiles, FilesDigest};
use crate::ids::{SessionId, SessionKey};
use crate::store::Result;

const TABLE: &str = "agent_files";

/// From how many bytes on others should not wait for their commit, which takes ten times that of a small row.
const LARGE: usize = 128 << 10;

/// Whether a change stores so many that it takes its time.
pub(super) fn are_large(change: &Change) -> bool {
    matches!(&change.set.agent_files, Some(Some(files)) if files.content.len() > LARGE)
}

/// What a change does with the files, if it does anything. Only a session that exists has any.
pub(super) fn write(change: &mut Change, seal: &Seal) -> Result<Option<Step>> {
    let Target::Existing { key, id, org, .. } = &change.target else { return Ok(None) };
    Ok(match change.set.agent_files.take() {
        None => None,
        Some(None) => Some(Step::new(erase(*key), Expect::Any)),
        Some(Some(files)) => {
            let sealed = seal.seal(Sealed::AgentFiles, org, id, &files.content)?;
            let put = put(*key, &files.digest, sealed, change.set.at);
            Some(Step::new(put, Expect::One(TABLE)))
        }
    })
}

pub(super) fn put(session: SessionKey, digest: &FilesDigest, sealed: Vec<u8>, at: Timestamp) -> Statement {
    Statement::new(
        "INSERT INTO agent_files (session_key, digest, content, stored_at) VALUES ($1, $2, $3, $4)
         ON CONFLICT (session_key) DO UPDATE
            SET digest = excluded.digest, content = excluded.content, stored_at = excluded.stored_at",
    )
    .bind(session)
    .bind(digest.as_str())
    .bind(sealed)
    .bind(at)
}

pub(super) fn erase(session: SessionKey) -> Statement {
    Statement::new("DELETE FROM agent_files WHERE session_key = $1").bind(session)
}

pub(super) fn find_digest(session: SessionKey) -> Statement {
    Statement::new("SELECT session_key, digest, stored_at FROM agent_files WHERE session_key = $1")
        .bind(session)
}

pub(super) fn read_digest(record: Record) -> Result<(FilesDigest, Timestamp)> {
    let row = Reader::new(record, TABLE, "session_key");
    Ok((FilesDigest::from_row(row.text("digest")?), row.time("stored_at")?))
}

pub(super) fn find(session: SessionKey) -> Statement {
    Statement::new(
        "SELECT f.session_key, s.id, s.org_id, f.digest, f.content
         FROM agent_files f JOIN agent_harness_sessions s ON s.session_key = f.session_key
         WHERE f.session_key = $1",
    )
    .bind(session)
}

pub(super) fn read(record: Record, seal: &Seal) -> Result<AgentFiles> {
    let row = Reader::new(record, TABLE, "session_key");
    let id = SessionId::from_row(row.text("id")?);
    let org = row.text("org_id")?;
    let digest = FilesDigest::from_row(row.text("digest")?);
    let sealed = row.opt_blob("content")?.ok_or_else(|| row.corrupt("content", "is null"))?;
    let content = seal.open(Sealed::AgentFiles, &org, &id, &sealed).map_err(StoreError::Seal)?;
    Ok(AgentFiles { digest, content: content.into() })
}
