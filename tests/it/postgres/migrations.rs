//! The schema: made once by however many start at once, finished after a death half-way, shown and applied by hand, upgraded with all
//! that is in it, and refused where it is not the one that is needed.

use std::process::Output;
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256, Sha384};
use sqlx::{AssertSqlSafe, Connection as _, SqliteConnection};
use tokio::process::{Child, Command};

use super::outage::lasts;
use crate::support::postgres::Database;
use crate::support::server::{Home, Server, free_port};
use crate::support::within;

const FIRST: [(&str, &str); 2] = [
    ("postgres", include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/migrations/postgres/0001_sessions.sql"))),
    ("sqlite", include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/migrations/sqlite/0001_sessions.sql"))),
];
/// The latest migration.
const LATEST: i64 = 3;
const LATER: &str = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
    SELECT 9999, 'later', success, checksum, execution_time FROM _sqlx_migrations WHERE version = 1";
const SECRET: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const IDLE: &str = "ses_01a22ed732c57197861dbd35902a1a89";
const RUNNING: &str = "ses_01a22ed73309774d9972e6db3c099a67";

async fn run(home: &Home, arguments: &[&str]) -> Output {
    within("the command", home.command(arguments).output()).await.unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// What `ostler migrate status` says, and its exit code.
async fn status(home: &Home) -> (String, Option<i32>) {
    let output = run(home, &["migrate", "status"]).await;
    (text(&output.stdout), output.status.code())
}

async fn status_json(home: &Home) -> (Value, Option<i32>) {
    let output = run(home, &["migrate", "status", "--json"]).await;
    (serde_json::from_slice(&output.stdout).unwrap(), output.status.code())
}

/// `ostler serve` that is to fail, and its words.
async fn refused(home: &Home, arguments: &[&str]) -> String {
    let output = run(home, &[&["serve", "--listen", "127.0.0.1:0"], arguments].concat()).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    text(&output.stderr)
}

/// Several statements on the database, which is made where there is none.
async fn sql(home: &Home, words: &str) {
    let words = sqlx::raw_sql(AssertSqlSafe(words.to_owned()));
    if let Some(database) = home.postgres() {
        words.execute(&mut database.connect().await).await.unwrap();
    } else {
        let url = format!("sqlite:{}?mode=rwc", home.database().display());
        words.execute(&mut SqliteConnection::connect(&url).await.unwrap()).await.unwrap();
    }
}

async fn one_number(database: &Database, question: &'static str) -> i64 {
    sqlx::query_scalar(question).fetch_one(&mut database.connect().await).await.unwrap()
}

/// The schema and the rows of the first version: an idle session, one whose turn was at work when its process died, and a key.
async fn first_version(home: &Home) {
    let (engine, schema) = FIRST[usize::from(home.postgres().is_none())];
    let blob = |bytes: &[u8]| {
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        if engine == "postgres" { format!("'\\x{digits}'") } else { format!("x'{digits}'") }
    };
    let (time, truth) = if engine == "postgres" { ("TIMESTAMPTZ", "true") } else { ("TIMESTAMP", "1") };
    let (checksum, hash) = (blob(&Sha384::digest(schema)), blob(&Sha256::digest(SECRET)));
    let bytes = if engine == "postgres" { "BYTEA" } else { "BLOB" };
    let workspace = |session: &str| home.workspace(session).display().to_string();
    let session = |key: i64, id: &str, status: &str, holder: &str| {
        let place = workspace(id);
        format!(
            "INSERT INTO agent_harness_sessions (session_key, id, org_id, owner_id, run_id, harness_name, title, metadata,
                permission_mode, workspace_ref, turn_seconds, approval_seconds, settings, status, turn_ordinal, turn_count,
                queued_turns, pending_approval_count, resolved_approval_ids, started, input_tokens, output_tokens,
                usage_complete, lease_holder, lease_epoch, version, created_at, updated_at, last_active_at)
             VALUES ({key}, '{id}', 'default', 'admin', 'run-{key}', 'demo', 'of the first version', '{{}}', 'ask', '{place}',
                900, 86400, '{{\"token_delay_ms\":0}}', '{status}', 1, 1, 0, 0, '[]', 0, 0, 0, 1, {holder}, 1, 4, 1000, 1000, 1000);"
        )
    };
    let turn = |key: i64, id: &str, status: &str, ends: &str| {
        format!(
            "INSERT INTO turns (session_key, ordinal, id, prompt, status, urgent, input_tokens, output_tokens, usage_complete,
                rehydrated, metadata, created_at, started_at, {})
             VALUES ({key}, 1, '{id}', '\"/say hello\"', '{status}', 0, 0, 0, 1, 0, '{{}}', 1000, 1000, {ends});
             INSERT INTO events VALUES ({key}, 1, NULL, 1000, 'session.created', '{{}}');
             INSERT INTO events VALUES ({key}, 2, 1, 1000, 'turn.queued', '{{}}');
             INSERT INTO events VALUES ({key}, 3, 1, 1000, 'turn.started', '{{}}');
             INSERT INTO events VALUES ({key}, 4, 1, 1000, 'text.delta', '{{\"text\":\"hello\"}}');",
            if status == "running" { "ended_at" } else { "stop_reason, text, ended_at" }
        )
    };
    let key = "key_01a22ed72b3670a193df3965005dad3f";
    let all = [
        format!(
            "CREATE TABLE _sqlx_migrations (version BIGINT PRIMARY KEY, description TEXT NOT NULL,
                installed_on {time} NOT NULL DEFAULT CURRENT_TIMESTAMP, success BOOLEAN NOT NULL, checksum {bytes} NOT NULL,
                execution_time BIGINT NOT NULL);"
        ),
        schema.to_owned(),
        format!(
            "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
             VALUES (1, '0001_sessions', {truth}, {checksum}, 1);
             INSERT INTO replicas (id, started_at, expires_at) VALUES ('rep_of_the_first_version', 1000, 2000);
             INSERT INTO api_keys (id, org_id, role, permissions, secret_hash, created_at)
             VALUES ('{key}', 'default', 'admin', 'sessions:read sessions:write approvals:decide admin', {hash}, 1000);"
        ),
        session(1, IDLE, "idle", "NULL"),
        turn(1, "trn_01a22ed732c57197861dbd367f4c09a4", "completed", "'end_turn', 'hello', 1000"),
        "INSERT INTO events VALUES (1, 5, 1, 1000, 'turn.completed', '{\"stop_reason\":\"end_turn\"}');".to_owned(),
        session(2, RUNNING, "running", "'rep_of_the_first_version'"),
        turn(2, "trn_01a22ed73309774d9972e6dc936be071", "running", "NULL"),
    ];
    sql(home, &all.join("\n")).await;
    std::fs::write(home.path().join("admin.key"), format!("ostler_{key}_{SECRET}\n")).unwrap();
}

