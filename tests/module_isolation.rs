//! Hostile modules: each harms its own request, and no other.

use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::time::Instant;

use tempfile::TempDir;

use crate::support::guests::{content, guests, serve_guests, serve_guests_with};
use crate::support::waiting::{await_read, eventually, eventually_some, settled};
use crate::support::{PATIENCE, TestServer, ask, read_all, read_until};

/// Limits low enough for a test to reach. Wall-clock limits have a test of their own: on a busy machine, a module gets
/// little CPU time.
const LIMITS: &str = "memory-bytes-max \"16MiB\"; cpu-time-max \"200ms\"; response-bytes-max \"1MiB\"";

/// Server with hostile modules and a file beside them.
fn server(guests: &Path) -> (TestServer, TempDir) {
    let files = tempfile::tempdir().unwrap();
    std::fs::write(files.path().join("file"), "a file").unwrap();
    let root = format!("files \"/file\" root=\"{}\"", files.path().display());
    (serve_guests(guests, LIMITS, &root), files)
}

fn get(server: &TestServer, target: &str) -> String {
    ask(server, &format!("GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"))
}

/// Checks that a file and another request of the same module are still served.
fn check_others(server: &TestServer, target: &str) {
    assert!(get(server, "/file").ends_with("a file"), "after {target}");
    assert!(get(server, "/hello").contains("hello\n"), "after {target}");
}

/// Checks the response to a hostile request, and its log line.
fn check(server: &TestServer, target: &str, status: &str, logged: &str) {
    let answer = get(server, target);
    assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{target}: {answer}");
    server.await_log(logged);
    check_others(server, target);
}

#[test]
fn failures_before_an_answer() {
    let Some(guests) = guests() else { return };
    let (server, _files) = server(guests);
    let check = |target: &str, status: &str, logged: &str| check(&server, target, status, logged);
    check("/trap", "500", "`unreachable` instruction executed");
    check("/panic", "500", "guests: at the request");
    check("/exit", "500", "it exited with status");
    check("/no-answer", "500", "it sent no response");
    check("/no-content", "500", "it did not complete its content");
    check("/error", "500", "ErrorCode::InternalError");
    check("/interim", "500", "interim response");
}

#[test]
fn too_much_before_an_answer() {
    let Some(guests) = guests() else { return };
    let (server, _files) = server(guests);
    let check = |target: &str, status: &str, logged: &str| check(&server, target, status, logged);
    check("/memory", "500", "memory-bytes-max of the module");
    check("/recursion", "500", "call stack exhausted");
    check("/handles", "500", "no free keys");
    check("/flood-log", "504", "wrote more than log-bytes-max");
    check("/loop", "504", "CPU time than cpu-time-max\" request=\"GET /loop\"");
    check("/fields-without-end", "500", "total size of fields exceeds limit");
}

/// Handles of a stream's pollables do not count for `handles-max`, but as memory.
#[test]
fn pollables_without_end_take_the_instance_s_own_memory() {
    let Some(guests) = guests() else { return };
    let server = serve_guests(guests, "memory-bytes-max \"4MiB\"; cpu-time-max \"1h\"", "");
    let answer = get(&server, "/pollables-without-end");
    assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
    server.await_log("too many stream handles (limit reached: memory-bytes-max of the module)");
    assert!(get(&server, "/hello").contains("hello\n"));
}

#[test]
fn failures_in_the_middle_of_content() {
    let Some(guests) = guests() else { return };
    let (server, _files) = server(guests);
    for target in ["/trap-in-content", "/loop-in-content", "/flood"] {
        // An immediate failure happens before the head was sent, and so may others on a busy machine.
        let answer = eventually_some("it fails after its head", || {
            let answer = get(&server, target);
            let is_early = answer.starts_with("HTTP/1.1 50");
            assert!(is_early || answer.starts_with("HTTP/1.1 200 "), "{target}: {answer}");
            (!is_early || target == "/trap-in-content").then_some(answer)
        });
        // A client that decodes chunks sees that the content is incomplete (RFC 9112, section 8).
        assert!(!answer.ends_with("0\r\n\r\n"), "{target}: {answer}");
        assert!(answer.len() < 2 << 20, "{target}");
        check_others(&server, target);
    }
    server.await_log("wrote more than response-bytes-max");
    let short = get(&server, "/length?10-5");
    let is_early = short.starts_with("HTTP/1.1 500 ");
    assert!(is_early || short.contains("Content-Length: 10\r\n") && !short.ends_with("xxxxxxxxxx"), "{short}");
    // The response is complete; the instance's further work ends as well.
    assert!(get(&server, "/loop-after").contains("done"));
    server.await_log("cpu-time-max\" request=\"GET /loop-after\"");
}

