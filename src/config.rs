//! Settings of the service: flags before environment before file before defaults. All are read, then all mistakes are told together.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

use crate::domain::approval::PermissionMode;
use crate::domain::policy::{DeniedTools, Policy};
use crate::harness::child::Launcher;
use crate::harness::{HarnessConfig, Registry};
use crate::http::AllowedHosts;
use crate::service::ServiceOptions;
use crate::store::{Instance, Location, Migrations, OpenError, StoreOptions};
use crate::telemetry::LogFormat;

/// The flags that say where the data is: the service and the key commands share them.
#[derive(Args, Clone, Debug, Default)]
pub struct DataArgs {
    /// Directory for the database, keys and workspaces [default: ./ostler-data]
    #[arg(long, env = "OSTLER_DATA_DIR", value_name = "DIR")]
    pub data_dir: Option<String>,
    /// sqlite:PATH or postgres://USER:PASSWORD@HOST/DATABASE [default: sqlite:DATA_DIR/ostler.db]
    #[arg(long, env = "OSTLER_DATABASE_URL", value_name = "URL", hide_env_values = true)]
    pub database_url: Option<String>,
    /// Configuration file [default: ./ostler.toml where there is one]
    #[arg(long, env = "OSTLER_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// 64 hexadecimal digits that seal resume states [default: DATA_DIR/seal.key, made at the first start]
    #[arg(long, env = "OSTLER_SEAL_KEY", value_name = "HEX", hide_env_values = true)]
    pub seal_key: Option<SecretString>,
}

/// The flags of `ostler serve`. All are texts here: what is wrong with them is told together, with what is wrong in the file.
#[derive(Args, Clone, Debug, Default)]
pub struct ServeArgs {
    /// Where the data is.
    #[command(flatten)]
    pub data: DataArgs,
    /// Name of the place where this replica runs; each process on one data directory has its own [default: the host's name]
    #[arg(long, env = "OSTLER_INSTANCE", value_name = "NAME")]
    pub instance: Option<String>,
    /// Time after its last sign of life at which other replicas take a replica's sessions over [default: 10]
    #[arg(long, env = "OSTLER_REPLICA_TTL_SECONDS", value_name = "SECONDS")]
    pub replica_ttl_seconds: Option<String>,
    /// Whether replicas tell each other at once what they changed: on, or off to find out by looking alone [default: on]
    #[arg(long, env = "OSTLER_HINTS", value_name = "ON|OFF")]
    pub hints: Option<String>,
    /// Refuse a database that lacks migrations instead of applying them
    #[arg(long, env = "OSTLER_NO_MIGRATE", value_parser = clap::builder::FalseyValueParser::new())]
    pub no_migrate: bool,
    /// Address to listen on [default: 127.0.0.1:7070]
    #[arg(long, env = "OSTLER_LISTEN", value_name = "ADDR")]
    pub listen: Option<String>,
    /// Host name that clients use; needed, once or more, to listen beyond loopback
    #[arg(long, env = "OSTLER_PUBLIC_HOST", value_name = "HOST", value_delimiter = ',')]
    pub public_host: Vec<String>,
    /// Directory in which callers may choose their own workspace; may be given more than once
    #[arg(long, env = "OSTLER_WORKSPACE_ROOT", value_name = "DIR", value_delimiter = ',')]
    pub workspace_root: Vec<String>,
    /// Furthest permission mode that a session may have: ask, allow_reads, allow_edits, allow_all [default: allow_all]
    #[arg(long, env = "OSTLER_MAX_PERMISSION_MODE", value_name = "MODE")]
    pub max_permission_mode: Option<String>,
    /// Idle time after which a live session is put away [default: 900]
    #[arg(long, env = "OSTLER_IDLE_TTL_SECONDS", value_name = "SECONDS")]
    pub idle_ttl_seconds: Option<String>,
    /// Time between two sweeps [default: 5]
    #[arg(long, env = "OSTLER_SWEEP_INTERVAL_SECONDS", value_name = "SECONDS")]
    pub sweep_interval_seconds: Option<String>,
    /// Time that a cancelled turn has to end before its harness is killed [default: 5]
    #[arg(long, env = "OSTLER_CANCEL_GRACE_SECONDS", value_name = "SECONDS")]
    pub cancel_grace_seconds: Option<String>,
    /// Time that running turns have when the service goes down [default: 10]
    #[arg(long, env = "OSTLER_SHUTDOWN_GRACE_SECONDS", value_name = "SECONDS")]
    pub shutdown_grace_seconds: Option<String>,
    /// Most live sessions at once [default: 1000]
    #[arg(long, env = "OSTLER_MAX_LIVE_SESSIONS", value_name = "N")]
    pub max_live_sessions: Option<String>,
    /// Most requests that one key may send in a second; 0 for no limit [default: 0]
    #[arg(long, env = "OSTLER_REQUESTS_PER_SECOND", value_name = "N")]
    pub requests_per_second: Option<String>,
    /// Days that idempotency keys are kept [default: 7]
    #[arg(long, env = "OSTLER_IDEMPOTENCY_DAYS", value_name = "DAYS")]
    pub idempotency_days: Option<String>,
    /// Days that events of ended turns are kept; 0 for ever [default: 0]
    #[arg(long, env = "OSTLER_EVENT_RETENTION_DAYS", value_name = "DAYS")]
    pub event_retention_days: Option<String>,
    /// pretty or json [default: pretty on a terminal, else json]
    #[arg(long, env = "OSTLER_LOG_FORMAT", value_name = "FORMAT")]
    pub log_format: Option<String>,
    /// What is logged, as tracing's EnvFilter takes it [default: info]
    #[arg(long, env = "OSTLER_LOG", value_name = "FILTER")]
    pub log: Option<String>,
}

