//! A server connection, and a peer that can send anything.

use std::fmt::Write;
use std::time::Duration;

use crate::h2::frame::{FRAME_HEADER_BYTES, FrameHeader, H2Frame, PREFACE, flag, kind};
use crate::h2::frame_write::write_header;
use crate::h2::hpack::Decoder;
use crate::h2::{EngineTurn, H2Limits, H2Output, H2ServerConnection, Placement, ServerEvent, StreamId};
use crate::http::{Fields, RequestHead, Status};

pub(super) const END: u8 = flag::END_STREAM | flag::END_HEADERS;
pub(super) const OPEN: u8 = flag::END_HEADERS;
pub(super) const GET: &[(&str, &str)] = &[(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", "/")];
pub(super) const POST: &[(&str, &str)] =
    &[(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", "/")];

pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_header(&mut out, payload.len(), kind, flags, stream);
    out.extend_from_slice(payload);
    out
}

/// Encodes a block without the dynamic table; names are sent unchanged.
pub(super) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        out.extend([0, name.len() as u8]);
        out.extend(name.as_bytes());
        let length = value.len();
        if length < 127 {
            out.push(length as u8);
        } else {
            out.extend([127, ((length - 127) % 128) as u8 | 0x80, ((length - 127) >> 7) as u8]);
        }
        out.extend(value.as_bytes());
    }
    out
}

pub(super) fn headers(stream: u32, flags: u8, fields: &[(&str, &str)]) -> Vec<u8> {
    frame(kind::HEADERS, flags, stream, &block(fields))
}

pub(super) fn data(stream: u32, flags: u8, content: &[u8]) -> Vec<u8> {
    frame(kind::DATA, flags, stream, content)
}

pub(super) fn reset(stream: u32) -> Vec<u8> {
    frame(kind::RST_STREAM, 0, stream, &8u32.to_be_bytes())
}

pub(super) fn window_update(stream: u32, increment: u32) -> Vec<u8> {
    frame(kind::WINDOW_UPDATE, 0, stream, &increment.to_be_bytes())
}

pub(super) fn settings(settings: &[(u16, u32)]) -> Vec<u8> {
    let payload: Vec<u8> = settings
        .iter()
        .flat_map(|(identifier, value)| identifier.to_be_bytes().into_iter().chain(value.to_be_bytes()))
        .collect();
    frame(kind::SETTINGS, 0, 0, &payload)
}

pub(super) fn settings_ack() -> Vec<u8> {
    frame(kind::SETTINGS, flag::ACK, 0, &[])
}

/// A server connection and a record of its events.
pub(super) struct TestPeer {
    pub server: H2ServerConnection,
    pub limits: H2Limits,
    pub now: Duration,
    pub output: H2Output,
    /// Events, one per line.
    pub events: String,
    pub head: RequestHead,
    pub text: Vec<u8>,
    decoder: Decoder,
    /// Input that is not consumed.
    pending: Vec<u8>,
    /// True if complete requests are answered with an empty response.
    pub answers: bool,
    /// True if received content is taken immediately.
    pub takes: bool,
}

impl TestPeer {
    /// Creates a connection on which both sides have sent their settings.
    pub(super) fn new() -> Self {
        Self::with(H2Limits::default(), &[])
    }

    pub(super) fn with(limits: H2Limits, own_settings: &[(u16, u32)]) -> Self {
        let mut peer = Self::unsettled(limits);
        let mut input = PREFACE.to_vec();
        input.extend(settings(own_settings));
        input.extend(settings_ack());
        peer.send(&input);
        peer.frames();
        peer
    }

    /// Creates a connection on which neither side has sent anything.
    pub(super) fn unsettled(limits: H2Limits) -> Self {
        let now = Duration::from_secs(1000);
        let mut peer = Self {
            server: H2ServerConnection::new(now, &limits),
            limits,
            now,
            output: H2Output::default(),
            events: String::new(),
            head: RequestHead::default(),
            text: Vec::new(),
            decoder: Decoder::default(),
            pending: Vec::new(),
            answers: false,
            takes: true,
        };
        peer.turn(|server, turn| server.start(turn));
        peer
    }

    pub(super) fn turn<T>(&mut self, action: impl FnOnce(&mut H2ServerConnection, &mut EngineTurn<'_>) -> T) -> T {
        let mut turn = EngineTurn { now: self.now, limits: &self.limits, output: &mut self.output };
        action(&mut self.server, &mut turn)
    }

    /// Sends bytes; returns their events.
    pub(super) fn send(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let (input, mut at) = (std::mem::take(&mut self.pending), 0);
        loop {
            let (mut head, mut text) = (std::mem::take(&mut self.head), std::mem::take(&mut self.text));
            let handled = self.turn(|server, turn| server.handle_input(&input[at..], &mut head, &mut text, turn));
            (self.head, self.text) = (head, text);
            let content_base = at;
            at += handled.consumed_bytes;
            let is_over =
                matches!(handled.event, ServerEvent::NeedInput | ServerEvent::AwaitOutput | ServerEvent::Closed(_));
            self.on_event(handled.event, &input[content_base..]);
            if is_over {
                break;
            }
        }
        self.pending = input[at..].to_vec();
        std::mem::take(&mut self.events)
    }

    pub(super) fn on_event(&mut self, event: ServerEvent, input: &[u8]) {
        let (line, complete) = match event {
            ServerEvent::NeedInput => return,
            ServerEvent::AwaitOutput => ("await output".to_owned(), None),
            ServerEvent::Request(request) => {
                let path = String::from_utf8_lossy(self.head.target.of(&self.text)).into_owned();
                let line = format!("request {} {:?} {path}", request.stream, self.head.method);
                (line, (!request.has_content).then_some(request.stream))
            }
            ServerEvent::Rejected { stream, rejection } => (format!("refused {stream} {}", rejection.status), None),
            ServerEvent::Content { stream, content, is_last } => {
                let length = content.len();
                if self.takes {
                    self.turn(|server, turn| server.take_content(stream, length, turn));
                }
                let content = if length < 20 { input[content].escape_ascii().to_string() } else { length.to_string() };
                let end = if is_last { " end" } else { "" };
                (format!("content {stream} {content}{end}"), is_last.then_some(stream))
            }
            ServerEvent::Trailers { stream, fields } => {
                let mut line = format!("trailers {stream}");
                for (name, value) in fields.iter() {
                    let _ = write!(line, " {}={}", name.escape_ascii(), value.escape_ascii());
                }
                (line, Some(stream))
            }
            ServerEvent::Reset { stream, code, is_by_peer } => {
                let whose = if is_by_peer { "by peer" } else { "by us" };
                (format!("reset {stream} {} {whose}", code.name()), None)
            }
            ServerEvent::GoAway => ("go away".to_owned(), None),
            ServerEvent::Closed(error) => (format!("closed {}", error.code.name()), None),
        };
        if !self.events.is_empty() {
            self.events.push('\n');
        }
        self.events.push_str(&line);
        if let Some(stream) = complete.filter(|_| self.answers) {
            self.respond(stream, true);
        }
    }

    /// Responds with 204.
    pub(super) fn respond(&mut self, stream: StreamId, is_last: bool) {
        let _ =
            self.turn(|server, turn| server.send_response(stream, Status::NO_CONTENT, &Fields::new(), is_last, turn));
    }

    /// Responds with 204 and content of `bytes` bytes.
    pub(super) fn respond_with(&mut self, stream: u32, bytes: u64) {
        self.respond(StreamId(stream), bytes == 0);
        if bytes > 0 {
            let _ = self.turn(|server, turn| server.offer_content(StreamId(stream), bytes, true, turn));
        }
    }

    /// Sends content and takes the output; returns one line per frame.
    pub(super) fn frames(&mut self) -> String {
        self.frames_within(usize::MAX)
    }

    pub(super) fn frames_within(&mut self, room_bytes: usize) -> String {
        self.turn(|server, turn| {
            server.poll_output(room_bytes, turn, |_, range, out| {
                out.resize(out.len() + (range.end - range.start) as usize, b'x');
                Placement::Copied
            });
        });
        let bytes = self.output.bytes().to_vec();
        self.output.clear();
        let (mut rest, mut lines) = (&bytes[..], Vec::new());
        while let Some(header) = FrameHeader::parse(rest) {
            let (payload, following) = rest[FRAME_HEADER_BYTES..].split_at(header.payload_bytes);
            lines.push(self.line(&header, payload));
            rest = following;
        }
        assert!(rest.is_empty(), "half a frame was written");
        lines.join("\n")
    }

    fn line(&mut self, header: &FrameHeader, payload: &[u8]) -> String {
        header.check().expect("what we send is valid");
        let (stream, end) = (header.stream, if header.has(flag::END_STREAM) { " end" } else { "" });
        if header.kind == kind::DATA {
            return format!("DATA {stream} {}{end}", payload.len());
        }
        match header.read(payload).expect("what we send is valid") {
            H2Frame::Headers { fragment, .. } => {
                let (mut line, mut text) = (format!("HEADERS {stream}"), Vec::new());
                let decoded = self.decoder.decode(fragment, 1 << 20, &mut text, |text, field| {
                    let _ =
                        write!(line, " {}={}", field.name.of(text).escape_ascii(), field.value.of(text).escape_ascii());
                });
                decoded.expect("what we send is valid");
                line + end
            }
            H2Frame::Settings(_) => "SETTINGS".to_owned(),
            H2Frame::SettingsAck => "SETTINGS ack".to_owned(),
            H2Frame::Ping(_) => "PING".to_owned(),
            H2Frame::PingAck(_) => "PING ack".to_owned(),
            H2Frame::ResetStream(code) => format!("RST_STREAM {stream} {}", code.name()),
            H2Frame::GoAway { last_stream, code } => format!("GOAWAY {last_stream} {}", code.name()),
            H2Frame::WindowUpdate(increment) => format!("WINDOW_UPDATE {stream} {increment}"),
            other => panic!("we never send {other:?}"),
        }
    }

    /// Advances the time; returns the events.
    pub(super) fn wait(&mut self, time: Duration) -> String {
        self.now += time;
        while let Some(event) = self.turn(|server, turn| server.handle_timeout(turn)) {
            self.on_event(event, &[]);
        }
        std::mem::take(&mut self.events)
    }
}
