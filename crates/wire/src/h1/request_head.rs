//! Parser for request heads, as strict as RFC 9112 allows: two parsers that tolerate different errors read different
//! requests.

use memchr::memchr;

use super::{HeadLimits, MessageRejection};
use crate::http::scan::{find_control, find_invisible};
use crate::http::{KnownField, Method, RequestHead, Span, Status, Version};

/// Maximum length of a method name. An unknown name up to this length gets 501 (RFC 9112, section 3).
const METHOD_BYTES_MAX: usize = 256;
const METHOD_TOO_LONG: MessageRejection = MessageRejection::bad_request("method too long");

/// Parses a head from the beginning of `bytes`. Returns its length with the empty line; `None` if it is incomplete. The
/// parser keeps no state: the next call parses the head again from its first byte. This is cheap if the caller waits
/// for a line feed.
///
/// The first error counts. So the result does not depend on how the input is split, although bytes after the error or
/// beyond `head_bytes_max` may not have arrived yet.
pub fn parse_request_head(
    bytes: &[u8],
    head: &mut RequestHead,
    limits: &HeadLimits,
) -> Result<Option<usize>, MessageRejection> {
    head.clear();
    let (bytes, is_full) = match bytes.get(..limits.head_bytes_max) {
        Some(bytes) => (bytes, true),
        None => (bytes, false),
    };
    // Empty lines count towards the limit. Otherwise a client could send them without end.
    let incomplete = || if is_full { Err(TOO_LARGE) } else { Ok(None) };
    let mut at = skip_empty_lines(bytes)?;
    let start = at;
    let of_line = |rejection| check_request_line_so_far(&bytes[start..], limits).err().unwrap_or(rejection);
    at = match parse_plain_request_line(bytes, at, head, limits) {
        Some(line) => line.end() + 2,
        None => {
            let Some(line) = next_line(bytes, at).map_err(of_line)? else {
                check_request_line_so_far(&bytes[at..], limits)?;
                return incomplete();
            };
            parse_request_line(bytes, line, head, limits).map_err(of_line)?;
            line.end() + 2
        }
    };
    loop {
        if bytes[at..].starts_with(b"\r\n") {
            return Ok(Some(at + 2));
        }
        let plain = parse_plain_field_line(bytes, at);
        let line = match &plain {
            Some((name, value)) => Span::new(name.start(), value.end()),
            None => match next_line(bytes, at)? {
                Some(line) => line,
                None => return incomplete(),
            },
        };
        at = line.end() + 2;
        if head.fields.len() == limits.fields_max {
            return Err(MessageRejection::new(Status::REQUEST_HEADER_FIELDS_TOO_LARGE, "too many fields"));
        }
        let (name, value) = plain.map_or_else(|| parse_field_line(bytes, line), Ok)?;
        head.push_field(name, value, KnownField::from_name(name.of(bytes)));
    }
}

/// Fast path: parses a complete, valid HTTP/1.1 request line. Returns `None` for any other line; [`parse_request_line`]
/// then decides.
fn parse_plain_request_line(bytes: &[u8], start: usize, head: &mut RequestHead, limits: &HeadLimits) -> Option<Span> {
    let line = &bytes[start..];
    let method_bytes = line.iter().position(|&byte| !is_token_byte(byte))?;
    let (method, rest) = line.split_at(method_bytes);
    let rest = rest.strip_prefix(b" ")?;
    let target_bytes = find_invisible(rest)?;
    let is_plain = (1..=METHOD_BYTES_MAX).contains(&method_bytes)
        && (1..=limits.target_bytes_max).contains(&target_bytes)
        && rest[target_bytes..].starts_with(b" HTTP/1.1\r\n");
    if !is_plain {
        return None;
    }
    let target_start = start + method_bytes + 1;
    head.version = Version::Http11;
    head.method_name = Span::new(start, start + method_bytes);
    head.method = Method::from_name(method);
    head.target = Span::new(target_start, target_start + target_bytes);
    Some(Span::new(start, head.target.end() + b" HTTP/1.1".len()))
}

/// Fast path: parses a complete, valid field line with one space before its value and none after it. Returns `None` for
/// any other line; [`parse_field_line`] then decides.
pub(super) fn parse_plain_field_line(bytes: &[u8], start: usize) -> Option<(Span, Span)> {
    let line = &bytes[start..];
    let name_bytes = line.iter().position(|&byte| !is_token_byte(byte))?;
    let rest = line[name_bytes..].strip_prefix(b": ")?;
    let (value, rest) = rest.split_at(find_control(rest)?);
    let is_plain = name_bytes > 0 && rest.starts_with(b"\r\n") && !matches!(value, [] | [b' ', ..] | [.., b' ']);
    let value_start = start + name_bytes + 2;
    is_plain.then(|| (Span::new(start, start + name_bytes), Span::new(value_start, value_start + value.len())))
}

