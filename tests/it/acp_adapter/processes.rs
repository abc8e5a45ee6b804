//! Processes that fail to start, die, hang, or leave others behind.

use std::time::{Duration, Instant};

use ostler::domain::approval::Decision;
use ostler::domain::event::{Output, ToolStatus};
use ostler::harness::{HarnessEvent, StartError};
use serde_json::Value;

use super::rig::{FAKE, Rig, eventually, is_alive, text};
use crate::support::assert_soon;

fn code(error: &StartError) -> &str {
    &error.failure().code
}

#[tokio::test]
async fn row_17_a_missing_command_is_unavailable_and_not_a_failure() {
    for command in ["no-such-agent", "/no/such/agent"] {
        let error = Rig::with_command(&[command]).start_error(None).await;
        assert!(matches!(&error, StartError::Unavailable(failure) if failure.code == "harness_unavailable"));
        assert!(error.to_string().contains(command), "{error}");
    }
}

#[tokio::test]
async fn an_agent_that_is_not_ready_in_time_is_ended() {
    for mode in ["slow", "deaf"] {
        let rig = Rig::new(&[mode]).config("start_seconds = 1\n");
        let begun = Instant::now();
        let error = rig.start_error(None).await;
        assert_eq!(code(&error), "agent_start_timeout", "{mode}");
        assert_soon(begun.elapsed(), Duration::from_secs(5));
        rig.assert_nothing_runs();
    }
}

#[tokio::test]
async fn an_agent_that_fails_at_its_start_is_told_without_its_stderr() {
    let rig = Rig::new(&["early-death"]);
    let error = rig.start_error(None).await;
    assert_eq!(code(&error), "agent_start_failed");
    assert!(!error.to_string().contains("no key"), "{error}");
    let rig = Rig::new(&["version"]);
    let error = rig.start_error(None).await;
    assert_eq!(code(&error), "agent_protocol_error");
    assert!(error.to_string().contains("version 2"), "{error}");
    rig.assert_nothing_runs();
}

#[tokio::test]
async fn a_start_that_nobody_waits_for_leaves_nothing_behind() {
    let rig = Rig::new(&["deaf"]);
    let start = tokio::time::timeout(Duration::from_millis(300), rig.try_start(None)).await;
    assert!(start.is_err());
    eventually("the agent is gone", || rig.survivors().is_empty()).await;
}

#[tokio::test]
async fn row_84_an_agent_that_dies_in_mid_turn_is_told_after_its_last_words() {
    for (mode, words) in [("exit", "exited with code 3"), ("half", "exited with code 0")] {
        let rig = Rig::new(&[mode]);
        let mut agent = rig.start().await;
        agent.prompt("Hi").await;
        let (outputs, failure) = agent.until_exit().await;
        assert_eq!((text(&outputs).as_str(), failure.code.as_str()), ("hello", "agent_exited"), "{mode}");
        assert!(failure.message.ends_with(words) && failure.message.contains("fake"), "{failure:?}");
        assert_eq!(agent.try_prompt("Hi").await.unwrap_err().0.code, "agent_unreachable");
        agent.stop().await;
    }
}

#[tokio::test]
async fn row_84_the_questions_of_a_dead_agent_and_its_open_calls_are_closed() {
    let rig = Rig::new(&["script"]);
    let mut agent = rig.start().await;
    agent.prompt("open work\nrun make").await;
    let (_, request) = agent.until_asked().await;
    let pid = rig.survivors()[0];
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let begun = Instant::now();
    let (outputs, failure) = agent.until_exit().await;
    assert_soon(begun.elapsed(), Duration::from_secs(1));
    assert!(failure.message.ends_with("was killed by signal 9"), "{failure:?}");
    let failed =
        |output: &Output| matches!(output, Output::ToolCompleted(end) if end.status == ToolStatus::Failed);
    assert_eq!(outputs.iter().filter(|output| failed(output)).count(), 2, "{outputs:?}");
    let late = agent.answer(&request.native_id, Decision::Approve).await.unwrap_err();
    assert_eq!(late.0.code, "approval_unknown");
}

