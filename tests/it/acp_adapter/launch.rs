//! What `ostler exec-agent` makes of itself before it becomes the agent, and what is told when it cannot.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use ostler::harness::StartError;

use super::rig::{FAKE, OSTLER, Rig, eventually, is_alive};

fn exec_agent(parent: u32, argv: &[&str]) -> Command {
    let mut command = Command::new(OSTLER);
    command.arg("exec-agent").arg(format!("--parent={parent}")).arg("--tag=none").arg("--").args(argv);
    command
}

fn by_hand(parent: u32, argv: &[&str]) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = exec_agent(parent, argv).output().unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

/// A line of /proc/PID/NAME, without what comes before the values.
fn line_of(pid: u32, name: &str, begin: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(begin)).unwrap();
    line.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
}

fn session_of(pid: u32) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.split(' ').nth(3).unwrap().to_owned()
}

fn agent_of(rig: &Rig) -> u32 {
    let pids = rig.survivors();
    assert_eq!(pids.len(), 1);
    pids[0]
}

/// Whether this kernel confines agents; told where it does not.
fn has_landlock() -> bool {
    let has = Rig::new(&["script"]).capabilities().sandbox;
    if !has {
        println!("SKIPPED: this kernel has no landlock, so that nothing can be shown of it");
    }
    has
}

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("SKIPPED: only root can become somebody else");
    }
    is_root
}

#[tokio::test]
async fn an_agent_has_a_session_of_its_own_and_the_limits_that_the_operator_set() {
    let limits = "limits = { open_files = 77, processes = 50000, memory_mib = 2048 }\n";
    let rig = Rig::new(&["script"]).config(limits);
    let agent = rig.start().await;
    let pid = agent_of(&rig);
    assert_eq!(session_of(pid), pid.to_string());
    for (name, values) in [
        ("Max core file size", "0 0 bytes"),
        ("Max open files", "77 77 files"),
        ("Max processes", "50000 50000 processes"),
        ("Max address space", "2147483648 2147483648 bytes"),
    ] {
        assert_eq!(line_of(pid, "limits", name), values, "{name}");
    }
    agent.stop().await;

    let rig = Rig::new(&["script"]);
    let agent = rig.start().await;
    let pid = agent_of(&rig);
    assert_eq!(line_of(pid, "limits", "Max core file size"), "0 0 bytes");
    let own = line_of(std::process::id(), "limits", "Max open files");
    assert_eq!(line_of(pid, "limits", "Max open files"), own);
    agent.stop().await;
}

#[tokio::test]
async fn sec_12_the_agent_has_the_command_line_of_the_configuration_byte_by_byte() {
    let argv = [FAKE, "script", "--parent=1", "--", " ", "", "ü\t'\"$HOME", "--settings={}"];
    let rig = Rig::with_command(&argv);
    let mut agent = rig.start().await;
    agent.turn("say --settings=x").await;
    let command_line = fs::read(format!("/proc/{}/cmdline", agent_of(&rig))).unwrap();
    let expected: Vec<u8> = argv.iter().flat_map(|word| word.bytes().chain([0])).collect();
    assert_eq!(command_line, expected);
    agent.stop().await;
}

#[tokio::test]
async fn what_stands_in_the_way_of_the_launch_is_told_and_is_a_failed_start() {
    let directory = tempfile::tempdir().unwrap();
    let broken = directory.path().join("broken-agent");
    fs::write(&broken, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&broken, fs::Permissions::from_mode(0o755)).unwrap();
    for (rig, words) in [
        (Rig::with_command(&[broken.to_str().unwrap()]), "it could not be launched: exec: No such file"),
        (
            Rig::new(&["script"]).config("limits = { open_files = 4294967296 }\n"),
            "it could not be launched: limits: ",
        ),
        (
            Rig::new(&["script"]).config("limits = { memory_mib = 1 }\n"),
            // The kernel cannot even map the program, or the program cannot load.
            "",
        ),
    ] {
        let error = rig.start_error(None).await;
        assert!(
            matches!(&error, StartError::Failed(failure) if failure.code == "agent_start_failed"),
            "{error}"
        );
        assert!(error.to_string().contains(words), "{error}");
        rig.assert_nothing_runs();
    }
}

