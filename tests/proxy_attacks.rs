//! Attacks on upstreams and their connections: forged fields and disturbed requests.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::support::port::free_port;
use crate::support::upstream::ScriptStep::{Fill, Read as Await, Write as Say};
use crate::support::upstream::ScriptedUpstream;
use crate::support::waiting::{await_read, eventually};
use crate::support::{PATIENCE, TestServer, ask, read_all};

const HEAD: &str = "\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
const GET: &str = "GET /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";

/// Server in front of these upstreams, with options of `upstream`, of its site, and of `forward`.
fn front(servers: &[SocketAddr], upstream: &str, site: &str, forward: &str) -> TestServer {
    let servers: String = servers.iter().map(|address| format!(" server \"http://{address}\"\n")).collect();
    TestServer::run(&format!(
        "upstream \"u\" {{\n{servers} {upstream}\n}}\n\
         site {{\n listen \"127.0.0.1:0\"\n {site}\n forward \"u\" {{\n {forward}\n }}\n}}\nserver {{ workers 1 }}\n"
    ))
}

/// Clients can neither set nor remove the fields that the operator's configuration sets.
#[test]
fn reported_fields_are_ours_however_they_are_spelt() {
    for lines in [
        "Connection: close\r\nX_User: admin\r\nx-edge: evil\r\nX_EDGE: evil\r\n",
        "Connection: close, X-Edge\r\nx_user: admin\r\n",
    ] {
        let upstream = ScriptedUpstream::start(vec![vec![Await(HEAD), Say(OK)]]);
        let site = "request-header \"X-User\" \"{user}\"\n request-header \"X-Edge\" \"secret\"";
        let server = front(&[upstream.address], "", site, "");
        ask(&server, &format!("GET /a HTTP/1.1\r\nHost: h\r\n{lines}\r\n"));
        let seen = upstream.connection();
        assert!(seen.contains("X-Edge: secret\r\n"), "{lines}: {seen}");
        assert!(!seen.contains("admin") && !seen.contains("evil"), "{lines}: {seen}");
    }
}

/// Upstreams may merge trailers into the head: only named trailers pass (issue 17).
#[test]
fn trailers_are_no_way_around_rules() {
    for (options, last) in [("", "Content-Digest: 1"), ("request-trailers \"X-Sum\"", "X-Sum: 1")] {
        let upstream = ScriptedUpstream::start(vec![vec![Await(HEAD), Await("0\r\n"), Await(": 1\r\n\r\n"), Say(OK)]]);
        let server = front(&[upstream.address], "", "request-header \"X-User\" \"{user}\"", options);
        let head = "POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
        let trailers: String = [
            "X-User",
            "X_user",
            "X_Forwarded_For",
            "Proxy",
            "Content_Length",
            "X_Real_IP",
            "X-Real-IP",
            "Authorization",
            "X-Original-URL",
            "X-Admin",
            "X_Sum",
            "ETag",
            "Grpc-Status",
        ]
        .map(|name| format!("{name}: evil\r\n"))
        .concat();
        let answer = ask(&server, &format!("{head}1\r\na\r\n0\r\n{trailers}{last}\r\n\r\n"));
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        let seen = upstream.connection();
        assert!(!seen.contains("evil"), "{seen}");
        assert!(seen.ends_with(&format!("1\r\na\r\n0\r\n{last}\r\n\r\n")), "{seen}");
    }
}

/// The reverse direction: a client, or a proxy in front of us, may merge them, too.
#[test]
fn trailers_of_responses_pass_by_name() {
    const TRAILED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n1\r\na\r\n0\r\n\
        X-Admin: evil\r\nSet-Cookie: evil\r\nX_Sum: evil\r\nLocation: evil\r\nServer-Timing: a\r\nX-Sum: 1\r\n\
        grpc-status: 0\r\n\r\n";
    for (options, sum) in [("", ""), ("response-trailers \"X-Sum\"", "X-Sum: 1\r\n")] {
        let upstream = ScriptedUpstream::start(vec![vec![Await(HEAD), Say(TRAILED)]]);
        let server = front(&[upstream.address], "", "", options);
        let answer = ask(&server, GET);
        let expect = format!("\r\n\r\n1\r\na\r\n0\r\nServer-Timing: a\r\n{sum}grpc-status: 0\r\n\r\n");
        assert!(answer.ends_with(&expect), "{answer}");
    }
}

