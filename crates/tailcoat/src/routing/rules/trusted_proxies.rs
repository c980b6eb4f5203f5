//! Who the client is behind proxies that are trusted.

use std::net::{IpAddr, SocketAddr};

use wire::http::Request;

use super::AddressSet;
use crate::config::{ClientPattern, ForwardedField, unmapped};
use crate::log::Client;

/// Proxies whose word is taken, and where they give it.
#[derive(Debug)]
pub struct TrustedProxies {
    proxies: AddressSet,
    field: ForwardedField,
}

impl TrustedProxies {
    /// These; `None` if there is none.
    pub fn new(patterns: &[ClientPattern], field: ForwardedField) -> Option<Self> {
        let proxies = AddressSet::new(patterns);
        (!proxies.is_empty()).then_some(Self { proxies, field })
    }

    /// Whether this is one of them.
    pub fn has(&self, peer: Client) -> bool {
        self.proxies.has(peer)
    }

    /// The client of a request that came from `peer`: each proxy adds at the end whom it got the request from, so that the
    /// list is read backwards, as far as whoever wrote an entry is trusted.
    pub fn client(&self, peer: Client, request: &Request<'_>) -> Client {
        let mut client = peer;
        let entries = match self.field {
            ForwardedField::XForwardedFor => entries_of_x_forwarded_for(request),
            ForwardedField::Forwarded => entries_of_forwarded(request),
        };
        for entry in entries.into_iter().rev() {
            if !self.has(client) {
                break;
            }
            // What is no address (`unknown`, or a name made up; RFC 7239, section 6) tells no more than its writer.
            let Some(address) = parse_node(entry) else { break };
            client = Client::Ip(address);
        }
        client
    }
}

fn lines<'a>(request: &Request<'a>, name: &'static [u8]) -> impl Iterator<Item = &'a [u8]> {
    let bytes = request.bytes;
    let fields = request.head.fields.iter().filter(move |field| field.name.of(bytes).eq_ignore_ascii_case(name));
    fields.map(move |field| field.value.of(bytes))
}

fn entries_of_x_forwarded_for<'a>(request: &Request<'a>) -> Vec<&'a [u8]> {
    lines(request, b"x-forwarded-for")
        .flat_map(|line| line.split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        .filter(|entry| !entry.is_empty())
        .collect()
}

/// The `for` of each element (RFC 7239, section 4); empty where there is none.
fn entries_of_forwarded<'a>(request: &Request<'a>) -> Vec<&'a [u8]> {
    lines(request, b"forwarded")
        .flat_map(|line| split_unquoted(line, b','))
        .map(<[u8]>::trim_ascii)
        .filter(|element| !element.is_empty())
        .map(|element| {
            let mut pairs = split_unquoted(element, b';').into_iter().map(<[u8]>::trim_ascii);
            let found = pairs.find(|pair| pair.get(..4).is_some_and(|name| name.eq_ignore_ascii_case(b"for=")));
            let value = found.map_or(&b""[..], |pair| &pair[4..]);
            // No address needs an escape in a quoted-string.
            value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value)
        })
        .collect()
}

