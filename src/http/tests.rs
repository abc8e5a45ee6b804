//! The routes in process, over a service on a real database: what holds without a harness at work.
//!
//! No driver runs here unless a test says so: turns may stay queued.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use tempfile::TempDir;
use tower::ServiceExt;

use super::*;
use crate::clock::Clock;
use crate::domain::scope::{Permission, Role};
use crate::harness::Registry;
use crate::harness::child::Launcher;
use crate::ids::{ApprovalId, KeyId, SessionId, TurnId};
use crate::service::{KeySpec, ServiceOptions};
use crate::store::{self, Location, Seal, StoreOptions};

struct App {
    router: Router,
    service: Arc<Service>,
    _dir: TempDir,
}

/// An answer, read to its end.
#[derive(Debug)]
struct Got {
    status: StatusCode,
    headers: axum::http::HeaderMap,
    text: String,
}

impl Got {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("not JSON: {}", self.text))
    }

    fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// Refused in the shape of the second door.
    #[track_caller]
    fn refused_in_chat(self, status: u16, code: &str) -> Self {
        let error = self.json()["error"].take();
        assert_eq!((self.status.as_u16(), error["code"].as_str()), (status, Some(code)), "{}", self.text);
        assert_eq!(self.header("content-type"), Some("application/json"));
        assert!(error["type"].is_string() && error["message"].is_string(), "{error}");
        self
    }

    #[track_caller]
    fn is(self, status: u16) -> Self {
        assert_eq!(self.status.as_u16(), status, "{}", self.text);
        self
    }

    #[track_caller]
    fn refused(self, status: u16, code: &str) -> Self {
        assert_eq!((self.status.as_u16(), self.code().as_str()), (status, code), "{}", self.text);
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        let document = self.json();
        assert_eq!(document["status"], status);
        assert_eq!(document["request_id"].as_str(), self.header("ostler-request-id"));
        self
    }
}

/// A request being made.
struct Ask(axum::http::request::Builder, Body);

fn ask(method: &str, path: &str) -> Ask {
    let builder = Request::builder().method(Method::from_bytes(method.as_bytes()).unwrap()).uri(path);
    Ask(builder.header("host", "localhost:7460"), Body::empty())
}

impl Ask {
    fn key(self, key: &str) -> Self {
        self.with("authorization", &format!("Bearer {key}"))
    }

    fn with(self, name: &str, value: &str) -> Self {
        Self(self.0.header(name, value), self.1)
    }

    fn json(self, body: &Value) -> Self {
        Self(self.0.header("content-type", "application/json"), Body::from(body.to_string()))
    }

    fn body(self, body: impl Into<Body>) -> Self {
        Self(self.0, body.into())
    }
}

/// The body of an answer that is still coming.
struct Reader {
    body: Body,
    text: String,
}

impl Reader {
    /// Reads until the text has these words.
    async fn until(&mut self, words: &str) -> &str {
        while !self.text.contains(words) {
            assert!(self.more().await, "ended without {words:?}: {}", self.text);
        }
        &self.text
    }

    /// Reads to the end.
    async fn end(mut self) -> String {
        while self.more().await {}
        self.text
    }

    async fn more(&mut self) -> bool {
        let frame = tokio::time::timeout(Duration::from_secs(10), self.body.frame());
        let Some(frame) = frame.await.expect("something comes in time") else { return false };
        self.text.push_str(std::str::from_utf8(&frame.unwrap().into_data().unwrap()).unwrap());
        true
    }
}

impl App {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions::new(Location::Sqlite(dir.path().join("ostler.db")));
        let store = store::open(&options, Seal::new(vec![7; 32]).unwrap()).await.unwrap();
        let harnesses =
            Registry::new(&BTreeMap::new(), &Launcher::of_this_program(Vec::new())).unwrap_or_default();
        let options = ServiceOptions::new(dir.path().to_path_buf());
        let service = Service::new(store, harnesses, Clock::System, options);
        service.run_background().await.unwrap();
        let hosts = AllowedHosts::new(&["ostler.example.com".into()]).unwrap();
        Self { router: router(Arc::clone(&service), HttpOptions { hosts }), service, _dir: dir }
    }

    async fn key(&self, org: &str, role: Role, owner: Option<&str>, permissions: &[Permission]) -> String {
        let spec = KeySpec {
            org: org.into(),
            owner: owner.map(Into::into),
            role,
            permissions: permissions.to_vec(),
            expires_at: None,
        };
        let made = spec.prepare(self.service.clock().now()).unwrap();
        self.service.store().insert_key(&made.key).await.unwrap();
        made.token.expose_secret().to_owned()
    }

    async fn owner(&self, owner: &str) -> String {
        self.key("acme", Role::Owner, Some(owner), &[]).await
    }

    /// An answer that is still coming.
    async fn begin(&self, ask: Ask) -> (StatusCode, axum::http::HeaderMap, Reader) {
        let response = self.router.clone().oneshot(ask.0.body(ask.1).unwrap()).await.unwrap();
        let (parts, body) = response.into_parts();
        (parts.status, parts.headers, Reader { body, text: String::new() })
    }

    async fn send(&self, ask: Ask) -> Got {
        let response = self.router.clone().oneshot(ask.0.body(ask.1).unwrap()).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = to_bytes(body, usize::MAX).await.unwrap();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        assert!(parts.headers.contains_key("ostler-request-id"), "every answer carries its id");
        assert!(
            !parts.headers.keys().any(|name| name.as_str().starts_with("access-control")),
            "no CORS, ever"
        );
        Got { status: parts.status, headers: parts.headers, text }
    }

    /// A session without a turn.
    async fn session(&self, key: &str) -> Value {
        let ask = ask("POST", "/v1/sessions").key(key).json(&json!({"harness": "demo"}));
        self.send(ask).await.is(201).json()
    }
}

