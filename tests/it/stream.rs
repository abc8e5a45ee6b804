//! Events: one sequence without holes, seen exactly once however often the reader is cut off.

use serde_json::{Value, json};

use crate::support::api::Api;
use crate::support::server::Home;
use crate::support::sse::{Events, Frame};

fn id(value: &Value) -> String {
    value["id"].as_str().unwrap().to_owned()
}

/// A generator of its own, so that a failing run can be repeated from its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

async fn resume(api: &Api, session: &str, after: i64) -> Events {
    let path = format!("/v1/sessions/{session}/events?until=idle");
    let mut request = api.request(reqwest::Method::GET, &path).header("accept", "text/event-stream");
    if after > 0 {
        request = request.header("last-event-id", after.to_string());
    }
    Events::new(request.send().await.unwrap())
}

fn seqs(frames: &[Frame]) -> Vec<i64> {
    frames.iter().map(|frame| frame.id).collect()
}

#[tokio::test]
async fn rows_73_and_f41_a_reader_that_is_cut_200_times_under_load_sees_every_seq_exactly_once() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    // Others keep the writer busy meanwhile.
    for _ in 0..4 {
        api.create_detached("/tokens 4000 1000").await;
    }
    // Words merge when the writer is slow; tool calls never do, so that there is always enough to cut.
    let script = format!("/tokens 3000 2000\n{}/tokens 1000", "/tool t {}\n".repeat(1000));
    let session = id(&api.create_detached(&script).await);
    let mut random = Random(7);
    let mut seen: Vec<Frame> = Vec::new();
    let mut cuts = 0;
    loop {
        let mut stream = resume(&api, &session, seen.last().map_or(0, |frame| frame.id)).await;
        let cut_after = if cuts < 200 { Some(1 + random.below(12)) } else { None };
        let mut read = 0;
        let ended = loop {
            if cut_after.is_some_and(|limit| read >= limit) {
                break false;
            }
            match stream.next().await {
                Some(frame) => seen.push(frame),
                None => break true,
            }
            read += 1;
        };
        if ended {
            break;
        }
        cuts += 1;
    }
    assert_eq!(seqs(&seen), (1..=seen.len() as i64).collect::<Vec<_>>(), "after {cuts} cuts");
    assert_eq!(cuts, 200);
    let words: String = seen
        .iter()
        .filter(|f| f.event == "text.delta")
        .map(|f| f.data["data"]["text"].as_str().unwrap())
        .collect();
    assert_eq!(words.split_whitespace().count(), 4000);
    let stored = api.events(&session).await;
    assert_eq!(stored.iter().map(|e| e["seq"].as_i64().unwrap()).collect::<Vec<_>>(), seqs(&seen));
    assert!(
        stored.iter().zip(&seen).all(|(stored, shown)| *stored == shown.data),
        "a page and a stream show the same"
    );
}

#[tokio::test]
async fn row_74_a_stream_of_what_is_over_is_replayed_whole_and_ends() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let session = id(&api.create("/say a b c").await);
    let frames = api.follow(&session, "?until=idle").await.all().await;
    assert_eq!(frames.first().unwrap().event, "session.created");
    assert_eq!(frames.last().unwrap().event, "turn.completed");
    let frame = &frames[1];
    assert_eq!(frame.data["seq"], frame.id);
    assert_eq!(frame.data["type"], *frame.event);
    for field in ["session_id", "run_id", "turn_id", "at", "data"] {
        assert!(frame.data.get(field).is_some(), "{field} in {}", frame.data);
    }
}

#[tokio::test]
async fn a_stream_until_pause_ends_at_a_question_and_one_until_idle_does_not() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let session = id(&api.create("/ask shell {}\n/say after").await);
    let paused = api.follow(&session, "?until=pause").await.all().await;
    assert_eq!(paused.last().unwrap().event, "approval.requested");
    let until_idle = api.follow(&session, "?until=idle").await;
    api.decide(&id(&api.session(&session).await["pending_approval"]), "approve").await.expect(200);
    assert_eq!(until_idle.all().await.last().unwrap().event, "turn.completed");
}

#[tokio::test]
async fn a_stream_follows_a_session_until_it_is_destroyed_and_then_there_is_no_more_content() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let session = id(&api.create("/say x").await);
    let stream = api.follow(&session, "").await;
    api.delete(&format!("/v1/sessions/{session}")).await.expect(204);
    let frames = stream.all().await;
    let last = frames.last().unwrap();
    assert_eq!(last.event, "session.destroyed");
    let request = api
        .request(reqwest::Method::GET, &format!("/v1/sessions/{session}/events"))
        .header("accept", "text/event-stream");
    let answer = api.send(request.header("last-event-id", last.id.to_string())).await;
    assert_eq!((answer.status, answer.text.as_str()), (204, ""));
    // The transcript stays readable.
    assert_eq!(api.events(&session).await.len(), frames.len());
    api.delete(&format!("/v1/sessions/{session}")).await.expect(204);
}

