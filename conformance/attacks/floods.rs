//! Floods of frames that cost a client little: each must end its own connection, in bounded memory, while others are served.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use wire::h2::PREFACE;

use crate::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GET, HEADERS, PING, POST, PRIORITY, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, connect, drain, frame, literal,
};
use crate::honest::Honest;
use crate::raw::{Raw, pick};
use crate::support::tls::{TestCa, handshake};
use crate::support::upstream::ScriptStep::{Pause, Read as Await};
use crate::support::upstream::ScriptedUpstream;
use crate::support::{TestServer, site_with_large_file};
use crate::trial::{Attack, Skipped, Trial};

pub(crate) const ATTACKS: [Attack; 13] = [
    Attack { name: "floods/rapid-reset", run: |trial| flood(trial, rapid_reset) },
    Attack { name: "floods/made-you-reset", run: |trial| flood(trial, made_you_reset) },
    Attack { name: "floods/ping", run: |trial| flood(trial, ping) },
    Attack { name: "floods/settings", run: |trial| flood(trial, settings) },
    Attack { name: "floods/continuation", run: |trial| flood(trial, continuation) },
    Attack { name: "floods/empty-frames", run: |trial| flood(trial, empty_frames) },
    Attack { name: "floods/data-on-reset", run: |trial| flood(trial, data_on_reset) },
    Attack { name: "floods/window-updates", run: |trial| flood(trial, window_updates) },
    Attack { name: "floods/priorities", run: |trial| flood(trial, priorities) },
    Attack { name: "floods/unknown-frames", run: |trial| flood(trial, unknown_frames) },
    Attack { name: "floods/header-bombs", run: header_bombs },
    Attack { name: "floods/random-frames", run: random_frames },
    Attack { name: "floods/handshakes", run: handshakes },
];

/// Attackers at a time.
const ATTACKERS: usize = 4;

/// Frames after which a connection must have been ended: twice the largest budget of SECURITY.md's table, with what a client earns.
const FRAMES_MAX: u64 = 50_000;

/// Time after which a connection must have been ended, however slow the machine is.
const FLOOD_TIME_MAX: Duration = Duration::from_secs(20);

/// Frames in one write.
const FRAMES_AT_ONCE: u32 = 50;

/// Memory that a server may have more after a flood, in KiB.
const GROWTH_KIB_MAX: u64 = 32 << 10;

/// The slowest that an honest request may be during a flood, at p99: machines that run tests are busy.
const HONEST_P99_MAX: Duration = Duration::from_secs(2);

/// Frames of a round, from its number and the random choices of the connection.
type Flood = fn(u32, &FloodChoices) -> Vec<u8>;

/// Choices that hold for a connection.
struct FloodChoices {
    first: u64,
    second: u64,
}

/// A server whose files are slow to get: its upstream does not answer. `/fixed` is answered at once, `/large` is a large file.
fn server() -> (TestServer, ScriptedUpstream, tempfile::TempDir) {
    let upstream = ScriptedUpstream::start(vec![vec![Await("\r\n\r\n"), Pause(100_000)]]);
    let site = site_with_large_file();
    let server = TestServer::run(&format!(
        "server {{ workers 2 }}\nsite {{\n listen \"127.0.0.1:0\"\n respond \"/fixed\" 200 \"fixed\"\n root \"{}\"\n \
         forward \"http://{}\" path=\"/\"\n}}\n",
        site.path().display(),
        upstream.address
    ));
    (server, upstream, site)
}

