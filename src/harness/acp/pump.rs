//! Everything that comes from the agent, in order: one task reads the lines, serves the agent's requests and is the only
//! one that puts events out. So an update and the end of its turn cannot overtake each other, and a driver that falls
//! behind makes the agent wait.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::process::ChildStdout;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::connection::{Outcome, Waiter};
use super::files::{ReadFile, WriteFile};
use super::link::{Shared, State};
use super::outlet::{Outlet, Unheard};
use super::permission::{self, Ask, Question};
use super::protocol::{
    INTERNAL_ERROR, INVALID_PARAMS, Incoming, METHOD_NOT_FOUND, REQUEST_CANCELLED, RpcError, clipped,
};
use super::tool_calls::{ToolCalls, changed};
use super::translate;
use crate::domain::event::Output;
use crate::domain::turn::Failure;
use crate::harness::child::{Exit, Line, Lines, Process, VALUES_MAX, is_too_wide};
use crate::harness::workspace::Workspace;
use crate::harness::{ApprovalRequest, Fence, HarnessEvent, TurnOutcome};

/// How long an agent that closed its output may take to exit by itself.
const EXIT_GRACE: Duration = Duration::from_millis(300);
/// After the exit: how long the pipe may be silent before we take it for empty, and how much more is read at most.
/// Everything that could hold the pipe is dead by then, so both are there for what nobody has thought of.
const LAST_WORDS_GRACE: Duration = Duration::from_millis(250);
const LAST_WORDS_MAX_BYTES: usize = 2 << 20;

const LOGGED_CHARS: usize = 200;

/// Under this name a person is asked about a write through us.
pub(super) const WRITE_TOOL: &str = "fs/write_text_file";

/// Something that the session's controls ask of the pump, because only the pump puts events out.
#[derive(Debug)]
pub(super) enum Job {
    /// A person allowed this write: do it and answer this request.
    Write {
        /// The agent's id.
        request_id: Value,
        /// The file.
        write: WriteFile,
    },
    /// The state to resume from has changed.
    Checkpoint(State),
}

/// See the module.
pub(super) struct Pump {
    /// What it has in common with the session's controls.
    pub shared: Arc<Shared>,
    /// The agent.
    pub process: Arc<Process>,
    /// Its output.
    pub lines: Lines<ChildStdout>,
    /// What the controls ask for.
    pub jobs: mpsc::UnboundedReceiver<Job>,
    /// Where events go.
    pub events: Outlet,
    /// The files that it may touch.
    pub workspace: Workspace,
    /// Whether it may write them unasked.
    pub writes_allowed: bool,
    /// The conversation, once it is open. Before, what the agent puts out does not count: it is the replay of a history
    /// that the service has already.
    pub session_id: Option<String>,
    /// The open tool calls.
    pub calls: ToolCalls,
    /// What was ignored.
    pub ignored: Ignored,
}

/// How many lines and messages were ignored.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ignored {
    noise: u64,
    foreign: u64,
    unasked: u64,
}

type Heard = Result<(), Unheard>;

// Why the reading came to its end.
enum End {
    Exited(Exit),
    Closed,
    TooLong,
    TooWide,
    Broken,
}

impl Pump {
    /// Works until the agent is gone or nobody listens.
    pub(super) async fn run(mut self) {
        let heard = match self.listen().await {
            Ok(end) => self.finish(end).await,
            Err(unheard) => Err(unheard),
        };
        if heard.is_err() {
            self.give_up();
        }
        tracing::debug!(harness = %self.shared.name, ignored = ?self.ignored, "an agent's output has ended");
    }

    async fn listen(&mut self) -> Result<End, Unheard> {
        let process = Arc::clone(&self.process);
        let broken = self.shared.broken.clone();
        let mut exited = std::pin::pin!(process.exited());
        loop {
            tokio::select! {
                biased;
                exit = &mut exited => return Ok(End::Exited(exit)),
                () = broken.cancelled() => return Ok(End::Broken),
                Some(job) = self.jobs.recv() => self.work(job).await?,
                line = self.lines.next() => match line {
                    Ok(Line::Whole(line)) if is_too_wide(&line) => return Ok(End::TooWide),
                    Ok(Line::Whole(line)) => self.take(line).await?,
                    Ok(Line::TooLong) => return Ok(End::TooLong),
                    Ok(Line::End) | Err(_) => return Ok(End::Closed),
                },
            }
        }
    }

