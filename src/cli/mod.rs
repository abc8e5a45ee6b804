//! The client commands: a person at a terminal, or a script, in front of the public API.
//!
//! They know the wire contract and nothing else of this crate, so that they work against any service of the same version.
//! What a command was asked for goes to stdout; what it has to say about itself goes to stderr. With `--json` stdout
//! holds JSON, one object a line, and stderr nothing but problem documents.

mod approvals;
mod client;
mod doctor;
mod error;
mod harnesses;
mod logs;
mod pages;
mod render;
mod run;
mod sessions;
mod sse;
#[cfg(test)]
mod stub;
mod table;
mod terminal;
mod watch;
mod when;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use secrecy::SecretString;

use self::client::Client;
use self::error::CliResult;
use self::terminal::Terminal;

/// Where the service is and how to speak with it: each client command takes it.
#[derive(Args, Clone, Debug)]
pub struct ClientArgs {
    /// Address of the service
    #[arg(
        long,
        env = "OSTLER_URL",
        value_name = "URL",
        default_value = "http://127.0.0.1:7070",
        help_heading = HEADING
    )]
    pub url: String,

    /// API key; better in OSTLER_KEY, as the process list shows arguments [default: what DATA_DIR/admin.key holds, for a service on this machine only]
    #[arg(
        long,
        env = "OSTLER_KEY",
        value_name = "KEY",
        hide_env_values = true,
        help_heading = HEADING
    )]
    pub key: Option<SecretString>,

    /// Data directory of a service on this machine, for its admin.key
    #[arg(
        long,
        env = "OSTLER_DATA_DIR",
        value_name = "DIR",
        default_value = "./ostler-data",
        help_heading = HEADING
    )]
    pub data_dir: PathBuf,

    /// Act on behalf of this owner; needs a service or admin key
    #[arg(long, value_name = "OWNER", help_heading = HEADING)]
    pub owner: Option<String>,

    /// Print JSON, one object per line; an error is a problem document on stderr
    #[arg(long, help_heading = HEADING)]
    pub json: bool,
}

const HEADING: &str = "Client options";

/// The client commands.
#[derive(Subcommand, Clone, Debug)]
pub enum ClientCommand {
    /// Give an agent a prompt and watch the turn; approvals are asked for on the terminal
    #[command(after_help = EXIT_CODES)]
    Run(Box<With<run::RunArgs>>),
    /// List sessions, newest first
    #[command(visible_alias = "list")]
    Ls(With<sessions::LsArgs>),
    /// Show one session: its status, its turn and what waits
    Show(With<sessions::SessionArgs>),
    /// Show what happened in a session, and with -f what happens now
    Logs(With<logs::LogsArgs>),
    /// Give a session its next prompt without watching the turn
    #[command(after_help = EXIT_CODES)]
    Prompt(With<sessions::PromptArgs>),
    /// List the approvals that wait for a decision
    Approvals(With<approvals::ApprovalsArgs>),
    /// Approve what an agent wants to do
    Approve(With<approvals::ApproveArgs>),
    /// Deny what an agent wants to do
    Deny(With<approvals::DenyArgs>),
    /// Cancel the running turn; the session stays usable
    Cancel(With<sessions::SessionArgs>),
    /// Stop a session and its agent; the next prompt takes it up again
    Stop(With<sessions::SessionArgs>),
    /// Destroy a session; its transcript stays, unless it is purged
    Rm(With<sessions::RmArgs>),
    /// List the harnesses, and what is missing where one is not available
    Harnesses(ClientArgs),
    /// Check address, key, version and harnesses, and say what to do
    Doctor(With<doctor::DoctorArgs>),
}

/// What a command takes of its own, and what each takes.
#[derive(Args, Clone, Debug)]
pub struct With<T: Args> {
    #[command(flatten)]
    own: T,
    #[command(flatten)]
    client: ClientArgs,
}

