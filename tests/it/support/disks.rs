//! Replicas without a disk in common.

use std::path::Path;

use tempfile::TempDir;
use tokio::process::Command;

use super::processes;
use super::server::{Home, Server};

/// As short as a busy machine allows.
const TTL: &[&str] = &["--replica-ttl-seconds", "4"];
const SEAL_KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// Two replicas that have the database in common, and nothing else. One runs at a time, so that it is known which has a session.
pub struct Disks {
    pub home: Home,
    other: TempDir,
}

impl Disks {
    pub fn of(home: Home) -> Self {
        let home = home.with(TTL).with_variable("OSTLER_SEAL_KEY", SEAL_KEY);
        Self { home, other: tempfile::tempdir().unwrap() }
    }

    /// Starts the one that is called `a`, or `b`.
    pub async fn start(&self, name: &str) -> Server {
        let disk = self.disk(name);
        let on_disk = |command: &mut Command| {
            command.args(["--instance", name]).env("OSTLER_DATA_DIR", disk);
        };
        self.home.start_as(0, on_disk).await
    }

    pub fn disk(&self, name: &str) -> &Path {
        if name == "a" { self.home.path() } else { self.other.path() }
    }

    /// Loses what sessions have on a disk, as a machine is lost: whoever was at work there goes with it.
    pub async fn lose(&self, name: &str) {
        processes::ended_with_home_below(self.disk(name)).await;
        for part in ["agents", "workspaces"] {
            std::fs::remove_dir_all(self.disk(name).join(part)).unwrap();
        }
    }

    /// What the database has: digest and time.
    pub async fn stored(&self, session: &str) -> Option<(String, i64)> {
        let sql = "SELECT digest, stored_at FROM agent_files JOIN agent_harness_sessions USING (session_key) WHERE id = $1";
        let mut connection = self.home.postgres().unwrap().connect().await;
        sqlx::query_as(sql).bind(session).fetch_optional(&mut connection).await.unwrap()
    }

    /// How many bytes that is.
    pub async fn size(&self, session: &str) -> i64 {
        let sql = "SELECT octet_length(content)::BIGINT FROM agent_files JOIN agent_harness_sessions USING (session_key)
            WHERE id = $1";
        let mut connection = self.home.postgres().unwrap().connect().await;
        sqlx::query_scalar(sql).bind(session).fetch_one(&mut connection).await.unwrap()
    }
}
