//! Attacks on kept upstream connections: a client prepares the response that the next client gets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::h2::H2Client;
use crate::support::operated::Operated;
use crate::support::upstream::ScriptStep::{Fill, Pause, Read as Await, Write as Say};
use crate::support::upstream::ScriptedUpstream;
use crate::support::{TestServer, ask, read_all, read_until};

const HEAD: &str = "\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n/good";
const EVIL: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n/evil";
const GET: &str = "GET /good HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";

/// Content that an upstream takes for a request: a complete one, with a late response, and one that swallows the next
/// request.
const HIDDEN: [&str; 2] = ["GET /evil HTTP/1.1\r\nHost: h\r\n\r\n", "GET /evil HTTP/1.1\r\nX: "];

/// Upstream whose responses have the path of their request as content.
struct Back {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl Back {
    /// Upstream that ignores Content-Length: it takes the bytes after a head for the next request.
    fn deaf() -> Self {
        Self::start(false)
    }

    fn sound() -> Self {
        Self::start(true)
    }

    fn start(reads_content: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, connections) = (listener.local_addr().unwrap(), Arc::<AtomicUsize>::default());
        let counted = Arc::clone(&connections);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                counted.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || answer_heads(stream.unwrap(), reads_content));
            }
        });
        Self { address, connections }
    }
}

fn answer_heads(mut stream: TcpStream, reads_content: bool) {
    let (mut input, mut buffer) = (String::new(), [0; 4096]);
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        input.push_str(&String::from_utf8_lossy(&buffer[..count]));
        while let Some((head, rest)) = input.split_once(HEAD) {
            let path = head.split(' ').nth(1).unwrap_or_default();
            let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")?.parse().ok());
            let content_bytes = length.filter(|_| reads_content).unwrap_or(0);
            if rest.len() < content_bytes {
                break;
            }
            if path == "/evil" {
                // The connection is idle meanwhile.
                std::thread::sleep(Duration::from_millis(200));
            }
            let length = path.len();
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nCache-Control: max-age=60\r\n\r\n{path}"
            );
            input = rest[content_bytes..].to_owned();
        }
    }
}

fn config(upstream: SocketAddr, options: &str, of_forward: &str) -> String {
    format!(
        "upstream \"u\" {{\n server \"http://{upstream}\"\n {options}\n}}\n\
         site {{\n listen \"127.0.0.1:0\"\n forward \"u\" {{\n {of_forward}\n }}\n}}\n"
    )
}

fn front(upstream: SocketAddr, options: &str, of_server: &str, of_forward: &str) -> TestServer {
    let server = format!("server {{\n workers 1\n {of_server}\n}}\n");
    TestServer::run(&(config(upstream, options, of_forward) + &server))
}

/// Sends content on this connection, with these fields, and reads the upstream's response.
fn hide(stream: &mut TcpStream, fields: &str, content: &str) {
    let length = content.len();
    write!(stream, "POST /post HTTP/1.1\r\nHost: h\r\n{fields}Content-Length: {length}\r\n\r\n{content}").unwrap();
    read_until(stream, "\r\n\r\n/post");
}

/// Response to another client.
fn other_client(server: &TestServer) -> String {
    let mut stream = server.connect_from([127, 0, 0, 2]);
    stream.write_all(GET.as_bytes()).unwrap();
    read_all(&mut stream)
}

/// Response-queue poisoning (CL.0; issue 17, defect 4).
#[test]
fn hidden_content_is_answered_to_no_other_client() {
    for policy in ["", "reuse safe", "reuse never"] {
        for hidden in HIDDEN {
            let upstream = Back::deaf();
            let server = front(upstream.address, policy, "", "");
            let mut attackers = [server.connect(), server.connect()];
            for attacker in &mut attackers {
                hide(attacker, "", hidden);
            }
            for _ in 0..4 {
                let answer = other_client(&server);
                assert!(answer.ends_with("\r\n\r\n/good"), "{policy} {hidden}: {answer}");
            }
        }
    }
    // Control: with `reuse always`, the attack succeeds.
    let upstream = Back::deaf();
    let server = front(upstream.address, "reuse always", "", "");
    hide(&mut server.connect(), "", HIDDEN[1]);
    let answer = other_client(&server);
    assert!(answer.ends_with("\r\n\r\n/evil"), "{answer}");
}

#[test]
fn hidden_content_is_answered_to_no_other_client_of_http2() {
    for hidden in HIDDEN {
        let upstream = Back::deaf();
        let server = front(upstream.address, "", "", "");
        let (mut attacker, mut other) = (H2Client::connect(&server), H2Client::connect(&server));
        for _ in 0..2 {
            let stream = attacker.ask("POST", "/post", &[], false);
            attacker.send(stream, hidden.as_bytes(), true);
            assert_eq!(attacker.finish(stream).status(), 200);
        }
        for _ in 0..4 {
            assert_eq!(other.get("/good").content, b"/good", "{hidden}");
        }
        let answer = other_client(&server);
        assert!(answer.ends_with("\r\n\r\n/good"), "{hidden}: {answer}");
    }
}

