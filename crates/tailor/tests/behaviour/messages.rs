//! Messages of WebSocket (RFC 6455) and unary calls of gRPC.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use aws_lc_rs::digest;
use serde_json::Value;

use crate::http3::{Tailcoat, certificate};
use crate::output::check_schema;
use crate::port::free_port;
use crate::{bench, failures, in_parallel, percentile_ms, tailor, undisturbed};

/// Starts a server of WebSocket that answers each message by `act`: its frames, or `None` to close the connection.
fn web_socket(
    accept: fn(&str) -> String,
    act: impl Fn(usize, &[u8]) -> Option<Vec<u8>> + Send + Sync + Clone + 'static,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("ws://{}/chat?x=1", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let act = act.clone();
            std::thread::spawn(move || serve(stream, accept, &act));
        }
    });
    url
}

fn serve(
    mut stream: TcpStream,
    accept: fn(&str) -> String,
    act: impl Fn(usize, &[u8]) -> Option<Vec<u8>>,
) -> Option<()> {
    stream.set_nodelay(true).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        head.extend_from_slice(&byte);
    }
    let head = String::from_utf8(head).unwrap();
    assert!(head.starts_with("GET /chat?x=1 HTTP/1.1\r\n"), "{head}");
    let key = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("sec-websocket-key").then_some(value)
    });
    let key = key.unwrap();
    stream.write_all(accept(key).as_bytes()).ok()?;
    for number in 0.. {
        let mut start = [0; 2];
        stream.read_exact(&mut start).ok()?;
        assert!(start[1] & 0x80 != 0, "clients mask frames");
        let mut length = usize::from(start[1] & 0x7f);
        if length == 126 {
            let mut long = [0; 2];
            stream.read_exact(&mut long).ok()?;
            length = usize::from(u16::from_be_bytes(long));
        }
        let mut rest = vec![0; 4 + length];
        stream.read_exact(&mut rest).ok()?;
        let content: Vec<u8> = rest[4..].iter().zip(rest[..4].iter().cycle()).map(|(byte, mask)| byte ^ mask).collect();
        if start[0] == 0x88 {
            // The client ends the connection.
            let _ = stream.write_all(&frame(0x88, &content));
            return None;
        }
        if start[0] == 0x8a {
            continue;
        }
        stream.write_all(&act(number, &content)?).ok()?;
    }
    None
}

fn frame(first: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![first];
    match content.len() {
        length @ 0..=125 => out.push(length as u8),
        length => {
            out.push(126);
            out.extend_from_slice(&(length as u16).to_be_bytes());
        }
    }
    out.extend_from_slice(content);
    out
}

fn accepted(key: &str) -> String {
    let text = format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    let hash = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes());
    let accept = <base64ct::Base64 as base64ct::Encoding>::encode_string(hash.as_ref());
    format!("HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n")
}

fn run(url: &str, arguments: &[&str]) -> (Value, i32) {
    let (report, code) = bench(url, arguments);
    let schema: Value = serde_json::from_str(include_str!("../../schema/bench.json")).unwrap();
    check_schema(&schema, &schema, &report, "report");
    (report, code)
}

#[test]
fn echoed_messages() {
    // A fragmented answer with a ping within it.
    let url = web_socket(accepted, |_, content| {
        let (first, second) = content.split_at(content.len() / 2);
        Some([frame(0x01, first), frame(0x89, b"p"), frame(0x80, second)].concat())
    });
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("message");
    let long = "x".repeat(1000);
    std::fs::write(&file, &long).unwrap();
    let file = file.to_str().unwrap();
    let at_file = format!("@{file}");
    in_parallel(
        &[
            &["-n", "100", "-c", "4", "--message", &at_file, "--expect-body", file][..],
            &["-n", "100", "-c", "2", "--pipeline", "8", "--message", "ab", "--expect-length", "2"],
            &["-n", "100", "-c", "2", "-R", "500", "--message", "ab", "--message", "hex:6162", "--expect-same"],
            &["-n", "100", "-c", "1", "--requests-per-connection", "10", "--message", "ab"],
        ],
        |arguments| {
            let (report, code) = run(&url, arguments);
            assert_eq!((report["served"].as_u64(), failures(&report), code), (Some(100), vec![], 0), "{report}");
            assert_eq!(report["load"]["protocol"], "WebSocket");
            assert_eq!(report["statuses"], serde_json::json!({}), "messages have no status");
            let connections = if arguments.contains(&"10") { 10 } else { arguments[3].parse().unwrap() };
            assert_eq!(report["connections"].as_u64(), Some(connections), "{arguments:?}");
        },
    );
}

