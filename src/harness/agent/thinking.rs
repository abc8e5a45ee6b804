//! What the model is asked: for a plan, for its next step; and what is made of its answer.

use std::collections::{HashMap, HashSet};

use super::context::{Fit, Overflow, fit};
use super::message::{Message, ToolCall};
use super::model::ToolSpec;
use super::model::{ModelRequest, Piece, Reply};
use super::planning;
use super::runtime::Agent;
use super::settings::VerificationMode;
use super::state::Stage;
use crate::domain::event::{Output, RewindReason};
use crate::domain::turn::{Failure, Usage};
use crate::fault;
use crate::harness::task::{End, Heed, Task};

/// What an answer is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// It is the agent's, and heard by everybody.
    Step,
    /// It is the plan.
    Plan,
}

impl Task<Agent> {
    /// Has the model make a plan, where it sees the need for one.
    pub(super) async fn plan(&mut self) -> Result<(), End> {
        let mode = self.planning();
        let question = Message::Note { content: planning::question(mode) };
        let reply = self.ask_model(Purpose::Plan, Some(question)).await?;
        let plan = planning::parse(&reply.text, mode)
            .map_err(|complaint| End::failed(Failure::new("plan_invalid", complaint)))?;
        if !plan.steps.is_empty() {
            self.put(Output::PlanUpdated { entries: plan.entries() }).await?;
            self.runtime.turn()?.messages.push(Message::Note { content: plan.note() });
        }
        fault::point("agent.model.planned");
        self.runtime.turn()?.stage = Stage::Model;
        self.note_durably().await
    }

    /// Has the model take its next step.
    pub(super) async fn think(&mut self) -> Result<(), End> {
        let reply = self.ask_model(Purpose::Step, None).await?;
        let turn = self.runtime.turn()?;
        turn.said += reply.text.chars().count() as u64;
        fault::point("agent.model.answered");
        if reply.tool_calls.is_empty() {
            turn.messages.push(Message::Assistant { content: reply.text, tool_calls: Vec::new() });
            turn.stage = Stage::Verify { stop_reason: stop_reason(&reply.finish) };
            // What follows is the end of the turn, which gives the state away by itself, unless a program has to be waited for.
            let waits = self.runtime.settings.verification.mode == VerificationMode::Project;
            return if waits { self.note().await } else { Ok(()) };
        }
        let ids: Vec<String> = reply.tool_calls.iter().map(|call| call.id.clone()).collect();
        let calls = unique(reply.tool_calls, &turn.messages);
        turn.messages.push(Message::Assistant { content: reply.text, tool_calls: calls.clone() });
        self.take_calls(calls, &ids).await
    }

    /// One call of the model, within the limits.
    async fn ask_model(&mut self, purpose: Purpose, question: Option<Message>) -> Result<Reply, End> {
        let most = self.runtime.settings.execution.max_model_calls;
        if self.runtime.turn()?.model_calls >= most {
            let words = format!("the turn has made {most} model calls, and may make no more");
            return Err(End::failed(Failure::new("model_call_limit", words)));
        }
        self.make_room(question.as_ref()).await?;
        let left = self.runtime.time_left()?;
        self.runtime.turn()?.model_calls += 1;
        let messages = self.conversation(question)?;
        let tools: &[ToolSpec] = if purpose == Purpose::Step { &self.runtime.offered } else { &[] };
        let json_mode = purpose == Purpose::Plan;
        let mut answer = self.runtime.model.call(ModelRequest { messages: &messages, tools, json_mode });
        drop(messages);
        let mut said = false;
        let deadline = tokio::time::Instant::now() + left;
        loop {
            let next = tokio::time::timeout_at(deadline, answer.next());
            let piece = match self.wait(next, Heed::Cancel).await? {
                Err(_) => return Err(self.runtime.out_of_time()),
                Ok(Err(error)) => return Err(End::failed(error.into())),
                Ok(Ok(Some(piece))) => piece,
                Ok(Ok(None)) => {
                    let words = "the model's answer ended without an end";
                    return Err(End::failed(Failure::new("model_rejected", words)));
                }
            };
            match piece {
                Piece::Text(text) if purpose == Purpose::Step => {
                    said = true;
                    self.put(Output::TextDelta { text }).await?;
                    fault::point("agent.model.words");
                }
                Piece::Thinking(text) if self.runtime.settings.thinking.forward_to_frontend => {
                    self.put(Output::ThinkingDelta { text }).await?;
                }
                Piece::Text(_) | Piece::Thinking(_) => {}
                Piece::Restarted if said => {
                    let length = self.runtime.turn()?.said;
                    self.put(Output::TextRewound { length, reason: RewindReason::Retried }).await?;
                    said = false;
                }
                Piece::Restarted => {}
                Piece::Done(reply) => {
                    let turn = self.runtime.turn()?;
                    turn.usage = turn.usage.plus(reply.usage.unwrap_or(Usage::UNKNOWN));
                    let usage = turn.usage;
                    turn.stalls = 0;
                    self.tell(Output::Usage(usage)).await?;
                    return Ok(reply);
                }
            }
        }
    }

