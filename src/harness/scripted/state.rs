//! The resume state: all that the demo remembers. A session that begins with it stands exactly where this one stood.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::script::{self, Call, Step, ToolEffect};
use crate::domain::approval::Decision;
use crate::ids::TurnId;

const VERSION: u64 = 1;

/// The whole memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct State {
    version: u64,
    /// The words of `/remember`, newest last.
    pub words: Vec<String>,
    /// The system instructions, which the demo keeps and does not follow.
    pub instructions: Option<String>,
    /// Whether it gives no state away any more.
    pub lose_state: bool,
    /// How many questions it has asked: their ids never come again while the state lives.
    questions_asked: u64,
    /// How many tools it has called.
    tools_called: u64,
    /// The turn at work.
    pub turn: Option<Turn>,
}

/// The turn at work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Turn {
    /// The turn.
    pub turn_id: TurnId,
    /// What is left to do after the step at work.
    pub steps: VecDeque<Step>,
    /// The questions of the last step that asked any.
    pub questions: Vec<Question>,
    /// Tokens read so far, as `/usage` counts them.
    pub input_tokens: u64,
    /// Tokens written so far.
    pub output_tokens: u64,
}

/// A tool call that needs an approval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Question {
    /// The id of the question.
    pub native_id: String,
    /// The id of the call.
    pub tool_call_id: String,
    /// The tool.
    pub tool: String,
    /// What it would get.
    pub input: Value,
    /// What it would do.
    pub effect: ToolEffect,
    /// How far it has come.
    pub phase: Phase,
}

/// How far a question has come.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub(super) enum Phase {
    /// Waits for a person.
    Asked,
    /// Decided; nothing has run.
    Decided(Verdict),
    /// The tool may have run: stored before it runs, and never run again from here.
    Started {
        /// What the tool gets.
        input: Value,
    },
    /// Over.
    Done {
        /// How.
        ended: Ended,
    },
}

/// What was decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Verdict {
    /// Yes or no.
    pub decision: Decision,
    /// The decider's words.
    pub reason: Option<String>,
    /// The input that the tool gets instead.
    pub edited_input: Option<Value>,
    /// Its place among the decisions of this step, so that calls run in the order of their decisions.
    pub place: usize,
}

/// How a question ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Ended {
    /// The tool did what it should.
    Succeeded,
    /// The tool could not.
    Failed,
    /// Nothing ran.
    Denied,
    /// The process was lost while the tool ran.
    Unknown,
}

/// What is to be done about the open questions.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Next {
    /// Go on with this one.
    Settle(Box<Question>),
    /// Wait for a decision.
    Wait,
    /// All are over.
    GoOn,
}

impl Default for State {
    fn default() -> Self {
        Self {
            version: VERSION,
            words: Vec::new(),
            instructions: None,
            lose_state: false,
            questions_asked: 0,
            tools_called: 0,
            turn: None,
        }
    }
}

impl State {
    /// Takes a stored state up. The turn that is still awaited goes on if it has an open question; any other was given up, or
    /// interrupted with its process, and is dropped.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub fn restore(stored: Value, open_turn: Option<&TurnId>) -> Result<Self, String> {
        let version = stored.get("version").and_then(Value::as_u64);
        if version != Some(VERSION) {
            return Err(format!("the stored state is not of version {VERSION}"));
        }
        let mut state: Self = serde_json::from_value(stored)
            .map_err(|error| format!("the stored state cannot be read: {error}"))?;
        state.turn = state.turn.filter(|turn| Some(&turn.turn_id) == open_turn && turn.next() != Next::GoOn);
        Ok(state)
    }

    /// The state as it is given away; `None` once it is to be lost.
    pub fn stored(&self) -> Option<Value> {
        if self.lose_state {
            return None;
        }
        // Strings, numbers and JSON values alone: this always serializes.
        serde_json::to_value(self).ok()
    }

    /// An id for a tool call.
    pub fn new_call_id(&mut self) -> String {
        self.tools_called += 1;
        format!("call_{}", self.tools_called)
    }

    /// Opens questions for these calls, in place of those of an earlier step, and gives them back.
    pub fn open(&mut self, calls: Vec<Call>) -> Vec<Question> {
        let questions: Vec<Question> = calls.into_iter().map(|call| self.question(call)).collect();
        if let Some(turn) = &mut self.turn {
            turn.questions.clone_from(&questions);
        }
        questions
    }

    fn question(&mut self, call: Call) -> Question {
        self.questions_asked += 1;
        Question {
            native_id: format!("q{}", self.questions_asked),
            tool_call_id: self.new_call_id(),
            tool: call.name,
            input: call.input,
            effect: call.effect,
            phase: Phase::Asked,
        }
    }

    /// Takes the next step off the turn at work.
    pub fn next_step(&mut self) -> Option<Step> {
        self.turn.as_mut()?.steps.pop_front()
    }

    /// What is to be done about the open questions.
    pub fn next(&self) -> Next {
        self.turn.as_ref().map_or(Next::GoOn, Turn::next)
    }

    /// Whether this question still waits for its decision.
    pub fn waits_for(&self, native_id: &str) -> bool {
        self.turn.as_ref().is_some_and(|turn| {
            turn.questions.iter().any(|q| q.native_id == native_id && q.phase == Phase::Asked)
        })
    }

    /// The questions that wait for their decision.
    pub fn asked(&self) -> Vec<Question> {
        let questions = self.turn.as_ref().map(|turn| turn.questions.iter());
        questions.into_iter().flatten().filter(|question| question.phase == Phase::Asked).cloned().collect()
    }

    /// How many decisions the questions at hand have.
    pub fn decisions(&self) -> usize {
        let questions = self.turn.as_ref().map(|turn| turn.questions.iter());
        questions.into_iter().flatten().filter(|question| question.phase != Phase::Asked).count()
    }

    /// Moves a question on.
    pub fn set_phase(&mut self, native_id: &str, phase: Phase) {
        let questions = self.turn.as_mut().map(|turn| turn.questions.iter_mut());
        if let Some(question) = questions.into_iter().flatten().find(|q| q.native_id == native_id) {
            question.phase = phase;
        }
    }
}

impl Turn {
    /// The turn that a prompt begins. A prompt that is no script makes a turn that fails and does nothing else.
    pub fn new(turn_id: TurnId, prompt: &str) -> Self {
        let steps = script::parse(prompt).unwrap_or_else(|complaint| {
            vec![Step::Fail { code: "invalid_directive".to_owned(), message: complaint }]
        });
        Self { turn_id, steps: steps.into(), questions: Vec::new(), input_tokens: 0, output_tokens: 0 }
    }

    /// How the last question ended, where there was one.
    pub fn last_ended(&self) -> Option<Ended> {
        match self.questions.last()?.phase {
            Phase::Done { ended } => Some(ended),
            Phase::Asked | Phase::Decided(_) | Phase::Started { .. } => None,
        }
    }

    fn next(&self) -> Next {
        // One that was started comes first: it is left over from a lost process, from before all decisions.
        let place = |question: &Question| match &question.phase {
            Phase::Started { .. } => Some(0),
            Phase::Decided(verdict) => Some(verdict.place + 1),
            Phase::Asked | Phase::Done { .. } => None,
        };
        let ready = self.questions.iter().filter_map(|question| Some((place(question)?, question)));
        match ready.min_by_key(|(place, _)| *place) {
            Some((_, question)) => Next::Settle(Box::new(question.clone())),
            None if self.questions.iter().any(|question| question.phase == Phase::Asked) => Next::Wait,
            None => Next::GoOn,
        }
    }
}
