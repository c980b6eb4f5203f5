//! Client side: parser for response heads, and framing of responses (RFC 9112, sections 4 and 6.3).

use super::framing::parse_content_length;
use super::request_head::{is_forbidden_in_value, parse_field_line, parse_plain_field_line};
use super::{BodyFraming, HeadLimits};
use crate::http::{KnownField, Method, Span, Status, Version};
use memchr::memchr;

/// Error of a malformed response. The text is fixed and contains no input of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedResponse(pub &'static str);

/// One field line of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseField {
    /// Name as sent.
    pub name: Span,
    /// Value without surrounding white space.
    pub value: Span,
}

/// Delimitation of a response's content (RFC 9112, section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseFraming {
    /// Delimited like a request's content: none, a length, or chunks.
    Delimited(BodyFraming),
    /// The content ends when the connection closes.
    UntilClose,
}

/// Head of a response, as spans of the bytes it was parsed from. Callers reuse it: after `fields` has grown, parsing
/// does not allocate.
#[derive(Clone, Debug)]
pub struct ResponseHead {
    /// Version in the status line.
    pub version: Version,
    /// Status in the status line.
    pub status: Status,
    /// Reason phrase; may be empty.
    pub reason: Span,
    /// All field lines, in order.
    pub fields: Vec<ResponseField>,
}

impl Default for ResponseHead {
    fn default() -> Self {
        Self { version: Version::Http11, status: Status::OK, reason: Span::default(), fields: Vec::new() }
    }
}

/// Parses a head from the beginning of `bytes`. Returns its length with the empty line; `None` if it is incomplete.
pub fn parse_response_head(
    bytes: &[u8],
    head: &mut ResponseHead,
    limits: &HeadLimits,
) -> Result<Option<usize>, MalformedResponse> {
    head.fields.clear();
    check_beginning(bytes)?;
    let Some(line) = next_line(bytes, 0, limits)? else { return Ok(None) };
    (head.version, head.status) = parse_status_line(line.of(bytes))?;
    head.reason = Span::new(line.end().min(line.start() + REASON_AT), line.end());
    let mut at = line.end() + 2;
    loop {
        let plain = parse_plain_field_line(bytes, at).filter(|(_, value)| value.end() + 2 <= limits.head_bytes_max);
        let line = match &plain {
            Some((name, value)) => Span::new(name.start(), value.end()),
            None => match next_line(bytes, at, limits)? {
                Some(line) => line,
                None => return Ok(None),
            },
        };
        at = line.end() + 2;
        if line.start() == line.end() {
            return Ok(Some(at));
        }
        if head.fields.len() == limits.fields_max {
            return Err(MalformedResponse("too many fields"));
        }
        let of_line = || parse_field_line(bytes, line).map_err(|rejection| MalformedResponse(rejection.reason));
        let (name, value) = plain.map_or_else(of_line, Ok)?;
        head.fields.push(ResponseField { name, value });
    }
}

impl ResponseHead {
    /// Returns the values of all lines with this name, in order. The name is case-insensitive. `bytes` are those the
    /// head was parsed from.
    pub fn values<'a>(&'a self, bytes: &'a [u8], name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let has_name = move |field: &&ResponseField| field.name.of(bytes).eq_ignore_ascii_case(name);
        self.fields.iter().filter(has_name).map(move |field| field.value.of(bytes))
    }

    /// Derives the framing of a response to a request with this method.
    pub fn framing(&self, bytes: &[u8], method: Method) -> Result<ResponseFraming, MalformedResponse> {
        if self.status.has_no_content() {
            return Ok(ResponseFraming::Delimited(BodyFraming::None));
        }
        // The fields of a response to HEAD describe that to GET, so they must be valid as well.
        let declared = self.declared_framing(bytes)?;
        Ok(if method == Method::Head { ResponseFraming::Delimited(BodyFraming::None) } else { declared })
    }

    /// Derives the framing of a response that may have content.
    fn declared_framing(&self, bytes: &[u8]) -> Result<ResponseFraming, MalformedResponse> {
        let mut transfer_encodings = self.values(bytes, b"transfer-encoding");
        if let Some(coding) = transfer_encodings.next() {
            // RFC 9112, section 6.1: only the final coding delimits the content, and the decoder supports only chunked.
            if self.version < Version::Http11 || self.values(bytes, b"content-length").next().is_some() {
                return Err(MalformedResponse("Transfer-Encoding in HTTP/1.0 or beside Content-Length"));
            }
            return match coding.eq_ignore_ascii_case(b"chunked") && transfer_encodings.next().is_none() {
                true => Ok(ResponseFraming::Delimited(BodyFraming::Chunked)),
                false => Err(MalformedResponse("transfer coding other than chunked")),
            };
        }
        let mut lengths = self.values(bytes, b"content-length");
        let Some(length) = lengths.next() else { return Ok(ResponseFraming::UntilClose) };
        if lengths.next().is_some() {
            return Err(MalformedResponse("more than one Content-Length"));
        }
        match parse_content_length(length).ok_or(MalformedResponse("malformed Content-Length"))? {
            0 => Ok(ResponseFraming::Delimited(BodyFraming::None)),
            length => Ok(ResponseFraming::Delimited(BodyFraming::Length(length))),
        }
    }

    /// Returns whether the server keeps the connection open after this response (RFC 9112, section 9.3). Does not
    /// consider content that ends when the connection closes.
    pub fn is_persistent(&self, bytes: &[u8]) -> bool {
        let (mut close, mut keep_alive) = (false, false);
        for field in &self.fields {
            if KnownField::from_name(field.name.of(bytes)) != KnownField::Connection {
                continue;
            }
            for option in field.value.of(bytes).split(|&byte| byte == b',') {
                close |= option.trim_ascii().eq_ignore_ascii_case(b"close");
                keep_alive |= option.trim_ascii().eq_ignore_ascii_case(b"keep-alive");
            }
        }
        !close && (keep_alive || self.version >= Version::Http11)
    }
}