    // The agent is gone or will be: nothing of it is left when the last event goes out.
    async fn finish(&mut self, end: End) -> Heard {
        let name = self.shared.name.clone();
        let exited = |exit: Exit| Failure::new("agent_exited", format!("{name} {}", exit.words()));
        let failure = match end {
            End::Exited(exit) => {
                self.hear_last_words().await?;
                exited(exit)
            }
            End::TooLong => {
                Failure::new("agent_protocol_error", format!("{name} sent a line longer than any message"))
            }
            End::TooWide => {
                let words = format!("{name} sent a message of more than {VALUES_MAX} values");
                Failure::new("agent_protocol_error", words)
            }
            // Usually the pipes close because the agent exits, which is then the better word for it.
            End::Closed | End::Broken => match timeout(EXIT_GRACE, self.process.exited()).await {
                Ok(exit) => {
                    self.hear_last_words().await?;
                    exited(exit)
                }
                Err(_) if matches!(end, End::Closed) => {
                    Failure::new("agent_exited", format!("{name} closed its output and was ended"))
                }
                Err(_) => Failure::new("agent_protocol_error", format!("{name} does not read its input")),
            },
        };
        self.process.kill().await;
        self.give_up();
        if self.shared.closing.is_cancelled() {
            // It was asked to end: that is no failure, and the end of the events says enough.
            return Ok(());
        }
        let stderr = self.process.keep_last_words().await;
        tracing::warn!(harness = %name, code = failure.code, stderr, "{}", failure.message);
        for output in self.calls.end_all("the agent ended before this call did") {
            self.emit(HarnessEvent::Output(output)).await?;
        }
        self.emit(HarnessEvent::Exited(failure)).await
    }

    async fn hear_last_words(&mut self) -> Heard {
        let mut bytes = 0;
        while let Ok(Ok(Line::Whole(line))) = timeout(LAST_WORDS_GRACE, self.lines.next()).await {
            bytes += line.len();
            if is_too_wide(&line) {
                break;
            }
            self.take(line).await?;
            if bytes > LAST_WORDS_MAX_BYTES {
                break;
            }
        }
        Ok(())
    }

    fn give_up(&self) {
        self.shared.connection.give_up();
        self.shared.questions.take_all();
        self.shared.lock_turn().end();
    }

    async fn take(&mut self, line: Vec<u8>) -> Heard {
        let message = Incoming::parse(&line);
        let (bytes, is_blank) = (line.len(), line.trim_ascii().is_empty());
        // What it says may have to wait for the driver; the line itself need not.
        drop(line);
        match message {
            Some(Incoming::Request { id, method, params }) => self.serve(id, &method, params).await,
            Some(Incoming::Notification { method, params }) => match method.as_str() {
                "session/update" => self.update(params).await,
                "$/cancel_request" => self.withdraw(&params["requestId"]).await,
                _ => Ok(()),
            },
            Some(Incoming::Response { id, outcome }) => self.answered(id, outcome).await,
            None => {
                if !is_blank {
                    self.ignored.noise += 1;
                    tracing::debug!(harness = %self.shared.name, bytes, "a line that is no message");
                }
                Ok(())
            }
        }
    }

    async fn update(&mut self, mut params: Value) -> Heard {
        let Some(session_id) = &self.session_id else { return Ok(()) };
        if params["sessionId"] != session_id.as_str() {
            self.ignored.foreign += 1;
            if self.ignored.foreign == 1 {
                tracing::warn!(harness = %self.shared.name, "an update for another conversation is ignored");
            }
            return Ok(());
        }
        let update = params["update"].take();
        for output in translate::outputs(update, &mut self.calls, self.workspace.roots()) {
            self.emit(HarnessEvent::Output(output)).await?;
        }
        Ok(())
    }

    async fn answered(&mut self, id: Option<u64>, outcome: Outcome) -> Heard {
        match id.and_then(|id| self.shared.connection.answered(id)) {
            // An answer that comes twice, or late, or to a question that was never asked.
            None => {
                self.ignored.unasked += 1;
                tracing::debug!(harness = %self.shared.name, id, "an answer that nobody waits for");
                Ok(())
            }
            Some(Waiter::Reply(reply)) => {
                // The one who waited may have gone.
                drop(reply.send(outcome));
                Ok(())
            }
            Some(Waiter::Open { session_id, instructions_pending, reply }) => {
                let opened = outcome.and_then(|answer| Ok((conversation(session_id, &answer)?, answer)));
                if let Ok((session_id, _)) = &opened {
                    self.session_id = Some(session_id.clone());
                    let state = self.shared.state(session_id, instructions_pending);
                    self.emit(checkpoint(&state)).await?;
                }
                drop(reply.send(opened));
                Ok(())
            }
            Some(Waiter::Prompt) => self.end_turn(outcome).await,
        }
    }

