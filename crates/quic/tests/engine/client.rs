//! Client of the tests: quinn's endpoint with one connection at a time.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn_proto::{
    ClientConfig, Connection, ConnectionError, ConnectionHandle, DatagramEvent, Dir, EcnCodepoint, Endpoint,
    EndpointConfig, Event, ReadError, ReadableError, StreamEvent, StreamId, TransportConfig, VarInt, WriteError,
};
use tailcoat_quic::Ecn;

use super::network::{Network, Packet, Way};
use super::server::pattern;
use super::tls;

pub(crate) const SERVER: &str = "198.51.100.1:443";

/// Stream with a request.
#[derive(Default)]
pub(crate) struct Request {
    out: Bytes,
    finishes: bool,
    /// Bytes of the response.
    pub(crate) received: usize,
    /// True if the response is complete.
    pub(crate) is_done: bool,
    /// Code with which the server has reset the response.
    pub(crate) reset: Option<u64>,
    /// Code with which the server has stopped the request.
    pub(crate) stopped: Option<u64>,
    /// Bytes of the response that are not the expected ones.
    pub(crate) wrong: usize,
    expected: Option<Bytes>,
    /// Response, unless it is the pattern.
    pub(crate) text: Vec<u8>,
    pub(crate) done_at: Option<Instant>,
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { received, is_done, reset, stopped, wrong, .. } = self;
        let expected = self.expected.as_ref().map(Bytes::len);
        write!(f, "{received} of {expected:?}, done {is_done}, reset {reset:?}, stopped {stopped:?}, wrong {wrong}")
    }
}

/// Client.
pub(crate) struct Client {
    pub(crate) addr: SocketAddr,
    /// Other addresses that reach the client.
    pub(crate) other_addrs: Vec<SocketAddr>,
    endpoint: Endpoint,
    pub(crate) config: ClientConfig,
    pub(crate) connection: Option<(ConnectionHandle, Connection)>,
    pub(crate) requests: BTreeMap<StreamId, Request>,
    /// Requests that wait for a stream.
    waiting: Vec<(Bytes, Option<Bytes>, bool)>,
    pub(crate) is_connected: bool,
    pub(crate) lost: Option<ConnectionError>,
    pub(crate) reads: bool,
    pub(crate) uni_received: usize,
    /// Responses of the endpoint, such as stateless resets.
    pub(crate) sent_by_endpoint: usize,
}

/// Transport settings of a client.
pub(crate) fn transport() -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport.max_idle_timeout(Some(VarInt::from_u32(60_000).into()));
    transport.initial_rtt(Duration::from_millis(100));
    transport
}

impl Client {
    pub(crate) fn new(addr: &str, tls: &rustls::ClientConfig, transport: TransportConfig) -> Self {
        let mut config = ClientConfig::new(tls::quinn_tls(tls));
        config.transport_config(Arc::new(transport));
        config.token_store(Arc::new(quinn_proto::TokenMemoryCache::default()));
        Self {
            addr: addr.parse().unwrap(),
            other_addrs: Vec::new(),
            endpoint: Endpoint::new(Arc::new(EndpointConfig::default()), None, true, Some([7; 32])),
            config,
            connection: None,
            requests: BTreeMap::new(),
            waiting: Vec::new(),
            is_connected: false,
            lost: None,
            reads: true,
            uni_received: 0,
            sent_by_endpoint: 0,
        }
    }

    /// Client that accepts datagrams without connection IDs.
    pub(crate) fn without_ids(addr: &str, tls: &rustls::ClientConfig, transport: TransportConfig) -> Self {
        let mut config = EndpointConfig::default();
        config.cid_generator(|| Box::new(quinn_proto::RandomConnectionIdGenerator::new(0)));
        let endpoint = Endpoint::new(Arc::new(config), None, true, Some([8; 32]));
        Self { endpoint, ..Self::new(addr, tls, transport) }
    }

    /// Client that accepts datagrams of at most so many bytes.
    pub(crate) fn with_payload_max(
        addr: &str,
        tls: &rustls::ClientConfig,
        transport: TransportConfig,
        bytes: u16,
    ) -> Self {
        let mut config = EndpointConfig::default();
        config.max_udp_payload_size(bytes).unwrap();
        let endpoint = Endpoint::new(Arc::new(config), None, true, Some([9; 32]));
        Self { endpoint, ..Self::new(addr, tls, transport) }
    }

    /// Begins a connection. The one of before is forgotten.
    pub(crate) fn connect(&mut self, now: Instant) {
        let made = self.endpoint.connect(now, self.config.clone(), SERVER.parse().unwrap(), tls::NAME);
        self.connection = Some(made.unwrap());
        self.requests.clear();
        self.waiting.clear();
        (self.is_connected, self.lost) = (false, None);
    }