/// The configuration file: the same settings under the same names, and the harnesses.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    data_dir: Option<String>,
    database_url: Option<String>,
    seal_key: Option<SecretString>,
    instance: Option<String>,
    replica_ttl_seconds: Option<Number>,
    hints: Option<String>,
    no_migrate: Option<bool>,
    listen: Option<String>,
    #[serde(default)]
    public_host: Vec<String>,
    #[serde(default)]
    workspace_root: Vec<String>,
    max_permission_mode: Option<String>,
    idle_ttl_seconds: Option<Number>,
    sweep_interval_seconds: Option<Number>,
    cancel_grace_seconds: Option<Number>,
    shutdown_grace_seconds: Option<Number>,
    max_live_sessions: Option<Number>,
    requests_per_second: Option<Number>,
    idempotency_days: Option<Number>,
    event_retention_days: Option<Number>,
    log_format: Option<String>,
    log: Option<String>,
    #[serde(default)]
    policy: PolicyTable,
    #[serde(default, deserialize_with = "HarnessConfig::read_all")]
    harness: BTreeMap<String, HarnessConfig>,
}

/// `[policy]`: what is allowed, whatever a session or a person says.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PolicyTable {
    /// Refused in every org.
    deny_tools: Vec<String>,
    /// By harness.
    harness: BTreeMap<String, HarnessPolicy>,
    /// By org.
    org: BTreeMap<String, OrgPolicy>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HarnessPolicy {
    max_permission_mode: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OrgPolicy {
    deny_tools: Vec<String>,
}

/// A number of the file, as the text that a flag would be.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Number {
    Whole(i64),
    Fraction(f64),
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(number) => number.fmt(f),
            Self::Fraction(number) => number.fmt(f),
        }
    }
}

/// Where the data is.
#[derive(Clone, Debug)]
pub struct DataConfig {
    /// Absolute.
    pub data_dir: PathBuf,
    /// The database.
    pub store: StoreOptions,
    /// The key that seals resume states; `None` for the one in the data directory.
    pub seal_key: Option<SecretString>,
}

/// Everything that `ostler serve` needs.
#[derive(Clone)]
pub struct Config {
    /// Where the data is.
    pub data: DataConfig,
    /// Where to listen.
    pub listen: SocketAddr,
    /// Host names that requests may name beside loopback's.
    pub public_hosts: AllowedHosts,
    /// How the service is set up.
    pub service: ServiceOptions,
    /// The harnesses.
    pub harnesses: Registry,
    /// How logs look.
    pub log_format: LogFormat,
    /// What is logged.
    pub log: String,
}

/// Everything that is wrong with the settings.
#[derive(Debug, PartialEq, Eq)]
pub struct Mistakes(pub Vec<String>);

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [mistake] => f.write_str(mistake),
            mistakes => write!(f, "the settings have mistakes:\n  {}", mistakes.join("\n  ")),
        }
    }
}

impl std::error::Error for Mistakes {}

/// Collects mistakes and stands in with a default, so that reading goes on.
#[derive(Default)]
struct Reading(Vec<String>);

