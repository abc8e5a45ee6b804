//! Watching a turn to its end, or a session for as long as it lasts, with a person who may be asked on the way.

use std::collections::VecDeque;

use serde_json::{Value, json};

use super::approvals::{self, Decision, Details};
use super::client::{Client, session_path};
use super::error::{CliError, CliResult};
use super::render::{Renderer, life_line};
use super::sse::{Event, EventReader, Step};
use super::terminal::{Look, Person, Terminal};
use super::when::{Moment, between};
use super::{Exit, text_of};

/// The question after an approval.
const CHOICES: &str = "[a]pprove  [d]eny [reason]  [s]kip:";

/// A turn that was begun.
#[derive(Clone, Debug)]
pub(super) struct Begun {
    /// The session.
    pub session: String,
    /// The turn.
    pub turn: String,
    /// All its events come after this seq.
    pub after: i64,
}

/// How to watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Manner {
    /// Show nothing of it.
    pub(super) quiet: bool,
    /// Where nobody can be asked, wait until an approval is decided elsewhere.
    pub(super) wait_approvals: bool,
}

/// How many events a question holds back at most.
const HELD_MAX: usize = 1000;

/// See the module.
struct Watch<'a> {
    client: &'a Client,
    terminal: &'a mut Terminal,
    reader: EventReader<'a>,
    renderer: Renderer,
    session: &'a str,
    /// The turn whose end is the end; `None` shows all that happens in the session.
    turn: Option<&'a str>,
    manner: Manner,
    started_at: Option<String>,
    /// Approvals that nobody was asked about yet.
    unasked: VecDeque<(Value, Option<Moment>)>,
    /// The one that the person looks at.
    asked: Option<Value>,
    /// What happened since, to be shown when the question is settled: it would run over the person's answer.
    held: Vec<Event>,
}

/// What happens next: in the session, or at the keyboard.
enum Happened {
    Step(Option<Step>),
    Line(Option<String>),
}

/// What a person's line means.
#[derive(Debug, PartialEq, Eq)]
enum Choice {
    Decide(Decision, Option<String>),
    Skip,
    Unclear,
}

/// Watches a turn to its end, or until Ctrl-C.
pub(super) async fn watch(
    client: &Client,
    terminal: &mut Terminal,
    begun: &Begun,
    manner: Manner,
) -> CliResult<Exit> {
    let session = &begun.session;
    let mut watch = Watch::new(client, terminal, session, begun.after);
    (watch.turn, watch.manner) = (Some(begun.turn.as_str()), manner);
    let outcome = watch.until_interrupted().await;
    match outcome {
        Ok(Exit::Interrupted) => {
            let back = come_back(session);
            let text = format!("detached; the turn goes on. {back} · cancel with: ostler cancel {session}");
            terminal.note(&text, Look::Yellow)?;
        }
        Err(CliError::Unreachable { .. }) => {
            terminal.note(&format!("the turn goes on. {}", come_back(session)), Look::Dim)?;
        }
        _ => {}
    }
    outcome
}

/// Shows what happens in a session after a seq until the session is destroyed, or until Ctrl-C.
pub(super) async fn follow(
    client: &Client,
    terminal: &mut Terminal,
    session: &str,
    after: i64,
) -> CliResult<Exit> {
    Watch::new(client, terminal, session, after).until_interrupted().await
}

fn come_back(session: &str) -> String {
    format!("Come back with: ostler logs -f {session}")
}

impl<'a> Watch<'a> {
    fn new(client: &'a Client, terminal: &'a mut Terminal, session: &'a str, after: i64) -> Self {
        Self {
            client,
            terminal,
            reader: EventReader::new(client, session, after),
            renderer: Renderer::default(),
            session,
            turn: None,
            manner: Manner { quiet: false, wait_approvals: false },
            started_at: None,
            unasked: VecDeque::new(),
            asked: None,
            held: Vec::new(),
        }
    }

    async fn until_interrupted(&mut self) -> CliResult<Exit> {
        let outcome = tokio::select! {
            outcome = self.follow() => outcome,
            pressed = tokio::signal::ctrl_c() => pressed.map(|()| Exit::Interrupted).map_err(CliError::from),
        };
        self.terminal.end_line()?;
        if self.terminal.person.is_some() && matches!(outcome, Ok(Exit::Interrupted)) {
            // The terminal has shown ^C on the line of the cursor.
            self.terminal.note("", Look::Plain)?;
        }
        outcome
    }

