//! Several replicas of the real binary on one database and one data directory.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::Signal;
use tokio::process::Command;

use super::api::Api;
use super::postgres::Database;
use super::processes::signal;
use super::server::{Home, Server, free_port};

/// How replicas are to be started.
pub struct Plan {
    replicas: Vec<Replica>,
    home: Home,
}

/// Replicas that were started. Each has a port and a name of its own, and keeps them when it is started again.
pub struct Fleet {
    replicas: Vec<Replica>,
    // After the replicas, so that they are dead when it is erased.
    home: Home,
    random: Random,
}

struct Replica {
    name: String,
    port: u16,
    environment: Vec<(String, String)>,
    server: Option<Server>,
    is_stopped: bool,
}

impl Fleet {
    /// So many replicas, as they are by default.
    pub async fn start(count: usize) -> Self {
        Self::of(count).start().await
    }

    /// So many replicas, on a database of their own.
    pub fn of(count: usize) -> Plan {
        Self::on_home(Home::on_postgres(), count)
    }

    /// So many replicas on that database, such as one of a server of the test's own.
    pub fn on_database(database: Database, count: usize) -> Plan {
        Self::on_home(Home::on_database(database), count)
    }

    /// So many replicas in that home, which is on PostgreSQL.
    pub fn on_home(home: Home, count: usize) -> Plan {
        let replica = |n| Replica {
            name: format!("r{n}"),
            port: free_port(),
            environment: Vec::new(),
            server: None,
            is_stopped: false,
        };
        Plan { home, replicas: (0..count).map(replica).collect() }
    }

    /// The directory and the database that all share.
    pub fn home(&self) -> &Home {
        &self.home
    }

    /// How many replicas there are, running or not.
    pub fn len(&self) -> usize {
        self.replicas.len()
    }

    /// A replica that runs.
    #[track_caller]
    pub fn replica(&self, i: usize) -> &Server {
        self.replicas[i].server.as_ref().unwrap_or_else(|| panic!("replica {i} does not run"))
    }

    /// A client of that replica, with the admin key.
    #[track_caller]
    pub fn api(&self, i: usize) -> Api {
        self.replica(i).api()
    }

    /// One of the replicas that run and are not stopped.
    pub fn any(&self) -> usize {
        let awake = |i: &usize| self.replicas[*i].server.is_some() && !self.replicas[*i].is_stopped;
        let awake: Vec<usize> = (0..self.len()).filter(awake).collect();
        awake[self.random.below(awake.len())]
    }

    #[track_caller]
    fn take(&mut self, i: usize) -> Server {
        self.replicas[i].is_stopped = false;
        self.replicas[i].server.take().unwrap_or_else(|| panic!("replica {i} does not run"))
    }

    /// kill -9.
    pub async fn kill(&mut self, i: usize) {
        self.take(i).kill().await;
    }

    /// SIGTERM; returns how it ended.
    pub async fn terminate(&mut self, i: usize) -> std::process::ExitStatus {
        self.take(i).terminate().await
    }

    /// SIGTERM; it goes down in its own time.
    #[track_caller]
    pub fn begin_end(&self, i: usize) {
        signal(self.replica(i).pid(), Signal::TERM);
    }

    /// Returns when it has gone down; how it ended.
    pub async fn ended(&mut self, i: usize) -> std::process::ExitStatus {
        self.take(i).ended().await
    }

    /// Returns when it has died by itself.
    pub async fn wait_dead(&mut self, i: usize) {
        self.take(i).wait_dead().await;
    }

    /// SIGSTOP: it keeps its connections and its leases, and does nothing.
    #[track_caller]
    pub fn stop(&mut self, i: usize) {
        signal(self.replica(i).pid(), Signal::STOP);
        self.replicas[i].is_stopped = true;
    }

    /// SIGCONT: it does not know that time has passed.
    #[track_caller]
    pub fn cont(&mut self, i: usize) {
        signal(self.replica(i).pid(), Signal::CONT);
        self.replicas[i].is_stopped = false;
    }

    /// Starts it again, after kill -9 where it still runs.
    pub async fn restart(&mut self, i: usize) {
        self.restart_as(i, |_| {}).await;
    }

    /// Starts it again, so that it dies when it comes to that point.
    pub async fn restart_with_fault(&mut self, i: usize, point: &str) {
        let die = |command: &mut Command| {
            command.env("OSTLER_FAULT", point);
        };
        self.restart_as(i, die).await;
    }

    async fn restart_as(&mut self, i: usize, complete: impl FnOnce(&mut Command)) {
        if self.replicas[i].server.is_some() {
            self.kill(i).await;
        }
        self.replicas[i].server = Some(self.replicas[i].launch(&self.home, complete).await);
    }
}

impl Plan {
    /// Adds flags to `ostler serve` of every replica.
    pub fn with(mut self, arguments: &[&str]) -> Self {
        self.home = self.home.with(arguments);
        self
    }

    /// Adds a variable to the environment of every replica.
    pub fn with_variable(mut self, name: &str, value: &str) -> Self {
        self.home = self.home.with_variable(name, value);
        self
    }

    /// Adds a variable to the environment of one replica.
    pub fn with_variable_of(mut self, i: usize, name: &str, value: &str) -> Self {
        self.replicas[i].environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Writes a configuration file for all replicas.
    pub fn with_config(mut self, text: &str) -> Self {
        self.home = self.home.with_config(text);
        self
    }

    /// The way on which one replica reaches the database, such as a [`super::proxy::Proxy`]'s.
    pub fn with_url_of(self, i: usize, url: &str) -> Self {
        self.with_variable_of(i, "OSTLER_DATABASE_URL", url)
    }

    /// The database that they will share.
    pub fn database(&self) -> &Database {
        self.home.postgres().unwrap()
    }

    /// Starts the first alone, which makes the schema and the first key, then the others together.
    pub async fn start(mut self) -> Fleet {
        let (first, others) = self.replicas.split_first_mut().unwrap();
        first.server = Some(first.launch(&self.home, |_| {}).await);
        let started = others.iter().map(|replica| replica.launch(&self.home, |_| {}));
        let started = futures_util::future::join_all(started).await;
        for (replica, server) in others.iter_mut().zip(started) {
            replica.server = Some(server);
        }
        Fleet { home: self.home, replicas: self.replicas, random: Random::new() }
    }
}

impl Replica {
    async fn launch(&self, home: &Home, complete: impl FnOnce(&mut Command)) -> Server {
        let as_itself = |command: &mut Command| {
            command.args(["--instance", &self.name]);
            command.envs(self.environment.iter().map(|(name, value)| (name, value)));
            complete(command);
        };
        home.start_as(self.port, as_itself).await
    }
}

/// Marsaglia's xorshift, from a seed that is the same in each run.
pub struct Random(AtomicU64);

impl Random {
    pub fn new() -> Self {
        Self(AtomicU64::new(0x9e37_79b9_7f4a_7c15))
    }

    pub fn below(&self, end: usize) -> usize {
        let next = |mut x: u64| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^ (x << 17)
        };
        let x = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |x| Some(next(x))).unwrap();
        usize::try_from(x % u64::try_from(end).unwrap()).unwrap()
    }
}
