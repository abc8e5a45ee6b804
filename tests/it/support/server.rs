//! The real binary as a child process, on a data directory of its own and a free port.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, OnceLock};

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpSocket;
use tokio::process::{Child, Command};

use super::api::Api;
use super::postgres::{self, Database};
use super::processes::signal;
use super::within;

/// A data directory with its database, and how a service is started on it.
pub struct Home {
    directory: TempDir,
    /// The database on PostgreSQL, made when it is first needed; `None` for a file in the directory.
    postgres: Option<OnceLock<Database>>,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
}

/// A port where nothing listens, below those that the system hands out by itself, and which is nobody else's while this process
/// lives, though other tests run beside it.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    static TAKEN: Mutex<Vec<TcpSocket>> = Mutex::new(Vec::new());
    // Two runs of the tests at the same time begin at different places.
    let first = 20_000 + u16::try_from(std::process::id() % 10_000).unwrap();
    loop {
        let port = first + NEXT.fetch_add(1, Ordering::Relaxed);
        let place = TcpSocket::new_v4().unwrap();
        // Only one socket can be bound like this; once it is, one that wants to listen there is let pass.
        if place.bind((std::net::Ipv4Addr::LOCALHOST, port).into()).is_ok() {
            place.set_reuseaddr(true).unwrap();
            TAKEN.lock().unwrap().push(place);
            return port;
        }
    }
}

/// A running service. Dropping it kills it, as a crash would.
pub struct Server {
    child: Child,
    /// Where it listens, as `http://127.0.0.1:PORT`.
    pub url: String,
    /// What it printed before it served.
    pub greeting: Vec<String>,
    key: String,
}

impl Home {
    /// An empty data directory; sweeps and graces are short, so that tests need not wait. The database is the one that
    /// `OSTLER_TEST_DATABASE` names: `sqlite`, as without it, or `postgres`.
    pub fn new() -> Self {
        match std::env::var("OSTLER_TEST_DATABASE").as_deref() {
            Err(_) | Ok("sqlite") => Self::on_sqlite(),
            Ok("postgres") => Self::on_postgres(),
            Ok(other) => panic!("OSTLER_TEST_DATABASE is sqlite or postgres, not {other}"),
        }
    }

    /// As [`Home::new`], for a test of what is so on SQLite alone.
    pub fn on_sqlite() -> Self {
        Self::on(None)
    }

    /// As [`Home::new`], with a database of its own on the PostgreSQL that all tests share.
    pub fn on_postgres() -> Self {
        Self::on(Some(OnceLock::new()))
    }

    /// As [`Home::new`], on a database that is there.
    pub fn on_database(database: Database) -> Self {
        Self::on(Some(database.into()))
    }

    fn on(postgres: Option<OnceLock<Database>>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self { directory, postgres, arguments: Vec::new(), environment: Vec::new() }
    }