/// Floods connection after connection. Each must be ended by the server.
fn flood(trial: &Trial, flood: Flood) -> Result<String, Skipped> {
    let (server, _upstream, _site) = server();
    // Workers have allocated what connections share.
    drop(crate::raw::ask(server.address, "GET /fixed HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
    let before_kib = server.memory_kib();
    let honest = Honest::start(server.address, "/fixed", "fixed");
    let (frames, longest) = (AtomicU64::new(0), AtomicU64::new(0));
    trial.run(ATTACKERS, |case| {
        let choices = FloodChoices { first: case.random.u64(..), second: case.random.u64(..) };
        let mut raw = connect(server.address, b"")?;
        let (began, mut count) = (Instant::now(), 0);
        while !raw.is_closed {
            let bytes: Vec<u8> = (0..FRAMES_AT_ONCE).flat_map(|more| flood(count + more, &choices)).collect();
            raw.send(&bytes);
            count += FRAMES_AT_ONCE;
            drain(&mut raw, Duration::from_millis(1));
            if u64::from(count) > FRAMES_MAX || began.elapsed() > FLOOD_TIME_MAX {
                // A slow server may not have read all frames yet.
                raw.read(Duration::from_secs(5), |_| false);
                if !raw.is_closed {
                    return Err(format!("not ended after {count} rounds in {:.1?}", began.elapsed()));
                }
            }
        }
        frames.fetch_add(u64::from(count), Ordering::Relaxed);
        longest.fetch_max(u64::from(count), Ordering::Relaxed);
        Ok(())
    });
    let served = honest.end(trial, HONEST_P99_MAX);
    let grown_kib = server.memory_kib().saturating_sub(before_kib);
    trial.expect(grown_kib < GROWTH_KIB_MAX, || format!("memory grew by {grown_kib} KiB"));
    trial.expect_healthy(&server, "/fixed");
    let each = frames.into_inner() / trial.tries().max(1);
    Ok(format!(
        "ended after {each} rounds on average, {} at most; {grown_kib} KiB more; {served}",
        longest.into_inner()
    ))
}

/// Stream of a round, from 1.
fn stream(count: u32) -> u32 {
    1 + 2 * count
}

/// CVE-2023-44487.
fn rapid_reset(count: u32, choices: &FloodChoices) -> Vec<u8> {
    let code = (choices.first % 14) as u32;
    let (flags, block) = if choices.second.is_multiple_of(2) { (END_STREAM, GET) } else { (0, POST) };
    let request = frame(HEADERS, flags | END_HEADERS, stream(count), block);
    [request, frame(RST_STREAM, 0, stream(count), &code.to_be_bytes())].concat()
}

/// CVE-2025-8671: requests with a fault that has the server reset them.
fn made_you_reset(count: u32, choices: &FloodChoices) -> Vec<u8> {
    let stream = stream(count);
    let request = |flags| frame(HEADERS, flags | END_HEADERS, stream, if flags == 0 { POST } else { GET });
    let fault = match choices.first % 5 {
        0 => [request(0), frame(WINDOW_UPDATE, 0, stream, &[0; 4])],
        1 => [request(0), frame(PRIORITY, 0, stream, &[&stream.to_be_bytes()[..], &[1]].concat())],
        2 => [request(END_STREAM), frame(DATA, 0, stream, b"x")],
        3 => [request(END_STREAM), frame(WINDOW_UPDATE, 0, stream, &0x7fff_ffff_u32.to_be_bytes())],
        _ => {
            let mut block = POST.to_vec();
            literal(&mut block, b"content-length", b"1");
            [frame(HEADERS, END_HEADERS, stream, &block), frame(DATA, END_STREAM, stream, b"xx")]
        }
    };
    fault.concat()
}

/// CVE-2019-9512.
fn ping(count: u32, choices: &FloodChoices) -> Vec<u8> {
    frame(PING, 0, 0, &(choices.first ^ u64::from(count)).to_be_bytes())
}

/// CVE-2019-9515.
fn settings(count: u32, choices: &FloodChoices) -> Vec<u8> {
    let one = |identifier: u16, value: u32| [&identifier.to_be_bytes()[..], &value.to_be_bytes()].concat();
    let payload = match choices.first % 4 {
        0 => Vec::new(),
        1 => one(4, 0xffff + count % 2),
        // One that is not known, many times.
        2 => one(0xff00, count).repeat(1 + (choices.second % 50) as usize),
        _ => one(1, (count % 2) * 4096),
    };
    frame(SETTINGS, 0, 0, &payload)
}

/// CVE-2024-27316: a header block without end.
fn continuation(count: u32, choices: &FloodChoices) -> Vec<u8> {
    let mut field = Vec::new();
    match choices.first % 3 {
        0 => {}
        1 => literal(&mut field, b"x", b"y"),
        _ => literal(&mut field, b"x", &vec![b'y'; (choices.second % 8_000) as usize]),
    }
    match count {
        0 => frame(HEADERS, END_STREAM, 1, GET),
        _ => frame(CONTINUATION, 0, 1, &field),
    }
}

/// CVE-2019-9518.
fn empty_frames(count: u32, choices: &FloodChoices) -> Vec<u8> {
    match (count, choices.first % 3) {
        (0, _) => frame(HEADERS, END_HEADERS, 1, POST),
        (_, 0) => frame(DATA, 0, 1, b""),
        // Only padding.
        (_, 1) => frame(DATA, 8, 1, &[0]),
        _ => frame(DATA, 8, 1, &[&[200][..], &[0; 200]].concat()),
    }
}

/// Content on a stream that the server has reset, as large as a frame may be or small.
fn data_on_reset(count: u32, choices: &FloodChoices) -> Vec<u8> {
    let length = 1 + (choices.first % 16_384) as usize;
    match count {
        0 => [frame(HEADERS, END_HEADERS, 1, POST), frame(WINDOW_UPDATE, 0, 1, &[0; 4])].concat(),
        _ => frame(DATA, 0, 1, &vec![b'x'; length]),
    }
}

/// CVE-2019-9511 and its like: a window that opens by a byte at a time.
fn window_updates(count: u32, choices: &FloodChoices) -> Vec<u8> {
    let of = if choices.first.is_multiple_of(2) { 1 } else { 0 };
    match count {
        0 => [
            frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]),
            frame(HEADERS, END_STREAM | END_HEADERS, 1, b"\x82\x86\x04\x06/large\x01\x01a"),
        ]
        .concat(),
        _ => frame(WINDOW_UPDATE, 0, of, &[0, 0, 0, 1]).repeat(1 + (choices.second % 4) as usize),
    }
}

