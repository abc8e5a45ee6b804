//! The second door: `POST /v1/chat/completions`, as clients of OpenAI's API use it.

use serde_json::{Value, json};

use crate::support::api::{Answer, Api};
use crate::support::fake_agent;
use crate::support::processes::eventually;
use crate::support::server::{Home, Server};
use crate::support::within;

const COMPLETIONS: &str = "/v1/chat/completions";

/// A completion that is asked of the demo harness.
fn ask(prompt: &str) -> Value {
    json!({"model": "demo", "messages": [{"role": "user", "content": prompt}]})
}

fn follow_up(session: &Value, prompt: &str) -> Value {
    let mut body = ask(prompt);
    body["metadata"] = json!({"session_id": session});
    body
}

/// Asks for the answer that the turn of an answer has come to.
fn collect(answer: &Value) -> Value {
    let mut body = ask("x");
    body["metadata"] =
        json!({"session_id": answer["ostler"]["session_id"], "turn_id": answer["ostler"]["turn_id"]});
    body
}

fn streamed(mut body: Value) -> Value {
    body["stream"] = json!(true);
    body
}

async fn complete(api: &Api, body: Value) -> Value {
    api.post(COMPLETIONS, body).await.expect(200)
}

fn reason(answer: &Value) -> &str {
    answer["choices"][0]["finish_reason"].as_str().unwrap()
}

fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap()
}

/// The error of a refusal, once status and code are the expected ones.
#[track_caller]
fn refused(answer: &Answer, status: u16, code: &str) -> Value {
    let error = answer.expect(status)["error"].take();
    assert_eq!(error["code"], code, "{error}");
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert!(answer.header("ostler-request-id").is_some());
    error
}

/// The chunks of a stream, as strict as the clients that read them.
struct Chunks {
    response: reqwest::Response,
    buffer: String,
    done: bool,
}

impl Chunks {
    async fn begin(api: &Api, body: Value) -> Self {
        let request = api.request(reqwest::Method::POST, COMPLETIONS).json(&streamed(body));
        let response = within("a stream", request.send()).await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { response, buffer: String::new(), done: false }
    }

    async fn next(&mut self) -> Option<Value> {
        loop {
            while let Some((frame, rest)) = self.buffer.split_once("\n\n") {
                let (frame, rest) = (frame.to_owned(), rest.to_owned());
                self.buffer = rest;
                if frame.starts_with(':') {
                    continue;
                }
                assert!(!self.done, "{frame:?} after [DONE]");
                match frame.strip_prefix("data: ").unwrap() {
                    "[DONE]" => self.done = true,
                    data => return Some(serde_json::from_str(data).unwrap()),
                }
            }
            let more = within("a chunk", self.response.chunk()).await.unwrap()?;
            self.buffer.push_str(std::str::from_utf8(&more).unwrap());
        }
    }

