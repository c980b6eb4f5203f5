//! Features of HTTP/2 alone: multiplexing, windows, tunnels in streams, graceful shutdown.

use std::time::{Duration, Instant};

use wire::h2::{ErrorCode, H2Limits, OutgoingRequest};

use crate::support::h2::{H2Client, limits};
use crate::support::upstream::ScriptStep::{Echo, Fill, Gate, Pause, Read as Await, Write as Say};
use crate::support::upstream::ScriptedUpstream;
use crate::support::waiting::{await_read, eventually, lines_of, within};
use crate::support::{LARGE_BYTES, TestServer, site_with_large_file};

const HEAD: &str = "\r\n\r\n";

/// Server with one worker, this site, and further configuration.
fn server(site: &str, elsewhere: &str) -> TestServer {
    TestServer::run(&format!("site {{\n listen \"127.0.0.1:0\"\n{site}\n}}\nserver {{\n workers 1\n}}\n{elsewhere}"))
}

fn forward(upstream: &ScriptedUpstream, options: &str) -> String {
    format!(" forward \"http://{}\" {{\n{options}\n }}", upstream.address)
}

#[test]
fn many_at_a_time() {
    let site = site_with_large_file();
    for size in 0..100 {
        std::fs::write(site.path().join(size.to_string()), vec![b'a' + (size % 26) as u8; size * 1_000]).unwrap();
    }
    let server = server(&format!(" root \"{}\"", site.path().display()), "");
    let mut client = H2Client::connect(&server);
    let large = client.ask("GET", "/large", &[], true);
    for _ in 0..3 {
        let streams: Vec<_> = (0..100).map(|size: usize| client.ask("GET", &format!("/{size}"), &[], true)).collect();
        for (size, stream) in streams.into_iter().enumerate() {
            let answer = client.finish(stream);
            assert_eq!((answer.status(), answer.content.len()), (200, size * 1_000));
            assert!(answer.content.iter().all(|byte| *byte == b'a' + (size % 26) as u8));
        }
    }
    assert_eq!(client.finish(large).content.len(), LARGE_BYTES);
    let answer = client.get("/0");
    assert_eq!(answer.fields.get("content-length"), Some(&b"0"[..]));
}

/// The content arrives together with the head that is rejected for it. The client still receives the response.
#[test]
fn too_much_content_gets_a_response() {
    let server = server(" body-bytes-max \"8KiB\"\n forward \"http://127.0.0.1:1\"", "");
    let mut client = H2Client::connect(&server);
    for _ in 0..3 {
        let stream = client.post_at_once("/", &[b'x'; 16_000]);
        let response = client.finish(stream);
        assert_eq!((response.status(), response.is_complete), (413, true));
    }
}

/// A client that opens no window makes the server hold little, however much there is; later it gets everything.
#[test]
fn a_client_that_does_not_take() {
    const STREAMS: usize = 20;
    let upstream = ScriptedUpstream::start(vec![vec![
        Await(HEAD),
        Say("HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n"),
        Fill(3_000_000),
    ]]);
    let server = server(&forward(&upstream, ""), "");
    let mut client = H2Client::connect(&server);
    client.get("/");
    let before_kib = server.memory_kib();
    client.takes = false;
    let streams: Vec<_> = (0..STREAMS).map(|_| client.ask("GET", "/", &[], true)).collect();
    client.wait_or_end(Duration::from_millis(500));
    let held_kib = server.memory_kib().saturating_sub(before_kib);
    assert!(held_kib < 8 << 10, "{held_kib} KiB for {STREAMS} streams of 3 MB");
    client.takes = true;
    for stream in &streams {
        let there = client.answers[stream].content.len();
        client.turn(|engine, turn| engine.take_content(*stream, there, turn));
    }
    client.flush();
    for stream in streams {
        assert_eq!(client.finish(stream).content.len(), 3_000_000);
    }
}

/// An upload stops while the upstream does not read.
#[test]
fn an_upstream_that_does_not_read() {
    let upstream =
        ScriptedUpstream::start(vec![vec![Await(HEAD), Gate, Await("0\r\n\r\n"), Say("HTTP/1.1 204 No\r\n\r\n")]]);
    let server = server(&forward(&upstream, ""), "");
    let mut client = H2Client::connect(&server);
    let before = server.resident_kib_max();
    let stream = client.ask("POST", "/", &[], false);
    client.send(stream, &vec![b'x'; 30_000_000], true);
    client.wait_or_end(Duration::from_millis(1_000));
    let unsent_bytes = client.turn(|engine, _| engine.unsent_bytes(stream)).unwrap();
    assert!(unsent_bytes > 15_000_000, "{unsent_bytes}");
    let grown_kib = server.resident_kib_max() - before;
    assert!(grown_kib < 10 << 10, "{grown_kib}");
    upstream.open_gate();
    assert_eq!(client.finish(stream).status(), 204);
}