impl Reading {
    fn note<T>(&mut self, result: Result<T, String>, instead: T) -> T {
        result.unwrap_or_else(|mistake| {
            self.0.push(mistake);
            instead
        })
    }

    fn number(&mut self, name: &str, flag: Option<&String>, file: Option<&Number>, default: f64) -> f64 {
        let Some(text) = flag.cloned().or_else(|| file.map(ToString::to_string)) else { return default };
        let number = text.trim().parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
        self.note(number.ok_or_else(|| format!("{name}: {text:?} is not a number of at least 0")), default)
    }

    fn seconds(
        &mut self,
        name: &str,
        flag: Option<&String>,
        file: Option<&Number>,
        default: f64,
    ) -> Duration {
        const YEARS: f64 = 1e9;
        let seconds = self.number(name, flag, file, default);
        let bounded =
            if seconds <= YEARS { Ok(seconds) } else { Err(format!("{name}: {seconds} is too long")) };
        Duration::from_secs_f64(self.note(bounded, default))
    }
}

impl DataArgs {
    /// Where the data is, from flags, environment and file.
    ///
    /// # Errors
    /// All mistakes.
    pub fn resolve(&self) -> Result<DataConfig, Mistakes> {
        let mut reading = Reading::default();
        let file = read_file(self.config.as_deref(), &mut reading);
        let data = resolve_data(self, &file, &mut reading);
        if reading.0.is_empty() { Ok(data) } else { Err(Mistakes(reading.0)) }
    }
}

impl ServeArgs {
    /// The whole configuration, from flags, environment and file.
    ///
    /// # Errors
    /// All mistakes.
    pub fn resolve(&self) -> Result<Config, Mistakes> {
        let mut reading = Reading::default();
        let file = read_file(self.data.config.as_deref(), &mut reading);
        let mut data = resolve_data(&self.data, &file, &mut reading);
        self.resolve_replica(&file, &mut data, &mut reading);
        let (listen, public_hosts) = self.resolve_listen(&file, &mut reading);
        let mut service = self.resolve_service(&file, &data, &mut reading);
        let launcher = Launcher::of_this_program(private_paths(&data, self.data.config.as_deref()));
        let harnesses = Registry::new(&file.harness, &launcher).unwrap_or_else(|wrong| {
            reading.0.extend(wrong.iter().map(ToString::to_string));
            Registry::default()
        });
        service.policy = self.resolve_policy(&file, &mut reading);
        for name in file.policy.harness.keys().filter(|name| harnesses.get(name).is_none()) {
            reading.0.push(format!("policy.harness.{name}: there is no such harness"));
        }
        let format = self.log_format.as_deref().or(file.log_format.as_deref());
        let log_format = match format.map(LogFormat::parse) {
            None => LogFormat::for_this_terminal(),
            Some(Some(format)) => format,
            Some(None) => {
                reading
                    .0
                    .push(format!("log_format: {:?} is neither pretty nor json", format.unwrap_or_default()));
                LogFormat::Json
            }
        };
        let log = self.log.clone().or(file.log).unwrap_or_else(|| "info".to_owned());
        reading.note(crate::telemetry::check_filter(&log).map_err(|error| format!("log: {error}")), ());
        if reading.0.is_empty() {
            Ok(Config { data, listen, public_hosts, service, harnesses, log_format, log })
        } else {
            Err(Mistakes(reading.0))
        }
    }

    fn resolve_listen(&self, file: &File, reading: &mut Reading) -> (SocketAddr, AllowedHosts) {
        let text = self.listen.as_ref().or(file.listen.as_ref()).map_or("127.0.0.1:7070", String::as_str);
        let fallback = SocketAddr::from(([127, 0, 0, 1], 7070));
        let parsed = text.parse().map_err(|_| format!("listen: {text:?} is not an address with a port"));
        let listen: SocketAddr = reading.note(parsed, fallback);
        let hosts = if self.public_host.is_empty() { &file.public_host } else { &self.public_host };
        let allowed = AllowedHosts::new(hosts)
            .map_err(|host| format!("public_host: {host:?} is not a host name, with or without a port"));
        let allowed = reading.note(allowed, AllowedHosts::default());
        if !listen.ip().is_loopback() && hosts.is_empty() {
            reading.0.push(format!(
                "listen: {listen} is reachable from other machines; name the host that clients use with --public-host, and put TLS in front"
            ));
        }
        (listen, allowed)
    }

