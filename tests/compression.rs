//! Compression of responses of upstreams, scripts and modules, fresh and from the response cache.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::support::fastcgi::{Application, answer};
use crate::support::h2::H2Client;
use crate::support::upstream::{ScriptStep, ScriptedUpstream};
use crate::support::waiting::eventually;
use crate::support::{PATIENCE, TestServer};

/// Upstream whose responses have these head lines and this content. It counts requests, and answers HEAD without
/// content.
struct Origin {
    address: SocketAddr,
    requests: Arc<AtomicUsize>,
}

impl Origin {
    fn start(head: impl Into<String>, content: impl Into<Vec<u8>>) -> Self {
        let (head, content) = (head.into(), content.into());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (head, content, counted) = (head.clone(), content.clone(), Arc::clone(&counted));
                std::thread::spawn(move || {
                    let mut stream = stream.unwrap();
                    while let Some(request) = read_head(&mut stream) {
                        counted.fetch_add(1, Ordering::SeqCst);
                        // The server may have closed the connection.
                        let _ = stream.write_all(format!("{head}\r\n").as_bytes());
                        if !request.starts_with("HEAD ") {
                            let _ = stream.write_all(&content);
                        }
                    }
                });
            }
        });
        Self { address, requests }
    }

    /// Upstream whose response is this text with these further lines.
    fn of_text(lines: &str, content: &str) -> Self {
        let length = content.len();
        Self::start(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n{lines}"), content)
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

/// Reads a head; `None` at the end of the connection.
fn read_head(stream: &mut TcpStream) -> Option<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    Some(String::from_utf8_lossy(&head).into_owned())
}

/// A response: its head, and its content without chunks.
#[derive(Clone, Debug)]
struct Got {
    head: String,
    content: Vec<u8>,
}

impl Got {
    fn field(&self, name: &str) -> Option<&str> {
        let line = self.head.lines().find(|line| line.to_ascii_lowercase().starts_with(&format!("{name}: ")))?;
        line.split_once(": ").map(|(_, value)| value)
    }

    /// Content without its coding.
    #[track_caller]
    fn plain(&self) -> String {
        let plain = match self.field("content-encoding") {
            None => self.content.clone(),
            Some(coding) => decode(coding, &self.content),
        };
        String::from_utf8(plain).unwrap()
    }
}

/// Decodes as much as there is.
fn decode(coding: &str, content: &[u8]) -> Vec<u8> {
    let mut reader: Box<dyn Read + '_> = match coding {
        "gzip" => Box::new(flate2::read::GzDecoder::new(content)),
        "zstd" => Box::new(zstd::stream::read::Decoder::new(content).unwrap()),
        "br" => Box::new(brotli::Decompressor::new(content, 4096)),
        coding => panic!("{coding}"),
    };
    let (mut plain, mut piece) = (Vec::new(), [0; 512]);
    while let Ok(count @ 1..) = reader.read(&mut piece) {
        plain.extend_from_slice(&piece[..count]);
    }
    plain
}

/// Response to a request with this method and these lines, on a new connection.
#[track_caller]
fn ask(server: &TestServer, method: &str, lines: &str) -> Got {
    let mut stream = server.connect();
    stream
        .write_all(format!("{method} / HTTP/1.1\r\nHost: h.example\r\nConnection: close\r\n{lines}\r\n").as_bytes())
        .unwrap();
    let head = read_head(&mut stream).expect("there is a head");
    let mut content = Vec::new();
    stream.read_to_end(&mut content).expect("the connection ends well");
    if head.to_ascii_lowercase().contains("\r\ntransfer-encoding: chunked") {
        content = without_chunks(&content).expect("the content is complete");
    }
    Got { head, content }
}

