//! The processes of agents under the real service: none is left, whoever dies and however they hide; none sees what is not its
//! own. Two counts come from the environment, small by default: `OSTLER_CYCLES`, starts and stops of an agent, and
//! `OSTLER_AGENT_KILLS`, kills of the service.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::support::api::Api;
use crate::support::processes::{self, eventually, is_alive};
use crate::support::server::{Home, free_port};
use crate::support::within;

const FAKE: &str = env!("CARGO_BIN_EXE_fake-acp-agent");
const NONE: [u32; 0] = [];

/// The longest that anything of an agent may outlive its end.
const LEFT_AT_MOST: Duration = Duration::from_secs(5);

/// How the child hides that an agent starts in a session of its own: not; without its environment; without a parent too; and in
/// another directory at last.
const FORKS: [&str; 4] = ["fork", "fork-bare", "fork-orphan", "fork-lost"];

fn harness(name: &str, arguments: &[&str]) -> String {
    let command: Vec<&str> = [FAKE].into_iter().chain(arguments.iter().copied()).collect();
    format!("[harness.{name}]\nkind = \"acp\"\ncommand = {command:?}\n")
}

/// An agent that neither the end of its stdin nor SIGTERM ends, nor what it starts.
fn stubborn(name: &str) -> String {
    let command = ["/bin/sh", "-c", "trap '' TERM; exec \"$0\" \"$@\"", FAKE, "script", "--stay"];
    format!("[harness.{name}]\nkind = \"acp\"\ncommand = {command:?}\n")
}

fn count(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |count| count.parse().unwrap())
}

fn id(value: &Value) -> String {
    value["id"].as_str().unwrap().to_owned()
}

async fn create(api: &Api, harness: &str, script: &str) -> Value {
    let answer = api.post_and_wait("/v1/sessions", json!({"harness": harness, "prompt": script})).await;
    assert!(matches!(answer.status, 201 | 202), "{}", answer.text);
    answer.json()
}

/// A session whose agent has started a child of that kind; the child's process, which has left its number in the workspace.
async fn forked(api: &Api, home: &Home, fork: &str) -> (String, u32) {
    let session = create(api, "fake", fork).await;
    assert_eq!(session["turn"]["status"], "completed", "{session}");
    let session = id(&session);
    let child = fs::read_to_string(home.workspace(&session).join("grandchild.pid")).unwrap().parse().unwrap();
    (session, child)
}

/// The numbers of the service's open files, and of the dead that it has not reaped. Sockets are the database's and the clients'.
fn burden(service: u32) -> (usize, usize) {
    let files = fs::read_dir(format!("/proc/{service}/fd")).unwrap().flatten();
    let is_socket =
        |path: &Path| fs::read_link(path).is_ok_and(|file| file.to_string_lossy().starts_with("socket:"));
    let files = files.filter(|entry| !is_socket(&entry.path())).count();
    let zombies = processes::children_of(service).into_iter().filter(|pid| !is_alive(*pid)).count();
    (files, zombies)
}

async fn none_is_left(what: &str, pids: &[u32], sessions: &[String]) {
    let begun = Instant::now();
    let left = || -> Vec<u32> {
        let marked = sessions.iter().flat_map(|session| processes::of_agent(session));
        pids.iter().copied().filter(|pid| is_alive(*pid)).chain(marked).collect()
    };
    eventually(what, || left().is_empty() || begun.elapsed() > LEFT_AT_MOST).await;
    assert_eq!(left(), NONE, "left: {what}");
}

