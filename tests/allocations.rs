//! A warm GET on a kept connection allocates nothing, from the bytes read to the bytes written and logged. This holds
//! for files and cached responses, in HTTP/1.1 and HTTP/2, with and without Alt-Svc. With rules, a request has one
//! allocation: the record of what they have found.

use std::future::poll_fn;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use bots::challenge::{ChallengeSecret, ChallengedClient, PassedBy};
use tailcoat::config::{self, AccessLog, AccessLogFormat, AccessLogTarget};
use tailcoat::connection::{Admission, AlternativeService, Connections, Context, Generation, Socket, WorkerClock};
use tailcoat::disk_cache::DiskStore;
use tailcoat::handler::{
    Encoders, ForwardWorker, HandlerParts, SharedSite, UpstreamTable, WorkerParts, WorkerUpstreams,
};
use tailcoat::log::{LogClient, LogHandle, ServerLog};
use tailcoat::metrics::Metrics;
use tailcoat::modules::Modules;
use tailcoat::object_cache::{ObjectStore, WorkerCache};
use tailcoat::observer::Observer;
use tailcoat::overload::Overload;
use tailcoat::routing::rules::{AllRules, Rules};
use tailcoat::routing::{Router, SiteSetup, WorkerSite};
use tailcoat::spool::SpoolStore;
use tailcoat::upstream::{SharedUpstream, Upstream};
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use wire::h2::PREFACE;
use wire::h2::hpack::write_literal;

const REQUESTS: usize = 100;

/// Requests that fill the cache and grow the buffers first. HTTP/2 also remembers some closed streams.
const WARMING_REQUESTS: usize = 40;

/// Request fields on which no response depends.
const FIELDS: &str = "Host: example.com\r\nUser-Agent: test\r\nAccept: */*\r\nAccept-Encoding: identity;q=1, *;q=0\r\n";

#[test]
fn a_warm_get_allocates_nothing() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("page.html"), "x".repeat(1024)).unwrap();
    // The cache does not trust a file that was written a moment ago, because it may change again. No test can set the
    // time of an inode's last change.
    std::thread::sleep(Duration::from_millis(200));
    let requests = [
        ("plain", "GET", "", "200"),
        ("HEAD", "HEAD", "", "200"),
        ("not modified", "GET", "If-None-Match: *\r\n", "304"),
        ("range", "GET", "Range: bytes=10-19\r\n", "206"),
        ("codings", "GET", "Accept-Encoding: x, gzip;q=0\r\n", "200"),
    ];
    // Excludes checks of the file, which are not measured.
    let config = format!(
        "cache {{\n revalidate-after \"1h\"\n}}\nsite {{\n listen \"[::1]:1\"\n root \"{}\"\n}}\n",
        directory.path().display()
    );
    check(&config, &requests);
}

#[test]
fn a_warm_get_of_a_path_with_an_extension_allocates_nothing() {
    let directory = tempfile::tempdir().unwrap();
    // Requests are for `/page.html`.
    std::fs::write(directory.path().join("page.html.txt"), "x".repeat(1024)).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let requests = [("plain", "GET", "", "200"), ("not modified", "GET", "If-None-Match: *\r\n", "304")];
    let config = format!(
        "cache {{\n revalidate-after \"1h\"\n}}\nsite {{\n listen \"[::1]:1\"\n root \"{}\"\n extensions \"htm\" \"txt\"\n}}\n",
        directory.path().display()
    );
    check(&config, &requests);
}

#[test]
fn a_warm_get_of_a_fallback_allocates_nothing() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("app.html"), "x".repeat(1024)).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let config = format!(
        "cache {{\n revalidate-after \"1h\"\n}}\nsite {{\n listen \"[::1]:1\"\n root \"{}\"\n fallback \"/app.html\"\n}}\n",
        directory.path().display()
    );
    check(&config, &[("plain", "GET", "", "200")]);
}

/// Upstream that answers one request for each check, and no second one.
fn origin(head: &'static str, content_bytes: usize) -> (SocketAddr, JoinHandle<()>) {
    let origin = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = origin.local_addr().unwrap();
    let answering = std::thread::spawn(move || {
        for _ in 0..4 {
            let (mut stream, _) = origin.accept().unwrap();
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).unwrap();
            let content = "x".repeat(content_bytes);
            stream.write_all(format!("{head}\r\nContent-Length: {content_bytes}\r\n\r\n{content}").as_bytes()).unwrap();
        }
    });
    (address, answering)
}

