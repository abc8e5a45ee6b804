//! Scripts: what a prompt tells the demo to do. Pure: text in, steps or a complaint out.

use std::num::NonZeroU32;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::domain::limits::{VALUE_MAX_LEVELS, is_too_deep};

/// One thing to do. Serializable, because the steps that are left are part of the resume state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub(super) enum Step {
    /// Streams text.
    Say { text: String },
    /// Streams thinking.
    Think { text: String },
    /// Streams `count` one-word deltas, at a rate or at once.
    Tokens { count: u32, per_second: Option<NonZeroU32> },
    /// Calls a tool without asking.
    Tool { call: Call },
    /// Asks for all of these calls at once and goes on when each is decided and done.
    Ask { calls: Vec<Call> },
    /// Writes a file in the workspace.
    Write { path: String, text: String },
    /// Shows a plan.
    Plan { entries: Vec<String> },
    /// Counts tokens.
    Usage { input_tokens: u64, output_tokens: u64 },
    /// Tells of something that has no event of its own.
    Activity { label: String },
    /// Tells of a condensed memory.
    Compact { summary: String },
    /// Keeps a word.
    Remember { word: String },
    /// Says the words kept so far.
    Recall,
    /// Does nothing for so many milliseconds.
    Sleep { ms: u64 },
    /// Ends the turn with an error.
    Fail { code: String, message: String },
    /// Never ends, but obeys cancel.
    Hang,
    /// Never ends and ignores cancel.
    Deaf,
    /// Vanishes as a killed process does.
    Die,
    /// Gives no resume state from now on.
    LoseState,
    /// Ends the turn with this stop reason.
    StopReason { word: String },
    /// Ends the greeting in words that fit what became of its question.
    Farewell,
}

/// A tool call of the script.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Call {
    /// The tool.
    pub name: String,
    /// What it gets.
    pub input: Value,
    /// What it does.
    pub effect: ToolEffect,
}

/// What a tool does when it is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ToolEffect {
    /// Gives its input back.
    Echo,
    /// Carries out `echo TEXT > FILE` by itself; there is no shell behind it.
    WriteByShell,
}

/// How each directive is written.
const USAGE: [(&str, &str); 20] = [
    ("say", "/say TEXT"),
    ("think", "/think TEXT"),
    ("tokens", "/tokens N [PER_SECOND]"),
    ("tool", "/tool NAME JSON"),
    ("ask", "/ask NAME JSON"),
    ("ask-all", "/ask-all NAME JSON | NAME JSON …"),
    ("write", "/write PATH TEXT"),
    ("plan", "/plan A; B; C"),
    ("usage", "/usage IN OUT"),
    ("activity", "/activity TEXT"),
    ("compact", "/compact TEXT"),
    ("remember", "/remember WORD"),
    ("recall", "/recall"),
    ("sleep", "/sleep MS"),
    ("fail", "/fail CODE TEXT"),
    ("hang", "/hang"),
    ("deaf", "/deaf"),
    ("die", "/die"),
    ("lose-state", "/lose-state"),
    ("stop-reason", "/stop-reason WORD"),
];

/// The steps of a prompt: its directives in order, or the greeting where it has none.
///
/// # Errors
/// What is wrong with the first bad line, with the line's number and how the directive is written.
pub(super) fn parse(prompt: &str) -> Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    for (index, line) in prompt.lines().enumerate() {
        if let Some(directive) = line.strip_prefix('/') {
            steps.push(step(directive).map_err(|why| format!("line {}: {why}", index + 1))?);
        }
    }
    Ok(if steps.is_empty() { greeting() } else { steps })
}

/// The text in pieces of one word and the white space after it; together they are the text, character by character.
pub(super) fn words(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let (mut begin, mut in_gap) = (0, false);
    for (at, c) in text.char_indices() {
        if in_gap && !c.is_whitespace() {
            words.push(&text[begin..at]);
            begin = at;
        }
        in_gap = c.is_whitespace();
    }
    if begin < text.len() {
        words.push(&text[begin..]);
    }
    words
}

/// What the demo's shell understands: `echo TEXT > FILE`, text and file as they are or in quotes. Gives text and file.
pub(super) fn echo_to_file(command: &str) -> Option<(String, String)> {
    let (text, file) = command.trim().strip_prefix("echo ")?.rsplit_once('>')?;
    let (text, file) = (unquoted(text), unquoted(file));
    // `>>` and nested quotes mean something to a shell that this is not.
    let plain = |part: &str| !part.is_empty() && !part.contains(['>', '\'', '"', '\\', '$', '`', '|', '&']);
    (plain(text) && plain(file)).then(|| (text.to_owned(), file.to_owned()))
}

fn unquoted(text: &str) -> &str {
    let text = text.trim();
    ['\'', '"'].into_iter().find_map(|quote| text.strip_prefix(quote)?.strip_suffix(quote)).unwrap_or(text)
}

/// What a newcomer sees: every kind of event that matters, and one approval.
fn greeting() -> Vec<Step> {
    let call = |name: &str, input: Value, effect| Call { name: name.to_owned(), input, effect };
    vec![
        Step::Think { text: "First I look around, then I ask before I change anything.".to_owned() },
        Step::Say {
            text:
                "Hello! I am the demo harness: no model, no network. I look at the workspace, and with your \
                   approval I write a file there. "
                    .to_owned(),
        },
        Step::Tool { call: call("read", json!({ "path": "." }), ToolEffect::Echo) },
        Step::Ask {
            calls: vec![call(
                "shell",
                json!({ "command": "echo 'Hello from Ostler.' > hello.txt" }),
                ToolEffect::WriteByShell,
            )],
        },
        Step::Farewell,
    ]
}

