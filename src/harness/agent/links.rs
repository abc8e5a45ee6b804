//! Links in a text, as Markdown has them and as they stand alone.

use std::collections::HashSet;

/// A link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link<'a> {
    /// Its words, where it has words of its own.
    pub label: Option<&'a str>,
    /// Where it leads.
    pub target: &'a str,
}

/// All links of a text, in order: `[label](target)`, `![label](target)`, `<https://…>`, and addresses as they are. The time that it
/// takes grows with the text, whatever is in it.
pub(super) fn links(text: &str) -> Vec<Link<'_>> {
    let mut found = Vec::new();
    let mut ends = Ends { text, from: 0, at: 0 };
    let mut at = 0;
    while let Some(ahead) = text[at..].find(['[', 'h', 's', 'f']) {
        at += ahead;
        let link = markdown(text, at, &mut ends).or_else(|| address(text, at));
        let Some((link, after)) = link else {
            // All four are of one byte.
            at += 1;
            continue;
        };
        found.push(link);
        at = after;
    }
    found
}

/// The addresses that a text names, each once, in order.
pub(super) fn addresses(text: &str) -> Vec<&str> {
    let mut known = HashSet::new();
    let targets = links(text).into_iter().map(|link| link.target);
    targets.filter(|target| address(target, 0).is_some() && known.insert(*target)).collect()
}

/// Where the next line or bracket ends: looked for once for all that begins before it.
struct Ends<'a> {
    text: &'a str,
    from: usize,
    at: usize,
}

impl Ends<'_> {
    /// The bracket that closes what begins there, unless its line ends before.
    fn after(&mut self, begin: usize) -> Option<usize> {
        if !(self.from..=self.at).contains(&begin) || begin == 0 {
            let ahead = self.text[begin..].find([')', '\n']);
            (self.from, self.at) = (begin, ahead.map_or(self.text.len(), |ahead| begin + ahead));
        }
        self.text[self.at..].starts_with(')').then_some(self.at)
    }
}

/// The link that begins there with a label, and where it ends.
fn markdown<'a>(text: &'a str, at: usize, ends: &mut Ends<'_>) -> Option<(Link<'a>, usize)> {
    let begin = at + 1;
    let label = text[at..].strip_prefix('[')?;
    let label = &label[..label.find(['[', ']'])?];
    text[begin + label.len()..].strip_prefix("](")?;
    let inside = begin + label.len() + 2;
    let end = ends.after(inside)?;
    // A title may follow the target.
    let target = text[inside..end].split_whitespace().next().unwrap_or_default();
    let target = target.trim_start_matches('<').trim_end_matches('>');
    (!target.is_empty()).then_some((Link { label: Some(label), target }, end + 1))
}

/// The address that begins there, and where it ends.
fn address(text: &str, at: usize) -> Option<(Link<'_>, usize)> {
    const SCHEMES: [&str; 4] = ["https://", "http://", "sandbox:", "file://"];
    let text = &text[at..];
    let scheme = SCHEMES.iter().find(|scheme| text.starts_with(**scheme))?;
    let is_part =
        |c: char| c.is_ascii_graphic() && !matches!(c, '<' | '>' | '"' | '`' | '\\' | '^' | '{' | '}' | '|');
    let end = text.find(|c| !is_part(c)).unwrap_or(text.len());
    let mut target = text[..end].trim_end_matches(['.', ',', ';', ':', '!', '?', '\'', '*', '_', ']']);
    // A closing bracket belongs to the address where its opening one does.
    let (opening, mut closing) = (target.matches('(').count(), target.matches(')').count());
    while target.ends_with(')') && closing > opening {
        target = target[..target.len() - 1].trim_end_matches(['.', ',']);
        closing -= 1;
    }
    (target.len() > scheme.len()).then(|| (Link { label: None, target }, at + target.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Vec<(Option<&str>, &str)> {
        links(text).into_iter().map(|link| (link.label, link.target)).collect()
    }

    #[test]
    fn links_are_found_in_all_their_forms() {
        assert_eq!(
            shown(
                "See [the docs](https://a/b \"title\"), ![chart](<x.png>), <https://c/d>, and https://e/f(g)."
            ),
            [
                (Some("the docs"), "https://a/b"),
                (Some("chart"), "x.png"),
                (None, "https://c/d"),
                (None, "https://e/f(g)"),
            ]
        );
        assert_eq!(
            shown("(http://x/y) [下载](u2) sandbox:/mnt/a.csv"),
            [(None, "http://x/y"), (Some("下载"), "u2"), (None, "sandbox:/mnt/a.csv"),]
        );
        assert_eq!(shown("https:// [a] (b) [](  ) the hostess fled"), []);
        assert_eq!(addresses("https://a https://b [x](https://a) [y](z)"), ["https://a", "https://b"]);
    }

    #[test]
    fn however_hostile_a_text_is_it_is_read_in_a_moment() {
        let begun = std::time::Instant::now();
        let distinct: String = (0..200_000).map(|number| format!("http://{number} ")).collect();
        for (text, count) in [
            ("[".repeat(4 << 20), 0),
            ("[a](http://a".repeat(300_000), 1),
            ("[a](".repeat(1 << 20), 0),
            (format!("http://a{}", ")".repeat(4 << 20)), 1),
            (format!("http://{}", ").,".repeat(1 << 20)), 0),
            (distinct, 200_000),
        ] {
            assert_eq!(addresses(&text).len(), count, "{}", &text[..20]);
        }
        // Each of them would take minutes if its time grew with the square.
        assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
    }
}