#[tokio::test]
async fn f07_a_command_that_ends_with_127_is_a_failed_start_that_says_so_and_not_what_it_wrote() {
    let rig = Rig::with_command(&["/bin/sh", "-c", "no-such-agent-with-canary"]);
    let error = rig.start_error(None).await;
    assert!(matches!(&error, StartError::Failed(failure) if failure.code == "agent_start_failed"), "{error}");
    assert!(error.to_string().contains("exited with code 127"), "{error}");
    assert!(!error.to_string().contains("canary"), "{error}");
    let kept = fs::read_to_string(rig.state.path().join("stderr.log")).unwrap();
    assert!(kept.contains("no-such-agent-with-canary"), "for the operator: {kept}");
}

#[tokio::test]
async fn last_words_are_written_to_a_file_of_their_own_wherever_the_agent_has_led_its_name() {
    let rig =
        Rig::with_command(&["/bin/sh", "-c", "ln -sf \"$0\" \"$HOME/stderr.log\"; echo said >&2; exit 4"]);
    let precious = rig.path("precious");
    fs::write(&precious, "kept").unwrap();
    let rig = Rig { config: rig.config.replace("exit 4\"", &format!("exit 4\", {precious:?}")), ..rig };
    rig.start_error(None).await;
    assert_eq!(fs::read_to_string(&precious).unwrap(), "kept");
    assert_eq!(fs::read_to_string(rig.state.path().join("stderr.log")).unwrap(), "said");
}

#[test]
fn the_launcher_says_what_failed_by_its_exit_code_and_one_line() {
    let me = std::process::id();
    let (code, stderr) = by_hand(me, &["/no/such/agent"]);
    assert_eq!((code, stderr.lines().count()), (Some(127), 1), "{stderr}");
    assert!(stderr.starts_with("ostler exec-agent: exec: No such file"), "{stderr}");
    assert_eq!(by_hand(me, &["/etc/passwd"]).0, Some(126));
    assert_eq!(by_hand(me, &["/bin/sh", "-c", "exit 7"]), (Some(7), String::new()));
    let (code, stderr) = by_hand(1, &["/bin/sh", "-c", "exit 7"]);
    assert_eq!((code, stderr.as_str()), (Some(125), "ostler exec-agent: parent: the service is gone\n"));
}

#[test]
fn the_launcher_is_no_command_for_people() {
    let help = Command::new(OSTLER).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(help.contains("serve") && !help.contains("exec-agent"), "{help}");
}

#[tokio::test]
async fn an_agent_is_killed_when_its_parent_is() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pid");
    let script = "\"$0\" exec-agent --parent=$$ --tag=none -- /bin/sh -c 'trap \"\" TERM HUP; echo $$ >part; mv part pid; exec sleep 600' & wait";
    let mut parent = Command::new("/bin/sh");
    let mut parent = parent
        .args(["-c", script, OSTLER])
        .current_dir(directory.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    eventually("the agent runs", || file.exists()).await;
    let agent: u32 = fs::read_to_string(&file).unwrap().trim().parse().unwrap();
    parent.kill().unwrap();
    parent.wait().unwrap();
    eventually("the agent is gone", || !is_alive(agent)).await;
}

