//! Memory of idle connections, by a count of all allocations of the server.

// Parts of the other tests, which need more of them.
#![allow(dead_code)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use allocation_counter::{measure, opt_out};
use bytes::{Bytes, BytesMut};
use rustls::Side;
use rustls::quic::Version;
use tailcoat_quic::{
    Connection, ConnectionKey, Datagram, Dir, EndpointConfig, Handled, QuicEvent, ReadEnd, ServerEndpoint, StreamEvent,
    TlsServer,
};

#[path = "engine/client.rs"]
mod client;
#[path = "engine/network.rs"]
mod network;
#[path = "engine/server.rs"]
mod server;
#[path = "engine/tls.rs"]
mod tls;

use client::Client;
use network::{Network, Way};

const CLIENTS: usize = 64;

/// Response of the application.
fn response() -> Bytes {
    Bytes::from_static(&[7; 3_000])
}

/// Serves requests of a connection with a response.
fn serve(connection: &mut Connection) {
    while let Some(event) = connection.poll_event() {
        let QuicEvent::Stream(StreamEvent::Opened { dir: Dir::Bi }) = event else { continue };
        let streams = connection.streams();
        while let Some(id) = streams.accept(Dir::Bi) {
            while streams.read(id, usize::MAX).is_ok() {}
            assert_eq!(streams.read(id, usize::MAX), Err(ReadEnd::Closed));
            assert_eq!(streams.write(id, &mut [response()]), Ok(3_000));
            streams.finish(id).unwrap();
        }
    }
}

/// Server without anything that is not the engine's.
struct Bare {
    endpoint: ServerEndpoint,
    tls: Arc<dyn TlsServer>,
    connections: Vec<(ConnectionKey, Box<Connection>)>,
    out: Vec<u8>,
    network: Network,
}

impl Bare {
    fn handle(&mut self, now: Instant, remote: SocketAddr, payload: &[u8]) {
        let datagram = Datagram { remote, local: None, ecn: None, payload: BytesMut::from(payload) };
        match self.endpoint.handle(now, datagram, &mut self.out) {
            Handled::Connection(key, datagram) => {
                let found = self.connections.iter_mut().find(|(known, _)| *known == key);
                found.unwrap().1.handle_datagram(now, datagram);
            }
            Handled::NewClient(incoming) => {
                let (key, connection) = self.endpoint.accept(incoming, now, &self.tls, &server::settings()).unwrap();
                self.connections.push((key, Box::new(connection)));
            }
            Handled::Response(_) | Handled::Dropped => {}
        }
    }

    fn drive(&mut self, now: Instant) {
        let Self { endpoint, connections, out, network, .. } = self;
        for (key, connection) in connections {
            if connection.poll_timeout().is_some_and(|at| at <= now) {
                connection.handle_timeout(now);
            }
            serve(connection);
            while let Some(event) = connection.poll_endpoint_event() {
                if let Some(ids) = endpoint.handle_event(*key, event) {
                    connection.handle_ids(ids);
                }
            }
            out.clear();
            while let Some(transmit) = connection.poll_transmit(now, 10, out) {
                opt_out(|| {
                    for payload in out.chunks(transmit.segment_bytes.unwrap_or(out.len())) {
                        network.send(now, Way::ToClient, transmit.remote, None, payload);
                    }
                });
                out.clear();
            }
        }
    }
}

