//! Attacks on the cache before another server, over the wire.

use crate::response_cache::{Origin, ask_with, check, front};
use crate::support::read_until;
use std::io::Write;

/// What breaks off is neither stored nor served as if it were whole; what is no response is none.
#[test]
fn broken_responses() {
    for (path, begins, is_whole) in [
        ("/cut-length", "HTTP/1.1 200 ", false),
        ("/cut-chunk", "HTTP/1.1 200 ", false),
        ("/cut-chunks", "HTTP/1.1 200 ", false),
        ("/cut-trailers", "HTTP/1.1 200 ", false),
        ("/cut-head", "HTTP/1.1 502 ", true),
        ("/split-cr", "HTTP/1.1 502 ", true),
        ("/split-nul", "HTTP/1.1 502 ", true),
        ("/split-name", "HTTP/1.1 502 ", true),
        ("/two-lengths", "HTTP/1.1 502 ", true),
    ] {
        let origin = Origin::start();
        let server = front(&origin, "cache-status", "");
        for _ in 0..2 {
            let before = origin.requests();
            let answer = ask_with(&server, &format!("GET {path}"), "");
            assert!(answer.starts_with(begins), "{path}: {answer}");
            assert_eq!(is_complete(&answer), is_whole, "{path}: {answer}");
            assert!(!answer.contains("; hit"), "{path}: {answer}");
            assert!(!answer.contains("evil") && !answer.contains("Set-Cookie"), "{path}: {answer}");
            assert!(origin.requests() > before, "{path}: stored");
            // One failure must not make the server count as down for the next.
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// Whether an answer has all the content that its head promises.
fn is_complete(answer: &str) -> bool {
    let (head, content) = answer.split_once("\r\n\r\n").expect("an answer has a head");
    let length = head.split("\r\n").find_map(|line| line.strip_prefix("Content-Length: "));
    match length {
        Some(length) => length.parse() == Ok(content.len()),
        None => content.ends_with("0\r\n\r\n"),
    }
}

/// Response splitting: what comes behind a response, unasked, is nobody's.
#[test]
fn a_response_behind_another_is_dropped() {
    let origin = Origin::start();
    let server = front(&origin, "", "");
    for path in ["/two-responses", "/two-responses", "/a"] {
        let answer = ask_with(&server, &format!("GET {path}"), "");
        assert!(!answer.contains("evil"), "{path}: {answer}");
    }
    check(&ask_with(&server, "GET /a", ""), "0002");
}

/// Web cache poisoning by hosts and fields: none of these is answered by, or instead of, what was stored for "/a" on "h".
#[test]
fn poisoning() {
    let origin = Origin::start();
    let server = front(&origin, "", "");
    check(&ask_with(&server, "GET /a", ""), "0001");
    for (request, lines) in [
        ("GET /a", "Host: evil\n"),
        ("GET /a", "Host: h:1337\n"),
        ("GET /a", "Host: h.\n"),
        ("GET http://other/a", ""),
        ("GET //a", ""),
        ("GET /%61", ""),
        ("GET /a?", ""),
        ("GET /a;x", ""),
        ("GET /a", "X-Original-URL: /admin\n"),
        ("GET /a", "X-HTTP-Method-Override: DELETE\n"),
    ] {
        let before = origin.requests();
        ask_with(&server, request, lines);
        assert_eq!(origin.requests(), before + 1, "{request} {lines}");
        check(&ask_with(&server, "GET /a", ""), "0001");
    }
    // These are the same, and are answered alike: the fields never reach the server behind.
    let before = origin.requests();
    for (request, lines) in [
        ("GET /a", "Host: H\n"),
        ("GET http://h/a", "Host: evil\n"),
        ("GET /a", "X-Forwarded-Host: evil\n"),
        ("GET /a", "X-Forwarded-Port: 1337\n"),
        ("GET /a", "X-Forwarded-Proto: https\n"),
        ("GET /a", "Forwarded: host=evil\n"),
    ] {
        check(&ask_with(&server, request, lines), "0001");
    }
    assert_eq!(origin.requests(), before);
    // What is ambiguous is no request at all.
    for lines in ["Host: h\nHost: evil\n", "Host: h evil\n", "Host: h/evil\n"] {
        let answer = ask_with(&server, "GET /a", lines);
        assert!(answer.starts_with("HTTP/1.1 400 "), "{lines}: {answer}");
    }
}

/// Web cache deception: what is routed below a cached path here may be another page there.
#[test]
fn deception() {
    let origin = Origin::start();
    let server = front(&origin, "default-age \"1h\"", "");
    for (path, asked) in [
        ("/static/..%2fsilent", 2),
        ("/static/%2e%2e/silent", 2),
        ("/silent/../static/a.css", 2),
        // Refused before the cache.
        ("/static/..;/silent", 0),
    ] {
        let before = origin.requests();
        (0..2).for_each(|_| drop(ask_with(&server, &format!("GET {path}"), "")));
        assert_eq!(origin.requests(), before + asked, "{path}");
    }
}

/// A client that begins requests for what is stored slowly, and leaves, many times.
#[test]
fn clients_that_leave() {
    let origin = Origin::start();
    let server = front(&origin, "", "");
    for _ in 0..50 {
        let mut stream = server.connect();
        stream.write_all(b"GET /slow HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    }
    let mut stream = server.connect();
    stream.write_all(b"GET /slow HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    read_until(&mut stream, "\r\n\r\n");
    drop(stream);
    let answer = ask_with(&server, "GET /slow", "");
    assert!(answer.starts_with("HTTP/1.1 200 ") && is_complete(&answer), "{answer}");
    let before = origin.requests();
    check(&ask_with(&server, "GET /slow", ""), answer.split_once("\r\n\r\n").unwrap().1);
    assert_eq!(origin.requests(), before);
}
