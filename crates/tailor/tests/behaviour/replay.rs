//! `tailor replay`: requests of a log to two servers, and the differences of their responses.

use std::sync::atomic::Ordering;

use serde_json::Value;

use crate::server::{FakeServer, FakeServerAction, ok, start};
use crate::{longer, tailor, undisturbed};

const LOG: &str = "\
127.0.0.1 - - [10/Oct/2000:13:55:36 -0700] \"GET /same HTTP/1.1\" 200 1 \"-\" \"x\"
127.0.0.1 - - [10/Oct/2000:13:55:36 -0700] \"GET /same HTTP/1.1\" 200 1 \"-\" \"x\"
127.0.0.1 - - [10/Oct/2000:13:55:37 -0700] \"GET /gone?a=b HTTP/1.1\" 200 1 \"-\" \"x\"
127.0.0.1 - - [10/Oct/2000:13:55:37 -0700] \"POST /order HTTP/1.1\" 200 1 \"-\" \"x\"
127.0.0.1 - - [10/Oct/2000:13:55:38 -0700] \"GET /moved HTTP/1.1\" 200 1 \"-\" \"x\"
127.0.0.1 - - [10/Oct/2000:13:55:38 -0700] \"GET /time HTTP/1.1\" 200 1 \"-\" \"x\"
127.0.0.1 - - [10/Oct/2000:13:55:38 -0700] \"HEAD /chunks HTTP/1.1\" 200 1 \"-\" \"x\"
127.0.0.1 - - [10/Oct/2000:13:55:38 -0700] \"GET /chunks HTTP/1.1\" 200 1 \"-\" \"x\"
127.0.0.1 - - [10/Oct/2000:13:55:38 -0700] \"GET /closed HTTP/1.1\" 200 1 \"-\" \"x\"
127.0.0.1 - - [10/Oct/2000:13:55:38 -0700] \"GET /typed HTTP/1.1\" 200 1 \"-\" \"x\"
no request
";

/// A server; the new one lacks a page, and has another type of one.
fn server(is_new: bool) -> FakeServer {
    start(move |request| {
        let target = request.head.split(' ').nth(1).unwrap_or_default();
        let host = request.head.lines().find_map(|line| line.strip_prefix("Host: ")).unwrap_or_default();
        let reply = match target {
            "/gone?a=b" if is_new => b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_vec(),
            "/moved" => {
                format!("HTTP/1.1 301 Moved\r\nLocation: http://{host}/new\r\nContent-Length: 0\r\n\r\n").into_bytes()
            }
            "/time" => ok(request.number.to_string().as_bytes()),
            "/chunks" if request.head.starts_with("HEAD") => {
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec()
            }
            "/chunks" if is_new => {
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n".to_vec()
            }
            "/chunks" => b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcde".to_vec(),
            "/closed" => return FakeServerAction::End(b"HTTP/1.1 200 OK\r\n\r\nto the end".to_vec()),
            "/typed" => {
                let kind = if is_new { "plain" } else { "html" };
                format!("HTTP/1.1 200 OK\r\nContent-Type: text/{kind}\r\nContent-Length: 1\r\n\r\nx").into_bytes()
            }
            _ => ok(b"x"),
        };
        FakeServerAction::Reply(reply)
    })
}

#[test]
fn differences_of_two_servers() {
    let (old, new) = (server(false), server(true));
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    std::fs::write(&log, LOG).unwrap();
    let run = |words: &[&str]| {
        let output = tailor(&[&["replay", "-c", "1"], words].concat());
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        (output.status.code(), text)
    };
    let log = log.to_str().unwrap();
    let (code, text) = run(&[log, &old.url, &new.url]);
    assert_eq!(
        text,
        "8 requests: 6 same, 2 different\n\
         1 of them differ each time on the old server; those parts were not compared\n\
         2 lines of the log left out: other methods (see --methods), or no requests\n\
         \n        1  field content-type: changed\n           GET /typed  `text/html` -> `text/plain`\n\
         \n        1  status 200 -> 404\n           GET /gone?a=b\n"
    );
    assert_eq!(code, Some(1));
    // One server twice; connections are kept, except where the server closes them.
    let before = old.connections.load(Ordering::Relaxed);
    let (code, text) = run(&["--all", "--json", "-", log, &old.url, &old.url]);
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (code, &report["requests"], &report["different"]),
        (Some(0), &Value::from(9), &Value::from(0)),
        "{text}"
    );
    // Two more find out whether the servers accept connections.
    assert!(old.connections.load(Ordering::Relaxed) - before <= 6);
    let is_sent = |request: &str| old.heads.lock().unwrap().iter().any(|head| head.starts_with(request));
    assert!(!is_sent("POST"), "a request that may change something");
    assert_eq!(run(&["--methods", "POST", log, &old.url, &new.url]).0, Some(0));
    assert!(is_sent("POST /order"));
    let (code, _) = run(&["--ignore", "Content-Type", "-n", "1", "--host", "example.com", log, &old.url, &new.url]);
    assert_eq!(code, Some(0));
    assert!(old.heads.lock().unwrap().iter().any(|head| head.contains("\r\nHost: example.com\r\n")));
    let (code, text) = run(&["--methods", "PUT", log, &old.url, &new.url]);
    assert_eq!((code, text.contains("no request to send")), (Some(2), true), "{text}");
    let (code, text) = run(&[log, &old.url, "http://127.0.0.1:1"]);
    assert_eq!((code, text.contains("http://127.0.0.1:1: Connection refused")), (Some(2), true), "{text}");
}

#[test]
fn the_timing_of_the_log() {
    let server = server(false);
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    std::fs::write(&log, LOG).unwrap();
    let started = std::time::Instant::now();
    let output = tailor(&["replay", "--speed", "4", log.to_str().unwrap(), &server.url, &server.url]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    // The log has two seconds and a part of the third.
    assert!(started.elapsed().as_millis() >= 500, "{:?}", started.elapsed());
    let output = tailor(&["replay", "--speed", "0", log.to_str().unwrap(), &server.url, &server.url]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

/// The time limit is one for the whole response, not for each read.
#[test]
fn responses_without_end() {
    let old = server(false);
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    std::fs::write(&log, LOG).unwrap();
    let log = log.to_str().unwrap();
    for (first, again) in [
        (&b"HTTP/1.1 200 OK\r\n\r\n"[..], &b"x"[..]),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ] {
        let new = crate::hostile::flood(first, again, std::time::Duration::from_millis(1));
        let measure = |number| {
            let time_out = longer(&["300ms", "3s"], number);
            tailor(&["replay", "-n", "1", "--timeout", time_out, log, &old.url, &new])
        };
        let has_old = |text: &[u8]| String::from_utf8_lossy(text).contains("status 200 ->");
        let output = undisturbed(measure, |output| has_old(&output.stdout));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("status 200 -> no complete response in time"), "{text}");
        assert_eq!(output.status.code(), Some(1));
    }
}
