//! What the files for operators promise, held to what the program needs: they are read as text.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ostler::service::ServiceOptions;

use crate::support::server::{Home, free_port};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn read(name: &str) -> String {
    std::fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The first number after some words in a file.
fn number(name: &str, words: &str) -> u64 {
    let text = read(name);
    let (_, rest) = text.split_once(words).unwrap_or_else(|| panic!("{name} says nothing of {words:?}"));
    let digits = rest.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit);
    digits.collect::<String>().parse().unwrap()
}

/// The number that a constant of the program is made of.
fn constant(name: &str, constant: &str) -> u64 {
    let text = read(name);
    let line = text.lines().find(|line| line.contains(&format!("const {constant}:")));
    let value = line.unwrap_or_else(|| panic!("{name} has no {constant}")).split_once('=').unwrap().1;
    value.chars().filter(char::is_ascii_digit).collect::<String>().parse().unwrap()
}

/// The lines of one service of the Compose file, without comments.
fn service(name: &str) -> String {
    let text = read("docker-compose.yml");
    let lines = text.lines().skip_while(|line| *line != format!("  {name}:")).skip(1);
    let own = lines.take_while(|line| line.is_empty() || line.starts_with("   "));
    let own: Vec<_> = own.filter(|line| !line.trim_start().starts_with('#')).collect();
    assert!(!own.is_empty(), "there is no service {name}");
    own.join("\n")
}

/// The value of a key that the text has once.
fn value<'a>(text: &'a str, key: &str) -> &'a str {
    let mut values = text.lines().filter_map(|line| line.trim_start().strip_prefix(key)?.strip_prefix(": "));
    let first = values.next().unwrap_or_else(|| panic!("no {key} in\n{text}"));
    assert_eq!(values.next(), None, "{key}");
    first
}

/// How long going down may take, with the defaults, and a few seconds more for the last commits.
fn time_to_stop() -> Duration {
    let options = ServiceOptions::new(PathBuf::new());
    let last = Duration::from_secs(constant("src/service/shutdown.rs", "LAST_WAIT"));
    options.shutdown_grace + options.cancel_grace + last + Duration::from_secs(10)
}

#[test]
fn three_replicas_share_one_volume_and_nothing_gives_them_the_same_name() {
    let ostler = service("ostler");
    assert_eq!(value(&ostler, "replicas"), "3");
    assert!(ostler.contains("\n      - ostler-data:/var/lib/ostler"), "{ostler}");
    let dockerfile = read("Dockerfile");
    assert!(dockerfile.contains("OSTLER_DATA_DIR=/var/lib/ostler/data"), "it is where they keep their data");
    for same in ["container_name", "hostname", "OSTLER_INSTANCE", "instance", "command", "ports"] {
        assert!(!ostler.contains(same), "{same} would be the same for all");
    }
}

#[test]
fn whoever_stops_a_replica_waits_as_long_as_going_down_may_take() {
    let needed = time_to_stop().as_secs();
    let grace = value(&service("ostler"), "stop_grace_period").trim_end_matches('s').parse::<u64>().unwrap();
    assert!(grace >= needed, "{grace} < {needed}");
    let systemd = number("README.md", "TimeoutStopSec=");
    assert!(systemd >= needed, "{systemd} < {needed}");
    let (pod, pause) =
        (number("README.md", "terminationGracePeriodSeconds:"), number("README.md", "[sleep, "));
    assert!(pod >= needed + pause, "{pod} < {needed} + {pause}");
}

#[test]
fn secrets_are_asked_for_and_none_is_written_down() {
    let ostler = service("ostler");
    assert!(value(&ostler, "OSTLER_SEAL_KEY").starts_with("${OSTLER_SEAL_KEY:?"), "{ostler}");
    for (text, key) in [(&ostler, "PGPASSWORD"), (&service("postgres"), "POSTGRES_PASSWORD")] {
        assert!(value(text, key).starts_with("${POSTGRES_PASSWORD:?"), "{text}");
    }
    assert_eq!(
        value(&ostler, "OSTLER_DATABASE_URL"),
        "${OSTLER_DATABASE_URL:-postgres://ostler@postgres/ostler}"
    );
    assert!(read(".gitignore").lines().any(|line| line == "/.env"));
}

#[test]
fn only_the_proxy_is_reached_from_outside_and_that_from_this_machine() {
    let text = read("docker-compose.yml");
    assert_eq!(text.matches("ports:").count(), 1);
    assert!(!text.contains("network_mode"));
    assert!(service("proxy").contains("    ports:\n      - \"127.0.0.1:7070:7070\"\n    volumes:"));
}