    fn conversation(&mut self, question: Option<Message>) -> Result<Vec<Message>, End> {
        let system = Message::System { content: self.runtime.system.clone() };
        let now = self.runtime.turn()?.messages.clone();
        let past = self.runtime.state.past.iter().cloned();
        Ok(std::iter::once(system).chain(past).chain(now).chain(question).collect())
    }

    /// Makes the conversation fit into the model's window.
    async fn make_room(&mut self, question: Option<&Message>) -> Result<(), End> {
        let agent = &mut self.runtime;
        let (estimate, budget) = (agent.estimate, agent.budget);
        let system = Message::System { content: agent.system.clone() };
        let fixed = agent.offered_tokens + estimate.messages(std::iter::once(&system).chain(question));
        let turn = agent.state.turn.as_mut().ok_or(End::Gone)?;
        let done = fit(&mut agent.state.past, &mut turn.messages, fixed, budget, estimate);
        let done = done.map_err(|Overflow { tokens, available }| {
            let words = format!(
                "the conversation takes {tokens} tokens by estimate, and there is room for {available}, with all condensed and left out that can be"
            );
            End::failed(Failure::new("context_overflow", words))
        })?;
        if !done.changed() {
            return Ok(());
        }
        let Fit { tokens_before, tokens_after, condensed, turns_dropped } = done;
        let summary = format!("condensed {condensed} tool results, left out {turns_dropped} earlier turns");
        let (tokens_before, tokens_after) = (Some(tokens_before), Some(tokens_after));
        self.put(Output::Compaction { summary, tokens_before, tokens_after }).await
    }
}

/// Our word for why an answer ended.
fn stop_reason(finish: &str) -> String {
    match finish {
        "stop" => "end_turn",
        "length" => "max_tokens",
        "content_filter" => "refusal",
        other => other,
    }
    .to_owned()
}

/// The calls under ids that are unique in the conversation: there are models that begin to count anew with each answer, and some that
/// give each call the same.
fn unique(calls: Vec<ToolCall>, messages: &[Message]) -> Vec<ToolCall> {
    let earlier = messages.iter().filter_map(|message| match message {
        Message::Assistant { tool_calls, .. } => Some(tool_calls.iter().map(|call| call.id.clone())),
        _ => None,
    });
    let mut taken: HashSet<String> = earlier.flatten().collect();
    // Of each id, the numbers up to this one are taken.
    let mut counts: HashMap<String, u64> = HashMap::new();
    let mut fresh = |call: ToolCall| {
        let mut id = call.id.clone();
        while id.is_empty() || taken.contains(&id) {
            let count = counts.entry(call.id.clone()).or_insert(1);
            *count += 1;
            id = format!("{}_{count}", call.id);
        }
        taken.insert(id.clone());
        ToolCall { id, ..call }
    };
    calls.into_iter().map(&mut fresh).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: &str) -> ToolCall {
        ToolCall { id: id.into(), name: "t".into(), arguments: "{}".into() }
    }

    #[test]
    fn ids_that_come_again_become_others() {
        let earlier =
            [Message::Assistant { content: String::new(), tool_calls: vec![call("c0"), call("c1")] }];
        let ids: Vec<String> = unique(vec![call("c0"), call("c2"), call("c2"), call("")], &earlier)
            .into_iter()
            .map(|call| call.id)
            .collect();
        assert_eq!(ids, ["c0_2", "c2", "c2_2", "_2"]);
    }

    #[test]
    fn one_id_for_all_calls_costs_no_more_than_others() {
        let begun = std::time::Instant::now();
        let unique = unique(vec![call("c"); 20_000], &[]);
        assert_eq!((unique[0].id.as_str(), unique[19_999].id.as_str()), ("c", "c_20000"));
        // It would take hours if its time grew with the cube.
        assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
    }
}
