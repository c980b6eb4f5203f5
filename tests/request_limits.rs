//! Limits of request rate and concurrency by client, on the built server.

use std::io::{Read, Write};

use crate::support::waiting::{eventually, eventually_some};
use crate::support::{LARGE_BYTES, TestServer, read_until, site_with_large_file};

fn status_and_wait(server: &TestServer, target: &str, fields: &str) -> (String, Option<u64>) {
    let answer = server.exchange(format!("GET {target} HTTP/1.1\r\nHost: h\r\n{fields}\r\n").as_bytes());
    let wait = answer.lines().find_map(|line| line.strip_prefix("Retry-After: ")?.parse().ok());
    (answer.get(9..12).unwrap_or_default().to_owned(), wait)
}

#[test]
fn rates() {
    let server = TestServer::run(
        "server { workers 2; trusted-proxies \"127.0.0.1\" }\n\
         rate-limit \"/shared\" \"3/h\"\n\
         site {\n listen \"127.0.0.1:0\"\n respond \"*\" 200 \"ok\"\n\
         rate-limit \"/login\" \"6/h\" burst=4\n\
         rate-limit \"/key\" \"1/d\" key=\"field:X-Key\" status=503\n\
         rate-limit \"/dry\" \"1/d\" dry-run=on\n\
         rate-limit \"/quick\" \"5/s\" burst=1\n\
         rewrite \"/way/in\" \"/login\"\n}\n\
         site \"other.example\" {\n listen \"127.0.0.1:0\"\n respond \"*\" 200 \"ok\"\n}\n",
    );
    let check = |target: &str, fields: &str, expect: &[&str]| {
        let found: Vec<_> = expect.iter().map(|_| status_and_wait(&server, target, fields).0).collect();
        assert_eq!(found, expect, "{target} {fields}");
    };
    check("/login", "", &["200", "200", "200"]);
    check("/way/in", "", &["200", "429"]);
    check("/login?x", "", &["429"]);
    let (_, wait) = status_and_wait(&server, "/login", "");
    assert!(wait.is_some_and(|wait| (500..=600).contains(&wait)), "one comes back in ten minutes: {wait:?}");
    check("/other", "", &["200"; 10]);
    // Each client has its own limit; for IPv6, each network.
    check("/login", "X-Forwarded-For: 192.0.2.1\r\n", &["200", "200", "200", "200", "429"]);
    check("/login", "X-Forwarded-For: 2001:db8::1\r\n", &["200", "200", "200", "200", "429"]);
    check("/login", "X-Forwarded-For: 2001:db8::2\r\n", &["429"]);
    check("/key", "X-Key: a\r\n", &["200", "503"]);
    check("/key", "X-Key: b\r\n", &["200", "503"]);
    check("/key", "", &["200", "503"]);
    check("/dry", "", &["200"; 5]);
    // Shared by all sites.
    check("/shared", "", &["200", "200"]);
    let answer = server.exchange(b"GET /shared HTTP/1.1\r\nHost: other.example\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    check("/shared", "", &["429"]);
    check("/quick", "", &["200"]);
    eventually("it comes back", || status_and_wait(&server, "/quick", "").0 == "200");
}

#[test]
fn requests_at_the_same_time() {
    let directory = site_with_large_file();
    let server = TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n root \"{}\"\n request-limit \"/large\" 2\n respond \"/small\" 200 \"ok\"\n}}\n",
        directory.path().display()
    ));
    let begin = || {
        let mut stream = server.connect();
        stream.write_all(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        let start = read_until(&mut stream, "\r\n\r\n");
        (stream, start)
    };
    let (mut first, head) = begin();
    assert!(head.starts_with("HTTP/1.1 200"), "{head:.100}");
    let (second, head) = begin();
    assert!(head.starts_with("HTTP/1.1 200"), "{head:.100}");
    assert_eq!(status_and_wait(&server, "/large", ""), ("429".into(), Some(1)));
    assert_eq!(status_and_wait(&server, "/small", ""), ("200".into(), None));
    // One ends because the client reads it, the other because the client leaves.
    let mut taken = 0;
    let mut buffer = vec![0; 1 << 16];
    while taken < LARGE_BYTES - (1 << 17) {
        let count = first.read(&mut buffer).unwrap();
        assert!(count > 0);
        taken += count;
    }
    let await_place = || {
        eventually_some("a place becomes free", || {
            let (stream, head) = begin();
            head.starts_with("HTTP/1.1 200").then_some(stream)
        })
    };
    first.read_exact(&mut vec![0; 1 << 10]).unwrap();
    drop(first);
    let _third = await_place();
    drop(second);
    let _fourth = await_place();
    assert_eq!(status_and_wait(&server, "/large", "").0, "429");
}

#[test]
fn connections_of_one_client() {
    let server = TestServer::run(
        "server { workers 2 }\nlimits { connections-per-client-max 3 }\n\
         site {\n listen \"127.0.0.1:0\"\n respond \"*\" 200 \"ok\"\n}\n",
    );
    let serves = || {
        let mut stream = server.connect();
        let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        let mut byte = [0];
        matches!(stream.read(&mut byte), Ok(1)).then_some(stream)
    };
    let open: Vec<_> = (0..3).map(|_| serves().expect("up to the limit")).collect();
    assert!(serves().is_none() && serves().is_none(), "no more than that");
    drop(open);
    eventually("a closed connection makes room", || serves().is_some());
}
