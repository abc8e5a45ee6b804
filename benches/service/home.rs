//! The service in this process, on a directory of its own, behind a real listener.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use ostler::clock::{Clock, Timestamp};
use ostler::domain::scope::Role;
use ostler::domain::session::Session;
use ostler::harness::Registry;
use ostler::harness::child::Launcher;
use ostler::http::{HttpOptions, ServerOptions, router, serve};
use ostler::ids::SessionKey;
use ostler::service::{KeySpec, Service, ServiceOptions};
use ostler::store::{self, Change, Commit, Location, Seal, SharedStore, StoreOptions};
use secrecy::ExposeSecret;
use serde_json::json;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// The org of everything here.
pub const ORG: &str = "bench";
/// A moment long ago: of sessions that were made then.
pub const THEN: Timestamp = Timestamp(1_700_000_000_000);

/// See the module.
pub struct Home {
    pub store: SharedStore,
    pub service: Arc<Service>,
    pub address: SocketAddr,
    /// An admin key.
    pub token: String,
    pub _directory: TempDir,
}

impl Home {
    /// On a SQLite file.
    pub async fn open() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = StoreOptions::new(Location::Sqlite(directory.path().join("ostler.db")));
        Self::on(&options, directory).await
    }

    /// On a database that is opened that way.
    pub async fn on(options: &StoreOptions, directory: TempDir) -> Self {
        let store: SharedStore = store::open(options, Seal::new(vec![7; 32]).unwrap()).await.unwrap();
        let spec = KeySpec {
            org: ORG.to_owned(),
            owner: None,
            role: Role::Admin,
            permissions: Vec::new(),
            expires_at: None,
        };
        let made = spec.prepare(Clock::System.now()).unwrap();
        store.insert_key(&made.key).await.unwrap();
        let service = Service::new(
            Arc::clone(&store),
            Registry::new(&BTreeMap::new(), &Launcher::of_this_program(Vec::new())).unwrap_or_default(),
            Clock::System,
            ServiceOptions::new(directory.path().to_path_buf()),
        );
        let address = listen(router(Arc::clone(&service), HttpOptions::default())).await;
        Self { store, service, address, token: made.token.expose_secret().to_owned(), _directory: directory }
    }

    /// Sessions that are stored and that nobody has in hand.
    pub async fn sessions(&self, count: usize) -> Vec<Session> {
        sessions(&self.store, count).await
    }

    /// A request with the key.
    pub fn request(&self, method: &str, path: &str, body: Option<&serde_json::Value>) -> String {
        super::load::request(method, path, &self.token, body)
    }
}

/// Sessions that are stored and that nobody has in hand.
pub async fn sessions(store: &SharedStore, count: usize) -> Vec<Session> {
    let mut sessions = Vec::new();
    for _ in 0..count {
        let session = session("alice");
        assert_eq!(store.commit(Change::create(session.clone())).await.unwrap(), Commit::Done);
        sessions.push(session);
    }
    sessions
}

/// Serves on a free port for as long as the process lives.
pub async fn listen(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, router, ServerOptions::default(), CancellationToken::new()));
    address
}

/// A session that is not stored yet.
pub fn session(owner: &str) -> Session {
    let key = SessionKey::mint().unwrap();
    let new = Session::new(key, ORG.to_owned(), owner.to_owned(), "demo".to_owned(), THEN);
    Session {
        workspace: format!("/nowhere/{}", new.id),
        title: "A session of the usual kind".to_owned(),
        metadata: BTreeMap::from([("project".to_owned(), "ostler".to_owned())]),
        settings: json!({"token_delay_ms": 0}),
        ..new
    }
}
