//! One port with HTTPS, connections of TLS that are forwarded unchanged, and those that are decrypted: which of them has a
//! connection, limits of both, and changes of the listeners.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use routes::{Backend, BackendRef, Certificate, Change, Listener, Protocol, Route, Rule, Snapshot, StreamRoute};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use tempfile::TempDir;

use crate::support::controller::{Controlled, add_backend, application};
use crate::support::port::free_port;
use crate::support::tls::{self, TestCa, TlsStream};
use crate::support::upstream::{ScriptStep, ScriptedUpstream};
use crate::support::waiting::{eventually, eventually_some, within};
use crate::support::{PATIENCE, TestServer, read_all};

/// Names of the listeners, of HTTPS first.
const NAMES: [&str; 3] = ["www.example", "pass.example", "end.example"];

/// Server with a control plane, and a snapshot with all three kinds of listeners on one port.
struct SharedPort {
    controlled: Controlled,
    snapshot: Snapshot,
    client: Arc<ClientConfig>,
    /// Address of the sites in the configuration.
    status_address: SocketAddr,
    /// Server that has a certificate of its own.
    _passed: (TestServer, TempDir),
}

impl SharedPort {
    /// Starts all, with further options of the configuration. No routes are sent yet.
    fn start(options: &str) -> Self {
        let authority = TestCa::new();
        let mut snapshot = Snapshot::default();
        let echo = ScriptedUpstream::start(vec![vec![ScriptStep::Echo]]).address;
        let passed = passed(&authority);
        add_backend(&mut snapshot, "app", &[application("app")]);
        add_backend(&mut snapshot, "echo", &[echo]);
        add_backend(&mut snapshot, "passed", &[passed.0.address]);
        let port = free_port();
        let mut add = |name: &str, hostname: &str, protocol, is_pass: bool| {
            let names = if protocol == Protocol::Https { &NAMES[..] } else { &[hostname] };
            let pair = authority.sign(names);
            let certificate = Certificate { chain: pair.certificate, key: pair.key };
            let listener = Listener {
                addresses: vec![[127, 0, 0, 1].into()],
                hostname: Some(hostname.to_owned()),
                certificates: if is_pass { Vec::new() } else { vec![certificate] },
                ..Listener::new(port, protocol)
            };
            snapshot.listeners.insert(name.to_owned(), listener);
        };
        add("https", "*.example", Protocol::Https, false);
        add("pass", "pass.example", Protocol::TlsPassthrough, true);
        add("end", "end.example", Protocol::TlsTerminate, false);
        let backends = vec![BackendRef::new("app", 1)];
        let rules = vec![Rule { backends, ..Rule::default() }];
        let route = Route { listeners: vec!["https".into()], rules, ..Route::default() };
        snapshot.routes.insert("https".into(), route);
        for (listener, backend) in [("pass", "passed"), ("end", "echo")] {
            let backends = vec![BackendRef::new(backend, 1)];
            let route = StreamRoute { listeners: vec![listener.into()], backends, ..StreamRoute::default() };
            snapshot.stream_routes.insert(listener.into(), route);
        }
        let mut controlled = Controlled::start_in(tempfile::tempdir().unwrap(), options);
        let status_address = controlled.server.address;
        controlled.server.address = ([127, 0, 0, 1], port).into();
        Self { status_address, controlled, snapshot, client: Arc::new(authority.client(None)), _passed: passed }
    }

    fn address(&self) -> SocketAddr {
        self.controlled.server.address
    }

    /// Sends all routes.
    fn send(&mut self) {
        let applied = self.controlled.send(&self.snapshot);
        assert_eq!(applied.errors, BTreeMap::new());
    }

    fn connect(&self, name: &str) -> std::io::Result<TlsStream> {
        tls::connect(&self.controlled.server, &self.client, name)
    }

    /// Response to a request for a host on a connection for a server name.
    fn ask(&self, name: &str, host: &str) -> Option<String> {
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        tls::ask(&mut self.connect(name).ok()?, &request).ok()
    }

