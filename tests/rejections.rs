//! Reasons of rejected requests in the server log.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use crate::support::{TestServer, ask};

/// Lines that a server with this site logs for these requests, without their time.
fn logged(options: &str, requests: &[&str]) -> Vec<String> {
    answered_and_logged(options, requests).1
}

/// Status lines of the responses to these requests, and what a server with this site logs for them, without times.
fn answered_and_logged(options: &str, requests: &[&str]) -> (Vec<String>, Vec<String>) {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("empty")).unwrap();
    fs::write(directory.path().join("a.txt"), "a").unwrap();
    fs::write(directory.path().join("plain.cgi"), "").unwrap();
    symlink("/etc/hostname", directory.path().join("outside")).unwrap();
    symlink("/etc", directory.path().join("away")).unwrap();
    symlink("/etc/hostname", directory.path().join("outside.php")).unwrap();
    UnixListener::bind(directory.path().join("socket")).unwrap();
    let root = directory.path().display();
    let site = format!("site {{\n listen \"127.0.0.1:0\"\n root \"{root}\"\n{options}\n}}\nserver {{ workers 1 }}\n");
    let server = TestServer::run(&site);
    let answered = requests.iter().map(|request| {
        let answered = ask(&server, &format!("{request} HTTP/1.1\r\nHost: h.example\r\nConnection: close\r\n\r\n"));
        answered.lines().next().unwrap_or_default().to_owned()
    });
    let answered = answered.collect();
    let lines = server.end_with_log().into_iter();
    (answered, lines.filter_map(|line| Some(line.split_once(" info: ")?.1.to_owned())).collect())
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

/// Files that must not be sent have the same status and line, whether scripts run beside them or not.
#[test]
fn scripts_change_nothing_for_files() {
    let outcome = |options: &str, target: &str| {
        let (answered, lines) = answered_and_logged(options, &[&format!("GET {target}")]);
        let is_told = |line: &&String| line.contains("request rejected") || line.contains("script not run");
        (answered, lines.iter().filter(is_told).cloned().collect::<Vec<_>>())
    };
    for target in ["/outside", "/away/", "/away", "/away/passwd", "/empty", "/empty/", "/socket", "/socket/", "/none"] {
        let plain = outcome("", target);
        let told = usize::from(!matches!(target, "/none" | "/empty" | "/socket/"));
        assert_eq!(plain.1.len(), told, "{target}: {plain:?}");
        for scripts in [
            "fastcgi \"*.php\" \"127.0.0.1:9\"",
            "fastcgi \"*.php\" \"127.0.0.1:9\" { index \"index.php\" }",
            "cgi \"*.cgi\"",
        ] {
            assert_eq!(outcome(scripts, target), plain, "{target} with {scripts}");
        }
    }
    // A script is rejected once, for its own reason.
    for (target, reason) in [("/plain.cgi", "not executable"), ("/outside.php", "a link leads out of the root")] {
        for scripts in
            ["cgi \"*.cgi\"\n cgi \"*.php\"", "cgi \"*.cgi\" { index \"i.cgi\" }\n cgi \"*.php\" { index \"i.php\" }"]
        {
            let (answered, lines) = outcome(scripts, target);
            assert!(answered[0].starts_with("HTTP/1.1 403"), "{target}: {answered:?}");
            assert_eq!(lines.len(), 1, "{target}: {lines:?}");
            assert!(lines[0].starts_with("script not run: ") && lines[0].contains(reason), "{target}: {lines:?}");
        }
    }
}

/// The log repeats lines about one client less often than those about many clients.
#[test]
fn many_alike_are_counted() {
    let lines = logged("", &["GET /outside"; 50]);
    assert_eq!(lines.iter().filter(|line| line.contains(" host=h.example ")).count(), 3, "{lines:?}");
}
