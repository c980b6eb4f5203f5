//! Attributes of spans for a request and its forwarding, by the semantic conventions for HTTP of OpenTelemetry.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use wire::http::trace_context::{SpanId, TraceParent};
use wire::http::{KnownField, Method, Request, Status, Version};

use super::otlp::{self, Attribute};
use super::{ClientSpan, ServerSpan};
use crate::log::LogClient;

/// Query parameters that grant access; the conventions name them.
const SECRET_PARAMETERS: [&[u8]; 4] = [b"AWSAccessKeyId", b"Signature", b"sig", b"X-Goog-Signature"];

/// Span in the queue to the collector.
pub(super) struct TraceSpan {
    /// Ids of the trace and of the span.
    pub(super) context: TraceParent,
    /// Parent span; `None` for the root of the trace.
    pub(super) parent_id: Option<SpanId>,
    /// True if the parent is in another process.
    pub(super) is_remote_parent: bool,
    pub(super) state: Vec<u8>,
    pub(super) detail: SpanDetail,
    pub(super) start_unix_us: u64,
    pub(super) end_unix_us: u64,
}

/// Attributes and events of a span.
pub(super) struct SpanDetail {
    pub(super) name: String,
    pub(super) kind: otlp::SpanKind,
    pub(super) attributes: Vec<Attribute>,
    /// Events with their time in microseconds after the start.
    pub(super) events: Vec<(&'static str, u64)>,
    pub(super) is_error: bool,
}

impl SpanDetail {
    pub(super) fn of_server(span: &ServerSpan<'_>, bytes_max: usize) -> Self {
        let mut attributes = Attributes { list: Vec::with_capacity(16), bytes_max };
        let name = attributes.push_method(&span.request);
        let (path, query) = path_and_query(span.request.target());
        attributes.push_text("url.path", path);
        if let Some(query) = query {
            attributes.push_text("url.query", &redacted(query));
        }
        attributes.push_text("url.scheme", if span.is_tls { b"https" } else { b"http" });
        attributes.push_text("network.protocol.version", version_name(span.request.head.version));
        if !span.host.is_empty() {
            attributes.push_text("server.address", span.host);
        }
        if let Some(port) = span.request.field(KnownField::Host).and_then(port_of) {
            attributes.push_number("server.port", port.into());
        }
        match span.client {
            LogClient::Ip(address) => attributes.push_text("client.address", unmapped(address).to_string().as_bytes()),
            LogClient::Unix => attributes.push_text("network.transport", b"unix"),
        }
        if let LogClient::Ip(address) = span.peer {
            attributes.push_text("network.peer.address", unmapped(address).to_string().as_bytes());
            attributes.push_number("network.peer.port", address.port().into());
        }
        if let Some(agent) = span.request.field(KnownField::UserAgent) {
            attributes.push_text("user_agent.original", agent);
        }
        attributes.push_number("http.response.status_code", span.status.code().into());
        attributes.push_number("http.response.body.size", span.content_bytes as i64);
        // An error of the client is not an error of the server.
        let is_error = span.status.code() >= 500 || !span.is_complete;
        if span.status.code() >= 500 {
            attributes.push_text("error.type", span.status.code().to_string().as_bytes());
        } else if !span.is_complete {
            attributes.push_text("error.type", b"aborted");
        }
        Self { name, kind: otlp::SpanKind::Server, attributes: attributes.list, events: Vec::new(), is_error }
    }

    pub(super) fn of_client(span: &ClientSpan<'_>, bytes_max: usize) -> Self {
        let mut attributes = Attributes { list: Vec::with_capacity(8), bytes_max };
        let name = attributes.push_method(&span.request);
        let upstream = &span.upstream;
        attributes.push_server(upstream.server);
        if upstream.tries > 1 {
            attributes.push_number("http.request.resend_count", i64::from(upstream.tries) - 1);
        }
        let status = upstream.status.map(Status::code);
        if let Some(status) = status {
            attributes.push_number("http.response.status_code", status.into());
        }
        let is_error = status.is_none_or(|status| status >= 400);
        if is_error {
            let kind = status.map_or(Cow::Borrowed("no_response"), |status| status.to_string().into());
            attributes.push_text("error.type", kind.as_bytes());
        }
        let happened = [("connected", upstream.connect_us), ("response head", upstream.first_byte_us)];
        let events = happened.into_iter().filter_map(|(name, us)| Some((name, us?))).collect();
        Self { name, kind: otlp::SpanKind::Client, attributes: attributes.list, events, is_error }
    }
}

struct Attributes {
    list: Vec<Attribute>,
    bytes_max: usize,
}

impl Attributes {
    fn push_text(&mut self, name: &'static str, value: &[u8]) {
        let text = String::from_utf8_lossy(&value[..value.len().min(self.bytes_max)]);
        self.list.push(Attribute::text(name, text.into_owned()));
    }

    fn push_number(&mut self, name: &'static str, value: i64) {
        self.list.push(Attribute::number(name, value));
    }

