//! The part of ACP v1 that we send and read, as our own structs: JSON-RPC messages and the handshake.
//!
//! What agents put out stays raw JSON until [`super::translate`] looks at it: agents are ahead of any schema, and closed
//! types would lose what they do not know.

use serde::Serialize;
use serde_json::{Value, json};

use crate::harness::{Introduction, Mode, Restore};

/// The one version that we speak.
pub(super) const PROTOCOL_VERSION: u64 = 1;

/// JSON-RPC: the other side does not know the method.
pub(super) const METHOD_NOT_FOUND: i64 = -32601;
/// JSON-RPC: the parameters are wrong.
pub(super) const INVALID_PARAMS: i64 = -32602;
/// JSON-RPC: something else went wrong.
pub(super) const INTERNAL_ERROR: i64 = -32603;
/// ACP: the request was taken back.
pub(super) const REQUEST_CANCELLED: i64 = -32800;
/// ACP: the agent wants somebody to log in first.
pub(super) const AUTH_REQUIRED: i64 = -32000;
/// ACP: no such file, no such conversation.
pub(super) const NOT_FOUND: i64 = -32002;

const ERROR_CHARS: usize = 2000;
const NAME_CHARS: usize = 200;
/// No agent offers more modes.
const MODES_MAX: usize = 64;

/// The parameters of `initialize`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Initialize {
    protocol_version: u64,
    client_capabilities: ClientCapabilities,
    client_info: ClientInfo,
}

#[derive(Debug, Serialize)]
struct ClientCapabilities {
    fs: FileCapabilities,
    terminal: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FileCapabilities {
    read_text_file: bool,
    write_text_file: bool,
}

#[derive(Debug, Serialize)]
struct ClientInfo {
    name: &'static str,
    title: &'static str,
    version: &'static str,
}

impl Initialize {
    pub(super) fn ours() -> Self {
        Self {
            protocol_version: PROTOCOL_VERSION,
            client_capabilities: ClientCapabilities {
                fs: FileCapabilities { read_text_file: true, write_text_file: true },
                terminal: false,
            },
            client_info: ClientInfo { name: "ostler", title: "Ostler", version: env!("CARGO_PKG_VERSION") },
        }
    }
}

/// The parameters of `session/new` and, with an id, of `session/load` and `session/resume`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct OpenSession<'a> {
    /// The conversation to take up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<&'a str>,
    /// Absolute.
    pub cwd: &'a str,
    /// Required by the protocol; we lend none.
    pub mcp_servers: [Value; 0],
}

/// The parameters of `session/prompt`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SendPrompt<'a> {
    /// The conversation.
    pub session_id: &'a str,
    /// Its blocks.
    pub prompt: Vec<TextBlock>,
}

/// A block of text.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename = "text")]
pub(super) struct TextBlock {
    /// The text.
    pub text: String,
}

/// Reads the answer to `initialize`.
///
/// # Errors
/// In words, when the agent does not speak our version.
pub(super) fn read_initialize(answer: &Value) -> Result<Introduction, String> {
    let version = &answer["protocolVersion"];
    if version.as_u64() != Some(PROTOCOL_VERSION) {
        return Err(format!("it speaks version {version} of the protocol, not {PROTOCOL_VERSION}"));
    }
    let capabilities = &answer["agentCapabilities"];
    let restore = if capabilities["sessionCapabilities"]["resume"].is_object() {
        Restore::Resume
    } else if capabilities["loadSession"] == Value::Bool(true) {
        Restore::Load
    } else {
        Restore::None
    };
    let agent = &answer["agentInfo"];
    Ok(Introduction {
        agent_name: text(&agent["name"]),
        agent_version: text(&agent["version"]),
        protocol_version: Some(PROTOCOL_VERSION),
        restore: Some(restore),
        ..Introduction::default()
    })
}

/// Reads the modes of a conversation, and the one that it is in. Some agents offer them as an option among others.
pub(super) fn read_modes(opened: &Value, introduction: &mut Introduction) {
    let modes = &opened["modes"];
    let options = opened["configOptions"].as_array().into_iter().flatten();
    let option = options.into_iter().find(|option| option["category"] == "mode");
    let (offered, id, current) = match option {
        Some(option) if modes["availableModes"].is_null() => {
            (&option["options"], "value", &option["currentValue"])
        }
        _ => (&modes["availableModes"], "id", &modes["currentModeId"]),
    };
    let read = |mode: &Value| Some(Mode { id: text(&mode[id])?, name: text(&mode["name"]) });
    introduction.modes = offered.as_array().into_iter().flatten().take(MODES_MAX).filter_map(read).collect();
    introduction.mode = text(current);
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(|text| clipped(text, NAME_CHARS))
}

/// A JSON-RPC error, of either side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RpcError {
    /// Its code. Agents also put other numbers here, such as HTTP's.
    pub code: i64,
    /// In words.
    pub message: String,
}

