//! Starting: the first start, settings, and a world that does not allow it.

use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use crate::support::server::Home;

#[tokio::test]
async fn the_first_start_makes_an_admin_key_shows_it_once_and_keeps_it_closed() {
    let home = Home::new();
    let server = home.start().await;
    let file = home.path().join("admin.key");
    let key = std::fs::read_to_string(&file).unwrap();
    assert!(server.greeting.iter().any(|line| line.contains(key.trim())), "{:?}", server.greeting);
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let me = server.api().get("/v1/me").await.expect(200);
    assert_eq!((me["role"].as_str(), me["org_id"].as_str()), (Some("admin"), Some("default")));
    server.kill().await;
    let server = home.start().await;
    assert!(!server.greeting.iter().any(|line| line.contains(key.trim())), "{:?}", server.greeting);
    server.api().get("/v1/me").await.expect(200);
}

#[tokio::test]
async fn wrong_settings_are_told_together_and_exit_with_2() {
    let home = Home::new();
    let mut command = home.command(&[
        "serve",
        "--listen",
        "0.0.0.0:0",
        "--idle-ttl-seconds",
        "soon",
        "--log-format",
        "xml",
    ]);
    let output = command.output().await.unwrap();
    let words = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{words}");
    for name in ["--public-host", "idle_ttl_seconds", "log_format"] {
        assert!(words.contains(name), "{name} is missing in {words}");
    }
    let output = home.command(&["serve"]).env("OSTLER_LISTEN", "nowhere").output().await.unwrap();
    assert_eq!(output.status.code(), Some(2), "the environment is read as well");
}

#[tokio::test]
async fn a_data_directory_that_cannot_be_used_is_named() {
    let home = Home::new();
    // A file where the directory should be: not even root can write into that.
    let file = home.path().join("file");
    std::fs::write(&file, "").unwrap();
    let inside = file.join("data");
    let output = home.command(&["serve", "--data-dir", inside.to_str().unwrap()]).output().await.unwrap();
    let words = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert!(words.contains(inside.to_str().unwrap()), "{words}");
}

#[tokio::test]
async fn f54_a_second_process_on_the_same_database_refuses_and_the_first_goes_on() {
    let home = Home::on_sqlite();
    let server = home.start().await;
    let output = home.command(&["serve", "--listen", "127.0.0.1:0"]).output().await.unwrap();
    let words = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert!(words.contains("in use by another process"), "{words}");
    server.api().post("/v1/sessions", json!({"harness": "demo"})).await.expect(201);
}

#[tokio::test]
async fn a_port_that_is_taken_is_named() {
    let home = Home::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = home.command(&["serve", "--listen", &address]).output().await.unwrap();
    let words = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert!(words.contains(&address), "{words}");
}

#[tokio::test]
async fn f40_a_database_of_a_later_version_is_refused() {
    let home = Home::new();
    home.start().await.kill().await;
    let later = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
        SELECT 9999, 'later', success, checksum, execution_time FROM _sqlx_migrations LIMIT 1";
    home.tamper(later).await;
    let output = home.command(&["serve", "--listen", "127.0.0.1:0"]).output().await.unwrap();
    let words = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && words.contains("9999") && words.contains("newer ostler"), "{words}");
}

#[tokio::test]
async fn keys_are_made_listed_and_revoked_while_the_service_runs() {
    let home = Home::new();
    let server = home.start().await;
    let token = home.make_key(&["--org", "acme", "--owner", "alice@example.com", "--role", "owner"]).await;
    server.api_with(&token).get("/v1/me").await.expect(200);
    let listed = home.command(&["keys", "ls", "--org", "acme", "--json"]).output().await.unwrap();
    let row: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(
        (row["owner_id"].as_str(), row["state"].as_str()),
        (Some("alice@example.com"), Some("active"))
    );
    let output =
        home.command(&["keys", "create", "--org", "acme", "--role", "owner"]).output().await.unwrap();
    assert_eq!(output.status.code(), Some(2));
    let revoked = home.command(&["keys", "revoke", row["id"].as_str().unwrap()]).output().await.unwrap();
    assert!(revoked.status.success());
    let absent =
        home.command(&["keys", "revoke", "key_0197a0c0c0c07000a000a000a000a000"]).output().await.unwrap();
    assert_eq!(absent.status.code(), Some(1));
}

#[tokio::test]
async fn looking_for_keys_where_there_is_no_database_makes_none() {
    let home = Home::on_sqlite();
    let elsewhere = home.path().join("mistyped");
    for arguments in [&["keys", "ls"][..], &["keys", "revoke", "key_0197a0c0c0c07000a000a000a000a000"]] {
        let output = home.command(arguments).arg("--data-dir").arg(&elsewhere).output().await.unwrap();
        let words = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{words}");
        assert!(words.contains("there is no database") && words.contains("--data-dir"), "{words}");
    }
    assert!(!elsewhere.exists());
}
