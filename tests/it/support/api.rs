//! A client of the API that shows everything: status, headers, body.

use std::collections::BTreeMap;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::sse::Events;
use super::within;

/// A client with one key.
#[derive(Clone)]
pub struct Api {
    http: reqwest::Client,
    url: String,
    key: Option<String>,
    headers: BTreeMap<String, String>,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub text: String,
}

impl Answer {
    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    /// The body, once the status is the expected one.
    #[track_caller]
    pub fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text);
        if self.text.is_empty() { Value::Null } else { self.json() }
    }

    /// The problem's body, once status and code are the expected ones.
    #[track_caller]
    pub fn problem(&self, status: u16, code: &str) -> Value {
        let body = self.expect(status);
        assert_eq!(body["code"], code, "{body}");
        assert_eq!(body["status"], status);
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        body
    }

    /// One header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

impl Api {
    pub fn new(url: &str, key: &str) -> Self {
        // Only the first call of a process can do it; the others find it done.
        drop(rustls::crypto::ring::default_provider().install_default());
        // The system's certificates, which take their time to be read, are of no use to plain HTTP.
        let builder = reqwest::Client::builder().tls_certs_only([]);
        let http = builder.pool_max_idle_per_host(64).build().unwrap();
        Self { http, url: url.to_owned(), key: Some(key.to_owned()), headers: BTreeMap::new() }
    }

    /// The same client without a key.
    pub fn anonymous(&self) -> Self {
        Self { key: None, ..self.clone() }
    }

    /// The same client with one more header on each request.
    pub fn with_header(&self, name: &str, value: &str) -> Self {
        let mut api = self.clone();
        api.headers.insert(name.to_owned(), value.to_owned());
        api
    }

    /// The same client on behalf of an owner.
    pub fn on_behalf_of(&self, owner: &str) -> Self {
        self.with_header("ostler-owner", owner)
    }

    pub fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let mut request = self.http.request(method, format!("{}{path}", self.url));
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        request
    }

    pub async fn send(&self, request: reqwest::RequestBuilder) -> Answer {
        within("an answer", async {
            let response = request.send().await.unwrap();
            let (status, headers) = (response.status().as_u16(), response.headers().clone());
            Answer { status, headers, text: response.text().await.unwrap() }
        })
        .await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(self.request(Method::GET, path)).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send(self.request(Method::DELETE, path)).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(self.request(Method::POST, path).json(&body)).await
    }

    pub async fn patch(&self, path: &str, body: Value) -> Answer {
        self.send(self.request(Method::PATCH, path).json(&body)).await
    }

    /// Creates a demo session without delays between words; with a prompt, waits until its turn has ended or asks.
    pub async fn create(&self, prompt: &str) -> Value {
        let body = json!({"harness": "demo", "prompt": prompt, "settings": {"token_delay_ms": 0}});
        let answer = self.post_and_wait("/v1/sessions", body).await;
        assert!(matches!(answer.status, 201 | 202), "{}", answer.text);
        answer.json()
    }

    /// A POST that is answered when the turn has ended or asks.
    pub async fn post_and_wait(&self, path: &str, body: Value) -> Answer {
        self.send(self.request(Method::POST, path).header("prefer", "wait=60").json(&body)).await
    }

    /// Creates a demo session and does not wait.
    pub async fn create_detached(&self, prompt: &str) -> Value {
        let body = json!({"harness": "demo", "prompt": prompt, "settings": {"token_delay_ms": 0}});
        self.post("/v1/sessions", body).await.expect(201)
    }

    /// Sends a prompt and waits until its turn has ended or asks.
    pub async fn prompt(&self, session: &str, prompt: &str) -> Value {
        let path = format!("/v1/sessions/{session}/prompts");
        let answer = self.post_and_wait(&path, json!({"prompt": prompt})).await;
        assert!(matches!(answer.status, 200 | 202), "{}", answer.text);
        answer.json()
    }

    pub async fn session(&self, session: &str) -> Value {
        self.get(&format!("/v1/sessions/{session}")).await.expect(200)
    }

    pub async fn decide(&self, approval: &str, decision: &str) -> Answer {
        self.post(&format!("/v1/approvals/{approval}/decision"), json!({"decision": decision})).await
    }

    /// All events of a session, page by page.
    pub async fn events(&self, session: &str) -> Vec<Value> {
        let mut events: Vec<Value> = Vec::new();
        loop {
            let after = events.last().map_or(0, |event| event["seq"].as_i64().unwrap());
            let page =
                self.get(&format!("/v1/sessions/{session}/events?after={after}&limit=200")).await.expect(200);
            let rows = page["data"].as_array().unwrap().clone();
            if rows.is_empty() {
                return events;
            }
            events.extend(rows);
        }
    }

    /// The types of all events of a session.
    pub async fn kinds(&self, session: &str) -> Vec<String> {
        self.events(session).await.iter().map(|event| event["type"].as_str().unwrap().to_owned()).collect()
    }

    /// The data of the session's events of one type.
    pub async fn events_of(&self, session: &str, kind: &str) -> Vec<Value> {
        let events = self.events(session).await.into_iter().filter(|event| event["type"] == kind);
        events.map(|mut event| event["data"].take()).collect()
    }

    /// Follows a session's events.
    pub async fn follow(&self, session: &str, query: &str) -> Events {
        let path = format!("/v1/sessions/{session}/events{query}");
        let request = self.request(Method::GET, &path).header("accept", "text/event-stream");
        let response = within("a stream", request.send()).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        Events::new(response)
    }

    /// Waits until the session's status is the expected one, following its events.
    pub async fn until_status(&self, session: &str, status: &str) -> Value {
        within(&format!("status {status}"), async {
            let mut events = self.follow(session, "").await;
            loop {
                let row = self.session(session).await;
                if row["status"] == status {
                    return row;
                }
                assert!(events.next().await.is_some(), "the stream ended while the session was {row}");
            }
        })
        .await
    }
}
