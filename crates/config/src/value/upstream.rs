//! Values about servers that requests are forwarded to.

use std::path::Path;

use super::network::{parse_host, parse_unix_path};
use super::parse::Wrong;
use super::web::is_token;
use crate::model::HostPattern;
use crate::model::upstream::{HashKey, UpstreamServerAddress};

/// Reads where a server is.
pub(crate) fn parse_server_address(text: &str, directory: &Path) -> Result<UpstreamServerAddress, Wrong> {
    if let Some(path) = text.strip_prefix("unix:") {
        return parse_unix_path(path, directory).map(UpstreamServerAddress::Unix);
    }
    let Some((scheme, rest)) = UpstreamScheme::of(text) else {
        let bare = text.split_once("://").map_or(text, |(_, bare)| bare);
        let help = format!(
            "write `\"http://{bare}\"`, or with `https://` or `h2c://`; `\"tcp://{bare}\"` for FastCGI or \
             the like; or `\"unix:PATH\"`"
        );
        return Err(Wrong::help(format!("`{text}` is not a server's URL"), help));
    };
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    if authority.contains(['/', '?', '#', '@']) {
        return Err(Wrong::help(
            format!("`{text}` is not only a server"),
            "write only host and port; requests keep their path and query, and `strip-prefix` removes its beginning",
        ));
    }
    // RFC 3986, section 3.2.2: the colons of an IPv6 address need brackets.
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => match port.parse::<u16>() {
            Ok(port @ 1..) => (host, port),
            _ => return Err(Wrong::new(format!("`{port}` is not a port, which is from 1 to 65535"))),
        },
        _ => match scheme.default_port() {
            Some(port) => (authority, port),
            None => return Err(Wrong::help(format!("`{text}` has no port"), "write `\"tcp://HOST:PORT\"`")),
        },
    };
    if host.contains(':') && !host.starts_with('[') {
        let help = format!("write `\"{}[ADDRESS]:PORT\"`", scheme.prefix());
        return Err(Wrong::help(format!("`{host}` needs brackets"), help));
    }
    match parse_host(host)? {
        HostPattern::Exact(host) => Ok(scheme.address(host, port)),
        HostPattern::Suffix(_) | HostPattern::Prefix(_) => Err(Wrong::new(format!("`{host}` matches many servers"))),
    }
}

/// Protocol over TCP.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UpstreamScheme {
    Http,
    Http2,
    Https,
    Other,
}

impl UpstreamScheme {
    const ALL: [Self; 4] = [Self::Http, Self::Http2, Self::Https, Self::Other];

    /// Scheme of a URL, and the rest.
    fn of(text: &str) -> Option<(Self, &str)> {
        Self::ALL.into_iter().find_map(|scheme| Some((scheme, text.strip_prefix(scheme.prefix())?)))
    }

    fn prefix(self) -> &'static str {
        match self {
            Self::Http => "http://",
            Self::Http2 => "h2c://",
            Self::Https => "https://",
            Self::Other => "tcp://",
        }
    }

    fn default_port(self) -> Option<u16> {
        match self {
            Self::Http | Self::Http2 => Some(80),
            Self::Https => Some(443),
            Self::Other => None,
        }
    }

    fn address(self, host: String, port: u16) -> UpstreamServerAddress {
        match self {
            Self::Http => UpstreamServerAddress::Tcp(host, port),
            Self::Http2 => UpstreamServerAddress::Http2(host, port),
            Self::Https => UpstreamServerAddress::Tls(host, port),
            Self::Other => UpstreamServerAddress::OtherTcp(host, port),
        }
    }
}

/// Reads what requests are forwarded to: the address of a server in its normal form, or the name of an upstream.
pub(super) fn parse_forward_target(text: &str, directory: &Path) -> Result<String, Wrong> {
    if let Some(rest) = text.strip_prefix("tcp://") {
        let help = format!("write `\"http://{rest}\"`; use `fastcgi`, `scgi` or `uwsgi` for other protocols");
        return Err(Wrong::help("`forward` uses HTTP", help));
    }
    parse_target(text, directory)
}

fn parse_target(text: &str, directory: &Path) -> Result<String, Wrong> {
    if text.contains("://") || text.starts_with("unix:") {
        return parse_server_address(text, directory).map(|address| address.to_string());
    }
    if text.is_empty() || text.contains([':', '/']) {
        let is_port = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let help = match text.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && is_port(port) => format!("write `\"http://{text}\"`"),
            _ if text.starts_with('/') => format!("write `\"unix:{text}\"` for a socket"),
            _ => "write `\"http://HOST:PORT\"`, `\"unix:PATH\"`, or the name of an `upstream`".to_owned(),
        };
        return Err(Wrong::help(format!("`{text}` is not a server"), help));
    }
    Ok(text.to_owned())
}

