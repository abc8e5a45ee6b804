//! Whether an answer says more than the tools have done: what it offers for download must have come out of a tool, and that it has sent,
//! saved or published something it can only say when some tool that does such things has succeeded.
//!
//! Which words are such an offer or claim, [`super::claims`] says. An ordinary link needs no evidence.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::super::links::{addresses, links};
use super::super::message::{Message, Outcome};
use super::claims::{claim, is_delivery, prose};

/// Links kept as evidence, in all.
const LINKS_MAX: usize = 2000;
/// So many bytes of them.
const LINKS_MAX_BYTES: usize = 256 << 10;
/// So many links of an answer may be deliveries.
const DELIVERIES_MAX: usize = 200;
/// So many complaints are told; the others follow when these are seen to.
const COMPLAINTS_MAX: usize = 10;
/// How much of an answer is quoted, in characters.
const QUOTED_MAX: usize = 300;

/// What the tools of a turn have shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) struct Evidence {
    /// The addresses that successful results have named: they outlast the results themselves, which may be condensed.
    links: Vec<String>,
    /// Whether a tool that does more than look has succeeded.
    acted: bool,
}

impl Evidence {
    /// Takes what came of a call to a tool that goes by this label.
    pub fn take(&mut self, kind: &str, outcome: Outcome, content: &str) {
        if outcome != Outcome::Succeeded {
            return;
        }
        self.acted |= !matches!(kind, "read" | "search" | "think" | "fetch");
        let mut bytes: usize = self.links.iter().map(String::len).sum();
        for target in addresses(content) {
            bytes += target.len();
            if self.links.len() >= LINKS_MAX || bytes > LINKS_MAX_BYTES {
                return;
            }
            if !self.links.iter().any(|known| known == target) {
                self.links.push(target.to_owned());
            }
        }
    }

    /// What an answer claims without evidence, in words for the model; none where it stands. `messages` are those of its turn.
    pub fn complaints(&self, answer: &str, messages: &[Message]) -> Vec<String> {
        let prose = prose(answer);
        let has = |target: &str| {
            self.links.iter().any(|known| known == target)
                || messages.iter().any(|message| names(message, target))
        };
        let mut seen = HashSet::new();
        let deliveries =
            links(&prose).into_iter().filter(|link| is_delivery(link) && seen.insert(link.target));
        let deliveries: Vec<&str> = deliveries.map(|link| link.target).collect();
        if deliveries.len() > DELIVERIES_MAX {
            let count = deliveries.len();
            return vec![format!(
                "{count} links are offered as deliveries, and an answer may have {DELIVERIES_MAX}"
            )];
        }
        let unfounded = deliveries.into_iter().filter(|target| !has(target)).take(COMPLAINTS_MAX);
        let mut complaints: Vec<String> = unfounded
            .map(|target| {
                let target = quoted(target);
                format!("the link {target} is offered as a delivery, and no tool result has named it")
            })
            .collect();
        if let Some(claim) = (!self.acted).then(|| claim(&prose)).flatten() {
            let claim = quoted(claim);
            complaints.push(format!(
                "\"{claim}\" claims a delivery, and no tool that could have made it has succeeded"
            ));
        }
        complaints
    }
}

/// The beginning of what an answer says.
fn quoted(text: &str) -> String {
    let mut chars = text.chars();
    let mut kept: String = chars.by_ref().take(QUOTED_MAX).collect();
    if chars.next().is_some() {
        kept.push('…');
    }
    kept
}