    async fn follow(&mut self) -> CliResult<Exit> {
        loop {
            self.release()?;
            self.ask_next()?;
            let end = match self.next().await? {
                Happened::Step(Some(Step::Event(event))) => self.event(&event).await?,
                Happened::Step(Some(Step::Lost)) => {
                    self.terminal.note("connection lost; reconnecting", Look::Dim)?;
                    None
                }
                Happened::Step(None) if self.turn.is_none() => Some(Exit::Ok),
                Happened::Step(None) => {
                    return Err(CliError::failed("session_destroyed", "the session was destroyed meanwhile"));
                }
                Happened::Line(line) => {
                    self.answered(line).await?;
                    None
                }
            };
            if let Some(end) = end {
                return Ok(end);
            }
        }
    }

    async fn next(&mut self) -> CliResult<Happened> {
        let asked = self.asked.is_some();
        tokio::select! {
            step = self.reader.next() => Ok(Happened::Step(step?)),
            line = typed(&mut self.terminal.person), if asked => Ok(Happened::Line(line)),
        }
    }

    /// Takes an event; gives the exit code when it is the last one.
    async fn event(&mut self, event: &Event) -> CliResult<Option<Exit>> {
        let (its, ours) = (event.turn_id.as_deref(), self.turn);
        if its.is_some() && ours.is_some() && its != ours {
            return Ok(None);
        }
        self.put_question_aside(event)?;
        self.release()?;
        match self.asked {
            Some(_) => self.held.push(event.clone()),
            None => self.show(event)?,
        }
        if event.kind == "approval.requested" {
            return self.requested(&event.data["approval"]).await;
        }
        let Some(turn) = ours else { return Ok(None) };
        if event.ends_turn() {
            return Ok(Some(if event.kind == "turn.completed" { Exit::Ok } else { Exit::Failed }));
        }
        match event.kind.as_str() {
            "turn.started" => self.started_at = Some(event.at.clone()),
            "session.stopped" | "session.errored" | "session.destroyed" => return self.standing(turn).await,
            _ => {}
        }
        Ok(None)
    }

    /// Shows what was held back, unless a question still stands; too much of it makes the question be asked again below it.
    fn release(&mut self) -> CliResult<()> {
        if self.held.len() >= HELD_MAX
            && let Some(approval) = self.asked.take()
        {
            self.terminal.leave_question()?;
            self.unasked.push_front((approval, None));
        }
        if self.asked.is_none() {
            for event in std::mem::take(&mut self.held) {
                self.show(&event)?;
            }
        }
        Ok(())
    }

    fn show(&mut self, event: &Event) -> CliResult<()> {
        if self.manner.quiet {
            return Ok(());
        }
        if self.turn.is_none() {
            // A question is shown at length.
            let is_asked = event.kind == "approval.requested" && self.terminal.person.is_some();
            return if is_asked { Ok(()) } else { self.renderer.log(self.terminal, event) };
        }
        if self.terminal.json {
            return self.terminal.json_text(&event.json);
        }
        if self.renderer.output(self.terminal, event)? {
            return Ok(());
        }
        // What every turn begins with is no news, and a question is shown at length.
        let silent = ["session.created", "turn.queued", "turn.started", "approval.requested"];
        let Some((mut text, look)) = life_line(event).filter(|_| !silent.contains(&event.kind.as_str()))
        else {
            return Ok(());
        };
        let lasted = self.started_at.as_deref().filter(|_| event.ends_turn());
        if let Some(lasted) = lasted.and_then(|start| between(start, &event.at)) {
            text.push_str(&format!(" · {lasted}"));
        }
        self.terminal.note(&text, look)
    }

    /// How the turn stands, where the session's own end came first.
    async fn standing(&mut self, turn: &str) -> CliResult<Option<Exit>> {
        let path = session_path(self.session, &["turns", turn]);
        let turn = self.client.get(&path, &[]).await?.body;
        Ok(match text_of(&turn, "status") {
            "completed" => Some(Exit::Ok),
            "failed" | "cancelled" | "interrupted" | "timed_out" => Some(Exit::Failed),
            _ => None,
        })
    }

