//! Server of the tests: our engine, and an application.
//!
//! The first byte of a stream tells what the application does. `G` and eight bytes: responds with as many bytes. `P`, eight
//! bytes and one of priority: likewise. `U`: counts the bytes, and responds with the count. `E`: echo. `R`: resets its side. `S`:
//! stops the client's side. `N`: never reads more.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tailcoat_quic::{
    CongestionAlgorithm, Connection, ConnectionId, ConnectionKey, Datagram, Dir, EndpointConfig, Handled, IdSource,
    LostReason, NewClient, QuicEvent, QuicStreamId, ReadEnd, ServerEndpoint, StreamEvent, StreamLimits, TlsServer,
    TransportSettings, WriteEnd,
};

use super::network::{Network, Packet, Way};
use super::tls;

pub(crate) const RESET_CODE: u64 = 77;
pub(crate) const STOP_CODE: u64 = 88;

/// Bytes that repeat after a long period only.
pub(crate) fn pattern(bytes: usize) -> Bytes {
    static PATTERN: std::sync::OnceLock<Bytes> = std::sync::OnceLock::new();
    let all =
        PATTERN.get_or_init(|| (0..(16_u32 << 20)).map(|at| (at.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect());
    all.slice(..bytes)
}

/// IDs of 8 bytes, of which the first is 0xaa.
pub(crate) struct Ids(u64);

impl Ids {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }
}

impl IdSource for Ids {
    fn next_id(&mut self) -> ConnectionId {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut bytes = (self.0 ^ self.0 >> 29).to_be_bytes();
        bytes[0] = 0xaa;
        ConnectionId::new(&bytes).unwrap()
    }

    fn is_own(&self, id: &ConnectionId) -> bool {
        id.first() == Some(&0xaa)
    }

    fn id_bytes(&self) -> usize {
        8
    }
}

pub(crate) fn settings() -> TransportSettings {
    TransportSettings {
        streams: StreamLimits {
            window_bytes: 1 << 20,
            connection_window_bytes: 4 << 20,
            bidi_max: 100,
            uni_max: 3,
            send_window_bytes: 8 << 20,
        },
        idle_timeout: Duration::from_secs(30),
        initial_round_trip: Duration::from_millis(100),
        congestion: CongestionAlgorithm::Cubic,
        initial_window_bytes: 14_720,
        probes_mtu: true,
        qlog: None,
    }
}

/// Exchange of the application.
#[derive(Default)]
struct Exchange {
    kind: u8,
    head: Vec<u8>,
    received: u64,
    is_ended: bool,
    out: Vec<Bytes>,
    finishes: bool,
    /// Bytes of the pattern that were not written, and those that were.
    body: Option<(usize, usize)>,
}

/// Connection with its application.
pub(crate) struct ServerConnection {
    pub(crate) connection: Connection,
    exchanges: BTreeMap<QuicStreamId, Exchange>,
    pub(crate) events: Vec<&'static str>,
    pub(crate) lost: Option<LostReason>,
    pub(crate) has_completed: bool,
    pub(crate) stopped: Vec<(QuicStreamId, u64)>,
    /// Errors that client's streams were reset with.
    pub(crate) resets: Vec<u64>,
    /// Uploaded bytes that were not those of the pattern.
    pub(crate) wrong_bytes: u64,
    /// False if the application does not read.
    pub(crate) reads: bool,
    /// Requests that were served before the handshake was complete.
    pub(crate) early_requests: u64,
    /// Bytes that arrived on unidirectional streams.
    pub(crate) uni_bytes: u64,
    pub(crate) requests: u64,
}

/// Server.
pub(crate) struct Server {
    pub(crate) endpoint: ServerEndpoint,
    pub(crate) tls: Arc<dyn TlsServer>,
    pub(crate) settings: TransportSettings,
    pub(crate) connections: BTreeMap<ConnectionKey, ServerConnection>,
    /// New clients wait until [`Self::accept_waiting`].
    pub(crate) defers: bool,
    pub(crate) waiting: Vec<NewClient>,
    /// Clients must answer a Retry packet.
    pub(crate) retries: bool,
    pub(crate) validated: Vec<bool>,
    pub(crate) drained: usize,
    pub(crate) segments_max: usize,
    /// Number of the server's `poll_transmit` calls with datagrams.
    pub(crate) batches: u64,
    buffer: Vec<u8>,
    /// Expected local address.
    pub(crate) local: Option<std::net::IpAddr>,
}

impl Server {
    pub(crate) fn new(settings: TransportSettings) -> Self {
        Self::with_seed(settings, 1)
    }

    /// Makes a server; another seed gives other connection IDs, with the same keys.
    pub(crate) fn with_seed(settings: TransportSettings, seed: u64) -> Self {
        let tls: Arc<dyn TlsServer> = Arc::new(tls::Server::new());
        let mut endpoint = ServerEndpoint::new(EndpointConfig::new([1; 32], [2; 32]), Box::new(Ids::new(seed)));
        endpoint.set_accepts(Some(Arc::clone(&tls)));
        Self {
            endpoint,
            tls,
            settings,
            connections: BTreeMap::new(),
            defers: false,
            waiting: Vec::new(),
            retries: false,
            validated: Vec::new(),
            drained: 0,
            segments_max: 10,
            batches: 0,
            buffer: Vec::new(),
            local: Some("198.51.100.1".parse().unwrap()),
        }
    }

    pub(crate) fn only(&mut self) -> &mut ServerConnection {
        assert_eq!(self.connections.len(), 1);
        self.connections.values_mut().next().unwrap()
    }

    pub(crate) fn handle(&mut self, now: Instant, packet: Packet, network: &mut Network) {
        let datagram = Datagram { remote: packet.client, local: self.local, ecn: packet.ecn, payload: packet.payload };
        let mut out = std::mem::take(&mut self.buffer);
        out.clear();
        match self.endpoint.handle(now, datagram, &mut out) {
            Handled::Connection(key, datagram) => {
                let server = self.connections.get_mut(&key).expect("a connection of the endpoint");
                server.connection.handle_datagram(now, datagram);
            }
            Handled::NewClient(incoming) => {
                if self.defers {
                    self.waiting.push(incoming);
                } else if self.retries && !incoming.is_validated() {
                    let transmit = self.endpoint.retry(incoming, &mut out).unwrap();
                    assert_eq!(transmit.bytes, out.len());
                    network.send(now, Way::ToClient, transmit.remote, transmit.ecn, &out);
                } else {
                    self.validated.push(incoming.is_validated());
                    let (key, connection) = self.endpoint.accept(incoming, now, &self.tls, &self.settings).unwrap();
                    self.connections.insert(key, ServerConnection::new(connection));
                }
            }
            Handled::Response(transmit) => {
                assert_eq!(transmit.bytes, out.len());
                network.send(now, Way::ToClient, transmit.remote, transmit.ecn, &out);
            }
            Handled::Dropped => {}
        }
        self.buffer = out;
    }

    /// Accepts the clients that wait.
    pub(crate) fn accept_waiting(&mut self, now: Instant) {
        for incoming in std::mem::take(&mut self.waiting) {
            let (key, connection) = self.endpoint.accept(incoming, now, &self.tls, &self.settings).unwrap();
            self.connections.insert(key, ServerConnection::new(connection));
        }
    }

    pub(crate) fn handle_timeouts(&mut self, now: Instant) {
        for server in self.connections.values_mut() {
            if server.connection.poll_timeout().is_some_and(|at| at <= now) {
                server.connection.handle_timeout(now);
            }
        }
    }

    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.connections.values().filter_map(|server| server.connection.poll_timeout()).min()
    }

    /// Runs the applications, and sends what is due.
    pub(crate) fn drive(&mut self, now: Instant, network: &mut Network) {
        let mut out = std::mem::take(&mut self.buffer);
        let mut gone = Vec::new();
        for (&key, server) in &mut self.connections {
            server.run_application();
            loop {
                out.clear();
                let Some(transmit) = server.connection.poll_transmit(now, self.segments_max, &mut out) else { break };
                assert_eq!(transmit.bytes, out.len());
                assert!(!out.is_empty());
                assert_eq!(transmit.local, self.local);
                self.batches += 1;
                let segment = transmit.segment_bytes.unwrap_or(out.len());
                assert!(out.len() <= segment * self.segments_max, "{} of {segment}", out.len());
                for payload in out.chunks(segment) {
                    network.send(now, Way::ToClient, transmit.remote, transmit.ecn, payload);
                }
            }
            out.clear();
            while let Some(event) = server.connection.poll_endpoint_event() {
                if event == tailcoat_quic::EndpointEvent::Drained {
                    gone.push(key);
                }
                if let Some(ids) = self.endpoint.handle_event(key, event) {
                    server.connection.handle_ids(ids);
                }
            }
            server.run_application();
        }
        for key in gone {
            self.drained += 1;
            let server = self.connections.get(&key).unwrap();
            assert!(server.connection.is_drained());
        }
        self.buffer = out;
    }

    /// Forgets connections that are drained.
    pub(crate) fn forget_drained(&mut self) {
        self.connections.retain(|_, server| !server.connection.is_drained());
    }

    pub(crate) fn remote(&mut self) -> SocketAddr {
        self.only().connection.remote()
    }
}

