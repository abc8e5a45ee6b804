//! The resume state: all that the agent remembers. It is given away after every step, so that a session that begins with it stands
//! exactly where this one stood: no model call that was finished is made again, and no tool runs a second time.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::message::{Message, Outcome, last_turns, last_turns_within};
use super::settings::{PlanningMode, Settings};
use super::verification::Evidence;
use crate::clock::Timestamp;
use crate::domain::approval::Decision;
use crate::domain::limits::RESUME_STATE_MAX_BYTES;
use crate::domain::turn::Usage;
use crate::harness::{TurnInput, TurnOutcome};
use crate::ids::TurnId;

const VERSION: u64 = 1;
/// Messages of earlier turns that are kept at most.
const PAST_MAX: usize = 1000;
/// Bytes of them where they are stored: the other half is for the turn at work.
const PAST_MAX_BYTES: usize = RESUME_STATE_MAX_BYTES / 2;

/// The whole memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct State {
    version: u64,
    /// The turns that are over.
    pub past: Vec<Message>,
    /// When the last of them ended, in milliseconds since the Unix epoch.
    ended_at: Option<i64>,
    /// How many questions it has asked: their ids never come again while the state lives.
    questions_asked: u64,
    /// The turn at work.
    pub turn: Option<Turn>,
}

/// The turn at work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Turn {
    pub turn_id: TurnId,
    /// What was said and done in it.
    pub messages: Vec<Message>,
    /// What comes next, once no call is open.
    pub stage: Stage,
    /// The calls of the last answer.
    pub calls: Vec<Call>,
    /// Calls that a person was asked about, by the model's id, tool and input: none is asked about twice.
    pub submitted: Vec<String>,
    pub model_calls: u64,
    pub tool_calls: u64,
    /// How often the model was told that its answer does not stand.
    pub repairs: u64,
    /// How many processes have taken it up since its last step: one that takes its processes with it is not gone on with for ever.
    pub stalls: u64,
    /// How long it has worked, in milliseconds.
    pub worked_ms: u64,
    /// How many characters of what it has put out stand.
    pub said: u64,
    pub usage: Usage,
    pub evidence: Evidence,
}

/// What comes next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub(super) enum Stage {
    /// The model is asked how it goes about it.
    Plan,
    /// The model is asked what to do.
    Model,
    /// Its answer is held against what was done.
    Verify {
        /// Why the answer ended.
        stop_reason: String,
    },
}

/// A call that the model wants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Call {
    /// Unique in the turn.
    pub id: String,
    /// The tool.
    pub name: String,
    /// Its label.
    pub kind: String,
    /// What it gets.
    pub input: Value,
    /// Whether a person has changed that.
    #[serde(default)]
    pub edited: bool,
    /// The id of the question about it.
    pub native_id: Option<String>,
    /// How far it has come.
    pub phase: Phase,
}

/// How far a call has come.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub(super) enum Phase {
    /// It is not to run, for a reason that the model is told.
    Refused {
        /// In words.
        why: String,
    },
    /// It can run.
    Ready,
    /// It waits for a person.
    Asked,
    /// A person has decided; nothing has run.
    Decided {
        /// Yes or no.
        decision: Decision,
        /// The decider's words.
        reason: Option<String>,
        /// The input that the tool gets instead.
        edited_input: Option<Value>,
    },
    /// The tool may have run: stored before it runs, and never run again from here.
    Started,
    /// Over; the conversation has what came of it.
    Done,
}

impl Default for State {
    fn default() -> Self {
        Self { version: VERSION, past: Vec::new(), ended_at: None, questions_asked: 0, turn: None }
    }
}

