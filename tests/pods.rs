//! End of a pod of the gateway's manifests under load, as Kubernetes ends it: `preStop`, SIGTERM, and SIGKILL when the time
//! for both is over.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use routes::{BackendRef, Listener, Protocol, Route, Rule, Snapshot};

use crate::support::controller::{Controlled, add_backend, application};
use crate::support::h2::H2Client;
use crate::support::port::free_port;
use crate::support::waiting::{await_read, eventually};
use crate::support::{PATIENCE, read_all, read_until};

const MANIFESTS: &str = include_str!("../packaging/kubernetes/gateway.yaml");

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";

/// Connections of each kind.
const CONNECTIONS: usize = 4;

/// Bytes of an upload, the first half of which arrives before the end.
const UPLOAD_BYTES: usize = 64 << 10;

/// The part of the manifests about the servers' pods.
fn of_servers() -> &'static str {
    let at = MANIFESTS.find("preStop:").unwrap();
    let start = MANIFESTS[..at].rfind("\n---\n").unwrap();
    &MANIFESTS[start..]
}

/// Seconds at a key.
fn seconds(manifests: &str, key: &str) -> u64 {
    manifests.lines().find_map(|line| line.trim().strip_prefix(key)).unwrap().trim().parse().unwrap()
}

/// Does what `preStop` says.
fn run_pre_stop() {
    let (_, hook) = of_servers().split_once("preStop:\n").unwrap();
    let mut lines = hook.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let action = [lines.next().unwrap(), lines.next().unwrap()];
    assert!(action[0] == "sleep:" && action[1].starts_with("seconds:"), "this test knows no other action: {action:?}");
    // The time itself is what `preStop` is about.
    thread::sleep(Duration::from_secs(seconds(action[1], "seconds:")));
}

/// Starts a server with the configuration of the manifests, except for its places, and sends it a route to an application.
fn start_server() -> (Controlled, SocketAddr) {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().display().to_string();
    let lines = MANIFESTS.lines().skip_while(|line| line.trim() != "tailcoat.kdl: |").skip(1);
    let lines = lines.map_while(|line| line.strip_prefix("    ")).map(|line| match line.trim() {
        line if line.starts_with("control-plane ") => {
            format!("control-plane \"unix:{at}/plane.sock\" directory=\"{at}/routes\"\n")
        }
        "listen 8081" => "listen \"127.0.0.1:0\"\n".to_owned(),
        line => format!("{}\n", line.replace("/state", &at)),
    });
    let config = directory.path().join("tailcoat.kdl");
    std::fs::write(&config, lines.collect::<String>()).unwrap();
    let mut controlled = Controlled::start_from(directory, &config);
    let (mut snapshot, port) = (Snapshot::default(), free_port());
    let listener = Listener { addresses: vec![[127, 0, 0, 1].into()], ..Listener::new(port, Protocol::Http) };
    snapshot.listeners.insert("http".into(), listener);
    add_backend(&mut snapshot, "app", &[application("app")]);
    let rule = Rule { backends: vec![BackendRef::new("app", 1)], ..Rule::default() };
    let route = Route { listeners: vec!["http".into()], rules: vec![rule], ..Route::default() };
    snapshot.routes.insert("route".into(), route);
    assert!(controlled.send(&snapshot).errors.is_empty());
    (controlled, ([127, 0, 0, 1], port).into())
}

/// Clients, and what they have seen so far.
#[derive(Default)]
struct Clients {
    /// True if no client opens a connection any more, because the pod is no endpoint any more.
    is_unlisted: AtomicBool,
    /// Responses by kind of client.
    kept: AtomicUsize,
    fresh: AtomicUsize,
    multiplexed: AtomicUsize,
    /// Messages of WebSockets.
    messages: AtomicUsize,
    /// True if WebSockets must be closed by their clients.
    must_close: AtomicBool,
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Reads a response; `None` if the connection was closed before its first byte, after which a client may retry elsewhere.
fn read_response(stream: &mut TcpStream) -> Option<String> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let count = match stream.read(&mut buffer) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => 0,
            Err(error) => panic!("{error}"),
        };
        if count == 0 && bytes.is_empty() {
            return None;
        }
        bytes.extend_from_slice(&buffer[..count]);
        let text = String::from_utf8_lossy(&bytes);
        if let Some((head, content)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
            if content.len() == length.parse::<usize>().unwrap() {
                return Some(text.into_owned());
            }
        }
        assert!(count > 0, "a response was cut off: {text:?}");
    }
}

impl Clients {
    /// Sends requests on one connection until the server ends it. Returns true if a response has announced the end.
    fn keep_alive(&self, address: SocketAddr) -> bool {
        let mut stream = connect(address);
        loop {
            let sent = stream.write_all(GET);
            let Some(response) = sent.ok().and_then(|()| read_response(&mut stream)) else { return false };
            assert!(response.starts_with("HTTP/1.1 200"), "{response}");
            self.kept.fetch_add(1, Ordering::Relaxed);
            if response.contains("Connection: close\r\n") {
                return true;
            }
        }
    }