#[test]
fn both_ways_at_the_same_time() {
    let upstream = ScriptedUpstream::start(vec![vec![
        Await(HEAD),
        Say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
        Echo,
    ]]);
    let server = server(&forward(&upstream, ""), "");
    let mut client = H2Client::connect(&server);
    let stream = client.ask("POST", "/", &[], false);
    client.wait(|client| client.answers[&stream].status() == 200);
    for said in ["one", "two", "three"] {
        client.send(stream, said.as_bytes(), false);
        client.wait(|client| client.answers[&stream].content.ends_with(said.as_bytes()));
    }
    let mut trailers = wire::http::Fields::new();
    trailers.push("content-digest", "1");
    client.turn(|engine, turn| engine.send_trailers(stream, trailers, turn)).unwrap();
    client.flush();
    let answer = client.finish(stream);
    assert_eq!(answer.content, b"onetwothree");
    assert_eq!(answer.trailers.get("content-digest"), Some(&b"1"[..]));
}

fn protocol_request(path: &'static str, protocol: &'static str) -> OutgoingRequest<'static> {
    OutgoingRequest {
        method: b"CONNECT",
        scheme: Some(b"http"),
        authority: Some(b"localhost"),
        path: Some(path.as_bytes()),
        protocol: Some(protocol.as_bytes()),
    }
}

const WEBSOCKET: &[(&str, &str)] = &[("sec-websocket-version", "13"), ("origin", "http://localhost")];

/// RFC 8441.
#[test]
fn a_websocket_in_a_stream() {
    let upstream = ScriptedUpstream::start(vec![vec![
        Await(HEAD),
        Say("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: x\r\nSec-WebSocket-Protocol: chat\r\n\r\nearly"),
        Echo,
    ]]);
    let server = server(&forward(&upstream, ""), "");
    let mut client = H2Client::connect(&server);
    client.get("/");
    assert!(client.engine.peer_settings().enables_connect_protocol);
    let stream = client.ask_as(&protocol_request("/chat?x", "websocket"), WEBSOCKET, false);
    client.wait(|client| client.answers[&stream].content == b"early");
    let answer = &client.answers[&stream];
    assert_eq!(answer.statuses, [200]);
    assert_eq!(answer.fields.get("sec-websocket-protocol"), Some(&b"chat"[..]));
    assert!(!answer.fields.has("sec-websocket-accept") && !answer.fields.has("upgrade"));
    for length in [5, 100_000] {
        client.answers.get_mut(&stream).unwrap().content.clear();
        client.send(stream, &vec![b'm'; length], false);
        client.wait(|client| client.answers[&stream].content.len() == length);
    }
    // Other streams continue meanwhile; and the end is passed on.
    client.send(stream, b"", true);
    assert!(client.finish(stream).is_complete);
    // Each connection has a thread, and these report in any order.
    let seen = [upstream.connection(), upstream.connection()];
    let mut heads = seen.iter().map(|input| input.split(HEAD).next().unwrap());
    let head = heads.find(|head| head.starts_with("GET /chat?x HTTP/1.1\r\n"));
    let head = head.unwrap_or_else(|| panic!("{seen:?}"));
    for line in ["upgrade: websocket", "connection: upgrade", "sec-websocket-version: 13", "sec-websocket-key: "] {
        assert!(head.to_ascii_lowercase().contains(line), "no {line}: {head}");
    }
}