    async fn requested(&mut self, approval: &Value) -> CliResult<Option<Exit>> {
        let can_ask = self.terminal.person.is_some() && !self.manner.quiet;
        if !can_ask && self.turn.is_none() {
            return Ok(None);
        }
        // The event may be old news: a person elsewhere, or the session's permission mode, may have answered.
        let id = text_of(approval, "id");
        let answer = self.client.get(&["v1", "approvals", id], &[]).await?;
        if text_of(&answer.body, "status") != "pending" {
            return Ok(None);
        }
        if can_ask {
            self.unasked.push_back((answer.body, answer.now));
            return Ok(None);
        }
        if self.terminal.json && !self.manner.wait_approvals {
            return Err(CliError::waiting_for(&answer.body));
        }
        approvals::show(self.terminal, &answer.body, answer.now)?;
        approvals::tell_how_to_decide(self.terminal, &answer.body)?;
        if self.manner.wait_approvals {
            return Ok(None);
        }
        self.terminal.note(&format!("the turn waits. {}", come_back(self.session)), Look::Dim)?;
        Ok(Some(Exit::WaitingForApproval))
    }

    fn ask_next(&mut self) -> CliResult<()> {
        if self.asked.is_some() {
            return Ok(());
        }
        let Some((approval, now)) = self.unasked.pop_front() else { return Ok(()) };
        approvals::show(self.terminal, &approval, now)?;
        self.terminal.question(CHOICES)?;
        self.asked = Some(approval);
        Ok(())
    }

    /// Takes a question back that this event settles.
    fn put_question_aside(&mut self, event: &Event) -> CliResult<()> {
        let settles = ["approval.resolved", "approval.expired", "approval.cancelled", "approval.orphaned"];
        let settled = settles.contains(&event.kind.as_str()).then(|| text_of(&event.data["approval"], "id"));
        let is_settled = |approval: &Value| settled == Some(text_of(approval, "id"));
        self.unasked.retain(|(approval, _)| !is_settled(approval));
        let has_ended =
            |approval: &Value| event.ends_turn() && approval["turn_id"].as_str() == event.turn_id.as_deref();
        if self.asked.as_ref().is_some_and(|approval| is_settled(approval) || has_ended(approval)) {
            self.asked = None;
            self.terminal.leave_question()?;
        }
        Ok(())
    }

    async fn answered(&mut self, line: Option<String>) -> CliResult<()> {
        let Some(approval) = self.asked.take() else { return Ok(()) };
        match line.as_deref().map_or(Choice::Skip, choice) {
            Choice::Unclear => {
                self.terminal.question(CHOICES)?;
                self.asked = Some(approval);
                Ok(())
            }
            Choice::Skip => self.skipped(&approval),
            Choice::Decide(decision, reason) => self.decided(approval, decision, reason).await,
        }
    }

    async fn decided(
        &mut self,
        approval: Value,
        decision: Decision,
        reason: Option<String>,
    ) -> CliResult<()> {
        let details = Details { reason, ..Details::default() };
        let Err(error) = approvals::decide(self.client, &approval, decision, &details).await else {
            // The event that follows tells of it.
            return Ok(());
        };
        self.terminal.error(&error)?;
        if !matches!(&error, CliError::Problem(problem) if problem.code == "approval_changed") {
            return self.skipped(&approval);
        }
        let answer = self.client.get(&["v1", "approvals", text_of(&approval, "id")], &[]).await?;
        self.unasked.push_front((answer.body, answer.now));
        Ok(())
    }

    fn skipped(&mut self, approval: &Value) -> CliResult<()> {
        self.terminal.note("not decided here. Decide it from anywhere with:", Look::Dim)?;
        approvals::tell_how_to_decide(self.terminal, approval)
    }
}

async fn typed(person: &mut Option<Person>) -> Option<String> {
    match person {
        Some(person) => person.line().await,
        None => None,
    }
}

/// Reads a line of the person. Only a denial takes words: an approval with words is likely a wish that it does not carry.
fn choice(line: &str) -> Choice {
    let line = line.trim();
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let reason = Some(rest.trim()).filter(|rest| !rest.is_empty()).map(str::to_owned);
    match (word.to_lowercase().as_str(), reason) {
        ("a" | "approve" | "y" | "yes", None) => Choice::Decide(Decision::Approve, None),
        ("d" | "deny" | "n" | "no", reason) => Choice::Decide(Decision::Deny, reason),
        ("s" | "skip", None) => Choice::Skip,
        _ => Choice::Unclear,
    }
}

/// The body of a prompt: on create and on a session alike.
pub(super) fn prompt_body(prompt: &str) -> CliResult<Value> {
    if prompt.trim().is_empty() {
        return Err(CliError::Usage("the prompt is blank".to_owned()));
    }
    Ok(json!({"prompt": prompt}))
}

#[cfg(test)]
mod tests;
