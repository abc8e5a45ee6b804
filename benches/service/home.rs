//! The service in this process, on a directory of its own, behind a real listener.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use ostler::clock::{Clock, Timestamp};
use ostler::domain::approval::PermissionMode;
use ostler::domain::limits::Limits;
use ostler::domain::scope::Role;
use ostler::domain::session::{Session, SessionState};
use ostler::domain::turn::Usage;
use ostler::harness::Registry;
use ostler::http::{HttpOptions, ServerOptions, router, serve};
use ostler::ids::{SessionId, SessionKey, mint_run_id};
use ostler::service::{KeySpec, Service, ServiceOptions};
use ostler::store::{Change, Commit, Seal, SharedStore, SqlStore, StoreOptions};
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
    pub async fn open() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = StoreOptions { path: directory.path().join("ostler.db"), exclusive: true };
        let store: SharedStore =
            Arc::new(SqlStore::open(&options, Seal::new(vec![7; 32]).unwrap()).await.unwrap());
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
            Registry::new(&BTreeMap::new()).unwrap_or_default(),
            Clock::System,
            ServiceOptions::new(directory.path().to_path_buf()),
        );
        let address = listen(router(Arc::clone(&service), HttpOptions::default())).await;
        Self { store, service, address, token: made.token.expose_secret().to_owned(), _directory: directory }
    }

    /// Sessions that are stored and that nobody has in hand.
    pub async fn sessions(&self, count: usize) -> Vec<Session> {
        let mut sessions = Vec::new();
        for _ in 0..count {
            let session = session("alice");
            assert_eq!(self.store.commit(Change::create(session.clone())).await.unwrap(), Commit::Done);
            sessions.push(session);
        }
        sessions
    }

    /// A request with the key.
    pub fn request(&self, method: &str, path: &str, body: Option<&serde_json::Value>) -> String {
        super::load::request(method, path, &self.token, body)
    }
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
    let id = SessionId::mint();
    Session {
        key: SessionKey::mint().unwrap(),
        workspace: format!("/nowhere/{id}"),
        id,
        run_id: mint_run_id(),
        thread_id: None,
        org_id: ORG.to_owned(),
        owner_id: owner.to_owned(),
        harness: "demo".to_owned(),
        title: "A session of the usual kind".to_owned(),
        metadata: BTreeMap::from([("project".to_owned(), "ostler".to_owned())]),
        instructions: None,
        permission_mode: PermissionMode::Ask,
        limits: Limits::default(),
        settings: json!({"token_delay_ms": 0}),
        state: SessionState::Idle,
        wish: None,
        turn: None,
        turn_count: 0,
        queued_turns: 0,
        pending_approval: None,
        pending_approval_count: 0,
        resolved_approval_ids: Vec::new(),
        native_id: None,
        started: false,
        has_resume_state: false,
        usage: Usage::NONE,
        last_event_seq: 0,
        holder: None,
        version: 1,
        created_at: THEN,
        updated_at: THEN,
        last_active_at: THEN,
    }
}