/// No option can name a field that must not be a trailer.
#[test]
fn no_option_lets_fields_of_the_head_be_trailers() {
    for option in ["request-trailers \"Authorization\"", "response-trailers \"X-A\" \"Set-Cookie\""] {
        let config = tempfile::NamedTempFile::new().unwrap();
        let text = format!("site {{\n listen \"127.0.0.1:0\"\n forward \"http://127.0.0.1:1\" {{ {option} }}\n}}\n");
        std::fs::write(config.path(), text).unwrap();
        let output = crate::support::tailcoat().arg("check").arg("-c").arg(config.path()).output().unwrap();
        let said = String::from_utf8([output.stderr, output.stdout].concat()).unwrap();
        assert!(!output.status.success() && said.contains("may not be a trailer field"), "{option}: {said}");
    }
}

/// No list contains an application's own metadata fields.
#[test]
fn metadata_of_grpc_passes_in_trailers() {
    let upstream = ScriptedUpstream::start(vec![vec![
        Await("\r\n\r\n"),
        Say(
            "HTTP/1.1 200 OK\r\nContent-Type: application/grpc\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n",
        ),
        Say("1\r\na\r\n0\r\nshop_order-bin: 1\r\nSet-Cookie: evil\r\ngrpc-status: 0\r\ngrpc-message: ok\r\n\r\n"),
    ]]);
    let server = front(&[upstream.address], "", "", "");
    let answer = ask(
        &server,
        "POST /a.B/C HTTP/1.1\r\nHost: h\r\nContent-Type: application/grpc\r\nTE: trailers\r\nConnection: close\r\n\
         Content-Length: 0\r\n\r\n",
    );
    assert!(answer.ends_with("0\r\nshop_order-bin: 1\r\ngrpc-status: 0\r\ngrpc-message: ok\r\n\r\n"), "{answer}");
}

/// A site forwards to itself. Each pass takes two file descriptors; there was no end before the head was too large
/// (issue 17).
#[test]
fn a_site_that_forwards_to_itself_is_a_loop() {
    for (options, passes_max) in
        [("", 10), ("via-passes-max 3", 3), ("via-name \"edge\"\n via-passes-max 2", 2), ("cache {}", 10)]
    {
        let directory = tempfile::tempdir().unwrap();
        let (log, port) = (directory.path().join("log"), free_port());
        let server = TestServer::run(&format!(
            "site {{\n listen \"127.0.0.1:{port}\"\n access-log \"{}\" format=\"{{status}}\"\n\
             forward \"http://127.0.0.1:{port}\" {{\n {options}\n }}\n}}\nserver {{ workers 1 }}\n",
            log.display()
        ));
        let answer = ask(&server, GET);
        assert!(answer.starts_with("HTTP/1.1 508 Loop Detected\r\n"), "{options}: {answer}");
        let expect = "508\n".repeat(passes_max + 1);
        eventually(&format!("{options}: each pass is logged"), || {
            let found = std::fs::read_to_string(&log).unwrap_or_default();
            assert!(found.len() <= expect.len(), "{options}: {found}");
            found == expect
        });
    }
}

/// A request may pass through several sites of one server, and several servers.
#[test]
fn some_passes_through_the_same_server_are_no_loop() {
    let upstream = ScriptedUpstream::start(vec![vec![Await(HEAD), Say(OK)]]);
    let ports: Vec<u16> = std::iter::repeat_with(free_port).take(10).collect();
    let mut targets: Vec<String> = ports[1..].iter().map(|port| format!("127.0.0.1:{port}")).collect();
    targets.push(upstream.address.to_string());
    let sites: String = ports
        .iter()
        .zip(&targets)
        .map(|(port, target)| format!("site {{\n listen \"127.0.0.1:{port}\"\n forward \"http://{target}\"\n}}\n"))
        .collect();
    let _server = TestServer::run(&format!("{sites}server {{ workers 1 }}\n"));
    let mut stream = TcpStream::connect(("127.0.0.1", ports[0])).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(GET.as_bytes()).unwrap();
    let answer = read_all(&mut stream);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let via = format!("Via: {}1.1 tailcoat\r\n", "1.1 tailcoat, ".repeat(9));
    assert!(upstream.connection().contains(&via));
}

