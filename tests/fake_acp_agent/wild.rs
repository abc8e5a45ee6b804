//! Directives for what a script cannot say in the words of an ordinary agent: messages as they stand, and floods.

use std::io::Write;

use serde_json::{Value, json};

use super::script::{Agent, Next, notify, put};
use super::wire::raw;

/// So much goes out at once where a line is longer than that.
const PIECE: usize = 1 << 16;

impl Agent {
    /// Does what a directive of this file says; `None` where it is none.
    pub fn wild(&mut self, word: &str, rest: &str, prompt: &Value) -> Option<Next> {
        let next = match word {
            "put" => {
                raw(&format!("{}\n", self.filled(rest, prompt)));
                Next::GoOn
            }
            "update" => self.update(serde_json::from_str(&self.filled(rest, prompt)).unwrap()),
            "ask" => {
                let mut parts = rest.splitn(3, ' ');
                let mut part = || parts.next().unwrap();
                let (id, kinds, call) = (json_of(part()), part(), json_of(part()));
                let params =
                    json!({"sessionId": self.session_id, "toolCall": call, "options": options(kinds)});
                put(
                    &json!({"jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": params}),
                );
                Next::GoOn
            }
            "heard" => {
                let answer = self.wait(&json_of(rest));
                self.say(&format!("heard {}", heard(&answer)))
            }
            "await-cancel" => match self.hang() {
                Next::End(end) => Next::End(end),
                _ => Next::GoOn,
            },
            "end" => Next::End(json_of(rest)),
            "never" => Next::End(Value::Null),
            "hammer" => self.hammer(rest),
            _ => return self.flood(word, &numbers(rest)),
        };
        Some(next)
    }

    fn flood(&mut self, word: &str, numbers: &[usize]) -> Option<Next> {
        let (count, bytes) =
            (numbers.first().copied().unwrap_or(1), numbers.get(1).copied().unwrap_or_default());
        match word {
            "endless" => loop {
                self.say("and on ");
            },
            "gigabyte" => {
                for _ in 0..(1 << 30) / PIECE {
                    raw(&"x".repeat(PIECE));
                }
                raw("\n");
            }
            "garbage" => (0..count).for_each(|i| raw(&format!("\x1b[33mwarning\x1b[0m number {i} {{\n"))),
            "stderr" => (0..count).for_each(|_| {
                // Without a reader there is nobody to flood.
                let _ = std::io::stderr().write_all(&[b'e'; PIECE]);
            }),
            "drip" => {
                let update = json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "dripped"}});
                let params = json!({"sessionId": self.session_id, "update": update});
                let message = json!({"jsonrpc": "2.0", "method": "session/update", "params": params});
                let line = format!("{message}\n");
                (0..line.len()).for_each(|at| raw(&line[at..=at]));
            }
            "large" => (0..count).for_each(|_| drop(self.say(&"x".repeat(bytes)))),
            "results" => (0..count).for_each(|i| {
                self.update(json!({"sessionUpdate": "tool_call", "toolCallId": format!("r{i}"), "title": "read",
                    "status": "completed", "rawOutput": {"text": "x".repeat(bytes)}}));
            }),
            "opens" => (0..count).for_each(|i| {
                self.update(json!({"sessionUpdate": "tool_call", "toolCallId": format!("o{i}"), "title": "open",
                    "rawInput": {"text": "x".repeat(bytes)}}));
            }),
            "asks" => (0..count).for_each(|i| {
                let call = json!({"toolCallId": format!("q{i}"), "title": format!("ask {i}"), "kind": "execute",
                    "rawInput": {"text": "x".repeat(bytes)}});
                let params = json!({"sessionId": self.session_id, "toolCall": call, "options": options("a:allow_once")});
                put(&json!({"jsonrpc": "2.0", "id": i, "method": "session/request_permission", "params": params}));
            }),
            "reads" => {
                for i in 0..count {
                    let params = json!({"sessionId": self.session_id, "path": "large.txt"});
                    put(&json!({"jsonrpc": "2.0", "id": i, "method": "fs/read_text_file", "params": params}));
                }
                std::thread::sleep(std::time::Duration::from_secs(600));
            }
            "wide" => {
                self.update(json!({"sessionUpdate": "wide", "values": vec![0; count]}));
            }
            "deep" => raw(&format!(
                "{{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{}1{}}}\n",
                "[".repeat(count),
                "]".repeat(count)
            )),
            "foreign" => (0..count).for_each(|_| {
                let update = json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "foreign"}});
                notify("session/update", json!({"sessionId": "another", "update": update}));
                let params = json!({"sessionId": "another", "toolCall": {"title": "foreign"}, "options": []});
                put(&json!({"jsonrpc": "2.0", "id": "f", "method": "session/request_permission", "params": params}));
                self.wait(&json!("f"));
            }),
            _ => return None,
        }
        Some(Next::GoOn)
    }

    // Writes and reads a file through the client until there is a file `done`, and says how often which came out.
    fn hammer(&mut self, path: &str) -> Next {
        let (mut inside, mut outside, mut refused) = (0, 0, 0);
        while !std::path::Path::new("done").exists() {
            for (method, content) in [("fs/write_text_file", Some("inside")), ("fs/read_text_file", None)] {
                let params = json!({"sessionId": self.session_id, "path": path, "content": content});
                let request = self.request(method, params, false);
                let answer = self.wait(&request);
                match answer["result"]["content"].as_str() {
                    _ if !answer["error"].is_null() => refused += 1,
                    Some("inside" | "") | None => inside += 1,
                    Some(_) => outside += 1,
                }
            }
        }
        self.say(&json!({"inside": inside, "outside": outside, "refused": refused}).to_string())
    }

    fn filled(&self, text: &str, prompt: &Value) -> String {
        text.replace("$S", &self.session_id).replace("$P", &prompt.to_string())
    }
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn numbers(text: &str) -> Vec<usize> {
    text.split(' ').filter_map(|word| word.parse().ok()).collect()
}

// `id:kind,id:kind`, or `-` for none.
fn options(kinds: &str) -> Vec<Value> {
    let option = |entry: &str| {
        let (id, kind) = entry.split_once(':').unwrap();
        json!({"optionId": id, "name": id, "kind": kind})
    };
    kinds.split(',').filter(|entry| *entry != "-").map(option).collect()
}

fn heard(answer: &Value) -> String {
    if !answer["error"].is_null() {
        return format!("error {}", answer["error"]["code"]);
    }
    let outcome = &answer["result"]["outcome"];
    match (outcome["optionId"].as_str(), outcome["outcome"].as_str()) {
        (Some(id), _) => id.to_owned(),
        (None, Some(word)) => word.to_owned(),
        (None, None) => answer["result"].to_string(),
    }
}
