//! The conversation with the model, as it is kept and as the model is given it.

use serde::{Deserialize, Serialize};

/// How a tool call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    /// It did what it should.
    Succeeded,
    /// It did not, was denied, or was not allowed.
    Failed,
    /// It had begun when its process was lost, or when it was cancelled: it may have happened.
    Uncertain,
}

/// A tool call, as the model made it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ToolCall {
    /// Unique in its turn.
    pub id: String,
    /// The tool.
    pub name: String,
    /// The model's text, which should be a JSON object.
    pub arguments: String,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub(super) enum Message {
    /// What the model is told of its place.
    System {
        /// The words.
        content: String,
    },
    /// What a person says: a turn begins with it.
    User {
        /// The words.
        content: String,
    },
    /// What the harness says in a turn, in the person's place.
    Note {
        /// The words.
        content: String,
    },
    /// What the model says and wants done.
    Assistant {
        /// The words; empty where there are only calls.
        content: String,
        /// The calls.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<ToolCall>,
    },
    /// What came of a call.
    Tool {
        /// The call.
        tool_call_id: String,
        /// The words for the model.
        content: String,
        /// How it ended.
        outcome: Outcome,
        /// Whether the words are what is left of longer ones.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        condensed: bool,
    },
}

/// Where turns begin: at what a person says after anything that is not their own.
fn turn_starts(messages: &[Message]) -> Vec<usize> {
    let is_user = |message: &Message| matches!(message, Message::User { .. });
    (0..messages.len())
        .filter(|at| is_user(&messages[*at]) && (*at == 0 || !is_user(&messages[*at - 1])))
        .collect()
}

/// The last so many turns, whole.
pub(super) fn last_turns(messages: &[Message], turns: usize) -> &[Message] {
    let starts = turn_starts(messages);
    match starts.len().checked_sub(turns) {
        Some(before) => starts.get(before).map_or(&[], |at| &messages[*at..]),
        None => messages,
    }
}

/// As many of the last turns, whole, as together have at most so many messages, and take at most so many bytes where they are stored.
pub(super) fn last_turns_within(messages: &[Message], most: usize, most_bytes: usize) -> &[Message] {
    let (mut bytes, mut first) = (0_usize, messages.len());
    for (at, message) in messages.iter().enumerate().rev().take(most) {
        bytes = bytes.saturating_add(stored_bytes(message));
        if bytes > most_bytes {
            break;
        }
        first = at;
    }
    let start = turn_starts(messages).into_iter().find(|at| *at >= first);
    start.map_or(&[], |at| &messages[at..])
}

fn stored_bytes(message: &Message) -> usize {
    // Strings alone: this always serializes.
    serde_json::to_string(message).map_or(0, |text| text.len())
}

/// How many messages the first turn has; none where there is no turn after it.
pub(super) fn first_turn_len(messages: &[Message]) -> Option<usize> {
    turn_starts(messages).get(1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(roles: &str) -> Vec<Message> {
        let content = String::new;
        roles
            .chars()
            .map(|role| match role {
                'u' => Message::User { content: content() },
                'n' => Message::Note { content: content() },
                't' => Message::Tool {
                    tool_call_id: content(),
                    content: content(),
                    outcome: Outcome::Succeeded,
                    condensed: false,
                },
                _ => Message::Assistant { content: content(), tool_calls: Vec::new() },
            })
            .collect()
    }

    #[test]
    fn row_95_turns_are_taken_whole() {
        let all = messages("uauuaua");
        assert_eq!(last_turns_within(&all, 4, usize::MAX).len(), 2, "the last turn only");
        assert_eq!(
            last_turns_within(&all, 5, usize::MAX).len(),
            5,
            "from the turn that begins with two prompts"
        );
        assert_eq!(last_turns_within(&all, 7, usize::MAX).len(), 7);
        assert_eq!(last_turns_within(&all, 1, usize::MAX).len(), 0);
        assert_eq!(
            (last_turns(&all, 2).len(), last_turns(&all, 3).len(), last_turns(&all, 9).len()),
            (5, 7, 7)
        );
        assert_eq!(last_turns(&all, 0).len(), 0);
    }

    #[test]
    fn turns_that_take_too_much_where_they_are_stored_are_left_out_whole() {
        let all = messages("uauua");
        let two = all[3..].iter().map(stored_bytes).sum::<usize>();
        let four = all.iter().map(stored_bytes).sum::<usize>();
        for (bytes, kept) in [(four, 5), (four - 1, 3), (two, 0), (two - 1, 0), (0, 0)] {
            assert_eq!(last_turns_within(&all, 100, bytes).len(), kept, "{bytes}");
        }
        let control = Message::User { content: "\u{1}".repeat(100) };
        assert!(stored_bytes(&control) > 600, "as they are written there");
    }

    #[test]
    fn what_the_harness_says_begins_no_turn() {
        let all = messages("unatanaua");
        assert_eq!(last_turns(&all, 1).len(), 2);
        assert_eq!(first_turn_len(&all), Some(7));
        assert_eq!(first_turn_len(&messages("una")), None);
    }
}
