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

/// Where the service is and how to speak with it: the same for each client command.
#[derive(Args, Clone, Debug)]
pub struct ClientArgs {
    /// Where the service is
    #[arg(
        long,
        global = true,
        env = "OSTLER_URL",
        value_name = "URL",
        default_value = "http://127.0.0.1:7070",
        help_heading = HEADING
    )]
    pub url: String,

    /// The API key; without one <data dir>/admin.key is used, for a service on this machine alone
    #[arg(
        long,
        global = true,
        env = "OSTLER_KEY",
        value_name = "KEY",
        hide_env_values = true,
        help_heading = HEADING
    )]
    pub key: Option<SecretString>,

    /// Where a service on this machine keeps its data
    #[arg(
        long,
        global = true,
        env = "OSTLER_DATA_DIR",
        value_name = "DIR",
        default_value = "./ostler-data",
        help_heading = HEADING
    )]
    pub data_dir: PathBuf,

    /// Act for this owner (service and admin keys)
    #[arg(long, global = true, value_name = "OWNER", help_heading = HEADING)]
    pub owner: Option<String>,

    /// Print JSON, one object a line; errors are problem documents on stderr
    #[arg(long, global = true, help_heading = HEADING)]
    pub json: bool,
}

const HEADING: &str = "Client options";

/// The client commands.
#[derive(Subcommand, Clone, Debug)]
pub enum ClientCommand {
    /// Run a prompt and watch the turn
    Run(Box<run::RunArgs>),
    /// List sessions, newest first
    #[command(visible_alias = "list")]
    Ls(sessions::LsArgs),
    /// Show a session
    Show(sessions::ShowArgs),
    /// Show what happened in a session
    Logs(logs::LogsArgs),
    /// Give a session its next prompt and return
    Prompt(sessions::PromptArgs),
    /// List approvals: those that wait, unless told otherwise
    Approvals(approvals::ApprovalsArgs),
    /// Approve what an agent asks for
    Approve(approvals::ApproveArgs),
    /// Deny what an agent asks for
    Deny(approvals::DenyArgs),
    /// Cancel the turn at work; the session stays usable
    Cancel(sessions::CancelArgs),
    /// Stop a session's agent; the next prompt brings it back
    Stop(sessions::StopArgs),
    /// Destroy a session
    Rm(sessions::RmArgs),
    /// List the harnesses and what they need
    Harnesses,
    /// Check the way to the service, step by step
    Doctor,
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
  6    in conflict with the state of things, such as a turn in progress
  7    an approval waits for a decision
  130  interrupted (the turn goes on)";

/// Carries a command out and reports what went wrong.
pub async fn run(command: ClientCommand, args: ClientArgs) -> ExitCode {
    let mut terminal = Terminal::of_process(args.json);
    let exit = Box::pin(run_on(&mut terminal, command, &args)).await;
    ExitCode::from(exit as u8)
}

async fn run_on(terminal: &mut Terminal, command: ClientCommand, args: &ClientArgs) -> Exit {
    match dispatch(terminal, command, args).await {
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

async fn dispatch(terminal: &mut Terminal, command: ClientCommand, args: &ClientArgs) -> CliResult<Exit> {
    let client = &Client::new(args)?;
    match command {
        ClientCommand::Run(args) => run::run(client, terminal, *args).await,
        ClientCommand::Ls(args) => sessions::ls(client, terminal, args).await,
        ClientCommand::Show(args) => sessions::show(client, terminal, args).await,
        ClientCommand::Logs(args) => logs::logs(client, terminal, args).await,
        ClientCommand::Prompt(args) => sessions::prompt(client, terminal, args).await,
        ClientCommand::Approvals(args) => approvals::list(client, terminal, args).await,
        ClientCommand::Approve(args) => approvals::approve(client, terminal, args).await,
        ClientCommand::Deny(args) => approvals::deny(client, terminal, args).await,
        ClientCommand::Cancel(args) => sessions::cancel(client, terminal, args).await,
        ClientCommand::Stop(args) => sessions::stop(client, terminal, args).await,
        ClientCommand::Rm(args) => sessions::rm(client, terminal, args).await,
        ClientCommand::Harnesses => harnesses::list(client, terminal).await,
        ClientCommand::Doctor => doctor::doctor(client, terminal).await,
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
