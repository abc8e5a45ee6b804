use clap::{CommandFactory, Parser};
use serde_json::json;

use super::stub::{Reply, Stub};
use super::*;

/// As main.rs has it, without the commands that are not ours.
#[derive(Debug, Parser)]
struct CommandLine {
    #[command(subcommand)]
    command: ClientCommand,
}

fn parse(words: &[&str]) -> Result<CommandLine, clap::Error> {
    CommandLine::try_parse_from([&["ostler"], words].concat())
}

#[test]
fn the_command_line_is_consistent() {
    CommandLine::command().debug_assert();
}

#[test]
fn each_command_takes_the_client_options() {
    let mut command = CommandLine::command();
    command.build();
    for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
        let takes = |name: &str| verb.get_arguments().any(|argument| argument.get_long() == Some(name));
        for name in ["url", "key", "data-dir", "owner", "json"] {
            assert!(takes(name), "{} --{name}", verb.get_name());
        }
    }
}

#[test]
fn a_key_is_never_printed() {
    let line = parse(&["ls", "--key", "ostler_key_1_topsecret"]).unwrap();
    assert!(!format!("{line:?}").contains("topsecret"));
}

#[test]
fn help_lists_each_exit_code() {
    for exit in [
        Exit::Ok,
        Exit::Failed,
        Exit::Usage,
        Exit::Unreachable,
        Exit::Forbidden,
        Exit::NotFound,
        Exit::Conflict,
        Exit::WaitingForApproval,
        Exit::Interrupted,
    ] {
        let listed =
            EXIT_CODES.lines().any(|line| line.split_whitespace().next() == Some(&(exit as u8).to_string()));
        assert!(listed, "{exit:?}");
    }
}

#[test]
fn every_command_of_the_documentation_is_understood() {
    for line in [
        "run hello",
        "run -",
        "run -H demo --detach hello",
        "run --session ses_1 --when-busy interrupt hello",
        "run --permission-mode allow_reads --workspace /w --instructions i --settings {} hello",
        "ls --status idle --harness demo --thread t --needs-approval --limit 5",
        "ls --all",
        "show ses_1",
        "logs ses_1 -f --after 7",
        "logs ses_1 --transcript",
        "prompt ses_1 hello --when-busy queue --wait",
        "approvals --session ses_1 --status all",
        "approve apr_1 --reason r --option o1 --edited-input {}",
        "deny apr_1 --reason r",
        "cancel ses_1",
        "stop ses_1",
        "rm ses_1 --purge -y",
        "harnesses",
        "doctor --json",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        assert!(parse(&words).is_ok(), "{line}: {}", parse(&words).unwrap_err());
    }
}

#[tokio::test]
async fn an_error_is_one_line_and_a_hint_and_with_json_the_problem_itself() {
    let stub = Stub::start((0..2).map(|_| Reply::problem(404, "not_found"))).await;
    let show = || parse(&["show", "ses_1", "--url", &stub.url()]).unwrap().command;
    let (mut terminal, _, err) = Terminal::kept(false, None);
    assert_eq!(run_on(&mut terminal, show()).await, Exit::NotFound);
    insta::assert_snapshot!(err.text(), @"
    error: It is not_found. (not_found, req_1)
      hint: `ostler ls` lists the sessions that this key sees
    ");
    let (mut terminal, out, err) = Terminal::kept(true, None);
    run_on(&mut terminal, show()).await;
    let problem: serde_json::Value = serde_json::from_str(&err.text()).unwrap();
    let expected =
        json!({"status": 404, "code": "not_found", "detail": "It is not_found.", "request_id": "req_1"});
    assert_eq!((problem, out.text().as_str()), (expected, ""));
}
