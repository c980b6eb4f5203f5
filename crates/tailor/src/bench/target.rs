//! URLs of requests, and the addresses to connect to.

use std::net::{SocketAddr, ToSocketAddrs};

use crate::engine::TargetAddress;

use super::LoadOptions;

/// Parts of a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Url {
    pub(crate) is_tls: bool,
    /// True for ws:// and wss://.
    pub(crate) is_web_socket: bool,
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Path and query.
    pub(crate) target: String,
}

impl Url {
    /// Parses `http://host:port/path?query`; without a scheme, it assumes http.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        const SCHEMES: [(&str, bool, bool); 4] =
            [("https://", true, false), ("http://", false, false), ("wss://", true, true), ("ws://", false, true)];
        let known = SCHEMES.iter().find_map(|(scheme, is_tls, is_web_socket)| {
            text.strip_prefix(scheme).map(|rest| (*is_tls, *is_web_socket, rest))
        });
        let (is_tls, is_web_socket, rest) = known.unwrap_or((false, false, text));
        if rest.split(['?', '#']).next().is_some_and(|path| path.contains("://")) {
            return Err(format!("`{text}`: use http://, https://, ws:// or wss://"));
        }
        let rest = rest.split('#').next().unwrap_or_default();
        let split = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(split);
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        // The port follows the last colon, unless that colon is part of an IPv6 address.
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                (host, port.parse().map_err(|_| format!("`{text}`: `{port}` is not a port"))?)
            }
            _ => (authority, if is_tls { 443 } else { 80 }),
        };
        if host.is_empty() || authority.contains('@') {
            return Err(format!("`{text}`: a URL needs a host, and must not name a user"));
        }
        if target.bytes().any(|byte| byte <= b' ' || byte == 0x7f) {
            return Err(format!("`{text}` contains spaces or control characters; percent-encode them (%20)"));
        }
        Ok(Self { is_tls, is_web_socket, host: host.to_owned(), port, target })
    }

    /// Value of the Host field: the host, and the port unless it is the scheme's default.
    pub(crate) fn authority(&self) -> String {
        let default_port = if self.is_tls { 443 } else { 80 };
        if self.port == default_port { self.host.clone() } else { format!("{}:{}", self.host, self.port) }
    }

    /// The host without the brackets of an IPv6 address.
    pub(crate) fn host_name(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }

    pub(crate) fn is_same_server(&self, other: &Self) -> bool {
        (self.is_tls, self.is_web_socket, &self.host, self.port)
            == (other.is_tls, other.is_web_socket, &other.host, other.port)
    }
}

/// Address to connect to: the Unix domain socket, an entry of `--resolve`, or the first that the name resolves to.
pub(crate) fn address(url: &Url, options: &LoadOptions) -> Result<TargetAddress, String> {
    if let Some(path) = &options.unix_socket {
        return Ok(TargetAddress::Unix(path.clone()));
    }
    for entry in &options.resolve {
        let mut parts = entry.splitn(3, ':');
        let (Some(host), Some(port), Some(address)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(format!("--resolve {entry}: write HOST:PORT:ADDRESS"));
        };
        if host == url.host && port.parse() == Ok(url.port) {
            let address = address.trim_start_matches('[').trim_end_matches(']');
            let address = address.parse().map_err(|_| format!("--resolve {entry}: `{address}` is not an address"))?;
            return Ok(TargetAddress::Tcp(SocketAddr::new(address, url.port)));
        }
    }
    let addresses = (url.host_name(), url.port).to_socket_addrs().map_err(|error| format!("{}: {error}", url.host))?;
    addresses.into_iter().next().map(TargetAddress::Tcp).ok_or_else(|| format!("{}: the name has no address", url.host))
}

#[cfg(test)]
mod tests {
    use super::Url;

    #[test]
    fn urls() {
        let url = |is_tls, host: &str, port, target: &str| {
            Some(Url { is_tls, is_web_socket: false, host: host.into(), port, target: target.into() })
        };
        for (text, expect) in [
            ("http://a/", url(false, "a", 80, "/")),
            ("a:81", url(false, "a", 81, "/")),
            ("https://a?b#c", url(true, "a", 443, "/?b")),
            ("http://[::1]:8/x", url(false, "[::1]", 8, "/x")),
            ("http://[::1]/x", url(false, "[::1]", 80, "/x")),
            ("http://127.0.0.1:1/a:b@c", url(false, "127.0.0.1", 1, "/a:b@c")),
            ("http://a/?u=http://b", url(false, "a", 80, "/?u=http://b")),
            ("ftp://a/", None),
            ("http:///x", None),
            ("http://u@a/", None),
            ("http://a:b/", None),
            ("http://a/b c", None),
        ] {
            assert_eq!(Url::parse(text).ok(), expect, "{text}");
        }
        for (text, is_tls, port) in [("ws://a/b", false, 80), ("wss://a/b", true, 443)] {
            let url = Url::parse(text).unwrap();
            assert_eq!((url.is_web_socket, url.is_tls, url.port, &*url.target), (true, is_tls, port, "/b"));
        }
        assert_eq!(Url::parse("https://a:443/").unwrap().authority(), "a");
        assert_eq!(Url::parse("https://a:80/").unwrap().authority(), "a:80");
    }
}
