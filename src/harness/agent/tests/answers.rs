//! What the model says, and what comes of it.

use super::*;

#[tokio::test]
async fn an_answer_is_heard_as_it_comes_streamed_or_not() {
    for stream in [true, false] {
        let mut rig = Rig::with("", json!({}), stream).await;
        let seen = rig.turn("/say Hello there.\n/usage 7 3").await;
        assert!(seen.completed(), "{:?}", seen.ended);
        assert_eq!(words(&seen), "Hello there.");
        let usage = seen.outputs.iter().find_map(|output| match output {
            Output::Usage(usage) => Some((usage.input_tokens, usage.output_tokens, usage.complete)),
            _ => None,
        });
        assert_eq!(usage, Some((7, 3, true)));
        assert_eq!(rig.model.requests()[0]["stream"], json!(stream));
    }
}

#[tokio::test]
async fn a_tool_is_called_and_its_result_is_what_the_model_goes_on_from() {
    for stream in [true, false] {
        let mut rig = Rig::with("", json!({}), stream).await;
        let script = r#"/say I write.
/call write_file {"path": "a.txt", "content": "hello"}
/next
/call read_file {"path": "a.txt"}
/next
/say It says hello."#;
        let seen = rig.turn(script).await;
        assert!(seen.completed(), "{:?}", seen.ended);
        assert_eq!(rig.live.file("a.txt").unwrap(), "hello");
        assert_eq!(words(&seen), "I write.It says hello.");
        let statuses: Vec<_> = seen.tools().iter().map(|tool| (tool.name.as_str(), tool.status)).collect();
        assert_eq!(statuses, [("write_file", ToolStatus::Succeeded), ("read_file", ToolStatus::Succeeded)]);
        assert!(seen.order.contains(&"file.changed"));
        let messages = rig.last_messages();
        let roles: Vec<_> = messages.iter().map(|(role, _)| role.as_str()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool", "assistant", "tool"]);
        assert!(messages[5].1.contains("hello"), "{messages:?}");
    }
}

#[tokio::test]
async fn calls_of_one_answer_run_in_its_order_and_their_ids_are_told_apart() {
    let mut rig = Rig::new(json!({})).await;
    let script = r#"/id same
/call write_file {"path": "a", "content": "1"}
/id same
/call write_file {"path": "a", "content": "2"}
/next
/say done"#;
    let seen = rig.turn(script).await;
    assert!(seen.completed(), "{:?}", seen.ended);
    assert_eq!(rig.live.file("a").unwrap(), "2");
    let ids: Vec<_> = seen.tools().iter().map(|tool| tool.tool_call_id.clone()).collect();
    assert_eq!(ids, ["same", "same_2"]);
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_taken_back_and_comes_whole() {
    let mut rig = Rig::new(json!({})).await;
    let seen = rig.turn("/say one two three\n/cut 2").await;
    assert!(seen.completed(), "{:?}", seen.ended);
    assert_eq!(words(&seen), "one two three");
    let rewound = Output::TextRewound { length: 0, reason: RewindReason::Retried };
    assert!(seen.outputs.contains(&rewound), "{:?}", seen.outputs);
    assert_eq!(rig.model.count(), 2);
}

#[tokio::test]
async fn what_a_model_refuses_fails_the_turn_with_a_code_and_the_next_turn_works() {
    let mut rig = Rig::new(json!({})).await;
    for (script, code) in [
        ("/status 503", "model_unavailable"),
        ("/status 401", "model_rejected"),
        ("/error context_length_exceeded too long", "context_overflow"),
        ("/say a\n/error-mid broken", "model_rejected"),
    ] {
        let seen = rig.turn(script).await;
        assert_eq!(failure(&seen).0, code, "{script}: {:?}", seen.ended);
    }
    assert_eq!(words(&rig.turn("/say fine").await), "fine");
    assert_eq!(
        rig.turn("/say a\n/finish length").await.ended,
        Some(TurnOutcome::Completed { stop_reason: "max_tokens".into() })
    );
}

#[tokio::test]
async fn thoughts_are_forwarded_where_the_session_wants_them() {
    for forward in [false, true] {
        let mut rig = Rig::new(json!({"thinking": {"forward_to_frontend": forward}})).await;
        let seen = rig.turn("/think hm\n/say yes").await;
        assert_eq!(seen.order.contains(&"thinking.delta"), forward);
        assert_eq!(words(&seen), "yes");
    }
}

#[tokio::test]
async fn earlier_turns_are_remembered_as_the_settings_say() {
    for (more, remembered) in [
        (json!({}), 5),
        (json!({"history": {"enabled": false}}), 3),
        (json!({"history": {"enabled": false}, "memory": {"recent_turns": 1}}), 1),
        (json!({"history": {"enabled": false}, "memory": {"recent_turns": 0}}), 0),
        (json!({"memory": {"enabled": false}}), 0),
    ] {
        let mut rig = Rig::new(more.clone()).await;
        for n in 0..5 {
            rig.turn(&format!("/say answer {n}")).await;
        }
        rig.turn("/say last").await;
        let users = rig.last_messages().iter().filter(|(role, _)| role == "user").count();
        assert_eq!(users, remembered + 1, "{more}");
    }
}

#[tokio::test]
async fn row_96_a_prompt_that_stands_already_is_not_said_twice() {
    for stream in [true, false] {
        let mut rig = Rig::with("", json!({}), stream).await;
        let script = "/say fine\n/status 401 1";
        assert_eq!(failure(&rig.turn(script).await).0, "model_rejected");
        assert!(rig.turn(script).await.completed());
        let said: Vec<_> = rig.last_messages().into_iter().filter(|(role, _)| role == "user").collect();
        assert_eq!(said, [("user".to_owned(), script.to_owned())]);
    }
}

#[tokio::test]
async fn row_93_a_plan_is_made_first_and_is_part_of_what_the_model_is_given() {
    for stream in [true, false] {
        let mut rig = Rig::with("", json!({"planning": {"mode": "auto"}}), stream).await;
        let plan = r#"/plan {"mode": "plan", "reason": "two things", "steps": ["look", "tell"]}"#;
        let seen = rig.turn(&format!("{plan}\n/say told")).await;
        assert!(seen.completed(), "{:?}", seen.ended);
        assert_eq!(words(&seen), "told", "the plan is no part of the answer");
        assert!(seen.order.contains(&"plan.updated"));
        let requests = rig.model.requests();
        assert_eq!(requests[0]["response_format"], json!({"type": "json_object"}));
        assert!(requests[0].get("tools").is_none() && requests[1].get("tools").is_some());
        assert!(rig.last_messages()[2].1.ends_with("1. look\n2. tell"), "{:?}", rig.last_messages());

        let seen = rig.turn("/say direct").await;
        assert!(seen.completed() && !seen.order.contains(&"plan.updated"), "{:?}", seen.ended);
        let seen = rig.turn("/plan no JSON\n/say x").await;
        assert_eq!(failure(&seen).0, "plan_invalid");
    }
}

#[tokio::test]
async fn row_93_where_a_plan_is_always_made_a_direct_answer_is_none() {
    for stream in [true, false] {
        let mut rig = Rig::with("", json!({"planning": {"mode": "always"}}), stream).await;
        assert_eq!(failure(&rig.turn("/say x").await).0, "plan_invalid");
    }
}

#[tokio::test]
async fn row_94_an_answer_that_claims_too_much_goes_back_and_fails_when_it_comes_again() {
    for stream in [true, false] {
        let mut rig = Rig::with("", json!({}), stream).await;
        let repaired = "/say Here: [download](https://files/x)\n/next\n/say I have no such file.";
        let seen = rig.turn(repaired).await;
        assert!(seen.completed(), "{:?}", seen.ended);
        assert_eq!(words(&seen), "I have no such file.");
        assert!(rig.last_messages()[3].1.contains("https://files/x"), "{:?}", rig.last_messages());

        let twice = "/say [download](https://files/x)\n/next\n/say still [download](https://files/x)";
        let seen = rig.turn(twice).await;
        assert_eq!(failure(&seen).0, "verification_failed");

        let founded = r#"/call write_file {"path": "links", "content": "https://files/y"}
/next
/call read_file {"path": "links"}
/next
/say [download](https://files/y)"#;
        assert!(rig.turn(founded).await.completed());
    }
}

#[tokio::test]
async fn row_94_attempts_and_mode_are_the_session_s() {
    for stream in [true, false] {
        let claim = "/say [download](https://files/x)";
        let mut none = Rig::with("", json!({"verification": {"max_repair_attempts": 0}}), stream).await;
        assert_eq!(failure(&none.turn(claim).await).0, "verification_failed");
        assert_eq!(none.model.count(), 1);
        let mut off = Rig::with("", json!({"verification": {"mode": "off"}}), stream).await;
        assert!(off.turn(claim).await.completed());
    }
}

#[tokio::test]
async fn the_operator_s_command_has_a_word_in_it_where_the_session_wants_that() {
    let judge = "[project]\ncommand = [\"sh\", \"-c\", \"if grep -q answer.:.I.am; then echo '{\\\"ok\\\": true}'; else echo '{\\\"ok\\\": false, \\\"issue\\\": \\\"be polite\\\"}'; fi\"]";
    let mut rig = Rig::with(judge, json!({"verification": {"mode": "project"}}), true).await;
    let seen = rig.turn("/say No.\n/next\n/say I am afraid not, said politely.").await;
    assert!(seen.completed(), "{:?}", seen.ended);
    assert_eq!(words(&seen), "I am afraid not, said politely.");
    assert!(rig.last_messages()[3].1.contains("be polite"));
}
