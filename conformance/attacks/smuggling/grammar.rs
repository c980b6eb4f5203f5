//! Requests whose length servers may read in two ways, from a grammar: framing fields, content that is a request, byte errors.

use fastrand::Rng;

use crate::frames::{CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, frame, literal};
use crate::raw::pick;

/// A target that a case asks for openly.
pub(crate) fn open_target(case: u64, number: usize) -> String {
    format!("/t/{case}-{number}")
}

/// Returns `true` if a target is the one that a case asks for openly, or it with one of the ends that cases add.
pub(crate) fn is_of(target: &str, case: u64, number: usize) -> bool {
    let end = target.strip_prefix(&open_target(case, number));
    end.is_some_and(|end| end.is_empty() || end.starts_with(['?', '#', '%', ';']))
}

/// The target of the request that a case hides.
pub(crate) fn hidden_target(case: u64) -> String {
    format!("/s/{case}-h")
}

/// Spellings of Transfer-Encoding. `@` is the value.
const TRANSFER_ENCODINGS: [&str; 34] = [
    "Transfer-Encoding: @",
    "Transfer-Encoding: @",
    "Transfer-Encoding: @",
    "transfer-encoding: @",
    "TRANSFER-ENCODING:@",
    "Transfer-Encoding : @",
    "Transfer-Encoding\t: @",
    "Transfer-Encoding:\t@",
    "Transfer-Encoding:\x0b@",
    "Transfer-Encoding:\x0c@",
    "Transfer-Encoding: @\x0b",
    "Transfer-Encoding: @ \t",
    " Transfer-Encoding: @",
    "\tTransfer-Encoding: @",
    "X: y\r\n Transfer-Encoding: @",
    "X: y\nTransfer-Encoding: @",
    "X: y\rTransfer-Encoding: @",
    "X: y\0Transfer-Encoding: @",
    "Transfer-Encoding:\r\n @",
    "Transfer-Encoding:\n @",
    "Transfer-Encoding: @\0",
    "Transfer-Encoding\0: @",
    "Transfer-Encoding: \u{ff}@",
    "Transfer-Encoding\u{a0}: @",
    "Transfer_Encoding: @",
    "Transfer.Encoding: @",
    "Transfer-Encoding: @\r\nTransfer-Encoding: x",
    "Transfer-Encoding: x\r\nTransfer-Encoding: @",
    "Transfer-Encoding: @\r\nTransfer-Encoding: @",
    "Connection: Transfer-Encoding\r\nTransfer-Encoding: @",
    "Connection: close, Transfer-Encoding\r\nTransfer-Encoding: @",
    "Content-Encoding: @",
    "Transfer-Encodin: @",
    "TE: @\r\nTransfer-Encoding: @",
];

const CODINGS: [&str; 22] = [
    "chunked",
    "chunked",
    "chunked",
    "chunked",
    "Chunked",
    "CHUNKED",
    "xchunked",
    "chunkedx",
    "chun\tked",
    "\"chunked\"",
    "'chunked'",
    "chunked;q=1",
    "chunked;",
    "chunked, identity",
    "identity, chunked",
    "identity",
    "gzip, chunked",
    "chunked, chunked",
    ",chunked",
    "chunked,",
    "chunked\r\n , identity",
    "",
];

/// Spellings of Content-Length. `@` is the number, `#` another one.
const CONTENT_LENGTHS: [&str; 34] = [
    "Content-Length: @",
    "Content-Length: @",
    "Content-Length: @",
    "Content-Length: @",
    "content-length:@",
    "Content-Length : @",
    "Content-Length\t: @",
    "Content-Length: +@",
    "Content-Length: -@",
    "Content-Length: 0@",
    "Content-Length: 0000000000000000000000@",
    "Content-Length: 0x@",
    "Content-Length: @.0",
    "Content-Length: @e0",
    "Content-Length: @;",
    "Content-Length: @, @",
    "Content-Length: @, #",
    "Content-Length: @,",
    "Content-Length: ,@",
    "Content-Length: @ #",
    "Content-Length: @\t",
    "Content-Length:\x0b@",
    "Content-Length: @\0",
    "Content-Length: @\r\nContent-Length: @",
    "Content-Length: @\r\nContent-Length: #",
    "Content-Length: #\r\nContent-Length: @",
    "Content-Length: #\nContent-Length: @",
    "Content-Length:\r\n @",
    "X: y\r\n Content-Length: @",
    "Connection: Content-Length\r\nContent-Length: @",
    "Content_Length: @",
    "Content-Length: 1844674407370955161@",
    "Content-Length: \u{b2}@",
    "Content-Length: \"@\"",
];