    /// What this process is among others on the same database.
    fn resolve_replica(&self, file: &File, data: &mut DataConfig, reading: &mut Reading) {
        let store = &mut data.store;
        if self.no_migrate || file.no_migrate.unwrap_or(false) {
            store.migrate = Migrations::Refuse;
        }
        store.hints = match self.hints.as_ref().or(file.hints.as_ref()).map(String::as_str) {
            None | Some("on") => true,
            Some("off") => false,
            Some(other) => {
                reading.0.push(format!("hints: {other:?} is neither on nor off"));
                true
            }
        };
        let ttl = reading.seconds(
            "replica_ttl_seconds",
            self.replica_ttl_seconds.as_ref(),
            file.replica_ttl_seconds.as_ref(),
            store.replica_ttl.as_secs_f64(),
        );
        // Shorter ones are lost to an ordinary hiccup of the disk.
        if ttl < Duration::from_secs(1) {
            reading.0.push("replica_ttl_seconds: must be at least 1".to_owned());
        }
        store.replica_ttl = ttl;
        let name = self.instance.as_ref().or(file.instance.as_ref()).cloned();
        store.instance = Some(Instance::new(name, data.data_dir.join("instances")));
    }

    fn resolve_policy(&self, file: &File, reading: &mut Reading) -> Policy {
        let read_mode = |name: &str, mode: &str| {
            PermissionMode::parse(mode).ok_or_else(|| {
                format!("{name}: {mode:?} is none of ask, allow_reads, allow_edits, allow_all")
            })
        };
        let read_tools = |name: &str, tools: &[String]| {
            DeniedTools::parse(tools.iter().map(String::as_str))
                .map_err(|complaint| format!("{name}: {complaint}"))
        };
        let mode = self.max_permission_mode.as_ref().or(file.max_permission_mode.as_ref());
        let mode = mode.map_or(Ok(PermissionMode::AllowAll), |mode| read_mode("max_permission_mode", mode));
        let table = &file.policy;
        let mut policy = Policy {
            max_permission_mode: reading.note(mode, PermissionMode::Ask),
            denied_tools: reading
                .note(read_tools("policy.deny_tools", &table.deny_tools), DeniedTools::default()),
            ..Policy::open()
        };
        for (harness, own) in &table.harness {
            let name = format!("policy.harness.{harness}.max_permission_mode");
            let mode = reading.note(read_mode(&name, &own.max_permission_mode), PermissionMode::Ask);
            policy.harness_modes.insert(harness.clone(), mode);
        }
        for (org, own) in &table.org {
            let tools = read_tools(&format!("policy.org.{org}.deny_tools"), &own.deny_tools);
            policy.org_denied_tools.insert(org.clone(), reading.note(tools, DeniedTools::default()));
        }
        policy
    }

    fn resolve_service(&self, file: &File, data: &DataConfig, reading: &mut Reading) -> ServiceOptions {
        let roots = if self.workspace_root.is_empty() { &file.workspace_root } else { &self.workspace_root };
        let workspace_roots = roots.iter().map(PathBuf::from).collect::<Vec<_>>();
        for root in workspace_roots.iter().filter(|root| !root.is_absolute() || !root.is_dir()) {
            reading
                .0
                .push(format!("workspace_root: {} is not an absolute path of a directory", root.display()));
        }
        let day = 86_400.0;
        let retention = reading.number(
            "event_retention_days",
            self.event_retention_days.as_ref(),
            file.event_retention_days.as_ref(),
            0.0,
        );
        let idempotency = reading.number(
            "idempotency_days",
            self.idempotency_days.as_ref(),
            file.idempotency_days.as_ref(),
            7.0,
        );
        let max_live = reading.number(
            "max_live_sessions",
            self.max_live_sessions.as_ref(),
            file.max_live_sessions.as_ref(),
            1000.0,
        );
        let rate = reading.number(
            "requests_per_second",
            self.requests_per_second.as_ref(),
            file.requests_per_second.as_ref(),
            0.0,
        );
        let mut seconds = |name: &str, flag: Option<&String>, number: Option<&Number>, default| {
            reading.seconds(name, flag, number, default)
        };
        let defaults = ServiceOptions {
            replica_ttl: data.store.replica_ttl,
            ..ServiceOptions::new(data.data_dir.clone())
        };
        ServiceOptions {
            idle_ttl: seconds(
                "idle_ttl_seconds",
                self.idle_ttl_seconds.as_ref(),
                file.idle_ttl_seconds.as_ref(),
                900.0,
            ),
            sweep_interval: seconds(
                "sweep_interval_seconds",
                self.sweep_interval_seconds.as_ref(),
                file.sweep_interval_seconds.as_ref(),
                5.0,
            )
            .max(Duration::from_millis(10)),
            cancel_grace: seconds(
                "cancel_grace_seconds",
                self.cancel_grace_seconds.as_ref(),
                file.cancel_grace_seconds.as_ref(),
                5.0,
            ),
            shutdown_grace: seconds(
                "shutdown_grace_seconds",
                self.shutdown_grace_seconds.as_ref(),
                file.shutdown_grace_seconds.as_ref(),
                10.0,
            ),
            idempotency_ttl: Duration::from_secs_f64((idempotency * day).min(1e9)),
            event_retention: (retention > 0.0).then(|| Duration::from_secs_f64((retention * day).min(1e9))),
            max_live: max_live as usize,
            requests_per_second: NonZeroU32::new(rate.ceil() as u32),
            workspace_roots,
            ..defaults
        }
    }
}