fn step(directive: &str) -> Result<Step, String> {
    let (name, rest) = split_word(directive);
    let Some((_, usage)) = USAGE.iter().find(|(known, _)| *known == name) else {
        let known: Vec<&str> = USAGE.iter().map(|(_, usage)| *usage).collect();
        return Err(format!("/{name} is no directive; there are {}", known.join(", ")));
    };
    arguments(name, rest).map_err(|why| format!("{why}; write {usage}"))
}

fn arguments(name: &str, rest: &str) -> Result<Step, String> {
    Ok(match name {
        "say" => Step::Say { text: text(rest)? },
        "think" => Step::Think { text: text(rest)? },
        "tokens" => {
            let (count, rate) = split_word(rest);
            let per_second = if rate.is_empty() { None } else { Some(number(rate, "PER_SECOND")?) };
            Step::Tokens { count: number(count, "N")?, per_second }
        }
        "tool" => Step::Tool { call: one_call(rest)? },
        "ask" => Step::Ask { calls: vec![one_call(rest)?] },
        "ask-all" => Step::Ask { calls: calls(rest)? },
        "write" => {
            let (path, content) = word_and_text(rest)?;
            Step::Write { path, text: content }
        }
        "plan" => Step::Plan { entries: entries(rest)? },
        "usage" => {
            let (input, output) = split_word(rest);
            Step::Usage { input_tokens: number(input, "IN")?, output_tokens: number(output, "OUT")? }
        }
        "activity" => Step::Activity { label: text(rest)? },
        "compact" => Step::Compact { summary: text(rest)? },
        "remember" => Step::Remember { word: word(rest)? },
        "sleep" => Step::Sleep { ms: number(rest, "MS")? },
        "fail" => {
            let (code, message) = word_and_text(rest)?;
            Step::Fail { code, message }
        }
        "stop-reason" => Step::StopReason { word: word(rest)? },
        bare => {
            if !rest.is_empty() {
                return Err(format!("/{bare} takes nothing after it"));
            }
            bare_step(bare)?
        }
    })
}

fn bare_step(name: &str) -> Result<Step, String> {
    match name {
        "recall" => Ok(Step::Recall),
        "hang" => Ok(Step::Hang),
        "deaf" => Ok(Step::Deaf),
        "die" => Ok(Step::Die),
        "lose-state" => Ok(Step::LoseState),
        // A table row without a meaning: the tests read every row, so that nobody sees this.
        other => Err(format!("/{other} has no meaning")),
    }
}

/// The first word and what follows it, without the white space around.
fn split_word(text: &str) -> (&str, &str) {
    let text = text.trim();
    text.split_once(char::is_whitespace).map_or((text, ""), |(word, rest)| (word, rest.trim_start()))
}

fn text(rest: &str) -> Result<String, String> {
    if rest.is_empty() { Err("the text is missing".to_owned()) } else { Ok(rest.to_owned()) }
}

fn word(rest: &str) -> Result<String, String> {
    match split_word(rest) {
        ("", _) => Err("the word is missing".to_owned()),
        (word, "") => Ok(word.to_owned()),
        _ => Err("it takes one word alone".to_owned()),
    }
}

fn word_and_text(rest: &str) -> Result<(String, String), String> {
    let (word, rest) = split_word(rest);
    Ok((self::word(word)?, text(rest)?))
}

fn number<T: FromStr>(word: &str, what: &str) -> Result<T, String> {
    if word.is_empty() {
        return Err(format!("{what} is missing"));
    }
    word.parse().map_err(|_| format!("{what} must be a whole number in range, not `{word}`"))
}

fn entries(rest: &str) -> Result<Vec<String>, String> {
    let entries: Vec<String> =
        rest.split(';').map(str::trim).filter(|entry| !entry.is_empty()).map(str::to_owned).collect();
    if entries.is_empty() { Err("the plan is empty".to_owned()) } else { Ok(entries) }
}

fn one_call(rest: &str) -> Result<Call, String> {
    match call(rest)? {
        (call, "") => Ok(call),
        (_, more) => Err(format!("it takes one call alone, and after it stands `{more}`")),
    }
}

fn calls(mut rest: &str) -> Result<Vec<Call>, String> {
    let mut calls = Vec::new();
    loop {
        let (next, more) = call(rest)?;
        calls.push(next);
        if more.is_empty() {
            return Ok(calls);
        }
        rest = more
            .strip_prefix('|')
            .ok_or_else(|| format!("between two calls stands `|`, and here stands `{more}`"))?;
    }
}

/// The call that the text begins with, and the rest. Where its JSON ends, the JSON parser tells: a `|` may stand in a string.
fn call(text: &str) -> Result<(Call, &str), String> {
    let (name, json) = split_word(text);
    if name.is_empty() {
        return Err("the tool's name is missing".to_owned());
    }
    let mut values = serde_json::Deserializer::from_str(json).into_iter::<Value>();
    let input = values
        .next()
        .ok_or_else(|| format!("the JSON input of {name} is missing"))?
        .map_err(|error| format!("the input of {name} is not JSON: {error}"))?;
    if is_too_deep(&input) {
        return Err(format!("the input of {name} is nested deeper than {VALUE_MAX_LEVELS} levels"));
    }
    let rest = json.get(values.byte_offset()..).unwrap_or_default().trim();
    Ok((Call { name: name.to_owned(), input, effect: ToolEffect::Echo }, rest))
}

#[cfg(test)]
mod tests;