/// How a command ended, for scripts. [`EXIT_CODES`] is the same for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// Done.
    Ok = 0,
    /// The turn or the request failed.
    Failed = 1,
    /// The command line cannot be what is meant.
    Usage = 2,
    /// No answer from the service.
    Unreachable = 3,
    /// No valid key, or one that may not.
    Forbidden = 4,
    /// No such thing.
    NotFound = 5,
    /// Not in the state that it is in.
    Conflict = 6,
    /// A person has to decide first.
    WaitingForApproval = 7,
    /// Ctrl-C.
    Interrupted = 130,
}

/// The exit codes, for the end of `--help`.
pub const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    the turn or the request failed
  2    wrong usage
  3    the service cannot be reached
  4    no valid key, or it may not do that
  5    no such session, run or approval
  6    conflict: a turn is in progress, or the approval is decided already
  7    an approval waits for a decision
  130  interrupted (the turn goes on)";

/// Carries a command out and reports what went wrong.
pub async fn run(command: ClientCommand) -> ExitCode {
    let mut terminal = Terminal::of_process(command.client_args().json);
    let exit = Box::pin(run_on(&mut terminal, command)).await;
    ExitCode::from(exit as u8)
}

async fn run_on(terminal: &mut Terminal, command: ClientCommand) -> Exit {
    match dispatch(terminal, command).await {
        Ok(exit) => exit,
        Err(error) => {
            let exit = error.exit();
            // A reader that has gone away (`| head`) is no error, and where stderr is closed nobody can be told.
            if exit != Exit::Ok {
                let _ = terminal.error(&error);
            }
            exit
        }
    }
}

async fn dispatch(terminal: &mut Terminal, command: ClientCommand) -> CliResult<Exit> {
    let client = &Client::new(command.client_args())?;
    match command {
        ClientCommand::Run(with) => run::run(client, terminal, with.own).await,
        ClientCommand::Ls(with) => sessions::ls(client, terminal, with.own).await,
        ClientCommand::Show(with) => sessions::show(client, terminal, with.own).await,
        ClientCommand::Logs(with) => logs::logs(client, terminal, with.own).await,
        ClientCommand::Prompt(with) => sessions::prompt(client, terminal, with.own).await,
        ClientCommand::Approvals(with) => approvals::list(client, terminal, with.own).await,
        ClientCommand::Approve(with) => approvals::approve(client, terminal, with.own).await,
        ClientCommand::Deny(with) => approvals::deny(client, terminal, with.own).await,
        ClientCommand::Cancel(with) => sessions::cancel(client, terminal, with.own).await,
        ClientCommand::Stop(with) => sessions::stop(client, terminal, with.own).await,
        ClientCommand::Rm(with) => sessions::rm(client, terminal, with.own).await,
        ClientCommand::Harnesses(_) => harnesses::list(client, terminal).await,
        ClientCommand::Doctor(with) => doctor::doctor(client, terminal, with.own).await,
    }
}

impl ClientCommand {
    fn client_args(&self) -> &ClientArgs {
        match self {
            Self::Run(with) => &with.client,
            Self::Ls(with) => &with.client,
            Self::Show(with) => &with.client,
            Self::Logs(with) => &with.client,
            Self::Prompt(with) => &with.client,
            Self::Approvals(with) => &with.client,
            Self::Approve(with) => &with.client,
            Self::Deny(with) => &with.client,
            Self::Cancel(with) => &with.client,
            Self::Stop(with) => &with.client,
            Self::Rm(with) => &with.client,
            Self::Doctor(with) => &with.client,
            Self::Harnesses(client) => client,
        }
    }
}

/// Reads a JSON object of the command line.
fn json_object(text: &str) -> Result<serde_json::Value, String> {
    match serde_json::from_str(text) {
        Ok(value @ serde_json::Value::Object(_)) => Ok(value),
        Ok(_) => Err("must be a JSON object".to_owned()),
        Err(error) => Err(format!("not JSON: {error}")),
    }
}

/// A text in a JSON object; empty where there is none.
fn text_of<'a>(value: &'a serde_json::Value, name: &str) -> &'a str {
    value.get(name).and_then(serde_json::Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests;
