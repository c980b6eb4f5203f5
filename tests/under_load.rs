//! Reloads and upgrades under load from clients of all kinds: no request fails, no connection is reset, no log line is
//! lost. `cargo xtask operate` sets the number of rounds.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::guests::{compiled_directory, content, guests};
use crate::support::h2::H2Client;
use crate::support::operated::Operated;
use crate::support::port::free_port;
use crate::support::tls::{TestCa, handshake};
use crate::support::waiting::{await_read, eventually};
use crate::support::{PATIENCE, read_all};

/// Loads of `tailor`, if it is built: closed and open loop, keep-alive or not, TLS with session resumption, HTTP/2. The
/// URL comes last.
const TAILOR: [&[&str]; 4] = [
    &["-c", "4", "http://PLAIN/small"],
    &["-c", "16", "-R", "500", "--arrivals", "poisson", "--keep-alive", "0.5", "http://PLAIN/variant"],
    &["-c", "4", "-k", "--resume", "--keep-alive", "0.5", "https://SECURE/small"],
    &["-c", "2", "-k", "--http2", "--streams", "8", "https://SECURE/small"],
];

/// Requests per run of `tailor`.
const TAILOR_REQUESTS: u64 = 500;

/// Size of the downloaded file: more than buffers hold.
const LARGE_BYTES: usize = 4 << 20;

/// Size of an upload.
const UPLOAD_BYTES: usize = 512 << 10;

/// Bytes that a module echoes.
const ECHO_BYTES: usize = 64 << 10;

/// Messages per WebSocket.
const MESSAGES: u32 = 40;

/// Default number of reloads and upgrades.
const RELOADS: u32 = 12;
const UPGRADES: u32 = 3;

/// State that the clients share.
struct SharedLoad {
    plain: SocketAddr,
    secure: SocketAddr,
    stop: AtomicBool,
    /// Number of complete responses.
    answers: AtomicU64,
}

/// Stops the clients even if the test has failed; otherwise it would wait for them.
struct Stopping<'a>(&'a AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn nothing_fails() {
    let count = |name: &str, default| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (reloads, upgrades): (u32, u32) = (count("TAILCOAT_RELOADS", RELOADS), count("TAILCOAT_UPGRADES", UPGRADES));
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("www")).unwrap();
    std::fs::write(directory.path().join("www/large"), vec![b'x'; LARGE_BYTES]).unwrap();
    std::fs::write(directory.path().join("www/small"), "small").unwrap();
    let authority = TestCa::new();
    authority.sign(&["localhost"]).write(directory.path(), "localhost");
    let (origin, secure) = (origin(), SocketAddr::from(([127, 0, 0, 1], free_port())));
    let mut operated = Operated::start_in(directory, &config(0, origin, secure));
    let client = Arc::new(authority.client(None));
    let load =
        SharedLoad { plain: operated.server.address, secure, stop: AtomicBool::new(false), answers: AtomicU64::new(0) };
    let longest = std::thread::scope(|scope| {
        let load = &load;
        let mut clients = Vec::new();
        let mut spawn = |name: &'static str, work: Box<dyn Fn(&SharedLoad) + Send>| {
            clients.push((
                name,
                scope.spawn(move || {
                    while !load.stop.load(Ordering::Relaxed) {
                        work(load)
                    }
                }),
            ));
        };
        for _ in 0..2 {
            spawn("kept connections", Box::new(|load| keep_asking(load, &mut load.connect())));
            spawn("a connection a request", Box::new(|load| load.ask_once(&mut load.connect())));
        }
        spawn("downloads", Box::new(download));
        spawn("uploads", Box::new(upload));
        spawn("WebSockets", Box::new(chat));
        spawn("HTTP/2", Box::new(h2));
        if guests().is_some() {
            spawn("a module", Box::new(module));
        }
        let (kept, new) = (Arc::clone(&client), client);
        spawn("kept connections of TLS", Box::new(move |load| keep_asking(load, &mut load.secure(&kept))));
        spawn("handshakes", Box::new(move |load| load.ask_once(&mut load.secure(&new))));
        if let Some(program) = std::env::var_os("TAILCOAT_TAILOR") {
            for arguments in TAILOR {
                let program = program.clone();
                spawn("tailor", Box::new(move |load| tailor(load, &program, arguments)));
            }
        }
        let stopping = Stopping(&load.stop);
        let longest =
            operate(&mut operated, (reloads, upgrades), |variant| config(variant, origin, secure), &load.answers);
        drop(stopping);
        for (name, client) in clients {
            assert!(client.join().is_ok(), "{name} have failed");
        }
        longest
    });
    operated.signal("TERM");
    eventually("all processes end", || operated.running().is_empty());
    let answers = load.answers.load(Ordering::Relaxed);
    let mut logged = BTreeMap::<String, u64>::new();
    for name in ["even.log", "odd.log"] {
        operated.file(name).lines().for_each(|line| *logged.entry(line.to_owned()).or_default() += 1);
    }
    let lines = logged.values().sum::<u64>();
    println!("{reloads} reloads, {upgrades} upgrades, {answers} answers, {lines} lines; longest reload {longest:?}");
    let errors = operated.file("errors.log");
    assert!(!errors.contains("panicked") && !errors.contains("dropped"), "{errors}");
    assert!(answers > 0);
    assert_eq!(lines, answers, "each answer has its line: {logged:?}");
}