    /// Appends the method. An unknown one becomes an attribute of its own, so that clients cannot create any number of
    /// span names. Returns the name.
    fn push_method(&mut self, request: &Request<'_>) -> String {
        let name = request.method_name();
        if request.method() == Method::Other {
            self.push_text("http.request.method", b"_OTHER");
            self.push_text("http.request.method_original", name);
            return "HTTP".to_owned();
        }
        self.push_text("http.request.method", name);
        String::from_utf8_lossy(name).into_owned()
    }

    /// Appends the address of a server in the form of configurations and logs: `http://HOST:PORT`, `unix:PATH`, or a
    /// name.
    fn push_server(&mut self, server: &str) {
        if let Some(path) = server.strip_prefix("unix:") {
            self.push_text("server.address", path.as_bytes());
            return self.push_text("network.transport", b"unix");
        }
        let authority = server.split_once("://").map_or(server, |(_, authority)| authority);
        match authority.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>())) {
            Some((host, Ok(port))) => {
                self.push_text("server.address", host.trim_matches(['[', ']']).as_bytes());
                self.push_number("server.port", port.into());
            }
            _ => self.push_text("server.address", authority.as_bytes()),
        }
    }
}

/// Path and query of a target in any form.
fn path_and_query(target: &[u8]) -> (&[u8], Option<&[u8]>) {
    let from = match memchr::memmem::find(target, b"://") {
        Some(at) if !target.starts_with(b"/") => {
            let authority = &target[at + 3..];
            &authority[authority.iter().position(|byte| b"/?".contains(byte)).unwrap_or(authority.len())..]
        }
        _ => target,
    };
    match memchr::memchr(b'?', from) {
        Some(at) => (&from[..at], Some(&from[at + 1..])),
        None => (from, None),
    }
}

/// Query with secret values replaced.
fn redacted(query: &[u8]) -> Cow<'_, [u8]> {
    let is_secret = |pair: &[u8]| {
        let name = pair.split(|&byte| byte == b'=').next().unwrap_or_default();
        name.len() < pair.len() && SECRET_PARAMETERS.contains(&name)
    };
    let pairs = || query.split(|&byte| byte == b'&');
    if !pairs().any(is_secret) {
        return query.into();
    }
    let redacted = pairs().map(|pair| match is_secret(pair) {
        true => [pair.split(|&byte| byte == b'=').next().unwrap_or_default(), b"=REDACTED"].concat(),
        false => pair.to_vec(),
    });
    redacted.collect::<Vec<_>>().join(&b"&"[..]).into()
}

/// Port of a Host field.
fn port_of(host: &[u8]) -> Option<u16> {
    let at = memchr::memrchr(b':', host)?;
    str::from_utf8(&host[at + 1..]).ok()?.parse().ok()
}

fn unmapped(address: SocketAddr) -> IpAddr {
    address.ip().to_canonical()
}

fn version_name(version: Version) -> &'static [u8] {
    match version {
        Version::Http10 => b"1.0",
        Version::Http11 => b"1.1",
        Version::Http2 => b"2",
        Version::Http3 => b"3",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets() {
        let check = |target: &str, path: &str, query: Option<&str>| {
            let expect = (path.as_bytes(), query.map(str::as_bytes));
            assert_eq!(path_and_query(target.as_bytes()), expect, "{target}");
        };
        check("/a/b", "/a/b", None);
        check("/a?b=c?d", "/a", Some("b=c?d"));
        check("/?u=http://h/", "/", Some("u=http://h/"));
        check("http://h:80/a?b", "/a", Some("b"));
        check("http://h?b", "", Some("b"));
        check("http://h", "", None);
        check("*", "*", None);
    }

    #[test]
    fn secrets_of_queries() {
        let check = |query: &str, expect: &str| {
            assert_eq!(String::from_utf8_lossy(&redacted(query.as_bytes())), expect, "{query}");
        };
        check("a=b&c", "a=b&c");
        check("a=b&sig=1234&c", "a=b&sig=REDACTED&c");
        check("Signature=a=b&X-Goog-Signature=", "Signature=REDACTED&X-Goog-Signature=REDACTED");
        check("sig&signature=1", "sig&signature=1");
    }

    #[test]
    fn servers() {
        let check = |server: &str, expect: &[(&str, &str)]| {
            let mut attributes = Attributes { list: Vec::new(), bytes_max: 100 };
            attributes.push_server(server);
            let found: Vec<_> = attributes.list.iter().map(Attribute::to_text).collect();
            let expect: Vec<_> = expect.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
            assert_eq!(found, expect, "{server}");
        };
        check("http://127.0.0.1:8080", &[("server.address", "127.0.0.1"), ("server.port", "8080")]);
        check("https://[::1]:443", &[("server.address", "::1"), ("server.port", "443")]);
        check("unix:/run/app", &[("server.address", "/run/app"), ("network.transport", "unix")]);
        check("app", &[("server.address", "app")]);
    }
}