    /// The next words.
    async fn words(&mut self) -> String {
        loop {
            let chunk = self.next().await.expect("the stream goes on");
            let words = chunk["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
            if !words.is_empty() {
                return words.to_owned();
            }
        }
    }

    /// All that is left, and whether `[DONE]` ended it.
    async fn all(mut self) -> (Vec<Value>, bool) {
        let mut chunks = Vec::new();
        let read = async {
            while let Some(chunk) = self.next().await {
                chunks.push(chunk);
            }
        };
        within("the end of the stream", read).await;
        (chunks, self.done)
    }
}

fn said(chunks: &[Value], field: &str) -> String {
    chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"][field].as_str()).collect()
}

fn reasons(chunks: &[Value]) -> Vec<&str> {
    chunks.iter().filter_map(|chunk| chunk["choices"][0]["finish_reason"].as_str()).collect()
}

async fn service() -> (Home, Server, Api) {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    (home, server, api)
}

#[tokio::test]
async fn a_completion_is_the_first_turn_of_a_fresh_session() {
    let (_home, _server, api) = service().await;
    let mut body = ask("/say hello\n/usage 10 5");
    body["metadata"] = json!({"ticket": "7"});
    body["temperature"] = json!(0.1);
    let answer = complete(&api, body).await;
    assert_eq!((content(&answer), reason(&answer)), ("hello", "stop"));
    assert_eq!(
        (answer["object"].as_str(), answer["model"].as_str()),
        (Some("chat.completion"), Some("demo"))
    );
    assert_eq!(answer["usage"], json!({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}));
    let session = api.session(answer["ostler"]["session_id"].as_str().unwrap()).await;
    let turn = session["turn"]["id"].as_str().unwrap();
    assert_eq!(answer["id"], turn.replace("trn_", "chatcmpl-"));
    assert_eq!(
        answer["ostler"],
        json!({"session_id": session["id"], "run_id": session["run_id"], "turn_id": turn,
               "turn_status": "completed", "approvals": []})
    );
    assert_eq!((&session["metadata"], &session["harness"]), (&json!({"ticket": "7"}), &json!("demo")));
    assert_eq!(complete(&api, collect(&answer)).await, answer, "the answer of a turn is the same each time");
}

#[tokio::test]
async fn row_96_what_is_no_conversation_is_refused_and_makes_no_session() {
    let (_home, _server, api) = service().await;
    let with = |messages: Value| json!({"model": "demo", "messages": messages});
    for (body, code, param) in [
        (json!({}), "invalid_body", "model"),
        (with(json!(5)), "invalid_body", "messages"),
        (with(json!([5])), "invalid_body", "messages[0]"),
        (with(json!([{"role": "user", "content": {}}])), "invalid_body", "messages[0].content"),
        (with(json!([])), "invalid_input", "messages"),
        (with(json!([{"role": "system", "content": "x"}])), "invalid_input", "messages"),
        (
            with(json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}])),
            "invalid_input",
            "messages",
        ),
    ] {
        let error = refused(&api.post(COMPLETIONS, body.clone()).await, 400, code);
        assert_eq!(
            (error["param"].as_str(), error["type"].as_str()),
            (Some(param), Some("invalid_request_error")),
            "{body}"
        );
    }
    refused(&api.post(COMPLETIONS, ask(" \n")).await, 400, "invalid_input");
    assert_eq!(api.get("/v1/sessions").await.expect(200)["data"], json!([]));
}

#[tokio::test]
async fn row_96_the_history_stands_in_front_of_the_prompt_and_the_last_message_stands_once() {
    let (_home, _server, api) = service().await;
    let answer = complete(
        &api,
        json!({"model": "demo", "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Hi."},
            {"role": "user", "content": [{"type": "text", "text": "/say on"}]},
            {"role": "user", "content": "/say on"},
        ]}),
    )
    .await;
    assert_eq!(content(&answer), "on");
    let session = api.session(answer["ostler"]["session_id"].as_str().unwrap()).await;
    assert_eq!(
        (session["turn"]["prompt"].as_str(), session["title"].as_str()),
        (
            Some("The conversation so far:\n\nUser: Hello\n\nAssistant: Hi.\n\nThe message:\n\n/say on"),
            Some("/say on")
        )
    );
}

#[tokio::test]
async fn row_102_a_stream_has_the_words_one_finish_the_usage_when_asked_and_an_end() {
    let (_home, _server, api) = service().await;
    let mut body = ask("/think hm well\n/say one two three\n/usage 10 5");
    body["stream_options"] = json!({"include_usage": true});
    let (chunks, done) = Chunks::begin(&api, body).await.all().await;
    assert!(done);
    assert_eq!(
        chunks[0]["choices"][0]["delta"],
        json!({"role": "assistant", "content": "", "refusal": null})
    );
    assert_eq!(
        (said(&chunks, "content").as_str(), said(&chunks, "reasoning_content").as_str()),
        ("one two three", "hm well")
    );
    assert_eq!(reasons(&chunks), ["stop"]);
    let [.., finish, usage] = chunks.as_slice() else { panic!("{chunks:?}") };
    assert_eq!(
        (&usage["choices"], &usage["usage"]),
        (&json!([]), &json!({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}))
    );
    for chunk in &chunks {
        assert_eq!((&chunk["id"], &chunk["object"]), (&finish["id"], &json!("chat.completion.chunk")));
    }
    // Without the wish there is no chunk without a choice, and the whole answer is the same.
    let again = Chunks::begin(&api, collect(finish)).await.all().await.0;
    assert!(again.iter().all(|chunk| chunk["choices"].as_array().unwrap().len() == 1));
    assert_eq!(
        (said(&again, "content"), &again.last().unwrap()["ostler"]),
        ("one two three".into(), &finish["ostler"])
    );
    let whole = complete(&api, collect(finish)).await;
    assert_eq!(
        (&whole["id"], content(&whole), &whole["ostler"]),
        (&finish["id"], "one two three", &finish["ostler"])
    );
}

