//! http-wasm modules as filters: they pass a request on, changed or not, and see the response before the client.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;

use tempfile::TempDir;

use crate::support::guests::{compiled_directory, filters};
use crate::support::upstream::{ScriptStep, ScriptedUpstream};
use crate::support::versions::AnyVersion;
use crate::support::{PATIENCE, TestServer, ask, read_until};

/// Site with a module in front of files, with these rules.
fn server(filters: &Path, rules: &str, backend: &str) -> (TestServer, TempDir) {
    let files = tempfile::tempdir().unwrap();
    std::fs::write(files.path().join("file"), "a file").unwrap();
    std::fs::create_dir(files.path().join("private")).unwrap();
    std::fs::write(files.path().join("private/file"), "a secret").unwrap();
    let config = format!(
        "server {{ workers 1; pin-workers off }}\nmodules {{ compile-wait \"5m\"; compiled \"{}\" }}\nsite {{\n listen \"127.0.0.1:0\"\n \
         {rules}\n module \"*\" \"{}\" {{ reset none; cpu-time-max \"200ms\"; buffered-bytes-max \"1KiB\" }}\n \
         {backend}\n root \"{}\"\n}}\n",
        compiled_directory().display(),
        filters.display(),
        files.path().display()
    );
    (TestServer::run(&config), files)
}

fn get(server: &TestServer, target: &str) -> String {
    ask(server, &format!("GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"))
}

/// Configurations with and without rules, which send requests along different paths.
const RULES: [&str; 2] = ["", "response-header \"X-Rule\" \"1\""];

#[test]
fn requests_go_on_and_responses_come_back() {
    let Some(filters) = filters() else { return };
    for rules in RULES {
        let (server, _files) = server(filters, rules, "");
        let check = |target: &str, status: &str, expect: &[&str], content: &str| {
            // The second request uses the cached file and a used instance.
            for _ in 0..2 {
                let answer = get(&server, target);
                assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{target}: {answer}");
                for expect in expect {
                    assert!(answer.contains(expect), "{expect:?} is not in {target}: {answer}");
                }
                assert_eq!(answer.contains("X-Rule: 1"), !rules.is_empty(), "{target}: {answer}");
                let found = answer.split_once("\r\n\r\n").unwrap().1;
                assert!(if status.starts_with('4') { found.contains(content) } else { found == content }, "{answer}");
            }
        };
        check("/file", "200", &["ETag: "], "a file");
        check("/missing", "404", &[], "404");
        check(
            "/guest/change",
            "200",
            &[
                "\r\nx-was: application/octet-stream\r\n",
                "\r\nx-method: GET\r\n",
                "\r\nx-error: no\r\n",
                "\r\nx-seen: 200\r\n",
            ],
            "a file",
        );
        assert!(!get(&server, "/guest/change").contains("ETag"));
        check("/guest/uri?/file", "200", &["ETag: "], "a file");
        check("/guest/status-of-next", "418", &[], "a file");
        check("/guest/replace", "200", &[], "instead");
        check("/guest/upper-case?/file", "200", &[], "A FILE");
        // The next handler sees the changed method.
        check("/guest/method?DELETE", "405", &[], "405");
        for (target, status) in [("/guest/trap-in-response", "500"), ("/guest/loop-in-response", "504")] {
            assert!(get(&server, target).starts_with(&format!("HTTP/1.1 {status} ")), "{target}");
        }
        let range =
            ask(&server, "GET /guest/uri?/file HTTP/1.1\r\nHost: h\r\nRange: bytes=2-3\r\nConnection: close\r\n\r\n");
        assert!(range.starts_with("HTTP/1.1 206 ") && range.ends_with("fi"), "{range}");
    }
}

#[test]
fn rules_hold_for_what_a_guest_makes_of_a_request() {
    let Some(filters) = filters() else { return };
    let rules = "deny \"all\" path=\"/private/*\"\n request-header \"X-Rule\" \"1\" ";
    let (server, _files) = server(filters, rules, "");
    assert!(get(&server, "/private/file").starts_with("HTTP/1.1 403 "));
    assert!(get(&server, "/guest/uri?/private/file").starts_with("HTTP/1.1 403 "));
    assert!(get(&server, "/guest/uri?/x/..//private/%66ile").starts_with("HTTP/1.1 403 "));
    assert!(get(&server, "/guest/uri?/../../etc/passwd").starts_with("HTTP/1.1 500 "));
    assert!(get(&server, "/guest/uri?/file").ends_with("a file"));
}