/// Whether a successful result has this target as a word of its own: tools name what is no address, such as a file, in any form.
fn names(message: &Message, target: &str) -> bool {
    let Message::Tool { content, outcome: Outcome::Succeeded, .. } = message else { return false };
    let is_edge = |c: char| {
        c.is_whitespace()
            || matches!(c, '"' | '\'' | ',' | ';' | ':' | '(' | ')' | '[' | ']' | '{' | '}' | '<' | '>' | '`')
    };
    content.match_indices(target).any(|(at, _)| {
        let (before, after) = (&content[..at], &content[at + target.len()..]);
        before.chars().next_back().is_none_or(is_edge)
            && after.trim_start_matches('.').chars().next().is_none_or(is_edge)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A turn of these calls, and what it shows.
    fn after(calls: &[(&str, Outcome, &str)]) -> (Evidence, Vec<Message>) {
        let mut evidence = Evidence::default();
        let mut messages = Vec::new();
        for (kind, outcome, content) in calls {
            evidence.take(kind, *outcome, content);
            let (tool_call_id, content) = (String::new(), (*content).to_owned());
            messages.push(Message::Tool { tool_call_id, content, outcome: *outcome, condensed: false });
        }
        (evidence, messages)
    }

    fn complaints(calls: &[(&str, Outcome, &str)], answer: &str) -> usize {
        let (evidence, messages) = after(calls);
        evidence.complaints(answer, &messages).len()
    }

    #[test]
    fn row_94_a_download_must_have_come_out_of_a_tool() {
        assert_eq!(complaints(&[], "Here it is: [download](u2)"), 1);
        assert_eq!(complaints(&[], "[Download the report](https://files/u2)"), 1);
        assert_eq!(complaints(&[], "![chart](sandbox:/mnt/chart.png)"), 1);
        assert_eq!(complaints(&[], "请点击[下载](https://files/u2)"), 1);
        assert_eq!(complaints(&[], "As [docs](https://docs/x) say, and https://docs/y too."), 0);

        for result in ["u2", "uploaded: u2.", r#"{"url":"u2"}"#, "[the file](u2)"] {
            let uploaded = [("other", Outcome::Succeeded, result)];
            assert_eq!(complaints(&uploaded, "Here it is: [download](u2)"), 0, "{result}");
            assert_eq!(complaints(&uploaded, "[download](u3)"), 1, "another one");
            assert_eq!(complaints(&uploaded, "[download](u)"), 1, "a part of it");
        }
        let failed = [("other", Outcome::Failed, "u2"), ("other", Outcome::Uncertain, "u2")];
        assert_eq!(complaints(&failed, "[download](u2)"), 1);
    }

    #[test]
    fn an_address_is_evidence_also_when_its_result_is_condensed() {
        let (evidence, _) =
            after(&[("other", Outcome::Succeeded, "stored at https://files/u2?sig=1 for a day")]);
        assert!(evidence.complaints("[download](https://files/u2?sig=1)", &[]).is_empty());
        assert_eq!(evidence.complaints("[download](https://files/u2)", &[]).len(), 1);
    }

    #[test]
    fn a_deed_is_claimed_only_when_a_tool_that_acts_has_succeeded() {
        let claim = "I have sent the email to Bob.";
        assert_eq!(complaints(&[], claim), 1);
        let looked = [("read", Outcome::Succeeded, "x"), ("execute", Outcome::Failed, "x")];
        assert_eq!(complaints(&looked, claim), 1, "to look is not to act");
        assert_eq!(complaints(&[("other", Outcome::Succeeded, "x")], claim), 0);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let many: String = (0..10_000).map(|n| format!("https://files/{n} ")).collect();
        let (evidence, _) = after(&[("other", Outcome::Succeeded, &many)]);
        assert_eq!(evidence.links.len(), LINKS_MAX);
        let long = format!("https://{}", "x".repeat(LINKS_MAX_BYTES));
        assert_eq!(after(&[("other", Outcome::Succeeded, &long)]).0.links.len(), 0);
    }

    #[test]
    fn what_an_answer_says_is_looked_at_within_bounds() {
        let begun = std::time::Instant::now();
        let (evidence, mut messages) = after(&[]);
        let content = "x".repeat(1 << 20);
        let tool_call_id = String::new();
        messages.push(Message::Tool { tool_call_id, content, outcome: Outcome::Succeeded, condensed: false });
        let many: String = (0..200_000).map(|number| format!("sandbox:{number} ")).collect();
        let told = evidence.complaints(&many, &messages);
        assert_eq!(told, ["200000 links are offered as deliveries, and an answer may have 200"]);
        let some: String = (0..200).map(|number| format!("sandbox:{number} ")).collect();
        assert_eq!(evidence.complaints(&some, &messages).len(), COMPLAINTS_MAX);
        assert_eq!(evidence.complaints(&"sandbox:1 ".repeat(100_000), &messages).len(), 1, "each once");
        let long =
            format!("[download](sandbox:{}) I have sent{}", "x".repeat(1 << 20), " it".repeat(1 << 18));
        let told = evidence.complaints(&long, &messages);
        assert_eq!((told.len(), told.iter().any(|told| told.len() > 500)), (2, false));
        assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
    }
}
