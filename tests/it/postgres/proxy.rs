//! The proxy of the tests: each of its faults is the one that it claims to be.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use sqlx::{Connection as _, PgConnection};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::support::postgres::{Database, shared};
use crate::support::proxy::Proxy;
use crate::support::within;

/// Long enough for what is on its way on a loopback to arrive.
const MOMENT: Duration = Duration::from_millis(100);

/// A proxy in front of what says everything back.
async fn echo() -> Proxy {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                drop(tokio::io::copy(&mut from, &mut to).await);
            });
        }
    });
    Proxy::to(address)
}

async fn connect(proxy: &Proxy) -> TcpStream {
    TcpStream::connect(proxy.address()).await.unwrap()
}

async fn says(stream: &mut TcpStream, words: &[u8]) {
    let mut heard = vec![0; words.len()];
    within("the echo", stream.read_exact(&mut heard)).await.unwrap();
    assert_eq!(heard, words);
}

async fn is_silent(stream: &mut TcpStream) -> bool {
    tokio::time::timeout(MOMENT, stream.read_u8()).await.is_err()
}

async fn is_reset(mut stream: TcpStream) -> bool {
    let end = within("the end", stream.read_u8()).await;
    end.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset)
}

#[tokio::test]
async fn what_is_late_is_late_by_the_delay_both_ways_however_much_is_on_its_way() {
    let proxy = echo().await;
    let mut stream = connect(&proxy).await;
    proxy.delay(MOMENT).await;
    let begin = Instant::now();
    for word in ["one ", "two ", "three"] {
        stream.write_all(word.as_bytes()).await.unwrap();
        tokio::task::yield_now().await;
    }
    says(&mut stream, b"one two three").await;
    let late = begin.elapsed();
    assert!(late >= 2 * MOMENT, "{late:?}");
    proxy.pass().await;
    stream.write_all(b"x").await.unwrap();
    says(&mut stream, b"x").await;
}

#[tokio::test]
async fn what_a_half_open_connection_holds_arrives_when_it_passes_again() {
    let proxy = echo().await;
    let mut before = connect(&proxy).await;
    before.write_all(b"1").await.unwrap();
    says(&mut before, b"1").await;
    proxy.half_open().await;
    let mut meanwhile = connect(&proxy).await;
    for stream in [&mut before, &mut meanwhile] {
        stream.write_all(b"held").await.unwrap();
        assert!(is_silent(stream).await);
    }
    proxy.pass().await;
    for stream in [&mut before, &mut meanwhile] {
        says(stream, b"held").await;
    }
    assert_eq!(proxy.accepted(), 2);
}

#[tokio::test]
async fn a_cut_resets_what_is_there_and_refuses_what_comes_until_it_passes_again() {
    let proxy = echo().await;
    let mut before = connect(&proxy).await;
    before.write_all(b"1").await.unwrap();
    says(&mut before, b"1").await;
    proxy.cut().await;
    assert!(is_reset(before).await);
    let refused = TcpStream::connect(proxy.address()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    proxy.pass().await;
    let mut after = connect(&proxy).await;
    after.write_all(b"2").await.unwrap();
    says(&mut after, b"2").await;
    proxy.reset_once().await;
    assert!(is_reset(after).await);
    let mut again = connect(&proxy).await;
    again.write_all(b"3").await.unwrap();
    says(&mut again, b"3").await;
}

async fn table_of(database: &Database, proxy: &Proxy) -> PgConnection {
    database.execute("CREATE TABLE kept (n BIGINT)").await;
    within("a connection", PgConnection::connect(&proxy.url(database))).await.unwrap()
}

async fn rows(connection: &mut PgConnection) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM kept").fetch_one(connection).await.unwrap()
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_was_kept() {
    let cluster = shared().await;
    let (proxy, database) = (Proxy::start(cluster), cluster.database().await);
    let mut connection = table_of(&database, &proxy).await;
    let mut work = connection.begin().await.unwrap();
    sqlx::query("INSERT INTO kept VALUES (1)").execute(&mut *work).await.unwrap();
    let ((), answer) = tokio::join!(proxy.lose_answer("COMMIT"), work.commit());
    assert!(answer.is_err());
    assert_eq!(rows(&mut database.connect().await).await, 1);
    let mut next = PgConnection::connect(&proxy.url(&database)).await.unwrap();
    assert_eq!(rows(&mut next).await, 1, "only one is lost");
}

#[tokio::test]
async fn what_is_said_to_a_deaf_connection_is_done_and_not_answered() {
    let cluster = shared().await;
    let (proxy, database) = (Proxy::start(cluster), cluster.database().await);
    let mut connection = table_of(&database, &proxy).await;
    // Known already, so that it is one message and one answer.
    let insert = "INSERT INTO kept VALUES (1)";
    sqlx::query(insert).execute(&mut connection).await.unwrap();
    proxy.deaf().await;
    let said = tokio::spawn(async move { sqlx::query(insert).execute(&mut connection).await });
    let mut beside = database.connect().await;
    within("the row", async { while rows(&mut beside).await < 2 {} }).await;
    assert!(!said.is_finished());
    proxy.cut().await;
    assert!(said.await.unwrap().is_err());
}
