//! A server of HTTP/2 in cleartext (prior knowledge) around `wire::h2`, a thread a connection, for judges and foreign
//! clients: `cargo run -p tailcoat-conformance --bin h2_server -- 127.0.0.1:8080`.
//!
//! A response to `/bytes/N` has N bytes, one to a request with content has that content, and others a short text.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::ops::Range;
use std::time::{Duration, Instant};

use wire::h2::{EngineTurn, H2Limits, H2Output, H2ServerConnection, Placement, ServerEvent, StreamId};
use wire::http::{Fields, Method, RequestHead, Status};

const INPUT_BYTES: usize = 64 << 10;
const OUTPUT_BYTES: usize = 256 << 10;

fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let listener = TcpListener::bind(address)?;
    println!("{}", listener.local_addr()?);
    for socket in listener.incoming() {
        let socket = socket?;
        std::thread::spawn(move || {
            let peer = socket.peer_addr();
            if let Err(error) = H2TestConnection::new(socket).run() {
                eprintln!("{peer:?}: {error}");
            }
        });
    }
    Ok(())
}

/// A request, and its content so far.
struct H2ServerRequest {
    is_head: bool,
    path: String,
    content: Vec<u8>,
}

struct H2TestConnection {
    socket: TcpStream,
    started_at: Instant,
    limits: H2Limits,
    engine: H2ServerConnection,
    output: H2Output,
    requests: HashMap<StreamId, H2ServerRequest>,
    /// Content of each response.
    responses: HashMap<StreamId, Vec<u8>>,
}

impl H2TestConnection {
    fn new(socket: TcpStream) -> Self {
        let limits = H2Limits { enables_connect_protocol: true, ..H2Limits::default() };
        Self {
            socket,
            started_at: Instant::now(),
            limits,
            engine: H2ServerConnection::new(Duration::ZERO, &limits),
            output: H2Output::default(),
            requests: HashMap::new(),
            responses: HashMap::new(),
        }
    }

    fn run(mut self) -> std::io::Result<()> {
        self.socket.set_nodelay(true)?;
        self.socket.set_read_timeout(Some(Duration::from_millis(500)))?;
        let (mut input, mut filled) = (vec![0; INPUT_BYTES], 0);
        self.with_turn(|engine, turn| engine.start(turn));
        loop {
            self.flush()?;
            if self.engine.is_drained() {
                // Unread input would make the kernel send a reset, which overtakes what was sent.
                self.socket.shutdown(Shutdown::Write)?;
                while self.socket.read(&mut input).is_ok_and(|bytes| bytes > 0) {}
                return Ok(());
            }
            match self.socket.read(&mut input[filled..]) {
                Ok(0) => return Ok(()),
                Ok(bytes) => filled += bytes,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    while self.with_turn(|engine, turn| engine.handle_timeout(turn)).is_some() {}
                    continue;
                }
                Err(error) => return Err(error),
            }
            let consumed = self.handle(&input[..filled])?;
            input.copy_within(consumed..filled, 0);
            filled -= consumed;
        }
    }

    fn with_turn<T>(&mut self, action: impl FnOnce(&mut H2ServerConnection, &mut EngineTurn<'_>) -> T) -> T {
        let now = self.started_at.elapsed();
        let mut turn = EngineTurn { now, limits: &self.limits, output: &mut self.output };
        action(&mut self.engine, &mut turn)
    }

    /// Handles all input that is there; returns how much was consumed.
    fn handle(&mut self, input: &[u8]) -> std::io::Result<usize> {
        let (mut head, mut text, mut at) = (RequestHead::default(), Vec::new(), 0);
        loop {
            let rest = &input[at..];
            let handled = self.with_turn(|engine, turn| engine.handle_input(rest, &mut head, &mut text, turn));
            at += handled.consumed_bytes;
            match handled.event {
                ServerEvent::NeedInput | ServerEvent::Closed(_) => return Ok(at),
                ServerEvent::AwaitOutput => self.flush()?,
                ServerEvent::Request(request) => {
                    let path = String::from_utf8_lossy(request.target(&text).path).into_owned();
                    let is_head = head.method == Method::Head;
                    self.requests.insert(request.stream, H2ServerRequest { is_head, path, content: Vec::new() });
                    if request.expects_continue {
                        self.with_turn(|engine, turn| {
                            engine.send_informational(request.stream, Status::CONTINUE, &Fields::new(), turn)
                        })
                        .ok();
                    }
                    if !request.has_content {
                        self.answer(request.stream);
                    }
                }
                ServerEvent::Rejected { stream, rejection } => {
                    self.requests.remove(&stream);
                    let content = rejection.reason.as_bytes().to_vec();
                    self.respond(stream, rejection.status, content, head.method == Method::Head);
                }
                ServerEvent::Content { stream, content, is_last } => {
                    let content = &rest[content];
                    if let Some(request) = self.requests.get_mut(&stream) {
                        request.content.extend_from_slice(content);
                    }
                    self.with_turn(|engine, turn| engine.take_content(stream, content.len(), turn));
                    if is_last {
                        self.answer(stream);
                    }
                }
                ServerEvent::Trailers { stream, .. } => self.answer(stream),
                ServerEvent::Reset { stream, .. } => {
                    self.requests.remove(&stream);
                    self.responses.remove(&stream);
                }
                ServerEvent::GoAway => {}
            }
        }
    }

    fn answer(&mut self, stream: StreamId) {
        let Some(H2ServerRequest { is_head, path, content }) = self.requests.remove(&stream) else { return };
        let bytes = path.strip_prefix("/bytes/").and_then(|number| number.parse().ok());
        let content = match bytes {
            Some(bytes) => vec![b'x'; bytes],
            None if content.is_empty() => b"Hello from wire.\n".to_vec(),
            None => content,
        };
        self.respond(stream, Status::OK, content, is_head);
    }

    fn respond(&mut self, stream: StreamId, status: Status, content: Vec<u8>, is_head: bool) {
        let mut fields = Fields::new();
        fields.push("Content-Type", "text/plain").push("Content-Length", content.len().to_string());
        let length = if is_head { 0 } else { content.len() as u64 };
        self.responses.insert(stream, content);
        let sent = self.with_turn(|engine, turn| {
            engine.send_response(stream, status, &fields, length == 0, turn)?;
            if length > 0 { engine.offer_content(stream, length, true, turn) } else { Ok(()) }
        });
        if sent.is_err() || length == 0 {
            self.responses.remove(&stream);
        }
    }

    /// Sends all that can be sent.
    fn flush(&mut self) -> std::io::Result<()> {
        loop {
            let (responses, now) = (&self.responses, self.started_at.elapsed());
            let mut turn = EngineTurn { now, limits: &self.limits, output: &mut self.output };
            self.engine.poll_output(OUTPUT_BYTES, &mut turn, |stream, range, out| {
                out.extend_from_slice(&responses[&stream][index(&range)]);
                Placement::Copied
            });
            if self.output.is_empty() {
                return Ok(());
            }
            self.socket.write_all(self.output.bytes())?;
            self.output.clear();
            let engine = &mut self.engine;
            self.responses.retain(|stream, _| engine.unsent_bytes(*stream).is_some());
        }
    }
}

fn index(range: &Range<u64>) -> Range<usize> {
    range.start as usize..range.end as usize
}
