//! Reverse proxy: requests as they reach the upstream, and its responses as they reach the client.

use std::io::Write;
use std::net::SocketAddr;

use crate::support::upstream::ScriptStep::{Echo, Fill, Read as Await, Reset, Write as Say};
use crate::support::upstream::ScriptedUpstream;
use crate::support::{TestServer, ask, read_all, read_until};

const HEAD: &str = "\r\n\r\n";

/// Server in front of `upstream`, with these options of `forward`.
fn front(upstream: SocketAddr, options: &str) -> TestServer {
    TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n forward \"http://{upstream}\" {{\n forwarded-headers none\n \
         request-trailers \"X-T\"\n response-trailers \"X-T\"\n {options}\n }}\n}}\n\
         server {{ workers 1 }}\n"
    ))
}

const GET: &str = "GET /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";

#[test]
fn answers_come_back_as_they_were() {
    for (name, request, answer, expect) in [
        (
            "fields in order and case, reason phrase, Date and Server of the other",
            GET,
            "HTTP/1.1 299 Quite Fine\r\nsErver: x\r\nX-B: 1\r\nDate: today\r\nX-B: 2\r\nContent-Length: 3\r\n\r\nabc",
            "HTTP/1.1 299 Quite Fine\r\nsErver: x\r\nX-B: 1\r\nDate: today\r\nX-B: 2\r\nContent-Length: 3\r\n\
             Connection: close\r\n\r\nabc",
        ),
        (
            "fields of the connection are not passed on",
            GET,
            "HTTP/1.1 200 OK\r\nDate: d\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: 3\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nDate: d\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        ),
        (
            "chunked with trailers",
            GET,
            "HTTP/1.1 200 OK\r\nDate: d\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nX-T: 1\r\n\
             Content-Length: 9\r\n\r\n",
            "HTTP/1.1 200 OK\r\nDate: d\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\nabcde\r\n0\r\nX-T: 1\r\n\r\n",
        ),
        (
            "ended by the connection's end",
            GET,
            "HTTP/1.1 200 OK\r\nDate: d\r\n\r\nabc",
            "HTTP/1.1 200 OK\r\nDate: d\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        ),
        (
            "the same, to a client of HTTP/1.0",
            "GET /a HTTP/1.0\r\nHost: h\r\n\r\n",
            "HTTP/1.1 200 OK\r\nDate: d\r\n\r\nabc",
            "HTTP/1.1 200 OK\r\nDate: d\r\nConnection: close\r\n\r\nabc",
        ),
        (
            "HEAD with the length of GET",
            "HEAD /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
            "HTTP/1.1 200 OK\r\nDate: d\r\nContent-Length: 3\r\n\r\n",
            "HTTP/1.1 200 OK\r\nDate: d\r\nContent-Length: 3\r\nConnection: close\r\n\r\n",
        ),
        (
            "204",
            GET,
            "HTTP/1.1 204 No Content\r\nDate: d\r\n\r\n",
            "HTTP/1.1 204 No Content\r\nDate: d\r\nConnection: close\r\n\r\n",
        ),
        (
            "205, which has no content",
            GET,
            "HTTP/1.1 205 Reset Content\r\nDate: d\r\nContent-Length: 3\r\n\r\nabc",
            "HTTP/1.1 205 Reset Content\r\nDate: d\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        ),
        (
            "304 with the length of 200",
            GET,
            "HTTP/1.1 304 Not Modified\r\nDate: d\r\nContent-Length: 3\r\nETag: \"x\"\r\n\r\n",
            "HTTP/1.1 304 Not Modified\r\nDate: d\r\nETag: \"x\"\r\nContent-Length: 3\r\nConnection: close\r\n\r\n",
        ),
        (
            "early hints, then an error without content, which stays as it is",
            GET,
            "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n\
             HTTP/1.1 404 Gone Fishing\r\nDate: d\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n\
             HTTP/1.1 404 Gone Fishing\r\nDate: d\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        ),
        (
            "426 says to what",
            GET,
            "HTTP/1.1 426 Upgrade Required\r\nDate: d\r\nUpgrade: x/1\r\nConnection: upgrade\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 426 Upgrade Required\r\nDate: d\r\nUpgrade: x/1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        ),
    ] {
        let upstream = ScriptedUpstream::start(vec![vec![Await(HEAD), Say(answer)]]);
        assert_eq!(ask(&front(upstream.address, ""), request), expect, "{name}");
    }
}

#[test]
fn an_answer_is_the_same_however_it_is_split() {
    for answer in [
        "HTTP/1.1 200 OK\r\nDate: d\r\nContent-Length: 3\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\nDate: d\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    ] {
        let mut script = vec![Await(HEAD)];
        script.extend((0..answer.len()).map(|at| Say(&answer[at..=at])));
        let upstream = ScriptedUpstream::start(vec![script]);
        let got = ask(&front(upstream.address, ""), GET);
        assert!(got.starts_with("HTTP/1.1 200 OK\r\nDate: d\r\n"), "{got}");
        let (_, content) = got.split_once(HEAD).unwrap();
        // Chunk boundaries depend on how the content was read.
        let content: String = content.chars().filter(char::is_ascii_alphabetic).collect();
        assert_eq!(content, "abc", "{got}");
    }
}

#[test]
fn errors_have_the_status_of_their_cause() {
    // Nothing listens on port 1.
    let answer = ask(&front(SocketAddr::from(([127, 0, 0, 1], 1)), ""), GET);
    assert!(answer.starts_with("HTTP/1.1 502 "), "no process listens: {answer}");
    const POST: &str = "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    for (name, request, script, status) in [
        ("closed without an answer, and no other server to ask", GET, vec![Await(HEAD), Say("")], "HTTP/1.1 502 "),
        ("closed without an answer", POST, vec![Await(HEAD), Say("")], "HTTP/1.1 502 "),
        ("closed in the head", GET, vec![Await(HEAD), Say("HTTP/1.1 200 OK\r\nDa")], "HTTP/1.1 502 "),
        ("not HTTP", GET, vec![Await(HEAD), Say("SSH-2.0-x\r\n")], "HTTP/1.1 502 "),
        (
            "two lengths",
            GET,
            vec![Await(HEAD), Say("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n")],
            "HTTP/1.1 502 ",
        ),
        (
            "length and chunks",
            GET,
            vec![
                Await(HEAD),
                Say("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            ],
            "HTTP/1.1 502 ",
        ),
        ("line feeds alone", GET, vec![Await(HEAD), Say("HTTP/1.1 200 OK\nContent-Length: 0\n\n")], "HTTP/1.1 502 "),
        (
            "an upgrade that was not requested",
            GET,
            vec![Await(HEAD), Say("HTTP/1.1 101 X\r\nUpgrade: x\r\n\r\n")],
            "HTTP/1.1 502 ",
        ),
        ("silent", GET, vec![Await("never")], "HTTP/1.1 504 "),
    ] {
        let upstream = ScriptedUpstream::start(vec![script]);
        let options = if name == "silent" { "first-byte-timeout \"300ms\"" } else { "" };
        let answer = ask(&front(upstream.address, options), request);
        assert!(answer.starts_with(status) && answer.contains("<html"), "{name}: {answer}");
    }
}

#[test]
fn a_head_without_end_is_rejected() {
    let upstream = ScriptedUpstream::start(vec![vec![Await(HEAD), Say("HTTP/1.1 200 OK\r\nX: "), Fill(1 << 20)]]);
    let answer = ask(&front(upstream.address, ""), GET);
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
}

#[test]
fn an_answer_that_breaks_off_does_not_look_whole() {
    for (name, request, script) in [
        ("length", GET, vec![Await(HEAD), Say("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")]),
        ("chunks", GET, vec![Await(HEAD), Say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nabc")]),
        (
            "malformed chunk",
            GET,
            vec![
                Await(HEAD),
                Say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
                Await(""),
                Say("3\r\nabcd\r\n"),
            ],
        ),
        ("until the end, which is a reset", GET, vec![Await(HEAD), Say("HTTP/1.1 200 OK\r\n\r\nabc"), Reset]),
    ] {
        let upstream = ScriptedUpstream::start(vec![script]);
        let answer = ask(&front(upstream.address, ""), request);
        assert!(!answer.ends_with("0\r\n\r\n") && !answer.ends_with("abc\r\n0\r\n\r\n"), "{name}: {answer}");
        assert!(answer.starts_with("HTTP/1.1 200 ") || answer.starts_with("HTTP/1.1 502 "), "{name}: {answer}");
    }
}

#[test]
fn content_goes_up_as_it_comes() {
    let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    for (name, fields, pieces, expect) in [
        ("length", "Content-Length: 6", ["abc", "def"], "Content-Length: 6\r\n\r\nabcdef"),
        (
            "chunks and trailers",
            "Transfer-Encoding: chunked",
            ["3\r\nabc\r\n", "3;x\r\ndef\r\n0\r\nX-T: 1\r\nHost: evil\r\n\r\n"],
            "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\ndef\r\n0\r\nX-T: 1\r\n\r\n",
        ),
    ] {
        let has_come = "HTTP/1.1 103 Early Hints\r\n\r\n";
        let upstream = ScriptedUpstream::start(vec![vec![Await("abc"), Say(has_come), Await("def"), Say(ok)]]);
        let server = front(upstream.address, "");
        let mut stream = server.connect();
        write!(stream, "POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{fields}\r\n\r\n").unwrap();
        stream.write_all(pieces[0].as_bytes()).unwrap();
        read_until(&mut stream, "103 Early Hints\r\n\r\n");
        stream.write_all(pieces[1].as_bytes()).unwrap();
        let answer = read_all(&mut stream);
        assert!(answer.ends_with("\r\n\r\nok"), "{name}: {answer}");
        drop(server);
        let request = upstream.connection();
        // The script may have stopped reading before the last line.
        assert!(
            expect.starts_with(request.split_once("Via: 1.1 tailcoat\r\n").unwrap().1) || request.contains(expect),
            "{name}: {request}"
        );
    }
}

#[test]
fn malformed_content_breaks_the_request_off() {
    let upstream = ScriptedUpstream::start(vec![vec![Await("never")]]);
    let server = front(upstream.address, "");
    let answer =
        ask(&server, "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nnonsense\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    let request = upstream.connection();
    assert!(!request.contains("0\r\n\r\n"), "{request}");
}

#[test]
fn the_client_is_asked_for_content_when_the_server_wants_it() {
    let rejected = "HTTP/1.1 403 No\r\nDate: d\r\nContent-Length: 0\r\n\r\n";
    let request = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n";
    let upstream = ScriptedUpstream::start(vec![vec![Await(HEAD), Say(rejected)]]);
    let answer = ask(&front(upstream.address, ""), request);
    assert!(answer.starts_with("HTTP/1.1 403 No\r\n") && answer.contains("Connection: close"), "{answer}");
    let accepted = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    let upstream = ScriptedUpstream::start(vec![vec![
        Await(HEAD),
        Say("HTTP/1.1 100 Continue\r\n\r\n"),
        Await("abc"),
        Say(accepted),
    ]]);
    let server = front(upstream.address, "");
    let mut stream = server.connect();
    stream.write_all(request.as_bytes()).unwrap();
    assert_eq!(read_until(&mut stream, HEAD), "HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"abc").unwrap();
    assert!(read_until(&mut stream, HEAD).starts_with("HTTP/1.1 200 OK\r\n"));
}

#[test]
fn large_contents_pass_both_ways() {
    const BYTES: usize = 16 << 20;
    let upstream = ScriptedUpstream::start(vec![vec![
        Await("LAST"),
        Say("HTTP/1.1 200 OK\r\nContent-Length: 16777216\r\n\r\n"),
        Fill(BYTES),
    ]]);
    let server =
        TestServer::run(&format!("site {{\n listen \"127.0.0.1:0\"\n forward \"http://{}\"\n}}\n", upstream.address));
    let mut stream = server.connect();
    write!(stream, "PUT / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", BYTES + 4).unwrap();
    stream.write_all(&vec![b'y'; BYTES]).unwrap();
    stream.write_all(b"LAST").unwrap();
    let answer = read_all(&mut stream);
    let (head, content) = answer.split_once(HEAD).unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(content.len() == BYTES && content.bytes().all(|byte| byte == b'x'), "{} bytes", content.len());
    let request = upstream.connection();
    assert_eq!(request.bytes().filter(|byte| *byte == b'y').count(), BYTES);
}

#[test]
fn a_server_that_breaks_off_in_the_head_costs_no_request() {
    let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let broken = ScriptedUpstream::start(vec![vec![Await(HEAD), Say("HTTP/1.1 200 OK\r\nContent-"), Reset]]);
    let sound = ScriptedUpstream::start(vec![vec![Await(HEAD), Say(ok)]]);
    let server = TestServer::run(&format!(
        "upstream \"u\" {{\n server \"http://{}\"\n server \"http://{}\" backup=on\n}}\n\
         site {{\n listen \"127.0.0.1:0\"\n forward \"u\"\n}}\n",
        broken.address, sound.address
    ));
    assert!(ask(&server, GET).ends_with("\r\n\r\nok"));
    // Requests that are not idempotent are never repeated.
    let post = "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    assert!(ask(&server, post).starts_with("HTTP/1.1 502 "));
}

#[test]
fn a_stale_connection_costs_no_request() {
    let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    // The first connection closes at its second request; the second one responds.
    let upstream =
        ScriptedUpstream::start(vec![vec![Await(HEAD), Say(ok), Await(HEAD), Reset], vec![Await(HEAD), Say(ok)]]);
    let server = front(upstream.address, "");
    for turn in ["on a new connection", "on one that is closed under it"] {
        let answer = ask(&server, GET);
        assert!(answer.ends_with("\r\n\r\nok"), "{turn}: {answer}");
    }
}

#[test]
fn requests_after_a_forwarded_one_wait_for_their_turn() {
    let upstream = ScriptedUpstream::start(vec![vec![
        Await(HEAD),
        Say("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none"),
        Await(HEAD),
        Say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\ntwo\r\n0\r\n\r\n"),
    ]]);
    let server = front(upstream.address, "");
    let answer = ask(&server, &["GET /1 HTTP/1.1\r\nHost: h\r\n\r\n", GET].concat());
    let (one, two) = (answer.find("one").unwrap(), answer.find("two").unwrap());
    assert!(one < two && answer.matches("HTTP/1.1 200 OK").count() == 2, "{answer}");
}

#[test]
fn a_connection_becomes_a_tunnel_after_101_only() {
    let switch = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nearly";
    let upgrade = "GET /ws HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let upstream = ScriptedUpstream::start(vec![vec![Await(HEAD), Say(switch), Echo]]);
    let server = front(upstream.address, "");
    let mut stream = server.connect();
    stream.write_all(upgrade.as_bytes()).unwrap();
    let head = read_until(&mut stream, "early");
    assert!(
        head.starts_with("HTTP/1.1 101 Switching Protocols\r\n") && head.contains("Upgrade: websocket\r\n"),
        "{head}"
    );
    for text in ["hello", "GET / HTTP/1.1\r\n\r\n"] {
        stream.write_all(text.as_bytes()).unwrap();
        assert_eq!(read_until(&mut stream, text), text);
    }
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut stream), "", "the end passes through");
    // An upstream that does not switch protocols gets the next request as HTTP.
    let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno";
    let upstream = ScriptedUpstream::start(vec![vec![Await(HEAD), Say(ok), Await(HEAD), Say(ok)]]);
    let answer = ask(&front(upstream.address, ""), &[upgrade, GET].concat());
    assert_eq!(answer.matches("\r\n\r\nno").count(), 2, "{answer}");
}

/// RFC 9110, section 7.8: bytes that nothing checks pass only in a protocol that the client asked for.
#[test]
fn an_upstream_does_not_choose_another_protocol() {
    let upgrade = "GET /ws HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n";
    for (protocols, status) in [
        ("Upgrade: WebSocket\r\n", 101),
        ("Upgrade: h2c\r\n", 502),
        ("Upgrade: websocket\r\nUpgrade: h2c\r\n", 502),
        ("Upgrade: websocket, h2c\r\n", 502),
    ] {
        let head = format!("HTTP/1.1 101 Switching Protocols\r\n{protocols}Connection: Upgrade\r\n\r\n");
        let upstream = ScriptedUpstream::start(vec![vec![Await(HEAD), Say(head.leak())]]);
        let answer = ask(&front(upstream.address, ""), upgrade);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{protocols}: {answer}");
    }
}

#[test]
fn a_request_is_given_up_with_its_client() {
    let upstream = ScriptedUpstream::start(vec![vec![Await("never")]]);
    let server = front(upstream.address, "");
    let mut stream = server.connect();
    stream.write_all(GET.as_bytes()).unwrap();
    upstream.await_received(HEAD);
    drop(stream);
    assert!(upstream.connection().starts_with("GET /a HTTP/1.1"), "the connection was closed");
}

#[test]
fn the_list_of_a_trusted_proxy_goes_on() {
    let ok = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    let upstream = ScriptedUpstream::start(vec![vec![Await(HEAD), Say(ok), Await("never")]]);
    let server = TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n forward \"http://{}\"\n}}\n\
         server {{ workers 1; trusted-proxies \"127.0.0.1\" }}\n",
        upstream.address
    ));
    let fields = "X-Forwarded-For: 203.0.113.7, 192.0.2.1\r\nX-Forwarded-Proto: https\r\n";
    ask(&server, &format!("GET /a HTTP/1.1\r\nHost: h\r\n{fields}Connection: close\r\n\r\n"));
    drop(server);
    let request = upstream.connection();
    assert!(
        request.ends_with(
            "X-Forwarded-For: 192.0.2.1, 127.0.0.1\r\nX-Forwarded-Host: h\r\nX-Forwarded-Proto: https\r\n\r\n"
        ),
        "{request}"
    );
}