#[test]
fn a_warm_hit_of_the_response_cache_allocates_nothing() {
    let head = "HTTP/1.1 200 OK\r\nCache-Control: max-age=3600\r\nETag: \"e\"\r\nVary: Accept-Encoding, Accept";
    let (address, answering) = origin(head, 1024);
    let requests = [
        ("plain", "GET", "", "200"),
        ("HEAD", "HEAD", "", "200"),
        ("not modified", "GET", "If-None-Match: \"e\"\r\n", "304"),
        ("range", "GET", "Range: bytes=10-19\r\n", "206"),
        ("a cookie that no rule reads", "GET", "Cookie: a=b; c=d\r\n", "200"),
    ];
    let config = format!(
        "site {{\n listen \"[::1]:1\"\n forward \"http://{address}\" {{\n cache {{\n cache-status\n \
         bypass-cookies \"login*\"\n }}\n }}\n}}\n"
    );
    check(&config, &requests);
    answering.join().unwrap();
}

#[test]
fn a_warm_hit_in_a_coding_allocates_nothing() {
    let head = "HTTP/1.1 200 OK\r\nCache-Control: max-age=3600\r\nContent-Type: text/html";
    let (address, answering) = origin(head, 2048);
    let requests = [
        ("none", "GET", "", "200"),
        ("zstd", "GET", "Accept-Encoding: zstd, gzip\r\n", "200"),
        ("brotli", "GET", "Accept-Encoding: br\r\n", "200"),
        ("gzip", "GET", "Accept-Encoding: gzip\r\n", "200"),
        ("HEAD", "HEAD", "Accept-Encoding: gzip\r\n", "200"),
    ];
    check(&format!("site {{\n listen \"[::1]:1\"\n forward \"http://{address}\" {{\n cache\n }}\n}}\n"), &requests);
    answering.join().unwrap();
}

/// Visitors and rejected requests of a site with `bots` have the same few allocations.
#[test]
fn requests_that_bots_are_told_from_allocate_once() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("page.html"), "x".repeat(1024)).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let site = |options: &str| {
        format!(
            "cache {{\n revalidate-after \"1h\"\n}}\nsite {{\n listen \"[::1]:1\"\n root \"{}\"\n{options}\n}}\n",
            directory.path().display()
        )
    };
    let client = ChallengedClient { address: None, user_agent: b"test", host: b"example.com" };
    let until_s = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() + 3_600;
    let pass = secret().key().pass(&client, until_s, PassedBy::Work);
    let with_cookie = format!("Cookie: a=b; tailcoat-pass={pass}\r\n");
    let text = [
        ("a visitor who looks like a browser", "GET", "", "200"),
        ("a visitor who has passed", "GET", with_cookie.as_str(), "200"),
        ("a program", "GET", "Sec-Fetch-Mode: cors\r\n", "200"),
    ];
    check_allocations(&site("bots \"forum\""), &text, 1);
    let rejected = [("rejected", "GET", "", "403"), ("as JSON", "GET", "Accept: application/json\r\n", "403")];
    check_allocations(&site("bots \"forum\" {\n score 100 path=\"/page.html\"\n}"), &rejected, 1);
}

/// Secret with which challenges are signed.
fn secret() -> ChallengeSecret {
    ChallengeSecret::derived(b"test")
}

/// A client that accepts no coding costs what it costs without compression.
#[test]
fn a_response_that_is_not_compressed_allocates_no_more() {
    let counts = ["on", "off"].map(|compress| {
        let origin = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = origin.local_addr().unwrap();
        let answering = std::thread::spawn(move || {
            let (mut stream, _) = origin.accept().unwrap();
            let mut request = [0; 4096];
            while matches!(stream.read(&mut request), Ok(1..)) {
                let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nETag: \"x\"\r\nContent-Length: 1024";
                stream.write_all(format!("{head}\r\n\r\n{}", "x".repeat(1024)).as_bytes()).unwrap();
            }
        });
        let logs = tempfile::tempdir().unwrap();
        let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).unwrap();
        let config = format!("site {{\n listen \"[::1]:1\"\n compress {compress}\n forward \"http://{address}\"\n}}\n");
        let (mut client, log) = runtime.block_on(async { connect(&config, false, logs.path()) });
        let message = message(ClientVersion::H1, &mut 1, "GET", FIELDS);
        let mut exchange = || {
            client.write_all(&message).unwrap();
            let (answer, length) = receive(&runtime, &mut client);
            let has_vary = String::from_utf8_lossy(&answer[..length]).contains("\r\nVary: Accept-Encoding\r\n");
            assert_eq!(has_vary, compress == "on");
        };
        (0..WARMING_REQUESTS).for_each(|_| exchange());
        let counts = allocation_counter::measure(|| (0..REQUESTS).for_each(|_| exchange()));
        drop(client);
        drop(runtime);
        answering.join().unwrap();
        assert!(log.shutdown(Duration::from_secs(60)));
        // The tests' own text counts, too.
        counts.count_total / REQUESTS as u64
    });
    assert_eq!(counts[0], counts[1]);
}

