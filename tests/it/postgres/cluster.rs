//! The PostgreSQL of the tests: it can be hurt, and nothing is left of it.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use crate::support::postgres::{Cluster, Database, shared};
use crate::support::processes::{children_of, eventually, is_alive};
use crate::support::within;

/// Makes this test of a child process start a server and wait for its death.
const VICTIM: &str = "OSTLER_TEST_VICTIM";

async fn rows(database: &Database) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM kept").fetch_one(&mut database.connect().await).await.unwrap()
}

#[tokio::test]
async fn a_server_that_was_killed_or_stopped_comes_back_with_all_that_was_committed() {
    let cluster = Cluster::start().await;
    let database = cluster.database().await;
    database.execute("CREATE TABLE kept (n BIGINT)").await;
    database.execute("INSERT INTO kept VALUES (1)").await;
    cluster.kill().await;
    assert!(std::net::TcpStream::connect(cluster.address()).is_err(), "it is gone");
    cluster.start_again().await;
    database.execute("INSERT INTO kept VALUES (2)").await;
    cluster.stop_immediate().await;
    cluster.start_again().await;
    let mut connected = database.connect().await;
    cluster.restart().await;
    assert!(sqlx::query("SELECT 1").execute(&mut connected).await.is_err(), "its connection has ended");
    assert_eq!(rows(&database).await, 2);
}

#[tokio::test]
async fn an_operator_can_end_every_connection_and_the_server_goes_on() {
    let cluster = Cluster::start().await;
    let database = cluster.database().await;
    let mut connected = database.connect().await;
    cluster.terminate_backends().await;
    assert!(sqlx::query("SELECT 1").execute(&mut connected).await.is_err());
    sqlx::query("SELECT 1").execute(&mut database.connect().await).await.unwrap();
}

#[tokio::test]
async fn each_test_has_a_database_of_its_own_which_goes_with_it() {
    let cluster = shared().await;
    let (one, other) = (cluster.database().await, cluster.database().await);
    for database in [&one, &other] {
        database.execute("CREATE TABLE kept (n BIGINT)").await;
    }
    one.execute("INSERT INTO kept VALUES (1)").await;
    assert_eq!((rows(&one).await, rows(&other).await), (1, 0));
    let name = other.url.rsplit('/').next().unwrap().to_owned();
    drop(other);
    let there = sqlx::query("SELECT 1 FROM pg_database WHERE datname = $1").bind(name);
    assert!(there.fetch_optional(&mut one.connect().await).await.unwrap().is_none());
}

#[tokio::test]
async fn nothing_is_left_of_a_server_when_the_tests_are_killed() {
    if std::env::var_os(VICTIM).is_some() {
        let cluster = Cluster::start().await;
        writeln!(std::io::stdout(), "\n{}", cluster.directory().display()).unwrap();
        return std::future::pending().await;
    }
    let mut tests = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "postgres::cluster::nothing_is_left_of_a_server_when_the_tests_are_killed"])
        .env(VICTIM, "1")
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(tests.stdout.take().unwrap()).lines();
    let directory = within("the server of the other tests", async {
        loop {
            let line = lines.next_line().await.unwrap().unwrap();
            if line.starts_with('/') {
                return PathBuf::from(line);
            }
        }
    })
    .await;
    let pidfile = std::fs::read_to_string(directory.join("data/postmaster.pid")).unwrap();
    let postmaster = pidfile.lines().next().unwrap().parse().unwrap();
    let server: Vec<u32> = children_of(postmaster).into_iter().chain([postmaster]).collect();
    assert!(server.len() > 3, "{server:?}");
    tests.kill().await.unwrap();
    eventually("the server to die", || !server.iter().any(|pid| is_alive(*pid))).await;
    eventually("its files to go", || !directory.exists()).await;
}