/// A proxy in front sends requests of many clients over one connection.
#[test]
fn clients_of_a_proxy_are_reported_apart() {
    for (of_server, fields) in [
        ("trusted-proxies \"127.0.0.1\"", "X-Forwarded-For: 192.0.2.1\r\n"),
        ("", "X-Forwarded-For: 192.0.2.1\r\n"),
        ("", "Forwarded: for=192.0.2.1\r\n"),
        ("", "Via: 1.1 proxy\r\n"),
    ] {
        for hidden in HIDDEN {
            let upstream = Back::deaf();
            let server = front(upstream.address, "", of_server, "");
            let mut proxy = server.connect();
            hide(&mut proxy, fields, hidden);
            let other = fields.replace("192.0.2.1", "192.0.2.2");
            write!(proxy, "GET /good HTTP/1.1\r\nHost: h\r\n{other}Connection: close\r\n\r\n").unwrap();
            let answer = read_all(&mut proxy);
            assert!(answer.ends_with("\r\n\r\n/good"), "{of_server} {fields} {hidden}: {answer}");
        }
    }
}

/// A response on a prepared connection must not be stored for others.
#[test]
fn hidden_content_is_not_stored() {
    let upstream = Back::deaf();
    let server = front(upstream.address, "", "", "cache { }");
    let mut attacker = server.connect();
    hide(&mut attacker, "", HIDDEN[1]);
    attacker.write_all(GET.as_bytes()).unwrap();
    for answer in [read_all(&mut attacker), other_client(&server), ask(&server, GET)] {
        assert!(answer.ends_with("\r\n\r\n/good"), "{answer}");
    }
}

#[test]
fn hidden_content_is_answered_to_no_other_client_after_a_reload() {
    let upstream = Back::deaf();
    for hidden in HIDDEN {
        let operated = Operated::start(&config(upstream.address, "", ""));
        let mut attacker = operated.server.connect();
        for (options, of_forward) in [("", "first-byte-timeout \"9s\""), ("idle-max 9", ""), ("idle-max 9", "")] {
            hide(&mut attacker, "", hidden);
            operated.reload(&config(upstream.address, options, of_forward));
            for _ in 0..2 {
                let answer = other_client(&operated.server);
                assert!(answer.ends_with("\r\n\r\n/good"), "{options} {of_forward} {hidden}: {answer}");
            }
            attacker = operated.server.connect();
        }
    }
}

/// An upstream sends content where a response has none, or more than it has promised. The next client must not get it
/// as a response.
#[test]
fn content_where_none_belongs_is_no_response() {
    for (request, answer) in [
        ("HEAD", vec![Await(HEAD), Say("HTTP/1.1 200 OK\r\nContent-Length: 43\r\n\r\n"), Pause(300), Say(EVIL)]),
        (
            "GET",
            vec![Await(HEAD), Say("HTTP/1.1 304 Not Modified\r\nContent-Length: 43\r\n\r\n"), Pause(300), Say(EVIL)],
        ),
        ("GET", vec![Await(HEAD), Say("HTTP/1.1 204 No Content\r\nContent-Length: 43\r\n\r\n"), Pause(300), Say(EVIL)]),
        ("GET", vec![Await(HEAD), Say("HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n"), Fill(300_000), Say(EVIL)]),
    ] {
        let shown = format!("{request} {answer:?}");
        let script = [answer, vec![Await("never")]].concat();
        let upstream = ScriptedUpstream::start(vec![script, vec![Await(HEAD), Say(OK), Await(HEAD), Say(OK)]]);
        let server = front(upstream.address, "", "", "");
        let first = ask(&server, &format!("{request} /first HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
        assert!(!first.contains("/evil"), "{shown}");
        for _ in 0..2 {
            let answer = other_client(&server);
            assert!(answer.ends_with("\r\n\r\n/good"), "{shown}: {answer}");
        }
    }
}

/// Cost of the policy: connections opened for two clients, which both send two requests with content, and then one
/// without.
#[test]
fn connections_are_kept_as_far_as_the_policy_allows() {
    for (options, expect) in [("", 2), ("reuse never", 2), ("reuse always", 1), ("idle-max 0", 6)] {
        let upstream = Back::sound();
        let server = front(upstream.address, options, "", "");
        for mut client in [server.connect(), server.connect()] {
            hide(&mut client, "", "content");
            hide(&mut client, "", "content");
            client.write_all(b"GET /get HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
            read_until(&mut client, "\r\n\r\n/get");
        }
        assert_eq!(upstream.connections.load(Ordering::SeqCst), expect, "{options}");
    }
    // Without content, clients share.
    let upstream = Back::sound();
    let server = front(upstream.address, "", "", "");
    for _ in 0..3 {
        assert!(other_client(&server).ends_with("/good"));
    }
    assert_eq!(upstream.connections.load(Ordering::SeqCst), 1);
}
