//! Servers over streamable HTTP: the way to one, and words for what went wrong that hold no address and no token.

use std::error::Error;
use std::sync::Arc;

use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::common::client_side_sse::NeverRetry;
use rmcp::transport::streamable_http_client::{StreamableHttpClientTransportConfig, StreamableHttpError};

use crate::harness::agent::http::root_cause;
use crate::harness::agent::tools::cap::clipped;
use crate::harness::child::LINE_MAX_BYTES;

const ERROR_MAX_BYTES: usize = 2 << 10;
const WORDS_MAX_BYTES: usize = 500;

/// The way to a server. A stream that breaks is not taken up again: what it would have said is not known then.
pub(super) fn way(
    client: &reqwest::Client,
    url: &str,
    token: Option<&str>,
) -> StreamableHttpClientTransport<reqwest::Client> {
    let mut config = StreamableHttpClientTransportConfig::with_uri(url)
        .max_sse_event_size(LINE_MAX_BYTES)
        .max_json_response_size(LINE_MAX_BYTES)
        .max_error_response_size(ERROR_MAX_BYTES);
    config.retry_config = Arc::new(NeverRetry::default());
    if let Some(token) = token {
        config = config.auth_header(token);
    }
    StreamableHttpClientTransport::with_client(client.clone(), config)
}

/// Why a request was surely not taken, where that is so: nobody was reached, or whoever was did not let us in.
pub(super) fn refusal(error: &(dyn Error + Send + Sync + 'static)) -> Option<String> {
    match error.downcast_ref::<StreamableHttpError<reqwest::Error>>()? {
        StreamableHttpError::Client(error) if error.is_connect() => {
            Some(format!("cannot be reached: {}", root_cause(error)))
        }
        StreamableHttpError::AuthRequired(_) | StreamableHttpError::InsufficientScope(_) => {
            Some("does not accept our token".to_owned())
        }
        StreamableHttpError::HttpStatus(error) if error.status == 429 => {
            Some("does not take more calls for now".to_owned())
        }
        _ => None,
    }
}

/// What went wrong, without the address, which may hold a secret.
pub(super) fn words(error: &(dyn Error + Send + Sync + 'static)) -> String {
    if let Some(why) = refusal(error) {
        return why;
    }
    let words = match error.downcast_ref::<StreamableHttpError<reqwest::Error>>() {
        Some(StreamableHttpError::Client(error)) => root_cause(error),
        _ => error.to_string(),
    };
    clipped(&words, WORDS_MAX_BYTES)
}
