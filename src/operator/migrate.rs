//! `ostler migrate`: which migrations the database has, and those that it lacks.

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;

use super::{OperatorError, open, resolve, resolve_existing};
use crate::config::DataArgs;
use crate::store::{Migrations, Schema, read_schema};

/// See the module.
#[derive(Debug, Subcommand)]
pub enum MigrateCommand {
    /// Show which migrations were applied; exits with 3 when the database is not the one that this program needs
    Status(MigrateArgs),
    /// Apply the migrations that the database lacks; replicas of the version before may go on working
    Up(MigrateArgs),
}

/// Where the database is, and how the answer looks.
#[derive(Args, Debug)]
pub struct MigrateArgs {
    #[command(flatten)]
    data: DataArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Exit code for a database that this program cannot work with as it is.
const NOT_CURRENT: u8 = 3;

pub(super) async fn run(command: MigrateCommand) -> Result<ExitCode, OperatorError> {
    match command {
        MigrateCommand::Status(args) => {
            let schema = read_schema(&resolve_existing(&args.data)?.store.location).await?;
            show(&schema, args.json)?;
            Ok(if schema.check().is_ok() { ExitCode::SUCCESS } else { ExitCode::from(NOT_CURRENT) })
        }
        MigrateCommand::Up(args) => {
            let mut data = resolve(&args.data)?;
            data.store.migrate = Migrations::Apply;
            let location = data.store.location.clone();
            open(data).await?.close().await;
            show(&read_schema(&location).await?, args.json)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn show(schema: &Schema, as_json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let state = match (schema.found, schema.known()) {
        (found, known) if found > known => "newer",
        _ if schema.check().is_err() => "behind",
        _ => "current",
    };
    if as_json {
        let migrations: Vec<_> = schema
            .migrations
            .iter()
            .map(|(version, name, applied)| json!({"version": version, "name": name, "applied": applied}))
            .collect();
        let all =
            json!({"state": state, "found": schema.found, "known": schema.known(), "migrations": migrations});
        return writeln!(out, "{all}");
    }
    for (_, name, applied) in &schema.migrations {
        writeln!(out, "{}  {name}", if *applied { "applied" } else { "missing" })?;
    }
    writeln!(out, "the database has schema {}, this program knows {}: {state}", schema.found, schema.known())
}