/// Joins chunks; `None` if their end is missing.
fn without_chunks(mut content: &[u8]) -> Option<Vec<u8>> {
    let mut joined = Vec::new();
    loop {
        let end = content.windows(2).position(|window| window == b"\r\n")?;
        let size = usize::from_str_radix(std::str::from_utf8(&content[..end]).ok()?, 16).ok()?;
        if size == 0 {
            return Some(joined);
        }
        joined.extend_from_slice(content.get(end + 2..end + 2 + size)?);
        content = content.get(end + 4 + size..)?;
    }
}

#[track_caller]
fn get(server: &TestServer, accept_encoding: &str) -> Got {
    ask(server, "GET", &format!("Accept-Encoding: {accept_encoding}\r\n"))
}

fn text(bytes: usize) -> String {
    let mut words = fastrand::Rng::with_seed(1);
    (0..bytes).map(|_| char::from(b"abcdefgh "[words.usize(..9)])).collect()
}

fn forwarding_to(address: SocketAddr, options: &str) -> TestServer {
    TestServer::run(&format!("site {{\n listen \"127.0.0.1:0\"\n forward \"http://{address}\" {{\n{options}\n}}\n}}\n"))
}

/// Fields of a response, as `content-encoding; etag; vary; content-length; accept-ranges`.
fn summary(got: &Got) -> String {
    let names = ["content-encoding", "etag", "vary", "content-length", "accept-ranges"];
    names.map(|name| got.field(name).unwrap_or("-").to_owned()).join("; ")
}

#[test]
fn a_client_gets_the_coding_that_it_prefers() {
    let content = text(10_000);
    let lines = "Content-Type: text/html\r\nETag: \"x\"\r\nVary: Cookie\r\nAccept-Ranges: bytes\r\n";
    let origin = Origin::of_text(lines, &content);
    let server = forwarding_to(origin.address, "");
    for (accepted, coding) in [
        ("zstd, br, gzip, deflate", "zstd"),
        ("gzip, deflate, br", "br"),
        ("gzip", "gzip"),
        ("x-gzip", "gzip"),
        ("br;q=0.5, gzip", "gzip"),
        ("*", "zstd"),
    ] {
        let got = get(&server, accepted);
        let length = got.content.len();
        // The length is known if the upstream has sent all content with the head.
        let declared = got.field("content-length").unwrap_or("-");
        let expect = format!("{coding}; W/\"x\"; Cookie, Accept-Encoding; {declared}; -");
        assert_eq!(summary(&got), expect, "{accepted}");
        assert!(declared == "-" || declared == length.to_string(), "{declared} {length}");
        assert_eq!(got.plain(), content, "{accepted}");
        assert!(length < content.len() / 2 + 1000, "{accepted}: {length}");
    }
    for accepted in ["identity", "deflate", "gzip;q=0", "identity, gzip;q=0.5", "", "gzip;;"] {
        let got = get(&server, accepted);
        assert_eq!(summary(&got), "-; \"x\"; Cookie, Accept-Encoding; 10000; bytes", "{accepted}");
        assert_eq!(got.plain(), content, "{accepted}");
    }
}

