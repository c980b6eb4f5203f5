//! HTTP/3, against a server of aioquic: no code of this project counts its requests or sends its bodies.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::Value;

use crate::port::free_port;
use crate::skips::{skip, skip_without};
use crate::{bench, failures, in_parallel, percentile_ms, tailor};

/// Package of the server.
const AIOQUIC: &str = "/usr/local/lib/aioquic/aioquic";

const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/behaviour/h3_server.py");

/// Server whose certificate is in a directory.
struct AioquicServer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    port: u16,
    directory: tempfile::TempDir,
}

impl AioquicServer {
    /// Starts a server; `None` if aioquic is not installed.
    #[track_caller]
    fn start() -> Option<Self> {
        Self::start_with("h3")
    }

    /// Starts a server with this name of its protocol (ALPN).
    #[track_caller]
    pub(crate) fn start_with(protocol: &str) -> Option<Self> {
        if !Path::new(AIOQUIC).is_dir() {
            skip_without(AIOQUIC);
            return None;
        }
        let directory = certificate();
        let mut command = Command::new("python3");
        command.arg(SERVER).args(["localhost.pem", "localhost.key"].map(|name| directory.path().join(name)));
        let mut child =
            command.arg(protocol).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3 starts");
        let (input, output) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        let mut server = Self { child, input, output: BufReader::new(output), port: 0, directory };
        server.port = server.read().trim().parse().expect("a port");
        Some(server)
    }

    fn read(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the server writes text");
        line
    }

    /// Counts of the server.
    fn counts(&mut self) -> Value {
        writeln!(self.input).expect("the server reads");
        serde_json::from_str(&self.read()).expect("JSON")
    }

    /// Loads a path over HTTP/3, and verifies the server's certificate.
    fn bench(&self, path: &str, arguments: &[&str]) -> (Value, i32) {
        self.bench_with(&self.directory, path, arguments)
    }

    /// Loads a path over HTTP/3, and verifies the server's certificate by the CA in a directory.
    fn bench_with(&self, directory: &tempfile::TempDir, path: &str, arguments: &[&str]) -> (Value, i32) {
        let authority = directory.path().join("ca.pem");
        let url = format!("https://localhost:{}{path}", self.port);
        let address = format!("localhost:{}:127.0.0.1", self.port);
        let authority = authority.to_str().expect("a path of ASCII");
        bench(&url, &[&["--http3", "--cacert", authority, "--resolve", &address], arguments].concat())
    }
}

impl Drop for AioquicServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Directory with a certificate for `localhost` and that of its CA.
pub(crate) fn certificate() -> tempfile::TempDir {
    let mut params = CertificateParams::new([]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["localhost".into()]).unwrap().signed_by(&key, &issuer).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| std::fs::write(directory.path().join(name), text).unwrap();
    write("ca.pem", issuer.pem());
    write("localhost.pem", certificate.pem());
    write("localhost.key", key.serialize_pem());
    directory
}

/// Content that the server sends for `/bytes/LENGTH`.
fn content(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index % 251) as u8).collect()
}

#[test]
fn bodies_and_counts_are_those_of_the_server() {
    for (length, arguments, streams) in [
        (1024, &["-n", "300", "-c", "4", "--streams", "8"][..], 8),
        (1024, &["-n", "100", "-c", "4"], 1),
        (0, &["-n", "50", "-c", "1"], 1),
        (16 << 10, &["-n", "40", "-c", "2", "--streams", "4", "-t", "2"], 4),
        // More than windows and bursts hold.
        (1 << 20, &["-n", "6", "-c", "2", "-m", "2"], 2),
        (1024, &["-n", "100", "-c", "4", "--streams", "4", "-R", "400"], 4),
        (1024, &["-n", "100", "-c", "4", "--streams", "4", "-R", "400", "--arrivals", "poisson"], 4),
        (1024, &["-n", "40", "-c", "4", "--requests-per-connection", "5"], 1),
    ] {
        let Some(mut server) = AioquicServer::start() else { return };
        let body = server.directory.path().join("body");
        std::fs::write(&body, content(length)).unwrap();
        let (length_text, body) = (length.to_string(), body.to_str().unwrap());
        let checks = ["--expect-body", body, "--expect-length", &length_text, "--expect-header", "server: aioquic"];
        let (report, code) = server.bench(&format!("/bytes/{length}"), &[arguments, &checks].concat());
        let requests = arguments[1].parse::<u64>().unwrap();
        assert_eq!((failures(&report), report["served"].as_u64(), code), (vec![], Some(requests), 0), "{arguments:?}");
        let (mut counts, began) = (server.counts(), Instant::now());
        // The server may see the end of a last handshake later than the client.
        while counts["connections"] != report["connections"] && began.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(5));
            counts = server.counts();
        }
        assert_eq!(counts["requests"], requests, "{arguments:?}");
        assert_eq!(counts["content"], requests * length as u64, "{arguments:?}");
        assert_eq!(counts["connections"], report["connections"], "{arguments:?}");
        assert!(counts["streams"].as_u64().unwrap() <= streams, "{arguments:?}: {counts}");
        assert!(report["bytes_received"].as_u64().unwrap() > requests * length as u64, "{arguments:?}");
        assert_eq!(report["load"]["protocol"], "HTTP/3");
        let datagrams = &report["datagrams"];
        assert_eq!(datagrams["failed_sends"], 0, "{arguments:?}");
        assert!(datagrams["received"].as_u64().unwrap() >= datagrams["receive_calls"].as_u64().unwrap() / 3);
        if arguments.contains(&"--requests-per-connection") {
            // The last requests may be spread over all four.
            assert!((8..=11).contains(&counts["connections"].as_u64().unwrap()), "{counts}");
        }
    }
}