fn path_of(session: &Value) -> String {
    format!("/v1/sessions/{}", session["id"].as_str().unwrap())
}

#[tokio::test]
async fn a_session_is_created_looked_up_listed_changed_and_destroyed() {
    let app = App::new().await;
    let key = app.owner("alice").await;
    let body = json!({"harness": "demo", "run_id": "run/1", "thread_id": "t", "title": "T", "metadata": {"org_id": "x"}});
    let created = app.send(ask("POST", "/v1/sessions").key(&key).json(&body)).await.is(201);
    let session = created.json();
    assert_eq!(created.header("location"), Some(path_of(&session).as_str()));
    assert_eq!((session["status"].as_str(), session["owner_id"].as_str()), (Some("idle"), Some("alice")));

    let by_id = app.send(ask("GET", &path_of(&session)).key(&key)).await.is(200);
    assert_eq!(by_id.json(), session);
    let by_run = app.send(ask("GET", "/v1/runs/run%2F1").key(&key)).await.is(200);
    assert_eq!(by_run.text, by_id.text);
    let list = app.send(ask("GET", "/v1/sessions?thread_id=t&status=idle").key(&key)).await.is(200);
    assert_eq!(list.json(), json!({"data": [session], "next_cursor": null}));
    let latest = app.send(ask("GET", "/v1/threads/t/sessions/latest?harness=demo").key(&key)).await.is(200);
    assert_eq!(latest.json(), session);

    let patch = ask("PATCH", &path_of(&session)).key(&key).json(&json!({"title": "U"}));
    assert_eq!(app.send(patch).await.is(200).json()["title"], "U");
    app.send(ask("POST", &format!("{}/cancel", path_of(&session))).key(&key)).await.is(200);
    let stopped = app.send(ask("POST", "/v1/runs/run%2F1/stop").key(&key)).await.is(200).json();
    assert_eq!((stopped["status"].as_str(), stopped["stop_cause"].as_str()), (Some("stopped"), Some("user")));
    app.send(ask("POST", "/v1/runs/run%2F1/stop").key(&key)).await.is(200);
    for _ in 0..2 {
        app.send(ask("DELETE", &path_of(&session)).key(&key)).await.is(204);
    }
    app.send(ask("GET", &format!("{}/transcript", path_of(&session))).key(&key)).await.is(200);
    app.send(ask("GET", "/v1/threads/t/sessions/latest").key(&key)).await.refused(404, "not_found");
    let stop = app.send(ask("POST", "/v1/runs/run%2F1/stop").key(&key)).await;
    stop.refused(409, "session_destroyed");
    app.send(ask("DELETE", &format!("{}?purge=true", path_of(&session))).key(&key)).await.is(204);
    app.send(ask("GET", &path_of(&session)).key(&key)).await.refused(404, "not_found");
}

#[tokio::test]
async fn lists_are_paged_newest_first() {
    let app = App::new().await;
    let key = app.owner("alice").await;
    let mut made = Vec::new();
    for _ in 0..5 {
        made.push(app.session(&key).await["id"].clone());
    }
    made.reverse();
    let (mut seen, mut path) = (Vec::new(), "/v1/sessions?limit=2".to_owned());
    loop {
        let page = app.send(ask("GET", &path).key(&key)).await.is(200).json();
        seen.extend(page["data"].as_array().unwrap().iter().map(|session| session["id"].clone()));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        path = format!("/v1/sessions?limit=2&cursor={cursor}");
    }
    assert_eq!(seen, made);
}

