//! The cache before another server: what that server is asked, and what clients get.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Server, read_all, tailcoat};

/// A server that counts its requests, and answers as their paths say, with the count as content.
struct Origin {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    requests: AtomicUsize,
    connections: Mutex<Vec<TcpStream>>,
    /// Set, it breaks all connections off.
    is_down: std::sync::atomic::AtomicBool,
}

impl Origin {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let of_connections = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&of_connections);
                shared.connections.lock().unwrap().push(stream.try_clone().unwrap());
                // That the other side has gone is no failure here.
                std::thread::spawn(move || drop(answer(stream, &shared)));
            }
        });
        Self { address, shared }
    }

    fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::SeqCst)
    }

    fn go_down(&self) {
        self.shared.is_down.store(true, Ordering::SeqCst);
        for connection in self.shared.connections.lock().unwrap().drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

fn answer(mut stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    while let Some((path, head)) = read_head(&mut reader)? {
        if shared.is_down.load(Ordering::SeqCst) {
            // Not only dropped: there is a clone of it.
            return stream.shutdown(Shutdown::Both);
        }
        let count = shared.requests.fetch_add(1, Ordering::SeqCst) + 1;
        if head.contains("If-None-Match: \"v\"") {
            stream.write_all(b"HTTP/1.1 304 Not Modified\r\nETag: \"v\"\r\nX: new\r\n\r\n")?;
            continue;
        }
        let fields = match path.as_str() {
            "/stale" => "Cache-Control: max-age=0\r\nETag: \"v\"\r\nX: old\r\n",
            "/private" => "Cache-Control: private\r\n",
            "/spare" => "Cache-Control: max-age=0, stale-if-error=100\r\n",
            _ => "Cache-Control: max-age=100\r\n",
        };
        // The content comes by itself, so that the head is passed on before it is there.
        stream.write_all(format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: 4\r\n\r\n").as_bytes())?;
        std::thread::sleep(Duration::from_millis(if path == "/slow" { 300 } else { 1 }));
        stream.write_all(format!("{count:04}").as_bytes())?;
    }
    Ok(())
}

fn read_head(reader: &mut BufReader<TcpStream>) -> std::io::Result<Option<(String, String)>> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Ok(None);
        }
    }
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    Ok(Some((path, head)))
}

/// A server before the origin, with these options of `cache` and of `server`.
fn front(origin: &Origin, cache: &str, server: &str) -> Server {
    let address = origin.address;
    Server::run(&format!(
        "server {{\n workers 2\n {server}\n}}\n\
         site {{\n listen \"127.0.0.1:0\"\n forward \"http://{address}\" {{\n cache {{\n {cache}\n }}\n }}\n}}\n"
    ))
}

