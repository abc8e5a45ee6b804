//! Approvals: a question of the harness, one decision of a person, one delivery.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::scope::named_values;
use super::turn::{Ordinal, TurnRef};
use crate::clock::Timestamp;
use crate::ids::{ApprovalId, SessionId, TurnId};

/// Where an approval stands. All but `Pending` are final.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalStatus {
    /// Waits for a person.
    Pending,
    /// Allowed.
    Approved,
    /// Refused.
    Denied,
    /// Nobody answered in time, which the harness hears as a refusal.
    Expired,
    /// Its turn or session was ended, or the harness withdrew the question.
    Cancelled,
    /// The process that asked is gone and the harness cannot be told any more.
    Orphaned,
}

named_values!(ApprovalStatus {
    Pending => "pending",
    Approved => "approved",
    Denied => "denied",
    Expired => "expired",
    Cancelled => "cancelled",
    Orphaned => "orphaned",
});

/// What a person says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Do it.
    Approve,
    /// Do not.
    Deny,
}

named_values!(Decision { Approve => "approve", Deny => "deny" });

impl Decision {
    /// The status that an approval has after this decision.
    pub fn status(self) -> ApprovalStatus {
        match self {
            Self::Approve => ApprovalStatus::Approved,
            Self::Deny => ApprovalStatus::Denied,
        }
    }
}

/// How an answer reaches further than this one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptionKind {
    /// This call.
    AllowOnce,
    /// This and all like it.
    AllowAlways,
    /// Not this call.
    RejectOnce,
    /// Neither this nor any like it.
    RejectAlways,
}

impl OptionKind {
    /// The decision that an option of this kind stands for.
    pub fn decision(self) -> Decision {
        match self {
            Self::AllowOnce | Self::AllowAlways => Decision::Approve,
            Self::RejectOnce | Self::RejectAlways => Decision::Deny,
        }
    }
}

/// One of the answers that the harness offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalOption {
    /// The harness's id for it.
    pub id: String,
    /// Its kind.
    pub kind: OptionKind,
    /// Its words.
    pub name: String,
}

/// The option that carries out a decision: of the once kind where there is one, else the always kind, in the order of the list.
pub fn choose_option(options: &[ApprovalOption], decision: Decision) -> Option<&ApprovalOption> {
    let (once, always) = match decision {
        Decision::Approve => (OptionKind::AllowOnce, OptionKind::AllowAlways),
        Decision::Deny => (OptionKind::RejectOnce, OptionKind::RejectAlways),
    };
    [once, always].iter().find_map(|kind| options.iter().find(|option| option.kind == *kind))
}

/// How far a session trusts what the agent says of its own tools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PermissionMode {
    /// Every request becomes an approval.
    #[default]
    Ask,
    /// Requests labelled read, search or think are allowed.
    AllowReads,
    /// Also edit and move.
    AllowEdits,
    /// Everything.
    AllowAll,
}

named_values!(PermissionMode {
    Ask => "ask",
    AllowReads => "allow_reads",
    AllowEdits => "allow_edits",
    AllowAll => "allow_all",
});

impl PermissionMode {
    /// Whether a request of this kind is answered without a person. It trusts the agent's own label.
    pub fn allows(self, kind: &str) -> bool {
        match self {
            Self::Ask => false,
            Self::AllowReads => matches!(kind, "read" | "search" | "think"),
            Self::AllowEdits => matches!(kind, "read" | "search" | "think" | "edit" | "move"),
            Self::AllowAll => true,
        }
    }

    /// The option that is chosen without a person: one that allows this call alone, or none.
    pub fn automatic_option<'a>(
        self,
        kind: &str,
        options: &'a [ApprovalOption],
    ) -> Option<&'a ApprovalOption> {
        let once = options.iter().find(|option| option.kind == OptionKind::AllowOnce);
        once.filter(|_| self.allows(kind))
    }
}

/// An approval's row. It serializes as clients see it: everything but what the service keeps for itself.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Approval {
    /// Ours, unique for ever.
    pub id: ApprovalId,
    /// The harness's own id, never shown as identity: it may come again after a restart.
    #[serde(skip)]
    pub native_id: String,
    /// The session.
    pub session_id: SessionId,
    /// The session's name for hosts.
    pub run_id: String,
    /// The turn that asks.
    pub turn_id: TurnId,
    /// The turn's place.
    #[serde(skip)]
    pub turn: Ordinal,
    /// The tool's name.
    pub tool: String,
    /// The question in words.
    pub title: String,
    /// The agent's label: read, edit, delete, move, search, execute, think, fetch, other.
    pub kind: String,
    /// What the tool would get, whole.
    pub input: Value,
    /// See [`input_digest`].
    pub input_digest: String,
    /// The answers on offer.
    pub options: Vec<ApprovalOption>,
    /// Where it stands.
    pub status: ApprovalStatus,
    /// What was decided.
    pub decision: Option<Decision>,
    /// The option that was chosen.
    pub option_id: Option<String>,
    /// The decider's words.
    pub reason: Option<String>,
    /// The input that the tool gets instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edited_input: Option<Value>,
    /// Who decided.
    pub decided_by: Option<String>,
    /// When it was asked.
    pub requested_at: Timestamp,
    /// When it stops waiting.
    pub expires_at: Option<Timestamp>,
    /// When it was decided.
    pub decided_at: Option<Timestamp>,
    /// When telling the harness began: from then on it is never told again.
    #[serde(skip)]
    pub dispatched_at: Option<Timestamp>,
    /// When the harness had the decision.
    pub delivered_at: Option<Timestamp>,
}

