//! `ostler keys`: API keys on the database itself.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

use super::{OperatorError, open, open_existing, resolve};
use crate::clock::{Clock, Timestamp};
use crate::config::DataArgs;
use crate::domain::scope::{Permission, Role};
use crate::ids::KeyId;
use crate::service::KeySpec;
use crate::store::{ApiKey, PageRequest};

/// See the module.
#[derive(Debug, Subcommand)]
pub enum KeysCommand {
    /// Make a key; its secret is shown once
    Create(CreateArgs),
    /// List the keys of an org
    Ls(ListArgs),
    /// End a key; the running service follows within seconds
    Revoke(RevokeArgs),
}

/// `ostler keys create`.
#[derive(Args, Debug)]
pub struct CreateArgs {
    #[command(flatten)]
    data: DataArgs,
    /// Org that the key belongs to
    #[arg(long, value_name = "ORG")]
    org: String,
    /// Owner that the key names; needed for an owner key
    #[arg(long, value_name = "OWNER")]
    owner: Option<String>,
    /// owner: its own sessions; service: its org, on behalf of owners it names; admin: everything in its org
    #[arg(long, value_parser = parse_role, value_name = "ROLE")]
    role: Role,
    /// Narrow the key: sessions:read, sessions:write, approvals:decide, admin [default: all that the role can have]
    #[arg(long, value_parser = parse_permission, value_delimiter = ',', value_name = "SCOPES")]
    scopes: Vec<Permission>,
    /// When the key ends, RFC 3339 [default: never]
    #[arg(long, value_parser = parse_time, value_name = "TIME")]
    expires_at: Option<Timestamp>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// `ostler keys ls`.
#[derive(Args, Debug)]
pub struct ListArgs {
    #[command(flatten)]
    data: DataArgs,
    /// Org whose keys are listed
    #[arg(long, default_value = "default", value_name = "ORG")]
    org: String,
    /// Print JSON, one key a line
    #[arg(long)]
    json: bool,
}

/// `ostler keys revoke`.
#[derive(Args, Debug)]
pub struct RevokeArgs {
    #[command(flatten)]
    data: DataArgs,
    /// Id of the key: key_…
    #[arg(value_parser = parse_key, value_name = "KEY")]
    key: KeyId,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn parse_role(text: &str) -> Result<Role, String> {
    Role::parse(text).ok_or_else(|| "must be owner, service or admin".to_owned())
}

fn parse_permission(text: &str) -> Result<Permission, String> {
    let names = || Permission::ALL.iter().map(|p| p.as_str()).collect::<Vec<_>>().join(", ");
    Permission::parse(text).ok_or_else(|| format!("must be one of {}", names()))
}

fn parse_time(text: &str) -> Result<Timestamp, String> {
    Timestamp::parse(text).ok_or_else(|| "must be an RFC 3339 time, as 2027-01-31T00:00:00Z".to_owned())
}

fn parse_key(text: &str) -> Result<KeyId, String> {
    KeyId::parse(text).ok_or_else(|| "must be a key id, as `ostler keys ls` shows it".to_owned())
}

/// Runs a key command.
pub(super) async fn run(command: KeysCommand) -> Result<ExitCode, OperatorError> {
    match command {
        KeysCommand::Create(args) => create(args).await?,
        KeysCommand::Ls(args) => list(args).await?,
        KeysCommand::Revoke(args) => revoke(args).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn create(args: CreateArgs) -> Result<(), OperatorError> {
    let spec = KeySpec {
        org: args.org,
        owner: args.owner,
        role: args.role,
        permissions: args.scopes,
        expires_at: args.expires_at,
    };
    let made = spec.prepare(Clock::System.now())?;
    let store = open(resolve(&args.data)?).await?;
    store.insert_key(&made.key).await?;
    store.close().await;
    let token = made.token.expose_secret();
    let mut out = io::stdout().lock();
    if args.json {
        let mut shown = shown(&made.key);
        shown["token"] = json!(token);
        writeln!(out, "{shown}")?;
    } else {
        writeln!(out, "{token}")?;
        writeln!(
            io::stderr().lock(),
            "key {} for org {}; this is the only time its secret is shown",
            made.key.id,
            made.key.org
        )?;
    }
    Ok(())
}

async fn list(args: ListArgs) -> Result<(), OperatorError> {
    let store = open_existing(&args.data).await?;
    let mut out = io::stdout().lock();
    let mut before = None;
    if !args.json {
        writeln!(out, "{:<36}  {:<8}  {:<24}  {:<24}  STATE", "ID", "ROLE", "OWNER", "CREATED")?;
    }
    loop {
        let page = store.list_keys(&args.org, PageRequest { limit: 200, before }).await?;
        for key in &page.rows {
            if args.json {
                writeln!(out, "{}", shown(key))?;
            } else {
                let owner = key.owner.as_deref().unwrap_or("-");
                writeln!(
                    out,
                    "{:<36}  {:<8}  {owner:<24}  {:<24}  {}",
                    key.id,
                    key.role,
                    key.created_at,
                    state(key)
                )?;
            }
        }
        before = page.rows.last().map(|key| key.id.clone());
        if !page.more {
            break;
        }
    }
    store.close().await;
    Ok(())
}

async fn revoke(args: RevokeArgs) -> Result<(), OperatorError> {
    let store = open_existing(&args.data).await?;
    let key = store.find_key(&args.key).await?.ok_or_else(|| OperatorError::NoSuchKey(args.key.clone()))?;
    store.revoke_key(&key.org, &key.id, Clock::System.now()).await?;
    store.close().await;
    let mut out = io::stdout().lock();
    if args.json {
        writeln!(out, "{}", json!({"id": key.id, "revoked": true}))?;
    } else {
        writeln!(out, "revoked {}", key.id)?;
    }
    Ok(())
}

fn state(key: &ApiKey) -> &'static str {
    let expired = key.expires_at.is_some_and(|at| at <= Clock::System.now());
    match (key.revoked_at, expired) {
        (Some(_), _) => "revoked",
        (None, true) => "expired",
        (None, false) => "active",
    }
}

fn shown(key: &ApiKey) -> Value {
    json!({
        "id": key.id,
        "org_id": key.org,
        "owner_id": key.owner,
        "role": key.role,
        "scopes": key.permissions,
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
        "last_used_at": key.last_used_at,
        "state": state(key),
    })
}