    /// True if a connection for a server name is served as its listener says.
    fn is_served(&self, name: &str) -> bool {
        match name {
            "end.example" => self.connect(name).is_ok_and(|mut stream| echoes(&mut stream)),
            "pass.example" => self.ask(name, name).is_some_and(|response| response.ends_with("inner")),
            _ => self.ask(name, name).is_some_and(|response| response.contains("name=app")),
        }
    }

    /// Removes listeners, or adds those of the snapshot again.
    fn change(&mut self, names: &[&str], is_there: bool) {
        let listeners = names.iter().map(|name| {
            let listener = self.snapshot.listeners[*name].clone();
            ((*name).to_owned(), is_there.then_some(listener))
        });
        let applied = self.controlled.change(Change { listeners: listeners.collect(), ..Change::default() });
        let of_listeners = applied.errors.keys().filter(|key| key.starts_with("listener/"));
        assert_eq!(of_listeners.count(), 0, "{:?}", applied.errors);
    }
}

/// Server of TLS that shows a certificate for `pass.example`.
fn passed(authority: &TestCa) -> (TestServer, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    authority.sign(&["pass.example"]).write(directory.path(), "inner");
    let at = |name: &str| directory.path().join(name).display().to_string();
    let server = TestServer::run(&format!(
        "site \"pass.example\" {{\n listen \"127.0.0.1:0\" tls=on\n certificate \"{}\" key=\"{}\"\n \
         respond \"*\" 200 \"inner\"\n}}\n",
        at("inner.pem"),
        at("inner.key")
    ));
    (server, directory)
}

fn echoes(stream: &mut TlsStream) -> bool {
    let mut answer = [0; 5];
    stream.write_all(b"plain").is_ok() && stream.read_exact(&mut answer).is_ok() && answer == *b"plain"
}

#[test]
fn the_server_name_decides() {
    let mut port = SharedPort::start("");
    port.send();
    for name in NAMES {
        assert!(port.is_served(name), "{name}");
    }
    // A connection of HTTPS has no requests for hosts of other protocols.
    for host in ["pass.example", "end.example"] {
        let response = port.ask("www.example", host).unwrap();
        assert!(response.starts_with("HTTP/1.1 421 "), "{response}");
    }
    // The ClientHello arrives byte by byte.
    let session = ClientConnection::new(Arc::clone(&port.client), ServerName::try_from("pass.example").unwrap());
    let (mut session, mut socket) = (session.unwrap(), TcpStream::connect(port.address()).unwrap());
    socket.set_nodelay(true).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut hello = Vec::new();
    session.write_tls(&mut hello).unwrap();
    for byte in &hello {
        socket.write_all(std::slice::from_ref(byte)).unwrap();
    }
    while session.is_handshaking() {
        session.complete_io(&mut socket).unwrap();
    }
    // One that ends within the ClientHello, and one without TLS, cost no other connection anything.
    drop(TcpStream::connect(port.address()).unwrap().write(&hello[..50]));
    drop(TcpStream::connect(port.address()).unwrap().write(b"GET / HTTP/1.1\r\n\r\n"));
    assert!(port.is_served("pass.example") && port.is_served("www.example"));
}

#[test]
fn forwarded_connections_count_as_the_clients() {
    let mut port = SharedPort::start("limits {\n connections-per-client-max 2\n}\n");
    port.send();
    let mut open: Vec<_> = ["pass.example", "end.example"].map(|name| port.connect(name).unwrap()).into();
    assert!(port.connect("www.example").is_err() && port.connect("pass.example").is_err());
    assert!(echoes(&mut open[1]));
    drop(open.pop());
    let again = eventually_some("the place is free", || port.connect("end.example").ok());
    assert!(port.connect("www.example").is_err());
    drop((again, open));
    eventually("all places are free", || port.is_served("www.example"));
}

