//! What an agent puts out, as Ostler's own outputs: one `session/update` in, any number of [`Output`]s out.
//!
//! Pure but for the memory of open tool calls. Whatever has no type here is handed on raw, never lost:
//!
//! | update | output |
//! |---|---|
//! | `agent_message_chunk` | text delta; content that is not text: activity with the raw update |
//! | `agent_thought_chunk` | thinking delta; likewise |
//! | `user_message_chunk` | nothing: the service has the prompt |
//! | `tool_call`, `tool_call_update` | see [`super::tool_calls`] |
//! | `plan` | the plan, whole |
//! | `compaction_update` | compaction, once it is completed; before and otherwise activity |
//! | `usage_update` | nothing: it is the fill of the context window, not what the turn used |
//! | `available_commands_update`, `current_mode_update`, `config_option_update`, `session_info_update` | nothing: they are about the agent, not the conversation |
//! | any other | activity with the raw update |

use serde_json::Value;

use super::tool_calls::{KEPT_MAX_BYTES, ToolCalls, kept};
use crate::domain::event::{Output, PlanEntry};
use crate::domain::turn::Usage;
use crate::harness::workspace::Roots;

/// A longer text goes out in pieces, which are stored and shown one by one.
const DELTA_MAX_BYTES: usize = 64 << 10;

/// The outputs of one update.
pub(super) fn outputs(update: Value, calls: &mut ToolCalls, roots: &Roots) -> Vec<Output> {
    match update["sessionUpdate"].as_str() {
        Some("agent_message_chunk") => chunk(update, |text| Output::TextDelta { text }),
        Some("agent_thought_chunk") => chunk(update, |text| Output::ThinkingDelta { text }),
        Some("tool_call" | "tool_call_update") => calls.update(update, roots),
        Some("plan") => vec![Output::PlanUpdated { entries: plan(&update["entries"]) }],
        Some("compaction_update") if update["status"] == "completed" => {
            vec![compaction(texts(&update["summary"]))]
        }
        Some(
            "user_message_chunk"
            | "usage_update"
            | "available_commands_update"
            | "current_mode_update"
            | "config_option_update"
            | "session_info_update",
        ) => Vec::new(),
        Some(_) | None => vec![activity(update)],
    }
}

/// The usage in an answer to a prompt, where there is one.
pub(super) fn usage(answer: &Value) -> Option<Usage> {
    let usage = answer.get("usage")?;
    Some(Usage {
        input_tokens: usage["inputTokens"].as_u64()?,
        output_tokens: usage["outputTokens"].as_u64()?,
        complete: true,
    })
}

/// The text of content blocks, one below the other.
pub(super) fn texts(blocks: &Value) -> String {
    let blocks = blocks.as_array().map(Vec::as_slice).unwrap_or_default();
    let texts: Vec<&str> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
    texts.join("\n")
}

fn chunk(mut update: Value, delta: impl Fn(String) -> Output) -> Vec<Output> {
    let content = &mut update["content"];
    if content["type"] != "text" {
        return vec![activity(update)];
    }
    match content["text"].take() {
        Value::String(text) if text.is_empty() => Vec::new(),
        Value::String(text) if text.len() <= DELTA_MAX_BYTES => vec![delta(text)],
        Value::String(text) => pieces(&text).map(delta).collect(),
        _ => Vec::new(),
    }
}

fn pieces(mut rest: &str) -> impl Iterator<Item = String> {
    std::iter::from_fn(move || {
        let (piece, behind) = rest.split_at(rest.floor_char_boundary(DELTA_MAX_BYTES));
        rest = behind;
        (!piece.is_empty()).then(|| piece.to_owned())
    })
}

fn plan(entries: &Value) -> Vec<PlanEntry> {
    let entries = entries.as_array().map(Vec::as_slice).unwrap_or_default();
    let word = |entry: &Value, key: &str| entry[key].as_str().map(str::to_owned);
    entries
        .iter()
        .filter_map(|entry| {
            Some(PlanEntry {
                content: word(entry, "content")?,
                status: word(entry, "status").unwrap_or_else(|| "pending".to_owned()),
                priority: word(entry, "priority"),
            })
        })
        .collect()
}

fn activity(update: Value) -> Output {
    let label = update["sessionUpdate"].as_str().unwrap_or("update").to_owned();
    Output::Activity { label, tool: None, raw: Some(kept(update, KEPT_MAX_BYTES)) }
}

