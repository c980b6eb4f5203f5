//! Fields that a proxy must not forward (RFC 9110, section 7.6), and the client's address as earlier proxies state it
//! (X-Forwarded-For, and Forwarded of RFC 7239).

use core::net::{IpAddr, SocketAddr};

/// Returns whether two names are equal to servers that treat `_` and `-` as equal. CGI and its successors map both to
/// the same variable.
pub fn is_same_field(name: &[u8], other: &[u8]) -> bool {
    let normal = |byte: &u8| if *byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    name.len() == other.len() && name.iter().map(normal).eq(other.iter().map(normal))
}

/// Returns whether a field belongs to a connection, so that a proxy must not forward it (RFC 9110, section 7.6.1).
/// Connection may name further ones. Content-Length and Transfer-Encoding are among them, because each hop frames
/// content itself. Underscores count as hyphens ([`is_same_field`]).
pub fn is_hop_by_hop(name: &[u8]) -> bool {
    let names: &[&[u8]] = match name.len() {
        2 => &[b"te"],
        7 => &[b"upgrade"],
        10 => &[b"connection", b"keep-alive"],
        14 => &[b"content-length"],
        16 => &[b"proxy-connection"],
        17 => &[b"transfer-encoding"],
        18 => &[b"proxy-authenticate"],
        19 => &[b"proxy-authorization"],
        _ => return false,
    };
    names.iter().any(|known| is_same_field(name, known))
}

/// Returns whether the values of Connection name this field, so that a proxy must not forward it. Fields that all
/// recipients need are forwarded nevertheless: RFC 9110, section 7.6.1 forbids naming them, and otherwise a client
/// could remove fields that the upstream's decisions depend on.
pub fn is_named_by_connection<'a>(name: &[u8], mut values: impl Iterator<Item = &'a [u8]>) -> bool {
    const END_TO_END: [&[u8]; 6] =
        [b"authorization", b"cache-control", b"content-type", b"cookie", b"host", b"set-cookie"];
    values.any(|value| value.split(|&byte| byte == b',').any(|option| option.trim_ascii().eq_ignore_ascii_case(name)))
        && !END_TO_END.iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// Trailer fields to forward, in lower case, in addition to those in the configuration. They are defined for trailer
/// sections, and no application decides by them. Recipients may merge trailers into the head (RFC 9110, section 6.5.1),
/// where any other field could replace one that the proxy has removed or set.
const DIGESTS: [&[u8]; 4] = [b"content-digest", b"content-md5", b"digest", b"repr-digest"];

/// Further trailer fields, forwarded only in responses.
const OF_RESPONSES: [&[u8]; 5] =
    [b"etag", b"grpc-message", b"grpc-status", b"grpc-status-details-bin", b"server-timing"];

/// Returns whether to forward a trailer field of a request.
pub fn is_request_trailer(name: &[u8]) -> bool {
    DIGESTS.iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// Returns whether to forward a trailer field of a response.
pub fn is_response_trailer(name: &[u8]) -> bool {
    DIGESTS.iter().chain(&OF_RESPONSES).any(|known| name.eq_ignore_ascii_case(known))
}

/// Counts how often a recipient of this name has forwarded the request, by these lines of Via (RFC 9110, section
/// 7.6.3).
pub fn via_passes<'a>(lines: impl Iterator<Item = &'a [u8]>, name: &[u8]) -> usize {
    let is_name = |element: &&[u8]| {
        let mut words = element.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty());
        let received_by = words.nth(1).unwrap_or_default();
        let host = received_by.split(|&byte| byte == b':').next().unwrap_or_default();
        host.eq_ignore_ascii_case(name) || received_by.eq_ignore_ascii_case(name)
    };
    lines.flat_map(|line| line.split(|&byte| byte == b',')).filter(is_name).count()
}