/// CVE-2019-9513.
fn priorities(count: u32, choices: &FloodChoices) -> Vec<u8> {
    let of = if choices.first.is_multiple_of(2) { stream(count % 100) } else { stream(count) };
    let on = stream((count + 1 + (choices.second % 50) as u32) % 100) + 200;
    frame(PRIORITY, 0, of, &[&on.to_be_bytes()[..], &[count as u8]].concat())
}

/// Frames of kinds that nothing is known of, which must be ignored, but not without end.
fn unknown_frames(_count: u32, choices: &FloodChoices) -> Vec<u8> {
    frame(0x10 + (choices.first % 0xe0) as u8, choices.second as u8, 0, &vec![0; (choices.second % 100) as usize])
}

/// CVE-2016-6581: a large field in the dynamic table, and requests with thousands of references to it. Each must be rejected
/// before it has grown.
fn header_bombs(trial: &Trial) -> Result<String, Skipped> {
    let (server, _upstream, _site) = server();
    let before_kib = server.memory_kib();
    let honest = Honest::start(server.address, "/fixed", "fixed");
    trial.run(ATTACKERS, |case| {
        let mut raw = connect(server.address, b"")?;
        let (value_bytes, references) = (case.random.usize(1_000..3_900), case.random.usize(10..10_000));
        let mut block = [GET, b"\x40\x01b\x7f"].concat();
        let rest = value_bytes - 127;
        block.extend([(rest % 128) as u8 | 0x80, (rest / 128) as u8]);
        block.resize(block.len() + value_bytes, b'v');
        raw.send(&frame(HEADERS, END_STREAM | END_HEADERS, 1, &block));
        for number in 1..case.random.u32(20..120) {
            let block = [GET, &vec![0xbe; references]].concat();
            raw.send(&frame(HEADERS, END_STREAM | END_HEADERS, stream(number), &block));
            drain(&mut raw, Duration::from_millis(1));
        }
        Ok(())
    });
    let served = honest.end(trial, HONEST_P99_MAX);
    let grown_kib = server.memory_kib().saturating_sub(before_kib);
    trial.expect(grown_kib < GROWTH_KIB_MAX, || format!("memory grew by {grown_kib} KiB"));
    trial.expect_healthy(&server, "/fixed");
    Ok(format!("{grown_kib} KiB more; {served}"))
}