impl Approval {
    /// A question of a session's turn that waits for ever.
    pub fn asked(session_id: SessionId, turn: &TurnRef, tool: &str, input: Value, at: Timestamp) -> Self {
        Self {
            id: ApprovalId::mint(),
            native_id: String::new(),
            session_id,
            run_id: String::new(),
            turn_id: turn.id.clone(),
            turn: turn.ordinal,
            tool: tool.to_owned(),
            title: tool.to_owned(),
            kind: "other".to_owned(),
            input_digest: input_digest(tool, &input),
            input,
            options: Vec::new(),
            status: ApprovalStatus::Pending,
            decision: None,
            option_id: None,
            reason: None,
            edited_input: None,
            decided_by: None,
            requested_at: at,
            expires_at: None,
            decided_at: None,
            dispatched_at: None,
            delivered_at: None,
        }
    }

    /// Whether its answer was given to the harness, or was about to be, and nobody knows that it has arrived.
    pub fn is_on_its_way(&self) -> bool {
        self.dispatched_at.is_some() && self.delivered_at.is_none()
    }

    /// The answer that the harness is still owed: none while it is pending, closed, or on its way.
    pub fn owed_answer(&self) -> Option<Decision> {
        if self.dispatched_at.is_some() {
            return None;
        }
        match self.status {
            ApprovalStatus::Approved => Some(Decision::Approve),
            ApprovalStatus::Denied | ApprovalStatus::Expired => Some(Decision::Deny),
            ApprovalStatus::Pending | ApprovalStatus::Cancelled | ApprovalStatus::Orphaned => None,
        }
    }
}

/// What a decider sends.
#[derive(Clone, Debug, PartialEq)]
pub struct DecisionRequest {
    /// Yes or no.
    pub decision: Decision,
    /// A particular option.
    pub option_id: Option<String>,
    /// Words.
    pub reason: Option<String>,
    /// Another input for the tool.
    pub edited_input: Option<Value>,
    /// The digest of what the decider saw.
    pub input_digest: Option<String>,
    /// Who decides.
    pub decided_by: String,
}

/// What comes of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// It stands: the approval gets this status and option.
    Decide {
        /// The option that carries it out, where the harness offered one.
        option_id: Option<String>,
    },
    /// It stood already.
    Standing,
}

/// Why a decision is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The opposite was decided before.
    #[error("already {0}")]
    Resolved(ApprovalStatus),
    /// Nobody answered in time.
    #[error("expired before it was decided")]
    Expired,
    /// Its turn is over.
    #[error("the question is closed: {0}")]
    Closed(ApprovalStatus),
    /// What the decider saw is not what would run.
    #[error("the input is not the one that was shown")]
    Changed,
    /// No option of that id, or one that says the opposite.
    #[error("option_id: {0}")]
    Option(&'static str),
}

/// Judges a decision against the approval as it stands now. Pure: whoever carries it out must do so under a condition on the row.
///
/// # Errors
/// A [`Refusal`].
pub fn resolve(
    approval: &Approval,
    request: &DecisionRequest,
    now: Timestamp,
) -> Result<Resolution, Refusal> {
    if request.input_digest.as_ref().is_some_and(|digest| *digest != approval.input_digest) {
        return Err(Refusal::Changed);
    }
    match approval.status {
        ApprovalStatus::Pending if approval.expires_at.is_some_and(|at| at <= now) => Err(Refusal::Expired),
        ApprovalStatus::Pending => Ok(Resolution::Decide { option_id: option_for(approval, request)? }),
        ApprovalStatus::Approved | ApprovalStatus::Denied => {
            if approval.status == request.decision.status() {
                Ok(Resolution::Standing)
            } else {
                Err(Refusal::Resolved(approval.status))
            }
        }
        ApprovalStatus::Expired => Err(Refusal::Expired),
        ApprovalStatus::Cancelled | ApprovalStatus::Orphaned => Err(Refusal::Closed(approval.status)),
    }
}

fn option_for(approval: &Approval, request: &DecisionRequest) -> Result<Option<String>, Refusal> {
    let Some(wanted) = &request.option_id else {
        return Ok(choose_option(&approval.options, request.decision).map(|option| option.id.clone()));
    };
    match approval.options.iter().find(|option| option.id == *wanted) {
        None => Err(Refusal::Option("no such option in this approval")),
        Some(option) if option.kind.decision() != request.decision => {
            Err(Refusal::Option("this option says the opposite of the decision"))
        }
        Some(option) => Ok(Some(option.id.clone())),
    }
}

/// `sha256:` and the hex SHA-256 of `{"input":…,"tool":…}` as canonical JSON: keys sorted, no spaces.
pub fn input_digest(tool: &str, input: &Value) -> String {
    let mut text = String::from("{\"input\":");
    write_canonical(input, &mut text);
    text.push_str(",\"tool\":");
    write_canonical(&Value::from(tool), &mut text);
    text.push('}');
    format!("sha256:{}", hex(&Sha256::digest(text.as_bytes())))
}

/// `sha256:` and the hex SHA-256 of a value as canonical JSON.
pub fn digest_of(value: &Value) -> String {
    let mut text = String::new();
    write_canonical(value, &mut text);
    format!("sha256:{}", hex(&Sha256::digest(text.as_bytes())))
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

// The key order of serde_json's map depends on a feature that any crate in the build may turn on; so it is settled here.
fn write_canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            let mut pairs: Vec<_> = map.iter().collect();
            pairs.sort_by_key(|(key, _)| key.as_str());
            out.push('{');
            for (i, (key, value)) in pairs.into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_canonical(&Value::from(key.as_str()), out);
                out.push(':');
                write_canonical(value, out);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_canonical(item, out);
            }
            out.push(']');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            out.push_str(&value.to_string())
        }
    }
}

#[cfg(test)]
mod tests;
