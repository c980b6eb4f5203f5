//! HTTP/2 client around the engine of `wire`, which can also send invalid frames.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use wire::h2::{
    ClientEvent, EngineTurn, ErrorCode, H2ClientConnection, H2Limits, H2Output, OutgoingRequest, Placement, StreamId,
};
use wire::http::Fields;

use super::{PATIENCE, TestServer};

/// Connection to a server.
pub(crate) struct H2Client {
    pub(crate) socket: TcpStream,
    pub(crate) engine: H2ClientConnection,
    limits: H2Limits,
    output: H2Output,
    input: Vec<u8>,
    began: Instant,
    /// Content to send, by stream.
    contents: BTreeMap<StreamId, Vec<u8>>,
    pub(crate) answers: BTreeMap<StreamId, H2TestResponse>,
    /// Error code of the last GOAWAY.
    pub(crate) go_away: Option<ErrorCode>,
    /// True once the server has closed the connection.
    pub(crate) has_ended: bool,
    /// True if the client consumes content, which opens the window.
    pub(crate) takes: bool,
}

/// Limits of a client that accepts content of any length.
pub(crate) fn limits() -> H2Limits {
    let mut limits = H2Limits::default();
    limits.body.body_bytes_max = u64::MAX;
    limits
}

/// Response on a stream.
#[derive(Debug, Default)]
pub(crate) struct H2TestResponse {
    /// Statuses of all heads; the last is the final one.
    pub(crate) statuses: Vec<u16>,
    pub(crate) fields: Fields,
    pub(crate) content: Vec<u8>,
    pub(crate) trailers: Fields,
    pub(crate) is_complete: bool,
    pub(crate) reset: Option<ErrorCode>,
}

impl H2TestResponse {
    /// Status of the final response.
    pub(crate) fn status(&self) -> u16 {
        self.statuses.last().copied().unwrap_or(0)
    }
}

impl H2Client {
    /// Opens a connection without TLS.
    pub(crate) fn connect(server: &TestServer) -> Self {
        Self::with(server, limits())
    }

    /// Opens a connection with these limits.
    pub(crate) fn with(server: &TestServer, limits: H2Limits) -> Self {
        Self::over(server.connect(), limits)
    }

    /// Starts HTTP/2 on an open connection.
    pub(crate) fn connect_to(socket: TcpStream) -> Self {
        Self::over(socket, limits())
    }

    fn over(socket: TcpStream, limits: H2Limits) -> Self {
        socket.set_nodelay(true).expect("a socket has that");
        let mut client = Self {
            socket,
            engine: H2ClientConnection::new(Duration::ZERO, &limits),
            limits,
            output: H2Output::default(),
            input: Vec::new(),
            began: Instant::now(),
            contents: BTreeMap::new(),
            answers: BTreeMap::new(),
            go_away: None,
            has_ended: false,
            takes: true,
        };
        client.turn(|engine, turn| engine.start(turn));
        client.flush();
        client
    }

