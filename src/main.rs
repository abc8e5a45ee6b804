//! The command line: parse, dispatch, exit.

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use ostler::app::{self, App};
use ostler::config::ServeArgs;
use ostler::harness::child::{self, EXEC_AGENT, ExecAgentArgs};
use ostler::{cli, operator, telemetry};
use secrecy::ExposeSecret as _;
use tokio::signal::unix::{SignalKind, signal};

/// Keeps agent harness sessions: durable, multi-tenant, over REST.
#[derive(Parser)]
#[command(name = "ostler", version, after_help = after_help())]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

fn after_help() -> String {
    format!(
        "Start here:\n  ostler serve             in one terminal\n  ostler run \"Say hello\"   in another\n\n{}",
        cli::EXIT_CODES
    )
}

#[derive(Subcommand)]
enum Command {
    /// Run the service
    Serve(Box<ServeArgs>),
    #[command(flatten)]
    Operator(operator::OperatorCommand),
    #[command(flatten)]
    Client(cli::ClientCommand),
    /// Become an agent; what the service starts its agents with
    #[command(name = EXEC_AGENT, hide = true)]
    ExecAgent(Box<ExecAgentArgs>),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        // Without a runtime: a process that becomes another one, and another user, has one thread.
        Command::ExecAgent(args) => args.run(),
        Command::Serve(args) => on_runtime(serve(&args)),
        Command::Operator(command) => on_runtime(operator::run(command)),
        Command::Client(command) => on_runtime(cli::run(command)),
    }
}

fn on_runtime(command: impl Future<Output = ExitCode>) -> ExitCode {
    match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(command),
        Err(error) => {
            app::complain(&error);
            ExitCode::FAILURE
        }
    }
}

async fn serve(args: &ServeArgs) -> ExitCode {
    let config = match args.resolve() {
        Ok(config) => config,
        Err(mistakes) => {
            app::complain(&mistakes);
            return ExitCode::from(2);
        }
    };
    telemetry::init(config.log_format, &config.log);
    if let Err(error) = child::adopt_orphans() {
        app::complain(&error);
        return ExitCode::FAILURE;
    }
    let (mut interrupt, mut terminate) =
        match (signal(SignalKind::interrupt()), signal(SignalKind::terminate())) {
            (Ok(interrupt), Ok(terminate)) => (interrupt, terminate),
            (Err(error), _) | (_, Err(error)) => {
                app::complain(&error);
                return ExitCode::FAILURE;
            }
        };
    let mut asked_to_stop = async move || {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    let app = match App::start(config).await {
        Ok(app) => app,
        Err(error) => {
            app::complain(&error);
            return ExitCode::FAILURE;
        }
    };
    greet(&app);
    let (stop, stopping) = tokio::sync::oneshot::channel();
    let serving = tokio::spawn(app.serve(stopping));
    asked_to_stop().await;
    // The first signal ends the service in order, the second at once.
    if stop.send(()).is_err() {
        return ExitCode::FAILURE;
    }
    tokio::select! {
        ended = serving => if ended.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE },
        () = asked_to_stop() => ExitCode::FAILURE,
    }
}

/// Where to find the service, and at the first start the key to it, which is shown this once.
fn greet(app: &App) {
    let mut out = std::io::stdout().lock();
    let mut words = String::new();
    if let Some(key) = &app.first_key {
        let (token, path) = (key.token.expose_secret(), key.path.display());
        words.push_str(&format!(
            "admin key for the org default, shown this once and kept in {path}:\n  {token}\n"
        ));
    }
    words.push_str(&format!("ostler {} listens on http://{}\n", env!("CARGO_PKG_VERSION"), app.address()));
    // Where stdout is gone, the service runs all the same.
    drop(out.write_all(words.as_bytes()).and_then(|()| out.flush()));
}
