//! `ostler replicas`: who works on the database, as the database sees it.

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::{OperatorError, open_existing};
use crate::config::DataArgs;
use crate::store::Replica;

/// `ostler replicas`.
#[derive(Args, Debug)]
pub struct ReplicasArgs {
    #[command(flatten)]
    data: DataArgs,
    /// Print JSON, one replica a line
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: ReplicasArgs) -> Result<ExitCode, OperatorError> {
    let store = open_existing(&args.data).await?;
    let replicas = store.list_replicas().await?;
    store.close().await;
    let mut out = io::stdout().lock();
    if !args.json {
        writeln!(
            out,
            "{:<36}  {:<20}  {:<8}  {:<24}  {:>10}  {:>8}  STATE",
            "ID", "INSTANCE", "VERSION", "STARTED", "LAST SIGN", "SESSIONS"
        )?;
    }
    for replica in &replicas {
        show(&mut out, replica, args.json)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn state(replica: &Replica) -> &'static str {
    match (replica.alive, replica.draining) {
        (true, false) => "alive",
        (true, true) => "draining",
        (false, true) => "left",
        (false, false) => "gone",
    }
}

/// The place's name; what tells it from a place of the same name is for the program.
fn instance(replica: &Replica) -> &str {
    match replica.instance.rsplit_once(' ') {
        Some((name, _)) => name,
        None if replica.instance.is_empty() => "-",
        None => &replica.instance,
    }
}

fn show(out: &mut impl io::Write, replica: &Replica, as_json: bool) -> io::Result<()> {
    let (instance, state) = (instance(replica), state(replica));
    if as_json {
        let row = json!({
            "id": replica.id, "instance": instance, "version": replica.version, "started_at": replica.started_at,
            "renewed_at": replica.renewed_at, "sessions": replica.held, "state": state,
        });
        return writeln!(out, "{row}");
    }
    let since = format!("{:.1} s", replica.now.since(replica.renewed_at).as_secs_f64());
    writeln!(
        out,
        "{:<36}  {instance:<20}  {:<8}  {:<24}  {since:>10}  {:>8}  {state}",
        replica.id, replica.version, replica.started_at, replica.held
    )
}
