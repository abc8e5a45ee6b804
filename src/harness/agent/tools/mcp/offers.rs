//! Which tools a server has: all pages of its list, as raw JSON, so that one that cannot be read does not take the others along.

use rmcp::RoleClient;
use rmcp::model::{ClientRequest, ListToolsRequest, PaginatedRequestParams};
use rmcp::service::{Peer, ServiceError};
use serde_json::Value;

use super::http;
use crate::harness::agent::config::McpServerConfig;
use crate::harness::agent::tools::names::Offer;

/// A list has no more pages and, with what is left out, no more tools.
const PAGES_MAX: usize = 32;
const OFFERS_MAX: usize = 1000;

/// Asks for the list; what the operator does not want of it is not in there.
///
/// # Errors
/// In words.
pub(super) async fn list(peer: &Peer<RoleClient>, config: &McpServerConfig) -> Result<Vec<Offer>, String> {
    let mut offers = Vec::new();
    let mut cursor = None;
    for _ in 0..PAGES_MAX {
        let page = page(peer, cursor).await?;
        let tools = page["tools"].as_array().ok_or("it has no list of tools")?;
        let wanted =
            tools.iter().map(|tool| read(tool, config)).filter(|offer| is_wanted(&offer.tool, config));
        offers.extend(wanted);
        if offers.len() > OFFERS_MAX {
            return Err(format!("it has more than {OFFERS_MAX} tools"));
        }
        match page["nextCursor"].as_str() {
            Some(next) => cursor = Some(next.to_owned()),
            None => return Ok(offers),
        }
    }
    Err(format!("its list of tools has more than {PAGES_MAX} pages"))
}

async fn page(peer: &Peer<RoleClient>, cursor: Option<String>) -> Result<Value, String> {
    let params = cursor.map(|cursor| PaginatedRequestParams::default().with_cursor(Some(cursor)));
    let request = ListToolsRequest { params, ..ListToolsRequest::default() };
    let answer = peer.send_request(ClientRequest::ListToolsRequest(request)).await;
    let answer = answer.map_err(|error| match error {
        ServiceError::McpError(error) => format!("it does not tell its tools: {}", error.message),
        ServiceError::TransportSend(error) => http::words(error.error.as_ref()),
        _ => "it ended before it had told its tools".to_owned(),
    })?;
    serde_json::to_value(answer).map_err(|error| error.to_string())
}

fn read(tool: &Value, config: &McpServerConfig) -> Offer {
    let name = tool["name"].as_str().unwrap_or_default();
    let words = tool["description"].as_str().or_else(|| tool["title"].as_str()).unwrap_or_default();
    let asks = config.require_approval.iter().any(|one| one == "*" || one == name);
    Offer {
        tool: name.to_owned(),
        description: words.to_owned(),
        input_schema: tool["inputSchema"].clone(),
        is_read_only: tool["annotations"]["readOnlyHint"] == Value::Bool(true),
        asks,
    }
}

fn is_wanted(name: &str, config: &McpServerConfig) -> bool {
    config.tools.as_ref().is_none_or(|all| all.iter().any(|one| one == name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_offer_is_what_the_server_says_and_the_operator_wants() {
        let config: McpServerConfig =
            toml::from_str("tools = [\"a\", \"b\"]\nrequire_approval = [\"b\"]").unwrap();
        let tool = json!({
            "name": "a", "description": "words", "inputSchema": {"type": "object"},
            "annotations": {"readOnlyHint": true}
        });
        let offer = read(&tool, &config);
        assert!(offer.is_read_only && !offer.asks);
        assert_eq!((offer.tool.as_str(), offer.description.as_str()), ("a", "words"));
        let other = read(&json!({"name": "b", "title": "A title"}), &config);
        assert!(!other.is_read_only && other.asks && other.input_schema.is_null());
        assert_eq!(other.description, "A title");
        let all: McpServerConfig = toml::from_str("require_approval = [\"*\"]").unwrap();
        assert!(read(&tool, &all).asks);
        for (name, wanted) in [("a", true), ("c", false)] {
            assert_eq!((is_wanted(name, &config), is_wanted(name, &all)), (wanted, true));
        }
    }
}
