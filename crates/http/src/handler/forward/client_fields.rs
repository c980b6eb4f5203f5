//! Header fields about the client and its request for the server: X-Forwarded-For, -Host and -Proto, and Forwarded
//! (RFC 7239); Via (RFC 9110, section 7.6.3); and the trace (W3C Trace Context).
//!
//! All are built from verified facts. If the request came from a trusted proxy, the entries that trusted proxies
//! wrote are kept, beginning with the client's. The client may have forged everything before them.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use wire::http::forwarding::{
    forwarded_elements, forwarded_parameter, is_client_address_field, is_path_override_field, is_same_field,
    parse_node, via_passes, x_forwarded_for_entries,
};
use wire::http::trace_context::{TRACEPARENT, TRACESTATE};
use wire::http::{FieldSpan, Fields, Host, KnownField, Request, Version};

use super::request::host_and_port;
use crate::config::{ClientFields, ForwardedField, Intermediary};
use crate::handler::{Proxied, Routed};
use crate::log::{LogClient, push_address};

const X_FORWARDED: &[u8] = b"x-forwarded-";

/// Scheme of the request on our connection.
fn scheme(routed: &Routed<'_>) -> &'static str {
    if routed.tls.is_some() { "https" } else { "http" }
}

/// Scheme of the request at the first trusted proxy, if the proxies report it.
pub(crate) fn reported_scheme<'a>(routed: &Routed<'a>) -> Option<&'a [u8]> {
    Earlier::of(routed, routed.proxied?).scheme
}

/// True for fields that only Tailcoat sets, so that a client can't forge them. That includes Proxy, which CGI
/// programs take for a setting (httpoxy, CVE-2016-5385). Underscores count as hyphens, because CGI does not tell them
/// apart. Fields from the configuration pass.
pub(super) fn is_ours(field: &FieldSpan, routed: &Routed<'_>, client_fields: ClientFields) -> bool {
    let name = field.name.of(routed.request.bytes);
    match name.len() {
        10 | 11 if routed.trace.is_some() && is_trace_field(name) => true,
        _ if field.is_set_here => false,
        5 => is_same_field(name, b"proxy"),
        9.. if client_fields == ClientFields::Keep => false,
        9 if is_same_field(name, b"forwarded") => true,
        // A trusted proxy may set these.
        _ if is_client_address_field(name) || is_path_override_field(name) => routed.proxied.is_none(),
        15.. if is_same_field(&name[..X_FORWARDED.len()], X_FORWARDED) => {
            // Frameworks believe more of them: -Port, -Prefix, -Ssl. A trusted proxy may set those.
            routed.proxied.is_none()
                || [&b"for"[..], b"host", b"proto"].iter().any(|own| is_same_field(&name[X_FORWARDED.len()..], own))
        }
        _ => false,
    }
}

/// Adds the fields about the client, except those that the configuration sets or removes.
pub(in crate::handler) fn push_client_fields(routed: &Routed<'_>, which: ClientFields, fields: &mut Fields) {
    let (legacy, standard) = match which {
        ClientFields::XForwarded => (true, false),
        ClientFields::Forwarded => (false, true),
        ClientFields::Both => (true, true),
        ClientFields::Keep | ClientFields::None => return,
    };
    let earlier = routed.proxied.map_or_else(Earlier::default, |proxied| Earlier::of(routed, proxied));
    let is_due = |name: &str| !is_decided(name, routed);
    if legacy && is_due("X-Forwarded-For") {
        fields.push_with("X-Forwarded-For", |value| earlier.write_x_forwarded_for(routed, value));
    }
    if legacy && is_due("X-Forwarded-Host") {
        let host = earlier.host.unwrap_or_else(|| host_and_port(routed));
        if !host.is_empty() {
            fields.push("X-Forwarded-Host", host);
        }
    }
    if legacy && is_due("X-Forwarded-Proto") {
        fields.push("X-Forwarded-Proto", earlier.scheme.unwrap_or(scheme(routed).as_bytes()));
    }
    if standard && is_due("Forwarded") {
        fields.push("Forwarded", earlier.forwarded(routed));
    }
}

/// True if the configuration sets or removes this field.
fn is_decided(name: &str, routed: &Routed<'_>) -> bool {
    let Request { head, bytes } = routed.request;
    let set_here = head.fields.iter().filter(|field| field.is_set_here).map(|field| field.name);
    set_here.chain(head.withheld.iter().copied()).any(|other| is_same_field(other.of(bytes), name.as_bytes()))
}

/// Information from trusted proxies.
#[derive(Default)]
struct Earlier<'a> {
    /// Entries from the client to the proxy before the last, as they were in the field.
    entries: Vec<&'a [u8]>,
    is_standard: bool,
    /// Host that the client asked for.
    host: Option<&'a [u8]>,
    scheme: Option<&'a [u8]>,
}

