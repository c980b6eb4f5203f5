//! HTTP/2 upstream that sends any frames a test needs.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::PATIENCE;

/// Frame types (RFC 9113, section 6).
pub(crate) mod kind {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PUSH_PROMISE: u8 = 5;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
    pub(crate) const CONTINUATION: u8 = 9;
}

/// Flags: end of the message, and acknowledgement.
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const ACK: u8 = 1;
/// Flag: end of the header block.
pub(crate) const END_HEADERS: u8 = 4;

/// Server that runs the test's script on each connection.
pub(crate) struct H2Upstream {
    pub(crate) address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl H2Upstream {
    /// Starts the server. `script` gets the number of the connection, from 0.
    pub(crate) fn start(script: impl Fn(usize, &mut RawPeer) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let (script, connections) = (Arc::new(script), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&connections);
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let number = counted.fetch_add(1, Ordering::SeqCst);
                let (script, socket) = (Arc::clone(&script), socket.expect("a client connects"));
                std::thread::spawn(move || script(number, &mut RawPeer::new(socket)));
            }
        });
        Self { address, connections }
    }

    /// Number of connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// Frame received from the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawFrame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

/// Server's end of a connection.
pub(crate) struct RawPeer {
    socket: TcpStream,
    input: Vec<u8>,
}

impl RawPeer {
    fn new(socket: TcpStream) -> Self {
        socket.set_read_timeout(Some(PATIENCE)).expect("it has a time-out");
        socket.set_nodelay(true).expect("a socket has that");
        Self { socket, input: Vec::new() }
    }

    /// Reads the preface, and responds with these settings.
    pub(crate) fn greet(&mut self, settings: &[(u16, u32)]) {
        assert_eq!(self.take(24).as_deref(), Some(&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..]));
        let pairs = settings.iter().flat_map(|(name, value)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat());
        self.write(kind::SETTINGS, 0, 0, &pairs.collect::<Vec<_>>());
    }

    /// Reads the next frame; acknowledges settings and pings. `None` at the end.
    pub(crate) fn read(&mut self) -> Option<RawFrame> {
        let header = self.take(9)?;
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
        let stream = u32::from_be_bytes([header[5], header[6], header[7], header[8]]);
        let frame = RawFrame { kind: header[3], flags: header[4], stream, payload: self.take(length)? };
        if matches!(frame.kind, kind::SETTINGS | kind::PING) && frame.flags & ACK == 0 {
            let payload = if frame.kind == kind::PING { frame.payload.clone() } else { Vec::new() };
            self.write(frame.kind, ACK, 0, &payload);
        }
        Some(frame)
    }

    /// Reads until a frame of this type arrives. `None` at the end.
    pub(crate) fn await_frame(&mut self, kind: u8) -> Option<RawFrame> {
        std::iter::from_fn(|| self.read()).find(|frame| frame.kind == kind)
    }

    /// Reads until a request's head arrives; returns its stream.
    pub(crate) fn await_request(&mut self) -> Option<u32> {
        self.await_frame(kind::HEADERS).map(|frame| frame.stream)
    }

    /// Sends a frame; returns false if the client has closed the connection.
    pub(crate) fn write(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> bool {
        let length = payload.len() as u32;
        let mut frame = length.to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        self.write_raw(&frame)
    }

    /// Sends raw bytes; returns false if the client has closed the connection.
    pub(crate) fn write_raw(&mut self, bytes: &[u8]) -> bool {
        self.socket.write_all(bytes).is_ok()
    }

    /// Sends a response head with this status.
    pub(crate) fn head(&mut self, stream: u32, status: u16, is_last: bool) -> bool {
        let flags = END_HEADERS | if is_last { END_STREAM } else { 0 };
        self.write(kind::HEADERS, flags, stream, &block(&[(":status", &status.to_string())]))
    }

    /// Sends a DATA frame.
    pub(crate) fn data(&mut self, stream: u32, content: &[u8], is_last: bool) -> bool {
        self.write(kind::DATA, if is_last { END_STREAM } else { 0 }, stream, content)
    }

    /// Sends a complete response.
    pub(crate) fn answer(&mut self, stream: u32, content: &[u8]) {
        let fields = block(&[(":status", "200"), ("content-length", &content.len().to_string())]);
        self.write(kind::HEADERS, END_HEADERS, stream, &fields);
        self.data(stream, content, true);
    }

    /// Sends the same response to all requests, until the end.
    pub(crate) fn answer_all(&mut self, content: &[u8]) {
        while let Some(stream) = self.await_request() {
            self.answer(stream, content);
        }
    }

    fn take(&mut self, length: usize) -> Option<Vec<u8>> {
        let mut buffer = [0; 64 << 10];
        while self.input.len() < length {
            match self.socket.read(&mut buffer) {
                Ok(count @ 1..) => self.input.extend_from_slice(&buffer[..count]),
                _ => return None,
            }
        }
        Some(self.input.drain(..length).collect())
    }
}

/// Encodes a header block of literals (RFC 7541, section 6.2.2); names and values must be below 127 bytes.
pub(crate) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let text = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
    fields.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect()
}
