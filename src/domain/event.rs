//! Events: what happened in a session, in one sequence without holes.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::approval::Approval;
use super::scope::named_values;
use super::session::StopCause;
use super::turn::{Failure, TurnEnd, TurnRef, Usage};
use crate::clock::Timestamp;
use crate::ids::TurnId;

/// Merged deltas grow to this many bytes and no further.
pub const MERGED_DELTA_MAX_BYTES: usize = 4096;

/// How a tool call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolStatus {
    /// It did what it should.
    Succeeded,
    /// It did not.
    Failed,
}

/// What happened to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FileOperation {
    /// It is new.
    Create,
    /// Its contents changed.
    Update,
    /// It is gone.
    Delete,
    /// It has another name.
    Rename,
    /// The agent did not say.
    Unknown,
}

/// Whether an interrupted turn's prompt or decision had surely reached the harness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Delivery {
    /// It had.
    Delivered,
    /// It may or may not have: only the caller can tell whether to try again.
    Unknown,
}

/// One step of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanEntry {
    /// The step in words.
    pub content: String,
    /// pending, in_progress or completed.
    pub status: String,
    /// The agent's own weight for it, where it gives one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<String>,
}

/// Why some of an agent's words are void.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RewindReason {
    /// The model's answer broke off, and is asked for again.
    Retried,
    /// The process that heard it was lost, and another goes on.
    Resumed,
    /// It did not stand when it was verified.
    Repaired,
}

/// A tool call as its first event shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ToolStart {
    /// The harness's id of the call.
    pub tool_call_id: String,
    /// The tool.
    pub name: String,
    /// The agent's label, see [`Approval::kind`].
    pub kind: String,
    /// What the tool gets.
    pub input: Value,
}

/// A tool call as its last event shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ToolEnd {
    /// The harness's id of the call.
    pub tool_call_id: String,
    /// The tool.
    pub name: String,
    /// How it ended.
    pub status: ToolStatus,
    /// What the tool got.
    pub input: Value,
    /// What came out.
    pub result: Value,
}

/// What a harness puts out while it works: the part of [`EventBody`] that is its own to say.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Output {
    /// The agent speaks.
    TextDelta {
        /// The next words.
        text: String,
    },
    /// The agent thinks.
    ThinkingDelta {
        /// The next words.
        text: String,
    },
    /// A tool call began.
    ToolStarted(ToolStart),
    /// A tool call ended.
    ToolCompleted(ToolEnd),
    /// A file changed.
    FileChanged {
        /// Its path, relative to the workspace where it lies inside.
        path: String,
        /// What happened to it.
        operation: FileOperation,
        /// In words.
        summary: String,
    },
    /// The agent's plan, whole.
    PlanUpdated {
        /// Its steps.
        entries: Vec<PlanEntry>,
    },
    /// Something that has no type of its own.
    Activity {
        /// In words.
        label: String,
        /// The tool it belongs to.
        tool: Option<String>,
        /// What the agent sent, for kinds that nobody knows yet.
        #[serde(skip_serializing_if = "Option::is_none")]
        raw: Option<Value>,
    },
    /// The agent condensed its memory.
    Compaction {
        /// In words.
        summary: String,
        /// What it took before, in tokens, where that is known.
        #[serde(skip_serializing_if = "Option::is_none")]
        tokens_before: Option<u64>,
        /// What it takes now.
        #[serde(skip_serializing_if = "Option::is_none")]
        tokens_after: Option<u64>,
    },
    /// Of what the agent has said in this turn, the first so many characters stand: what came after them is void, and is said anew.
    TextRewound {
        /// In Unicode characters.
        length: u64,
        /// Why: the model's answer broke off, its process was lost, or the answer did not stand.
        reason: RewindReason,
    },
    /// Tokens used since the turn began, as the harness counts them.
    Usage(Usage),
}

impl Output {
    /// About how many bytes it holds.
    pub fn weight(&self) -> usize {
        match self {
            Self::TextDelta { text }
            | Self::ThinkingDelta { text }
            | Self::Compaction { summary: text, .. } => text.len(),
            Self::ToolStarted(start) => start.weight(),
            Self::ToolCompleted(end) => {
                end.tool_call_id.len() + end.name.len() + weight(&end.input) + weight(&end.result)
            }
            Self::FileChanged { path, summary, .. } => path.len() + summary.len(),
            Self::PlanUpdated { entries } => entries.iter().map(|entry| entry.content.len() + 64).sum(),
            Self::Activity { label, raw, .. } => label.len() + raw.as_ref().map_or(0, weight),
            Self::Usage(_) | Self::TextRewound { .. } => 0,
        }
    }
}