#[test]
fn responses_that_are_not_compressed() {
    let content = text(5_000);
    let check = |head: &str, options: &str, request: &str, expect: &str| {
        let length = content.len();
        let origin = Origin::start(format!("HTTP/1.1 {head}\r\nContent-Length: {length}\r\n"), content.clone());
        let server = forwarding_to(origin.address, options);
        let got = ask(&server, "GET", &format!("Accept-Encoding: gzip\r\n{request}"));
        assert_eq!(summary(&got), expect, "{head} {options} {request}: {}", got.head);
    };
    let unchanged = "-; -; -; 5000; -";
    check("200 OK\r\nContent-Type: image/png", "", "", unchanged);
    check("200 OK", "", "", unchanged);
    check("200 OK\r\nContent-Type: text/event-stream", "", "", unchanged);
    check("206 Partial Content\r\nContent-Type: text/html\r\nContent-Range: bytes 0-4999/9000", "", "", unchanged);
    check("200 OK\r\nContent-Type: text/html\r\nCache-Control: no-transform", "", "", unchanged);
    check("200 OK\r\nContent-Type: text/html\r\nRepr-Digest: sha-256=:x:", "", "", unchanged);
    check("200 OK\r\nContent-Type: text/html", "compress off", "", unchanged);
    check("200 OK\r\nContent-Type: text/html", "compress-bytes-min \"10KiB\"", "", unchanged);
    // An upstream that compresses itself.
    check(
        "200 OK\r\nContent-Type: text/html\r\nContent-Encoding: deflate\r\nVary: X\r\nETag: \"x\"",
        "",
        "",
        "deflate; \"x\"; X; 5000; -",
    );
    let origin = Origin::start("HTTP/1.1 304 Not Modified\r\nContent-Type: text/html\r\nETag: \"x\"\r\n", "");
    let got = get(&forwarding_to(origin.address, ""), "gzip");
    assert_eq!(summary(&got), "-; \"x\"; -; -; -");
    // Noise does not get smaller.
    let noise: String = (0..3_000).map(|_| fastrand::char('\u{800}'..'\u{ffff}')).collect();
    let origin = Origin::of_text("Content-Type: text/html\r\n", &noise[..2_997]);
    let got = get(&forwarding_to(origin.address, ""), "gzip, zstd, br");
    assert_eq!(got.plain(), &noise[..2_997]);
}

#[test]
fn sites_turn_it_off_and_blocks_turn_it_on() {
    let origin = Origin::of_text("Content-Type: text/html\r\n", &text(700));
    let check = |outer: &str, site: &str, forward: &str, expect: bool| {
        let server = TestServer::run(&format!(
            "{outer}\nsite {{\n listen \"127.0.0.1:0\"\n{site}\n forward \"http://{}\" {{\n{forward}\n}}\n}}\n",
            origin.address
        ));
        let is_compressed = get(&server, "gzip").field("content-encoding").is_some();
        assert_eq!(is_compressed, expect, "{outer} {site} {forward}");
    };
    check("", "", "", false);
    check("compress-bytes-min \"512B\"", "", "", true);
    check("compress-bytes-min \"512B\"", "compress off", "", false);
    check("compress-bytes-min \"512B\"\ncompress off", "compress on", "", true);
    check("compress off", "", "compress on\ncompress-bytes-min \"512B\"", true);
    check("", "compress-level best", "compress-level fast\ncompress-bytes-min \"512B\"", true);
}

#[test]
fn heads_are_those_of_get() {
    let origin = Origin::of_text("Content-Type: text/html\r\nETag: \"x\"\r\n", &text(5_000));
    let server = forwarding_to(origin.address, "");
    let got = ask(&server, "HEAD", "Accept-Encoding: gzip\r\n");
    assert_eq!(summary(&got), "gzip; W/\"x\"; Accept-Encoding; -; -");
    let got = ask(&server, "HEAD", "");
    assert_eq!(summary(&got), "-; \"x\"; Accept-Encoding; 5000; -");
}

#[test]
fn long_content_is_complete() {
    let content = text(3_000_000);
    let chunks: Vec<u8> = content.as_bytes().chunks(50_000).flat_map(chunk).chain(*b"0\r\n\r\n").collect();
    let with_length = Origin::of_text("Content-Type: text/html\r\n", &content);
    let chunked = Origin::start("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n", chunks);
    for origin in [with_length, chunked] {
        let server = forwarding_to(origin.address, "");
        for coding in ["zstd", "br", "gzip"] {
            let got = get(&server, coding);
            assert_eq!(summary(&got), format!("{coding}; -; Accept-Encoding; -; -"));
            assert!(got.plain() == content, "{coding}");
            assert!(got.content.len() < content.len() / 2, "{coding}");
            let mut client = H2Client::connect(&server);
            let stream = client.ask("GET", "/", &[("accept-encoding", coding)], true);
            let response = client.finish(stream);
            assert!(decode(coding, &response.content) == content.as_bytes(), "{coding} in HTTP/2");
        }
        // HTTP/1.0 has no chunks.
        let mut stream = server.connect();
        stream.write_all(b"GET / HTTP/1.0\r\nAccept-Encoding: gzip\r\n\r\n").unwrap();
        let head = read_head(&mut stream).unwrap();
        assert!(!head.contains("Content-Encoding"), "{head}");
    }
}

