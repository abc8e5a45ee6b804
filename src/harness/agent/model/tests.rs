//! The client against the scripted model, streaming and not.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

#[path = "../../../../tests/fake_model/chat.rs"]
pub(in crate::harness::agent) mod chat;

use chat::ChatModel;

const KEY: &str = "sk-secret-of-the-test";

fn config(base_url: &str, stream: bool) -> ModelConfig {
    ModelConfig {
        base_url: base_url.to_owned(),
        model: "scripted".to_owned(),
        api_key_env: Some("TEST_KEY".to_owned()),
        token_estimate: Default::default(),
        context_window: 8000,
        max_output_tokens: None,
        stream,
        attempts: 2,
        silence_seconds: 30,
    }
}

fn models(config: ModelConfig) -> Result<Models, Vec<String>> {
    Models::new(&BTreeMap::from([("main".to_owned(), config)]), |name| {
        (name == "TEST_KEY").then(|| KEY.to_owned())
    })
}

fn model(config: ModelConfig) -> Model {
    models(config).unwrap().get("main").unwrap().clone()
}

fn user(script: &str) -> Vec<Message> {
    vec![Message::User { content: script.to_owned() }]
}

/// What comes of a call: all pieces, and the error where it ends with one.
async fn pieces(model: &Model, messages: &[Message], tools: &[ToolSpec]) -> (Vec<Piece>, Option<ModelError>) {
    let mut call = model.call(ModelRequest { messages, tools, json_mode: false });
    let mut pieces = Vec::new();
    loop {
        match call.next().await {
            Ok(Some(piece)) => pieces.push(piece),
            Ok(None) => return (pieces, None),
            Err(error) => {
                assert_eq!(call.next().await, Ok(None), "nothing follows an error");
                return (pieces, Some(error));
            }
        }
    }
}

/// The reply to a script, and the words that were given out and not taken back.
async fn reply(model: &Model, script: &str) -> (Reply, String) {
    let (mut pieces, error) = pieces(model, &user(script), &[]).await;
    assert_eq!(error, None);
    let Some(Piece::Done(reply)) = pieces.pop() else { panic!("no reply: {pieces:?}") };
    let mut words = String::new();
    for piece in pieces {
        match piece {
            Piece::Text(text) => words.push_str(&text),
            Piece::Restarted => words.clear(),
            Piece::Thinking(_) => {}
            Piece::Done(_) => panic!("two replies"),
        }
    }
    assert_eq!(reply.text, words);
    (reply, words)
}

async fn failure(model: &Model, script: &str) -> ModelError {
    let (_, error) = pieces(model, &user(script), &[]).await;
    error.unwrap()
}

fn text(text: &str) -> Piece {
    Piece::Text(text.to_owned())
}

fn call(id: &str, name: &str, arguments: &str) -> ToolCall {
    ToolCall { id: id.to_owned(), name: name.to_owned(), arguments: arguments.to_owned() }
}

#[tokio::test]
async fn words_come_as_they_are_said_and_the_reply_has_them_all() {
    let server = ChatModel::start();
    let script = "/think let me\n/say one two\\nthree\n/usage 7 3\n/finish length";
    let usage = Usage { input_tokens: 7, output_tokens: 3, complete: true };
    let done = Piece::Done(Reply {
        text: "one two\nthree".to_owned(),
        tool_calls: vec![],
        finish: "length".to_owned(),
        usage: Some(usage),
    });
    let thinking = |text: &str| Piece::Thinking(text.to_owned());
    let (streamed, error) = pieces(&model(config(&server.base_url(), true)), &user(script), &[]).await;
    let words = [text("one "), text("two\n"), text("three")];
    let expected = [&[thinking("let "), thinking("me")][..], &words, std::slice::from_ref(&done)].concat();
    assert_eq!((streamed, error), (expected, None));
    let (whole, error) = pieces(&model(config(&server.base_url(), false)), &user(script), &[]).await;
    assert_eq!((whole, error), (vec![thinking("let me"), text("one two\nthree"), done], None));
    assert_eq!(server.authorizations()[0].as_deref(), Some("Bearer sk-secret-of-the-test"));
}

