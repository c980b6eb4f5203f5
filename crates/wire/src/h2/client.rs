//! Client side of a connection.

use std::ops::Range;
use std::time::Duration;

use super::engine::{Block, BlockPurpose, Engine, EngineStep, Role, compression_error, write_fields};
use super::hpack::Indexing;
use super::{
    ConnectionError, EngineTurn, ErrorCode, H2Limits, OutgoingRequest, PeerSettings, Placement, PreparedRequest,
    StreamGone, StreamId,
};
use crate::field_section::decode_trailers;
use crate::field_section::response_head::decode_response;
use crate::http::{Fields, Status};

/// Client role of an HTTP/2 connection, without its socket. Server push is disabled.
#[derive(Debug)]
pub struct H2ClientConnection {
    engine: Engine,
    /// Buffer for the text of response heads.
    text: Vec<u8>,
}

/// Meaning of the input.
#[derive(Debug)]
pub enum ClientEvent {
    /// The caller must provide more input.
    NeedInput,
    /// The caller must send output before the connection handles more input.
    AwaitOutput,
    /// Head of a response; its fields are in `fields`.
    Response {
        /// Stream of the request.
        stream: StreamId,
        /// Status of the response. After a 1xx status another head follows.
        status: Status,
        /// True if the response is complete.
        is_last: bool,
    },
    /// Piece of a response's content. It occupies the window until the caller [takes](H2ClientConnection::take_content)
    /// it.
    Content {
        /// Stream of the response.
        stream: StreamId,
        /// Range of the input that is content.
        content: Range<usize>,
        /// True if the response is complete.
        is_last: bool,
    },
    /// Trailer fields, in `fields`; the response is complete.
    Trailers {
        /// Stream of the response.
        stream: StreamId,
    },
    /// The stream is closed before its end.
    Reset {
        /// Stream that was reset.
        stream: StreamId,
        /// Error code. After [`ErrorCode::REFUSED_STREAM`] the client may retry the request (RFC 9113, section 8.7).
        code: ErrorCode,
        /// True if the server has reset the stream. Otherwise this side has, because the server violated the protocol.
        is_by_peer: bool,
    },
    /// The server accepts no more requests. It has not handled the streams after `last_stream`; they are closed.
    GoAway {
        /// Last stream that the server may have handled.
        last_stream: StreamId,
        /// Error code of the GOAWAY frame.
        code: ErrorCode,
    },
    /// The connection has failed. The caller must send the remaining output and close it.
    Closed(ConnectionError),
}

/// Event, and the input that it consumed.
#[derive(Debug)]
pub struct ClientHandled {
    /// Bytes of the input that the caller may drop, after it has read the event's content.
    pub consumed_bytes: usize,
    /// Meaning of the consumed input.
    pub event: ClientEvent,
}

impl H2ClientConnection {
    /// Creates a connection that has sent nothing.
    pub fn new(now: Duration, limits: &H2Limits) -> Self {
        Self { engine: Engine::new(Role::Client, now, limits), text: Vec::new() }
    }

    /// Writes the preface. Call it once. Requests may follow at once.
    pub fn start(&mut self, turn: &mut EngineTurn<'_>) {
        self.engine.start(turn);
    }

    /// Returns whether the server accepts another request now.
    pub fn can_open(&self) -> bool {
        self.engine.can_open()
    }

