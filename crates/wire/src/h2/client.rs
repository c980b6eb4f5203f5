//! The client's side of a connection.

use std::ops::Range;
use std::time::Duration;

use super::engine::{Block, BlockPurpose, Engine, Role, Step, compression_error, write_fields};
use super::field_rules::decode_trailers;
use super::hpack::{Indexing, is_connection_specific, write_literal};
use super::response_head::decode_response;
use super::{ConnectionError, ErrorCode, Limits, PeerSettings, Placement, StreamGone, StreamId, Turn};
use crate::http::{Fields, Status};

/// The client role of an HTTP/2 connection, without its socket. Push is refused.
#[derive(Debug)]
pub struct ClientConnection {
    engine: Engine,
    /// Text of response heads.
    text: Vec<u8>,
}

/// The head of a request to be sent, but for its fields. The caller sees to it that all of it is what RFC 9113, section 8.3.1
/// allows.
#[derive(Clone, Copy, Debug)]
pub struct OutgoingRequest<'a> {
    /// The method.
    pub method: &'a [u8],
    /// `http` or `https`; nothing for CONNECT.
    pub scheme: Option<&'a [u8]>,
    /// The host with its port.
    pub authority: Option<&'a [u8]>,
    /// Path and query; nothing for CONNECT.
    pub path: Option<&'a [u8]>,
    /// For extended CONNECT (RFC 8441), which the server must have [offered](PeerSettings::enables_connect_protocol).
    pub protocol: Option<&'a [u8]>,
}

impl<'a> OutgoingRequest<'a> {
    fn pseudo_fields(&self) -> impl Iterator<Item = (&'static [u8], &'a [u8])> {
        let all: [(&'static [u8], Option<&'a [u8]>); 5] = [
            (b":method", Some(self.method)),
            (b":scheme", self.scheme),
            (b":authority", self.authority),
            (b":path", self.path),
            (b":protocol", self.protocol),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?)))
    }
}

/// The head of a request encoded once, to be sent many times on any connection: its block uses no dynamic table.
#[derive(Clone, Debug)]
pub struct PreparedRequest {
    method: Box<[u8]>,
    block: Box<[u8]>,
}

impl PreparedRequest {
    /// Encodes a head.
    pub fn new(request: &OutgoingRequest<'_>, fields: &Fields) -> Self {
        let mut block = Vec::with_capacity(128);
        request.pseudo_fields().for_each(|(name, value)| write_literal(&mut block, name, value));
        for (name, value) in fields.iter().filter(|(name, _)| !is_connection_specific(name)) {
            write_literal(&mut block, &name.to_ascii_lowercase(), value);
        }
        Self { method: request.method.into(), block: block.into() }
    }
}

/// What input was understood as.
#[derive(Debug)]
pub enum ClientEvent {
    /// More input is needed.
    NeedInput,
    /// No more input is handled until output was taken.
    AwaitOutput,
    /// A response's head; its fields are in `fields`.
    Response {
        /// To which request.
        stream: StreamId,
        /// Its status; if it is 1xx, another head follows.
        status: Status,
        /// Whether the response is complete.
        is_last: bool,
    },
    /// A piece of a response's content, at this place of the input. It counts as waiting until it is said to be
    /// [taken](ClientConnection::take_content).
    Content {
        /// Of which response.
        stream: StreamId,
        /// Where in the input it is.
        content: Range<usize>,
        /// Whether the response is complete.
        is_last: bool,
    },
    /// A response is complete, with trailer fields, which are in `fields`.
    Trailers {
        /// Of which response.
        stream: StreamId,
    },
    /// The stream is gone.
    Reset {
        /// Which stream.
        stream: StreamId,
        /// Why. After [`ErrorCode::REFUSED_STREAM`], the request may be sent again (RFC 9113, section 8.7).
        code: ErrorCode,
        /// The server has reset it; otherwise it is reset for a fault of the server's.
        is_by_peer: bool,
    },
    /// The server takes no more requests. Those behind `last_stream` were not looked at, and are gone.
    GoAway {
        /// The last that is, or may be, answered.
        last_stream: StreamId,
        /// Why.
        code: ErrorCode,
    },
    /// The connection has failed; what is in the output is still to be sent, and then it is to be closed.
    Closed(ConnectionError),
}

/// An event, and how much of the input is done with.
#[derive(Debug)]
pub struct ClientHandled {
    /// Bytes of the input that are done with, once the event's content is.
    pub consumed_bytes: usize,
    /// The event.
    pub event: ClientEvent,
}

impl ClientConnection {
    /// A connection that nothing was sent on.
    pub fn new(now: Duration, limits: &Limits) -> Self {
        Self { engine: Engine::new(Role::Client, now, limits), text: Vec::new() }
    }

