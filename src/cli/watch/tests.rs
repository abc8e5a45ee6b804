use std::time::Duration;

use tokio::sync::mpsc;

use super::super::stub::{Reply, Seen, Stub, event, frame};
use super::*;

const WATCHED: Manner = Manner { quiet: false, wait_approvals: false };

fn begun() -> Begun {
    Begun { session: "ses_1".into(), turn: "trn_1".into(), after: 0 }
}

fn approval(status: &str) -> Value {
    json!({"id": "apr_1", "session_id": "ses_1", "turn_id": "trn_1", "tool": "shell", "title": "Run: ls", "kind": "execute",
           "status": status, "input": {"command": "ls"}, "input_digest": "sha256:1", "expires_at": null,
           "decided_by": "alice", "reason": null})
}

fn frames(events: &[Value]) -> String {
    format!("retry: 0\n\n{}", events.iter().map(frame).collect::<String>())
}

fn stream(events: &[Value]) -> Reply {
    Reply::Stream { frames: frames(events), cut: false }
}

fn asked(seq: i64) -> Value {
    event(seq, "approval.requested", json!({"approval": approval("pending")}))
}

fn resolved(seq: i64) -> Value {
    event(seq, "approval.resolved", json!({"approval": approval("approved")}))
}

fn completed(seq: i64) -> Value {
    event(seq, "turn.completed", json!({"stop_reason": "end_turn"}))
}

/// No test waits longer than this for what it waits for.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future).await.expect("it takes too long")
}

/// A session with one approval: it goes on when the decision arrives.
async fn session_that_asks(before: Vec<Value>, after: Vec<Value>) -> Stub {
    let (send, receive) = mpsc::unbounded_channel();
    send.send(frames(&before)).unwrap();
    let (mut receive, mut send) = (Some(receive), Some(send));
    Stub::serve(move |seen: &Seen| match seen.line().as_str() {
        "GET /v1/sessions/ses_1/events?after=0" => Reply::Live(receive.take().unwrap()),
        "GET /v1/approvals/apr_1" => Reply::json(200, approval("pending")),
        "POST /v1/approvals/apr_1/decision" => {
            send.take().unwrap().send(frames(&after)).unwrap();
            Reply::json(200, json!({"approval": approval("approved"), "idempotent": false}))
        }
        other => panic!("{other}"),
    })
    .await
}

#[tokio::test]
async fn a_turn_is_watched_over_a_cut_and_each_event_is_shown_once() {
    let events: Vec<Value> =
        (3..=8).map(|seq| event(seq, "text.delta", json!({"text": format!("{seq} ")}))).collect();
    let stub = Stub::start([
        Reply::Stream {
            frames: frames(
                &[
                    &[event(1, "session.created", json!({})), event(2, "turn.started", json!({}))],
                    &events[..3],
                ]
                .concat(),
            ),
            cut: true,
        },
        stream(&[&events[2..], &[completed(9)]].concat()),
    ])
    .await;
    let (mut terminal, out, err) = Terminal::kept(false, None);
    let exit = soon(watch(&stub.client(), &mut terminal, &begun(), WATCHED)).await.unwrap();
    assert_eq!(exit, Exit::Ok);
    // The line is open where the connection is lost, so that the note stands on its own.
    assert_eq!(out.text(), "3 4 5 \n6 7 8 \n");
    assert_eq!(err.text(), "connection lost; reconnecting\nturn completed (end_turn) · 7.0 s\n");
    assert_eq!(stub.lines()[1], "GET /v1/sessions/ses_1/events?after=5");
}

#[tokio::test]
async fn with_json_the_events_come_as_they_are_and_nothing_else() {
    let mut other = event(2, "text.delta", json!({"text": "of another turn"}));
    other["turn_id"] = json!("trn_0");
    let mine =
        [event(1, "turn.started", json!({})), event(3, "text.delta", json!({"text": "hi"})), completed(4)];
    let stub = Stub::start([stream(&[mine[0].clone(), other, mine[1].clone(), mine[2].clone()])]).await;
    let (mut terminal, out, err) = Terminal::kept(true, None);
    let exit = soon(watch(&stub.client(), &mut terminal, &begun(), WATCHED)).await.unwrap();
    let lines: Vec<Value> = out.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((exit, lines.as_slice(), err.text().as_str()), (Exit::Ok, &mine[..], ""));
}

