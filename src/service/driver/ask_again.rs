//! A turn whose process was lost while it asked, with a harness that cannot stand where that one stood: the new process is told what
//! was decided, in a prompt of ours, and asks again. The first call with the same tool and input gets the decision, once.

use serde_json::Value;

use super::Driver;
use super::ask::AnswerEnd;
use super::work::Origin;
use crate::domain::approval::{Approval, ApprovalStatus, Decision, input_digest};
use crate::domain::event::Output;
use crate::domain::turn::{Prompt, TurnEnd};
use crate::fault;
use crate::harness::{ApprovalRequest, TurnInput};
use crate::ids::TurnId;
use crate::service::ServiceResult;
use crate::store::ApprovalWrite;

impl Driver {
    /// Tells the new process what was decided. From here on the decisions are on their way: should this process die before it asks
    /// again, nobody knows what it did about them.
    pub(super) async fn tell_what_was_decided(&mut self, turn_id: TurnId) -> ServiceResult<()> {
        let promised = self
            .commit(|change, rows| {
                if rows.session.wish.is_some() {
                    return Ok(None);
                }
                let of_turn = |a: &&Approval| a.turn_id == turn_id && a.owed_answer().is_some();
                let dispatch = |a: &Approval| Approval { dispatched_at: Some(change.set.at), ..a.clone() };
                let promised: Vec<Approval> = rows.open.iter().filter(of_turn).map(dispatch).collect();
                let write = |a: &Approval| ApprovalWrite::Update(Box::new(a.clone()));
                change.approvals.extend(promised.iter().map(write));
                Ok((!promised.is_empty()).then_some(promised))
            })
            .await?;
        let Some(promised) = promised else {
            // It is not wanted any more; the rows say what is.
            self.stop_harness().await;
            self.work = None;
            return Ok(());
        };
        fault::point("continue.before");
        let now = self.now();
        let prompt = Prompt::Text(words(&promised));
        for approval in &promised {
            let label = format!("told the agent: {} was {}", approval.title, approval.status);
            self.put_out(Output::Activity { label, tool: Some(approval.tool.clone()), raw: None });
        }
        if let Some(work) = &mut self.work {
            work.origin = Origin::AskingAgain { promised };
            work.go_on(now);
        }
        let input = TurnInput { turn_id, prompt };
        match self.ask_harness(|harness| harness.prompt(input)).await {
            Ok(()) => {
                fault::point("continue.given");
                Ok(())
            }
            Err(failure) => {
                tracing::warn!(code = failure.code, "a harness did not take the word of a decision");
                self.stop_harness().await;
                self.end_turn(TurnEnd::Interrupted { delivery_known: false }).await
            }
        }
    }

    /// Whether the lost process had asked this already; then the question is that one.
    pub(super) async fn asked_again(&mut self, request: &ApprovalRequest) -> ServiceResult<bool> {
        let digest = input_digest(&request.tool, &request.input);
        if let Some(promise) = self.work.as_mut().and_then(|work| work.take_promise(&digest)) {
            self.give_answer(promise, request.native_id.clone()).await?;
            return Ok(true);
        }
        let asked = self.work.as_ref().map(|work| work.asked.clone()).unwrap_or_default();
        let still_open = self
            .commit(|change, rows| {
                // One that was decided just now gets its answer from here on like any other.
                let waits = |a: &Approval| a.status == ApprovalStatus::Pending || a.owed_answer().is_some();
                let same = |a: &&Approval| waits(a) && a.input_digest == digest && !asked.contains(&a.id);
                let Some(waiting) = rows.open.iter().find(same) else { return Ok(None) };
                let again = Approval { native_id: request.native_id.clone(), ..waiting.clone() };
                change.approvals.push(ApprovalWrite::Update(Box::new(again.clone())));
                Ok(Some(again))
            })
            .await?;
        let now = self.now();
        if let (Some(again), Some(work)) = (&still_open, &mut self.work) {
            work.asked.push(again.id.clone());
            if again.status == ApprovalStatus::Pending {
                work.pause(now);
            }
        }
        Ok(still_open.is_some())
    }

    /// The turn ends, and some decisions found no call: never silently.
    pub(super) async fn close_promises(&mut self) -> ServiceResult<()> {
        let promised = self.work.as_mut().map(|work| work.take_promises()).unwrap_or_default();
        for promise in promised {
            if promise.decision != Some(Decision::Approve) {
                // A refusal is carried out when nothing happens, and the agent was told of it.
                self.close_answer(&promise, AnswerEnd::Delivered).await?;
                continue;
            }
            let label = format!("the agent did not ask again for what was approved: {}", promise.title);
            self.put_out(Output::Activity { label, tool: Some(promise.tool.clone()), raw: None });
            self.close_answer(&promise, AnswerEnd::NeverAskedFor).await?;
        }
        Ok(())
    }
}

/// The continuation prompt. The mark in front tells the agent, and whoever reads its history, that no user wrote this.
fn words(decided: &[Approval]) -> String {
    let mut words = String::from(
        "[ostler] The process in which you worked was lost while it waited for permission. What you had asked permission for was \
         not run.",
    );
    for approval in decided {
        let (verdict, advice) = match approval.decision {
            Some(Decision::Approve) => {
                ("approved", "Make this very call again, with exactly this input; it is allowed once.")
            }
            _ => ("denied", "Do not run it, and do not try to reach the same by other means."),
        };
        words.push_str(&format!(
            "\n\nIt was {verdict}: {}\ntool: {}\ninput: {}\n{advice}",
            approval.title,
            approval.tool,
            shown(&approval.input)
        ));
        if let Some(reason) = &approval.reason {
            words.push_str(&format!("\nreason: {reason}"));
        }
    }
    words.push_str("\n\nThen go on with the task that you were given.");
    words
}

fn shown(input: &Value) -> String {
    match input {
        Value::Null => "none".to_owned(),
        input => input.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::clock::Timestamp;
    use crate::domain::turn::{Ordinal, TurnRef};
    use crate::ids::SessionId;

    fn decided(decision: Option<Decision>, reason: Option<&str>) -> Approval {
        let turn = TurnRef { ordinal: Ordinal(1), id: TurnId::mint() };
        let input = json!({"command": "make"});
        Approval {
            title: "Run: make".into(),
            decision,
            reason: reason.map(str::to_owned),
            ..Approval::asked(SessionId::mint(), &turn, "bash", input, Timestamp(0))
        }
    }

    #[test]
    fn the_agent_is_told_what_was_decided_about_which_call_and_why() {
        insta::assert_snapshot!(words(&[
            decided(Some(Decision::Approve), None),
            decided(Some(Decision::Deny), Some("not on a Friday")),
        ]), @r#"
        [ostler] The process in which you worked was lost while it waited for permission. What you had asked permission for was not run.

        It was approved: Run: make
        tool: bash
        input: {"command":"make"}
        Make this very call again, with exactly this input; it is allowed once.

        It was denied: Run: make
        tool: bash
        input: {"command":"make"}
        Do not run it, and do not try to reach the same by other means.
        reason: not on a Friday

        Then go on with the task that you were given.
        "#);
    }

    #[test]
    fn what_nobody_answered_in_time_is_told_as_denied() {
        assert!(words(&[decided(None, None)]).contains("It was denied: Run: make"));
    }
}
