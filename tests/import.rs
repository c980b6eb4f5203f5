//! Imported nginx configurations: both servers respond alike.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;

use crate::support::real_server::{RealServer, Recipe};
use crate::support::{TestServer, tailcoat};

const NGINX: Recipe<'_> = Recipe {
    needs: &["nginx"],
    files: &[
        ("nginx.conf", include_str!("applications/nginx.conf")),
        ("sites/one.conf", include_str!("applications/nginx-site.conf")),
        ("sites/two.conf", include_str!("applications/nginx-guards.conf")),
        ("sites/three.conf", include_str!("applications/nginx-ways.conf")),
        ("root/index.html", "<p>home</p>\n"),
        ("root/page.html", "<p>page</p>\n"),
        ("root/style.css", "p { color: red }\n"),
        ("root/404.html", "<p>not here</p>\n"),
        ("root/sub/index.html", "<p>sub</p>\n"),
        ("root/.htaccess", "secret\n"),
        ("root/scripts/index.php", "script\n"),
        ("root/private/a.html", "private\n"),
        ("root/moved/a.html", "moved\n"),
        ("root/twice/a.html", "twice\n"),
        ("data/file.txt", "data\n"),
        ("data/a/b.txt", "deep\n"),
        ("app/spa/app.html", "<p>application</p>\n"),
        ("app/spa/assets/a.txt", "asset\n"),
    ],
    command: &["nginx", "-c", "@DIR@/nginx.conf"],
    environment: &[],
};

/// Requests by path, and response fields that are compared in addition to status and content.
const PATHS: [&str; 43] = [
    "/",
    "/index.html",
    "/page.html",
    "/page",
    "/style.css",
    "/sub",
    "/sub/",
    "/missing",
    "/.htaccess",
    "/dl/file.txt",
    "/dl/a/b.txt",
    "/dl/missing",
    "/old/a/b?c=d",
    "/moved?x=1",
    "/ok",
    "/gone",
    "/private/a",
    "/echo/a/b?c=d",
    "/strip/a/b?c=d",
    "/strip/",
    "/spa/deep/link",
    "/user/17",
    "/user/x",
    "/%70age.html",
    "/sub/../page.html",
    "/agent",
    "/whole/a",
    "/spa/assets/a.txt",
    "/spa/assets/missing",
    "/within/a",
    "/shop/a?b=c",
    "/new/a/b?c=d",
    "/replaced/a/b?c=d",
    "/replaced/",
    "/cut/a/b?c=d",
    "/json",
    "/docs/v2/a/b",
    "/docs/vx/a",
    "/read-only/a",
    "-X POST /read-only/a",
    "/query",
    "/query?a=1",
    "/query?a=2",
];

/// Paths of a site with guards that cannot be imported; this server must reject every request that nginx may reject.
const GUARDED_PATHS: [&str; 11] = [
    "/",
    "/page.html",
    "/missing",
    "/sub/index.html",
    "/sub/missing",
    "/style.css",
    "/missing.css",
    "/dl/file.txt",
    "/dl/index.html",
    "/dl/missing",
    "-X POST /page.html",
];
const REJECTED_PATHS: [&str; 7] = [
    "/404.html",
    "/protected/file.txt",
    "/protected/a/b.txt",
    "/.htaccess",
    "/sub/.git/config",
    "/cookie/file.txt",
    "/dynamic/page.html",
];
/// Paths that nginx rejects because of their destination, and similar ones that it serves.
const WAYS: [(&str, bool); 25] = [
    ("/", true),
    ("/page.html", true),
    ("/sub/", false),
    ("/sub/index.html", false),
    ("/scripts/", false),
    ("/scripts/index.php", false),
    ("/lost/a", false),
    ("/named/a", false),
    ("/private/a.html", false),
    ("/spa/app.html", true),
    ("/spa/assets/a.txt", false),
    ("/spa/assets/", false),
    ("/data/file.txt", false),
    ("/data/a/b.txt", false),
    ("/only/", false),
    ("/only/index.html", true),
    ("/never/page.html", false),
    ("/moved/a.html", false),
    ("/twice/a.html", false),
    ("/once/a.html", false),
    ("/cut/page.html", true),
    ("/cut/sub/", false),
    ("/cut/scripts/", false),
    ("/stays/page.html", false),
    ("/stays/", false),
];
const FIELDS: [&str; 4] = ["location", "cache-control", "x-answer", "content-type"];

#[test]
fn what_was_translated_answers_the_same() {
    let Some(nginx) = RealServer::start(&NGINX) else { return };
    // The guard of /read-only/ also holds for style sheets below.
    let expect = "tailcoat: 1 directive was not translated, 0 are replaced by a rejection";
    let (server, config) = translated(&nginx, "sites/one.conf", 0, expect);
    for path in PATHS {
        let found = answer(server.address, "example.com", path);
        assert_eq!(found, answer(nginx.address, "example.com", path), "{path}\n{config}");
    }
}

