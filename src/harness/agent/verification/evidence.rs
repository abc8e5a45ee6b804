//! Whether an answer says more than the tools have done: what it offers for download must have come out of a tool, and that it has sent,
//! saved or published something it can only say when some tool that does such things has succeeded.
//!
//! A matter of words: those of English and Chinese that agents use for it are known here. Code blocks are not read. An ordinary link
//! needs no evidence.

use serde::{Deserialize, Serialize};

use super::super::links::{Link, addresses, links};
use super::super::message::{Message, Outcome};

/// Links kept as evidence, in all.
const LINKS_MAX: usize = 2000;
/// So many bytes of them.
const LINKS_MAX_BYTES: usize = 256 << 10;

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
        let prose = without_code(answer);
        let has = |target: &str| {
            self.links.iter().any(|known| known == target)
                || messages.iter().any(|message| names(message, target))
        };
        let unfounded = links(&prose).into_iter().filter(|link| is_delivery(link) && !has(link.target));
        let mut complaints: Vec<String> = unfounded
            .map(|link| {
                format!("the link {} is offered as a delivery, and no tool result has named it", link.target)
            })
            .collect();
        if let Some(claim) = (!self.acted).then(|| claim(&prose)).flatten() {
            complaints.push(format!(
                "\"{claim}\" claims a delivery, and no tool that could have made it has succeeded"
            ));
        }
        complaints
    }
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

/// Words by which a link says that something is to be had behind it.
const DELIVERY_LABELS: [&str; 17] = [
    "download",
    "attachment",
    "attached",
    "your file",
    "the file",
    "exported",
    "generated",
    "result file",
    "save as",
    "下载",
    "下載",
    "附件",
    "导出",
    "導出",
    "文件",
    "生成",
    "报告",
];
const DELIVERY_TARGETS: [&str; 5] = ["sandbox:", "file:", "attachment:", "/download/", "/downloads/"];

fn is_delivery(link: &Link<'_>) -> bool {
    let label = link.label.unwrap_or_default().to_lowercase();
    let target = link.target.to_ascii_lowercase();
    DELIVERY_LABELS.iter().any(|word| label.contains(word))
        || DELIVERY_TARGETS.iter().any(|part| target.contains(part))
}

const DONE: [&str; 18] = [
    "sent",
    "emailed",
    "mailed",
    "uploaded",
    "published",
    "posted",
    "deployed",
    "delivered",
    "attached",
    "shared",
    "saved",
    "submitted",
    "scheduled",
    "booked",
    "deleted",
    "created",
    "updated",
    "written",
];
const DONE_CHINESE: [&str; 12] = [
    "已发送",
    "已发布",
    "已上传",
    "已保存",
    "已提交",
    "已删除",
    "已部署",
    "已创建",
    "已生成",
    "已更新",
    "已經發送",
    "已上傳",
];
/// What comes before such a word where it is a claim.
const CLAIMS: [&str; 12] = [
    "i have",
    "i've",
    "i",
    "has been",
    "have been",
    "was",
    "were",
    "is now",
    "are now",
    "successfully",
    "we have",
    "we've",
];
/// What takes the claim back.
const NOT_CLAIMS: [&str; 17] = [
    "not", "n't", "never", "no", "cannot", "unable", "if", "would", "could", "should", "will", "once",
    "when", "after", "before", "whether", "?",
];

/// The first sentence that claims a deed.
fn claim(prose: &str) -> Option<&str> {
    let sentences = prose.split_inclusive(['.', '!', '?', '\n', '。', '！', '？']);
    sentences.map(str::trim).find(|sentence| is_claim(sentence))
}

fn is_claim(sentence: &str) -> bool {
    if DONE_CHINESE.iter().any(|word| sentence.contains(word)) {
        return !["未", "没有", "无法", "如果", "？"].iter().any(|word| sentence.contains(word));
    }
    let lower = sentence.to_lowercase();
    let words: Vec<&str> =
        lower.split(|c: char| !(c.is_alphanumeric() || c == '\'')).filter(|w| !w.is_empty()).collect();
    let takes_back = |word: &&str| NOT_CLAIMS.contains(word) || word.ends_with("n't");
    if sentence.ends_with('?') || words.iter().any(takes_back) {
        return false;
    }
    words.iter().enumerate().any(|(at, word)| {
        let before = &words[at.saturating_sub(2)..at];
        DONE.contains(word)
            && (1..=before.len())
                .any(|last| CLAIMS.contains(&before[before.len() - last..].join(" ").as_str()))
    })
}

/// The text without what is in code blocks.
fn without_code(text: &str) -> String {
    let outside = text.split("```").enumerate().filter(|(place, _)| place % 2 == 0);
    outside.map(|(_, part)| part).collect::<Vec<_>>().join("\n")
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
        for claim in [
            "I have sent the email to Bob.",
            "Done! The file was uploaded to the bucket.",
            "I've successfully published the page.",
            "All changes have been deployed",
            "邮件已发送给张三。",
        ] {
            assert_eq!(complaints(&[], claim), 1, "{claim}");
            let looked = [("read", Outcome::Succeeded, "x"), ("execute", Outcome::Failed, "x")];
            assert_eq!(complaints(&looked, claim), 1, "to look is not to act: {claim}");
            assert_eq!(complaints(&[("other", Outcome::Succeeded, "x")], claim), 0, "{claim}");
        }
        for harmless in [
            "I have not sent the email.",
            "Shall I send it? Or was it sent?",
            "Once the file was uploaded, you will find it there.",
            "You could have sent it by hand.",
            "The letter describes goods that they sent in May.",
            "I read the file: it says hello.",
            "```\nI have sent the email.\n```",
            "邮件未能发送。",
        ] {
            assert_eq!(complaints(&[], harmless), 0, "{harmless}");
        }
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let many: String = (0..10_000).map(|n| format!("https://files/{n} ")).collect();
        let (evidence, _) = after(&[("other", Outcome::Succeeded, &many)]);
        assert_eq!(evidence.links.len(), LINKS_MAX);
        let long = format!("https://{}", "x".repeat(LINKS_MAX_BYTES));
        assert_eq!(after(&[("other", Outcome::Succeeded, &long)]).0.links.len(), 0);
    }
}