#[tokio::test]
async fn a_turn_that_asks_is_no_stop_and_the_rest_is_collected_once_it_is_decided() {
    let (home, _server, api) = service().await;
    let prompt = "/say before\n/ask-all shell {\"a\":1} | shell {\"b\":2}\n/say after";
    let paused = complete(&api, ask(prompt)).await;
    assert_eq!((reason(&paused), content(&paused)), ("approval_required", "before"));
    assert_eq!(
        (&paused["usage"], &paused["ostler"]["turn_status"]),
        (&Value::Null, &json!("awaiting_approval"))
    );
    let session = paused["ostler"]["session_id"].as_str().unwrap();
    // The second question follows the first by a moment.
    let mut events = api.follow(session, "").await;
    events.until("approval.requested").await;
    events.until("approval.requested").await;
    let paused = complete(&api, collect(&paused)).await;
    let approvals = paused["ostler"]["approvals"].as_array().unwrap();
    assert_eq!((reason(&paused), approvals.len()), ("approval_required", 2), "{paused}");
    // Nothing is approved by asking again, and nothing new is asked.
    assert_eq!(complete(&api, collect(&paused)).await, paused);
    assert_eq!(home.effects(session, "tool"), 0);
    // A stream of it stops there as well, and says what was said.
    let (chunks, done) = Chunks::begin(&api, collect(&paused)).await.all().await;
    assert_eq!(
        (reasons(&chunks), said(&chunks, "content").as_str(), done),
        (vec!["approval_required"], "before", true)
    );
    assert_eq!(chunks.last().unwrap()["ostler"], paused["ostler"]);
    api.decide(approvals[0].as_str().unwrap(), "approve").await.expect(200);
    let half = complete(&api, collect(&paused)).await;
    assert_eq!((reason(&half), &half["ostler"]["approvals"]), ("approval_required", &json!([approvals[1]])));
    api.decide(approvals[1].as_str().unwrap(), "deny").await.expect(200);
    let answer = complete(&api, collect(&paused)).await;
    assert_eq!((reason(&answer), content(&answer), &answer["id"]), ("stop", "beforeafter", &paused["id"]));
    assert_eq!(home.effects(session, "tool"), 1);
    assert_eq!(home.effects(session, "prompt"), 1);
}

#[tokio::test]
async fn a_pause_outlives_the_process_and_the_rest_is_collected_from_the_next() {
    let (home, server, api) = service().await;
    let paused = complete(&api, ask("/say before\n/ask shell {}\n/say after")).await;
    server.kill().await;
    let server = home.start().await;
    let api = server.api();
    assert_eq!(complete(&api, collect(&paused)).await, paused);
    api.decide(paused["ostler"]["approvals"][0].as_str().unwrap(), "approve").await.expect(200);
    let answer = complete(&api, collect(&paused)).await;
    assert_eq!((reason(&answer), content(&answer), &answer["id"]), ("stop", "beforeafter", &paused["id"]));
    assert_eq!(home.effects(paused["ostler"]["session_id"].as_str().unwrap(), "tool"), 1);
}

#[tokio::test]
async fn an_agent_in_a_process_of_its_own_is_asked_like_any_harness_and_its_death_is_an_error() {
    let (home, _server, api) = fake_agent::service(&["script"]).await;
    let fake = |prompt: &str| json!({"model": "fake", "messages": [{"role": "user", "content": prompt}]});
    let models = api.get("/v1/models").await.expect(200);
    assert!(models["data"].as_array().unwrap().iter().any(|model| model["id"] == "fake"), "{models}");
    let (chunks, _) = Chunks::begin(&api, fake("say first \nrun make\nsay then")).await.all().await;
    assert_eq!((reasons(&chunks), said(&chunks, "content").as_str()), (vec!["approval_required"], "first "));
    let finish = chunks.last().unwrap();
    api.decide(finish["ostler"]["approvals"][0].as_str().unwrap(), "approve").await.expect(200);
    let mut rest = collect(finish);
    rest["model"] = json!("fake");
    let answer = complete(&api, rest).await;
    assert_eq!((reason(&answer), content(&answer)), ("stop", "first then"));
    let session = finish["ostler"]["session_id"].as_str().unwrap();
    assert_eq!(fake_agent::effects(&home, session).len(), 1);
    refused(&api.post(COMPLETIONS, fake("say x\ndie")).await, 502, "agent_exited");
}

