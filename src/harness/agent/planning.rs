//! The plan that a model makes before its first step: asked for once, in JSON, and held to it.

use serde::{Deserialize, Serialize};

use super::settings::PlanningMode;
use crate::domain::event::PlanEntry;

const STEPS_MAX: usize = 8;
const STEP_MAX_CHARS: usize = 500;
const REASON_MAX_CHARS: usize = 2000;

/// What the model decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Plan {
    /// Why it goes about it that way.
    pub reason: String,
    /// What it is going to do, in order; none where it answers directly.
    pub steps: Vec<String>,
}

#[derive(Deserialize)]
struct Answer {
    mode: Mode,
    reason: String,
    #[serde(default)]
    steps: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    Direct,
    Plan,
}

/// What the model is told when it is asked.
pub(super) fn question(mode: PlanningMode) -> String {
    let choice = match mode {
        PlanningMode::Always => "Make a plan of 1 to 8 steps.",
        PlanningMode::Auto | PlanningMode::Off => {
            "Where the request needs several steps, make a plan of 1 to 8 steps; where it does not, answer directly and plan nothing."
        }
    };
    format!(
        "Before you work on the request: how do you go about it? {choice} Do not call tools and do not answer the request yet. \
         Answer with one JSON object and nothing else: \
         {{\"mode\": \"direct\" or \"plan\", \"reason\": \"one sentence\", \"steps\": [\"…\"]}}; \
         steps is empty when mode is direct."
    )
}

/// Reads the model's answer.
///
/// # Errors
/// What is wrong with it, in words.
pub(super) fn parse(text: &str, mode: PlanningMode) -> Result<Plan, String> {
    let answer: Answer = serde_json::from_str(unfenced(text))
        .map_err(|error| format!("the plan is not the JSON asked for: {error}"))?;
    let complain = |words: &str| Err(format!("the plan {words}"));
    let too_long = |text: &String, most: usize| text.chars().count() > most;
    let Answer { reason, steps, .. } = &answer;
    match answer.mode {
        _ if reason.trim().is_empty() => complain("gives no reason"),
        _ if too_long(reason, REASON_MAX_CHARS) => complain("has a reason that is too long"),
        Mode::Direct if mode == PlanningMode::Always => complain("is direct, where one was to be made"),
        Mode::Direct if !steps.is_empty() => complain("is direct and has steps"),
        Mode::Plan if steps.is_empty() => complain("has no steps"),
        Mode::Plan if steps.len() > STEPS_MAX => complain("has more than 8 steps"),
        Mode::Plan if steps.iter().any(|step| step.trim().is_empty()) => complain("has a blank step"),
        Mode::Plan if steps.iter().any(|step| too_long(step, STEP_MAX_CHARS)) => {
            complain("has a step that is too long")
        }
        Mode::Direct | Mode::Plan => Ok(Plan { reason: answer.reason, steps: answer.steps }),
    }
}

/// What is inside a code fence, where there is one around it all.
fn unfenced(text: &str) -> &str {
    let text = text.trim();
    let inside = text.strip_prefix("```").and_then(|rest| rest.strip_suffix("```"));
    inside.and_then(|inside| inside.split_once('\n')).map_or(text, |(_, body)| body.trim())
}

impl Plan {
    /// As the log shows it.
    pub fn entries(&self) -> Vec<PlanEntry> {
        let entry =
            |step: &String| PlanEntry { content: step.clone(), status: "pending".to_owned(), priority: None };
        self.steps.iter().map(entry).collect()
    }

    /// As the model is reminded of it.
    pub fn note(&self) -> String {
        let steps = self.steps.iter().enumerate();
        let steps: Vec<_> = steps.map(|(place, step)| format!("{}. {step}", place + 1)).collect();
        format!("[ostler] The plan that you made for this request:\n{}", steps.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_93_a_plan_is_what_was_asked_for_or_none() {
        let auto = |text: &str| parse(text, PlanningMode::Auto);
        let steps =
            |count: usize| format!(r#"{{"mode":"plan","reason":"r","steps":{:?}}}"#, vec!["s"; count]);
        for (text, words) in [
            (steps(0), "has no steps"),
            (steps(9), "more than 8 steps"),
            (r#"{"mode":"direct","reason":"r","steps":["s"]}"#.to_owned(), "is direct and has steps"),
            (r#"{"mode":"direct","reason":" "}"#.to_owned(), "gives no reason"),
            (r#"{"mode":"plan","reason":"r","steps":[" "]}"#.to_owned(), "blank step"),
            (r#"{"mode":"plan","steps":["s"]}"#.to_owned(), "missing field `reason`"),
            (r#"{"mode":"later","reason":"r"}"#.to_owned(), "unknown variant"),
            ("I would first look around.".to_owned(), "not the JSON asked for"),
            (String::new(), "not the JSON asked for"),
        ] {
            let complaint = auto(&text).unwrap_err();
            assert!(complaint.contains(words), "{text}: {complaint}");
        }
        let direct = r#"{"mode":"direct","reason":"r","steps":[]}"#;
        assert!(parse(direct, PlanningMode::Always).unwrap_err().contains("is direct"));
        assert_eq!(auto(direct).unwrap().steps.len(), 0);
        for count in [1, 8] {
            assert_eq!(auto(&steps(count)).unwrap().steps.len(), count);
            assert_eq!(parse(&steps(count), PlanningMode::Always).unwrap().steps.len(), count);
        }
    }

    #[test]
    fn row_93_a_fence_around_it_is_no_mistake() {
        let plan = "```json\n{\"mode\":\"plan\",\"reason\":\"r\",\"steps\":[\"look\",\"act\"]}\n```";
        let plan = parse(plan, PlanningMode::Auto).unwrap();
        assert_eq!(plan.steps, ["look", "act"]);
        assert_eq!(plan.entries()[1].content, "act");
        assert!(plan.note().ends_with("1. look\n2. act"));
        assert!(parse("```\n{\"mode\":\"direct\",\"reason\":\"r\"}\n```\n", PlanningMode::Auto).is_ok());
    }
}