#[test]
fn connections_are_counted_by_listener_and_backend() {
    let site = "site \"status.example\" {\n listen \"127.0.0.1:0\"\n metrics \"/metrics\"\n}\n";
    let mut port = SharedPort::start(site);
    let status = port.status_address;
    port.send();
    assert!(["pass.example", "end.example", "end.example"].iter().all(|name| port.is_served(name)));
    // A name of the listener that no route has, and a backend without servers.
    let mut route = port.snapshot.stream_routes["end"].clone();
    route.backends = vec![BackendRef::new("none", 1)];
    let change = Change {
        backends: [("none".to_owned(), Some(Backend::default()))].into(),
        stream_routes: [("end".to_owned(), Some(route)), ("pass".to_owned(), None)].into(),
        ..Change::default()
    };
    assert!(port.controlled.change(change).errors.is_empty());
    assert!(!port.is_served("end.example") && !port.is_served("pass.example"));
    let metrics = || {
        let mut stream = TcpStream::connect(status).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        read_all(&mut stream)
    };
    let lines = [
        "tailcoat_stream_open{listener=\"end\"} 0",
        "tailcoat_stream_connections_total{listener=\"end\"} 3",
        "tailcoat_stream_connections_total{listener=\"pass\"} 1",
        "tailcoat_stream_failures_total{listener=\"end\"} 1",
        "tailcoat_stream_transferred_bytes_total{listener=\"end\",direction=\"received\"} 10",
        "tailcoat_stream_transferred_bytes_total{listener=\"end\",direction=\"sent\"} 10",
        "tailcoat_stream_backend_connections_total{backend=\"echo\"} 2",
        "tailcoat_stream_backend_open{backend=\"passed\"} 0",
        "tailcoat_stream_rejections_total{reason=\"server-name\"} 1",
    ];
    // A connection counts when the proxy has seen its end.
    let has_all = |metrics: &String| lines.iter().all(|line| metrics.contains(line));
    let metrics = within(PATIENCE, || Some(metrics()).filter(has_all)).unwrap_or_else(&metrics);
    for line in lines {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

#[test]
fn listeners_come_and_go_while_connections_are_open() {
    let mut port = SharedPort::start("");
    port.send();
    let mut open = port.connect("end.example").unwrap();
    // The port becomes that of HTTPS alone, and the names those of HTTPS.
    port.change(&["pass", "end"], false);
    assert!(port.is_served("www.example"));
    eventually("HTTPS has the name", || port.ask("pass.example", "pass.example").is_some_and(|it| it.contains("app")));
    assert!(echoes(&mut open));
    // That of both again, of the others alone, and of both again.
    port.change(&["pass", "end"], true);
    assert!(NAMES.iter().all(|name| port.is_served(name)));
    port.change(&["https"], false);
    eventually("others have the port", || port.is_served("pass.example") && port.is_served("end.example"));
    assert!(!port.is_served("www.example"));
    port.change(&["https"], true);
    eventually("HTTPS has its names", || port.is_served("www.example"));
    assert!(port.is_served("pass.example") && port.is_served("end.example"));
    assert!(echoes(&mut open));
}

#[test]
fn other_protocols_cannot_share_a_port() {
    let mut port = SharedPort::start("");
    let add = |snapshot: &mut Snapshot, name: &str, protocol, hostname: Option<&str>| {
        let of_port = snapshot.listeners["https"].clone();
        let hostname = hostname.map(str::to_owned);
        let listener = Listener { protocol, hostname, certificates: Vec::new(), ..of_port };
        snapshot.listeners.insert(name.to_owned(), listener);
    };
    add(&mut port.snapshot, "tcp", Protocol::Tcp, None);
    add(&mut port.snapshot, "twin", Protocol::TlsPassthrough, Some("*.example"));
    let errors = port.controlled.send(&port.snapshot).errors;
    assert_eq!(errors.keys().collect::<Vec<_>>(), ["listener/tcp", "listener/twin"], "{errors:?}");
    assert!(NAMES.iter().all(|name| port.is_served(name)));
}