#[tokio::test]
async fn row_85_no_process_is_left_by_agents_that_will_not_go_and_children_that_hide() {
    let cycles = count("OSTLER_CYCLES", 8);
    let home = Home::new().with_config(&stubborn("fake"));
    let server = home.start().await;
    let api = server.api();
    let (first, child) = forked(&api, &home, "fork").await;
    api.post(&format!("/v1/sessions/{first}/stop"), json!({})).await.expect(200);
    none_is_left("the first one", &[child], &[first]).await;
    eventually("the first one is reaped", || burden(server.pid()).1 == 0).await;
    let before = burden(server.pid());
    let (mut sessions, mut children) = (Vec::new(), Vec::new());
    for batch in (0..cycles).collect::<Vec<_>>().chunks(8) {
        let cycle = async |number: &usize| {
            let (session, child) = forked(&api, &home, FORKS[number % 4]).await;
            assert!(is_alive(child), "{}", FORKS[number % 4]);
            if number.is_multiple_of(3) {
                assert_eq!(api.delete(&format!("/v1/sessions/{session}")).await.status, 204);
            } else {
                api.post(&format!("/v1/sessions/{session}/stop"), json!({})).await.expect(200);
            }
            assert_eq!(processes::of_agent(&session), NONE);
            // What can be told from the children of other agents is gone with its own, the rest with the last of them.
            if FORKS[number % 4] != "fork-lost" {
                assert!(!is_alive(child), "{}", FORKS[number % 4]);
            }
            (session, child)
        };
        for (session, child) in join_all(batch.iter().map(cycle)).await {
            sessions.push(session);
            children.push(child);
        }
    }
    none_is_left("all cycles", &children, &sessions).await;
    eventually("all are reaped", || burden(server.pid()).1 == 0).await;
    let after = burden(server.pid());
    println!(
        "{cycles} cycles: (open files, zombies) {before:?} before, {after:?} after, {} children",
        children.len()
    );
    // Connections of the client and of the database come and go; one per cycle would show.
    assert!(after.0 <= before.0 + 12, "open files: {before:?} before, {after:?} after");
    assert!(server.terminate().await.success());
}

#[tokio::test]
async fn f38_nothing_is_left_of_the_agents_of_a_killed_service_once_it_is_back() {
    let kills = count("OSTLER_AGENT_KILLS", 2);
    let home = Home::new().with_config(&stubborn("fake"));
    let mut server = home.start().await;
    let mut of_all = BTreeSet::new();
    for _ in 0..kills {
        let api = server.api();
        // Without the last kind: nothing tells its children from anybody's once their service is gone.
        let kinds = FORKS.into_iter().take(3).chain(["fork\nfork-bare"]);
        let (sessions, children): (Vec<_>, Vec<_>) =
            join_all(kinds.map(|kind| forked(&api, &home, kind))).await.into_iter().unzip();
        for session in &sessions {
            let body = json!({"prompt": "say on\nhang"});
            api.post(&format!("/v1/sessions/{session}/prompts"), body).await.expect(202);
            api.follow(session, "").await.until("text.delta").await;
        }
        let mut agents = processes::children_of(server.pid());
        agents.retain(|pid| !children.contains(pid));
        assert_eq!(agents.len(), 4);
        server.kill().await;
        none_is_left("the agents themselves", &agents, &[]).await;
        let begun = Instant::now();
        server = home.start().await;
        none_is_left("what they have started", &children, &sessions).await;
        assert!(begun.elapsed() < Duration::from_secs(60));
        of_all.extend(children);
        let api = server.api();
        for session in &sessions {
            api.follow(session, "?until=idle").await.all().await;
            assert_eq!(api.session(session).await["turn"]["status"], "interrupted");
        }
    }
    let zombies = burden(server.pid()).1;
    println!("{kills} kills, {} children of agents, none left; {zombies} zombies", of_all.len());
    assert_eq!(zombies, 0);
    assert!(server.terminate().await.success());
}