/// Prints the time of a reload with many sites, and the longest request meanwhile. Not checked, because both depend on
/// the machine.
#[test]
fn many_sites() {
    let sites: u32 = std::env::var("TAILCOAT_SITES").ok().and_then(|text| text.parse().ok()).unwrap_or(100);
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("small"), "small").unwrap();
    let config = |variant: u32| {
        let site = |number: u32| {
            format!(
                "site \"site{number}.example\" {{\n listen \"127.0.0.1:0\"\n root \"@DIR@\"\n \
                 rewrite \"/old/*\" \"/new/{variant}\"\n respond \"/variant\" 200 \"{variant}\"\n}}\n"
            )
        };
        (0..sites).map(site).collect::<String>()
    };
    let operated = Operated::start_in(directory, &config(0));
    let reload = |variant: u32| {
        operated.write_config(&config(variant));
        let began = Instant::now();
        assert!(operated.order(&["reload"]).status.success());
        began.elapsed()
    };
    let undisturbed = longest_request(operated.server.address, || std::thread::sleep(Duration::from_secs(3)));
    let mut times = Vec::new();
    let disturbed = longest_request(operated.server.address, || times.extend((1..=20).map(reload)));
    times.sort();
    let (median, slowest) = (times[times.len() / 2], times[times.len() - 1]);
    println!(
        "{sites} sites: a reload takes {median:?} (median of {}, at most {slowest:?}), until its command has ended; \
         the longest request took {disturbed:?} meanwhile, and {undisturbed:?} in 3 s without",
        times.len()
    );
}

/// Longest request during `work`, of those that two connections sent one after another.
fn longest_request(address: SocketAddr, work: impl FnOnce()) -> Duration {
    let stop = AtomicBool::new(false);
    let ask = || {
        let mut stream = TcpStream::connect(address).unwrap();
        let (mut longest, mut buffer) = (Duration::ZERO, [0; 4096]);
        while !stop.load(Ordering::Relaxed) {
            let began = Instant::now();
            stream.write_all(b"GET /small HTTP/1.1\r\nHost: site7.example\r\n\r\n").unwrap();
            let count = stream.read(&mut buffer).unwrap();
            assert!(buffer[..count].ends_with(b"small"));
            longest = longest.max(began.elapsed());
            // Far below what the server can serve: the requests themselves must not wait for each other.
            std::thread::sleep(Duration::from_micros(500));
        }
        longest
    };
    std::thread::scope(|scope| {
        let clients = [scope.spawn(ask), scope.spawn(ask)];
        let stopping = Stopping(&stop);
        work();
        drop(stopping);
        clients.map(|client| client.join().unwrap()).into_iter().max().unwrap_or_default()
    })
}

/// Configuration; variants differ in responses, logs, sites and limits.
fn config(variant: u32, origin: SocketAddr, secure: SocketAddr) -> String {
    let log = if variant.is_multiple_of(2) { "even" } else { "odd" };
    let more: String = (0..variant % 5)
        .map(|site| format!("site \"other{site}.example\" {{\n listen \"127.0.0.1:0\"\n respond \"/\" 200\n}}\n"))
        .collect();
    let module = guests().map_or_else(String::new, |guests| format!("module \"/echo\" \"{}\"", guests.display()));
    let compiled = compiled_directory();
    let tls = format!("\"{secure}\" tls=on\n certificate \"@DIR@/localhost.pem\" key=\"@DIR@/localhost.key\"");
    format!(
        "access-log \"@DIR@/{log}.log\" format=\"{{path}} {{status}}\"\n\
         limits {{\n header-fields-max {}\n}}\n{more}\
         site \"localhost\" {{\n listen \"127.0.0.1:0\"\n listen {tls}\n default\n root \"@DIR@/www\"\n \
         {module}\n forward \"http://{origin}\" path=\"/origin/*\"\n respond \"/variant\" 200 \"{variant}\"\n}}\n\
         modules {{\n compile-wait \"5m\"\n compiled \"{}\"\n}}\n",
        100 + variant % 7,
        compiled.display(),
    )
}

