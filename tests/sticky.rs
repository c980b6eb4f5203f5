//! Sticky sessions: a signed cookie that keeps a client with a server.

use std::net::SocketAddr;
use std::process::Command;

use crate::response_cache::CountingOrigin;
use crate::support::ask;
use crate::support::function_server::{FunctionServer, field, response};
use crate::support::h2_upstream::H2Upstream;
use crate::support::operated::Operated;

/// Server that responds with its name.
fn application(name: &'static str) -> FunctionServer {
    FunctionServer::start(move |_| response("200 OK", "Set-Cookie: app=1\r\n", name))
}

fn config(servers: &[SocketAddr], sticky: &str, forward: &str) -> String {
    let servers: String = servers.iter().map(|address| format!(" server \"http://{address}\"\n")).collect();
    format!(
        "upstream \"app\" {{\n{servers} balance \
         round-robin\n fail-max 1\n eject-time \"1h\"\n eject-time-max \"1h\"\n sticky {sticky}\n}}\nsite {{\n listen \
         \"127.0.0.1:0\"\n forward \"app\" {{\n {forward}\n }}\n}}\n"
    )
}

/// Starts a server whose state directory is in its own directory.
fn start(config: &str) -> Operated {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    Operated::start_with(directory, config, |command: &mut Command| _ = command.env("STATE_DIRECTORY", state))
}

/// Response to a request with this cookie: its content, and the cookie that it sets.
fn get(server: &Operated, cookie: &str) -> (String, String) {
    get_path(server, "/", cookie)
}

fn get_path(server: &Operated, path: &str, cookie: &str) -> (String, String) {
    let cookie = if cookie.is_empty() { String::new() } else { format!("Cookie: a=b; {cookie}; c=d\r\n") };
    let answer = ask(&server.server, &format!("GET {path} HTTP/1.1\r\nHost: h\r\n{cookie}Connection: close\r\n\r\n"));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let set = answer.lines().find_map(|line| line.strip_prefix("Set-Cookie: srv=")).unwrap_or_default();
    let set = set.split(';').next().unwrap_or_default();
    let set = if set.is_empty() { String::new() } else { format!("srv={set}") };
    (answer.split("\r\n\r\n").nth(1).unwrap_or_default().to_owned(), set)
}

/// A cookie for each of two servers, by their contents.
fn cookies(server: &Operated) -> [(String, String); 2] {
    let first = get(server, "");
    let second = std::iter::repeat_with(|| get(server, "")).find(|other| other.0 != first.0).unwrap();
    assert!(!first.1.is_empty() && !second.1.is_empty() && first.1 != second.1, "{first:?} {second:?}");
    if first.0 < second.0 { [first, second] } else { [second, first] }
}

