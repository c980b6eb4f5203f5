//! Clients that are slow, many at a time: memory that each makes the server hold, against the figures of SECURITY.md.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use wire::h2::PREFACE;

use crate::frames::{END_HEADERS, END_STREAM, HEADERS, SETTINGS, frame};
use crate::raw::ask;
use crate::support::port::free_port;
use crate::support::tls::{TestCa, TlsStream, handshake};
use crate::support::upstream::ScriptStep::{Pause, Read as Await};
use crate::support::upstream::ScriptedUpstream;
use crate::support::waiting::settled;
use crate::support::{TestServer, site_with_large_file};
use crate::trial::{Attack, Skipped, Trial};

pub(crate) const ATTACKS: [Attack; 12] = [
    Attack { name: "slow/idle", run: |trial| measure(trial, &IDLE) },
    Attack { name: "slow/heads", run: |trial| measure(trial, &HEADS) },
    Attack { name: "slow/bodies", run: |trial| measure(trial, &BODIES) },
    Attack { name: "slow/readers", run: |trial| measure(trial, &READERS) },
    Attack { name: "slow/pipelines", run: |trial| measure(trial, &PIPELINES) },
    Attack { name: "slow/upstream", run: |trial| measure(trial, &UPSTREAM) },
    Attack { name: "slow/hellos", run: |trial| measure(trial, &HELLOS) },
    Attack { name: "slow/tls-readers", run: |trial| measure(trial, &TLS_READERS) },
    Attack { name: "slow/h2-idle", run: |trial| measure(trial, &H2_IDLE) },
    Attack { name: "slow/h2-readers", run: |trial| measure(trial, &H2_READERS) },
    Attack { name: "slow/h2-amplification", run: |trial| measure(trial, &H2_AMPLIFICATION) },
    Attack { name: "slow/h2-bodies", run: |trial| measure(trial, &H2_BODIES) },
];

/// Clients that connect at a time.
const THREADS: u64 = 8;

/// A kind of slow client.
struct SlowClientKind {
    /// Sentence of SECURITY.md; `measure` checks that it is there.
    says: &'static str,
    /// Memory of a connection that this allows, in KiB.
    kib_max: u64,
    connect: fn(&SlowClientSite, &mut Rng) -> Client,
}

impl SlowClientKind {
    const fn new(says: &'static str, kib_max: u64, connect: fn(&SlowClientSite, &mut Rng) -> Client) -> Self {
        Self { says, kib_max, connect }
    }
}

/// The sentence that holds for all connections of HTTP/1.
const HTTP1_SAYS: &str = "at most 80 KiB of responses and `head-bytes-max` + 16 KiB of requests.";

const IDLE: SlowClientKind =
    SlowClientKind::new("A slow client costs its socket and a few hundred bytes.", 2, |site, _| site.http1(b""));

const HEADS: SlowClientKind = SlowClientKind {
    says: "It also costs the part of a head that it has sent",
    kib_max: 16 + 4,
    connect: |site, random| {
        let length = random.usize(10..16_000);
        site.http1(format!("GET / HTTP/1.1\r\nHost: h\r\nX: {}", "x".repeat(length)).as_bytes())
    },
};

const BODIES: SlowClientKind = SlowClientKind {
    says: HTTP1_SAYS,
    kib_max: 16 + 16,
    connect: |site, random| {
        let length = random.usize(1..10_000);
        let head = "POST /fixed HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n";
        site.http1(format!("{head}{}", "x".repeat(length)).as_bytes())
    },
};

