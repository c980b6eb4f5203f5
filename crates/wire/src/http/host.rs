use core::net::Ipv6Addr;
use std::fmt;

/// Maximum length of a host name in bytes. DNS allows 253 (RFC 1035, section 2.3.4), and RFC 3986, section 3.2.2 asks
/// for at most 255. File names have the same limit, and mass hosting uses host names as directory names.
pub const HOST_BYTES_MAX: usize = 255;

/// A host and port, as in a Host field (RFC 9110, section 7.2) or a URI's authority (RFC 3986, section 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host<'a> {
    /// Name or address as sent, without a trailing dot. An IPv6 address keeps its brackets. Empty if the field is
    /// empty. No label is empty, so the name is never `..` as part of a path.
    pub name: &'a [u8],
    /// Port, if present.
    pub port: Option<u16>,
}

/// Error of an invalid host or port; answer with 400 (RFC 9112, section 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidHost;

impl fmt::Display for InvalidHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("malformed host")
    }
}

impl std::error::Error for InvalidHost {}

impl<'a> Host<'a> {
    /// Parses the value of a Host field: `uri-host [ ":" port ]`.
    ///
    /// An empty value is valid: a client must send it if the target has no authority (RFC 9112, section 3.2). The
    /// server's default host then applies (section 3.3).
    pub fn parse(value: &'a [u8]) -> Result<Self, InvalidHost> {
        if value.is_empty() {
            return Ok(Self { name: value, port: None });
        }
        let (name, rest) = if value[0] == b'[' { split_ip_literal(value)? } else { split_name(value)? };
        let port = match rest {
            [] => None,
            [b':', digits @ ..] => parse_port(digits)?,
            _ => return Err(InvalidHost),
        };
        Ok(Self { name, port })
    }

    /// Returns the name in lower case, because host names are case-insensitive (RFC 9110, section 4.2.3). Copies it to
    /// `buffer` only if it has upper case letters, which is rare.
    pub fn lower_case<'b>(&self, buffer: &'b mut Vec<u8>) -> &'b [u8]
    where
        'a: 'b,
    {
        if !self.name.iter().any(u8::is_ascii_uppercase) {
            return self.name;
        }
        buffer.clear();
        buffer.extend(self.name.iter().map(u8::to_ascii_lowercase));
        buffer
    }
}

/// Splits off `"[" IPv6address "]"`. Rejects IPvFuture, which is unused, and zone identifiers (RFC 6874), which are
/// only meaningful on the client's host.
fn split_ip_literal(value: &[u8]) -> Result<(&[u8], &[u8]), InvalidHost> {
    let name_end = 1 + value.iter().position(|&byte| byte == b']').ok_or(InvalidHost)?;
    let inner = str::from_utf8(&value[1..name_end - 1]).map_err(|_| InvalidHost)?;
    inner.parse::<Ipv6Addr>().map(|_| value.split_at(name_end)).map_err(|_| InvalidHost)
}

/// Splits off `IPv4address / reg-name` (RFC 3986, section 3.2.2). The rest begins with the colon. Labels must not be
/// empty, because the name is a DNS name.
fn split_name(value: &[u8]) -> Result<(&[u8], &[u8]), InvalidHost> {
    let (mut label_start, mut name_end) = (0, value.len());
    for (index, &byte) in value.iter().enumerate() {
        match byte {
            _ if NAME_BYTES[usize::from(byte)] => {}
            b'.' if index > label_start => label_start = index + 1,
            b'%' if matches!(value.get(index + 1..index + 3), Some([high, low]) if high.is_ascii_hexdigit() && low.is_ascii_hexdigit()) =>
                {}
            b':' => {
                name_end = index;
                break;
            }
            _ => return Err(InvalidHost),
        }
    }
    let (name, rest) = value.split_at(name_end);
    // "example.com." is "example.com" as an absolute DNS name.
    let name = if label_start == name_end { name.strip_suffix(b".").unwrap_or_default() } else { name };
    if name.is_empty() || name.len() > HOST_BYTES_MAX { Err(InvalidHost) } else { Ok((name, rest)) }
}

