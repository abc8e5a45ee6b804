//! The two ends of a command's output, and the person in front of it: width, colours, clean text, questions.
//!
//! Everything that an agent or a tenant wrote goes through [`clean`] before it is shown: otherwise a hostile agent could
//! move the cursor and paint an approval prompt of its own.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::sync::mpsc as blocking;

use rustix::termios::{QueueSelector, tcflush, tcgetwinsize};
use serde_json::Value;
use tokio::sync::mpsc;

use super::error::{CliError, CliResult};

/// Where a command reads and writes.
pub(super) struct Terminal {
    out: Stream,
    err: Stream,
    /// Whether results are JSON lines, for programs.
    pub(super) json: bool,
    /// The columns of the screen; `None` where output does not go to one.
    pub(super) width: Option<usize>,
    /// The person, where there is one who sees what we write and whose keyboard we read.
    pub(super) person: Option<Person>,
    line_open: bool,
}

struct Stream {
    to: Box<dyn Write + Send>,
    colours: bool,
}

/// How a piece of text looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Plain,
    Dim,
    Bold,
    Green,
    Yellow,
    Red,
    Cyan,
}

impl Look {
    fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Dim => "2",
            Self::Bold => "1",
            Self::Green => "32",
            Self::Yellow => "33",
            Self::Red => "31",
            Self::Cyan => "36",
        }
    }

    /// The text in this look, or as it is where colours are off.
    pub(super) fn paint(self, text: &str, colours: bool) -> Cow<'_, str> {
        match self {
            Self::Plain => Cow::Borrowed(text),
            _ if !colours || text.is_empty() => Cow::Borrowed(text),
            _ => Cow::Owned(format!("\x1b[{}m{text}\x1b[0m", self.code())),
        }
    }
}

impl Terminal {
    /// The process's own stdout, stderr and stdin.
    pub(super) fn of_process(json: bool) -> Self {
        let (out, err) = (io::stdout(), io::stderr());
        let wanted = colours_wanted();
        let on_screen = out.is_terminal();
        let width =
            tcgetwinsize(&out).ok().map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0);
        let asks = !json && on_screen && err.is_terminal() && io::stdin().is_terminal();
        Self {
            out: Stream { colours: wanted && on_screen && !json, to: Box::new(out) },
            err: Stream { colours: wanted && err.is_terminal() && !json, to: Box::new(err) },
            json,
            width: width.filter(|_| on_screen),
            person: asks.then(Person::at_stdin),
            line_open: false,
        }
    }

    /// Whether stdout takes colours.
    pub(super) fn colours(&self) -> bool {
        self.out.colours
    }

    /// Whether a person reads stdout on a screen.
    pub(super) fn on_screen(&self) -> bool {
        self.width.is_some()
    }

    /// Writes clean text to stdout in a look, as it is, without a line end, at once.
    pub(super) fn text(&mut self, text: &str, look: Look) -> CliResult<()> {
        let text = clean(text);
        if text.is_empty() {
            return Ok(());
        }
        self.line_open = !text.ends_with('\n');
        self.out.to.write_all(look.paint(&text, self.out.colours).as_bytes())?;
        Ok(self.out.to.flush()?)
    }

    /// Ends the line that [`Terminal::text`] left open.
    pub(super) fn end_line(&mut self) -> CliResult<()> {
        if self.line_open {
            self.line_open = false;
            self.out.to.write_all(b"\n")?;
            self.out.to.flush()?;
        }
        Ok(())
    }

    /// Writes a clean line of its own to stdout.
    pub(super) fn line(&mut self, text: &str, look: Look) -> CliResult<()> {
        self.end_line()?;
        self.text(text, look)?;
        self.line_open = true;
        self.end_line()
    }

    /// Writes to stdout what is clean already and may hold colours.
    pub(super) fn painted(&mut self, text: &str) -> CliResult<()> {
        self.end_line()?;
        self.out.to.write_all(text.as_bytes())?;
        Ok(self.out.to.flush()?)
    }

    /// Writes a JSON value to stdout as one line.
    pub(super) fn json_line(&mut self, value: &Value) -> CliResult<()> {
        self.json_text(&value.to_string())
    }

    /// Writes JSON to stdout that is one line already.
    pub(super) fn json_text(&mut self, json: &str) -> CliResult<()> {
        let mut line = clean_json(json);
        line.push('\n');
        self.painted(&line)
    }

    /// Tells the person something about the command itself: a clean line on stderr. A program is not told.
    pub(super) fn note(&mut self, text: &str, look: Look) -> CliResult<()> {
        if self.json {
            return Ok(());
        }
        self.end_line()?;
        let text = clean(text);
        writeln!(self.err.to, "{}", look.paint(&text, self.err.colours))?;
        Ok(self.err.to.flush()?)
    }

    /// Shows a question on stderr and leaves the cursor behind it. What was typed before cannot have been meant for it.
    pub(super) fn question(&mut self, text: &str) -> CliResult<()> {
        self.end_line()?;
        if let Some(person) = &mut self.person {
            person.forget();
        }
        let text = clean(text);
        write!(self.err.to, "{} ", Look::Bold.paint(&text, self.err.colours))?;
        Ok(self.err.to.flush()?)
    }

    /// Leaves a question that will not be answered.
    pub(super) fn leave_question(&mut self) -> CliResult<()> {
        Ok(writeln!(self.err.to)?)
    }

    /// Reports an error: for a person in words with a hint, for a program as a problem document.
    pub(super) fn error(&mut self, error: &CliError) -> CliResult<()> {
        self.end_line()?;
        if self.json {
            return Ok(writeln!(self.err.to, "{}", clean_json(&error.json().to_string()))?);
        }
        let label = Look::Red.paint("error:", self.err.colours).into_owned();
        writeln!(self.err.to, "{label} {}", clean(&error.line()))?;
        if let Some(hint) = error.hint() {
            writeln!(
                self.err.to,
                "{}",
                Look::Dim.paint(&format!("  hint: {}", clean(&hint)), self.err.colours)
            )?;
        }
        Ok(())
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "conventions of the terminal, not configuration: they have no flag"
)]
fn colours_wanted() -> bool {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb")
}

