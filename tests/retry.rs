//! Retries after responses with some statuses.

use crate::support::upstream::{ScriptStep, ScriptedUpstream};
use crate::support::{TestServer, ask};

const BUSY: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy";
const GOOD: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood";

fn responding(responses: &[&'static str]) -> ScriptedUpstream {
    let script = |response: &&'static str| vec![ScriptStep::Read("\r\n\r\n"), ScriptStep::Write(response)];
    ScriptedUpstream::start(responses.iter().map(script).collect())
}

/// Status and content of the response to a request.
fn outcome(options: &str, request: &str, responses: &[&'static str]) -> String {
    let upstream = responding(responses);
    let server = TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n forward \"http://{}\" {{\n {options}\n }}\n}}\n",
        upstream.address
    ));
    let response = ask(&server, &format!("{request}Host: h\r\nConnection: close\r\n\r\n"));
    let content = response.rsplit("\r\n").next().unwrap_or_default();
    let status = response.get(9..12).unwrap_or_default();
    format!("{status} {content}")
}

#[test]
fn requests_are_sent_again_after_some_statuses() {
    let get = "GET / HTTP/1.1\r\n";
    let post = "POST / HTTP/1.1\r\nContent-Length: 0\r\n";
    for (options, request, responses, expect) in [
        ("", get, &[BUSY, GOOD][..], "503 busy"),
        ("retry 503", get, &[BUSY, GOOD], "200 good"),
        ("retry 502 503 backoff=\"20ms\"", get, &[BUSY, GOOD], "200 good"),
        ("retry 502", get, &[BUSY, GOOD], "503 busy"),
        // The last response counts.
        ("retry 503", get, &[BUSY, BUSY, GOOD], "503 busy"),
        ("retry 503 attempts=2", get, &[BUSY, BUSY, GOOD], "200 good"),
        ("retry 503", "PUT / HTTP/1.1\r\nContent-Length: 0\r\n", &[BUSY, GOOD], "200 good"),
        // POST is not idempotent (RFC 9110, section 9.2.2).
        ("retry 503", post, &[BUSY, GOOD], "503 busy"),
    ] {
        assert_eq!(outcome(options, request, responses), expect, "{options} {request}");
    }
}