/// Fields in which clients state their address reach no application, like X-Forwarded-* (issue 17).
#[test]
fn clients_do_not_choose_their_address() {
    const LINES: &str = "X-Real-IP: 6.6.6.6\r\nTrue-Client-IP: 6.6.6.6\r\nCF-Connecting-IP: 6.6.6.6\r\nX-Client-IP: 6.6.6.6\r\n\
        Client-IP: 6.6.6.6\r\nX-Cluster-Client-IP: 6.6.6.6\r\nFastly-Client-IP: 6.6.6.6\r\nX_Real_IP: 6.6.6.6\r\n\
        X-Forwarded: for=6.6.6.6\r\nX-Appengine-User-Ip: 6.6.6.6\r\nX-Appengine-Remote-Addr: 6.6.6.6\r\n\
        CF-Pseudo-IPv4: 6.6.6.6\r\nFly-Client-IP: 6.6.6.6\r\nDO-Connecting-IP: 6.6.6.6\r\nX-Azure-ClientIP: 6.6.6.6\r\n\
        X-Azure-SocketIP: 6.6.6.6\r\nX-Remote-IP: 6.6.6.6\r\nX-Remote-Addr: 6.6.6.6\r\nX-Originating-IP: 6.6.6.6\r\n\
        X-ProxyUser-Ip: 6.6.6.6\r\nX-Nf-Client-Connection-Ip: 6.6.6.6\r\n";
    for (site, real_ip) in [("", None), ("request-header \"X-Real-IP\" \"{client}\"", Some("X-Real-IP: 127.0.0.1\r\n"))]
    {
        let upstream = ScriptedUpstream::start(vec![vec![Await(HEAD), Say(OK)]]);
        let server = front(&[upstream.address], "", site, "underscores-in-headers on");
        ask(&server, &format!("GET /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{LINES}\r\n"));
        let seen = upstream.connection();
        assert!(!seen.contains("6.6.6.6") && seen.contains("X-Forwarded-For: 127.0.0.1\r\n"), "{seen}");
        assert!(real_ip.is_none_or(|line| seen.contains(line)), "{seen}");
    }
}

/// A quote that the client leaves open in Forwarded must not hide what a trusted proxy appends to the line.
#[test]
fn an_open_quote_does_not_hide_the_client() {
    const GUARDS: &str = "allow \"10.0.0.0/8\" \"127.0.0.0/8\"\n deny all\n respond \"*\" 200";
    let server = TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n {GUARDS}\n}}\n\
         server {{ workers 1; trusted-proxies \"127.0.0.1\" field=\"Forwarded\" }}\n"
    ));
    let ask_as = |sent: &str, appended: &str| {
        let field = format!("Forwarded: {sent}{appended}");
        let response = ask(&server, &format!("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{field}\r\n\r\n"));
        response[9..12].to_owned()
    };
    for appended in ["for=192.0.2.1", "for=\"192.0.2.1:80\";proto=http", "for=\"[2001:db8::1]\""] {
        for sent in ["", "for=10.0.0.9, ", "for=\"x, ", "for=10.0.0.9;by=\"x, ", "for=10.0.0.9;by=\"x\\, ", "\", \", "]
        {
            assert_eq!(ask_as(sent, appended), "403", "{sent}{appended}");
        }
    }
    assert_eq!(ask_as("for=\"x, ", "for=10.0.0.9"), "200");
}

/// A guard of the target is useless where an application takes the path from another field (issue 17).
#[test]
fn clients_do_not_choose_the_path_by_a_field() {
    const LINES: &str = "X-Original-URL: /admin\r\nX-Rewrite-URL: /admin\r\nX_Rewrite_Url: /admin\r\n\
        X-Original-URI: /admin\r\n";
    for (site, of_rules) in [("", None), ("request-header \"X-Original-URL\" \"/a\"", Some("X-Original-URL: /a\r\n"))] {
        let upstream = ScriptedUpstream::start(vec![vec![Await(HEAD), Say(OK)]]);
        let server = front(&[upstream.address], "", site, "underscores-in-headers on");
        ask(&server, &format!("GET /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{LINES}\r\n"));
        let seen = upstream.connection();
        assert!(seen.starts_with("GET /a ") && !seen.contains("/admin"), "{seen}");
        assert!(of_rules.is_none_or(|line| seen.contains(line)), "{seen}");
    }
}

#[test]
fn what_follows_a_request_does_not_hide_that_its_client_has_gone() {
    for (following, is_reset) in [("", false), ("G", false), ("G", true), (GET, false)] {
        let upstream = ScriptedUpstream::start(vec![vec![Await(HEAD), Await("never")]]);
        let server = front(&[upstream.address], "", "", "first-byte-timeout \"10m\"");
        let mut client = server.connect();
        client.write_all(format!("GET /hang HTTP/1.1\r\nHost: h\r\n\r\n{following}").as_bytes()).unwrap();
        upstream.await_received("GET /hang ");
        if is_reset {
            socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
        }
        drop(client);
        // The connection ends only when the request is aborted. One for the next request may have started.
        let mut ended = std::iter::repeat_with(|| upstream.connection()).take(2);
        assert!(ended.any(|seen| seen.starts_with("GET /hang ")), "{following:?} {is_reset}");
    }
}

