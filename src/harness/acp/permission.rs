//! Questions of the agent that wait for an answer, under ids of our own.
//!
//! The agent's ids for them are no identity: most count from 0 in each process.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Deserialize;
use serde_json::{Value, json};

use super::files::WriteFile;
use super::protocol::{REQUEST_CANCELLED, RpcError};
use crate::domain::approval::{ApprovalOption, Decision, OptionKind, choose_option};
use crate::harness::Answer;

/// More questions do not wait at the same time: the agent would be asking in a circle.
const WAITING_MAX: usize = 64;
/// One that is larger cannot be shown to a person in any useful way, and is not asked.
const QUESTION_MAX_BYTES: usize = 1 << 20;
/// All that wait together are no larger: they are read whenever one of them changes.
const WAITING_MAX_BYTES: usize = 2 << 20;

/// A question that waits.
#[derive(Clone, Debug)]
pub(super) struct Question {
    /// The agent's id of the request, for the answer.
    pub request_id: Value,
    /// What it asks.
    pub ask: Ask,
    /// The turn that was at work when it came.
    pub turn: Option<u64>,
    /// About how many bytes it holds, what it would be shown with included.
    pub weight: usize,
}

/// What an agent asks.
#[derive(Clone, Debug)]
pub(super) enum Ask {
    /// `session/request_permission` with these options.
    Permission(Vec<ApprovalOption>),
    /// `fs/write_text_file`, which we ask for ourselves.
    Write(WriteFile),
}

/// The questions that wait.
#[derive(Debug, Default)]
pub(super) struct Questions(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    minted: u64,
    waiting: BTreeMap<u64, Question>,
}

impl Questions {
    /// Keeps a question and gives it an id; `None` when it is too large, or too many wait already.
    pub(super) fn keep(&self, question: Question) -> Option<String> {
        let mut inner = self.lock();
        let waiting: usize = inner.waiting.values().map(|question| question.weight).sum();
        let is_large = question.weight > QUESTION_MAX_BYTES || waiting + question.weight > WAITING_MAX_BYTES;
        if is_large || inner.waiting.len() >= WAITING_MAX {
            return None;
        }
        inner.minted += 1;
        let id = inner.minted;
        inner.waiting.insert(id, question);
        Some(shown(id))
    }

    /// Takes the question of that id.
    pub(super) fn take(&self, native_id: &str) -> Option<Question> {
        let id = native_id.strip_prefix('p')?.parse().ok()?;
        self.lock().waiting.remove(&id)
    }

    /// Takes those that came with this id of the agent's. Ids are the agent's own affair: it may use one twice.
    pub(super) fn take_request(&self, request_id: &Value) -> Vec<(String, Question)> {
        self.take_where(|question| question.request_id == *request_id)
    }

    /// Takes those that came in this turn.
    pub(super) fn take_turn(&self, turn: u64) -> Vec<(String, Question)> {
        self.take_where(|question| question.turn == Some(turn))
    }

    /// Takes all.
    pub(super) fn take_all(&self) -> Vec<(String, Question)> {
        self.take_where(|_| true)
    }

