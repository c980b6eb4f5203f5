//! Paths: conversion between the percent-encoded form in a target and the bytes of a file name.

use std::fmt;

/// Error of a path that cannot be normalized; answer with 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidPath {
    /// The path does not begin with `/`.
    NotAbsolute,
    /// A `%` without two hexadecimal digits (RFC 3986, section 2.1).
    Encoding,
    /// NUL, which file names cannot contain.
    Nul,
    /// `..` above the root. RFC 3986, section 5.2.4 ignores it when a client resolves a reference; in a request it only
    /// occurs in attacks.
    AboveRoot,
}

impl fmt::Display for InvalidPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAbsolute => "path doesn't begin with '/'",
            Self::Encoding => "malformed percent-encoding in path",
            Self::Nul => "NUL in path",
            Self::AboveRoot => "path leads above the root",
        })
    }
}

impl std::error::Error for InvalidPath {}

/// Normalizes a target's path for routing and file lookups: decodes it once, and removes `.`, `..` and empty segments.
/// The result begins with `/`, and ends with `/` if the last segment was one of these. It may contain any byte except
/// NUL. A path that is already normal, the usual case, is returned unchanged. Otherwise the result is in `buffer`.
///
/// An encoded slash counts as a slash, as in nginx: file names cannot contain one. It is decoded before dot segments
/// are removed, so routes, access rules and the file system see the same path. A path that is encoded twice (`%252e`)
/// stays encoded once; no other code decodes it.
pub fn normalise<'a>(raw: &'a [u8], buffer: &'a mut Vec<u8>) -> Result<&'a [u8], InvalidPath> {
    if is_normal(raw) {
        return Ok(raw);
    }
    if raw.first() != Some(&b'/') {
        return Err(InvalidPath::NotAbsolute);
    }
    buffer.clear();
    let mut segment_start = 0;
    let mut rest = raw;
    while let Some((byte, after)) = decode_byte(rest)? {
        rest = after;
        match byte {
            b'/' => segment_start = end_segment(buffer, segment_start, true)?,
            0 => return Err(InvalidPath::Nul),
            byte => buffer.push(byte),
        }
    }
    end_segment(buffer, segment_start, false)?;
    Ok(buffer)
}

/// Returns whether a raw path has a segment `.` or `..`, encoded or not. Servers disagree about such paths: some do not
/// resolve dot segments, and others do so before or after they join slashes or decode the path.
pub fn has_dot_segment(raw: &[u8]) -> bool {
    let (mut rest, mut dots, mut others) = (raw, 0, 0);
    while let Ok(Some((byte, after))) = decode_byte(rest) {
        rest = after;
        match byte {
            b'/' if dots > 0 && others == 0 => return true,
            b'/' => (dots, others) = (0, 0),
            b'.' if dots < 2 => dots += 1,
            _ => others += 1,
        }
    }
    dots > 0 && others == 0
}

/// Appends the percent-encoded path (RFC 3986, section 2.1) to `out`, for a Location field or a link in a page. The
/// caller must put `./` before a relative path whose first segment has a colon (RFC 3986, section 4.2).
pub fn encode(path: &[u8], out: &mut Vec<u8>) {
    const HEX_DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for &byte in path {
        // RFC 3986 allows "&" and "'" in a path. They are encoded because they would need escapes in HTML.
        if byte.is_ascii_alphanumeric() || b"/-._~!$()*+,;=:@".contains(&byte) {
            out.push(byte);
        } else {
            let digits = [HEX_DIGITS[usize::from(byte >> 4)], HEX_DIGITS[usize::from(byte & 15)]];
            out.extend_from_slice(&[b'%', digits[0], digits[1]]);
        }
    }
}

/// Returns whether the path is normal. May return `false` for a normal path (`/.hidden`).
fn is_normal(raw: &[u8]) -> bool {
    for (index, &byte) in raw.iter().enumerate() {
        if MAY_CHANGE[usize::from(byte)] && (byte != b'/' || matches!(raw.get(index + 1), Some(b'/' | b'.'))) {
            return false;
        }
    }
    raw.first() == Some(&b'/')
}

/// Bytes that may need a change in normalization: `%`, NUL, and the byte after a slash.
static MAY_CHANGE: [bool; 256] = {
    let mut table = [false; 256];
    table[0] = true;
    table[b'%' as usize] = true;
    table[b'/' as usize] = true;
    table
};

/// Decodes the first byte; returns it and the rest.
fn decode_byte(raw: &[u8]) -> Result<Option<(u8, &[u8])>, InvalidPath> {
    match raw {
        [] => Ok(None),
        [b'%', high, low, rest @ ..] => match (hex_digit(*high), hex_digit(*low)) {
            (Some(high), Some(low)) => Ok(Some((high << 4 | low, rest))),
            _ => Err(InvalidPath::Encoding),
        },
        [b'%', ..] => Err(InvalidPath::Encoding),
        [byte, rest @ ..] => Ok(Some((*byte, rest))),
    }
}

fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

/// Ends the segment that begins at `segment_start` in `buffer`, at a slash or at the end of the path. Returns the start
/// of the next one. `buffer` before `segment_start` is empty or a normal path that ends with `/`.
fn end_segment(buffer: &mut Vec<u8>, segment_start: usize, by_slash: bool) -> Result<usize, InvalidPath> {
    match &buffer[segment_start..] {
        // This is the slash at the start of the path.
        [] if segment_start == 0 => buffer.push(b'/'),
        [] => {}
        b"." => buffer.truncate(segment_start),
        b".." => {
            // 1 is the root; nothing precedes its slash.
            let parent =
                buffer[..segment_start - 1].iter().rposition(|&byte| byte == b'/').ok_or(InvalidPath::AboveRoot)?;
            buffer.truncate(parent + 1);
        }
        _ if by_slash => buffer.push(b'/'),
        _ => {}
    }
    Ok(buffer.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{InvalidPath, encode, has_dot_segment, normalise};

    #[test]
    fn normalised() {
        let check = |raw: &str, expect: Result<&str, InvalidPath>| {
            let mut buffer = b"left over".to_vec();
            assert_eq!(normalise(raw.as_bytes(), &mut buffer), expect.map(str::as_bytes), "{raw:?}");
        };
        check("/", Ok("/"));
        check("/a/b.html", Ok("/a/b.html"));
        check("/a/", Ok("/a/"));
        check("//", Ok("/"));
        check("//a//b//", Ok("/a/b/"));
        check("/.", Ok("/"));
        check("/./a/./b/.", Ok("/a/b/"));
        check("/a/..", Ok("/"));
        check("/a/b/../c", Ok("/a/c"));
        check("/a/b/../../c/..", Ok("/"));
        check("/a//../b", Ok("/b"));
        check("/.hidden/..a/a../...", Ok("/.hidden/..a/a../..."));
        check("/%61%2e%2E/b", Ok("/a../b"));
        check("/a/%2e%2e/b", Ok("/b"));
        check("/a/.%2e/b", Ok("/b"));
        check("/a%2fb", Ok("/a/b"));
        check("/a%2F%2e%2e%2fb", Ok("/b"));
        check("/%2f%2fa", Ok("/a"));
        check("/%252e%252e/%2525", Ok("/%2e%2e/%25"));
        check("/a%20b%3Fc%23", Ok("/a b?c#"));
        check("/%C3%A9", Ok("/é"));
        check("/a%5cb", Ok("/a\\b"));
        check("/a%0d%0ab", Ok("/a\r\nb"));
        check("/..", Err(InvalidPath::AboveRoot));
        check("/../x", Err(InvalidPath::AboveRoot));
        check("/a/../..", Err(InvalidPath::AboveRoot));
        check("/a/../../a", Err(InvalidPath::AboveRoot));
        check("//..//", Err(InvalidPath::AboveRoot));
        check("/%2e%2e%2fetc/passwd", Err(InvalidPath::AboveRoot));
        check("/%", Err(InvalidPath::Encoding));
        check("/%2", Err(InvalidPath::Encoding));
        check("/%2g", Err(InvalidPath::Encoding));
        check("/%g2", Err(InvalidPath::Encoding));
        check("/%+1", Err(InvalidPath::Encoding));
        check("/%u0041", Err(InvalidPath::Encoding));
        check("/a%00b", Err(InvalidPath::Nul));
        check("/a\0b", Err(InvalidPath::Nul));
        check("", Err(InvalidPath::NotAbsolute));
        check("a", Err(InvalidPath::NotAbsolute));
        check("*", Err(InvalidPath::NotAbsolute));
        check("%2fa", Err(InvalidPath::NotAbsolute));
        // Overlong UTF-8 of "." and "/" (CVE-2000-0884, CVE-2008-2938) has no special meaning.
        let mut buffer = Vec::new();
        assert_eq!(normalise(b"/%c0%ae%c0%ae%c0%af", &mut buffer), Ok(b"/\xc0\xae\xc0\xae\xc0\xaf".as_slice()));
    }

    #[test]
    fn dot_segments() {
        let check = |raw: &str, expect: bool| assert_eq!(has_dot_segment(raw.as_bytes()), expect, "{raw:?}");
        for raw in
            ["/.", "/..", "/a/./b", "/a/../b", "//../a", "/a/%2e%2E/b", "/a/.%2e", "/a%2f..%2fb", "/%2e%2fa", "/..%2F"]
        {
            check(raw, true);
        }
        for raw in [
            "/",
            "//a//b",
            "/a.b/..c/d..",
            "/...",
            "/.../a",
            "/.a/",
            "/a%2fb",
            "/%252e%252e/a",
            "/a.",
            "/..;/a",
            "*",
            "",
        ] {
            check(raw, false);
        }
    }

    #[test]
    fn a_normal_path_is_not_copied() {
        let mut buffer = Vec::new();
        assert_eq!(normalise(b"/static/site.css", &mut buffer), Ok(b"/static/site.css".as_slice()));
        assert_eq!(buffer.capacity(), 0);
    }

    #[test]
    fn encoded() {
        let check = |path: &[u8], expect: &str| {
            let mut out = Vec::new();
            encode(path, &mut out);
            assert_eq!(out, expect.as_bytes(), "{path:?}");
        };
        check(b"/a/b-c_d.e~f", "/a/b-c_d.e~f");
        check(b"/a b?c#d%", "/a%20b%3Fc%23d%25");
        check(b"/\r\nSet-Cookie: a", "/%0D%0ASet-Cookie:%20a");
        check(b"/<a href=\"'&'\">\\", "/%3Ca%20href=%22%27%26%27%22%3E%5C");
        check(b"/\xff\xc3\xa9\0", "/%FF%C3%A9%00");
    }

    /// Reference implementation of the normalization, segment by segment.
    fn model(raw: &[u8]) -> Option<Vec<u8>> {
        let mut decoded = Vec::new();
        let mut at = 0;
        while at < raw.len() {
            if raw[at] == b'%' {
                let digits = raw.get(at + 1..at + 3)?;
                if !digits.iter().all(u8::is_ascii_hexdigit) {
                    return None;
                }
                decoded.push(u8::from_str_radix(str::from_utf8(digits).unwrap(), 16).unwrap());
                at += 3;
            } else {
                decoded.push(raw[at]);
                at += 1;
            }
        }
        if raw.first() != Some(&b'/') || decoded.contains(&0) {
            return None;
        }
        let segments: Vec<&[u8]> = decoded[1..].split(|byte| *byte == b'/').collect();
        let mut kept: Vec<&[u8]> = Vec::new();
        for segment in &segments {
            match *segment {
                b"" | b"." => {}
                b".." => drop(kept.pop()?),
                segment => kept.push(segment),
            }
        }
        let mut path = b"/".to_vec();
        path.extend_from_slice(&kept.join(b"/".as_slice()));
        let ends_in_directory = matches!(*segments.last().unwrap(), b"" | b"." | b"..");
        if ends_in_directory && !kept.is_empty() {
            path.push(b'/');
        }
        Some(path)
    }

    fn paths() -> impl Strategy<Value = Vec<u8>> {
        let pieces = prop_oneof![
            Just("/"),
            Just("."),
            Just(".."),
            Just("/../"),
            Just("%2e"),
            Just("%2F"),
            Just("%"),
            Just("%25"),
            Just("%00"),
            Just("a"),
            Just("bc"),
            Just("%61"),
            Just("%ff"),
            Just("é")
        ];
        prop_oneof![
            4 => proptest::collection::vec(pieces, 0..12).prop_map(|pieces| format!("/{}", pieces.concat()).into_bytes()),
            1 => proptest::collection::vec(any::<u8>(), 0..40),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn as_the_model(raw in paths()) {
            let mut buffer = Vec::new();
            prop_assert_eq!(normalise(&raw, &mut buffer).ok().map(<[u8]>::to_vec), model(&raw));
        }

        #[test]
        fn what_has_none_has_its_segments_still(raw in paths()) {
            let mut buffer = Vec::new();
            if let Ok(path) = normalise(&raw, &mut buffer) {
                let segments = |path: &[u8]| path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).count();
                let (mut rest, mut decoded) = (raw.as_slice(), Vec::new());
                while let Ok(Some((byte, after))) = super::decode_byte(rest) {
                    decoded.push(byte);
                    rest = after;
                }
                let is_kept = segments(&decoded) == segments(path);
                prop_assert!(is_kept || has_dot_segment(&raw));
                prop_assert!(!has_dot_segment(&raw) || !is_kept);
            }
        }

        #[test]
        fn no_dots_are_left_and_encoding_brings_it_back(raw in paths()) {
            let mut buffer = Vec::new();
            if let Ok(path) = normalise(&raw, &mut buffer) {
                prop_assert!(path.starts_with(b"/") && !path.contains(&0));
                let (last, inner) = path[1..].split(|byte| *byte == b'/').collect::<Vec<_>>().split_last().map(|(last, inner)| (*last, inner.to_vec())).unwrap();
                prop_assert!(inner.iter().all(|segment| !matches!(*segment, b"" | b"." | b"..")));
                prop_assert!(!matches!(last, b"." | b".."));
                let mut encoded = Vec::new();
                encode(path, &mut encoded);
                let mut again = Vec::new();
                prop_assert_eq!(normalise(&encoded, &mut again), Ok(path));
            }
        }
    }
}
