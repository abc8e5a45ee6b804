//! The storm.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::clients::{Acknowledged, Crowd};
use super::count;
use super::watch::Watch;
use crate::support::api::Api;
use crate::support::fleet::{Fleet, Random};
use crate::support::{bound, within};

const TTL: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_killed_and_frozen_at_random_lose_nothing_run_nothing_twice_and_tell_the_same() {
    let mut fleet = Fleet::of(3).with(&["--replica-ttl-seconds", "2"]).start().await;
    let crowd = Crowd::new((0..fleet.len()).map(|i| fleet.api(i)).collect());
    let clients = crowd.begin();
    let mut watch = Watch::on(&fleet.home().postgres().unwrap().url).await;
    let faults = rage(&mut fleet, &mut watch, Duration::from_secs(count("OSTLER_CHAOS_SECONDS", 12))).await;
    let acknowledged = crowd.end(clients).await;
    let sessions = assert_all_is_well(&fleet, &acknowledged).await;
    println!(
        "{} kills, {} freezes: {sessions} sessions, {} prompts, {} decisions, {} events shown; at work without a holder for {:?} at the longest",
        faults.kills,
        faults.freezes,
        acknowledged.prompts.len(),
        acknowledged.decisions.len(),
        acknowledged.seen.len(),
        watch.longest
    );
    assert!(
        watch.longest <= bound("OSTLER_CHAOS_SECONDS", TTL + Duration::from_secs(2)),
        "a session at work had no holder for {:?}",
        watch.longest
    );
}

/// What must be so after any faults, once they are over. Gives how many sessions there were.
pub async fn assert_all_is_well(fleet: &Fleet, acknowledged: &Acknowledged) -> usize {
    let replicas: Vec<Api> = (0..fleet.len()).map(|i| fleet.api(i)).collect();
    let mut sessions: Vec<String> = acknowledged.prompts.iter().map(|(session, _)| session.clone()).collect();
    sessions.sort();
    sessions.dedup();
    let mut logs = HashMap::new();
    for session in &sessions {
        settle(&replicas[0], session).await;
        logs.insert(session.clone(), log_of(&replicas, session).await);
        assert_each_effect_once_and_in_order(fleet, session);
    }
    assert_nothing_lost(fleet, &replicas[replicas.len() - 1], acknowledged, &logs).await;
    sessions.len()
}

struct Faults {
    kills: u64,
    freezes: u64,
}

/// Hurts one replica after the other: kills it and starts it again, or freezes it for longer than its leases live.
async fn rage(fleet: &mut Fleet, watch: &mut Watch, time: Duration) -> Faults {
    let (begun, random) = (Instant::now(), Random::new());
    let mut faults = Faults { kills: 0, freezes: 0 };
    while begun.elapsed() < time || faults.kills == 0 || faults.freezes == 0 {
        pass(watch, Duration::from_millis(300 + random.below(900) as u64)).await;
        let victim = random.below(fleet.len());
        if (faults.kills + faults.freezes).is_multiple_of(2) {
            faults.kills += 1;
            fleet.kill(victim).await;
            pass(watch, Duration::from_millis(random.below(3500) as u64)).await;
            fleet.restart(victim).await;
        } else {
            faults.freezes += 1;
            fleet.stop(victim);
            pass(watch, TTL + Duration::from_millis(500 + random.below(1500) as u64)).await;
            fleet.cont(victim);
        }
    }
    // What is stranded at the end must be found as well.
    pass(watch, TTL + Duration::from_secs(2)).await;
    faults
}

/// Lets time pass: that is what the storm is made of. The rows are watched meanwhile.
async fn pass(watch: &mut Watch, time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        watch.look().await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until nothing is under way in it.
async fn settle(api: &Api, session: &str) {
    within("the session to come to rest", async {
        while api.session(session).await["status"] == "running" {
            api.follow(session, "?until=pause").await.all().await;
        }
    })
    .await;
}

/// The session's events, which are 1, 2, 3 … and the same from every replica.
async fn log_of(replicas: &[Api], session: &str) -> Vec<Value> {
    let first = replicas[0].events(session).await;
    let seqs: Vec<i64> = first.iter().map(|event| event["seq"].as_i64().unwrap()).collect();
    assert_eq!(seqs, (1..=seqs.len() as i64).collect::<Vec<_>>(), "{session}");
    for other in &replicas[1..] {
        assert_eq!(other.events(session).await, first, "{session}");
    }
    first
}

/// The ledger is the oracle: whatever a harness did is there. Two harnesses of one session at a time would show as the line of a
/// turn behind the line of a later one.
fn assert_each_effect_once_and_in_order(fleet: &Fleet, session: &str) {
    let ledger = fleet.home().ledger(session);
    let mut times: BTreeMap<(String, String, String), usize> = BTreeMap::new();
    let mut turns: Vec<&str> = Vec::new();
    for line in &ledger {
        let word = |key: &str| line[key].as_str().unwrap().to_owned();
        *times.entry((word("turn_id"), word("kind"), word("name"))).or_default() += 1;
        let turn = line["turn_id"].as_str().unwrap();
        if turns.last() != Some(&turn) {
            assert!(
                !turns.contains(&turn),
                "{session}: a harness of an earlier turn acted late: {ledger:#?}"
            );
            turns.push(turn);
        }
    }
    let twice: Vec<_> = times.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "{session}: {twice:?}");
}

async fn assert_nothing_lost(
    fleet: &Fleet,
    api: &Api,
    acknowledged: &Acknowledged,
    logs: &HashMap<String, Vec<Value>>,
) {
    for (session, turn) in &acknowledged.prompts {
        let row = api.get(&format!("/v1/sessions/{session}/turns/{turn}")).await.expect(200);
        let status = row["status"].as_str().unwrap();
        assert!(matches!(status, "completed" | "interrupted" | "awaiting_approval"), "{row}");
        let ledger = fleet.home().ledger(session);
        let prompts =
            ledger.iter().filter(|line| line["turn_id"] == **turn && line["kind"] == "prompt").count();
        assert!(prompts <= 1 && (status == "interrupted" || prompts == 1), "{row}: given {prompts} times");
        let ends = logs[session].iter().filter(|event| {
            let kind = event["type"].as_str().unwrap();
            event["turn_id"] == **turn && (kind == "turn.completed" || kind == "turn.interrupted")
        });
        assert_eq!(ends.count(), usize::from(status != "awaiting_approval"), "{row}");
    }
    for (approval, decision) in &acknowledged.decisions {
        let row = api.get(&format!("/v1/approvals/{approval}")).await.expect(200);
        assert_eq!(row["decision"], **decision, "{row}");
        assert!(
            !row["delivered_at"].is_null()
                || matches!(row["status"].as_str(), Some("orphaned" | "cancelled")),
            "an answer on its way for ever: {row}"
        );
    }
    for ((session, seq), event) in &acknowledged.seen {
        assert_eq!(
            &logs[session][usize::try_from(*seq).unwrap() - 1],
            event,
            "an event that was shown is another now"
        );
    }
}
