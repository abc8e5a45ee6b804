//! A server that runs: its start, its end, and why it has ended.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rmcp::model::{ClientCapabilities, ClientConfig, Implementation};
use rmcp::service::{ClientInitializeError, Peer, RunningService, serve_client};
use rmcp::transport::Transport;
use rmcp::{ClientHandler, RoleClient};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::time::timeout;

use super::pipes::Pipes;
use super::sieve::Sieve;
use super::{Plan, http};
use crate::harness::agent::tools::cap::clipped;
use crate::harness::agent::tools::place::Place;
use crate::harness::child::{Process, find_program, own_variable};

/// How long a server may take from its start to its introduction.
pub(super) const START_DEADLINE: Duration = Duration::from_secs(30);
/// How long the end of a connection over HTTP may take.
const CLOSE_GRACE: Duration = Duration::from_secs(2);
/// How long the exit of a process may take to be known when its pipe is closed.
const EXIT_GRACE: Duration = Duration::from_millis(300);
const WORDS_MAX_BYTES: usize = 500;
const ENDED: &str = "it ended before it was ready";

/// The way to a server, each time it is started.
pub(super) enum Way {
    /// A child process.
    Child {
        /// Where it runs.
        place: Place,
        /// The program, absolute, and its arguments.
        argv: Vec<OsString>,
        /// What it gets of the service's environment.
        inherit_env: Vec<String>,
        /// What it gets besides.
        env: BTreeMap<String, String>,
    },
    /// An address.
    Http {
        /// The client.
        client: reqwest::Client,
        /// Where to.
        url: String,
        /// What lets us in.
        token: Option<SecretString>,
    },
}

/// See the module. Dropping it ends the server at once.
pub(super) struct Live {
    name: String,
    /// The way to ask it.
    pub peer: Peer<RoleClient>,
    service: Mutex<Option<RunningService<RoleClient, Guest>>>,
    child: Option<Child>,
    lost: AtomicBool,
}

struct Child {
    process: Process,
    said_too_much: Arc<AtomicBool>,
}

/// What servers hear of us: that we can do nothing for them.
pub(super) struct Guest;

impl ClientHandler for Guest {
    fn get_info(&self) -> ClientConfig {
        let ours = Implementation::new("ostler", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(ClientCapabilities::default(), ours)
    }
}

impl Way {
    /// # Errors
    /// In words, when there is no such program, or no token where one is wanted.
    pub(super) fn of(plan: &Plan<'_>) -> Result<Self, String> {
        let config = plan.config;
        if let Some(url) = &config.url {
            let token = config.token_env.as_deref().map(|name| {
                let value = own_variable(name).and_then(|value| value.into_string().ok());
                value.filter(|value| !value.is_empty()).ok_or_else(|| format!("{name} is not set"))
            });
            let token = token.transpose()?.map(SecretString::from);
            let address = reqwest::Url::parse(url).map_err(|error| format!("its address: {error}"))?;
            return Ok(Self::Http { client: plan.clients.for_url(&address)?, url: url.clone(), token });
        }
        let (name, arguments) = config.command.split_first().ok_or("it has no command")?;
        let text = |path: &Path| path.to_str().map(str::to_owned).ok_or("its directories are not UTF-8");
        let (workspace, state) = (text(&plan.place.workspace)?, text(&plan.place.state_dir)?);
        let fill = |word: &String| word.replace("{workspace}", &workspace).replace("{state}", &state);
        let program = find_program(&fill(name), config.env.get("PATH").map(String::as_str))?;
        Ok(Self::Child {
            place: plan.place.clone(),
            argv: std::iter::once(program.into_os_string())
                .chain(arguments.iter().map(|word| fill(word).into()))
                .collect(),
            inherit_env: config.inherit_env.clone(),
            env: config.env.iter().map(|(name, value)| (name.clone(), fill(value))).collect(),
        })
    }
}

impl Live {
    /// Starts the server and introduces us.
    ///
    /// # Errors
    /// In words; nothing is left running then.
    pub(super) async fn start(name: &str, way: &Way) -> Result<Self, String> {
        match way {
            Way::Http { client, url, token } => {
                let way = http::way(client, url, token.as_ref().map(|token| token.expose_secret()));
                let service = introduce(way).await?;
                Ok(Self::new(name, service, None))
            }
            Way::Child { place, argv, inherit_env, env } => {
                let launch = place.launch(argv.clone(), inherit_env, env, &format!("mcp-{name}.log"));
                let launch = launch.map_err(|error| error.to_string())?;
                place.fence.pass().map_err(|error| error.to_string())?;
                let (process, pipes) = Process::spawn(launch).await.map_err(|error| error.to_string())?;
                let pipes = Pipes::new(pipes.stdout, pipes.stdin);
                let said_too_much = pipes.said_too_much();
                match introduce(pipes).await {
                    Ok(service) => Ok(Self::new(name, service, Some(Child { process, said_too_much }))),
                    Err(words) => Err(abandon(name, &process, words).await),
                }
            }
        }
    }

