//! Facts of a request for conditions and values of the expression language.

use std::borrow::Cow;
use std::net::IpAddr;

use expression::{BotFact, Fact, FactSource, TlsFact, unmapped};
use wire::http::{FieldSpan, Status, Version, cookies};

use super::Visit;
use super::target::arguments;
use crate::handler::{Response, Routed};
use crate::log::LogClient;

/// Request as expressions see it.
#[derive(Clone, Copy)]
pub struct RoutedFacts<'r> {
    routed: &'r Routed<'r>,
    path: &'r [u8],
    visit: Option<&'r Visit>,
    response: Option<&'r Response>,
    status: Option<Status>,
}

impl<'r> RoutedFacts<'r> {
    /// Facts of a request.
    pub fn new(routed: &'r Routed<'r>) -> Self {
        Self { routed, path: routed.path, visit: None, response: None, status: None }
    }

    /// Facts with another path, such as another reading of the requested one.
    pub fn with_path(self, path: &'r [u8]) -> Self {
        Self { path, ..self }
    }

    /// Facts with those that rules have found.
    pub fn with_visit(self, visit: &'r Visit) -> Self {
        Self { visit: Some(visit), ..self }
    }

    /// Facts with those of the response.
    pub fn with_response(self, response: &'r Response) -> Self {
        Self { response: Some(response), status: Some(response.status()), ..self }
    }

    /// Facts with the status of a response whose header fields are gone.
    pub fn with_status(self, status: Status) -> Self {
        Self { status: Some(status), ..self }
    }

    fn user(&self) -> &'r [u8] {
        match self.visit {
            Some(visit) => visit.signed_in_user(),
            None => self.routed.link.get().and_then(|link| link.user()).unwrap_or_default(),
        }
    }

    fn log_client(&self) -> LogClient {
        self.visit.map_or(self.routed.client, Visit::client)
    }

    /// Value of a header field; lines of the same name are joined with commas (RFC 9110, section 5.2).
    fn field(&self, name: &str) -> Cow<'r, [u8]> {
        let request = &self.routed.request;
        let is_wanted = |line: &&FieldSpan| line.name.of(request.bytes).eq_ignore_ascii_case(name.as_bytes());
        let mut lines = request.head.fields.iter().filter(is_wanted).map(|line| line.value.of(request.bytes));
        let first = lines.next().unwrap_or_default();
        match lines.next() {
            None => Cow::Borrowed(first),
            Some(second) => {
                let all: Vec<_> = [first, second].into_iter().chain(lines).collect();
                Cow::Owned(all.join(&b", "[..]))
            }
        }
    }
}

impl FactSource for RoutedFacts<'_> {
    fn fact(&self, fact: &Fact) -> Option<Cow<'_, [u8]>> {
        let routed = self.routed;
        Some(Cow::Borrowed(match fact {
            Fact::Method => routed.request.method_name(),
            Fact::Host => routed.host,
            Fact::HostLabel(number) => part(routed.host, b'.', usize::from(*number) - 1),
            Fact::Scheme => routed.scheme().as_bytes(),
            Fact::Path => self.path,
            // A path begins with a slash.
            Fact::PathSegment(number) => part(self.path, b'/', usize::from(*number)),
            Fact::Query => routed.query.unwrap_or_default(),
            Fact::Argument(name) => return argument(routed.query, name.as_bytes()),
            Fact::Field(name) => return Some(self.field(name)),
            Fact::ResponseField(name) => {
                return Some(self.response.map_or(Cow::Borrowed(b""), |response| response.field(name.as_bytes())));
            }
            Fact::Cookie(name) => {
                let values = cookies(&routed.request).filter(|(other, _)| *other == name.as_bytes());
                return single(values.map(|(_, value)| Cow::Borrowed(value)));
            }
            Fact::Client => match self.client() {
                Some(address) => return Some(Cow::Owned(address.to_string().into_bytes())),
                None => b"",
            },
            Fact::User => self.user(),
            Fact::RequestId => self.visit.map_or("", Visit::request_id).as_bytes(),
            Fact::HttpVersion => match routed.request.head.version {
                Version::Http10 => b"1.0",
                Version::Http11 => b"1.1",
                Version::Http2 => b"2",
                Version::Http3 => b"3",
            },
            Fact::Tls(fact) => {
                let record = routed.tls.map(|tls| tls.record()).unwrap_or_default();
                let text = match fact {
                    TlsFact::Version => record.version,
                    TlsFact::CipherSuite => record.cipher_suite,
                    TlsFact::ServerName => record.server_name,
                    TlsFact::Client => record.client,
                };
                text.as_bytes()
            }
            Fact::Bot(fact) => {
                let Some(report) = self.routed.link.bot() else { return Some(Cow::Borrowed(b"")) };
                let text = match fact {
                    BotFact::Class => return Some(Cow::Borrowed(report.class.name().as_bytes())),
                    BotFact::Name => return Some(Cow::Borrowed(report.name.as_deref().unwrap_or_default().as_bytes())),
                    BotFact::Score => report.score.to_string(),
                    BotFact::Signals => report.signal_names(),
                };
                return Some(Cow::Owned(text.into_bytes()));
            }
            Fact::Ja4 => routed.tls.map_or(b"", |tls| tls.ja4().as_bytes()),
            Fact::Http2Fingerprint => routed.tls.map_or(b"", |tls| tls.http2_fingerprint().as_bytes()),
            Fact::Country | Fact::Asn => {
                let found = routed.locations.zip(self.client()).map(|(locations, address)| match fact {
                    Fact::Country => locations.country(address),
                    _ => locations.asn(address),
                });
                return Some(Cow::Owned(found.unwrap_or_default().into_bytes()));
            }
            Fact::CacheStatus => {
                let word = routed.link.get().map_or("", |link| link.forwarding().borrow().cache_status());
                let hit = || self.response.map_or("", Response::hit);
                if word.is_empty() { hit().as_bytes() } else { word.as_bytes() }
            }
            Fact::Status => {
                let status = self.status.map(|status| status.code().to_string()).unwrap_or_default();
                return Some(Cow::Owned(status.into_bytes()));
            }
        }))
    }

    fn client(&self) -> Option<IpAddr> {
        match self.log_client() {
            LogClient::Ip(address) => Some(unmapped(address.ip())),
            LogClient::Unix => None,
        }
    }
}