/// HTTP version of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientVersion {
    H1,
    H2,
}

/// Checks that none of these requests (name, method, further fields, status) allocates, on a site with this
/// configuration.
fn check(config: &str, requests: &[(&str, &str, &str, &str)]) {
    check_allocations(config, requests, 0);
}

/// As [`check`], with a number of allocations of each request.
fn check_allocations(config: &str, requests: &[(&str, &str, &str, &str)], allocations: u64) {
    for version in [ClientVersion::H1, ClientVersion::H2] {
        for has_alternative in [false, true] {
            check_in(version, has_alternative, config, requests, allocations);
        }
    }
}

fn check_in(
    version: ClientVersion,
    has_alternative: bool,
    config: &str,
    requests: &[(&str, &str, &str, &str)],
    allocations: u64,
) {
    let logs = tempfile::tempdir().unwrap();
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).unwrap();
    let (mut client, log) = runtime.block_on(async { connect(config, has_alternative, logs.path()) });
    if version == ClientVersion::H2 {
        client.write_all(&[&PREFACE[..], SETTINGS, SETTINGS_ACKNOWLEDGED].concat()).unwrap();
        receive(&runtime, &mut client);
    }
    let (mut stream, mut answers, alternative) = (1, 0, AlternativeService::new(443));
    for (name, method, lines, status) in requests {
        let lines = format!("{FIELDS}{lines}");
        let messages: Vec<_> =
            (0..WARMING_REQUESTS + REQUESTS).map(|_| message(version, &mut stream, method, &lines)).collect();
        let mut exchange = |message: &[u8]| {
            client.write_all(message).unwrap();
            let (answer, length) = receive(&runtime, &mut client);
            let answer = &answer[..length];
            assert_eq!(status_of(version, answer), *status, "{version:?} {name}");
            let line = if version == ClientVersion::H1 { alternative.h1() } else { alternative.h2() };
            let is_told = answer.windows(line.len()).any(|part| part == line);
            // Only the first responses of a connection tell of it.
            assert_eq!(is_told, has_alternative && answers < 8, "{version:?} {name}");
            answers += 1;
        };
        messages[..WARMING_REQUESTS].iter().for_each(|message| exchange(message));
        let counts =
            allocation_counter::measure(|| messages[WARMING_REQUESTS..].iter().for_each(|message| exchange(message)));
        let expect = allocations * REQUESTS as u64;
        assert_eq!(counts.count_total, expect, "{version:?} {name}: allocations of {REQUESTS} requests");
    }
    drop(runtime);
    assert!(log.shutdown(Duration::from_secs(60)));
    let lines = std::fs::read_to_string(logs.path().join("access.log")).unwrap().lines().count();
    assert_eq!(lines, requests.len() * (WARMING_REQUESTS + REQUESTS));
}

const SETTINGS: &[u8] = b"\0\0\0\x04\0\0\0\0\0";
const SETTINGS_ACKNOWLEDGED: &[u8] = b"\0\0\0\x04\x01\0\0\0\0";

/// Encodes a request. In HTTP/2 it uses the next stream, and opens the connection's window for the response.
fn message(version: ClientVersion, stream: &mut u32, method: &str, lines: &str) -> Vec<u8> {
    if version == ClientVersion::H1 {
        return format!("{method} /page.html HTTP/1.1\r\n{lines}\r\n").into_bytes();
    }
    let mut block = Vec::new();
    for (name, value) in [(":method", method), (":scheme", "http"), (":path", "/page.html")] {
        write_literal(&mut block, name.as_bytes(), value.as_bytes());
    }
    for (name, value) in lines.lines().filter_map(|line| line.split_once(": ")) {
        let name = if name == "Host" { ":authority".to_owned() } else { name.to_ascii_lowercase() };
        write_literal(&mut block, name.as_bytes(), value.as_bytes());
    }
    let mut message = b"\0\0\x04\x08\0\0\0\0\0\0\0\x08\0".to_vec();
    message.extend_from_slice(&[0, 0, block.len() as u8, 1, 5]);
    message.extend_from_slice(&stream.to_be_bytes());
    *stream += 2;
    [message, block].concat()
}

