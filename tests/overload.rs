//! Overload of the server or an upstream: what is shed, what is not, and that it ends.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::upstream::ScriptStep::{Read as Await, Write as Say};
use crate::support::upstream::ScriptedUpstream;
use crate::support::waiting::{eventually, eventually_some};
use crate::support::{PATIENCE, TestServer, ask, read_all, tailcoat};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";

/// Server of one worker with a page, a status page, and an upstream with these options; and these limits.
fn start(upstream: &str, options: &str, limits: &str) -> (TestServer, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("page.html"), "a page").unwrap();
    let place = directory.path().display();
    let server = TestServer::run(&format!(
        "server {{ workers 1; control-socket \"{place}/control.sock\" }}\nlimits {{ {limits} }}\n\
         access-log \"{place}/access.log\" format=\"{{status}} {{target}}\"\n\
         upstream \"app\" {{\n server \"http://{upstream}\"\n {options}\n}}\n\
         site {{\n listen \"127.0.0.1:0\"\n root \"{place}\"\n status-page \"/status\"\n forward \"app\" path=\"/app/*\"\n}}\n"
    ));
    (server, directory)
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
}

fn status_of(answer: &str) -> &str {
    answer.get(9..12).unwrap_or("none")
}

/// Overload in `status`.
fn overload(directory: &TempDir) -> Value {
    let socket = directory.path().join("control.sock");
    let output = tailcoat().args(["status", "--json", "--socket"]).arg(socket).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice::<Value>(&output.stdout).unwrap()["overload"].take()
}

/// Waits until `status` reports such an overload.
fn await_overload(directory: &TempDir, wanted: impl Fn(&Value) -> bool) -> Value {
    eventually_some("the status reports the overload", || Some(overload(directory)).filter(|overload| wanted(overload)))
}

fn shed(overload: &Value, reason: &str) -> u64 {
    let counts = overload["shed"].as_array().unwrap();
    counts.iter().find(|count| count["reason"] == reason).unwrap()["count"].as_u64().unwrap()
}

/// Checks that the rejection tells the client when to retry.
fn assert_shed(answer: &str) {
    let retry_after = answer.split("\r\nRetry-After: ").nth(1).and_then(|rest| rest.split("\r\n").next());
    let seconds: u64 = retry_after.unwrap_or_else(|| panic!("{answer}")).parse().unwrap();
    assert!((1..=3).contains(&seconds), "{answer}");
}

/// Stops the server most of the time, as if it were overloaded, until this is dropped.
struct Stutter {
    ends: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
    id: u32,
}

