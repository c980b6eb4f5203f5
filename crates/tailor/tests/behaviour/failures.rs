//! Failure counts: each fault counts exactly once in its class, and no failed request counts as served.

use std::io::Write;
use std::net::TcpListener;

use crate::server::{FakeServerAction, ok, response, start};
use crate::{bench, failures, longer, undisturbed};

const CONTENT: &[u8] = b"0123456789";

/// URL that rejects connections. The system assigns no such port by itself, so no other test listens there.
const REFUSING: &str = "http://127.0.0.1:1";

/// Fault of the `number`th request; the faults repeat after ten requests.
fn fault(number: usize) -> FakeServerAction {
    match number % 10 {
        1 => FakeServerAction::Reply(response("200 OK", "X-Field: yes\r\n", b"012345678")),
        2 => FakeServerAction::Close(b"HTTP/1.1 200 OK\r\nX-Field: yes\r\nContent-Length: 10\r\n\r\n01234".to_vec()),
        3 => FakeServerAction::Reply(response("200 OK", "X-Field: yes\r\n", b"0123456x89")),
        4 => FakeServerAction::Reply(b"HTTP/1.1 2OO OK\r\nContent-Length: 0\r\n\r\n".to_vec()),
        5 => FakeServerAction::Reply(response("503 Service Unavailable", "", CONTENT)),
        6 => FakeServerAction::Reply(response("200 OK", "X-Field: no\r\n", CONTENT)),
        7 => FakeServerAction::Close(Vec::new()),
        8 => FakeServerAction::Reset,
        9 => FakeServerAction::Reply([response("200 OK", "X-Field: yes\r\n", CONTENT), b"more".to_vec()].concat()),
        _ => FakeServerAction::Reply(response("200 OK", "X-Field: yes\r\n", CONTENT)),
    }
}

#[test]
fn a_faulty_server_is_counted_to_the_number() {
    for (connections, requests) in [("1", 200), ("7", 2000)] {
        let server = start(|request| fault(request.number));
        let body = tempfile::NamedTempFile::new().unwrap();
        body.as_file().write_all(CONTENT).unwrap();
        let arguments = [
            "-c",
            connections,
            "-n",
            &requests.to_string(),
            "--expect-header",
            "X-Field: yes",
            "--expect-length",
            "10",
            "--expect-body",
            body.path().to_str().unwrap(),
            "--require",
            "failures=0",
        ];
        let (report, code) = bench(&server.url, &arguments);
        let tenth = requests as u64 / 10;
        let expect = [
            ("early close", 3 * tenth),
            ("malformed response", tenth),
            ("wrong body", tenth),
            ("wrong field", tenth),
            ("wrong length", 2 * tenth),
            ("wrong status", tenth),
        ];
        assert_eq!(
            failures(&report),
            expect.map(|(name, count)| (name.to_owned(), count)),
            "{connections} connections"
        );
        assert_eq!((report["served"].as_u64(), code), (Some(tenth), 1));
        assert_eq!(report["latency"]["count"].as_u64(), Some(tenth), "nothing failed is in the latencies");
    }
}

