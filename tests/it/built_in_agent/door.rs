//! The built-in agent behind the door for chat clients.

use super::*;

fn ask(model: &str, script: &str, stream: bool) -> Value {
    json!({"model": model, "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": script}], "stream": stream})
}

/// What a streamed answer says: its words, its finish reason, and its error.
async fn streamed(api: &Api, body: Value) -> (String, Option<String>, Option<String>) {
    let answer = api.with_header("accept", "text/event-stream").post("/v1/chat/completions", body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let (mut words, mut finish, mut error) = (String::new(), None, None);
    for line in
        answer.text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|line| *line != "[DONE]")
    {
        let chunk: Value = serde_json::from_str(line).unwrap();
        let choice = &chunk["choices"][0];
        words.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        finish = finish.or(choice["finish_reason"].as_str().map(str::to_owned));
        error = error.or(chunk["error"]["code"].as_str().map(str::to_owned));
    }
    (words, finish, error)
}

const NO_PLAN: &str = "[harness.agent.settings]\nplanning = { mode = \"off\" }";

#[tokio::test]
async fn a_chat_client_has_a_turn_of_the_agent_by_the_model_s_name() {
    let model = ChatModel::start();
    let home = home(&model, NO_PLAN);
    let server = home.start().await;
    let api = server.api();
    let names = api.get("/v1/models").await.expect(200)["data"].clone();
    let names: Vec<_> = names.as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(names, ["agent", "agent/main", "demo"]);
    for path in ["agent/main", "agent%2Fmain"] {
        assert_eq!(api.get(&format!("/v1/models/{path}")).await.expect(200)["id"], "agent/main");
    }
    for name in ["agent", "agent/main"] {
        let script = "/call list_files {}\n/next\n/say Nothing is there.\n/usage 4 2";
        let whole = api.post("/v1/chat/completions", ask(name, script, false)).await.expect(200);
        let choice = &whole["choices"][0];
        assert_eq!(
            (&choice["message"]["content"], &choice["finish_reason"]),
            (&json!("Nothing is there."), &json!("stop"))
        );
        assert_eq!(whole["usage"]["completion_tokens"], 7);
        let (words, finish, _) = streamed(&api, ask(name, script, true)).await;
        assert_eq!((words.as_str(), finish.as_deref()), ("Nothing is there.", Some("stop")));
    }
    let system = model.requests()[0]["messages"][0].clone();
    assert_eq!(system, json!({"role": "system", "content": "Be brief."}));
    let unknown = api.post("/v1/chat/completions", ask("agent/huge", "x", false)).await.expect(400);
    assert!(unknown["error"]["message"].as_str().unwrap().contains("must be one of main"), "{unknown}");
}

#[tokio::test]
async fn words_that_come_again_are_heard_once_and_others_end_the_stream_with_an_error() {
    let model = ChatModel::start();
    let home = home(&model, NO_PLAN);
    let server = home.start().await;
    let api = server.api();
    let (words, finish, error) = streamed(&api, ask("agent", "/say one two three\n/cut 2", true)).await;
    assert_eq!((words.as_str(), finish.as_deref(), error), ("one two three", Some("stop"), None));
    let repaired = "/say [download](https://files/x)\n/next\n/say I have none.";
    let (words, finish, error) = streamed(&api, ask("agent", repaired, true)).await;
    assert_eq!((finish, error.as_deref()), (None, Some("answer_rewound")), "{words}");
    let whole = api.post("/v1/chat/completions", ask("agent", repaired, false)).await.expect(200);
    assert_eq!(whole["choices"][0]["message"]["content"], "I have none.");
}

#[tokio::test]
async fn a_turn_that_waits_is_no_stop_and_is_collected_when_it_is_decided() {
    let model = ChatModel::start();
    let home = Home::new().with_config(&config(&model, NO_PLAN).replace("\"allow\"", "\"ask\""));
    let server = home.start().await;
    let api = server.api();
    let script =
        "/say I want to look.\n/call shell {\"command\": \"echo hi > out\"}\n/next\n/say I have looked.";
    for stream in [false, true] {
        let body = ask("agent", script, stream);
        if stream {
            let (words, finish, error) = streamed(&api, body).await;
            assert_eq!(
                (words.as_str(), finish.as_deref(), error),
                ("I want to look.", Some("approval_required"), None)
            );
            continue;
        }
        let waits = api.post("/v1/chat/completions", body).await.expect(200);
        assert_eq!(waits["choices"][0]["finish_reason"], "approval_required");
        let approval = waits["ostler"]["approvals"][0].as_str().unwrap();
        api.decide(approval, "approve").await.expect(200);
        let metadata =
            json!({"session_id": waits["ostler"]["session_id"], "turn_id": waits["ostler"]["turn_id"]});
        let mut body = ask("agent", script, false);
        body["metadata"] = metadata;
        let done = api.post("/v1/chat/completions", body).await.expect(200);
        assert_eq!(done["choices"][0]["finish_reason"], "stop");
        assert_eq!(done["choices"][0]["message"]["content"], "I want to look.I have looked.");
    }
}

#[tokio::test]
async fn what_a_model_refuses_is_an_error_with_its_code() {
    let model = ChatModel::start();
    let home = home(&model, NO_PLAN);
    let server = home.start().await;
    let api = server.api();
    for (script, status, code) in [
        ("/status 503 retry-after 0", 503, "model_unavailable"),
        ("/error context_length_exceeded too long", 400, "context_overflow"),
        ("/status 401", 502, "model_rejected"),
    ] {
        let answer = api.post("/v1/chat/completions", ask("agent", script, false)).await;
        let error = answer.expect(status);
        assert_eq!(error["error"]["code"], code, "{error}");
        assert_eq!(answer.header("x-should-retry"), Some("false"));
    }
}