#[tokio::test]
async fn tool_calls_are_put_together_from_their_pieces_and_keep_what_the_model_wrote() {
    let server = ChatModel::start();
    let script = "/say Both.\n/call read {\"path\": \"déjà vu.txt\"}\n/id again\n/call-raw write not {json";
    for stream in [true, false] {
        let (reply, _) = reply(&model(config(&server.base_url(), stream)), script).await;
        let calls =
            [call("call_0_0", "read", "{\"path\": \"déjà vu.txt\"}"), call("again", "write", "not {json")];
        assert_eq!(reply.tool_calls, calls);
        assert_eq!((reply.text.as_str(), reply.finish.as_str()), ("Both.", "tool_calls"));
    }
}

#[tokio::test]
async fn a_request_says_what_the_model_needs_to_know() {
    let server = ChatModel::start();
    let messages = [
        user("/call read {}\n/next\n/say done").swap_remove(0),
        Message::Assistant { content: String::new(), tool_calls: vec![call("call_0_0", "read", "{}")] },
        Message::Tool {
            tool_call_id: "call_0_0".to_owned(),
            content: "A".to_owned(),
            outcome: crate::harness::agent::message::Outcome::Succeeded,
            condensed: false,
        },
    ];
    let tools = [ToolSpec {
        name: "read".to_owned(),
        description: "Reads.".to_owned(),
        parameters: json!({"type": "object"}),
    }];
    let limited = ModelConfig { max_output_tokens: Some(500), ..config(&server.base_url(), true) };
    let (pieces, error) = pieces(&model(limited), &messages, &tools).await;
    assert_eq!((&pieces[0], error), (&text("done"), None));
    let sent = server.wait_for("the call", |requests| requests.len() == 1).await.swap_remove(0);
    assert_eq!((&sent["model"], &sent["max_tokens"]), (&json!("scripted"), &json!(500)));
    assert_eq!(sent["stream_options"], json!({"include_usage": true}));
    assert_eq!(sent["tools"][0]["function"]["name"], "read");
    assert_eq!(sent["messages"][1]["content"], Value::Null);
    assert_eq!(sent["messages"][2], json!({"role": "tool", "tool_call_id": "call_0_0", "content": "A"}));
    assert_eq!(sent.get("response_format"), None);
}

#[tokio::test]
async fn a_json_object_is_asked_for_where_one_is_wanted() {
    let server = ChatModel::start();
    for stream in [true, false] {
        let model = model(config(&server.base_url(), stream));
        let messages = user("/plan {\"mode\":\"plan\"}");
        let mut call = model.call(ModelRequest { messages: &messages, tools: &[], json_mode: true });
        let mut said = String::new();
        while let Some(piece) = call.next().await.unwrap() {
            if let Piece::Done(reply) = piece {
                said = reply.text;
            }
        }
        assert_eq!(said, "{\"mode\":\"plan\"}");
    }
}

#[tokio::test]
async fn an_overloaded_provider_is_asked_again() {
    for (stream, trouble) in
        [true, false].into_iter().flat_map(|stream| ["429 1 retry-after 0", "529 1"].map(|it| (stream, it)))
    {
        let server = ChatModel::start();
        let script = format!("/status {trouble}\n/say fine");
        let (reply, _) = reply(&model(config(&server.base_url(), stream)), &script).await;
        assert_eq!((reply.text.as_str(), server.count()), ("fine", 2));
    }
}