#[test]
fn streams_are_concurrent() {
    let Some(mut server) = AioquicServer::start() else { return };
    let (report, code) = server.bench("/delay/100", &["-n", "32", "-c", "2", "--streams", "16"]);
    assert_eq!((failures(&report), code), (vec![], 0));
    assert_eq!(server.counts()["streams"], 16);
    let p50 = percentile_ms(&report["latency"], 50.0);
    assert!(p50 >= 100.0, "{p50}");
}

/// SHA-256 that no content has.
const ZEROS: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Path, arguments, expected failures by class, and a part of their reason.
type FailureRow = (&'static str, &'static [&'static str], &'static [(&'static str, u64)], &'static str);

#[test]
fn failures_have_their_class() {
    let rows: &[FailureRow] = &[
        ("/status/404", &[], &[("wrong status", 8)], "404"),
        ("/status/404", &["--expect-status", "404"], &[], ""),
        ("/bytes/10", &["--expect-length", "11"], &[("wrong length", 8)], ""),
        ("/bytes/64", &["--expect-sha256", ZEROS], &[("wrong body", 8)], ""),
        ("/bytes/1", &["--expect-header", "x: y"], &[("wrong field", 8)], ""),
        ("/short", &[], &[("malformed response", 8)], "H3_MESSAGE_ERROR"),
        ("/reset", &[], &[("early close", 8)], "stream reset: H3_INTERNAL_ERROR"),
        ("/close", &[], &[("early close", 8)], "the server closed the connection: H3_INTERNAL_ERROR"),
        ("/frame", &[], &[("malformed response", 8)], ""),
        ("/stall", &["--timeout", "300ms"], &[("time-out", 8)], ""),
        ("/reject", &[], &[], ""),
        ("/goaway", &[], &[], ""),
    ];
    in_parallel(rows, |(path, arguments, expect, reason)| {
        let Some(server) = AioquicServer::start() else { return };
        let (report, _) = server.bench(path, &[&["-n", "8", "-c", "2"], *arguments].concat());
        let expect: Vec<_> = expect.iter().map(|(class, count)| ((*class).to_owned(), *count)).collect();
        assert_eq!(failures(&report), expect, "{path}: {report}");
        let served = 8 - expect.iter().map(|(_, count)| count).sum::<u64>();
        assert_eq!(report["served"], served, "{path}");
        let reasons = report["failure_reasons"].to_string();
        assert!(reasons.contains(reason), "{path}: {reasons}");
    });
}

#[test]
fn uploads_arrive_whole() {
    let Some(mut server) = AioquicServer::start() else { return };
    let file = server.directory.path().join("upload");
    // More than the server's first window.
    std::fs::write(&file, content(3 << 20)).unwrap();
    let (file, length) = (format!("@{}", file.display()), (3 << 20).to_string());
    let expect = server.directory.path().join("expected");
    std::fs::write(&expect, length).unwrap();
    let expect = expect.to_str().unwrap();
    let (report, code) = server.bench("/upload", &["-n", "4", "-c", "2", "--body", &file, "--expect-body", expect]);
    assert_eq!((failures(&report), report["served"].as_u64(), code), (vec![], Some(4), 0), "{report}");
    assert_eq!(server.counts()["requests"], 4);
}

#[test]
fn aborts_cancel_streams_and_keep_the_connection() {
    let Some(mut server) = AioquicServer::start() else { return };
    let (report, _) = server.bench("/bytes/1000000", &["-n", "6", "-c", "1", "--abort", "1", "--abort-after", "1000"]);
    assert_eq!((report["aborted"].as_u64(), report["connections"].as_u64()), (Some(6), Some(1)), "{report}");
    assert_eq!(server.counts()["requests"], 6);
}

#[test]
fn the_end_of_a_run_closes_its_connections() {
    let Some(mut server) = AioquicServer::start() else { return };
    let mut last = serde_json::Value::Null;
    // On a busy machine, a run may end before its handshakes.
    let is_connected = ["300ms", "3s", "30s"].iter().any(|duration| {
        (last, _) = server.bench("/bytes/100000", &["-d", duration, "-c", "4", "--streams", "4"]);
        assert_eq!(failures(&last), [], "{last}");
        last["connections"] == 4
    });
    assert!(is_connected, "{last}");
    // The packets arrive shortly after.
    while let counts = server.counts()
        && counts["closed"] != counts["connections"]
    {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn handshakes_are_counted() {
    for (arguments, full, resumed) in
        [(&[][..], 20..=20, 0..=0), (&["--resume"], 1..=2, 18..=19), (&["-k"], 20..=20, 0..=0)]
    {
        let Some(mut server) = AioquicServer::start() else { return };
        let load = ["-n", "20", "-c", "1", "--requests-per-connection", "1"];
        let (report, code) = server.bench("/bytes/1", &[&load, arguments].concat());
        assert_eq!((failures(&report), code), (vec![], 0), "{arguments:?}");
        let count = |name: &str| report["handshakes"][name].as_u64().unwrap();
        assert!(full.contains(&count("full")), "{arguments:?}: {}", report["handshakes"]);
        assert!(resumed.contains(&count("resumed")), "{arguments:?}: {}", report["handshakes"]);
        let counts = server.counts();
        assert_eq!((&counts["connections"], &counts["resumed"]), (&20.into(), &count("resumed").into()));
        assert_eq!(report["tls_handshake"]["count"], 20);
    }
}

#[test]
fn servers_without_http3() {
    // Another protocol, an unknown CA, no server, and a port that answers nothing.
    if let Some(server) = AioquicServer::start_with("other") {
        let (report, _) = server.bench("/", &["-n", "2", "-c", "1"]);
        assert_eq!(failures(&report), [("TLS failure".to_owned(), 2)]);
        assert!(report["failure_reasons"].to_string().contains("does not offer HTTP/3"), "{report}");
    }
    if let Some(server) = AioquicServer::start() {
        let (report, _) = server.bench_with(&certificate(), "/", &["-n", "2", "-c", "1"]);
        assert_eq!(failures(&report), [("TLS failure".to_owned(), 2)]);
        assert!(report["failure_reasons"].to_string().contains("--cacert FILE trusts this CA"), "{report}");
    }
    // The system assigns no such port by itself, so no other test listens there. The last rest is longer than a handshake may last
    // until QUIC sends its first packet again.
    let (report, _) = bench("https://127.0.0.1:1/", &["--h3", "-k", "-n", "7", "-c", "1"]);
    assert_eq!(failures(&report), [("failed connect".to_owned(), 7)]);
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/", silent.local_addr().unwrap());
    let (report, _) = bench(&url, &["--http3", "-k", "-n", "2", "-c", "1", "--timeout", "200ms"]);
    assert_eq!(failures(&report), [("time-out".to_owned(), 2)]);
}

/// The built Tailcoat, which ends with this value.
pub(crate) struct Tailcoat(Child);

impl Tailcoat {
    /// Serves a directory over all versions of HTTP. Waits until the server accepts connections.
    fn start(directory: &Path, port: u16) -> Option<Self> {
        Self::start_with(directory, port, "")
    }

    /// Starts a server whose site has this option.
    pub(crate) fn start_with(directory: &Path, port: u16, option: &str) -> Option<Self> {
        let program = Path::new(env!("CARGO_BIN_EXE_tailor")).with_file_name("tailcoat");
        if !program.exists() {
            skip("tailcoat is not built; run `cargo test --workspace`");
            return None;
        }
        let at = directory.display();
        let config = format!(
            "server {{\n workers 2\n http-versions \"1.1\" \"2\" \"3\"\n}}\nsite {{\n listen \"127.0.0.1:{port}\" tls=on\n \
             certificate \"{at}/localhost.pem\" key=\"{at}/localhost.key\"\n root \"{at}/root\"\n {option}\n}}\n"
        );
        let file = directory.join("tailcoat.kdl");
        std::fs::write(&file, config).unwrap();
        let mut server = Self(Command::new(program).arg("run").arg("-c").arg(file).spawn().expect("tailcoat starts"));
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert_eq!(server.0.try_wait().unwrap(), None, "the server runs");
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(server)
    }
}

impl Drop for Tailcoat {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn tailcoat_serves_the_same_over_all_versions() {
    let directory = certificate();
    let root = directory.path().join("root");
    std::fs::create_dir(&root).unwrap();
    for length in [1 << 10, 16 << 10, 1 << 20] {
        std::fs::write(root.join(format!("{length}.bin")), content(length)).unwrap();
    }
    let port = free_port();
    let Some(_server) = Tailcoat::start(directory.path(), port) else { return };
    let authority = directory.path().join("ca.pem");
    for (length, arguments) in [
        (1 << 10, &["-n", "4000", "-c", "4", "--streams", "32"][..]),
        (1 << 10, &["-n", "1000", "-c", "8", "--streams", "4", "-R", "2k"]),
        (1 << 10, &["-n", "60", "-c", "2", "--requests-per-connection", "1", "--resume"]),
        (16 << 10, &["-n", "400", "-c", "4", "--streams", "8"]),
        (1 << 20, &["-n", "16", "-c", "2", "--streams", "4"]),
    ] {
        let url = format!("https://localhost:{port}/{length}.bin");
        let file = root.join(format!("{length}.bin"));
        let checks = ["--expect-body", file.to_str().unwrap(), "--cacert", authority.to_str().unwrap()];
        let resolve = ["--resolve", &format!("localhost:{port}:127.0.0.1")];
        for version in ["--http2", "--http3"] {
            let (report, code) = bench(&url, &[&[version], arguments, &checks, &resolve].concat());
            let requests = arguments[1].parse::<u64>().unwrap();
            let result = (failures(&report), report["served"].as_u64(), code);
            assert_eq!(result, (vec![], Some(requests), 0), "{version} {arguments:?}");
            if version == "--http3" {
                assert_eq!(report["datagrams"]["failed_sends"], 0, "{arguments:?}");
            }
        }
    }
}

/// Returning clients have a handshake each, and lose no request whether the server accepts early data or not.
#[test]
fn early_data_is_counted() {
    let directory = certificate();
    let root = directory.path().join("root");
    std::fs::create_dir(&root).unwrap();
    std::fs::write(root.join("file"), content(2000)).unwrap();
    let authority = directory.path().join("ca.pem");
    let checks = ["--cacert", authority.to_str().unwrap(), "--expect-length", "2000"];
    for (option, requests, arguments, early) in [
        ("early-data on", "1", &["--early-data"][..], 50..=59),
        ("early-data on", "3", &["--early-data", "--streams", "3"], 15..=19),
        ("early-data on", "1", &[], 0..=0),
        ("early-data off", "1", &["--early-data"], 0..=0),
    ] {
        let load = ["--http3", "-n", "60", "-c", "2", "--resume", "--requests-per-connection", requests];
        let port = free_port();
        let Some(_server) = Tailcoat::start_with(directory.path(), port, option) else { return };
        let url = format!("https://localhost:{port}/file");
        let resolve = ["--resolve", &format!("localhost:{port}:127.0.0.1")];
        let (report, code) = bench(&url, &[&load, arguments, &checks, &resolve].concat());
        let result = (failures(&report), report["served"].as_u64(), code);
        assert_eq!(result, (vec![], Some(60), 0), "{option} {arguments:?}: {report}");
        let handshakes = &report["handshakes"];
        assert!(early.contains(&handshakes["early"].as_u64().unwrap()), "{option} {arguments:?}: {handshakes}");
        let counted = ["full", "resumed"].map(|name| handshakes[name].as_u64().unwrap());
        assert_eq!(counted.iter().sum::<u64>(), report["connections"], "{option} {arguments:?}: {handshakes}");
    }
}

#[test]
fn connections_that_move_lose_no_request() {
    let Some(mut server) = AioquicServer::start() else { return };
    let load = ["-n", "120", "-c", "2", "--streams", "2", "--move-after", "10", "--expect-length", "5000"];
    let (report, code) = server.bench("/bytes/5000", &load);
    assert_eq!((failures(&report), report["served"].as_u64(), code), (vec![], Some(120), 0), "{report}");
    let counts = server.counts();
    assert_eq!((&counts["requests"], &counts["connections"]), (&120.into(), &2.into()), "{counts}");
    let moves = report["datagrams"]["moves"].as_u64().unwrap();
    assert!((8..=12).contains(&moves), "{report}");
}

#[test]
fn options_that_need_tcp_are_rejected() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    for (url, arguments, expect) in [
        ("http://127.0.0.1/", &[][..], "use an https:// URL"),
        (url.as_str(), &["--http2"], "cannot be used with"),
        (url.as_str(), &["--line", "1M"], "cannot be used with"),
        (url.as_str(), &["--unix-socket", "/x"], "cannot be used with"),
        (url.as_str(), &["--pipeline", "2"], "cannot be used with"),
        (url.as_str(), &["--early-data"], "required arguments"),
        (url.as_str(), &["-k", "--early-data", "--resume", "-m", "POST"], "--early-data needs requests"),
    ] {
        let output = tailor(&[&["bench", "--http3", url], arguments].concat());
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && message.contains(expect), "{arguments:?}: {message}");
    }
}