const READERS: SlowClientKind = SlowClientKind::new(
    "Content in memory is shared with the cache, and content of files is not read ahead for it",
    4,
    |site, _| site.http1(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n"),
);

const PIPELINES: SlowClientKind = SlowClientKind {
    says: HTTP1_SAYS,
    kib_max: 80 + 32,
    connect: |site, random| {
        let filler = "x".repeat(random.usize(1..1_000));
        let request = format!("GET /fixed HTTP/1.1\r\nHost: h\r\nX: {filler}\r\n\r\n");
        let mut socket = site.server.connect();
        let _ = socket.set_write_timeout(Some(Duration::from_millis(300)));
        // Until the server takes nothing for a while; a busy machine may be slow for longer.
        let (began, requests) = (std::time::Instant::now(), request.repeat(100));
        while socket.write_all(requests.as_bytes()).is_ok() && began.elapsed() < Duration::from_secs(1) {}
        Box::new(socket)
    },
};

const UPSTREAM: SlowClientKind = SlowClientKind {
    says: "A request that waits for an upstream costs its head and what the client sent after it: `head-bytes-max` + 16 KiB at most.",
    // The head twice: as the client sent it and as it is sent on. The connection to the upstream comes on top.
    kib_max: 2 * (16 + 16),
    connect: |site, random| {
        let filler = "x".repeat(random.usize(1..10_000));
        let more = "x".repeat(random.usize(0..10_000));
        site.http1(
            format!("GET /wait HTTP/1.1\r\nHost: h\r\nX: {filler}\r\n\r\nGET / HTTP/1.1\r\nX: {more}").as_bytes(),
        )
    },
};

const HELLOS: SlowClientKind = SlowClientKind {
    says: "a connection costs what it has sent of its first message, in memory up to three times.",
    kib_max: 3 * 16 + 4,
    connect: |site, random| {
        // A ClientHello of 16 KiB, of which a part comes.
        let length = random.usize(1_000..16_000);
        let mut bytes = vec![22, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xfc];
        bytes.resize(length, 0);
        site.tls_raw(&bytes)
    },
};

const TLS_READERS: SlowClientKind = SlowClientKind {
    says: "| responses | 64 KiB |",
    // Keys and buffers of rustls, and at most 64 KiB of output that waits.
    kib_max: 64 + 32,
    connect: |site, _| {
        let mut stream = site.tls();
        let _ = stream.write_all(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let _ = stream.flush();
        Box::new(stream)
    },
};

/// The sentence that holds for all connections of HTTP/2.
const H2_SAYS: &str = "| responses | 64 KiB | | input | `head-bytes-max` + 16 KiB | | each open stream | some 2 KiB |";

const H2_IDLE: SlowClientKind = SlowClientKind::new(H2_SAYS, 6, |site, _| site.http2(&[0, 4, 0, 0, 0xff, 0xff], &[]));

const H2_READERS: SlowClientKind = SlowClientKind {
    says: H2_SAYS,
    kib_max: 64 + 32 + 2 * 100,
    connect: |site, random| {
        // No window at all, or all of them and no reader.
        let settings: [u8; 6] = if random.bool() { [0, 4, 0, 0, 0, 0] } else { [0, 4, 0x7f, 0xff, 0xff, 0xff] };
        let streams: Vec<u8> = (0..100).flat_map(|number| large(1 + 2 * number, b"")).collect();
        let open = frame(crate::frames::WINDOW_UPDATE, 0, 0, &[0x3f, 0xff, 0, 0]);
        site.http2(&settings, &[open, streams].concat())
    },
};

const H2_AMPLIFICATION: SlowClientKind = SlowClientKind {
    says: "So 100 streams with four one-byte references each to a field of 3.9 KB (HTTP/2 memory amplification) cost less than 512 KiB a connection",
    kib_max: 512,
    connect: |site, random| site.http2(&[0, 4, 0, 0, 0, 0], &amplification(100, random)),
};

const H2_BODIES: SlowClientKind = SlowClientKind {
    says: "| request content that no handler has read | `http2-window-bytes-max` |",
    // 128 KiB for a connection that is slow.
    kib_max: 128 + 32 + 2 * 20,
    connect: |site, random| {
        let mut bytes = Vec::new();
        for number in 0..20 {
            bytes.extend(frame(HEADERS, END_HEADERS, 1 + 2 * number, crate::frames::POST));
            bytes.extend(frame(crate::frames::DATA, 0, 1 + 2 * number, &vec![b'x'; random.usize(1..3_000)]));
        }
        site.http2(&[0, 4, 0, 0, 0xff, 0xff], &bytes)
    },
};

/// GET /large, with more fields at the end of its block.
fn large(stream: u32, fields: &[u8]) -> Vec<u8> {
    frame(HEADERS, END_STREAM | END_HEADERS, stream, &[b"\x82\x86\x04\x06/large\x01\x01a", fields].concat())
}

/// HTTP/2 memory amplification: a field in the dynamic table, and so many streams with references of one byte to it.
pub(crate) fn amplification(streams: u32, random: &mut Rng) -> Vec<u8> {
    let (value_bytes, references) = (random.usize(3_000..=3_900), random.usize(3..=4));
    let name = crate::raw::pick(random, &["x-a", "user-agent", "referer", "cookie", "accept"]);
    let rest = value_bytes - 127;
    let mut first = vec![0x40, name.len() as u8];
    first.extend(name.as_bytes());
    first.extend([127, (rest % 128) as u8 | 0x80, (rest / 128) as u8]);
    first.resize(first.len() + value_bytes, b'v');
    let mut bytes = large(1, &first);
    for number in 1..streams {
        bytes.extend(large(1 + 2 * number, &vec![0xbe; references]));
    }
    bytes
}

/// A connection that stays open.
type Client = Box<dyn Send>;

/// The server, and what its clients need.
struct SlowClientSite {
    server: TestServer,
    tls: SocketAddr,
    client: Arc<rustls::ClientConfig>,
    _files: tempfile::TempDir,
}

impl SlowClientSite {
    /// Starts it, and the upstream that does not answer.
    fn start() -> (Self, ScriptedUpstream) {
        let (authority, files) = (TestCa::new(), site_with_large_file());
        authority.sign(&["localhost"]).write(files.path(), "a");
        let upstream = ScriptedUpstream::start(vec![vec![Await("\r\n\r\n"), Pause(100_000)]]);
        let (at, tls_port) = (files.path().display(), free_port());
        let handlers = format!(
            "root \"{at}\"\n respond \"/fixed\" 200 \"fixed\"\n forward \"http://{}\" path=\"/wait\"\n access-log \"{at}/log\"",
            upstream.address
        );
        let server = TestServer::run(&format!(
            "server {{ workers 2 }}\nsite {{\n listen \"127.0.0.1:0\"\n {handlers}\n}}\n\
             site {{\n listen \"127.0.0.1:{tls_port}\" tls=on\n certificate \"{at}/a.pem\" key=\"{at}/a.key\"\n {handlers}\n}}\n"
        ));
        let client = Arc::new(authority.client(None));
        let tls = SocketAddr::from(([127, 0, 0, 1], tls_port));
        (Self { server, tls, client, _files: files }, upstream)
    }

    fn http1(&self, bytes: &[u8]) -> Client {
        Box::new(send(self.server.connect(), bytes))
    }

    fn http2(&self, settings: &[u8], bytes: &[u8]) -> Client {
        let begin = [&PREFACE[..], &frame(SETTINGS, 0, 0, settings), &frame(SETTINGS, 1, 0, b"")].concat();
        Box::new(send(self.server.connect(), &[&begin, bytes].concat()))
    }

    fn tls_raw(&self, bytes: &[u8]) -> Client {
        Box::new(send(TcpStream::connect(self.tls).expect("the server accepts"), bytes))
    }

    fn tls(&self) -> TlsStream {
        let socket = TcpStream::connect(self.tls).expect("the server accepts");
        handshake(socket, &self.client, "localhost").expect("the handshake completes")
    }
}

/// A server that has had enough may close while this is sent.
fn send(mut socket: TcpStream, bytes: &[u8]) -> TcpStream {
    let _ = socket.write_all(bytes);
    socket
}

/// Connects some clients and measures what each of them costs.
fn measure(trial: &Trial, kind: &SlowClientKind) -> Result<String, Skipped> {
    // Line breaks may move.
    let text = include_str!("../../SECURITY.md").split_whitespace().collect::<Vec<_>>().join(" ");
    trial.expect(text.contains(kind.says), || format!("SECURITY.md does not say {:?}", kind.says));
    let count = if trial.time() < Duration::from_secs(5) { 24 } else { 96 };
    let (site, _upstream) = SlowClientSite::start();
    let mut random = trial.random(0);
    let fixed = "GET /fixed HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    // The first ones make each worker allocate what all connections share.
    let mut held: Vec<Client> = (0..4).map(|_| (kind.connect)(&site, &mut random)).collect();
    drop(ask(site.server.address, fixed));
    let before_kib = settled("the first connections are handled", || site.server.memory_kib());
    // Some take a while, as they write until the server takes no more.
    held.extend(std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=THREADS)
            .map(|thread| {
                let (site, mut random) = (&site, trial.random(thread));
                scope.spawn(move || (0..count / THREADS).map(|_| (kind.connect)(site, &mut random)).collect::<Vec<_>>())
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("it does not panic")).collect::<Vec<_>>()
    }));
    trial.count(held.len() as u64);
    let after_kib = settled("all connections are handled", || site.server.memory_kib());
    let each_kib = after_kib.saturating_sub(before_kib) as f64 / count as f64;
    trial.expect(each_kib <= kind.kib_max as f64, || {
        format!("{each_kib:.1} KiB a connection, where SECURITY.md allows {} KiB: {:?}", kind.kib_max, kind.says)
    });
    trial.expect_healthy(&site.server, "/fixed");
    drop(held);
    Ok(format!("{each_kib:.1} KiB a connection, of {} KiB", kind.kib_max))
}
