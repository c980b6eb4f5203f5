//! Servers of an upstream that are replaced while requests are in progress.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use tailcoat::control::{ControlOrder, ControlReport};

use crate::support::ask;
use crate::support::operated::Operated;

const REQUEST: &str = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

/// Changes made one after the other.
const CHANGES: usize = 10_000;

/// Server that responds with its port to each request of each connection. Lives until the test process ends.
fn application() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for socket in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let mut lines = BufReader::new(socket.try_clone().unwrap()).lines();
                while let Some(Ok(line)) = lines.next() {
                    if line.is_empty() {
                        let content = port.to_string();
                        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{content}", content.len());
                        if (&socket).write_all(head.as_bytes()).is_err() {
                            return;
                        }
                    }
                }
            });
        }
    });
    port
}

/// Sets the servers of the upstream; returns the report.
fn give(operated: &Operated, servers: &[String]) -> String {
    let order = ControlOrder::SetServers { upstream: "app".into(), servers: servers.to_vec() };
    let mut report = String::new();
    let each = |given: ControlReport| {
        report = format!("{given:?}");
        Ok(())
    };
    tailcoat::control::give(&operated.path().join("control.sock"), &order, each).unwrap();
    report
}

fn config(port: u16) -> String {
    format!(
        "upstream \"app\" {{ server \"http://127.0.0.1:{port}\" }}\n\
         site {{\n listen \"127.0.0.1:0\"\n forward \"app\"\n}}\n"
    )
}

fn body(response: &str) -> &str {
    response.split("\r\n\r\n").nth(1).unwrap_or_default()
}

#[test]
fn ten_thousand_changes_lose_no_request() {
    let ports: Vec<u16> = (0..4).map(|_| application()).collect();
    let operated = Arc::new(Operated::start(&config(ports[0])));
    let (is_over, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (operated, is_over, count) = (Arc::clone(&operated), Arc::clone(&is_over), Arc::clone(&count));
            thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let response = ask(&operated.server, REQUEST);
                    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
                    count.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let name = |port: &u16| format!("http://127.0.0.1:{port}");
    give(&operated, &ports.iter().map(name).collect::<Vec<_>>());
    let mut memory_kib = 0;
    for change in 0..CHANGES {
        let others = ports.iter().enumerate().filter(|(index, _)| *index != change % ports.len());
        let servers: Vec<String> = others.map(|(_, port)| name(port)).collect();
        let report = give(&operated, &servers);
        assert!(report.starts_with("Done"), "{report}");
        if change == CHANGES / 10 {
            memory_kib = operated.server.memory_kib();
        }
    }
    is_over.store(true, Ordering::Relaxed);
    clients.into_iter().for_each(|client| client.join().unwrap());
    assert!(count.load(Ordering::Relaxed) > 0);
    let grown_kib = operated.server.memory_kib().saturating_sub(memory_kib);
    assert!(grown_kib < 4 << 10, "{grown_kib} KiB more after {CHANGES} changes");
}

#[test]
fn a_change_lasts_until_the_next_reload_and_is_checked() {
    let ports: Vec<u16> = (0..2).map(|_| application()).collect();
    let operated = Operated::start(&config(ports[0]));
    let body_now = || body(&ask(&operated.server, REQUEST)).to_owned();
    assert_eq!(body_now(), ports[0].to_string());
    let second = format!("http://127.0.0.1:{} weight=3", ports[1]);
    let output = operated.order(&["set", "servers", "app", &second]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(body_now(), ports[1].to_string());
    // Another order that makes a new generation keeps it.
    assert!(operated.order(&["set", "limit", "idle-timeout", "17s"]).status.success());
    assert_eq!(body_now(), ports[1].to_string());
    for (upstream, server, expect) in [
        ("none", second.as_str(), "there is no upstream none"),
        ("app", "http://", "server"),
        ("app", "http://127.0.0.1:1 backup=on", "all servers of this upstream are backups"),
        ("app", "tcp://127.0.0.1:1", "`forward` uses HTTP with this upstream"),
        ("app", "http://a\" }", "invalid server"),
        // Confined, the server lacks the files for TLS.
        ("app", "https://localhost", "; write "),
    ] {
        let output = operated.order(&["set", "servers", upstream, server]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && errors.contains(expect), "{server}: {errors}");
    }
    assert_eq!(body_now(), ports[1].to_string());
    operated.reload(&config(ports[0]));
    assert_eq!(body_now(), ports[0].to_string());
}