/// Fields that change how a request is read, or are believed to.
const OTHERS: [&str; 28] = [
    "Connection: keep-alive",
    "Connection: close",
    "Connection: keep-alive, close",
    "Connection: Host",
    "Connection: X-Forwarded-For, Via",
    "Proxy-Connection: keep-alive",
    "Keep-Alive: timeout=5",
    "Expect: 100-continue",
    "Expect: 100-Continue\r\nExpect: x",
    "Expect: y 100-continue",
    "Expect:\r\n 100-continue",
    "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__",
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 1777",
    "Upgrade: TLS/1.2\r\nConnection: Upgrade",
    "Trailer: Content-Length",
    "TE: trailers",
    "TE: trailers, chunked",
    "Range: bytes=0-1",
    "If-Match: \"x\"",
    "X-HTTP-Method-Override: HEAD",
    "Host: other",
    "X-Forwarded-Host: other\r\nX-Forwarded-Proto: https",
    "Content-Type: multipart/byteranges; boundary=x",
    "Content-Type: application/x-www-form-urlencoded",
    "Max-Forwards: 0",
    "Cookie: a=b; c=d",
    "X-Empty:",
];

const METHODS: [&str; 16] = [
    "GET", "GET", "GET", "POST", "POST", "POST", "PUT", "HEAD", "OPTIONS", "DELETE", "PATCH", "TRACE", "CONNECT",
    "PROPFIND", "get", "FOO",
];

/// Bytes that parsers disagree on.
const ODD_BYTES: [&[u8]; 18] = [
    b"\0", b"\t", b"\n", b"\x0b", b"\x0c", b"\r", b" ", b"\r\n", b"\n\n", b"\r\r\n", b"\x1f", b"\x7f", b"\x85",
    b"\xa0", b"\xff", b":", b",", b";",
];

/// Text of which characters above 0x7f are single bytes.
fn latin(text: &str) -> Vec<u8> {
    text.chars().map(|character| u32::from(character) as u8).collect()
}

/// The bytes of a connection: some requests, one of which may hide another in its content.
pub(crate) fn connection(case: u64, random: &mut Rng) -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in 0..random.usize(1..4) {
        request(case, number, random, &mut bytes);
    }
    if random.u8(0..3) == 0 {
        for _ in 0..random.usize(1..4) {
            mutate(&mut bytes, random);
        }
    }
    bytes
}

fn request(case: u64, number: usize, random: &mut Rng, out: &mut Vec<u8>) {
    let target = target(&open_target(case, number), random);
    let version = match random.u8(0..24) {
        0 => "HTTP/1.0",
        1 => pick(random, &["HTTP/1.2", "HTTP/1.1 ", "HTTP/2.0", "http/1.1", "HTTP/1.10", "HTTP/01.1"]),
        _ => "HTTP/1.1",
    };
    let mut head = format!("{} {target} {version}\r\n", pick(random, &METHODS));
    let content = content(case, random);
    let mut lines: Vec<String> = vec!["Host: h".into()];
    for _ in 0..random.usize(0..3) {
        lines.push((pick(random, &OTHERS)).into());
    }
    let mut body = content.clone();
    let framing = random.u8(0..10);
    if (3..10).contains(&framing) {
        // Content-Length, of the content as it is or of a part of it.
        let length = match random.u8(0..4) {
            0 => random.usize(0..=content.len()),
            1 => content.len() + random.usize(0..20),
            _ => content.len(),
        };
        let other = random.usize(0..=content.len() + 5);
        let line = pick(random, &CONTENT_LENGTHS).replace('@', &length.to_string());
        lines.push(line.replace('#', &other.to_string()));
    }
    if matches!(framing, 1 | 2 | 6..=9) {
        lines.push(pick(random, &TRANSFER_ENCODINGS).replace('@', pick(random, &CODINGS)));
        if random.u8(0..6) > 0 {
            body = chunked(&content, random);
        }
    }
    random.shuffle(&mut lines);
    for line in lines {
        head.push_str(&line);
        head.push_str("\r\n");
    }
    head.push_str("\r\n");
    out.extend(latin(&head));
    out.extend(body);
}

fn target(path: &str, random: &mut Rng) -> String {
    match random.u8(0..24) {
        0 => format!("http://h{path}"),
        1 => format!("http://other{path}?a"),
        2 => format!("/{path}"),
        3 => format!("{path}?a=/s/x HTTP/1.1"),
        4 => format!("{path}#x"),
        5 => format!("{path}%0d%0aX:%20y"),
        6 => format!("{path}?\u{e4}"),
        7 => format!("/x/..{path}"),
        8 => format!("{path};x=y"),
        _ => path.to_owned(),
    }
}

