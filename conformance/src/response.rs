//! A reader of HTTP/1 responses that trusts nothing: whatever is not exactly a response is garbage.

/// A whole response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParsedResponse {
    /// Status code.
    pub status: u16,
    /// Names and values of its fields.
    pub fields: Vec<(String, String)>,
    /// Content, without chunk framing.
    pub body: Vec<u8>,
}

impl ParsedResponse {
    /// True for a status of 4xx or 5xx.
    pub fn is_error(&self) -> bool {
        self.status >= 400
    }

    /// The value of the first field of this name, in any case.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

/// Kinds of first bytes on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ParseStep {
    /// A response, and how many bytes it takes.
    Whole(ParsedResponse, usize),
    /// The beginning of one.
    Partial,
    /// No response, with the reason.
    Garbage(&'static str),
}

impl ParseStep {
    /// Reads a response. `closed`: nothing follows these bytes. `head`: it answers a HEAD request.
    pub(crate) fn read(bytes: &[u8], head: bool, closed: bool) -> Self {
        if !b"HTTP/1.".starts_with(&bytes[..bytes.len().min(7)]) {
            return Self::Garbage("not a status line");
        }
        let Some(head_length) = bytes.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4) else {
            return if closed { Self::Garbage("an unfinished head") } else { Self::Partial };
        };
        let mut response = match read_head(&bytes[..head_length - 4]) {
            Ok(response) => response,
            Err(reason) => return Self::Garbage(reason),
        };
        let rest = &bytes[head_length..];
        // A server that could not read the request may not have known that it was HEAD.
        let bodiless = head && (rest.is_empty() || rest.starts_with(b"HTTP/1."));
        if bodiless || response.status < 200 || matches!(response.status, 204 | 304) {
            return Self::Whole(response, head_length);
        }
        match read_body(&response, rest, closed) {
            Ok(Some((body, length))) => {
                response.body = body;
                Self::Whole(response, head_length + length)
            }
            Ok(None) if closed => Self::Garbage("an unfinished body"),
            Ok(None) => Self::Partial,
            Err(reason) => Self::Garbage(reason),
        }
    }
}

fn read_head(bytes: &[u8]) -> Result<ParsedResponse, &'static str> {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.split("\r\n");
    let status_line = lines.next().unwrap_or_default();
    // RFC 9112, section 4: HTTP-version SP status-code SP [ reason-phrase ]
    let code = status_line.get(9..12).filter(|_| status_line.as_bytes().get(8) == Some(&b' '));
    let status = code.and_then(|code| code.parse().ok()).filter(|status| (100..600).contains(status));
    let status = status.ok_or("a malformed status line")?;
    if status_line.as_bytes().get(12) != Some(&b' ') {
        return Err("no space after the status code");
    }
    let mut fields = Vec::new();
    for line in lines {
        let (name, value) = line.split_once(':').ok_or("a field line without colon")?;
        if name.is_empty() || name.contains([' ', '\t']) {
            return Err("a malformed field name");
        }
        if value.contains(|character: char| character.is_control() && character != '\t') {
            return Err("a control character in a field value");
        }
        fields.push((name.to_owned(), value.trim().to_owned()));
    }
    Ok(ParsedResponse { status, fields, body: Vec::new() })
}

/// Content and its length on the wire; `None` if more is needed (RFC 9112, section 6.3).
fn read_body(response: &ParsedResponse, bytes: &[u8], closed: bool) -> Result<Option<(Vec<u8>, usize)>, &'static str> {
    match (response.field("transfer-encoding"), response.field("content-length")) {
        (Some(_), Some(_)) => Err("both Content-Length and Transfer-Encoding"),
        (Some(coding), None) if coding.eq_ignore_ascii_case("chunked") => read_chunks(bytes),
        (Some(_), None) => Err("an unknown transfer coding"),
        (None, Some(length)) => {
            let length: usize = length.parse().map_err(|_| "a malformed Content-Length")?;
            Ok(bytes.get(..length).map(|body| (body.to_vec(), length)))
        }
        (None, None) => Ok(closed.then(|| (bytes.to_vec(), bytes.len()))),
    }
}

fn read_chunks(bytes: &[u8]) -> Result<Option<(Vec<u8>, usize)>, &'static str> {
    let mut body = Vec::new();
    let mut at = 0;
    loop {
        let Some(line) = bytes[at..].windows(2).position(|window| window == b"\r\n") else { return Ok(None) };
        let size =
            std::str::from_utf8(&bytes[at..at + line]).ok().and_then(|size| usize::from_str_radix(size, 16).ok());
        let size = size.ok_or("a malformed chunk size")?;
        at += line + 2;
        if size == 0 {
            return read_trailers(&bytes[at..]).map(|length| length.map(|length| (body, at + length)));
        }
        let Some(data) = bytes.get(at..at + size + 2) else { return Ok(None) };
        if &data[size..] != b"\r\n" {
            return Err("a chunk that does not end with CRLF");
        }
        body.extend_from_slice(&data[..size]);
        at += size + 2;
    }
}

/// The length of a trailer section; `None` if more is needed.
fn read_trailers(bytes: &[u8]) -> Result<Option<usize>, &'static str> {
    let mut at = 0;
    loop {
        let Some(line) = bytes[at..].windows(2).position(|window| window == b"\r\n") else { return Ok(None) };
        match &bytes[at..at + line] {
            b"" => return Ok(Some(at + 2)),
            text if text.contains(&b':') => at += line + 2,
            _ => return Err("a trailer line without colon"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ParseStep, ParsedResponse};

    fn whole(status: u16, fields: &[(&str, &str)], body: &str, length: usize) -> ParseStep {
        let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        ParseStep::Whole(ParsedResponse { status, fields, body: body.into() }, length)
    }

    #[test]
    fn responses() {
        for (text, head, closed, expect) in [
            ("", false, false, ParseStep::Partial),
            ("HTT", false, false, ParseStep::Partial),
            ("<html>", false, false, ParseStep::Garbage("not a status line")),
            ("HTTP/1.1 200 OK\r\n", false, true, ParseStep::Garbage("an unfinished head")),
            ("HTTP/1.1 204 \r\n\r\nHTTP", false, false, whole(204, &[], "", 17)),
            ("HTTP/1.1 200 OK\r\na: 1\r\n\r\nbody", false, true, whole(200, &[("a", "1")], "body", 29)),
            ("HTTP/1.1 200 OK\r\na: 1\r\n\r\nbody", false, false, ParseStep::Partial),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nbody",
                false,
                false,
                whole(200, &[("content-length", "2")], "bo", 40),
            ),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nHTTP/1.1 ",
                true,
                false,
                whole(200, &[("content-length", "2")], "", 38),
            ),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\nx",
                false,
                false,
                whole(200, &[("transfer-encoding", "chunked")], "ab", 59),
            ),
            ("HTTP/1.1 200 OK\r\na : 1\r\n\r\n", false, false, ParseStep::Garbage("a malformed field name")),
            ("HTTP/1.1 2x0 OK\r\n\r\n", false, false, ParseStep::Garbage("a malformed status line")),
        ] {
            assert_eq!(ParseStep::read(text.as_bytes(), head, closed), expect, "{text}");
        }
    }
}