    /// Writes what the client begins with. To be called once. Requests may be sent at once.
    pub fn start(&mut self, turn: &mut Turn<'_>) {
        self.engine.start(turn);
    }

    /// Whether the server takes another request now.
    pub fn can_open(&self) -> bool {
        self.engine.can_open()
    }

    /// Sends a request's head; `is_last` if there is no content. `fields` have no Host, for that is `authority`. `None` if the server takes none now, see
    /// [`ClientConnection::can_open`].
    pub fn send_request(
        &mut self,
        request: &OutgoingRequest<'_>,
        fields: &Fields,
        is_last: bool,
        turn: &mut Turn<'_>,
    ) -> Option<StreamId> {
        let stream = self.engine.open_own(request.method, turn)?;
        let sent = self.engine.send_head(stream, true, is_last, turn, |encoder, out| {
            for (name, value) in request.pseudo_fields() {
                let indexing = if name == b":path" { Indexing::Without } else { Indexing::Incremental };
                encoder.write_field(name, value, Some(indexing), out);
            }
            write_fields(encoder, fields, out);
        });
        sent.ok().map(|()| stream)
    }

    /// Sends a request's head that was encoded before, for requests that are sent many times. As
    /// [`ClientConnection::send_request`] otherwise.
    pub fn send_prepared(&mut self, request: &PreparedRequest, is_last: bool, turn: &mut Turn<'_>) -> Option<StreamId> {
        let stream = self.engine.open_own(&request.method, turn)?;
        let sent = self.engine.send_head(stream, true, is_last, turn, |_, out| out.extend_from_slice(&request.block));
        sent.ok().map(|()| stream)
    }

    /// Takes the input that is there and not done with. To be called, with what was not consumed, until it says
    /// [`ClientEvent::NeedInput`] or [`ClientEvent::AwaitOutput`].
    pub fn handle_input(&mut self, input: &[u8], fields: &mut Fields, turn: &mut Turn<'_>) -> ClientHandled {
        let mut at = 0;
        loop {
            let (consumed_bytes, step) = self.engine.handle_input(&input[at..], turn);
            let from = at;
            at += consumed_bytes;
            let event = match step {
                Step::Block(block) => match self.on_block(block, &input[from..], fields, turn) {
                    Ok(None) => continue,
                    Ok(Some(event)) => event,
                    Err(error) => {
                        self.engine.fail(error, turn.output);
                        ClientEvent::Closed(error)
                    }
                },
                Step::Content { stream, content, is_last } => {
                    ClientEvent::Content { stream, content: from + content.start..from + content.end, is_last }
                }
                Step::ContentTooLarge(stream) => {
                    let code = ErrorCode::CANCEL;
                    self.engine.reset(stream, code, turn);
                    ClientEvent::Reset { stream, code, is_by_peer: false }
                }
                Step::GoAway { last_stream, code } => {
                    self.engine.forget_behind(last_stream, turn);
                    ClientEvent::GoAway { last_stream, code }
                }
                other => event(other),
            };
            return ClientHandled { consumed_bytes: at, event };
        }
    }

    fn on_block(
        &mut self,
        block: Block,
        input: &[u8],
        fields: &mut Fields,
        turn: &mut Turn<'_>,
    ) -> Result<Option<ClientEvent>, ConnectionError> {
        let (stream, bytes, limits) = (StreamId(block.stream), block.fragment.bytes(input), &turn.limits.head);
        let (list_bytes_max, fields_max) = (limits.head_bytes_max, limits.fields_max);
        let decoder = &mut self.engine.decoder;
        if block.purpose == BlockPurpose::Trailers {
            let decoded = decode_trailers(decoder, bytes, list_bytes_max, fields_max);
            let Ok(trailers) = decoded.map_err(compression_error)? else { return self.malformed(stream, turn) };
            *fields = trailers;
            return self.end(stream, turn, ClientEvent::Trailers { stream });
        }
        let decoded = decode_response(decoder, bytes, list_bytes_max, fields_max, &mut self.text, fields);
        let Ok((status, content_length)) = decoded.map_err(compression_error)? else {
            return self.malformed(stream, turn);
        };
        let Some(known) = self.engine.stream(stream.0) else { return Ok(None) };
        let (is_last, is_informational) = (block.is_last, status.code() < 200);
        if is_informational {
            // RFC 9113, section 8.1: it is not the end.
            return if is_last {
                self.malformed(stream, turn)
            } else {
                Ok(Some(ClientEvent::Response { stream, status, is_last }))
            };
        }
        known.has_head = true;
        known.has_no_content |= status.has_no_content();
        known.expected_bytes = content_length.filter(|_| !known.has_no_content);
        let event = ClientEvent::Response { stream, status, is_last };
        if is_last { self.end(stream, turn, event) } else { Ok(Some(event)) }
    }

