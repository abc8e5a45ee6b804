//! The service with real agents, from npm, each described by its preset and pointed at a scripted model.
//!
//! Two are small and quick and run always; tests/run installs them. The others are driven by hand:
//! `tests/agents qwen && cargo test --test it real_agents::qwen -- --ignored`.

mod stage;
mod stories;

use self::stage::Agent;

/// Each story, for each agent.
macro_rules! agents {
    ($($(#[$attribute:meta])* $name:ident $agent:expr;)+) => {$(
        mod $name {
            use super::*;

            static AGENT: Agent = $agent;
            agents!(@stories $(#[$attribute])*
                the_check_tells_what_it_is
                an_approved_command_runs_and_a_denied_one_does_not
                a_turn_is_cancelled_while_it_speaks_and_the_session_goes_on
                when_the_agent_is_killed_the_turn_fails_at_once_and_the_next_one_remembers
                an_approval_outlives_the_service_and_takes_effect_once
                two_sessions_side_by_side_do_not_mix
                twenty_turns_in_one_session
                nothing_is_left_of_a_killed_service_or_of_a_stopped_session
                it_goes_on_from_another_disk_and_remembers
            );
        }
    )+};
    (@stories $(#[$attribute:meta])* $story:ident $($rest:ident)*) => {
        #[tokio::test]
        $(#[$attribute])*
        async fn $story() {
            stories::$story(&AGENT).await;
        }
        agents!(@stories $(#[$attribute])* $($rest)*);
    };
    (@stories $(#[$attribute:meta])*) => {};
}

agents! {
    codex Agent { name: "codex", node: None, lines: |url| codex(url, "scripted") };
    claude Agent { name: "claude", node: Some(20), lines: claude_lines };
    #[ignore = "by hand: tests/agents codex2, 500 MB"]
    codex2 Agent { name: "codex2", node: Some(22), lines: codex2_lines };
    #[ignore = "by hand: tests/agents claude2, 400 MB"]
    claude2 Agent { name: "claude2", node: Some(22), lines: claude_lines };
    #[ignore = "by hand: tests/agents opencode, 400 MB"]
    opencode Agent { name: "opencode", node: None, lines: opencode_lines };
    #[ignore = "by hand: tests/agents gemini, 100 MB"]
    gemini Agent { name: "gemini", node: Some(20), lines: gemini_lines };
    #[ignore = "by hand: tests/agents qwen, 150 MB"]
    qwen Agent { name: "qwen", node: Some(22), lines: qwen_lines };
}

/// What must never be seen of an agent's credentials.
pub const KEY: &str = "not-a-key";

fn codex(url: &str, model: &str) -> String {
    format!(
        r#"env.FAKE_KEY = "{KEY}"
files.".codex/config.toml" = '''
model = "{model}"
model_provider = "fake"

[model_providers.fake]
name = "Fake"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "FAKE_KEY"
request_max_retries = 0
stream_max_retries = 0
'''"#
    )
}

fn codex2_lines(url: &str) -> String {
    codex(url, "scripted-escalate")
}

fn claude_lines(url: &str) -> String {
    format!("env.ANTHROPIC_API_KEY = \"{KEY}\"\nenv.ANTHROPIC_BASE_URL = \"{url}\"")
}

fn opencode_lines(url: &str) -> String {
    format!(
        r#"files.".config/opencode/opencode.json" = '''
{{
  "model": "fake/scripted",
  "small_model": "fake/scripted",
  "provider": {{
    "fake": {{
      "npm": "@ai-sdk/openai-compatible",
      "options": {{ "baseURL": "{url}/v1", "apiKey": "{KEY}" }},
      "models": {{ "scripted": {{ "tool_call": true, "limit": {{ "context": 100000, "output": 8000 }} }} }}
    }}
  }}
}}
'''"#
    )
}

fn gemini_lines(url: &str) -> String {
    format!(
        "env.GEMINI_API_KEY = \"{KEY}\"\nenv.GOOGLE_GEMINI_BASE_URL = \"{url}\"\nenv.GEMINI_MODEL = \"gemini-2.5-flash\""
    )
}

fn qwen_lines(url: &str) -> String {
    format!(
        "env.OPENAI_API_KEY = \"{KEY}\"\nenv.OPENAI_BASE_URL = \"{url}/v1\"\nenv.OPENAI_MODEL = \"scripted\""
    )
}