impl Stutter {
    fn begin(server: &TestServer) -> Self {
        let (ends, id) = (Arc::new(AtomicBool::new(false)), server.id());
        let reported = Arc::clone(&ends);
        let thread = std::thread::spawn(move || {
            while !reported.load(Ordering::Relaxed) {
                signal(id, "STOP");
                std::thread::sleep(Duration::from_millis(400));
                signal(id, "CONT");
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Self { ends, thread: Some(thread), id }
    }
}

impl Drop for Stutter {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
        signal(self.id, "CONT");
    }
}

fn signal(id: u32, name: &str) {
    let id = rustix::process::Pid::from_raw(i32::try_from(id).unwrap()).unwrap();
    let signal = if name == "STOP" { rustix::process::Signal::STOP } else { rustix::process::Signal::CONT };
    let _ = rustix::process::kill_process(id, signal);
}

#[test]
fn a_worker_that_lags_sheds_requests_for_upstreams_and_no_others() {
    let upstream = ScriptedUpstream::start(vec![vec![Await("\r\n\r\n"), Say(OK)]]);
    let (server, directory) = start(&upstream.address.to_string(), "", "lag-max \"100ms\"");
    let is_served = || status_of(&ask(&server, &get("/app/"))) == "200";
    eventually("the upstream is reached", is_served);
    let grpc = "POST /app/grpc HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Type: application/grpc\r\n\
                Content-Length: 0\r\n\r\n";
    let stutter = Stutter::begin(&server);
    let began = Instant::now();
    let (mut has_shed, mut has_shed_grpc, mut counted) = (false, false, 0);
    while !(has_shed && has_shed_grpc) {
        assert!(began.elapsed() < PATIENCE, "nothing is shed");
        let answer = ask(&server, &get("/app/"));
        match status_of(&answer) {
            "200" => {}
            "503" => {
                assert_shed(&answer);
                (has_shed, counted) = (true, counted + 1);
            }
            _ => panic!("{answer}"),
        }
        let answer = ask(&server, grpc);
        if answer.contains("\r\nGrpc-Status: 14\r\n") {
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            assert_shed(&answer);
            (has_shed_grpc, counted) = (true, counted + 1);
        }
        for path in ["/page.html", "/status"] {
            let answer = ask(&server, &get(path));
            assert_eq!(status_of(&answer), "200", "{path}: {answer}");
        }
    }
    await_overload(&directory, |overload| overload["is_shedding"] == true && overload["reasons"][0] == "lag");
    drop(stutter);
    server.await_log("overload began: reason=lag");
    let after = await_overload(&directory, |overload| overload["is_shedding"] == false);
    assert!(shed(&after, "lag") >= counted, "{after:#}");
    // On a busy machine, the worker may lag by itself.
    eventually("all requests are served again", || (0..10).all(|_| is_served()));
    server.await_log("overload ended: lasted_ms=");
    eventually("the rejection is logged", || {
        let log = std::fs::read_to_string(directory.path().join("access.log")).unwrap();
        log.lines().any(|line| line == "503 /app/")
    });
}

/// A client whose request is shed may retry on the same connection, as with nginx and HAProxy: a new one would cost a
/// handshake, and an idle one holds no buffers.
#[test]
fn a_shed_request_leaves_its_connection_open() {
    let upstream = ScriptedUpstream::start(vec![vec![Await("\r\n\r\n"), Say(OK)]]);
    let (server, _directory) = start(&upstream.address.to_string(), "", "lag-max \"100ms\"");
    let mut stream = server.connect();
    let ask = |stream: &mut TcpStream| {
        stream.write_all(b"GET /app/ HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        let head = read_head_of(stream);
        let length = head.split("Content-Length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
        let mut content = vec![0; length.unwrap_or_else(|| panic!("{head}")).parse().unwrap()];
        stream.read_exact(&mut content).unwrap();
        head
    };
    let stutter = Stutter::begin(&server);
    let began = Instant::now();
    let shed = loop {
        assert!(began.elapsed() < PATIENCE, "nothing is shed");
        let head = ask(&mut stream);
        if status_of(&head) == "503" {
            break head;
        }
    };
    assert!(!shed.to_ascii_lowercase().contains("connection: close"), "{shed}");
    drop(stutter);
    eventually("requests are served again", || status_of(&ask(&mut stream)) == "200");
}

/// Reads a head, and no byte after it.
fn read_head_of(stream: &mut TcpStream) -> String {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

/// Requests that wait for a hanging upstream are rejected in time, and the upstream never sees them.
#[test]
fn an_overloaded_queue_rejects_what_has_waited_too_long() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let options = "connections-max 1\n queue-wait-max \"200ms\"\n queue-timeout \"1h\"";
    let (server, directory) = start(&address, options, "");
    let mut first = server.connect();
    first.write_all(get("/app/first").as_bytes()).unwrap();
    let (mut upstream, _) = listener.accept().unwrap();
    read_head(&mut upstream);
    let mut waiting: Vec<_> = (0..10).map(|_| server.connect()).collect();
    waiting.iter_mut().for_each(|stream| stream.write_all(get("/app/waiting").as_bytes()).unwrap());
    // One request may wait for the only connection, however long; all others get a response.
    let (reported, answers) = std::sync::mpsc::channel();
    for mut stream in waiting {
        let reported = reported.clone();
        std::thread::spawn(move || reported.send(read_all(&mut stream)));
    }
    for _ in 0..9 {
        let answer = answers.recv_timeout(PATIENCE).unwrap();
        assert_eq!(status_of(&answer), "503", "{answer}");
        assert_shed(&answer);
    }
    assert!(answers.recv_timeout(Duration::from_millis(500)).is_err(), "one waits");
    assert_eq!(status_of(&ask(&server, &get("/page.html"))), "200");
    server.await_log("overload began: reason=queue upstream=app");
    await_overload(&directory, |overload| overload["is_shedding"] == true && overload["reasons"][0] == "queue");
    upstream.write_all(OK.as_bytes()).unwrap();
    assert_eq!(status_of(&read_all(&mut first)), "200");
    let (mut upstream, _) = listener.accept().unwrap();
    assert!(read_head(&mut upstream).starts_with("GET /app/waiting "), "the one that waits");
    upstream.write_all(OK.as_bytes()).unwrap();
    drop(upstream);
    assert_eq!(status_of(&answers.recv_timeout(PATIENCE).unwrap()), "200");
    server.await_log("overload ended: reason=queue upstream=app");
    let after = await_overload(&directory, |overload| overload["is_shedding"] == false);
    assert_eq!(shed(&after, "queue"), 9, "{after:#}");
    let mut next = server.connect();
    next.write_all(get("/app/next").as_bytes()).unwrap();
    let (mut upstream, _) = listener.accept().unwrap();
    assert!(read_head(&mut upstream).starts_with("GET /app/next "), "the upstream gets no rejected request");
    upstream.write_all(OK.as_bytes()).unwrap();
    assert_eq!(status_of(&read_all(&mut next)), "200");
}

fn read_head(stream: &mut TcpStream) -> String {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut head, mut buffer) = (Vec::new(), [0; 4096]);
    while !head.ends_with(b"\r\n\r\n") {
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "the end");
        head.extend_from_slice(&buffer[..count]);
    }
    String::from_utf8(head).unwrap()
}

/// More clients than an upstream can serve in time: it works only for those that still wait.
#[test]
fn an_upstream_that_is_asked_for_too_much_does_no_work_for_nothing() {
    const CLIENTS: u64 = 60;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let answered = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&answered);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let counted = Arc::clone(&counted);
            std::thread::spawn(move || {
                let mut stream = stream.unwrap();
                read_head(&mut stream);
                // Two at a time make at most 100 per second.
                std::thread::sleep(Duration::from_millis(20));
                counted.fetch_add(1, Ordering::SeqCst);
                let _ = stream.write_all(OK.as_bytes());
            });
        }
    });
    let options = "connections-max 2\n queue-wait-max \"200ms\"";
    let (server, directory) = start(&address, options, "");
    let (served, rejected) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                // Each client waits for its response, so that 60 always wait: 600 ms each, if served in order.
                while served.load(Ordering::SeqCst) < 300 {
                    let answer = ask(&server, &get("/app/"));
                    match status_of(&answer) {
                        "200" => served.fetch_add(1, Ordering::SeqCst),
                        "503" => {
                            assert_shed(&answer);
                            // A client that retries sooner than `Retry-After` permits.
                            std::thread::sleep(Duration::from_millis(100));
                            rejected.fetch_add(1, Ordering::SeqCst)
                        }
                        _ => panic!("{answer}"),
                    };
                }
            });
        }
    });
    let (served, rejected) = (served.into_inner(), rejected.into_inner());
    assert!(rejected > 0, "{served} were served");
    assert_eq!(answered.load(Ordering::SeqCst), served, "each request that the upstream has answered was served");
    let after = await_overload(&directory, |overload| overload["is_shedding"] == false);
    assert_eq!(shed(&after, "queue"), rejected, "{after:#}");
    assert_eq!(status_of(&ask(&server, &get("/app/"))), "200");
}
