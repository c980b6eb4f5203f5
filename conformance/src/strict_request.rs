//! A reader of HTTP/1 requests that takes nothing but what can be read in one way only.

/// A whole request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StrictRequest {
    /// Method.
    pub method: String,
    /// Target, without scheme and authority.
    pub target: String,
    /// Content, without chunk framing.
    pub content: Vec<u8>,
    /// True if the client wants to send another request on the connection.
    pub is_persistent: bool,
}

/// Sender of a request, which decides how lenient the reading is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    /// A client's: all that a recipient MUST understand, chunk extensions and empty lines before a request among it.
    Client,
    /// A proxy's, which has no reason for anything but the plainest form.
    Proxy,
}

/// Kinds of first bytes on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReadStep {
    /// A request, and how many bytes it takes.
    Whole(StrictRequest, usize),
    /// The beginning of one; whether its head is there.
    Partial { has_head: bool },
    /// Nothing that has one meaning, with the reason.
    Malformed(&'static str),
}

impl ReadStep {
    /// Reads a request.
    pub(crate) fn read(bytes: &[u8], from: From) -> Self {
        let empty_lines = match from {
            From::Client => bytes.chunks(2).take_while(|line| line == b"\r\n").count() * 2,
            From::Proxy => 0,
        };
        let bytes = &bytes[empty_lines..];
        let Some(head_bytes) = bytes.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4) else {
            return Self::Partial { has_head: false };
        };
        let result = read_head(&bytes[..head_bytes - 4]).and_then(|head| {
            let content = read_content(&head, &bytes[head_bytes..], from)?;
            Ok(content.map(|(content, length)| (head.into_request(content), length)))
        });
        match result {
            Ok(Some((request, length))) => Self::Whole(request, empty_lines + head_bytes + length),
            Ok(None) => Self::Partial { has_head: true },
            Err(reason) => Self::Malformed(reason),
        }
    }
}

/// The requests that a client's bytes are, in order, and whether all of the bytes have one meaning: what follows the last
/// is nothing, or the beginning of another.
pub fn meant(bytes: &[u8]) -> (Vec<StrictRequest>, bool) {
    let (mut requests, mut at) = (Vec::new(), 0);
    loop {
        match ReadStep::read(&bytes[at..], From::Client) {
            ReadStep::Whole(request, length) => {
                at += length;
                let is_last = !request.is_persistent;
                requests.push(request);
                if is_last {
                    return (requests, true);
                }
            }
            ReadStep::Partial { .. } => return (requests, true),
            ReadStep::Malformed(_) => return (requests, false),
        }
    }
}

/// The requests that a proxy sent on one connection to an upstream, and the bytes after the last whole one.
///
/// # Errors
/// Bytes that do not have exactly one meaning, or are not in the plainest form.
pub fn sent_by_proxy(bytes: &[u8]) -> Result<(Vec<StrictRequest>, &[u8]), &'static str> {
    let (mut requests, mut rest) = (Vec::new(), bytes);
    loop {
        match ReadStep::read(rest, From::Proxy) {
            ReadStep::Whole(request, length) => {
                requests.push(request);
                rest = &rest[length..];
            }
            ReadStep::Partial { .. } => return Ok((requests, rest)),
            ReadStep::Malformed(reason) => return Err(reason),
        }
    }
}

struct Head {
    method: String,
    target: String,
    /// Of HTTP/1.x.
    minor_version: u8,
    /// Names in lower case.
    fields: Vec<(String, Vec<u8>)>,
}

fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte))
}