    fn new(name: &str, service: RunningService<RoleClient, Guest>, child: Option<Child>) -> Self {
        let peer = service.peer().clone();
        Self {
            name: name.to_owned(),
            peer,
            service: Mutex::new(Some(service)),
            child,
            lost: AtomicBool::new(false),
        }
    }

    /// Whether it can answer nothing any more.
    pub(super) fn is_gone(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
            || self.peer.is_transport_closed()
            || self.child.as_ref().is_some_and(|child| child.process.has_exited())
    }

    /// Whether it is a child process.
    pub(super) fn is_child(&self) -> bool {
        self.child.is_some()
    }

    /// Waits for the exit of its process; for ever where it has none.
    pub(super) async fn gone(&self) {
        match &self.child {
            Some(child) => drop(child.process.exited().await),
            None => std::future::pending().await,
        }
    }

    /// Ends it, because it does not speak any more, and tells how it has ended.
    pub(super) async fn lose(&self) -> String {
        self.lost.store(true, Ordering::Relaxed);
        let Some(Child { process, said_too_much }) = &self.child else {
            self.lock_service().take();
            return "closed the connection".to_owned();
        };
        let said_too_much = said_too_much.load(Ordering::Relaxed);
        // The end of a process is seen in its pipe first.
        let by_itself = !said_too_much && timeout(EXIT_GRACE, process.exited()).await.is_ok();
        self.lock_service().take();
        process.kill().await;
        let how = process.exited().await;
        let stderr = process.keep_last_words().await;
        tracing::warn!(server = self.name, stderr, "an MCP server was lost");
        match (said_too_much, by_itself) {
            (true, _) => "said too much at once, was ended".to_owned(),
            (false, true) => how.words(),
            (false, false) => "closed a pipe, or did not read, was ended".to_owned(),
        }
    }

    /// Ends it, because it does not do what it should, and tells why where it has ended by itself.
    pub(super) async fn abandon(&self, words: String) -> String {
        self.lock_service().take();
        match &self.child {
            Some(child) => abandon(&self.name, &child.process, words).await,
            None => words,
        }
    }

    /// Ends it and all that it has started, gently at first. May be called twice.
    pub(super) async fn end(&self) {
        let service = self.lock_service().take();
        match (&self.child, service) {
            (Some(child), Some(service)) => {
                child.process.stop(|| service.cancellation_token().cancel()).await
            }
            (Some(child), None) => child.process.kill().await,
            (None, Some(mut service)) => {
                // It is closed at its drop, whatever came of that.
                let _ = service.close_with_timeout(CLOSE_GRACE).await;
            }
            (None, None) => {}
        }
    }

    fn lock_service(&self) -> MutexGuard<'_, Option<RunningService<RoleClient, Guest>>> {
        self.service.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn introduce(
    way: impl Transport<RoleClient> + 'static,
) -> Result<RunningService<RoleClient, Guest>, String> {
    match timeout(START_DEADLINE, serve_client(Guest, Sieve::new(way))).await {
        Ok(Ok(service)) => Ok(service),
        Ok(Err(error)) => Err(complaint(&error)),
        Err(_) => Err(format!("it was not ready within {} s", START_DEADLINE.as_secs())),
    }
}

fn complaint(error: &ClientInitializeError) -> String {
    let words = match error {
        // Whoever has ended may be met in either pipe.
        ClientInitializeError::TransportError { error, .. } if error.error.is::<std::io::Error>() => {
            ENDED.to_owned()
        }
        ClientInitializeError::ConnectionClosed(_) => ENDED.to_owned(),
        ClientInitializeError::TransportError { error, .. } => http::words(error.error.as_ref()),
        ClientInitializeError::JsonRpcError(error) => format!("it refused: {}", error.message),
        _ => "it does not speak the protocol as we do".to_owned(),
    };
    clipped(&words, WORDS_MAX_BYTES)
}

async fn abandon(name: &str, process: &Process, words: String) -> String {
    // By itself, if it is about to: that says more.
    let _ = timeout(EXIT_GRACE, process.exited()).await;
    process.kill().await;
    let stderr = process.keep_last_words().await;
    tracing::warn!(server = name, stderr, "an MCP server did not come up");
    match process.failure() {
        Some(why) => format!("{words}: {why}"),
        None => words,
    }
}