fn compaction(summary: String) -> Output {
    Output::Compaction { summary, tokens_before: None, tokens_after: None }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn one(update: Value) -> Vec<Output> {
        outputs(update, &mut ToolCalls::default(), &Roots::plain("/space"))
    }

    fn raw(label: &str, update: &Value) -> Output {
        Output::Activity { label: label.into(), tool: None, raw: Some(update.clone()) }
    }

    #[test]
    fn updates_that_are_one_output_or_none() {
        let text = |kind: &str, text: &str| json!({"sessionUpdate": kind, "content": {"type": "text", "text": text}});
        for (update, output) in [
            (text("agent_message_chunk", "Hi"), Some(Output::TextDelta { text: "Hi".into() })),
            (text("agent_thought_chunk", "Hm"), Some(Output::ThinkingDelta { text: "Hm".into() })),
            (text("agent_message_chunk", ""), None),
            (text("user_message_chunk", "Hi"), None),
            (json!({"sessionUpdate": "usage_update", "used": 1, "size": 2}), None),
            (json!({"sessionUpdate": "available_commands_update", "availableCommands": []}), None),
            (json!({"sessionUpdate": "current_mode_update", "currentModeId": "ask"}), None),
            (json!({"sessionUpdate": "config_option_update", "configOptions": []}), None),
            (json!({"sessionUpdate": "session_info_update", "title": "x"}), None),
            (
                json!({"sessionUpdate": "plan", "entries": [
                    {"content": "Read", "priority": "high", "status": "in_progress"}, {"content": "Write"}, 7]}),
                Some(Output::PlanUpdated {
                    entries: vec![
                        PlanEntry {
                            content: "Read".into(),
                            status: "in_progress".into(),
                            priority: Some("high".into()),
                        },
                        PlanEntry { content: "Write".into(), status: "pending".into(), priority: None },
                    ],
                }),
            ),
            (
                json!({"sessionUpdate": "compaction_update", "compactionId": "c", "status": "completed",
                    "summary": [{"type": "text", "text": "Short"}, {"type": "text", "text": "story"}]}),
                Some(compaction("Short\nstory".into())),
            ),
        ] {
            assert_eq!(one(update.clone()), output.into_iter().collect::<Vec<_>>(), "{update}");
        }
    }

    #[test]
    fn a_long_text_comes_in_pieces_whole_and_never_cut_inside_a_character() {
        let text = format!("x{}", "é".repeat(DELTA_MAX_BYTES));
        let content = json!({"type": "text", "text": text});
        let outputs = one(json!({"sessionUpdate": "agent_message_chunk", "content": content}));
        let said = outputs.iter().map(|output| match output {
            Output::TextDelta { text } => text.as_str(),
            other => panic!("{other:?}"),
        });
        assert!(said.clone().all(|piece| piece.len() <= DELTA_MAX_BYTES));
        assert_eq!((said.collect::<String>(), outputs.len()), (text, 3));
    }

    #[test]
    fn what_nobody_knows_is_handed_on_raw() {
        for (label, update) in [
            ("brand_new_kind", json!({"sessionUpdate": "brand_new_kind", "x": 1})),
            (
                "agent_message_chunk",
                json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "hologram"}}),
            ),
            (
                "agent_thought_chunk",
                json!({"sessionUpdate": "agent_thought_chunk", "content": {"type": "image"}}),
            ),
            ("compaction_update", json!({"sessionUpdate": "compaction_update", "status": "in_progress"})),
            ("update", json!({"x": 1})),
        ] {
            assert_eq!(one(update.clone()), [raw(label, &update)]);
        }
        // Indexing adds the missing content, which is no harm.
        assert_eq!(one(json!({"sessionUpdate": "agent_message_chunk"})).len(), 1);
    }

    #[test]
    fn usage_is_read_where_the_answer_has_it_whole() {
        let answer = json!({"stopReason": "end_turn", "usage": {"inputTokens": 3, "outputTokens": 4, "totalTokens": 7}});
        assert_eq!(usage(&answer), Some(Usage { input_tokens: 3, output_tokens: 4, complete: true }));
        assert_eq!(usage(&json!({"usage": {"inputTokens": 3}})), None);
        assert_eq!(usage(&json!({"usage": null})), None);
        assert_eq!(usage(&json!({})), None);
    }

    #[test]
    fn every_update_of_the_schema_is_translated_without_a_loss() {
        use agent_client_protocol_schema::v1 as acp;
        let block = || acp::ContentBlock::Text(acp::TextContent::new("Hi"));
        let message = acp::SessionUpdate::AgentMessageChunk(acp::ContentChunk::new(block()));
        assert_eq!(one(serde_json::to_value(message).unwrap()), [Output::TextDelta { text: "Hi".into() }]);
        let call = acp::ToolCall::new("c1", "Run: ls");
        let call = one(serde_json::to_value(acp::SessionUpdate::ToolCall(call)).unwrap());
        assert!(matches!(&call[..], [Output::ToolStarted(start)] if start.name == "Run: ls"));
    }
}
