//! A connection of either role, and a peer that can send anything.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use crate::h3::frame::{H3FrameHeader, kind, write_header, write_headers};
use crate::h3::{
    H3Client, H3Connection, H3ErrorCode, H3Event, H3IncomingRequest, H3IncomingResponse, H3Limits, H3Output, H3Role,
    H3Server, H3StreamId, H3Turn, varint,
};
use crate::http::{Fields, RequestHead};
use crate::qpack::write_prefix;

pub(super) const GET: &[(&str, &str)] =
    &[(":method", "GET"), (":scheme", "https"), (":authority", "a"), (":path", "/")];
pub(super) const POST: &[(&str, &str)] =
    &[(":method", "POST"), (":scheme", "https"), (":authority", "a"), (":path", "/")];

/// The peer's unidirectional streams, if the peer is a client.
pub(super) const CONTROL: u64 = 2;
pub(super) const ENCODER: u64 = 6;
pub(super) const DECODER: u64 = 10;

pub(super) fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_header(&mut out, kind, payload.len() as u64);
    out.extend_from_slice(payload);
    out
}

/// Encodes numbers one after the other.
pub(super) fn numbers(numbers: &[u64]) -> Vec<u8> {
    let mut out = Vec::new();
    numbers.iter().for_each(|number| varint::write(&mut out, *number));
    out
}

/// Encodes a HEADERS frame; names are sent unchanged.
pub(super) fn headers(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    write_headers(&mut out, |out| {
        write_prefix(out);
        for (name, value) in fields {
            crate::field_section::integer::write(out, 0x20, 3, name.len());
            out.extend(name.as_bytes());
            crate::field_section::integer::write(out, 0, 7, value.len());
            out.extend(value.as_bytes());
        }
    });
    out
}

pub(super) fn data(content: &[u8]) -> Vec<u8> {
    frame(kind::DATA, content)
}

pub(super) fn settings(settings: &[u64]) -> Vec<u8> {
    frame(kind::SETTINGS, &numbers(settings))
}

/// Input of a stream, and whether the stream ends after it.
pub(super) type TestInput<'a> = (H3StreamId, &'a [u8], bool);

/// Role in tests: hands over input, and describes heads.
pub(super) trait TestRole: H3Role {
    fn handle(
        connection: &mut H3Connection<Self>,
        input: TestInput<'_>,
        buffers: &mut Buffers,
        turn: &mut H3Turn<'_>,
    ) -> (usize, H3Event<Self::Head>)
    where
        Self: Sized;

    fn line(head: &Self::Head, buffers: &Buffers) -> String;
}

#[derive(Default)]
pub(super) struct Buffers {
    pub head: RequestHead,
    pub text: Vec<u8>,
    pub fields: Fields,
}

impl TestRole for H3Server {
    fn handle(
        connection: &mut H3Connection<Self>,
        input: TestInput<'_>,
        buffers: &mut Buffers,
        turn: &mut H3Turn<'_>,
    ) -> (usize, H3Event<H3IncomingRequest>) {
        let handled = connection.handle_input(input.0, input.1, input.2, &mut buffers.head, &mut buffers.text, turn);
        (handled.consumed_bytes, handled.event)
    }

    fn line(request: &H3IncomingRequest, buffers: &Buffers) -> String {
        let path = String::from_utf8_lossy(buffers.head.target.of(&buffers.text)).into_owned();
        format!("request {} {:?} {path}", request.stream, buffers.head.method)
    }
}

impl TestRole for H3Client {
    fn handle(
        connection: &mut H3Connection<Self>,
        input: TestInput<'_>,
        buffers: &mut Buffers,
        turn: &mut H3Turn<'_>,
    ) -> (usize, H3Event<H3IncomingResponse>) {
        let handled = connection.handle_response(input.0, input.1, input.2, &mut buffers.fields, turn);
        (handled.consumed_bytes, handled.event)
    }

    fn line(response: &H3IncomingResponse, buffers: &Buffers) -> String {
        format!("response {} {} {}", response.stream, response.status.code(), buffers.fields.iter().count())
    }
}

/// A connection and a record of its events.
pub(super) struct TestPeer<R> {
    pub connection: H3Connection<R>,
    pub limits: H3Limits,
    pub now: Duration,
    pub output: H3Output,
    pub buffers: Buffers,
    /// Input that is not consumed, and whether the stream ends after it. Streams of the peer are accepted once.
    pending: BTreeMap<u64, (Vec<u8>, bool)>,
}

impl<R: TestRole> TestPeer<R> {
    /// Creates a connection on which neither side has sent anything.
    pub(super) fn unsettled(limits: H3Limits) -> Self {
        let mut peer = Self {
            connection: H3Connection::new(&limits),
            limits,
            now: Duration::from_secs(1000),
            output: H3Output::default(),
            buffers: Buffers::default(),
            pending: BTreeMap::new(),
        };
        peer.turn(|connection, turn| connection.start(turn));
        peer
    }

    /// Creates a connection on which the peer has sent these settings.
    pub(super) fn with(limits: H3Limits, own_settings: &[u64]) -> Self {
        let mut peer = Self::unsettled(limits);
        let control = if R::IS_SERVER { CONTROL } else { CONTROL + 1 };
        assert_eq!(peer.send(control, &[&[0], &settings(own_settings)[..]].concat()), "");
        peer
    }