fn part(text: &[u8], separator: u8, index: usize) -> &[u8] {
    text.split(|byte| *byte == separator).nth(index).unwrap_or_default()
}

/// Value of an argument, decoded; `None` if its encoding is wrong, or if it has several values.
fn argument<'q>(query: Option<&'q [u8]>, name: &[u8]) -> Option<Cow<'q, [u8]>> {
    let mut found = None;
    for (other, value) in arguments(query) {
        if *decoded(other)? != *name {
            continue;
        }
        let value = decoded(value)?;
        if found.get_or_insert_with(|| value.clone()) != &value {
            return None;
        }
    }
    Some(found.unwrap_or_default())
}

/// The only value; `None` if there are several.
fn single<'v>(mut values: impl Iterator<Item = Cow<'v, [u8]>>) -> Option<Cow<'v, [u8]>> {
    let first = values.next().unwrap_or_default();
    values.all(|other| other == first).then_some(first)
}

/// Text of a form's field, decoded; `None` if its encoding is wrong.
pub(super) fn decoded(text: &[u8]) -> Option<Cow<'_, [u8]>> {
    if !text.iter().any(|byte| matches!(byte, b'%' | b'+')) {
        return Some(Cow::Borrowed(text));
    }
    let digit = |byte: &u8| (*byte as char).to_digit(16).map(|digit| digit as u8);
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => digit(bytes.next()?)? << 4 | digit(bytes.next()?)?,
            b'+' => b' ',
            byte => *byte,
        });
    }
    Some(Cow::Owned(out))
}

#[cfg(test)]
mod tests {
    use expression::{Place, parse_value};

    use wire::http::Status;

    use super::*;
    use crate::handler::BuiltResponse;
    use crate::routing::rules::tests::RuleTestRequest;

    #[test]
    fn facts() {
        let head = "GET /a%2fb/c%20d?x=1&y=%41+b&z=1&z=2&w=1&w=1&bad=%zz HTTP/1.1\r\nHost: A.Example:80\r\nX-A: 1\r\nx-a: 2\r\n\
                    Cookie: id=a; lang=de\r\nCookie: id=b\r\n\r\n";
        let request = RuleTestRequest::new(head);
        let routed = request.routed();
        let visit = Visit::for_tests(LogClient::Ip("[::ffff:192.0.2.1]:1".parse().unwrap()), "anna");
        let mut response = BuiltResponse::new(Status::NOT_FOUND);
        response.fields.push("X-B", "1").push("x-b", "2");
        let response = Response::Built(response);
        let facts = RoutedFacts::new(&routed).with_visit(&visit).with_response(&response);
        let check = |text: &str, expect: Option<&str>| {
            let value = parse_value(text, Place::Response).unwrap();
            let found = value.read(&facts, None).ok().map(|value| String::from_utf8_lossy(&value).into_owned());
            assert_eq!(found.as_deref(), expect, "{text}");
        };
        for (name, expect) in [
            ("method", Some("GET")),
            ("host", Some("a.example")),
            ("host.1", Some("a")),
            ("host.3", Some("")),
            ("scheme", Some("http")),
            ("path.2", Some("b")),
            ("path.3", Some("c d")),
            ("path.9", Some("")),
            ("query.x", Some("1")),
            ("query.y", Some("A b")),
            ("query.z", None),
            ("query.w", Some("1")),
            ("query.bad", None),
            ("request.header.X-A", Some("1, 2")),
            ("request.header.None", Some("")),
            ("cookie.lang", Some("de")),
            ("cookie.id", None),
            ("cookie.none", Some("")),
            ("client", Some("192.0.2.1")),
            ("user", Some("anna")),
            ("http_version", Some("1.1")),
            ("tls_version", Some("")),
            ("status", Some("404")),
            ("response.header.X-B", Some("1, 2")),
            ("response.header.X-C", Some("")),
        ] {
            check(&format!("{{{name}}}"), expect);
        }
    }

    #[test]
    fn arguments_of_queries() {
        let check = |query: &str, name: &str, expect: Option<&str>| {
            let found = argument(Some(query.as_bytes()), name.as_bytes());
            assert_eq!(found.as_deref(), expect.map(str::as_bytes), "{query} {name}");
        };
        check("x=1&y=%41+b", "y", Some("A b"));
        check("%78=1", "x", Some("1"));
        check("x=1&x=1", "x", Some("1"));
        check("x=1&x=2", "x", None);
        check("x=1&%78=2", "x", None);
        check("x=%zz", "x", None);
        check("x=%4", "x", None);
        check("y=1", "x", Some(""));
    }
}
