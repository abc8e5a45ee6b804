//! The scripted model itself, over HTTP.

use serde_json::{Value, json};

use super::ChatModel;

async fn ask(model: &ChatModel, request: Value) -> reqwest::Result<(u16, String)> {
    drop(rustls::crypto::ring::default_provider().install_default());
    let client = reqwest::Client::builder().no_proxy().tls_certs_only([]).build().unwrap();
    let url = format!("{}/chat/completions", model.base_url());
    let response = client.post(url).bearer_auth("key").json(&request).send().await?;
    Ok((response.status().as_u16(), response.text().await?))
}

async fn message(model: &ChatModel, messages: Value) -> Value {
    let (status, text) = ask(model, json!({"model": "m", "messages": messages})).await.unwrap();
    assert_eq!(status, 200, "{text}");
    serde_json::from_str::<Value>(&text).unwrap()["choices"][0]["message"].take()
}

#[tokio::test]
async fn an_answer_follows_from_the_conversation_and_a_repeated_call_gets_the_same() {
    let model = ChatModel::start();
    let script = json!({"role": "user", "content": "Do:\n/call read {\"path\":\"a\"}\n/next\n/say it is"});
    let first = message(&model, json!([script])).await;
    assert_eq!(first["tool_calls"][0]["id"], "call_0_0");
    assert_eq!(message(&model, json!([script])).await, first);
    let result = json!({"role": "tool", "tool_call_id": "call_0_0", "content": "A"});
    assert_eq!(message(&model, json!([script, first, result])).await["content"], "it is");
    let later = json!({"role": "user", "content": "and /home?"});
    assert_eq!(message(&model, json!([later])).await["content"], "echo: and /home?");
    assert_eq!(message(&model, json!([script, first, result, later])).await["content"], "it is");
    assert_eq!(message(&model, json!([script, first, first, later])).await["content"], "echo: and /home?");
    assert_eq!((model.count(), model.requests().len()), (6, 6));
    assert_eq!(model.authorizations()[0].as_deref(), Some("Bearer key"));
}

#[tokio::test]
async fn a_stream_is_words_then_calls_in_pieces_then_usage_and_an_end() {
    let model = ChatModel::start();
    let script = "/think hm\n/say one two\n/call write {\"text\":\"déjà vu\"}\n/usage 7 3";
    let request = json!({"model": "m", "stream": true, "stream_options": {"include_usage": true},
                         "messages": [{"role": "user", "content": script}]});
    let (_, text) = ask(&model, request).await.unwrap();
    let frames: Vec<&str> = text.split("\n\n").filter_map(|frame| frame.strip_prefix("data: ")).collect();
    assert_eq!(frames.last(), Some(&"[DONE]"));
    let frames: Vec<Value> =
        frames[..frames.len() - 1].iter().map(|frame| serde_json::from_str(frame).unwrap()).collect();
    let texts = |pointer: &str| -> Vec<&str> {
        frames.iter().filter_map(|frame| frame.pointer(pointer)?.as_str()).collect()
    };
    assert_eq!(texts("/choices/0/delta/content"), ["", "one ", "two"]);
    assert_eq!(texts("/choices/0/delta/reasoning_content"), ["hm"]);
    let arguments = texts("/choices/0/delta/tool_calls/0/function/arguments");
    assert_eq!((arguments.len(), arguments.concat().as_str()), (4, "{\"text\":\"déjà vu\"}"));
    assert_eq!(texts("/choices/0/finish_reason"), ["tool_calls"]);
    assert_eq!(frames.last().unwrap()["usage"]["prompt_tokens"], 7);
}

#[tokio::test]
async fn misfortunes_happen_as_often_as_the_script_says_and_then_the_answer_comes() {
    for stream in [false, true] {
        let model = ChatModel::start();
        let script = "/refuse 1\n/status 429 1 retry-after 0\n/cut 1 x 1\n/say one two";
        let request =
            json!({"model": "m", "stream": stream, "messages": [{"role": "user", "content": script}]});
        assert!(ask(&model, request.clone()).await.is_err());
        assert_eq!(ask(&model, request.clone()).await.unwrap().0, 429);
        assert!(ask(&model, request.clone()).await.is_err());
        let (status, text) = ask(&model, request).await.unwrap();
        assert!(status == 200 && text.contains("two"), "{text}");
    }
}

#[tokio::test]
async fn a_planning_call_is_no_step() {
    let model = ChatModel::start();
    let plan = async |content: &str| {
        let messages = json!([{"role": "user", "content": content}]);
        let request = json!({"model": "m", "messages": messages, "response_format": {"type": "json_object"}});
        let answer: Value = serde_json::from_str(&ask(&model, request).await.unwrap().1).unwrap();
        answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    };
    assert_eq!(plan("hello").await, r#"{"mode":"direct","reason":"simple","steps":[]}"#);
    assert_eq!(plan("/say a\n/next\n/plan {\"mode\":\"plan\"}").await, "{\"mode\":\"plan\"}");
}

#[tokio::test]
async fn a_model_that_is_stopped_can_be_started_again_at_its_address() {
    let model = ChatModel::start();
    let address = model.address();
    model.stop().await;
    let model = ChatModel::start_at(address);
    let hello = json!([{"role": "user", "content": "hello"}]);
    assert_eq!(message(&model, hello).await["content"], "echo: hello");
    model.wait_for("the call", |requests| requests.len() == 1).await;
    model.wait_for_count(1).await;
}