fn on_both() -> [Home; 2] {
    [Home::on_postgres(), Home::on_sqlite()]
}

/// Starts four replicas at once, each completed by the caller.
async fn start_four(home: &Home, complete: impl Fn(usize, &mut Command)) -> Vec<Server> {
    let starting = (0..4).map(|n| {
        let complete = &complete;
        home.start_as(free_port(), move |command: &mut Command| {
            command.args(["--instance", &format!("r{n}")]);
            complete(n, command);
        })
    });
    futures_util::future::join_all(starting).await
}

/// Starts four replicas at once on a database that has its schema and no key. No key can be made until all of them have come as far
/// as to want one.
async fn start_four_without_a_key(home: &Home, complete: impl Fn(usize, &mut Command)) -> Vec<Server> {
    assert!(run(home, &["migrate", "up"]).await.status.success());
    let mut thief = home.postgres().unwrap().connect().await;
    sqlx::raw_sql("BEGIN; LOCK TABLE api_keys IN SHARE MODE").execute(&mut thief).await.unwrap();
    let release = async {
        wait_for_a_lock(home).await;
        // One waits; others may wait for that one, which shows nowhere.
        lasts(Duration::from_secs(1)).await;
        sqlx::raw_sql("ROLLBACK").execute(&mut thief).await.unwrap();
    };
    tokio::join!(start_four(home, complete), release).0
}