impl ServerConnection {
    fn new(connection: Connection) -> Self {
        Self {
            connection,
            exchanges: BTreeMap::new(),
            events: Vec::new(),
            lost: None,
            has_completed: false,
            stopped: Vec::new(),
            resets: Vec::new(),
            wrong_bytes: 0,
            reads: true,
            early_requests: 0,
            uni_bytes: 0,
            requests: 0,
        }
    }

    /// Reads streams that wait, because reading is permitted again.
    pub(crate) fn resume_reading(&mut self) {
        self.reads = true;
        let all: Vec<_> = self.exchanges.keys().copied().collect();
        all.into_iter().for_each(|id| self.read(id));
    }

    pub(crate) fn open_exchanges(&self) -> usize {
        self.exchanges.len()
    }

    /// Opens a unidirectional stream, and sends bytes of the pattern on it. Returns false if the client does not permit it.
    pub(crate) fn send_uni(&mut self, bytes: usize) -> bool {
        let streams = self.connection.streams();
        let Some(id) = streams.open_uni() else { return false };
        let exchange = Exchange { body: Some((bytes, 0)), finishes: true, is_ended: true, ..Exchange::default() };
        self.exchanges.insert(id, exchange);
        self.write(id);
        true
    }

    fn run_application(&mut self) {
        while let Some(event) = self.connection.poll_event() {
            match event {
                QuicEvent::HelloReceived => self.events.push("hello"),
                QuicEvent::Connected(session) => {
                    assert!(!session.is_handshaking());
                    self.events.push("connected");
                    self.has_completed = true;
                }
                QuicEvent::Lost(reason) => {
                    assert!(self.lost.replace(reason).is_none(), "lost twice");
                    self.events.push("lost");
                }
                QuicEvent::Stream(StreamEvent::Opened { dir }) => {
                    while let Some(id) = self.connection.streams().accept(dir) {
                        self.exchanges.insert(id, Exchange::default());
                        self.read(id);
                    }
                }
                QuicEvent::Stream(StreamEvent::Readable { id }) => self.read(id),
                QuicEvent::Stream(StreamEvent::Writable { id }) => self.write(id),
                QuicEvent::Stream(StreamEvent::Stopped { id, code }) => {
                    self.stopped.push((id, code));
                    if let Some(exchange) = self.exchanges.get_mut(&id) {
                        (exchange.out, exchange.body, exchange.finishes) = (Vec::new(), None, false);
                    }
                }
                #[allow(unreachable_patterns)]
                QuicEvent::Stream(_) => {}
            }
        }
    }

