//! Bad input and a bad world: each a clear error with its code, and nothing lost.

use serde_json::{Value, json};

use crate::support::server::Home;

fn id(value: &Value) -> String {
    value["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn rows_14_and_96_each_wrong_request_has_its_code_and_a_request_id() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let post = |body: &str, kind: &'static str| {
        let request = api.request(reqwest::Method::POST, "/v1/sessions").header("content-type", kind);
        api.send(request.body(body.to_owned()))
    };
    let json = "application/json";
    post("{", json).await.problem(400, "invalid_body");
    post("", json).await.problem(400, "invalid_body");
    post(r#"{"harness": 5}"#, json).await.problem(400, "invalid_body");
    post(r#"{"harness": "demo", "colour": "red"}"#, json).await.problem(400, "invalid_body");
    post(r#"{"harness": "demo"}"#, "text/plain").await.problem(415, "unsupported_media_type");
    post(r#"{"harness": "missing:harness"}"#, json).await.problem(422, "unknown_harness");
    post(r#"{"harness": "demo", "prompt": "  "}"#, json).await.problem(422, "invalid_input");
    post(r#"{"harness": "demo", "settings": {"speed": 1}}"#, json).await.problem(422, "invalid_input");
    post(r#"{"harness": "demo", "workspace": "/etc"}"#, json).await.problem(422, "invalid_input");
    post(&format!("{}1{}", "[".repeat(1000), "]".repeat(1000)), json).await.problem(400, "invalid_body");
    for path in ["/v1/sessions?cursor=x", "/v1/approvals?cursor=%20"] {
        api.get(path).await.problem(400, "invalid_cursor");
    }
    for path in ["/v1/sessions?limit=x", "/v1/sessions?status=weird", "/v1/sessions?colour=red"] {
        api.get(path).await.problem(400, "invalid_query");
    }
    assert_eq!(api.get("/v1/sessions?limit=9999").await.status, 200, "row 7: limits are clamped");
    api.get("/v2/nothing").await.problem(404, "not_found");
    let wrong_method = api.delete("/v1/sessions").await;
    wrong_method.problem(405, "method_not_allowed");
    assert!(wrong_method.header("allow").is_some());
    let request = api.request(reqwest::Method::GET, "/v1/sessions").header("accept", "application/xml");
    api.send(request).await.problem(406, "not_acceptable");
    let problem = api.get("/v2/nothing").await;
    assert_eq!(problem.json()["request_id"].as_str(), problem.header("ostler-request-id"));
    let own = api.with_header("x-request-id", "mine-1").get("/v1/me").await;
    assert_eq!(own.header("ostler-request-id"), Some("mine-1"));
    assert_eq!(api.get("/v1/sessions").await.expect(200)["data"], json!([]), "nothing was made");
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_and_a_large_prompt_is_not() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let session = id(&api.create("/say x").await);
    let large = "x".repeat(2 << 20);
    api.patch(&format!("/v1/sessions/{session}"), json!({"title": large}))
        .await
        .problem(413, "body_too_large");
    let prompt = json!({"prompt": format!("/say ok\n{large}")});
    api.post(&format!("/v1/sessions/{session}/prompts"), prompt).await.expect(202);
    let huge = json!({"prompt": "x".repeat(9 << 20)});
    api.post(&format!("/v1/sessions/{session}/prompts"), huge).await.problem(413, "body_too_large");
}

#[tokio::test]
async fn sec_01_every_route_but_the_two_health_checks_needs_a_key() {
    let home = Home::new();
    let server = home.start().await;
    let (api, stranger) = (server.api(), server.api().anonymous());
    for path in ["/healthz", "/readyz"] {
        stranger.get(path).await.expect(200);
    }
    let document = api.get("/openapi.json").await.expect(200);
    let mut routes = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in
            methods.as_object().unwrap().keys().filter(|name| name.len() < 8 && *name != "parameters")
        {
            if matches!(path.as_str(), "/healthz" | "/readyz") {
                continue;
            }
            let path = path
                .split('/')
                .map(|part| if part.starts_with('{') { "x" } else { part })
                .collect::<Vec<_>>()
                .join("/");
            let method = reqwest::Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let answer = stranger.send(stranger.request(method.clone(), &path)).await;
            if path.starts_with("/v1/chat/") || path.starts_with("/v1/models") {
                assert_eq!(answer.expect(401)["error"]["code"], "unauthenticated");
            } else {
                answer.problem(401, "unauthenticated");
            }
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"), "{method} {path}");
            routes += 1;
        }
    }
    assert!(routes >= 40, "{routes}");
    for wrong in ["", "ostler_", "ostler_key_0197a0c0c0c07000a000a000a000a000_00", "x"] {
        server.api_with(wrong).get("/v1/me").await.problem(401, "unauthenticated");
    }
}

#[tokio::test]
async fn sec_03_a_request_for_another_host_is_refused_before_all_else() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    for host in ["attacker.test", "localhost.attacker.test", "127.0.0.1.nip.io"] {
        api.with_header("host", host).get("/v1/me").await.problem(403, "host_not_allowed");
        api.anonymous().with_header("host", host).get("/healthz").await.problem(403, "host_not_allowed");
    }
    api.with_header("origin", "https://attacker.test").get("/v1/me").await.problem(403, "host_not_allowed");
    assert!(api.get("/v1/me").await.header("access-control-allow-origin").is_none());
}

#[tokio::test]
async fn row_13_a_row_that_nobody_wrote_is_an_error_for_itself_alone() {
    let home = Home::new();
    let mut server = home.start().await;
    let (bad, good) = (id(&server.api().create("/say x").await), id(&server.api().create("/say y").await));
    for damage in ["metadata = '{broken'", "permission_mode = 'weird'"] {
        server.kill().await;
        home.tamper(&format!("UPDATE agent_harness_sessions SET {damage} WHERE id = '{bad}'")).await;
        server = home.start().await;
        let api = server.api();
        let problem = api.get(&format!("/v1/sessions/{bad}")).await.problem(500, "internal");
        assert!(
            !problem.to_string().contains("broken") && !problem.to_string().contains("weird"),
            "{problem}"
        );
        api.get(&format!("/v1/sessions/{good}")).await.expect(200);
    }
}

#[tokio::test]
async fn the_openapi_document_is_the_committed_one_and_is_complete() {
    let home = Home::new();
    let server = home.start().await;
    let document = server.api().get("/openapi.json").await;
    insta::with_settings!({ snapshot_path => "snapshots", prepend_module_to_snapshot => false }, {
        insta::assert_snapshot!("openapi", serde_json::to_string_pretty(&document.json()).unwrap());
    });
    let document = document.json();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    for code in crate::support::CODES {
        assert!(document.to_string().contains(&format!("\"{code}\"")), "{code} is not documented");
    }
}

#[tokio::test]
async fn a_key_that_is_used_too_often_is_told_to_wait_and_others_are_not() {
    let home = Home::new().with(&["--requests-per-second", "5"]);
    let server = home.start().await;
    let api = server.api();
    let other = server.api_with(&home.make_key(&["--org", "default", "--role", "admin"]).await);
    let limited = loop {
        let answer = api.get("/v1/me").await;
        if answer.status != 200 {
            break answer;
        }
    };
    limited.problem(429, "rate_limited");
    assert!(limited.header("retry-after").is_some());
    other.get("/v1/me").await.expect(200);
}

#[tokio::test]
async fn a_session_in_which_too_many_turns_wait_takes_no_more() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let session = id(&api.create("/ask shell {}").await);
    let body = json!({"prompt": "x", "when_busy": "queue"});
    let path = format!("/v1/sessions/{session}/prompts");
    let refused = loop {
        let answer = api.post(&path, body.clone()).await;
        if answer.status != 202 {
            break answer;
        }
    };
    let problem = refused.problem(429, "quota_exceeded");
    assert_eq!((problem["limit"].as_i64(), problem["used"].as_i64()), (Some(256), Some(256)));
    // Stopping ends them all, in one transaction.
    let row = api.post(&format!("/v1/sessions/{session}/stop"), json!({})).await.expect(200);
    assert_eq!((row["status"].as_str(), row["queued_turns"].as_i64()), (Some("stopped"), Some(0)));
}