    pub(crate) fn connection(&mut self) -> &mut Connection {
        &mut self.connection.as_mut().expect("connect was called").1
    }

    /// Requests as many bytes, in a request of 40 bytes.
    pub(crate) fn get(&mut self, bytes: usize) {
        let mut text = vec![b'G'];
        text.extend_from_slice(&(bytes as u64).to_be_bytes());
        text.resize(40, b'.');
        self.ask(text.into(), Some(pattern(bytes)));
    }

    /// Requests as many bytes with a priority.
    pub(crate) fn get_with_priority(&mut self, bytes: usize, priority: i8) {
        let mut text = vec![b'P'];
        text.extend_from_slice(&(bytes as u64).to_be_bytes());
        text.push(priority as u8);
        text.resize(40, b'.');
        self.ask(text.into(), Some(pattern(bytes)));
    }

    /// Sends as many bytes.
    pub(crate) fn upload(&mut self, bytes: usize) {
        let text = [b"U", &pattern(bytes)[..]].concat();
        self.ask(text.into(), Some((bytes as u64).to_be_bytes().to_vec().into()));
    }

    /// Has bytes sent back.
    pub(crate) fn echo(&mut self, bytes: usize) {
        let text = Bytes::from([b"E", &pattern(bytes)[..]].concat());
        self.ask(text.clone(), Some(text));
    }

    pub(crate) fn ask(&mut self, text: Bytes, response: Option<Bytes>) {
        self.waiting.push((text, response, true));
    }

    /// Sends the beginning of a request, without its end.
    pub(crate) fn begin(&mut self, text: impl Into<Bytes>) {
        self.waiting.push((text.into(), None, false));
    }

    pub(crate) fn all_done(&self) -> bool {
        self.waiting.is_empty() && self.requests.values().all(|request| request.is_done)
    }

    pub(crate) fn assert_exact(&self) {
        for (id, request) in &self.requests {
            assert!(request.is_done, "{id}: {request:?}");
            assert_eq!((request.wrong, request.reset), (0, None), "{id}");
            if let Some(expected) = &request.expected {
                assert_eq!(request.received, expected.len(), "{id}");
            }
        }
    }

    pub(crate) fn received(&self) -> usize {
        self.requests.values().map(|request| request.received).sum()
    }