/// Returns when a process of the service waits for a lock.
async fn wait_for_a_lock(home: &Home) {
    let waiting = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'ostler' AND wait_event_type = 'Lock'";
    let mut beside = home.postgres().unwrap().connect().await;
    within("somebody to wait for a lock", async {
        while sqlx::query_scalar::<_, i64>(waiting).fetch_one(&mut beside).await.unwrap() == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

async fn assert_one_key_works(home: &Home, replicas: &[Server], key: &str) {
    let shown: Vec<&String> = replicas
        .iter()
        .flat_map(|replica| &replica.greeting)
        .filter(|line| line.contains("ostler_key_"))
        .collect();
    assert_eq!(shown.len(), 1, "{shown:?}");
    assert!(shown[0].contains(key.trim()), "the key that was shown is not the one that was kept");
    let session = replicas[0].api_with(key.trim()).create("/say x").await;
    for replica in replicas {
        let api = replica.api_with(key.trim());
        assert_eq!(api.session(session["id"].as_str().unwrap()).await["turn"]["text"], "x");
        assert_eq!(api.get("/readyz").await.status, 200);
    }
    let database = home.postgres().unwrap();
    assert_eq!(one_number(database, "SELECT count(*) FROM _sqlx_migrations").await, LATEST);
    assert_eq!(one_number(database, "SELECT count(*) FROM api_keys").await, 1);
}

#[tokio::test]
async fn f56_four_replicas_that_start_at_once_on_an_empty_database_make_one_schema_and_one_key() {
    for _ in 0..2 {
        let home = Home::on_postgres();
        let replicas = start_four(&home, |_, _| {}).await;
        let key = std::fs::read_to_string(home.path().join("admin.key")).unwrap();
        assert_one_key_works(&home, &replicas, &key).await;
    }
}

#[tokio::test]
async fn four_replicas_in_one_directory_that_all_find_no_key_make_one() {
    let home = Home::on_postgres();
    let replicas = start_four_without_a_key(&home, |_, _| {}).await;
    let key = std::fs::read_to_string(home.path().join("admin.key")).unwrap();
    assert_one_key_works(&home, &replicas, &key).await;
}

#[tokio::test]
async fn four_replicas_in_directories_of_their_own_that_all_find_no_key_make_one() {
    let home = Home::on_postgres();
    // Where a started server's key is looked for; each replica has its own place.
    std::fs::write(home.path().join("admin.key"), "").unwrap();
    let directories: Vec<_> = (0..4).map(|_| tempfile::tempdir().unwrap()).collect();
    let there = |n: usize, command: &mut Command| {
        command.env("OSTLER_DATA_DIR", directories[n].path()).env("OSTLER_SEAL_KEY", SECRET);
    };
    let replicas = start_four_without_a_key(&home, there).await;
    let files = directories.iter().map(|directory| directory.path().join("admin.key"));
    let kept: Vec<String> = files.filter_map(|file| std::fs::read_to_string(file).ok()).collect();
    let [key] = kept.as_slice() else { panic!("{kept:?}") };
    assert_one_key_works(&home, &replicas, key).await;
}

/// `ostler serve`, which will not get as far as to listen.
fn start_in_vain(home: &Home) -> Child {
    home.command(&["serve", "--listen", "127.0.0.1:0", "--log", "warn"]).spawn().unwrap()
}

#[tokio::test]
async fn f56_a_migration_that_was_killed_half_way_is_completed_by_the_next_start() {
    let home = Home::on_postgres();
    first_version(&home).await;
    // The same table, made by somebody who has not committed: the migration has changed one table when it comes to wait for this.
    let mut thief = home.postgres().unwrap().connect().await;
    sqlx::raw_sql("BEGIN; CREATE TABLE cluster (n BIGINT)").execute(&mut thief).await.unwrap();
    let mut starting = start_in_vain(&home);
    wait_for_a_lock(&home).await;
    let (shown, code) = status(&home).await;
    assert_eq!(code, Some(3), "{shown}");
    starting.kill().await.unwrap();
    sqlx::raw_sql("ROLLBACK").execute(&mut thief).await.unwrap();
    let (shown, code) = status(&home).await;
    assert!(code == Some(3) && shown.contains("missing  0002_replicas"), "{shown}");
    let server = home.start().await;
    let (shown, code) = status(&home).await;
    assert!(code == Some(0) && shown.contains("applied  0002_replicas"), "{shown}");
    assert_eq!(server.api().get("/readyz").await.status, 200);
    assert_eq!(server.api().session(IDLE).await["turn"]["text"], "hello");
}

#[tokio::test]
async fn a_migration_that_somebody_is_in_the_way_of_waits_and_is_done_then() {
    let home = Home::on_postgres();
    first_version(&home).await;
    let mut thief = home.postgres().unwrap().connect().await;
    sqlx::raw_sql("BEGIN; LOCK TABLE replicas IN ACCESS SHARE MODE").execute(&mut thief).await.unwrap();
    let release = async {
        // Longer than a statement waits for a lock.
        lasts(Duration::from_secs(6)).await;
        sqlx::raw_sql("ROLLBACK").execute(&mut thief).await.unwrap();
    };
    let (up, ()) = tokio::join!(run(&home, &["migrate", "up"]), release);
    assert!(up.status.success(), "{up:?}");
    assert!(
        text(&up.stdout).ends_with("the database has schema 3, this program knows 3: current\n"),
        "{up:?}"
    );
}

#[tokio::test]
async fn what_is_missing_is_shown_and_applied_by_hand() {
    for home in on_both() {
        first_version(&home).await;
        let (shown, code) = status(&home).await;
        assert_eq!(code, Some(3), "{shown}");
        assert_eq!(
            shown,
            "applied  0001_sessions\nmissing  0002_replicas\nmissing  0003_agents\n\
             the database has schema 1, this program knows 3: behind\n"
        );
        let migrations = |later: bool| {
            json!([{"version": 1, "name": "0001_sessions", "applied": true},
                   {"version": 2, "name": "0002_replicas", "applied": later},
                   {"version": 3, "name": "0003_agents", "applied": later}])
        };
        let behind = json!({"state": "behind", "found": 1, "known": 3, "migrations": migrations(false)});
        assert_eq!(status_json(&home).await, (behind, Some(3)));
        let up = run(&home, &["migrate", "up", "--json"]).await;
        assert!(up.status.success(), "{up:?}");
        let current = json!({"state": "current", "found": 3, "known": 3, "migrations": migrations(true)});
        assert_eq!(serde_json::from_slice::<Value>(&up.stdout).unwrap(), current);
        assert_eq!(status_json(&home).await, (current, Some(0)));
        let again = run(&home, &["migrate", "up"]).await;
        assert!(again.status.success() && text(&again.stdout).ends_with("current\n"), "{again:?}");
    }
}

#[tokio::test]
async fn an_empty_database_is_shown_as_such_and_filled_by_hand() {
    let home = Home::on_postgres();
    let (shown, code) = status(&home).await;
    assert!(
        code == Some(3) && shown.ends_with("the database has schema 0, this program knows 3: behind\n"),
        "{shown}"
    );
    let database = home.postgres().unwrap();
    let tables = "SELECT count(*) FROM information_schema.tables WHERE table_schema = 'public'";
    assert_eq!(one_number(database, tables).await, 0, "looking makes nothing");
    assert!(run(&home, &["migrate", "up"]).await.status.success());
    assert_eq!(status(&home).await.1, Some(0));
    // Where a file would have to be made to be looked at, that is said instead.
    let home = Home::on_sqlite();
    let output = run(&home, &["migrate", "status"]).await;
    assert!(
        output.status.code() == Some(1) && text(&output.stderr).contains("there is no database"),
        "{output:?}"
    );
    assert!(!home.database().exists());
    assert!(run(&home, &["migrate", "up"]).await.status.success());
    assert_eq!(status(&home).await.1, Some(0));
}

#[tokio::test]
async fn who_is_not_to_migrate_refuses_what_is_behind_and_works_with_what_is_current() {
    for home in on_both() {
        let words = refused(&home, &["--no-migrate"]).await;
        assert!(words.contains("schema 0") && words.contains("`ostler migrate up`"), "{words}");
        first_version(&home).await;
        let words = refused(&home, &["--no-migrate"]).await;
        assert!(words.contains("schema 1") && words.contains("`ostler migrate up`"), "{words}");
        assert_eq!(status(&home).await.1, Some(3), "it was not migrated");
        assert!(run(&home, &["migrate", "up"]).await.status.success());
        let home = home.with(&["--no-migrate"]);
        home.start().await.api().create("/say x").await;
    }
}

#[tokio::test]
async fn f40_a_replica_works_on_beside_a_newer_schema_and_none_starts_on_one() {
    for home in on_both() {
        let server = home.start().await;
        let api = server.api();
        let session = api.create("/say x").await;
        sql(&home, LATER).await;
        assert_eq!(api.get("/readyz").await.status, 200);
        assert_eq!(api.prompt(session["id"].as_str().unwrap(), "/say y").await["text"], "y");
        api.create("/say z").await;
        let (shown, code) = status(&home).await;
        assert!(code == Some(3) && shown.ends_with("schema 9999, this program knows 3: newer\n"), "{shown}");
        assert_eq!(status_json(&home).await.0["state"], "newer");
        server.kill().await;
        for flags in [&[][..], &["--no-migrate"]] {
            let words = refused(&home, flags).await;
            assert!(words.contains("schema 9999") && words.contains("newer ostler"), "{words}");
        }
        let up = run(&home, &["migrate", "up"]).await;
        assert!(!up.status.success() && text(&up.stderr).contains("newer ostler"), "{up:?}");
    }
}

#[tokio::test]
async fn f40_a_database_of_the_first_version_is_upgraded_with_all_that_is_in_it() {
    for home in on_both() {
        first_version(&home).await;
        let server = home.start().await;
        let api = server.api();
        let idle = api.session(IDLE).await;
        assert_eq!(
            (idle["status"].as_str(), idle["turn"]["text"].as_str(), idle["title"].as_str()),
            (Some("idle"), Some("hello"), Some("of the first version"))
        );
        assert_eq!(api.events(IDLE).await.len(), 5);
        let row = api.until_status(RUNNING, "idle").await;
        assert_eq!(row["turn"]["status"], "interrupted");
        for session in [IDLE, RUNNING] {
            assert_eq!(api.prompt(session, "/say again").await["text"], "again");
        }
        if home.postgres().is_none() {
            // One process at a time has a database in a file.
            continue;
        }
        // A replica of the version before writes beside: the columns that it knows are enough.
        let beside = "INSERT INTO replicas (id, started_at, expires_at) VALUES ('rep_beside', 1000, 9000000000000);
            UPDATE agent_harness_sessions SET title = 'by the version before' WHERE session_key = 1;
            INSERT INTO events (session_key, seq, turn, at, kind, data)
            SELECT 1, MAX(seq) + 1, NULL, 1000, 'activity', '{\"label\":\"by the version before\"}' FROM events WHERE session_key = 1";
        sql(&home, beside).await;
        let listed = text(&run(&home, &["replicas", "--json"]).await.stdout);
        let old = listed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let old = old.into_iter().find(|replica| replica["id"] == "rep_beside").unwrap();
        assert_eq!((old["state"].as_str(), old["instance"].as_str()), (Some("alive"), Some("-")));
        assert_eq!(api.session(IDLE).await["title"], "by the version before");
        assert_eq!(api.prompt(IDLE, "/say on").await["text"], "on");
        let seqs: Vec<i64> =
            api.events(IDLE).await.iter().map(|event| event["seq"].as_i64().unwrap()).collect();
        assert_eq!(seqs, (1..=seqs.len() as i64).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn a_migration_that_is_not_the_one_that_was_applied_is_told_and_nothing_is_changed() {
    for home in on_both() {
        first_version(&home).await;
        let other = if home.postgres().is_some() { "'\\x00'" } else { "x'00'" };
        sql(&home, &format!("UPDATE _sqlx_migrations SET checksum = {other} WHERE version = 1")).await;
        let words = refused(&home, &[]).await;
        assert!(words.contains("migrating the database failed") && words.contains("migration 1"), "{words}");
        assert_eq!(status_json(&home).await.0["found"], 1);
    }
}

#[tokio::test]
async fn f55_a_database_that_went_back_is_refused_until_a_person_says_that_it_is_meant() {
    let home = Home::on_postgres();
    home.start().await.kill().await;
    home.start().await.kill().await;
    sql(&home, "UPDATE cluster SET value = '0' WHERE name = 'joins'").await;
    let words = refused(&home, &[]).await;
    assert!(words.contains("older than this replica has seen it"), "{words}");
    let file = words.trim().rsplit_once("remove ").unwrap().1;
    assert!(std::path::Path::new(file).starts_with(home.path()), "{words}");
    // Refusing does not wear the refusal out.
    for _ in 0..2 {
        sql(&home, "UPDATE cluster SET value = '0' WHERE name = 'joins'").await;
        assert!(refused(&home, &[]).await.contains(file));
    }
    // Another place has seen nothing.
    let named = |command: &mut Command| {
        command.args(["--instance", "another"]);
    };
    home.start_as(0, named).await.api().create("/say x").await;
    sql(&home, "UPDATE cluster SET value = '0' WHERE name = 'joins'").await;
    std::fs::remove_file(file).unwrap();
    home.start().await.api().create("/say x").await;
}

#[tokio::test]
async fn nothing_is_left_waiting_of_a_start_that_was_killed() {
    let home = Home::on_postgres();
    first_version(&home).await;
    let mut thief = home.postgres().unwrap().connect().await;
    sqlx::raw_sql("BEGIN; LOCK TABLE replicas IN ACCESS SHARE MODE").execute(&mut thief).await.unwrap();
    let mut starting = start_in_vain(&home);
    wait_for_a_lock(&home).await;
    starting.kill().await.unwrap();
    // What it had taken in its directory is free again, and so is what waits in the database once it may go on.
    sqlx::raw_sql("ROLLBACK").execute(&mut thief).await.unwrap();
    home.start().await.api().get("/v1/me").await.expect(200);
}
