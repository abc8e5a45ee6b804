//! Models that mean harm or are badly broken, through the real service: each ends with a clear code or is survived; a session beside it
//! goes on as if nothing were; and the service's memory stays within bounds.

use std::sync::Arc;
use std::time::Duration;

use super::hostile_model::{HostileModel, Said, call, end, more, part, said, text, thought};
use super::*;
use crate::support::processes::{memory, start_of_growth};
use crate::support::server::{Home, Server};

/// So much more memory may the service take, whatever one model does.
const GROWTH_MAX_MIB: f64 = 64.0;
const MIB: usize = 1 << 20;

/// What a hostile model does, and how its turn must end.
struct Attack {
    name: &'static str,
    settings: Value,
    answers: Arc<dyn Fn(usize) -> Said + Send + Sync>,
    end: End,
}

enum End {
    /// It is survived: the turn ends as if nothing were, with these words at its end.
    Completed(&'static str),
    /// The turn fails with this code.
    Failed(&'static str),
    /// It would never end; it is cancelled once it has put out so many events.
    CancelledAfter(u64),
    /// The turn ends for its time is over.
    TimedOut,
}

fn attack(name: &'static str, end: End, answers: impl Fn(usize) -> Said + Send + Sync + 'static) -> Attack {
    Attack { name, settings: json!({}), answers: Arc::new(answers), end }
}

/// These calls first, and then "on".
fn calls_then_on(
    calls: impl Fn() -> Vec<String> + Send + Sync + 'static,
) -> impl Fn(usize) -> Said + Send + Sync {
    move |step| match step {
        0 => said(calls().into_iter().chain([end("tool_calls")])),
        _ => said([text("on"), end("stop")]),
    }
}

/// One call with such arguments, in parts that are small enough.
fn large_call(index: usize, name: &str, bytes: usize) -> Vec<String> {
    let part_max = MIB / 32;
    let mut parts = vec![call(index, &format!("c{index}"), name, "{\"path\": \"")];
    parts.extend((0..bytes / part_max).map(|_| more(index, &"x".repeat(part_max))));
    parts.push(more(index, &format!("{}\"}}", "x".repeat(bytes % part_max))));
    parts
}

/// `OSTLER_FLOODS=full` lets everything loose; without it a tenth is enough.
fn attacks() -> Vec<Attack> {
    let is_full = std::env::var("OSTLER_FLOODS").as_deref() == Ok("full");
    let many = move |count: usize| if is_full { count } else { count / 10 };
    let nested = |levels: usize| format!("{{\"path\": {}0{}}}", "[".repeat(levels), "]".repeat(levels));
    let plan = |name, end, plan: &'static str| Attack {
        settings: json!({"planning": {"mode": "auto"}}),
        ..attack(name, end, move |_| said([text(plan), self::end("stop")]))
    };
    vec![
        attack(
            "128 calls at once",
            End::Completed("on"),
            calls_then_on(|| {
                (0..128).map(|at| call(at, &format!("c{at}"), "read_file", "{\"path\": \"x\"}")).collect()
            }),
        ),
        attack(
            "10,000 calls at once",
            End::Failed("model_rejected"),
            calls_then_on(|| (0..10_000).map(|at| call(at, &format!("c{at}"), "read_file", "{}")).collect()),
        ),
        attack(
            "arguments of 2 MiB",
            End::Failed("model_rejected"),
            calls_then_on(|| large_call(0, "read_file", 2 * MIB)),
        ),
        attack(
            "128 calls with 900 kB of arguments each",
            End::Failed("model_rejected"),
            calls_then_on(|| (0..128).flat_map(|at| large_call(at, "read_file", 900_000)).collect()),
        ),
        attack(
            "128 calls with 15 kB of arguments each",
            End::Failed("context_overflow"),
            calls_then_on(|| (0..128).flat_map(|at| large_call(at, "no_tool", 15_000)).collect()),
        ),
        attack(
            "arguments of 10,000 levels",
            End::Completed("on"),
            calls_then_on(move || vec![call(0, "c", "read_file", &nested(10_000))]),
        ),
        attack(
            "arguments of 120 levels",
            End::Completed("on"),
            calls_then_on(move || vec![call(0, "c", "read_file", &nested(120))]),
        ),
        attack(
            "NUL and control characters everywhere",
            End::Completed("on"),
            calls_then_on(|| {
                vec![
                    text("\0\u{1b}[2J\u{7f}\u{85}\u{202e}"),
                    thought("\0"),
                    call(0, "\0\n", "\0\u{1b}[2J", "{\"\\u0000\": \"\\u0000\"}"),
                    call(1, "\u{1b}", "read_file", "{\"path\": \"\\u0000\\u001b[2J\"}"),
                    call(2, "b", "shell", "{\"command\": \"echo \\u001b\\u0007\"}"),
                    call(3, "c", "write_file", "{\"path\": \"a\\u0000b\", \"content\": \"\\u0000\"}"),
                ]
            }),
        ),
        attack(
            "half a surrogate in the arguments",
            End::Completed("on"),
            calls_then_on(|| vec![call(0, "c", "read_file", "{\"path\": \"\\ud800\"}")]),
        ),
        attack("half a surrogate in the words", End::Failed("model_rejected"), |_| {
            said(["data: {\"choices\":[{\"delta\":{\"content\":\"\\ud800\"}}]}\n\n".to_owned(), end("stop")])
        }),
        attack("bytes that are no UTF-8", End::Failed("model_rejected"), |_| {
            Said::Bytes(b"data: {\"choices\":[{\"delta\":{\"content\":\"\xff\xfe\"}}]}\n\n".to_vec())
        }),
        attack(
            "tools of the machine and of others",
            End::Completed("on"),
            calls_then_on(|| {
                ["mcp__fs__read", "../shell", "shell ", "SHELL", "__proto__", "exec", "mcp____", ""]
                    .iter()
                    .enumerate()
                    .filter(|(_, name)| !name.is_empty())
                    .map(|(at, name)| call(at, "c", name, "{\"command\": \"touch had\"}"))
                    .collect()
            }),
        ),
        Attack {
            settings: json!({"execution": {"max_model_calls": 200}}),
            ..attack("the same id 20,000 times", End::Completed("on"), move |step| {
                if step == many(150) {
                    return said([text("on"), end("stop")]);
                }
                let calls = (0..128).map(|at| call(at, "c", "x", "{}"));
                said(calls.chain([end("tool_calls")]))
            })
        },
        attack("words without end", End::Failed("model_rejected"), |_| {
            Said::Endless(Vec::new(), text(&"x".repeat(100_000)).into_bytes())
        }),
        attack("100,000 words of a byte", End::Completed("x"), move |_| {
            said([text("x").repeat(many(100_000)), end("stop")])
        }),
        Attack {
            settings: json!({"thinking": {"forward_to_frontend": true}}),
            ..attack("thoughts without end", End::Failed("model_rejected"), |_| {
                Said::Endless(Vec::new(), thought(&"x".repeat(1000)).into_bytes())
            })
        },
        attack("nothing but comments, for ever", End::TimedOut, |_| {
            Said::Endless(Vec::new(), b": x\n\n".repeat(1000))
        }),
        attack("parts without anything, for ever", End::TimedOut, |_| {
            Said::Endless(Vec::new(), part(&json!({})).repeat(1000).into_bytes())
        }),
        attack("a byte at a time", End::TimedOut, |_| {
            let words = (0..1000).map(|_| text("x")).collect::<String>();
            Said::Drip(words.into_bytes(), Duration::from_millis(10))
        }),
        attack("words that come slowly", End::CancelledAfter(12), |_| {
            let words = (0..100_000).map(|_| text("x")).collect::<String>();
            Said::Drip(words.into_bytes(), Duration::from_millis(1))
        }),
        attack("a line without an end", End::Failed("model_rejected"), |_| {
            Said::Endless(b"data: ".to_vec(), vec![b'x'; 64 << 10])
        }),
        attack("tokens beyond all numbers", End::Completed("on"), |_| {
            let usage = |tokens: &str| {
                format!(
                    "data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":{tokens},\"completion_tokens\":{tokens}}}}}\n\n"
                )
            };
            said([text("on"), usage("-1"), usage("1e300"), usage("18446744073709551615"), end("stop")])
        }),
        attack("a word of 100 kB for why it ended", End::Completed("on"), |_| {
            said([text("on"), end(&"\0x".repeat(50_000))])
        }),
        attack("2 MiB of brackets", End::Completed(""), |_| repeated("[")),
        attack("2 MiB of links without an end", End::Completed(""), |_| repeated("[a](http://a")),
        attack("2 MiB of brackets behind an address", End::Completed(""), |_| {
            let Said::Bytes(brackets) = repeated(")") else { unreachable!() };
            Said::Bytes([text("http://a").into_bytes(), brackets].concat())
        }),
        attack("2 MiB of claims and fences", End::Completed(""), |_| repeated("``````was not sent ")),
        Attack {
            settings: json!({"verification": {"max_repair_attempts": 0}}),
            ..attack("2 MiB of deliveries", End::Failed("verification_failed"), |_| {
                let links = (0..8).map(|part| {
                    (0..16_000).map(|link| format!("sandbox:{part}/{link} ")).collect::<String>()
                });
                said(links.map(|links| text(&links)).chain([end("stop")]))
            })
        },
        plan("a plan of nothing", End::Failed("plan_invalid"), "null"),
        plan(
            "a plan of absurd types",
            End::Failed("plan_invalid"),
            r#"{"mode": ["plan"], "reason": 7, "steps": {"a": "b"}}"#,
        ),
        Attack {
            settings: json!({"planning": {"mode": "auto"}}),
            ..attack("a plan of a million steps", End::Failed("plan_invalid"), |_| {
                let steps = format!(
                    "{{\"mode\":\"plan\",\"reason\":\"r\",\"steps\":[{}\"s\"]}}",
                    "\"s\",".repeat(100_000)
                );
                said([text(&steps), end("stop")])
            })
        },
    ]
}

/// 2 MiB of that.
fn repeated(words: &str) -> Said {
    let part = text(&words.repeat(MIB / 32 / words.len()));
    said(std::iter::repeat_n(part, 64).chain([end("stop")]))
}

#[tokio::test]
async fn a_hostile_model_is_ended_or_survived_within_64_mib_and_its_neighbour_does_not_notice() {
    let only = std::env::var("OSTLER_ATTACK").unwrap_or_default();
    for attack in attacks().into_iter().filter(|attack| attack.name.contains(&only)) {
        let model = HostileModel::start(Arc::clone(&attack.answers)).await;
        let (home, server, api) = on_guard(&model).await;
        let beside = create(&api, "say blue", json!({})).await["id"].as_str().unwrap().to_owned();
        let before = start_of_growth(server.pid());
        let begun = std::time::Instant::now();
        let session = strike(&api, &attack, &beside).await;
        let took = begun.elapsed();
        let (peak, after) = (memory(server.pid(), "VmHWM:"), memory(server.pid(), "VmRSS:"));
        println!(
            "{:<44} peak +{:.1} MiB, after it +{:.1} MiB, {took:.1?}",
            attack.name,
            peak - before,
            after - before
        );
        assert!(peak - before <= GROWTH_MAX_MIB, "{}: +{:.1} MiB", attack.name, peak - before);
        let turn = api.prompt(&beside, "say still").await;
        assert_eq!(
            (turn["text"].as_str(), turn["rehydrated"].as_bool()),
            (Some("still"), Some(false)),
            "{}",
            attack.name
        );
        // Whatever it said, the session can be read, and works.
        for path in ["", "/transcript", "/turns"] {
            api.get(&format!("/v1/sessions/{session}{path}")).await.expect(200);
        }
        api.get("/v1/sessions").await.expect(200);
        let again = api.prompt(&session, "say on").await;
        assert_eq!(again["text"], "on", "{}: {again}", attack.name);
        assert!(!home.workspace(&session).join("had").exists(), "{}", attack.name);
    }
}

async fn on_guard(model: &HostileModel) -> (Home, Server, Api) {
    let base_url = model.base_url();
    let home = Home::new().with_config(&format!(
        "[harness.agent.models.main]\nbase_url = \"{base_url}\"\nmodel = \"hostile\"\ncontext_window = 1000000\nattempts = 1\n\
         [harness.agent.tools]\nshell = \"allow\"\n[harness.agent.settings.execution]\nmax_tool_calls = 1000\n"
    ));
    let server = home.start().await;
    let api = server.api();
    (home, server, api)
}

/// Lets the model loose and sees how it ends; another session works meanwhile.
async fn strike(api: &Api, attack: &Attack, beside: &str) -> String {
    let mut body =
        json!({"harness": "agent", "prompt": "attack", "settings": settings(attack.settings.clone())});
    if matches!(attack.end, End::TimedOut) {
        body["limits"] = json!({"turn_seconds": 1});
    }
    let session = api.post("/v1/sessions", body).await.expect(201)["id"].as_str().unwrap().to_owned();
    let meanwhile = api.prompt(beside, "say meanwhile").await;
    assert_eq!(meanwhile["text"], "meanwhile", "{}", attack.name);
    if let End::CancelledAfter(events) = attack.end {
        until(api, &session, attack.name, |row| row["last_event_seq"].as_u64() >= Some(events)).await;
        api.post(&format!("/v1/sessions/{session}/cancel"), json!({})).await;
    }
    let turn =
        until(api, &session, attack.name, |row| row["turn"]["ended_at"].is_string()).await["turn"].take();
    let (status, code) = (turn["status"].as_str().unwrap(), turn["error"]["code"].as_str());
    match attack.end {
        End::Completed(text) => {
            assert_eq!((status, code), ("completed", None), "{}: {}", attack.name, turn["error"]);
            assert!(turn["text"].as_str().unwrap().ends_with(text), "{}", attack.name);
        }
        End::Failed(expected) => {
            assert_eq!((status, code), ("failed", Some(expected)), "{}: {}", attack.name, turn["error"]);
        }
        End::CancelledAfter(_) => assert_eq!(status, "cancelled", "{}", attack.name),
        End::TimedOut => assert_eq!(status, "timed_out", "{}", attack.name),
    }
    session
}

/// Asks for the row until it is so. Not by the events: this reader wants none of the flood.
async fn until(api: &Api, session: &str, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    within(what, async {
        loop {
            let row = api.session(session).await;
            if is_so(&row) {
                return row;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
}