/// Content: plain bytes, or a request that must stay hidden in it, with or without something before it.
fn content(case: u64, random: &mut Rng) -> Vec<u8> {
    let hidden = format!(
        "{} {} HTTP/1.1\r\nHost: h\r\n{}\r\n",
        pick(random, &["GET", "POST", "HEAD", "DELETE"]),
        hidden_target(case),
        pick(random, &["", "X: y\r\n", "Content-Length: 5\r\n", "Connection: close\r\n"])
    );
    let text = match random.u8(0..9) {
        0 => String::new(),
        1 => "x".repeat(random.usize(1..50)),
        2 => format!("0\r\n\r\n{hidden}"),
        3 => format!("5\r\nhello\r\n0\r\n\r\n{hidden}"),
        4 => format!("\r\n{hidden}"),
        // The next request becomes a field of the hidden one.
        5 => hidden.trim_end_matches("\r\n").to_owned() + "\r\nX-Swallow: ",
        6 => format!("{}\r\n{hidden}", "a".repeat(random.usize(0..300))),
        _ => hidden,
    };
    text.into_bytes()
}

/// Chunks whose sizes, extensions, ends and trailers are sometimes not as they must be.
fn chunked(content: &[u8], random: &mut Rng) -> Vec<u8> {
    const SIZES: [&str; 24] = [
        "@\r\n",
        "@\r\n",
        "@\r\n",
        "@\r\n",
        "@\r\n",
        "@\r\n",
        "0@\r\n",
        "000000000000000000@\r\n",
        "@;x\r\n",
        "@;x=\"y\"\r\n",
        "@;\r\n",
        "@; x=\"\r\n\"\r\n",
        "@;x\n",
        "@;\nx\r\n",
        "@;x\rx\r\n",
        "@\n",
        "@\r",
        " @\r\n",
        "@ \r\n",
        "@\t\r\n",
        "0x@\r\n",
        "+@\r\n",
        "1000000000000000@\r\n",
        "@\0\r\n",
    ];
    const ENDS: [&str; 10] = ["\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\n", "\r", "", "xx"];
    const LAST: [&str; 14] = [
        "0\r\n\r\n",
        "0\r\n\r\n",
        "0\r\n\r\n",
        "0\r\n\r\n",
        "0\r\nX: y\r\n\r\n",
        "0\r\nContent-Length: 5\r\n\r\n",
        "0\r\nTransfer-Encoding: chunked\r\n\r\n",
        "0\r\nHost: other\r\n\r\n",
        "0\r\n",
        "0\r\n\n",
        "0\n\n",
        "00\r\n\r\n",
        "0;x\r\n\r\n",
        "0\r\n X: y\r\n\r\n",
    ];
    let mut out = Vec::new();
    let mut rest = content;
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(random.usize(1..=rest.len()));
        let size = if random.bool() { format!("{:x}", piece.len()) } else { format!("{:X}", piece.len()) };
        out.extend(pick(random, &SIZES).replace('@', &size).into_bytes());
        out.extend_from_slice(piece);
        out.extend(pick(random, &ENDS).bytes());
        rest = after;
    }
    out.extend(pick(random, &LAST).bytes());
    out
}

/// Changes some bytes anywhere.
fn mutate(bytes: &mut Vec<u8>, random: &mut Rng) {
    if bytes.is_empty() {
        return;
    }
    let at = random.usize(..bytes.len());
    match random.u8(0..8) {
        0 | 1 => drop(bytes.splice(at..at, pick(random, &ODD_BYTES).iter().copied())),
        2 => drop(bytes.remove(at)),
        3 => bytes[at] = pick(random, &ODD_BYTES)[0],
        4 => bytes[at] ^= 0x20,
        5 => {
            // A line once more, at any place.
            let line: Vec<u8> = bytes[at..].iter().copied().take_while(|&byte| byte != b'\n').chain([b'\n']).collect();
            let to = random.usize(..=bytes.len());
            bytes.splice(to..to, line);
        }
        6 => {
            // A line end without one of its bytes.
            let from = bytes[at..].iter().position(|&byte| byte == b'\r').map(|found| at + found);
            if let Some(from) = from {
                bytes.remove(from);
            }
        }
        _ => bytes.truncate(at),
    }
}