    /// Adds flags to `ostler serve`.
    pub fn with(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|word| (*word).to_owned()));
        self
    }

    /// Adds a variable to the service's environment.
    pub fn with_variable(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Writes a configuration file and starts the service with it.
    pub fn with_config(self, text: &str) -> Self {
        let path = self.path().join("ostler.toml");
        std::fs::write(&path, text).unwrap();
        self.with(&["--config", path.to_str().unwrap()])
    }

    /// The data directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The database file.
    #[track_caller]
    pub fn database(&self) -> PathBuf {
        assert!(self.postgres.is_none(), "a test that asks for the file says Home::on_sqlite()");
        self.path().join("ostler.db")
    }

    /// The database, where it is on PostgreSQL.
    pub fn postgres(&self) -> Option<&Database> {
        let database = self.postgres.as_ref()?;
        Some(database.get_or_init(|| postgres::shared_now().database_now()))
    }

    /// `ostler` with these arguments and this data directory, to run to its end.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ostler"));
        command
            .args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.path())
            .env("OSTLER_DATA_DIR", self.path())
            // Short, so that tests need not wait; a flag goes before them.
            .env("OSTLER_SWEEP_INTERVAL_SECONDS", "0.1")
            .env("OSTLER_CANCEL_GRACE_SECONDS", "0.5")
            .env("OSTLER_SHUTDOWN_GRACE_SECONDS", "2")
            .envs(self.postgres().map(|database| ("OSTLER_DATABASE_URL", &database.url)))
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(self.path())
            .kill_on_drop(true);
        command
    }

    /// Starts the service and returns when it listens.
    pub async fn start(&self) -> Server {
        self.start_on(0).await
    }

    /// Starts the service on a port of its own choice, see [`free_port`], so that clients find it again.
    pub async fn start_on(&self, port: u16) -> Server {
        self.start_as(port, |_| {}).await
    }

    /// Starts a service that dies when it comes to that point.
    pub async fn start_with_fault(&self, point: &str) -> Server {
        let die = |command: &mut Command| {
            command.env("OSTLER_FAULT", point);
        };
        self.start_as(0, die).await
    }

    /// Starts the service on a port by a command that the caller completes.
    pub async fn start_as(&self, port: u16, complete: impl FnOnce(&mut Command)) -> Server {
        let mut command = self.command(&["serve", "--listen", &format!("127.0.0.1:{port}"), "--log", "warn"]);
        command.args(&self.arguments);
        complete(&mut command);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut greeting = Vec::new();
        let url = within("the service to listen", async {
            while let Some(line) = lines.next_line().await.unwrap() {
                greeting.push(line.clone());
                if let Some((_, url)) = line.split_once(" listens on ") {
                    return url.to_owned();
                }
            }
            panic!("the service ended before it listened: {greeting:?}");
        })
        .await;
        let key = std::fs::read_to_string(self.path().join("admin.key")).unwrap().trim().to_owned();
        Server { child, url, greeting, key }
    }

    /// Runs SQL on the database: what a foreign hand would do.
    pub async fn tamper(&self, sql: &str) {
        use sqlx::Connection as _;
        if let Some(database) = self.postgres() {
            return database.execute(sql).await;
        }
        let path = self.database();
        let mut connection = sqlx::SqliteConnection::connect(path.to_str().unwrap()).await.unwrap();
        sqlx::query(sqlx::AssertSqlSafe(sql.to_owned())).execute(&mut connection).await.unwrap();
    }

    /// Makes a key on the database itself, and gives its token.
    pub async fn make_key(&self, arguments: &[&str]) -> String {
        let output = self.command(&["keys", "create"]).args(arguments).output().await.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// The session's own directory for files, where the caller chose none.
    pub fn workspace(&self, session: &str) -> PathBuf {
        self.path().join("workspaces").join(session)
    }

    /// Where the session's agent keeps what it keeps: its home.
    pub fn state_dir(&self, session: &str) -> PathBuf {
        self.path().join("agents").join(session)
    }

    /// How many lines of the session's effects ledger are of that kind.
    pub fn effects(&self, session: &str, kind: &str) -> usize {
        self.ledger(session).iter().filter(|line| line["kind"] == kind).count()
    }

    /// The session's effects ledger.
    pub fn ledger(&self, session: &str) -> Vec<serde_json::Value> {
        let path = self.workspace(session).join("effects.jsonl");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Server {
    /// A client with the admin key of the first start.
    pub fn api(&self) -> Api {
        self.api_with(&self.key)
    }

    /// A client with another key.
    pub fn api_with(&self, key: &str) -> Api {
        Api::new(&self.url, key)
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id().unwrap()
    }

    /// kill -9, and returns when it is gone.
    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// Returns when it has died by itself.
    pub async fn wait_dead(mut self) {
        let status = within("the service to die", self.child.wait()).await.unwrap();
        assert!(!status.success(), "it died: {status}");
    }

    /// SIGTERM, and returns its exit status.
    pub async fn terminate(self) -> std::process::ExitStatus {
        signal(self.pid(), Signal::TERM);
        self.ended().await
    }

    /// Returns its exit status when it has ended.
    pub async fn ended(mut self) -> std::process::ExitStatus {
        within("the service to end", self.child.wait()).await.unwrap()
    }
}
