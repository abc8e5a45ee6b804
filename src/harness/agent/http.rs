//! HTTP clients, made when they are first needed: those of all models, and those of all MCP servers.
//!
//! Proxies of the environment (`HTTP_PROXY`, `HTTPS_PROXY`, `NO_PROXY`) are used as reqwest does it, never for addresses of this
//! machine. Redirects are not followed: a key goes where the operator sent it and nowhere else.

use std::error::Error;
use std::net::IpAddr;
use std::sync::OnceLock;
use std::time::Duration;

use reqwest::{Client, Url};

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How many connections to one provider are kept for later.
const IDLE_MAX: usize = 64;

/// The clients of one purpose.
#[derive(Debug)]
pub(super) struct Clients {
    /// How many connections to one place are kept for later.
    idle_max: usize,
    /// For plain HTTP on this machine.
    here: OnceLock<Result<Client, String>>,
    /// For plain HTTP elsewhere. The system's certificates are not needed, and a small container may have none.
    plain: OnceLock<Result<Client, String>>,
    /// For TLS elsewhere.
    tls: OnceLock<Result<Client, String>>,
    /// For TLS on this machine.
    tls_here: OnceLock<Result<Client, String>>,
}

impl Clients {
    /// Those that keep connections: a request that an old one did not take is sent again.
    pub(super) fn keeping() -> Self {
        Self::new(IDLE_MAX)
    }

    /// Those that keep none: whether what is written to an old connection arrives is not known, but a new one is there or is not.
    pub(super) fn fresh() -> Self {
        Self::new(0)
    }

    fn new(idle_max: usize) -> Self {
        let (here, plain, tls, tls_here) = Default::default();
        Self { idle_max, here, plain, tls, tls_here }
    }

    /// The client for an address.
    ///
    /// # Errors
    /// Words for people when it cannot be made.
    pub(super) fn for_url(&self, url: &Url) -> Result<Client, String> {
        let (here, plain) = (is_loopback(url), url.scheme() == "http");
        let cell = match (here, plain) {
            (true, true) => &self.here,
            (false, true) => &self.plain,
            (false, false) => &self.tls,
            (true, false) => &self.tls_here,
        };
        cell.get_or_init(|| self.make(here, plain)).clone()
    }

    fn make(&self, here: bool, plain: bool) -> Result<Client, String> {
        // Fails only when a provider is installed already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_max_idle_per_host(self.idle_max)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("ostler/", env!("CARGO_PKG_VERSION")));
        if here {
            builder = builder.no_proxy();
        }
        if plain {
            builder = builder.tls_certs_only([]);
        }
        let hint = if plain { "" } else { "; https needs the system's CA certificates" };
        builder.build().map_err(|error| format!("cannot prepare requests: {}{hint}", root_cause(&error)))
    }
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The last of an error's causes: the only one that says what happened, and none that names an address.
pub(super) fn root_cause(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
