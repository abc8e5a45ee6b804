//! Requests to the service: where it is, which key, what is tried again, and what an answer means.
//!
//! Each POST carries an idempotency key of its own, so that every request is safe to send again: a POST whose answer was
//! lost takes effect once.

use std::fmt::Write as _;
use std::time::Duration;

use reqwest::header::{ACCEPT, AUTHORIZATION, DATE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Method, Response, Url};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;

use super::error::{CliError, CliResult, Problem};
use super::when::{Moment, parse_date};
use super::{ClientArgs, Exit};

const OWNER: HeaderName = HeaderName::from_static("ostler-owner");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const REQUEST_ID: HeaderName = HeaderName::from_static("ostler-request-id");

/// How often a request is sent again at most.
const RETRIES: u32 = 3;
/// The wait before the first retry; it doubles.
const BACKOFF: Duration = Duration::from_millis(100);
/// The longest wait that a service can ask for before a person is rather told.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the answer to the check of an agent may take: as long as the slowest may take to start, and to end.
const CHECK_TIMEOUT: Duration = Duration::from_secs(600);

/// A service, and who we are to it.
#[derive(Debug)]
pub(super) struct Client {
    http: reqwest::Client,
    base: Url,
    headers: HeaderMap,
    key_source: KeySource,
    backoff: Duration,
}

/// Where the key comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeySource {
    /// The command line or the environment.
    Given,
    /// The file that the service left in its data directory.
    File(String),
    /// That file is there and cannot be read, for this reason.
    Unreadable(String),
    /// There is none.
    None,
}

/// A success.
#[derive(Debug)]
pub(super) struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body; null where there is none.
    pub body: Value,
    /// What time it is, by the service.
    pub now: Option<Moment>,
}

impl Answer {
    /// Takes the items out of a list.
    ///
    /// # Errors
    /// `Unexpected` when it is none.
    pub(super) fn take_list(&mut self) -> CliResult<Vec<Value>> {
        match self.body.get_mut("data").map(Value::take) {
            Some(Value::Array(items)) => Ok(items),
            _ => Err(CliError::Unexpected("the answer is no list".to_owned())),
        }
    }
}

/// One request.
#[derive(Debug)]
struct Call<'a> {
    method: Method,
    url: Url,
    body: Option<&'a Value>,
    idempotency_key: Option<String>,
    timeout: Duration,
}

/// A request that did not succeed.
struct Failed {
    error: CliError,
    /// How long to wait before it is sent again, where that may help.
    again: Option<Duration>,
}