    pub(super) fn new() -> Self {
        Self::with(H3Limits::default(), &[])
    }

    pub(super) fn turn<T>(&mut self, action: impl FnOnce(&mut H3Connection<R>, &mut H3Turn<'_>) -> T) -> T {
        let mut turn = H3Turn { now: self.now, limits: &self.limits, output: &mut self.output };
        action(&mut self.connection, &mut turn)
    }

    /// Sends bytes on a stream; returns their events, one per line.
    pub(super) fn send(&mut self, stream: u64, bytes: &[u8]) -> String {
        self.receive(stream, bytes, false)
    }

    /// Sends bytes and ends the stream.
    pub(super) fn end(&mut self, stream: u64, bytes: &[u8]) -> String {
        self.receive(stream, bytes, true)
    }

    fn receive(&mut self, stream: u64, bytes: &[u8], is_fin: bool) -> String {
        let mut events = String::new();
        let is_of_peer = stream & 1 == u64::from(!R::IS_SERVER);
        if is_of_peer && !self.pending.contains_key(&stream) {
            let event = self.turn(|connection, turn| connection.accept(H3StreamId(stream), turn));
            self.note(&event, &[], &mut events);
        }
        let (pending, has_fin) = self.pending.entry(stream).or_default();
        pending.extend_from_slice(bytes);
        *has_fin |= is_fin;
        self.handle(stream, &mut events);
        if H3StreamId(stream).is_unidirectional() {
            while let Some(unblocked) = self.connection.poll_unblocked() {
                self.handle(unblocked.0, &mut events);
            }
        }
        events
    }

    fn handle(&mut self, stream: u64, events: &mut String) {
        let (input, is_fin) = self.pending.remove(&stream).unwrap_or_default();
        let mut at = 0;
        loop {
            let mut turn = H3Turn { now: self.now, limits: &self.limits, output: &mut self.output };
            let buffers = &mut self.buffers;
            let (consumed_bytes, event) =
                R::handle(&mut self.connection, (H3StreamId(stream), &input[at..], is_fin), buffers, &mut turn);
            self.note(&event, &input[at..], events);
            at += consumed_bytes;
            let is_waiting = matches!(event, H3Event::NeedInput | H3Event::Blocked | H3Event::AwaitOutput);
            if is_waiting || matches!(event, H3Event::Closed(_) | H3Event::Reset { .. }) {
                break;
            }
        }
        self.pending.insert(stream, (input[at..].to_vec(), is_fin));
    }

    pub(super) fn note(&self, event: &H3Event<R::Head>, input: &[u8], events: &mut String) {
        let line = match event {
            H3Event::NeedInput => return,
            H3Event::Blocked => "blocked".to_owned(),
            H3Event::AwaitOutput => "await output".to_owned(),
            H3Event::Head(head) => R::line(head, &self.buffers),
            H3Event::Rejected { stream, rejection } => format!("rejected {stream} {}", rejection.status),
            H3Event::Content { stream, content, is_last } => {
                let content = input[content.clone()].escape_ascii();
                format!("content {stream} {content}{}", if *is_last { " end" } else { "" })
            }
            H3Event::Trailers { stream, fields } => {
                let mut line = format!("trailers {stream}");
                for (name, value) in fields.iter() {
                    let _ = write!(line, " {}={}", name.escape_ascii(), value.escape_ascii());
                }
                line
            }
            H3Event::Reset { stream, code, is_by_peer } => {
                format!("reset {stream} {}{}", code.name(), if *is_by_peer { " by peer" } else { "" })
            }
            H3Event::StopSending { stream, code } => format!("stop {stream} {}", code.name()),
            H3Event::PriorityChanged { stream, priority } => {
                format!("priority {stream} {} {}", priority.urgency, priority.is_incremental)
            }
            H3Event::GoAway { first_unhandled } => format!("go away {first_unhandled}"),
            H3Event::Closed(error) => format!("closed {}", error.code.name()),
        };
        if !events.is_empty() {
            events.push('\n');
        }
        events.push_str(&line);
    }

    /// The peer resets a stream.
    pub(super) fn reset(&mut self, stream: u64) -> String {
        let code = H3ErrorCode::H3_REQUEST_CANCELLED;
        let event = self.turn(|connection, turn| connection.on_reset(H3StreamId(stream), code, turn));
        let mut events = String::new();
        self.note(&event, &[], &mut events);
        events
    }

    pub(super) fn stop_sending(&mut self, stream: u64) -> String {
        let code = H3ErrorCode::H3_REQUEST_CANCELLED;
        let event = self.turn(|connection, turn| connection.on_stop_sending(H3StreamId(stream), code, turn));
        let mut events = String::new();
        self.note(&event, &[], &mut events);
        events
    }
}

/// Splits output into frames: type and payload.
pub(super) fn frames(mut bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let mut at = 0;
        let header = H3FrameHeader::parse(bytes, &mut at).expect("we write whole frames");
        let (payload, rest) = bytes[at..].split_at(header.payload_bytes as usize);
        frames.push((header.kind, payload.to_vec()));
        bytes = rest;
    }
    frames
}
