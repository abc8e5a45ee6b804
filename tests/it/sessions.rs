//! Sessions: created, listed, changed, destroyed.

use serde_json::{Value, json};

use crate::support::server::Home;

fn id(value: &Value) -> String {
    value["id"].as_str().unwrap().to_owned()
}

fn ids(list: &Value) -> Vec<String> {
    list["data"].as_array().unwrap().iter().map(id).collect()
}

#[tokio::test]
async fn row_1_a_session_is_shown_with_all_its_fields() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let body = json!({"harness": "demo", "run_id": "job-1", "thread_id": "t-1", "title": "Mine", "metadata": {"k": "v"},
        "instructions": "be brief", "permission_mode": "allow_reads", "limits": {"turn_seconds": 60}});
    let answer = api.post("/v1/sessions", body).await;
    let session = answer.expect(201);
    assert_eq!(answer.header("location"), Some(format!("/v1/sessions/{}", id(&session)).as_str()));
    let expected = json!({"run_id": "job-1", "thread_id": "t-1", "org_id": "default", "owner_id": "admin", "harness": "demo",
        "title": "Mine", "status": "idle", "live": false, "resumable": true, "stop_cause": null, "pending_approval": null,
        "pending_approval_count": 0, "resolved_approval_ids": [], "turn": null, "queued_turns": 0,
        "permission_mode": "allow_reads", "metadata": {"k": "v"}, "last_event_seq": 1, "stopped_at": null,
        "usage": {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0, "complete": true}});
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(session[field], *value, "{field}");
    }
    for field in ["workspace", "created_at", "updated_at", "last_active_at"] {
        assert!(session[field].is_string(), "{field}");
    }
    assert!(!session.to_string().contains("resume_state"));
    assert_eq!(api.session(&id(&session)).await, session);
    assert_eq!(api.get("/v1/runs/job-1").await.expect(200), session);
}

#[tokio::test]
async fn a_title_is_the_prompts_beginning_where_none_is_given() {
    let home = Home::new();
    let server = home.start().await;
    let session = server.api().create(&format!("/say {}", "x".repeat(200))).await;
    assert_eq!(session["title"].as_str().unwrap().chars().count(), 80);
}

#[tokio::test]
async fn rows_7_and_8_a_list_is_filtered_before_it_is_cut_and_goes_on_page_by_page_newest_first() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let mut all = Vec::new();
    for n in 0..7 {
        let body = json!({"harness": "demo", "thread_id": format!("t-{}", n % 2)});
        all.push(id(&api.post("/v1/sessions", body).await.expect(201)));
    }
    let waiting = id(&api.create("/ask shell {}").await);
    all.push(waiting.clone());
    all.reverse();
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = api.get(&format!("/v1/sessions?limit=3{cursor}")).await.expect(200);
        assert!(page["data"].as_array().unwrap().len() <= 3);
        seen.extend(ids(&page));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen, all);
    assert_eq!(api.get("/v1/sessions?limit=0").await.expect(200)["data"].as_array().unwrap().len(), 1);
    let filtered = async |query: &str| ids(&api.get(&format!("/v1/sessions?{query}")).await.expect(200));
    assert_eq!(filtered("status=awaiting_approval").await, vec![waiting.clone()]);
    assert_eq!(filtered("needs_approval=true").await, vec![waiting.clone()]);
    assert_eq!(filtered("needs_approval=false&limit=200").await.len(), 7);
    assert_eq!(filtered("thread_id=t-1").await.len(), 3);
    assert_eq!(filtered("harness=codex").await, Vec::<String>::new());
    assert_eq!(filtered("owner=admin&limit=200").await.len(), 8);
    assert_eq!(filtered("owner=alice").await, Vec::<String>::new());
    let first = api.session(all.last().unwrap()).await;
    let later = filtered(&format!("created_after={}", first["created_at"].as_str().unwrap())).await;
    assert!(later.len() < 8 && later.contains(&waiting));
    assert_eq!(filtered(&format!("run_id={}", first["run_id"].as_str().unwrap())).await, [id(&first)]);
}

#[tokio::test]
async fn row_10_the_latest_of_a_thread_is_the_newest_that_is_not_destroyed() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let make = async || {
        id(&api.post("/v1/sessions", json!({"harness": "demo", "thread_id": "t 1/ü"})).await.expect(201))
    };
    let (older, newer) = (make().await, make().await);
    let path = "/v1/threads/t%201%2F%C3%BC/sessions/latest";
    assert_eq!(id(&api.get(path).await.expect(200)), newer);
    api.delete(&format!("/v1/sessions/{newer}")).await.expect(204);
    assert_eq!(id(&api.get(&format!("{path}?harness=demo")).await.expect(200)), older);
    api.get(&format!("{path}?harness=codex")).await.problem(404, "not_found");
    api.get("/v1/threads/none/sessions/latest").await.problem(404, "not_found");
}