impl Client {
    /// A client for the service that the arguments name.
    ///
    /// # Errors
    /// `Usage` when the URL, the key or the owner cannot be what it is.
    pub(super) fn new(args: &ClientArgs) -> CliResult<Self> {
        let base = parse_url(&args.url)?;
        let (key, key_source) = find_key(args, &base);
        let mut headers = HeaderMap::new();
        if let Some(key) = key {
            let mut value = HeaderValue::from_str(&format!("Bearer {}", key.expose_secret()))
                .map_err(|_| CliError::Usage("the key holds characters that no key has".to_owned()))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        if let Some(owner) = &args.owner {
            let value = HeaderValue::from_bytes(owner.as_bytes())
                .map_err(|_| CliError::Usage("--owner holds control characters".to_owned()))?;
            headers.insert(OWNER, value);
        }
        // Fails only when a provider is installed already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("ostler/", env!("CARGO_PKG_VERSION")));
        if is_loopback(&base) {
            builder = builder.no_proxy();
        }
        if base.scheme() == "http" {
            // The system's certificates are not needed, and a small container may have none.
            builder = builder.tls_certs_only([]);
        }
        let http = builder.build().map_err(|error| CliError::Refused {
            exit: Exit::Failed,
            code: "client",
            detail: format!("cannot prepare requests: {}", root_cause(&error)),
            hint: Some(
                "https needs the system's CA certificates: install the package ca-certificates".to_owned(),
            ),
        })?;
        Ok(Self { http, base, headers, key_source, backoff: BACKOFF })
    }

    /// The least wait before anything is tried again.
    pub(super) fn backoff(&self) -> Duration {
        self.backoff
    }

    /// Where the key comes from.
    pub(super) fn key_source(&self) -> &KeySource {
        &self.key_source
    }

    /// The service's address.
    pub(super) fn url(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// Whether the key would travel in the clear over a network.
    pub(super) fn is_exposed(&self) -> bool {
        self.base.scheme() == "http" && !is_loopback(&self.base) && self.headers.contains_key(AUTHORIZATION)
    }

    /// Reads.
    ///
    /// # Errors
    /// See [`CliError`].
    pub(super) async fn get(&self, path: &[&str], query: &[(&str, String)]) -> CliResult<Answer> {
        self.send(Call {
            method: Method::GET,
            url: self.address(path, query),
            body: None,
            idempotency_key: None,
            timeout: ANSWER_TIMEOUT,
        })
        .await
    }

    /// Writes, once however often it must be sent.
    ///
    /// # Errors
    /// See [`CliError`].
    pub(super) async fn post(&self, path: &[&str], body: Option<&Value>) -> CliResult<Answer> {
        self.post_within(ANSWER_TIMEOUT, path, body).await
    }

    /// Checks a harness, which takes its time.
    ///
    /// # Errors
    /// See [`CliError`].
    pub(super) async fn check_harness(&self, name: &str) -> CliResult<Answer> {
        self.post_within(CHECK_TIMEOUT, &["v1", "harnesses", name, "check"], None).await
    }

    async fn post_within(&self, timeout: Duration, path: &[&str], body: Option<&Value>) -> CliResult<Answer> {
        let key = fresh_key()?;
        self.send(Call {
            method: Method::POST,
            url: self.address(path, &[]),
            body,
            idempotency_key: Some(key),
            timeout,
        })
        .await
    }

    /// Deletes; the service takes it twice as well as once.
    ///
    /// # Errors
    /// See [`CliError`].
    pub(super) async fn delete(&self, path: &[&str], query: &[(&str, String)]) -> CliResult<Answer> {
        self.send(Call {
            method: Method::DELETE,
            url: self.address(path, query),
            body: None,
            idempotency_key: None,
            timeout: ANSWER_TIMEOUT,
        })
        .await
    }

    /// Opens an event stream, without trying again: the reader knows better when.
    ///
    /// # Errors
    /// See [`CliError`].
    pub(super) async fn open_stream(&self, path: &[&str], query: &[(&str, String)]) -> CliResult<Response> {
        let request = self.http.get(self.address(path, query)).headers(self.headers.clone());
        let request = request.header(ACCEPT, "text/event-stream");
        let sent = tokio::time::timeout(ANSWER_TIMEOUT, request.send()).await;
        let response = match sent {
            Ok(sent) => sent.map_err(|error| self.unreachable(&error))?,
            Err(_) => return Err(self.silent()),
        };
        if response.status().is_success() {
            return Ok(response);
        }
        Err(self.refusal(response).await.error)
    }

    /// The error for a service that does not answer in time.
    pub(super) fn silent(&self) -> CliError {
        CliError::Unreachable { url: self.url().to_owned(), why: "no answer in time".to_owned() }
    }

    /// The error for a request that did not get through.
    pub(super) fn unreachable(&self, error: &reqwest::Error) -> CliError {
        CliError::Unreachable { url: self.url().to_owned(), why: root_cause(error) }
    }

    fn address(&self, path: &[&str], query: &[(&str, String)]) -> Url {
        let mut url = self.base.clone();
        // `new` takes only URLs that have a path.
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        url
    }

    async fn send(&self, call: Call<'_>) -> CliResult<Answer> {
        let mut backoff = self.backoff;
        for _ in 0..RETRIES {
            match self.send_once(&call).await {
                Err(Failed { again: Some(asked), .. }) => tokio::time::sleep(asked.max(backoff)).await,
                done => return done.map_err(|failed| failed.error),
            }
            backoff *= 2;
        }
        self.send_once(&call).await.map_err(|failed| failed.error)
    }

    async fn send_once(&self, call: &Call<'_>) -> Result<Answer, Failed> {
        let mut request = self.http.request(call.method.clone(), call.url.clone());
        request = request.headers(self.headers.clone()).timeout(call.timeout);
        if let Some(key) = &call.idempotency_key {
            request = request.header(IDEMPOTENCY_KEY, key);
        }
        if let Some(body) = call.body {
            request = request.json(body);
        }
        let response = request.send().await.map_err(|error| self.lost(&error))?;
        if !response.status().is_success() {
            return Err(self.refusal(response).await);
        }
        let status = response.status().as_u16();
        let now = header(&response, &DATE).as_deref().and_then(parse_date);
        let body = response.bytes().await.map_err(|error| self.lost(&error))?;
        if body.is_empty() {
            return Ok(Answer { status, body: Value::Null, now });
        }
        match serde_json::from_slice(&body) {
            Ok(body) => Ok(Answer { status, body, now }),
            Err(_) => Err(Failed {
                error: CliError::Unexpected(format!("{} answered with something that is not JSON", call.url)),
                again: None,
            }),
        }
    }

    /// A request whose answer did not arrive. One that ran out of time is not sent again: the person has waited enough.
    fn lost(&self, error: &reqwest::Error) -> Failed {
        let again = (!error.is_timeout() && !error.is_builder()).then_some(Duration::ZERO);
        Failed { error: self.unreachable(error), again }
    }

    async fn refusal(&self, response: Response) -> Failed {
        let status = response.status().as_u16();
        let request_id = header(&response, &REQUEST_ID);
        let retry_after = header(&response, &RETRY_AFTER).and_then(|seconds| seconds.trim().parse().ok());
        let url = response.url().to_string();
        let body = response.bytes().await.unwrap_or_default();
        match Problem::read(status, &body, request_id, retry_after) {
            Some(problem) => {
                Failed { again: wait_asked(&problem), error: CliError::Problem(Box::new(problem)) }
            }
            // What stands between us and the service cannot reach it either.
            None if matches!(status, 502..=504) => Failed {
                error: CliError::Unreachable {
                    url: self.url().to_owned(),
                    why: format!("a gateway answered {status}"),
                },
                again: Some(Duration::ZERO),
            },
            None => Failed {
                error: CliError::Unexpected(format!("{url} answered {status} without saying why")),
                again: None,
            },
        }
    }
}

#[cfg(test)]
impl Client {
    /// The client, with no wait before a retry.
    pub(super) fn impatient(mut self) -> Self {
        self.backoff = Duration::ZERO;
        self
    }
}

/// How long to wait before a refused request is sent again; `None` where that would not help, or take too long.
fn wait_asked(problem: &Problem) -> Option<Duration> {
    let passes = match (problem.status, problem.code.as_str()) {
        // It does not come into being while we wait.
        (_, "harness_unavailable") => false,
        (503, _) | (429, "rate_limited") | (409, "idempotency_in_progress") => true,
        _ => false,
    };
    let wait = Duration::from_secs(problem.retry_after?);
    (passes && wait <= PATIENCE).then_some(wait)
}

fn parse_url(text: &str) -> CliResult<Url> {
    let url = Url::parse(text).map_err(|error| CliError::Usage(format!("--url {text}: {error}")))?;
    match url.scheme() {
        "http" | "https" => Ok(url),
        _ => Err(CliError::Usage(format!("--url {text}: must begin with http:// or https://"))),
    }
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The key that was given, else the one that a service on this machine left for its owner. That one is never sent to
/// another machine.
fn find_key(args: &ClientArgs, base: &Url) -> (Option<SecretString>, KeySource) {
    if let Some(key) = args.key.as_ref().filter(|key| !key.expose_secret().trim().is_empty()) {
        return (Some(trimmed(key.expose_secret())), KeySource::Given);
    }
    if !is_loopback(base) {
        return (None, KeySource::None);
    }
    let file = args.data_dir.join("admin.key");
    match std::fs::read_to_string(&file) {
        Ok(key) if !key.trim().is_empty() => {
            (Some(trimmed(&key)), KeySource::File(file.display().to_string()))
        }
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            (None, KeySource::Unreadable(format!("{}: {error}", file.display())))
        }
        _ => (None, KeySource::None),
    }
}

fn trimmed(key: &str) -> SecretString {
    SecretString::from(key.trim())
}

fn fresh_key() -> CliResult<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| CliError::failed("client", format!("the system has no randomness: {error}")))?;
    Ok(bytes.iter().fold("cli-".to_owned(), |mut key, byte| {
        // Writing to a string cannot fail.
        let _ = write!(key, "{byte:02x}");
        key
    }))
}