fn status_of(version: ClientVersion, answer: &[u8]) -> &str {
    match (version, answer) {
        (ClientVersion::H1, _) => std::str::from_utf8(&answer[9..12]).unwrap(),
        // Indices of the static table (RFC 7541, appendix A) after a HEADERS frame header.
        (ClientVersion::H2, [_, _, _, 1, _, _, _, _, _, 0x88, ..]) => "200",
        (ClientVersion::H2, [_, _, _, 1, _, _, _, _, _, 0x8a, ..]) => "206",
        (ClientVersion::H2, [_, _, _, 1, _, _, _, _, _, 0x8b, ..]) => "304",
        (ClientVersion::H2, [_, _, _, 1, _, _, _, _, _, _, 3, b'4', b'0', b'3', ..]) => "403",
        (ClientVersion::H2, other) => panic!("{other:?}"),
    }
}

/// Connection to a worker's parts, assembled on this thread.
fn connect(config: &str, has_alternative: bool, log_directory: &Path) -> (UnixStream, LogHandle) {
    let config = config::check_bytes("test", config.into(), Path::new("/")).config.expect("it is without errors");
    let server_log = ServerLog::stderr(config.server.log_level);
    let store = ObjectStore::new(config.cache.clone()).unwrap();
    // Counting in metrics is part of the measured path.
    let metrics = Metrics::new(1);
    let (site_slot, worker_metrics) = (metrics.site("site"), metrics.worker(0));
    worker_metrics.prepare([site_slot], []);
    let cache = Rc::new(WorkerCache::new(Arc::clone(&store)).counting(Arc::clone(&worker_metrics)));
    let shared: Vec<_> = config
        .upstreams
        .iter()
        .map(|upstream| SharedUpstream::new(upstream, server_log.clone()))
        .collect::<Result<_, _>>()
        .unwrap();
    let new = |_, shared: &Arc<SharedUpstream>| Upstream::new(Arc::clone(shared), 0);
    let upstreams = WorkerUpstreams::reuse(&shared, &WorkerUpstreams::default(), new);
    let forwards = ForwardWorker { overload: Overload::off(), buffer: Rc::default() };
    let worker = WorkerParts { cache: &cache, upstreams: &upstreams, forwards: &forwards };
    let parts = HandlerParts {
        store: &store,
        upstreams: &UpstreamTable::new(&shared),
        modules: &Modules::default(),
        log: &server_log,
        observer: &Observer::new(None),
        spawner: None,
        spools: &SpoolStore::new(server_log.clone()),
        disk: &DiskStore::new(server_log.clone()),
        shared_cache: &Arc::default(),
    };
    let site = SharedSite::new(&config.sites[0], &config, parts, None, &[]).unwrap();
    let rules = AllRules::new(&config, &server_log, &secret(), None).unwrap();
    let target = AccessLogTarget::File(log_directory.join("access.log"));
    let logs = [AccessLog { target, format: AccessLogFormat::Combined }];
    let (log, ids) = tailcoat::log::start(&logs, tailcoat::log::LogOptions::default(), server_log.clone()).unwrap();
    let setup = SiteSetup {
        gate: None,
        config: &config.sites[0],
        ftp: None,
        handlers: site.handlers(&worker),
        error_pages: site.error_pages(&cache),
        default_pages: Rc::default(),
        pace: None,
        encoders: Rc::new(Encoders::new(&store)),
        rules: rules.sites[0].as_ref().map(|rules| Rules::new(rules, &Rc::default())),
        log: Some(ids[0]),
        server_log,
        counted: site_slot,
        tls: None,
    };
    let sites = [(Arc::clone(&config.sites[0]), WorkerSite::new(setup))];
    let mut generation = Generation::new(Router::new(&sites, &[vec![0]]), config.limits.clone());
    generation.listeners[0].alternative = Some(AlternativeService::new(443)).filter(|_| has_alternative);
    let clock = WorkerClock::new(Arc::new(AtomicBool::new(true)));
    let context = Rc::new(Context::new(generation, log.recorder(), clock, Overload::off()).counting(worker_metrics));
    let (client, server) = UnixStream::pair().unwrap();
    client.set_nonblocking(true).unwrap();
    server.set_nonblocking(true).unwrap();
    let connections = Rc::new(Connections::new(context, Arc::default()).unwrap());
    connections.start(Socket::new(server.into()), LogClient::Unix, 0, Admission::default());
    tokio::task::spawn_local(connections.run());
    (client, log)
}

/// Runs the connection until it has sent something, and reads that.
fn receive(runtime: &LocalRuntime, client: &mut UnixStream) -> ([u8; 4096], usize) {
    let mut answer = [0; 4096];
    let length = runtime.block_on(poll_fn(|task| match client.read(&mut answer) {
        Ok(length) => Poll::Ready(length),
        Err(_) => {
            // Yields to the runtime, which runs the connection and polls its sockets.
            task.waker().wake_by_ref();
            Poll::Pending
        }
    }));
    (answer, length)
}
