//! Operator's error pages, for files and for upstreams.

use std::net::SocketAddr;

use crate::support::port::free_port;
use crate::support::upstream::ScriptStep::{Read as Await, Write as Say};
use crate::support::upstream::ScriptedUpstream;
use crate::support::{TestServer, ask};

/// Site with error pages, and these further options.
fn server(options: &str) -> (tempfile::TempDir, TestServer) {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("root/404.html", "own 404"),
        ("root/5xx.html", "own 5xx"),
        ("part/inside", "inside"),
        ("part/404.html", "of the part"),
        ("away.txt", "own 502, from elsewhere"),
    ] {
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let server = TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n root \"{at}/root\"\n\
         error-page 404 \"/404.html\"\n error-page 502 \"file:{at}/away.txt\"\n error-page \"5xx\" \"/5xx.html\"\n\
         error-page 403 \"/missing.html\"\n deny all path=\"/denied\"\n\
         files \"/part/*\" root=\"{at}/part\" {{ strip-prefix \"/part\" }}\n{options}\n}}\nserver {{ workers 1 }}\n",
        at = directory.path().display()
    ));
    (directory, server)
}

/// Sends the request twice, because pages are cached. Expects status, content type and content.
fn check(server: &TestServer, target: &str, expect: (&str, &str, &str)) {
    for _ in 0..2 {
        let answer = ask(server, &format!("GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
        let (head, content) = answer.split_once("\r\n\r\n").unwrap();
        let content_type = head.lines().find_map(|line| line.strip_prefix("Content-Type: ")).unwrap_or_default();
        assert_eq!((&head[9..12], content_type), (expect.0, expect.1), "{target}: {answer}");
        assert!(content.contains(expect.2), "{target}: {answer}");
    }
}

const HTML: &str = "text/html; charset=utf-8";

#[test]
fn errors_have_the_pages_of_the_site() {
    let (_directory, server) = server("");
    check(&server, "/none", ("404", HTML, "own 404"));
    check(&server, "/part/none", ("404", HTML, "own 404"));
    check(&server, "/part/inside", ("200", "application/octet-stream", "inside"));
    // The server's own page replaces a missing one.
    check(&server, "/denied", ("403", HTML, "<span>403</span>"));
    // Requested directly, a page is a file.
    check(&server, "/404.html", ("200", HTML, "own 404"));
    let head = ask(&server, "HEAD /none HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 404 ") && head.contains("\r\nContent-Length: 7\r\n"), "{head}");
    assert!(head.ends_with("\r\n\r\n"), "{head}");
}

#[test]
fn errors_of_other_servers_have_them_too() {
    let rejected = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let silent = ScriptedUpstream::start(vec![vec![Await("never")]]);
    let failing = ScriptedUpstream::start(vec![vec![
        Await("\r\n\r\n"),
        Say("HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/x\r\nContent-Length: 6\r\nConnection: close\r\n\r\ntheirs"),
    ]]);
    let (_directory, server) = server(&format!(
        "forward \"http://{rejected}\" path=\"/refused\"\n\
         forward \"http://{}\" path=\"/silent\" {{ first-byte-timeout \"200ms\" }}\n\
         forward \"http://{}\" path=\"/failing\"\n",
        silent.address, failing.address
    ));
    check(&server, "/refused", ("502", "text/plain; charset=utf-8", "own 502, from elsewhere"));
    check(&server, "/silent", ("504", HTML, "own 5xx"));
    // The upstream's own error pages pass unchanged.
    check(&server, "/failing", ("502", "text/x", "theirs"));
}
