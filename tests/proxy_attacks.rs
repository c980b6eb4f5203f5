//! Attacks on what stands between clients and the servers behind: on what those are told, and on their connections.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::support::upstream::Step::{Fill, Read as Await, Write as Say};
use crate::support::upstream::Upstream;
use crate::support::{PATIENCE, Server, ask, read_all};

const HEAD: &str = "\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
const GET: &str = "GET /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";

/// A server before these servers, with options of `upstream`, of its site, and of `forward`.
fn front(servers: &[SocketAddr], upstream: &str, site: &str, forward: &str) -> Server {
    let servers: String = servers.iter().map(|address| format!(" server \"http://{address}\"\n")).collect();
    Server::run(&format!(
        "upstream \"u\" {{\n{servers} {upstream}\n}}\n\
         site {{\n listen \"127.0.0.1:0\"\n {site}\n forward \"u\" {{\n {forward}\n }}\n}}\nserver {{ workers 1 }}\n"
    ))
}

/// What the operator tells a server can't be said by clients as well, nor be taken away by them.
#[test]
fn told_fields_are_ours_however_they_are_spelt() {
    for lines in [
        "Connection: close\r\nX_User: admin\r\nx-edge: evil\r\nX_EDGE: evil\r\n",
        "Connection: close, X-Edge\r\nx_user: admin\r\n",
    ] {
        let upstream = Upstream::start(vec![vec![Await(HEAD), Say(OK)]]);
        let site = "request-header \"X-User\" \"{user}\"\n request-header \"X-Edge\" \"secret\"";
        let server = front(&[upstream.address], "", site, "");
        ask(&server, &format!("GET /a HTTP/1.1\r\nHost: h\r\n{lines}\r\n"));
        let seen = upstream.connection();
        assert!(seen.contains("X-Edge: secret\r\n"), "{lines}: {seen}");
        assert!(!seen.contains("admin") && !seen.contains("evil"), "{lines}: {seen}");
    }
}

/// Servers may join trailers to the head.
#[test]
fn trailers_are_no_way_around_rules() {
    let upstream = Upstream::start(vec![vec![Await(HEAD), Await("X-Sum: 1\r\n\r\n"), Say(OK)]]);
    let server = front(&[upstream.address], "", "request-header \"X-User\" \"{user}\"", "");
    ask(
        &server,
        "POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n1\r\na\r\n0\r\nX-User: evil\r\n\
         X_user: evil\r\nX_Forwarded_For: evil\r\nProxy: evil\r\nContent_Length: 9evil\r\nX-Sum: 1\r\n\r\n",
    );
    let seen = upstream.connection();
    assert!(!seen.contains("evil"), "{seen}");
}

#[test]
fn what_follows_a_request_does_not_hide_that_its_client_has_gone() {
    for (behind, is_reset) in [("", false), ("G", false), ("G", true), (GET, false)] {
        let upstream = Upstream::start(vec![vec![Await(HEAD), Await("never")]]);
        let server = front(&[upstream.address], "", "", "first-byte-timeout \"10m\"");
        let mut client = server.connect();
        client.write_all(format!("GET /hang HTTP/1.1\r\nHost: h\r\n\r\n{behind}").as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        if is_reset {
            socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
        }
        drop(client);
        // It ends only when it is given up. One for what follows may have begun.
        let mut ended = std::iter::repeat_with(|| upstream.connection()).take(2);
        assert!(ended.any(|seen| seen.starts_with("GET /hang ")), "{behind:?} {is_reset}");
    }
}

/// Whether a request waits, and is not answered 503 at once.
fn waits(stream: &mut TcpStream) -> bool {
    stream.write_all(GET.as_bytes()).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let answered = stream.read(&mut [0; 64]);
    answered.is_err_and(|error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
}

#[test]
fn clients_that_left_are_in_no_queue() {
    let upstream = Upstream::start(vec![vec![Await(HEAD), Await("never")]]);
    let limits = "connections-max 1\n queue-max 8\n queue-timeout \"10m\"";
    let server = front(&[upstream.address], limits, "", "");
    let mut holding = server.connect();
    holding.write_all(b"GET /hang HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    std::thread::sleep(Duration::from_millis(300));
    for number in 2..60 {
        server.connect_from([127, 0, 0, number]).write_all(GET.as_bytes()).unwrap();
    }
    // When the server has seen to all of them, the queue is empty.
    let began = Instant::now();
    while !waits(&mut server.connect()) {
        assert!(began.elapsed() < PATIENCE / 2, "the queue stays full");
    }
}

#[test]
fn one_client_can_not_fill_the_queue() {
    let upstream = Upstream::start(vec![vec![Await(HEAD), Await("never")]]);
    let limits = "connections-max 1\n queue-max 16\n queue-timeout \"10m\"";
    let server = front(&[upstream.address], limits, "", "first-byte-timeout \"10m\"");
    let attackers: Vec<_> = (0..40)
        .map(|_| {
            let mut attacker = server.connect();
            attacker.write_all(GET.as_bytes()).unwrap();
            attacker
        })
        .collect();
    std::thread::sleep(Duration::from_millis(300));
    assert!(waits(&mut server.connect_from([127, 0, 0, 2])), "refused");
    drop(attackers);
}

/// A client that asks for what the server can't answer well must not have it passed over for all.
#[test]
fn faulty_answers_do_not_take_a_server_out() {
    let large = || vec![Await(HEAD), Say("HTTP/1.1 302 Found\r\nX: "), Fill(70_000), Say("\r\n\r\n")];
    let split = || vec![Await(HEAD), Say("HTTP/1.1 200 OK\r\nX: a\nb\r\nContent-Length: 0\r\n\r\n")];
    let main = Upstream::start(vec![large(), split(), large(), split(), large(), vec![Await(HEAD), Say(OK)]]);
    let backup = Upstream::start(vec![vec![Await(HEAD), Say("HTTP/1.1 299 Backup\r\nContent-Length: 0\r\n\r\n")]]);
    let spare = format!("server \"http://{}\" backup=on", backup.address);
    let server = front(&[main.address], &spare, "", "");
    for _ in 0..5 {
        let answer = ask(&server, GET);
        assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    }
    let answer = ask(&server, GET);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[test]
fn heads_may_be_as_large_as_they_may() {
    let large = vec![Await(HEAD), Say("HTTP/1.1 200 OK\r\nX: "), Fill(100_000), Say("\r\nContent-Length: 2\r\n\r\nok")];
    let upstream = Upstream::start(vec![large]);
    let server = front(&[upstream.address], "", "", "response-head-bytes-max \"1MiB\"");
    let mut stream = server.connect();
    stream.write_all(GET.as_bytes()).unwrap();
    let answer = read_all(&mut stream);
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nok"), "{}", answer.len());
}

/// The same, where another fetches what they wanted: the log tells when they are done with.
#[test]
fn clients_that_left_wait_for_no_fetch() {
    let upstream = Upstream::start(vec![vec![Await(HEAD), Await("never")]]);
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let site = format!("access-log \"{}\" format=\"{{status}}\"", log.display());
    let server = front(&[upstream.address], "", &site, "cache { collapse-timeout \"10m\" }");
    let mut clients = [server.connect(), server.connect()];
    for client in &mut clients {
        client.write_all(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        std::thread::sleep(Duration::from_millis(300));
    }
    let [_fetching, waiting] = clients;
    drop(waiting);
    let began = Instant::now();
    while std::fs::read_to_string(&log).unwrap_or_default() != "499\n" {
        assert!(began.elapsed() < PATIENCE / 2, "still waits");
        std::thread::sleep(Duration::from_millis(50));
    }
}
