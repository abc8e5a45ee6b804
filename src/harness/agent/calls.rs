//! The tool calls of an answer: refused, asked about, run at most once, and told.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::time::timeout;

use super::message::{Outcome, ToolCall};
use super::runtime::Agent;
use super::state::{Call, Phase, UNCERTAIN};
use crate::domain::approval::{ApprovalOption, Decision, OptionKind, input_digest};
use crate::domain::event::{Output, ToolEnd, ToolStart, ToolStatus};
use crate::domain::limits::{VALUE_MAX_LEVELS, is_too_deep};
use crate::domain::turn::Failure;
use crate::fault;
use crate::harness::task::{End, Heed, Task};
use crate::harness::{ApprovalRequest, HarnessEvent};

impl Agent {
    /// What becomes of a call, before anything of it has happened.
    fn judge(&mut self, wanted: &ToolCall) -> Call {
        let spec = self.tools.find(&wanted.name);
        let kind = spec.map_or_else(|| "other".to_owned(), |spec| spec.kind.clone());
        let asks = spec.is_some_and(|spec| spec.asks)
            || self.settings.tool_policy.require_approval.contains(&wanted.name);
        let parsed = serde_json::from_str::<Value>(match wanted.arguments.trim() {
            "" => "{}",
            arguments => arguments,
        });
        let is_input = |input: &&Value| input.is_object() && !is_too_deep(input);
        let input = parsed.as_ref().ok().filter(is_input).cloned();
        let refused = |why: String| Phase::Refused { why };
        let phase = if self.settings.tool_policy.disabled.contains(&wanted.name) {
            refused(format!("The tool {} is disabled in this session.", wanted.name))
        } else if spec.is_none() {
            refused(format!("There is no tool {}.", wanted.name))
        } else if self.denied.denies(&wanted.name, &kind) {
            refused("The operator does not allow this tool.".to_owned())
        } else if input.is_none() {
            let why = match parsed {
                Err(error) => error.to_string(),
                Ok(Value::Object(_)) => format!("they are nested deeper than {VALUE_MAX_LEVELS} levels"),
                Ok(_) => "they are no object".to_owned(),
            };
            refused(format!("The arguments are not a JSON object: {why}."))
        } else if asks {
            Phase::Asked
        } else {
            Phase::Ready
        };
        let input = input.unwrap_or_else(|| Value::from(wanted.arguments.as_str()));
        Call {
            id: wanted.id.clone(),
            name: wanted.name.clone(),
            kind,
            input,
            edited: false,
            native_id: None,
            phase,
        }
    }

    /// Gives a call that is to be asked about its question, or refuses it: no call is submitted twice in a turn.
    fn submit(&mut self, call: &mut Call, model_id: &str) {
        if call.phase != Phase::Asked {
            return;
        }
        let submitted = format!("{model_id} {}", input_digest(&call.name, &call.input));
        let Some(turn) = self.state.turn.as_mut() else { return };
        if turn.submitted.contains(&submitted) {
            let why = "This very call was submitted before. Where it is to be made again, it needs an id of its own.";
            call.phase = Phase::Refused { why: why.to_owned() };
            return;
        }
        turn.submitted.push(submitted);
        call.native_id = Some(self.state.new_question());
    }
}

impl Task<Agent> {
    /// Takes the calls of an answer: shows them all, and asks about those that a person has to decide.
    pub(super) async fn take_calls(
        &mut self,
        wanted: Vec<ToolCall>,
        model_ids: &[String],
    ) -> Result<(), End> {
        let mut calls = Vec::with_capacity(wanted.len());
        for (wanted, model_id) in wanted.iter().zip(model_ids) {
            let mut call = self.runtime.judge(wanted);
            self.runtime.submit(&mut call, model_id);
            calls.push(call);
        }
        let asks = calls.iter().any(|call| call.phase == Phase::Asked);
        self.runtime.turn()?.calls.clone_from(&calls);
        for call in &calls {
            self.put(started(call)).await?;
        }
        if asks {
            // Shown when it is stored, so that whoever sees a question can rely on a later process knowing it.
            self.note_durably().await?;
            fault::point("agent.asks");
            return self.ask_again().await;
        }
        Ok(())
    }

    /// Shows the questions that wait for an answer.
    pub(super) async fn ask_again(&mut self) -> Result<(), End> {
        for call in self.runtime.state.all_asked() {
            self.emit(HarnessEvent::ApprovalRequested(request(&call)), Heed::Cancel).await?;
        }
        Ok(())
    }

    /// Goes on with each call, in the order of the answer where nobody is waited for, until all are over.
    pub(super) async fn settle_calls(&mut self) -> Result<(), End> {
        loop {
            let turn = self.runtime.turn()?;
            match turn.next_call() {
                Some(at) => self.settle_call(at).await?,
                None if turn.has_question() => {
                    self.runtime.stopwatch.pause();
                    self.next_command().await?;
                    self.runtime.stopwatch.go_on();
                }
                None => {
                    turn.calls.clear();
                    return Ok(());
                }
            }
        }
    }

