//! Request and response buffering: slow clients occupy no upstream, and buffered data is neither lost nor left on disk.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::support::fastcgi::{Application, answer};
use crate::support::h2::H2Client;
use crate::support::operated::Operated;
use crate::support::real_server::{RealServer, Recipe};
use crate::support::skips::skip;
use crate::support::upstream::{ScriptStep, ScriptedUpstream};
use crate::support::waiting::{eventually, settled, stays};
use crate::support::{PATIENCE, TestServer, ask, read_all, read_until};

/// Connections that the upstream accepts at once.
const CONNECTIONS_MAX: usize = 4;

/// Number of slow clients.
const SLOW_CLIENTS: usize = 50;

/// Size of a long response: more than all sockets between upstream and client hold.
const LONG_BYTES: usize = 20 << 20;

/// Upstream that handles few requests at a time, and rejects more.
struct SmallUpstream {
    address: SocketAddr,
    /// Number of requests that have started, however they end.
    begun: Arc<AtomicUsize>,
    /// Number of complete responses.
    ended: Arc<AtomicUsize>,
    /// Number of requests that it handles.
    busy: Arc<AtomicUsize>,
    /// Number of requests that must have started before it sends a long response.
    together: Arc<AtomicUsize>,
}

impl SmallUpstream {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (begun, ended) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let (busy, together) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let counted = [&busy, &begun, &ended, &together].map(Arc::clone);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let [busy, begun, ended, together] = counted.clone();
                std::thread::spawn(move || {
                    let mut stream = stream.unwrap();
                    stream.set_read_timeout(Some(PATIENCE)).unwrap();
                    // A broken connection is the client's doing.
                    let _ = serve(&mut stream, &busy, &begun, &ended, &together);
                });
            }
        });
        Self { address, begun, ended, busy, together }
    }

    fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }

    /// Waits until this many responses are complete.
    fn await_ended(&self, count: usize) {
        eventually(&format!("{count} responses are complete"), || self.ended.load(Ordering::SeqCst) >= count);
    }
}

/// Responds with the number of content bytes, or with a long response.
fn serve(
    stream: &mut TcpStream,
    busy: &AtomicUsize,
    begun: &AtomicUsize,
    ended: &AtomicUsize,
    together: &AtomicUsize,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 1 << 20];
    let mut kept = Vec::new();
    loop {
        let head_bytes = loop {
            if let Some(at) = kept.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            let count = stream.read(&mut buffer)?;
            if count == 0 {
                return Ok(());
            }
            if kept.is_empty() {
                begun.fetch_add(1, Ordering::SeqCst);
            }
            kept.extend_from_slice(&buffer[..count]);
        };
        let place = ConcurrencyPlace::take(busy)?;
        let head = String::from_utf8_lossy(&kept[..head_bytes]).into_owned();
        let length: usize = field(&head, "content-length").map_or(0, |value| value.parse().unwrap());
        let mut content_bytes = kept.len() - head_bytes;
        while content_bytes < length {
            match stream.read(&mut buffer)? {
                0 => return Ok(()),
                count => content_bytes += count,
            }
        }
        kept.clear();
        if head.starts_with("GET /long") {
            while begun.load(Ordering::SeqCst) < together.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
            let more = field(&head, "x-more").map_or(String::new(), |more| format!("{more}\r\n"));
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {LONG_BYTES}\r\n{more}\r\n")?;
            stream.write_all(&vec![b'x'; LONG_BYTES - 1])?;
            // Once the server has all of the response, it may send the next request.
            drop(place);
            stream.write_all(b"x")?;
        } else {
            drop(place);
            let body = format!("{content_bytes} bytes, {}", field(&head, "expect").unwrap_or("no Expect"));
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
        }
        ended.fetch_add(1, Ordering::SeqCst);
    }
}

/// One of the requests that the upstream handles.
struct ConcurrencyPlace<'a>(&'a AtomicUsize);

impl<'a> ConcurrencyPlace<'a> {
    fn take(busy: &'a AtomicUsize) -> std::io::Result<Self> {
        let place = Self(busy);
        match busy.fetch_add(1, Ordering::SeqCst) < CONNECTIONS_MAX {
            true => Ok(place),
            false => Err(ErrorKind::ConnectionRefused.into()),
        }
    }
}

