//! Which words of an answer offer something for download, or claim that something was sent, saved or published.
//!
//! A matter of words: those of English and Chinese that agents use for it are known here. It errs on the side of the answer: what the
//! agent wrote for somebody else to say (quotations, code, drafts of letters) is not read, a link to where others offer something is
//! an ordinary one, and only what an agent says of itself, or of what is the reader's, is a claim.

use super::super::links::Link;

/// What makes a link an offer.
const OFFERS: [&str; 9] =
    ["download", "attachment", "attached", "下载", "下載", "附件", "导出", "導出", "exported"];
/// The other words of such a link's label, where it offers no more than what the agent has made.
const GENERIC: [&str; 26] = [
    "the", "your", "a", "an", "it", "here", "this", "link", "file", "files", "report", "document", "result",
    "results", "now", "to", "click", "as", "pdf", "csv", "zip", "html", "json", "of", "export", "data",
];
/// What leads to a place that only the agent's own side has.
const OWN_SCHEMES: [&str; 3] = ["sandbox:", "file:", "attachment:"];

/// Whether a link offers something that the agent has made.
pub(super) fn is_delivery(link: &Link<'_>) -> bool {
    let target = link.target.to_ascii_lowercase();
    if OWN_SCHEMES.iter().any(|scheme| target.starts_with(scheme)) {
        return true;
    }
    let label = link.label.unwrap_or_default().to_lowercase();
    let is_offer = |word: &str| OFFERS.iter().any(|offer| word.starts_with(offer));
    let is_generic = |word: &str| {
        let names_a_file = word
            .rsplit_once('.')
            .is_some_and(|(name, ending)| !name.is_empty() && (1..=5).contains(&ending.len()));
        GENERIC.contains(&word) || names_a_file || !word.is_ascii()
    };
    let words = || label.split_whitespace().map(|word| word.trim_matches(|c: char| !c.is_alphanumeric()));
    OFFERS.iter().any(|offer| label.contains(offer))
        && words().filter(|word| !word.is_empty()).all(|word| is_offer(word) || is_generic(word))
}

/// Deeds that words alone cannot do.
const DEEDS: [&str; 12] = [
    "sent",
    "emailed",
    "mailed",
    "uploaded",
    "published",
    "posted",
    "deployed",
    "delivered",
    "attached",
    "submitted",
    "scheduled",
    "booked",
];
const DEEDS_CHINESE: [&str; 8] =
    ["已发送", "已发布", "已上传", "已提交", "已部署", "已保存到", "已經發送", "已上傳"];
/// What stands before such a word where the agent says it of itself.
const OWN: [&str; 6] = ["i have", "i've", "i", "we have", "we've", "successfully"];
/// What stands before it where it is said of something; a claim where that is the reader's.
const OF_SOMETHING: [&str; 4] = ["has been", "have been", "was", "were"];
/// What takes a claim back.
const NOT_CLAIMS: [&str; 16] = [
    "not", "never", "no", "cannot", "unable", "if", "would", "could", "should", "will", "once", "when",
    "after", "before", "whether", "as",
];

/// The first sentence that claims a deed.
pub(super) fn claim(prose: &str) -> Option<&str> {
    let sentences = prose.split_inclusive(['.', '!', '?', '\n', '。', '！', '？']);
    sentences.map(str::trim).find(|sentence| is_claim(sentence))
}

