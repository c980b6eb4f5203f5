//! Attacks that occupy all places of a server (issue 17: 500 slow bodies from one address, `connections-max 400`).
//! Other clients and monitoring are served all the same; the attacker evicts itself.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustls::ClientConfig;
use serde_json::Value;
use socket2::{Domain, Socket, Type};
use tempfile::TempDir;
use wire::h2::PREFACE;

use crate::support::tls::{TestCa, handshake};
use crate::support::waiting::stays;
use crate::support::{PATIENCE, TestServer, read_all, site_with_large_file};

const PLACES: usize = 400;
const ATTACKERS: usize = 500;

/// Source address of the attack.
const ATTACKER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Source address of other clients.
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

/// Server with 400 places, and its directory, which contains its monitoring socket.
fn server(site: &str) -> (TestServer, TempDir) {
    let files = site_with_large_file();
    let root = files.path().display();
    let server = TestServer::run(&format!(
        "server {{ workers 2; status-listen \"unix:{root}/status.sock\" }}\nlimits {{ connections-max {PLACES}; body-bytes-max \"1GiB\" }}\n\
         site {{\n listen \"127.0.0.1:0\"\n root \"{root}\"\n respond \"/hello\" 200 \"hello\"\n {site}\n}}\n"
    ));
    (server, files)
}

fn connect_from(address: Ipv4Addr, server: &TestServer) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    // Makes the reader as slow as possible.
    socket.set_recv_buffer_size(4096).unwrap();
    socket.bind(&SocketAddr::from((address, 0)).into()).unwrap();
    socket.connect(&server.address.into()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.into()
}

/// Sends requests from another address, and one to the monitoring listener.
#[track_caller]
fn check_others(server: &TestServer, files: &TempDir) {
    for _ in 0..20 {
        let mut other = connect_from(OTHER, server);
        other.write_all(b"GET /hello HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").unwrap();
        let answer = read_all(&mut other);
        assert!(answer.ends_with("\r\n\r\nhello"), "{answer:?}");
    }
    assert!(status(files)["workers"].is_array());
}