/// Whether a terminal may take this character for a command, or a reader be misled by it: controls other than line end
/// and tab (ESC and C1 among them), and the characters that turn the direction of writing around.
fn is_unsafe(c: char) -> bool {
    (c.is_control() && c != '\n' && c != '\t')
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The text with everything unsafe shown as `�`. A carriage return before a line end is dropped.
pub(super) fn clean(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(
        text.replace("\r\n", "\n").chars().map(|c| if is_unsafe(c) { '\u{fffd}' } else { c }).collect(),
    )
}

/// Clean text on one line: line ends and tabs become spaces.
pub(super) fn one_line(text: &str) -> String {
    clean(text).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// JSON that means the same and holds nothing unsafe: unsafe characters can only stand in strings, where they have an escape.
pub(super) fn clean_json(json: &str) -> String {
    let mut clean = String::with_capacity(json.len());
    for c in json.chars() {
        if is_unsafe(c) && c != '\r' {
            clean.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            clean.push(c);
        }
    }
    clean
}

/// The person at the keyboard. A line is read on a thread of its own, which the end of the process does not wait for:
/// a read of the keyboard cannot be called off.
pub(super) struct Person {
    wanted: blocking::Sender<()>,
    lines: mpsc::UnboundedReceiver<Option<String>>,
    reading: bool,
    flush: fn(),
}

impl Person {
    fn at_stdin() -> Self {
        let read = || {
            let mut line = String::new();
            matches!(io::stdin().read_line(&mut line), Ok(bytes) if bytes > 0).then_some(line)
        };
        let flush = || {
            // Where it cannot be flushed nothing was typed ahead either.
            let _ = tcflush(io::stdin(), QueueSelector::IFlush);
        };
        Self::new(read, flush)
    }

    fn new(mut read: impl FnMut() -> Option<String> + Send + 'static, flush: fn()) -> Self {
        let (wanted, requests) = blocking::channel();
        let (answers, lines) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            while requests.recv().is_ok() {
                if answers.send(read()).is_err() {
                    break;
                }
            }
        });
        Self { wanted, lines, reading: false, flush }
    }

    /// Throws away what was typed so far.
    fn forget(&mut self) {
        (self.flush)();
        while self.lines.try_recv().is_ok() {
            self.reading = false;
        }
    }

    /// The next line; `None` at the end of the input. May be dropped and called again without losing a line.
    pub(super) async fn line(&mut self) -> Option<String> {
        if !self.reading {
            self.reading = self.wanted.send(()).is_ok();
        }
        let line = self.lines.recv().await.flatten();
        self.reading = false;
        line
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// What a command wrote.
    #[derive(Clone, Default)]
    pub(in crate::cli) struct Written(Arc<Mutex<Vec<u8>>>);

    impl Written {
        pub(in crate::cli) fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Terminal {
        /// A terminal that keeps what is written: stdout, stderr.
        pub(in crate::cli) fn kept(json: bool, width: Option<usize>) -> (Self, Written, Written) {
            let (out, err) = (Written::default(), Written::default());
            let stream = |to: &Written| Stream { to: Box::new(to.clone()), colours: false };
            let terminal =
                Self { out: stream(&out), err: stream(&err), json, width, person: None, line_open: false };
            (terminal, out, err)
        }

        /// A screen where stdout and stderr meet.
        pub(in crate::cli) fn kept_together(width: Option<usize>) -> (Self, Written) {
            let (mut terminal, screen, _) = Self::kept(false, width);
            terminal.err.to = Box::new(screen.clone());
            (terminal, screen)
        }

        /// The same with a person who answers these lines, one at a time.
        pub(in crate::cli) fn with_person(mut self, lines: &[&str]) -> Self {
            let mut lines: Vec<String> = lines.iter().rev().map(|line| format!("{line}\n")).collect();
            self.person = Some(Person::new(move || lines.pop(), || {}));
            self
        }

        /// The same with a person who never answers.
        pub(in crate::cli) fn with_silent_person(mut self) -> Self {
            let (keep, never) = blocking::channel::<Option<String>>();
            let read = move || {
                let _open = &keep;
                never.recv().ok().flatten()
            };
            self.person = Some(Person::new(read, || {}));
            self
        }
    }

    #[test]
    fn text_of_an_agent_cannot_command_the_terminal() {
        assert_eq!(
            clean("plain text, tab\t and line\nend, ünïcode 你好 🐎"),
            "plain text, tab\t and line\nend, ünïcode 你好 🐎"
        );
        assert_eq!(clean("\x1b[2J\x1b]0;t\x07"), "�[2J�]0;t�");
        assert_eq!(clean("\u{9b}31m \u{202e}evil\u{2066} \u{7f}"), "�31m �evil� �");
        assert_eq!(clean("one\r\ntwo\rthree"), "one\ntwo�three");
        assert_eq!(one_line(" a\n\tb\x08 "), "a b�");
    }

    #[test]
    fn cleaned_json_means_the_same_and_holds_nothing_unsafe() {
        let value = serde_json::json!({"text": "\u{9b}2J \u{202e} \x1b \u{7f} é"});
        let line = clean_json(&value.to_string());
        assert!(!line.chars().any(is_unsafe), "{line}");
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), value);
    }

    #[test]
    fn whatever_way_text_is_written_it_is_clean() {
        let (mut terminal, out, err) = Terminal::kept(false, None);
        terminal.text("a\x1bb", Look::Plain).unwrap();
        terminal.line("c\x1bd", Look::Dim).unwrap();
        terminal.note("e\x1bf", Look::Dim).unwrap();
        terminal.question("g\x1bh").unwrap();
        terminal.error(&CliError::Unexpected("i\x1bj".into())).unwrap();
        assert_eq!(out.text(), "a�b\nc�d\n");
        assert!(!err.text().contains('\x1b'), "{}", err.text());
    }

    #[test]
    fn colours_are_written_only_where_they_are_wanted() {
        assert_eq!(Look::Red.paint("x", true), "\x1b[31mx\x1b[0m");
        assert_eq!(Look::Red.paint("x", false), "x");
        assert_eq!(Look::Plain.paint("x", true), "x");
    }

    #[tokio::test]
    async fn a_line_that_was_typed_before_the_question_does_not_answer_it() {
        let (type_line, typed) = blocking::channel::<String>();
        let mut person = Person::new(move || typed.recv().ok(), || {});
        // The question before this one was given up while its line was being read.
        let given_up = tokio::time::timeout(std::time::Duration::ZERO, person.line()).await;
        assert!(given_up.is_err());
        type_line.send("a".into()).unwrap();
        while person.lines.is_empty() {
            tokio::task::yield_now().await;
        }
        person.forget();
        type_line.send("d".into()).unwrap();
        assert_eq!(person.line().await.as_deref(), Some("d"));
    }
}