    fn read(&mut self, id: QuicStreamId) {
        if !self.reads {
            return;
        }
        let Some(exchange) = self.exchanges.get_mut(&id) else { return };
        while !exchange.is_ended {
            let data = match self.connection.streams().read(id, usize::MAX) {
                Ok(data) => data,
                Err(ReadEnd::Blocked) => break,
                Err(ReadEnd::Finished) => {
                    exchange.is_ended = true;
                    break;
                }
                Err(ReadEnd::Reset(code)) => {
                    self.resets.push(code);
                    if id.dir() == Dir::Bi {
                        self.connection.streams().reset(id, code);
                    }
                    self.exchanges.remove(&id);
                    return;
                }
                Err(ReadEnd::Closed) => panic!("closed before its end was read"),
            };
            if id.dir() == Dir::Uni {
                self.uni_bytes += data.len() as u64;
                continue;
            }
            let mut data = data;
            if exchange.kind == 0 && !data.is_empty() {
                exchange.kind = data[0];
                self.requests += 1;
                self.early_requests += u64::from(!self.has_completed);
            }
            match exchange.kind {
                b'E' => {
                    exchange.received += data.len() as u64;
                    exchange.out.push(data);
                }
                b'U' => {
                    if exchange.received == 0 && !data.is_empty() && exchange.head.is_empty() {
                        exchange.head.push(b'U');
                        data = data.slice(1..);
                    }
                    let at = exchange.received as usize;
                    exchange.received += data.len() as u64;
                    if pattern(at + data.len())[at..] != data[..] {
                        self.wrong_bytes += data.len() as u64;
                    }
                }
                b'R' => {
                    self.connection.streams().reset(id, RESET_CODE);
                    exchange.kind = b'D';
                }
                b'S' => {
                    self.connection.streams().stop(id, STOP_CODE);
                    exchange.is_ended = true;
                    exchange.kind = b'D';
                    exchange.finishes = true;
                }
                b'N' => break,
                _ => exchange.head.extend_from_slice(&data),
            }
        }
        if exchange.is_ended {
            match exchange.kind {
                b'G' | b'P' if exchange.body.is_none() && !exchange.finishes => {
                    let bytes = u64::from_be_bytes(exchange.head[1..9].try_into().unwrap()) as usize;
                    exchange.body = Some((bytes, 0));
                    exchange.finishes = true;
                    if exchange.kind == b'P' {
                        self.connection.streams().set_priority(id, i32::from(exchange.head[9] as i8));
                    }
                }
                b'U' => {
                    exchange.out.push(exchange.received.to_be_bytes().to_vec().into());
                    exchange.finishes = true;
                }
                b'E' => exchange.finishes = true,
                _ => {}
            }
        }
        if id.dir() == Dir::Bi {
            self.write(id);
        }
        if let Some(exchange) = self.exchanges.get(&id)
            && exchange.is_ended
            && (id.dir() == Dir::Uni || exchange.kind == b'D')
        {
            if exchange.finishes {
                let _ = self.connection.streams().finish(id);
            }
            self.exchanges.remove(&id);
        }
    }

