//! Which fields a proxy passes on (RFC 9110, section 7.6).

/// Whether a field is about one connection, so that a proxy does not pass it on (RFC 9110, section 7.6.1); besides those
/// that Connection names. Content-Length and Transfer-Encoding are each hop's own business too, as it frames content anew.
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
    names.iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// Whether the values of Connection name this field as one that is not passed on. Fields that all recipients need are
/// passed on in spite of it: RFC 9110, section 7.6.1 forbids naming those, and a client could make a proxy drop what the
/// server decides by.
pub fn is_named_by_connection<'a>(name: &[u8], mut values: impl Iterator<Item = &'a [u8]>) -> bool {
    const END_TO_END: [&[u8]; 6] =
        [b"authorization", b"cache-control", b"content-type", b"cookie", b"host", b"set-cookie"];
    values.any(|value| value.split(|&byte| byte == b',').any(|option| option.trim_ascii().eq_ignore_ascii_case(name)))
        && !END_TO_END.iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// Whether a field may be passed on in a trailer section: not those that frame, route or condition a message, or that
/// say who sent it, for recipients may merge trailers into the head (RFC 9110, section 6.5.1).
pub fn may_be_trailer(name: &[u8]) -> bool {
    const NEVER: [&[u8]; 22] = [
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
        b"range",
        b"retry-after",
        b"set-cookie",
        b"trailer",
        b"vary",
        b"via",
    ];
    let is_forwarded = name.len() > 12 && name[..12].eq_ignore_ascii_case(b"x-forwarded-");
    !is_hop_by_hop(name) && !is_forwarded && !NEVER.iter().any(|known| name.eq_ignore_ascii_case(known))
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
        ] {
            assert_eq!(may_be_trailer(name.as_bytes()), expect, "{name}");
        }
    }
}