#[tokio::test]
async fn row_102_a_stream_that_pauses_for_a_person_is_never_a_stop() {
    let (_home, _server, api) = service().await;
    let (chunks, done) = Chunks::begin(&api, ask("/say before\n/ask shell {}\n/say after")).await.all().await;
    assert!(done);
    assert_eq!((reasons(&chunks), said(&chunks, "content").as_str()), (vec!["approval_required"], "before"));
    let finish = chunks.last().unwrap();
    let approval = finish["ostler"]["approvals"][0].as_str().unwrap();
    api.decide(approval, "approve").await.expect(200);
    let (chunks, _) = Chunks::begin(&api, collect(finish)).await.all().await;
    assert_eq!((reasons(&chunks), said(&chunks, "content").as_str()), (vec!["stop"], "beforeafter"));
}

#[tokio::test]
async fn a_named_session_is_followed_up_and_refuses_while_it_is_busy() {
    let (_home, _server, api) = service().await;
    let first = complete(&api, ask("/remember blue")).await;
    let session = &first["ostler"]["session_id"];
    let mut body = follow_up(session, "/recall");
    body["messages"] = json!([
        {"role": "system", "content": "not told again"},
        {"role": "user", "content": "/remember green"},
        {"role": "assistant", "content": "not told again"},
        {"role": "user", "content": "/recall"},
    ]);
    body["metadata"]["step"] = json!("2");
    let second = complete(&api, body).await;
    assert_eq!((content(&second), &second["ostler"]["session_id"]), ("blue", session));
    assert_ne!(second["id"], first["id"]);
    let turn = api.session(session.as_str().unwrap()).await["turn"].take();
    assert_eq!((turn["prompt"].as_str(), &turn["metadata"]), (Some("/recall"), &json!({"step": "2"})));
    // A session keeps its harness.
    let mut other = follow_up(session, "/recall");
    other["model"] = json!("codex");
    assert_eq!(refused(&api.post(COMPLETIONS, other).await, 400, "invalid_input")["param"], "model");
    let mut other = follow_up(session, "/recall");
    other["model"] = json!("demo/large");
    refused(&api.post(COMPLETIONS, other).await, 400, "invalid_input");

    let paused = complete(&api, follow_up(session, "/ask shell {}")).await;
    assert_eq!(reason(&paused), "approval_required");
    let answer = api.post(COMPLETIONS, follow_up(session, "/say x")).await;
    let error = refused(&answer, 409, "approval_pending");
    assert_eq!(
        (&error["ostler"]["approval_ids"], error["type"].as_str(), answer.header("x-should-retry")),
        (&paused["ostler"]["approvals"], Some("conflict_error"), Some("false"))
    );
}

