//! HTTP/1 over a real connection: behaviour that the sans-io tests of `wire` cannot see.

use std::io::Write;

use crate::support::waiting::eventually;
use crate::support::{TestServer, read_all, read_until};

fn server() -> TestServer {
    TestServer::run(
        "site \"a.example\" {\n listen \"127.0.0.1:0\"\n respond \"/\" 200 \"first\"\n respond \"/empty\" 204 \"\"\n}\n\
         site \"*.b.example\" {\n listen \"127.0.0.1:0\"\n respond \"/\" 200 \"second\"\n}\n\
         site {\n listen \"127.0.0.1:0\"\n respond \"/\" 200 \"default\"\n redirect \"/old/*\" \"/new/{rest}{query}\" status=301\n}\n",
    )
}

#[test]
fn answers() {
    let server = server();
    for (name, input, starts, contains) in [
        ("by name", "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n", "HTTP/1.1 200 OK\r\n", "\r\n\r\nfirst"),
        (
            "name in capitals, with port and dot",
            "GET / HTTP/1.1\r\nHost: A.Example.:80\r\n\r\n",
            "HTTP/1.1 200",
            "first",
        ),
        ("by wildcard", "GET / HTTP/1.1\r\nHost: x.y.b.example\r\n\r\n", "HTTP/1.1 200", "second"),
        ("by default", "GET / HTTP/1.1\r\nHost: b.example\r\n\r\n", "HTTP/1.1 200", "default"),
        ("absolute-form", "GET http://a.example/ HTTP/1.1\r\nHost: other\r\n\r\n", "HTTP/1.1 200", "first"),
        ("without Host", "GET / HTTP/1.0\r\n\r\n", "HTTP/1.1 200", "Connection: close\r\n\r\ndefault"),
        (
            "HTTP/1.0 kept alive",
            "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
            "HTTP/1.1 200",
            "Connection: keep-alive\r\n\r\ndefault",
        ),
        ("HEAD", "HEAD / HTTP/1.1\r\nHost: h\r\n\r\n", "HTTP/1.1 200", "Content-Length: 7\r\n\r\n"),
        ("no content", "GET /empty HTTP/1.1\r\nHost: a.example\r\n\r\n", "HTTP/1.1 204 No Content\r\n", "\r\n\r\n"),
        ("redirect", "GET /old/a%20b?c HTTP/1.1\r\nHost: h\r\n\r\n", "HTTP/1.1 301", "Location: /new/a%20b?c\r\n"),
        ("nothing there", "GET /x HTTP/1.1\r\nHost: h\r\n\r\n", "HTTP/1.1 404", "<html"),
        ("as JSON", "GET /x HTTP/1.1\r\nHost: h\r\nAccept: application/json\r\n\r\n", "HTTP/1.1 404", "\"status\":404"),
        ("unknown method", "BREW / HTTP/1.1\r\nHost: a.example\r\n\r\n", "HTTP/1.1 200", "first"),
        (
            "server-wide options",
            "OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n",
            "HTTP/1.1 204",
            "Allow: GET, HEAD, OPTIONS\r\n",
        ),
        ("TLS to the wrong port", "\u{16}\u{3}\u{1}", "HTTP/1.1 400", "Connection: close\r\n"),
    ] {
        let answer = server.exchange(input.as_bytes());
        assert!(answer.starts_with(starts) && answer.contains(contains), "{name}: {answer}");
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let server = server();
    let mut input = String::new();
    let mut expect = Vec::new();
    for number in 0..1_000 {
        let (host, body) = [("a.example", "first"), ("x.b.example", "second"), ("c", "default")][number % 3];
        input.push_str(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        expect.push(body);
    }
    let answer = server.exchange(input.as_bytes());
    let bodies: Vec<&str> =
        answer.split("HTTP/1.1 200 OK").skip(1).map(|one| one.split_once("\r\n\r\n").unwrap().1).collect();
    assert_eq!(bodies, expect);
}

#[test]
fn a_small_file_that_is_asked_for_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("small");
    std::fs::write(&path, "one!").unwrap();
    let server = TestServer::run(&format!(
        "server {{\n workers 1\n}}\nsite {{\n listen \"127.0.0.1:0\"\n root \"{}\"\n}}\n",
        directory.path().display()
    ));
    let get = "GET /small HTTP/1.1\r\nHost: h\r\n\r\n";
    let mut streams: Vec<_> = (0..40).map(|_| server.connect()).collect();
    let mut ask_all = |content: &str| {
        streams.iter_mut().for_each(|stream| stream.write_all(get.as_bytes()).unwrap());
        let answers: Vec<_> = streams.iter_mut().map(|stream| read_until(stream, "!")).collect();
        answers.iter().all(|answer| {
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
            let content_length = format!("Content-Length: {}\r\n", answer.rsplit("\r\n").next().unwrap().len());
            assert!(answer.contains(&content_length), "{answer}");
            answer.ends_with(&format!("\r\n\r\n{content}"))
        })
    };
    assert!((0..4).all(|_| ask_all("one!")));
    let head = "HEAD /small HTTP/1.1\r\nHost: h\r\n\r\n";
    let part = "GET /small HTTP/1.1\r\nHost: h\r\nRange: bytes=1-2\r\n\r\n";
    let missing = "GET /missing HTTP/1.1\r\nHost: h\r\n\r\n";
    let last = "GET /small HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    let answers = server.exchange([get, head, part, get, get, missing, get, last].concat().as_bytes());
    let contents = answers.split("HTTP/1.1 ").skip(1).map(|answer| {
        let (head, content) = answer.split_once("\r\n\r\n").unwrap();
        (&head[..3], if content.len() > 4 { "page" } else { content })
    });
    let expect = [
        ("200", "one!"),
        ("200", ""),
        ("206", "ne"),
        ("200", "one!"),
        ("200", "one!"),
        ("404", "page"),
        ("200", "one!"),
        ("200", "one!"),
    ];
    assert_eq!(contents.collect::<Vec<_>>(), expect);
    std::fs::write(directory.path().join("new"), "another!").unwrap();
    std::fs::rename(directory.path().join("new"), &path).unwrap();
    // The server notices within a second.
    eventually("the new file is served", || ask_all("another!"));
    assert!((0..4).all(|_| ask_all("another!")));
}

#[test]
fn content_is_read_and_the_next_request_begins_after_it() {
    let server = server();
    let answer = server.exchange(
        b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 35\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n\
          POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nGET \r\n0\r\nTrailer: x\r\n\r\n\
          GET /last HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
    );
    let statuses: Vec<&str> = answer.split("HTTP/1.1 ").skip(1).map(|one| &one[..3]).collect();
    assert_eq!(statuses, ["200", "200", "404"]);
}

#[test]
fn a_client_that_waits_for_100_gets_it() {
    let server = server();
    let mut stream = server.connect();
    let head = b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n";
    stream.write_all(head).unwrap();
    assert_eq!(read_until(&mut stream, "\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"abc").unwrap();
    assert!(read_until(&mut stream, "default").starts_with("HTTP/1.1 200 OK\r\n"));
    // A client that sends content at once needs no 100 (Continue).
    stream.write_all(head).unwrap();
    stream.write_all(b"abcGET /x HTTP/1.0\r\n\r\n").unwrap();
    let answers = read_all(&mut stream);
    assert!(answers.contains("HTTP/1.1 404"), "{answers}");
}
