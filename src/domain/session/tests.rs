use super::*;

const AT: Timestamp = Timestamp(7);
const TURN: Ordinal = Ordinal(1);

fn states() -> Vec<SessionState> {
    vec![
        SessionState::Idle,
        SessionState::Running { turn: TURN },
        SessionState::AwaitingApproval { turn: TURN },
        SessionState::Stopped { cause: StopCause::User, at: AT },
        SessionState::Errored { failure: Failure::new("harness_failed", "no"), at: AT },
        SessionState::Destroyed { at: AT },
    ]
}

fn transitions() -> Vec<(&'static str, Transition)> {
    vec![
        ("queue", Transition::Queue { turn: Ordinal(2) }),
        ("ask", Transition::Ask),
        ("answer, others wait", Transition::Answer { others_wait: true }),
        ("answer, the last", Transition::Answer { others_wait: false }),
        ("end turn, more queued", Transition::EndTurn { next: Some(Ordinal(2)) }),
        ("end turn, the last", Transition::EndTurn { next: None }),
        ("fail", Transition::Fail { failure: Failure::new("harness_failed", "no"), at: AT }),
        ("stop", Transition::Stop { cause: StopCause::User, at: AT }),
        ("destroy", Transition::Destroy { at: AT }),
    ]
}

/// The lifecycle as ARCHITECTURE.md shows it.
fn table() -> String {
    let mut rows = String::from("| from | ");
    rows += &transitions().iter().map(|(name, _)| *name).collect::<Vec<_>>().join(" | ");
    rows += " |\n";
    rows += &"|---".repeat(transitions().len() + 1);
    rows += "|\n";
    for state in states() {
        let cells: Vec<String> = transitions()
            .into_iter()
            .map(|(_, transition)| match state.clone().apply(transition) {
                Ok(next) => match next.turn() {
                    Some(Ordinal(turn)) => format!("{} #{turn}", next.status()),
                    None => next.status().to_string(),
                },
                Err(_) => "·".to_owned(),
            })
            .collect();
        rows += &format!("| **{}** | {} |\n", state.status(), cells.join(" | "));
    }
    rows
}

#[test]
fn the_lifecycle_table_in_the_architecture_page_is_the_one_that_the_code_has() {
    let page = include_str!("../../ARCHITECTURE.md");
    assert!(page.contains(&table()), "src/ARCHITECTURE.md must hold this table:\n{}", table());
}

#[test]
fn nothing_leaves_destroyed() {
    for (name, transition) in transitions() {
        assert!(SessionState::Destroyed { at: AT }.apply(transition).is_err(), "{name}");
    }
}

#[test]
fn row_6_a_follow_up_takes_a_stopped_or_errored_session_back_and_the_stop_is_forgotten() {
    for state in states().into_iter().skip(3).take(2) {
        let running = state.apply(Transition::Queue { turn: Ordinal(2) }).unwrap();
        assert_eq!(running.apply(Transition::EndTurn { next: None }).unwrap(), SessionState::Idle);
    }
}

#[test]
fn a_prompt_that_waits_does_not_change_the_turn_at_work() {
    let busy = SessionState::AwaitingApproval { turn: TURN };
    assert_eq!(busy.clone().apply(Transition::Queue { turn: Ordinal(9) }).unwrap(), busy);
}

#[test]
fn every_status_is_read_back_from_its_name_and_no_other_word_is_one() {
    for status in SessionStatus::ALL {
        assert_eq!(SessionStatus::parse(status.as_str()), Some(*status));
    }
    assert_eq!(SessionStatus::parse("weird"), None);
}