/// Reloads and upgrades evenly, with invalid configurations among them; returns the longest time of a reload.
fn operate(
    operated: &mut Operated,
    (reloads, upgrades): (u32, u32),
    config: impl Fn(u32) -> String,
    answers: &AtomicU64,
) -> Duration {
    let mut longest = Duration::ZERO;
    let mut upgraded = 0;
    for reload in 1..=reloads {
        if reload % 4 == 0 {
            operated.write_config(&format!("{}site {{\n nonsense\n}}\n", config(reload)));
            assert_eq!(operated.order(&["reload"]).status.code(), Some(3));
        }
        operated.write_config(&config(reload));
        let began = Instant::now();
        let output = operated.order(&["reload"]);
        longest = longest.max(began.elapsed());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        while upgraded * reloads < upgrades * reload {
            upgraded += 1;
            if upgraded % 4 == 2 {
                operated.replace_binary(Some("#!/bin/sh\nsleep 0.1\nexit 1\n"));
                assert!(!operated.order(&["upgrade"]).status.success());
                operated.replace_binary(None);
            }
            operated.upgrade();
        }
        let answered = answers.load(Ordering::Relaxed);
        eventually("clients are answered", || answers.load(Ordering::Relaxed) > answered + 20);
    }
    longest
}

impl SharedLoad {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.plain).expect("connections are taken");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket has a time-out");
        stream
    }

    fn secure(&self, client: &Arc<rustls::ClientConfig>) -> impl Read + Write + use<> {
        let stream = TcpStream::connect(self.secure).expect("connections are taken");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket has a time-out");
        handshake(stream, client, "localhost").expect("handshakes succeed")
    }

    /// Sends a request and reads the response; returns true if the connection may be used again.
    fn ask(&self, stream: &mut (impl Read + Write), request: &str, content: &[u8], expect: &[u8]) -> bool {
        stream.write_all(request.as_bytes()).expect("requests are taken");
        stream.write_all(content).expect("content is taken");
        let (mut bytes, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
        let head_end = loop {
            let count = stream.read(&mut buffer).expect("an answer comes");
            assert!(count > 0, "ended within an answer: {:?}", String::from_utf8_lossy(&bytes));
            bytes.extend_from_slice(&buffer[..count]);
            if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
        };
        let head = String::from_utf8_lossy(&bytes[..head_end]).into_owned();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        let length = head.split("Content-Length: ").nth(1).and_then(|rest| rest.split("\r\n").next()?.parse().ok());
        let length: usize = length.unwrap_or_else(|| panic!("no length: {head}"));
        while bytes.len() < head_end + length {
            let count = stream.read(&mut buffer).expect("content comes");
            assert!(count > 0, "ended within content: {} of {length}", bytes.len() - head_end);
            bytes.extend_from_slice(&buffer[..count]);
        }
        assert_eq!(bytes.len(), head_end + length);
        assert!(expect.is_empty() || &bytes[head_end..] == expect, "another answer");
        self.answers.fetch_add(1, Ordering::Relaxed);
        !head.contains("Connection: close")
    }

    fn ask_once(&self, stream: &mut (impl Read + Write)) {
        self.ask(stream, "GET /small HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", b"", b"small");
        let rest = stream.read(&mut [0; 1]);
        // TLS may end with or without a close_notify before the connection ends.
        assert!(matches!(rest, Ok(0)), "{rest:?}");
    }
}

/// Makes a module echo data as it arrives.
fn module(load: &SharedLoad) {
    let mut stream = load.connect();
    let head = "POST /echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
    write!(stream, "{head}Content-Length: {ECHO_BYTES}\r\n\r\n").expect("requests are taken");
    for piece in vec![b'm'; ECHO_BYTES].chunks(ECHO_BYTES / 4) {
        stream.write_all(piece).expect("content is taken");
        await_read(&stream);
    }
    let answer = read_all(&mut stream);
    let head = answer.split("\r\n\r\n").next().unwrap_or_default();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{answer:?}");
    assert!(!head.contains("Transfer-Encoding") || answer.ends_with("\r\n0\r\n\r\n"), "the content is cut off");
    assert!(content(&answer) == "m".repeat(ECHO_BYTES), "{} bytes in all", answer.len());
    load.answers.fetch_add(1, Ordering::Relaxed);
}