/// Returns whether a field states the client's address, apart from X-Forwarded-For and Forwarded. Proxies and content
/// delivery networks send these fields, and some frameworks trust them by default. Underscores count as hyphens.
pub fn is_client_address_field(name: &[u8]) -> bool {
    let Some(first) = name.first() else { return false };
    // All fields of requests are checked: length and first letter rule out nearly all of them.
    let names: &[&[u8]] = match (name.len(), first.to_ascii_lowercase()) {
        (9, b'x') => &[b"x-real-ip"],
        (9, b'c') => &[b"client-ip"],
        (11, b'x') => &[b"x-client-ip", b"x-forwarded", b"x-remote-ip"],
        (13, b'f') => &[b"fly-client-ip"],
        (13, b'x') => &[b"x-remote-addr"],
        (14, b'c') => &[b"cf-pseudo-ipv4"],
        (14, b't') => &[b"true-client-ip"],
        (14, b'x') => &[b"x-proxyuser-ip"],
        (15, b'p') => &[b"proxy-client-ip"],
        (16, b'c') => &[b"cf-connecting-ip"],
        (16, b'd') => &[b"do-connecting-ip"],
        (16, b'f') => &[b"fastly-client-ip"],
        (16, b'x') => &[b"x-azure-clientip", b"x-azure-socketip", b"x-originating-ip"],
        (18, b'c') => &[b"cf-connecting-ipv6"],
        (18, b'w') => &[b"wl-proxy-client-ip"],
        (19, b'x') => &[b"x-appengine-user-ip", b"x-cluster-client-ip"],
        (23, b'x') => &[b"x-appengine-remote-addr"],
        (24, b'x') => &[b"x-envoy-external-address", b"x-original-forwarded-for"],
        (25, b'x') => &[b"x-nf-client-connection-ip"],
        _ => return false,
    };
    names.iter().any(|known| is_same_field(name, known))
}

/// Returns whether some applications take the path of a request from this field instead of from its target: IIS with its
/// rewrite module, older versions of Symfony and Zend Framework, and those that ingress
/// controllers forward to. Underscores count as hyphens.
pub fn is_path_override_field(name: &[u8]) -> bool {
    let names: &[&[u8]] = match name.len() {
        13 => &[b"x-rewrite-url"],
        14 => &[b"x-original-uri", b"x-original-url"],
        _ => return false,
    };
    names.iter().any(|known| is_same_field(name, known))
}

/// Returns whether a field may occur in a trailer section. Fields for framing, routing, conditions and authentication
/// may not, and neither may Proxy, which CGI programs would take for a setting (CVE-2016-5385). Underscores count as
/// hyphens.
pub fn may_be_trailer(name: &[u8]) -> bool {
    const NEVER: [&[u8]; 23] = [
        b"age",
        b"authorization",
        b"cache-control",
        b"content-encoding",
        b"content-range",
        b"content-type",
        b"cookie",
        b"date",
        b"expect",
        b"expires",
        b"forwarded",
        b"host",
        b"if-match",
        b"if-none-match",
        b"location",
        b"max-forwards",
        b"proxy",
        b"range",
        b"retry-after",
        b"set-cookie",
        b"trailer",
        b"vary",
        b"via",
    ];
    let is_forwarded = is_client_address_field(name)
        || is_path_override_field(name)
        || name.len() > 12 && is_same_field(&name[..12], b"x-forwarded-");
    !is_hop_by_hop(name) && !is_forwarded && !NEVER.iter().any(|known| is_same_field(name, known))
}

/// Returns the entries in these lines of X-Forwarded-For. Each proxy appends the address it got the request from.
pub fn x_forwarded_for_entries<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Vec<&'a [u8]> {
    let entries = lines.flat_map(|line| line.split(|byte| *byte == b',')).map(<[u8]>::trim_ascii);
    entries.filter(|entry| !entry.is_empty()).collect()
}