    async fn end_turn(&mut self, outcome: Outcome) -> Heard {
        let turn = self.shared.lock_turn().end();
        for output in self.calls.end_all("the turn ended before this call did") {
            self.emit(HarnessEvent::Output(output)).await?;
        }
        // Nobody will answer a question whose turn is over. Some agents block on it for ever if nobody says so.
        for (native_id, question) in self.shared.questions.take_turn(turn.number) {
            self.shared.connection.post_answer(&question.request_id, question.ask.cancelled()).await;
            self.emit(HarnessEvent::ApprovalWithdrawn { native_id }).await?;
        }
        if let Some(usage) = outcome.as_ref().ok().and_then(translate::usage) {
            self.emit(HarnessEvent::Output(Output::Usage(usage))).await?;
        }
        self.emit(HarnessEvent::TurnEnded(turn_outcome(outcome, turn.cancelled))).await
    }

    async fn serve(&mut self, id: Value, method: &str, params: Value) -> Heard {
        let foreign = match (&self.session_id, params["sessionId"].as_str()) {
            (Some(ours), Some(theirs)) => ours != theirs,
            _ => false,
        };
        let refusal = match method {
            "session/request_permission" | "fs/read_text_file" | "fs/write_text_file" if foreign => {
                RpcError::new(INVALID_PARAMS, "unknown sessionId")
            }
            "session/request_permission" => return self.ask_permission(id, params).await,
            "fs/read_text_file" => return self.read_file(id, params).await,
            "fs/write_text_file" => return self.write_file(id, params).await,
            _ => RpcError::new(METHOD_NOT_FOUND, format!("{} is not served", clipped(method, LOGGED_CHARS))),
        };
        self.shared.connection.post_answer(&id, Err(refusal)).await;
        Ok(())
    }

    async fn ask_permission(&mut self, request_id: Value, mut params: Value) -> Heard {
        let options = permission::options(&params["options"]);
        let asked = params.get_mut("toolCall").map(Value::take).unwrap_or_default();
        let view = self.calls.question(asked, self.workspace.roots());
        let request = ApprovalRequest {
            native_id: String::new(),
            tool: view.tool,
            title: view.title,
            kind: view.kind,
            input: view.input,
            options: options.clone(),
        };
        self.ask(request_id, Ask::Permission(options), request).await
    }

    async fn ask(&mut self, request_id: Value, ask: Ask, mut request: ApprovalRequest) -> Heard {
        let (turn, cancelled) = {
            let turn = self.shared.lock_turn();
            (turn.at_work.then_some(turn.number), turn.at_work && turn.cancelled)
        };
        // A question that crossed the cancel on its way is one of those that the cancel answers.
        if cancelled {
            self.shared.connection.post_answer(&request_id, ask.cancelled()).await;
            return Ok(());
        }
        let question =
            Question { request_id: request_id.clone(), ask: ask.clone(), turn, weight: request.weight() };
        if let Some(native_id) = self.shared.questions.keep(question) {
            request.native_id = native_id;
            return self.emit(HarnessEvent::ApprovalRequested(request)).await;
        }
        // What a person cannot be shown whole is not run.
        self.shared.connection.post_answer(&request_id, ask.cancelled()).await;
        let tool = clipped(&request.tool, LOGGED_CHARS);
        let label = format!("refused, for it is too large to be shown, or too many questions wait: {tool}");
        self.emit(HarnessEvent::Output(Output::Activity { label, tool: Some(tool), raw: None })).await
    }

    async fn withdraw(&mut self, request_id: &Value) -> Heard {
        for (native_id, _) in self.shared.questions.take_request(request_id) {
            let answer = Err(RpcError::new(REQUEST_CANCELLED, "the request was taken back"));
            self.shared.connection.post_answer(request_id, answer).await;
            self.emit(HarnessEvent::ApprovalWithdrawn { native_id }).await?;
        }
        Ok(())
    }

    async fn read_file(&mut self, id: Value, params: Value) -> Heard {
        let workspace = self.workspace.clone();
        let outcome = match ReadFile::deserialize(&params) {
            Ok(request) => blocking(move || request.serve(&workspace)).await,
            Err(error) => Err(RpcError::new(INVALID_PARAMS, error.to_string())),
        };
        let outcome = outcome.map(|content| json!({"content": content}));
        self.shared.connection.post_answer(&id, outcome).await;
        Ok(())
    }