#[tokio::test]
async fn the_wait_that_a_provider_asks_for_is_kept() {
    let server = ChatModel::start();
    let begun = Instant::now();
    let script = "/status 503 1 retry-after 2\n/say fine";
    reply(&model(config(&server.base_url(), true)), script).await;
    assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_provider_that_stays_overloaded_is_unavailable_after_all_attempts() {
    for stream in [true, false] {
        let server = ChatModel::start();
        let error = failure(&model(config(&server.base_url(), stream)), "/status 500").await;
        assert_eq!(error.code, ModelErrorCode::Unavailable);
        assert_eq!(error.message, "the model main answered 500: The script wants status 500.");
        assert_eq!(server.count(), 2);
    }
}

#[tokio::test]
async fn a_provider_that_is_not_there_is_unavailable() {
    // Bound and not listening: nobody else can be there either.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind((std::net::Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let base_url = format!("http://{}/v1", socket.local_addr().unwrap());
    for stream in [true, false] {
        let model = model(config(&base_url, stream));
        let error = failure(&model, "hello").await;
        assert_eq!(error.code, ModelErrorCode::Unavailable);
        assert!(error.message.contains("refused") && !error.message.contains("127.0.0.1"), "{error}");
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_comes_again_from_its_beginning() {
    let server = ChatModel::start();
    let script = "/refuse 1\n/think hm\n/cut 2\n/say one two three";
    let patient = |stream| ModelConfig { attempts: 3, ..config(&server.base_url(), stream) };
    let (pieces, error) = pieces(&model(patient(true)), &user(script), &[]).await;
    assert_eq!(error, None);
    let hm = Piece::Thinking("hm".to_owned());
    let expected = [
        hm.clone(),
        text("one "),
        text("two "),
        Piece::Restarted,
        hm,
        text("one "),
        text("two "),
        text("three"),
    ];
    assert_eq!(pieces[..8], expected);
    assert!(matches!(&pieces[8..], [Piece::Done(reply)] if reply.text == "one two three"));
    let (reply, _) = reply(&model(patient(false)), &format!("{script} again")).await;
    assert_eq!(reply.text, "one two three again");
    assert_eq!(server.count(), 6);
}

#[tokio::test]
async fn an_answer_that_breaks_off_each_time_is_unavailable() {
    let server = ChatModel::start();
    let messages = user("/cut 1 x 9\n/say one two");
    let (pieces, error) = pieces(&model(config(&server.base_url(), true)), &messages, &[]).await;
    assert_eq!(pieces, [text("one "), Piece::Restarted, text("one ")]);
    assert_eq!(error.unwrap().code, ModelErrorCode::Unavailable);
}

#[tokio::test]
async fn a_conversation_that_is_too_long_has_a_code_of_its_own() {
    for stream in [true, false] {
        let server = ChatModel::start();
        let model = model(config(&server.base_url(), stream));
        for script in [
            "/error context_length_exceeded Too long.",
            "/error bad This model's maximum context length is 8 tokens.",
            "/error-mid prompt is too long: 9 tokens > 8 maximum",
            "/status 413",
        ] {
            assert_eq!(failure(&model, script).await.code, ModelErrorCode::Overflow, "{script}");
        }
        assert_eq!(server.count(), 4, "it is not asked again");
    }
}

#[tokio::test]
async fn a_refusal_is_not_asked_again() {
    for stream in [true, false] {
        let server = ChatModel::start();
        let model = model(config(&server.base_url(), stream));
        for script in ["/status 401", "/status 404", "/error invalid_value No.", "/say a b\n/error-mid No."] {
            assert_eq!(failure(&model, script).await.code, ModelErrorCode::Rejected, "{script}");
        }
        assert_eq!(server.count(), 4);
        let error = failure(&model, "/error-mid Enough.").await;
        assert_eq!(Failure::from(error), Failure::new("model_rejected", "the model main gave up: Enough."));
    }
}

#[tokio::test]
async fn an_error_within_an_answer_is_judged_by_the_status_in_it() {
    let server = ChatModel::start();
    let model = model(config(&server.base_url(), true));
    let script = "/say one\n/raw data: {\"error\": {\"code\": 502, \"message\": \"No upstream.\"}}";
    let (pieces, error) = pieces(&model, &user(script), &[]).await;
    assert_eq!(pieces, [text("one"), Piece::Restarted, text("one")]);
    let error = error.unwrap();
    assert_eq!((error.code, server.count()), (ModelErrorCode::Unavailable, 2));
    assert_eq!(error.message, "the model main gave up: No upstream.");
}

#[tokio::test]
async fn an_account_that_has_nothing_left_is_unavailable_at_once() {
    let server = ChatModel::start();
    let error = failure(&model(config(&server.base_url(), true)), "/error insufficient_quota Pay.").await;
    assert_eq!((error.code, server.count()), (ModelErrorCode::Unavailable, 1));
}

#[tokio::test]
async fn an_answer_that_is_whole_although_a_stream_was_wanted_is_taken() {
    let server = ChatModel::start();
    let script = "/whole\n/say one two\n/call read {}";
    let (mut pieces, error) = pieces(&model(config(&server.base_url(), true)), &user(script), &[]).await;
    assert_eq!((&pieces[0], error), (&text("one two"), None));
    assert!(matches!(pieces.pop(), Some(Piece::Done(reply)) if reply.tool_calls.len() == 1));
}

#[tokio::test]
async fn a_silent_provider_is_unavailable_after_its_silence() {
    let server = ChatModel::start();
    for stream in [true, false] {
        let model = model(ModelConfig { silence_seconds: 1, ..config(&server.base_url(), stream) });
        let error = failure(&model, "/hang").await;
        assert_eq!(error.message, "the model main failed: nothing came for 1 s");
        assert_eq!(error.code, ModelErrorCode::Unavailable);
    }
    assert_eq!(server.count(), 2, "it is not asked again");
}

#[tokio::test]
async fn an_answer_that_is_slow_and_not_silent_is_waited_for() {
    let server = ChatModel::start();
    let model = model(ModelConfig { silence_seconds: 2, ..config(&server.base_url(), true) });
    let (reply, _) = reply(&model, "/slow 700\n/say one two three four").await;
    assert_eq!(reply.text, "one two three four");
}

#[tokio::test]
async fn what_is_no_answer_or_too_large_is_rejected() {
    let server = ChatModel::start();
    for (stream, script, words) in [
        (true, "/raw garbage", "not an event stream"),
        (true, "/raw data: {\"choices\": 3}", "not a chat completion"),
        (true, "/long 1048577", "too large"),
        (true, "/raw data: [DONE]", "is empty"),
        (false, "/raw garbage", "not a chat completion"),
        (false, "/long 16777216", "too large"),
    ] {
        let error = failure(&model(config(&server.base_url(), stream)), script).await;
        assert_eq!(error.code, ModelErrorCode::Rejected, "{script}");
        assert!(error.message.contains(words), "{script}: {error}");
    }
}

#[tokio::test]
async fn nothing_is_given_out_of_a_whole_answer_that_is_wrong() {
    let server = ChatModel::start();
    let nameless = user("/say one\n/call  {}");
    let (whole, error) = pieces(&model(config(&server.base_url(), false)), &nameless, &[]).await;
    assert_eq!((whole, error.unwrap().code), (vec![], ModelErrorCode::Rejected));
    let (streamed, error) = pieces(&model(config(&server.base_url(), true)), &nameless, &[]).await;
    assert_eq!((streamed, error.unwrap().code), (vec![text("one")], ModelErrorCode::Rejected));
}

#[tokio::test]
async fn an_answer_that_breaks_off_after_its_last_word_is_whole() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let model = model(config(&format!("http://{}/v1", listener.local_addr().unwrap()), true));
    let server = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"}") {
            assert_ne!(socket.read_buf(&mut request).await.unwrap(), 0);
        }
        let answer = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9999\r\n\r\n\
            data: {\"choices\":[{\"delta\":{\"content\":\"one\"},\"finish_reason\":\"stop\"}]}\n\n";
        socket.write_all(answer.as_bytes()).await.unwrap();
    });
    let (reply, _) = reply(&model, "hello").await;
    assert_eq!((reply.text.as_str(), reply.finish.as_str(), reply.usage), ("one", "stop", None));
    server.await.unwrap();
}