#[test]
fn what_talks_to_clients_and_runs_agents_is_locked_in() {
    for name in ["ostler", "proxy"] {
        let service = service(name);
        assert_eq!(value(&service, "read_only"), "true", "{name}");
        assert_eq!(value(&service, "cap_drop"), "[ALL]", "{name}");
        assert_eq!(value(&service, "security_opt"), "[\"no-new-privileges:true\"]", "{name}");
        assert!(value(&service, "pids_limit").parse::<u32>().unwrap() > 0, "{name}");
        assert!(value(&service, "mem_limit").ends_with(['m', 'g']), "{name}");
        assert!(!service.contains("privileged:") && !service.contains("docker.sock"), "{name}");
    }
    assert_eq!(value(&service("ostler"), "tmpfs"), "[/tmp]");
    assert!(read("Dockerfile").contains("\nUSER 10001:10001\n"));
}

#[tokio::test]
async fn the_health_check_needs_no_key_and_tells_a_service_that_is_ready_from_none() {
    let ostler = service("ostler");
    let words: Vec<&str> = value(&ostler, "test").trim_matches(['[', ']']).split(", ").collect();
    let words: Vec<&str> = words.iter().map(|word| word.trim_matches('"')).collect();
    assert_eq!(words[..2], ["CMD", "ostler"]);
    let home = Home::new();
    let server = home.start().await;
    std::fs::remove_file(home.path().join("admin.key")).unwrap();
    let nowhere = format!("http://127.0.0.1:{}", free_port());
    for (url, healthy) in [(server.url.as_str(), true), (&nowhere, false)] {
        let output = home.command(&words[2..]).env("OSTLER_URL", url).output().await.unwrap();
        assert_eq!(output.status.success(), healthy, "{output:?}");
    }
    assert!(ostler.contains("      postgres:\n        condition: service_healthy"), "{ostler}");
    assert!(value(&service("postgres"), "test").contains("pg_isready"));
}

#[test]
fn the_proxy_waits_longer_than_any_answer_and_repeats_only_what_did_not_arrive() {
    assert!(service("proxy").contains("./deploy/haproxy.cfg:/usr/local/etc/haproxy/haproxy.cfg:ro"));
    let config = "deploy/haproxy.cfg";
    let longest = constant("src/http/prefer.rs", "WAIT_MAX_SECONDS");
    for timeout in ["timeout client ", "timeout server "] {
        assert!(number(config, timeout) > longest, "{timeout}");
    }
    let text = read(config);
    for line in [
        "retry-on conn-failure",
        "http-check send meth GET uri /readyz ver HTTP/1.1 hdr Host localhost",
        "nameserver dns 127.0.0.11:53",
        "balance roundrobin",
    ] {
        assert!(text.lines().any(|found| found.trim() == line), "{line}");
    }
    for change in ["set-header", "replace-header", "http-buffer-request", "http-response"] {
        assert!(!text.contains(change), "{change}");
    }
    let places = number(config, "server-template replica 1-");
    assert!(places >= value(&service("ostler"), "replicas").parse().unwrap());
}

#[test]
fn the_readme_counts_the_connections_of_a_replica_as_the_program_makes_them() {
    let postgres = "src/store/sql/open/postgres.rs";
    // Writers, readers, the sign of life, and one each to say and to hear hints.
    let all = constant("src/store/dialect/postgres.rs", "WRITERS")
        + constant(postgres, "READERS_MAX")
        + number(postgres, "let heart = guarded(PgPoolOptions::new())\n        .max_connections(")
        + 2;
    assert_eq!(number("README.md", "Connections of one replica: at most"), all);
    // PostgreSQL takes 100, of which it keeps 3.
    assert!(all * value(&service("ostler"), "replicas").parse::<u64>().unwrap() < 97);
}

#[test]
fn the_image_is_built_from_all_that_cargo_looks_for_and_nothing_else_is_sent() {
    let dockerfile = read("Dockerfile");
    let copied: Vec<&str> = dockerfile
        .lines()
        .filter_map(|line| line.strip_prefix("COPY "))
        .filter(|line| !line.starts_with("--from"))
        .flat_map(|line| line.split(' ').rev().skip(1))
        .collect();
    for name in &copied {
        assert!(path(name).exists(), "{name}");
    }
    let sent = read(".dockerignore");
    let mut sent: Vec<&str> = sent.lines().filter_map(|line| line.strip_prefix('!')).collect();
    let mut expected = copied.clone();
    sent.sort_unstable();
    expected.sort_unstable();
    assert_eq!(sent, expected);
    let manifest = read("Cargo.toml");
    let named = manifest.lines().filter_map(|line| line.strip_prefix("path = "));
    let targets = named.map(|path| path.trim_matches('"')).chain(["src/main.rs", "benches/service/main.rs"]);
    for target in targets {
        assert!(path(target).exists(), "{target}");
        assert!(copied.iter().any(|name| target.starts_with(&format!("{name}/"))), "{target}");
    }
}