    // Where the session's mode does not allow edits, a write is asked for like any other tool. The systems before this
    // one answered it with an error then, and agents that write through us could not write at all.
    async fn write_file(&mut self, id: Value, params: Value) -> Heard {
        let write = WriteFile::deserialize(&params)
            .map_err(|error| RpcError::new(INVALID_PARAMS, error.to_string()))
            .and_then(|write| self.workspace.locate(&write.path).map(|_| write).map_err(RpcError::from));
        match write {
            Err(refusal) => {
                self.shared.connection.post_answer(&id, Err(refusal)).await;
                Ok(())
            }
            Ok(write) if self.writes_allowed => self.work(Job::Write { request_id: id, write }).await,
            Ok(write) => {
                let request = ApprovalRequest {
                    native_id: String::new(),
                    tool: WRITE_TOOL.to_owned(),
                    title: format!("Write {}", self.workspace.roots().shown(&write.path)),
                    kind: "edit".to_owned(),
                    input: json!({"path": write.path, "content": write.content}),
                    options: permission::write_options(),
                };
                self.ask(id, Ask::Write(write), request).await
            }
        }
    }

    async fn work(&mut self, job: Job) -> Heard {
        match job {
            Job::Checkpoint(state) => self.emit(checkpoint(&state)).await,
            Job::Write { request_id, write } => {
                let workspace = self.workspace.clone();
                let path = self.workspace.roots().shown(&write.path);
                let outcome = blocking(move || write.serve(&workspace)).await;
                if let Ok(operation) = outcome {
                    self.emit(HarnessEvent::Output(changed(path, operation))).await?;
                }
                self.shared.connection.post_answer(&request_id, outcome.map(|_| json!({}))).await;
                Ok(())
            }
        }
    }

    async fn emit(&mut self, event: HarnessEvent) -> Heard {
        self.events.put(event).await
    }
}

fn checkpoint(state: &State) -> HarnessEvent {
    HarnessEvent::Checkpoint { state: Some(state.to_value()), durable: None }
}

// Only the answer to session/new names the conversation.
fn conversation(taken_up: Option<String>, answer: &Value) -> Result<String, RpcError> {
    let named = taken_up.or_else(|| answer["sessionId"].as_str().map(str::to_owned));
    named.ok_or_else(|| RpcError::new(INTERNAL_ERROR, "the new conversation came without a sessionId"))
}

// Codex ends a turn as cancelled after a denial, so the word alone does not tell that somebody cancelled it.
fn turn_outcome(outcome: Outcome, cancel_asked: bool) -> TurnOutcome {
    match outcome {
        Ok(answer) => {
            let stop_reason = answer["stopReason"].as_str().unwrap_or("unknown");
            if stop_reason == "cancelled" && cancel_asked {
                TurnOutcome::Cancelled
            } else {
                TurnOutcome::Completed { stop_reason: stop_reason.to_owned() }
            }
        }
        Err(error) if error.code == REQUEST_CANCELLED && cancel_asked => TurnOutcome::Cancelled,
        Err(error) => TurnOutcome::Failed(Failure::new("agent_error", error.message)),
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, RpcError> + Send + 'static,
) -> Result<T, RpcError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(RpcError::new(INTERNAL_ERROR, error.to_string())))
}

/// Opens the workspace of a session.
///
/// # Errors
/// When it cannot be opened.
pub(super) async fn open_workspace(root: &Path, fence: Fence) -> std::io::Result<Workspace> {
    let root = root.to_owned();
    tokio::task::spawn_blocking(move || Workspace::open(&root, fence)).await.map_err(std::io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_86_a_turn_is_cancelled_only_where_somebody_cancelled_it() {
        let completed = |stop_reason: &str| TurnOutcome::Completed { stop_reason: stop_reason.into() };
        let failed = |message: &str| TurnOutcome::Failed(Failure::new("agent_error", message));
        let answer = |stop_reason: &str| Ok(json!({"stopReason": stop_reason}));
        let error = |code| Err(RpcError::new(code, "no"));
        for (outcome, cancel_asked, expected) in [
            (answer("end_turn"), false, completed("end_turn")),
            (answer("end_turn"), true, completed("end_turn")),
            (answer("max_tokens"), false, completed("max_tokens")),
            (answer("some_new_reason"), false, completed("some_new_reason")),
            (answer("cancelled"), true, TurnOutcome::Cancelled),
            (answer("cancelled"), false, completed("cancelled")),
            (Ok(Value::Null), false, completed("unknown")),
            (error(-32603), false, failed("no")),
            (error(400), true, failed("no")),
            (error(REQUEST_CANCELLED), true, TurnOutcome::Cancelled),
            (error(REQUEST_CANCELLED), false, failed("no")),
        ] {
            let shown = format!("{outcome:?} {cancel_asked}");
            assert_eq!(turn_outcome(outcome, cancel_asked), expected, "{shown}");
        }
    }
}
