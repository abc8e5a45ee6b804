//! Tool calls, with and without a question before them. A tool runs at most once, whatever dies when: that it is about to
//! run is stored before it runs, and a call that is found so in a stored state does not run again.

use serde_json::{Value, json};

use super::effects::Effect;
use super::runtime::Script;
use super::script::{Call, ToolEffect, echo_to_file};
use super::state::{Ended, Next, Phase, Question, Verdict};
use super::steps::file_changed;
use crate::domain::approval::{ApprovalOption, Decision, OptionKind};
use crate::domain::event::{Output, ToolEnd, ToolStart, ToolStatus};
use crate::harness::task::{End, Heed, Task};
use crate::harness::{ApprovalRequest, HarnessEvent};

/// What a tool did.
struct Executed {
    result: Result<Value, Value>,
    changed: Option<Output>,
}

impl Task<Script> {
    /// Calls a tool without asking.
    pub async fn call(&mut self, call: Call) -> Result<(), End> {
        let id = self.runtime.state.new_call_id();
        self.put(tool_started(&id, &call.name, &call.input)).await?;
        if self.runtime.denied.denies(&call.name, kind(&call.name)) {
            let result = Err(
                json!({ "ok": false, "denied": true, "reason": "the operator does not allow this tool" }),
            );
            let refused = Executed { result, changed: None };
            return self.tell_executed(&id, &call.name, call.input, refused).await.map(drop);
        }
        self.runtime.record(Effect::tool(&call.name, &id)).await.map_err(End::failed)?;
        let executed = self.execute(call.effect, &call.input).await;
        self.tell_executed(&id, &call.name, call.input, executed).await?;
        Ok(())
    }

    /// Asks for calls, and returns when each is decided and done. The questions are shown when they are stored, so that
    /// whoever sees one can rely on a later process knowing it.
    pub async fn ask(&mut self, calls: Vec<Call>) -> Result<(), End> {
        let questions = self.runtime.state.open(calls);
        for question in &questions {
            self.put(tool_started(&question.tool_call_id, &question.tool, &question.input)).await?;
        }
        self.checkpoint_durably().await?;
        self.request(&questions).await?;
        self.settle().await
    }

    /// Shows questions.
    pub async fn request(&mut self, questions: &[Question]) -> Result<(), End> {
        for question in questions {
            self.emit(HarnessEvent::ApprovalRequested(request(question)), Heed::Cancel).await?;
        }
        Ok(())
    }

    /// Goes on with each open question as it is decided, until all are done.
    pub async fn settle(&mut self) -> Result<(), End> {
        loop {
            match self.runtime.state.next() {
                Next::Settle(question) => self.settle_one(*question).await?,
                Next::Wait => self.next_command().await?,
                Next::GoOn => return Ok(()),
            }
        }
    }

    async fn settle_one(&mut self, question: Question) -> Result<(), End> {
        let id = question.native_id.clone();
        let ended = match question.phase.clone() {
            Phase::Decided(Verdict { decision: Decision::Approve, edited_input, .. }) => {
                self.run_tool(question, edited_input).await?
            }
            Phase::Decided(Verdict { decision: Decision::Deny, reason, .. }) => {
                let result = json!({ "ok": false, "denied": true, "reason": reason });
                self.tell(tool_failed(&question, question.input.clone(), result)).await?;
                Ended::Denied
            }
            Phase::Started { input } => {
                let reason = "the outcome is unknown: the process was lost while the tool ran";
                let result = json!({ "ok": false, "unknown": true, "reason": reason });
                self.tell(tool_failed(&question, input, result)).await?;
                Ended::Unknown
            }
            Phase::Asked | Phase::Done { .. } => return Ok(()),
        };
        self.runtime.state.set_phase(&id, Phase::Done { ended });
        self.checkpoint(None).await
    }