/// Returns the elements in these lines of Forwarded (RFC 7239, section 4).
///
/// A client may send a quote without its counterpart, and a proxy then appends its element to the same line. So a line
/// with a malformed element is read from its end: the well-formed elements there, and [`MALFORMED`] for all before them.
pub fn forwarded_elements<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Vec<&'a [u8]> {
    let mut elements = Vec::new();
    for line in lines {
        let start = elements.len();
        elements.extend(split_unquoted(line, b',').into_iter().map(<[u8]>::trim_ascii));
        if !elements[start..].iter().copied().all(is_forwarded_element) {
            elements.truncate(start);
            let from_end = line.rsplit(|byte| *byte == b',').map(<[u8]>::trim_ascii);
            elements.extend(from_end.take_while(|element| is_forwarded_element(element)));
            elements.push(MALFORMED);
            elements[start..].reverse();
        }
    }
    elements.retain(|element| !element.is_empty());
    elements
}

/// Element of Forwarded without any parameter, in place of malformed ones.
const MALFORMED: &[u8] = b"?";

/// Returns whether all pairs of an element have a name, and a token or quoted string as their value. Addresses with
/// ports or brackets pass without quotes, too, because some proxies write them so.
fn is_forwarded_element(element: &[u8]) -> bool {
    let is_plain = |text: &[u8]| {
        text.iter().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\' | b',' | b';' | b'='))
    };
    let mut pairs = split_unquoted(element, b';').into_iter().map(<[u8]>::trim_ascii);
    pairs.all(|pair| {
        let equals = pair.iter().position(|byte| *byte == b'=');
        let is_pair = |at: usize| {
            let (name, value) = (&pair[..at], &pair[at + 1..]);
            !name.is_empty() && is_plain(name) && (is_plain(value) || is_quoted(value))
        };
        pair.is_empty() || equals.is_some_and(is_pair)
    })
}

/// Returns a parameter of an element of Forwarded (`for`, `by`, `host`, `proto`) without quotes. Does not decode
/// escapes: valid addresses, hosts and schemes have none.
pub fn forwarded_parameter<'a>(element: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let pairs = split_unquoted(element, b';').into_iter().map(<[u8]>::trim_ascii);
    let mut values = pairs.filter_map(|pair| {
        let (pair_name, rest) = pair.split_at_checked(name.len())?;
        pair_name.eq_ignore_ascii_case(name.as_bytes()).then(|| rest.strip_prefix(b"="))?
    });
    let value = values.next()?;
    Some(value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value))
}

/// Returns whether a text is one quoted string (RFC 9110, section 5.6.4).
fn is_quoted(text: &[u8]) -> bool {
    let inner = text.strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\""));
    let Some(inner) = inner else { return false };
    let mut is_escaped = false;
    for byte in inner {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return false,
            _ => {}
        }
    }
    !is_escaped
}

/// Parses the address of a node: `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]`, `[2001:db8::1]:80`. The
/// port is 0 if there is none. Returns `None` for a name: `unknown` or an obfuscated identifier (RFC 7239, section 6).
pub fn parse_node(node: &[u8]) -> Option<SocketAddr> {
    let text = core::str::from_utf8(node).ok()?;
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let address = match bare.parse::<IpAddr>() {
        Ok(address) if bare.len() == text.len() || address.is_ipv6() => SocketAddr::new(address, 0),
        _ => text.parse().ok()?,
    };
    Some(SocketAddr::new(address.ip().to_canonical(), address.port()))
}