fn chunk(bytes: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// Upstream whose content the test sends in pieces.
fn paused_origin() -> (SocketAddr, Sender<&'static str>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, pieces): (_, Receiver<&str>) = channel();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        read_head(&mut stream).unwrap();
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        for piece in pieces {
            stream.write_all(&chunk(piece.as_bytes())).unwrap();
        }
        stream.write_all(b"0\r\n\r\n").unwrap();
    });
    (address, sender)
}

#[test]
fn a_slow_response_is_not_delayed() {
    for coding in ["zstd", "br", "gzip"] {
        let (address, pieces) = paused_origin();
        let server = forwarding_to(address, "");
        let mut stream = server.connect();
        let head = format!("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nAccept-Encoding: {coding}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let head = read_head(&mut stream).unwrap();
        assert!(head.contains(&format!("Content-Encoding: {coding}\r\n")), "{head}");
        let (mut received, mut expect, mut buffer) = (Vec::new(), String::new(), [0; 4096]);
        for piece in ["one", " two", " three"] {
            pieces.send(piece).unwrap();
            expect.push_str(piece);
            // The upstream sends nothing more until the client has decoded this.
            loop {
                let count = stream.read(&mut buffer).unwrap();
                assert!(count > 0, "{coding}");
                received.extend_from_slice(&buffer[..count]);
                let complete = [&received[..], b"0\r\n\r\n"].concat();
                let content = without_chunks(&complete);
                if content.is_some_and(|content| decode(coding, &content) == expect.as_bytes()) {
                    break;
                }
            }
        }
        drop(pieces);
        stream.read_to_end(&mut received).unwrap();
        assert_eq!(decode(coding, &without_chunks(&received).unwrap()), expect.as_bytes());
    }
}

#[test]
fn content_that_is_cut_off_does_not_look_complete() {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 100000\r\n\r\n";
    let script = vec![ScriptStep::Read("\r\n\r\n"), ScriptStep::Write(head), ScriptStep::Fill(90_000)];
    let upstream = ScriptedUpstream::start(vec![script]);
    let server = forwarding_to(upstream.address, "");
    let mut stream = server.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\nAccept-Encoding: gzip\r\n\r\n").unwrap();
    assert!(read_head(&mut stream).unwrap().contains("Content-Encoding: gzip"));
    let mut content = Vec::new();
    // A reset counts as an end.
    let _ = stream.read_to_end(&mut content);
    assert_eq!(without_chunks(&content), None, "the last chunk is missing");
}

#[test]
fn stored_responses_are_compressed_once_for_each_coding() {
    let content = text(200_000);
    let lines = "Content-Type: text/html\r\nCache-Control: max-age=600\r\nETag: \"x\"\r\nAccept-Ranges: bytes\r\n";
    let origin = Origin::of_text(lines, &content);
    let server = forwarding_to(origin.address, "cache");
    assert_eq!(get(&server, "gzip").plain(), content, "a miss");
    for coding in ["zstd", "br", "gzip"] {
        let first = get(&server, coding);
        let length = first.content.len();
        assert_eq!(summary(&first), format!("{coding}; W/\"x\"; Accept-Encoding; {length}; -"));
        assert_eq!(first.plain(), content);
        let second = get(&server, coding);
        assert_eq!((&second.content, summary(&second)), (&first.content, summary(&first)));
        for etag in ["\"x\"", "W/\"x\""] {
            let lines = format!("Accept-Encoding: {coding}\r\nIf-None-Match: {etag}\r\n");
            let not_modified = ask(&server, "GET", &lines);
            assert!(not_modified.head.starts_with("HTTP/1.1 304 "), "{}", not_modified.head);
            assert_eq!(summary(&not_modified), "-; W/\"x\"; Accept-Encoding; -; -");
        }
        let part = ask(&server, "GET", &format!("Accept-Encoding: {coding}\r\nRange: bytes=5-9\r\n"));
        assert!(part.head.starts_with("HTTP/1.1 206 "), "{}", part.head);
        assert_eq!(
            (part.plain().as_str(), summary(&part)),
            (&content[5..10], "-; \"x\"; Accept-Encoding; 5; bytes".into())
        );
        let head = ask(&server, "HEAD", &format!("Accept-Encoding: {coding}\r\n"));
        assert_eq!(summary(&head), summary(&first));
    }
    let plain = ask(&server, "GET", "");
    assert_eq!(summary(&plain), "-; \"x\"; Accept-Encoding; 200000; bytes");
    assert_eq!((plain.plain(), origin.requests()), (content, 1));
}

#[test]
fn a_stored_response_of_an_upstream_that_varies_stays_apart() {
    // The upstream would compress for some clients, so each value has a response of its own.
    let lines = "Content-Type: text/html\r\nCache-Control: max-age=600\r\nVary: Accept-Encoding\r\n";
    let origin = Origin::of_text(lines, &text(5_000));
    let server = forwarding_to(origin.address, "cache");
    for (accepted, requests) in [("gzip", 1), ("gzip", 1), ("br", 2), ("br", 2), ("gzip", 2)] {
        let got = get(&server, accepted);
        assert_eq!((got.field("content-encoding"), origin.requests()), (Some(accepted), requests));
        assert_eq!(got.field("vary"), Some("Accept-Encoding"));
    }
}

#[test]
fn scripts_are_compressed() {
    let content = text(20_000);
    let application = Application::answering(answer(&format!("Content-Type: text/html\r\n\r\n{content}")));
    let server = TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n fastcgi \"*\" \"{}\" {{\n application \"/\"\n }}\n}}\n",
        application.address
    ));
    for coding in ["zstd", "br", "gzip"] {
        let got = get(&server, coding);
        assert_eq!((got.field("content-encoding"), got.plain()), (Some(coding), content.clone()));
    }
}