    fn take_where(&self, matches: impl Fn(&Question) -> bool) -> Vec<(String, Question)> {
        let taken = self.lock().waiting.extract_if(.., |_, question| matches(question)).collect::<Vec<_>>();
        taken.into_iter().map(|(id, question)| (shown(id), question)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ask {
    /// The answer when nobody will give one any more.
    pub(super) fn cancelled(&self) -> Result<Value, RpcError> {
        match self {
            Self::Permission(_) => Ok(json!({"outcome": {"outcome": "cancelled"}})),
            Self::Write(_) => Err(RpcError::new(REQUEST_CANCELLED, "the write was cancelled")),
        }
    }
}

/// The options of a permission request, in its order. Kinds that nobody knows are left out: what they would do is unknown.
pub(super) fn options(options: &Value) -> Vec<ApprovalOption> {
    let options = options.as_array().map(Vec::as_slice).unwrap_or_default();
    options
        .iter()
        .filter_map(|option| {
            let id = option["optionId"].as_str()?;
            let name = option["name"].as_str().unwrap_or(id);
            let kind = OptionKind::deserialize(&option["kind"]).ok()?;
            Some(ApprovalOption { id: id.to_owned(), kind, name: name.to_owned() })
        })
        .collect()
}

/// The options of a write that we ask for ourselves.
pub(super) fn write_options() -> Vec<ApprovalOption> {
    [("allow", OptionKind::AllowOnce, "Allow"), ("reject", OptionKind::RejectOnce, "Reject")]
        .map(|(id, kind, name)| ApprovalOption { id: id.to_owned(), kind, name: name.to_owned() })
        .into()
}

/// The result that carries an answer out: the option it names, where that is on the list and says the same, else the
/// first that fits. Where none fits the agent hears `cancelled`, which no agent takes for a yes.
pub(super) fn outcome(options: &[ApprovalOption], answer: &Answer) -> Value {
    let named = answer.option_id.as_ref().and_then(|id| options.iter().find(|option| option.id == *id));
    let chosen = named
        .filter(|option| option.kind.decision() == answer.decision)
        .or_else(|| choose_option(options, answer.decision));
    match chosen {
        Some(option) => json!({"outcome": {"outcome": "selected", "optionId": option.id}}),
        None => json!({"outcome": {"outcome": "cancelled"}}),
    }
}

/// Whether a write of ours may go ahead.
pub(super) fn allows_write(answer: &Answer) -> bool {
    answer.decision == Decision::Approve
}

fn shown(id: u64) -> String {
    format!("p{id}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(decision: Decision, option_id: Option<&str>) -> Answer {
        Answer {
            native_id: "p1".into(),
            decision,
            option_id: option_id.map(str::to_owned),
            reason: None,
            edited_input: None,
        }
    }

    fn list(kinds: &[(&str, &str)]) -> Vec<ApprovalOption> {
        let list: Vec<Value> =
            kinds.iter().map(|(id, kind)| json!({"optionId": id, "kind": kind, "name": id})).collect();
        options(&Value::from(list))
    }

    fn question(request_id: Value, turn: Option<u64>) -> Question {
        Question { request_id, ask: Ask::Permission(Vec::new()), turn, weight: 1 }
    }

    #[test]
    fn row_79_an_answer_chooses_by_kind_once_before_always_else_cancelled() {
        let all = &[("a1", "allow_once"), ("a2", "allow_always"), ("r1", "reject_once")][..];
        let always_first = &[("a2", "allow_always"), ("a1", "allow_once"), ("r1", "reject_once")][..];
        let only_always = &[("a2", "allow_always")][..];
        for (kinds, decision, option_id, chosen) in [
            (all, Decision::Approve, None, Some("a1")),
            (all, Decision::Deny, None, Some("r1")),
            (always_first, Decision::Approve, None, Some("a1")),
            (only_always, Decision::Approve, None, Some("a2")),
            (only_always, Decision::Deny, None, None),
            (&[], Decision::Approve, None, None),
            (all, Decision::Approve, Some("a2"), Some("a2")),
            (all, Decision::Approve, Some("none"), Some("a1")),
            (all, Decision::Deny, Some("a1"), Some("r1")),
        ] {
            let outcome = outcome(&list(kinds), &answer(decision, option_id));
            assert_eq!(outcome["outcome"]["optionId"].as_str(), chosen, "{kinds:?} {decision:?}");
            let word = if chosen.is_some() { "selected" } else { "cancelled" };
            assert_eq!(outcome["outcome"]["outcome"], word);
        }
    }

    #[test]
    fn options_keep_their_order_and_unknown_kinds_are_left_out() {
        let ids: Vec<String> = list(&[("b", "reject_once"), ("x", "allow_sometimes"), ("a", "allow_once")])
            .into_iter()
            .map(|option| option.id)
            .collect();
        assert_eq!(ids, ["b", "a"]);
        assert_eq!(options(&Value::Null), []);
        assert_eq!(options(&json!([7, {"kind": "allow_once"}])), []);
    }

    #[test]
    fn every_question_gets_an_id_of_its_own_whatever_the_agent_calls_it() {
        let questions = Questions::default();
        let first = questions.keep(question(json!(0), Some(1))).unwrap();
        let second = questions.keep(question(json!(0), Some(2))).unwrap();
        assert_ne!(first, second);
        assert!(questions.take(&first).is_some());
        assert!(questions.take(&first).is_none());
        for unknown in ["", "p", "p99", "0", "x2"] {
            assert!(questions.take(unknown).is_none(), "{unknown}");
        }
        assert!(questions.take_turn(1).is_empty());
        assert_eq!(questions.take_request(&json!(0))[0].0, second);
        assert!(questions.take_all().is_empty());
        questions.keep(question(json!(0), None)).unwrap();
        questions.keep(question(json!(0), None)).unwrap();
        assert_eq!(questions.take_request(&json!(0)).len(), 2, "none is forgotten over the other");
    }

    #[test]
    fn no_more_than_a_limit_of_questions_waits() {
        let questions = Questions::default();
        for i in 0..WAITING_MAX {
            questions.keep(question(json!(i), None)).unwrap();
        }
        assert!(questions.keep(question(json!("one more"), None)).is_none());
        assert_eq!(questions.take_all().len(), WAITING_MAX);
        let large = |weight| Question { weight, ..question(json!(0), None) };
        assert!(questions.keep(large(QUESTION_MAX_BYTES + 1)).is_none());
        for _ in 0..WAITING_MAX_BYTES / QUESTION_MAX_BYTES {
            questions.keep(large(QUESTION_MAX_BYTES)).unwrap();
        }
        assert!(questions.keep(large(1)).is_none());
    }

    #[test]
    fn options_and_outcomes_are_the_schema_s() {
        use agent_client_protocol_schema::v1 as acp;
        let option = acp::PermissionOption::new("a1", "Allow", acp::PermissionOptionKind::AllowOnce);
        let options = options(&serde_json::to_value([option]).unwrap());
        assert_eq!(
            options,
            [ApprovalOption { id: "a1".into(), kind: OptionKind::AllowOnce, name: "Allow".into() }]
        );
        for decision in [Decision::Approve, Decision::Deny] {
            let ours = outcome(&options, &answer(decision, None));
            let theirs: acp::RequestPermissionResponse = serde_json::from_value(ours.clone()).unwrap();
            assert_eq!(serde_json::to_value(theirs).unwrap(), ours);
        }
    }
}