#[tokio::test]
async fn sec_01_every_documented_route_but_two_wants_a_key() {
    let app = App::new().await;
    let document: Value = serde_json::from_str(&openapi()).unwrap();
    let mut open = BTreeSet::new();
    let mut count = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        let concrete = path
            .replace("{session_id}", SessionId::mint().as_str())
            .replace("{turn_id}", TurnId::mint().as_str())
            .replace("{approval_id}", ApprovalId::mint().as_str())
            .replace("{key_id}", KeyId::mint().as_str())
            .replace(['{', '}'], "");
        for method in ["get", "post", "patch", "delete"] {
            if item.get(method).is_none() {
                continue;
            }
            count += 1;
            for key in [None, Some("ostler_key_0_x"), Some("")] {
                let ask = ask(&method.to_uppercase(), &concrete);
                let got = app.send(if let Some(key) = key { ask.key(key) } else { ask }).await;
                if got.status == StatusCode::OK {
                    open.insert(path.clone());
                } else {
                    assert_eq!(got.header("www-authenticate"), Some("Bearer"), "{method} {path}");
                    if chat::is_door(path) {
                        got.refused_in_chat(401, "unauthenticated");
                    } else {
                        got.refused(401, "unauthenticated");
                    }
                }
            }
        }
    }
    assert_eq!(open, BTreeSet::from(["/healthz".to_owned(), "/readyz".to_owned()]));
    assert!(count > 40, "{count} operations are documented");
}

#[tokio::test]
async fn sec_04_and_05_what_is_foreign_answers_like_what_is_absent() {
    let app = App::new().await;
    let (alice, bob) = (app.owner("alice").await, app.owner("bob").await);
    let elsewhere = app.key("other", Role::Admin, None, &[]).await;
    let session = app.session(&alice).await;
    let (foreign, run) = (session["id"].as_str().unwrap(), session["run_id"].as_str().unwrap());
    let masked = |mut got: Got| {
        got.headers.remove("ostler-request-id");
        let mut document = got.json();
        document["request_id"].take();
        (got.status, format!("{:?}", got.headers), document)
    };
    let prompt = json!({"prompt": "x"});
    for (method, tail) in [
        ("GET", ""),
        ("PATCH", ""),
        ("DELETE", ""),
        ("GET", "/turns"),
        ("GET", "/events"),
        ("GET", "/transcript"),
        ("GET", "/approvals"),
        ("POST", "/prompts"),
        ("POST", "/cancel"),
        ("POST", "/stop"),
        ("POST", "/events/tickets"),
    ] {
        for key in [&bob, &elsewhere] {
            let send = async |name: &str| {
                let ask = ask(method, &format!("{name}{tail}")).key(key);
                let ask = match tail {
                    "/prompts" => ask.json(&prompt),
                    "" if method == "PATCH" => ask.json(&json!({})),
                    _ => ask,
                };
                masked(app.send(ask).await.refused(404, "not_found"))
            };
            let absent = send(&format!("/v1/sessions/{}", SessionId::mint())).await;
            for name in [
                format!("/v1/sessions/{foreign}"),
                "/v1/sessions/nonsense".into(),
                format!("/v1/runs/{run}"),
                "/v1/runs/none".into(),
                "/v1/runs/%ff".into(),
            ] {
                assert_eq!(send(&name).await, absent, "{method} {name}{tail}");
            }
        }
    }
    let list = app.send(ask("GET", "/v1/sessions?owner=alice").key(&bob)).await.is(200);
    assert_eq!(list.json()["data"], json!([]));
}

#[tokio::test]
async fn a_key_without_the_permission_is_refused_before_anything_is_looked_up() {
    let app = App::new().await;
    let reads = app.key("acme", Role::Owner, Some("alice"), &[Permission::SessionsRead]).await;
    let writes = app.key("acme", Role::Owner, Some("alice"), &[Permission::SessionsWrite]).await;
    let absent = format!("/v1/sessions/{}", SessionId::mint());
    let decision = format!("/v1/approvals/{}/decision", ApprovalId::mint());
    for (key, method, path) in [
        (&reads, "POST", "/v1/sessions"),
        (&reads, "POST", &*format!("{absent}/prompts")),
        (&reads, "DELETE", &*absent),
        (&reads, "POST", &*decision),
        (&writes, "GET", &*absent),
        (&writes, "GET", "/v1/sessions"),
        (&writes, "GET", &*format!("{absent}/events")),
        (&writes, "GET", "/v1/keys"),
    ] {
        app.send(ask(method, path).key(key)).await.refused(403, "insufficient_scope");
    }
    app.send(ask("GET", &absent).key(&reads)).await.refused(404, "not_found");
    app.send(ask("GET", "/v1/me").key(&writes)).await.is(200);
}

