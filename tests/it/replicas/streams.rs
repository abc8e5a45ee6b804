//! Event streams at replicas that do not hold their session: each event once, in order, as it happens.

use reqwest::Method;
use serde_json::{Value, json};

use super::{LONG, begin, create_at, id, idle_at, number, one_log, poll, prompts};
use crate::support::api::Api;
use crate::support::fleet::Fleet;
use crate::support::sse::{Events, Frame};
use crate::support::within;

async fn fleet(hints: &str) -> Fleet {
    Fleet::of(3).with(LONG).with_variable("OSTLER_HINTS", hints).start().await
}

/// The frames of a stream are those events, each once and in their order.
fn assert_frames_are(frames: &[Frame], events: &[Value]) {
    let shown: Vec<_> = frames.iter().map(|frame| &frame.data).collect();
    assert_eq!(shown, events.iter().collect::<Vec<_>>());
    assert!(frames.iter().all(|frame| frame.data["seq"] == frame.id && frame.data["type"] == *frame.event));
}

/// Follows a session elsewhere while it works, asks, is answered and works on.
async fn follow_elsewhere(hints: &str) {
    let fleet = fleet(hints).await;
    let session = idle_at(&fleet, 0).await;
    let mut streams =
        [fleet.api(1).follow(&session, "").await, fleet.api(2).follow(&session, "?after=3").await];
    let mut frames = [Vec::new(), Vec::new()];
    let body = json!({"prompt": "/tokens 50 200\n/ask shell {}\n/tokens 50 200\n/ask shell {}\n/say done"});
    fleet.api(0).post(&prompts(&session), body).await.expect(202);
    for _ in 0..2 {
        // The turn waits for its answer: what is shown up to here is shown while it is at work.
        for (stream, frames) in streams.iter_mut().zip(&mut frames) {
            frames.extend(stream.until("approval.requested").await);
        }
        let approval = id(&fleet.api(2).session(&session).await["pending_approval"]);
        fleet.api(2).decide(&approval, "approve").await.expect(200);
    }
    for (stream, frames) in streams.iter_mut().zip(&mut frames) {
        frames.extend(stream.until("approval.delivered").await);
        frames.extend(stream.until("turn.completed").await);
    }
    let log = one_log(&fleet, &[0, 1, 2], &session).await;
    // The first turn had ended, and was read from the table.
    assert_frames_are(&frames[0], &log);
    assert_frames_are(&frames[1], &log[3..]);
}

#[tokio::test]
async fn f43_a_stream_elsewhere_shows_each_event_once_in_order_as_it_happens() {
    follow_elsewhere("on").await;
}

#[tokio::test]
async fn f43_a_stream_elsewhere_shows_each_event_once_in_order_without_hints_as_well() {
    follow_elsewhere("off").await;
}

/// The events of a POST that is answered as a stream.
async fn stream_of(api: &Api, session: &str, prompt: &str) -> Events {
    let request = api.request(Method::POST, &prompts(session)).header("accept", "text/event-stream");
    let response = within("a stream", request.json(&json!({"prompt": prompt})).send()).await.unwrap();
    assert_eq!(response.status(), 200);
    Events::new(response)
}

async fn stream_a_prompt_elsewhere(hints: &str) {
    let fleet = fleet(hints).await;
    let session = idle_at(&fleet, 0).await;
    let mut stream = stream_of(&fleet.api(1), &session, "/say one\n/ask shell {}\n/tokens 50 200").await;
    let mut frames = stream.until("approval.requested").await;
    let approval = frames.last().unwrap().data["data"]["approval"]["id"].as_str().unwrap().to_owned();
    fleet.api(2).decide(&approval, "approve").await.expect(200);
    frames.extend(stream.all().await);
    let log = one_log(&fleet, &[0, 1, 2], &session).await;
    let turn = &log.last().unwrap()["turn_id"];
    let of_turn: Vec<Value> = log.iter().filter(|event| event["turn_id"] == *turn).cloned().collect();
    assert_eq!(of_turn.last().unwrap()["type"], "turn.completed");
    assert_frames_are(&frames, &of_turn);
}

