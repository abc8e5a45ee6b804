use serde_json::json;

use super::*;

struct Shop {
    defaults: Settings,
    caps: Caps,
    project: bool,
}

impl Offer for Shop {
    fn defaults(&self) -> &Settings {
        &self.defaults
    }
    fn caps(&self) -> &Caps {
        &self.caps
    }
    fn has_model(&self, name: &str) -> bool {
        self.model_names().contains(&name)
    }
    fn model_names(&self) -> Vec<&str> {
        vec!["main", "small"]
    }
    fn has_tool(&self, name: &str, own: &BTreeMap<String, SessionServer>) -> bool {
        matches!(name, "read_file" | "write_file")
            || own.keys().any(|server| name.starts_with(&format!("mcp__{server}__")))
    }
    fn server_complaint(&self, _: &str, url: &str) -> Option<String> {
        (!url.starts_with("https://ok/")).then(|| "the operator does not allow it".to_owned())
    }
    fn has_project_check(&self) -> bool {
        self.project
    }
}

fn shop() -> Shop {
    Shop { defaults: Settings::built_in("main"), caps: Caps::default(), project: false }
}

fn complaints(given: &Value) -> Vec<String> {
    Settings::complete(given, &shop()).expect_err(&format!("accepted: {given}"))
}

fn accepted(given: &Value) -> Settings {
    Settings::stored(&Settings::complete(given, &shop()).unwrap(), &shop()).unwrap()
}

#[test]
fn row_87_what_is_wrong_is_refused() {
    for (given, words) in [
        (json!({}), "version: required, and must be 1"),
        (json!({"version": 2}), "version: must be 1"),
        (json!({"version": "1"}), "version: must be 1"),
        (json!({"version": 1, "colour": "red"}), "colour: unknown"),
        (json!({"version": 1, "memory": {"size": 1}}), "memory.size: unknown"),
        (
            json!({"version": 1, "memory": {"recent_turns": 4}}),
            "memory.recent_turns: must be a whole number from 0 to 3",
        ),
        (json!({"version": 1, "memory": 3}), "memory: must be an object"),
        (
            json!({"version": 1, "context": {"compact_at_ratio": 0.5, "compact_to_ratio": 0.5}}),
            "context.compact_to_ratio: must be below",
        ),
        (
            json!({"version": 1, "context": {"compact_to_ratio": 0.9}}),
            "context.compact_to_ratio: must be below",
        ),
        (
            json!({"version": 1, "context": {"input_budget_ratio": 0}}),
            "context.input_budget_ratio: must be a number",
        ),
        (
            json!({"version": 1, "context": {"input_budget_ratio": 1.01}}),
            "context.input_budget_ratio: must be",
        ),
        (json!({"version": 1, "context": {"compaction_enabled": "yes"}}), "must be true or false"),
        (
            json!({"version": 1, "execution": {"max_model_calls": 0}}),
            "execution.max_model_calls: must be a whole number from 1",
        ),
        (json!({"version": 1, "execution": {"max_model_calls": "30"}}), "execution.max_model_calls: must be"),
        (json!({"version": 1, "execution": {"max_tool_calls": 1.5}}), "execution.max_tool_calls: must be"),
        (
            json!({"version": 1, "execution": {"max_duration_seconds": 86_401}}),
            "execution.max_duration_seconds: must be",
        ),
        (
            json!({"version": 1, "tool_policy": {"disabled": ["read_file"], "require_approval": ["read_file"]}}),
            "tool_policy.require_approval: \"read_file\" is disabled too",
        ),
        (json!({"version": 1, "tool_policy": {"disabled": ["read_file", "read_file"]}}), "is there twice"),
        (json!({"version": 1, "tool_policy": {"disabled": [" read_file"]}}), "has space around it"),
        (json!({"version": 1, "tool_policy": {"disabled": [" "]}}), "a name is blank"),
        (json!({"version": 1, "tool_policy": {"disabled": "read_file"}}), "must be a list of names"),
        (json!({"version": 1, "tool_policy": {"disabled": [1]}}), "must be a list of names"),
        (json!({"version": 1, "tool_policy": {"disabled": ["fly"]}}), "there is no tool \"fly\""),
        (
            json!({"version": 1, "planning": {"mode": "maybe"}}),
            "planning.mode: must be one of off, auto, always",
        ),
        (json!({"version": 1, "verification": {"mode": "project"}}), "the operator has no command"),
        (json!({"version": 1, "verification": {"max_repair_attempts": 11}}), "from 0 to 10"),
        (json!({"version": 1, "model": "huge"}), "model: must be one of main, small"),
        (
            json!({"version": 1, "mcp_servers": {"x": {"url": "https://bad/"}}}),
            "x: the operator does not allow it",
        ),
        (
            json!({"version": 1, "mcp_servers": {"x": {"command": ["sh"]}}}),
            "x: must be an object with one key, url",
        ),
        (json!([]), "settings: must be an object"),
    ] {
        let complaints = complaints(&given);
        assert!(complaints.iter().any(|complaint| complaint.contains(words)), "{given}: {complaints:?}");
    }
}

