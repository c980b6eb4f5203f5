//! Configurations of nginx, translated: both servers answer the same.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;

use crate::support::real_server::{RealServer, Recipe};
use crate::support::{Server, tailcoat};

const NGINX: Recipe<'_> = Recipe {
    needs: &["nginx"],
    files: &[
        ("nginx.conf", include_str!("applications/nginx.conf")),
        ("sites/one.conf", include_str!("applications/nginx-site.conf")),
        ("root/index.html", "<p>home</p>\n"),
        ("root/page.html", "<p>page</p>\n"),
        ("root/style.css", "p { color: red }\n"),
        ("root/404.html", "<p>not here</p>\n"),
        ("root/sub/index.html", "<p>sub</p>\n"),
        ("root/.htaccess", "secret\n"),
        ("data/file.txt", "data\n"),
        ("data/a/b.txt", "deep\n"),
        ("app/spa/app.html", "<p>application</p>\n"),
    ],
    command: &["nginx", "-c", "@DIR@/nginx.conf"],
    environment: &[],
};

/// Requests by path, and the fields of responses that are compared besides status and content.
const PATHS: [&str; 27] = [
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
];
const FIELDS: [&str; 4] = ["location", "cache-control", "x-answer", "content-type"];

#[test]
fn what_was_translated_answers_the_same() {
    let Some(nginx) = RealServer::start(&NGINX) else { return };
    let file = nginx.directory().join("sites/one.conf");
    let output = tailcoat().arg("import").arg(&file).output().unwrap();
    let remarks = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{remarks}");
    assert!(remarks.contains("tailcoat: 0 directives were not translated"), "{remarks}");
    let address = format!("\"{}\"", nginx.address);
    let config = String::from_utf8(output.stdout).unwrap();
    assert!(config.contains(&address), "{config}");
    let server = Server::run(&config.replace(&format!("listen {address}"), "listen \"127.0.0.1:0\""));
    for path in PATHS {
        let (expect, found) = (answer(nginx.address, path), answer(server.address, path));
        assert_eq!(found, expect, "{path}\n{config}");
    }
}

/// Status, compared fields and content. Error pages that each server has of its own, and ports in URLs, differ.
fn answer(address: SocketAddr, path: &str) -> (String, Vec<String>, String) {
    let output = Command::new("curl")
        .args(["-s", "-i", "--path-as-is", "-A", "Bot/1.0", "-H", "Host: example.com"])
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
    // What is there is never overwritten.
    check(&[file.as_os_str(), "-o".as_ref(), written.as_os_str()], 1, "File exists");
}