#[tokio::test]
async fn a_lost_child_that_can_be_anybody_s_ends_with_the_last_agent_that_it_can_be_of() {
    let home = Home::new().with_config(&harness("fake", &["script"]));
    let server = home.start().await;
    let api = server.api();
    let (left, child) = forked(&api, &home, "fork-lost").await;
    let (right, _) = forked(&api, &home, "fork").await;
    eventually("it is seen beside both", || processes::children_of(server.pid()).contains(&child)).await;
    api.post(&format!("/v1/sessions/{right}/stop"), json!({})).await.expect(200);
    api.post(&format!("/v1/sessions/{left}/stop"), json!({})).await.expect(200);
    none_is_left("both agents", &[child], &[left, right]).await;
    let (last, child) = forked(&api, &home, "fork-lost").await;
    assert!(server.terminate().await.success());
    assert!(!is_alive(child), "a service that goes down leaves none");
    assert_eq!(processes::of_agent(&last), NONE);
}

#[tokio::test]
async fn a_process_that_only_stands_in_a_workspace_is_nobody_s_child_and_left_alone() {
    let home = Home::new().with_config(&harness("fake", &["script"]));
    let server = home.start().await;
    let session = id(&create(&server.api(), "fake", "say hello").await);
    let mut person = std::process::Command::new("/bin/sleep");
    // As an editor or a shell there would be: no child of the service.
    let person = person.arg("600").env_clear().current_dir(home.workspace(&session)).stdout(Stdio::null());
    let mut person = person.stderr(Stdio::null()).spawn().unwrap();
    server.api().post(&format!("/v1/sessions/{session}/stop"), json!({})).await.expect(200);
    assert!(is_alive(person.id()));
    person.kill().unwrap();
    person.wait().unwrap();
}

#[tokio::test]
async fn f06_a_service_killed_before_the_agent_s_first_word_runs_the_prompt_once_after_it_is_back() {
    let home = Home::new().with_config(&harness("fake", &["deaf"]));
    let server = home.start().await;
    let api = server.api();
    let body = json!({"harness": "fake", "prompt": "run make", "permission_mode": "allow_all"});
    let session = id(&api.post("/v1/sessions", body).await.expect(201));
    eventually("the agent starts", || !processes::of_agent(&session).is_empty()).await;
    let old = processes::of_agent(&session);
    server.kill().await;
    none_is_left("the deaf agent", &old, &[]).await;
    fs::write(home.path().join("ostler.toml"), harness("fake", &["script"])).unwrap();
    let server = home.start().await;
    let api = server.api();
    api.follow(&session, "?until=idle").await.all().await;
    let row = api.session(&session).await;
    assert_eq!(row["turn"]["status"], "completed", "{row}");
    let effects = fs::read_to_string(home.workspace(&session).join("effects.jsonl")).unwrap();
    assert_eq!(effects.lines().count(), 1, "{effects}");
    assert_eq!(api.events_of(&session, "turn.started").await.len(), 1);
    assert!(server.terminate().await.success());
}

