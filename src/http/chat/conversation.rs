//! What was said before, and what is asked now, as a session takes it.

use std::fmt::Write as _;

use serde_json::Value;

use super::request::Role;
use crate::domain::limits::is_name;
use crate::domain::turn::Prompt;

/// A message, its parts one below the other.
#[derive(Debug)]
pub struct Message {
    /// Whose.
    pub role: Role,
    /// The words.
    pub text: String,
    /// The calls that an assistant made, as they were sent.
    pub tool_calls: Vec<Value>,
    /// The call that a tool's message is about.
    pub tool_call_id: Option<String>,
}

/// What a fresh session is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversation {
    /// The system's and the developer's words.
    instructions: Option<String>,
    /// What was said before.
    transcript: String,
    /// What the user says now.
    pub message: String,
}

/// A conversation as a session takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Where the harness takes them.
    pub instructions: Option<String>,
    /// The first prompt.
    pub prompt: String,
    /// Where the prompt does not begin with the user's own words.
    pub title: Option<String>,
}

fn transcript(said: &[Message]) -> String {
    let mut text = String::new();
    for message in said {
        let label = match (message.role, &message.tool_call_id) {
            (Role::Assistant, _) => "Assistant".to_owned(),
            (Role::Tool, Some(id)) => format!("Tool ({id})"),
            (Role::Tool, None) => "Tool".to_owned(),
            (Role::User | Role::System | Role::Developer, _) => "User".to_owned(),
        };
        let words = message.text.trim();
        if !words.is_empty() {
            let _ = write!(text, "{label}: {words}\n\n");
        }
        for call in &message.tool_calls {
            let part = |name: &str| call["function"][name].as_str().unwrap_or_default();
            let _ = write!(text, "{label} called {}: {}\n\n", part("name"), part("arguments"));
        }
    }
    text
}

impl Conversation {
    /// The instructions, what was said before, and the user's messages at the end as one; `None` where there are none at the end. A
    /// message that is sent twice in a row at the end is one message.
    pub fn of(messages: Vec<Message>) -> Option<Self> {
        let (instructions, mut said): (Vec<_>, Vec<_>) =
            messages.into_iter().partition(|message| matches!(message.role, Role::System | Role::Developer));
        let last = said.iter().rposition(|message| message.role != Role::User).map_or(0, |other| other + 1);
        let mut asked: Vec<String> = said.split_off(last).into_iter().map(|message| message.text).collect();
        asked.dedup();
        if asked.is_empty() {
            return None;
        }
        let instructions: Vec<_> = instructions.into_iter().map(|message| message.text).collect();
        let instructions = Some(instructions.join("\n\n")).filter(|text| !text.trim().is_empty());
        Some(Self { instructions, transcript: transcript(&said), message: asked.join("\n\n") })
    }

    /// As a session takes it; instructions go in front of the prompt where the harness takes none.
    pub fn open(self, takes_instructions: bool) -> Opening {
        let Self { instructions, transcript, message } = self;
        let (instructions, told) =
            if takes_instructions { (instructions, None) } else { (None, instructions) };
        if transcript.is_empty() && told.is_none() {
            return Opening { instructions, prompt: message, title: None };
        }
        let mut prompt = String::new();
        if let Some(told) = told {
            let _ = write!(prompt, "Instructions:\n\n{told}\n\n");
        }
        if !transcript.is_empty() {
            let _ = write!(prompt, "The conversation so far:\n\n{transcript}");
        }
        let title = Prompt::Text(message.trim().to_owned()).title().replace(char::is_control, " ");
        let title = Some(title).filter(|title| is_name(title));
        // What is blank stays blank, and is refused like any other blank prompt.
        let prompt = if message.trim().is_empty() { message } else { prompt + "The message:\n\n" + &message };
        Opening { instructions, prompt, title }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn said(role: Role, text: &str) -> Message {
        Message { role, text: text.into(), tool_calls: Vec::new(), tool_call_id: None }
    }

    fn user(text: &str) -> Message {
        said(Role::User, text)
    }

    fn of(messages: Vec<Message>) -> Conversation {
        Conversation::of(messages).unwrap()
    }

    #[test]
    fn row_96_without_a_users_message_at_the_end_nothing_is_asked() {
        for messages in [
            vec![said(Role::System, "x")],
            vec![said(Role::Assistant, "x")],
            vec![user("x"), said(Role::Assistant, "y")],
            vec![user("x"), said(Role::Tool, "y"), said(Role::Developer, "z")],
        ] {
            assert_eq!(Conversation::of(messages), None);
        }
    }

    #[test]
    fn row_96_a_message_that_is_sent_twice_in_a_row_at_the_end_stands_once() {
        assert_eq!(of(vec![user("a"), user("a")]).message, "a");
        assert_eq!(of(vec![user("a"), user("b")]).message, "a\n\nb");
        let answered = of(vec![user("a"), said(Role::Assistant, "x"), user("a")]);
        assert_eq!(
            (answered.transcript.as_str(), answered.message.as_str()),
            ("User: a\n\nAssistant: x\n\n", "a")
        );
    }

    #[test]
    fn the_words_before_the_last_message_are_a_labelled_transcript_in_front_of_it() {
        let call = json!({"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}});
        let conversation = of(vec![
            said(Role::System, "Be brief."),
            user("one\ntwo"),
            Message { tool_calls: vec![call], ..said(Role::Assistant, "") },
            Message { tool_call_id: Some("c1".into()), ..said(Role::Tool, "a cat") },
            said(Role::Assistant, "A cat."),
            said(Role::Developer, "In English."),
            user("And\tnow?"),
        ]);
        let told = "The conversation so far:\n\nUser: one\ntwo\n\nAssistant called look: {}\n\nTool (c1): a cat\n\n\
                    Assistant: A cat.\n\nThe message:\n\nAnd\tnow?";
        assert_eq!(
            conversation.clone().open(true),
            Opening {
                instructions: Some("Be brief.\n\nIn English.".into()),
                prompt: told.into(),
                title: Some("And now?".into())
            }
        );
        let opening = conversation.open(false);
        assert_eq!(opening.instructions, None);
        assert_eq!(opening.prompt, format!("Instructions:\n\nBe brief.\n\nIn English.\n\n{told}"));
    }

    #[test]
    fn a_message_with_nothing_before_it_is_the_prompt_as_it_is() {
        let plain = Opening { instructions: None, prompt: " /say x ".into(), title: None };
        for takes_instructions in [true, false] {
            assert_eq!(of(vec![user(" /say x ")]).open(takes_instructions), plain);
        }
        let blank = of(vec![said(Role::System, "s"), user(" \n")]);
        assert_eq!(blank.open(false).prompt, " \n", "blank stays blank, whatever is in front of it");
    }
}