const DEFAULT_FILE: &str = "ostler.toml";

/// What no agent has any business with: the data of all sessions, the keys, and the configuration, which may hold secrets.
fn private_paths(data: &DataConfig, config: Option<&Path>) -> Vec<PathBuf> {
    let mut paths = vec![data.data_dir.clone()];
    if let Location::Sqlite(database) = &data.store.location {
        let beside = |suffix: &str| {
            let mut path = database.clone().into_os_string();
            path.push(suffix);
            PathBuf::from(path)
        };
        paths.extend(["", "-wal", "-shm", "-journal"].map(beside));
    }
    paths.push(config.unwrap_or(Path::new(DEFAULT_FILE)).to_owned());
    // A relative path that cannot be made absolute has been complained about.
    paths.iter().filter_map(|path| std::path::absolute(path).ok()).collect()
}

fn read_file(named: Option<&Path>, reading: &mut Reading) -> File {
    let default = Path::new(DEFAULT_FILE);
    let path = match named {
        Some(path) => path,
        None if default.exists() => default,
        None => return File::default(),
    };
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            reading.0.push(format!("config: {}: {error}", path.display()));
            return File::default();
        }
    };
    // The message alone: the whole error shows the line, which may hold a secret.
    let parsed = toml::from_str(&text).map_err(|error: toml::de::Error| {
        let line =
            error.span().map_or(1, |span| 1 + text[..span.start.min(text.len())].matches('\n').count());
        format!("config: {}, line {line}: {}", path.display(), error.message())
    });
    reading.note(parsed, File::default())
}

fn resolve_data(args: &DataArgs, file: &File, reading: &mut Reading) -> DataConfig {
    let data_dir = args.data_dir.as_ref().or(file.data_dir.as_ref()).map_or("ostler-data", String::as_str);
    if data_dir.trim().is_empty() {
        reading.0.push("data_dir: is empty".to_owned());
    }
    let absolute = std::path::absolute(data_dir).map_err(|error| format!("data_dir: {data_dir}: {error}"));
    let data_dir = reading.note(absolute, PathBuf::from(data_dir));
    let url = args.database_url.as_ref().or(file.database_url.as_ref());
    let default = StoreOptions::new(Location::Sqlite(data_dir.join("ostler.db")));
    let store = match url {
        None => default,
        // The URL may hold a password: what is wrong is told without it.
        Some(url) => match StoreOptions::from_url(url) {
            Ok(store) => store,
            Err(error @ (OpenError::Scheme { .. } | OpenError::Path { .. } | OpenError::Url)) => {
                reading.0.push(format!("database_url: {error}"));
                default
            }
            Err(_) => default,
        },
    };
    let seal_key = args.seal_key.as_ref().or(file.seal_key.as_ref()).cloned();
    if seal_key.as_ref().is_some_and(|key| parse_seal_key(key).is_none()) {
        reading.0.push("seal_key: must be 64 hexadecimal digits".to_owned());
    }
    DataConfig { data_dir, store, seal_key }
}

/// The 32 bytes of a sealing key.
pub fn parse_seal_key(key: &SecretString) -> Option<Vec<u8>> {
    let text = key.expose_secret().trim();
    let is_key = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let byte = |i: usize| u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok();
    if is_key { (0..32).map(byte).collect() } else { None }
}

#[cfg(test)]
mod tests;