impl ToolStart {
    /// About how many bytes it holds.
    pub fn weight(&self) -> usize {
        self.tool_call_id.len() + self.name.len() + self.kind.len() + weight(&self.input)
    }
}

/// About how many bytes of memory a value takes: small ones take many times the room that they have in their text.
pub fn weight(value: &Value) -> usize {
    const ENTRY: usize = size_of::<String>() + 16;
    let inside: usize = match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(weight).sum(),
        Value::Object(map) => map.iter().map(|(key, value)| ENTRY + key.len() + weight(value)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    };
    size_of::<Value>() + inside
}

/// What happened. It serializes as the event's `data`; [`EventBody::kind`] is its `type`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum EventBody {
    /// The session exists.
    SessionCreated {},
    /// The harness was put away.
    SessionStopped {
        /// Why.
        cause: StopCause,
    },
    /// The session cannot go on by itself.
    SessionErrored(Failure),
    /// The session is gone for good.
    SessionDestroyed {},
    /// A new process took the conversation up.
    SessionRehydrated {
        /// Whether it stands exactly where the old one stood.
        exact: bool,
    },
    /// A new process could not take the conversation up and starts empty.
    SessionContextLost {
        /// Why.
        reason: String,
    },
    /// A prompt was accepted.
    TurnQueued {},
    /// The prompt goes to the harness.
    TurnStarted {},
    /// The turn ended in the ordinary way.
    TurnCompleted {
        /// The harness's word for why.
        stop_reason: String,
    },
    /// The turn failed.
    TurnFailed(Failure),
    /// The turn was ended on request.
    TurnCancelled {},
    /// The process that ran the turn was lost.
    TurnInterrupted {
        /// Whether what was sent had arrived.
        delivery: Delivery,
    },
    /// The turn worked for too long.
    TurnTimedOut {},
    /// What the harness itself puts out.
    Output(Output),
    /// A person is asked.
    ApprovalRequested {
        /// The question.
        approval: Box<Approval>,
    },
    /// A person, or the session's permission mode, answered.
    ApprovalResolved {
        /// The question with its answer.
        approval: Box<Approval>,
    },
    /// Nobody answered in time.
    ApprovalExpired {
        /// The question.
        approval: Box<Approval>,
    },
    /// The question is void.
    ApprovalCancelled {
        /// The question.
        approval: Box<Approval>,
    },
    /// The process that asked is gone, and no other can be told.
    ApprovalOrphaned {
        /// The question.
        approval: Box<Approval>,
    },
    /// The harness has the answer.
    ApprovalDelivered {
        /// The question with its answer.
        approval: Box<Approval>,
    },
}

impl Output {
    /// The event's `type`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::TextDelta { .. } => "text.delta",
            Self::ThinkingDelta { .. } => "thinking.delta",
            Self::ToolStarted(_) => "tool.started",
            Self::ToolCompleted(_) => "tool.completed",
            Self::FileChanged { .. } => "file.changed",
            Self::PlanUpdated { .. } => "plan.updated",
            Self::Activity { .. } => "activity",
            Self::Compaction { .. } => "compaction",
            Self::TextRewound { .. } => "text.rewound",
            Self::Usage(_) => "usage",
        }
    }
}

impl EventBody {
    /// The event's `type`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::SessionCreated {} => "session.created",
            Self::SessionStopped { .. } => "session.stopped",
            Self::SessionErrored(_) => "session.errored",
            Self::SessionDestroyed {} => "session.destroyed",
            Self::SessionRehydrated { .. } => "session.rehydrated",
            Self::SessionContextLost { .. } => "session.context_lost",
            Self::TurnQueued {} => "turn.queued",
            Self::TurnStarted {} => "turn.started",
            Self::TurnCompleted { .. } => "turn.completed",
            Self::TurnFailed(_) => "turn.failed",
            Self::TurnCancelled {} => "turn.cancelled",
            Self::TurnInterrupted { .. } => "turn.interrupted",
            Self::TurnTimedOut {} => "turn.timed_out",
            Self::Output(output) => output.kind(),
            Self::ApprovalRequested { .. } => APPROVAL_REQUESTED,
            Self::ApprovalResolved { .. } => "approval.resolved",
            Self::ApprovalExpired { .. } => "approval.expired",
            Self::ApprovalCancelled { .. } => "approval.cancelled",
            Self::ApprovalOrphaned { .. } => "approval.orphaned",
            Self::ApprovalDelivered { .. } => "approval.delivered",
        }
    }

    /// The event that tells how a turn ended.
    pub fn of_end(end: &TurnEnd) -> Self {
        match end {
            TurnEnd::Completed { stop_reason } => Self::TurnCompleted { stop_reason: stop_reason.clone() },
            TurnEnd::Failed(failure) => Self::TurnFailed(failure.clone()),
            TurnEnd::Cancelled => Self::TurnCancelled {},
            TurnEnd::Interrupted { delivery_known } => Self::TurnInterrupted {
                delivery: if *delivery_known { Delivery::Delivered } else { Delivery::Unknown },
            },
            TurnEnd::TimedOut => Self::TurnTimedOut {},
        }
    }
}