#[tokio::test]
async fn each_end_of_a_turn_but_completion_is_a_failure() {
    for kind in ["turn.failed", "turn.cancelled", "turn.interrupted", "turn.timed_out"] {
        let stub = Stub::start([stream(&[event(1, kind, json!({"code": "x", "message": "y"}))])]).await;
        let (mut terminal, _, err) = Terminal::kept(false, None);
        let exit = soon(watch(&stub.client(), &mut terminal, &begun(), WATCHED)).await.unwrap();
        assert_eq!(exit, Exit::Failed, "{kind}");
        assert!(err.text().starts_with("turn "), "{kind}: {}", err.text());
    }
}

#[tokio::test]
async fn a_person_is_asked_and_the_turn_goes_on() {
    let stub = session_that_asks(vec![asked(1)], vec![resolved(2), completed(3)]).await;
    let (terminal, _, err) = Terminal::kept(false, Some(80));
    let mut terminal = terminal.with_person(&["what?", "approve it", "A"]);
    let exit = soon(watch(&stub.client(), &mut terminal, &begun(), WATCHED)).await.unwrap();
    assert_eq!(exit, Exit::Ok);
    let decision = stub.requests().into_iter().find(|seen| seen.method == "POST").unwrap();
    assert_eq!(decision.body, json!({"decision": "approve", "input_digest": "sha256:1"}));
    insta::assert_snapshot!(err.text().replace(": [", ":\n["), @r#"
    Approval needed: Run: ls
      shell (execute) · apr_1
      {
        "command": "ls"
      }
    [a]pprove  [d]eny [reason]  [s]kip:
    [a]pprove  [d]eny [reason]  [s]kip:
    [a]pprove  [d]eny [reason]  [s]kip: approved by alice: Run: ls
    turn completed (end_turn)
    "#);
}

#[tokio::test]
async fn a_denial_takes_the_persons_words() {
    let stub = session_that_asks(vec![asked(1)], vec![completed(2)]).await;
    let (terminal, _, _) = Terminal::kept(false, Some(80));
    let mut terminal = terminal.with_person(&["d not on a friday"]);
    soon(watch(&stub.client(), &mut terminal, &begun(), WATCHED)).await.unwrap();
    let decision = stub.requests().into_iter().find(|seen| seen.method == "POST").unwrap();
    assert_eq!(decision.body["decision"], "deny");
    assert_eq!(decision.body["reason"], "not on a friday");
}

#[tokio::test]
async fn a_question_that_somebody_else_answers_is_taken_back() {
    let (send, receive) = mpsc::unbounded_channel();
    send.send(frames(&[asked(1)])).unwrap();
    let mut receive = Some(receive);
    let stub = Stub::serve(move |seen: &Seen| match seen.line().as_str() {
        "GET /v1/approvals/apr_1" => {
            // Decided right after we have looked.
            send.send(frames(&[resolved(2), completed(3)])).unwrap();
            Reply::json(200, approval("pending"))
        }
        _ => Reply::Live(receive.take().unwrap()),
    })
    .await;
    let (terminal, _, err) = Terminal::kept(false, Some(80));
    let mut terminal = terminal.with_silent_person();
    let exit = soon(watch(&stub.client(), &mut terminal, &begun(), WATCHED)).await.unwrap();
    assert_eq!(exit, Exit::Ok);
    assert!(err.text().contains("[s]kip: \napproved by alice: Run: ls\n"), "{}", err.text());
}

#[tokio::test]
async fn nothing_runs_over_the_line_where_a_person_answers() {
    let meanwhile = event(2, "text.delta", json!({"text": "meanwhile"}));
    let stub = Stub::serve(move |seen: &Seen| match seen.line().as_str() {
        "GET /v1/approvals/apr_1" => Reply::json(200, approval("pending")),
        _ => stream(&[asked(1), meanwhile.clone(), resolved(3), completed(4)]),
    })
    .await;
    let (terminal, screen) = Terminal::kept_together(Some(80));
    let mut terminal = terminal.with_silent_person();
    soon(watch(&stub.client(), &mut terminal, &begun(), WATCHED)).await.unwrap();
    assert!(screen.text().contains("[s]kip: \nmeanwhile\napproved by alice"), "{}", screen.text());
}

#[tokio::test]
async fn where_nobody_can_be_asked_the_exit_code_says_that_an_approval_waits() {
    let stub = session_that_asks(vec![asked(1)], vec![]).await;
    let (mut terminal, out, err) = Terminal::kept(false, None);
    let exit = soon(watch(&stub.client(), &mut terminal, &begun(), WATCHED)).await.unwrap();
    assert_eq!((exit, out.text().as_str()), (Exit::WaitingForApproval, ""));
    assert!(err.text().contains("  ostler approve apr_1\n"), "{}", err.text());

    let stub = session_that_asks(vec![asked(1)], vec![]).await;
    let (mut terminal, _, _) = Terminal::kept(true, None);
    let error = soon(watch(&stub.client(), &mut terminal, &begun(), WATCHED)).await.unwrap_err();
    assert_eq!(error.exit(), Exit::WaitingForApproval);
    assert_eq!(error.json()["code"], "approval_pending");
    assert_eq!(error.json()["approval_ids"], json!(["apr_1"]));
}

#[tokio::test]
async fn where_it_is_told_to_wait_for_a_decision_it_does() {
    let stub = session_that_asks(vec![asked(1), resolved(2), completed(3)], vec![]).await;
    let (mut terminal, _, _) = Terminal::kept(false, None);
    let manner = Manner { quiet: false, wait_approvals: true };
    assert_eq!(soon(watch(&stub.client(), &mut terminal, &begun(), manner)).await.unwrap(), Exit::Ok);
}

#[tokio::test]
async fn a_question_that_is_settled_already_bothers_nobody() {
    let stub = Stub::serve(|seen: &Seen| match seen.line().as_str() {
        "GET /v1/approvals/apr_1" => Reply::json(200, approval("approved")),
        _ => stream(&[asked(1), resolved(2), completed(3)]),
    })
    .await;
    let (mut terminal, _, err) = Terminal::kept(false, None);
    assert_eq!(soon(watch(&stub.client(), &mut terminal, &begun(), WATCHED)).await.unwrap(), Exit::Ok);
    assert!(!err.text().contains("needed"), "{}", err.text());
}

#[tokio::test]
async fn a_session_that_is_stopped_ends_the_watching_of_a_turn_that_ended_with_it() {
    let stub = Stub::serve(|seen: &Seen| match seen.line().as_str() {
        "GET /v1/sessions/ses_1/turns/trn_1" => Reply::json(200, json!({"status": "cancelled"})),
        _ => stream(&[event(1, "session.stopped", json!({"cause": "user"}))]),
    })
    .await;
    let (mut terminal, _, _) = Terminal::kept(false, None);
    assert_eq!(soon(watch(&stub.client(), &mut terminal, &begun(), WATCHED)).await.unwrap(), Exit::Failed);
}

#[test]
fn only_a_clear_word_decides() {
    let approve = || Choice::Decide(Decision::Approve, None);
    for (line, meant) in [
        ("a\n", approve()),
        (" APPROVE ", approve()),
        ("y", approve()),
        ("d", Choice::Decide(Decision::Deny, None)),
        ("no  because  x", Choice::Decide(Decision::Deny, Some("because  x".into()))),
        ("s", Choice::Skip),
        ("", Choice::Unclear),
        ("approve unless it is friday", Choice::Unclear),
        ("ad", Choice::Unclear),
    ] {
        assert_eq!(choice(line), meant, "{line:?}");
    }
}