#[tokio::test]
async fn sec_04_and_05_a_foreign_session_and_turn_answer_like_those_that_are_not_there() {
    let (home, server, api) = service().await;
    let mine = complete(&api.on_behalf_of("alice"), ask("/say secret")).await;
    let bob =
        server.api_with(&home.make_key(&["--org", "default", "--role", "owner", "--owner", "bob"]).await);
    let absent = "00000000000000000000000000000000";
    let (session, turn) = (format!("ses_{absent}"), format!("trn_{absent}"));
    let mut answers = Vec::new();
    for metadata in [
        json!({"session_id": session}),
        json!({"session_id": "nonsense"}),
        json!({"session_id": mine["ostler"]["session_id"]}),
        json!({"session_id": session, "turn_id": turn}),
        json!({"session_id": mine["ostler"]["session_id"], "turn_id": mine["ostler"]["turn_id"]}),
    ] {
        for stream in [false, true] {
            let mut body = ask("/say x");
            body["metadata"] = metadata.clone();
            body["stream"] = json!(stream);
            let answer = bob.post(COMPLETIONS, body).await;
            refused(&answer, 404, "not_found");
            let mut headers = answer.headers;
            headers.remove("ostler-request-id");
            headers.remove("date");
            answers.push((headers, answer.text));
        }
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    let mut body = collect(&mine);
    body["metadata"]["turn_id"] = json!(turn);
    refused(&api.post(COMPLETIONS, body).await, 404, "not_found");
}

#[tokio::test]
async fn row_102_a_turn_that_fails_is_an_error_with_its_code_and_in_a_stream_in_its_band() {
    let (_home, _server, api) = service().await;
    let failing = ask("/say before\n/fail tool_broke The tool broke");
    let answer = api.post(COMPLETIONS, failing.clone()).await;
    let error = refused(&answer, 502, "tool_broke");
    assert_eq!(
        (error["message"].as_str(), error["type"].as_str()),
        (Some("The tool broke"), Some("server_error"))
    );
    assert_eq!(answer.header("x-should-retry"), Some("false"), "a repeat would run another turn");
    let session = error["ostler"]["session_id"].as_str().unwrap();
    assert_eq!(api.session(session).await["turn"]["id"], error["ostler"]["turn_id"]);

    let (chunks, done) = Chunks::begin(&api, failing).await.all().await;
    assert_eq!((said(&chunks, "content").as_str(), reasons(&chunks).len(), done), ("before", 0, false));
    assert_eq!(chunks.last().unwrap()["error"]["code"], "tool_broke");
    for (code, status) in [("model_unavailable", 503), ("context_overflow", 400)] {
        let answer = api.post(COMPLETIONS, ask(&format!("/fail {code} words"))).await;
        refused(&answer, status, code);
        assert_eq!(answer.header("x-should-retry"), Some("false"));
    }
}

#[tokio::test]
async fn a_turn_that_is_cancelled_or_works_too_long_is_an_error_and_no_answer() {
    let (_home, _server, api) = service().await;
    let body = json!({"harness": "demo", "limits": {"turn_seconds": 1}});
    let session = api.post("/v1/sessions", body).await.expect(201)["id"].take();
    refused(&api.post(COMPLETIONS, follow_up(&session, "/hang")).await, 504, "turn_timed_out");

    let session = complete(&api, ask("/say x")).await["ostler"]["session_id"].take();
    let path = format!("/v1/sessions/{}/cancel", session.as_str().unwrap());
    let mut stream = Chunks::begin(&api, follow_up(&session, "/say before\n/hang")).await;
    assert_eq!(stream.words().await, "before");
    api.post(&path, json!({})).await.expect(200);
    let (chunks, done) = stream.all().await;
    assert_eq!((chunks.len(), &chunks[0]["error"]["code"], done), (1, &json!("turn_cancelled"), false));
}

#[tokio::test]
async fn an_answer_that_is_not_waited_for_is_in_progress_and_never_a_stop() {
    let (_home, _server, api) = service().await;
    let within = |wait: &'static str, body| {
        api.request(reqwest::Method::POST, COMPLETIONS).header("prefer", wait).json(&body)
    };
    let answer = api.send(within("wait=3", ask("/say so far\n/hang"))).await;
    assert_eq!(answer.header("preference-applied"), Some("wait=3"));
    let answer = answer.expect(200);
    assert_eq!((reason(&answer), &answer["usage"]), ("in_progress", &Value::Null));
    assert_eq!(answer["ostler"]["turn_status"], "running", "it has begun while it was waited for");
    let session = answer["ostler"]["session_id"].as_str().unwrap();
    api.follow(session, "").await.until("text.delta").await;
    let mut again = ask("-");
    again["metadata"] = json!({"session_id": session, "turn_id": answer["ostler"]["turn_id"]});
    let answer = api.send(within("wait=0", again)).await.expect(200);
    assert_eq!(reason(&answer), "in_progress");
    assert!("so far".starts_with(content(&answer)) && !content(&answer).is_empty(), "{answer}");
    assert_eq!(answer["ostler"]["turn_status"], "running");
}

#[tokio::test]
async fn row_72_a_client_that_goes_away_stops_nothing() {
    let (home, _server, api) = service().await;
    let session = complete(&api, ask("/say x")).await["ostler"]["session_id"].take();
    let mut stream = Chunks::begin(&api, follow_up(&session, "/say one\n/ask shell {}\n/say two")).await;
    assert_eq!(stream.words().await, "one");
    drop(stream);
    let session = session.as_str().unwrap();
    let row = api.until_status(session, "awaiting_approval").await;
    api.decide(row["pending_approval"]["id"].as_str().unwrap(), "approve").await.expect(200);
    let row = api.until_status(session, "idle").await;
    assert_eq!(
        (row["turn"]["status"].as_str(), row["turn"]["text"].as_str()),
        (Some("completed"), Some("onetwo"))
    );
    assert_eq!(home.effects(session, "tool"), 1);
}