    /// The response is complete, if all of its content has come.
    fn end(
        &mut self,
        stream: StreamId,
        turn: &mut Turn<'_>,
        event: ClientEvent,
    ) -> Result<Option<ClientEvent>, ConnectionError> {
        let Some(known) = self.engine.stream(stream.0) else { return Ok(None) };
        if known.expected_bytes.is_some_and(|expected| known.received_bytes != expected) {
            return self.malformed(stream, turn);
        }
        self.engine.end_receiving(stream.0, turn);
        Ok(Some(event))
    }

    fn malformed(&mut self, stream: StreamId, turn: &mut Turn<'_>) -> Result<Option<ClientEvent>, ConnectionError> {
        let step = self.engine.stream_fault(stream.0, ErrorCode::PROTOCOL_ERROR, turn)?;
        Ok(step.map(event))
    }

    /// The caller is done with so many bytes of a response's content, so that as many may come.
    pub fn take_content(&mut self, stream: StreamId, bytes: usize, turn: &mut Turn<'_>) {
        self.engine.take(Some(stream.0), u32::try_from(bytes).unwrap_or(u32::MAX), turn);
    }

    /// Says that the caller has so many more bytes of a request's content, behind those that were offered before.
    pub fn offer_content(
        &mut self,
        stream: StreamId,
        bytes: u64,
        is_last: bool,
        turn: &mut Turn<'_>,
    ) -> Result<(), StreamGone> {
        self.engine.offer_content(stream, bytes, is_last, turn)
    }

    /// Ends a request by trailers, behind all content that was offered.
    pub fn send_trailers(&mut self, stream: StreamId, fields: Fields, turn: &mut Turn<'_>) -> Result<(), StreamGone> {
        self.engine.send_trailers(stream, fields, turn)
    }

    /// Gives a request up.
    pub fn reset(&mut self, stream: StreamId, code: ErrorCode, turn: &mut Turn<'_>) {
        self.engine.reset(stream, code, turn);
    }

    /// As [`ServerConnection::poll_output`](super::ServerConnection::poll_output).
    pub fn poll_output(
        &mut self,
        room_bytes: usize,
        turn: &mut Turn<'_>,
        place: impl FnMut(StreamId, Range<u64>, &mut Vec<u8>) -> Placement,
    ) -> Option<StreamId> {
        self.engine.poll_output(room_bytes, turn, place)
    }

    /// Whether [`ClientConnection::poll_output`] has something to write.
    pub fn has_content_to_send(&self) -> bool {
        self.engine.has_content_to_send()
    }

    /// As [`ServerConnection::wanted_bytes`](super::ServerConnection::wanted_bytes).
    pub fn wanted_bytes(&mut self, stream: StreamId) -> u64 {
        self.engine.wanted_bytes(stream)
    }

    /// Bytes of a request's content that were offered and not written; `None` if the stream is closed.
    pub fn unsent_bytes(&mut self, stream: StreamId) -> Option<u64> {
        self.engine.unsent_bytes(stream)
    }

    /// When to call [`ClientConnection::handle_timeout`] at the latest.
    pub fn next_timeout(&self, limits: &Limits) -> Option<Duration> {
        self.engine.next_timeout(limits)
    }

    /// Does what is due. To be called until it returns `None`.
    pub fn handle_timeout(&mut self, turn: &mut Turn<'_>) -> Option<ClientEvent> {
        self.engine.handle_timeout(turn).map(event)
    }

    /// Says that no more requests come.
    pub fn shut_down(&mut self, turn: &mut Turn<'_>) {
        self.engine.shut_down(turn);
    }

    /// Whether the connection can be closed, once the output is sent: no stream is open, and no more will be.
    pub fn is_drained(&self) -> bool {
        self.engine.is_drained()
    }

    /// How many streams are open.
    pub fn open_streams(&self) -> usize {
        self.engine.open_streams()
    }

    /// Whether the server has told anything about itself yet.
    pub fn has_peer_settings(&self) -> bool {
        self.engine.has_peer_settings()
    }

    /// What the server has told about itself.
    pub fn peer_settings(&self) -> &PeerSettings {
        &self.engine.peer
    }
}

/// Steps that are events as they are.
fn event(step: Step) -> ClientEvent {
    match step {
        Step::NeedInput | Step::Block(_) => ClientEvent::NeedInput,
        Step::AwaitOutput => ClientEvent::AwaitOutput,
        Step::Content { stream, content, is_last } => ClientEvent::Content { stream, content, is_last },
        Step::ContentTooLarge(stream) => ClientEvent::Reset { stream, code: ErrorCode::CANCEL, is_by_peer: false },
        Step::Reset { stream, code, is_by_peer } => ClientEvent::Reset { stream, code, is_by_peer },
        Step::GoAway { last_stream, code } => ClientEvent::GoAway { last_stream, code },
        Step::Closed(error) => ClientEvent::Closed(error),
    }
}