impl Drop for ConcurrencyPlace<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let fields = head.lines().filter_map(|line| line.split_once(": "));
    fields.filter(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
}

/// Configuration in front of an upstream, with options of `forward` and of the file.
fn config(upstream: SocketAddr, options: &str, more: &str) -> String {
    format!(
        "server {{\n buffer-directory \"@DIR@\"\n}}\n{more}\n\
         upstream \"app\" {{ server \"http://{upstream}\"; connections-max {CONNECTIONS_MAX} }}\n\
         site {{\n listen \"127.0.0.1:0\"\n forward \"app\" {{ {options} }}\n}}\n"
    )
}

/// Server with that configuration.
fn front(upstream: SocketAddr, options: &str, more: &str) -> Operated {
    Operated::start(&config(upstream, options, more))
}

fn status(operated: &Operated) -> Value {
    serde_json::from_slice(&operated.order(&["status", "--json"]).stdout).expect("status as JSON")
}

fn get(server: &TestServer, path: &str) -> String {
    ask(server, &format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"))
}

/// Starts a request with content of this type and length, and sends one byte of it.
fn begin_post(server: &TestServer, path: &str, content_type: &str, length: usize) -> TcpStream {
    let mut stream = server.connect();
    let fields = format!("Content-Type: {content_type}\r\nContent-Length: {length}");
    write!(stream, "POST {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{fields}\r\n\r\nx").unwrap();
    stream
}

/// Requests a long response, and reads its head.
fn begin_long(server: &TestServer, path: &str) -> TcpStream {
    let mut stream = server.connect();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").unwrap();
    stream
}

/// Reads a response to its end; returns the length of its content.
fn finish_long(stream: &mut TcpStream) -> usize {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let head = bytes.windows(4).position(|window| window == b"\r\n\r\n").expect("a head") + 4;
    assert!(bytes[head..].iter().all(|&byte| byte == b'x'), "other content");
    bytes.len() - head
}

/// Number of unnamed files in this directory that a process has open.
fn buffers_of(process: u32, directory: &Path) -> usize {
    let open = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    let targets = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    targets.filter(|target| target.starts_with(directory) && target.to_string_lossy().ends_with("(deleted)")).count()
}

#[test]
fn slow_posts_hold_no_upstream() {
    let upstream = SmallUpstream::start();
    let operated = front(upstream.address, "", "");
    let server = &operated.server;
    // Some claim to be gRPC calls, which must stream: not to an upstream of HTTP/1.1 (issue 17).
    let types = ["text/plain", "application/grpc"].iter().cycle();
    let mut slow: Vec<_> =
        types.take(SLOW_CLIENTS).map(|content_type| begin_post(server, "/", content_type, 1000)).collect();
    for number in 0..10 {
        assert!(get(server, "/").ends_with("0 bytes, no Expect"), "request {number}");
    }
    let before = upstream.begun();
    assert!(before <= 10, "the upstream has seen slow clients");
    for stream in &mut slow {
        stream.write_all(&[b'x'; 999]).unwrap();
        assert!(read_all(stream).ends_with("1000 bytes, no Expect"));
    }
}

/// Without buffering, the same clients occupy the upstream: the test above depends on buffering.
#[test]
fn slow_posts_hold_an_upstream_without_buffering() {
    let upstream = SmallUpstream::start();
    let operated = front(upstream.address, "request-buffering off", "");
    let server = &operated.server;
    let _slow: Vec<_> = (0..CONNECTIONS_MAX).map(|_| begin_post(server, "/", "text/plain", 1000)).collect();
    eventually("all connections are taken", || upstream.begun() == CONNECTIONS_MAX);
    let mut stream = begin_long(server, "/");
    stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(stream.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock));
}

#[test]
fn slow_readers_hold_no_upstream() {
    let upstream = SmallUpstream::start();
    let operated = front(upstream.address, "", "");
    let server = &operated.server;
    let count = 2 * CONNECTIONS_MAX;
    let mut slow: Vec<_> = (0..count).map(|_| begin_long(server, "/long")).collect();
    upstream.await_ended(count);
    assert!(buffers_of(server.id(), operated.path()) >= count, "the rest is in files");
    assert!(get(server, "/").ends_with("0 bytes, no Expect"));
    for stream in &mut slow {
        assert_eq!(finish_long(stream), LONG_BYTES);
    }
    eventually("no files are left", || buffers_of(server.id(), operated.path()) == 0);
}