/// Status from the monitoring listener.
fn status(files: &TempDir) -> Value {
    let mut stream = UnixStream::connect(files.path().join("status.sock")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET /?json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{answer}");
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

/// Counts of evicted connections, by what they awaited.
fn evictions(files: &TempDir) -> Vec<(String, u64)> {
    let status = status(files);
    let evictions = status["evictions"].as_array().expect("they are counted").iter();
    evictions.map(|one| (one["awaited"].as_str().unwrap().to_owned(), one["count"].as_u64().unwrap())).collect()
}

/// Client that uploads steadily, from before the attack on; returns the status of its response.
struct Uploading {
    is_done: Arc<AtomicBool>,
    thread: thread::JoinHandle<String>,
}

impl Uploading {
    const LENGTH: usize = 100 << 20;

    fn start(server: &TestServer) -> Self {
        let mut stream = connect_from(OTHER, server);
        let is_done = Arc::new(AtomicBool::new(false));
        let reported = Arc::clone(&is_done);
        write!(stream, "POST /hello HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n")
            .unwrap();
        let thread = thread::spawn(move || {
            let piece = [b"4000\r\n", &[b'x'; 0x4000][..], b"\r\n"].concat();
            let mut sent = 0;
            while !reported.load(Ordering::Relaxed) && sent < Self::LENGTH {
                stream.write_all(&piece).expect("a fast client stays");
                sent += piece.len();
                // Steady progress, at a rate that outlasts the attack.
                thread::sleep(Duration::from_millis(50));
            }
            stream.write_all(b"0\r\n\r\n").unwrap();
            read_all(&mut stream)
        });
        Self { is_done, thread }
    }

    fn end(self) {
        self.is_done.store(true, Ordering::Relaxed);
        let answer = self.thread.join().expect("a fast client stays");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
}

/// Starts attackers, each by `attack`, and sends other requests meanwhile.
#[track_caller]
fn check(site: &str, source: impl Fn(usize) -> Ipv4Addr, attack: impl Fn(TcpStream) -> Box<dyn Send>) {
    let (server, files) = server(site);
    let uploading = Uploading::start(&server);
    // By then, at the end of a measuring period, the upload has shown progress.
    thread::sleep(Duration::from_secs(4));
    let mut attackers = Vec::new();
    for number in 0..ATTACKERS {
        attackers.push(attack(connect_from(source(number), &server)));
        if number % 100 == 99 {
            check_others(&server, &files);
        }
    }
    stays("others are served", Duration::from_secs(3), || {
        check_others(&server, &files);
        true
    });
    uploading.end();
    let evictions: u64 = evictions(&files).iter().map(|(_, count)| count).sum();
    assert!((1..=ATTACKERS as u64).contains(&evictions), "{evictions}");
    drop(attackers);
}

fn one_address(_number: usize) -> Ipv4Addr {
    ATTACKER
}

/// Addresses in separate networks.
fn many_addresses(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 1 + (number / 250) as u8, (number % 250) as u8, 1)
}

/// Sends these bytes, and no more. The server may have closed the connection already.
fn send(bytes: &'static [u8]) -> impl Fn(TcpStream) -> Box<dyn Send> {
    move |mut stream| {
        let _ = stream.write_all(bytes);
        Box::new(stream)
    }
}

const SLOW_BODY: &[u8] = b"POST /hello HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\nx";
const SLOW_READER: &[u8] = b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n";

#[test]
fn slow_bodies_from_one_address() {
    check("", one_address, send(SLOW_BODY));
}

#[test]
fn slow_bodies_from_many_addresses() {
    check("", many_addresses, send(SLOW_BODY));
}

#[test]
fn slow_readers_from_one_address() {
    check("", one_address, send(SLOW_READER));
}

#[test]
fn slow_heads_from_many_addresses() {
    check("", many_addresses, send(b"GET / HTTP/1.1\r\nHost: "));
}

#[test]
fn waiting_for_an_upstream_from_one_address() {
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = upstream.local_addr().unwrap();
    thread::spawn(move || upstream.incoming().map_while(Result::ok).collect::<Vec<_>>());
    let site = format!("forward \"http://{address}\" path=\"/slow\"");
    check(&site, one_address, send(b"GET /slow HTTP/1.1\r\nHost: h\r\n\r\n"));
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let head = [&(payload.len() as u32).to_be_bytes()[1..], &[kind, flags], &stream.to_be_bytes()[..]].concat();
    [&head[..], payload].concat()
}

/// Requests much over many HTTP/2 streams, and opens no window.
fn h2_slow_reader(mut stream: TcpStream) -> Box<dyn Send> {
    const SETTINGS: u8 = 4;
    const HEADERS: u8 = 1;
    // No window for any stream (SETTINGS_INITIAL_WINDOW_SIZE).
    let mut bytes = [&PREFACE[..], &frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]), &frame(SETTINGS, 1, 0, b"")].concat();
    for number in 0..10 {
        // END_STREAM, END_HEADERS: GET /large of http://a
        bytes.extend(frame(HEADERS, 5, 1 + 2 * number, b"\x82\x86\x04\x06/large\x01\x01a"));
    }
    let _ = stream.write_all(&bytes);
    Box::new(stream)
}

/// HTTP/2 requests with content, each of which sends one byte and no more.
fn h2_slow_bodies() -> Vec<u8> {
    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    let mut bytes = [&PREFACE[..], &frame(SETTINGS, 0, 0, b""), &frame(SETTINGS, 1, 0, b"")].concat();
    for number in 0..10 {
        // END_HEADERS: POST /hello of http://a
        bytes.extend(frame(HEADERS, 4, 1 + 2 * number, b"\x83\x86\x04\x06/hello\x01\x01a"));
        bytes.extend(frame(DATA, 0, 1 + 2 * number, b"x"));
    }
    bytes
}

fn h2_slow_body(mut stream: TcpStream) -> Box<dyn Send> {
    let _ = stream.write_all(&h2_slow_bodies());
    Box::new(stream)
}

