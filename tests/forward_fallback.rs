//! Accelerator: local files are served directly, and an upstream answers all else.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use crate::support::upstream::ScriptStep::{Read as Await, Write as Say};
use crate::support::upstream::ScriptedUpstream;
use crate::support::{TestServer, ask};

const THERE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nthere";

fn upstream() -> ScriptedUpstream {
    ScriptedUpstream::start(vec![vec![Await("\r\n\r\n"), Say(THERE)]])
}

/// Site with every kind of file.
fn site() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for name in
        ["here.txt", "page/index.html", "program/index.php", "shop.php", "none/a.css", ".secret", "bin", "private"]
    {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "here").unwrap();
    }
    for (name, mode) in [("bin", 0o755), ("private", 0o640)] {
        fs::set_permissions(directory.path().join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    symlink("/etc/hostname", directory.path().join("outside")).unwrap();
    directory
}

/// Sends the request twice, for the file system and the cache.
fn check(server: &TestServer, request: &str, expect: &str) {
    for _ in 0..2 {
        let answer = ask(server, &format!("{request} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
        assert!(answer.ends_with(&format!("\r\n\r\n{expect}")), "{request}: {answer}");
    }
}

#[test]
fn what_is_not_here_is_elsewhere() {
    let (directory, upstream) = (site(), upstream());
    let server = TestServer::serve(directory.path(), &["--forward", &format!("http://{}", upstream.address)]);
    let check = |request: &str, expect| check(&server, request, expect);
    check("GET /here.txt", "here");
    check("GET /here.txt?query", "here");
    check("HEAD /here.txt", "");
    check("GET /page/", "here");
    check("GET /bin", "here");
    check("GET /other.txt", "there");
    check("GET /here.txt/info", "there");
    check("GET /here.txt/", "there");
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND"] {
        check(&format!("{method} /here.txt"), "there");
    }
    // Programs run at the upstream; their source stays here.
    check("GET /shop.php", "there");
    check("GET /shop.php?id=1", "there");
    check("GET /shop.php/path/info", "there");
    check("GET /program/", "there");
    check("GET /program/index.php", "there");
    // The upstream decides about requests that are rejected here.
    check("GET /.other", "there");
    check("GET /outside", "there");
    check("GET /none/", "there");
    check("GET /none", "there");
    // No client gets a hidden file: the upstream may have the same root.
    for method in ["GET", "POST"] {
        let hidden = ask(&server, &format!("{method} /.secret HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
        assert!(hidden.starts_with("HTTP/1.1 404 "), "{method}: {hidden}");
    }
    let redirect = ask(&server, "GET /page HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    assert!(redirect.starts_with("HTTP/1.1 301 ") && redirect.contains("\r\nLocation: /page/\r\n"), "{redirect}");
}

#[test]
fn what_is_here_can_be_narrowed() {
    let (directory, upstream) = (site(), upstream());
    let server = TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n root \"{}\"\n forward \"http://{}\"\n ignore-query off\n permission-rule\n\
         exclude-extensions \"css\"\n files \"/none/*\" {{ exclude-extensions off }}\n}}\n",
        directory.path().display(),
        upstream.address
    ));
    let check = |request: &str, expect| check(&server, request, expect);
    check("GET /here.txt", "here");
    check("GET /here.txt?query", "there");
    check("GET /here.txt?", "there");
    check("HEAD /here.txt?query", "");
    check("GET /bin", "there");
    check("GET /private", "there");
    check("GET /shop.php", "here");
    check("GET /none/a.css", "here");
}

#[test]
fn without_another_server_a_program_is_a_file() {
    let directory = site();
    let server = TestServer::serve(directory.path(), &[]);
    check(&server, "GET /shop.php", "here");
    check(&server, "GET /here.txt?query", "here");
}