#[test]
fn modules_that_hang() {
    let Some(guests) = guests() else { return };
    let server = serve_guests(guests, "first-byte-timeout \"1s\"", "");
    let answer = get(&server, "/hang");
    assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
    server.await_log("sent no response within first-byte-timeout");
    let server = serve_guests(guests, "between-bytes-timeout \"1s\"", "");
    let answer = get(&server, "/hang-in-content");
    assert!(answer.starts_with("HTTP/1.1 200 ") && !answer.ends_with("0\r\n\r\n"), "{answer}");
    server.await_log("sent nothing for longer than between-bytes-timeout");
}

#[test]
fn a_client_that_reads_nothing_costs_little() {
    let Some(guests) = guests() else { return };
    let server = serve_guests(guests, "cpu-time-max \"10m\"", "");
    assert!(get(&server, "/hello").contains("hello\n"));
    let before = server.memory_kib();
    let mut stream = server.connect();
    stream.write_all(b"GET /flood HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    read_until(&mut stream, "\r\n\r\n");
    let grown = settled("the module waits for its client", || server.memory_kib()).saturating_sub(before);
    assert!(grown < 4 << 10, "{grown} KiB");
}

/// True if the server has responded to, or closed, this connection.
fn is_answered(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let is_answered = stream.peek(&mut [0]).is_ok();
    stream.set_nonblocking(false).unwrap();
    is_answered
}

#[test]
fn instances_have_limits() {
    let Some(guests) = guests() else { return };
    let begin = |server: &TestServer, target: &str| -> [TcpStream; 2] {
        [(), ()].map(|()| {
            let mut stream = server.connect();
            write!(stream, "GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").unwrap();
            stream
        })
    };
    // Later requests wait for the first two to end.
    let server = serve_guests(guests, "instances-max 2; queue-timeout \"5m\"", "");
    let mut held = begin(&server, "/pieces");
    held.iter_mut().for_each(|stream| _ = read_until(stream, "one "));
    let mut waiting = begin(&server, "/hello");
    held.iter_mut().for_each(|stream| assert!(read_all(stream).contains("three")));
    waiting.iter_mut().for_each(|stream| assert!(read_all(stream).contains("hello\n")));
    // But not for ever.
    let server = serve_guests(guests, "instances-max 2; queue-timeout \"200ms\"", "");
    let mut hanging = begin(&server, "/hang");
    eventually("both places are taken", || {
        // A request before may not have left its place in time.
        if hanging.iter().any(is_answered) {
            hanging = begin(&server, "/hang");
        }
        let answer = get(&server, "/hello");
        assert!(answer.starts_with("HTTP/1.1 503 ") || answer.contains("hello\n"), "{answer}");
        answer.starts_with("HTTP/1.1 503 ")
    });
    server.await_log("had no free instance within queue-timeout");
    drop(hanging);
    eventually("the places of those that left are free", || get(&server, "/hello").contains("hello\n"));
}

#[test]
fn instances_and_memory_of_all_modules_have_limits() {
    let Some(guests) = guests() else { return };
    for (shared, logged) in
        [("instances-max 1", "no free instance for a request"), ("memory-bytes-max \"2MiB\"", "of all modules")]
    {
        let server = serve_guests_with(guests, "", "", shared);
        assert!(get(&server, "/hello").contains("hello\n"), "{shared}");
        let hang = || {
            let mut held = server.connect();
            held.write_all(b"GET /hang HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
            held
        };
        let mut held = hang();
        eventually(&format!("the request has reached its instance: {shared}"), || {
            // Rejected if the instance before has not ended.
            if is_answered(&held) {
                held = hang();
            }
            get(&server, "/hello").starts_with("HTTP/1.1 50")
        });
        server.await_log(logged);
        drop(held);
        eventually(&format!("the server has noticed: {shared}"), || get(&server, "/hello").contains("hello\n"));
    }
}

#[test]
fn no_request_sees_anothers_data_unless_instances_are_used_again() {
    let Some(guests) = guests() else { return };
    let files = tempfile::tempdir().unwrap();
    let directory = format!("directory \"/data\" \"{}\"", files.path().display());
    // Each instance counts its own requests.
    let check = |options: &str, targets: &str, expect: &str| {
        let server = serve_guests(guests, &format!("{options}; {directory}"), "");
        let mut counts = Vec::new();
        for target in targets.split(' ') {
            let answer = get(&server, target);
            if target == "/count" {
                counts.push(content(&answer));
            }
        }
        assert_eq!(counts.join(" "), expect, "{options}: {targets}");
    };
    for waits in ["waits-for-disk on", "waits-for-disk off"] {
        let check = |reset: &str, targets: &str, expect: &str| check(&format!("{reset}; {waits}"), targets, expect);
        check("reset fresh", "/count /count /count", "1 1 1");
        // `reset memory` works only for modules whose memory the server can reach.
        check("reset memory", "/count /count /count", "1 1 1");
        check("reset none; idle-instances-max 0", "/count /count", "1 1");
        // A failed or unfinished instance is not used again.
        for target in ["/trap", "/exit", "/kept-answer", "/kept-content", "/after", "/loop-in-content"] {
            check("reset none; cpu-time-max \"500ms\"", &format!("/count {target} /count"), "1 1");
        }
    }
}

#[test]
fn instances_are_used_again_if_configured() {
    let Some(guests) = guests() else { return };
    let files = tempfile::tempdir().unwrap();
    for waits in ["on", "off"] {
        let options = format!("reset none; waits-for-disk {waits}; directory \"/data\" \"{}\"", files.path().display());
        let server = serve_guests(guests, &options, "");
        // On a busy machine an instance may be interrupted between its response and its end; the next request gets a
        // new one then.
        let start = Instant::now();
        while content(&get(&server, "/count")) != "5" {
            assert!(start.elapsed() < PATIENCE, "waits-for-disk {waits}");
            assert_eq!(content(&get(&server, "/read?/data/x")), "error: NotFound");
        }
    }
}

#[test]
fn what_an_instance_keeps_is_no_answer() {
    let Some(guests) = guests() else { return };
    for reset in ["fresh", "none"] {
        let server = serve_guests(guests, &format!("reset {reset}; handles-max 20"), "");
        let answer = get(&server, "/kept-answer");
        assert!(answer.starts_with("HTTP/1.1 500 "), "{reset}: {answer}");
        server.await_log("it sent no response");
        assert_eq!(content(&get(&server, "/kept-content")), "begun", "{reset}");
        // An instance that accumulates handles is dropped before it runs out of them.
        for _ in 0..50 {
            assert_eq!(content(&get(&server, "/kept-handle")), "kept", "{reset}");
        }
    }
}

#[test]
fn each_request_has_its_own_share_of_the_log_and_of_time() {
    let Some(guests) = guests() else { return };
    let server = serve_guests(guests, "reset none; log-bytes-max \"100B\"; cpu-time-max \"200ms\"", "");
    for _ in 0..20 {
        assert!(content(&get(&server, "/log?9")).ends_with("logged"));
    }
    server.await_log("line 8");
    let log = server.end_with_log();
    assert!(log.iter().all(|line| !line.contains("wrote more")), "{log:?}");
}

#[test]
fn who_waits_for_short_content_holds_no_instance() {
    let Some(guests) = guests() else { return };
    let server = serve_guests(guests, "instances-max 1; queue-timeout \"20s\"", "");
    let mut slow = server.connect();
    slow.write_all(b"POST /echo HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 5\r\n\r\n").unwrap();
    await_read(&slow);
    assert!(get(&server, "/hello").contains("hello\n"));
    slow.write_all(b"there").unwrap();
    assert_eq!(content(&read_all(&mut slow)), "there");
}