    /// Runs an approved tool: first it is stored that it may have run, then it runs.
    async fn run_tool(&mut self, question: Question, edited_input: Option<Value>) -> Result<Ended, End> {
        let input = edited_input.unwrap_or(question.input);
        self.runtime.state.set_phase(&question.native_id, Phase::Started { input: input.clone() });
        self.checkpoint_durably().await?;
        self.runtime
            .record(Effect::tool(&question.tool, &question.tool_call_id))
            .await
            .map_err(End::failed)?;
        let executed = self.execute(question.effect, &input).await;
        self.tell_executed(&question.tool_call_id, &question.tool, input, executed).await
    }

    async fn execute(&self, effect: ToolEffect, input: &Value) -> Executed {
        match effect {
            ToolEffect::Echo => Executed { result: Ok(json!({ "ok": true, "input": input })), changed: None },
            ToolEffect::WriteByShell => match self.write_by_shell(input).await {
                Ok(changed) => Executed {
                    result: Ok(json!({ "ok": true, "input": input, "exit_code": 0 })),
                    changed: Some(changed),
                },
                Err(error) => Executed { result: Err(json!({ "ok": false, "error": error })), changed: None },
            },
        }
    }

    async fn write_by_shell(&self, input: &Value) -> Result<Output, String> {
        let command = input.get("command").and_then(Value::as_str).unwrap_or_default();
        let (text, path) = echo_to_file(command)
            .ok_or_else(|| "the demo's shell knows `echo TEXT > FILE` and nothing else".to_owned())?;
        let contents = format!("{text}\n");
        let operation = self.runtime.workspace.probe(&path).await?;
        let changed = file_changed(&path, operation, &contents);
        self.runtime.workspace.write(&path, contents).await.map_err(|error| format!("{path}: {error}"))?;
        Ok(changed)
    }

    async fn tell_executed(
        &mut self,
        id: &str,
        name: &str,
        input: Value,
        executed: Executed,
    ) -> Result<Ended, End> {
        if let Some(changed) = executed.changed {
            self.tell(changed).await?;
        }
        let (ended, status, result) = match executed.result {
            Ok(result) => (Ended::Succeeded, ToolStatus::Succeeded, result),
            Err(result) => (Ended::Failed, ToolStatus::Failed, result),
        };
        let end = ToolEnd { tool_call_id: id.to_owned(), name: name.to_owned(), status, input, result };
        self.tell(Output::ToolCompleted(end)).await?;
        Ok(ended)
    }
}

fn tool_started(id: &str, name: &str, input: &Value) -> Output {
    Output::ToolStarted(ToolStart {
        tool_call_id: id.to_owned(),
        name: name.to_owned(),
        kind: kind(name).to_owned(),
        input: input.clone(),
    })
}

fn tool_failed(question: &Question, input: Value, result: Value) -> Output {
    Output::ToolCompleted(ToolEnd {
        tool_call_id: question.tool_call_id.clone(),
        name: question.tool.clone(),
        status: ToolStatus::Failed,
        input,
        result,
    })
}

fn request(question: &Question) -> ApprovalRequest {
    let option =
        |id: &str, kind, name: &str| ApprovalOption { id: id.to_owned(), kind, name: name.to_owned() };
    ApprovalRequest {
        native_id: question.native_id.clone(),
        tool: question.tool.clone(),
        title: title(&question.tool, &question.input),
        kind: kind(&question.tool).to_owned(),
        input: question.input.clone(),
        options: vec![
            option("allow", OptionKind::AllowOnce, "Allow"),
            option("deny", OptionKind::RejectOnce, "Deny"),
        ],
    }
}

/// The label that a tool of this name goes by.
pub(super) fn kind(tool: &str) -> &'static str {
    match tool {
        "read" | "cat" | "ls" => "read",
        "search" | "grep" => "search",
        "write" | "edit" => "edit",
        "move" | "mv" => "move",
        "delete" | "rm" => "delete",
        "fetch" => "fetch",
        "think" => "think",
        "shell" | "bash" => "execute",
        _ => "other",
    }
}

/// The question in words: a command is shown as it would run.
pub(super) fn title(tool: &str, input: &Value) -> String {
    match input.get("command").and_then(Value::as_str) {
        Some(command) if kind(tool) == "execute" => format!("Run {tool}: {command}"),
        _ => format!("Use {tool}"),
    }
}
