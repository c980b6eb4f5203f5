//! Client side: encoder for request heads (RFC 9112, section 3).

use super::write_fields;
use crate::http::{Fields, Version};

/// Appends a whole head with the final empty line to `out`. `fields` contain Host, Content-Length and all others.
/// `method` must be a token, and `target` must not contain white space.
pub fn write_request_head(out: &mut Vec<u8>, method: &[u8], target: &[u8], version: Version, fields: &Fields) {
    out.reserve(method.len() + target.len() + "  HTTP/1.1\r\n\r\n".len() + fields.h1_bytes_max());
    out.extend_from_slice(method);
    out.push(b' ');
    out.extend_from_slice(target);
    out.extend_from_slice(if version == Version::Http10 { b" HTTP/1.0\r\n" } else { b" HTTP/1.1\r\n" });
    write_fields(out, fields);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::write_request_head;
    use crate::http::{Fields, Version};

    #[test]
    fn a_head() {
        let mut fields = Fields::new();
        fields.push("Host", "a:1").push("X", "");
        for (version, name) in [(Version::Http10, "1.0"), (Version::Http11, "1.1")] {
            let mut out = Vec::new();
            write_request_head(&mut out, b"GET", b"/x?y", version, &fields);
            assert_eq!(String::from_utf8(out).unwrap(), format!("GET /x?y HTTP/{name}\r\nHost: a:1\r\nX: \r\n\r\n"));
        }
    }
}
