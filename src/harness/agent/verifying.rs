//! Whether the last answer stands.

use serde_json::json;

use super::message::Message;
use super::runtime::Agent;
use super::settings::VerificationMode;
use super::state::Stage;
use crate::domain::event::{Output, RewindReason};
use crate::domain::turn::Failure;
use crate::harness::task::{End, Heed, Task};

impl Task<Agent> {
    /// Holds the last answer against what was done; false when the model is to answer once more.
    pub(super) async fn verify(&mut self) -> Result<bool, End> {
        let issues = self.issues().await?;
        if issues.is_empty() {
            return Ok(true);
        }
        let most = self.runtime.settings.verification.max_repair_attempts;
        let issues = issues.join("; ");
        let turn = self.runtime.turn()?;
        if turn.repairs >= most {
            let words = format!("the answer does not stand after {most} repairs: {issues}");
            return Err(End::failed(Failure::new("verification_failed", words)));
        }
        turn.repairs += 1;
        turn.said = turn.said.saturating_sub(turn.answer().chars().count() as u64);
        let length = turn.said;
        let content = format!(
            "[ostler] This answer does not stand: {issues}. Do what is missing or leave out what is not so, and give the whole answer again."
        );
        turn.messages.push(Message::Note { content });
        turn.stage = Stage::Model;
        let label = format!("the answer does not stand: {issues}");
        self.put(Output::Activity { label, tool: None, raw: None }).await?;
        self.put(Output::TextRewound { length, reason: RewindReason::Repaired }).await?;
        self.note_durably().await?;
        Ok(false)
    }

    /// What is wrong with the answer.
    async fn issues(&mut self) -> Result<Vec<String>, End> {
        let mode = self.runtime.settings.verification.mode;
        if mode == VerificationMode::Off {
            return Ok(Vec::new());
        }
        let turn = self.runtime.turn()?;
        let mut issues = turn.evidence.complaints(turn.answer(), &turn.messages);
        if mode == VerificationMode::Project
            && let Some(project) = self.runtime.project.clone()
        {
            let left = self.runtime.time_left()?;
            let turn = self.runtime.turn()?;
            let transcript = json!({
                "version": 1,
                "turn_id": turn.turn_id,
                "answer": turn.answer(),
                "messages": turn.messages,
            });
            let checked = tokio::time::timeout(left, project.check(&transcript));
            let checked = self.wait(checked, Heed::Cancel).await?;
            let checked = checked.map_err(|_| self.runtime.out_of_time())?;
            issues.extend(checked.map_err(End::failed)?);
        }
        Ok(issues)
    }
}