/// Splits at separators outside of quoted strings (RFC 9110, section 5.6.4).
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hop_by_hop() {
        for (name, expect) in [
            ("Connection", true),
            ("keep-alive", true),
            ("Proxy-Connection", true),
            ("TE", true),
            ("Transfer-Encoding", true),
            ("Upgrade", true),
            ("Content-Length", true),
            ("Trailer", false),
            ("Content-Type", false),
            ("X-Connection", false),
            ("Transfer_Encoding", true),
            ("content_length", true),
        ] {
            assert_eq!(is_hop_by_hop(name.as_bytes()), expect, "{name}");
        }
    }

    #[test]
    fn named_by_connection() {
        for (name, value, expect) in
            [("x", "close, X", true), ("X", "x-y", false), ("Cookie", "cookie", false), ("Host", "close,host", false)]
        {
            assert_eq!(is_named_by_connection(name.as_bytes(), [value.as_bytes()].into_iter()), expect, "{name}");
        }
    }

    #[test]
    fn trailers() {
        for (name, expect) in [
            ("grpc-status", true),
            ("Digest", true),
            ("Content-Length", false),
            ("Set-Cookie", false),
            ("X-Forwarded-For", false),
            ("X_Forwarded_For", false),
            ("Content_Type", false),
            ("Proxy", false),
            ("X_Real_IP", false),
        ] {
            assert_eq!(may_be_trailer(name.as_bytes()), expect, "{name}");
        }
        for (name, of_requests, of_responses) in [
            ("Content-Digest", true, true),
            ("ETag", false, true),
            ("Grpc-Status", false, true),
            ("grpc-status-details-bin", false, true),
            ("grpc_status", false, false),
            ("X_Real_IP", false, false),
            ("X-Checksum", false, false),
            ("Authorization", false, false),
        ] {
            assert_eq!(is_request_trailer(name.as_bytes()), of_requests, "{name}");
            assert_eq!(is_response_trailer(name.as_bytes()), of_responses, "{name}");
            assert!(may_be_trailer(name.as_bytes()) || !of_responses, "{name}");
        }
    }

    #[test]
    fn passes_in_via() {
        let check = |lines: &[&str], expect: usize| {
            assert_eq!(via_passes(lines.iter().map(|line| line.as_bytes()), b"tailcoat"), expect, "{lines:?}");
        };
        check(&[], 0);
        check(&["1.1 tailcoat"], 1);
        check(&["1.1 Tailcoat, 2 tailcoat (edge),1.1\ttailcoat:8080", "HTTP/1.0 tailcoat"], 4);
        check(&["1.1 other, 1.1 tailcoat-2, tailcoat, 1.1 a (tailcoat)", ""], 0);
    }

    #[test]
    fn client_addresses() {
        for name in [
            "CF-Connecting-IP",
            "CF-Connecting-IPv6",
            "CF-Pseudo-IPv4",
            "Client-IP",
            "DO-Connecting-IP",
            "Fastly-Client-IP",
            "Fly-Client-IP",
            "Proxy-Client-IP",
            "True-Client-IP",
            "WL-Proxy-Client-IP",
            "X-Appengine-Remote-Addr",
            "X-Appengine-User-Ip",
            "X-Azure-ClientIP",
            "X-Azure-SocketIP",
            "X-Client-IP",
            "X-Cluster-Client-IP",
            "X-Envoy-External-Address",
            "X-Forwarded",
            "X-Nf-Client-Connection-Ip",
            "X-Original-Forwarded-For",
            "X-Originating-IP",
            "X-ProxyUser-Ip",
            "X-Real-IP",
            "X-Remote-Addr",
            "X-Remote-IP",
        ] {
            for spelling in [name.to_owned(), name.to_uppercase(), name.to_lowercase().replace('-', "_")] {
                assert!(is_client_address_field(spelling.as_bytes()), "{spelling}");
                assert!(!may_be_trailer(spelling.as_bytes()), "{spelling}");
            }
            assert!(!is_client_address_field(format!("{name}s").as_bytes()), "{name}s");
        }
        for name in ["", "X-Forwarded-For", "Forwarded", "X-Remote-Id", "User-Agent"] {
            assert!(!is_client_address_field(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn path_overrides() {
        for (name, expect) in [
            ("X-Original-URL", true),
            ("x_rewrite_url", true),
            ("X-Rewrite-Url", true),
            ("x_original_uri", true),
            ("X-Original-URLs", false),
            ("X-Original-Host", false),
        ] {
            assert_eq!(is_path_override_field(name.as_bytes()), expect, "{name}");
            assert!(!expect || !may_be_trailer(name.as_bytes()), "{name}");
        }
    }
}
