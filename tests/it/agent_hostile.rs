//! Agents that mean harm or are badly broken, through the real service: each ends with a clear code or is survived; a session beside it
//! goes on as if nothing were; and the service's memory stays within bounds.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::api::Api;
use crate::support::fake_agent::{
    FAKE, create, create_with, effects, harness, id, post, prompt_detached, service,
};
use crate::support::processes;
use crate::support::server::{Home, Server};

/// So much more memory may the service take, whatever one agent does.
const GROWTH_MAX_MIB: f64 = 64.0;

/// What a hostile agent does, and how its turn must end.
struct Attack {
    name: &'static str,
    /// The agent's mode.
    mode: &'static str,
    prompt: String,
    /// How many times in one session.
    turns: usize,
    end: End,
}

enum End {
    /// It is survived: the turn ends as if nothing were, with these words in it.
    Completed(&'static str),
    /// The turn fails with this code.
    Failed(&'static str),
    /// The turn ends for its time is over.
    TimedOut,
    /// It would never end; it is cancelled once it has put out so many events.
    CancelledAfter(u64),
    /// It waits for so many questions, and is then cancelled.
    Asks(u64),
}

fn attack(name: &'static str, mode: &'static str, prompt: &str, end: End) -> Attack {
    Attack { name, mode, prompt: prompt.to_owned(), turns: 1, end }
}

/// `OSTLER_FLOODS=full` lets everything loose; without it a tenth is enough.
fn attacks() -> Vec<Attack> {
    let part = if std::env::var("OSTLER_FLOODS").as_deref() == Ok("full") { 1 } else { 10 };
    let many = |count: usize| count / part;
    let mib = 1 << 20;
    vec![
        attack("noise between messages", "noise", "go", End::Completed("hello")),
        attack(
            "1,000,000 lines of noise",
            "script",
            &format!("garbage {}\nsay on", many(1_000_000)),
            End::Completed("on"),
        ),
        attack("exits in mid-line", "half", "go", End::Failed("agent_exited")),
        attack("a line of 1 GiB", "script", "gigabyte", End::Failed("agent_protocol_error")),
        attack("a line without an end", "endless", "go", End::Failed("agent_protocol_error")),
        attack(
            "100,000 small updates",
            "script",
            &format!("flood {}\nsay on", many(100_000)),
            End::Completed("on"),
        ),
        attack("words for ever", "script", "endless", End::CancelledAfter(300)),
        attack(
            "40 updates of 3 MiB",
            "script",
            &format!("large {} {}\nsay on", many(40), 3 * mib),
            End::Completed(""),
        ),
        attack(
            "20 updates of nearly 8 MiB",
            "script",
            &format!("large {} {}\nsay on", many(20), 8 * mib - 500),
            End::Completed(""),
        ),
        attack(
            "40 results of 3 MiB",
            "script",
            &format!("results {} {}\nsay on", many(40), 3 * mib),
            End::Completed("on"),
        ),
        attack("two million values in a line", "script", "wide 2000000", End::Failed("agent_protocol_error")),
        attack("40 updates of 90,000 values", "script", &"wide 90000\n".repeat(many(40)), End::Completed("")),
        attack("90,000 levels", "script", "deep 90000\nsay on", End::Completed("on")),
        attack("200,000 levels", "script", "deep 200000\nsay on", End::Failed("agent_protocol_error")),
        attack(
            "256 MiB on stderr",
            "script",
            &format!("stderr {}\nsay on", many(4096)),
            End::Completed("on"),
        ),
        attack(
            "10,000 calls without an end",
            "script",
            &format!("opens {} 5000\nsay on", many(10_000)),
            End::Completed("on"),
        ),
        attack(
            "60 calls of 3 MiB without an end",
            "script",
            &format!("opens {} {}\nsay on", many(60), 3 * mib),
            End::Completed("on"),
        ),
        attack(
            "100 questions at once",
            "script",
            "asks 100 1000\nawait-cancel\nstop cancelled",
            End::Asks(64),
        ),
        attack(
            "100 questions of 900 kB",
            "script",
            "asks 100 900000\nawait-cancel\nstop cancelled",
            End::Asks(2),
        ),
        attack(
            "300 files of 4 MiB asked for, none read",
            "script",
            "reads 300",
            End::Failed("agent_protocol_error"),
        ),
        attack("never answers", "plugged", "go", End::TimedOut),
        attack("takes no prompt", "plugged", &"x".repeat(mib), End::Failed("agent_unreachable")),
        attack("a byte at a time", "script", &"drip\n".repeat(50), End::Completed("dripped")),
        attack("answers twice, and what nobody asked", "dup", "go", End::Completed("hello")),
        attack(
            "1,000 updates and questions of another conversation",
            "script",
            &format!("foreign {}\nsay on", many(1000)),
            End::Completed("on"),
        ),
        Attack {
            turns: many(20),
            ..attack("20 turns with calls left open", "script", "opens 200 20000", End::Completed(""))
        },
    ]
}

#[tokio::test]
async fn a_hostile_agent_is_ended_or_survived_within_64_mib_and_its_neighbour_does_not_notice() {
    let only = std::env::var("OSTLER_ATTACK").unwrap_or_default();
    for attack in attacks().into_iter().filter(|attack| attack.name.contains(&only)) {
        let (home, server, api) = on_guard(&attack).await;
        let beside = id(&create(&api, "remember blue").await);
        // So that what the first session and the first reading cost is not counted.
        api.prompt(&beside, "say ready").await;
        let before = processes::start_of_growth(server.pid());
        let session = strike(&api, &home, &attack, &beside).await;
        let (peak, after) =
            (processes::memory(server.pid(), "VmHWM:"), processes::memory(server.pid(), "VmRSS:"));
        println!("{:<52} peak +{:.1} MiB, after it +{:.1} MiB", attack.name, peak - before, after - before);
        assert!(peak - before <= GROWTH_MAX_MIB, "{}: +{:.1} MiB", attack.name, peak - before);
        let turn = api.prompt(&beside, "recall").await;
        assert_eq!(
            (turn["text"].as_str(), turn["rehydrated"].as_bool()),
            (Some("blue"), Some(false)),
            "{}",
            attack.name
        );
        post(&api, &session, "stop").await;
        assert!(processes::of_agent(&session).is_empty(), "{}", attack.name);
    }
}

async fn on_guard(attack: &Attack) -> (Home, Server, Api) {
    let config = harness("fake", &["script"]) + &harness("hostile", &[attack.mode]) + "write_seconds = 1\n";
    let home = Home::new().with_config(&config);
    let server = home.start().await;
    let api = server.api();
    (home, server, api)
}

/// Lets the agent loose and sees how it ends; another session works meanwhile.
async fn strike(api: &Api, home: &Home, attack: &Attack, beside: &str) -> String {
    let limits = json!({"turn_seconds": if matches!(attack.end, End::TimedOut) { 1 } else { 120 }});
    let session =
        id(&api.post("/v1/sessions", json!({"harness": "hostile", "limits": limits})).await.expect(201));
    fs::write(home.workspace(&session).join("large.txt"), "x".repeat(4 << 20)).unwrap();
    for _ in 0..attack.turns {
        prompt_detached(api, &session, &attack.prompt).await;
        let meanwhile = api.prompt(beside, "say meanwhile").await;
        assert_eq!(meanwhile["text"], "meanwhile", "{}", attack.name);
        see_it_end(api, &session, attack).await;
    }
    session
}

async fn see_it_end(api: &Api, session: &str, attack: &Attack) {
    let begun = match attack.end {
        End::CancelledAfter(events) => Some(("last_event_seq", events)),
        End::Asks(count) => Some(("pending_approval_count", count)),
        _ => None,
    };
    if let Some((figure, least)) = begun {
        until(api, session, attack.name, |row| row[figure].as_u64() >= Some(least)).await;
        post(api, session, "cancel").await;
    }
    let turn =
        until(api, session, attack.name, |row| row["turn"]["ended_at"].is_string()).await["turn"].take();
    let (status, code) = (turn["status"].as_str().unwrap(), turn["error"]["code"].as_str());
    match attack.end {
        End::Completed(text) => {
            assert_eq!((status, code), ("completed", None), "{}", attack.name);
            assert!(turn["text"].as_str().unwrap().ends_with(text), "{}", attack.name);
        }
        End::Failed(expected) => assert_eq!((status, code), ("failed", Some(expected)), "{}", attack.name),
        End::TimedOut => assert_eq!(status, "timed_out", "{}", attack.name),
        End::CancelledAfter(_) | End::Asks(_) => assert_eq!(status, "cancelled", "{}", attack.name),
    }
}

/// Asks for the row until it is so. Not by the events: this reader wants none of the flood.
async fn until(api: &Api, session: &str, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let asked = async {
        loop {
            let row = api.session(session).await;
            if is_so(&row) {
                return row;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let deadline = Duration::from_secs(180);
    tokio::time::timeout(deadline, asked).await.unwrap_or_else(|_| panic!("waited {deadline:?} for {what}"))
}

/// Twenty questions whose label, title or options make them look harmless; which of them say that they read, search or think and can
/// be allowed once.
fn disguises() -> Vec<(Value, &'static str, bool)> {
    let once = "a:allow_once,r:reject_once";
    let call =
        |kind: Value, title: &str| json!({"kind": kind, "title": title, "rawInput": {"command": "rm -rf /"}});
    vec![
        (call(json!("read"), "Run: rm"), once, true),
        (call(json!("search"), "Run: rm"), once, true),
        (call(json!("think"), "Run: rm"), once, true),
        (call(json!("fetch"), "Run: rm"), once, false),
        (call(json!("edit"), "Run: rm"), once, false),
        (call(json!("execute"), "Run: rm"), once, false),
        (call(json!("switch_mode"), "Run: rm"), once, false),
        (call(json!("unheard_of"), "Run: rm"), once, false),
        (call(json!(null), "Run: rm"), once, false),
        (call(json!(7), "Run: rm"), once, false),
        (call(json!(["read"]), "Run: rm"), once, false),
        (call(json!({"kind": "read"}), "Run: rm"), once, false),
        (call(json!("Read"), "Run: rm"), once, false),
        (call(json!("read "), "Run: rm"), once, false),
        (call(json!(""), "read"), once, false),
        (call(json!("read"), "Run: rm"), "a:allow_always,r:reject_once", false),
        (call(json!("think"), "Run: rm"), "a:allow_always", false),
        (call(json!("search"), "Run: rm"), "a:allow_sometimes,r:reject_once", false),
        (call(json!("execute"), "read: /etc/hosts"), once, false),
        (call(json!("delete"), "think"), once, false),
    ]
}

#[tokio::test]
async fn sec_10_no_label_title_or_option_makes_a_question_answer_itself() {
    let (_home, _server, api) = service(&["script"]).await;
    let disguises = disguises();
    assert_eq!(disguises.len(), 20);
    let asks: String = disguises
        .iter()
        .enumerate()
        .map(|(id, (call, options, _))| format!("ask {id} {options} {}\n", with_id(call, id)))
        .collect();
    for (mode, answered) in
        [("ask", 0), ("allow_reads", disguises.iter().filter(|(.., reads)| *reads).count())]
    {
        let body = json!({"harness": "fake", "permission_mode": mode, "prompt": format!("{asks}say asked\nawait-cancel")});
        let session = id(&api.post("/v1/sessions", body).await.expect(201));
        api.follow(&session, "").await.until("text.delta").await;
        let requested = api.events_of(&session, "approval.requested").await;
        let resolved = api.events_of(&session, "approval.resolved").await;
        assert_eq!((requested.len(), resolved.len()), (20, answered), "{mode}");
        for resolved in &resolved {
            let approval = &resolved["approval"];
            assert!(matches!(approval["kind"].as_str(), Some("read" | "search" | "think")), "{approval}");
            assert_eq!(approval["option_id"], "a");
            let option = &approval["options"].as_array().unwrap()[0];
            assert_eq!((option["id"].as_str(), option["kind"].as_str()), (Some("a"), Some("allow_once")));
        }
        let row = post(&api, &session, "cancel").await;
        assert_eq!(row["pending_approval_count"], 0);
    }
}

fn with_id(call: &Value, id: usize) -> Value {
    let mut call = call.clone();
    call["toolCallId"] = format!("d{id}").into();
    call
}

#[tokio::test]
async fn sec_12_nobody_but_the_operator_says_what_is_started_and_how() {
    let arguments = [
        "script",
        "",
        " ",
        "--flag=a b",
        "\"quoted\"",
        "$HOME",
        "{workspace}",
        "*",
        "ü ✓",
        "--",
        "-x",
        "a\tb\nc",
        "`id`",
        "; id",
        "--settings={\"a\":1}",
    ];
    let (home, _server, api) = service(&arguments).await;
    for (key, value) in [
        ("command", json!(["/bin/sh"])),
        ("args", json!(["-c", "id"])),
        ("argv", json!(["x"])),
        ("env", json!({"X": "y"})),
        ("cwd", json!("/")),
        ("mcp_servers", json!([{"name": "x", "command": "/bin/sh"}])),
        ("mcpServers", json!([])),
        ("inherit_env", json!(["PATH"])),
        ("files", json!({"x": "y"})),
    ] {
        for place in ["/v1/sessions", "settings"] {
            let mut body = json!({"harness": "fake", "prompt": "say on"});
            if place == "settings" {
                body["settings"] = json!({key: value});
                api.post("/v1/sessions", body).await.problem(422, "invalid_input");
            } else {
                body[key] = value.clone();
                let problem = api.post(place, body).await.problem(400, "invalid_body");
                assert!(problem["detail"].as_str().unwrap().contains(key), "{problem}");
            }
        }
    }
    assert_eq!(api.get("/v1/sessions").await.expect(200)["data"], json!([]), "none was made");
    for prompt in ["--settings=/etc/passwd", "-c\nsay on", "; id #", "$(id)"] {
        let body = json!({"harness": "fake", "prompt": prompt, "instructions": "--dangerous", "title": "--title", "run_id": "--run"});
        let session = id(&create_with(&api, body).await);
        let [pid] = processes::of_agent(&session)[..] else { panic!("one process") };
        let argv = fs::read(format!("/proc/{pid}/cmdline")).unwrap();
        let configured: Vec<u8> =
            [FAKE].iter().chain(&arguments).flat_map(|word| [word.as_bytes(), b"\0"].concat()).collect();
        assert_eq!(argv, configured, "{prompt}");
        assert!(effects(&home, &session).is_empty());
        assert_eq!(api.delete(&format!("/v1/sessions/{session}?purge=true")).await.status, 204);
    }
}