/// Frames of any kind, flags, stream and length, in any order, among requests that are in order.
fn random_frames(trial: &Trial) -> Result<String, Skipped> {
    let (server, _upstream, _site) = server();
    let before_kib = server.memory_kib();
    let honest = Honest::start(server.address, "/fixed", "fixed");
    let count = AtomicU64::new(0);
    trial.run(ATTACKERS, |case| {
        let random = &mut case.random;
        let mut raw = Raw::connect(server.address)?;
        if random.u8(0..20) > 0 {
            raw.send(PREFACE);
            raw.send(&frame(SETTINGS, 0, 0, b""));
        }
        let mut next = 0;
        for _ in 0..random.usize(1..60) {
            let bytes = random_frame(&mut next, random);
            raw.send_in_pieces(&bytes, random);
            count.fetch_add(1, Ordering::Relaxed);
        }
        drain(&mut raw, Duration::from_millis(5));
        Ok(())
    });
    let served = honest.end(trial, HONEST_P99_MAX);
    let grown_kib = server.memory_kib().saturating_sub(before_kib);
    trial.expect(grown_kib < GROWTH_KIB_MAX, || format!("memory grew by {grown_kib} KiB"));
    trial.expect_healthy(&server, "/fixed");
    Ok(format!("{} frames; {grown_kib} KiB more; {served}", count.into_inner()))
}

fn random_frame(next: &mut u32, random: &mut Rng) -> Vec<u8> {
    let kind = random.u8(0..12);
    let flags = pick(random, &[0, END_STREAM, END_HEADERS, END_STREAM | END_HEADERS, 8, 0x20, 0x2d, 0xff]);
    let known = stream(random.u32(0..=*next));
    let of = pick(random, &[0, 1, known, known, 2, 0x7fff_ffff, 0x8000_0001]);
    match random.u8(0..6) {
        0 | 1 => {
            // A request as it must be, or almost.
            *next += 1;
            let mut block = if random.bool() { GET.to_vec() } else { POST.to_vec() };
            for _ in 0..random.usize(0..3) {
                block.extend(pick(
                    random,
                    &[
                        &b"\x40\x01a\x01b"[..],
                        b"\xbe",
                        b"\x3f\xe1\x1f",
                        b"\x20",
                        b"\x00\x01A\x01b",
                        b"\xff\xff\xff\xff\xff",
                        b"\x00\x01a",
                    ],
                ));
            }
            frame(HEADERS, flags & 0x05, stream(*next), &block)
        }
        2 => {
            let payload: Vec<u8> = (0..random.usize(0..40)).map(|_| random.u8(..)).collect();
            frame(kind, flags, of, &payload)
        }
        3 => {
            // The length says something else.
            let mut bytes = frame(kind, flags, of, &vec![0; random.usize(0..20)]);
            bytes[1] = random.u8(..);
            bytes[2] = random.u8(..);
            bytes
        }
        4 => frame(kind, flags, of, &random.u64(..).to_be_bytes()[..pick(random, &[0, 4, 5, 6, 8])]),
        _ => frame(DATA, flags, known, &vec![b'x'; random.usize(0..16_384)]),
    }
}

