//! Framing of requests: the end of the content, and the persistence of the connection (RFC 9112, sections 6 and 9).

use super::MessageRejection;
use super::request_head::is_token_byte;
use crate::http::{KnownField, Request, Status, Version};

/// Delimitation of a message's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFraming {
    /// No content.
    None,
    /// Content-Length in bytes, at least one.
    Length(u64),
    /// Transfer-Encoding: chunked.
    Chunked,
}

/// Properties of the message and the connection that a request's head defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing {
    /// Delimitation of the content.
    pub body: BodyFraming,
    /// True if the client may send another request on this connection (RFC 9112, section 9.3).
    pub is_persistent: bool,
    /// True if the client waits for 100 (Continue) before it sends content (RFC 9110, section 10.1.1).
    pub expects_continue: bool,
}

/// Derives the framing from a head. Rejects everything that two recipients could interpret differently.
pub fn request_framing(request: &Request<'_>) -> Result<Framing, MessageRejection> {
    let body = body_framing(request)?;
    Ok(Framing { body, is_persistent: is_persistent(request), expects_continue: expects_continue(request, body)? })
}

fn body_framing(request: &Request<'_>) -> Result<BodyFraming, MessageRejection> {
    let has_length = request.head.has(KnownField::ContentLength);
    if request.head.has(KnownField::TransferEncoding) {
        if has_length {
            // RFC 9112, section 6.1: "ought to be handled as an error". This is the classic form of request smuggling.
            return Err(MessageRejection::bad_request("both Transfer-Encoding and Content-Length"));
        }
        return transfer_encoding(request);
    }
    if !has_length {
        return Ok(BodyFraming::None);
    }
    if request.head.is_repeated(KnownField::ContentLength) {
        return Err(MessageRejection::bad_request("more than one Content-Length"));
    }
    match parse_content_length(request.field(KnownField::ContentLength).unwrap_or_default()) {
        Some(0) => Ok(BodyFraming::None),
        Some(length) => Ok(BodyFraming::Length(length)),
        None => Err(MessageRejection::bad_request("malformed Content-Length")),
    }
}

/// Accepts only a single `chunked`. It must be the last coding (RFC 9112, section 6.3), and the server decodes no
/// other.
fn transfer_encoding(request: &Request<'_>) -> Result<BodyFraming, MessageRejection> {
    if request.head.version < Version::Http11 {
        // RFC 9112, section 6.1: the framing is faulty because HTTP/1.0 has no transfer codings.
        return Err(MessageRejection::bad_request("Transfer-Encoding in HTTP/1.0"));
    }
    let mut codings =
        request.field_lines(KnownField::TransferEncoding).flat_map(|line| line.split(|&byte| byte == b','));
    let (mut last, mut count, mut chunked_count) = (&b""[..], 0, 0);
    for coding in &mut codings {
        last = coding.trim_ascii();
        count += 1;
        chunked_count += usize::from(last.eq_ignore_ascii_case(b"chunked"));
        if last.is_empty() || !last.iter().all(|&byte| is_token_byte(byte)) {
            return Err(MessageRejection::bad_request("malformed Transfer-Encoding"));
        }
    }
    if !last.eq_ignore_ascii_case(b"chunked") || chunked_count != 1 {
        return Err(MessageRejection::bad_request("chunked is not the last transfer coding"));
    }
    if count != 1 {
        return Err(MessageRejection::new(Status::NOT_IMPLEMENTED, "transfer coding not implemented"));
    }
    Ok(BodyFraming::Chunked)
}