/// True if a request waits, instead of getting a 503 at once.
fn waits(stream: &mut TcpStream) -> bool {
    stream.write_all(GET.as_bytes()).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let answered = stream.read(&mut [0; 64]);
    answered.is_err_and(|error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
}

#[test]
fn clients_that_left_are_in_no_queue() {
    let upstream = ScriptedUpstream::start(vec![vec![Await(HEAD), Await("never")]]);
    let limits = "connections-max 1\n queue-max 8\n queue-timeout \"10m\"";
    let server = front(&[upstream.address], limits, "", "");
    let mut holding = server.connect();
    holding.write_all(b"GET /hang HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    upstream.await_received("GET /hang ");
    for number in 2..60 {
        server.connect_from([127, 0, 0, number]).write_all(GET.as_bytes()).unwrap();
    }
    // Once the server has handled all of them, the queue is empty.
    let began = Instant::now();
    while !waits(&mut server.connect()) {
        assert!(began.elapsed() < PATIENCE / 2, "the queue stays full");
    }
}

#[test]
fn one_client_can_not_fill_the_queue() {
    let upstream = ScriptedUpstream::start(vec![vec![Await(HEAD), Await("never")]]);
    let limits = "connections-max 1\n queue-max 16\n queue-timeout \"10m\"";
    let server = front(&[upstream.address], limits, "", "first-byte-timeout \"10m\"");
    const QUEUED: usize = 8;
    let attackers: Vec<_> = (0..40)
        .map(|_| {
            let mut attacker = server.connect();
            attacker.write_all(GET.as_bytes()).unwrap();
            attacker
        })
        .collect();
    eventually("one request is forwarded, and half of the queue is theirs", || {
        let is_answered = |attacker: &&TcpStream| {
            attacker.set_nonblocking(true).unwrap();
            attacker.peek(&mut [0]).is_ok_and(|count| count > 0)
        };
        attackers.iter().filter(is_answered).count() == 40 - 1 - QUEUED
    });
    assert!(waits(&mut server.connect_from([127, 0, 0, 2])), "refused");
    drop(attackers);
}

/// Bad responses to one client's special requests must not mark the upstream as down for all.
#[test]
fn faulty_answers_do_not_take_a_server_out() {
    let large = || vec![Await(HEAD), Say("HTTP/1.1 302 Found\r\nX: "), Fill(70_000), Say("\r\n\r\n")];
    let split = || vec![Await(HEAD), Say("HTTP/1.1 200 OK\r\nX: a\nb\r\nContent-Length: 0\r\n\r\n")];
    let main = ScriptedUpstream::start(vec![large(), split(), large(), split(), large(), vec![Await(HEAD), Say(OK)]]);
    let backup =
        ScriptedUpstream::start(vec![vec![Await(HEAD), Say("HTTP/1.1 299 Backup\r\nContent-Length: 0\r\n\r\n")]]);
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
    let upstream = ScriptedUpstream::start(vec![large]);
    let server = front(&[upstream.address], "", "", "response-head-bytes-max \"1MiB\"");
    let mut stream = server.connect();
    stream.write_all(GET.as_bytes()).unwrap();
    let answer = read_all(&mut stream);
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nok"), "{}", answer.len());
}

/// Another request fetches the response that these clients wanted: the log shows their end.
#[test]
fn clients_that_left_wait_for_no_fetch() {
    let upstream = ScriptedUpstream::start(vec![vec![Await(HEAD), Await("never")]]);
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let site = format!("access-log \"{}\" format=\"{{status}}\"", log.display());
    let server = front(&[upstream.address], "", &site, "cache { collapse-timeout \"10m\" }");
    let mut clients = [server.connect(), server.connect()];
    for client in &mut clients {
        client.write_all(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        // The first request is on its way to the upstream before the server reads the second.
        upstream.await_received("GET /a ");
        await_read(client);
    }
    let [_fetching, waiting] = clients;
    drop(waiting);
    eventually("the client that left waits no more", || std::fs::read_to_string(&log).unwrap_or_default() == "499\n");
}