#[test]
fn an_idle_connection_takes_little_memory() {
    let start = Instant::now();
    let tls: Arc<dyn TlsServer> = Arc::new(tls::Server::new());
    let mut endpoint = ServerEndpoint::new(EndpointConfig::new([1; 32], [2; 32]), Box::new(server::Ids::new(1)));
    endpoint.set_accepts(Some(Arc::clone(&tls)));
    let mut bare = Bare {
        endpoint,
        tls,
        connections: Vec::with_capacity(CLIENTS),
        out: Vec::with_capacity(1 << 17),
        network: Network::new(start, 1),
    };
    let tls = tls::client_tls(false);
    let mut clients: Vec<_> = (0..CLIENTS)
        .map(|number| Client::new(&format!("192.0.2.1:{}", 1_000 + number), &tls, client::transport()))
        .collect();
    // Once, what is allocated for all.
    let keys = measure(|| {
        let id = tailcoat_quic::ConnectionId::new(&[1; 8]).unwrap();
        drop(bare.tls.initial_keys(&id));
    });
    let keys_once = measure(|| std::mem::forget(tls::initial_suite().keys(&[1; 8], Side::Server, Version::V1)));
    assert_eq!(keys.bytes_current, 0);
    let mut now = start;
    let mut run = |bare: &mut Bare, clients: &mut Vec<Client>, duration: Duration| {
        let end = now + duration;
        while now < end {
            let mut arrived = Vec::new();
            opt_out(|| {
                while let Some(packet) = bare.network.poll(now) {
                    match packet.way {
                        Way::ToServer => arrived.push(packet),
                        Way::ToClient => {
                            let client = clients.iter_mut().find(|client| client.addr == packet.client);
                            client.unwrap().handle(now, packet, &mut bare.network);
                        }
                    }
                }
                clients.iter_mut().for_each(|client| {
                    client.handle_timeouts(now);
                    client.drive(now, &mut bare.network);
                });
            });
            arrived.iter().for_each(|packet| bare.handle(now, packet.client, &packet.payload));
            opt_out(|| drop(std::mem::take(&mut arrived)));
            bare.drive(now);
            now += Duration::from_millis(1);
        }
        now
    };
    let counted = measure(|| {
        opt_out(|| clients.iter_mut().for_each(|client| client.connect(start)));
        run(&mut bare, &mut clients, Duration::from_millis(500));
        for _ in 0..5 {
            opt_out(|| {
                for client in &mut clients {
                    (0..30).for_each(|_| client.ask(Bytes::from_static(b"GET / HTTP/3 and some header fields"), None));
                }
            });
            run(&mut bare, &mut clients, Duration::from_millis(300));
        }
        run(&mut bare, &mut clients, Duration::from_millis(500));
    });
    assert_eq!(bare.connections.len(), CLIENTS);
    for client in &clients {
        assert!(client.all_done() && client.requests.len() == 150, "{}", client.requests.len());
    }
    let before = counted.bytes_current / CLIENTS as i64;
    let shrunk = measure(|| bare.connections.iter_mut().for_each(|(_, connection)| connection.shrink()));
    let after = (counted.bytes_current + shrunk.bytes_current) / CLIENTS as i64;
    let engine = after - keys_once.bytes_current;
    println!(
        "idle connection: {before} bytes, after shrink {after}, of which keys {}, the connection itself {}",
        keys_once.bytes_current,
        size_of::<Connection>()
    );
    assert!(engine <= 4_096, "{engine} bytes without keys");
    assert!(before <= 20_480, "{before}");
    // After the end, nothing is left.
    let at = run(&mut bare, &mut clients, Duration::ZERO);
    let ended = measure(|| {
        opt_out(|| {
            clients.iter_mut().for_each(|client| client.connection().close(at, 0_u32.into(), Bytes::new()));
        });
        run(&mut bare, &mut clients, Duration::from_secs(3));
        bare.connections.retain(|(_, connection)| !connection.is_drained());
    });
    assert!(bare.connections.is_empty() && bare.endpoint.connections() == 0);
    let left = counted.bytes_current + shrunk.bytes_current + ended.bytes_current;
    println!("left: {left} bytes");
    assert!(left < 64 << 10, "{left}");
}

#[test]
fn the_warm_path_allocates_rarely() {
    let start = Instant::now();
    let mut raw = server::Server::new(server::settings());
    let mut network = Network::new(start, 1);
    network.set(|link| link.delay = Duration::from_millis(1));
    let mut client = Client::new("192.0.2.1:5000", &tls::client_tls(false), client::transport());
    client.connect(start);
    let mut now = start;
    let mut count = 0;
    let mut requests = 0;
    for round in 0..2_000 {
        while let Some(packet) = network.poll(now) {
            match packet.way {
                Way::ToServer => {
                    let counted = measure(|| raw.handle(now, packet, &mut network));
                    count += if round > 500 { counted.count_total } else { 0 };
                }
                Way::ToClient => client.handle(now, packet, &mut network),
            }
        }
        raw.handle_timeouts(now);
        raw.drive(now, &mut network);
        client.handle_timeouts(now);
        client.drive(now, &mut network);
        if client.is_connected && round % 5 == 0 && client.all_done() {
            (0..20)
                .for_each(|_| client.ask(Bytes::from_static(b"G\0\0\0\0\0\0\x04\0 a request of forty bytes."), None));
            requests += if round > 500 { 20 } else { 0 };
        }
        now += Duration::from_millis(1);
    }
    println!("{count} allocations of the engine for the packets of {requests} requests");
    assert!(requests > 2_000 && count <= requests * 2, "{count} for {requests}");
}
