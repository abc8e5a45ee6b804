//! Every behaviour that some agent has, one row each: what the agent does, what the person does about it, and what must come of it, in
//! order. What agents were seen to do is in the names; a row holds for every agent that does the same.

use std::collections::{BTreeMap, HashSet};

use ostler::domain::approval::{Decision, PermissionMode};
use ostler::domain::event::{Output, ToolStatus};
use ostler::harness::{ApprovalRequest, Continuity, HarnessEvent, TurnOutcome};
use serde_json::{Value, json};

use super::rig::{Agent, Rig};

mod rows;

use self::rows::{ENDS, REST};

/// What the person does about a question.
#[derive(Clone, Copy)]
enum Move {
    Approve,
    Deny,
    ApproveBy(&'static str),
    CancelTurn,
    Wait,
}

struct Row {
    name: &'static str,
    flags: &'static [&'static str],
    /// Scripts of the fake agent, one a turn. Where it says "cancel me", the turn is cancelled.
    prompts: &'static [&'static str],
    /// For the questions in their order; the last one stands for those that follow.
    moves: &'static [Move],
    /// All that comes out, see [`word`].
    comes: &'static [&'static str],
    /// How often the agent's own record says that it did something.
    effects: usize,
}

const ROW: Row = Row { name: "", flags: &[], prompts: &[], moves: &[Move::Wait], comes: &[], effects: 0 };

const ASKED: &str = r#"asked Run: make, execute, {"command":"make"} [yes-always yes no]"#;
/// A question without a word about its call before or after it.
const LS: &str = r#"asked ls, execute, {"command":"ls"} [once always no]"#;

macro_rules! ask_ls {
    ($id:literal, $options:literal) => {
        concat!(
            "ask ",
            $id,
            " ",
            $options,
            r#" {"toolCallId":"c","title":"ls","kind":"execute","rawInput":{"command":"ls"}}"#
        )
    };
}

macro_rules! ls {
    () => {
        ask_ls!("0", "once:allow_once,always:allow_always,no:reject_once")
    };
}