/// `1*DIGIT` (RFC 9110, section 8.6): no sign, no list, no white space. `None` also for numbers beyond 64 bits.
pub fn parse_content_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    value.iter().try_fold(0u64, |length, &byte| {
        let digit = byte.checked_sub(b'0').filter(|&digit| digit < 10)?;
        length.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

fn is_persistent(request: &Request<'_>) -> bool {
    let (mut close, mut keep_alive) = (false, false);
    if request.head.has(KnownField::Connection) {
        for option in list_items(request, KnownField::Connection) {
            close |= option.eq_ignore_ascii_case(b"close");
            keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
        }
    }
    !close && (keep_alive || request.head.version >= Version::Http11)
}

/// Returns whether the client waits for 100 (Continue). Rejects other expectations.
pub(crate) fn expects_continue(request: &Request<'_>, body: BodyFraming) -> Result<bool, MessageRejection> {
    if !request.head.has(KnownField::Expect) {
        return Ok(false);
    }
    // HTTP/1.0 has no expectations, and without content the client waits for nothing (RFC 9110, section 10.1.1).
    for expectation in list_items(request, KnownField::Expect) {
        if !expectation.eq_ignore_ascii_case(b"100-continue") {
            return Err(MessageRejection::new(Status::EXPECTATION_FAILED, "unknown expectation"));
        }
    }
    Ok(request.head.version >= Version::Http11 && body != BodyFraming::None)
}

/// Returns the items of a comma-separated list over all lines of a field, without empty ones (RFC 9110, section 5.6.1).
fn list_items<'a>(request: &Request<'a>, known: KnownField) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    request
        .field_lines(known)
        .flat_map(|line| line.split(|&byte| byte == b','))
        .map(<[u8]>::trim_ascii)
        .filter(|item| !item.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h1::{HeadLimits, parse_request_head};
    use crate::http::RequestHead;

    fn framing(version: &str, fields: &str) -> Result<Framing, u16> {
        let bytes = format!("POST / HTTP/{version}\r\n{fields}\r\n");
        let mut head = RequestHead::default();
        parse_request_head(bytes.as_bytes(), &mut head, &HeadLimits::default()).unwrap().unwrap();
        request_framing(&Request { head: &head, bytes: bytes.as_bytes() }).map_err(|rejection| rejection.status.code())
    }

    #[test]
    fn content() {
        for (fields, expect) in [
            ("", Ok(BodyFraming::None)),
            ("Content-Length: 0\r\n", Ok(BodyFraming::None)),
            ("Content-Length: 10\r\n", Ok(BodyFraming::Length(10))),
            ("content-length:18446744073709551615\r\n", Ok(BodyFraming::Length(u64::MAX))),
            ("Content-Length: 18446744073709551616\r\n", Err(400)),
            ("Content-Length: 1, 1\r\n", Err(400)),
            ("Content-Length: 1\r\nContent-Length: 1\r\n", Err(400)),
            ("Content-Length: 1\r\nContent-Length: 2\r\n", Err(400)),
            ("Content-Length:\r\n", Err(400)),
            ("Content-Length: +1\r\n", Err(400)),
            ("Content-Length: -1\r\n", Err(400)),
            ("Content-Length: 0x1\r\n", Err(400)),
            ("Content-Length: 1 1\r\n", Err(400)),
            ("Content-Length: 1;\r\n", Err(400)),
            ("Transfer-Encoding: chunked\r\n", Ok(BodyFraming::Chunked)),
            ("Transfer-Encoding: CHUNKED\r\n", Ok(BodyFraming::Chunked)),
            ("Transfer-Encoding: chunked\r\nContent-Length: 1\r\n", Err(400)),
            ("Content-Length: 0\r\nTransfer-Encoding: chunked\r\n", Err(400)),
            ("Transfer-Encoding:\r\n", Err(400)),
            ("Transfer-Encoding: identity\r\n", Err(400)),
            ("Transfer-Encoding: xchunked\r\n", Err(400)),
            ("Transfer-Encoding: chunked, identity\r\n", Err(400)),
            ("Transfer-Encoding: chunked, chunked\r\n", Err(400)),
            ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", Err(400)),
            ("Transfer-Encoding: chunked,\r\n", Err(400)),
            ("Transfer-Encoding: \"chunked\"\r\n", Err(400)),
            ("Transfer-Encoding: chunked;a=b\r\n", Err(400)),
            ("Transfer-Encoding: gzip, chunked\r\n", Err(501)),
            ("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", Err(501)),
        ] {
            assert_eq!(framing("1.1", fields).map(|framing| framing.body), expect, "{fields}");
        }
        assert_eq!(framing("1.0", "Transfer-Encoding: chunked\r\n"), Err(400));
    }

    #[test]
    fn persistence() {
        for (version, fields, expect) in [
            ("1.1", "", true),
            ("1.1", "Connection: close\r\n", false),
            ("1.1", "Connection: x, Close\r\n", false),
            ("1.1", "Connection: x\r\nConnection: close\r\n", false),
            ("1.1", "Connection: closed\r\n", true),
            ("1.0", "", false),
            ("1.0", "Connection: Keep-Alive\r\n", true),
            ("1.0", "Connection: keep-alive, close\r\n", false),
        ] {
            assert_eq!(framing(version, fields).unwrap().is_persistent, expect, "HTTP/{version} {fields}");
        }
    }

    #[test]
    fn expectations() {
        for (version, fields, expect) in [
            ("1.1", "Expect: 100-continue\r\nContent-Length: 1\r\n", Ok(true)),
            ("1.1", "Expect: 100-Continue\r\n", Ok(false)),
            ("1.0", "Expect: 100-continue\r\nContent-Length: 1\r\n", Ok(false)),
            ("1.1", "Expect: tea\r\n", Err(417)),
            ("1.1", "Expect: 100-continue, tea\r\n", Err(417)),
        ] {
            assert_eq!(framing(version, fields).map(|framing| framing.expects_continue), expect, "{version} {fields}");
        }
    }
}