#[tokio::test]
async fn comments_of_a_stream_are_passed_over() {
    let server = ChatModel::start();
    let (reply, _) = reply(&model(config(&server.base_url(), true)), "/say one\n/raw : still here").await;
    assert_eq!(reply.text, "one");
}

#[tokio::test]
async fn an_end_without_a_reason_is_one_where_there_is_an_answer() {
    let server = ChatModel::start();
    let (reply, _) = reply(&model(config(&server.base_url(), true)), "/say one\n/raw data: [DONE]").await;
    assert_eq!((reply.finish.as_str(), reply.usage), ("stop", None));
}

#[tokio::test]
async fn the_key_is_never_shown() {
    let server = ChatModel::start();
    for stream in [true, false] {
        let model = model(config(&server.base_url(), stream));
        for script in [format!("/error bad The key {KEY} is wrong."), format!("/error-mid Not {KEY}!")] {
            let error = failure(&model, &script).await;
            assert!(error.message.contains("[key]") && !error.message.contains(KEY), "{error}");
            assert!(!format!("{error:?} {model:?}").contains(KEY));
        }
        let error = failure(&model, &format!("/error bad {}{KEY}", "x".repeat(290))).await;
        assert!(!error.message.contains("sk-"), "{error}");
    }
    assert!(!format!("{:?}", models(config("http://127.0.0.1:1/v1", true))).contains(KEY));
}

