//! What a conversation tells the model to do.
//!
//! The script is the last user message that has a directive at the beginning of a line. Its steps are separated by `/next`; the
//! step to answer with is the number of assistant messages after that user message, so that a repeated call gets the same answer. A
//! conversation without a script, or beyond its last step, is answered with `echo: ` and the last user message.
//!
//! ```text
//! /say TEXT            text, streamed word by word (several lines add up; \n in TEXT is a line's end)
//! /think TEXT          reasoning
//! /call NAME {json}    a tool call (several lines: parallel calls); its id is call_STEP_INDEX, both from 0
//! /call-raw NAME TEXT  the same with arguments that are not JSON
//! /id ID               the next call's id
//! /plan TEXT           the answer to a planning call, wherever it stands in the script. A planning call wants JSON
//!                      (response_format json_object); it is no step, and without this line it gets a direct plan
//! /usage IN OUT        tokens, in place of 10 and 5
//! /finish WORD         finish_reason, in place of stop or tool_calls
//! /status CODE [N] [retry-after S]   that status, N times (always where there is no N)
//! /error CODE TEXT     status 400 with that error code
//! /refuse N            the connection closes before any byte, N times
//! /cut N [x TIMES]     the connection closes after N words, once or so many times
//! /error-mid TEXT      an error within the answer, after its words
//! /slow MS             a wait before each word
//! /hang                headers and nothing more
//! /whole               the answer is not streamed, whatever the request wants
//! /raw TEXT            a line of the stream as it stands, after the words
//! /long N              a line of N bytes, after the words
//! ```
//!
//! `/status`, `/refuse` and `/cut` are counted in memory, by the script's text and the step: a model that is started again counts anew.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use serde_json::Value;

/// One answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Step {
    pub say: String,
    pub think: String,
    pub calls: Vec<Call>,
    pub usage: Option<(u64, u64)>,
    pub finish: Option<String>,
    pub status: Option<Status>,
    pub error: Option<(String, String)>,
    pub refuse: u64,
    pub cut: Option<Cut>,
    pub error_mid: Option<String>,
    pub slow: Duration,
    pub hang: bool,
    pub whole: bool,
    pub raw: Vec<String>,
    pub long: usize,
}

/// A tool call.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Call {
    pub id: String,
    pub name: String,
    pub arguments: String,
}

/// An answer that is a status alone.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Status {
    pub code: u16,
    pub times: u64,
    pub retry_after: Option<String>,
}

/// An answer that breaks.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cut {
    pub words: usize,
    pub times: u64,
}

/// What a request is to be answered with, and a number that is the same whenever the same step of the same script is.
pub(super) fn step_for(request: &Value) -> (Step, u64) {
    let messages = request["messages"].as_array().map_or(&[][..], Vec::as_slice);
    let script = messages.iter().enumerate().rev().find_map(|(at, message)| {
        let text = user_text(message)?;
        text.lines().any(is_directive).then_some((at, text))
    });
    let plans = request["response_format"]["type"] == "json_object";
    if plans {
        let plan = script.and_then(|(_, text)| {
            text.lines().find_map(|line| Some(line.trim_start().strip_prefix("/plan ")?.to_owned()))
        });
        let say = plan.unwrap_or_else(|| r#"{"mode":"direct","reason":"simple","steps":[]}"#.to_owned());
        return (Step { say, ..Step::default() }, 0);
    }
    if let Some((at, text)) = &script {
        let number = messages[at + 1..].iter().filter(|message| message["role"] == "assistant").count();
        let lines: Vec<&str> = text.lines().collect();
        if let Some(lines) = lines.split(|line| line.trim() == "/next").nth(number) {
            let mut hasher = DefaultHasher::new();
            (text, number).hash(&mut hasher);
            return (Step::read(lines, number), hasher.finish());
        }
    }
    let said = messages.iter().rev().find_map(user_text).unwrap_or_default();
    (Step { say: format!("echo: {said}"), ..Step::default() }, 0)
}

/// What a user message says: a text, or the texts of its parts.
fn user_text(message: &Value) -> Option<String> {
    if message["role"] != "user" {
        return None;
    }
    match &message["content"] {
        Value::Array(parts) => {
            let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
            Some(texts.join("\n"))
        }
        content => Some(content.as_str().unwrap_or_default().to_owned()),
    }
}

const DIRECTIVES: [&str; 19] = [
    "/say",
    "/think",
    "/call",
    "/call-raw",
    "/id",
    "/plan",
    "/usage",
    "/finish",
    "/status",
    "/error",
    "/refuse",
    "/cut",
    "/error-mid",
    "/slow",
    "/hang",
    "/whole",
    "/raw",
    "/long",
    "/next",
];

fn is_directive(line: &str) -> bool {
    DIRECTIVES.contains(&line.trim_start().split(' ').next().unwrap_or_default().trim_end())
}

impl Step {
    fn read(lines: &[&str], number: usize) -> Self {
        let mut step = Self::default();
        let mut next_id = None;
        for line in lines.iter().map(|line| line.trim_start()).filter(|line| is_directive(line)) {
            let (directive, rest) = line.split_once(' ').unwrap_or((line.trim_end(), ""));
            match directive {
                "/say" => step.say.push_str(&rest.replace("\\n", "\n")),
                "/think" => step.think.push_str(&rest.replace("\\n", "\n")),
                "/call" | "/call-raw" => {
                    let (name, arguments) = rest.split_once(' ').unwrap_or((rest, "{}"));
                    let id = next_id.take().unwrap_or_else(|| format!("call_{number}_{}", step.calls.len()));
                    step.calls.push(Call { id, name: name.to_owned(), arguments: arguments.to_owned() });
                }
                "/id" => next_id = Some(rest.trim().to_owned()),
                "/usage" => {
                    let (read, written) = rest.trim().split_once(' ').unwrap_or((rest, "0"));
                    step.usage = Some((parsed(read, line), parsed(written, line)));
                }
                "/finish" => step.finish = Some(rest.trim().to_owned()),
                "/status" => step.status = Some(Status::read(rest, line)),
                "/error" => {
                    let (code, text) = rest.split_once(' ').unwrap_or((rest, "It is so."));
                    step.error = Some((code.trim().to_owned(), text.to_owned()));
                }
                "/refuse" => step.refuse = parsed(rest, line),
                "/cut" => {
                    let (words, times) = rest.split_once(" x ").unwrap_or((rest, "1"));
                    step.cut = Some(Cut { words: parsed(words, line), times: parsed(times, line) });
                }
                "/error-mid" => step.error_mid = Some(rest.to_owned()),
                "/slow" => step.slow = Duration::from_millis(parsed(rest, line)),
                "/hang" => step.hang = true,
                "/whole" => step.whole = true,
                "/raw" => step.raw.push(rest.to_owned()),
                "/long" => step.long = parsed(rest, line),
                // A plan is read from the whole script.
                _ => {}
            }
        }
        step
    }
}

impl Status {
    fn read(rest: &str, line: &str) -> Self {
        let (rest, retry_after) = match rest.split_once("retry-after") {
            Some((rest, wait)) => (rest, Some(wait.trim().to_owned())),
            None => (rest, None),
        };
        let mut numbers = rest.split_whitespace();
        let code = parsed(numbers.next().unwrap_or_default(), line);
        let times = numbers.next().map_or(u64::MAX, |times| parsed(times, line));
        Self { code, times, retry_after }
    }
}

fn parsed<T: std::str::FromStr>(number: &str, line: &str) -> T {
    number.trim().parse().unwrap_or_else(|_| panic!("the script needs a number: {line}"))
}