fn is_claim(sentence: &str) -> bool {
    if DEEDS_CHINESE.iter().any(|word| sentence.contains(word)) {
        return !["未", "没有", "无法", "如果", "？"].iter().any(|word| sentence.contains(word));
    }
    let lower = sentence.to_lowercase();
    let words: Vec<&str> =
        lower.split(|c: char| !(c.is_alphanumeric() || c == '\'')).filter(|word| !word.is_empty()).collect();
    let takes_back = |word: &&str| NOT_CLAIMS.contains(word) || word.ends_with("n't");
    if sentence.ends_with('?') || words.iter().any(takes_back) {
        return false;
    }
    let is_the_reader_s = words.iter().any(|word| matches!(*word, "your" | "you"));
    words.iter().enumerate().any(|(at, word)| {
        let before = &words[at.saturating_sub(2)..at];
        let follows = |lead: &[&str]| {
            (1..=before.len()).any(|last| lead.contains(&before[before.len() - last..].join(" ").as_str()))
        };
        DEEDS.contains(word) && (follows(&OWN) || (is_the_reader_s && follows(&OF_SOMETHING)))
    })
}

/// What begins a draft of a letter: from there on it is for somebody else to say.
const SALUTATIONS: [&str; 7] = ["subject:", "dear ", "hi ", "hello ", "to whom ", "尊敬的", "主题："];

/// The agent's own words: without code, quotations and drafts.
pub(super) fn prose(text: &str) -> String {
    let outside = text.split("```").enumerate().filter(|(place, _)| place % 2 == 0).map(|(_, part)| part);
    let mut own = String::new();
    for (place, line) in outside.flat_map(str::lines).enumerate() {
        let start = line.trim_start().trim_start_matches(['*', '#', ' ']).to_lowercase();
        // A greeting at the very beginning is the agent's own.
        if place > 0 && SALUTATIONS.iter().any(|salutation| start.starts_with(salutation)) {
            break;
        }
        if !start.starts_with('>') {
            push_unquoted(&mut own, line);
            own.push('\n');
        }
    }
    own
}

fn push_unquoted(own: &mut String, line: &str) {
    let mut inside = false;
    for c in line.chars() {
        match c {
            '"' => inside = !inside,
            '“' | '「' => inside = true,
            '”' | '」' => inside = false,
            _ if !inside => own.push(c),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::links::links;
    use super::*;

    fn claims(text: &str) -> bool {
        claim(&prose(text)).is_some()
    }

    fn offers(text: &str) -> bool {
        links(text).iter().any(is_delivery)
    }

    #[test]
    fn what_an_agent_says_of_its_own_deeds_is_a_claim() {
        for text in [
            "I have sent the email to Bob.",
            "I've successfully published the page.",
            "Your file has been uploaded to the bucket.",
            "Done!\nSuccessfully deployed the service.",
            "邮件已发送给张三。",
        ] {
            assert!(claims(text), "{text}");
        }
    }

    #[test]
    fn what_is_no_deed_or_not_the_agent_s_own_word_is_none() {
        for text in [
            "I have not sent the email.",
            "Shall I send it? Or was it sent?",
            "Once the file was uploaded, you will find it there.",
            "You could have sent it by hand.",
            "The letter describes goods that they sent in May.",
            "Python was created by Guido van Rossum and was published in 1991.",
            "I have written a poem for you, and I created a title.",
            "I read the file: it says hello.",
            "```\nI have sent the email.\n```",
            "She said: \"I have sent the email.\"",
            "> I have sent the email.",
            "Here is a draft:\n\nDear Bob,\n\nI have attached the report.\n",
            "Here it is:\n**Subject:** News\nI have attached the report.",
            "邮件未能发送。",
        ] {
            assert!(!claims(text), "{text}");
        }
    }

    #[test]
    fn a_link_offers_what_the_agent_has_made_or_is_an_ordinary_one() {
        for text in [
            "[download](u2)",
            "[Download the report](https://files/u2)",
            "[Download report.csv](https://files/u2)",
            "![chart](sandbox:/mnt/chart.png)",
            "点击[下载报告](https://files/u2)",
        ] {
            assert!(offers(text), "{text}");
        }
        for text in [
            "[docs](https://docs/x)",
            "[Download Python](https://www.python.org/downloads/)",
            "[the file format](https://docs/format)",
            "See https://www.python.org/downloads/.",
        ] {
            assert!(!offers(text), "{text}");
        }
    }
}
