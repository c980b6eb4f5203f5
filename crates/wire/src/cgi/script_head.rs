//! Heads of scripts' responses (RFC 3875, section 6), parsed into the same form as HTTP/1 heads.

use memchr::memchr;

use crate::h1::{HeadLimits, MalformedResponse, ResponseField, ResponseHead, parse_field_line, parse_status_line};
use crate::http::{Span, Status, Version};

/// Results of [`parse_script_head`] that [`ResponseHead`] has no place for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScriptHead {
    /// Length of the head with the empty line.
    pub bytes: usize,
    /// Path and query of a local redirect: the server itself looks for the response there (RFC 3875, section 6.2.2).
    pub local_location: Option<Span>,
}

/// Parses a head from the beginning of `bytes`; `None` if it is incomplete. Lines may end with LF alone, as in RFC
/// 3875, or with CRLF. A status line may come first: uwsgi servers and scripts with non-parsed headers (section 5) send
/// a whole HTTP response. The Status field sets the status and is not among the fields of the response.
///
/// # Errors
/// The head has no field, an invalid field line, or a status that is not final; or Status, Location or Content-Length
/// occurs twice.
pub fn parse_script_head(
    bytes: &[u8],
    head: &mut ResponseHead,
    limits: &HeadLimits,
) -> Result<Option<ScriptHead>, MalformedResponse> {
    head.fields.clear();
    (head.version, head.status, head.reason) = (Version::Http11, Status::OK, Span::default());
    let (mut at, mut found) = (0, ScriptHeadFacts::default());
    loop {
        let Some(line) = next_line(bytes, at, limits)? else { return Ok(None) };
        let is_first = at == 0;
        at = line.next;
        match line.span.of(bytes) {
            [] => break,
            text if is_first && text.starts_with(b"HTTP/") => {
                (head.version, head.status) = parse_status_line(text)?;
                (found.has_status, found.is_http) = (true, true);
            }
            _ => found.on_field(bytes, line.span, head, limits)?,
        }
    }
    if head.fields.is_empty() && !found.has_status {
        return Err(MalformedResponse("no fields before the content"));
    }
    let mut local_location = None;
    if let Some(location) = found.location.filter(|_| !found.has_status) {
        match location.of(bytes) {
            // A path that begins with two slashes names another host.
            [b'/', b'/', ..] => head.status = Status::FOUND,
            [b'/', ..] => local_location = Some(location),
            // RFC 3875, section 6.2.3.
            _ => head.status = Status::FOUND,
        }
    }
    Ok(Some(ScriptHead { bytes: at, local_location }))
}

/// Facts that decide how the fields are interpreted.
#[derive(Default)]
struct ScriptHeadFacts {
    has_status: bool,
    is_http: bool,
    location: Option<Span>,
    has_length: bool,
}

impl ScriptHeadFacts {
    fn on_field(
        &mut self,
        bytes: &[u8],
        line: Span,
        head: &mut ResponseHead,
        limits: &HeadLimits,
    ) -> Result<(), MalformedResponse> {
        if head.fields.len() == limits.fields_max {
            return Err(MalformedResponse("too many fields"));
        }
        let (name, value) = parse_field_line(bytes, line).map_err(|rejection| MalformedResponse(rejection.reason))?;
        let text = name.of(bytes);
        if text.eq_ignore_ascii_case(b"status") {
            if std::mem::replace(&mut self.has_status, true) {
                return Err(MalformedResponse("more than one status"));
            }
            (head.status, head.reason) = parse_status(bytes, value)?;
            return Ok(());
        }
        // RFC 3875, section 6.3: a field must not occur twice. The parser does not guess which of two locations is
        // meant.
        if text.eq_ignore_ascii_case(b"location") && self.location.replace(value).is_some() {
            return Err(MalformedResponse("more than one Location"));
        }
        if text.eq_ignore_ascii_case(b"content-length") && std::mem::replace(&mut self.has_length, true) {
            return Err(MalformedResponse("more than one Content-Length"));
        }
        // The server chooses the transfer coding (section 6.3.4); the script has not encoded the content.
        if self.is_http || !text.eq_ignore_ascii_case(b"transfer-encoding") {
            head.fields.push(ResponseField { name, value });
        }
        Ok(())
    }
}

/// A line and the offset of the next one.
struct ScriptLine {
    span: Span,
    next: usize,
}

fn next_line(bytes: &[u8], start: usize, limits: &HeadLimits) -> Result<Option<ScriptLine>, MalformedResponse> {
    let end = memchr(b'\n', &bytes[start..]).map(|length| start + length);
    if end.unwrap_or(bytes.len()) >= limits.head_bytes_max {
        return Err(MalformedResponse("head too large"));
    }
    let Some(end) = end else { return Ok(None) };
    let text_end = if end > start && bytes[end - 1] == b'\r' { end - 1 } else { end };
    Ok(Some(ScriptLine { span: Span::new(start, text_end), next: end + 1 }))
}