const TOO_LARGE: MessageRejection = MessageRejection::new(Status::REQUEST_HEADER_FIELDS_TOO_LARGE, "head too large");

/// Skips empty lines before a request (RFC 9112, section 2.2): some old clients send one after a POST.
fn skip_empty_lines(bytes: &[u8]) -> Result<usize, MessageRejection> {
    let mut at = 0;
    while bytes[at..].starts_with(b"\r\n") {
        at += 2;
    }
    match bytes[at..] {
        [b'\r', next, ..] if next != b'\n' => Err(BARE_CR),
        [b'\n', ..] => Err(BARE_LF),
        _ => Ok(at),
    }
}

const BARE_CR: MessageRejection = MessageRejection::bad_request("CR without LF");
const BARE_LF: MessageRejection = MessageRejection::bad_request("LF without CR");

/// Returns the line that begins at `start`, without its CRLF; `None` if it is incomplete. A bare LF is not a line end:
/// a recipient *may* accept it (RFC 9112, section 2.2), so recipients disagree.
fn next_line(bytes: &[u8], start: usize) -> Result<Option<Span>, MessageRejection> {
    let Some(length) = memchr(b'\n', &bytes[start..]) else { return Ok(None) };
    let line_feed = start + length;
    if length == 0 || bytes[line_feed - 1] != b'\r' {
        return Err(BARE_LF);
    }
    Ok(Some(Span::new(start, line_feed - 1)))
}

/// Rejects bytes that cannot begin a request line, by the first error in them. So the server does not wait for the rest
/// when a peer speaks another protocol, such as TLS. Errors at the end of the line (an unknown version) are found
/// later.
#[cold]
fn check_request_line_so_far(bytes: &[u8], limits: &HeadLimits) -> Result<(), MessageRejection> {
    let line = &bytes[..memchr(b'\n', bytes).unwrap_or(bytes.len())];
    let text = line.strip_suffix(b"\r").unwrap_or(line);
    let is_forbidden = |byte: &u8| !(b' '..0x7f).contains(byte);
    let method_bytes = memchr(b' ', text).unwrap_or(text.len());
    if !text[..method_bytes].iter().all(|&byte| is_token_byte(byte)) || text.first() == Some(&b' ') {
        return Err(MessageRejection::bad_request("malformed method"));
    }
    if method_bytes > METHOD_BYTES_MAX {
        return Err(METHOD_TOO_LONG);
    }
    let rest = text.get(method_bytes + 1..).unwrap_or_default();
    let target_bytes = memchr(b' ', rest).unwrap_or(rest.len());
    if rest[..target_bytes.min(limits.target_bytes_max.saturating_add(1))].iter().any(is_forbidden) {
        return Err(MessageRejection::bad_request("invalid byte in the request target"));
    }
    if target_bytes > limits.target_bytes_max {
        return Err(TARGET_TOO_LONG);
    }
    if rest[target_bytes..].iter().any(is_forbidden) || rest.len() > target_bytes + " HTTP/1.1".len() {
        return Err(MALFORMED_VERSION);
    }
    Ok(())
}

const TARGET_TOO_LONG: MessageRejection = MessageRejection::new(Status::URI_TOO_LONG, "request target too long");
const MALFORMED_VERSION: MessageRejection = MessageRejection::bad_request("malformed HTTP version");

/// `method SP request-target SP HTTP-version` (RFC 9112, section 3), with single spaces and no other white space.
fn parse_request_line(
    bytes: &[u8],
    line: Span,
    head: &mut RequestHead,
    limits: &HeadLimits,
) -> Result<(), MessageRejection> {
    let text = line.of(bytes);
    let method_end = text.iter().position(|&byte| !is_token_byte(byte)).unwrap_or(text.len());
    if method_end == 0 || text.get(method_end) != Some(&b' ') {
        return Err(MessageRejection::bad_request("malformed method"));
    }
    if method_end > METHOD_BYTES_MAX {
        return Err(METHOD_TOO_LONG);
    }
    let target_start = method_end + 1;
    let Some(target_bytes) = memchr(b' ', &text[target_start..]) else {
        check_target_bytes(&text[target_start..], limits)?;
        return Err(MessageRejection::bad_request("no HTTP version in the request line"));
    };
    let target_end = target_start + target_bytes;
    check_target_bytes(&text[target_start..target_end], limits)?;
    head.version = parse_version(&text[target_end + 1..])?;
    head.method_name = Span::new(line.start(), line.start() + method_end);
    head.method = Method::from_name(&text[..method_end]);
    head.target = Span::new(line.start() + target_start, line.start() + target_end);
    Ok(())
}