#[tokio::test]
async fn title_and_metadata_can_be_changed_and_nothing_else() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let session = id(&api.create("/say x").await);
    let path = format!("/v1/sessions/{session}");
    let row = api.patch(&path, json!({"title": "New", "metadata": {"a": "b"}})).await.expect(200);
    assert_eq!((row["title"].as_str(), &row["metadata"]), (Some("New"), &json!({"a": "b"})));
    api.patch(&path, json!({"status": "idle"})).await.problem(400, "invalid_body");
    api.patch(&path, json!({"title": " "})).await.problem(422, "invalid_input");
    let many: serde_json::Map<String, Value> = (0..17).map(|n| (n.to_string(), json!("x"))).collect();
    api.patch(&path, json!({"metadata": many})).await.problem(422, "invalid_input");
    assert_eq!(api.session(&session).await["title"], "New");
}

#[tokio::test]
async fn rows_63_and_64_destroying_ends_the_harness_erases_its_state_and_refuses_what_comes_after() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let session = id(&api.create_detached("/hang").await);
    api.follow(&session, "").await.until("turn.started").await;
    let path = format!("/v1/sessions/{session}");
    api.delete(&path).await.expect(204);
    let row = api.session(&session).await;
    assert_eq!(
        (row["status"].as_str(), row["live"].as_bool(), row["resumable"].as_bool()),
        (Some("destroyed"), Some(false), Some(false))
    );
    assert_eq!(row["turn"]["status"], "cancelled");
    assert!(!home.path().join("agents").join(&session).exists());
    api.post(&format!("{path}/prompts"), json!({"prompt": "x"})).await.problem(409, "session_destroyed");
    for verb in ["cancel", "stop"] {
        api.post(&format!("{path}/{verb}"), json!({})).await.problem(409, "session_destroyed");
    }
    api.get(&format!("{path}/transcript")).await.expect(200);
    api.delete(&path).await.expect(204);
    api.delete("/v1/sessions/ses_0197a0c0c0c07000a000a000a000a000").await.problem(404, "not_found");
}

#[tokio::test]
async fn purging_erases_everything() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let session = api.create("/ask shell {}").await;
    let (session_id, approval) = (id(&session), id(&session["pending_approval"]));
    api.delete(&format!("/v1/sessions/{session_id}?purge=true")).await.expect(204);
    for path in ["", "/events", "/turns", "/transcript"] {
        api.get(&format!("/v1/sessions/{session_id}{path}")).await.problem(404, "not_found");
    }
    api.get(&format!("/v1/approvals/{approval}")).await.problem(404, "not_found");
    assert!(!home.path().join("workspaces").join(&session_id).exists());
    assert_eq!(api.get("/v1/sessions").await.expect(200)["data"], json!([]));
}

#[tokio::test]
async fn row_16_the_harnesses_say_what_they_can_do() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let list = api.get("/v1/harnesses").await.expect(200);
    let demo = list["data"].as_array().unwrap().iter().find(|harness| harness["name"] == "demo").unwrap();
    assert_eq!((demo["name"].as_str(), demo["available"].as_bool()), (Some("demo"), Some(true)));
    let capabilities = &demo["capabilities"];
    for field in [
        "sandbox",
        "resumable",
        "approvals",
        "host_tools",
        "file_events",
        "edited_input",
        "approval_recovery",
    ] {
        assert!(!capabilities[field].is_null(), "{field}");
    }
    assert_eq!(capabilities["approval_recovery"], "exact");
    assert_eq!(api.get("/v1/harnesses/demo").await.expect(200), *demo);
    api.get("/v1/harnesses/none").await.problem(404, "not_found");
}

#[tokio::test]
async fn a_caller_chooses_a_workspace_only_inside_a_root_that_the_operator_allows() {
    let root = tempfile::tempdir().unwrap();
    let project = root.path().canonicalize().unwrap().join("project");
    std::fs::create_dir(&project).unwrap();
    let home = Home::new().with(&["--workspace-root", root.path().to_str().unwrap()]);
    let server = home.start().await;
    let api = server.api();
    let create = |workspace: String| {
        let body = json!({"harness": "demo", "prompt": "/write note.txt hello", "workspace": workspace});
        api.send(api.request(reqwest::Method::POST, "/v1/sessions").header("prefer", "wait=30").json(&body))
    };
    let session = create(project.to_str().unwrap().to_owned()).await.expect(201);
    assert_eq!(session["turn"]["status"], "completed");
    assert_eq!(std::fs::read_to_string(project.join("note.txt")).unwrap(), "hello");
    for outside in
        ["/etc".to_owned(), format!("{}/../..", project.display()), home.path().display().to_string()]
    {
        create(outside).await.problem(422, "invalid_input");
    }
    // Purging a session leaves a workspace that was not made for it.
    api.delete(&format!("/v1/sessions/{}?purge=true", id(&session))).await.expect(204);
    assert!(project.join("note.txt").exists());
}
