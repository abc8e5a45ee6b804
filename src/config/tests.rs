use super::*;

fn with_file(text: &str) -> (ServeArgs, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ostler.toml");
    std::fs::write(&path, text).unwrap();
    let data = DataArgs { config: Some(path), ..DataArgs::default() };
    (ServeArgs { data, ..ServeArgs::default() }, directory)
}

fn mistakes(args: &ServeArgs) -> Vec<String> {
    args.resolve().map(|_| ()).unwrap_err().0
}

#[test]
fn a_flag_goes_before_the_file_and_the_file_before_the_default() {
    let (args, _directory) = with_file("listen = \"127.0.0.1:1\"\nidle_ttl_seconds = 7\n");
    let config = args.resolve().unwrap_or_else(|mistakes| panic!("{mistakes}"));
    assert_eq!(config.listen.port(), 1);
    assert_eq!(config.service.idle_ttl, Duration::from_secs(7));
    assert_eq!(config.service.cancel_grace, Duration::from_secs(5));
    let flags = ServeArgs { listen: Some("127.0.0.1:2".into()), ..args };
    assert_eq!(flags.resolve().unwrap_or_else(|mistakes| panic!("{mistakes}")).listen.port(), 2);
}

#[test]
fn all_mistakes_are_told_together() {
    let (args, _directory) =
        with_file("idle_ttl_seconds = -1\n[harness.codex]\nkind = \"acp\"\ncommand = []\n");
    let args = ServeArgs {
        listen: Some("nowhere".into()),
        max_permission_mode: Some("everything".into()),
        log_format: Some("xml".into()),
        max_live_sessions: Some("many".into()),
        ..args
    };
    let mistakes = mistakes(&args).join("\n");
    for name in ["listen", "max_permission_mode", "log_format", "max_live_sessions", "idle_ttl_seconds"] {
        assert!(mistakes.contains(name), "{name} is missing in:\n{mistakes}");
    }
}

#[test]
fn an_unknown_key_of_the_file_is_a_mistake_that_names_the_line() {
    let (args, _directory) = with_file("listen = \"127.0.0.1:1\"\nlistne = \"x\"\n");
    let mistakes = mistakes(&args);
    assert!(mistakes[0].contains("line 2") && mistakes[0].contains("listne"), "{mistakes:?}");
}

#[test]
fn listening_beyond_loopback_needs_a_public_host() {
    let everywhere = ServeArgs { listen: Some("0.0.0.0:7070".into()), ..ServeArgs::default() };
    assert!(mistakes(&everywhere)[0].contains("--public-host"));
    let named = ServeArgs { public_host: vec!["ostler.example.com".into()], ..everywhere.clone() };
    assert!(named.resolve().is_ok());
    for wrong in ["https://x", "", "user@x", "x/y", "x:"] {
        let args = ServeArgs { public_host: vec![wrong.into()], ..everywhere.clone() };
        assert!(args.resolve().is_err(), "{wrong}");
    }
}

#[test]
fn sec_02_an_empty_or_short_secret_is_a_mistake_and_is_not_shown() {
    for secret in ["", "1", "   ", &"g".repeat(64)] {
        let data = DataArgs { seal_key: Some(SecretString::from(secret.to_owned())), ..DataArgs::default() };
        let mistakes = data.resolve().map(|_| ()).unwrap_err();
        assert_eq!(mistakes.0, ["seal_key: must be 64 hexadecimal digits"]);
    }
    assert_eq!(parse_seal_key(&SecretString::from("0f".repeat(32))), Some(vec![15; 32]));
}

#[test]
fn a_database_url_of_another_kind_is_a_mistake_that_keeps_its_password() {
    let url = "mysql://user:hunter2@host/db";
    let data = DataArgs { database_url: Some(url.into()), ..DataArgs::default() };
    let mistakes = data.resolve().map(|_| ()).unwrap_err().0.join("\n");
    assert!(mistakes.contains("mysql") && !mistakes.contains("hunter2"), "{mistakes}");
}

#[test]
fn the_readme_has_every_flag_with_its_variable() {
    let readme = include_str!("../../README.md");
    let command = ServeArgs::augment_args(clap::Command::new("serve"));
    for argument in command.get_arguments() {
        let flag = argument.get_long().unwrap();
        let variable = argument.get_env().unwrap().to_str().unwrap();
        let is_its = |line: &&str| {
            line.strip_prefix("| `--")
                .and_then(|line| line.strip_prefix(flag))
                .is_some_and(|rest| rest.starts_with([' ', '`']))
        };
        let row = readme.lines().find(is_its);
        assert!(row.is_some_and(|row| row.contains(&format!("`{variable}`"))), "--{flag} and {variable}");
    }
}