#[test]
fn slow_readers_of_http2_hold_no_upstream() {
    let upstream = SmallUpstream::start();
    let operated = front(upstream.address, "", "");
    let mut clients: Vec<_> = (0..CONNECTIONS_MAX)
        .map(|_| {
            // A client that does not read opens no window.
            let mut client = H2Client::connect(&operated.server);
            let stream = client.ask("GET", "/long", &[], true);
            client.flush();
            (client, stream)
        })
        .collect();
    upstream.await_ended(CONNECTIONS_MAX);
    assert!(get(&operated.server, "/").ends_with("0 bytes, no Expect"));
    for (client, stream) in &mut clients {
        assert_eq!(client.finish(*stream).content.len(), LONG_BYTES);
    }
}

/// A response that is too large for the cache is buffered like any other.
#[test]
fn slow_readers_of_a_cache_hold_no_upstream() {
    let upstream = SmallUpstream::start();
    let operated = front(upstream.address, "cache { default-age \"1h\"; object-bytes-max \"1MiB\" }", "");
    let mut slow: Vec<_> =
        (0..CONNECTIONS_MAX).map(|number| begin_long(&operated.server, &format!("/long/{number}"))).collect();
    upstream.await_ended(CONNECTIONS_MAX);
    assert!(get(&operated.server, "/").ends_with("0 bytes, no Expect"));
    for stream in &mut slow {
        assert_eq!(finish_long(stream), LONG_BYTES);
    }
}

#[test]
fn streams_and_what_says_so_are_not_buffered() {
    for more in ["Content-Type: text/event-stream", "X-Accel-Buffering: no"] {
        let upstream = SmallUpstream::start();
        let operated = front(upstream.address, "", "");
        let mut stream = operated.server.connect();
        write!(stream, "GET /long HTTP/1.1\r\nHost: h\r\nX-More: {more}\r\nConnection: close\r\n\r\n").unwrap();
        read_until(&mut stream, "\r\n\r\n");
        // The client slows the upstream down, as it should.
        stays(more, Duration::from_millis(300), || upstream.ended.load(Ordering::SeqCst) == 0);
        assert_eq!(buffers_of(operated.server.id(), operated.path()), 0, "{more}");
    }
}

#[test]
fn events_arrive_as_they_are_sent() {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n";
    let upstream = ScriptedUpstream::start(vec![vec![
        ScriptStep::Read("\r\n\r\n"),
        ScriptStep::Write(head),
        ScriptStep::Read("never"),
    ]]);
    let operated = front(upstream.address, "response-buffering on", "");
    let mut stream = begin_long(&operated.server, "/");
    read_until(&mut stream, "data: 1\n\n");
}

#[test]
fn a_long_upload_passes_by_disk_in_little_memory() {
    const UPLOAD_BYTES: usize = 100 << 20;
    let upstream = SmallUpstream::start();
    let operated = front(upstream.address, "", "");
    let server = &operated.server;
    get(server, "/");
    let before = server.resident_kib_max();
    let mut stream = begin_post(server, "/", "text/plain", UPLOAD_BYTES);
    let piece = vec![b'x'; 1 << 20];
    for _ in 1..UPLOAD_BYTES >> 20 {
        stream.write_all(&piece).unwrap();
    }
    eventually("it is in a file", || buffers_of(server.id(), operated.path()) == 1);
    assert!(upstream.begun() <= 1, "the upstream was asked before the content was there");
    stream.write_all(&piece[1..]).unwrap();
    assert!(read_all(&mut stream).ends_with(&format!("{UPLOAD_BYTES} bytes, no Expect")));
    let cost = server.resident_kib_max() - before;
    assert!(cost < 8 << 10, "{cost} KiB");
    eventually("no files are left", || buffers_of(server.id(), operated.path()) == 0);
}