#[tokio::test]
async fn a_death_is_told_within_a_second_even_when_a_grandchild_holds_the_pipe() {
    for fork in ["fork", "fork-bare"] {
        let rig = Rig::new(&["script"]);
        let mut agent = rig.start().await;
        agent.turn(fork).await;
        let grandchild = rig.grandchild();
        assert!(is_alive(grandchild));
        let begun = Instant::now();
        agent.prompt("say last words\ndie").await;
        let (outputs, failure) = agent.until_exit().await;
        assert_soon(begun.elapsed(), Duration::from_secs(1));
        assert_eq!(text(&outputs), "last words");
        assert!(failure.message.ends_with("exited with code 3"), "{failure:?}");
        assert!(!failure.message.contains("dying"), "{failure:?}");
        if fork == "fork" {
            rig.assert_nothing_runs();
        } else {
            // Nothing marks it as the agent's once its parent has died by itself: the test cleans up after it.
            let pid = rustix::process::Pid::from_raw(grandchild.cast_signed()).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

#[tokio::test]
async fn row_85_a_stop_ends_also_what_left_the_group() {
    for fork in ["fork", "fork-bare"] {
        let rig = Rig::new(&["script"]);
        let mut agent = rig.start().await;
        agent.turn(fork).await;
        let grandchild = rig.grandchild();
        assert!(is_alive(grandchild), "{fork}");
        let begun = Instant::now();
        agent.stop().await;
        assert!(!is_alive(grandchild), "{fork}");
        rig.assert_nothing_runs();
        assert_soon(begun.elapsed(), Duration::from_secs(1));
        agent.stop().await;
        agent.ended().await;
    }
}

#[tokio::test]
async fn row_85_an_agent_that_will_not_go_is_killed() {
    let stay = [FAKE, "script", "--stay"];
    let deaf: Vec<&str> =
        ["/bin/sh", "-c", "trap '' TERM; exec \"$0\" \"$@\""].into_iter().chain(stay).collect();
    for (argv, at_most) in [(&stay[..], 2), (&deaf[..], 5)] {
        let rig = Rig::with_command(argv);
        let mut agent = rig.start().await;
        agent.turn("fork").await;
        let begun = Instant::now();
        agent.stop().await;
        rig.assert_nothing_runs();
        assert_soon(begun.elapsed(), Duration::from_secs(at_most));
    }
}

#[tokio::test]
async fn two_stops_at_once_both_return() {
    let rig = Rig::new(&["script", "--stay"]);
    let agent = rig.start().await;
    tokio::join!(agent.stop(), agent.stop());
    rig.assert_nothing_runs();
}

#[tokio::test]
async fn a_dropped_session_leaves_nothing_behind() {
    let rig = Rig::new(&["script", "--stay"]);
    let mut agent = rig.start().await;
    agent.turn("fork-bare").await;
    agent.prompt("deaf-cancel").await;
    let grandchild = rig.grandchild();
    drop(agent.session);
    eventually("all are gone", || rig.survivors().is_empty() && !is_alive(grandchild)).await;
}

#[tokio::test]
async fn an_agent_that_ignores_a_cancel_can_still_be_stopped() {
    let rig = Rig::new(&["script"]);
    let agent = rig.start().await;
    agent.prompt("deaf-cancel").await;
    agent.cancel().await;
    agent.stop().await;
    rig.assert_nothing_runs();
}

#[tokio::test]
async fn an_agent_that_closes_its_output_and_lives_is_ended() {
    let script = "\"$0\" \"$@\"; exec >&-; sleep 600";
    let rig = Rig::with_command(&["/bin/sh", "-c", script, FAKE, "exit"]);
    let mut agent = rig.start().await;
    agent.prompt("Hi").await;
    let begun = Instant::now();
    let (outputs, failure) = agent.until_exit().await;
    assert_eq!((text(&outputs).as_str(), failure.code.as_str()), ("hello", "agent_exited"));
    assert!(failure.message.contains("closed its output"), "{failure:?}");
    assert_soon(begun.elapsed(), Duration::from_secs(2));
    rig.assert_nothing_runs();
}

#[tokio::test]
async fn a_line_without_an_end_is_a_protocol_error() {
    for mode in ["huge", "endless"] {
        let rig = Rig::new(&[mode]);
        let mut agent = rig.start().await;
        agent.prompt("Hi").await;
        let (outputs, failure) = agent.until_exit().await;
        assert_eq!(
            (text(&outputs).as_str(), failure.code.as_str()),
            ("hello", "agent_protocol_error"),
            "{mode}"
        );
        rig.assert_nothing_runs();
    }
}

#[tokio::test]
async fn an_agent_that_does_not_read_is_ended_at_the_deadline() {
    let rig = Rig::new(&["plugged"]);
    let mut agent = rig.start().await;
    let error = agent.try_prompt(&"x".repeat(1 << 20)).await.unwrap_err();
    assert_eq!(error.0.code, "agent_unreachable");
    let (_, failure) = agent.until_exit().await;
    assert_eq!(failure.code, "agent_protocol_error");
    assert!(failure.message.contains("does not read"), "{failure:?}");
    rig.assert_nothing_runs();
}

#[tokio::test]
async fn two_agents_of_one_session_do_not_end_each_other() {
    let rig = Rig::new(&["script"]);
    let first = rig.start().await;
    let mut second = rig.start().await;
    first.stop().await;
    assert_eq!(second.turn("say here").await.text(), "here");
    second.stop().await;
}

#[tokio::test]
async fn a_stopped_agent_s_events_end_without_a_failure() {
    let rig = Rig::new(&["script"]);
    let mut agent = rig.start().await;
    agent.prompt("say one\nhang").await;
    let HarnessEvent::Output(_) = agent.next().await else { panic!("no output") };
    agent.stop().await;
    agent.ended().await;
    let state: Option<Value> = agent.session.detach().await.unwrap();
    assert!(state.is_some());
}
