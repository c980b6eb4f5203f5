//! HTTP/2 checked by third-party tools: h2spec in strict mode, nghttp, h2load, where they are installed.

use std::process::{Command, Output};

use crate::support::real_server::is_installed;
use crate::support::skips::skip_without;
use crate::support::tls::TestCa;
use crate::support::{LARGE_BYTES, TestServer, site_with_large_file};

/// Output of a program. Skips and returns `None` if it is not installed.
fn run(program: &str, arguments: &[&str]) -> Option<Output> {
    if !is_installed(program) {
        skip_without(program);
        return None;
    }
    Some(Command::new("timeout").args(["200", program]).args(arguments).output().expect("it can be started"))
}

/// Servers of the same files, with and without TLS; the one without speaks only HTTP/2.
fn servers() -> [(TestServer, &'static str, tempfile::TempDir); 2] {
    [("https", " tls=on"), ("http", "")].map(|(scheme, tls)| {
        let site = site_with_large_file();
        std::fs::write(site.path().join("small"), "s".repeat(1_000)).unwrap();
        let path = site.path().display();
        let mut certificate = String::new();
        if !tls.is_empty() {
            TestCa::new().sign(&["localhost"]).write(site.path(), "localhost");
            certificate = format!("certificate \"{path}/localhost.pem\" key=\"{path}/localhost.key\"");
        }
        let server = TestServer::run(&format!(
            "site \"localhost\" {{\n listen \"127.0.0.1:0\"{tls}\n default\n root \"{path}\"\n {certificate}\n}}\n\
             server {{\n workers 1\n http-versions \"2\"\n}}\n"
        ));
        (server, scheme, site)
    })
}

#[test]
fn h2spec_in_strict_mode() {
    for (server, scheme, _site) in servers() {
        let port = server.address.port().to_string();
        let mut arguments = vec!["--strict", "--timeout", "30", "-h", "127.0.0.1", "-P", "/small", "-p", &port];
        if scheme == "https" {
            arguments.extend(["-t", "-k"]);
        }
        let Some(output) = run("h2spec", &arguments) else { return };
        let report = String::from_utf8_lossy(&output.stdout).into_owned();
        let failures = report.split_once("Failures:").map_or("", |(_, failures)| failures);
        assert!(output.status.success() && failures.is_empty(), "{scheme}: {failures}");
        assert!(report.contains(" 0 failed"), "{scheme}: {report}");
    }
}

#[test]
fn nghttp_and_h2load() {
    for (server, scheme, _site) in servers() {
        let url = |path: &str| format!("{scheme}://{}{path}", server.address);
        let urls = ["/small", "/large", "/missing"].map(url);
        let urls = urls.each_ref().map(String::as_str);
        if let Some(output) = run("nghttp", &[&["-ns"], &urls[..]].concat()) {
            let report = String::from_utf8_lossy(&output.stdout).into_owned();
            assert_eq!((report.matches("  200 ").count(), report.matches("  404 ").count()), (2, 1), "{report}");
        }
        for (path, requests, clients, streams) in [("/small", 5_000, 8, 64), ("/large", 20, 4, 5)] {
            let numbers = [requests, clients, streams].map(|number: u32| number.to_string());
            let [requests, clients, streams] = numbers.each_ref().map(String::as_str);
            let arguments = ["-n", requests, "-c", clients, "-m", streams, &url(path)];
            let Some(output) = run("h2load", &arguments) else { return };
            let report = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(report.contains(&format!("{requests} succeeded, 0 failed, 0 errored")), "{report}");
            let content_bytes = if path == "/large" { 20 * LARGE_BYTES } else { 5_000_000 };
            assert!(report.contains(&format!("({content_bytes}) data")), "{report}");
        }
    }
}