#[test]
fn slow_bodies_over_http2_from_one_address() {
    check("", one_address, h2_slow_body);
}

#[test]
fn slow_bodies_over_http2_from_many_addresses() {
    check("", many_addresses, h2_slow_body);
}

#[test]
fn slow_readers_over_http2_from_one_address() {
    check("", one_address, h2_slow_reader);
}

#[test]
fn slow_readers_over_http2_from_many_addresses() {
    check("", many_addresses, h2_slow_reader);
}

#[test]
fn slow_bodies_over_tls() {
    check_over_tls(&[], SLOW_BODY);
}

#[test]
fn slow_bodies_over_http2_and_tls() {
    check_over_tls(&[b"h2"], &h2_slow_bodies());
}

/// Starts attackers over TLS that speak the first of these protocols and send `attack`, or never complete their
/// handshake.
fn check_over_tls(protocols: &[&[u8]], attack: &[u8]) {
    let authority = TestCa::new();
    let certificates = tempfile::tempdir().unwrap();
    let pair = authority.sign(&["localhost"]);
    let at = |name: &str| certificates.path().join(name);
    std::fs::write(at("cert.pem"), &pair.certificate).unwrap();
    std::fs::write(at("key.pem"), &pair.key).unwrap();
    let client: Arc<ClientConfig> = Arc::new(authority.client(None));
    let mut attacker = authority.client(None);
    attacker.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    let attacker = Arc::new(attacker);
    let files = site_with_large_file();
    let place = files.path().display();
    let server = TestServer::run(&format!(
        "server {{ workers 1; status-listen \"unix:{place}/status.sock\" }}\nlimits {{ connections-max 80 }}\n\
         site {{\n listen \"127.0.0.1:0\" tls=on\n certificate \"{}\" key=\"{}\"\n respond \"/*\" 200 \"hello\"\n}}\n",
        at("cert.pem").display(),
        at("key.pem").display()
    ));
    let (mut attackers, mut silent) = (Vec::new(), Vec::new());
    for number in 0..100 {
        // Every other attacker never completes its handshake.
        let socket = connect_from(ATTACKER, &server);
        if number % 2 == 0 {
            silent.push(socket);
        } else if let Ok(mut stream) = handshake(socket, &attacker, "localhost") {
            assert_eq!(stream.conn.alpn_protocol(), protocols.first().copied());
            let _ = stream.write_all(attack).and_then(|()| stream.flush());
            attackers.push(stream);
        }
        if number % 20 == 19 {
            let mut other = handshake(connect_from(OTHER, &server), &client, "localhost").unwrap();
            other.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
            let mut answer = String::new();
            let _ = other.read_to_string(&mut answer);
            assert!(answer.ends_with("hello"), "{answer}");
            assert!(status(&files)["workers"].is_array());
        }
    }
    assert!(!evictions(&files).is_empty());
}

/// Trusted proxies forward for many clients; clients that a proxy names count separately.
#[test]
fn a_client_of_a_proxy_does_not_take_the_proxy_s_places() {
    let files = site_with_large_file();
    let place = files.path().display();
    let server = TestServer::run(&format!(
        "server {{ workers 1; status-listen \"unix:{place}/status.sock\"; trusted-proxies \"127.0.0.2\" }}\n\
         limits {{ connections-max 80 }}\n\
         site {{\n listen \"127.0.0.1:0\" proxy-protocol=on\n respond \"/\" 200 \"hello\"\n}}\n"
    ));
    let send = |client: &str, bytes: &[u8]| {
        let mut stream = connect_from(ATTACKER, &server);
        let _ = stream.write_all(format!("PROXY TCP4 {client} 192.0.2.1 1000 80\r\n").as_bytes());
        let _ = stream.write_all(bytes);
        stream
    };
    let mut attackers = Vec::new();
    for number in 0..120 {
        attackers.push(send("203.0.113.7", b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\nx"));
        if number % 20 == 19 {
            let request = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
            let answer = read_all(&mut send(&format!("198.51.100.{number}"), request));
            assert!(answer.ends_with("hello"), "{answer}");
        }
    }
}