/// Sends requests on one connection as long as the server keeps it open, within a limit.
fn keep_asking(load: &SharedLoad, stream: &mut (impl Read + Write)) {
    for (count, path) in ["/small", "/variant"].iter().cycle().enumerate().take(2_000) {
        let is_last = count == 1_999 || load.stop.load(Ordering::Relaxed);
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        if !load.ask(stream, &request, b"", b"") || is_last {
            return;
        }
    }
}

fn download(load: &SharedLoad) {
    let request = "GET /large HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    load.ask(&mut load.connect(), request, b"", &vec![b'x'; LARGE_BYTES]);
}

fn upload(load: &SharedLoad) {
    let head = format!("POST /origin/upload HTTP/1.1\r\nHost: localhost\r\nContent-Length: {UPLOAD_BYTES}\r\n\r\n");
    load.ask(&mut load.connect(), &head, &vec![b'u'; UPLOAD_BYTES], UPLOAD_BYTES.to_string().as_bytes());
}

fn chat(load: &SharedLoad) {
    let mut stream = load.connect();
    let request = "GET /origin/chat HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    stream.write_all(request.as_bytes()).expect("requests are taken");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a protocol is switched to");
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
    for message in 0..MESSAGES {
        stream.write_all(&message.to_be_bytes()).expect("messages are taken");
        let mut echo = [0; 4];
        stream.read_exact(&mut echo).expect("messages come back");
        assert_eq!(echo, message.to_be_bytes());
        // The conversation outlasts several reloads.
        std::thread::sleep(Duration::from_millis(25));
    }
    load.answers.fetch_add(1, Ordering::Relaxed);
}

/// Sends many requests on a connection, until the server closes it.
fn h2(load: &SharedLoad) {
    let mut client = H2Client::connect_to(load.connect());
    for _ in 0..500 {
        let streams: Vec<_> = (0..4).map(|_| client.ask("GET", "/small", &[], true)).collect();
        for stream in streams {
            let answer = client.finish(stream);
            assert_eq!((answer.status(), answer.content.as_slice()), (200, &b"small"[..]), "{:?}", answer.reset);
            load.answers.fetch_add(1, Ordering::Relaxed);
        }
        if client.go_away.is_some() || load.stop.load(Ordering::Relaxed) {
            return;
        }
    }
}

fn tailor(load: &SharedLoad, program: &OsStr, arguments: &[&str]) {
    let place = |argument: &&str| {
        argument.replace("PLAIN", &load.plain.to_string()).replace("SECURE", &load.secure.to_string())
    };
    let mut command = Command::new(program);
    command.args(["bench", "-q", "--json", "-n", &TAILOR_REQUESTS.to_string()]).args(arguments.iter().map(place));
    let output = command.output().expect("tailor can be started");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("it reports");
    let failed = report["failures"].as_object().expect("failures by class").iter().filter(|(_, count)| **count != 0);
    assert_eq!(failed.collect::<Vec<_>>(), [], "{arguments:?}");
    assert_eq!(report["served"], TAILOR_REQUESTS, "{arguments:?}");
    load.answers.fetch_add(TAILOR_REQUESTS, Ordering::Relaxed);
}

/// Upstream that reports the size of an upload, or echoes.
fn origin() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        listener.incoming().for_each(|stream| _ = std::thread::spawn(move || serve(stream.unwrap())));
    });
    address
}

fn serve(mut stream: TcpStream) {
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        let head_end = loop {
            if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            match stream.read(&mut buffer) {
                Ok(count @ 1..) => bytes.extend_from_slice(&buffer[..count]),
                _ => return,
            }
        };
        let head = String::from_utf8_lossy(&bytes[..head_end]).into_owned();
        bytes.drain(..head_end);
        if head.contains("/origin/chat") {
            let switch = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
            stream.write_all(switch.as_bytes()).unwrap_or_default();
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                stream.write_all(&buffer[..count]).unwrap_or_default();
            }
            return;
        }
        while bytes.len() < UPLOAD_BYTES {
            match stream.read(&mut buffer) {
                Ok(count @ 1..) => bytes.extend_from_slice(&buffer[..count]),
                _ => return,
            }
        }
        bytes.drain(..UPLOAD_BYTES);
        let text = UPLOAD_BYTES.to_string();
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len());
        stream.write_all(answer.as_bytes()).unwrap_or_default();
    }
}
