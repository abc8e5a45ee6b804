//! Logs: pretty or JSON lines on stderr. What is logged never holds bodies, secrets or owner ids; sessions and requests go by their ids.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

/// How logs look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Pretty,
    /// One JSON object a line.
    Json,
}

impl LogFormat {
    /// The format of that name.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "pretty" => Some(Self::Pretty),
            "json" => Some(Self::Json),
            _ => None,
        }
    }

    /// Pretty where a person reads it, else JSON.
    pub fn for_this_terminal() -> Self {
        if std::io::stderr().is_terminal() { Self::Pretty } else { Self::Json }
    }
}

/// Checks a filter without setting it.
///
/// # Errors
/// What is wrong with it.
pub fn check_filter(filter: &str) -> Result<(), ParseError> {
    EnvFilter::try_new(filter).map(drop)
}

/// Sets logging up for this process. Call once.
pub fn init(format: LogFormat, filter: &str) {
    // The filter was checked with the other settings.
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new("info"));
    let filter = without_bodies(filter);
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Pretty => subscriber.with_target(false).with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => {
            subscriber.json().flatten_event(true).with_current_span(true).with_span_list(false).init()
        }
    }
}

// What MCP servers say is logged by the crate that reads it, whole and at any level.
fn without_bodies(filter: EnvFilter) -> EnvFilter {
    match "rmcp=off".parse() {
        Ok(off) => filter.add_directive(off),
        Err(_) => filter,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_filter_of_levels_shows_what_servers_say() {
        for filter in ["info", "trace", "info,rmcp=debug", "rmcp=trace", ""] {
            let shown = without_bodies(EnvFilter::new(filter)).to_string();
            assert!(shown.contains("rmcp=off") && !shown.contains("rmcp=debug"), "{shown}");
            assert!(!shown.contains("rmcp=trace"), "{shown}");
        }
    }
}
