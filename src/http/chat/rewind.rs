//! Words that were sent cannot be taken back. Those that are void, and said anew, are not sent again while they are the same.

/// So many bytes of what was sent are kept, to compare what is said anew with; a rewind goes back a model's answer or two.
const KEPT: usize = 1 << 20;

/// What was sent of an answer, and how much of it stands.
#[derive(Debug, Default)]
pub struct Sent {
    /// The end of what was sent.
    kept: String,
    /// Characters that were sent before that.
    dropped: u64,
    /// How many bytes of `kept` stand.
    stands: usize,
}

/// What is said is not what was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Differs;

impl Sent {
    /// Whether nothing was sent.
    pub fn is_empty(&self) -> bool {
        self.dropped == 0 && self.kept.is_empty()
    }

    /// Takes the next words. The part of them that is to be sent.
    ///
    /// # Errors
    /// [`Differs`] from what was sent in their place before.
    pub fn take<'a>(&mut self, words: &'a str) -> Result<&'a str, Differs> {
        let again = &self.kept[self.stands..];
        if again.starts_with(words) {
            self.stands += words.len();
            return Ok("");
        }
        let new = words.strip_prefix(again).ok_or(Differs)?;
        self.kept.push_str(new);
        if self.kept.len() > 2 * KEPT {
            let cut = self.kept.ceil_char_boundary(self.kept.len() - KEPT);
            self.dropped += chars(&self.kept[..cut]);
            self.kept.drain(..cut);
        }
        self.stands = self.kept.len();
        Ok(new)
    }

    /// Of what was said, the first so many characters stand.
    ///
    /// # Errors
    /// [`Differs`] where they end before what is kept: what follows cannot be compared.
    pub fn rewind(&mut self, length: u64) -> Result<(), Differs> {
        let length = length.checked_sub(self.dropped).ok_or(Differs)?;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if let Some((end, _)) = self.kept[..self.stands].char_indices().nth(length) {
            self.stands = end;
        }
        Ok(())
    }

    /// Nothing more is said.
    ///
    /// # Errors
    /// [`Differs`] when more was sent than stands.
    pub fn end(&self) -> Result<(), Differs> {
        if self.stands == self.kept.len() { Ok(()) } else { Err(Differs) }
    }
}

fn chars(text: &str) -> u64 {
    u64::try_from(text.chars().count()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(words: &[&str]) -> Sent {
        let mut sent = Sent::default();
        for words in words {
            assert_eq!(sent.take(words), Ok(*words));
        }
        sent
    }

    #[test]
    fn words_that_were_never_rewound_are_sent_as_they_come() {
        let sent = sent(&["one ", "two"]);
        assert_eq!((sent.end(), sent.is_empty()), (Ok(()), false));
        assert!(Sent::default().is_empty());
        assert_eq!(Sent::default().end(), Ok(()));
    }

    #[test]
    fn words_that_are_said_anew_are_sent_once_however_they_are_cut() {
        let mut sent = sent(&["Grüße ", "an alle"]);
        sent.rewind(3).unwrap();
        assert_eq!(sent.end(), Err(Differs), "what was sent does not stand");
        assert_eq!(sent.take("ß"), Ok(""));
        assert_eq!(sent.take("e an"), Ok(""));
        assert_eq!(sent.take(" alle, und mehr"), Ok(", und mehr"));
        assert_eq!(sent.end(), Ok(()));
    }

    #[test]
    fn a_second_rewind_counts_what_stands_and_not_what_was_sent() {
        let mut sent = sent(&["abcdef"]);
        sent.rewind(2).unwrap();
        assert_eq!(sent.take("cd"), Ok(""));
        // Beyond what stands: nothing is void.
        sent.rewind(9).unwrap();
        assert_eq!(sent.take("efg"), Ok("g"));
        sent.rewind(0).unwrap();
        assert_eq!(sent.take("abcdefgh"), Ok("h"));
    }

    #[test]
    fn other_words_in_the_place_of_those_that_were_sent_differ() {
        let mut other = sent(&["a blue house"]);
        other.rewind(2).unwrap();
        assert_eq!(other.take("red"), Err(Differs));
        let mut half = sent(&["a blue house"]);
        half.rewind(2).unwrap();
        assert_eq!(half.take("blue hat"), Err(Differs));
        let mut shorter = sent(&["a blue house"]);
        shorter.rewind(2).unwrap();
        assert_eq!((shorter.take("blue"), shorter.end()), (Ok(""), Err(Differs)));
    }

    #[test]
    fn what_is_kept_is_bounded_and_a_rewind_beyond_it_differs() {
        let mut long = Sent::default();
        let words = "é".repeat(KEPT / 2);
        for _ in 0..5 {
            assert_eq!(long.take(&words), Ok(words.as_str()));
        }
        assert!(long.kept.len() <= 2 * KEPT && long.dropped > 0);
        assert_eq!(long.rewind(10), Err(Differs));
        let said = 5 * chars(&words);
        long.rewind(said - 1).unwrap();
        assert_eq!(long.take("éa"), Ok("a"));
    }
}