#[test]
fn chunked_content_gets_a_length() {
    const CHUNKED: &str = "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\nX-Trailer: t\r\n\r\n";
    let application = Application::start(|_| vec![crate::support::fastcgi::Act::Write(answer("A: b\n\ndone"))]);
    let server = TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n fastcgi \"*\" \"{}\" {{ application \"/\" }}\n}}\n",
        application.address
    ));
    let answered = ask(&server, &format!("POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{CHUNKED}"));
    assert!(answered.ends_with("done"), "{answered}");
    let request = application.request();
    assert_eq!((request.get("CONTENT_LENGTH"), &request.content[..]), (Some("5"), &b"abcde"[..]));

    let upstream = SmallUpstream::start();
    let operated = front(upstream.address, "", "");
    let chunked = CHUNKED.replace("X-Trailer: t\r\n", "");
    let answered = ask(&operated.server, &format!("POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{chunked}"));
    assert!(answered.ends_with("5 bytes, no Expect"), "{answered}");
}

#[test]
fn clients_that_expect_100_get_it_from_the_server() {
    let upstream = SmallUpstream::start();
    let operated = front(upstream.address, "", "");
    let mut stream = operated.server.connect();
    stream
        .write_all(
            b"PUT / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nConnection: close\r\nContent-Length: 3\r\n\r\n",
        )
        .unwrap();
    read_until(&mut stream, "HTTP/1.1 100 Continue\r\n\r\n");
    assert_eq!(upstream.begun(), 0);
    stream.write_all(b"abc").unwrap();
    assert!(read_all(&mut stream).ends_with("3 bytes, no Expect"));
}

#[test]
fn content_that_fits_no_buffer_is_too_large() {
    let upstream = SmallUpstream::start();
    let operated = front(upstream.address, "buffer-memory-bytes-max \"64KiB\"; buffer-file-bytes-max \"64KiB\"", "");
    let server = &operated.server;
    // The response comes before the content.
    let mut stream = begin_post(server, "/", "text/plain", 4 << 20);
    assert!(read_until(&mut stream, "\r\n\r\n").starts_with("HTTP/1.1 413 "));
    let send = |length: usize| {
        let mut stream = server.connect();
        stream
            .write_all(b"POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n")
            .unwrap();
        let content = vec![b'x'; length];
        // The server may respond before it has read everything.
        let _ = write!(stream, "{length:x}\r\n").and_then(|()| stream.write_all(&content));
        let _ = stream.write_all(b"\r\n0\r\n\r\n");
        read_until(&mut stream, "\r\n\r\n")
    };
    assert!(send(128 << 10).starts_with("HTTP/1.1 200 "));
    assert!(send((128 << 10) + 1).starts_with("HTTP/1.1 413 "));
}

#[test]
fn a_client_at_its_bound_is_reported_to_come_again() {
    let upstream = SmallUpstream::start();
    let limits = "limits { buffered-file-bytes-per-client-max \"1MiB\" }";
    let operated = front(upstream.address, "", limits);
    let mut stream = begin_post(&operated.server, "/", "text/plain", 4 << 20);
    let _ = stream.write_all(&vec![b'x'; 3 << 20]);
    let head = read_until(&mut stream, "\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 503 ") && head.contains("Retry-After: "), "{head}");
    assert_eq!(upstream.begun(), 0);
    // A response is neither lost nor cut short: its upstream waits.
    let mut slow = begin_long(&operated.server, "/long");
    settled("the server reads no more", || status(&operated)["buffers"]["file_bytes"].as_u64());
    assert_eq!(finish_long(&mut slow), LONG_BYTES);
}

/// Issue 17: a client at its limit of files made upstreams wait, and so occupied all of their connections.
#[test]
fn a_client_that_fills_its_share_holds_no_upstream() {
    let upstream = SmallUpstream::start();
    let limits = "limits { buffered-file-bytes-per-client-max \"1MiB\" }";
    let operated = front(upstream.address, "", limits);
    let server = &operated.server;
    let begin = || {
        let mut stream = server.connect_from([127, 0, 0, 2]);
        stream.write_all(b"GET /long HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").unwrap();
        stream
    };
    // The first ones start before the server knows that their client is slow.
    upstream.together.store(CONNECTIONS_MAX, Ordering::SeqCst);
    let mut slow: Vec<_> = (0..CONNECTIONS_MAX).map(|_| begin()).collect();
    upstream.await_ended(CONNECTIONS_MAX);
    let reported = status(&operated);
    assert!(reported["buffers"]["file_bytes"].as_u64().unwrap() > 1 << 20, "{reported:#}");
    assert!(reported["buffers"]["file_bytes_max"].as_u64().unwrap() > 1 << 20, "{reported:#}");
    slow.extend((0..2 * CONNECTIONS_MAX).map(|_| begin()));
    stays("its further requests reach no upstream", Duration::from_millis(500), || upstream.begun() == CONNECTIONS_MAX);
    assert!(get(server, "/").ends_with("0 bytes, no Expect"), "other clients do");
    // Once the client has read its responses, its other requests continue.
    for stream in &mut slow[..CONNECTIONS_MAX] {
        assert_eq!(finish_long(stream), LONG_BYTES);
    }
    let answers: Vec<_> = slow[CONNECTIONS_MAX..].iter_mut().map(|stream| read_until(stream, "\r\n\r\n")).collect();
    assert!(answers.iter().any(|head| head.starts_with("HTTP/1.1 200 ")), "{answers:?}");
    assert!(answers.iter().all(|head| head.starts_with("HTTP/1.1 200 ") || head.contains("Retry-After: ")));
    drop(slow);
    eventually("no files are left", || buffers_of(server.id(), operated.path()) == 0);
    eventually("no bytes are counted", || {
        let reported = &status(&operated)["buffers"];
        [&reported["file_bytes"], &reported["memory_bytes"]] == [&Value::from(0), &Value::from(0)]
    });
}