fn header(response: &Response, name: &HeaderName) -> Option<String> {
    Some(response.headers().get(name)?.to_str().ok()?.to_owned())
}

/// The innermost reason, which is the one that tells something: "Connection refused", not "error sending request".
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// The path of a session, by its id or by its run id.
pub(super) fn session_path<'a>(id: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
    let collection = if id.starts_with("ses_") { "sessions" } else { "runs" };
    [&["v1", collection, id], rest].concat()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::stub::{Reply, Stub, args_for};
    use super::*;

    #[tokio::test]
    async fn a_post_that_is_sent_again_keeps_its_idempotency_key() {
        let stub = Stub::start([
            Reply::Cut,
            Reply::problem(503, "overloaded").header("retry-after", "0"),
            Reply::json(201, json!({"id": "ses_1"})),
        ])
        .await;
        let answer =
            stub.client().post(&["v1", "sessions"], Some(&json!({"harness": "demo"}))).await.unwrap();
        assert_eq!((answer.status, &answer.body["id"]), (201, &json!("ses_1")));
        let keys: Vec<String> = stub.requests().iter().map(|seen| seen.header("idempotency-key")).collect();
        assert_eq!(keys.len(), 3);
        assert!(keys[0].len() > 20 && keys.iter().all(|key| *key == keys[0]), "{keys:?}");
    }

    #[tokio::test]
    async fn two_posts_have_two_idempotency_keys() {
        let stub = Stub::start([Reply::json(200, json!({})), Reply::json(200, json!({}))]).await;
        let client = stub.client();
        client.post(&["v1", "x"], None).await.unwrap();
        client.post(&["v1", "x"], None).await.unwrap();
        let seen = stub.requests();
        assert_ne!(seen[0].header("idempotency-key"), seen[1].header("idempotency-key"));
    }

    #[tokio::test]
    async fn a_service_that_stays_overloaded_is_asked_four_times() {
        let stub =
            Stub::start((0..9).map(|_| Reply::problem(503, "overloaded").header("retry-after", "0"))).await;
        let error = stub.client().get(&["v1", "me"], &[]).await.unwrap_err();
        assert_eq!(error.exit(), Exit::Failed);
        assert_eq!(stub.requests().len(), 4);
    }

    #[tokio::test]
    async fn a_refusal_is_not_sent_again() {
        for (status, code) in [(409, "turn_in_progress"), (500, "internal"), (503, "harness_unavailable")] {
            let stub = Stub::start([Reply::problem(status, code).header("retry-after", "0")]).await;
            let error = stub.client().get(&["v1", "me"], &[]).await.unwrap_err();
            assert!(matches!(error, CliError::Problem(problem) if problem.code == code));
            assert_eq!(stub.requests().len(), 1, "{code}");
        }
    }

    #[tokio::test]
    async fn a_service_that_is_not_there_has_an_exit_code_of_its_own() {
        let stub = Stub::start([]).await;
        let client = stub.client();
        drop(stub);
        let error = client.get(&["v1", "me"], &[]).await.unwrap_err();
        assert_eq!(error.exit(), Exit::Unreachable);
        assert!(error.detail().contains("refused"), "{}", error.detail());
    }

    #[tokio::test]
    async fn ids_are_one_segment_of_the_path_whatever_they_hold() {
        let stub = Stub::start([Reply::json(200, json!({}))]).await;
        stub.client().get(&session_path("team/run 1?", &["turns"]), &[("limit", "5".into())]).await.unwrap();
        let seen = stub.requests();
        assert_eq!(seen[0].target, "/v1/runs/team%2Frun%201%3F/turns?limit=5");
        assert_eq!(session_path("ses_1", &[]), ["v1", "sessions", "ses_1"]);
    }

    #[tokio::test]
    async fn a_service_under_a_path_is_found_there() {
        let stub = Stub::start([Reply::json(200, json!({}))]).await;
        let args = ClientArgs { url: format!("{}/ostler/", stub.url()), ..args_for(&stub.url()) };
        Client::new(&args).unwrap().get(&["healthz"], &[]).await.unwrap();
        assert_eq!(stub.requests()[0].target, "/ostler/healthz");
    }

    #[tokio::test]
    async fn the_key_file_serves_this_machine_alone_and_a_given_key_goes_first() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("admin.key"), "ostler_file\n").unwrap();
        let args =
            ClientArgs { data_dir: dir.path().to_path_buf(), key: None, ..args_for("http://localhost:7070") };
        let key = |args: &ClientArgs| {
            let client = Client::new(args).unwrap();
            client.headers.get(AUTHORIZATION).map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(key(&args).as_deref(), Some("Bearer ostler_file"));
        let elsewhere = ClientArgs { url: "https://ostler.example.com".into(), ..args.clone() };
        assert_eq!(key(&elsewhere), None);
        let given = ClientArgs { key: Some("ostler_given".into()), ..args.clone() };
        assert_eq!(key(&given).as_deref(), Some("Bearer ostler_given"));
        let empty = ClientArgs { key: Some("".into()), ..args };
        assert_eq!(key(&empty).as_deref(), Some("Bearer ostler_file"));
    }

    #[tokio::test]
    async fn the_owner_is_named_in_a_header() {
        let stub = Stub::start([Reply::json(200, json!({}))]).await;
        let args = ClientArgs { owner: Some("alice@example.com".into()), ..args_for(&stub.url()) };
        Client::new(&args).unwrap().get(&["v1", "me"], &[]).await.unwrap();
        assert_eq!(stub.requests()[0].header("ostler-owner"), "alice@example.com");
    }

    #[tokio::test]
    async fn a_gateway_that_cannot_reach_the_service_counts_as_unreachable() {
        let page = |_| Reply::raw(502, "text/html", "<html>Bad Gateway</html>");
        let stub = Stub::start((0..4).map(page)).await;
        let error = stub.client().get(&["v1", "me"], &[]).await.unwrap_err();
        assert_eq!(error.exit(), Exit::Unreachable);
    }

    #[test]
    fn a_url_of_another_scheme_is_a_usage_error() {
        for url in ["ftp://x", "not a url", "localhost:7070"] {
            let error = Client::new(&args_for(url)).unwrap_err();
            assert_eq!(error.exit(), Exit::Usage, "{url}");
        }
    }
}