impl RpcError {
    pub(super) fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    // The message is often just "Internal error" and the cause hides in `data`.
    fn read(error: &Value) -> Self {
        let message = error["message"].as_str().unwrap_or("an error without words");
        let data = &error["data"];
        let detail = [data, &data["details"], &data["message"]].into_iter().find_map(Value::as_str);
        let whole = match detail {
            Some(detail) if detail != message => format!("{message}: {detail}"),
            _ => message.to_owned(),
        };
        Self::new(error["code"].as_i64().unwrap_or(INTERNAL_ERROR), clipped(&whole, ERROR_CHARS))
    }
}

/// A message of the agent.
#[derive(Debug, PartialEq)]
pub(super) enum Incoming {
    /// It wants an answer.
    Request {
        /// Theirs; any JSON.
        id: Value,
        /// The method.
        method: String,
        /// The parameters.
        params: Value,
    },
    /// It does not.
    Notification {
        /// The method.
        method: String,
        /// The parameters.
        params: Value,
    },
    /// It answers.
    Response {
        /// Ours; `None` when it is not one that we could have given.
        id: Option<u64>,
        /// What it says.
        outcome: Result<Value, RpcError>,
    },
}

impl Incoming {
    /// Reads a line; `None` when it is no message: banners, blank lines, arrays.
    pub(super) fn parse(line: &[u8]) -> Option<Self> {
        let Ok(Value::Object(mut message)) = serde_json::from_slice(line) else { return None };
        let id = message.remove("id").filter(|id| !id.is_null());
        let params = message.remove("params").unwrap_or_default();
        match (message.remove("method"), id) {
            (Some(Value::String(method)), Some(id)) => Some(Self::Request { id, method, params }),
            (Some(Value::String(method)), None) => Some(Self::Notification { method, params }),
            (Some(_), _) => None,
            (None, id) => {
                // Some agents give our number back as text.
                let id = id.and_then(|id| id.as_u64().or_else(|| id.as_str()?.parse().ok()));
                let outcome = match message.remove("error").filter(|error| !error.is_null()) {
                    Some(error) => Err(RpcError::read(&error)),
                    None => Ok(message.remove("result")?),
                };
                Some(Self::Response { id, outcome })
            }
        }
    }
}

/// A request of ours as a line.
pub(super) fn request_line(id: u64, method: &str, params: &impl Serialize) -> Vec<u8> {
    line(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
}

/// A notification of ours as a line.
pub(super) fn notification_line(method: &str, params: &Value) -> Vec<u8> {
    line(&json!({"jsonrpc": "2.0", "method": method, "params": params}))
}

/// An answer of ours as a line.
pub(super) fn answer_line(id: &Value, outcome: Result<Value, RpcError>) -> Vec<u8> {
    match outcome {
        Ok(result) => line(&json!({"jsonrpc": "2.0", "id": id, "result": result})),
        Err(RpcError { code, message }) => {
            line(&json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}))
        }
    }
}

