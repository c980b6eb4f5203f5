//! Attacks on the cache in front of an upstream, over the wire.

use std::io::{BufRead, BufReader, Write};

use crate::response_cache::{CountingOrigin, ask_with, check, front};
use crate::support::{TestServer, read_until};

/// Incomplete responses are neither stored nor served as complete; invalid ones are rejected.
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
        let origin = CountingOrigin::start();
        let server = front(&origin, "cache-status", "");
        for _ in 0..2 {
            let before = origin.requests();
            let answer = ask_with(&server, &format!("GET {path}"), "");
            assert!(answer.starts_with(begins), "{path}: {answer}");
            assert_eq!(is_complete(&answer), is_whole, "{path}: {answer}");
            assert!(!answer.contains("; hit"), "{path}: {answer}");
            assert!(!answer.contains("evil") && !answer.contains("Set-Cookie"), "{path}: {answer}");
            assert!(origin.requests() > before, "{path}: stored");
            // One failure must not make the upstream count as down for the next.
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// Issue 17: one user's response was served to another. The first response has no Vary, and the 304 has one.
#[test]
fn revalidation_keeps_users_apart() {
    for (validated, is_kept) in [
        ("ETag: \"1\"\r\nCache-Control: max-age=100\r\nVary: Cookie", true),
        ("Cache-Control: max-age=100\r\nVary: Cookie", false),
        ("ETag: \"1\"\r\nCache-Control: private", false),
        ("ETag: \"1\"\r\nCache-Control: no-store", false),
        ("ETag: \"1\"\r\nCache-Control: max-age=100\r\nVary: *", false),
    ] {
        for head_first in [false, true] {
            let origin = users(validated);
            let server = TestServer::run(&format!(
                "server {{ workers 2 }}\nsite {{\n listen \"127.0.0.1:0\"\n forward \"http://{origin}\" {{ cache {{}} }}\n}}\n"
            ));
            let ask =
                |method: &str, user: &str| ask_with(&server, &format!("{method} /"), &format!("Cookie: {user}\n"));
            let own = |user: &str| {
                let answer = ask("GET", user);
                assert!(answer.ends_with(&format!("\r\n\r\n{user}")), "{validated} {head_first}: {user} got {answer}");
                answer
            };
            own("anna");
            if head_first {
                ask("HEAD", "anna");
            }
            own("anna");
            own("bert");
            own("anna");
            own("bert");
            let answer = own("anna");
            assert_eq!(answer.contains("\r\nAge: "), is_kept && !head_first, "{validated} {head_first}: {answer}");
        }
    }
}

/// Server with a page per user. It responds to revalidation with 304 and these fields.
fn users(validated: &'static str) -> std::net::SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            // A closed connection is no failure here.
            std::thread::spawn(move || drop(answer_user(stream, validated)));
        }
    });
    address
}

fn answer_user(mut stream: std::net::TcpStream, validated: &str) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head)? == 0 {
                return Ok(());
            }
        }
        let user = if head.contains("Cookie: anna") { "anna" } else { "bert" };
        let length = user.len();
        let answer = match (head.starts_with("HEAD"), head.contains("If-None-Match: \"1\"")) {
            (true, _) => format!("HTTP/1.1 200 OK\r\n{validated}\r\nContent-Length: {length}\r\n\r\n"),
            // The first user revalidates their own page first.
            (false, true) if user == "anna" => format!("HTTP/1.1 304 Not Modified\r\n{validated}\r\n\r\n"),
            (false, _) => {
                let fields = match user {
                    "anna" => "Cache-Control: max-age=0\r\nETag: \"1\"",
                    _ => "Cache-Control: max-age=0\r\nVary: Cookie",
                };
                format!("HTTP/1.1 200 OK\r\n{fields}\r\nContent-Length: {length}\r\n\r\n{user}")
            }
        };
        stream.write_all(answer.as_bytes())?;
    }
}

/// True if a response has all the content that its head promises.
fn is_complete(answer: &str) -> bool {
    let (head, content) = answer.split_once("\r\n\r\n").expect("an answer has a head");
    let length = head.split("\r\n").find_map(|line| line.strip_prefix("Content-Length: "));
    match length {
        Some(length) => length.parse() == Ok(content.len()),
        None => content.ends_with("0\r\n\r\n"),
    }
}

/// Response splitting: unsolicited bytes after a response go to no client.
#[test]
fn a_response_after_another_is_dropped() {
    let origin = CountingOrigin::start();
    let server = front(&origin, "", "");
    for path in ["/two-responses", "/two-responses", "/a"] {
        let answer = ask_with(&server, &format!("GET {path}"), "");
        assert!(!answer.contains("evil"), "{path}: {answer}");
    }
    check(&ask_with(&server, "GET /a", ""), "0002");
}

/// Web cache poisoning by hosts and fields: no such request uses, or replaces, the stored response for "/a" on "h".
/// Applications may read a cookie by another name than the one it is written by: PHP takes `login.a` for `login_a`.
#[test]
fn poisoning_by_names_of_cookies() {
    let origin = CountingOrigin::start();
    let server = front(&origin, "bypass-cookies \"login_*\"\n key-cookies \"lang\"", "");
    check(&ask_with(&server, "GET /a", "Cookie: lang=e==\n"), "0001");
    for cookie in [
        "login_a=1",
        "LOGIN_a=1",
        "login.a=1",
        "login a=1",
        "login[a=1",
        "%6cogin%5Fa=1",
        "\"login_a\"=1",
        "a=b, login_a=1",
        "a=b,login_a=1",
        "%6cang=e==",
        "LANG=e==",
        "lang[a]=e==",
        "a=b,lang=e==",
        "lang=e; lang==",
    ] {
        let before = origin.requests();
        ask_with(&server, "GET /a", &format!("Cookie: {cookie}\n"));
        assert!(origin.requests() > before, "{cookie}");
        check(&ask_with(&server, "GET /a", "Cookie: lang=e==\n"), "0001");
    }
    // Other cookies change nothing.
    let before = origin.requests();
    for cookie in ["x=1", "logins=1", "a=login_a", "language=1"] {
        check(&ask_with(&server, "GET /a", &format!("Cookie: lang=e==; {cookie}\n")), "0001");
    }
    assert_eq!(origin.requests(), before);
}

#[test]
fn poisoning() {
    let origin = CountingOrigin::start();
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
    // Same response for all of them, because the fields never reach the upstream.
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
    // An ambiguous request is rejected.
    for lines in ["Host: h\nHost: evil\n", "Host: h evil\n", "Host: h/evil\n"] {
        let answer = ask_with(&server, "GET /a", lines);
        assert!(answer.starts_with("HTTP/1.1 400 "), "{lines}: {answer}");
    }
}

/// Web cache deception: a route below a cached path here may be another page there.
#[test]
fn deception() {
    let origin = CountingOrigin::start();
    let server = front(&origin, "default-age \"1h\"", "");
    for (path, asked) in [
        ("/static/..%2fsilent", 2),
        ("/static/%2e%2e/silent", 2),
        ("/silent/../static/a.css", 2),
        // Rejected before the cache.
        ("/static/..;/silent", 0),
    ] {
        let before = origin.requests();
        (0..2).for_each(|_| drop(ask_with(&server, &format!("GET {path}"), "")));
        assert_eq!(origin.requests(), before + asked, "{path}");
    }
}

/// Clients that start requests for stored responses slowly, and leave, many times.
#[test]
fn clients_that_leave() {
    let origin = CountingOrigin::start();
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
