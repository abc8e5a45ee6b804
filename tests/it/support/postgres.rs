//! A PostgreSQL of the tests' own: one that they share, and private ones for tests that hurt it.

use std::future::Future;
use std::net::TcpStream;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock};

use reqwest::Url;
use rustix::process::{Signal, geteuid};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use super::processes::{children_of, eventually, is_alive, kill, signal};
use super::server::free_port;
use super::within;

/// A server in place of ours; it must allow CREATE DATABASE.
const FOREIGN: &str = "OSTLER_TEST_DATABASE_URL";

/// The operating system lives on in every test, so nothing needs to reach a disk. All shared memory but the interlock is in files
/// of the directory: a killed server leaves nothing elsewhere.
const SETTINGS: &str = "
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 400
shared_buffers = 32MB
dynamic_shared_memory_type = mmap
fsync = off
full_page_writes = off
synchronous_commit = on
autovacuum = on
max_wal_size = 256MB
";

/// Waits until the tests let go of its standard input, in whatever way they end, then ends all that runs in the directory and
/// erases it. An immediate shutdown gives the interlock's shared memory back; a server that was killed has left it.
const WATCHER: &str = r#"
read -r _
running() { find /proc -maxdepth 2 -name cwd -lname "$1/data*" 2>/dev/null; }
pidfile=$1/data/postmaster.pid
interlock=$(sed -n '7s/^ *[0-9]* *//p' "$pidfile" 2>/dev/null)
postmaster=$(sed -n 1p "$pidfile" 2>/dev/null)
[ -z "$postmaster" ] || kill -QUIT "$postmaster" 2>/dev/null
tries=0
while found=$(running "$1"); [ -n "$found" ]; do
  tries=$((tries + 1))
  if [ "$tries" -gt 50 ] || [ -z "$postmaster" ]; then
    for process in $found; do process=${process#/proc/}; kill -KILL "${process%/cwd}" 2>/dev/null; done
  fi
  sleep 0.1
done
[ -z "$interlock" ] || ipcrm -m "$interlock" 2>/dev/null
rm -rf "$1"
"#;

/// A PostgreSQL server. One of our own is stopped and erased with this value, or with the test's process.
pub struct Cluster {
    /// Its maintenance database.
    admin: Url,
    /// `None` for a foreign server.
    own: Option<Own>,
}

/// A server that we started, and can hurt.
struct Own {
    directory: PathBuf,
    programs: PathBuf,
    /// PostgreSQL does not run as root.
    user: Option<(u32, u32)>,
    postmaster: Mutex<Option<Child>>,
    watcher: Child,
}

/// A fresh database, dropped with this value.
pub struct Database {
    /// `postgres://ostler@127.0.0.1:PORT/NAME`.
    pub url: String,
    name: String,
    admin: Url,
}

/// The server that all tests of this process share, started by the first that asks.
pub async fn shared() -> &'static Cluster {
    tokio::task::spawn_blocking(shared_now).await.unwrap()
}

/// As [`shared`], for code that cannot wait.
pub fn shared_now() -> &'static Cluster {
    static SHARED: OnceLock<Cluster> = OnceLock::new();
    SHARED.get_or_init(|| match std::env::var(FOREIGN) {
        Ok(url) => Cluster { admin: Url::parse(&url).unwrap(), own: None },
        Err(_) => blocking(Cluster::start()),
    })
}

/// Runs it to its end on a runtime of its own, whatever runtime the caller is on.
fn blocking<T: Send>(work: impl Future<Output = T> + Send) -> T {
    let run = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
    let done = std::thread::scope(|scope| scope.spawn(run).join());
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Where the server's programs are: those of the PATH, or else of the newest version that Debian has installed.
fn programs() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let of_path = std::env::split_paths(&path).filter_map(|place| place.join("initdb").canonicalize().ok());
    let version = |place: &PathBuf| place.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok());
    let mut of_debian: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .map_or_else(|_| Vec::new(), |places| places.flatten().map(|place| place.path()).collect());
    of_debian.sort_by_key(version);
    let of_debian = of_debian.into_iter().rev().map(|place| place.join("bin/initdb"));
    let mut directories = of_path.chain(of_debian).filter_map(|initdb| Some(initdb.parent()?.to_owned()));
    directories.find(|place| place.join("initdb").exists() && place.join("postgres").exists()).unwrap_or_else(
        || {
            panic!(
                "these tests need the programs of PostgreSQL 14 or later (Debian: apt-get install postgresql). \
                 Neither PATH nor /usr/lib/postgresql/*/bin has initdb and postgres. \
                 {FOREIGN} can name a running server instead, for all tests but those that restart it"
            )
        },
    )
}

