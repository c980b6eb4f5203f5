//! Named attacks on the built server. Each ends its own connection, within bounded memory, and other clients are served
//! meanwhile. The engine's tests of them, each with its budget, are in `crates/wire/src/h2/tests/attacks.rs`.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use wire::h2::{ErrorCode, H2Limits, PREFACE};

use crate::support::h2::{H2Client, limits};
use crate::support::upstream::ScriptStep::{Pause, Read as Await};
use crate::support::upstream::ScriptedUpstream;
use crate::support::waiting::settled;
use crate::support::{PATIENCE, TestServer, site_with_large_file};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend_from_slice(&[kind, flags]);
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// GET / of http://a, without a dynamic table.
const GET: &[u8] = b"\x82\x86\x84\x01\x01a";

fn get(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_STREAM | END_HEADERS, stream, GET)
}

/// Server whose files are slow: an upstream has them, and does not respond.
fn server() -> (TestServer, ScriptedUpstream) {
    let upstream = ScriptedUpstream::start(vec![vec![Await("\r\n\r\n"), Pause(100_000)]]);
    let server = TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n respond \"/fixed\" 200 \"x\"\n forward \"http://{}\"\n}}\nserver {{ workers 1 }}\n",
        upstream.address
    ));
    (server, upstream)
}

/// Client that sends arbitrary frames and only records what it receives.
struct Attacker {
    socket: TcpStream,
    received: Vec<u8>,
    has_ended: bool,
}

impl Attacker {
    fn connect(server: &TestServer) -> Self {
        let mut attacker = Self { socket: server.connect(), received: Vec::new(), has_ended: false };
        attacker.send(&[&PREFACE[..], &frame(SETTINGS, 0, 0, b""), &frame(SETTINGS, 1, 0, b"")].concat());
        attacker
    }

    fn send(&mut self, bytes: &[u8]) {
        // The server may have closed the connection.
        self.has_ended |= self.socket.write_all(bytes).is_err();
    }

    /// Reads until the connection has ended, or for this time.
    fn read(&mut self, time: Duration) {
        let (deadline, mut buffer) = (Instant::now() + time, [0; 16 << 10]);
        self.socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        while !self.has_ended && Instant::now() < deadline {
            match self.socket.read(&mut buffer) {
                Ok(0) => self.has_ended = true,
                Ok(count) => self.received.extend_from_slice(&buffer[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(_) => self.has_ended = true,
            }
        }
    }

    /// Types and payloads of the received frames.
    fn frames(&self) -> Vec<(u8, &[u8])> {
        let (mut frames, mut rest) = (Vec::new(), &self.received[..]);
        while let Some((header, following)) = rest.split_at_checked(9) {
            let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
            let Some((payload, following)) = following.split_at_checked(length) else { break };
            frames.push((header[3], payload));
            rest = following;
        }
        frames
    }

    /// Error code of GOAWAY.
    fn go_away(&self) -> Option<ErrorCode> {
        let frames = self.frames();
        let (_, payload) = frames.iter().rfind(|(kind, _)| *kind == GOAWAY)?;
        Some(ErrorCode(u32::from_be_bytes(payload[4..8].try_into().unwrap())))
    }
}

/// Limit of the memory that an attack may add, in KiB.
const MEMORY_KIB_MAX: u64 = 16 << 10;

/// Sends `attack` of 0, 1, 2 … and checks the end.
#[track_caller]
fn check(expect: ErrorCode, attack: impl Fn(u32) -> Vec<u8>) {
    let (server, _upstream) = server();
    let mut others = H2Client::connect(&server);
    assert_eq!(others.get("/fixed").status(), 200);
    let before_kib = server.resident_kib_max();
    for _ in 0..3 {
        let mut attacker = Attacker::connect(&server);
        for count in 0..100_000 {
            attacker.send(&attack(count));
            if attacker.has_ended {
                break;
            }
            if count % 50 == 49 {
                attacker.read(Duration::from_millis(1));
                assert_eq!(others.get("/fixed").status(), 200);
            }
        }
        attacker.read(PATIENCE);
        assert!(attacker.has_ended, "the server did not stop the attack");
        // If the client keeps sending, a reset may overtake GOAWAY.
        assert!(attacker.go_away().is_none_or(|code| code == expect), "{:?}", attacker.go_away());
        assert_eq!(others.get("/fixed").status(), 200);
    }
    let taken_kib = server.resident_kib_max() - before_kib;
    assert!(taken_kib < MEMORY_KIB_MAX, "{taken_kib} KiB");
}

#[test]
fn rapid_reset_cve_2023_44487() {
    check(ErrorCode::ENHANCE_YOUR_CALM, |count| {
        let stream = 1 + 2 * count;
        [get(stream), frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])].concat()
    });
}

