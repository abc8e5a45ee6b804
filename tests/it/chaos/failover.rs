//! How long a session is without a holder when its replica is killed.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};

use super::count;
use crate::replicas::{begin, idle_at};
use crate::support::bound;
use crate::support::fleet::Fleet;

const TTL: Duration = Duration::from_secs(3);
const FLAGS: &[&str] = &["--replica-ttl-seconds", "3"];

/// A session of that replica, and of no other that was faster to take it up, with a turn at work.
async fn hanging(fleet: &Fleet, holder: usize) -> String {
    let session = idle_at(fleet, holder).await;
    begin(&fleet.api(holder), &session, "/say on\n/hang").await;
    session
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_replicas_turn_ends_elsewhere_within_its_time_to_live_and_a_second() {
    let rounds = usize::try_from(count("OSTLER_FAILOVERS", 3)).unwrap();
    let mut fleet = Fleet::of(3).with(FLAGS).start().await;
    let mut took = Vec::new();
    for round in 0..rounds {
        let (victim, witness) = (round % 3, (round + 1) % 3);
        let session = hanging(&fleet, victim).await;
        let mut stream = fleet.api(witness).follow(&session, "?after=1").await;
        fleet.kill(victim).await;
        let killed = Instant::now();
        stream.until("turn.interrupted").await;
        took.push(killed.elapsed());
        fleet.restart(victim).await;
    }
    took.sort_unstable();
    let p99 = took[(took.len() * 99).div_ceil(100) - 1];
    println!(
        "failover of {rounds}: median {:?}, p99 {p99:?}, longest {:?}",
        took[rounds / 2],
        took[rounds - 1]
    );
    assert!(p99 <= bound("OSTLER_FAILOVERS", TTL + Duration::from_secs(1)), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_sessions_of_a_killed_replica_are_taken_over_in_one_pass() {
    let sessions = count("OSTLER_FAILOVER_SESSIONS", 40);
    let mut fleet = Fleet::of(2).with(FLAGS).start().await;
    let mut held = Vec::new();
    for _ in 0..sessions {
        held.push(hanging(&fleet, 0).await);
    }
    fleet.kill(0).await;
    let killed = Utc::now();
    let api = fleet.api(1);
    let mut taken_over: Vec<DateTime<Utc>> = Vec::new();
    for session in &held {
        let frames = api.follow(session, "").await.until("turn.interrupted").await;
        let takeover = frames.iter().find(|frame| frame.event == "activity").unwrap();
        taken_over.push(takeover.data["at"].as_str().unwrap().parse().unwrap());
    }
    let after = |at: &DateTime<Utc>| (*at - killed).to_std().unwrap();
    let (first, last) =
        (taken_over.iter().min().map(after).unwrap(), taken_over.iter().max().map(after).unwrap());
    println!("{sessions} sessions taken over between {first:?} and {last:?} after the kill");
    assert!(
        last <= bound("OSTLER_FAILOVER_SESSIONS", TTL + Duration::from_secs(1)),
        "between {first:?} and {last:?}"
    );
}