#[test]
fn protocols_that_are_not_spoken() {
    let upstream =
        ScriptedUpstream::start(vec![vec![Await(HEAD), Say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno")]]);
    let refusing =
        ScriptedUpstream::start(vec![vec![Await(HEAD), Say("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")]]);
    let server = server(
        &format!(
            " forward \"http://{}\" path=\"/200/*\"\n forward \"http://{}\" path=\"/403/*\"\n respond \"/fixed\" 200 \"x\"",
            upstream.address, refusing.address
        ),
        "",
    );
    let mut client = H2Client::connect(&server);
    client.get("/fixed");
    for (path, protocol, status) in [
        ("/200/a", "websocket", 501),
        ("/403/a", "websocket", 403),
        ("/200/a", "connect-udp", 501),
        ("/fixed", "websocket", 501),
    ] {
        let stream = client.ask_as(&protocol_request(path, protocol), WEBSOCKET, false);
        assert_eq!(client.finish(stream).status(), status, "{path} {protocol}");
    }
    let connect = OutgoingRequest {
        method: b"CONNECT",
        scheme: None,
        authority: Some(b"a.example:443"),
        path: None,
        protocol: None,
    };
    let stream = client.ask_as(&connect, &[], false);
    let status = client.finish(stream).status();
    assert!([405, 501, 404].contains(&status), "{status}");
}

#[test]
fn a_graceful_end() {
    let upstream =
        ScriptedUpstream::start(vec![vec![Await(HEAD), Gate, Say("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate")]]);
    let mut server = server(&forward(&upstream, ""), "");
    let (mut client, mut idle) = (H2Client::connect(&server), H2Client::connect(&server));
    // The server has begun the connection when its SETTINGS are there.
    idle.wait(|client| client.engine.peer_settings().enables_connect_protocol);
    let stream = client.ask("GET", "/", &[], true);
    client.flush();
    upstream.await_received(HEAD);
    server.signal("TERM");
    assert_eq!(idle.wait_for_end(), Some(ErrorCode::NO_ERROR));
    client.wait(|client| client.go_away.is_some());
    upstream.open_gate();
    assert_eq!(client.finish(stream).content, b"late");
    assert_eq!(client.wait_for_end(), Some(ErrorCode::NO_ERROR));
    assert!(server.wait());
}

#[test]
fn requests_on_a_connection_are_counted() {
    let server = server(" respond \"/\" 200 \"x\"", "limits {\n requests-per-connection-max 3\n}\n");
    let mut client = H2Client::connect(&server);
    for _ in 0..3 {
        assert_eq!(client.get("/").status(), 200);
    }
    assert_eq!(client.wait_for_end(), Some(ErrorCode::NO_ERROR));
}

#[test]
fn time_limits() {
    // Each server has one limit, so that a slow client reaches no other.
    let limited = |site: &str, limit: &str| {
        server(site, &format!("limits {{\n {limit} \"400ms\"\n linger-timeout \"100ms\"\n}}\n"))
    };
    let upstream = ScriptedUpstream::start(vec![vec![Await(HEAD), Pause(60_000)]]);
    let slow = " first-byte-timeout \"300ms\"";
    let site = site_with_large_file();
    let files = format!(" root \"{}\"", site.path().display());
    // No request at all. The preface may come too late.
    let idle = limited(&files, "idle-timeout");
    eventually("a connection without a request ends", || {
        H2Client::connect(&idle).wait_for_end() == Some(ErrorCode::NO_ERROR)
    });
    // An incomplete frame. The limit is also that of SETTINGS, whose acknowledgment may come too late.
    let incomplete = limited(&files, "head-timeout");
    eventually("a connection with an incomplete frame ends", || {
        let mut client = H2Client::connect(&incomplete);
        let stream = client.ask("GET", "/nothing", &[], true);
        while !client.has_ended && !client.answers[&stream].is_complete {
            client.wait_or_end(Duration::from_millis(20));
        }
        let began = Instant::now();
        client.send_raw(b"\0\0\x08\x06");
        let is_calmed = client.wait_for_end() == Some(ErrorCode::ENHANCE_YOUR_CALM);
        assert!(!is_calmed || began.elapsed() > Duration::from_millis(300));
        is_calmed
    });
    // Incomplete content.
    let forwarding = limited(&forward(&upstream, slow), "body-timeout");
    let mut client = H2Client::connect(&forwarding);
    let stream = client.ask("POST", "/", &[], false);
    client.send(stream, b"some", false);
    assert_eq!(client.finish(stream).status(), 408);
    // An upstream that does not respond in time.
    let waiting = server(&forward(&upstream, slow), "");
    assert_eq!(H2Client::connect(&waiting).get("/").status(), 504);
    // A client that does not read: its window stays closed.
    let unread = limited(&files, "write-timeout");
    let mut client = H2Client::with(&unread, H2Limits { stream_window_bytes: 65_535, ..limits() });
    client.takes = false;
    let stream = client.ask("GET", "/large", &[], true);
    assert_eq!(client.finish(stream).reset, Some(ErrorCode::ENHANCE_YOUR_CALM));
}

#[test]
fn the_access_log() {
    let site = site_with_large_file();
    std::fs::write(site.path().join("small"), "12345").unwrap();
    let log = site.path().join("access.log");
    let options = format!(" root \"{}\"\n access-log \"{}\" format=\"combined\"", site.path().display(), log.display());
    let server = server(&options, "");
    let mut client = H2Client::connect(&server);
    let fields = [("user-agent", "tester"), ("referer", "http://before")];
    for (method, path) in [("GET", "/small"), ("HEAD", "/small"), ("GET", "/missing?q"), ("GET", "/large")] {
        let stream = client.ask(method, path, &fields, true);
        client.finish(stream);
    }
    client.takes = false;
    let stream = client.ask("GET", "/large", &[], true);
    client.wait(|client| !client.answers[&stream].content.is_empty());
    client.turn(|engine, turn| engine.reset(stream, ErrorCode::CANCEL, turn));
    client.flush();
    let expect = [
        "\"GET /small HTTP/2.0\" 200 5 \"http://before\" \"tester\"",
        "\"HEAD /small HTTP/2.0\" 200 0 \"http://before\" \"tester\"",
        "\"GET /missing?q HTTP/2.0\" 404 ",
        "\"GET /large HTTP/2.0\" 200 16777216 ",
        "\"GET /large HTTP/2.0\" 200 ",
    ];
    let lines = lines_of(&log, expect.len());
    for (line, expect) in lines.iter().zip(expect) {
        assert!(line.contains(expect), "{line}\nwithout {expect}");
    }
    let reset = lines.last().unwrap();
    assert!(!reset.contains(" 16777216 "), "{reset}");
}

#[test]
fn versions_that_are_not_spoken() {
    const H1: &[u8] = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    let site = |versions: &str| {
        TestServer::run(&format!(
            "site {{\n listen \"127.0.0.1:0\"\n respond \"/\" 200 \"x\"\n}}\nserver {{\n workers 1\n http-versions {versions}\n}}\n"
        ))
    };
    let only_h1 = site("\"1.1\"");
    assert!(only_h1.exchange(H1).starts_with("HTTP/1.1 200 "));
    assert!(only_h1.exchange(wire::h2::PREFACE).starts_with("HTTP/1.1 505 "));
    let only_h2 = site("\"2\"");
    assert!(!only_h2.exchange(H1).contains("HTTP/1.1"));
    assert_eq!(H2Client::connect(&only_h2).get("/").status(), 200);
    let both = site("\"2\" \"1.1\"");
    assert!(both.exchange(H1).starts_with("HTTP/1.1 200 "));
    assert_eq!(H2Client::connect(&both).get("/").status(), 200);
    // The preface may arrive in pieces.
    let mut client = both.connect();
    for piece in wire::h2::PREFACE.chunks(5).chain([&b"\0\0\0\x04\0\0\0\0\0"[..]]) {
        std::io::Write::write_all(&mut client, piece).unwrap();
        await_read(&client);
    }
    let mut settings = [0; 9];
    std::io::Read::read_exact(&mut client, &mut settings).unwrap();
    assert_eq!(settings[3], 4, "{settings:?}");
}

/// User-space memory of an idle connection, in bytes.
#[test]
fn idle_connections_take_little() {
    const CONNECTIONS: usize = 500;
    const BYTES_MAX: u64 = 4 << 10;
    let server = server(" respond \"/\" 200 \"x\"", "");
    let open = |count: usize| -> Vec<H2Client> {
        let client = || {
            let mut client = H2Client::connect(&server);
            assert_eq!(client.get("/").status(), 200);
            client
        };
        (0..count).map(|_| client()).collect()
    };
    let _first = open(50);
    // Connections release their buffers after some seconds without input.
    std::thread::sleep(Duration::from_millis(2_500));
    let before_kib = server.memory_kib();
    let _clients = open(CONNECTIONS);
    let mut bytes = u64::MAX;
    let small = within(crate::support::PATIENCE, || {
        bytes = (server.memory_kib().saturating_sub(before_kib) << 10) / CONNECTIONS as u64;
        (bytes < BYTES_MAX).then_some(())
    });
    assert!(small.is_some(), "{bytes} bytes an idle connection");
}
