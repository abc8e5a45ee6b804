//! What the service does per second, and what that costs, beside the least that anything could do: `cargo bench --bench service`.
//!
//! Each measure has a *floor*, a program that does only the part that cannot be left out (one `UPDATE` and its commit, an axum
//! echo). Floor and service take turns, several rounds of them, on the same machine at the same time; a row shows the medians,
//! and as its ratio the median of the rounds' ratios. So a busy disk moves the rates and hardly the ratios. A bench reports and
//! never fails: what must hold, tests assert.
//!
//! The service runs in this process, on a database in a fresh directory, behind a real listener. HTTP load comes from a child
//! process, this program again, over loopback and kept-alive connections: a plain writer of prepared requests that costs about as
//! much for each kind. So the CPU time of this process is the server's, harness and drivers included, and the client's is not in
//! it; but they share the cores, so rates over HTTP are rates of both. Measures at the store have their callers in this process,
//! and so have their floors. Nothing runs in the background but what requests start: no recovery, no sweeper; but where agents work, all does.
//!
//! Name parts to run only those: `cargo bench --bench service -- writes single reads tokens scale start agent agents`
//! are on SQLite; `pg-writes pg-http pg-hints pg-tokens`, together `postgres`, are on a PostgreSQL that is started for them, or on
//! the one that `OSTLER_TEST_DATABASE_URL` names. Each measure takes `OSTLER_BENCH_SECONDS`, 3 where nothing is said.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a bench prints what it found and ends where it cannot go on; it takes its length from the environment"
)]

mod agent;
mod agents;
mod floor;
mod home;
mod load;
mod postgres;
mod reads;
mod report;
mod scale;
mod single;
mod start;
#[path = "../../tests/it/support/mod.rs"]
#[allow(dead_code, reason = "the tests need more of it")]
mod support;
mod tokens;
mod writes;

use std::time::Duration;

/// How often floor and service take turns.
const ROUNDS: u32 = 5;

const PARTS: [&str; 12] = [
    "writes",
    "single",
    "reads",
    "tokens",
    "scale",
    "start",
    "agent",
    "agents",
    "pg-writes",
    "pg-http",
    "pg-hints",
    "pg-tokens",
];
/// All that begin with `pg-`.
const POSTGRES: &str = "postgres";

fn main() {
    // `cargo bench` adds a flag of its own.
    let names: Vec<String> = std::env::args().skip(1).filter(|name| !name.starts_with("--")).collect();
    if names.first().is_some_and(|name| name == load::CHILD) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        return runtime.block_on(load::child());
    }
    let chosen = |part: &str| {
        let is = |name: &String| name == part || (name == POSTGRES && part.starts_with("pg-"));
        names.is_empty() || names.iter().any(is)
    };
    if let Some(unknown) = names.iter().find(|name| *name != POSTGRES && !PARTS.contains(&name.as_str())) {
        println!("no part {unknown}: there are {}, and {POSTGRES}", PARTS.join(", "));
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        report::headline();
        for part in PARTS.into_iter().filter(|part| chosen(part)) {
            match part {
                "writes" => writes::run().await,
                "single" => single::run().await,
                "reads" => reads::run().await,
                "tokens" => tokens::run().await,
                "scale" => scale::run().await,
                "start" => start::run().await,
                "agent" => agent::run().await,
                "agents" => agents::run().await,
                "pg-writes" => postgres::writes().await,
                "pg-http" => postgres::http().await,
                "pg-hints" => postgres::hints().await,
                _ => postgres::tokens().await,
            }
        }
    });
}

/// How long one measure takes, all its rounds together.
fn measure_time() -> Duration {
    let seconds = std::env::var("OSTLER_BENCH_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs_f64(seconds.filter(|seconds| (0.1..=600.0).contains(seconds)).unwrap_or(3.0))
}

/// How long one round of one measure takes.
fn round_time() -> Duration {
    measure_time() / ROUNDS
}
