//! Invalidation of stored responses by unsafe requests (RFC 9111, section 4.4).

use crate::http::{Method, Status};

/// Returns whether a request with this status invalidates the stored responses for its target. Section 4.4 demands to
/// treat unknown methods as unsafe.
pub fn invalidates(method: Method, status: Status) -> bool {
    !method.is_safe() && method != Method::Connect && (200..400).contains(&status.code())
}

/// Resolves Location or Content-Location to a target of the same origin (section 4.4): the path without dot segments,
/// and the query. Returns `None` for other origins. `authority` and `target` (path and query) are those of the request;
/// `scheme` has no colon.
pub fn resolve(reference: &[u8], scheme: &str, authority: &[u8], target: &[u8]) -> Option<Vec<u8>> {
    let reference = reference.split(|&byte| byte == b'#').next().unwrap_or_default();
    let base_path = target.split(|&byte| byte == b'?').next().unwrap_or_default();
    let relative = match without_scheme(reference) {
        Some((other, rest)) if other.eq_ignore_ascii_case(scheme.as_bytes()) => {
            rest.starts_with(b"//").then_some(rest)?
        }
        Some(_) => return None,
        None => reference,
    };
    // RFC 3986, section 5.2.2.
    let (path, query) = match relative.strip_prefix(b"//") {
        Some(rest) => {
            let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
            if !rest[..end].eq_ignore_ascii_case(authority) {
                return None;
            }
            split_query(&rest[end..])
        }
        None => split_query(relative),
    };
    let merged = match path {
        [] if relative.starts_with(b"//") => b"/".to_vec(),
        [] if query.is_none() => return Some(target.to_vec()),
        [] => base_path.to_vec(),
        [b'/', ..] => without_dot_segments(path),
        _ => {
            let directory = base_path.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
            without_dot_segments(&[&base_path[..directory], path].concat())
        }
    };
    Some(match query {
        Some(query) => [&merged, &b"?"[..], query].concat(),
        None => merged,
    })
}

/// Splits off the scheme; returns what follows its colon.
fn without_scheme(reference: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = reference.iter().position(|byte| !(byte.is_ascii_alphanumeric() || b"+-.".contains(byte)))?;
    (end > 0 && reference[end] == b':').then(|| (&reference[..end], &reference[end + 1..]))
}

fn split_query(bytes: &[u8]) -> (&[u8], Option<&[u8]>) {
    match bytes.iter().position(|&byte| byte == b'?') {
        Some(at) => (&bytes[..at], Some(&bytes[at + 1..])),
        None => (bytes, None),
    }
}

/// RFC 3986, section 5.2.4.
fn without_dot_segments(path: &[u8]) -> Vec<u8> {
    let mut kept: Vec<&[u8]> = Vec::new();
    let segments: Vec<&[u8]> = path.strip_prefix(b"/").unwrap_or(path).split(|&byte| byte == b'/').collect();
    for (index, segment) in segments.iter().enumerate() {
        let is_last = index + 1 == segments.len();
        match *segment {
            b"." | b".." => {
                if *segment == b".." {
                    kept.pop();
                }
                if is_last {
                    kept.push(b"");
                }
            }
            segment => kept.push(segment),
        }
    }
    [b"/", kept.join(&b'/').as_slice()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_method_and_status() {
        let check = |method: &str, status: u16, expect: bool| {
            let found = invalidates(Method::from_name(method.as_bytes()), Status::new(status).unwrap());
            assert_eq!(found, expect, "{method} {status}");
        };
        for method in ["POST", "PUT", "DELETE", "PATCH", "M-SEARCH"] {
            check(method, 200, true);
            check(method, 303, true);
            check(method, 404, false);
            check(method, 500, false);
        }
        for method in ["GET", "HEAD", "OPTIONS", "TRACE", "CONNECT"] {
            check(method, 200, false);
        }
    }

    #[test]
    fn locations() {
        let check = |reference: &str, expect: Option<&str>| {
            let found = resolve(reference.as_bytes(), "http", b"h.example:81", b"/a/b?q");
            let found = found.map(|found| String::from_utf8(found).unwrap());
            assert_eq!(found.as_deref(), expect, "{reference}");
        };
        check("", Some("/a/b?q"));
        check("#x", Some("/a/b?q"));
        check("c", Some("/a/c"));
        check("c?d#e", Some("/a/c?d"));
        check("?d", Some("/a/b?d"));
        check("./c", Some("/a/c"));
        check("../c", Some("/c"));
        check("../../../c/.", Some("/c/"));
        check("/c/../d", Some("/d"));
        check("/c//d", Some("/c//d"));
        check("//h.example:81/c", Some("/c"));
        check("//H.example:81", Some("/"));
        check("//h.example:81?d", Some("/?d"));
        check("//h.example/c", None);
        check("HTTP://h.example:81/c?d", Some("/c?d"));
        check("http://other.example/c", None);
        check("https://h.example:81/c", None);
        check("mailto:a@h.example", None);
        check("http:c", None);
    }
}
