//! The engine of HTTP/2 judged by others, through `h2_server`: h2spec and foreign clients, as far as they are installed.

#[allow(dead_code)]
#[path = "../../tests/support/skips.rs"]
mod skips;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Output, Stdio};

use skips::skip_without;

/// `h2_server`, which ends with the test.
struct H2ServerProcess {
    process: Child,
    port: String,
}

impl H2ServerProcess {
    fn start() -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_h2_server"))
            .arg("127.0.0.1:0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the server starts");
        let mut line = String::new();
        let stdout = process.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut line).expect("the server says where it listens");
        let port = line.trim().rsplit(':').next().expect("an address has a port").to_owned();
        Self { process, port }
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }
}

impl Drop for H2ServerProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Output of a program. Skips and returns `None` if it is not installed.
fn run(program: &str, arguments: &[&str]) -> Option<Output> {
    run_with_input(program, arguments, b"")
}

fn run_with_input(program: &str, arguments: &[&str], input: &[u8]) -> Option<Output> {
    let mut process = Command::new("timeout")
        .args(["100", program])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    let mut stdin = process.stdin.take()?;
    let input = input.to_vec();
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = process.wait_with_output().ok()?;
    let _ = writer.join();
    // timeout's own status for a program that it can't find.
    if output.status.code() == Some(127) {
        skip_without(program);
        return None;
    }
    Some(output)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn h2spec_in_strict_mode() {
    let server = H2ServerProcess::start();
    let arguments = ["--strict", "--timeout", "2", "-h", "127.0.0.1", "-p", &server.port];
    let Some(output) = run("h2spec", &arguments) else { return };
    let report = text(&output.stdout);
    let failures = report.split_once("Failures:").map_or("", |(_, failures)| failures);
    assert!(output.status.success() && failures.is_empty(), "{failures}");
    assert!(report.contains(" 0 failed"), "{report}");
}

#[test]
fn curl() {
    let server = H2ServerProcess::start();
    let content = vec![b'y'; 900_000];
    let too_much = vec![b'y'; 3_000_000];
    let plain =
        ["-sS", "--http2-prior-knowledge", "-o", "/dev/null", "-w", "%{http_code} %{http_version} %{size_download}"];
    for (path, more, input, expect) in [
        ("/", &[][..], &b""[..], "200 2 17"),
        ("/bytes/5000000", &[], b"", "200 2 5000000"),
        ("/", &["--head"], b"", "200 2 0"),
        ("/", &["--data-binary", "@-"], &content, "200 2 900000"),
        ("/", &["-T", "-"], &content, "200 2 900000"),
        ("/", &["--data-binary", "@-"], &too_much, "413 2 17"),
    ] {
        let url = server.url(path);
        let arguments = [&plain, more, &[&url]].concat();
        let Some(output) = run_with_input("curl", &arguments, input) else { return };
        assert_eq!(text(&output.stdout), expect, "{path} {more:?}: {}", text(&output.stderr));
    }
}

#[test]
fn nghttp_and_h2load() {
    let server = H2ServerProcess::start();
    let urls = ["/", "/bytes/100000", "/bytes/7"].map(|path| server.url(path));
    let urls = urls.each_ref().map(String::as_str);
    if let Some(output) = run("nghttp", &[&["-ns"], &urls[..]].concat()) {
        let report = text(&output.stdout);
        assert_eq!(report.matches("  200 ").count(), 3, "{report}");
    }
    for arguments in [["-n", "2000", "-c", "8", "-m", "64"], ["-n", "40", "-c", "4", "-m", "10"]] {
        let path = if arguments[1] == "40" { "/bytes/1000000" } else { "/bytes/1024" };
        let Some(output) = run("h2load", &[&arguments[..], &[&server.url(path)]].concat()) else { return };
        let report = text(&output.stdout);
        let expect = format!("{} succeeded, 0 failed, 0 errored", arguments[1]);
        assert!(report.contains(&expect), "{report}");
    }
}

/// Python's h2 by way of httpx.
#[test]
fn httpx() {
    const SCRIPT: &str = r#"
import sys, httpx
url = sys.argv[1]
with httpx.Client(http1=False, http2=True) as client:
    for number in range(30):
        response = client.get(f"{url}bytes/{number * 7000}")
        assert (response.status_code, len(response.content), response.http_version) == (200, number * 7000, "HTTP/2")
    content = b"z" * 700000
    assert client.post(url, content=content).content == content
    assert len(client.post(url, content=(b"y" * 10000 for _ in range(5))).content) == 50000
"#;
    // Debian's, which has Debian's packages; another one may come first in PATH.
    let python = "/usr/bin/python3";
    if !run(python, &["-c", "import httpx, h2"]).is_some_and(|output| output.status.success()) {
        skip_without("httpx");
        return;
    }
    let server = H2ServerProcess::start();
    let output = run(python, &["-c", SCRIPT, &server.url("/")]).expect("it was there a moment ago");
    assert!(output.status.success(), "{}", text(&output.stderr));
}