#[test]
fn a_buffered_request_goes_to_another_server() {
    let broken = ScriptedUpstream::start(vec![vec![ScriptStep::Read("abc"), ScriptStep::Reset]]);
    let upstream = SmallUpstream::start();
    let server = TestServer::run(&format!(
        "upstream \"app\" {{ server \"http://{}\"; server \"http://{}\" backup=#true; connections-max 4 }}\n\
         server {{ workers 1 }}\n\
         site {{\n listen \"127.0.0.1:0\"\n forward \"app\"\n}}\n",
        broken.address, upstream.address
    ));
    let request = |method: &str| {
        let head = format!("{method} / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc");
        ask(&server, &head)
    };
    let answered = request("PUT");
    assert!(answered.ends_with("3 bytes, no Expect"), "{answered}");
    assert!(request("POST").starts_with("HTTP/1.1 502 "), "a request that is not idempotent is not repeated");
}

#[test]
fn clients_that_leave_release_all_buffers() {
    let upstream = SmallUpstream::start();
    let operated = front(upstream.address, "", "");
    let server = &operated.server;
    for _ in 0..3 {
        let mut readers: Vec<_> = (0..3).map(|_| begin_long(server, "/long")).collect();
        readers.iter_mut().for_each(|stream| _ = read_until(stream, "\r\n\r\n"));
        let mut writers: Vec<_> = (0..3).map(|_| begin_post(server, "/", "text/plain", 2 << 20)).collect();
        writers.iter_mut().for_each(|stream| stream.write_all(&vec![b'x'; 1 << 20]).unwrap());
        eventually("they are buffered", || buffers_of(server.id(), operated.path()) == 6);
        drop((readers, writers));
        eventually("no files are left", || buffers_of(server.id(), operated.path()) == 0);
        eventually("the upstream has places again", || upstream.busy.load(Ordering::SeqCst) == 0);
    }
    assert!(get(server, "/").ends_with("0 bytes, no Expect"));
}

#[test]
fn buffers_outlive_a_reload() {
    let upstream = SmallUpstream::start();
    let operated = front(upstream.address, "", "");
    let mut reader = begin_long(&operated.server, "/long");
    upstream.await_ended(1);
    let mut writer = begin_post(&operated.server, "/", "text/plain", 2 << 20);
    writer.write_all(&vec![b'x'; 1 << 20]).unwrap();
    eventually("both are buffered", || buffers_of(operated.server.id(), operated.path()) == 2);
    operated.reload(&config(upstream.address, "buffer-memory-bytes-max \"16KiB\"", ""));
    writer.write_all(&vec![b'x'; (1 << 20) - 1]).unwrap();
    assert!(read_all(&mut writer).ends_with(&format!("{} bytes, no Expect", 2 << 20)));
    assert_eq!(finish_long(&mut reader), LONG_BYTES);
}