impl From<Output> for EventBody {
    fn from(output: Output) -> Self {
        Self::Output(output)
    }
}

/// The types of an agent's words: they come by the thousand and change nothing about their session.
pub const DELTA_KINDS: [&str; 2] = ["text.delta", "thinking.delta"];

/// The type with which a turn begins to wait for a person.
pub const APPROVAL_REQUESTED: &str = "approval.requested";

/// The types that end a turn, for a stream that ends with it.
pub const TURN_END_KINDS: [&str; 5] =
    ["turn.completed", "turn.failed", "turn.cancelled", "turn.interrupted", "turn.timed_out"];

/// An event that is not stored yet: the writer gives it its seq.
#[derive(Clone, Debug, PartialEq)]
pub struct NewEvent {
    /// The turn it belongs to.
    pub turn: Option<TurnRef>,
    /// When it happened.
    pub at: Timestamp,
    /// What happened.
    pub body: EventBody,
}

impl NewEvent {
    /// Takes a following delta of the same kind and turn into this one, up to [`MERGED_DELTA_MAX_BYTES`].
    /// Gives `next` back when the two do not merge.
    pub fn absorb(&mut self, next: Self) -> Option<Self> {
        if self.turn != next.turn {
            return Some(next);
        }
        let (EventBody::Output(mine), EventBody::Output(theirs)) = (&mut self.body, &next.body) else {
            return Some(next);
        };
        match (mine, theirs) {
            (Output::TextDelta { text }, Output::TextDelta { text: more })
            | (Output::ThinkingDelta { text }, Output::ThinkingDelta { text: more })
                if text.len() + more.len() <= MERGED_DELTA_MAX_BYTES =>
            {
                text.push_str(more);
                None
            }
            _ => Some(next),
        }
    }
}

/// An event as it is stored and shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its place: 1, 2, 3 … in the session.
    pub seq: i64,
    /// Its `type`.
    pub kind: String,
    /// The turn it belongs to.
    pub turn_id: Option<TurnId>,
    /// When it happened.
    pub at: Timestamp,
    /// Its `data`, a JSON object as text.
    pub data: String,
}

named_values!(ToolStatus { Succeeded => "succeeded", Failed => "failed" });

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::turn::Ordinal;

    fn delta(turn: i64, text: &str) -> NewEvent {
        let id = TurnId::from_row(format!("trn_{turn}"));
        NewEvent {
            turn: Some(TurnRef { ordinal: Ordinal(turn), id }),
            at: Timestamp(0),
            body: Output::TextDelta { text: text.into() }.into(),
        }
    }

    #[test]
    fn adjacent_deltas_of_one_kind_and_turn_merge_and_nothing_else_does() {
        let mut first = delta(1, "Hello ");
        assert_eq!(first.absorb(delta(1, "world")), None);
        assert_eq!(first, delta(1, "Hello world"));
        assert!(first.absorb(delta(2, "!")).is_some());
        let thought = NewEvent { body: Output::ThinkingDelta { text: "hm".into() }.into(), ..delta(1, "") };
        assert!(first.absorb(thought).is_some());
        assert!(first.absorb(delta(1, &"x".repeat(MERGED_DELTA_MAX_BYTES))).is_some());
        assert_eq!(first, delta(1, "Hello world"));
    }

    #[test]
    fn an_event_serializes_as_its_data_alone() {
        let json = |body: EventBody| serde_json::to_string(&body).unwrap();
        assert_eq!(json(EventBody::SessionCreated {}), "{}");
        assert_eq!(json(EventBody::SessionStopped { cause: StopCause::IdleTtl }), r#"{"cause":"idle_ttl"}"#);
        assert_eq!(json(EventBody::TurnFailed(Failure::new("x", "y"))), r#"{"code":"x","message":"y"}"#);
        let interrupted = EventBody::of_end(&TurnEnd::Interrupted { delivery_known: false });
        assert_eq!(json(interrupted), r#"{"delivery":"unknown"}"#);
    }
}