/// The text, or its first characters and a sign that more followed.
pub(super) fn clipped(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

// JSON text never holds a bare line break, so one line is one message.
fn line(message: &Value) -> Vec<u8> {
    let mut line = message.to_string().into_bytes();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use agent_client_protocol_schema::v1 as acp;

    use super::*;

    fn parse(text: &str) -> Option<Incoming> {
        Incoming::parse(text.as_bytes())
    }

    #[test]
    fn requests_notifications_and_responses_are_told_apart() {
        let request = parse(r#"{"jsonrpc":"2.0","id":0,"method":"m","params":{"a":1}}"#);
        assert_eq!(
            request,
            Some(Incoming::Request { id: 0.into(), method: "m".into(), params: json!({"a": 1}) })
        );
        let notification = parse(r#"{"id":null,"method":"m"}"#);
        assert_eq!(notification, Some(Incoming::Notification { method: "m".into(), params: Value::Null }));
        assert_eq!(
            parse(r#"{"id":"7","result":null}"#),
            Some(Incoming::Response { id: Some(7), outcome: Ok(Value::Null) })
        );
        assert_eq!(
            parse(r#"{"id":7,"error":{"code":400,"message":"Internal error","data":{"details":"no key"}}}"#),
            Some(Incoming::Response {
                id: Some(7),
                outcome: Err(RpcError::new(400, "Internal error: no key"))
            })
        );
    }

    #[test]
    fn lines_that_are_no_messages_are_none() {
        for text in ["", "\r", "Welcome", "{not json}", "[1,2]", "\"str\"", "7", "{}", r#"{"method":7}"#] {
            assert_eq!(parse(text), None, "{text:?}");
        }
        assert_eq!(Incoming::parse(b"\xff\xfe"), None);
        assert!(parse("{\"id\":1,\"result\":{}}\r").is_some());
    }

    #[test]
    fn only_our_version_is_accepted_and_resume_is_preferred_to_load() {
        let answer = |version: Value, capabilities: Value| {
            let answer = json!({"protocolVersion": version, "agentCapabilities": capabilities});
            read_initialize(&answer).map(|introduction| introduction.restore)
        };
        let resume = json!({"loadSession": true, "sessionCapabilities": {"resume": {}}});
        assert_eq!(answer(1.into(), resume), Ok(Some(Restore::Resume)));
        let null = json!({"loadSession": true, "sessionCapabilities": {"resume": null}});
        assert_eq!(answer(1.into(), null), Ok(Some(Restore::Load)));
        assert_eq!(answer(1.into(), Value::Null), Ok(Some(Restore::None)));
        for version in [json!(2), json!("1"), json!(0), Value::Null] {
            assert!(answer(version, Value::Null).is_err());
        }
    }

    // Ours, read by the schema's own types and written again, must keep every field that we gave.
    fn assert_schema<T: serde::Serialize + serde::de::DeserializeOwned>(ours: &impl Serialize) {
        fn holds(whole: &Value, part: &Value) -> bool {
            match (whole, part) {
                // The schema leaves empty lists out where it may.
                (Value::Object(whole), Value::Object(part)) => part
                    .iter()
                    .filter(|(_, part)| **part != json!([]))
                    .all(|(key, part)| whole.get(key).is_some_and(|whole| holds(whole, part))),
                (whole, part) => whole == part,
            }
        }
        let ours = serde_json::to_value(ours).unwrap();
        let theirs: T = serde_json::from_value(ours.clone()).unwrap();
        let again = serde_json::to_value(&theirs).unwrap();
        assert!(holds(&again, &ours), "{again} must hold {ours}");
    }

    #[test]
    fn what_we_send_is_what_the_schema_reads() {
        assert_schema::<acp::InitializeRequest>(&Initialize::ours());
        let open = |session_id| OpenSession { session_id, cwd: "/space", mcp_servers: [] };
        assert_schema::<acp::NewSessionRequest>(&open(None));
        assert_schema::<acp::LoadSessionRequest>(&open(Some("s-1")));
        assert_schema::<acp::ResumeSessionRequest>(&open(Some("s-1")));
        let prompt = vec![TextBlock { text: "Hi".into() }];
        assert_schema::<acp::PromptRequest>(&SendPrompt { session_id: "s-1", prompt });
        assert_schema::<acp::CancelNotification>(&json!({"sessionId": "s-1"}));
    }

    #[test]
    fn what_the_schema_writes_is_what_we_read() {
        let mut answer = acp::InitializeResponse::new(1.into());
        answer.agent_capabilities.load_session = true;
        answer.agent_info = Some(acp::Implementation::new("codex-acp", "0.16.0"));
        let read = |answer: &acp::InitializeResponse| {
            read_initialize(&serde_json::to_value(answer).unwrap()).unwrap()
        };
        let introduction = read(&answer);
        assert_eq!(introduction.restore, Some(Restore::Load));
        assert_eq!(introduction.agent_name.as_deref(), Some("codex-acp"));
        assert_eq!(introduction.agent_version.as_deref(), Some("0.16.0"));
        answer.agent_capabilities.session_capabilities.resume = Some(Default::default());
        assert_eq!(read(&answer).restore, Some(Restore::Resume));
    }

    #[test]
    fn modes_are_offered_as_such_or_as_an_option_of_that_category() {
        let read = |answer: Value| {
            let mut introduction = Introduction::default();
            read_modes(&answer, &mut introduction);
            let ids: Vec<String> = introduction.modes.into_iter().map(|mode| mode.id).collect();
            (ids.join(" "), introduction.mode)
        };
        let modes = json!({"currentModeId": "auto", "availableModes": [{"id": "auto", "name": "Auto"}, {"id": "ask"}]});
        let options = json!([
            {"id": "model", "category": "model", "currentValue": "m", "options": [{"value": "m", "name": "M"}]},
            {"id": "mode", "category": "mode", "currentValue": "plan", "options": [{"value": "plan", "name": "Plan"}]},
        ]);
        assert_eq!(read(json!({"modes": modes})), ("auto ask".into(), Some("auto".into())));
        assert_eq!(read(json!({"configOptions": options})), ("plan".into(), Some("plan".into())));
        assert_eq!(read(json!({"modes": modes, "configOptions": options})).1, Some("auto".into()));
        for nothing in
            [json!({}), json!(null), json!([7]), json!("s"), json!({"modes": null, "configOptions": 7})]
        {
            assert_eq!(read(nothing), (String::new(), None));
        }
    }

    #[test]
    fn long_words_are_clipped_between_characters() {
        assert_eq!(clipped("añb", 3), "añb");
        assert_eq!(clipped("añbc", 2), "añ…");
    }
}
