//! From start to shutdown: listeners, signals, draining.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::Instant;

use tempfile::TempDir;

use crate::support::port::free_port;
use crate::support::waiting::{await_read, eventually};
use crate::support::{LARGE_BYTES, PATIENCE, TestServer, read_all, read_until, site_with_large_file, tailcoat};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";

fn server(workers: usize, options: &str) -> (TestServer, TempDir) {
    let files = site_with_large_file();
    let root = files.path().display();
    let server = TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n root \"{root}\"\n respond \"/\" 200 \"hello\"\n}}\n\
         server {{ workers {workers}; {options} }}\n"
    ));
    (server, files)
}

#[test]
fn a_drain_answers_what_was_asked_and_closes_the_rest() {
    for signal in ["TERM", "INT", "QUIT"] {
        // A single worker: one closed connection shows that it knows of the shutdown.
        let (mut server, _files) = server(1, "grace-period \"60s\"");
        let mut idle = server.connect();
        idle.write_all(GET).unwrap();
        read_until(&mut idle, "hello");
        let mut busy = server.connect();
        busy.write_all(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        read_until(&mut busy, "\r\n\r\n");
        let mut half = server.connect();
        half.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        // The request is in progress once the server has read it.
        await_read(&half);
        server.signal(signal);
        assert_eq!(read_all(&mut idle), "", "{signal}: an idle connection is closed");
        half.write_all(b"Host: h\r\n\r\n").unwrap();
        let answer = read_all(&mut half);
        assert!(answer.contains("Connection: close\r\n") && answer.ends_with("hello"), "{signal}: {answer}");
        let rest = read_all(&mut busy);
        assert!(rest.len() > LARGE_BYTES - 65_536 && rest.ends_with('x'), "{signal}: {} bytes", rest.len());
        assert!(server.wait(), "{signal}");
    }
}

/// The socket that finds out whether an address is free does not take connections.
#[test]
fn the_first_connections_are_served() {
    let files = site_with_large_file();
    for _ in 0..5 {
        let port = free_port();
        std::thread::scope(|scope| {
            let first = scope.spawn(|| {
                let deadline = Instant::now() + PATIENCE;
                while Instant::now() < deadline {
                    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                    stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").unwrap();
                    return read_all(&mut stream);
                }
                String::new()
            });
            let server = TestServer::run(&format!(
                "site {{\n listen \"127.0.0.1:{port}\"\n root \"{}\"\n respond \"/\" 200 \"hello\"\n}}\n",
                files.path().display()
            ));
            let response = first.join().unwrap();
            assert!(response.ends_with("hello"), "{response:?}");
            drop(server);
        });
    }
}

/// A stopped process finds requests, connections and the signal at the same time when it continues.
#[test]
fn a_drain_serves_requests_that_have_arrived() {
    const CLIENTS: usize = 100;
    let (mut server, _files) = server(2, "");
    let used = (0..CLIENTS).map(|_| {
        let mut stream = server.connect();
        stream.write_all(GET).unwrap();
        read_until(&mut stream, "hello");
        stream
    });
    let mut clients: Vec<_> = used.collect();
    server.signal("STOP");
    clients.extend((0..CLIENTS).map(|_| server.connect()));
    clients.iter_mut().for_each(|client| client.write_all(GET).unwrap());
    server.signal("TERM");
    server.signal("CONT");
    for (number, client) in clients.iter_mut().enumerate() {
        let response = read_all(client);
        assert!(response.ends_with("hello"), "client {number}: {response:?}");
    }
    assert!(server.wait());
}

#[test]
fn the_grace_time_and_a_second_signal_end_a_drain() {
    for (grace_time, signals) in [("1s", 1), ("600s", 2)] {
        let (mut server, _files) = server(2, &format!("grace-period \"{grace_time}\""));
        let mut busy = server.connect();
        busy.write_all(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        read_until(&mut busy, "\r\n\r\n");
        let mut idle = server.connect();
        idle.write_all(GET).unwrap();
        read_until(&mut idle, "hello");
        server.signal("TERM");
        if signals == 2 {
            assert_eq!(read_all(&mut idle), "", "the drain begins");
            server.signal("TERM");
        }
        assert!(server.wait());
        assert!(read_all(&mut busy).len() < LARGE_BYTES, "a cut response does not look complete");
    }
}

#[test]
fn logs_are_opened_again() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    let mut server = TestServer::serve(directory.path(), &["--access-log", log.to_str().unwrap()]);
    server.exchange(b"GET /before HTTP/1.1\r\nHost: h\r\n\r\n");
    let read = |path: &std::path::Path| std::fs::read_to_string(path).unwrap_or_default();
    eventually("the request is logged", || read(&log).contains("/before"));
    let moved = directory.path().join("access.log.1");
    std::fs::rename(&log, &moved).unwrap();
    server.signal("USR1");
    eventually("the log is opened again", || log.exists());
    server.exchange(b"GET /after HTTP/1.1\r\nHost: h\r\n\r\n");
    server.signal("TERM");
    assert!(server.wait());
    assert!(read(&log).contains("/after") && !read(&log).contains("/before"));
    assert!(!read(&moved).contains("/after"));
}

#[test]
fn some_paths_are_not_logged() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    let server = TestServer::run(&format!(
        "server {{ workers 1 }}\naccess-log \"{}\" format=\"{{target}}\"\nlog-skip \"/health\" \"*.png\"\nsite {{\n listen \"127.0.0.1:0\"\n \
         log-skip \"/quiet/*\"\n respond \"/moved\" 200\n rewrite \"/kept\" \"/health\"\n respond \"*\" 204\n}}\n",
        log.display()
    ));
    for target in ["/first", "/health", "/health?x", "/healthy", "/a/b.png", "/quiet/x", "/kept", "/h%65alth", "/last"]
    {
        let answer = server.exchange(format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
        assert!(answer.starts_with("HTTP/1.1 2"), "{answer}");
    }
    drop(server.end_with_log());
    assert_eq!(std::fs::read_to_string(log).unwrap(), "/first\n/healthy\n/kept\n/last\n");
}

#[test]
fn unix_sockets() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("index.html"), "x".repeat(300_000)).unwrap();
    let socket = directory.path().join("socket");
    let listen = format!("unix:{}", socket.display());
    let start = || {
        let mut server = TestServer::serve(directory.path(), &["--listen", &listen]);
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert!(answer.len() > 300_000, "{}", String::from_utf8_lossy(&answer));
        server.signal("KILL");
        server.wait();
    };
    start();
    // The killed server has left its socket file.
    start();
}

