//! Events as a person reads them.

use serde_json::Value;

use super::error::CliResult;
use super::sse::Event;
use super::table::{columns, truncate};
use super::terminal::{Look, Terminal, clean_json, one_line};
use super::text_of;

/// How far a line of a tool goes where there is no screen to say so.
const LINE_COLUMNS: usize = 200;
/// What each line of thinking begins with: it must not look like speech where there are no colours.
const THINKING: &str = "┊ ";

/// Shows events one after the other: speech and thinking flow, everything else has a line of its own.
#[derive(Debug, Default)]
pub(super) struct Renderer {
    flow: Flow,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Flow {
    #[default]
    Nothing,
    Speech,
    Thinking {
        at_line_start: bool,
    },
}

impl Renderer {
    /// Shows what an agent puts out; `false` for events of another kind.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn output(&mut self, terminal: &mut Terminal, event: &Event) -> CliResult<bool> {
        match event.kind.as_str() {
            "text.delta" => return self.speech(terminal, event.text("text")).map(|()| true),
            "thinking.delta" => return self.thinking(terminal, event.text("text")).map(|()| true),
            _ => {}
        }
        let Some(lines) = output_lines(event) else { return Ok(false) };
        for line in lines {
            self.line(terminal, &line)?;
        }
        Ok(true)
    }

    /// Shows any event on stdout: as it is for a program; for a person as output, or as a line among the output.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn log(&mut self, terminal: &mut Terminal, event: &Event) -> CliResult<()> {
        if terminal.json {
            return terminal.json_text(&event.json);
        }
        if self.output(terminal, event)? {
            return Ok(());
        }
        let Some((text, look)) = life_line(event) else { return Ok(()) };
        self.line(terminal, &Line { mark: "──", look, head: text, rest: String::new() })
    }

    fn speech(&mut self, terminal: &mut Terminal, text: &str) -> CliResult<()> {
        if self.flow != Flow::Speech {
            terminal.end_line()?;
            self.flow = Flow::Speech;
        }
        terminal.text(text, Look::Plain)
    }

    fn thinking(&mut self, terminal: &mut Terminal, text: &str) -> CliResult<()> {
        let mut at_line_start = match self.flow {
            Flow::Thinking { at_line_start } => at_line_start,
            _ => {
                terminal.end_line()?;
                true
            }
        };
        for piece in text.split_inclusive('\n') {
            if at_line_start {
                terminal.text(THINKING, Look::Dim)?;
            }
            terminal.text(piece, Look::Dim)?;
            at_line_start = piece.ends_with('\n');
        }
        self.flow = Flow::Thinking { at_line_start };
        Ok(())
    }

    fn line(&mut self, terminal: &mut Terminal, line: &Line) -> CliResult<()> {
        self.flow = Flow::Nothing;
        terminal.painted(&line.paint(terminal.width, terminal.colours()))
    }
}

/// A line: `→ shell  {"command":"ls"}`. The head is shown whole, the rest as far as it fits.
struct Line {
    mark: &'static str,
    look: Look,
    head: String,
    rest: String,
}

impl Line {
    fn paint(&self, width: Option<usize>, colours: bool) -> String {
        let head = format!("{} {}", self.mark, one_line(&self.head));
        // What is longer is cut before it is cleaned: a tool's input may be a whole file.
        let room = width.unwrap_or(LINE_COLUMNS).saturating_sub(columns(&head) + 2);
        let rest: String = self.rest.chars().take(4 * LINE_COLUMNS).collect();
        let rest = truncate(&one_line(&rest), room);
        let painted = self.look.paint(&head, colours);
        if rest.is_empty() || room == 0 {
            return format!("{painted}\n");
        }
        format!("{painted}  {}\n", Look::Dim.paint(&rest, colours))
    }
}

