//! Limits of request content, by handler.

use std::io::Write;
use std::net::SocketAddr;

use crate::support::h2::H2Client;
use crate::support::port::free_port;
use crate::support::upstream::ScriptStep::{Read as Await, Write as Say};
use crate::support::upstream::ScriptedUpstream;
use crate::support::{TestServer, ask, read_all, read_until};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";

/// Site that responds at `/here` and forwards the rest, with limits of all sites, of the site, and of `forward`.
fn server(upstream: SocketAddr, limits: &str, site: &str, forward: &str) -> TestServer {
    TestServer::run(&format!(
        "limits {{ {limits} }}\nsite {{\n listen \"127.0.0.1:0\"\n {site}\n respond \"/here\" 200 \"here\"\n\
         forward \"http://{upstream}\" {{ {forward} }}\n}}\nserver {{ workers 1 }}\n"
    ))
}

fn post(path: &str, content_length: u64) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: {content_length}\r\n\r\n")
}

#[test]
fn the_narrowest_place_that_says_something_counts() {
    const MIB: u64 = 1 << 20;
    const MANY: u64 = 1 << 40;
    // Options, and the content limits that result for local and forwarded requests.
    for (limits, site, forward, here, there) in [
        ("", "", "", MIB, MANY),
        ("body-bytes-max auto", "", "", MIB, MANY),
        ("body-bytes-max 10", "", "", 10, 10),
        ("body-bytes-max 10", "", "body-bytes-max auto", 10, MANY),
        ("body-bytes-max 10", "body-bytes-max 20", "", 20, 20),
        ("body-bytes-max 10", "body-bytes-max auto", "", MIB, MANY),
        ("body-bytes-max 10", "body-bytes-max 20", "body-bytes-max 30", 20, 30),
        ("", "", "body-bytes-max 30", MIB, 30),
    ] {
        let name = format!("{limits}; {site}; {forward}");
        let upstream = ScriptedUpstream::start(vec![vec![Await("\r\n\r\n"), Say(OK)]]);
        let server = server(upstream.address, limits, site, forward);
        let status = |path, length| ask(&server, &post(path, length))[9..12].to_owned();
        assert_eq!(status("/here", here + 1), "413", "{name}");
        assert_eq!(status("/there", there), "200", "{name}");
        if there < MANY {
            assert_eq!(status("/there", there + 1), "413", "{name}");
        }
        let content = "x".repeat(usize::try_from(here).unwrap());
        assert!(ask(&server, &(post("/here", here) + &content)).ends_with("\r\n\r\nhere"), "{name}");
    }
}

#[test]
fn what_is_too_large_is_not_asked_for() {
    let upstream = ScriptedUpstream::start(vec![vec![Await("never")]]);
    let server = server(upstream.address, "", "error-page 413 \"file:/dev/null\"", "body-bytes-max 10");
    for path in ["/here", "/there"] {
        let request = format!(
            "PUT {path} HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
            (1 << 20) + 1
        );
        let answer = ask(&server, &request);
        assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("\r\nConnection: close\r\n"), "{answer}");
    }
    drop(server);
    assert!(upstream.try_connection().is_none(), "the upstream got no request");
}

#[test]
fn chunks_that_become_too_large_break_the_request_off() {
    let upstream = ScriptedUpstream::start(vec![vec![Await("12345")], vec![Await("0\r\n\r\n"), Say(OK)]]);
    let server = server(upstream.address, "", "", "body-bytes-max 10");
    let head = "POST /there HTTP/1.1\r\nHost: h\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
    let mut stream = server.connect();
    write!(stream, "{head}5\r\n12345\r\n").unwrap();
    // The request is already forwarded when the rest arrives.
    upstream.await_received("12345");
    stream.write_all(b"5\r\n67890\r\n1\r\nx\r\n0\r\n\r\n").unwrap();
    let answer = read_all(&mut stream);
    assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("\r\nConnection: close\r\n"), "{answer}");
    let seen = upstream.connection();
    assert!(seen.ends_with("5\r\n12345\r\n") || seen.ends_with("5\r\n67890\r\n"), "{seen}");
    let within = ask(&server, &format!("{head}5\r\n12345\r\n5\r\n67890\r\n0\r\n\r\n"));
    assert!(within.ends_with("\r\n\r\nok"), "{within}");
}

#[test]
fn content_is_not_read_for_a_server_that_is_not_there() {
    let rejected = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let server = server(rejected, "", "", "");
    for framing in ["Content-Length: 1000000000", "Transfer-Encoding: chunked"] {
        let mut stream = server.connect();
        write!(stream, "POST /there HTTP/1.1\r\nHost: h\r\n{framing}\r\n\r\n").unwrap();
        let answer = read_until(&mut stream, "\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains("\r\nConnection: close\r\n"), "{answer}");
    }
}

/// Handlers that are chosen after a file lookup, or after a password was verified, set their limits late.
#[test]
fn limits_of_handlers_that_are_chosen_late_hold_in_each_version() {
    let directory = tempfile::tempdir().unwrap();
    // "secret", by bcrypt.
    let users = "anna:$2y$04$USlQL2vC6spKq95MSYEm3uNnq7slZq6x5EScR7gHq60GayFU4aX1K\n";
    std::fs::write(directory.path().join("users"), users).unwrap();
    std::fs::create_dir(directory.path().join("root")).unwrap();
    let path = directory.path().display();
    let site = format!("root \"{path}/root\"\n basic-auth \"/members/*\" \"{path}/users\"");
    let upstream = ScriptedUpstream::start(vec![vec![Await("END"), Say(OK)]]);
    for (forward, length, expect) in
        [("", 2_500_000, 200), ("body-bytes-max \"1KiB\"", 500_000, 413), ("body-bytes-max \"1KiB\"", 1_000, 200)]
    {
        let content = "x".repeat(length - 3) + "END";
        for target in ["/missing", "/members/missing"] {
            // Each has a new server: the second lookup of a file does not wait.
            let server = server(upstream.address, "", &site, forward);
            let mut stream = server.connect();
            let head = "Authorization: Basic YW5uYTpzZWNyZXQ=\r\nTransfer-Encoding: chunked";
            write!(stream, "POST {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{head}\r\n\r\n").unwrap();
            // The server may stop reading.
            let _ = write!(stream, "{length:x}\r\n{content}\r\n0\r\n\r\n");
            assert_eq!(read_all(&mut stream)[9..12], expect.to_string(), "{forward} {target}");
            let server = self::server(upstream.address, "", &site, forward);
            let mut client = H2Client::connect(&server);
            let stream = client.ask("POST", target, &[("authorization", "Basic YW5uYTpzZWNyZXQ=")], false);
            client.send(stream, content.as_bytes(), true);
            assert_eq!(client.finish(stream).status(), expect, "{forward} {target} over HTTP/2");
            // The connection serves on, also uploads.
            let stream = client.ask("POST", "/here", &[], false);
            client.send(stream, &[b'x'; 1 << 20], true);
            assert_eq!(client.finish(stream).status(), 200, "{forward} {target}");
        }
    }
}