/// `3digit [ SP reason-phrase ]` (RFC 3875, section 6.3.3).
fn parse_status(bytes: &[u8], value: Span) -> Result<(Status, Span), MalformedResponse> {
    const MALFORMED: MalformedResponse = MalformedResponse("malformed status");
    let text = value.of(bytes);
    let (digits, rest) = text.split_at_checked(3).ok_or(MALFORMED)?;
    if !matches!(rest, [] | [b' ', ..]) || !digits.iter().all(u8::is_ascii_digit) {
        return Err(MALFORMED);
    }
    let code = digits.iter().fold(0, |code, digit| code * 10 + u16::from(digit - b'0'));
    // Interim statuses do not answer a request, and 101 would switch to a protocol that no script speaks.
    let status = Status::new(code).filter(|_| (200..600).contains(&code)).ok_or(MALFORMED)?;
    let blanks = rest.iter().take_while(|&&byte| byte == b' ').count();
    Ok((status, Span::new(value.start() + 3 + blanks, value.end())))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: HeadLimits = HeadLimits { head_bytes_max: 128, fields_max: 3, target_bytes_max: 0 };

    /// Formats status, reason, fields, local location and the bytes after the head; or returns the error.
    fn parse(input: &[u8]) -> Result<String, &'static str> {
        let mut head = ResponseHead::default();
        let found = parse_script_head(input, &mut head, &LIMITS).map_err(|malformed| malformed.0)?;
        let Some(found) = found else { return Ok("incomplete".into()) };
        let text = |span: Span| String::from_utf8_lossy(span.of(input)).into_owned();
        let fields = head.fields.iter().map(|field| format!("{}={}", text(field.name), text(field.value)));
        let fields = fields.collect::<Vec<_>>().join(",");
        let local = found.local_location.map_or(String::new(), |span| format!(" local {}", text(span)));
        let rest = String::from_utf8_lossy(&input[found.bytes..]).into_owned();
        Ok(format!("{} {}|{fields}|{rest}{local}", head.status, text(head.reason)))
    }

    #[test]
    fn heads() {
        let check = |input: &str, expect: &str| {
            assert_eq!(parse(input.as_bytes()).as_deref(), Ok(expect), "{input:?}");
            // The result does not depend on how the input is split.
            for end in 0..input.find("\n\n").or(input.find("\r\n\r\n")).unwrap_or(0) {
                assert_eq!(parse(&input.as_bytes()[..end]).as_deref(), Ok("incomplete"), "{input:?} up to {end}");
            }
        };
        check("Content-Type: text/plain\n\nabc", "200 |Content-Type=text/plain|abc");
        check("Content-Type: text/plain\r\n\r\nabc", "200 |Content-Type=text/plain|abc");
        check("A: 1\r\nB: 2\n\r\n\n", "200 |A=1,B=2|\n");
        check("Status: 404 Not here\nA:b\n\n", "404 Not here|A=b|");
        check("status:  404\n\n", "404 ||");
        check("Status: 204\r\n\r\n", "204 ||");
        check("HTTP/1.0 403 Forbidden\r\nA: b\r\n\r\nc", "403 |A=b|c");
        check("Transfer-Encoding: chunked\nA: b\n\n", "200 |A=b|");
        check("HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n", "200 |Transfer-Encoding=chunked|");
        check("Location: http://h/\n\n", "302 |Location=http://h/|");
        check("Location: //h/\n\n", "302 |Location=//h/|");
        check("Location: /a?b\n\n", "200 |Location=/a?b| local /a?b");
        check("Status: 302 Found\nLocation: /a?b\n\n", "302 Found|Location=/a?b|");
        check("Status: 201\nLocation: /a\n\n", "201 |Location=/a|");
    }

    #[test]
    fn malformed_heads() {
        let check =
            |input: &[u8], expect: &'static str| assert_eq!(parse(input), Err(expect), "{}", input.escape_ascii());
        check(b"\nhello", "no fields before the content");
        check(b"\r\nhello", "no fields before the content");
        check(b"Hello World\n\n", "malformed field name");
        check(b"<html>\n", "malformed field name");
        check(b"A : b\n\n", "malformed field name");
        check(b"A: b\n c\n\n", "folded field line");
        check(b"A: b\rC: d\n\n", "control byte in a field value");
        check(b"A: \0\n\n", "control byte in a field value");
        check(b"Status: 200\nStatus: 404\n\n", "more than one status");
        check(b"HTTP/1.1 200 OK\nStatus: 404\n\n", "more than one status");
        check(b"Location: /a\nLocation: /b\n\n", "more than one Location");
        check(b"Content-Length: 1\nContent-Length: 1\n\n", "more than one Content-Length");
        for status in ["", "2", "20", "2000", "20x", "OK", "100", "101 Switching", "999", "600"] {
            check(format!("Status: {status}\n\n").as_bytes(), "malformed status");
        }
        check(b"A:\nB:\nC:\nD:\n\n", "too many fields");
        check(&[b"A: ", &[b'x'; 128][..]].concat(), "head too large");
        check(&b"A: b\n".repeat(64), "too many fields");
    }
}