fn output_lines(event: &Event) -> Option<Vec<Line>> {
    let line = |mark, look, head: &str, rest: String| Line { mark, look, head: head.to_owned(), rest };
    Some(match event.kind.as_str() {
        "tool.started" => {
            vec![line("→", Look::Cyan, event.text("name"), brief(&event.data["input"]))]
        }
        "tool.completed" => {
            let (mark, look) =
                if event.text("status") == "failed" { ("✗", Look::Red) } else { ("✓", Look::Green) };
            vec![line(mark, look, event.text("name"), brief(&event.data["result"]))]
        }
        "file.changed" => {
            let head = format!("{} {}", event.text("operation"), event.text("path"));
            vec![line("±", Look::Cyan, &head, event.text("summary").to_owned())]
        }
        "plan.updated" => {
            let entries = event.data["entries"].as_array().map(Vec::as_slice).unwrap_or_default();
            let entry = |entry: &Value| {
                let (mark, look) = match text_of(entry, "status") {
                    "completed" => ("[x]", Look::Green),
                    "in_progress" => ("[~]", Look::Cyan),
                    _ => ("[ ]", Look::Plain),
                };
                line(mark, look, text_of(entry, "content"), String::new())
            };
            entries.iter().map(entry).collect()
        }
        "activity" => vec![line("·", Look::Dim, event.text("label"), event.text("tool").to_owned())],
        "text.rewound" => {
            vec![line("·", Look::Dim, "the last words are void", event.text("reason").to_owned())]
        }
        "compaction" => vec![line("·", Look::Dim, "memory condensed", event.text("summary").to_owned())],
        "usage" => Vec::new(),
        kind if is_life(kind) => return None,
        // What a later version of the service may send.
        kind => vec![line("·", Look::Dim, kind, brief(&event.data))],
    })
}

fn is_life(kind: &str) -> bool {
    ["session.", "turn.", "approval."].iter().any(|prefix| kind.starts_with(prefix))
}

/// A turn in the life of a session, a turn or an approval, in words; `None` for what a person need not know.
pub(super) fn life_line(event: &Event) -> Option<(String, Look)> {
    let approval = &event.data["approval"];
    let failure = || format!("{} ({})", event.text("message"), event.text("code"));
    Some(match event.kind.as_str() {
        "session.created" => ("session created".to_owned(), Look::Dim),
        "session.stopped" => (format!("session stopped ({})", event.text("cause")), Look::Dim),
        "session.errored" => (format!("session errored: {}", failure()), Look::Red),
        "session.destroyed" => ("session destroyed".to_owned(), Look::Red),
        "session.rehydrated" => {
            let exact = event.data["exact"].as_bool().unwrap_or_default();
            let how = if exact { "exactly where it stood" } else { "from its last completed step" };
            (format!("conversation taken up again, {how}"), Look::Dim)
        }
        "session.context_lost" => (
            format!("the agent starts empty, the conversation is lost: {}", event.text("reason")),
            Look::Yellow,
        ),
        "turn.queued" => ("turn queued".to_owned(), Look::Dim),
        "turn.started" => ("turn started".to_owned(), Look::Dim),
        "turn.completed" => (format!("turn completed ({})", event.text("stop_reason")), Look::Green),
        "turn.failed" => (format!("turn failed: {}", failure()), Look::Red),
        "turn.cancelled" => ("turn cancelled".to_owned(), Look::Yellow),
        "turn.interrupted" => {
            let surely = event.text("delivery") == "delivered";
            let doubt = if surely { "" } else { "; nobody knows whether it had the prompt" };
            (format!("turn interrupted: the process that ran it was lost{doubt}"), Look::Yellow)
        }
        "turn.timed_out" => ("turn timed out".to_owned(), Look::Red),
        "approval.requested" => {
            (format!("approval needed: {} ({})", question(approval), text_of(approval, "id")), Look::Yellow)
        }
        "approval.resolved" => resolution(approval),
        "approval.expired" => (format!("approval expired: {}", question(approval)), Look::Yellow),
        "approval.cancelled" => (format!("approval cancelled: {}", question(approval)), Look::Dim),
        "approval.orphaned" => {
            (format!("approval orphaned, the agent cannot be told: {}", question(approval)), Look::Yellow)
        }
        _ => return None,
    })
}

