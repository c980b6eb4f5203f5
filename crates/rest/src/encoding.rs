//! Percent-encoding.

use std::fmt::Write;

/// Text with all but unreserved letters as `%XX` (RFC 3986, section 2.3).
pub fn encoded(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut encoded, byte| {
        match byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            true => encoded.push(char::from(byte)),
            false => _ = write!(encoded, "%{byte:02X}"),
        }
        encoded
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_encoded() {
        assert_eq!(encoded("v1&index=0 \u{e9}"), "v1%26index%3D0%20%C3%A9");
        assert_eq!(encoded("a-._~/Z"), "a-._~%2FZ");
    }
}
