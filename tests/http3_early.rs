//! Early data (0-RTT, RFC 8470) of HTTP/3, with aioquic as the client.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use crate::http3::H3Server;
use crate::support::upstream::{ScriptStep, ScriptedUpstream};

/// Client that resumes with early data.
const EARLY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/support/h3_early.py");

/// Upstream with one response for all requests.
fn upstream(status: &str) -> ScriptedUpstream {
    let respond = format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
    ScriptedUpstream::start(vec![vec![ScriptStep::Read("\r\n\r\n"), ScriptStep::Write(respond.leak())]])
}

/// Site whose paths below `/early` and `/late` are those of an upstream.
fn site(upstream: &ScriptedUpstream) -> String {
    let address = upstream.address;
    format!(
        "early-data on\n respond \"/first\" 200 \"first\"\n forward \"http://{address}\" path=\"/early\"\n \
         forward \"http://{address}\" path=\"/late\""
    )
}

fn client(server: &H3Server, case: &str) -> Child {
    let authority = server.operated.path().join("ca.pem");
    let mut command = Command::new("python3");
    command.args([EARLY, "127.0.0.1", &server.port.to_string()]).arg(authority).arg(case);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

fn outcome(client: Child) -> String {
    let output = client.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Requests that the upstream has received so far.
fn received(upstream: &ScriptedUpstream) -> Vec<String> {
    std::iter::from_fn(|| upstream.try_connection()).collect()
}

#[test]
fn a_safe_request_is_served_and_marked() {
    let upstream = upstream("200 OK");
    let Some(server) = H3Server::start(&site(&upstream)) else { return };
    assert_eq!(outcome(client(&server, "get")), "accepted, 200 ok");
    let request = upstream.connection().to_ascii_lowercase();
    assert_eq!(request.matches("early-data: 1\r\n").count(), 1, "{request}");
    // After the handshake, requests are not marked.
    assert_eq!(server.connect().order("get /late"), "200 ok");
    let request = upstream.connection().to_ascii_lowercase();
    assert!(!request.contains("early-data"), "{request}");
}

#[test]
fn off_by_default() {
    let upstream = upstream("200 OK");
    let options = site(&upstream).replace("early-data on", "");
    let Some(server) = H3Server::start(&options) else { return };
    assert_eq!(outcome(client(&server, "get")), "rejected, 200 ok");
    let request = upstream.connection().to_ascii_lowercase();
    assert!(!request.contains("early-data"), "{request}");
}

#[test]
fn an_unsafe_request_is_too_early() {
    let upstream = upstream("200 OK");
    let Some(server) = H3Server::start(&site(&upstream)) else { return };
    assert_eq!(outcome(client(&server, "post")), "accepted, 425, 200 ok");
    let request = upstream.connection();
    assert!(request.starts_with("POST /late "), "{request}");
    assert_eq!(received(&upstream), [""; 0]);
}

#[test]
fn an_upstream_may_demand_the_handshake() {
    let upstream = upstream("425 Too Early");
    let Some(server) = H3Server::start(&site(&upstream)) else { return };
    assert_eq!(outcome(client(&server, "get")), "accepted, 425");
    assert!(upstream.connection().starts_with("GET /early "));
    assert_eq!(received(&upstream), [""; 0], "the client repeats it, not the server");
}

/// Attack: 0-RTT replay (RFC 8446, section 8).
#[test]
fn copies_of_early_data_are_not_served() {
    let upstream = upstream("200 OK");
    let Some(server) = H3Server::start(&site(&upstream)) else { return };
    let outcome = outcome(client(&server, "replay"));
    let (served, replies) = outcome.rsplit_once(", ").unwrap();
    assert_eq!(served, "accepted, 200 ok");
    assert_ne!(replies, "0", "the server responds to copies with a handshake");
    assert_eq!(server.connect().order("get /late"), "200 ok");
    let mut requests = vec![upstream.connection(), upstream.connection()];
    requests.extend(received(&upstream));
    let early = requests.iter().filter(|request| request.starts_with("GET /early ")).count();
    assert_eq!((early, requests.len()), (1, 2), "{requests:?}");
}

/// Attack: a copy of the packets arrives before them. It is served, and the client sends its request again after a
/// full handshake: twice is the most that RFC 8470, section 3 allows for.
#[test]
fn a_copy_that_is_first_takes_the_ticket() {
    let upstream = upstream("200 OK");
    let Some(server) = H3Server::start(&site(&upstream)) else { return };
    assert_eq!(outcome(client(&server, "copy")), "1, rejected, 200 ok");
    let mut requests = [upstream.connection(), upstream.connection()].map(|request| request.to_ascii_lowercase());
    requests.sort_by_key(|request| request.contains("early-data: 1"));
    assert!(!requests[0].contains("early-data") && requests[1].contains("early-data: 1\r\n"), "{requests:?}");
    assert_eq!(received(&upstream), [""; 0]);
}

/// Clients apply limits that they remember to early data, so tickets of other limits are of no use.
#[test]
fn tickets_outlive_a_reload_unless_limits_change() {
    let upstream = upstream("200 OK");
    for (sections, expect) in [("", "accepted, 200 ok"), ("limits {\n http2-streams-max 1\n}\n", "rejected, 200 ok")] {
        let Some(server) = H3Server::start(&site(&upstream)) else { return };
        let mut client = client(&server, "stale");
        let mut output = BufReader::new(client.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let file = server.operated.path().join("tailcoat.kdl");
        let config = std::fs::read_to_string(&file).unwrap().replace("\"first\"", "\"second\"");
        std::fs::write(&file, format!("{config}\n{sections}")).unwrap();
        assert!(server.operated.order(&["reload"]).status.success());
        client.stdin.take().unwrap().write_all(b"\n").unwrap();
        line.clear();
        output.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), expect, "{sections}");
        assert!(client.wait().unwrap().success());
    }
}

/// Success and messages of a reload with these further options of the site.
fn reload_with(server: &H3Server, options: &str) -> (bool, String) {
    let file = server.operated.path().join("tailcoat.kdl");
    let config = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, config.replace("respond", &format!("{options}\n respond"))).unwrap();
    let output = server.operated.order(&["reload"]);
    std::fs::write(&file, config).unwrap();
    let text = [output.stderr, output.stdout].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (output.status.success(), text)
}

#[test]
fn it_needs_tickets_and_http3() {
    let Some(server) = H3Server::start("respond \"/\" 200 \"ok\"") else { return };
    let (is_done, text) = reload_with(&server, "early-data on\n tls-tickets off");
    assert!(!is_done && text.contains("`early-data` needs session tickets"), "{text}");
    let (is_done, text) = reload_with(&server, "early-data on");
    assert!(is_done && !text.contains("has no effect"), "{text}");
    let older = "tls-cipher-suites \"TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256\"";
    let (is_done, text) = reload_with(&server, &format!("early-data on\n {older}"));
    assert!(is_done && text.contains("warning: `early-data` has no effect"), "{text}");
}
