//! `shell`.

use super::*;
use crate::harness::child::level;

fn rig(lines: &str) -> Rig {
    Rig::new(&format!("[tools]\nshell = \"allow\"\n{lines}"))
}

async fn run(tools: &Toolbox, command: &str) -> Called {
    tools.call("shell", &json!({"command": command})).await
}

fn pid_in(path: &Path) -> Option<i32> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[tokio::test]
async fn a_command_gives_both_outputs_and_how_it_ended() {
    let rig = rig("");
    let tools = rig.open().await;
    let spec = tools.find("shell").unwrap();
    assert_eq!((spec.kind.as_str(), spec.asks), ("execute", false));
    let called = run(&tools, "echo one; echo two >&2; echo three > made; cat").await;
    assert_eq!(said(&called), (Outcome::Succeeded, "The command exited with code 0.\none\ntwo\n"));
    assert_eq!(fs::read_to_string(rig.path("made")).unwrap(), "three\n");
    let silent = run(&tools, "exit 3").await;
    assert_eq!(said(&silent), (Outcome::Failed, "The command exited with code 3. It said nothing."));
    let killed = run(&tools, "kill -9 $$").await;
    assert_eq!(said(&killed), (Outcome::Failed, "The command was killed by signal 9. It said nothing."));
    let missing = run(&tools, "no-such-command").await;
    assert_eq!(missing.outcome, Outcome::Failed);
    assert!(missing.content.starts_with("The command exited with code 127.\n"), "{}", missing.content);
}

#[tokio::test]
async fn a_wrong_input_is_a_failed_call_and_runs_nothing() {
    let rig = rig("");
    let tools = rig.open().await;
    let long = "x".repeat(100_000);
    for (input, words) in [
        (json!({}), "\"command\" is missing"),
        (json!({"command": ["ls"]}), "\"command\" must be a string"),
        (json!({"command": "touch made", "cwd": "/"}), "\"cwd\" is no field"),
        (json!({"command": " \n"}), "\"command\" is empty"),
        (json!({"command": "touch made\u{0}"}), "NUL"),
        (json!({"command": long}), "longer than"),
        (json!("touch made"), "must be an object"),
    ] {
        let called = tools.call("shell", &input).await;
        assert_eq!(called.outcome, Outcome::Failed);
        assert!(called.content.contains(words), "{}", called.content);
    }
    assert_eq!(fs::read_dir(rig.workspace.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_command_that_takes_too_long_is_killed_with_all_it_started() {
    let rig = rig("timeout_seconds = 1");
    let tools = rig.open().await;
    let begun = Instant::now();
    let command = "echo begun; sleep 600 & echo $! > a; setsid sh -c 'echo $$ > b; exec sleep 600' & wait";
    let called = run(&tools, command).await;
    assert_eq!(called.outcome, Outcome::Uncertain);
    assert!(called.content.contains("was killed after 1 s") && called.content.ends_with("begun\n"));
    assert!(begun.elapsed() < DEADLINE);
    let pids = ["a", "b"].map(|name| pid_in(&rig.path(name)).unwrap());
    eventually("all are dead", || !pids.into_iter().any(is_alive) && rig.processes().is_empty()).await;
}

#[tokio::test]
async fn a_call_that_is_dropped_is_killed_with_all_it_started() {
    let rig = rig("");
    let tools = Arc::new(rig.open().await);
    let call = tokio::spawn({
        let tools = Arc::clone(&tools);
        async move { run(&tools, "setsid sh -c 'echo $$ > part; mv part a; exec sleep 600' & wait").await }
    });
    eventually("it has begun", || rig.path("a").exists()).await;
    let pid = pid_in(&rig.path("a")).unwrap();
    assert!(is_alive(pid));
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    eventually("all are dead", || !is_alive(pid) && rig.processes().is_empty()).await;
}

#[tokio::test]
async fn what_a_command_leaves_in_the_background_ends_with_it() {
    let rig = rig("");
    let tools = rig.open().await;
    let called = run(&tools, "sleep 600 & echo $!").await;
    assert_eq!(called.outcome, Outcome::Succeeded);
    let pid: i32 = called.content.lines().last().unwrap().parse().unwrap();
    eventually("it is dead", || !is_alive(pid)).await;
}

#[tokio::test]
async fn a_command_sees_the_allow_list_of_the_environment_alone() {
    let rig = rig("");
    let tools = rig.open().await;
    let called = run(&tools, "env").await;
    let mut names: Vec<_> =
        called.content.lines().skip(1).filter_map(|line| line.split('=').next()).collect();
    names.sort_unstable();
    names.retain(|name| !["LANG", "LC_ALL", "TZ", "TERM", "_"].contains(name));
    assert_eq!(names, ["HOME", "OSTLER_AGENT", "PATH", "PWD", "TMPDIR"], "{}", called.content);
    assert!(called.content.contains(&format!("HOME={}\n", rig.state.path().display())));
    let (name, _) = own_variable();
    assert!(!names.contains(&name.as_str()), "{name}");
}

#[tokio::test]
async fn a_command_that_cannot_be_started_is_a_failed_call() {
    let mut rig = rig("");
    let tools = rig.open().await;
    // What confines it is drawn around directories that are there.
    rig.state = tempfile::tempdir().unwrap();
    if level() > 0 {
        let called = run(&tools, "touch made").await;
        assert_eq!(called.outcome, Outcome::Failed);
        assert!(called.content.contains("could not be started: landlock: "), "{}", called.content);
        assert!(!rig.path("made").exists());
    }
    rig.workspace = tempfile::tempdir().unwrap();
    let called = run(&tools, "touch made").await;
    assert_eq!(called.outcome, Outcome::Failed);
    assert!(called.content.contains("could not be started: "), "{}", called.content);
}

#[tokio::test]
async fn a_command_is_confined_to_its_directories() {
    // Where the kernel has no landlock nothing can be shown of it.
    if level() == 0 {
        return;
    }
    let private = tempfile::tempdir().unwrap();
    fs::write(private.path().join("secret"), "canary").unwrap();
    let beside = tempfile::tempdir().unwrap();
    let mut rig = rig("");
    rig.private = vec![private.path().to_owned()];
    let tools = rig.open().await;
    let (secret, outside) = (private.path().join("secret"), beside.path().join("made"));
    let command = format!(
        "cat {}; echo x > {}; echo y > $TMPDIR/own && echo kept",
        secret.display(),
        outside.display()
    );
    let called = run(&tools, &command).await;
    assert!(called.content.ends_with("kept\n") && !called.content.contains("canary"), "{}", called.content);
    assert!(!outside.exists());
    assert_eq!(fs::read_to_string(rig.state.path().join("tmp/own")).unwrap(), "y\n");
}

#[tokio::test]
async fn of_a_long_output_the_beginning_and_the_end_are_given() {
    let rig = rig("result_max_bytes = 2000");
    let tools = rig.open().await;
    let called = run(&tools, "echo first; head -c 20000000 /dev/zero | tr '\\0' x; echo; echo last").await;
    assert_eq!(called.outcome, Outcome::Succeeded);
    assert!(called.content.len() <= 2000);
    assert!(called.content.contains("\nfirst\n") && called.content.contains("bytes left out"));
}

#[tokio::test]
async fn nothing_runs_once_the_session_may_be_another_s() {
    let mut rig = rig("");
    rig.fence = Fence::new(|| false);
    let tools = rig.open().await;
    let called = run(&tools, "touch made").await;
    assert_eq!(called.outcome, Outcome::Failed);
    assert!(called.content.contains("held elsewhere"), "{}", called.content);
    assert!(!rig.path("made").exists());
}
