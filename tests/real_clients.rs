//! Common clients: wget and curl, which `.ci/run` installs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::{TestServer, tailcoat};

/// All files below a directory, by relative path.
fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(&entry.path()).into_iter().map(|(inner, bytes)| (format!("{name}/{inner}"), bytes)));
        } else {
            found.insert(name, fs::read(entry.path()).unwrap());
        }
    }
    found
}

/// Output of curl.
fn curl(arguments: &[&str]) -> String {
    let output = Command::new("curl").args(["--silent", "--show-error"]).args(arguments).output();
    let output = output.expect("curl is installed");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn wget_mirrors_listings() {
    let (site, mirror) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for directory in ["", "a b/", "a b/c/", "d\u{e9}/"] {
        fs::create_dir_all(site.path().join(directory)).unwrap();
        for (name, length) in [("empty", 0), ("small?&#.txt", 1000), ("large.bin", 300_000)] {
            let bytes: Vec<u8> = (0..length).map(|at: u32| (at ^ at >> 8) as u8).collect();
            fs::write(site.path().join(directory).join(name), bytes).unwrap();
        }
    }
    let server = TestServer::serve(site.path(), &["--browse"]);
    let status = Command::new("wget")
        .args(["--quiet", "--recursive", "--level=inf", "--no-parent", "--no-host-directories"])
        .args(["--reject-regex", "[?]sort=", "--restrict-file-names=nocontrol", "--default-page=listing.html"])
        .arg("--directory-prefix")
        .arg(mirror.path())
        .arg(format!("http://{}/", server.address))
        .status()
        .expect("wget is installed");
    assert!(status.success(), "{status}");
    let (expected, mut found) = (files(site.path()), files(mirror.path()));
    let all = found.len();
    found.retain(|name, _| !name.ends_with("listing.html"));
    assert_eq!(all - found.len(), 4, "a listing for each directory");
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    assert!(found == expected, "all files are the same byte for byte");
}

#[test]
fn curl_goes_on_and_decodes() {
    let site = tempfile::tempdir().unwrap();
    let text: String = (0..20_000).map(|number| format!("{number}\n")).collect();
    fs::write(site.path().join("text.txt"), &text).unwrap();
    let server = TestServer::serve(site.path(), &[]);
    let url = &format!("http://{}/text.txt", server.address);
    let file = site.path().join("got");
    let file = file.to_str().unwrap();
    assert!(curl(&[url]) == text);
    assert!(curl(&["--compressed", url]) == text);
    assert!(curl(&["--http1.0", url]) == text);
    fs::write(file, &text[..1234]).unwrap();
    curl(&["--continue-at", "-", "--output", file, url]);
    assert!(fs::read_to_string(file).unwrap() == text, "a broken download goes on where it ended");
    assert_eq!(curl(&["--range", "-6", url]), "19999\n");
    let tag_file = &format!("{file}.etag");
    curl(&["--etag-save", tag_file, "--output", file, url]);
    let status = ["--output", "/dev/null", "--write-out", "%{http_code}"];
    assert_eq!(curl(&[&status[..], &["--etag-compare", tag_file, url]].concat()), "304");
    assert_eq!(curl(&[&status[..], &["--time-cond", file, url]].concat()), "304");
    assert_eq!(curl(&[&status[..], &["--data", "a=b", url]].concat()), "405");
    // Two requests on one connection: the second needs no connect.
    let connects =
        curl(&["--output", "/dev/null", "--output", "/dev/null", "--write-out", "%{num_connects}", url, url]);
    assert_eq!(connects, "10");
}

#[test]
fn ipv6_and_a_unix_socket() {
    let site = tempfile::tempdir().unwrap();
    fs::write(site.path().join("file"), "content").unwrap();
    let mut command = tailcoat();
    command.args(["serve", "--workers", "1", "--listen", "[::1]:0"]).arg(site.path());
    if std::net::TcpListener::bind("[::1]:0").is_ok() {
        let server = TestServer::start(command);
        assert_eq!(curl(&["--globoff", &format!("http://{}/file", server.address)]), "content");
    }
    let (root, socket) = (site.path().display(), site.path().join("socket"));
    let socket = socket.to_str().unwrap();
    let config =
        format!("site {{\n listen \"127.0.0.1:0\" \"unix:{socket}\"\n root \"{root}\"\n}}\nserver {{ workers 1 }}\n");
    let _server = TestServer::run(&config);
    assert_eq!(curl(&["--unix-socket", socket, "http://localhost/file"]), "content");
}
