//! Links in a text, as Markdown has them and as they stand alone.

/// A link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link<'a> {
    /// Its words, where it has words of its own.
    pub label: Option<&'a str>,
    /// Where it leads.
    pub target: &'a str,
}

/// All links of a text, in order: `[label](target)`, `![label](target)`, `<https://…>`, and addresses as they are.
pub(super) fn links(text: &str) -> Vec<Link<'_>> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(['[', 'h', 's', 'f']) {
        rest = &rest[at..];
        if let Some((link, after)) = markdown(rest) {
            found.push(link);
            rest = after;
        } else if let Some((target, after)) = address(rest) {
            found.push(Link { label: None, target });
            rest = after;
        } else {
            let mut chars = rest.chars();
            chars.next();
            rest = chars.as_str();
        }
    }
    found
}

/// The addresses that a text names, each once, in order.
pub(super) fn addresses(text: &str) -> Vec<&str> {
    let mut found: Vec<&str> = Vec::new();
    for link in links(text) {
        if address(link.target).is_some() && !found.contains(&link.target) {
            found.push(link.target);
        }
    }
    found
}

fn markdown(text: &str) -> Option<(Link<'_>, &str)> {
    let (label, rest) = text.strip_prefix('[')?.split_once(']')?;
    let rest = rest.strip_prefix('(')?;
    let (inside, after) = rest.split_once(')')?;
    if label.contains('[') || inside.contains('\n') {
        return None;
    }
    // A title may follow the target.
    let target = inside.split_whitespace().next().unwrap_or_default();
    let target = target.trim_start_matches('<').trim_end_matches('>');
    (!target.is_empty()).then_some((Link { label: Some(label), target }, after))
}

fn address(text: &str) -> Option<(&str, &str)> {
    const SCHEMES: [&str; 4] = ["https://", "http://", "sandbox:", "file://"];
    let scheme = SCHEMES.iter().find(|scheme| text.starts_with(**scheme))?;
    let is_part =
        |c: char| c.is_ascii_graphic() && !matches!(c, '<' | '>' | '"' | '`' | '\\' | '^' | '{' | '}' | '|');
    let end = text.find(|c| !is_part(c)).unwrap_or(text.len());
    let mut target = text[..end].trim_end_matches(['.', ',', ';', ':', '!', '?', '\'', '*', '_', ']']);
    // A closing bracket belongs to the address where its opening one does.
    while target.ends_with(')') && target.matches(')').count() > target.matches('(').count() {
        target = target[..target.len() - 1].trim_end_matches(['.', ',']);
    }
    (target.len() > scheme.len()).then(|| (target, &text[target.len()..]))
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
}