#[test]
fn latency_of_messages() {
    let url = web_socket(accepted, |_, content| {
        std::thread::sleep(Duration::from_millis(30));
        Some(frame(0x82, content))
    });
    let measure = |_| run(&url, &["-n", "20", "-c", "4", "--message", "ab"]);
    let (report, _) = undisturbed(measure, |(report, _)| percentile_ms(&report["latency"], 50.0) < 200.0);
    let median = percentile_ms(&report["latency"], 50.0);
    assert!((29.9..200.0).contains(&median), "{median} ms");
}

#[test]
fn failures_of_messages() {
    for (accept, answer, expect, reason) in [
        (accepted as fn(&str) -> String, &frame(0x81, b"xyz")[..], "wrong length", None),
        (
            accepted,
            &frame(0x88, &1011u16.to_be_bytes()),
            "early close",
            Some("the server closed the WebSocket connection: 1011"),
        ),
        (accepted, b"\x81\x82abcdef", "malformed response", Some("a masked WebSocket frame from the server")),
        (accepted, b"", "early close", Some("the server closed the connection (FIN)")),
        (|_| "HTTP/1.1 403 x\r\nContent-Length: 0\r\n\r\n".to_owned(), b"", "wrong status", Some("403")),
        (
            |_| "HTTP/1.1 101 x\r\nUpgrade: websocket\r\n\r\n".to_owned(),
            b"",
            "malformed response",
            Some("a wrong Sec-WebSocket-Accept"),
        ),
        (|_| String::new(), b"", "time-out", Some("no connection in time")),
    ] {
        let answer = answer.to_vec();
        let url = web_socket(accept, move |_, _| Some(answer.clone()).filter(|answer| !answer.is_empty()));
        // Except where it is tested, the time-out is so long that a busy machine cannot reach it.
        let time_out = if expect == "time-out" { "300ms" } else { "60s" };
        let (report, code) =
            run(&url, &["-n", "3", "-c", "1", "--message", "ab", "--expect-length", "2", "--timeout", time_out]);
        assert_eq!((failures(&report), code), (vec![(expect.to_owned(), 3)], 1), "{report}");
        if let Some(reason) = reason {
            assert_eq!(report["failure_reasons"][expect], reason, "{report}");
        }
    }
}

/// RFC 8441, through a server that passes WebSockets on.
#[test]
fn echoed_messages_over_http2() {
    let upstream = web_socket(accepted, |_, content| match content {
        b"bye" => Some(frame(0x88, &1001u16.to_be_bytes())),
        _ => Some([frame(0x89, b"p"), frame(0x81, content)].concat()),
    });
    let upstream = upstream.trim_start_matches("ws://").trim_end_matches("/chat?x=1").to_owned();
    let directory = certificate();
    std::fs::create_dir(directory.path().join("root")).unwrap();
    let port = free_port();
    let forward = format!("forward \"http://{upstream}\" path=\"/chat\"");
    let Some(_server) = Tailcoat::start_with(directory.path(), port, &forward) else { return };
    let authority = directory.path().join("ca.pem");
    let base =
        ["--http2", "--cacert", authority.to_str().unwrap(), "--resolve", &format!("localhost:{port}:127.0.0.1")];
    let load = |arguments: &[&str]| run(&format!("wss://localhost:{port}/chat?x=1"), &[&base[..], arguments].concat());
    let long = "x".repeat(100_000);
    for (arguments, connections) in [
        (&["-n", "200", "-c", "2", "--streams", "16", "--message", "ab", "--expect-length", "2"][..], 2),
        (&["-n", "100", "-c", "1", "-R", "500", "--streams", "4", "--message", "ab", "--expect-same"], 1),
        (&["-n", "60", "-c", "1", "--message", &long[..60_000], "--expect-length", "60000"], 1),
        (&["-n", "60", "-c", "1", "--streams", "2", "--requests-per-connection", "10", "--message", "ab"], 6),
    ] {
        let (report, code) = load(arguments);
        assert_eq!(
            (report["served"].as_u64(), failures(&report), code),
            (arguments[1].parse().ok(), vec![], 0),
            "{report}"
        );
        assert_eq!(report["load"]["protocol"], "WebSocket over HTTP/2");
        assert_eq!(report["connections"].as_u64(), Some(connections), "{report}");
    }
    let (report, code) = load(&["-n", "3", "-c", "1", "--message", "bye"]);
    assert_eq!((failures(&report), code), (vec![("early close".to_owned(), 3)], 1), "{report}");
    let (report, _) = load(&["-n", "3", "-c", "1", "--message", "ab", "--expect-length", "3"]);
    assert_eq!(failures(&report), [("wrong length".to_owned(), 3)], "{report}");
    let (report, _) = run(&format!("wss://localhost:{port}/"), &[&base[..], &["-n", "1", "--message", "ab"]].concat());
    assert_eq!(failures(&report).first().map(|it| it.0.as_str()), Some("wrong status"), "{report}");
}

