//! Reasons of rejected requests in the server log.

use std::fs;
use std::os::unix::fs::symlink;

use crate::support::{TestServer, ask};

/// Lines that a server with this site logs for these requests, without their time.
fn logged(options: &str, requests: &[&str]) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("empty")).unwrap();
    fs::write(directory.path().join("a.txt"), "a").unwrap();
    symlink("/etc/hostname", directory.path().join("outside")).unwrap();
    let root = directory.path().display();
    let site = format!("site {{\n listen \"127.0.0.1:0\"\n root \"{root}\"\n{options}\n}}\nserver {{ workers 1 }}\n");
    let server = TestServer::run(&site);
    for request in requests {
        ask(&server, &format!("{request} HTTP/1.1\r\nHost: h.example\r\nConnection: close\r\n\r\n"));
    }
    let lines = server.end_with_log().into_iter();
    lines.filter_map(|line| Some(line.split_once(" info: ")?.1.to_owned())).collect()
}

#[test]
fn each_has_its_reason() {
    let check = |options: &str, target: &str, expect: &str| {
        let request = format!("GET {target}");
        let lines = logged(options, &[request.as_str(); 5]);
        let line = lines.iter().find(|line| line.contains(" client=127.0.0.1 host=h.example "));
        match (line, expect) {
            (None, "") => {}
            (Some(line), expect) => assert!(!expect.is_empty() && line.contains(expect), "{target}: {line}"),
            (None, _) => panic!("{target}: {lines:?}"),
        }
    };
    check(
        "",
        "/outside?a",
        "status=403 client=127.0.0.1 host=h.example target=/outside?a reason=\"the server is not allowed to read the file, a link leads out",
    );
    check(
        "",
        "/empty/",
        "status=403 client=127.0.0.1 host=h.example target=/empty/ reason=\"the directory has none of the files in `index`",
    );
    check(
        "deny all path=\"/a.txt\"",
        "/a.txt",
        "status=403 client=127.0.0.1 host=h.example target=/a.txt reason=\"a `deny` rule matches",
    );
    check(
        "rate-limit \"*\" \"1/h\"",
        "/a.txt",
        "status=429 client=127.0.0.1 host=h.example target=/a.txt reason=`rate-limit`",
    );
    check("", "/a.txt", "");
    check("", "/nothing", "");
}

/// The log repeats lines about one client less often than those about many clients.
#[test]
fn many_alike_are_counted() {
    let lines = logged("", &["GET /outside"; 50]);
    assert_eq!(lines.iter().filter(|line| line.contains(" host=h.example ")).count(), 3, "{lines:?}");
}
