//! Every limit, reached: the client's response, and no effect on other clients.

use std::io::{Read, Write};
use std::net::TcpStream;

use tempfile::TempDir;

use crate::support::waiting::{eventually, eventually_some};
use crate::support::{LARGE_BYTES, PATIENCE, TestServer, read_all, read_until, site_with_large_file};

/// Site with a response at `/`, a large one at `/large`, and these limits.
fn server(limits: &str) -> (TestServer, TempDir) {
    let files = site_with_large_file();
    let root = files.path().display();
    let server = TestServer::run(&format!(
        "access-log \"{root}/access.log\"\n\
         site {{\n listen \"127.0.0.1:0\"\n root \"{root}\"\n respond \"/\" 200 \"hello\"\n}}\n\
         server {{ workers 1 }}\nlimits {{ {limits} }}\n"
    ));
    (server, files)
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n")
}

/// Status codes of the responses in `text`.
fn statuses(text: &str) -> Vec<&str> {
    text.split("HTTP/1.1 ").skip(1).map(|response| &response[..3]).collect()
}

#[test]
fn sizes() {
    let (server, _files) = server("head-bytes-max 1000; header-fields-max 4; target-bytes-max 100; body-bytes-max 10");
    let fields = |count: usize| (0..count).map(|n| format!("X-{n}: y\r\n")).collect::<String>();
    for (name, input, expect) in [
        ("target", get(&format!("/{}", "a".repeat(100))), "414"),
        ("fields", format!("GET / HTTP/1.1\r\nHost: h\r\n{}\r\n", fields(4)), "431"),
        ("head", format!("GET / HTTP/1.1\r\nHost: h\r\nX: {}\r\n\r\n", "a".repeat(1000)), "431"),
        ("content", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 11\r\n\r\n".into(), "413"),
        (
            "chunks",
            "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n123456789\r\n2\r\n".into(),
            "413",
        ),
    ] {
        let answer = server.exchange(input.as_bytes());
        assert_eq!(statuses(&answer), [expect], "{name}");
        assert!(answer.contains("Connection: close\r\n"), "{name}: {answer}");
    }
    let within = format!("GET /{} HTTP/1.1\r\nHost: h\r\n{}\r\n", "?".repeat(99), fields(3));
    assert_eq!(statuses(&server.exchange(within.as_bytes())), ["200"]);
}

#[test]
fn requests_per_connection() {
    let (server, _files) = server("requests-per-connection-max 3");
    let answer = server.exchange(get("/").repeat(5).as_bytes());
    assert_eq!(statuses(&answer), ["200"; 3]);
    assert_eq!(answer.matches("Connection: close\r\n").count(), 1);
}

#[test]
fn slow_head_slowloris() {
    let (server, _files) = server("head-timeout \"1s\"; idle-timeout \"60s\"");
    let mut stream = server.connect();
    stream.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    let mut trickle = stream.try_clone().unwrap();
    std::thread::spawn(move || {
        // An occasional field line does not extend the time limit.
        while trickle.write_all(b"X: y\r\n").is_ok() {
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    });
    assert_eq!(statuses(&read_all(&mut stream)), ["408"]);
}

#[test]
fn idle_connections_are_closed_without_a_word() {
    let (server, _files) = server("idle-timeout \"1s\"");
    let mut fresh = server.connect();
    // A connection that waits too long for its first request is closed.
    let mut used = eventually_some("a request is answered", || {
        let mut used = server.connect();
        used.write_all(get("/").as_bytes()).unwrap();
        let (mut answer, mut byte) = (Vec::new(), [0]);
        while !answer.ends_with(b"hello") {
            used.read_exact(&mut byte).ok()?;
            answer.push(byte[0]);
        }
        Some(used)
    });
    assert_eq!((read_all(&mut fresh), read_all(&mut used)), (String::new(), String::new()));
}

#[test]
fn slow_content() {
    let (server, _files) = server("body-timeout \"1s\"");
    let mut stream = server.connect();
    stream.write_all(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n123").unwrap();
    assert_eq!(statuses(&read_all(&mut stream)), ["408"]);
}

#[test]
fn slow_readers_are_cut_off() {
    for limits in [
        // One that reads nothing,
        "write-timeout \"1s\"; rate-bytes-per-second-min 0",
        // and one that reads too slowly to ever finish.
        "write-timeout \"1s\"; rate-bytes-per-second-min \"1MiB\"",
    ] {
        let (server, files) = server(limits);
        let mut stream = server.connect();
        stream.write_all(get("/large").as_bytes()).unwrap();
        let drips = limits.contains("MiB");
        // Both would go on; the server closes, and its earlier data is all they get.
        let mut total = 0;
        let mut buffer = [0; 128];
        stream.set_nonblocking(true).unwrap();
        eventually("the response is logged as ended", || {
            total += if drips { stream.read(&mut buffer).unwrap_or(0) } else { 0 };
            std::fs::read_to_string(files.path().join("access.log")).unwrap_or_default().contains("GET /large ")
        });
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        total += read_all(&mut stream).len();
        assert!(total < LARGE_BYTES, "{limits}: all {total} bytes were sent");
    }
}

#[test]
fn idle_connections_make_room_for_new_ones() {
    let (server, _files) = server("connections-max 20");
    let mut idle: Vec<TcpStream> = (0..20).map(|_| server.connect()).collect();
    for stream in &mut idle {
        stream.write_all(get("/").as_bytes()).unwrap();
        read_until(stream, "hello");
    }
    for _ in 0..50 {
        assert_eq!(statuses(&server.exchange(get("/").as_bytes())), ["200"]);
    }
    // The oldest connection was evicted.
    assert_eq!(read_all(&mut idle[0]), "");
}

/// EMFILE: accept fails, and must neither spin nor lose the server.
#[test]
fn out_of_descriptors() {
    let site = tempfile::tempdir().unwrap();
    std::fs::write(site.path().join("index.html"), "hello").unwrap();
    let server = TestServer::serve_with_descriptors(site.path(), 48);
    let idle: Vec<TcpStream> = (0..200).map(|_| server.connect()).collect();
    for _ in 0..20 {
        assert_eq!(statuses(&server.exchange(get("/").as_bytes())), ["200"]);
    }
    drop(idle);
    assert_eq!(statuses(&server.exchange(get("/").as_bytes())), ["200"]);
}