/// Rejects bytes that cannot begin a status line, so that the client does not wait for the rest when a peer speaks
/// another protocol.
fn check_beginning(bytes: &[u8]) -> Result<(), MalformedResponse> {
    const BEGINNING: &[u8] = b"HTTP/1.";
    let length = bytes.len().min(BEGINNING.len());
    if bytes[..length] == BEGINNING[..length] { Ok(()) } else { Err(MalformedResponse("not an HTTP/1 response")) }
}

fn next_line(bytes: &[u8], start: usize, limits: &HeadLimits) -> Result<Option<Span>, MalformedResponse> {
    let end = memchr(b'\n', &bytes[start..]).map(|length| start + length);
    if end.unwrap_or(bytes.len()) >= limits.head_bytes_max {
        return Err(MalformedResponse("head too large"));
    }
    match end {
        None => Ok(None),
        Some(end) if end > start && bytes[end - 1] == b'\r' => Ok(Some(Span::new(start, end - 1))),
        Some(_) => Err(MalformedResponse("LF without CR")),
    }
}

/// Offset of the reason phrase, after `HTTP/1.1 200 `.
const REASON_AT: usize = 13;

/// `HTTP-version SP status-code SP [ reason-phrase ]` (RFC 9112, section 4). Many servers omit the space after the
/// code.
pub(crate) fn parse_status_line(line: &[u8]) -> Result<(Version, Status), MalformedResponse> {
    const MALFORMED: MalformedResponse = MalformedResponse("malformed status line");
    let [b'H', b'T', b'T', b'P', b'/', b'1', b'.', minor @ b'0'..=b'9', b' ', code @ ..] = line else {
        return Err(MALFORMED);
    };
    let version = if *minor == b'0' { Version::Http10 } else { Version::Http11 };
    let [hundreds @ b'1'..=b'9', tens @ b'0'..=b'9', units @ b'0'..=b'9', rest @ ..] = code else {
        return Err(MALFORMED);
    };
    // A reason phrase may contain the bytes of a field value; in particular no bare CR, which other parsers take for a
    // line end.
    if !matches!(rest, [] | [b' ', ..]) || rest.iter().any(|&byte| is_forbidden_in_value(byte)) {
        return Err(MALFORMED);
    }
    let digit = |byte: &u8| u16::from(byte - b'0');
    let status = Status::new(digit(hundreds) * 100 + digit(tens) * 10 + digit(units)).ok_or(MALFORMED)?;
    Ok((version, status))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: HeadLimits = HeadLimits { head_bytes_max: 128, fields_max: 3, target_bytes_max: 0 };

    fn parse(bytes: &[u8]) -> Result<Option<(usize, ResponseHead)>, MalformedResponse> {
        let mut head = ResponseHead::default();
        Ok(parse_response_head(bytes, &mut head, &LIMITS)?.map(|length| (length, head)))
    }

    #[test]
    fn a_whole_head() {
        let bytes = b"HTTP/1.1 404 Not Found\r\nServer:  x \r\nA: 1\r\na: 2\r\n\r\nbody";
        let (length, head) = parse(bytes).unwrap().unwrap();
        assert_eq!(&bytes[length..], b"body");
        assert_eq!((head.version, head.status.code()), (Version::Http11, 404));
        assert_eq!(head.reason.of(bytes), b"Not Found");
        assert_eq!(head.values(bytes, b"SERVER").next(), Some(&b"x"[..]));
        assert_eq!(head.values(bytes, b"A").collect::<Vec<_>>(), [b"1", b"2"]);
        for end in 0..length {
            assert!(parse(&bytes[..end]).unwrap().is_none(), "after {end} bytes");
        }
    }

    #[test]
    fn malformed_heads() {
        for input in [
            &b"HTTP/2 200\r\n\r\n"[..],
            b"SSH-2.0",
            b"HTTP/1.1 20 OK\r\n\r\n",
            b"HTTP/1.1 2000 OK\r\n\r\n",
            b"HTTP/1.1  200 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\n\r\n",
            b"HTTP/1.1 200 OK\rA: b\r\n\r\n",
            b"HTTP/1.1 200 \0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nA : b\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n",
            b"HTTP/1.1 200 OK\r\na:\r\nb:\r\nc:\r\nd:\r\n\r\n",
            &[b"HTTP/1.1 200 OK\r\na: ", &[b'x'; 128][..]].concat(),
        ] {
            assert!(parse(input).is_err(), "{}", input.escape_ascii());
        }
        assert!(parse(b"HTTP/1.1 200\r\n\r\n").unwrap().is_some(), "no reason phrase, no space");
    }

    #[test]
    fn framing() {
        let delimited = |framing| Ok(ResponseFraming::Delimited(framing));
        let fault = Err(());
        for (version, status, method, fields, expect) in [
            ("1.1", 200, Method::Get, "Content-Length: 5\r\n", delimited(BodyFraming::Length(5))),
            ("1.1", 200, Method::Get, "Content-Length: 0\r\n", delimited(BodyFraming::None)),
            ("1.1", 200, Method::Head, "Content-Length: 5\r\n", delimited(BodyFraming::None)),
            ("1.1", 200, Method::Head, "Transfer-Encoding: chunked\r\n", delimited(BodyFraming::None)),
            ("1.1", 200, Method::Head, "", delimited(BodyFraming::None)),
            ("1.1", 200, Method::Head, "Content-Length: 5\r\nContent-Length: 6\r\n", fault),
            ("1.1", 200, Method::Head, "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", fault),
            ("1.1", 200, Method::Head, "Content-Length: abc\r\n", fault),
            ("1.1", 304, Method::Get, "Content-Length: 5\r\n", delimited(BodyFraming::None)),
            ("1.1", 204, Method::Get, "", delimited(BodyFraming::None)),
            ("1.1", 100, Method::Get, "", delimited(BodyFraming::None)),
            ("1.1", 200, Method::Get, "Transfer-Encoding: Chunked\r\n", delimited(BodyFraming::Chunked)),
            ("1.1", 200, Method::Get, "", Ok(ResponseFraming::UntilClose)),
            ("1.0", 200, Method::Get, "", Ok(ResponseFraming::UntilClose)),
            ("1.0", 200, Method::Get, "Transfer-Encoding: chunked\r\n", fault),
            ("1.1", 200, Method::Get, "Transfer-Encoding: gzip, chunked\r\n", fault),
            ("1.1", 200, Method::Get, "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", fault),
            ("1.1", 200, Method::Get, "Content-Length: 5\r\nContent-Length: 5\r\n", fault),
            ("1.1", 200, Method::Get, "Content-Length: -5\r\n", fault),
        ] {
            let bytes = format!("HTTP/{version} {status} X\r\n{fields}\r\n").into_bytes();
            let (_, head) = parse(&bytes).unwrap().unwrap();
            let framing = head.framing(&bytes, method).map_err(|_| ());
            assert_eq!(framing, expect, "HTTP/{version} {status} {fields}");
        }
    }

    #[test]
    fn persistence() {
        for (version, fields, expect) in [
            ("1.1", "", true),
            ("1.1", "Connection: x, Close\r\n", false),
            ("1.0", "", false),
            ("1.0", "connection: Keep-Alive\r\n", true),
            ("1.0", "Connection: keep-alive\r\nConnection: close\r\n", false),
        ] {
            let bytes = format!("HTTP/{version} 200 OK\r\n{fields}\r\n").into_bytes();
            let (_, head) = parse(&bytes).unwrap().unwrap();
            assert_eq!(head.is_persistent(&bytes), expect, "HTTP/{version} {fields}");
        }
    }
}