    /// Sends a request's head; `is_last` if there is no content. `fields` must not contain Host, which `authority`
    /// replaces. Returns `None` if the server accepts no request now, see [`H2ClientConnection::can_open`].
    pub fn send_request(
        &mut self,
        request: &OutgoingRequest<'_>,
        fields: &Fields,
        is_last: bool,
        turn: &mut EngineTurn<'_>,
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

    /// Sends a request's head that was encoded before. Otherwise equal to [`H2ClientConnection::send_request`].
    pub fn send_prepared(
        &mut self,
        request: &PreparedRequest,
        is_last: bool,
        turn: &mut EngineTurn<'_>,
    ) -> Option<StreamId> {
        let stream = self.engine.open_own(request.method(), turn)?;
        let sent = self.engine.send_head(stream, true, is_last, turn, |_, out| out.extend_from_slice(request.block()));
        sent.ok().map(|()| stream)
    }

    /// Handles input that has not been consumed. Call it with the rest until it returns [`ClientEvent::NeedInput`] or
    /// [`ClientEvent::AwaitOutput`].
    pub fn handle_input(&mut self, input: &[u8], fields: &mut Fields, turn: &mut EngineTurn<'_>) -> ClientHandled {
        let mut at = 0;
        loop {
            let (consumed_bytes, step) = self.engine.handle_input(&input[at..], turn);
            let from = at;
            at += consumed_bytes;
            let event = match step {
                EngineStep::Block(block) => match self.on_block(block, &input[from..], fields, turn) {
                    Ok(None) => continue,
                    Ok(Some(event)) => event,
                    Err(error) => {
                        self.engine.fail(error, turn.output);
                        ClientEvent::Closed(error)
                    }
                },
                EngineStep::Content { stream, content, is_last } => {
                    ClientEvent::Content { stream, content: from + content.start..from + content.end, is_last }
                }
                EngineStep::ContentTooLarge(stream) => {
                    let code = ErrorCode::CANCEL;
                    self.engine.reset(stream, code, turn);
                    ClientEvent::Reset { stream, code, is_by_peer: false }
                }
                EngineStep::GoAway { last_stream, code } => {
                    self.engine.forget_after(last_stream, turn);
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
        turn: &mut EngineTurn<'_>,
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
            // RFC 9113, section 8.1: a head with an interim status must not end the stream.
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

    /// Ends a response; resets the stream if content is missing.
    fn end(
        &mut self,
        stream: StreamId,
        turn: &mut EngineTurn<'_>,
        event: ClientEvent,
    ) -> Result<Option<ClientEvent>, ConnectionError> {
        let Some(known) = self.engine.stream(stream.0) else { return Ok(None) };
        if known.expected_bytes.is_some_and(|expected| known.received_bytes != expected) {
            return self.malformed(stream, turn);
        }
        self.engine.end_receiving(stream.0, turn);
        Ok(Some(event))
    }

    fn malformed(
        &mut self,
        stream: StreamId,
        turn: &mut EngineTurn<'_>,
    ) -> Result<Option<ClientEvent>, ConnectionError> {
        let step = self.engine.stream_fault(stream.0, ErrorCode::PROTOCOL_ERROR, turn)?;
        Ok(step.map(event))
    }

    /// Reports that the caller has read `bytes` of a response's content. The server may then send as many again.
    pub fn take_content(&mut self, stream: StreamId, bytes: usize, turn: &mut EngineTurn<'_>) {
        self.engine.take(Some(stream.0), u32::try_from(bytes).unwrap_or(u32::MAX), turn);
    }

    /// Offers further bytes of a request's content, after those offered before.
    pub fn offer_content(
        &mut self,
        stream: StreamId,
        bytes: u64,
        is_last: bool,
        turn: &mut EngineTurn<'_>,
    ) -> Result<(), StreamGone> {
        self.engine.offer_content(stream, bytes, is_last, turn)
    }

    /// Ends a request with trailers, after all content that was offered.
    pub fn send_trailers(
        &mut self,
        stream: StreamId,
        fields: Fields,
        turn: &mut EngineTurn<'_>,
    ) -> Result<(), StreamGone> {
        self.engine.send_trailers(stream, fields, turn)
    }

    /// Cancels a request.
    pub fn reset(&mut self, stream: StreamId, code: ErrorCode, turn: &mut EngineTurn<'_>) {
        self.engine.reset(stream, code, turn);
    }

    /// See [`H2ServerConnection::poll_output`](super::H2ServerConnection::poll_output).
    pub fn poll_output(
        &mut self,
        room_bytes: usize,
        turn: &mut EngineTurn<'_>,
        place: impl FnMut(StreamId, Range<u64>, &mut Vec<u8>) -> Placement,
    ) -> Option<StreamId> {
        self.engine.poll_output(room_bytes, turn, place)
    }

    /// Returns whether [`H2ClientConnection::poll_output`] has content to write.
    pub fn has_content_to_send(&self) -> bool {
        self.engine.has_content_to_send()
    }

    /// See [`H2ServerConnection::wanted_bytes`](super::H2ServerConnection::wanted_bytes).
    pub fn wanted_bytes(&mut self, stream: StreamId) -> u64 {
        self.engine.wanted_bytes(stream)
    }

    /// Returns the bytes of a request's content that were offered but not written; `None` if the stream is closed.
    pub fn unsent_bytes(&mut self, stream: StreamId) -> Option<u64> {
        self.engine.unsent_bytes(stream)
    }

    /// Returns the latest time for [`H2ClientConnection::handle_timeout`].
    pub fn next_timeout(&self, limits: &H2Limits) -> Option<Duration> {
        self.engine.next_timeout(limits)
    }

    /// Handles expired timers. Call it until it returns `None`.
    pub fn handle_timeout(&mut self, turn: &mut EngineTurn<'_>) -> Option<ClientEvent> {
        self.engine.handle_timeout(turn).map(event)
    }

    /// Announces that the client sends no more requests.
    pub fn shut_down(&mut self, turn: &mut EngineTurn<'_>) {
        self.engine.shut_down(turn);
    }

    /// Returns whether the caller can close the connection after it has sent the output: no stream is open, and none
    /// will be.
    pub fn is_drained(&self) -> bool {
        self.engine.is_drained()
    }

    /// Returns the number of open streams.
    pub fn open_streams(&self) -> usize {
        self.engine.open_streams()
    }

    /// Returns whether the server's SETTINGS have arrived.
    pub fn has_peer_settings(&self) -> bool {
        self.engine.has_peer_settings()
    }

    /// Returns the server's settings, or the defaults of RFC 9113.
    pub fn peer_settings(&self) -> &PeerSettings {
        &self.engine.peer
    }
}

/// Converts a step that maps directly to an event.
fn event(step: EngineStep) -> ClientEvent {
    match step {
        EngineStep::NeedInput | EngineStep::Block(_) => ClientEvent::NeedInput,
        EngineStep::AwaitOutput => ClientEvent::AwaitOutput,
        EngineStep::Content { stream, content, is_last } => ClientEvent::Content { stream, content, is_last },
        EngineStep::ContentTooLarge(stream) => {
            ClientEvent::Reset { stream, code: ErrorCode::CANCEL, is_by_peer: false }
        }
        EngineStep::Reset { stream, code, is_by_peer } => ClientEvent::Reset { stream, code, is_by_peer },
        EngineStep::GoAway { last_stream, code } => ClientEvent::GoAway { last_stream, code },
        EngineStep::Closed(error) => ClientEvent::Closed(error),
    }
}
