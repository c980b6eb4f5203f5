/// Returns the elements of a list in one field line (RFC 9110, section 5.6.1), without surrounding white space. Omits
/// empty ones, as section 5.6.1.2 demands. Commas in quoted strings do not separate.
pub(super) fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    split_unquoted(value, b',').map(trim).filter(|element| !element.is_empty())
}

/// Splits at separators outside of quoted strings (RFC 9110, section 5.6.4).
pub(super) fn split_unquoted(value: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(value);
    std::iter::from_fn(move || {
        let bytes = rest?;
        let (mut quoted, mut escaped) = (false, false);
        let end = bytes.iter().position(|&byte| {
            if escaped {
                escaped = false;
            } else if byte == b'"' {
                quoted = !quoted;
            } else if quoted {
                escaped = byte == b'\\';
            } else {
                return byte == separator;
            }
            false
        });
        rest = end.map(|end| &bytes[end + 1..]);
        Some(&bytes[..end.unwrap_or(bytes.len())])
    })
}

/// Removes white space (OWS; RFC 9110, section 5.6.3) from both ends.
pub(super) fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

#[cfg(test)]
mod tests {
    use super::elements;

    #[test]
    fn lists() {
        let check = |value: &str, expect: &[&str]| {
            let found: Vec<&str> = elements(value.as_bytes()).map(|element| str::from_utf8(element).unwrap()).collect();
            assert_eq!(found, expect, "{value:?}");
        };
        check("", &[]);
        check(" , ,\t,", &[]);
        check("a", &["a"]);
        check(" a ,b\t, c d ,", &["a", "b", "c d"]);
        check("a;b=\"c,d\", e", &["a;b=\"c,d\"", "e"]);
        check("a;b=\"c\\\",d\", e", &["a;b=\"c\\\",d\"", "e"]);
        check("a\\,b", &["a\\", "b"]);
        check("\"a, b", &["\"a, b"]);
    }
}