#[tokio::test]
async fn an_agent_becomes_the_user_that_the_operator_named_and_works_in_its_directories() {
    if !is_root() {
        return;
    }
    let mut rig = Rig::new(&["script"]).config("run_as = \"65534:65533\"\n");
    // The agent's own, as those of the data directory are.
    rig.private = vec![rig.workspace.path().to_owned()];
    fs::create_dir(rig.path("deep")).unwrap();
    fs::write(rig.path("deep/file"), "").unwrap();
    let outside = tempfile::tempdir().unwrap();
    let elsewhere = outside.path().join("elsewhere");
    fs::write(&elsewhere, "").unwrap();
    fs::hard_link(&elsewhere, rig.path("deep/linked")).unwrap();
    std::os::unix::fs::symlink(&elsewhere, rig.path("deep/link")).unwrap();
    let mut agent = rig.start().await;
    let pid = agent_of(&rig);
    assert_eq!(line_of(pid, "status", "Uid:"), "65534 65534 65534 65534");
    assert_eq!(line_of(pid, "status", "Gid:"), "65533 65533 65533 65533");
    assert_eq!(line_of(pid, "status", "Groups:"), "");
    assert_eq!(line_of(pid, "status", "CapEff:").trim_start_matches('0'), "");
    let turn =
        agent.turn("edit made.txt here\nremember blue\nrecall\npoke deep/file\npeek /etc/shadow").await;
    assert!(turn.text().contains("blue") && turn.text().contains("poke deep/file: done"), "{}", turn.text());
    assert!(turn.text().contains("peek /etc/shadow: refused"), "{}", turn.text());
    let owner =
        |path: &Path| (fs::symlink_metadata(path).unwrap().uid(), fs::symlink_metadata(path).unwrap().gid());
    assert_eq!(owner(&rig.path("made.txt")), (65534, 65533));
    assert_eq!(owner(&rig.path("deep/file")), (65534, 65533));
    assert_eq!(owner(&elsewhere), (0, 0), "it has another name, which is not the agent's");
    let id = agent.session.detach().await.unwrap();
    agent.stop().await;
    rig.assert_nothing_runs();
    let mut agent = rig.take_up(id).await;
    assert_eq!(agent.turn("recall").await.text(), "blue");
    agent.stop().await;

    // Of a workspace that is somebody's, nothing is given away.
    let rig = Rig::new(&["script"]).config("run_as = \"nobody\"\n");
    let error = rig.start_error(None).await;
    assert!(error.to_string().contains("cannot use"), "{error}");
    assert_eq!(owner(rig.workspace.path()), (0, 0));
}

#[tokio::test]
async fn sec_23_a_confined_agent_reads_what_is_beside_the_private_and_writes_only_its_own() {
    if !has_landlock() {
        return;
    }
    let data = tempfile::tempdir().unwrap();
    let beside = tempfile::tempdir().unwrap();
    for (directory, name) in [(&data, "secret"), (&beside, "open")] {
        fs::write(directory.path().join(name), "").unwrap();
    }
    let (secret, open) = (data.path().join("secret"), beside.path().join("open"));
    let ours = std::process::id();
    let lines = format!(
        "peek {secret}\npoke {secret}\npeek {data}\npeek {open}\npoke {open}\npoke {new}\npeek /proc/{ours}/environ\nsignal {ours}\npeek /usr/bin\npoke own\npeek own\npoke /dev/null",
        secret = secret.display(),
        data = data.path().display(),
        open = open.display(),
        new = beside.path().join("new").display(),
    );
    for landlock in [true, false] {
        let mut rig = Rig::new(&["script"]).config(&format!("landlock = {landlock}\n"));
        rig.private = vec![data.path().to_owned()];
        assert_eq!(rig.capabilities().sandbox, landlock);
        let mut agent = rig.start().await;
        let text = agent.turn(&lines).await.text();
        let outcomes: Vec<bool> = text.lines().map(|line| line.ends_with(": done")).collect();
        let confined = [false, false, false, true, false, false, false, false, true, true, true, true];
        let expected = if landlock { confined } else { [true; 12] };
        assert_eq!(outcomes, expected, "{text}");
        agent.stop().await;
        rig.assert_nothing_runs();
    }
}