    pub(crate) fn handle(&mut self, now: Instant, packet: Packet, network: &mut Network) {
        if packet.client != self.addr && !self.other_addrs.contains(&packet.client) {
            return;
        }
        let ecn = packet.ecn.map(|mark| match mark {
            Ecn::Ect0 => EcnCodepoint::Ect0,
            Ecn::Ect1 => EcnCodepoint::Ect1,
            Ecn::Ce => EcnCodepoint::Ce,
        });
        let mut out = Vec::new();
        let server = SERVER.parse().unwrap();
        match self.endpoint.handle(now, server, None, ecn, packet.payload, &mut out) {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some((known, connection)) = &mut self.connection
                    && *known == handle
                {
                    connection.handle_event(event);
                }
            }
            Some(DatagramEvent::Response(transmit)) => {
                self.sent_by_endpoint += 1;
                network.send(now, Way::ToServer, self.addr, None, &out[..transmit.size]);
            }
            Some(DatagramEvent::NewConnection(_)) => panic!("the client is no server"),
            None => {}
        }
    }

    pub(crate) fn handle_timeouts(&mut self, now: Instant) {
        if let Some((_, connection)) = &mut self.connection
            && connection.poll_timeout().is_some_and(|at| at <= now)
        {
            connection.handle_timeout(now);
        }
    }

    pub(crate) fn next_at(&mut self) -> Option<Instant> {
        self.connection.as_mut()?.1.poll_timeout()
    }

    pub(crate) fn drive(&mut self, now: Instant, network: &mut Network) {
        if self.connection.is_none() {
            return;
        }
        self.run_application(now);
        let Some((handle, connection)) = &mut self.connection else { return };
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(*handle, event) {
                connection.handle_event(event);
            }
        }
        let mut out = Vec::new();
        while let Some(transmit) = connection.poll_transmit(now, 1, &mut out) {
            let ecn = transmit.ecn.map(|mark| match mark {
                EcnCodepoint::Ect0 => Ecn::Ect0,
                EcnCodepoint::Ect1 => Ecn::Ect1,
                EcnCodepoint::Ce => Ecn::Ce,
            });
            network.send(now, Way::ToServer, self.addr, ecn, &out[..transmit.size]);
            out.clear();
        }
        self.run_application(now);
    }

    fn run_application(&mut self, now: Instant) {
        while let Some(event) = self.connection().poll() {
            match event {
                Event::Connected => self.is_connected = true,
                Event::ConnectionLost { reason } => self.lost = Some(reason),
                Event::Stream(StreamEvent::Opened { dir: Dir::Uni }) => {
                    while let Some(id) = self.connection().streams().accept(Dir::Uni) {
                        self.read_uni(id);
                    }
                }
                Event::Stream(StreamEvent::Readable { id }) if id.dir() == Dir::Uni => self.read_uni(id),
                Event::Stream(StreamEvent::Readable { id }) => self.read(now, id),
                Event::Stream(StreamEvent::Writable { id }) => self.write(id),
                Event::Stream(StreamEvent::Stopped { id, error_code }) => {
                    if let Some(request) = self.requests.get_mut(&id) {
                        request.stopped = Some(error_code.into_inner());
                        (request.out, request.finishes) = (Bytes::new(), false);
                    }
                }
                _ => {}
            }
        }
        let (_, connection) = self.connection.as_mut().unwrap();
        if !self.is_connected && !connection.has_0rtt() || connection.is_closed() {
            return;
        }
        while !self.waiting.is_empty()
            && let Some(id) = self.connection().streams().open(Dir::Bi)
        {
            let (out, expected, finishes) = self.waiting.remove(0);
            self.requests.insert(id, Request { out, finishes, expected, ..Request::default() });
            self.write(id);
        }
    }

    /// Reads a unidirectional stream, of the pattern.
    fn read_uni(&mut self, id: StreamId) {
        let Some((_, connection)) = &mut self.connection else { return };
        let mut stream = connection.recv_stream(id);
        let Ok(mut chunks) = stream.read(true) else { return };
        while let Ok(Some(chunk)) = chunks.next(usize::MAX) {
            let (at, bytes) = (chunk.offset as usize, chunk.bytes.len());
            assert!(pattern(at + bytes)[at..] == chunk.bytes[..]);
            self.uni_received += bytes;
        }
        let _ = chunks.finalize();
    }

    /// Opens a unidirectional stream, and sends bytes on it.
    pub(crate) fn send_uni(&mut self, bytes: usize) {
        let connection = self.connection();
        let id = connection.streams().open(Dir::Uni).expect("a permitted stream");
        let mut stream = connection.send_stream(id);
        assert_eq!(stream.write(&pattern(bytes)).unwrap(), bytes);
        stream.finish().unwrap();
    }

    /// Reads what waits, because reading is permitted again.
    pub(crate) fn resume_reading(&mut self, now: Instant) {
        self.reads = true;
        let all: Vec<_> = self.requests.keys().copied().collect();
        all.into_iter().for_each(|id| self.read(now, id));
    }

    fn read(&mut self, now: Instant, id: StreamId) {
        if !self.reads {
            return;
        }
        let Some((_, connection)) = &mut self.connection else { return };
        let Some(request) = self.requests.get_mut(&id) else { return };
        let mut stream = connection.recv_stream(id);
        let mut chunks = match stream.read(true) {
            Ok(chunks) => chunks,
            Err(ReadableError::ClosedStream) => return,
            Err(ReadableError::IllegalOrderedRead) => panic!("ordered"),
        };
        loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => {
                    let at = request.received;
                    request.received += chunk.bytes.len();
                    match &request.expected {
                        Some(expected) => {
                            let is_right = expected.get(at..request.received) == Some(&chunk.bytes[..]);
                            request.wrong += if is_right { 0 } else { chunk.bytes.len() };
                        }
                        None => request.text.extend_from_slice(&chunk.bytes),
                    }
                }
                Ok(None) => {
                    (request.is_done, request.done_at) = (true, Some(now));
                    break;
                }
                Err(ReadError::Blocked) => break,
                Err(ReadError::Reset(code)) => {
                    (request.is_done, request.reset) = (true, Some(code.into_inner()));
                    break;
                }
            }
        }
        let _ = chunks.finalize();
    }

    fn write(&mut self, id: StreamId) {
        let Some((_, connection)) = &mut self.connection else { return };
        let Some(request) = self.requests.get_mut(&id) else { return };
        let mut stream = connection.send_stream(id);
        while !request.out.is_empty() {
            match stream.write(&request.out) {
                Ok(count) => drop(request.out.split_to(count)),
                Err(WriteError::Blocked) => return,
                Err(WriteError::Stopped(code)) => {
                    request.stopped = Some(code.into_inner());
                    request.out.clear();
                    request.finishes = false;
                }
                Err(WriteError::ClosedStream) => {
                    request.out.clear();
                    request.finishes = false;
                }
            }
        }
        if std::mem::take(&mut request.finishes) {
            stream.finish().unwrap();
        }
    }
}