#[test]
fn made_you_reset_cve_2025_8671() {
    check(ErrorCode::ENHANCE_YOUR_CALM, |count| {
        let stream = 1 + 2 * count;
        [get(stream), frame(WINDOW_UPDATE, 0, stream, &[0; 4])].concat()
    });
    check(ErrorCode::ENHANCE_YOUR_CALM, |count| {
        let stream = 1 + 2 * count;
        [get(stream), frame(DATA, 0, stream, b"x")].concat()
    });
}

#[test]
fn continuation_flood_cve_2024_27316() {
    check(ErrorCode::ENHANCE_YOUR_CALM, |count| match count {
        0 => frame(HEADERS, END_STREAM, 1, GET),
        _ => frame(CONTINUATION, 0, 1, &[b"\x40\x01a\x7f\x80\x01", &[b'x'; 200][..]].concat()),
    });
}

#[test]
fn settings_flood_cve_2019_9515() {
    check(ErrorCode::ENHANCE_YOUR_CALM, |_| frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0xff, 0xff]));
}

#[test]
fn ping_flood_cve_2019_9512() {
    check(ErrorCode::ENHANCE_YOUR_CALM, |_| frame(PING, 0, 0, &[0; 8]));
}

#[test]
fn empty_frames_cve_2019_9518() {
    check(ErrorCode::ENHANCE_YOUR_CALM, |count| match count {
        0 => frame(HEADERS, END_HEADERS, 1, b"\x83\x86\x84\x01\x01a"),
        _ => frame(DATA, 0, 1, b""),
    });
}

/// A large field in the table, and thousands of references to it: each request is rejected before it grows.
#[test]
fn hpack_bomb_cve_2016_6581() {
    let (server, _upstream) = server();
    let before_kib = server.resident_kib_max();
    let mut attacker = Attacker::connect(&server);
    let mut block = [GET, b"\x40\x01b\x7f\xbd\x1d"].concat();
    block.extend_from_slice(&[b'v'; 3_900]);
    attacker.send(&frame(HEADERS, END_STREAM | END_HEADERS, 1, &block));
    for stream in 0..100 {
        let block = [GET, &[0xbe; 10_000]].concat();
        attacker.send(&frame(HEADERS, END_STREAM | END_HEADERS, 3 + 2 * stream, &block));
    }
    let heads = |attacker: &Attacker| attacker.frames().into_iter().filter(|(kind, _)| *kind == HEADERS).count();
    let deadline = Instant::now() + PATIENCE;
    while heads(&attacker) < 100 && Instant::now() < deadline {
        attacker.read(Duration::from_millis(50));
    }
    assert_eq!((heads(&attacker), attacker.has_ended), (100, false), "each is answered with 431");
    let taken_kib = server.resident_kib_max() - before_kib;
    assert!(taken_kib < MEMORY_KIB_MAX, "{taken_kib} KiB");
}

/// Clients that request much and read nothing, by windows (CVE-2016-1546) or by not reading their socket (internal data
/// buffering, CVE-2019-9517).
#[test]
fn slow_read() {
    let site = site_with_large_file();
    let server = TestServer::serve(site.path(), &[]);
    assert_eq!(H2Client::connect(&server).get("/nothing").status(), 404);
    let before_kib = server.memory_kib();
    let mut clients = Vec::new();
    for window_bytes in [65_535, 1 << 30] {
        for _ in 0..50 {
            let mut client = H2Client::with(
                &server,
                H2Limits { stream_window_bytes: window_bytes, connection_window_bytes: window_bytes, ..limits() },
            );
            for stream in 0..50 {
                // Uses streams after those of the client's engine, which does not know them.
                client.send_raw(&frame(
                    HEADERS,
                    END_STREAM | END_HEADERS,
                    1 + 2 * stream,
                    b"\x82\x86\x04\x06/large\x01\x01a",
                ));
            }
            clients.push(client);
        }
    }
    let after_kib = settled("all requests are handled", || server.memory_kib());
    let each_kib = after_kib.saturating_sub(before_kib) / clients.len() as u64;
    assert!(each_kib < 256, "{each_kib} KiB a connection");
    assert_eq!(H2Client::connect(&server).get("/nothing").status(), 404);
}

/// Data dribble (CVE-2019-9511): the window opens one byte at a time.
#[test]
fn data_dribble_cve_2019_9511() {
    let site = site_with_large_file();
    let server = TestServer::serve(site.path(), &[]);
    let mut attacker = Attacker::connect(&server);
    attacker.send(&frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]));
    attacker.send(&frame(HEADERS, END_STREAM | END_HEADERS, 1, b"\x82\x86\x04\x06/large\x01\x01a"));
    for _ in 0..100 {
        attacker.send(&frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]).repeat(100));
        attacker.read(Duration::from_millis(1));
    }
    attacker.read(PATIENCE);
    assert!(attacker.has_ended);
    assert!(attacker.go_away().is_none_or(|code| code == ErrorCode::ENHANCE_YOUR_CALM), "{:?}", attacker.go_away());
}