    /// Sends each request on a connection of its own.
    fn open_connections(&self, address: SocketAddr) {
        while !self.is_unlisted.load(Ordering::Relaxed) {
            let mut stream = connect(address);
            stream.write_all(GET).unwrap();
            let response = read_response(&mut stream).expect("a new connection gets a response");
            assert!(response.starts_with("HTTP/1.1 200"), "{response}");
            self.fresh.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends requests on an HTTP/2 connection until the server announces its end.
    fn multiplex(&self, address: SocketAddr) {
        let mut client = H2Client::connect_to(connect(address));
        while client.go_away.is_none() {
            let streams = [(); 3].map(|()| client.ask("GET", "/", &[], true));
            for stream in streams {
                let response = client.finish(stream);
                assert_eq!((response.status(), response.reset), (200, None));
                self.multiplexed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Sends messages over a WebSocket, and awaits the echo of each, until the server or this client ends it.
    fn talk(&self, address: SocketAddr, closes: bool) {
        let mut stream = connect(address);
        let upgrade = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
        stream.write_all(upgrade).unwrap();
        let head = read_until(&mut stream, "\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
        let mut echo = [0; 4];
        while !(closes && self.must_close.load(Ordering::Relaxed)) {
            if stream.write_all(b"ping").and_then(|()| stream.read_exact(&mut echo)).is_err() {
                assert!(!closes, "the server has closed a WebSocket in the grace period");
                return;
            }
            assert_eq!(&echo, b"ping");
            self.messages.fetch_add(1, Ordering::Relaxed);
            // Not as many as possible: other tests need the processor, too.
            thread::sleep(Duration::from_millis(5));
        }
    }
}

fn spawn<T: Send + 'static>(
    clients: &Arc<Clients>,
    run: impl Fn(&Clients) -> T + Send + Sync + 'static,
) -> Vec<JoinHandle<T>> {
    let run = Arc::new(run);
    let one = |_| {
        let (clients, run) = (Arc::clone(clients), Arc::clone(&run));
        thread::spawn(move || run(&clients))
    };
    (0..CONNECTIONS).map(one).collect()
}

fn join<T>(threads: Vec<JoinHandle<T>>) -> Vec<T> {
    threads.into_iter().map(|thread| thread.join().expect("no client has lost a request")).collect()
}

#[test]
fn a_pod_that_ends_loses_no_request() {
    let (mut controlled, address) = start_server();
    let clients = Arc::<Clients>::default();
    let kept = spawn(&clients, move |clients| clients.keep_alive(address));
    let fresh = spawn(&clients, move |clients| clients.open_connections(address));
    let multiplexed = spawn(&clients, move |clients| clients.multiplex(address));
    let closed = spawn(&clients, move |clients| clients.talk(address, true));
    let open = spawn(&clients, move |clients| clients.talk(address, false));
    let counts = || {
        [&clients.kept, &clients.fresh, &clients.multiplexed, &clients.messages].map(|it| it.load(Ordering::Relaxed))
    };
    eventually("all clients are served", || counts().into_iter().all(|count| count > CONNECTIONS));

    let time = Duration::from_secs(seconds(of_servers(), "terminationGracePeriodSeconds:"));
    let began = Instant::now();
    let before = counts();
    run_pre_stop();
    let time_left = time.saturating_sub(began.elapsed());
    let during = counts();
    assert!(before.iter().zip(&during).all(|(before, during)| during > before), "{before:?} {during:?}");
    clients.is_unlisted.store(true, Ordering::Relaxed);
    join(fresh);
    let mut upload = connect(address);
    let content = vec![b'x'; UPLOAD_BYTES / 2];
    write!(upload, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {UPLOAD_BYTES}\r\n\r\n").unwrap();
    upload.write_all(&content).unwrap();
    await_read(&upload);
    // Kubernetes sends it right after `preStop`.
    let killed_at = Instant::now() + time_left;
    controlled.server.signal("TERM");
    let (ended, is_ended) = mpsc::channel::<()>();
    let process = controlled.server.id();
    let killer = thread::spawn(move || {
        let left = killed_at.saturating_duration_since(Instant::now());
        if is_ended.recv_timeout(left) == Err(mpsc::RecvTimeoutError::Timeout) {
            let _ = std::process::Command::new("kill").args(["-KILL", &process.to_string()]).status();
        }
    });
    let announced = join(kept);
    join(multiplexed);
    upload.write_all(&content).unwrap();
    let response = read_all(&mut upload);
    assert!(response.contains(&format!("content={UPLOAD_BYTES}\n")), "{response}");
    let messages = counts()[3];
    eventually("WebSockets are still open", || counts()[3] > messages + 2 * CONNECTIONS);
    clients.must_close.store(true, Ordering::Relaxed);
    join(closed);
    // The rest stays open until the grace period of the server is over.
    join(open);
    assert!(controlled.server.wait(), "the pod was killed");
    drop(ended);
    killer.join().unwrap();
    println!("{:?} responses and messages; ends announced to {announced:?}", counts());
}
