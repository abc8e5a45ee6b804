//! The steps of a script, carried out.

use std::future::pending;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::effects::Effect;
use super::runtime::Script;
use super::script::{Step, words};
use super::state::Ended;
use crate::domain::event::{FileOperation, Output, PlanEntry};
use crate::domain::turn::{Failure, Usage};
use crate::harness::task::{End, Heed, Task};

impl Task<Script> {
    /// Carries one step out.
    pub async fn step(&mut self, step: Step) -> Result<(), End> {
        match step {
            Step::Say { text } => self.stream(&text, |text| Output::TextDelta { text }).await,
            Step::Think { text } => self.stream(&text, |text| Output::ThinkingDelta { text }).await,
            Step::Tokens { count, per_second } => self.tokens(count, per_second.map(|rate| rate.get())).await,
            Step::Tool { call } => self.call(call).await,
            Step::Ask { calls } => self.ask(calls).await,
            Step::Write { path, text } => self.write(path, text).await,
            Step::Plan { entries } => self.plan(entries).await,
            Step::Usage { input_tokens, output_tokens } => self.usage(input_tokens, output_tokens).await,
            Step::Activity { label } => self.put(Output::Activity { label, tool: None, raw: None }).await,
            Step::Compact { summary } => {
                self.put(Output::Compaction { summary, tokens_before: None, tokens_after: None }).await
            }
            Step::Remember { word } => {
                self.runtime.state.words.push(word);
                self.checkpoint(None).await
            }
            Step::Recall => self.recall().await,
            Step::Sleep { ms } => self.wait(sleep(Duration::from_millis(ms)), Heed::Cancel).await,
            Step::Fail { code, message } => Err(End::failed(Failure::new(code, message))),
            Step::Hang => self.wait(pending(), Heed::Cancel).await,
            Step::Deaf => self.wait(pending(), Heed::StopAlone).await,
            Step::Die => Err(End::Gone),
            Step::LoseState => {
                self.runtime.state.lose_state = true;
                Ok(())
            }
            Step::StopReason { word } => Err(End::completed(word)),
            Step::Farewell => self.farewell().await,
        }
    }

    async fn stream(&mut self, text: &str, delta: fn(String) -> Output) -> Result<(), End> {
        for (index, word) in words(text).into_iter().enumerate() {
            if index > 0 && !self.runtime.token_delay.is_zero() {
                self.wait(sleep(self.runtime.token_delay), Heed::Cancel).await?;
            }
            self.put(delta(word.to_owned())).await?;
        }
        Ok(())
    }

    /// Each token is due at its own moment after the start, so that late ones are caught up and the rate holds.
    async fn tokens(&mut self, count: u32, per_second: Option<u32>) -> Result<(), End> {
        let start = Instant::now();
        for index in 0..count {
            if let Some(rate) = per_second {
                let due = start + Duration::from_secs_f64(f64::from(index) / f64::from(rate));
                if due > Instant::now() {
                    self.wait(sleep_until(due), Heed::Cancel).await?;
                }
            }
            self.put(Output::TextDelta { text: format!("w{} ", u64::from(index) + 1) }).await?;
        }
        Ok(())
    }

    async fn write(&mut self, path: String, text: String) -> Result<(), End> {
        let failed = |code: &str, message: String| End::failed(Failure::new(code, message));
        let operation = self
            .runtime
            .workspace
            .probe(&path)
            .await
            .map_err(|complaint| failed("invalid_path", complaint))?;
        let call = self.runtime.state.new_call_id();
        self.runtime.record(Effect::tool("write", &call)).await.map_err(End::failed)?;
        let changed = file_changed(&path, operation, &text);
        self.runtime
            .workspace
            .write(&path, text)
            .await
            .map_err(|error| failed("write_failed", format!("{path}: {error}")))?;
        self.tell(changed).await
    }

    async fn plan(&mut self, entries: Vec<String>) -> Result<(), End> {
        let entry = |content| PlanEntry { content, status: "pending".to_owned(), priority: None };
        self.put(Output::PlanUpdated { entries: entries.into_iter().map(entry).collect() }).await
    }

    async fn usage(&mut self, input_tokens: u64, output_tokens: u64) -> Result<(), End> {
        let Some(turn) = &mut self.runtime.state.turn else { return Ok(()) };
        turn.input_tokens = turn.input_tokens.saturating_add(input_tokens);
        turn.output_tokens = turn.output_tokens.saturating_add(output_tokens);
        let usage =
            Usage { input_tokens: turn.input_tokens, output_tokens: turn.output_tokens, complete: true };
        self.put(Output::Usage(usage)).await
    }

    async fn recall(&mut self) -> Result<(), End> {
        let words = &self.runtime.state.words;
        let text = if words.is_empty() { "nothing".to_owned() } else { words.join(" ") };
        self.put(Output::TextDelta { text }).await
    }

    async fn farewell(&mut self) -> Result<(), End> {
        let text = match self.runtime.state.turn.as_ref().and_then(|turn| turn.last_ended()) {
            Some(Ended::Succeeded) => "Done: the file is in your workspace. Now give me a task of your own.",
            Some(Ended::Denied) => "As you wish: I have changed nothing. Give me another task when you like.",
            Some(Ended::Failed) => "That did not work, and I have changed nothing. Shall we try again?",
            Some(Ended::Unknown) | None => "I was lost while I wrote: please look whether the file is there.",
        };
        self.stream(text, |text| Output::TextDelta { text }).await
    }
}

/// The event of a file that was written.
pub(super) fn file_changed(path: &str, operation: FileOperation, contents: &str) -> Output {
    let verb = if operation == FileOperation::Create { "Created" } else { "Overwrote" };
    let summary = format!("{verb} {path}: {} bytes", contents.len());
    Output::FileChanged { path: path.to_owned(), operation, summary }
}