#[tokio::test]
async fn refusals_have_the_shape_that_these_clients_read_whichever_layer_says_them() {
    let (_home, _server, api) = service().await;
    let post = || api.request(reqwest::Method::POST, COMPLETIONS);
    let answer = api.anonymous().post(COMPLETIONS, ask("x")).await;
    assert_eq!(refused(&answer, 401, "unauthenticated")["type"], "authentication_error");
    assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
    let reads = json!({"role": "owner", "owner": "carol", "scopes": ["sessions:read"]});
    let key = api.post("/v1/keys", reads).await.expect(201);
    let token = key["token"].as_str().unwrap();
    let request =
        api.anonymous().request(reqwest::Method::POST, COMPLETIONS).bearer_auth(token).json(&ask("x"));
    assert_eq!(refused(&api.send(request).await, 403, "insufficient_scope")["type"], "permission_error");
    let other_host = api.with_header("host", "attacker.test").post(COMPLETIONS, ask("x")).await;
    refused(&other_host, 403, "host_not_allowed");
    let text = api.send(post().header("content-type", "text/plain").body("x")).await;
    refused(&text, 415, "unsupported_media_type");
    refused(&api.post(COMPLETIONS, ask(&"x".repeat(9 << 20))).await, 413, "body_too_large");
    refused(&api.get(COMPLETIONS).await, 405, "method_not_allowed");
    refused(&api.send(post().header("accept", "text/html").json(&ask("x"))).await, 406, "not_acceptable");
    let with = |field: &str, value: Value| {
        let mut body = ask("/say x");
        body[field] = value;
        body
    };
    for (body, code, param) in [
        (with("model", json!("none")), "unknown_harness", Value::Null),
        (with("model", json!("demo/large")), "invalid_input", Value::Null),
        (with("tools", json!([{"type": "function"}])), "unsupported", json!("tools")),
        (with("n", json!(2)), "unsupported", json!("n")),
        (with("metadata", json!({"turn_id": "x"})), "invalid_input", json!("metadata.turn_id")),
    ] {
        let error = refused(&api.post(COMPLETIONS, body).await, 400, code);
        assert_eq!(
            (&error["param"], error["type"].as_str()),
            (&param, Some("invalid_request_error")),
            "{code}"
        );
    }
    assert_eq!(api.get("/v1/sessions").await.expect(200)["data"], json!([]), "nothing came of any of them");
    // The form of the answer is the body's to say, not the header's.
    let answer =
        api.send(post().header("accept", "text/event-stream").json(&ask("/say x"))).await.expect(200);
    assert_eq!(content(&answer), "x");
}

#[tokio::test]
async fn a_key_that_is_used_too_often_is_told_to_wait_in_that_shape() {
    let home = Home::new().with(&["--requests-per-second", "5"]);
    let server = home.start().await;
    let api = server.api();
    let limited = loop {
        let answer = api.get("/v1/models").await;
        if answer.status != 200 {
            break answer;
        }
    };
    assert_eq!(refused(&limited, 429, "rate_limited")["type"], "rate_limit_error");
    assert!(limited.header("retry-after").is_some() && limited.header("x-should-retry").is_none());
}

#[tokio::test]
async fn a_repeat_with_its_idempotency_key_is_the_same_completion() {
    let (_home, _server, api) = service().await;
    for body in [ask("/say once"), ask("/fail broke words"), streamed(ask("/say once"))] {
        let keyed = api.with_header("idempotency-key", &format!("k-{}", body.to_string().len()));
        let first = keyed.post(COMPLETIONS, body.clone()).await;
        let again = keyed.post(COMPLETIONS, body.clone()).await;
        // The head of a stream tells where the turn stands by then.
        let text = |answer: &Answer| answer.text.replace("\"queued\"", "\"completed\"");
        assert_eq!((again.status, text(&again)), (first.status, text(&first)));
        assert_eq!(
            (first.header("idempotency-replayed"), again.header("idempotency-replayed")),
            (None, Some("true"))
        );
        for header in ["content-type", "x-should-retry", "retry-after"] {
            assert_eq!(again.header(header), first.header(header), "{header}");
        }
        let other = keyed.post(COMPLETIONS, ask("/say other")).await;
        refused(&other, 400, "idempotency_key_reused");
    }
    assert_eq!(api.get("/v1/sessions").await.expect(200)["data"].as_array().unwrap().len(), 3);
    // Where nothing is asked there is no effect to be had once, and the answer is the one of now.
    let keyed = api.with_header("idempotency-key", "collect");
    let answers = [complete(&api, ask("/say a")).await, complete(&api, ask("/say b")).await];
    for answer in &answers {
        assert_eq!(complete(&keyed, collect(answer)).await, *answer);
    }
}