/// Handshakes that are begun, broken off, or of no use, against clients with and without TLS.
fn handshakes(trial: &Trial) -> Result<String, Skipped> {
    let (authority, directory) = (TestCa::new(), tempfile::tempdir().expect("a directory"));
    authority.sign(&["localhost"]).write(directory.path(), "a");
    let at = directory.path().display();
    let tls_port = crate::support::port::free_port();
    let server = TestServer::run(&format!(
        "server {{ workers 2 }}\nsite {{\n listen \"127.0.0.1:0\"\n respond \"/fixed\" 200 \"fixed\"\n}}\n\
         site {{\n listen \"127.0.0.1:{tls_port}\" tls=on\n certificate \"{at}/a.pem\" key=\"{at}/a.key\"\n \
         respond \"/fixed\" 200 \"fixed\"\n}}\n"
    ));
    let tls_address = SocketAddr::from(([127, 0, 0, 1], tls_port));
    let client = Arc::new(authority.client(None));
    let hello = client_hello(&client);
    let before_kib = server.memory_kib();
    let honest = Honest::start(server.address, "/fixed", "fixed");
    let (completed, slowest) = (AtomicU64::new(0), AtomicU64::new(0));
    trial.run(ATTACKERS, |case| {
        if case.number.is_multiple_of(50) {
            // An honest client, among the others.
            let began = Instant::now();
            let socket = TcpStream::connect(tls_address).map_err(|error| error.to_string())?;
            let _ = socket.set_read_timeout(Some(crate::raw::PATIENCE));
            let mut stream =
                handshake(socket, &client, "localhost").map_err(|error| format!("honest handshake: {error}"))?;
            let request = "GET /fixed HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
            let answer =
                crate::support::tls::ask(&mut stream, request).map_err(|error| format!("honest client: {error}"))?;
            completed.fetch_add(1, Ordering::Relaxed);
            slowest.fetch_max(began.elapsed().as_millis() as u64, Ordering::Relaxed);
            return if answer.ends_with("fixed") { Ok(()) } else { Err(format!("an honest client got {answer:?}")) };
        }
        bad_handshake(tls_address, &hello, &mut case.random)
    });
    let served = honest.end(trial, HONEST_P99_MAX);
    let grown_kib = server.memory_kib().saturating_sub(before_kib);
    trial.expect(grown_kib < GROWTH_KIB_MAX, || format!("memory grew by {grown_kib} KiB"));
    trial.expect_healthy(&server, "/fixed");
    let (completed, slowest) = (completed.into_inner(), slowest.into_inner());
    Ok(format!("{completed} honest handshakes, {slowest} ms at most; {grown_kib} KiB more; {served}"))
}

/// The first message of a client, as a record.
fn client_hello(client: &Arc<rustls::ClientConfig>) -> Vec<u8> {
    let name = "localhost".try_into().expect("it is a name");
    let mut session = rustls::ClientConnection::new(Arc::clone(client), name).expect("it is configured");
    let mut hello = Vec::new();
    session.write_tls(&mut hello).expect("memory takes all");
    hello
}

fn bad_handshake(address: SocketAddr, hello: &[u8], random: &mut Rng) -> Result<(), String> {
    let mut socket = TcpStream::connect(address).map_err(|error| format!("cannot connect: {error}"))?;
    let mut bytes = hello.to_vec();
    match random.u8(0..6) {
        0 => {}
        1 => bytes.truncate(random.usize(..bytes.len())),
        2 => {
            let at = random.usize(..bytes.len());
            bytes[at] ^= 1 << random.u8(0..8);
        }
        3 => bytes = (0..random.usize(1..2_000)).map(|_| random.u8(..)).collect(),
        4 => bytes.extend_from_slice(hello),
        // Small records, which are put together again.
        _ => {
            let message = bytes.split_off(5);
            bytes = message
                .chunks(random.usize(1..40))
                .flat_map(|part| [&[22, 3, 1][..], &(part.len() as u16).to_be_bytes(), part].concat())
                .collect();
        }
    }
    let _ = socket.write_all(&bytes);
    if random.bool() {
        // Closed at once, by a reset.
        let _ = socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO));
    } else if random.bool() {
        Raw::over(socket).read(Duration::from_millis(5), |received| !received.is_empty());
    }
    Ok(())
}