impl State {
    /// Takes a stored state up.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub fn restore(stored: Value) -> Result<Self, String> {
        if stored.get("version").and_then(Value::as_u64) != Some(VERSION) {
            return Err(format!("the stored state is not of version {VERSION}"));
        }
        serde_json::from_value(stored).map_err(|error| format!("the stored state cannot be read: {error}"))
    }

    /// The state as it is given away.
    pub fn stored(&self) -> Option<Value> {
        // Strings, numbers and JSON values alone: this always serializes.
        serde_json::to_value(self).ok()
    }

    /// Begins a turn. What was said before fades as the settings say.
    pub fn begin(&mut self, input: TurnInput, settings: &Settings, now: Timestamp) {
        self.fade(settings, now);
        let said = Message::User { content: input.prompt.text() };
        // Said before without an answer, and now again: it is the same prompt.
        if self.past.last() == Some(&said) {
            self.past.pop();
        }
        let stage = if settings.planning.mode == PlanningMode::Off { Stage::Model } else { Stage::Plan };
        self.turn = Some(Turn {
            turn_id: input.turn_id,
            messages: vec![said],
            stage,
            calls: Vec::new(),
            submitted: Vec::new(),
            model_calls: 0,
            tool_calls: 0,
            repairs: 0,
            stalls: 0,
            worked_ms: 0,
            said: 0,
            usage: Usage::NONE,
            evidence: Evidence::default(),
        });
    }

    /// Forgets what the settings do not keep.
    fn fade(&mut self, settings: &Settings, now: Timestamp) {
        let (memory, history) = (&settings.memory, &settings.history);
        let idle_ttl = std::time::Duration::from_secs(memory.idle_ttl_seconds);
        let is_stale = self.ended_at.is_some_and(|ended| now.since(Timestamp(ended)) > idle_ttl);
        let kept = match (memory.enabled, history.enabled) {
            (false, _) => &[],
            (true, false) if is_stale => &[],
            (true, false) => last_turns(&self.past, usize::try_from(memory.recent_turns).unwrap_or(0)),
            (true, true) => &self.past,
        };
        // What is kept are the last ones, all of them.
        let forgotten = self.past.len() - last_turns_within(kept, PAST_MAX, PAST_MAX_BYTES).len();
        self.past.drain(..forgotten);
    }

    /// The turn at work is over, and a part of the past: no call in it stays without an end.
    pub fn end_turn(&mut self, outcome: &TurnOutcome, settings: &Settings, now: Timestamp) {
        let Some(mut turn) = self.turn.take() else { return };
        turn.close_calls();
        let why = match outcome {
            TurnOutcome::Completed { .. } => None,
            TurnOutcome::Failed(failure) => Some(format!("it failed ({})", failure.code)),
            TurnOutcome::Cancelled => Some("it was cancelled".to_owned()),
            TurnOutcome::Interrupted => Some("the process that worked on it was lost".to_owned()),
        };
        if let Some(why) = why {
            let content = format!("[ostler] The work on this request ended before it was done: {why}.");
            turn.messages.push(Message::Note { content });
        }
        // Where the model has not said a word, the prompt alone stays: it may come again.
        if !turn.messages.iter().any(|message| matches!(message, Message::Assistant { .. })) {
            turn.messages.truncate(1);
        }
        self.past.append(&mut turn.messages);
        self.ended_at = Some(now.0);
        self.fade(settings, now);
    }

    /// An id for a question.
    pub fn new_question(&mut self) -> String {
        self.questions_asked += 1;
        format!("q{}", self.questions_asked)
    }

    /// The call that this question is about, while it waits for an answer.
    pub fn asked(&mut self, native_id: &str) -> Option<&mut Call> {
        let calls = self.turn.as_mut().map(|turn| turn.calls.iter_mut());
        let is_it =
            |call: &&mut Call| call.native_id.as_deref() == Some(native_id) && call.phase == Phase::Asked;
        calls.into_iter().flatten().find(is_it)
    }

    /// The calls that wait for an answer.
    pub fn all_asked(&self) -> Vec<Call> {
        let calls = self.turn.as_ref().map(|turn| turn.calls.iter());
        calls.into_iter().flatten().filter(|call| call.phase == Phase::Asked).cloned().collect()
    }
}

impl Turn {
    /// What came of a call.
    pub fn record(&mut self, at: usize, outcome: Outcome, content: String) {
        let Some(call) = self.calls.get_mut(at) else { return };
        call.phase = Phase::Done;
        let tool_call_id = call.id.clone();
        self.evidence.take(&call.kind, outcome, &content);
        // The model knows only the input that it gave.
        let content = match call.edited {
            true => format!("A person changed the input of this call to {}.\n{content}", call.input),
            false => content,
        };
        self.messages.push(Message::Tool { tool_call_id, content, outcome, condensed: false });
    }

    /// The model's last words.
    pub fn answer(&self) -> &str {
        self.messages
            .iter()
            .rev()
            .find_map(|message| match message {
                Message::Assistant { content, .. } => Some(content.as_str()),
                _ => None,
            })
            .unwrap_or_default()
    }

    /// The first call that something is to be done about.
    pub fn next_call(&self) -> Option<usize> {
        self.calls.iter().position(|call| !matches!(call.phase, Phase::Asked | Phase::Done))
    }

    /// Whether a question is open, or decided and not yet acted upon.
    pub fn has_question(&self) -> bool {
        self.calls.iter().any(|call| matches!(call.phase, Phase::Asked | Phase::Decided { .. }))
    }

    fn close_calls(&mut self) {
        for at in 0..self.calls.len() {
            match self.calls[at].phase {
                Phase::Done => {}
                Phase::Started => self.record(at, Outcome::Uncertain, UNCERTAIN.to_owned()),
                _ => self.record(
                    at,
                    Outcome::Failed,
                    "This call was not run: the work ended before.".to_owned(),
                ),
            }
        }
    }
}

/// What the model is told of a call whose end nobody has seen.
pub(super) const UNCERTAIN: &str = "The outcome of this call is not known: it had begun, and may or may not have taken effect. It is not repeated by itself; \
     find out what happened before you call it again.";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::turn::Prompt;

    #[test]
    fn a_turn_that_is_too_large_to_be_stored_is_forgotten_and_not_what_comes_after_it() {
        let settings = Settings::built_in("main");
        let mut state = State::default();
        let mut turn = |results: usize, words: &str| {
            let input = TurnInput { turn_id: TurnId::mint(), prompt: Prompt::Text(words.to_owned()) };
            state.begin(input, &settings, Timestamp(0));
            let turn = state.turn.as_mut().unwrap();
            let content = String::new();
            turn.messages.push(Message::Assistant { content, tool_calls: Vec::new() });
            let (tool_call_id, content) = (String::new(), "\u{1}".repeat(1 << 20));
            let outcome = Outcome::Succeeded;
            let result = Message::Tool { tool_call_id, content, outcome, condensed: false };
            turn.messages.extend(std::iter::repeat_n(result, results));
            state.end_turn(
                &TurnOutcome::Completed { stop_reason: "end_turn".to_owned() },
                &settings,
                Timestamp(0),
            );
            let stored = serde_json::to_string(&state.stored().unwrap()).unwrap().len();
            (state.past.len(), stored <= RESUME_STATE_MAX_BYTES)
        };
        assert_eq!(turn(1, "one"), (3, true));
        assert_eq!(turn(3, "large"), (0, true));
        assert_eq!(turn(0, "after"), (2, true));
    }
}