    async fn settle_call(&mut self, at: usize) -> Result<(), End> {
        let call = self.runtime.turn()?.calls[at].clone();
        match call.phase {
            Phase::Refused { why } => {
                self.record(at, Outcome::Failed, why).await?;
                let next = self.runtime.turn()?.calls.get(at + 1);
                if next.is_some_and(|next| matches!(next.phase, Phase::Refused { .. })) {
                    // Nothing was done, nor is for the next one: one state tells of them all.
                    return Ok(());
                }
            }
            Phase::Ready => return self.run_call(at).await,
            Phase::Decided { decision: Decision::Approve, edited_input, .. } => {
                if let Some(input) = edited_input {
                    let call = &mut self.runtime.turn()?.calls[at];
                    (call.input, call.edited) = (input, true);
                }
                return self.run_call(at).await;
            }
            Phase::Decided { decision: Decision::Deny, reason, .. } => {
                let why = reason.map(|reason| format!(" Their words: {reason}")).unwrap_or_default();
                let content = format!("A person was asked and did not allow this call.{why}");
                let result = json!({ "denied": true, "reason": content });
                self.record_as(at, Outcome::Failed, content, result).await?;
            }
            Phase::Started => self.record(at, Outcome::Uncertain, UNCERTAIN.to_owned()).await?,
            Phase::Asked | Phase::Done => {}
        }
        self.note().await
    }

    /// Runs a tool: first it is stored that it may have run, then it runs.
    async fn run_call(&mut self, at: usize) -> Result<(), End> {
        let most = self.runtime.settings.execution.max_tool_calls;
        let turn = self.runtime.turn()?;
        if turn.tool_calls >= most {
            let words = format!("the turn has made {most} tool calls, and may make no more");
            return Err(End::failed(Failure::new("tool_call_limit", words)));
        }
        let left = self.runtime.time_left()?;
        let turn = self.runtime.turn()?;
        let before = std::mem::replace(&mut turn.calls[at].phase, Phase::Started);
        turn.tool_calls += 1;
        let call = turn.calls[at].clone();
        if let Err(end) = self.note_durably().await {
            let turn = self.runtime.turn()?;
            turn.calls[at].phase = before;
            turn.tool_calls -= 1;
            return Err(end);
        }
        fault::point("agent.tool.before");
        let tools = Arc::clone(&self.runtime.tools);
        let called = Box::pin(timeout(left, tools.call(&call.name, &call.input)));
        let called = match self.wait(called, Heed::Cancel).await {
            Ok(Ok(called)) => called,
            Ok(Err(_)) => {
                self.record(at, Outcome::Uncertain, UNCERTAIN.to_owned()).await?;
                return Err(self.runtime.out_of_time());
            }
            Err(End::Gone) => return Err(End::Gone),
            Err(end) => {
                self.record(at, Outcome::Uncertain, UNCERTAIN.to_owned()).await?;
                return Err(end);
            }
        };
        fault::point("agent.tool.ran");
        if let Some(changed) = called.changed {
            self.tell(changed).await?;
        }
        self.record(at, called.outcome, called.content).await?;
        self.runtime.turn()?.stalls = 0;
        // The next step is taken when this one is surely known.
        self.note_durably().await?;
        fault::point("agent.tool.stored");
        Ok(())
    }

    /// Notes what came of a call, for the model and for everybody.
    pub(super) async fn record(&mut self, at: usize, outcome: Outcome, content: String) -> Result<(), End> {
        let result = match outcome {
            Outcome::Succeeded | Outcome::Failed => Value::from(content.as_str()),
            Outcome::Uncertain => json!({ "uncertain": true, "reason": content }),
        };
        self.record_as(at, outcome, content, result).await
    }

    async fn record_as(
        &mut self,
        at: usize,
        outcome: Outcome,
        content: String,
        result: Value,
    ) -> Result<(), End> {
        let turn = self.runtime.turn()?;
        turn.record(at, outcome, content);
        let call = turn.calls[at].clone();
        let status = match outcome {
            Outcome::Succeeded => ToolStatus::Succeeded,
            Outcome::Failed | Outcome::Uncertain => ToolStatus::Failed,
        };
        let end = ToolEnd { tool_call_id: call.id, name: call.name, status, input: call.input, result };
        self.tell(Output::ToolCompleted(end)).await
    }
}

fn started(call: &Call) -> Output {
    Output::ToolStarted(ToolStart {
        tool_call_id: call.id.clone(),
        name: call.name.clone(),
        kind: call.kind.clone(),
        input: call.input.clone(),
    })
}

fn request(call: &Call) -> ApprovalRequest {
    let option =
        |id: &str, kind, name: &str| ApprovalOption { id: id.to_owned(), kind, name: name.to_owned() };
    ApprovalRequest {
        native_id: call.native_id.clone().unwrap_or_default(),
        tool: call.name.clone(),
        title: title(call),
        kind: call.kind.clone(),
        input: call.input.clone(),
        options: vec![
            option("allow", OptionKind::AllowOnce, "Allow"),
            option("deny", OptionKind::RejectOnce, "Deny"),
        ],
    }
}

/// The question in words: what says most about the call is shown.
fn title(call: &Call) -> String {
    let word = |key: &str| call.input.get(key).and_then(Value::as_str);
    match ["command", "path", "url"].into_iter().find_map(word) {
        Some(command) if call.kind == "execute" => format!("Run {}: {command}", call.name),
        Some(what) => format!("Use {}: {what}", call.name),
        None => format!("Use {}", call.name),
    }
}
