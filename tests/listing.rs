//! Directory listings and error pages of the built server.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use socket2::SockRef;
use tempfile::TempDir;

use crate::support::waiting::eventually;
use crate::support::{TestServer, read_until};

/// Directory with names of all sorts, one of them not UTF-8.
fn directory() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("a b")).unwrap();
    fs::write(directory.path().join(".secret"), "").unwrap();
    for name in [&b"file2"[..], b"file10", b"<b>.txt", b"caf\xe9", b"new\nline"] {
        fs::write(directory.path().join(OsStr::from_bytes(name)), "content").unwrap();
    }
    directory
}

/// Response to a GET with these fields, head and body.
fn get(server: &TestServer, target: &str, fields: &str) -> String {
    server.exchange(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}\r\n").as_bytes())
}

#[test]
fn a_listing_links_every_name_to_its_file() {
    let directory = directory();
    let server = TestServer::serve(directory.path(), &["--browse"]);
    let page = get(&server, "/", "");
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n") && page.contains("\r\nContent-Type: text/html; charset=utf-8\r\n"));
    assert!(page.contains("\r\nVary: Accept\r\n") && !page.contains(".secret") && !page.contains("<b>.txt"));
    let links: Vec<&str> = page.split("href=\"./").skip(1).map(|rest| rest.split_once('"').unwrap().0).collect();
    assert_eq!(links, ["a%20b/", "%3Cb%3E.txt", "caf%E9", "file2", "file10", "new%0Aline"]);
    for link in links {
        let answer = get(&server, &format!("/{link}"), "");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{link}: {answer}");
    }
    let page = get(&server, "/?sort=name&order=desc", "");
    assert!(page.find("file10").unwrap() < page.find("file2").unwrap());
}

#[test]
fn programs_get_json() {
    let directory = directory();
    let server = TestServer::serve(directory.path(), &["--browse"]);
    let answer = get(&server, "/", "Accept: application/json, */*\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("\r\nContent-Type: application/json\r\n"), "{head}");
    assert!(body.starts_with(r#"[{"name":"a b","type":"directory","modified":""#), "{body}");
    assert!(body.contains(r#""href":"./caf%E9""#) && body.contains(r#""size":7"#), "{body}");
}

#[test]
fn a_listing_has_a_limit() {
    let directory = directory();
    let root = directory.path().display();
    let server = TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n root \"{root}\"\n browse\n browse-entries-max 2\n}}\nserver {{ workers 1 }}\n"
    ));
    let page = get(&server, "/", "");
    assert_eq!(page.matches("href=\"./").count(), 2, "{page}");
    assert!(page.contains("This list ends after 2 entries"), "{page}");
    assert!(page.contains("\r\nListing-Truncated: ?1\r\n"), "{page}");
    let json = get(&server, "/", "Accept: application/json\r\n");
    assert!(json.contains("\r\nListing-Truncated: ?1\r\n") && json.contains("\r\n\r\n[{\"name\":"), "{json}");
    let whole = get(&server, "/a%20b/", "Accept: application/json\r\n");
    assert!(!whole.contains("Listing-Truncated"), "{whole}");
}

#[test]
fn who_breaks_off_is_not_worked_for() {
    let directory = tempfile::tempdir().unwrap();
    for name in 0..5000 {
        fs::write(directory.path().join(name.to_string()), "").unwrap();
    }
    fs::create_dir(directory.path().join("sub")).unwrap();
    let log = directory.path().join("access.log");
    let server = TestServer::serve(directory.path(), &["--browse", "--access-log", log.to_str().unwrap()]);
    // Each with another sort order, so that none is shared, and the last must wait for its turn. Repeats if the server
    // responded before it saw the end.
    eventually("a request is logged as broken off", || {
        let busy: Vec<_> = ["name", "size", "modified"]
            .into_iter()
            .flat_map(|sort| {
                ["asc", "desc"].map(|order| format!("GET /?sort={sort}&order={order} HTTP/1.1\r\nHost: h\r\n\r\n"))
            })
            .map(|request| {
                let mut stream = server.connect();
                stream.write_all(request.as_bytes()).unwrap();
                stream
            })
            .collect();
        let mut last = server.connect();
        last.write_all(b"GET /sub/ HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        SockRef::from(&last).set_linger(Some(Duration::ZERO)).unwrap();
        drop(last);
        for mut stream in busy {
            read_until(&mut stream, "</html>");
        }
        fs::read_to_string(&log).unwrap().contains("\"GET /sub/ HTTP/1.1\" 499 0 ")
    });
}

#[test]
fn errors_have_pages() {
    let directory = directory();
    let server = TestServer::serve(directory.path(), &["--no-browse"]);
    let check = |target: &str, fields: &str, status: &str, content_type: &str, body: &str| {
        let answer = get(&server, target, fields);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{answer}");
        assert!(answer.contains(&format!("\r\nContent-Type: {content_type}\r\n")), "{answer}");
        assert!(answer.contains(body), "{answer}");
    };
    let (html, json) = ("text/html; charset=utf-8", "application/problem+json");
    check("/nothing<script>", "", "404 Not Found", html, "<h1><span>404</span> Not Found</h1>");
    check("/nothing", "Accept: application/json\r\n", "404 Not Found", json, r#""title":"Not Found","status":404}"#);
    check("/%", "", "400 Bad Request", html, "<h1><span>400</span> Bad Request</h1>");
    assert!(!get(&server, "/nothing<script>", "").contains("<script"));
    // Without `browse`, a directory has no listing.
    check("/a%20b/", "", "403 Forbidden", html, "<h1><span>403</span> Forbidden</h1>");
}
