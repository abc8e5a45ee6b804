//! A cold start of the real program on a data directory that is there already, and what it takes while nobody asks.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

use super::report::{Sample, Series, Target, row};

const STARTS: usize = 10;

pub async fn run() {
    let directory = tempfile::tempdir().unwrap();
    // The first start makes the database.
    end(start(directory.path()).await.1).await;
    let mut times = Series::default();
    let mut memory = Vec::new();
    for _ in 0..STARTS {
        let (took, mut child) = start(directory.path()).await;
        times.push(Sample { p50: took.as_secs_f64() * 1e6, ..Sample::default() });
        tokio::time::sleep(Duration::from_millis(100)).await;
        memory.push(resident(&child));
        child = end(child).await;
        drop(child);
    }
    let millis = times.median(|s| s.p50) / 1000.0;
    row("start until ready, ms in the ratio's place", &times, Some(millis), Target::AtMost(100.0));
    let megabytes = super::report::median(memory);
    row("idle memory, MB in the ratio's place", &Series::default(), Some(megabytes), Target::AtMost(30.0));
}

/// Starts the service and returns once it says that it is ready.
async fn start(directory: &Path) -> (Duration, Child) {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let begun = Instant::now();
    let mut child = Command::new(env!("CARGO_BIN_EXE_ostler"))
        .args(["serve", "--listen", &address, "--log", "warn"])
        .env_clear()
        .env("OSTLER_DATA_DIR", directory)
        .current_dir(directory)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    while !is_ready(&address).await {
        assert!(child.try_wait().unwrap().is_none(), "the service did not start");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let took = begun.elapsed();
    // Its greeting is read so that it never waits for a reader.
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    (took, child)
}

async fn is_ready(address: &str) -> bool {
    let Ok(mut socket) = TcpStream::connect(address).await else { return false };
    let request = "GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let mut answer = String::new();
    socket.write_all(request.as_bytes()).await.is_ok()
        && socket.read_to_string(&mut answer).await.is_ok()
        && answer.starts_with("HTTP/1.1 200")
}

/// Resident memory in MB.
fn resident(child: &Child) -> f64 {
    let path = format!("/proc/{}/status", child.id().unwrap());
    let status = std::fs::read_to_string(path).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kibibytes.unwrap_or(f64::NAN) * 1024.0 / 1e6
}

async fn end(mut child: Child) -> Child {
    child.kill().await.unwrap();
    child
}