#[tokio::test]
async fn f22_a_prompt_sent_elsewhere_is_answered_with_the_stream_of_its_turn() {
    stream_a_prompt_elsewhere("on").await;
}

#[tokio::test]
async fn f22_a_prompt_sent_elsewhere_is_answered_with_the_stream_of_its_turn_without_hints_as_well() {
    stream_a_prompt_elsewhere("off").await;
}

/// A reader whose connection is cut after a few events, again and again, and that goes on at another replica each time.
async fn wander(hints: &str) {
    let fleet = fleet(hints).await;
    let cuts = number("OSTLER_CUTS", 40);
    let session = idle_at(&fleet, 0).await;
    let mut seen = one_log(&fleet, &[0], &session).await;
    // About one cut for every few events, while they come.
    let prompt = format!("/tokens {} 200\n/say over", cuts * 5);
    fleet.api(0).post(&prompts(&session), json!({"prompt": prompt})).await.expect(202);
    let mut visits = 0;
    let mut over = false;
    while !over {
        let api = fleet.api(visits % 3).with_header("last-event-id", &seen.len().to_string());
        let mut stream = api.follow(&session, "").await;
        for _ in 0..1 + visits % 7 {
            let frame = stream.next().await.unwrap();
            assert_eq!(frame.id, i64::try_from(seen.len()).unwrap() + 1);
            over = frame.event == "turn.completed";
            seen.push(frame.data);
            if over {
                break;
            }
        }
        visits += 1;
    }
    assert_eq!(seen, one_log(&fleet, &[0, 1, 2], &session).await);
    println!("{} events over {visits} connections", seen.len());
}

#[tokio::test]
async fn f41_a_reader_that_is_moved_between_replicas_sees_each_event_once() {
    wander("on").await;
}

#[tokio::test]
async fn f41_a_reader_that_is_moved_between_replicas_sees_each_event_once_without_hints_as_well() {
    wander("off").await;
}

/// A session is purged at one replica while it is followed, and waited for, at another that looks only when all is gone.
async fn purge_while_followed(hints: &str) {
    let mut fleet = fleet(hints).await;
    let session = idle_at(&fleet, 0).await;
    begin(&fleet.api(0), &session, "/say on\n/hang").await;
    let mut streams = Vec::new();
    for i in 0..3 {
        let mut stream = fleet.api(i).follow(&session, "").await;
        stream.until("text.delta").await;
        streams.push(stream);
    }
    let (slow, path) = (fleet.api(2), prompts(&session));
    let body = json!({"prompt": "/say x", "when_busy": "queue"});
    let waiting = tokio::spawn(async move { slow.post_and_wait(&path, body).await });
    poll("the prompt to be taken", async || {
        (fleet.api(1).session(&session).await["queued_turns"] == 1).then_some(())
    })
    .await;
    fleet.stop(2);
    fleet.api(1).delete(&format!("/v1/sessions/{session}?purge=true")).await.expect(204);
    fleet.cont(2);
    for stream in streams {
        // Whether the last events were still there to be shown is a matter of luck; that no more are to come is not.
        stream.all().await;
    }
    waiting.await.unwrap().problem(404, "not_found");
}

#[tokio::test]
async fn a_stream_elsewhere_ends_when_its_session_is_purged() {
    purge_while_followed("on").await;
}

#[tokio::test]
async fn a_stream_elsewhere_ends_when_its_session_is_purged_without_hints_as_well() {
    purge_while_followed("off").await;
}

#[tokio::test]
async fn a_stream_elsewhere_that_is_to_end_with_the_work_ends_when_the_holder_has_done_it() {
    let fleet = fleet("off").await;
    let asked = create_at(&fleet, 0, "/ask shell {}\n/say done").await;
    let stream = fleet.api(1).follow(&id(&asked), "?until=idle").await;
    let paused = fleet.api(2).follow(&id(&asked), "?until=pause").await.all().await;
    assert_eq!(paused.last().unwrap().event, "approval.requested");
    fleet.api(2).decide(&id(&asked["pending_approval"]), "approve").await.expect(200);
    let frames = stream.all().await;
    assert_frames_are(&frames, &one_log(&fleet, &[0, 1, 2], &id(&asked)).await);
}