    fn write(&mut self, id: QuicStreamId) {
        let Some(exchange) = self.exchanges.get_mut(&id) else { return };
        loop {
            if exchange.out.is_empty() {
                let Some((left, done)) = &mut exchange.body else { break };
                if *left == 0 {
                    break;
                }
                let piece = (*left).min(64 << 10);
                exchange.out.push(pattern(*done + piece).slice(*done..));
                (*left, *done) = (*left - piece, *done + piece);
            }
            let left: usize = exchange.out.iter().map(Bytes::len).sum();
            match self.connection.streams().write(id, &mut exchange.out) {
                Ok(count) => {
                    assert_eq!(left - count, exchange.out.iter().map(Bytes::len).sum::<usize>());
                    exchange.out.retain(|chunk| !chunk.is_empty());
                    if count < left {
                        return;
                    }
                }
                Err(WriteEnd::Blocked) => return,
                Err(WriteEnd::Stopped(_) | WriteEnd::Closed) => {
                    (exchange.out, exchange.body, exchange.finishes) = (Vec::new(), None, false);
                    break;
                }
            }
        }
        if std::mem::take(&mut exchange.finishes) {
            self.connection.streams().finish(id).unwrap();
            if exchange.is_ended {
                self.exchanges.remove(&id);
            } else {
                exchange.kind = b'D';
            }
        }
    }
}