#[test]
fn a_client_that_goes_ends_what_was_passed_on() {
    let Some(filters) = filters() else { return };
    for rules in RULES {
        let backend = TcpListener::bind("127.0.0.1:0").unwrap();
        let forward = format!("forward \"http://{}\" path=\"/slow\"", backend.local_addr().unwrap());
        let (server, _files) = server(filters, rules, &forward);
        // A used instance responds at once.
        assert!(get(&server, "/guest/uri?/file").ends_with("a file"));
        let mut client = server.connect();
        client.write_all(b"GET /guest/uri?/slow HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        let (mut request, _) = backend.accept().unwrap();
        request.set_read_timeout(Some(PATIENCE)).unwrap();
        assert!(read_until(&mut request, "\r\n\r\n").starts_with("GET /slow HTTP/1.1\r\n"));
        drop(client);
        assert_eq!(request.read(&mut [0]).unwrap(), 0, "{rules}");
    }
}

#[test]
fn what_the_upstream_gets() {
    let Some(filters) = filters() else { return };
    for rules in ["", "request-header \"X-Rule\" \"1\""] {
        // Expected end of the upstream's input, and the response.
        let ask = |target: &str, fields: &str, content: &str, end: &'static str| {
            let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\nETag: \"x\"\r\n\r\nok";
            let upstream = ScriptedUpstream::start(vec![vec![ScriptStep::Read(end), ScriptStep::Write(answer)]]);
            let forward = format!("forward \"http://{}\" {{ forwarded-headers none }}", upstream.address);
            let (server, _files) = server(filters, rules, &forward);
            let length = content.len();
            let head =
                format!("POST {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: {length}\r\n");
            let answer = crate::support::ask(&server, &format!("{head}{fields}\r\n{content}"));
            (upstream.connection(), answer)
        };
        let (asked, answer) = ask("/guest/field", "X-Secret: 1\r\nX-Kept: 2\r\n", "abc", "abc");
        assert!(asked.contains("x-added: by the guest\r\n") && asked.contains("X-Kept: 2\r\n"), "{asked}");
        assert!(!asked.contains("Secret") && asked.starts_with("POST /guest/field "), "{asked}");
        assert_eq!(asked.contains("X-Rule: 1"), !rules.is_empty(), "{asked}");
        assert!(answer.ends_with("ok"), "{answer}");
        let (asked, _) = ask("/guest/body", "", "the client's", "the guest's content");
        assert!(asked.contains("Content-Length: 19\r\n") && asked.ends_with("\r\n\r\nthe guest's content"), "{asked}");
        let (asked, _) = ask("/guest/peek", "", "the client's", "the client's");
        assert!(asked.contains("x-peeked: yes") && asked.ends_with("\r\n\r\nthe client's"), "{asked}");
        let (asked, _) = ask("/guest/consume", "", "the client's", "\r\n\r\n");
        assert!(asked.ends_with("\r\n\r\n") && !asked.contains("client's"), "{asked}");
        let (_, answer) = ask("/guest/upper-case?/x", "", "", "\r\n\r\n");
        assert!(answer.contains("ETag: \"x\"\r\n") && answer.ends_with("OK"), "{answer}");
    }
}

#[test]
fn what_is_too_much_to_keep() {
    let Some(filters) = filters() else { return };
    let (server, files) = server(filters, "", "");
    std::fs::write(files.path().join("large"), "x".repeat(2_000)).unwrap();
    let answer = get(&server, "/guest/upper-case?/large");
    assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
    let content = "x".repeat(2_000);
    let head = "POST /guest/peek HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 2000\r\n\r\n";
    let answer = ask(&server, &format!("{head}{content}"));
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
}

#[test]
fn filters_see_all_versions_alike() {
    let Some(filters) = filters() else { return };
    let files = tempfile::tempdir().unwrap();
    std::fs::write(files.path().join("file"), "a file").unwrap();
    let options = format!(" module \"*\" \"{}\"\n root \"{}\"", filters.display(), files.path().display());
    let shared = format!("modules {{ compile-wait \"5m\"; compiled \"{}\" }}", compiled_directory().display());
    let Some(server) = AnyVersion::start(&options, &shared) else { return };
    for (path, status, content) in [
        ("/file", 200, "a file"),
        ("/guest/change", 200, "a file"),
        ("/guest/status-of-next", 418, "a file"),
        ("/guest/replace", 200, "instead"),
        ("/guest/upper-case?/file", 200, "A FILE"),
    ] {
        let answer = server.ask_all(path, &[]);
        assert_eq!((answer.status, answer.content.as_slice()), (status, content.as_bytes()), "{path}");
    }
    assert_eq!(server.ask_all("/guest/change", &[]).field("x-seen"), Some("200"));
}
