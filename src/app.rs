//! The composition root: open the store, take up what was left, serve, and go down in order.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};
use thiserror::Error;
use tokio::net::TcpListener;

use crate::clock::Clock;
use crate::config::{Config, DataConfig, parse_seal_key};
use crate::domain::approval::hex;
use crate::domain::scope::Role;
use crate::http::{self, AllowedHosts, HttpOptions, ServerOptions};
use crate::ids::KeyId;
use crate::service::{KeySpec, Service, ServiceError, chain};
use crate::store::{self, Location, OpenError, Seal, SealError, SharedStore, StoreError};

/// How often, and how long apart, a process that starts looks whether another has made the first key.
const FIRST_KEY_LOOKS: usize = 20;
const FIRST_KEY_PAUSE: Duration = Duration::from_millis(100);

/// Why the service could not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The data directory, or a file in it, cannot be used.
    #[error("{path}: {error}")]
    Path {
        /// The path.
        path: String,
        /// What is wrong.
        error: io::Error,
    },
    /// The database cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The sealing key is not one.
    #[error(
        "{path}: is not 64 hexadecimal digits; restore it from a backup, or resume states cannot be opened"
    )]
    SealKey {
        /// The file.
        path: String,
    },
    /// The sealing key cannot be used.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// Nobody can listen there.
    #[error("{address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What is wrong.
        error: io::Error,
    },
    /// What an earlier process left cannot be taken up.
    #[error("what an earlier process left cannot be taken up")]
    Service(#[from] ServiceError),
    /// The store cannot be read.
    #[error("the database cannot be read")]
    Store(#[from] StoreError),
}

/// A service that listens, and is not serving yet.
pub struct App {
    service: Arc<Service>,
    listener: TcpListener,
    public_hosts: AllowedHosts,
    address: SocketAddr,
    /// The key that was made because there was none.
    pub first_key: Option<FirstKey>,
}

/// The admin key of a first start.
pub struct FirstKey {
    /// The key.
    pub token: SecretString,
    /// The file that holds it.
    pub path: PathBuf,
}

/// Opens the store of a data directory. The operator's commands, which work beside the service, seal nothing and make no key.
///
/// # Errors
/// See [`StartError`].
pub async fn open_store(data: &DataConfig) -> Result<SharedStore, StartError> {
    let serves = data.store.exclusive;
    if serves || matches!(data.store.location, Location::Sqlite(_)) {
        make_private_directory(&data.data_dir)?;
    }
    let seal = if serves { Seal::new(seal_key(data)?)? } else { Seal::new(random_key()?.to_vec())? };
    Ok(store::open(&data.store, seal).await?)
}

impl App {
    /// Opens everything and listens.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let store = open_store(&config.data).await?;
        let first_key = make_first_key(&store, &config.data.data_dir).await?;
        let service = Service::new(store, config.harnesses, Clock::System, config.service);
        let refused = |error| StartError::Listen { address: config.listen, error };
        let listener = TcpListener::bind(config.listen).await.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        service.run_background().await?;
        Ok(Self { service, listener, public_hosts: config.public_hosts, address, first_key })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` resolves, then goes down in order: nothing new, streams end, turns get their grace, harnesses are put
    /// away, and the store closes last.
    pub async fn serve(self, stop: tokio::sync::oneshot::Receiver<()>) {
        let service = self.service;
        let router = http::router(Arc::clone(&service), HttpOptions { hosts: self.public_hosts });
        let serving = http::serve(self.listener, router, ServerOptions::default(), service.closing().clone());
        let going_down = async {
            // A sender that was dropped wants the service ended as well.
            drop(stop.await);
            tracing::info!("shutting down");
            service.shut_down().await;
        };
        tokio::join!(serving, going_down);
        service.close().await;
    }
}

/// Says on stderr what went wrong, with its causes.
pub fn complain(error: &dyn std::error::Error) {
    // Where stderr is gone there is nobody to tell.
    drop(writeln!(io::stderr().lock(), "error: {}", chain(error)));
}

fn at(path: &Path) -> impl Fn(io::Error) -> StartError + '_ {
    move |error| StartError::Path { path: path.display().to_string(), error }
}

fn make_private_directory(path: &Path) -> Result<(), StartError> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(at(path))
}

/// Writes a new file that nobody else may read, whole or not at all: another process may look for it at the same time. False when
/// it exists.
fn write_secret(path: &Path, secret: &str) -> Result<bool, StartError> {
    let mut beside = path.as_os_str().to_owned();
    // Not the process's number: in containers that share the directory, all have the same.
    beside.push(format!(".{}", hex(&random_key()?)));
    let beside = PathBuf::from(beside);
    let write = || {
        let mut file =
            std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        writeln!(file, "{secret}").and_then(|()| file.sync_all())?;
        // A link never replaces.
        std::fs::hard_link(&beside, path)
    };
    let written = write();
    std::fs::remove_file(&beside).map_err(at(&beside))?;
    match written {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        written => written.map(|()| true).map_err(at(path)),
    }
}

fn random_key() -> Result<[u8; 32], SealError> {
    let mut fresh = [0; 32];
    getrandom::fill(&mut fresh).map_err(|_| SealError::Unsealable)?;
    Ok(fresh)
}

/// The configured key, else the one of the data directory, made at the first start.
fn seal_key(data: &DataConfig) -> Result<Vec<u8>, StartError> {
    let path = data.data_dir.join("seal.key");
    let text = match &data.seal_key {
        Some(key) => key.clone(),
        None => {
            write_secret(&path, &hex(&random_key()?))?;
            SecretString::from(std::fs::read_to_string(&path).map_err(at(&path))?)
        }
    };
    parse_seal_key(&text).ok_or_else(|| StartError::SealKey { path: path.display().to_string() })
}

/// On a database without keys, makes an admin key for the org `default`. It is written down before it is made: a process that dies
/// in between leaves a file that the next start replaces, never a key that nobody knows. Of several that start at once, one makes it.
async fn make_first_key(store: &SharedStore, data_dir: &Path) -> Result<Option<FirstKey>, StartError> {
    if store.has_keys().await? {
        return Ok(None);
    }
    let spec = KeySpec {
        org: "default".to_owned(),
        owner: None,
        role: Role::Admin,
        permissions: Vec::new(),
        expires_at: None,
    };
    let path = data_dir.join("admin.key");
    let made = spec.prepare(Clock::System.now())?;
    if !win_first_key(store, &made.key.id).await? {
        return Ok(None);
    }
    if path.exists() {
        std::fs::remove_file(&path).map_err(at(&path))?;
    }
    write_secret(&path, made.token.expose_secret())?;
    Ok(store.insert_first_key(&made.key).await?.then_some(FirstKey { token: made.token, path }))
}

/// Whether this process is the one that makes the first key. Another one has a while for it; when it has died over it, this one
/// takes its place.
async fn win_first_key(store: &SharedStore, own: &KeyId) -> Result<bool, StoreError> {
    let winner = store.reserve_first_key(own, None).await?;
    if winner == *own {
        return Ok(true);
    }
    let looks = if store.is_shared() { FIRST_KEY_LOOKS } else { 0 };
    for _ in 0..looks {
        if store.has_keys().await? {
            return Ok(false);
        }
        tokio::time::sleep(FIRST_KEY_PAUSE).await;
    }
    Ok(store.reserve_first_key(own, Some(&winner)).await? == *own)
}