#[test]
fn several_mistakes_are_told_together() {
    let given = json!({
        "version": 2, "memory": {"recent_turns": 4, "enabled": 1}, "execution": {"max_model_calls": 0}, "x": 1
    });
    assert_eq!(complaints(&given).len(), 5);
}

#[test]
fn what_is_left_out_is_filled_in_and_stored_with_its_digest() {
    assert_eq!(accepted(&Value::Null), Settings::built_in("main"));
    assert_eq!(accepted(&json!({"version": 1})), Settings::built_in("main"));
    let given = json!({
        "version": 1, "model": "small", "memory": {"recent_turns": 0}, "planning": {"mode": "off"},
        "tool_policy": {"require_approval": ["write_file", "mcp__own__x"]},
        "mcp_servers": {"own": {"url": "https://ok/mcp"}},
    });
    let settings = accepted(&given);
    assert_eq!((settings.model.as_str(), settings.memory.recent_turns), ("small", 0));
    assert_eq!(settings.execution, Settings::built_in("main").execution);
    let stored = Settings::complete(&given, &shop()).unwrap();
    assert!(stored["digest"].as_str().unwrap().starts_with("sha256:"));
    assert_eq!(
        stored,
        Settings::complete(&given, &shop()).unwrap(),
        "the same settings have the same digest"
    );

    let mut changed = stored;
    changed["execution"]["max_model_calls"] = json!(31);
    assert!(Settings::stored(&changed, &shop()).unwrap_err()[0].contains("digest differs"));
}

#[test]
fn the_operator_s_defaults_fill_the_gaps_and_its_caps_bind_now_and_later() {
    let mut shop = shop();
    shop.defaults = Settings::of_operator(&json!({"execution": {"max_tool_calls": 50}}), &shop).unwrap();
    shop.caps.max_model_calls = 20;
    let stored = Settings::complete(&Value::Null, &shop).unwrap();
    assert_eq!(
        stored["execution"],
        json!({"max_model_calls": 20, "max_tool_calls": 50, "max_duration_seconds": 900})
    );
    let beyond = json!({"version": 1, "execution": {"max_model_calls": 21}});
    assert!(Settings::complete(&beyond, &shop).unwrap_err()[0].contains("from 1 to 20"));

    shop.caps.max_model_calls = 5;
    assert_eq!(Settings::stored(&stored, &shop).unwrap().execution.max_model_calls, 5);
    assert!(Settings::of_operator(&json!({"memory": {"recent_turns": 9}}), &shop).is_err());
}

/// Marsaglia's xorshift, from a seed that is the same in each run.
struct Random {
    state: u64,
    values: Vec<Value>,
}