fn read_head(bytes: &[u8]) -> Result<Head, &'static str> {
    if bytes.iter().enumerate().any(|(at, &byte)| {
        let is_line_end = |at: usize| bytes.get(at..at + 2) == Some(b"\r\n");
        byte == b'\r' && !is_line_end(at) || byte == b'\n' && !(at > 0 && is_line_end(at - 1))
    }) {
        return Err("CR or LF alone");
    }
    let text: String = bytes.iter().map(|&byte| char::from(byte)).collect();
    let mut lines = text.split("\r\n");
    let words: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    let [method, target, version] = words[..] else { return Err("a request line that is not three words") };
    let minor_version = match version.strip_prefix("HTTP/1.").map(str::as_bytes) {
        Some([digit @ b'0'..=b'9']) => digit - b'0',
        _ => return Err("no version of HTTP/1"),
    };
    if !is_token(method.as_bytes()) {
        return Err("a method that is no token");
    }
    if target.is_empty() || !target.bytes().all(|byte| byte.is_ascii_graphic()) || target.contains('#') {
        return Err("a malformed target");
    }
    let mut fields = Vec::new();
    for line in lines {
        let (name, value) = line.split_once(':').ok_or("a field line without colon")?;
        if !is_token(name.as_bytes()) {
            return Err("a field name that is no token");
        }
        if value.chars().any(|character| character.is_ascii_control() && character != '\t') {
            return Err("a control character in a field");
        }
        let value = value.trim_matches([' ', '\t']).chars().map(|character| character as u8).collect();
        fields.push((name.to_ascii_lowercase(), value));
    }
    let head = Head { method: method.into(), target: origin_form(target)?, minor_version, fields };
    match head.values("host").len() {
        0 if minor_version > 0 => Err("no Host"),
        0 | 1 => Ok(head),
        _ => Err("several Host lines"),
    }
}

fn origin_form(target: &str) -> Result<String, &'static str> {
    let Some((scheme, rest)) = target.split_once("://").filter(|_| !target.starts_with('/')) else {
        return Ok(target.to_owned());
    };
    if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
        return Err("another scheme");
    }
    let path = &rest[rest.find(['/', '?']).unwrap_or(rest.len())..];
    Ok(if path.starts_with('/') { path.to_owned() } else { format!("/{path}") })
}

impl Head {
    fn values(&self, name: &str) -> Vec<&[u8]> {
        self.fields.iter().filter(|(other, _)| other == name).map(|(_, value)| value.as_slice()).collect()
    }

    fn into_request(self, content: Vec<u8>) -> StrictRequest {
        let options = self.values("connection").join(&b","[..]).to_ascii_lowercase();
        let has = |wanted: &[u8]| options.split(|&byte| byte == b',').any(|option| option.trim_ascii() == wanted);
        let is_persistent = !has(b"close") && (self.minor_version > 0 || has(b"keep-alive"));
        StrictRequest { method: self.method, target: self.target, content, is_persistent }
    }
}

/// The content and its length on the wire; `None` if more is needed.
fn read_content(head: &Head, bytes: &[u8], from: From) -> Result<Option<(Vec<u8>, usize)>, &'static str> {
    match (&head.values("transfer-encoding")[..], &head.values("content-length")[..]) {
        ([], []) => Ok(Some((Vec::new(), 0))),
        ([], [length]) => {
            if length.is_empty() || !length.iter().all(u8::is_ascii_digit) {
                return Err("a malformed Content-Length");
            }
            let length = String::from_utf8_lossy(length).parse::<usize>().map_err(|_| "a long Content-Length")?;
            Ok(bytes.get(..length).map(|content| (content.to_vec(), length)))
        }
        ([_], []) if head.minor_version == 0 => Err("Transfer-Encoding in HTTP/1.0"),
        ([coding], []) if coding.eq_ignore_ascii_case(b"chunked") => read_chunks(bytes, from),
        ([_], []) => Err("an unknown transfer coding"),
        (_, []) => Err("several Transfer-Encoding lines"),
        ([], _) => Err("several Content-Length lines"),
        _ => Err("both Content-Length and Transfer-Encoding"),
    }
}

fn read_chunks(bytes: &[u8], from: From) -> Result<Option<(Vec<u8>, usize)>, &'static str> {
    let (mut content, mut at) = (Vec::new(), 0);
    loop {
        let Some(line_bytes) = bytes[at..].windows(2).position(|window| window == b"\r\n") else { return Ok(None) };
        let line = &bytes[at..at + line_bytes];
        at += line_bytes + 2;
        let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let extension = line[digits..].trim_ascii_start();
        if digits == 0 || (!extension.is_empty() && (from == From::Proxy || !is_extension(extension))) {
            return Err("a malformed chunk size");
        }
        let size = usize::from_str_radix(&String::from_utf8_lossy(&line[..digits]), 16);
        let size = size.map_err(|_| "a long chunk size")?;
        if size == 0 {
            return read_trailers(&bytes[at..], from).map(|length| length.map(|length| (content, at + length)));
        }
        let end = at.checked_add(size).ok_or("a long chunk size")?;
        match bytes.get(end..end + 2) {
            Some(b"\r\n") => content.extend_from_slice(&bytes[at..end]),
            Some(_) => return Err("a chunk that does not end with CRLF"),
            None => return Ok(None),
        }
        at = end + 2;
    }
}