#[cfg(feature = "modules")]
#[test]
fn modules_are_compressed() {
    use crate::support::guests::{guests, serve_guests};

    let Some(guests) = guests() else { return };
    for (options, coding) in [("", Some("br")), ("compress off", None)] {
        let server = serve_guests(guests, options, "");
        let mut stream = server.connect();
        let head = "GET /text HTTP/1.1\r\nHost: h\r\nConnection: close\r\nAccept-Encoding: br, gzip\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        let head = read_head(&mut stream).unwrap();
        let mut content = Vec::new();
        stream.read_to_end(&mut content).unwrap();
        if head.to_ascii_lowercase().contains("\r\ntransfer-encoding: chunked") {
            content = without_chunks(&content).unwrap();
        }
        let got = Got { head, content };
        assert_eq!((got.field("content-encoding"), got.plain()), (coding, "hello\n".repeat(2_000)), "{options}");
    }
}

#[test]
fn slow_clients_of_compressed_responses_hold_little_memory() {
    let content = text(4_000_000);
    let origin = Origin::of_text("Content-Type: text/html\r\n", &content);
    let server = forwarding_to(origin.address, "response-buffering off");
    let mut clients: Vec<_> = (0..20)
        .map(|_| {
            let mut stream = server.connect();
            socket2::SockRef::from(&stream).set_recv_buffer_size(4096).unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\nAccept-Encoding: gzip\r\n\r\n").unwrap();
            stream
        })
        .collect();
    eventually("all requests are forwarded", || origin.requests() == 20);
    for stream in &mut clients {
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert!(read_head(stream).unwrap().contains("Content-Encoding: gzip"));
    }
    // An encoder of gzip with its buffers, and connections to the upstream.
    let kib = server.memory_kib();
    assert!(kib < 20 * 1_500 + 30_000, "{kib} KiB");
}