#[tokio::test]
async fn a_stream_says_that_the_service_goes_down_and_the_rest_is_collected_from_the_next() {
    let (home, server, api) = service().await;
    let mut stream = Chunks::begin(&api, ask("/say before\n/hang")).await;
    let head = stream.next().await.unwrap();
    assert_eq!(stream.words().await, "before");
    let (ended, (chunks, done)) = tokio::join!(server.terminate(), stream.all());
    assert_eq!((&chunks.last().unwrap()["error"]["code"], done), (&json!("shutting_down"), false));
    assert!(ended.success());
    let server = home.start().await;
    // What it had said is there, and that its process was lost is said.
    let answer = server.api().post(COMPLETIONS, collect(&head)).await;
    refused(&answer, 409, "turn_interrupted");
    assert_eq!(answer.header("x-should-retry"), Some("false"));
}

#[tokio::test]
async fn the_answer_of_a_turn_whose_events_are_gone_is_told_from_its_row() {
    let (home, _server, api) = service().await;
    let answer = complete(&api, ask("/say one two")).await;
    let session = answer["ostler"]["session_id"].as_str().unwrap().to_owned();
    complete(&api, follow_up(&json!(session), "/say more")).await;
    home.tamper("DELETE FROM events WHERE seq <= 5").await;
    let kinds = api.get(&format!("/v1/sessions/{session}/events?after=5")).await.expect(200);
    assert!(!kinds["data"].as_array().unwrap().is_empty());
    let (chunks, done) = Chunks::begin(&api, collect(&answer)).await.all().await;
    assert_eq!((said(&chunks, "content").as_str(), reasons(&chunks), done), ("one two", vec!["stop"], true));
}

#[tokio::test]
async fn sec_15_a_revoked_key_loses_its_stream_and_is_told_so() {
    let (home, server, api) = service().await;
    let bob =
        server.api_with(&home.make_key(&["--org", "default", "--role", "owner", "--owner", "bob"]).await);
    let me = bob.get("/v1/me").await.expect(200);
    let mut stream = Chunks::begin(&bob, ask("/say before\n/hang")).await;
    assert_eq!(stream.words().await, "before");
    api.delete(&format!("/v1/keys/{}", me["key_id"].as_str().unwrap())).await.expect(204);
    let (chunks, done) = stream.all().await;
    assert_eq!((&chunks.last().unwrap()["error"]["code"], done), (&json!("unauthenticated"), false));
}

#[tokio::test]
async fn the_models_are_the_harnesses_that_can_be_started() {
    let (home, server, api) = service().await;
    let models = api.get("/v1/models").await.expect(200);
    assert_eq!(
        models,
        json!({"object": "list", "data": [{"id": "demo", "object": "model", "created": 0, "owned_by": "ostler"}]})
    );
    let model = api.get("/v1/models/demo").await.expect(200);
    assert_eq!(model, models["data"][0]);
    for absent in ["none", "demo/none", "demo%2Fnone", "%FF"] {
        refused(&api.get(&format!("/v1/models/{absent}")).await, 404, "not_found");
    }
    for path in ["/v1/models", "/v1/models/demo", "/v1/models/none/at/all"] {
        refused(&api.anonymous().get(path).await, 401, "unauthenticated");
    }
    // A prompt arrives once, whoever asks for its answer.
    let answer = complete(&api, ask("/say x")).await;
    let session = answer["ostler"]["session_id"].as_str().unwrap().to_owned();
    complete(&server.api(), collect(&answer)).await;
    eventually("the prompt arrives once", || home.effects(&session, "prompt") == 1).await;
}