#[tokio::test]
async fn f07_an_agent_that_cannot_be_launched_fails_its_turn_and_says_what_failed() {
    let directory = tempfile::tempdir().unwrap();
    let broken = directory.path().join("agent");
    fs::write(&broken, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&broken, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let config = format!(
        "[harness.broken]\nkind = \"acp\"\ncommand = [{broken:?}]\n[harness.absent]\nkind = \"acp\"\ncommand = [\"/bin/sh\", \"-c\", \"no-such-agent\"]\n"
    );
    let home = Home::new().with_config(&config);
    let server = home.start().await;
    let api = server.api();
    for (harness, words) in [("broken", "could not be launched: exec: "), ("absent", "exited with code 127")]
    {
        let body = json!({"harness": harness, "prompt": "go", "run_id": harness});
        api.post_and_wait("/v1/sessions", body).await.problem(502, "harness_failed");
        let row = api.get(&format!("/v1/runs/{harness}")).await.expect(200);
        let error = &row["turn"]["error"];
        assert_eq!(error["code"], "agent_start_failed", "{row}");
        assert!(error["message"].as_str().unwrap().contains(words), "{error}");
    }
}

#[tokio::test]
async fn sec_23_an_agent_sees_neither_another_s_workspace_nor_database_configuration_or_service() {
    let home =
        Home::on_sqlite().with_config(&(harness("fake", &["script"]) + &harness("other", &["script"])));
    let server = home.start().await;
    let api = server.api();
    let capabilities = &api.get("/v1/harnesses/fake").await.expect(200)["capabilities"];
    if capabilities["sandbox"] != true {
        println!("SKIPPED: this kernel has no landlock, so that nothing can be shown of it");
        return;
    }
    let other = id(&create(&api, "other", "edit secret.txt canary\nremember blue").await);
    let outside = tempfile::tempdir().unwrap();
    let at = |path: &Path| path.display().to_string();
    let others = [home.workspace(&other), home.workspace(&other).join("secret.txt"), home.state_dir(&other)];
    let service = server.pid();
    let mut lines: Vec<String> = Vec::new();
    for path in others.iter().map(|path| at(path)).chain([
        at(&home.database()),
        at(&home.path().join("ostler.toml")),
        at(&home.path().join("admin.key")),
        at(&home.path().join("seal.key")),
        at(home.path()),
        format!("/proc/{service}/environ"),
        format!("/proc/{service}/cwd/admin.key"),
        format!("/proc/{service}/root/etc/passwd"),
        format!("/proc/{service}/fd/2"),
    ]) {
        lines.extend([format!("peek {path}"), format!("poke {path}")]);
    }
    lines.push(format!("poke {}", at(&outside.path().join("new"))));
    lines.push(format!("poke {}", at(&home.workspace(&other).join("new"))));
    lines.push(format!("signal {service}"));
    let session = create(&api, "fake", &lines.join("\n")).await;
    let text = session["turn"]["text"].as_str().unwrap();
    assert_eq!(text.lines().count(), lines.len(), "{text}");
    for line in text.lines() {
        assert!(line.contains(": refused: "), "{line}");
    }
    // And what it needs it has.
    let home_of = at(&home.state_dir(&id(&session)));
    let turn = api
        .prompt(
            &id(&session),
            &format!("poke own\npoke {home_of}/own\npeek {home_of}\npeek /usr/bin\npoke /dev/null"),
        )
        .await;
    for line in turn["text"].as_str().unwrap().lines() {
        assert!(line.ends_with(": done"), "{line}");
    }
}

#[tokio::test]
async fn sec_13_twenty_five_secrets_of_the_service_reach_no_agent_and_nothing_that_is_shown_or_logged() {
    let canary = |number: usize| format!("{number:02}ca9a41e5ec4e7");
    let secrets: Vec<String> = (0..25).map(canary).collect();
    let seal_key = format!("{}{}", secrets[0], "5".repeat(64 - secrets[0].len()));
    let mut config = harness("fake", &["script"]) + &harness("deaf", &["deaf"]) + "start_seconds = 1\n";
    config += &harness("other", &["script"]);
    config += &format!(
        "env = {{ TOKEN = {:?}, PASSWORD = {:?} }}\nfiles = {{ \".key\" = {:?} }}\ninherit_env = [\"OTHERS_KEY\"]\n",
        secrets[1], secrets[2], secrets[3]
    );
    let home = Home::on_postgres();
    fs::write(home.path().join("ostler.toml"), config).unwrap();
    let database = home.postgres().unwrap().url.replace("ostler@", &format!("ostler:{}@", secrets[4]));
    assert!(database.contains(&secrets[4]), "{database}");
    let address = format!("127.0.0.1:{}", free_port());
    let mut command =
        home.command(&["serve", "--listen", &address, "--log", "trace", "--log-format", "json"]);
    let names = [
        "OTHERS_KEY",
        "OPENAI_API_KEY",
        "ANTHROPIC_API_KEY",
        "GEMINI_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AZURE_CLIENT_SECRET",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "GITHUB_TOKEN",
        "GH_TOKEN",
        "NPM_TOKEN",
        "CARGO_REGISTRY_TOKEN",
        "DATABASE_URL",
        "PGPASSWORD",
        "REDIS_URL",
        "SSH_AUTH_SOCK",
        "VAULT_TOKEN",
        "SECRET_KEY_BASE",
        "CODEX_HOME",
        "OSTLER_KEY",
    ];
    assert_eq!(5 + names.len(), secrets.len());
    for (name, secret) in names.iter().zip(&secrets[5..]) {
        command.env(name, secret);
    }
    command.env("OSTLER_SEAL_KEY", seal_key).env("OSTLER_DATABASE_URL", &database);
    let log = home.path().join("log");
    command.stdout(Stdio::null()).stderr(fs::File::create(&log).unwrap());
    let mut service = command.spawn().unwrap();
    let anonymous = Api::new(&format!("http://{address}"), "");
    within("the service to listen", async { while !is_ready(&address, &anonymous).await {} }).await;
    let api = Api::new(
        &format!("http://{address}"),
        fs::read_to_string(home.path().join("admin.key")).unwrap().trim(),
    );

    let mut shown = vec![api.get("/v1/harnesses").await.text, api.get("/openapi.json").await.text];
    let session = create(&api, "fake", "env\nrun make").await;
    let agents = processes::of_agent(&id(&session));
    assert_eq!(agents.len(), 1);
    for file in ["environ", "cmdline"] {
        let bytes = fs::read(format!("/proc/{}/{file}", agents[0])).unwrap();
        shown.push(String::from_utf8_lossy(&bytes).into_owned());
    }
    let environment = &shown[2];
    assert!(environment.contains("OSTLER_AGENT=") && environment.contains("PATH="), "{environment}");
    shown.push(api.decide(&id(&session["pending_approval"]), "deny").await.text);
    shown.push(
        api.post_and_wait(&format!("/v1/sessions/{}/prompts", id(&session)), json!({"prompt": "die"}))
            .await
            .text,
    );
    for page in ["", "/events", "/transcript", "/turns", "/approvals"] {
        shown.push(api.get(&format!("/v1/sessions/{}{page}", id(&session))).await.text);
    }
    // The other agent has three of them, and one more by name, and says none.
    let other = create(&api, "other", "say quiet").await;
    shown.push(other.to_string());
    shown.push(api.get(&format!("/v1/sessions/{}/events", id(&other))).await.text);
    let others = processes::of_agent(&id(&other));
    assert!(fs::read_to_string(format!("/proc/{}/environ", others[0])).unwrap().contains(&secrets[5]));
    for (path, body) in [
        ("/v1/sessions", json!({"harness": "deaf", "prompt": "go"})),
        ("/v1/sessions", json!({"harness": "none", "prompt": "go"})),
        ("/v1/sessions", json!({"harness": "fake", "env": {}})),
        ("/v1/sessions/ses_x/prompts", json!({"prompt": "go"})),
    ] {
        let answer = api.post_and_wait(path, body).await;
        assert!(answer.status >= 400);
        shown.push(answer.text);
    }
    processes::signal(service.id().unwrap(), rustix::process::Signal::TERM);
    within("the service to end", service.wait()).await.unwrap();
    let log = fs::read_to_string(log).unwrap();
    assert!(log.contains("an agent did not come up") && log.contains("shutting down"), "{log}");
    shown.push(log);
    for (number, secret) in secrets.iter().enumerate() {
        for text in &shown {
            let at = text.find(secret.as_str());
            let context = at.map(|at| text[at.saturating_sub(300)..].chars().take(400).collect::<String>());
            assert_eq!(context, None, "secret {number}");
        }
    }
}

async fn is_ready(address: &str, api: &Api) -> bool {
    tokio::net::TcpStream::connect(address).await.is_ok()
        && api.anonymous().get("/readyz").await.status == 200
}
