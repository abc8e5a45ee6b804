//! The server itself: restarted, killed, its connections ended by an operator, under load.

use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use super::{lasts, seconds, until_well};
use crate::chaos::clients::Crowd;
use crate::chaos::storm::assert_all_is_well;
use crate::support::api::Api;
use crate::support::bound;
use crate::support::fleet::{Fleet, Plan, Random};
use crate::support::postgres::Cluster;

/// How soon after the database answers the service has to be well again.
const AGAIN: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_replica_loses_nothing_when_its_database_is_restarted_killed_and_its_connections_are_ended() {
    let cluster = Cluster::start().await;
    storm(&cluster, Fleet::on_database(cluster.database().await, 1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_replicas_lose_nothing_when_their_database_is_restarted_killed_and_its_connections_are_ended() {
    let cluster = Cluster::start().await;
    // The longer outages cost each replica its membership; a busy machine must not.
    let leases = ["--replica-ttl-seconds", "4"];
    storm(&cluster, Fleet::on_database(cluster.database().await, 3).with(&leases)).await;
}

/// One storm at a time: how soon all is well again is measured, and not how many cores there are.
static ALONE: Mutex<()> = Mutex::const_new(());

async fn storm(cluster: &Cluster, plan: Plan) {
    let _alone = ALONE.lock().await;
    let fleet = plan.start().await;
    let replicas: Vec<Api> = (0..fleet.len()).map(|i| fleet.api(i)).collect();
    // Longer than a read waits for a connection: what the service says is to be heard.
    let crowd = Crowd::new(replicas.clone()).with_patience(Duration::from_secs(20));
    let clients = crowd.begin();
    let healed = rage(cluster, &replicas).await;
    let acknowledged = crowd.end(clients).await;
    let sessions = assert_all_is_well(&fleet, &acknowledged).await;
    println!(
        "{} replicas: {sessions} sessions, {} prompts, {} decisions, {} events shown, refused: {:?}",
        fleet.len(),
        acknowledged.prompts.len(),
        acknowledged.decisions.len(),
        acknowledged.seen.len(),
        acknowledged.refused
    );
    for Healed { fault, took, look } in &healed {
        println!("well {took:?} after the database was back: {fault}; {look:?} for a look when it was");
    }
    let again = bound("OSTLER_OUTAGE_SECONDS", AGAIN);
    let late: Vec<_> = healed.iter().filter(|healed| healed.took > again + healed.look).collect();
    assert!(late.is_empty(), "{late:?}");
}

/// How long after a fault all replicas were well.
#[derive(Debug)]
struct Healed {
    fault: String,
    took: Duration,
    /// What it takes to find that they are, when they are: on a machine with much else to do that is not little.
    look: Duration,
}

async fn all_well(replicas: &[Api]) -> Duration {
    futures_util::future::join_all(replicas.iter().map(until_well)).await.into_iter().max().unwrap()
}

/// One fault after the other.
async fn rage(cluster: &Cluster, replicas: &[Api]) -> Vec<Healed> {
    let (begun, random) = (Instant::now(), Random::new());
    let mut healed = Vec::new();
    while begun.elapsed() < seconds() || healed.len() < 4 {
        lasts(Duration::from_millis(300)).await;
        let fault = match healed.len() % 4 {
            0 => {
                cluster.restart().await;
                "restarted".to_owned()
            }
            1 => {
                let away = Duration::from_millis(random.below(4000) as u64);
                cluster.kill().await;
                lasts(away).await;
                cluster.start_again().await;
                format!("killed, away for {away:?}")
            }
            _ => {
                cluster.terminate_backends().await;
                "connections ended".to_owned()
            }
        };
        let (took, look) = (all_well(replicas).await, all_well(replicas).await);
        healed.push(Healed { fault, took, look });
    }
    healed
}
