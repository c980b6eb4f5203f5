//! http-wasm modules that respond themselves: input, output, permissions and state of an instance.

use std::io::Write;
use std::net::TcpStream;
use std::path::Path;

use tempfile::TempDir;

use crate::support::guests::{compiled_directory, filters, serve_guests};
use crate::support::versions::AnyVersion;
use crate::support::waiting::{await_read, eventually};
use crate::support::{TestServer, ask, read_all, read_until};

/// Limits low enough for a test to reach.
const LIMITS: &str = "memory-bytes-max \"16MiB\"; cpu-time-max \"200ms\"; buffered-bytes-max \"1MiB\"";

fn get(server: &TestServer, target: &str) -> String {
    ask(server, &format!("GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"))
}

fn check(server: &TestServer, target: &str, expect: &str) {
    let answer = get(server, target);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{target}: {answer}");
    assert_eq!(answer.split_once("\r\n\r\n").unwrap().1, expect, "{target}");
}

/// Server with a file beside the module.
fn server(filters: &Path, options: &str) -> (TestServer, TempDir) {
    let files = tempfile::tempdir().unwrap();
    std::fs::write(files.path().join("file"), "a file").unwrap();
    let root = format!("files \"/file\" root=\"{}\"", files.path().display());
    (serve_guests(filters, options, &root), files)
}

#[test]
fn what_a_guest_gets() {
    let Some(filters) = filters() else { return };
    let server = serve_guests(filters, "settings \"a setting\"; environment \"NAME\" \"value\"", "");
    let answer = ask(
        &server,
        "PUT /guest/request?a=%20b HTTP/1.1\r\nHost: H.example\r\nAccept: a\r\naccept: b\r\nContent-Length: 0\r\n\
         Connection: close\r\n\r\n",
    );
    let expect = ["PUT /guest/request?a=%20b HTTP/1.1", "from 127.0.0.1:", "host: H.example", "accept: a", "accept: b"];
    for expect in expect {
        assert!(answer.lines().any(|line| line.starts_with(expect)), "{expect:?} is not in {answer}");
    }
    check(&server, "/guest/config", "a setting");
    check(&server, "/guest/environment", "NAME=value\n");
    server.await_log("info: filters: started");
    check(&server, "/guest/log", "logged");
    server.await_log("info: filters: a line");
    server.await_log("info: filters: error: an error");
}

#[test]
fn what_a_guest_gives() {
    let Some(filters) = filters() else { return };
    let options = format!(" module \"*\" \"{}\"", filters.display());
    let shared = format!("modules {{ compile-wait \"5m\"; compiled \"{}\" }}", compiled_directory().display());
    let Some(server) = AnyVersion::start(&options, &shared) else { return };
    let upload = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(upload.path(), "y".repeat(300_000)).unwrap();
    let upload = format!("@{}", upload.path().display());
    let content = |path: &str, arguments: &[&str]| {
        let answer = server.ask_all(path, arguments);
        assert_eq!(answer.status, 200, "{path}");
        String::from_utf8(answer.content).unwrap()
    };
    assert_eq!(content("/guest/hello", &[]), "hello\n");
    assert_eq!(content("/guest/hello", &["--head"]), "");
    assert_eq!(content("/guest/large?300000", &[]).len(), 300_000);
    assert_eq!(content("/guest/echo", &["--data-binary", &upload]).len(), 300_000);
    let chunked = ["--data-binary", &upload, "--header", "Transfer-Encoding: chunked"];
    assert_eq!(content("/guest/echo", &chunked).len(), 300_000);
    for status in [204, 404, 599] {
        assert_eq!(server.ask_all(&format!("/guest/status?{status}"), &[]).status, status);
    }
    let fields = server.ask_all("/guest/fields", &[]);
    let values: Vec<_> =
        fields.fields.iter().filter(|(name, _)| name == "x-a").map(|(_, value)| value.as_str()).collect();
    assert_eq!((values, fields.field("x-b")), (vec!["1", "2"], None));
    assert_eq!(fields.field("content-length"), Some("6"), "lengths are ours to tell");
}

#[test]
fn nothing_is_granted_by_default() {
    let Some(filters) = filters() else { return };
    let server = serve_guests(filters, "", "");
    check(&server, "/guest/config", "");
    check(&server, "/guest/environment", "");
    for target in ["/guest/read?/etc/passwd", "/guest/write?/tmp/x"] {
        let answer = get(&server, target);
        assert!(answer.contains("\r\n\r\nerror: "), "{target}: {answer}");
    }
}

#[test]
fn what_is_kept_between_requests() {
    let Some(filters) = filters() else { return };
    let counts = |options: &str| {
        let server = serve_guests(filters, options, "");
        let counts: Vec<_> =
            (0..3).map(|_| get(&server, "/guest/count").rsplit("\r\n").next().unwrap().to_owned()).collect();
        // An instance whose memory has grown cannot be reset.
        check(&server, "/guest/grow", "3145728");
        check(&server, "/guest/hello", "hello\n");
        counts.join(" ")
    };
    assert_eq!(counts(""), "1 1 1");
    assert_eq!(counts("reset fresh"), "1 1 1");
    assert_eq!(counts("reset memory"), "1 1 1");
    assert_eq!(counts("reset none"), "1 2 3");
    assert_eq!(counts("reset none; idle-instances-max 0"), "1 1 1");
}