macro_rules! one_option_row {
    ($name:literal, $options:literal, $shown:literal, $did:expr, $heard:literal) => {
        Row {
            name: $name,
            prompts: &[concat!(ask_ls!("0", $options), "\nheard 0")],
            moves: &[$did],
            comes: &[
                concat!(r#"asked ls, execute, {"command":"ls"} ["#, $shown, "]"),
                concat!("say heard ", $heard),
                "end end_turn",
            ],
            ..ROW
        }
    };
}

const PERMISSIONS: &[Row] = &[
    Row {
        name: "claude, opencode, qwen: the call, then the question",
        prompts: &["run make"],
        moves: &[Move::Approve],
        comes: &["started Run: make, execute", ASKED, "ended Run: make, succeeded", "end end_turn"],
        effects: 1,
        ..ROW
    },
    Row {
        name: "codex: the question, under a UUID, then the call",
        prompts: &["permission-first make"],
        moves: &[Move::Approve],
        comes: &[ASKED, "started Run: make, execute", "ended Run: make, succeeded", "end end_turn"],
        effects: 1,
        ..ROW
    },
    Row {
        name: "gemini: a question without an input, never a call, only updates of it",
        prompts: &[concat!(
            r#"ask 0 always:allow_always,once:allow_once,cancel:reject_once {"toolCallId":"g","title":"ls -l","kind":"execute","#,
            r#""status":"pending","content":[{"type":"content","content":{"type":"text","text":"ls -l"}}]}"#,
            "\nheard 0\n",
            r#"update {"sessionUpdate":"tool_call_update","toolCallId":"g","status":"in_progress"}"#,
            "\n",
            r#"update {"sessionUpdate":"tool_call_update","toolCallId":"g","status":"completed"}"#,
        )],
        moves: &[Move::Approve],
        comes: &[
            r#"asked ls -l, execute, [{"content":{"text":"ls -l","type":"text"},"type":"content"}] [always once cancel]"#,
            "say heard once",
            "started ls -l, execute",
            "ended ls -l, succeeded",
            "end end_turn",
        ],
        ..ROW
    },
    Row {
        name: "a question that is all there ever is of its call",
        prompts: &[concat!(ls!(), "\nheard 0")],
        moves: &[Move::Approve],
        comes: &[LS, "say heard once", "end end_turn"],
        ..ROW
    },
    Row {
        name: "a question without a call, options, or anything else",
        prompts: &[concat!(
            r#"put {"jsonrpc":"2.0","id":"x","method":"session/request_permission","params":{}}"#,
            "\nheard \"x\""
        )],
        moves: &[Move::Approve],
        comes: &["asked tool, other, null []", "say heard cancelled", "end end_turn"],
        ..ROW
    },
    Row {
        name: "an id that comes again once it was answered, as in each new process",
        prompts: &[concat!(ls!(), "\nheard 0\n", ls!(), "\nheard 0"), concat!(ls!(), "\nheard 0")],
        moves: &[Move::Approve, Move::Deny, Move::Approve],
        comes: &[
            LS,
            "say heard once",
            LS,
            "say heard no",
            "end end_turn",
            LS,
            "say heard once",
            "end end_turn",
        ],
        ..ROW
    },
    Row {
        name: "the same id twice at once: each question gets an answer of its own",
        prompts: &[concat!(ls!(), "\n", ls!(), "\nheard 0\nheard 0")],
        moves: &[Move::Approve, Move::Deny],
        comes: &[LS, LS, "say heard once", "say heard no", "end end_turn"],
        ..ROW
    },
    Row {
        name: "the same id twice at once, and taken back: both are void, and both are answered",
        prompts: &[concat!(
            ls!(),
            "\n",
            ls!(),
            "\n",
            r#"put {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":0}}"#,
            "\nheard 0\nheard 0"
        )],
        comes: &[
            LS,
            LS,
            "withdrawn",
            "withdrawn",
            "say heard error -32800",
            "say heard error -32800",
            "end end_turn",
        ],
        ..ROW
    },
    Row {
        name: "claude 0.101, codex 2.6: a question is taken back in mid-turn",
        prompts: &["withdraw make\nsay on"],
        comes: &[ASKED, "withdrawn", "say withdrawn -32800", "say on", "end end_turn"],
        ..ROW
    },
    Row {
        name: "something is taken back that was never asked, or by no id",
        prompts: &[concat!(
            r#"put {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":77}}"#,
            "\n",
            r#"put {"jsonrpc":"2.0","method":"$/cancel_request"}"#,
            "\nsay on"
        )],
        comes: &["say on", "end end_turn"],
        ..ROW
    },
    Row {
        name: "a turn that ends over its own open question: the question is void, and the agent hears of it",
        prompts: &[ls!(), "heard 0\nsay on"],
        comes: &[LS, "withdrawn", "end end_turn", "say heard cancelled", "say on", "end end_turn"],
        ..ROW
    },
    one_option_row!(
        "claude 0.23, gemini: allow_always stands first, and is not taken for it",
        "all:allow_always,one:allow_once,no:reject_once",
        "all one no",
        Move::Approve,
        "one"
    ),
    one_option_row!(
        "the refusals stand first",
        "never:reject_always,no:reject_once,one:allow_once",
        "never no one",
        Move::Approve,
        "one"
    ),
    one_option_row!(
        "qwen: two of kind allow_once, the first of which is meant",
        "one:allow_once,mode:allow_once,no:reject_once",
        "one mode no",
        Move::Approve,
        "one"
    ),
    one_option_row!(
        "qwen: the second one, where a person chose it",
        "one:allow_once,mode:allow_once,no:reject_once",
        "one mode no",
        Move::ApproveBy("mode"),
        "mode"
    ),
    one_option_row!(
        "an option that is not on the list is not said",
        "one:allow_once,no:reject_once",
        "one no",
        Move::ApproveBy("sudo"),
        "one"
    ),
    one_option_row!(
        "an option that says the opposite is not said",
        "one:allow_once,no:reject_once",
        "one no",
        Move::ApproveBy("no"),
        "one"
    ),
    one_option_row!(
        "no allow_always, no reject_always",
        "one:allow_once,no:reject_once",
        "one no",
        Move::Deny,
        "no"
    ),
    one_option_row!("only for always, and a yes", "all:allow_always", "all", Move::Approve, "all"),
    one_option_row!(
        "only yeses, and a no",
        "all:allow_always,one:allow_once",
        "all one",
        Move::Deny,
        "cancelled"
    ),
    one_option_row!("only a no for always", "never:reject_always", "never", Move::Deny, "never"),
    one_option_row!(
        "kinds that nobody knows are not chosen",
        "some:allow_sometimes,soft:reject_softly",
        "",
        Move::Approve,
        "cancelled"
    ),
    one_option_row!(
        "a kind that nobody knows beside others",
        "some:allow_most,no:reject_once",
        "no",
        Move::Deny,
        "no"
    ),
    one_option_row!("no options at all, and a yes", "-", "", Move::Approve, "cancelled"),
    one_option_row!("no options at all, and a no", "-", "", Move::Deny, "cancelled"),
    Row {
        name: "claude, gemini: a denied tool is told to the model, and the turn goes on",
        prompts: &["run make\nsay another way"],
        moves: &[Move::Deny],
        comes: &[
            "started Run: make, execute",
            ASKED,
            "ended Run: make, failed",
            "say another way",
            "end end_turn",
        ],
        ..ROW
    },
    Row {
        name: "opencode, qwen: a denied tool ends the turn without a word",
        prompts: &["run make", "say on"],
        moves: &[Move::Deny],
        comes: &[
            "started Run: make, execute",
            ASKED,
            "ended Run: make, failed",
            "end end_turn",
            "say on",
            "end end_turn",
        ],
        ..ROW
    },
    Row {
        name: "codex: a denied tool ends the turn as cancelled, though nobody cancelled it",
        prompts: &["deny-ends\npermission-first make\nsay never", "say on"],
        moves: &[Move::Deny],
        comes: &[ASKED, "end cancelled", "say on", "end end_turn"],
        ..ROW
    },
];

const CANCELS: &[Row] = &[
    Row {
        name: "all: cancelled in mid-stream",
        prompts: &["say cancel me\nhang", "say on"],
        comes: &["say cancel me", "cancelled", "say on", "end end_turn"],
        ..ROW
    },
    Row {
        name: "claude, opencode, qwen, codex: the turn ends before the question is answered, which it is, or the next one would wait",
        prompts: &[
            concat!(ls!(), "\nawait-cancel\n", r#"end {"stopReason":"cancelled"}"#),
            concat!("heard 0\n", ls!(), "\nheard 0"),
        ],
        moves: &[Move::CancelTurn, Move::Approve],
        comes: &[LS, "cancelled", "say heard cancelled", LS, "say heard once", "end end_turn"],
        ..ROW
    },
    Row {
        name: "gemini: the turn ends only after the question was answered as cancelled",
        prompts: &[concat!(ls!(), "\nheard 0\n", r#"end {"stopReason":"cancelled"}"#), "say on"],
        moves: &[Move::CancelTurn],
        comes: &[LS, "say heard cancelled", "cancelled", "say on", "end end_turn"],
        ..ROW
    },
    Row {
        name: "claude 0.101, codex 2.6: the question is taken back after the cancel has answered it",
        prompts: &[
            concat!(
                ls!(),
                "\nawait-cancel\n",
                r#"put {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":0}}"#,
                "\nheard 0\n",
                r#"end {"stopReason":"cancelled"}"#
            ),
            "say on",
        ],
        moves: &[Move::CancelTurn],
        comes: &[LS, "say heard cancelled", "cancelled", "say on", "end end_turn"],
        ..ROW
    },
    Row {
        name: "two questions wait, and both are answered by the cancel",
        prompts: &[concat!(
            ls!(),
            "\n",
            ask_ls!("1", "once:allow_once,always:allow_always,no:reject_once"),
            "\nheard 1\nheard 0\n",
            r#"end {"stopReason":"cancelled"}"#
        )],
        moves: &[Move::Wait, Move::CancelTurn],
        comes: &[LS, LS, "say heard cancelled", "say heard cancelled", "cancelled"],
        ..ROW
    },
    Row {
        name: "a question that comes after the cancel is answered like those before",
        prompts: &[concat!(
            "say cancel me\nawait-cancel\n",
            ls!(),
            "\nheard 0\n",
            r#"end {"stopReason":"cancelled"}"#
        )],
        comes: &["say cancel me", "say heard cancelled", "cancelled"],
        ..ROW
    },
    Row {
        name: "words and the end of a call that come after the cancel still count",
        prompts: &[concat!(
            r#"update {"sessionUpdate":"tool_call","toolCallId":"c","title":"ls"}"#,
            "\nsay cancel me\nawait-cancel\nsay at last\n",
            r#"update {"sessionUpdate":"tool_call_update","toolCallId":"c","status":"completed"}"#,
            "\n",
            r#"end {"stopReason":"cancelled"}"#
        )],
        comes: &["started ls, other", "say cancel me", "say at last", "ended ls, succeeded", "cancelled"],
        ..ROW
    },
    Row {
        name: "the turn was done before the cancel came",
        prompts: &["say cancel me\nawait-cancel\nsay done", "stop cancelled"],
        comes: &["say cancel me", "say done", "end end_turn", "end cancelled"],
        ..ROW
    },
    Row {
        name: "the prompt is answered with the error for what was cancelled",
        prompts: &["say cancel me\nawait-cancel\nerror -32800 aborted", "error -32800 aborted"],
        comes: &["say cancel me", "cancelled", "failed agent_error: aborted"],
        ..ROW
    },
    Row {
        name: "claude 0.23.1: each prompt after a cancel is answered with the end of the one before, and worked at outside",
        flags: &["--off-by-one"],
        prompts: &["say cancel me\nhang", "say late", "say later"],
        comes: &["say cancel me", "cancelled", "end end_turn", "say late", "end end_turn", "say later"],
        ..ROW
    },
    Row {
        name: "an agent that has nothing to say to the first prompt after a cancel",
        prompts: &["say cancel me\nhang", "end {\"stopReason\":\"end_turn\"}", "say on"],
        comes: &["say cancel me", "cancelled", "end end_turn", "say on", "end end_turn"],
        ..ROW
    },
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn questions_of_every_form_are_asked_and_answered_once() {
    check(PERMISSIONS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_ends_the_turn_and_leaves_an_agent_that_works() {
    check(CANCELS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_ends_once_in_the_agent_s_own_words_or_with_an_error() {
    check(ENDS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_agents_do_beside_the_protocol_does_no_harm() {
    check(REST).await;
}

#[tokio::test]
async fn a_conversation_is_lost_under_whatever_code_the_agent_does_not_know_it() {
    for (code, way) in [
        ("-32002", "--resume"),
        ("-32603", "--load"),
        ("400", "--resume"),
        ("-32602", "--load"),
        ("1001", "--resume"),
        ("-32800", "--load"),
    ] {
        let rig = Rig::new(&["script", way]);
        let mut agent = rig.start().await;
        agent.turn("remember blue").await;
        let state = agent.session.detach().await.unwrap();
        agent.stop().await;
        let rig = rig.command(&["script", way, "--unknown", code]);
        let mut agent = rig.take_up(state).await;
        let reason = "no such conversation".to_owned();
        assert_eq!(agent.continuity, Continuity::Lost { reason }, "{code}");
        assert_eq!(agent.turn("recall").await.text(), "NOTHING", "{code}");
        agent.stop().await;
    }
}

#[tokio::test]
async fn an_agent_that_speaks_another_version_is_refused_with_a_clear_code() {
    for version in ["0", "2", "99", "\"1\"", "null"] {
        let rig = Rig::new(&["script", "--version", version]);
        let error = rig.start_error(None).await;
        assert_eq!(error.failure().code, "agent_protocol_error", "{version}");
        assert!(error.failure().message.contains(&format!("speaks version {version}")), "{error}");
        rig.assert_nothing_runs();
    }
}

#[tokio::test]
async fn a_start_that_outlasts_another_agent_s_whole_turn_is_waited_for() {
    let slow = Rig::new(&["script", "--wait-for", "go"]);
    let starting = async {
        let mut agent = slow.start().await;
        let turn = agent.turn("say at last").await;
        agent.stop().await;
        turn.text()
    };
    let other = async {
        let rig = Rig::new(&["script"]);
        let mut agent = rig.start().await;
        let turn = agent.turn("say quick").await;
        agent.stop().await;
        std::fs::write(slow.path("go"), "").unwrap();
        turn.text()
    };
    assert_eq!(tokio::join!(starting, other), ("at last".to_owned(), "quick".to_owned()));
}

#[tokio::test]
async fn an_agent_that_loses_count_after_a_cancel_gets_no_prompt_after_it() {
    let rig = Rig::new(&["script", "--off-by-one"]).config("restart_after_cancel = true\n");
    let mut agent = rig.start().await;
    agent.turn("remember blue").await;
    agent.cancel().await;
    assert!(!agent.session.is_spent(), "nothing was at work, and the agent was told nothing");
    agent.prompt("hang").await;
    agent.cancel().await;
    assert_eq!(agent.until_end().await.outcome, TurnOutcome::Cancelled);
    assert!(agent.session.is_spent());
    let state = agent.session.detach().await.unwrap();
    agent.stop().await;
    let mut next = rig.take_up(state).await;
    assert_eq!((next.turn("recall").await.text().as_str(), next.session.is_spent()), ("blue", false));
    next.stop().await;
}

async fn check(rows: &[Row]) {
    for row in rows {
        let flags: Vec<&str> = ["script"].iter().chain(row.flags).copied().collect();
        let rig = Rig::new(&flags).mode(PermissionMode::Ask);
        let mut told = Told { agent: rig.start().await, came: Vec::new(), ids: HashSet::new(), asked: 0 };
        for prompt in row.prompts {
            told.agent.prompt(prompt).await;
            while !told.next(row).await {}
        }
        while told.came.len() < row.comes.len() {
            told.next(row).await;
        }
        assert_eq!(told.came, row.comes, "{}", row.name);
        assert_eq!(rig.effects().len(), row.effects, "{}", row.name);
        told.agent.stop().await;
        rig.assert_nothing_runs();
        let more = told.agent.events.recv().await;
        assert!(more.is_none(), "{}: and then {more:?}", row.name);
    }
}

struct Told {
    agent: Agent,
    came: Vec<String>,
    ids: HashSet<String>,
    asked: usize,
}

impl Told {
    /// Takes the next event and does what the row says about it; true when it was the end of a turn.
    async fn next(&mut self, row: &Row) -> bool {
        let event = self.agent.next().await;
        self.came.extend(word(&event));
        match event {
            HarnessEvent::Output(Output::TextDelta { text }) if text == "cancel me" => {
                self.agent.cancel().await
            }
            HarnessEvent::ApprovalRequested(request) => self.decide(&request, row).await,
            HarnessEvent::TurnEnded(_) | HarnessEvent::Exited(_) => return true,
            _ => {}
        }
        false
    }

    async fn decide(&mut self, request: &ApprovalRequest, row: &Row) {
        assert!(self.ids.insert(request.native_id.clone()), "{}: an id of ours comes twice", row.name);
        let did = row.moves[self.asked.min(row.moves.len() - 1)];
        self.asked += 1;
        let id = &request.native_id;
        let answered = match did {
            Move::Approve => self.agent.answer(id, Decision::Approve).await,
            Move::Deny => self.agent.answer(id, Decision::Deny).await,
            Move::ApproveBy(option) => self.agent.answer_with(id, Decision::Approve, Some(option)).await,
            Move::CancelTurn => return self.agent.cancel().await,
            Move::Wait => return,
        };
        answered.unwrap_or_else(|error| panic!("{}: {error:?}", row.name));
        let again = self.agent.answer(id, Decision::Approve).await.unwrap_err();
        assert_eq!(again.0.code, "approval_unknown", "{}: it can be answered twice", row.name);
    }
}

/// An event in a few words.
fn word(event: &HarnessEvent) -> Option<String> {
    Some(match event {
        HarnessEvent::Output(Output::TextDelta { text }) => format!("say {text}"),
        HarnessEvent::Output(Output::ToolStarted(start)) => format!("started {}, {}", start.name, start.kind),
        HarnessEvent::Output(Output::ToolCompleted(end)) => {
            let status = if end.status == ToolStatus::Succeeded { "succeeded" } else { "failed" };
            format!("ended {}, {status}", end.name)
        }
        HarnessEvent::Output(Output::FileChanged { path, .. }) => format!("file {path}"),
        HarnessEvent::Output(Output::Activity { label, .. }) => format!("activity {label}"),
        HarnessEvent::Output(output) => json!(output).to_string(),
        HarnessEvent::ApprovalRequested(request) => {
            let options: Vec<&str> = request.options.iter().map(|option| option.id.as_str()).collect();
            format!(
                "asked {}, {}, {} [{}]",
                request.tool,
                request.kind,
                sorted(&request.input),
                options.join(" ")
            )
        }
        HarnessEvent::ApprovalWithdrawn { .. } => "withdrawn".to_owned(),
        HarnessEvent::Checkpoint { .. } => return None,
        HarnessEvent::TurnEnded(TurnOutcome::Completed { stop_reason }) => format!("end {stop_reason}"),
        HarnessEvent::TurnEnded(TurnOutcome::Failed(failure)) => {
            format!("failed {}: {}", failure.code, failure.message)
        }
        HarnessEvent::TurnEnded(TurnOutcome::Cancelled) => "cancelled".to_owned(),
        HarnessEvent::TurnEnded(TurnOutcome::Interrupted) => "interrupted".to_owned(),
        HarnessEvent::Exited(failure) => format!("exited {}", failure.code),
    })
}

/// The same with the keys of objects in their order, which the agent's own order has no part in.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let sorted: BTreeMap<&String, Value> =
                map.iter().map(|(key, value)| (key, sorted(value))).collect();
            json!(sorted)
        }
        Value::Array(items) => items.iter().map(sorted).collect(),
        plain => plain.clone(),
    }
}