/// Splits where the separator is not in a quoted-string (RFC 9110, section 5.6.4).
fn split_unquoted(text: &[u8], separator: u8) -> Vec<&[u8]> {
    let (mut pieces, mut start, mut is_quoted, mut is_escaped) = (Vec::new(), 0, false, false);
    for (at, &byte) in text.iter().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            _ if byte == separator && !is_quoted => {
                pieces.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    pieces.push(&text[start..]);
    pieces
}

/// `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]`, `[2001:db8::1]:80`. Without a port it is 0.
fn parse_node(node: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(node).ok()?;
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let address = match bare.parse::<IpAddr>() {
        Ok(address) if bare.len() == text.len() || address.is_ipv6() => SocketAddr::new(address, 0),
        _ => text.parse().ok()?,
    };
    Some(SocketAddr::new(unmapped(address.ip()), address.port()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::Network;
    use crate::routing::rules::tests::TestRequest;

    fn trusted(field: ForwardedField) -> TrustedProxies {
        let network = |text: &str, bits| ClientPattern::Network(Network::new(text.parse().unwrap(), bits).unwrap());
        TrustedProxies::new(&[network("10.0.0.0", 8), network("fd00::", 8)], field).unwrap()
    }

    fn client(field: ForwardedField, peer: &str, fields: &str) -> String {
        let request = TestRequest::new(&format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n"));
        let peer = Client::Ip(SocketAddr::new(peer.parse().unwrap(), 1));
        match trusted(field).client(peer, &request.routed().request) {
            Client::Ip(address) => address.ip().to_string(),
            Client::Unix => "unix".into(),
        }
    }

    #[test]
    fn x_forwarded_for() {
        for (peer, fields, expect) in [
            ("192.0.2.9", "X-Forwarded-For: 192.0.2.1\r\n", "192.0.2.9"),
            ("10.0.0.1", "", "10.0.0.1"),
            ("10.0.0.1", "X-Forwarded-For: 192.0.2.1\r\n", "192.0.2.1"),
            ("::ffff:10.0.0.1", "X-Forwarded-For: 192.0.2.1\r\n", "192.0.2.1"),
            // What the client made up is before what the proxy saw.
            ("10.0.0.1", "X-Forwarded-For: 127.0.0.1, 192.0.2.1\r\n", "192.0.2.1"),
            ("10.0.0.1", "X-Forwarded-For: 127.0.0.1\r\nX-Forwarded-For: 192.0.2.1\r\n", "192.0.2.1"),
            ("10.0.0.1", "x-forwarded-for: 127.0.0.1, 192.0.2.1 ,10.0.0.2,fd00::1\r\n", "192.0.2.1"),
            ("10.0.0.1", "X-Forwarded-For: 10.0.0.3, 10.0.0.2\r\n", "10.0.0.3"),
            ("10.0.0.1", "X-Forwarded-For: 127.0.0.1, unknown\r\n", "10.0.0.1"),
            ("10.0.0.1", "X-Forwarded-For: 127.0.0.1, nonsense, 10.0.0.2\r\n", "10.0.0.2"),
            ("10.0.0.1", "X-Forwarded-For: , 192.0.2.1, ,\r\n", "192.0.2.1"),
            ("10.0.0.1", "X-Forwarded-For: 192.0.2.1:4711\r\n", "192.0.2.1"),
            ("10.0.0.1", "X-Forwarded-For: 2001:db8::1\r\n", "2001:db8::1"),
            ("10.0.0.1", "X-Forwarded-For: [2001:db8::1]:80\r\n", "2001:db8::1"),
            ("10.0.0.1", "X-Forwarded-For: ::ffff:192.0.2.1\r\n", "192.0.2.1"),
            ("10.0.0.1", "X-Forwarded-For: [192.0.2.1]\r\n", "10.0.0.1"),
            ("10.0.0.1", "Forwarded: for=192.0.2.1\r\n", "10.0.0.1"),
        ] {
            assert_eq!(client(ForwardedField::XForwardedFor, peer, fields), expect, "{peer} {fields}");
        }
    }

    #[test]
    fn forwarded() {
        for (fields, expect) in [
            ("Forwarded: for=192.0.2.1\r\n", "192.0.2.1"),
            ("Forwarded: proto=https;FOR=\"192.0.2.1:80\";by=10.0.0.1\r\n", "192.0.2.1"),
            ("Forwarded: for=\"[2001:db8::1]:80\"\r\n", "2001:db8::1"),
            ("Forwarded: for=127.0.0.1, for=192.0.2.1;by=x, for=10.0.0.2\r\n", "192.0.2.1"),
            ("Forwarded: for=127.0.0.1\r\nForwarded: for=192.0.2.1\r\n", "192.0.2.1"),
            ("Forwarded: for=127.0.0.1;by=\"a, for=192.0.2.1\"\r\n", "127.0.0.1"),
            ("Forwarded: for=127.0.0.1;by=\"a\\\", for=192.0.2.1\"\r\n", "127.0.0.1"),
            ("Forwarded: for=127.0.0.1, proto=http\r\n", "10.0.0.1"),
            ("Forwarded: for=127.0.0.1, for=_hidden\r\n", "10.0.0.1"),
            ("X-Forwarded-For: 192.0.2.1\r\n", "10.0.0.1"),
        ] {
            assert_eq!(client(ForwardedField::Forwarded, "10.0.0.1", fields), expect, "{fields}");
        }
    }

    proptest! {
        /// Whatever clients send, the entry that the last proxy wrote is the client.
        #[test]
        fn what_clients_send_changes_nothing(made_up in "[ -~]{0,60}") {
            let fields = format!("X-Forwarded-For: {made_up}\r\nX-Forwarded-For: 192.0.2.1\r\n");
            prop_assert_eq!(client(ForwardedField::XForwardedFor, "10.0.0.1", &fields), "192.0.2.1");
            let fields = format!("Forwarded: {made_up}\r\nForwarded: for=192.0.2.1\r\n");
            prop_assert_eq!(client(ForwardedField::Forwarded, "10.0.0.1", &fields), "192.0.2.1");
        }
    }
}