fn check_target_bytes(target: &[u8], limits: &HeadLimits) -> Result<(), MessageRejection> {
    if target.is_empty() {
        return Err(MessageRejection::bad_request("empty request target"));
    }
    if target.len() > limits.target_bytes_max {
        return Err(TARGET_TOO_LONG);
    }
    if find_invisible(target).is_some() {
        return Err(MessageRejection::bad_request("invalid byte in the request target"));
    }
    Ok(())
}

/// `HTTP/DIGIT.DIGIT`, in capitals (RFC 9112, section 2.3).
fn parse_version(text: &[u8]) -> Result<Version, MessageRejection> {
    match text {
        b"HTTP/1.1" => Ok(Version::Http11),
        b"HTTP/1.0" => Ok(Version::Http10),
        // A higher minor version is handled as the highest known one (RFC 9110, section 2.5).
        [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'2'..=b'9'] => Ok(Version::Http11),
        [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => {
            Err(MessageRejection::new(Status::HTTP_VERSION_NOT_SUPPORTED, "HTTP version not supported"))
        }
        _ => Err(MALFORMED_VERSION),
    }
}

/// `field-name ":" OWS field-value OWS` (RFC 9112, section 5). Trailer fields have the same syntax.
pub(crate) fn parse_field_line(bytes: &[u8], line: Span) -> Result<(Span, Span), MessageRejection> {
    let text = line.of(bytes);
    if matches!(text[0], b' ' | b'\t') {
        return Err(MessageRejection::bad_request("folded field line")); // RFC 9112, section 5.2
    }
    let name_end = text.iter().position(|&byte| !is_token_byte(byte)).unwrap_or(text.len());
    if name_end == 0 || text.get(name_end) != Some(&b':') {
        // This includes white space before the colon (RFC 9112, section 5.1).
        return Err(MessageRejection::bad_request("malformed field name"));
    }
    let value = &text[name_end + 1..];
    // `fold` has no early exit, unlike `any`, so the compiler vectorizes it to sixteen bytes a step.
    if value.iter().fold(false, |found, &byte| found | is_forbidden_in_value(byte)) {
        return Err(MessageRejection::bad_request("control byte in a field value"));
    }
    let blank = |byte: &&u8| matches!(**byte, b' ' | b'\t');
    let leading = value.iter().take_while(blank).count();
    let trailing = value[leading..].iter().rev().take_while(blank).count();
    let name = Span::new(line.start(), line.start() + name_end);
    Ok((name, Span::new(name.end() + 1 + leading, line.end() - trailing)))
}

/// RFC 9110, section 5.5: CR, LF and NUL are dangerous and other control characters are invalid. Bytes from 0x80 are
/// opaque data.
pub(super) fn is_forbidden_in_value(byte: u8) -> bool {
    (byte < b' ') & (byte != b'\t') | (byte == 0x7f)
}

/// `tchar` (RFC 9110, section 5.6.2).
pub(crate) const fn is_token_byte(byte: u8) -> bool {
    TOKEN_BYTES[byte as usize]
}

const TOKEN_BYTES: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        let punctuation = matches!(
            byte as u8,
            b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~'
        );
        table[byte] = punctuation || (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::http::Request;

    const LIMITS: HeadLimits = HeadLimits { head_bytes_max: 200, fields_max: 4, target_bytes_max: 40 };

    fn status(input: &[u8]) -> Option<u16> {
        parse_request_head(input, &mut RequestHead::default(), &LIMITS).err().map(|rejection| rejection.status.code())
    }

    proptest! {
        /// The fast paths return what the general parsers return.
        #[test]
        fn plain_lines_are_lines(line in prop_oneof![
            "(GET|POST|[!-~]{0,3}) [ -~]{0,50}( HTTP/1.[01])?",
            "[!-~]{0,9}: ?[ -~\t]{0,20}",
            "[A-Za-z]{1,9}:[ \t]{0,2}[a-z \t\u{7f}é]{0,40}",
        ]) {
            let bytes = format!("\r\n{line}\r\n\r\n").into_bytes();
            let whole = next_line(&bytes, 2).unwrap().unwrap();
            if let Some(plain) = parse_plain_field_line(&bytes, 2) {
                prop_assert_eq!(parse_field_line(&bytes, whole), Ok(plain));
                prop_assert_eq!(plain.1.end(), whole.end());
            }
            let (mut plain, mut thorough) = (RequestHead::default(), RequestHead::default());
            if let Some(line) = parse_plain_request_line(&bytes, 2, &mut plain, &LIMITS) {
                prop_assert_eq!(line, whole);
                prop_assert_eq!(parse_request_line(&bytes, line, &mut thorough, &LIMITS), Ok(()));
                prop_assert_eq!(format!("{plain:?}"), format!("{thorough:?}"));
            }
        }
    }

    #[test]
    fn a_whole_head() {
        let bytes = b"\r\nGET /a?b HTTP/1.1\r\nHost: h\r\nX-A:\t b c \t\r\nx-a:\r\n\r\nrest";
        let mut head = RequestHead::default();
        let length = parse_request_head(bytes, &mut head, &LIMITS).unwrap().unwrap();
        assert_eq!(&bytes[length..], b"rest");
        let request = Request { head: &head, bytes };
        assert_eq!((request.method(), request.target(), head.version), (Method::Get, &b"/a?b"[..], Version::Http11));
        assert_eq!(request.field(KnownField::Host), Some(&b"h"[..]));
        assert_eq!(request.field_by_name(b"X-A"), Some(&b"b c"[..]));
        assert_eq!(head.fields[2].value.of(bytes), b"");
    }

    #[test]
    fn a_head_is_incomplete_until_its_last_byte() {
        let bytes = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";
        for end in 0..bytes.len() {
            let parsed = parse_request_head(&bytes[..end], &mut RequestHead::default(), &LIMITS);
            assert_eq!(parsed, Ok(None), "after {end} bytes");
        }
    }

    #[test]
    fn malformed_heads_are_rejected() {
        for (input, expect) in [
            (&b"GET / HTTP/1.1\nHost: h\r\n\r\n"[..], 400),
            (b"GET / HTTP/1.1\r\nHost: h\n\r\n", 400),
            (b"GET / HTTP/1.1\r\nHost: h\r\n\n", 400),
            (b"GET / HTTP/1.1\r\nHost: h\rX: y\r\n\r\n", 400),
            (b"\nGET / HTTP/1.1\r\n\r\n", 400),
            (b"\rGET / HTTP/1.1\r\n\r\n", 400),
            (b"GET  / HTTP/1.1\r\n\r\n", 400),
            (b"GET /  HTTP/1.1\r\n\r\n", 400),
            (b"GET / HTTP/1.1 \r\n\r\n", 400),
            (b"GET\t/ HTTP/1.1\r\n\r\n", 400),
            (b" GET / HTTP/1.1\r\n\r\n", 400),
            (b"GET /\r\n", 400),
            (b"GET /\xff HTTP/1.1\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\nHost : h\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\nHost: h\r\n fold\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\n Host: h\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\n: h\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\nHost\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\nX: \x00\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\nX: \x7f\r\n\r\n", 400),
            (b"GET / http/1.1\r\n", 400),
            (b"GET / HTTP/1.10\r\n", 400),
            (b"GET / HTTP/2.0\r\n", 505),
            (b"GET / HTTP/0.9\r\n", 505),
            (b"\x16\x03\x01\x02", 400),
            (b"GET /0123456789012345678901234567890123456789", 414),
            (b"GET /0123456789012345678901234567890123456789 HTTP/1.1\r\n", 414),
            (b"GET / HTTP/1.1x", 400),
            (&[b'A'; 257], 431),
            (b"GET / HTTP/1.1\r\na:\r\nb:\r\nc:\r\nd:\r\ne:\r\n", 431),
        ] {
            assert_eq!(status(input), Some(expect), "{}", input.escape_ascii());
        }
        let long = [b"GET / HTTP/1.1\r\nX: ".as_slice(), &[b'x'; 300]].concat();
        assert_eq!(status(&long), Some(431));
        assert_eq!(status(&b"\r\n".repeat(100)), Some(431));
    }

    #[test]
    fn tolerated_where_the_rfc_says_so() {
        for input in
            [&b"GET / HTTP/1.7\r\n\r\n"[..], b"\r\n\r\nGET / HTTP/1.0\r\n\r\n", b"G!T / HTTP/1.1\r\nX: \xff\r\n\r\n"]
        {
            let parsed = parse_request_head(input, &mut RequestHead::default(), &LIMITS);
            assert_eq!(parsed, Ok(Some(input.len())), "{}", input.escape_ascii());
        }
    }
}