#[tokio::test]
async fn a_service_key_speaks_for_the_owner_that_it_names() {
    let app = App::new().await;
    let key = app.key("acme", Role::Service, None, &[]).await;
    let body = json!({"harness": "demo"});
    let create = || ask("POST", "/v1/sessions").key(&key).json(&body);
    app.send(create()).await.refused(400, "owner_required");
    app.send(create().with("ostler-owner", &"x".repeat(321))).await.refused(400, "invalid_query");
    let session = app.send(create().with("ostler-owner", "bob")).await.is(201).json();
    assert_eq!(session["owner_id"], "bob");
    app.send(ask("GET", &path_of(&session)).key(&key)).await.is(200);
    app.send(ask("GET", &path_of(&session)).key(&key).with("ostler-owner", "bob")).await.is(200);
    let other = ask("GET", &path_of(&session)).key(&key).with("ostler-owner", "carol");
    app.send(other).await.refused(404, "not_found");
}

#[tokio::test]
async fn sec_06_a_body_says_only_what_its_route_knows() {
    let app = App::new().await;
    let key = app.owner("alice").await;
    let session = app.session(&key).await;
    let prompts = format!("{}/prompts", path_of(&session));
    for field in
        ["org_id", "owner_id", "owner", "id", "status", "resume_state", "cwd", "lease_epoch", "scopes"]
    {
        for (method, path, mut body) in [
            ("POST", "/v1/sessions", json!({"harness": "demo"})),
            ("POST", "/v1/sessions", json!({"harness": "demo", "limits": {}})),
            ("POST", &*prompts, json!({"prompt": [{"type": "text", "text": "x"}]})),
            ("POST", &*prompts, json!({"prompt": "x"})),
            ("PATCH", &*path_of(&session), json!({"title": "x"})),
        ] {
            let place = match &mut body {
                body if body["limits"].is_object() => &mut body["limits"],
                body if body["prompt"].is_array() => &mut body["prompt"][0],
                body => body,
            };
            place[field] = json!("x");
            app.send(ask(method, path).key(&key).json(&body)).await.refused(400, "invalid_body");
        }
    }
    let named = app
        .send(ask("POST", "/v1/sessions").key(&key).json(&json!({"harness": "demo", "owner_id": "x"})))
        .await;
    assert!(named.json()["detail"].as_str().unwrap().contains("owner_id"), "{}", named.text);
    let unchanged = app.send(ask("GET", &path_of(&session)).key(&key)).await.json();
    assert_eq!(unchanged, session);
}