/// Failures of one class have reasons, each with its count.
#[test]
fn reasons_are_counted() {
    let server = start(|request| match request.number % 5 {
        0 => FakeServerAction::Close(Vec::new()),
        1 => FakeServerAction::Reset,
        2 => FakeServerAction::Reply(b"HTTP/1.1 2OO OK\r\nContent-Length: 0\r\n\r\n".to_vec()),
        3 => FakeServerAction::Reply(b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n".to_vec()),
        _ => FakeServerAction::Reply(b"SSH-2.0\r\n".to_vec()),
    });
    let (report, _) = bench(&server.url, &["-c", "1", "-n", "50"]);
    let details = serde_json::json!({
        "early close": {
            "the server closed the connection (FIN)": 10,
            "the server reset the connection (RST)": 10,
        },
        "malformed response": {
            "malformed Content-Length": 10,
            "malformed status line": 10,
            "not an HTTP/1 response": 10,
        },
    });
    assert_eq!(report["failure_details"], details);
    let output = crate::tailor(&["bench", &server.url, "-q", "-c", "1", "-n", "50"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("(FIN) (10), the server reset the connection (RST) (10)"), "{text}");
}

#[test]
fn what_takes_too_long_is_a_time_out() {
    let measure = |number| {
        let server = start(|request| match request.number % 4 {
            3 => FakeServerAction::Stall,
            _ => FakeServerAction::Reply(ok(b"")),
        });
        bench(&server.url, &["-c", "1", "-n", "20", "--timeout", longer(&["150ms", "3s"], number)])
    };
    let (report, _) = undisturbed(measure, |(report, _)| report["served"] == 15);
    assert_eq!((failures(&report), report["served"].as_u64()), (vec![("time-out".to_owned(), 5)], Some(15)));
}

#[test]
fn refused_connections() {
    let (report, code) = bench(REFUSING, &["-c", "3", "-n", "12"]);
    assert_eq!(failures(&report), [("failed connect".to_owned(), 12)]);
    assert_eq!((report["served"].as_u64(), code), (Some(0), 1));
    let reason = report["failure_reasons"]["failed connect"].as_str().unwrap();
    assert!(reason.starts_with("Connection refused"), "{reason}");
}

/// The pauses between attempts double: a second has room for seven of them.
#[test]
fn a_dead_server_is_left_in_peace() {
    for pace in [&[][..], &["-R", "1000", "--timeout", "100ms"]] {
        let (report, _) = bench(REFUSING, &[&["-c", "1", "-d", "1s"], pace].concat());
        let attempts = report["failures"]["failed connect"].as_u64().unwrap();
        // In the open loop the time to connect in advance, and the time-out at the end, have room for more.
        assert!((1..=10).contains(&attempts), "{pace:?}: {attempts}");
    }
}

#[test]
fn the_first_wrong_status_is_reported() {
    let server = start(|_| FakeServerAction::Reply(response("404 Not Found", "", CONTENT)));
    let (report, _) = bench(&server.url, &["-c", "1", "-n", "3"]);
    assert_eq!(failures(&report), [("wrong status".to_owned(), 3)]);
    assert_eq!(report["failure_reasons"], serde_json::json!({ "wrong status": "404" }));
}

#[test]
fn requests_that_cannot_be_written() {
    // The server does not read the content, and resets the connection.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // The request has begun to arrive.
            let _ = stream.peek(&mut [0]);
            drop(stream); // Unread bytes make the kernel send a reset.
        }
    });
    let content = tempfile::NamedTempFile::new().unwrap();
    content.as_file().set_len(16 << 20).unwrap();
    let body = format!("@{}", content.path().display());
    let (report, _) = bench(&url, &["-c", "1", "-n", "5", "--body", &body]);
    assert_eq!(failures(&report), [("write failure".to_owned(), 5)]);
}

#[test]
fn a_server_that_closes_idle_connections_is_no_failure() {
    let fields = "Connection: close\r\n";
    let server = start(move |request| match request.number_on_connection {
        4 => FakeServerAction::Close(response("200 OK", fields, b"x")),
        _ => FakeServerAction::Reply(ok(b"x")),
    });
    let (report, _) = bench(&server.url, &["-c", "2", "-n", "100"]);
    assert_eq!((failures(&report), report["served"].as_u64()), (vec![], Some(100)));
    // Each connection takes five requests; the last two connections may share the rest unevenly.
    assert!(matches!(report["connections"].as_u64(), Some(20 | 21)), "{}", report["connections"]);
}

#[test]
fn aborts_are_neither_served_nor_failed() {
    let large = vec![b'x'; 4 << 20];
    let server = start(move |_| FakeServerAction::Reply(ok(&large)));
    let (report, _) = bench(&server.url, &["-c", "2", "-n", "60", "--abort", "50%", "--abort-after", "1000"]);
    let (served, aborted) = (report["served"].as_u64().unwrap(), report["aborted"].as_u64().unwrap());
    assert_eq!((failures(&report), served + aborted), (vec![], 60));
    assert!((12..=48).contains(&aborted), "{aborted} of 60");
}
