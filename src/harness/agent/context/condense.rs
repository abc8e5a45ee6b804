//! What is left of an old tool result: how long it was, its digest, its beginning and end, and the addresses that it named.

use sha2::{Digest as _, Sha256};

use super::super::links::addresses;
use crate::domain::approval::hex;

/// Results of fewer characters stay as they are.
pub(super) const CONDENSED_FROM: usize = 320;
/// What is left takes so many bytes, unless its addresses need more.
const CONDENSED_BYTES: usize = 370;
/// The addresses that are kept take at most so many bytes.
const ADDRESSES_BYTES: usize = 1024;
const GAP: &str = "\n…\n";

/// The condensed form; `None` where that would not be shorter.
pub(super) fn condense(text: &str) -> Option<String> {
    if text.chars().count() < CONDENSED_FROM {
        return None;
    }
    let digest = hex(&Sha256::digest(text.as_bytes()));
    let head = format!("[condensed: {} bytes, sha256:{digest}]\n", text.len());
    let addresses = kept_addresses(text);
    let room = CONDENSED_BYTES.saturating_sub(head.len() + GAP.len() + addresses.len());
    let first = &text[..text.floor_char_boundary(room - room / 3)];
    let last = &text[text.ceil_char_boundary(text.len() - room / 3)..];
    let condensed = format!("{head}{first}{GAP}{last}{addresses}");
    (condensed.len() < text.len()).then_some(condensed)
}

fn kept_addresses(text: &str) -> String {
    let mut kept = String::new();
    for address in addresses(text) {
        let lead = if kept.is_empty() { "\n[it named: " } else { " " };
        if kept.len() + lead.len() + address.len() + 1 > ADDRESSES_BYTES {
            break;
        }
        kept.push_str(lead);
        kept.push_str(address);
    }
    if !kept.is_empty() {
        kept.push(']');
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_has_a_fixed_length_and_says_what_it_was() {
        let text: String = ('a'..='z').cycle().take(400).collect();
        let condensed = condense(&text).unwrap();
        assert_eq!(condensed.len(), 370);
        assert!(condensed.starts_with("[condensed: 400 bytes, sha256:"), "{condensed}");
        assert!(condensed.contains("]\nabcdef") && condensed.ends_with(&text[330..]), "{condensed}");
    }

    #[test]
    fn short_ones_and_those_that_would_not_get_shorter_stay() {
        assert_eq!(condense(&"x".repeat(319)), None);
        assert_eq!(condense(&"漢".repeat(319)), None, "characters, not bytes");
        assert_eq!(condense(&"x".repeat(370)), None);
        assert!(condense(&"x".repeat(371)).is_some());
        assert!(condense(&"漢".repeat(320)).unwrap().len() <= CONDENSED_BYTES);
    }

    #[test]
    fn the_addresses_that_it_named_are_kept() {
        let text = format!("uploaded to https://files/a.csv and https://files/b.csv\n{}", "x".repeat(2000));
        let condensed = condense(&text).unwrap();
        assert!(condensed.ends_with("[it named: https://files/a.csv https://files/b.csv]"), "{condensed}");
        let many: String = (0..200).map(|n| format!("https://files/{n} ")).collect();
        assert!(condense(&many).unwrap().len() < CONDENSED_BYTES + ADDRESSES_BYTES);
    }
}
