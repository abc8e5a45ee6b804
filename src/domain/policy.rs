//! What an operator allows whatever a session or a person says: how far a session may trust its agent's labels, and which tools are
//! refused.

use std::collections::BTreeMap;

use super::approval::PermissionMode;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The furthest permission mode of any session.
    pub max_permission_mode: PermissionMode,
    /// The furthest of the sessions of one harness, by its name.
    pub harness_modes: BTreeMap<String, PermissionMode>,
    /// Tools that are refused in every org.
    pub denied_tools: DeniedTools,
    /// Tools that are refused in one org, by its id.
    pub org_denied_tools: BTreeMap<String, DeniedTools>,
}

/// Tools by name, by the beginning of a name, or by label. Names and labels are the agent's own words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeniedTools(Vec<ToolPattern>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum ToolPattern {
    Name(String),
    Prefix(String),
    Kind(String),
}

impl Policy {
    /// One that allows everything.
    pub fn open() -> Self {
        Self {
            max_permission_mode: PermissionMode::AllowAll,
            harness_modes: BTreeMap::new(),
            denied_tools: DeniedTools::default(),
            org_denied_tools: BTreeMap::new(),
        }
    }

    /// The furthest permission mode of a session of this harness.
    pub fn max_mode(&self, harness: &str) -> PermissionMode {
        let own = self.harness_modes.get(harness).copied().unwrap_or(PermissionMode::AllowAll);
        own.min(self.max_permission_mode)
    }

    /// The tools that are refused in this org.
    pub fn denied_in(&self, org: &str) -> DeniedTools {
        let own = self.org_denied_tools.get(org).into_iter().flat_map(|tools| &tools.0);
        DeniedTools(self.denied_tools.0.iter().chain(own).cloned().collect())
    }
}

impl DeniedTools {
    /// Reads a list: `NAME`, `PREFIX*`, or `kind:LABEL` with one of the labels of an approval's kind.
    ///
    /// # Errors
    /// The entry that is none of these.
    pub fn parse<'a>(entries: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        entries.into_iter().map(ToolPattern::parse).collect::<Result<_, _>>().map(Self)
    }

    /// Whether a tool of this name and label is refused.
    pub fn denies(&self, tool: &str, kind: &str) -> bool {
        self.0.iter().any(|pattern| match pattern {
            ToolPattern::Name(name) => tool == name,
            ToolPattern::Prefix(prefix) => tool.starts_with(prefix),
            ToolPattern::Kind(label) => kind == label,
        })
    }
}

impl ToolPattern {
    fn parse(entry: &str) -> Result<Self, String> {
        let complaint =
            || format!("{entry:?} is neither a tool's name, a beginning followed by *, nor kind:LABEL");
        let (body, pattern): (&str, fn(String) -> Self) = match entry.strip_prefix("kind:") {
            Some(label) => (label, Self::Kind),
            None => match entry.strip_suffix('*') {
                Some(prefix) => (prefix, Self::Prefix),
                None => (entry, Self::Name),
            },
        };
        // An empty beginning would refuse everything: who wants that names no harness.
        if body.is_empty() || body.contains('*') || body.trim() != body {
            return Err(complaint());
        }
        Ok(pattern(body.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_goes_as_far_as_its_harness_and_the_service_both_allow() {
        let mut policy = Policy::open();
        assert_eq!(policy.max_mode("codex"), PermissionMode::AllowAll);
        policy.harness_modes.insert("codex".into(), PermissionMode::AllowReads);
        assert_eq!(policy.max_mode("codex"), PermissionMode::AllowReads);
        assert_eq!(policy.max_mode("demo"), PermissionMode::AllowAll);
        policy.max_permission_mode = PermissionMode::Ask;
        assert_eq!(policy.max_mode("codex"), PermissionMode::Ask);
    }

    #[test]
    fn tools_are_refused_by_name_beginning_or_label_in_all_orgs_or_one() {
        let tools = |entries: &[&str]| DeniedTools::parse(entries.iter().copied()).unwrap();
        let mut policy = Policy { denied_tools: tools(&["WebFetch"]), ..Policy::open() };
        policy.org_denied_tools.insert("acme".into(), tools(&["mcp__*", "kind:delete"]));
        let acme = policy.denied_in("acme");
        for (tool, kind, denied) in [
            ("WebFetch", "fetch", true),
            ("WebFetcher", "fetch", false),
            ("webfetch", "fetch", false),
            ("mcp__mail__send", "other", true),
            ("rm", "delete", true),
            ("rm", "execute", false),
        ] {
            assert_eq!(acme.denies(tool, kind), denied, "{tool} {kind}");
        }
        let other = policy.denied_in("other");
        assert!(other.denies("WebFetch", "fetch") && !other.denies("mcp__mail__send", "other"));
    }

    #[test]
    fn an_entry_that_is_no_pattern_is_refused() {
        for entry in ["", "*", "a*b", "kind:", "**", " bash"] {
            let complaint = DeniedTools::parse([entry]).unwrap_err();
            assert!(complaint.contains("kind:LABEL"), "{complaint}");
        }
    }
}
