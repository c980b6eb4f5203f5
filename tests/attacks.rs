//! Attacks on the server as a whole, each named for what was tried.

use std::io::Write;
use std::time::Duration;

use crate::support::{Server, read_all};

/// A client that resets its connection before its answers are sent must not have them sent to the next one: what a
/// worker could not send is dropped, though all its connections gather output in the same buffer.
#[test]
fn answers_to_a_client_that_resets_never_reach_another() {
    let site = tempfile::tempdir().unwrap();
    std::fs::write(site.path().join("large"), "x".repeat(100_000)).unwrap();
    let server = Server::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n respond \"/private\" 200 \"private\"\n respond \"/\" 200 \"public\"\n \
         root \"{}\"\n}}\nserver {{ workers 1 }}\n",
        site.path().display()
    ));
    for requests in [
        "GET /private HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
        "GET /private HTTP/1.1\r\nHost: h\r\n\r\n".repeat(300),
        "GET /private HTTP/1.1\r\nHost: h\r\n\r\nGET /large HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
        "GET /private HTTP/1.1\r\nHost: h\r\n\r\nmalformed\r\n\r\n".to_owned(),
    ] {
        // Request and reset are there when it looks, and so is the next client.
        server.signal("STOP");
        let mut resetting = server.connect();
        resetting.write_all(requests.as_bytes()).unwrap();
        socket2::SockRef::from(&resetting).set_linger(Some(Duration::ZERO)).unwrap();
        drop(resetting);
        let mut next = server.connect();
        next.write_all(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").unwrap();
        server.signal("CONT");
        let answer = read_all(&mut next);
        assert!(answer.ends_with("\r\n\r\npublic"), "{answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
    }
}
