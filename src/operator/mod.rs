//! The operator's commands, directly on the database, also while the service runs: keys, migrations, replicas. They and `serve` are
//! the only ones that open the store.

mod keys;
mod migrate;
mod replicas;

use std::io;
use std::process::ExitCode;

use clap::Subcommand;

use crate::app::{self, StartError};
use crate::config::{DataArgs, DataConfig, Mistakes};
use crate::ids::KeyId;
use crate::service::ServiceError;
use crate::store::{Location, Migrations, OpenError, SharedStore, StoreError};

/// See the module.
#[derive(Debug, Subcommand)]
pub enum OperatorCommand {
    /// Make, list and revoke API keys, directly in the database
    #[command(subcommand)]
    Keys(keys::KeysCommand),
    /// Show which migrations the database has, or apply those that it lacks
    #[command(subcommand)]
    Migrate(migrate::MigrateCommand),
    /// List the replicas that work on the database
    Replicas(replicas::ReplicasArgs),
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
enum OperatorError {
    #[error("{0}")]
    Mistakes(Mistakes),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Service(#[from] ServiceError),
    #[error("the database cannot be used")]
    Store(#[from] StoreError),
    #[error(
        "there is no database at {0}; say with --data-dir or --database-url where the service keeps its data"
    )]
    NoDatabase(String),
    #[error("there is no key {0}")]
    NoSuchKey(KeyId),
    #[error(transparent)]
    Output(#[from] io::Error),
}

/// Runs a command.
pub async fn run(command: OperatorCommand) -> ExitCode {
    let result = match command {
        OperatorCommand::Keys(command) => keys::run(command).await,
        OperatorCommand::Migrate(command) => migrate::run(command).await,
        OperatorCommand::Replicas(args) => replicas::run(args).await,
    };
    let error = match result {
        Ok(code) => return code,
        Err(error) => error,
    };
    let usage =
        matches!(&error, OperatorError::Mistakes(_) | OperatorError::Service(ServiceError::InvalidInput(_)));
    app::complain(&error);
    ExitCode::from(if usage { 2 } else { 1 })
}

async fn open(data: DataConfig) -> Result<SharedStore, OperatorError> {
    Ok(app::open_store(&data).await?)
}

fn resolve(data: &DataArgs) -> Result<DataConfig, OperatorError> {
    let mut data = data.resolve().map_err(OperatorError::Mistakes)?;
    // The service may be running on it.
    data.store.exclusive = false;
    data.store.migrate = Migrations::ApplyToEmpty;
    Ok(data)
}

/// Where there is nothing to look at, nothing is made either: a mistyped directory is told as such.
fn resolve_existing(data: &DataArgs) -> Result<DataConfig, OperatorError> {
    let mut data = resolve(data)?;
    data.store.migrate = Migrations::Refuse;
    match &data.store.location {
        Location::Sqlite(path) if !path.exists() => {
            Err(OperatorError::NoDatabase(path.display().to_string()))
        }
        Location::Sqlite(_) | Location::Postgres(_) => Ok(data),
    }
}

async fn open_existing(data: &DataArgs) -> Result<SharedStore, OperatorError> {
    open(resolve_existing(data)?).await
}