/// unreserved and sub-delims of RFC 3986, except the dot, which ends a label, and the comma. No host name has a comma,
/// but an intermediary may have joined two Host lines with one; these must be rejected like two lines.
static NAME_BYTES: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        let punctuation = matches!(
            byte as u8,
            b'-' | b'_' | b'~' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b';' | b'='
        );
        table[byte] = punctuation || (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    table
};

/// `*DIGIT`: a colon without digits means no port (RFC 3986, section 3.2.3).
fn parse_port(digits: &[u8]) -> Result<Option<u16>, InvalidHost> {
    if digits.is_empty() {
        return Ok(None);
    }
    let mut port: u32 = 0;
    for digit in digits {
        if !digit.is_ascii_digit() || port > u16::MAX.into() {
            return Err(InvalidHost);
        }
        port = port * 10 + u32::from(digit - b'0');
    }
    u16::try_from(port).map(Some).map_err(|_| InvalidHost)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{HOST_BYTES_MAX, Host, InvalidHost};

    #[test]
    fn hosts() {
        let check = |value: &str, name: &str, port: Option<u16>| {
            assert_eq!(Host::parse(value.as_bytes()), Ok(Host { name: name.as_bytes(), port }), "{value:?}");
        };
        check("example.com", "example.com", None);
        check("example.com.", "example.com", None);
        check("example.com.:80", "example.com", Some(80));
        check("EXAMPLE.com:", "EXAMPLE.com", None);
        check("a_b-c.d~e", "a_b-c.d~e", None);
        check("a!b$c", "a!b$c", None);
        check("caf%C3%A9.example", "caf%C3%A9.example", None);
        check("127.0.0.1:8080", "127.0.0.1", Some(8080));
        check("[::1]", "[::1]", None);
        check("[2001:db8::A]:65535", "[2001:db8::A]", Some(65535));
        check("[::ffff:1.2.3.4]:", "[::ffff:1.2.3.4]", None);
        check("localhost:000080", "localhost", Some(80));
        check("", "", None);
    }

    #[test]
    fn rejected() {
        let long = "a".repeat(HOST_BYTES_MAX + 1);
        for value in [
            ".",
            "..",
            "...",
            ".a",
            "a..b",
            "a..",
            ":80",
            " a",
            "a ",
            "a b",
            "a,b",
            "a, b",
            "a\tb",
            "a/b",
            "a?b",
            "a#b",
            "a\\b",
            "a@b",
            "user:pw@host",
            "a:b",
            "a:80:90",
            "a:-1",
            "a:+1",
            "a: 80",
            "a:65536",
            "a:99999999999999999999",
            "a%",
            "a%2",
            "a%zz",
            "a%2.b",
            "a<b",
            "a>b",
            "a\"b",
            "a{b}",
            "a|b",
            "a^b",
            "a`b",
            "a\0b",
            "a\x7f",
            "é",
            "[",
            "[]",
            "[::1",
            "::1",
            "[::1]x",
            "[::1]80",
            "[::1%25eth0]",
            "[v1.x]",
            "[1.2.3.4]",
            "[::g]",
            "[[::1]]",
            "a[::1]",
            "a]",
            &long,
        ] {
            assert_eq!(Host::parse(value.as_bytes()), Err(InvalidHost), "{value:?}");
        }
    }

    #[test]
    fn lower_case_copies_only_when_needed() {
        let mut buffer = Vec::new();
        assert_eq!(Host { name: b"example.com", port: None }.lower_case(&mut buffer), b"example.com");
        assert_eq!(buffer.capacity(), 0);
        assert_eq!(Host { name: b"Example.COM", port: None }.lower_case(&mut buffer), b"example.com");
    }

    proptest! {
        #[test]
        fn a_host_is_a_safe_file_name(value in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..40),
            "[a-zA-Z0-9.:%\\[\\]/-]{0,20}".prop_map(String::into_bytes),
        ]) {
            if let Ok(host) = Host::parse(&value) {
                prop_assert!(host.name.len() <= HOST_BYTES_MAX);
                prop_assert!(host.name.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'/' && *byte != b'\\'));
                prop_assert!(host.name.is_empty() == value.is_empty());
                prop_assert!(!host.name.starts_with(b".") && !host.name.windows(2).any(|pair| pair == b".."));
                // A parsed name parses to itself.
                prop_assert_eq!(Host::parse(host.name), Ok(Host { name: host.name, port: None }));
            }
        }
    }
}