#[tokio::test]
async fn a_body_must_be_declared_whole_and_of_a_sane_size() {
    let app = App::new().await;
    let key = app.owner("alice").await;
    let create = || ask("POST", "/v1/sessions").key(&key);
    app.send(create().body("{}")).await.refused(415, "unsupported_media_type");
    let plain = create().with("content-type", "text/plain").body(r#"{"harness":"demo"}"#);
    app.send(plain).await.refused(415, "unsupported_media_type");
    let json = || create().with("content-type", "application/json");
    for broken in [
        "",
        "{",
        "[]",
        "null",
        r#"{"harness":5}"#,
        r#"{"harness":"demo","harness":"demo"}"#,
        r#"{"harness":"demo"} x"#,
    ] {
        app.send(json().body(broken)).await.refused(400, "invalid_body");
    }
    let deep = format!(r#"{{"harness":"demo","settings":{}1{}}}"#, "[".repeat(1000), "]".repeat(1000));
    app.send(json().body(deep)).await.refused(400, "invalid_body");
    app.send(json().body(vec![b' '; 8 * 1024 * 1024 + 1])).await.refused(413, "body_too_large");
    let session = app.session(&key).await;
    let patch = ask("PATCH", &path_of(&session)).key(&key).with("content-type", "application/json");
    app.send(patch.body(vec![b' '; 1024 * 1024 + 1])).await.refused(413, "body_too_large");
    let stop = || ask("POST", &format!("{}/stop", path_of(&session))).key(&key);
    app.send(stop().with("content-type", "text/plain")).await.refused(415, "unsupported_media_type");
    app.send(stop().json(&json!({"force": true}))).await.refused(400, "invalid_body");
    app.send(stop().json(&json!({}))).await.is(200);
}

#[tokio::test]
async fn what_cannot_be_carried_out_is_422() {
    let app = App::new().await;
    let key = app.owner("alice").await;
    let create = |body: &Value| ask("POST", "/v1/sessions").key(&key).json(body);
    app.send(create(&json!({"harness": "none"}))).await.refused(422, "unknown_harness");
    app.send(create(&json!({"harness": "demo", "prompt": " "}))).await.refused(422, "invalid_input");
    app.send(create(&json!({"harness": "demo", "settings": {"x": 1}}))).await.refused(422, "invalid_input");
    let session = app.session(&key).await;
    let prompts = format!("{}/prompts", path_of(&session));
    app.send(ask("POST", &prompts).key(&key).json(&json!({"prompt": "\n\t"})))
        .await
        .refused(422, "invalid_input");
    let stream = create(&json!({"harness": "demo"})).with("accept", "text/event-stream");
    app.send(stream).await.refused(422, "invalid_input");
    let twice = create(&json!({"harness": "demo", "run_id": session["run_id"]}));
    app.send(twice).await.refused(409, "run_exists");
}

#[tokio::test]
async fn a_query_says_only_what_its_route_knows() {
    let app = App::new().await;
    let key = app.owner("alice").await;
    let session = app.session(&key).await;
    for (tail, code) in [
        ("/v1/sessions?token=x", "invalid_query"),
        ("/v1/sessions?status=weird", "invalid_query"),
        ("/v1/sessions?status=idle&status=idle", "invalid_query"),
        ("/v1/sessions?needs_approval=yes", "invalid_query"),
        ("/v1/sessions?created_after=yesterday", "invalid_query"),
        ("/v1/sessions?limit=x", "invalid_query"),
        ("/v1/sessions?cursor=x", "invalid_cursor"),
        ("/v1/approvals?cursor=dDE", "invalid_cursor"),
    ] {
        app.send(ask("GET", tail).key(&key)).await.refused(400, code);
    }
    for (tail, code) in [
        ("/events?after=-1", "invalid_cursor"),
        ("/events?after=x", "invalid_cursor"),
        ("/events?after=999", "invalid_cursor"),
        ("/events?until=later", "invalid_query"),
        ("/transcript?cursor=dDE", "invalid_cursor"),
    ] {
        let ask = ask("GET", &format!("{}{tail}", path_of(&session))).key(&key);
        let ask = if tail.contains("until") { ask.with("accept", "text/event-stream") } else { ask };
        app.send(ask).await.refused(400, code);
    }
    app.send(ask("GET", "/v1/approvals?session_id=nonsense").key(&key)).await.is(200);
    app.send(ask("GET", "/v1/sessions?limit=1000").key(&key)).await.is(200);
}

#[tokio::test]
async fn sec_03_a_request_for_another_host_is_refused_before_it_is_asked_who_sends_it() {
    let app = App::new().await;
    let bare = |host: &str| Ask(Request::builder().uri("/v1/me").header("host", host), Body::empty());
    for hostile in
        ["attacker.test", "localhost.attacker.test", "127.0.0.1.nip.io", "0.0.0.0", "localhost@attacker.test"]
    {
        app.send(bare(hostile)).await.refused(403, "host_not_allowed");
    }
    app.send(Ask(Request::builder().uri("/v1/me"), Body::empty())).await.refused(403, "host_not_allowed");
    for own in ["localhost", "127.0.0.1:7460", "[::1]:7460", "ostler.example.com"] {
        app.send(bare(own)).await.refused(401, "unauthenticated");
    }
    for origin in ["null", "http://attacker.test"] {
        for method in ["GET", "POST", "OPTIONS"] {
            let got = app.send(ask(method, "/v1/sessions").with("origin", origin)).await;
            got.refused(403, "host_not_allowed");
        }
    }
}

#[tokio::test]
async fn unknown_routes_and_methods_are_problems_too() {
    let app = App::new().await;
    app.send(ask("GET", "/nowhere")).await.refused(404, "not_found");
    app.send(ask("GET", "/v1/sessions/")).await.refused(404, "not_found");
    let got = app.send(ask("PUT", "/v1/sessions")).await.refused(405, "method_not_allowed");
    let allowed: BTreeSet<&str> = got.header("allow").unwrap().split(',').collect();
    assert_eq!(allowed, BTreeSet::from(["GET", "HEAD", "POST"]));
    let got = app.send(ask("GET", "/v1/me").with("x-request-id", "mine-1")).await;
    assert_eq!(got.header("ostler-request-id"), Some("mine-1"));
    let key = app.owner("alice").await;
    app.send(ask("GET", "/v1/sessions").key(&key).with("accept", "text/html"))
        .await
        .refused(406, "not_acceptable");
    app.send(ask("GET", "/v1/sessions").key(&key).with("accept", "text/event-stream"))
        .await
        .refused(406, "not_acceptable");
    let head = app.send(ask("HEAD", "/v1/sessions").key(&key)).await.is(200);
    assert!(head.text.is_empty());
}

#[tokio::test]
async fn a_key_repeats_an_answer_and_no_effect() {
    let app = App::new().await;
    let key = app.owner("alice").await;
    let body = json!({"harness": "demo"});
    let create = |once: &str, body: &Value| {
        ask("POST", "/v1/sessions").key(&key).with("idempotency-key", once).json(body)
    };
    let first = app.send(create("k", &body)).await.is(201);
    assert_eq!(first.header("idempotency-replayed"), None);
    let again = app.send(create("k", &body)).await.is(201);
    assert_eq!(again.text, first.text);
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    assert_eq!(again.header("location"), first.header("location"));
    app.send(create("k", &json!({"harness": "demo", "title": "x"})))
        .await
        .refused(422, "idempotency_key_reused");
    app.send(create("a b", &body)).await.refused(400, "invalid_query");
    let bob = app.owner("bob").await;
    let other = ask("POST", "/v1/sessions").key(&bob).with("idempotency-key", "k").json(&body);
    assert_ne!(app.send(other).await.is(201).json()["id"], first.json()["id"]);

    let stop = || {
        let path = format!("{}/stop", path_of(&first.json()));
        ask("POST", &path).key(&key).with("idempotency-key", "s")
    };
    let stopped = app.send(stop()).await.is(200);
    let repeated = app.send(stop()).await.is(200);
    assert_eq!(
        (repeated.text.as_str(), repeated.header("idempotency-replayed")),
        (stopped.text.as_str(), Some("true"))
    );
    let list = app.send(ask("GET", "/v1/sessions").key(&key)).await.json();
    assert_eq!(list["data"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn many_with_one_key_make_one_session() {
    let app = App::new().await;
    let key = app.owner("alice").await;
    let body = json!({"harness": "demo"});
    let sends = (0..16)
        .map(|_| app.send(ask("POST", "/v1/sessions").key(&key).with("idempotency-key", "k").json(&body)));
    for got in futures_util::future::join_all(sends).await {
        if got.status != StatusCode::CREATED {
            assert_eq!(got.header("retry-after"), Some("1"));
            got.refused(409, "idempotency_in_progress");
        }
    }
    let list = app.send(ask("GET", "/v1/sessions").key(&key)).await.json();
    assert_eq!(list["data"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn events_are_a_page_or_a_stream() {
    let app = App::new().await;
    let key = app.owner("alice").await;
    let session = app.session(&key).await;
    let events = format!("{}/events", path_of(&session));
    let page = app.send(ask("GET", &events).key(&key)).await.is(200).json();
    assert_eq!((page["data"][0]["seq"].as_i64(), page["next_cursor"].is_null()), (Some(1), true));
    app.send(ask("DELETE", &path_of(&session)).key(&key)).await.is(204);
    let page = app.send(ask("GET", &format!("{events}?limit=1")).key(&key)).await.is(200).json();
    assert_eq!((page["data"].as_array().unwrap().len(), page["next_cursor"].as_str()), (1, Some("1")));

    let stream = |after: &str| {
        ask("GET", &events).key(&key).with("accept", "text/event-stream").with("last-event-id", after)
    };
    let got = app.send(stream("0")).await.is(200);
    assert_eq!(got.header("content-type"), Some("text/event-stream"));
    assert_eq!(got.header("cache-control"), Some("no-cache, no-transform"));
    assert_eq!(got.header("x-accel-buffering"), Some("no"));
    assert!(got.text.starts_with("retry: 2000\n\nid: 1\nevent: session.created\ndata: {"), "{}", got.text);
    let last = got.text.trim_end().rsplit("\n\n").next().unwrap();
    assert!(last.contains("event: session.destroyed\n"), "{last}");
    let seq = page_seq(last);
    app.send(stream(&seq)).await.is(204);
    app.send(stream("99")).await.refused(400, "invalid_cursor");
}

fn page_seq(frame: &str) -> String {
    frame.lines().next().unwrap().trim_start_matches("id: ").to_owned()
}

#[tokio::test]
async fn sec_15_a_ticket_opens_one_stream_of_its_session_once() {
    let app = App::new().await;
    let key = app.owner("alice").await;
    let (session, other) = (app.session(&key).await, app.session(&key).await);
    let ticket = async || {
        let made =
            app.send(ask("POST", &format!("{}/events/tickets", path_of(&session))).key(&key)).await.is(201);
        made.json()["ticket"].as_str().unwrap().to_owned()
    };
    let stream = |session: &Value, ticket: &str| {
        let path = format!("{}/events?until=idle&ticket={ticket}", path_of(session));
        ask("GET", &path).with("accept", "text/event-stream")
    };
    let one = ticket().await;
    app.send(stream(&session, &one)).await.is(200);
    app.send(stream(&session, &one)).await.refused(401, "unauthenticated");
    app.send(stream(&other, &ticket().await)).await.refused(401, "unauthenticated");
    app.send(stream(&session, &key)).await.refused(401, "unauthenticated");
    let page = ask("GET", &format!("{}/events?ticket={}", path_of(&session), ticket().await));
    app.send(page).await.refused(401, "unauthenticated");
}

#[tokio::test]
async fn a_decision_is_one_of_two_words() {
    let app = App::new().await;
    let key = app.owner("alice").await;
    let decision = format!("/v1/approvals/{}/decision", ApprovalId::mint());
    for body in [json!({"decision": "approve"}), json!({"decision": true})] {
        app.send(ask("POST", &decision).key(&key).json(&body)).await.refused(404, "not_found");
    }
    let unknown = ask("POST", &decision).key(&key).json(&json!({"decision": "approve", "approval_id": "x"}));
    app.send(unknown).await.refused(400, "invalid_body");
}

#[tokio::test]
async fn keys_are_made_listed_and_revoked_and_end_at_once() {
    let app = App::new().await;
    let admin = app.key("acme", Role::Admin, None, &[]).await;
    let body = json!({"role": "owner", "owner": "zoe", "scopes": ["sessions:read"]});
    let made = app.send(ask("POST", "/v1/keys").key(&admin).json(&body)).await.is(201).json();
    let token = made["token"].as_str().unwrap();
    let me = app.send(ask("GET", "/v1/me").key(token)).await.is(200).json();
    assert_eq!((me["owner_id"].as_str(), me["scopes"].clone()), (Some("zoe"), json!(["sessions:read"])));
    let list = app.send(ask("GET", "/v1/keys").key(&admin)).await.is(200);
    assert!(!list.text.contains("token") && !list.text.contains("hash"), "{}", list.text);
    let path = format!("/v1/keys/{}", made["id"].as_str().unwrap());
    for _ in 0..2 {
        app.send(ask("DELETE", &path).key(&admin)).await.is(204);
    }
    app.send(ask("GET", "/v1/me").key(token)).await.refused(401, "unauthenticated");
    let elsewhere = app.key("other", Role::Admin, None, &[]).await;
    app.send(ask("DELETE", &path).key(&elsewhere)).await.refused(404, "not_found");
    app.send(ask("POST", "/v1/keys").key(&admin).json(&json!({"role": "owner"})))
        .await
        .refused(422, "invalid_input");
    app.send(ask("POST", "/v1/keys").key(&admin).json(&json!({"role": "king"})))
        .await
        .refused(400, "invalid_body");
}

#[tokio::test]
async fn operators_see_health_readiness_and_counts() {
    let app = App::new().await;
    let key = app.owner("alice").await;
    app.send(ask("GET", "/healthz")).await.is(200);
    assert_eq!(app.send(ask("GET", "/readyz")).await.is(200).json(), json!({"status": "ready"}));
    app.session(&key).await;
    let metrics = app.send(ask("GET", "/metrics").key(&key)).await.is(200).text;
    for line in [
        r#"ostler_http_requests_total{method="POST",route="/v1/sessions",status="2xx"} 1"#,
        r#"ostler_turns_total{outcome="timed_out"} 0"#,
        "ostler_sessions_live 0",
        "ostler_writer_commits_total ",
        "ostler_writer_busy_seconds_total ",
    ] {
        assert!(metrics.contains(line), "{line} in\n{metrics}");
    }
    assert!(!metrics.contains("alice") && !metrics.contains("acme"), "{metrics}");
    app.service.closing().cancel();
    let down = app.send(ask("GET", "/readyz")).await;
    assert_eq!(down.header("retry-after"), Some("1"));
    down.refused(503, "shutting_down");
}

#[tokio::test]
async fn harnesses_say_what_they_can_do() {
    let app = App::new().await;
    let key = app.owner("alice").await;
    let list = app.send(ask("GET", "/v1/harnesses").key(&key)).await.is(200).json();
    let demo = app.send(ask("GET", "/v1/harnesses/demo").key(&key)).await.is(200).json();
    assert!(list["data"].as_array().unwrap().contains(&demo));
    assert_eq!((demo["name"].as_str(), demo["available"].as_bool()), (Some("demo"), Some(true)));
    let document: Value = serde_json::from_str(&openapi()).unwrap();
    let documented = document["components"]["schemas"]["Capabilities"]["properties"].as_object().unwrap();
    let shown = demo["capabilities"].as_object().unwrap();
    assert_eq!(documented.keys().collect::<BTreeSet<_>>(), shown.keys().collect::<BTreeSet<_>>());
    app.send(ask("GET", "/v1/harnesses/none").key(&key)).await.refused(404, "not_found");
}

#[test]
fn the_document_has_every_code_and_no_reference_to_nothing() {
    let text = openapi();
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    let codes = document["components"]["schemas"]["ErrorCode"].to_string();
    for code in ErrorCode::ALL {
        assert!(codes.contains(&format!("\"{}\"", code.as_str())), "{}", code.as_str());
    }
    let schemas = document["components"]["schemas"].as_object().unwrap();
    for part in text.split("\"#/components/schemas/").skip(1) {
        let name = part.split('"').next().unwrap();
        assert!(schemas.contains_key(name), "{name} is referred to and not there");
    }
    let mut ids = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in ["get", "post", "patch", "delete"] {
            let Some(operation) = item.get(method) else { continue };
            let id = operation["operationId"].as_str().unwrap_or_else(|| panic!("{method} {path} has no id"));
            assert!(ids.insert(id.to_owned()), "{id} twice");
        }
        let by_run = path.replace("/v1/sessions/{session_id}", "/v1/runs/{run_id}");
        assert!(document["paths"].get(&by_run).is_some(), "{by_run}");
    }
    for id in ["list_sessions", "prompt_session", "prompt_session_by_run", "list_events", "decide_approval"] {
        assert!(ids.contains(id), "{id}");
    }
}

#[tokio::test]
async fn a_stream_ends_with_the_service_and_says_when_to_come_back() {
    let app = App::new().await;
    let key = app.owner("alice").await;
    let session = app.session(&key).await;
    let stream = ask("GET", &format!("{}/events", path_of(&session))).key(&key);
    let (status, _, mut reader) = app.begin(stream.with("accept", "text/event-stream")).await;
    assert_eq!(status, StatusCode::OK);
    reader.until("event: session.created").await;
    app.service.closing().cancel();
    assert!(reader.end().await.ends_with("retry: 2000\n\n"));
}

#[tokio::test]
async fn sec_15_a_stream_ends_with_its_key() {
    let app = App::new().await;
    let (admin, key) = (app.key("acme", Role::Admin, None, &[]).await, app.owner("alice").await);
    let session = app.session(&key).await;
    let stream = ask("GET", &format!("{}/events", path_of(&session))).key(&key);
    let (_, _, mut reader) = app.begin(stream.with("accept", "text/event-stream")).await;
    reader.until("event: session.created").await;
    let me = app.send(ask("GET", "/v1/me").key(&key)).await.json();
    let path = format!("/v1/keys/{}", me["key_id"].as_str().unwrap());
    app.send(ask("DELETE", &path).key(&admin)).await.is(204);
    assert!(!reader.end().await.ends_with("retry: 2000\n\n"));
}

#[tokio::test]
async fn a_repeated_streaming_post_streams_the_same_turn_again() {
    let app = App::new().await;
    let key = app.owner("alice").await;
    let body = json!({"harness": "demo", "prompt": "hello"});
    let create = || ask("POST", "/v1/sessions").key(&key).with("idempotency-key", "k").json(&body);
    let mut begun = Vec::new();
    for replayed in [None, Some("true")] {
        let (status, headers, mut reader) = app.begin(create().with("accept", "text/event-stream")).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(headers.get("idempotency-replayed").map(|value| value.to_str().unwrap()), replayed);
        let frame = reader.until("event: turn.queued\n").await.lines().nth(2).map(str::to_owned);
        begun.push((headers["location"].clone(), frame));
    }
    assert_eq!(begun[0], begun[1]);
    let plain = app.send(create()).await.is(201);
    assert_eq!(plain.header("idempotency-replayed"), Some("true"));
    assert_eq!(app.send(create()).await.is(201).text, plain.text);
    let list = app.send(ask("GET", "/v1/sessions").key(&key)).await.json();
    assert_eq!(list["data"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_wait_that_is_over_is_answered_with_what_there_is_and_kept() {
    let app = App::new().await;
    let key = app.owner("alice").await;
    let body = json!({"harness": "demo", "prompt": "hello"});
    let create = || {
        let ask = ask("POST", "/v1/sessions").key(&key).with("idempotency-key", "k").with("prefer", "wait=0");
        ask.json(&body)
    };
    let first = app.send(create()).await;
    // The turn may have ended by now, or not.
    assert!(matches!(first.status.as_u16(), 201 | 202), "{}", first.text);
    assert_eq!(first.header("preference-applied"), Some("wait=0"));
    let again = app.send(create()).await;
    assert_eq!((again.status, again.text), (first.status, first.text));
}

#[tokio::test]
async fn sec_21_nothing_follows_a_chunked_request_on_its_connection_and_foreign_identities_are_nothing() {
    let app = App::new().await;
    let key = app.owner("alice").await;
    let got = app.send(ask("GET", "/v1/me").key(&key).with("transfer-encoding", "chunked")).await.is(200);
    assert_eq!(got.header("connection"), Some("close"));
    let plain = app.send(ask("GET", "/v1/me").key(&key)).await.is(200);
    assert_eq!(plain.header("connection"), None);
    let claims = ask("GET", "/v1/me")
        .key(&key)
        .with("x-org", "other")
        .with("x-user", "bob")
        .with("ostler-owner", "bob");
    assert_eq!(app.send(claims).await.is(200).text, plain.text);
}