#[tokio::test]
async fn row_75_a_cursor_beyond_the_end_or_not_a_number_is_refused() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let session = id(&api.create("/say x").await);
    let path = format!("/v1/sessions/{session}/events");
    for cursor in ["999", "-1", "x", "1.5", "99999999999999999999"] {
        api.get(&format!("{path}?after={cursor}")).await.problem(400, "invalid_cursor");
        let request = api.request(reqwest::Method::GET, &path).header("accept", "text/event-stream");
        api.send(request.header("last-event-id", cursor)).await.problem(400, "invalid_cursor");
    }
}

#[tokio::test]
async fn the_headers_of_a_stream_keep_proxies_from_holding_it_back() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let session = id(&api.create("/say x").await);
    let request = api.request(reqwest::Method::GET, &format!("/v1/sessions/{session}/events?until=idle"));
    let response = request.header("accept", "text/event-stream").send().await.unwrap();
    let header = |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    assert!(header("content-type").unwrap().starts_with("text/event-stream"));
    assert_eq!(header("cache-control").as_deref(), Some("no-cache, no-transform"));
    assert_eq!(header("x-accel-buffering").as_deref(), Some("no"));
    let mut events = Events::new(response);
    events.next().await.unwrap();
    assert!(events.asides.contains(&"retry: 2000".to_owned()), "{:?}", events.asides);
}

#[tokio::test]
async fn sec_15_a_ticket_opens_one_stream_of_one_session_once() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let (session, other) = (id(&api.create("/say x").await), id(&api.create("/say y").await));
    let stranger = api.anonymous();
    let open = |session: &str, ticket: &str| {
        let path = format!("/v1/sessions/{session}/events?until=idle&ticket={ticket}");
        stranger.request(reqwest::Method::GET, &path).header("accept", "text/event-stream")
    };
    let mint = async || {
        let made = api.post(&format!("/v1/sessions/{session}/events/tickets"), json!({})).await.expect(201);
        made["ticket"].as_str().unwrap().to_owned()
    };
    let ticket = mint().await;
    let frames = Events::new(open(&session, &ticket).send().await.unwrap()).all().await;
    assert_eq!(frames.last().unwrap().event, "turn.completed");
    stranger.send(open(&session, &ticket)).await.problem(401, "unauthenticated");
    let ticket = mint().await;
    stranger.send(open(&other, &ticket)).await.problem(401, "unauthenticated");
    let path = format!("/v1/sessions/{session}/events?token=x");
    stranger.get(&path).await.problem(401, "unauthenticated");
}

#[tokio::test]
async fn sec_15_a_revoked_key_loses_its_stream_within_seconds() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let session = id(&api.create("/say x").await);
    let key = home.make_key(&["--org", "default", "--role", "admin"]).await;
    let mut stream = server.api_with(&key).follow(&session, "").await;
    stream.until("turn.completed").await;
    let key_id = key.strip_prefix("ostler_").unwrap().rsplit_once('_').unwrap().0.to_owned();
    let revoked = home.command(&["keys", "revoke", &key_id]).output().await.unwrap();
    assert!(revoked.status.success());
    // The session does nothing more: only the revocation can end this.
    assert!(stream.next().await.is_none());
    server.api_with(&key).get("/v1/me").await.problem(401, "unauthenticated");
}

#[tokio::test]
async fn sec_15_a_revoked_key_loses_a_stream_that_never_pauses_as_well() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let session = id(&api.create_detached("/tokens 1000000 100").await);
    let key = home.make_key(&["--org", "default", "--role", "admin"]).await;
    let mut stream = server.api_with(&key).follow(&session, "").await;
    stream.until("text.delta").await;
    let key_id = key.strip_prefix("ostler_").unwrap().rsplit_once('_').unwrap().0.to_owned();
    assert!(home.command(&["keys", "revoke", &key_id]).output().await.unwrap().status.success());
    crate::support::within("the end of the stream", async { while stream.next().await.is_some() {} }).await;
    assert_eq!(api.session(&session).await["status"], "running", "the turn goes on");
}

#[tokio::test]
async fn row_76_a_transcript_folds_the_conversation_and_cuts_long_results() {
    let home = Home::new();
    let server = home.start().await;
    let api = server.api();
    let long = "x".repeat(12_500);
    let prompt = format!("/say hello\n/tool read {{\"path\":\"{long}\"}}\n/ask shell {{}}\n/say bye");
    let session = api.create(&prompt).await;
    api.decide(&id(&session["pending_approval"]), "deny").await.expect(200);
    let session = id(&session);
    api.until_status(&session, "idle").await;
    let transcript = api.get(&format!("/v1/sessions/{session}/transcript")).await.expect(200);
    let messages = transcript["data"].as_array().unwrap();
    let roles: Vec<_> = messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "tool", "approval", "assistant"]);
    let tool = &messages[2];
    assert_eq!((tool["name"].as_str(), tool["truncated"].as_bool()), (Some("read"), Some(true)));
    assert_eq!(messages[4]["approval"]["status"], "denied");
    assert_eq!(messages[5]["text"], "bye");
    // Page by page it is the same.
    let (mut paged, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = api.get(&format!("/v1/sessions/{session}/transcript?limit=2{cursor}")).await.expect(200);
        paged.extend(page["data"].as_array().unwrap().clone());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(&paged, messages);
}