#[test]
fn a_client_stays_with_its_server() {
    let applications = [application("one"), application("two")];
    let addresses = applications.each_ref().map(|application| application.address);
    let mut server = start(&config(&addresses, "\"srv\"", ""));
    let [one, two] = cookies(&server);
    for (name, cookie) in [&one, &two] {
        let shown = addresses.iter().any(|address| cookie.contains(&address.port().to_string()));
        assert!(!shown && !cookie.contains(name.as_str()), "the cookie names no server openly: {cookie}");
        for _ in 0..10 {
            assert_eq!(get(&server, cookie), (name.clone(), String::new()), "and it is not set again");
        }
    }
    for forged in ["srv=", "srv=0", "srv=one", &format!("{}x", one.1), &one.1[..one.1.len() - 1]] {
        assert!(!get(&server, forged).1.is_empty(), "{forged}: it gets a cookie of its own");
    }
    // The key is that of the machine: it survives a reload and an upgrade.
    server.reload(&config(&addresses, "\"srv\"", "via-name \"other\""));
    assert_eq!(get(&server, &one.1), (one.0.clone(), String::new()));
    server.upgrade();
    assert_eq!(get(&server, &two.1), (two.0.clone(), String::new()));
    let key = server.path().join("state/sticky.key");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&key).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_restart_and_other_machines_know_the_cookies() {
    let applications = [application("one"), application("two")];
    let addresses = applications.each_ref().map(|application| application.address);
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("key");
    std::fs::write(&key, "0123456789abcdef0123456789abcdef\n").unwrap();
    let text = config(&addresses, &format!("\"srv\" key-file=\"{}\"", key.display()), "");
    let one = cookies(&start(&text))[0].clone();
    let other = start(&text);
    assert_eq!(get(&other, &one.1), (one.0.clone(), String::new()), "another machine with the same key");
    std::fs::write(&key, "another key of enough bytes").unwrap();
    other.reload(&text);
    assert!(!get(&other, &one.1).1.is_empty(), "a reload reads the new key");
    std::fs::write(&key, "short").unwrap();
    let output = other.order(&["reload"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("too short"), "{error}");
}

#[test]
fn a_drained_server_keeps_its_clients() {
    let applications = [application("one"), application("two")];
    let addresses = applications.each_ref().map(|application| application.address);
    let server = start(&config(&addresses, "\"srv\"", ""));
    let [one, _] = cookies(&server);
    let output = server.order(&["drain", "app", &format!("http://{}", addresses[0])]);
    assert!(output.status.success());
    for _ in 0..5 {
        assert_eq!(get(&server, &one.1), (one.0.clone(), String::new()));
        assert_eq!(get(&server, "").0, "two");
    }
    // A server that is removed has no clients any more.
    let output = server.order(&["set", "servers", "app", &format!("http://{}", addresses[1])]);
    assert!(output.status.success());
    let (name, cookie) = get(&server, &one.1);
    assert!(name == "two" && !cookie.is_empty(), "{name} {cookie}");
}

#[test]
fn clients_of_a_dead_server_get_another_one() {
    let origins = [CountingOrigin::start(), CountingOrigin::start()];
    let addresses = origins.each_ref().map(CountingOrigin::address);
    let server = start(&config(&addresses, "\"srv\"", ""));
    let first = get(&server, "").1;
    let at = usize::from(origins[0].requests() == 0);
    origins[at].go_down();
    let before = origins[1 - at].requests();
    let (_, second) = get(&server, &first);
    assert!(!second.is_empty() && second != first);
    assert_eq!(get(&server, &second).1, "");
    assert_eq!(origins[1 - at].requests(), before + 2);
}

#[test]
fn attributes() {
    let application = application("one");
    let sticky = "\"srv\" age-max=\"1h\" path=\"/app\" domain=\"a.test\" secure=on same-site=strict http-only=off";
    let server = start(&config(&[application.address], sticky, ""));
    let answer = ask(&server.server, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    let set = answer.lines().find_map(|line| line.strip_prefix("Set-Cookie: srv=")).unwrap();
    let (value, attributes) = set.split_once(';').unwrap();
    assert_eq!((value.len(), attributes), (22, " Path=/app; Domain=a.test; Max-Age=3600; Secure; SameSite=Strict"));
    assert_eq!(field(&answer, "set-cookie"), "app=1", "the application's own stays");
}

#[test]
fn a_cache_never_stores_the_cookie() {
    let origin = CountingOrigin::start();
    let server = start(&config(&[origin.address()], "\"srv\"", "cache"));
    let (first, cookie) = get_path(&server, "/x", "");
    assert!(!cookie.is_empty(), "the client that caused the fetch gets one");
    assert_eq!(get_path(&server, "/x", ""), (first, String::new()), "stored, without the cookie");
    assert!(!get_path(&server, "/private", "").1.is_empty(), "so does one whose response is not stored");
    assert_eq!(get_path(&server, "/private", &cookie).1, "");
    assert_eq!(origin.requests(), 3);
}

#[test]
fn http2_upstreams_too() {
    let upstream = H2Upstream::start(|_, peer| {
        peer.greet(&[]);
        peer.answer_all(b"content");
    });
    let text = config(&[upstream.address], "\"srv\"", "").replace("http://", "h2c://");
    let server = start(&text);
    let (_, cookie) = get(&server, "");
    assert!(!cookie.is_empty());
    assert_eq!(get(&server, &cookie).1, "");
}
