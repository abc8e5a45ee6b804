//! What the model is given of a server's answer: its text, and a word for each thing that is none.

use rmcp::model::CallToolResponse;
use serde_json::Value;

use crate::harness::agent::tools::Called;
use crate::harness::agent::tools::cap::clipped;

const LABEL_MAX_BYTES: usize = 200;

/// Reads an answer.
pub(super) fn read(response: CallToolResponse) -> Called {
    match response {
        CallToolResponse::Complete(result) => match serde_json::to_value(result) {
            Ok(result) => completed(&result),
            Err(error) => Called::uncertain(format!("the answer cannot be read: {error}")),
        },
        CallToolResponse::InputRequired(_) => Called::failed(
            "The tool wants to know more from a person, which is not possible here.".to_owned(),
        ),
        _ => Called::uncertain("The tool goes on in the background, where it is not followed.".to_owned()),
    }
}

fn completed(result: &Value) -> Called {
    let blocks = result["content"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut parts: Vec<String> = blocks.iter().map(part).collect();
    let structured = &result["structuredContent"];
    if !structured.is_null() && !blocks.iter().any(|block| block["type"] == "text") {
        parts.insert(0, structured.to_string());
    }
    let content = if parts.is_empty() { "[nothing]".to_owned() } else { parts.join("\n") };
    if result["isError"] == Value::Bool(true) { Called::failed(content) } else { Called::succeeded(content) }
}

fn part(block: &Value) -> String {
    let kind = block["type"].as_str().unwrap_or("unknown");
    let label = |value: &Value| clipped(value.as_str().unwrap_or("of no known type"), LABEL_MAX_BYTES);
    match kind {
        "text" => block["text"].as_str().unwrap_or_default().to_owned(),
        "image" | "audio" => {
            format!("[{kind} {}, {} bytes left out]", label(&block["mimeType"]), decoded(&block["data"]))
        }
        "resource" => {
            let resource = &block["resource"];
            let bytes = match &resource["text"] {
                Value::String(text) => text.len(),
                _ => decoded(&resource["blob"]),
            };
            format!("[resource {}, {bytes} bytes left out]", label(&resource["uri"]))
        }
        "resource_link" => format!("[resource {}, not fetched]", label(&block["uri"])),
        _ => format!("[{} left out]", clipped(kind, LABEL_MAX_BYTES)),
    }
}

// Of base64, without decoding it.
fn decoded(data: &Value) -> usize {
    let data = data.as_str().unwrap_or_default().trim_end_matches('=');
    data.len() * 3 / 4
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::harness::agent::message::Outcome;

    fn of(result: Value) -> (Outcome, String) {
        let called = read(CallToolResponse::Complete(serde_json::from_value(result).unwrap()));
        (called.outcome, called.content)
    }

    #[test]
    fn texts_are_joined_and_everything_else_is_named() {
        let image = json!({"type": "image", "data": "QUJDRA==", "mimeType": "image/png"});
        let resource = json!({"type": "resource", "resource": {"uri": "file:///a", "mimeType": "text/plain", "text": "hush"}});
        let link = json!({"type": "resource_link", "uri": "file:///b", "name": "b"});
        let audio = json!({"type": "audio", "data": "QUJD", "mimeType": "audio/wav"});
        let text = |text: &str| json!({"type": "text", "text": text});
        assert_eq!(
            of(json!({"content": [text("one"), image, text("two"), resource, link, audio]})),
            (
                Outcome::Succeeded,
                "one\n[image image/png, 4 bytes left out]\ntwo\n[resource file:///a, 4 bytes left out]\n\
                 [resource file:///b, not fetched]\n[audio audio/wav, 3 bytes left out]"
                    .to_owned()
            )
        );
    }

    #[test]
    fn structured_content_stands_in_where_there_is_no_text() {
        let structured = json!({"a": [1]});
        let text = json!([{"type": "text", "text": "said"}]);
        assert_eq!(of(json!({"content": text, "structuredContent": structured})).1, "said");
        assert_eq!(of(json!({"content": [], "structuredContent": structured})).1, "{\"a\":[1]}");
        assert_eq!(of(json!({"content": []})), (Outcome::Succeeded, "[nothing]".to_owned()));
    }

    #[test]
    fn an_error_of_the_tool_is_a_failed_call_with_its_words() {
        let error = json!({"content": [{"type": "text", "text": "no such file"}], "isError": true});
        assert_eq!(of(error), (Outcome::Failed, "no such file".to_owned()));
    }
}