#[tokio::test]
async fn words_of_a_provider_are_cut_and_are_one_line() {
    let server = ChatModel::start();
    let script = format!("/error bad a\u{7}b {}", "é".repeat(9000));
    let error = failure(&model(config(&server.base_url(), true)), &script).await;
    assert_eq!(error.message.chars().count(), "the model main ".len() + 300);
    assert!(error.message.starts_with("the model main answered 400: ab éé"), "{error}");
}

#[tokio::test]
async fn a_model_without_its_key_is_unavailable_and_says_so() {
    let config =
        ModelConfig { api_key_env: Some("OTHER".to_owned()), ..config("http://127.0.0.1:1/v1", true) };
    let model = model(config);
    assert_eq!(model.why_unavailable(), Some("OTHER is not set"));
    let error = failure(&model, "hello").await;
    assert_eq!(error.code, ModelErrorCode::Unavailable);
    assert_eq!(error.message, "the model main cannot be called: OTHER is not set");
}

#[tokio::test]
async fn a_dropped_call_closes_its_connection() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let model = model(config(&format!("http://{}/v1", listener.local_addr().unwrap()), true));
    let waiting = tokio::spawn(async move { pieces(&model, &user("hello"), &[]).await });
    let (mut socket, _) = listener.accept().await.unwrap();
    let mut byte = [0];
    socket.read_exact(&mut byte).await.unwrap();
    waiting.abort();
    let mut rest = Vec::new();
    let closed = socket.read_to_end(&mut rest);
    assert!(tokio::time::timeout(Duration::from_secs(30), closed).await.is_ok(), "the connection is open");
}

#[test]
fn a_query_of_the_base_url_stays_and_slashes_do_not_matter() {
    for (base, whole) in [
        ("http://a/v1", "http://a/v1/chat/completions"),
        ("http://a/v1/", "http://a/v1/chat/completions"),
        ("https://a", "https://a/chat/completions"),
        ("https://a/x?api-version=1#top", "https://a/x/chat/completions?api-version=1"),
    ] {
        assert_eq!(endpoint(base).unwrap().as_str(), whole);
    }
}

#[test]
fn all_that_is_wrong_with_a_model_is_told_together() {
    let config = ModelConfig {
        context_window: 0,
        max_output_tokens: Some(10),
        attempts: 0,
        silence_seconds: 0,
        model: " ".to_owned(),
        ..config("ftp://x", true)
    };
    let expected = [
        "models.main.model is empty",
        "models.main.context_window must be at least 1",
        "models.main.max_output_tokens must be less than context_window",
        "models.main.attempts must be from 1 to 20",
        "models.main.silence_seconds must be from 1 to 3600",
        "models.main.base_url must begin with http:// or https://",
    ];
    assert_eq!(models(config).unwrap_err(), expected);
    let complaint = |base_url: &str| models(config_at(base_url)).unwrap_err().swap_remove(0);
    assert!(complaint("nonsense").starts_with("models.main.base_url is not a URL"));
    assert!(complaint("http://me:secret@x/v1").contains("must not hold a user"));
}

fn config_at(base_url: &str) -> ModelConfig {
    config(base_url, true)
}

#[test]
fn what_is_kept_for_an_answer_is_less_than_the_window() {
    let kept = |window, max| {
        let config = ModelConfig {
            context_window: window,
            max_output_tokens: max,
            ..config("http://127.0.0.1:1/v1", true)
        };
        model(config).reserve()
    };
    assert_eq!(kept(128_000, None), 4096);
    assert_eq!(kept(8000, None), 2000);
    assert_eq!(kept(8000, Some(7999)), 7999);
}