/// Streams of an HTTP/2 connection whose requests would be other ones as HTTP/1.1, if they were written out as they are.
pub(crate) fn streams(case: u64, random: &mut Rng) -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in 0..random.usize(1..4) {
        let stream = 1 + 2 * number as u32;
        let content = content(case, random);
        let (block, has_content) = (block(case, number, content.len(), random), random.u8(0..4) > 0);
        let end = if has_content { 0 } else { END_STREAM };
        if random.u8(0..6) == 0 {
            let (first, rest) = block.split_at(random.usize(0..=block.len()));
            bytes.extend(frame(HEADERS, end, stream, first));
            bytes.extend(frame(CONTINUATION, END_HEADERS, stream, rest));
        } else {
            bytes.extend(frame(HEADERS, end | END_HEADERS, stream, &block));
        }
        if has_content {
            let (first, rest) = content.split_at(random.usize(0..=content.len()));
            bytes.extend(frame(DATA, 0, stream, first));
            if random.u8(0..5) == 0 {
                bytes.extend(frame(DATA, 0, stream, rest));
                let mut trailers = Vec::new();
                literal(
                    &mut trailers,
                    pick(random, &[&b"content-length"[..], b"x", b"transfer-encoding", b"host"]),
                    b"5",
                );
                bytes.extend(frame(HEADERS, END_STREAM | END_HEADERS, stream, &trailers));
            } else {
                bytes.extend(frame(DATA, END_STREAM, stream, rest));
            }
        }
    }
    bytes
}

fn block(case: u64, number: usize, content_bytes: usize, random: &mut Rng) -> Vec<u8> {
    let path = open_target(case, number);
    let hidden = format!("HTTP/1.1\r\nHost: h\r\n\r\nGET {} HTTP/1.1\r\nX: y", hidden_target(case));
    // One thing is wrong with most requests.
    let wrong = random.u8(0..30);
    let or = |at: u8, bad: String, good: &str| if wrong == at { bad } else { good.to_owned() };
    let method = pick(random, &["GET", "POST", "PUT", "HEAD", "OPTIONS"]);
    let method = or(0, format!("GET {path} {hidden}\r\nY: "), method);
    let path = or(1, format!("{path} {hidden}"), &path);
    let path = or(2, format!("{path}?a\tb"), &path);
    let authority = or(3, format!("h\r\nX: y\r\n\r\nGET {} HTTP/1.1", hidden_target(case)), "h");
    let authority = or(4, format!("h/{}", hidden_target(case)), &authority);
    let scheme = or(5, format!("http://h{} HTTP/1.1\r\nX: y", hidden_target(case)), "http");
    let mut fields: Vec<(String, String)> = vec![
        (":method".into(), method),
        (":path".into(), path),
        (":authority".into(), authority),
        (":scheme".into(), scheme),
    ];
    let smuggled = format!("x\r\n\r\nGET {} HTTP/1.1\r\nHost: h", hidden_target(case));
    let line_end = pick(random, &["\r\n", "\n", "\r", "\0", "\r\n "]);
    let other_length = random.usize(0..=content_bytes + 5);
    let extra: Option<(&str, String)> = match wrong {
        6 => Some(("transfer-encoding", "chunked".into())),
        7 => Some(("transfer-encoding", "identity".into())),
        8 => Some(("content-length", other_length.to_string())),
        9 => Some(("content-length", "0".into())),
        10 => Some(("connection", "transfer-encoding".into())),
        11 => Some(("x", smuggled)),
        12 => Some(("x", format!("y{line_end}transfer-encoding: chunked"))),
        13 => Some(("x", format!("y{line_end}content-length: 0"))),
        14 => Some(("x: y\r\ntransfer-encoding", "chunked".into())),
        15 => Some(("transfer-encoding ", "chunked".into())),
        16 => Some(("transfer-encoding:", "chunked".into())),
        17 => Some(("Transfer-Encoding", "chunked".into())),
        18 => Some(("", "x".into())),
        19 => Some(("host", "other".into())),
        20 => Some((":path", hidden_target(case))),
        21 => Some((":method", "POST".into())),
        22 => Some(("te", "trailers, chunked".into())),
        23 => Some(("upgrade", "h2c".into())),
        24 => Some(("expect", "100-continue".into())),
        25 => Some(("content_length", "0".into())),
        26 => Some(("transfer_encoding", "chunked".into())),
        27 => Some(("content-length", format!("+{content_bytes}"))),
        28 => Some(("cookie", format!("a=b{line_end}x: y"))),
        _ => None,
    };
    fields.extend(extra.map(|(name, value)| (name.to_owned(), value)));
    if random.u8(0..3) == 0 {
        fields.push(("content-length".into(), content_bytes.to_string()));
    }
    if random.u8(0..8) == 0 {
        random.shuffle(&mut fields);
    }
    let mut block = Vec::new();
    for (name, value) in &fields {
        literal(&mut block, name.as_bytes(), value.as_bytes());
    }
    block
}