/// Open requests complete while the next server already serves.
#[test]
fn a_server_that_is_told_to_stop_leaves_its_addresses_to_the_next() {
    let files = site_with_large_file();
    let (root, port) = (files.path().display(), free_port());
    let socket = files.path().join("site.sock");
    let config = |name: &str| {
        let config = files.path().join(format!("{name}.kdl"));
        let text = format!(
            "site {{\n listen \"127.0.0.1:{port}\" \"unix:{}\"\n root \"{root}\"\n respond \"/\" 200 \"hello\"\n}}\n\
             server {{ workers 2; grace-period \"600s\"; control-socket \"{root}/{name}.sock\" }}\n",
            socket.display()
        );
        std::fs::write(&config, text).unwrap();
        config
    };
    let order = |name: &str, order: &str| {
        let mut command = tailcoat();
        let output = command.args([order, "--socket"]).arg(files.path().join(format!("{name}.sock"))).output().unwrap();
        output.status.success()
    };
    let mut first = TestServer::run_from(&config("first"));
    let mut busy = first.connect();
    busy.write_all(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    read_until(&mut busy, "\r\n\r\n");
    assert!(order("first", "reload"));
    first.signal("TERM");
    // The next server waits for the addresses, but not for long.
    eventually("the addresses are given up", || {
        TcpStream::connect(("127.0.0.1", port)).is_err() && UnixStream::connect(&socket).is_err()
    });
    // A reload would open the addresses again.
    first.signal("HUP");
    let mut next = TestServer::run_from(&config("next"));
    assert!(order("first", "status"), "probes see that it is alive");
    assert!(!order("first", "reload"));
    let check = |next: &TestServer| {
        let mut tcp = next.connect();
        tcp.write_all(GET).unwrap();
        read_until(&mut tcp, "hello");
        let mut unix = UnixStream::connect(&socket).unwrap();
        unix.set_read_timeout(Some(PATIENCE)).unwrap();
        unix.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        unix.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("hello"), "{answer}");
        assert!(order("next", "reload"));
    };
    check(&next);
    let rest = read_all(&mut busy);
    assert!(rest.len() > LARGE_BYTES - 65_536 && rest.ends_with('x'), "{} bytes", rest.len());
    assert!(first.wait());
    check(&next);
    next.signal("TERM");
    assert!(next.wait());
    assert!(!socket.exists() && !files.path().join("next.sock").exists(), "the last one removes its files");
}

/// systemd's socket activation: descriptors from 3 on.
#[test]
fn inherited_sockets() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let config = "site {\n listen \"127.0.0.1:0\" \"systemd:web\"\n respond \"/\" 200 \"hello\"\n}\n";
    std::fs::write(file.path(), config).unwrap();
    // The shell moves the socket from its standard input to the place where systemd would put it.
    let mut command = std::process::Command::new("sh");
    command
        .arg("-c")
        .arg("exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=web exec \"$0\" run -c \"$1\"")
        .arg(tailcoat().get_program())
        .arg(file.path())
        .arg0("sh");
    let server = TestServer::start_with_input(command, Stdio::from(std::os::fd::OwnedFd::from(listener)));
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(GET).unwrap();
    read_until(&mut stream, "hello");
    drop(server);
}

#[test]
fn an_address_that_is_taken_is_not_shared() {
    let (first, _files) = server(2, "");
    let directory = tempfile::tempdir().unwrap();
    for workers in ["1", "2"] {
        let second = tailcoat()
            .args(["serve", "--workers", workers, "--listen", &first.address.to_string()])
            .arg(directory.path())
            .output()
            .unwrap();
        let message = String::from_utf8_lossy(&second.stderr);
        assert!(!second.status.success() && message.contains(&first.address.to_string()), "{message}");
    }
}