/// Asks on a connection of its own, which any worker may get.
fn ask(server: &Server, method: &str, path: &str) -> String {
    let mut stream = server.connect();
    let request = format!("{method} {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    read_all(&mut stream)
}

#[track_caller]
fn check(answer: &str, content: &str) {
    let (head, found) = answer.split_once("\r\n\r\n").expect("an answer has a head");
    assert_eq!(found, content, "{head}");
}

#[test]
fn fresh_answers_are_served_by_all_workers() {
    let origin = Origin::start();
    let server = front(&origin, "cache-status", "");
    let first = ask(&server, "GET", "/a");
    check(&first, "0001");
    assert!(first.contains("\r\nCache-Status: tailcoat; fwd=uri-miss; fwd-status=200; stored\r\n"), "{first}");
    for _ in 0..8 {
        let answer = ask(&server, "GET", "/a");
        check(&answer, "0001");
        for line in
            ["Cache-Control: max-age=100", "Content-Length: 4", "Age: ", "Date: ", "Cache-Status: tailcoat; hit; ttl="]
        {
            assert_eq!(answer.matches(&format!("\r\n{line}")).count(), 1, "{line}: {answer}");
        }
        assert!(!answer.contains("\r\nServer: "), "the origin names none: {answer}");
    }
    check(&ask(&server, "HEAD", "/a"), "");
    // A request more is not answered by what is there for another URL.
    check(&ask(&server, "GET", "/b"), "0002");
    check(&ask(&server, "GET", "/a?b"), "0003");
    assert_eq!(origin.requests(), 3);
}

#[test]
fn a_pipeline_of_hits_is_answered_in_order() {
    let origin = Origin::start();
    let server = front(&origin, "", "");
    check(&ask(&server, "GET", "/a"), "0001");
    check(&ask(&server, "GET", "/b"), "0002");
    let mut input = String::new();
    for path in ["/a", "/b", "/c", "/b", "/a"] {
        input += &format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n");
    }
    let answers = server.exchange(input.as_bytes());
    let contents: Vec<&str> = answers.split("\r\n\r\n").skip(1).map(|rest| &rest[..4]).collect();
    assert_eq!(contents, ["0001", "0002", "0003", "0002", "0001"], "{answers}");
}

#[test]
fn stale_answers_are_validated() {
    let origin = Origin::start();
    let server = front(&origin, "", "");
    assert!(ask(&server, "GET", "/stale").contains("\r\nX: old\r\n"));
    let validated = ask(&server, "GET", "/stale");
    check(&validated, "0001");
    assert!(validated.contains("\r\nX: new\r\n"), "{validated}");
    assert_eq!(origin.requests(), 2);
}

#[test]
fn many_who_want_the_same_cause_one_request() {
    let origin = Origin::start();
    let server = front(&origin, "", "");
    let answers: Vec<String> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..16).map(|_| scope.spawn(|| ask(&server, "GET", "/slow"))).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    answers.iter().for_each(|answer| check(answer, "0001"));
    assert_eq!(origin.requests(), 1);
}

#[test]
fn a_client_that_leaves_does_not_spoil_what_is_stored() {
    let origin = Origin::start();
    let server = front(&origin, "", "");
    let mut leaving = server.connect();
    leaving.write_all(b"GET /slow HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    crate::support::read_until(&mut leaving, "\r\n\r\n");
    drop(leaving);
    check(&ask(&server, "GET", "/slow"), "0001");
    assert_eq!(origin.requests(), 1);
}

#[test]
fn an_origin_that_is_down_is_made_up_for() {
    let origin = Origin::start();
    let server = front(&origin, "", "");
    check(&ask(&server, "GET", "/spare"), "0001");
    check(&ask(&server, "GET", "/stale"), "0002");
    origin.go_down();
    check(&ask(&server, "GET", "/spare"), "0001");
    // The server is known by now not to answer.
    let answer = ask(&server, "GET", "/stale");
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
}

#[test]
fn unsafe_requests_invalidate() {
    let origin = Origin::start();
    let server = front(&origin, "", "");
    check(&ask(&server, "GET", "/a"), "0001");
    check(&ask(&server, "DELETE", "/a"), "0002");
    check(&ask(&server, "GET", "/a"), "0003");
    check(&ask(&server, "PURGE", "/a"), "0004");
}

#[test]
fn an_operator_purges_and_a_client_does_not() {
    let origin = Origin::start();
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control.sock");
    let server = front(&origin, "", &format!("control-socket \"{}\"", socket.display()));
    for path in ["/a", "/b/c", "/b/d", "/private"] {
        ask(&server, "GET", path);
    }
    let purge = |url: &str| {
        let output = tailcoat().args(["cache", "purge", "--socket"]).arg(&socket).arg(url).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(purge("http://h/none"), "0\n");
    assert_eq!(purge("http://h/a"), "1\n");
    check(&ask(&server, "GET", "/a"), "0005");
    check(&ask(&server, "GET", "/b/c"), "0002");
    assert_eq!(purge("http://h/b/*"), "2\n");
    check(&ask(&server, "GET", "/b/c"), "0006");
    drop(server);
    let output = tailcoat().args(["cache", "purge", "--socket"]).arg(&socket).arg("x").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
}