#[test]
fn mistakes() {
    for (arguments, expect) in [
        (&["ws://127.0.0.1:1/"][..], "needs messages"),
        (&["http://127.0.0.1:1/", "--message", "a"], "--message needs a ws:// or wss:// URL"),
        (&["ws://127.0.0.1:1/", "--message", "a", "--http3"], "exclude --http3"),
        (&["ws://127.0.0.1:1/", "--message", "a", "--expect-status", "200"], "no status"),
        (&["ws://127.0.0.1:1/", "--message", "hex:0"], "pairs of hexadecimal digits"),
        (&["http://127.0.0.1:1/", "--grpc"], "is not a gRPC method"),
        (&["http://127.0.0.1:1/a.B/C", "--grpc", "--message", "x"], "is not the number of a field"),
    ] {
        let output = tailor(&[&["bench"], arguments].concat());
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && message.contains(expect), "{arguments:?}: {message}");
    }
}

/// Server of Python's gRPC; it ends with its standard input.
struct PythonServer {
    child: std::process::Child,
    url: String,
}

impl PythonServer {
    /// Starts the server; `None` if Python has no gRPC.
    #[track_caller]
    fn start() -> Option<Self> {
        const GRPC: &str = "/usr/lib/python3/dist-packages/grpc";
        if !std::path::Path::new(GRPC).is_dir() {
            crate::skips::skip_without(GRPC);
            return None;
        }
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/behaviour/grpc_server.py");
        let mut command = std::process::Command::new("/usr/bin/python3");
        command.arg(script).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut child = command.spawn().expect("python3 starts");
        let mut port = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut port).unwrap();
        Some(Self { child, url: format!("http://127.0.0.1:{}/test.Echo/", port.trim()) })
    }
}

impl Drop for PythonServer {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

#[test]
fn calls_of_grpc() {
    let Some(server) = PythonServer::start() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("message");
    std::fs::write(&file, b"\x0a\x05world\x10\x05").unwrap();
    let file = file.to_str().unwrap();
    let method = |name: &str| format!("{}{name}", server.url);
    let message = ["--grpc", "--message", "1: \"world\" 2: 5"];
    let call = |name: &str, arguments: &[&str]| run(&method(name), &[&message, arguments].concat());
    let (report, code) = call("Echo", &["-n", "60", "-c", "2", "--streams", "4", "--expect-body", file]);
    assert_eq!((report["served"].as_u64(), failures(&report), code), (Some(60), vec![], 0), "{report}");
    assert_eq!(report["load"]["protocol"], "gRPC");
    let (report, _) = call("Delay", &["-n", "20", "-c", "1", "--streams", "4"]);
    assert!(percentile_ms(&report["latency"], 50.0) >= 29.9, "{report}");
    for (name, arguments, class, reason) in [
        ("Fail", &[][..], "wrong status", Some("grpc-status 14 (UNAVAILABLE)")),
        ("None", &[], "wrong status", Some("grpc-status 12 (UNIMPLEMENTED)")),
        ("Echo", &["--expect-length", "3"], "wrong length", None),
    ] {
        let (report, code) = call(name, &[&["-n", "5", "-c", "1"], arguments].concat());
        assert_eq!((failures(&report), code), (vec![(class.to_owned(), 5)], 1), "{report}");
        if let Some(reason) = reason {
            assert_eq!(report["failure_reasons"][class], reason, "{report}");
        }
    }
}