impl<'a> Earlier<'a> {
    fn of(routed: &Routed<'a>, proxied: Proxied) -> Self {
        let request = &routed.request;
        let is_standard = proxied.field == ForwardedField::Forwarded;
        let mut entries = if is_standard {
            forwarded_elements(request.field_lines_by_name(b"forwarded"))
        } else {
            x_forwarded_for_entries(request.field_lines_by_name(b"x-forwarded-for"))
        };
        entries.drain(..entries.len().saturating_sub(proxied.entries));
        let reported = |name: &str, legacy_name: &'static [u8]| {
            if is_standard {
                return forwarded_parameter(entries.first()?, name);
            }
            let mut lines = request.field_lines_by_name(legacy_name);
            // Several lines would be from client and proxy, in unknown order.
            lines.next().filter(|_| lines.next().is_none())
        };
        let is_host = |host: &&[u8]| !host.is_empty() && Host::parse(host).is_ok();
        let is_scheme = |scheme: &&[u8]| [&b"http"[..], b"https"].iter().any(|one| scheme.eq_ignore_ascii_case(one));
        let host = reported("host", b"x-forwarded-host").filter(is_host);
        let scheme = reported("proto", b"x-forwarded-proto").filter(is_scheme);
        Self { entries, is_standard, host, scheme }
    }

    /// Addresses of the entries. Each entry has one; otherwise the list would not be trusted.
    fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        let nodes = self.entries.iter().filter_map(|entry| match self.is_standard {
            true => forwarded_parameter(entry, "for"),
            false => Some(*entry),
        });
        nodes.filter_map(parse_node)
    }

    fn write_x_forwarded_for(&self, routed: &Routed<'_>, value: &mut Vec<u8>) {
        for address in self.addresses() {
            push_address(value, address.ip());
            value.extend_from_slice(b", ");
        }
        match peer(routed) {
            Some(peer) => push_address(value, peer),
            None => value.extend_from_slice(b"unix"),
        }
    }

    fn forwarded(&self, routed: &Routed<'_>) -> Vec<u8> {
        let mut elements: Vec<Vec<u8>> = if self.is_standard {
            self.entries.iter().map(|entry| entry.to_vec()).collect()
        } else {
            let asked = |index| if index == 0 { (self.host, self.scheme) } else { (None, None) };
            let addresses = self.addresses().enumerate();
            addresses.map(|(index, address)| element(Some(address.ip()), asked(index))).collect()
        };
        let host = Some(host_and_port(routed)).filter(|host| !host.is_empty());
        elements.push(element(peer(routed), (host, Some(scheme(routed).as_bytes()))));
        elements.join(&b", "[..])
    }
}

/// Address of the peer on our connection: the client, or a proxy; `None` for a unix socket.
fn peer(routed: &Routed<'_>) -> Option<IpAddr> {
    match routed.proxied.map_or(routed.client, |proxied| proxied.peer) {
        LogClient::Ip(address) => Some(address.ip().to_canonical()),
        LogClient::Unix => None,
    }
}

/// Builds an element of Forwarded (RFC 7239, section 4).
fn element(node: Option<IpAddr>, (host, scheme): (Option<&[u8]>, Option<&[u8]>)) -> Vec<u8> {
    let mut element = match node {
        Some(IpAddr::V4(address)) => format!("for={address}"),
        // Brackets and colons are not allowed in a token (section 6).
        Some(IpAddr::V6(address)) => format!("for=\"[{address}]\""),
        None => "for=unknown".to_owned(),
    };
    // A parsed host has no quote, backslash, control byte or non-ASCII byte.
    if let Some(host) = host {
        let _ = write!(element, ";host=\"{}\"", String::from_utf8_lossy(host));
    }
    if let Some(scheme) = scheme {
        let _ = write!(element, ";proto={}", String::from_utf8_lossy(scheme));
    }
    element.into_bytes()
}

/// True for `traceparent` and `tracestate`.
pub(in crate::handler) fn is_trace_field(name: &[u8]) -> bool {
    [TRACEPARENT, TRACESTATE].iter().any(|known| is_same_field(name, known.as_bytes()))
}

/// Adds the fields of the request's trace, for another server or a script (`is_elsewhere`), or for a local module.
pub(in crate::handler) fn push_trace_fields(routed: &Routed<'_>, is_elsewhere: bool, fields: &mut Fields) {
    let Some(trace) = routed.trace else { return };
    fields.push(TRACEPARENT, if is_elsewhere { trace.upstream_traceparent() } else { trace.local_traceparent() });
    if !trace.state().is_empty() {
        fields.push(TRACESTATE, trace.state());
    }
}

/// Adds an entry of this name to Via, after the request's own entries.
pub(super) fn push_via(routed: &Routed<'_>, name: &str, fields: &mut Fields) {
    fields.push_with("Via", |via| {
        for earlier in routed.request.field_lines(KnownField::Via).filter(|value| !value.is_empty()) {
            via.extend_from_slice(earlier);
            via.extend_from_slice(b", ");
        }
        via.extend_from_slice(match routed.request.head.version {
            Version::Http10 => b"1.0 ",
            Version::Http11 => b"1.1 ",
            Version::Http2 => b"2 ",
            Version::Http3 => b"3 ",
        });
        via.extend_from_slice(name.as_bytes());
    });
}

/// True if proxies of our name have forwarded a request so often that it must be a loop. Sites that forward to other
/// sites of the same server, and chained servers, need some passes each.
pub(super) fn is_loop(routed: &Routed<'_>, intermediary: &Intermediary) -> bool {
    routed.request.head.has(KnownField::Via)
        && via_passes(routed.request.field_lines(KnownField::Via), intermediary.via_name.as_bytes())
            >= intermediary.via_passes_max
}
