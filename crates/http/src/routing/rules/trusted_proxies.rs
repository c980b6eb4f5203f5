//! Client address of requests that arrive through trusted proxies.

use wire::http::Request;
use wire::http::forwarding::{forwarded_elements, forwarded_parameter, parse_node, x_forwarded_for_entries};

use crate::config::{ClientPattern, ForwardedField};
use crate::handler::Proxied;
use crate::known_clients::AddressSet;
use crate::log::LogClient;

/// Trusted proxies, and the field in which they name the client.
#[derive(Debug)]
pub struct TrustedProxies {
    proxies: AddressSet,
    field: ForwardedField,
}

impl TrustedProxies {
    /// Makes the list of trusted proxies; `None` if it is empty.
    pub fn new(patterns: &[ClientPattern], field: ForwardedField) -> Option<Self> {
        let proxies = AddressSet::new(patterns);
        (!proxies.is_empty()).then_some(Self { proxies, field })
    }

    /// Returns true if this peer is a trusted proxy.
    pub fn has(&self, peer: LogClient) -> bool {
        self.proxies.has(peer)
    }

    /// Returns the client of a request from `peer`, and the trusted part of the field. Each proxy appends the address
    /// that it got the request from. The list is therefore read backwards, as long as the writer of an entry is
    /// trusted.
    pub fn client(&self, peer: LogClient, request: &Request<'_>) -> (LogClient, Proxied) {
        let mut client = peer;
        let mut proxied = Proxied { peer, field: self.field, entries: 0 };
        for entry in self.entries(request).into_iter().rev() {
            if !self.has(client) {
                break;
            }
            // An entry without an address names no client, so its writer counts as the client.
            let Some(address) = parse_node(entry) else { break };
            client = LogClient::Ip(address);
            proxied.entries += 1;
        }
        (client, proxied)
    }

    fn entries<'a>(&self, request: &Request<'a>) -> Vec<&'a [u8]> {
        match self.field {
            ForwardedField::XForwardedFor => x_forwarded_for_entries(request.field_lines_by_name(b"x-forwarded-for")),
            ForwardedField::Forwarded => {
                let elements = forwarded_elements(request.field_lines_by_name(b"forwarded")).into_iter();
                elements.map(|element| forwarded_parameter(element, "for").unwrap_or_default()).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use proptest::prelude::*;

    use super::*;
    use crate::config::Network;
    use crate::routing::rules::tests::RuleTestRequest;

    fn trusted(field: ForwardedField) -> TrustedProxies {
        let network = |text: &str, bits| ClientPattern::Network(Network::new(text.parse().unwrap(), bits).unwrap());
        TrustedProxies::new(&[network("10.0.0.0", 8), network("fd00::", 8)], field).unwrap()
    }

    fn client(field: ForwardedField, peer: &str, fields: &str) -> String {
        let request = RuleTestRequest::new(&format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n"));
        let peer = LogClient::Ip(SocketAddr::new(peer.parse().unwrap(), 1));
        match trusted(field).client(peer, &request.routed().request).0 {
            LogClient::Ip(address) => address.ip().to_string(),
            LogClient::Unix => "unix".into(),
        }
    }

    #[test]
    fn x_forwarded_for() {
        for (peer, fields, expect) in [
            ("192.0.2.9", "X-Forwarded-For: 192.0.2.1\r\n", "192.0.2.9"),
            ("10.0.0.1", "", "10.0.0.1"),
            ("10.0.0.1", "X-Forwarded-For: 192.0.2.1\r\n", "192.0.2.1"),
            ("::ffff:10.0.0.1", "X-Forwarded-For: 192.0.2.1\r\n", "192.0.2.1"),
            // Entries that the client invents come before the entry that the proxy adds.
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
            ("Forwarded: for=192.0.2.1:80; proto=https;;\r\n", "192.0.2.1"),
            ("Forwarded: for=[2001:db8::1], for=\"10.0.0.2:80\"\r\n", "2001:db8::1"),
            // A quote that the client has left open hides what the proxy appends.
            ("Forwarded: for=10.0.0.9;by=\"a, for=192.0.2.1\r\n", "192.0.2.1"),
            ("Forwarded: for=10.0.0.9;by=\"a, for=\"[2001:db8::1]:80\";proto=http\r\n", "2001:db8::1"),
            ("Forwarded: for=10.0.0.9;by=\"a\\, for=\"192.0.2.1\"\r\n", "192.0.2.1"),
            ("Forwarded: for=10.0.0.9, for=\", for=10.0.0.2\r\n", "10.0.0.2"),
            ("Forwarded: for=10.0.0.9, for=192.0.2.1;by=\"a\r\n", "10.0.0.1"),
        ] {
            assert_eq!(client(ForwardedField::Forwarded, "10.0.0.1", fields), expect, "{fields}");
        }
    }

    proptest! {
        /// For any field that a client sends, the entry of the last proxy names the client.
        #[test]
        fn what_clients_send_changes_nothing(made_up in "[ -~]{0,60}") {
            let fields = format!("X-Forwarded-For: {made_up}\r\nX-Forwarded-For: 192.0.2.1\r\n");
            prop_assert_eq!(client(ForwardedField::XForwardedFor, "10.0.0.1", &fields), "192.0.2.1");
            let fields = format!("Forwarded: {made_up}\r\nForwarded: for=192.0.2.1\r\n");
            prop_assert_eq!(client(ForwardedField::Forwarded, "10.0.0.1", &fields), "192.0.2.1");
            // Most proxies append to the same line.
            let fields = format!("X-Forwarded-For: {made_up}, 192.0.2.1\r\n");
            prop_assert_eq!(client(ForwardedField::XForwardedFor, "10.0.0.1", &fields), "192.0.2.1");
            for element in ["for=192.0.2.1", "for=\"192.0.2.1:80\";proto=https", "proto=http;for=\"192.0.2.1\""] {
                let fields = format!("Forwarded: {made_up}, {element}\r\n");
                prop_assert_eq!(client(ForwardedField::Forwarded, "10.0.0.1", &fields), "192.0.2.1");
            }
        }

        /// Quotes, backslashes and separators change nothing either.
        #[test]
        fn open_quotes_change_nothing(made_up in "[\"\\\\,;= ]?(for=10[.]0[.]0[.]9|by=|\"|\\\\|,|;|=|a){0,12}") {
            for element in ["for=192.0.2.1", "for=\"192.0.2.1:80\";proto=https", "proto=http;for=\"192.0.2.1\""] {
                let fields = format!("Forwarded: {made_up}, {element}\r\n");
                prop_assert_eq!(client(ForwardedField::Forwarded, "10.0.0.1", &fields), "192.0.2.1");
            }
        }
    }
}
