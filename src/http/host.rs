//! Which hosts a request may be meant for, and which pages may send any: the wall against DNS rebinding and cross-site requests.
//!
//! It stands before authentication. Loopback names are allowed with any port; other names are the operator's to allow.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::Http;
use super::error::{ApiError, ErrorCode};

const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// The hosts that are allowed.
#[derive(Clone, Debug, Default)]
pub struct AllowedHosts {
    /// Lower case; with a port where the operator gave one.
    public: Vec<(String, Option<u16>)>,
}

/// A host as it stands in a header: its name in lower case, and its port.
type Named = (String, Option<u16>);

impl AllowedHosts {
    /// The loopback names and the operator's: `name` for any port, or `name:port`.
    ///
    /// # Errors
    /// The first entry that is no host.
    pub fn new(public: &[String]) -> Result<Self, String> {
        let parse = |entry: &String| parse_host(entry).ok_or_else(|| entry.clone());
        Ok(Self { public: public.iter().map(parse).collect::<Result<_, _>>()? })
    }

    fn allows(&self, (name, port): &Named) -> bool {
        let public = |(allowed, at): &Named| allowed == name && (at.is_none() || at == port);
        LOOPBACK.contains(&name.as_str()) || self.public.iter().any(public)
    }

    /// Judges a request by its Host header, its target and its Origin header.
    pub fn admits(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        let Some(host) = only(headers.get_all(header::HOST)).and_then(parse_host) else { return false };
        let target_agrees =
            uri.authority().is_none_or(|target| parse_host(target.as_str()) == Some(host.clone()));
        let origin_allowed = !headers.contains_key(header::ORIGIN)
            || only(headers.get_all(header::ORIGIN))
                .and_then(origin_host)
                .is_some_and(|origin| self.allows(&origin));
        self.allows(&host) && target_agrees && origin_allowed
    }
}

/// The value of a header that must stand once.
fn only<'a>(values: impl IntoIterator<Item = &'a HeaderValue>) -> Option<&'a str> {
    let mut values = values.into_iter();
    let first = values.next()?;
    if values.next().is_some() { None } else { first.to_str().ok() }
}

/// `name`, `name:port`, `[v6]` or `[v6]:port`, and nothing else: no user, no path, no trailing dot, no empty port.
fn parse_host(text: &str) -> Option<Named> {
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (inner, after) = rest.split_once(']')?;
            let address: std::net::Ipv6Addr = inner.parse().ok()?;
            let port = if after.is_empty() { None } else { Some(after.strip_prefix(':')?) };
            // One spelling only: `[0:0::1]` is not how a client that means us writes it.
            (inner.eq_ignore_ascii_case(&address.to_string()).then(|| format!("[{address}]"))?, port)
        }
        None => {
            let (name, port) = text.split_once(':').map_or((text, None), |(name, port)| (name, Some(port)));
            let fits =
                |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.' || byte == b'_';
            let sound = !name.is_empty() && !name.ends_with('.') && name.bytes().all(fits);
            (sound.then(|| name.to_ascii_lowercase())?, port)
        }
    };
    let port = match port {
        Some(digits) if digits.len() <= 5 && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some(digits.parse().ok().filter(|port| *port > 0)?)
        }
        Some(_) => return None,
        None => None,
    };
    Some((name, port))
}

