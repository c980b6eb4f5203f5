//! Attacks on the server as a whole, each named after the attempt.

use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use crate::support::{TestServer, read_all, tailcoat};

/// A client resets its connection before its responses are sent. The worker drops them, although all its connections
/// gather output in one buffer, so that the next client never gets them.
#[test]
fn answers_to_a_client_that_resets_never_reach_another() {
    let site = tempfile::tempdir().unwrap();
    std::fs::write(site.path().join("large"), "x".repeat(100_000)).unwrap();
    let server = TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n respond \"/private\" 200 \"private\"\n respond \"/\" 200 \"public\"\n \
         root \"{}\"\n}}\nserver {{ workers 1 }}\n",
        site.path().display()
    ));
    for requests in [
        "GET /private HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
        "GET /private HTTP/1.1\r\nHost: h\r\n\r\n".repeat(300),
        "GET /private HTTP/1.1\r\nHost: h\r\n\r\nGET /large HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
        "GET /private HTTP/1.1\r\nHost: h\r\n\r\nmalformed\r\n\r\n".to_owned(),
    ] {
        // Request, reset and the next client are all present when the server continues.
        server.signal("STOP");
        let mut resetting = server.connect();
        resetting.write_all(requests.as_bytes()).unwrap();
        socket2::SockRef::from(&resetting).set_linger(Some(Duration::ZERO)).unwrap();
        drop(resetting);
        let mut next = server.connect();
        next.write_all(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").unwrap();
        server.signal("CONT");
        let answer = read_all(&mut next);
        assert!(answer.ends_with("\r\n\r\npublic"), "{answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
    }
}

/// The path of a socket leads to another kind of file: a typing error must not delete it.
#[test]
fn no_file_but_an_abandoned_socket_makes_room_for_a_listener() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("file"), "precious").unwrap();
    std::fs::create_dir(at("directory")).unwrap();
    symlink("file", at("link")).unwrap();
    symlink("nowhere", at("dangling")).unwrap();
    let _live = std::os::unix::net::UnixListener::bind(at("live")).unwrap();
    symlink("live", at("link-to-live")).unwrap();
    let run = |path: &Path| {
        let config = at("config.kdl");
        let path = path.display();
        std::fs::write(&config, format!("site {{\n listen \"unix:{path}\"\n respond \"/\" 200 \"\"\n}}\n")).unwrap();
        tailcoat().arg("run").arg("-c").arg(config).output().unwrap()
    };
    for name in ["file", "directory", "link", "dangling", "live", "link-to-live"] {
        let before = std::fs::symlink_metadata(at(name)).unwrap();
        let output = run(&at(name));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("cannot bind "), "{name}: {said}");
        let after = std::fs::symlink_metadata(at(name)).unwrap();
        assert_eq!(before.file_type(), after.file_type(), "{name}");
    }
    assert_eq!(std::fs::read(at("file")).unwrap(), b"precious");
}