/// Reads who runs scripts: as [`parse_forward_target`], but a host and port are spoken to in another protocol than HTTP.
pub(super) fn parse_gateway_target(text: &str, directory: &Path) -> Result<String, Wrong> {
    if let Some((scheme, rest)) = UpstreamScheme::of(text)
        && scheme != UpstreamScheme::Other
    {
        let help = format!("write `\"tcp://{rest}\"`; use `forward` for HTTP");
        return Err(Wrong::help(format!("`{text}` is an HTTP URL"), help));
    }
    if !text.contains("://") && !text.starts_with("unix:") && text.contains(':') && !text.contains('/') {
        return parse_server_address(&format!("tcp://{text}"), directory).map(|address| address.to_string());
    }
    if text.starts_with('/') {
        let help = format!("write `\"unix:{text}\"`");
        return Err(Wrong::help(format!("`{text}` is a path"), help));
    }
    parse_target(text, directory)
}

/// Reads what Host says: a host with or without a port.
pub(super) fn parse_forward_host(text: &str) -> Result<String, Wrong> {
    match wire::http::Host::parse(text.as_bytes()) {
        Ok(host) if !host.name.is_empty() => Ok(text.to_owned()),
        _ => Err(Wrong::new(format!("`{text}` is not a host"))),
    }
}

/// Reads the name of a protocol (RFC 9110, section 7.8).
pub(super) fn parse_upgrade_protocol(text: &str) -> Result<String, Wrong> {
    if text.eq_ignore_ascii_case("h2c") {
        let help = "rules and logs would not see requests in the tunnel";
        return Err(Wrong::help("HTTP/2 cannot be tunnelled", help));
    }
    if !text.split('/').all(is_token) {
        return Err(Wrong::new(format!("`{text}` is not the name of a protocol")));
    }
    Ok(text.to_owned())
}

/// Reads the pseudonym of a proxy (RFC 9110, section 7.6.3).
pub(super) fn parse_proxy_name(text: &str) -> Result<String, Wrong> {
    if !is_token(text) {
        let help = "use letters, digits, `-`, `.` and `_`";
        return Err(Wrong::help(format!("`{text}` is not a valid name for `Via`"), help));
    }
    Ok(text.to_owned())
}

/// Most bytes of a text that is looked for in content, which are kept until it is whole.
const SEARCH_BYTES_MAX: usize = 1024;

pub(super) fn parse_cookie_name(text: &str) -> Result<String, Wrong> {
    // RFC 6265, section 4.1.1.
    match is_token(text) {
        true => Ok(text.to_owned()),
        false => {
            Err(Wrong::help(format!("`{text}` is not the name of a cookie"), "use letters, digits, `-`, `.` and `_`"))
        }
    }
}

pub(super) fn parse_cookie_test(text: &str) -> Result<(String, Option<String>), Wrong> {
    match text.split_once('=') {
        Some((name, value)) => Ok((parse_cookie_name(name)?, Some(value.to_owned()))),
        None => Ok((parse_cookie_name(text)?, None)),
    }
}

pub(super) fn parse_search_text(text: &str) -> Result<String, Wrong> {
    match text.len() {
        0 => Err(Wrong::new("the text is empty")),
        1..=SEARCH_BYTES_MAX => Ok(text.to_owned()),
        length => Err(Wrong::new(format!("the text has {length} bytes; at most {SEARCH_BYTES_MAX} are possible"))),
    }
}

/// Reads what of a request chooses a server.
pub(super) fn parse_hash_key(text: &str) -> Result<HashKey, Wrong> {
    match text.split_once(':') {
        None if text == "address" => Ok(HashKey::Address),
        Some(("field", name)) if is_token(name) => Ok(HashKey::Field(name.to_owned())),
        // RFC 6265, section 4.1.1: the name of a cookie is a token.
        Some(("cookie", name)) if is_token(name) => Ok(HashKey::Cookie(name.to_owned())),
        _ => Err(Wrong::help(
            format!("`{text}` is not a key for `balance hash`"),
            "write `address`, `\"field:NAME\"` or `\"cookie:NAME\"`",
        )),
    }
}

/// Reads the target of a request in origin form (RFC 9112, section 3.2.1).
pub(super) fn parse_request_target(text: &str) -> Result<String, Wrong> {
    let is_fit = text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
    if !is_fit {
        return Err(Wrong::help(
            format!("`{text}` is not the target of a request"),
            "begin with `/`, and percent-encode spaces and non-ASCII characters",
        ));
    }
    Ok(text.to_owned())
}