/// The host of an origin; `null` has none.
fn origin_host(origin: &str) -> Option<Named> {
    parse_host(origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"))?)
}

/// The layer.
pub async fn layer(State(http): State<Http>, request: Request, next: Next) -> Response {
    if http.hosts.admits(request.uri(), request.headers()) {
        return next.run(request).await;
    }
    let words = "the Host header must name this service, and an Origin header an allowed page";
    ApiError::new(ErrorCode::HostNotAllowed, words).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts() -> AllowedHosts {
        AllowedHosts::new(&["Ostler.example.com".into(), "api.example.com:8443".into()]).unwrap()
    }

    fn admits(target: &str, headers: &[(header::HeaderName, &str)]) -> bool {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name, HeaderValue::from_str(value).unwrap());
        }
        hosts().admits(&target.parse().unwrap(), &map)
    }

    fn admits_host(host: &str) -> bool {
        admits("/", &[(header::HOST, host)])
    }

    #[test]
    fn sec_03_the_hosts_of_this_service_are_admitted() {
        for good in [
            "localhost",
            "LOCALHOST",
            "localhost:7460",
            "127.0.0.1",
            "127.0.0.1:65535",
            "[::1]",
            "[::1]:7460",
            "ostler.example.com",
            "OSTLER.example.COM:443",
            "api.example.com:8443",
        ] {
            assert!(admits_host(good), "{good}");
        }
    }

    #[test]
    fn sec_03_every_other_host_is_refused() {
        for hostile in [
            "",
            " ",
            "attacker.test",
            "attacker.test:80",
            "localhost.attacker.test",
            "localhostattacker.test",
            "attacker-localhost",
            "127.0.0.1.nip.io",
            "127.0.0.1.nip",
            "1127.0.0.1",
            "127.0.0.11",
            "127.0.0.2",
            "127.1",
            "0x7f.0.0.1",
            "2130706433",
            "0.0.0.0",
            "[::]",
            "[::ffff:127.0.0.1]",
            "[0:0:0:0:0:0:0:1]",
            "[::1",
            "::1",
            "[::1]x",
            "[::1]:",
            "[::1%25eth0]",
            "localhost.",
            "localhost:",
            "localhost:0",
            "localhost:99999",
            "localhost:+80",
            "localhost:80:80",
            "localhost:8o",
            "localhost@attacker.test",
            "attacker.test@localhost",
            "user:pass@localhost",
            "localhost/attacker.test",
            "localhost?x",
            "localhost#x",
            "localhost,attacker.test",
            "localhost attacker.test",
            "http://localhost",
            "api.example.com",
            "api.example.com:443",
            "evil.ostler.example.com",
            "example.com",
            "*",
        ] {
            assert!(!admits_host(hostile), "{hostile:?}");
        }
    }

    #[test]
    fn sec_03_a_missing_a_second_or_a_contradicted_host_is_refused() {
        assert!(!admits("/", &[]));
        assert!(!admits("/", &[(header::HOST, "localhost"), (header::HOST, "localhost")]));
        assert!(!admits("/", &[(header::HOST, "localhost"), (header::HOST, "attacker.test")]));
        assert!(!admits("http://attacker.test/", &[(header::HOST, "localhost")]));
        assert!(!admits("http://localhost/", &[(header::HOST, "attacker.test")]));
        assert!(!admits("http://x@localhost/", &[(header::HOST, "localhost")]));
        assert!(admits("http://localhost/", &[(header::HOST, "localhost")]));
    }

    #[test]
    fn sec_03_a_page_of_another_origin_is_refused() {
        let with = |origins: &[&str]| {
            let mut headers = vec![(header::HOST, "localhost:7460")];
            headers.extend(origins.iter().map(|origin| (header::ORIGIN, *origin)));
            admits("/", &headers)
        };
        for good in
            ["http://localhost:7460", "http://127.0.0.1", "https://ostler.example.com", "http://[::1]:1"]
        {
            assert!(with(&[good]), "{good}");
        }
        for hostile in [
            "null",
            "",
            "http://attacker.test",
            "https://localhost.attacker.test",
            "http://localhost/",
            "http://localhost@attacker.test",
            "file://",
            "ftp://localhost",
            "localhost",
            "chrome-extension://localhost",
            "http://localhost http://attacker.test",
        ] {
            assert!(!with(&[hostile]), "{hostile:?}");
        }
        assert!(!with(&["http://localhost", "http://localhost"]), "two origins");
    }

    #[test]
    fn an_operators_entry_that_is_no_host_is_named() {
        assert_eq!(AllowedHosts::new(&["https://x.test".into()]).unwrap_err(), "https://x.test");
    }
}
