//! Hosts that sources name.

use std::net::IpAddr;

/// Longest name in DNS, in letters (RFC 1035, section 2.3.4).
const NAME_LETTERS_MAX: usize = 253;

/// Host as in a URL; `None` if the text is neither an address of one machine nor a name of DNS.
pub(super) fn host_of(text: &str) -> Option<String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return host_of_address(address);
    }
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let is_label = |label: &str| (1..=63).contains(&label.len()) && label.bytes().all(is_plain);
    let name = text.strip_suffix('.').unwrap_or(text);
    // Names whose last label is a number may be read as addresses (WHATWG URL, section 3.5).
    let ends_in_letter = name.rsplit('.').next().is_some_and(|label| !label.bytes().all(|byte| byte.is_ascii_digit()));
    (name.len() <= NAME_LETTERS_MAX && ends_in_letter && name.split('.').all(is_label))
        .then(|| name.to_ascii_lowercase())
}

/// Address as in a URL; `None` if it is not that of one machine.
pub(super) fn host_of_address(address: IpAddr) -> Option<String> {
    if address.is_unspecified() || address.is_multicast() {
        return None;
    }
    Some(match address {
        IpAddr::V4(address) if address.is_broadcast() => return None,
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        for (text, expect) in [
            ("10.0.0.1", Some("10.0.0.1")),
            ("2001:db8::1", Some("[2001:db8::1]")),
            ("app-1.example", Some("app-1.example")),
            ("App.Example.", Some("app.example")),
            ("_a.b", Some("_a.b")),
            ("", None),
            (".", None),
            ("a..b", None),
            ("a b", None),
            ("a\r\nb", None),
            ("a/b", None),
            ("a:80", None),
            ("user@a", None),
            ("[::1]", None),
            ("0.0.0.0", None),
            ("::", None),
            ("224.0.0.1", None),
            ("255.255.255.255", None),
            ("10.0.0.256", None),
            ("10.1", None),
        ] {
            assert_eq!(host_of(text).as_deref(), expect, "{text:?}");
        }
        assert_eq!(host_of(&"a".repeat(64)), None);
        assert_eq!(host_of(&["abcdefg"; 40].join(".")), None);
    }
}