impl Random {
    fn new() -> Self {
        let values = vec![
            Value::Null,
            json!(true),
            json!(0),
            json!(1),
            json!(-1),
            json!(u64::MAX),
            json!(i64::MIN),
            json!(0.5),
            json!(1e308),
            json!(1.0),
            json!(""),
            json!("main"),
            json!("always"),
            json!("project"),
            json!("\0\u{1b}"),
            json!("x".repeat(500)),
            json!([]),
            json!({}),
            json!(["read_file", "read_file"]),
            json!(["write_file", 7, null]),
            json!(vec!["a"; 201]),
            json!({"a": {"url": "https://ok/"}, "b": {"url": 7}}),
            (0..100).fold(json!(0), |inner, _| json!({"memory": inner})),
        ];
        Self { state: 0x9e37_79b9_7f4a_7c15, values }
    }

    fn below(&mut self, end: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        usize::try_from(self.state % u64::try_from(end).unwrap()).unwrap()
    }

    fn key(&mut self) -> String {
        let keys = [
            "version",
            "enabled",
            "mode",
            "url",
            "disabled",
            "",
            " ",
            "\0",
            "__proto__",
            "model ",
            "é",
            "a.b",
            "max_tool_calls",
        ];
        keys[self.below(keys.len())].to_owned()
    }

    fn value(&mut self) -> Value {
        match self.below(self.values.len() + 2) {
            place @ 2.. => self.values[place - 2].clone(),
            _ => json!(self.below(1 << 53) as f64 / (1_u64 << 53) as f64),
        }
    }

    /// Changes something somewhere in an object.
    fn spoil(&mut self, value: &mut Value) {
        let Value::Object(object) = value else { return *value = self.value() };
        let keys: Vec<String> = object.keys().cloned().collect();
        let at = if keys.is_empty() { None } else { Some(keys[self.below(keys.len())].clone()) };
        match (self.below(6), at) {
            (0, _) | (_, None) => drop(object.insert(self.key(), self.value())),
            (1, Some(key)) => drop(object.remove(&key)),
            (2, Some(key)) => drop(object.insert(key, self.value())),
            (_, Some(key)) => self.spoil(&mut object[&key]),
        }
    }
}

#[test]
fn whatever_is_given_is_accepted_for_good_or_refused_by_its_key() {
    let whole = json!({
        "version": 1, "model": "small",
        "memory": {"enabled": true, "recent_turns": 2, "idle_ttl_seconds": 60},
        "history": {"enabled": false}, "planning": {"mode": "always"},
        "context": {
            "input_budget_ratio": 0.5, "compaction_enabled": true, "compact_at_ratio": 0.9, "compact_to_ratio": 0.5
        },
        "execution": {"max_model_calls": 3, "max_tool_calls": 4, "max_duration_seconds": 5},
        "tool_policy": {"disabled": ["read_file"], "require_approval": ["write_file"]},
        "verification": {"mode": "tool_evidence", "max_repair_attempts": 1},
        "thinking": {"forward_to_frontend": true},
        "mcp_servers": {"own": {"url": "https://ok/mcp"}},
    });
    accepted(&whole);
    let (mut random, mut kept, mut refused) = (Random::new(), 0, 0);
    for _ in 0..5000 {
        let mut given = whole.clone();
        for _ in 0..=random.below(3) {
            random.spoil(&mut given);
        }
        match Settings::complete(&given, &shop()) {
            Ok(stored) => {
                // As it comes back from where it is stored.
                let stored: Value = serde_json::from_str(&stored.to_string()).unwrap();
                let again = Settings::stored(&stored, &shop());
                assert!(again.is_ok(), "{given}: {again:?}");
                kept += 1;
            }
            Err(complaints) => {
                for complaint in &complaints {
                    let (path, words) = complaint.split_once(": ").expect(complaint);
                    let first = path.split('.').next().unwrap();
                    let is_key =
                        given.get(first).is_some() || path.split('.').any(|key| whole.get(key).is_some());
                    assert!(
                        (is_key || given.get(path).is_some()) && !words.is_empty(),
                        "{given}: {complaint}"
                    );
                }
                assert!(!complaints.is_empty());
                refused += 1;
            }
        }
    }
    assert!(kept > 100 && refused > 1000, "{kept} {refused}");
}