    /// Runs an action on the engine.
    pub(crate) fn turn<T>(&mut self, action: impl FnOnce(&mut H2ClientConnection, &mut EngineTurn<'_>) -> T) -> T {
        let now = self.began.elapsed();
        action(&mut self.engine, &mut EngineTurn { now, limits: &self.limits, output: &mut self.output })
    }

    /// Starts a request; `is_last` means no content.
    pub(crate) fn ask(&mut self, method: &str, path: &str, fields: &[(&str, &str)], is_last: bool) -> StreamId {
        let request = OutgoingRequest {
            method: method.as_bytes(),
            scheme: Some(b"http"),
            authority: Some(b"localhost"),
            path: Some(path.as_bytes()),
            protocol: None,
        };
        self.ask_as(&request, fields, is_last)
    }

    /// Starts a request with any pseudo-header fields.
    pub(crate) fn ask_as(&mut self, request: &OutgoingRequest<'_>, fields: &[(&str, &str)], is_last: bool) -> StreamId {
        let mut lines = Fields::new();
        for (name, value) in fields {
            lines.push(name, value);
        }
        let stream = self.begin(request, &lines, is_last);
        self.flush();
        stream
    }

    /// Sends a POST request with its content in one write.
    pub(crate) fn post_at_once(&mut self, path: &str, content: &[u8]) -> StreamId {
        let request = OutgoingRequest {
            method: b"POST",
            scheme: Some(b"http"),
            authority: Some(b"localhost"),
            path: Some(path.as_bytes()),
            protocol: None,
        };
        let mut lines = Fields::new();
        lines.push("content-length", content.len().to_string());
        let stream = self.begin(&request, &lines, false);
        self.send(stream, content, true);
        stream
    }

    /// Starts a request without sending it.
    fn begin(&mut self, request: &OutgoingRequest<'_>, lines: &Fields, is_last: bool) -> StreamId {
        let stream = self.turn(|engine, turn| engine.send_request(request, lines, is_last, turn));
        let stream = stream.expect("the server takes a request");
        self.answers.insert(stream, H2TestResponse::default());
        stream
    }

    /// Sends content as the windows permit.
    pub(crate) fn send(&mut self, stream: StreamId, content: &[u8], is_last: bool) {
        self.contents.entry(stream).or_default().extend_from_slice(content);
        self.turn(|engine, turn| engine.offer_content(stream, content.len() as u64, is_last, turn))
            .expect("the stream is open");
        self.flush();
    }

    /// Sends raw bytes, which no engine would.
    pub(crate) fn send_raw(&mut self, bytes: &[u8]) {
        // The server may have closed the connection.
        self.has_ended |= self.socket.write_all(bytes).is_err();
    }

    /// Sends a GET request and waits for the response.
    pub(crate) fn get(&mut self, path: &str) -> &H2TestResponse {
        let stream = self.ask("GET", path, &[], true);
        self.finish(stream)
    }

    /// Waits until a response is complete or reset.
    pub(crate) fn finish(&mut self, stream: StreamId) -> &H2TestResponse {
        self.wait(|client| {
            let answer = &client.answers[&stream];
            answer.is_complete || answer.reset.is_some()
        });
        &self.answers[&stream]
    }

    /// Reads until the condition holds; fails if the connection ends.
    #[track_caller]
    pub(crate) fn wait(&mut self, is_so: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so(self) {
            assert!(!self.has_ended, "the connection has ended: {:?}", self.go_away);
            assert!(Instant::now() < deadline, "it takes too long");
            self.read();
        }
    }

    /// Reads until the connection has ended; returns the error code of GOAWAY.
    #[track_caller]
    pub(crate) fn wait_for_end(&mut self) -> Option<ErrorCode> {
        self.wait_or_end(PATIENCE);
        assert!(self.has_ended, "it has not ended");
        self.go_away
    }

    /// Reads until the connection has ended, or for this time.
    pub(crate) fn wait_or_end(&mut self, time: Duration) {
        let deadline = Instant::now() + time;
        while !self.has_ended && Instant::now() < deadline {
            self.socket.set_read_timeout(Some(Duration::from_millis(20))).expect("it has a time-out");
            self.read();
        }
        self.socket.set_read_timeout(Some(PATIENCE)).expect("it has a time-out");
    }

    fn read(&mut self) {
        let mut buffer = [0; 64 << 10];
        match self.socket.read(&mut buffer) {
            Ok(0) => self.has_ended = true,
            Ok(count) => {
                self.input.extend_from_slice(&buffer[..count]);
                self.handle();
                self.flush();
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => self.has_ended = true,
        }
    }

    fn handle(&mut self) {
        let input = std::mem::take(&mut self.input);
        let (mut at, mut fields) = (0, Fields::new());
        loop {
            let rest = &input[at..];
            let handled = self.turn(|engine, turn| engine.handle_input(rest, &mut fields, turn));
            at += handled.consumed_bytes;
            match handled.event {
                ClientEvent::NeedInput => break,
                ClientEvent::AwaitOutput => self.flush(),
                ClientEvent::Response { stream, status, is_last } => {
                    let answer = self.answers.entry(stream).or_default();
                    answer.statuses.push(status.code());
                    answer.fields = fields.clone();
                    answer.is_complete = is_last;
                }
                ClientEvent::Content { stream, content, is_last } => {
                    let answer = self.answers.entry(stream).or_default();
                    answer.content.extend_from_slice(&rest[content.clone()]);
                    answer.is_complete = is_last;
                    if self.takes {
                        self.turn(|engine, turn| engine.take_content(stream, content.len(), turn));
                    }
                }
                ClientEvent::Trailers { stream } => {
                    let answer = self.answers.entry(stream).or_default();
                    answer.trailers = fields.clone();
                    answer.is_complete = true;
                }
                ClientEvent::Reset { stream, code, .. } => {
                    self.answers.entry(stream).or_default().reset = Some(code);
                }
                ClientEvent::GoAway { code, .. } => self.go_away = Some(code),
                ClientEvent::Closed(error) => panic!("the server is wrong: {error:?}"),
            }
        }
        self.input = input[at..].to_vec();
    }

    /// Sends all pending output.
    pub(crate) fn flush(&mut self) {
        let (now, contents) = (self.began.elapsed(), &self.contents);
        let mut turn = EngineTurn { now, limits: &self.limits, output: &mut self.output };
        self.engine.poll_output(usize::MAX, &mut turn, |stream, range, out| {
            out.extend_from_slice(&contents[&stream][range.start as usize..range.end as usize]);
            Placement::Copied
        });
        let bytes = self.output.bytes().to_vec();
        self.output.clear();
        self.send_raw(&bytes);
    }
}