fn is_extension(text: &[u8]) -> bool {
    text.starts_with(b";") && !text.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t')
}

/// The length of a trailer section; `None` if more is needed.
fn read_trailers(bytes: &[u8], from: From) -> Result<Option<usize>, &'static str> {
    let mut at = 0;
    loop {
        let Some(line_bytes) = bytes[at..].windows(2).position(|window| window == b"\r\n") else { return Ok(None) };
        let line = &bytes[at..at + line_bytes];
        at += line_bytes + 2;
        if line.is_empty() {
            return Ok(Some(at));
        }
        let name = line.split(|&byte| byte == b':').next().unwrap_or_default();
        if !is_token(name) || line.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t') {
            return Err("a malformed trailer field");
        }
        // A client may write what it likes there: it means nothing.
        if from == From::Proxy
            && [&b"content-length"[..], b"transfer-encoding", b"host"].contains(&&name.to_ascii_lowercase()[..])
        {
            return Err("a trailer field that belongs in the head");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{From, ReadStep, meant, sent_by_proxy};

    #[test]
    fn one_meaning_or_none() {
        for (text, from_client, from_proxy) in [
            ("GET / HTTP/1.1\r\nHost: h\r\n\r\n", "GET / 0", "GET / 0"),
            ("\r\nGET http://h?a HTTP/1.1\r\nHost: h\r\n\r\n", "GET /?a 0", "a request line that is not three words"),
            ("GET / HTTP/1.1\r\n\r\n", "no Host", "no Host"),
            ("GET / HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n", "several Host lines", "several Host lines"),
            ("GET / HTTP/1.1\r\nHost: h\nX: y\r\n\r\n", "CR or LF alone", "CR or LF alone"),
            ("GET / HTTP/1.1\r\nHost: h\r\n y\r\n\r\n", "a field line without colon", "a field line without colon"),
            ("GET / HTTP/1.0\r\nContent-Length: 2\r\n\r\nab", "GET / 2", "GET / 2"),
            (
                "GET / HTTP/1.0\r\nContent-Length: +2\r\n\r\nab",
                "a malformed Content-Length",
                "a malformed Content-Length",
            ),
            (
                "GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2 ;x=y\r\nab\r\n0\r\nT: 1\r\n\r\n",
                "GET / 2",
                "a malformed chunk size",
            ),
            (
                "GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n",
                "both Content-Length and Transfer-Encoding",
                "both Content-Length and Transfer-Encoding",
            ),
            ("GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n", "partial", "partial"),
        ] {
            for (from, expect) in [(From::Client, from_client), (From::Proxy, from_proxy)] {
                let got = match ReadStep::read(text.as_bytes(), from) {
                    ReadStep::Whole(request, length) => {
                        assert_eq!(length, text.len());
                        format!("{} {} {}", request.method, request.target, request.content.len())
                    }
                    ReadStep::Partial { .. } => "partial".into(),
                    ReadStep::Malformed(reason) => reason.into(),
                };
                assert_eq!(got, expect, "{from:?} {text}");
            }
        }
    }

    #[test]
    fn sent_on_one_connection() {
        let bytes = b"GET /1 HTTP/1.1\r\nHost: h\r\n\r\nPUT /2 HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\na";
        let (requests, rest) = sent_by_proxy(bytes).unwrap();
        assert_eq!((requests.len(), rest.starts_with(b"PUT /2")), (1, true));
        assert_eq!(sent_by_proxy(b"GET /1 HTTP/1.1\r\nHost: h\n\r\n\r\n"), Err("CR or LF alone"));
    }

    #[test]
    fn what_was_meant() {
        let two = b"GET /1 HTTP/1.1\r\nHost: h\r\n\r\nPUT /2 HTTP/1.1\r\nHost: h\r\nConnection: Close\r\n\r\nnonsense\r\n\r\n";
        let (requests, is_clear) = meant(two);
        assert_eq!((requests.len(), is_clear), (2, true));
        assert_eq!(meant(b"nonsense\r\n\r\n"), (Vec::new(), false));
    }
}
