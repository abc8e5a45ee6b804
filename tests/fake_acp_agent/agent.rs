//! An ACP agent that does as it is told: a fixture for tests, without a model and without a network.
//!
//! `fake-acp-agent MODE [FLAG…]`. The modes of misbehaviour answer every prompt with "hello" and go wrong in one way each:
//!
//! - `noise`: banners, colours, blank lines, arrays and strings between the messages; `crlf`: messages end in CR LF;
//! - `split`: messages come in three pieces; `big`: an update of 3 MiB; `huge`: a line of 17 MiB; `endless`: one without an end;
//! - `exit`: exits with code 3 in mid-turn; `half`: exits in mid-line;
//! - `slow`: takes 20 s for its first word; `deaf`: never answers; `plugged`: reads nothing once the session is open;
//! - `unknown`: updates, content, requests and a stop reason that nobody knows; `dup`: answers twice, and what nobody asked;
//! - `version`: speaks version 2; `early-death`: exits with code 4 at once.
//!
//! The mode `script` does what the lines of the prompt say; see [`script`].

#![allow(clippy::unwrap_used, clippy::panic, reason = "a fixture that cannot go on should say where")]
#![allow(clippy::print_stderr, reason = "agents do write there")]
#![allow(clippy::zombie_processes, reason = "agents do leave children behind")]
#![allow(clippy::disallowed_methods, reason = "a program of its own, outside the service's rules")]

mod script;
mod wild;
mod wire;

use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};
use wire::{raw, read};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let mode = args.first().map_or("script", String::as_str);
    match mode {
        "script" => script::Agent::new(&args[1..]).run(),
        "sleeper" => script::sleep_in_own_session(&args[1]),
        "orphaner" => script::leave_a_sleeper(&args[1]),
        mode => misbehave(mode),
    }
}

fn misbehave(mode: &str) {
    match mode {
        "noise" => raw("Welcome to agent 1.0\n{not json}\n[1,2]\n\"str\"\n\n"),
        "slow" => sleep(Duration::from_secs(20)),
        "early-death" => {
            eprintln!("\x1b[31mno key\x1b[0m");
            std::process::exit(4);
        }
        _ => {}
    }
    while let Some(message) = read() {
        let (Some(method), id) = (message["method"].as_str(), &message["id"]) else { continue };
        if mode == "deaf" {
            continue;
        }
        match method {
            "initialize" => {
                let version = if mode == "version" { 2 } else { 1 };
                let capabilities = json!({"loadSession": true});
                send(mode, id, json!({"protocolVersion": version, "agentCapabilities": capabilities}));
            }
            "session/new" => {
                send(mode, id, json!({"sessionId": "s-1"}));
                if mode == "plugged" {
                    sleep(Duration::from_secs(600));
                }
            }
            "session/load" => send(mode, id, json!({})),
            "session/prompt" => prompt(mode, id),
            _ if id.is_null() => {}
            _ => put(mode, &json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "no"}})),
        }
    }
}

fn prompt(mode: &str, id: &Value) {
    say(mode, "hello");
    match mode {
        "exit" => std::process::exit(3),
        "half" => {
            raw("{\"jsonrpc\":\"2.0\",\"method\":\"session/upd");
            std::process::exit(0);
        }
        "big" => say(mode, &"x".repeat(3 << 20)),
        "huge" => say(mode, &"x".repeat(17 << 20)),
        "endless" => loop {
            raw(&"x".repeat(1 << 16));
        },
        "unknown" => {
            update(mode, json!({"sessionUpdate": "brand_new_kind", "x": 1}));
            update(
                mode,
                json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "hologram", "y": 2}}),
            );
            put(mode, &json!({"jsonrpc": "2.0", "method": "weird/notification", "params": {}}));
            put(mode, &json!({"jsonrpc": "2.0", "id": "str-id-7", "method": "weird/request", "params": {}}));
            let answer = read().unwrap();
            say(mode, &format!("{} {}", answer["id"], answer["error"]["code"]));
        }
        _ => {}
    }
    let stop_reason = if mode == "unknown" { "some_new_reason" } else { "end_turn" };
    send(mode, id, json!({"stopReason": stop_reason}));
    if mode == "dup" {
        send(mode, id, json!({"stopReason": "end_turn"}));
        send(mode, &json!(9999), json!({}));
        send(mode, &json!("none"), json!({}));
    }
}

fn say(mode: &str, text: &str) {
    update(mode, json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}));
}

fn update(mode: &str, update: Value) {
    let params = json!({"sessionId": "s-1", "update": update});
    put(mode, &json!({"jsonrpc": "2.0", "method": "session/update", "params": params}));
}

fn send(mode: &str, id: &Value, result: Value) {
    put(mode, &json!({"jsonrpc": "2.0", "id": id, "result": result}));
}

fn put(mode: &str, message: &Value) {
    let text = message.to_string();
    match mode {
        "noise" => raw(&format!("\x1b[33mwarn\x1b[0m something happened\n{text}\n")),
        "crlf" => raw(&format!("\r\n{text}\r\n")),
        "split" => {
            let (a, b) = (text.len() / 3, text.len() * 2 / 3);
            for part in [&text[..a], &text[a..b], &text[b..], "\n"] {
                raw(part);
                sleep(Duration::from_millis(5));
            }
        }
        _ => raw(&format!("{text}\n")),
    }
}