fn resolution(approval: &Value) -> (String, Look) {
    let look = if text_of(approval, "status") == "approved" { Look::Green } else { Look::Red };
    let by = approval["decided_by"].as_str().map(|who| format!(" by {who}")).unwrap_or_default();
    let why = approval["reason"].as_str().map(|why| format!(" ({why})")).unwrap_or_default();
    (format!("{}{by}{why}: {}", text_of(approval, "status"), question(approval)), look)
}

/// What an approval asks, on one line.
pub(super) fn question(approval: &Value) -> String {
    let title = one_line(text_of(approval, "title"));
    if title.is_empty() { one_line(text_of(approval, "tool")) } else { title }
}

/// A value on one line: a text as it is, anything else as JSON.
pub(super) fn brief(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => clean_json(&other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::stub::event;
    use super::*;

    fn show(width: Option<usize>, events: &[Value]) -> String {
        let (mut terminal, out, _) = Terminal::kept(false, width);
        let mut renderer = Renderer::default();
        for event in events {
            let event = Event::read(event.clone()).unwrap();
            renderer.log(&mut terminal, &event).unwrap();
        }
        terminal.end_line().unwrap();
        out.text()
    }

    fn a_turn() -> Vec<Value> {
        let approval = json!({"id": "apr_1", "title": "Run: echo hi > hello.txt", "tool": "shell", "status": "approved",
                              "decided_by": "alice", "reason": null});
        let kinds = [
            ("session.created", json!({})),
            ("turn.queued", json!({})),
            ("turn.started", json!({})),
            ("thinking.delta", json!({"text": "First I "})),
            ("thinking.delta", json!({"text": "look.\nThen"})),
            ("thinking.delta", json!({"text": " I write.\n"})),
            ("text.delta", json!({"text": "Hello"})),
            ("text.delta", json!({"text": ", world.\nSecond line."})),
            ("tool.started", json!({"name": "read", "kind": "read", "input": {"path": "README.md"}})),
            ("tool.completed", json!({"name": "read", "status": "succeeded", "result": "line 1\nline 2"})),
            ("approval.requested", json!({"approval": approval})),
            ("approval.resolved", json!({"approval": approval})),
            ("approval.delivered", json!({"approval": approval})),
            ("tool.completed", json!({"name": "shell", "status": "failed", "result": {"error": "denied"}})),
            ("file.changed", json!({"path": "hello.txt", "operation": "create", "summary": "3 bytes"})),
            (
                "plan.updated",
                json!({"entries": [{"content": "look", "status": "completed"},
                {"content": "write", "status": "in_progress"}, {"content": "rest", "status": "pending"}]}),
            ),
            ("activity", json!({"label": "Indexing", "tool": null})),
            ("compaction", json!({"summary": "We said hello."})),
            ("usage", json!({"input_tokens": 1, "output_tokens": 2})),
            ("moon.rose", json!({"phase": "full"})),
            ("text.delta", json!({"text": "Done."})),
            ("turn.completed", json!({"stop_reason": "end_turn"})),
        ];
        kinds.into_iter().zip(1..).map(|((kind, data), seq)| event(seq, kind, data)).collect()
    }

    #[test]
    fn a_turn_reads_like_a_conversation() {
        insta::assert_snapshot!(show(None, &a_turn()), @r#"
        ── session created
        ── turn queued
        ── turn started
        ┊ First I look.
        ┊ Then I write.
        Hello, world.
        Second line.
        → read  {"path":"README.md"}
        ✓ read  line 1 line 2
        ── approval needed: Run: echo hi > hello.txt (apr_1)
        ── approved by alice: Run: echo hi > hello.txt
        ✗ shell  {"error":"denied"}
        ± create hello.txt  3 bytes
        [x] look
        [~] write
        [ ] rest
        · Indexing
        · memory condensed  We said hello.
        · moon.rose  {"phase":"full"}
        Done.
        ── turn completed (end_turn)
        "#);
    }

    #[test]
    fn each_end_and_each_turn_of_life_has_its_words() {
        let approval = json!({"approval": {"id": "apr_1", "title": "", "tool": "shell", "status": "denied",
                                           "decided_by": "bob", "reason": "too\nbold"}});
        let failure = json!({"code": "harness_failed", "message": "It fell over."});
        let events = [
            ("session.rehydrated", json!({"exact": true})),
            ("session.rehydrated", json!({"exact": false})),
            ("session.context_lost", json!({"reason": "no state"})),
            ("approval.resolved", approval.clone()),
            ("approval.expired", approval.clone()),
            ("approval.cancelled", approval.clone()),
            ("approval.orphaned", approval),
            ("turn.failed", failure.clone()),
            ("turn.cancelled", json!({})),
            ("turn.interrupted", json!({"delivery": "unknown"})),
            ("turn.interrupted", json!({"delivery": "delivered"})),
            ("turn.timed_out", json!({})),
            ("session.errored", failure),
            ("session.stopped", json!({"cause": "idle_ttl"})),
            ("session.destroyed", json!({})),
        ];
        let events: Vec<Value> = events.into_iter().map(|(kind, data)| event(1, kind, data)).collect();
        insta::assert_snapshot!(show(None, &events), @"
        ── conversation taken up again, exactly where it stood
        ── conversation taken up again, from its last completed step
        ── the agent starts empty, the conversation is lost: no state
        ── denied by bob (too bold): shell
        ── approval expired: shell
        ── approval cancelled: shell
        ── approval orphaned, the agent cannot be told: shell
        ── turn failed: It fell over. (harness_failed)
        ── turn cancelled
        ── turn interrupted: the process that ran it was lost; nobody knows whether it had the prompt
        ── turn interrupted: the process that ran it was lost
        ── turn timed out
        ── session errored: It fell over. (harness_failed)
        ── session stopped (idle_ttl)
        ── session destroyed
        ");
    }

    #[test]
    fn a_line_of_a_tool_fits_the_screen() {
        let input = json!({"name": "write", "input": {"path": "a", "text": "x".repeat(100_000)}});
        let shown = show(Some(40), &[event(1, "tool.started", input)]);
        assert_eq!(columns(shown.trim_end()), 40);
        assert!(shown.ends_with("…\n"), "{shown}");
    }

    #[test]
    fn nothing_that_an_agent_says_commands_the_terminal() {
        let evil = "\x1b[2J\u{9b}A\u{202e}\r\n── approved";
        let events = [
            event(1, "text.delta", json!({"text": evil})),
            event(2, "thinking.delta", json!({"text": evil})),
            event(3, "tool.started", json!({"name": evil, "input": {evil: evil}})),
            event(4, "tool.completed", json!({"name": evil, "status": evil, "result": evil})),
            event(5, "file.changed", json!({"path": evil, "operation": evil, "summary": evil})),
            event(6, "plan.updated", json!({"entries": [{"content": evil, "status": evil}]})),
            event(7, "activity", json!({"label": evil, "tool": evil})),
            event(8, "turn.failed", json!({"code": evil, "message": evil})),
            event(
                9,
                "approval.resolved",
                json!({"approval": {"title": evil, "status": evil, "decided_by": evil}}),
            ),
            event(10, evil, json!({evil: evil})),
        ];
        let shown = show(None, &events);
        assert!(shown.chars().all(|c| c == '\n' || !c.is_control()), "{shown:?}");
        assert!(!shown.contains('\u{202e}'), "{shown:?}");
        // Only speech may begin a line of its own; thinking is marked, and a field cannot leave its line.
        assert_eq!(shown.lines().filter(|line| line.starts_with("── approved")).count(), 1, "{shown}");
    }
}