#[test]
fn hostile_guests() {
    let Some(filters) = filters() else { return };
    for reset in ["fresh", "memory", "none"] {
        let (server, _files) = server(filters, &format!("{LIMITS}; reset {reset}"));
        for (target, status, logged) in [
            ("/trap", "500", "`unreachable` instruction executed"),
            ("/exit", "500", "it exited with status"),
            ("/memory", "500", "memory-bytes-max of the module"),
            ("/recursion", "500", "call stack exhausted"),
            ("/flood", "500", "more content than buffered-bytes-max"),
            ("/flood-fields", "500", "bytes of header fields"),
            ("/flood-log", "504", "wrote more than log-bytes-max"),
            ("/loop", "504", "more CPU time than cpu-time-max"),
            ("/bad-field", "500", "invalid header field"),
        ] {
            let answer = get(&server, &format!("/guest{target}"));
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{target}: {answer}");
            assert!(!answer.contains("x-b: 2"), "{target}: {answer}");
            server.await_log(logged);
            assert!(get(&server, "/file").ends_with("a file"), "after {target}");
            // A failed instance is not used again.
            check(&server, "/guest/count", "1");
        }
    }
}

/// True if the server has sent something that was not read yet.
fn has_input(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let has_input = stream.peek(&mut [0]).is_ok();
    stream.set_nonblocking(false).unwrap();
    has_input
}

#[test]
fn a_guest_that_loops_or_sleeps_delays_no_request() {
    let Some(filters) = filters() else { return };
    let options = "cpu-time-max \"3s\"; first-byte-timeout \"2s\"; reset none";
    let (server, _files) = server(filters, options);
    // On a slow machine, the time of the guests may end too early.
    eventually("requests are served while guests loop and sleep", || {
        let mut streams: Vec<_> = (0..4).map(|_| server.connect()).collect();
        for (stream, target) in streams.iter_mut().zip(["loop", "hang", "loop", "hang"]) {
            write!(stream, "GET /guest/{target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").unwrap();
            await_read(stream);
        }
        let mut served = 0;
        for _ in 0..20 {
            assert!(get(&server, "/file").ends_with("a file"));
            check(&server, "/guest/hello", "hello\n");
            served += usize::from(!streams.iter().any(has_input));
        }
        for stream in &mut streams {
            assert!(read_all(stream).starts_with("HTTP/1.1 504 "));
        }
        // Requests that wait for a guest would be served after its response.
        served >= 5
    });
}

#[test]
fn places_and_content_that_have_to_be_waited_for() {
    let Some(filters) = filters() else { return };
    let server = serve_guests(filters, "instances-max 1; queue-timeout \"50s\"; reset none", "");
    let mut stream = server.connect();
    stream.write_all(b"POST /guest/echo HTTP/1.1\r\nHost: h\r\nContent-Length: 6\r\n\r\nabc").unwrap();
    await_read(&stream);
    let mut waiting = server.connect();
    waiting.write_all(b"GET /guest/hello HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").unwrap();
    await_read(&waiting);
    stream.write_all(b"def").unwrap();
    read_until(&mut stream, "abcdef");
    assert!(read_all(&mut waiting).ends_with("hello\n"));
    // A client that leaves frees its instance's place.
    let mut stream = server.connect();
    stream.write_all(b"POST /guest/echo HTTP/1.1\r\nHost: h\r\nContent-Length: 6\r\n\r\nabc").unwrap();
    await_read(&stream);
    drop(stream);
    check(&server, "/guest/hello", "hello\n");
    let server = serve_guests(filters, "instances-max 1; queue-timeout \"0s\"", "");
    let mut stream = server.connect();
    stream.write_all(b"POST /guest/echo HTTP/1.1\r\nHost: h\r\nContent-Length: 6\r\n\r\nabc").unwrap();
    await_read(&stream);
    assert!(get(&server, "/guest/hello").starts_with("HTTP/1.1 503 "));
}

#[test]
fn a_new_file_takes_the_place_of_instances_that_wait() {
    let Some(filters) = filters() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("shop.wasm");
    std::fs::copy(filters, &file).unwrap();
    let server = serve_guests(&file, "reset none", "");
    check(&server, "/guest/count", "1");
    check(&server, "/guest/count", "2");
    let mut bytes = std::fs::read(filters).unwrap();
    // A custom section (Binary Format, section 5.5.3): id, size, length of its name, name.
    bytes.extend_from_slice(b"\0\x04\x03new");
    std::fs::write(directory.path().join("next"), bytes).unwrap();
    std::fs::rename(directory.path().join("next"), &file).unwrap();
    server.await_log("module replaced by its new file: module=shop");
    check(&server, "/guest/count", "1");
}