#[test]
fn what_guards_is_never_more_open() {
    let Some(nginx) = RealServer::start(&NGINX) else { return };
    let (server, config) = translated(&nginx, "sites/two.conf", 0, "0 are replaced by a rejection");
    for path in GUARDED_PATHS {
        let found = answer(server.address, "guards.example", path);
        assert_eq!(found, answer(nginx.address, "guards.example", path), "{path}\n{config}");
    }
    for path in REJECTED_PATHS {
        let [found, expect] = [&server.address, &nginx.address].map(|to| answer(*to, "guards.example", path).0);
        assert!(found.as_str() >= "400" && expect.as_str() >= "400", "{path}: {found}, by nginx {expect}\n{config}");
    }
}

#[test]
fn no_way_leads_around_a_guard() {
    let Some(nginx) = RealServer::start(&NGINX) else { return };
    let (server, config) = translated(&nginx, "sites/three.conf", 4, "are replaced by a rejection");
    for (path, is_open) in WAYS {
        let [found, expect] = [&server.address, &nginx.address].map(|to| answer(*to, "ways.example", path).0);
        assert_eq!(expect == "200", is_open, "{path}: {expect}");
        assert!(is_open || found.as_str() >= "400", "{path}: {found}, by nginx {expect}\n{config}");
    }
}

/// Server with the imported configuration of an nginx file, and its text.
fn translated(nginx: &RealServer, file: &str, code: i32, expect: &str) -> (TestServer, String) {
    let output = tailcoat().arg("import").arg(nginx.directory().join(file)).output().unwrap();
    let remarks = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{remarks}\n{}", String::from_utf8_lossy(&output.stdout));
    assert!(remarks.contains(expect), "{remarks}");
    let address = format!("\"{}\"", nginx.address);
    let config = String::from_utf8(output.stdout).unwrap();
    assert!(config.contains(&address), "{config}");
    (TestServer::run(&config.replace(&format!("listen {address}"), "listen \"127.0.0.1:0\"")), config)
}

/// Status, compared fields and content, without each server's own error pages and the ports in URLs.
fn answer(address: SocketAddr, host: &str, path: &str) -> (String, Vec<String>, String) {
    let (method, path) = path.strip_prefix("-X ").and_then(|request| request.split_once(' ')).unwrap_or(("GET", path));
    let output = Command::new("curl")
        .args(["-s", "-i", "--path-as-is", "-A", "Bot/1.0", "-X", method, "-H", &format!("Host: {host}")])
        .arg(format!("http://{address}{path}"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).replace('\r', "");
    let (head, content) = text.split_once("\n\n").unwrap_or((&text, ""));
    let mut lines = head.lines();
    let status = lines.next().unwrap_or_default().split(' ').nth(1).unwrap_or_default().to_owned();
    let is_page_of_own =
        content.contains("<center>nginx") || content.contains("<title>3") || content.contains("<!doctype");
    let fields = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.replace(&format!(":{}", address.port()), "")))
        .filter(|(name, _)| FIELDS.contains(&name.as_str()) && !(is_page_of_own && name == "content-type"))
        .map(|(name, value)| {
            format!("{name}: {}", value.replace("; charset=utf-8", "").replace("http://example.com", ""))
        });
    let mut fields: Vec<String> = fields.collect();
    fields.sort();
    (status, fields, if is_page_of_own { String::new() } else { content.to_owned() })
}

#[test]
fn what_cannot_be_read_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("nginx.conf");
    fs::write(&file, "http {\n  server {\n").unwrap();
    let check = |arguments: &[&std::ffi::OsStr], code: i32, expect: &str| {
        let output = tailcoat().arg("import").args(arguments).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{error}");
        assert!(error.contains(expect), "{error}");
    };
    check(&[file.as_os_str()], 3, "nginx.conf:2: a block is not closed");
    check(&["/nonexistent".as_ref()], 3, "/nonexistent: No such file");
    fs::write(&file, "server { listen 80; root /srv; wonder on; }").unwrap();
    let written = directory.path().join("tailcoat.kdl");
    check(&[file.as_os_str(), "-o".as_ref(), written.as_os_str()], 0, "nginx.conf:1: wonder on: not translated");
    assert!(fs::read_to_string(&written).unwrap().contains("root \"/srv\""));
    // Existing files are never overwritten.
    check(&[file.as_os_str(), "-o".as_ref(), written.as_os_str()], 1, "already exists");
    fs::write(&file, "server { listen 80; root /srv; auth_request /a; }").unwrap();
    check(&[file.as_os_str()], 4, "Rejected paths, because their rules");
    fs::write(&file, "server { listen 99999; root /srv; }").unwrap();
    check(&[file.as_os_str()], 5, "the translation has errors");
    fs::write(&file, "<VirtualHost *:80>\n</VirtualHost>\n").unwrap();
    check(&[file.as_os_str()], 3, "docs/from-apache.md");
}