/// Whom to run the server as: ourselves, or somebody who is not root.
fn user() -> Option<(u32, u32)> {
    if !geteuid().is_root() {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").unwrap();
    let ids_of = |name: &str| {
        let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut ids = line.split(':').skip(2).map(|id| id.parse().unwrap());
        Some((ids.next()?, ids.next()?))
    };
    let ids = ids_of("postgres").or_else(|| ids_of("nobody"));
    Some(ids.expect("PostgreSQL does not run as root, and there is neither a user postgres nor nobody"))
}

impl Cluster {
    /// A server of the caller's own.
    pub async fn start() -> Self {
        let (programs, user) = (programs(), user());
        let directory = tempfile::Builder::new().prefix("ostler-postgres-").tempdir().unwrap().keep();
        let watcher = Command::new("sh")
            .args(["-c", WATCHER, "watcher"])
            .arg(&directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // What a terminal sends to the tests must not reach it: it comes after them.
            .process_group(0)
            .spawn()
            .unwrap();
        let own = Own { directory, programs, user, postmaster: Mutex::new(None), watcher };
        let data = own.data();
        std::fs::create_dir(&data).unwrap();
        for place in [&own.directory, &data] {
            own.user.map(|(user, group)| chown(place, Some(user), Some(group))).transpose().unwrap();
        }
        let initdb = own
            .command("initdb")
            .args(["--username=ostler", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"])
            .args(["--no-instructions", "--pgdata", "."])
            .output()
            .unwrap();
        assert!(initdb.status.success(), "initdb: {}", String::from_utf8_lossy(&initdb.stderr));
        let port = free_port();
        let settings = data.join("postgresql.conf");
        let mut text = std::fs::read_to_string(&settings).unwrap();
        text.push_str(&format!("{SETTINGS}port = {port}\n"));
        std::fs::write(&settings, text).unwrap();
        let admin = Url::parse(&format!("postgres://ostler@127.0.0.1:{port}/postgres")).unwrap();
        let cluster = Self { admin, own: Some(own) };
        cluster.start_again().await;
        cluster
    }

    /// Where it listens, as `HOST:PORT`.
    pub fn address(&self) -> String {
        format!("{}:{}", self.admin.host_str().unwrap(), self.admin.port().unwrap_or(5432))
    }

    /// Where its files are.
    pub fn directory(&self) -> &Path {
        &self.own().directory
    }

    /// A fresh database on it.
    pub async fn database(&self) -> Database {
        let name = format!("ostler_{}", uuid::Uuid::now_v7().simple());
        let mut connection = self.connect().await;
        // Nobody is ever connected to template0, so that nobody can be in the way.
        let create = AssertSqlSafe(format!("CREATE DATABASE {name} TEMPLATE template0"));
        within("a database", sqlx::query(create).execute(&mut connection)).await.unwrap();
        let mut url = self.admin.clone();
        url.set_path(&name);
        Database { url: url.into(), name, admin: self.admin.clone() }
    }

    /// As [`Cluster::database`], for code that cannot wait.
    pub fn database_now(&self) -> Database {
        blocking(self.database())
    }

    async fn connect(&self) -> PgConnection {
        within("a connection", PgConnection::connect(self.admin.as_str())).await.unwrap()
    }

    #[track_caller]
    fn own(&self) -> &Own {
        self.own.as_ref().expect("a foreign server is not ours to stop")
    }

    /// Starts it after it was stopped or killed, and returns when it answers.
    pub async fn start_again(&self) {
        let own = self.own();
        let mut postmaster = own.command("postgres").args(["-D", "."]).spawn().unwrap();
        eventually("PostgreSQL to answer", || {
            if let Some(status) = postmaster.try_wait().unwrap() {
                panic!("PostgreSQL ended at its start, {status}: {}", own.log());
            }
            TcpStream::connect(self.address()).is_ok()
        })
        .await;
        *own.postmaster.lock().unwrap() = Some(postmaster);
        // It listens before it has recovered, and says so to whoever connects.
        within("PostgreSQL to be ready", async {
            while PgConnection::connect(self.admin.as_str()).await.is_err() {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    /// Stops it in order, without waiting for clients to leave, and starts it again.
    pub async fn restart(&self) {
        self.own().stop(Signal::INT).await;
        self.start_again().await;
    }

    /// Stops it at once; its next start recovers.
    pub async fn stop_immediate(&self) {
        self.own().stop(Signal::QUIT).await;
    }

    /// kill -9 for all its processes, as a crash of the machine would; returns when they are gone.
    pub async fn kill(&self) {
        let own = self.own();
        let mut postmaster = own.take_postmaster();
        // Stopped, it forks no more, and its children keep their ids until all are dead.
        signal(postmaster.id(), Signal::STOP);
        let children = children_of(postmaster.id());
        for child in &children {
            kill(*child);
        }
        postmaster.kill().unwrap();
        ended(&mut postmaster).await;
        eventually("its children to die", || !children.iter().any(|child| is_alive(*child))).await;
    }

    /// Ends every client's connection, as an operator can.
    pub async fn terminate_backends(&self) {
        let mut connection = self.connect().await;
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
        sqlx::query(end).execute(&mut connection).await.unwrap();
    }
}

async fn ended(child: &mut Child) -> ExitStatus {
    let mut status = None;
    eventually("PostgreSQL to end", || {
        status = child.try_wait().unwrap();
        status.is_some()
    })
    .await;
    status.unwrap()
}

impl Own {
    fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    fn log_file(&self) -> PathBuf {
        self.directory.join("log")
    }

    /// One of the server's programs, at work in the data directory: the watcher knows it by that.
    fn command(&self, program: &str) -> Command {
        let log = std::fs::File::options().create(true).append(true).open(self.log_file()).unwrap();
        let mut command = Command::new(self.programs.join(program));
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .current_dir(self.data())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        if let Some((user, group)) = self.user {
            command.uid(user).gid(group);
        }
        command
    }

    #[track_caller]
    fn take_postmaster(&self) -> Child {
        self.postmaster.lock().unwrap().take().expect("it does not run")
    }

    async fn stop(&self, how: Signal) {
        let mut postmaster = self.take_postmaster();
        signal(postmaster.id(), how);
        ended(&mut postmaster).await;
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        drop(self.watcher.stdin.take());
        if let Some(mut postmaster) = self.postmaster.lock().unwrap().take() {
            drop(postmaster.wait());
        }
        drop(self.watcher.wait());
    }
}

impl Database {
    /// A connection that goes to it directly.
    pub async fn connect(&self) -> PgConnection {
        within("a connection", PgConnection::connect(&self.url)).await.unwrap()
    }

    /// Runs SQL on it: what a foreign hand would do.
    pub async fn execute(&self, sql: &str) {
        let sql = AssertSqlSafe(sql.to_owned());
        sqlx::query(sql).execute(&mut self.connect().await).await.unwrap();
    }
}

impl Drop for Database {
    /// As well as it goes: its server may be gone already, and that is the test's affair.
    fn drop(&mut self) {
        let sql = AssertSqlSafe(format!("DROP DATABASE {} WITH (FORCE)", self.name));
        let erase = async {
            let mut connection = PgConnection::connect(self.admin.as_str()).await?;
            sqlx::query(sql).execute(&mut connection).await
        };
        drop(blocking(async { tokio::time::timeout(std::time::Duration::from_secs(5), erase).await }));
    }
}