/// Checks that both directions stream where files cannot be written.
fn goes_on_without_files(operated: &Operated, upstream: &SmallUpstream, reason: &str) {
    let server = &operated.server;
    let mut slow = begin_long(server, "/long");
    read_until(&mut slow, "\r\n\r\n");
    server.await_log("buffering to disk failed: directory=");
    server.await_log(reason);
    let mut stream = begin_post(server, "/", "text/plain", 4 << 20);
    stream.write_all(&vec![b'x'; (4 << 20) - 1]).unwrap();
    assert!(read_all(&mut stream).ends_with(&format!("{} bytes, no Expect", 4 << 20)));
    assert!(upstream.begun() >= 2);
    let mut rest = Vec::new();
    slow.read_to_end(&mut rest).unwrap();
    assert!(rest.iter().filter(|&&byte| byte == b'x').count() > LONG_BYTES - (1 << 16));
    assert!(get(server, "/").ends_with("0 bytes, no Expect"));
}

#[test]
fn a_directory_that_is_gone_is_reported_of_and_nothing_is_lost() {
    let upstream = SmallUpstream::start();
    let config = config(upstream.address, "", "").replace("\"@DIR@\"", "\"@DIR@/buffers\"");
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("buffers")).unwrap();
    let operated = Operated::start_in(directory, &config);
    std::fs::remove_dir(operated.path().join("buffers")).unwrap();
    goes_on_without_files(&operated, &upstream, "No such file or directory");
}

#[test]
fn a_full_disk_is_reported_of_and_nothing_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    let small = directory.path().join("small");
    std::fs::create_dir(&small).unwrap();
    let mount = "mount -t tmpfs -o size=1m none";
    let can_mount = Command::new("unshare").args(["-m", "sh", "-c", &format!("{mount} {}", small.display())]).status();
    if !can_mount.is_ok_and(|status| status.success()) {
        skip("no file system can be mounted here");
        return;
    }
    let upstream = SmallUpstream::start();
    let limits = "limits { buffered-file-bytes-max \"1GiB\" }";
    let config = config(upstream.address, "", limits).replace("\"@DIR@\"", "\"@DIR@/small\"");
    let operated = Operated::start_with(directory, &config, |command| {
        let program = command.get_program().to_owned();
        let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        *command = Command::new("unshare");
        command.args(["-m", "sh", "-c", &format!("{mount} {} && exec \"$@\"", small.display()), "sh"]);
        command.arg(program).args(arguments);
    });
    goes_on_without_files(&operated, &upstream, "No space left on device");
}

const PHP_FPM: Recipe<'_> = Recipe {
    needs: &["/usr/sbin/php-fpm8.2"],
    files: &[
        (
            "fpm.conf",
            "[global]\nerror_log = @DIR@/fpm.log\n[www]\nlisten = 127.0.0.1:@PORT@\nuser = www-data\ngroup = www-data\n\
             pm = static\npm.max_children = 4\n",
        ),
        ("root/posted.php", "<?php echo strlen(file_get_contents('php://input')), ' posted';"),
        (
            "root/long.php",
            "<?php header('Content-Length: 20971520'); for ($i = 0; $i < 320; $i++) echo str_repeat('x', 65536);",
        ),
    ],
    command: &["/usr/sbin/php-fpm8.2", "--nodaemonize", "--fpm-config", "@DIR@/fpm.conf"],
    environment: &[],
};

#[test]
fn slow_clients_hold_no_php() {
    let Some(php) = RealServer::start(&PHP_FPM) else { return };
    let server = TestServer::run(&format!(
        "server {{ workers 1 }}\n\
         site {{\n listen \"127.0.0.1:0\"\n root \"{}/root\"\n fastcgi \"*.php\" \"{}\"\n}}\n",
        php.directory().display(),
        php.address
    ));
    let mut posts: Vec<_> = (0..SLOW_CLIENTS).map(|_| begin_post(&server, "/posted.php", "text/plain", 1000)).collect();
    assert!(get(&server, "/posted.php").ends_with("0 posted"));
    // Without buffering, four idle readers would occupy all of php-fpm's children.
    let mut readers: Vec<_> = (0..8).map(|_| begin_long(&server, "/long.php")).collect();
    readers.iter_mut().for_each(|stream| _ = stream.read_exact(&mut [0; 9]));
    for _ in 0..5 {
        assert!(get(&server, "/posted.php").ends_with("0 posted"));
    }
    for stream in &mut posts {
        stream.write_all(&[b'x'; 999]).unwrap();
        assert!(read_all(stream).ends_with("1000 posted"));
    }
    for stream in &mut readers {
        assert!(finish_long(stream) >= LONG_BYTES);
    }
}
