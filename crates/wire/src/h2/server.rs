//! Server side of a connection.

use std::ops::Range;
use std::time::Duration;

use super::engine::{Block, BlockPurpose, Engine, EngineStep, Role, compression_error, write_fields};
use super::hpack::{PreparedBlock, write_status};
use super::{
    ConnectionError, EngineTurn, ErrorCode, H2IncomingRequest, H2Limits, PeerSettings, Placement, Priority, StreamGone,
    StreamId,
};
use crate::field_section::decode_trailers;
use crate::field_section::request_head::{HeadFault, decode_request};
use crate::h1::MessageRejection;
use crate::http::date::DATE_BYTES;
use crate::http::{Fields, Method, RequestHead, Status};

/// Server role of an HTTP/2 connection, without its socket: input and responses go in; events for requests and their
/// content, and frames, come out.
#[derive(Debug)]
pub struct H2ServerConnection {
    engine: Engine,
}

/// Meaning of the input.
#[derive(Debug)]
pub enum ServerEvent {
    /// The caller must provide more input.
    NeedInput,
    /// The caller must send output before the connection handles more input. So the server reads nothing from a client
    /// that does not read.
    AwaitOutput,
    /// Head of a request; it is valid.
    Request(H2IncomingRequest),
    /// A request that the caller must answer with an error; `head` contains the decoded part of its head. The
    /// connection drops the request's content.
    Rejected {
        /// Stream for the response.
        stream: StreamId,
        /// Error to send. If a response has begun, the stream is reset instead.
        rejection: MessageRejection,
    },
    /// Piece of a request's content. It occupies the window until the caller [takes](H2ServerConnection::take_content)
    /// it.
    Content {
        /// Stream of the request.
        stream: StreamId,
        /// Range of the input that is content.
        content: Range<usize>,
        /// True if the request is complete.
        is_last: bool,
    },
    /// Trailer fields; the request is complete. They come from the peer; only their syntax has been checked.
    Trailers {
        /// Stream of the request.
        stream: StreamId,
        /// Trailer fields in order.
        fields: Fields,
    },
    /// The stream is closed before its end. It delivers no more events, and nothing can be sent on it.
    Reset {
        /// Stream that was reset.
        stream: StreamId,
        /// Error code of the reset.
        code: ErrorCode,
        /// True if the peer has reset the stream. Otherwise this side has, because the peer violated the protocol or
        /// was too slow.
        is_by_peer: bool,
    },
    /// The client sends no more requests.
    GoAway,
    /// The connection has failed. The caller must send the remaining output and close it.
    Closed(ConnectionError),
}

/// Event, and the input that it consumed.
#[derive(Debug)]
pub struct ServerHandled {
    /// Bytes of the input that the caller may drop, after it has read the event's content.
    pub consumed_bytes: usize,
    /// Meaning of the consumed input.
    pub event: ServerEvent,
}

impl H2ServerConnection {
    /// Creates a connection that has received nothing.
    pub fn new(now: Duration, limits: &H2Limits) -> Self {
        Self { engine: Engine::new(Role::Server, now, limits) }
    }

    /// Writes the server's preface. Call it once.
    pub fn start(&mut self, turn: &mut EngineTurn<'_>) {
        self.engine.start(turn);
    }

    /// Turns rejection of new streams (REFUSED_STREAM) on or off. Each stream that arrives while it is on counts as an
    /// error of the peer (`stream_faults`).
    pub fn refuse_streams(&mut self, is_rejected: bool) {
        self.engine.refuses_streams = is_rejected;
    }

    /// Handles input that has not been consumed. Call it with the rest until it returns [`ServerEvent::NeedInput`] or
    /// [`ServerEvent::AwaitOutput`]. Decodes a request's head into `head` and `text`.
    pub fn handle_input(
        &mut self,
        input: &[u8],
        head: &mut RequestHead,
        text: &mut Vec<u8>,
        turn: &mut EngineTurn<'_>,
    ) -> ServerHandled {
        let mut at = 0;
        loop {
            let (consumed_bytes, step) = self.engine.handle_input(&input[at..], turn);
            let from = at;
            at += consumed_bytes;
            let event = match step {
                EngineStep::Block(block) => match self.on_block(block, &input[from..], head, text, turn) {
                    Ok(None) => continue,
                    Ok(Some(event)) => event,
                    Err(error) => {
                        self.engine.fail(error, turn.output);
                        ServerEvent::Closed(error)
                    }
                },
                EngineStep::Content { stream, content, is_last } => {
                    ServerEvent::Content { stream, content: from + content.start..from + content.end, is_last }
                }
                other => event(other),
            };
            return ServerHandled { consumed_bytes: at, event };
        }
    }

    fn on_block(
        &mut self,
        block: Block,
        input: &[u8],
        head: &mut RequestHead,
        text: &mut Vec<u8>,
        turn: &mut EngineTurn<'_>,
    ) -> Result<Option<ServerEvent>, ConnectionError> {
        let (stream, bytes) = (StreamId(block.stream), block.fragment.bytes(input));
        if block.purpose == BlockPurpose::Trailers {
            return self.on_trailers(stream, bytes, turn);
        }
        let decoder = &mut self.engine.decoder;
        let decoded = decode_request(decoder, bytes, stream, block.is_last, head, text, &turn.limits.request_rules());
        let decoded = decoded.map_err(compression_error)?;
        if let Err(HeadFault::Malformed) = decoded {
            return self.malformed(stream, turn);
        }
        let opened = self.engine.open(stream.0, turn);
        opened.is_received = block.is_last;
        Ok(Some(match decoded {
            Ok(mut request) => {
                opened.expected_bytes = request.content_length;
                opened.is_tunnel = head.method == Method::Connect;
                request.settle_priority(&mut opened.priority);
                ServerEvent::Request(request)
            }
            Err(HeadFault::Rejected(rejection)) => {
                opened.discards_content = true;
                ServerEvent::Rejected { stream, rejection }
            }
            Err(HeadFault::Malformed) => return Ok(None),
        }))
    }

    fn malformed(
        &mut self,
        stream: StreamId,
        turn: &mut EngineTurn<'_>,
    ) -> Result<Option<ServerEvent>, ConnectionError> {
        let step = self.engine.stream_fault(stream.0, ErrorCode::PROTOCOL_ERROR, turn)?;
        Ok(step.map(event))
    }

    fn on_trailers(
        &mut self,
        stream: StreamId,
        block: &[u8],
        turn: &mut EngineTurn<'_>,
    ) -> Result<Option<ServerEvent>, ConnectionError> {
        let limits = &turn.limits.head;
        let decoded = decode_trailers(&mut self.engine.decoder, block, limits.head_bytes_max, limits.fields_max);
        let Ok(fields) = decoded.map_err(compression_error)? else { return self.malformed(stream, turn) };
        let Some(known) = self.engine.stream(stream.0) else { return Ok(None) };
        if known.expected_bytes.is_some_and(|expected| known.received_bytes != expected) {
            return self.malformed(stream, turn);
        }
        let is_given_out = !known.discards_content;
        self.engine.end_receiving(stream.0, turn);
        Ok(is_given_out.then_some(ServerEvent::Trailers { stream, fields }))
    }

    /// Reports that the caller has read `bytes` of a request's content. The client may then send as many again.
    pub fn take_content(&mut self, stream: StreamId, bytes: usize, turn: &mut EngineTurn<'_>) {
        self.engine.take(Some(stream.0), u32::try_from(bytes).unwrap_or(u32::MAX), turn);
    }

    /// Sets the limit of a request's content, if it depends on the handler. It applies to content that arrives from now
    /// on.
    pub fn set_body_bytes_max(&mut self, stream: StreamId, body_bytes_max: u64) {
        if let Some(stream) = self.engine.stream(stream.0) {
            stream.body_bytes_max = body_bytes_max;
        }
    }

    /// Sends a head with status 1xx; another head must follow (RFC 9110, section 15.2).
    pub fn send_informational(
        &mut self,
        stream: StreamId,
        status: Status,
        fields: &Fields,
        turn: &mut EngineTurn<'_>,
    ) -> Result<(), StreamGone> {
        self.engine.send_head(stream, false, false, turn, |encoder, out| {
            write_status(out, status);
            write_fields(encoder, fields, out);
        })
    }

    /// Sends a response's head; `is_last` if there is no content. Omits fields that HTTP/2 forbids, such as Connection.
    pub fn send_response(
        &mut self,
        stream: StreamId,
        status: Status,
        fields: &Fields,
        is_last: bool,
        turn: &mut EngineTurn<'_>,
    ) -> Result<(), StreamGone> {
        self.engine.send_head(stream, true, is_last, turn, |encoder, out| {
            write_status(out, status);
            write_fields(encoder, fields, out);
        })
    }

    /// Sends a response's head that was encoded before, with this date. `add` may append fields with
    /// [`write_literal`](super::hpack::write_literal).
    pub fn send_prepared(
        &mut self,
        stream: StreamId,
        block: &PreparedBlock,
        date: &[u8; DATE_BYTES],
        is_last: bool,
        turn: &mut EngineTurn<'_>,
        add: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), StreamGone> {
        self.send_block(stream, is_last, turn, |out| {
            block.write(date, out);
            add(out);
        })
    }

    /// Sends a response's head that `write` appends: a status and fields, encoded without the dynamic table.
    pub fn send_block(
        &mut self,
        stream: StreamId,
        is_last: bool,
        turn: &mut EngineTurn<'_>,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), StreamGone> {
        self.engine.send_head(stream, true, is_last, turn, |_, out| write(out))
    }

    /// Turns a CONNECT stream into an ordinary one, because its response does not open a tunnel.
    pub fn reject_tunnel(&mut self, stream: StreamId) {
        if let Some(stream) = self.engine.stream(stream.0) {
            stream.is_tunnel = false;
        }
    }

    /// Offers further bytes of a response's content, after those offered before. [`H2ServerConnection::poll_output`]
    /// sends them as flow control permits.
    pub fn offer_content(
        &mut self,
        stream: StreamId,
        bytes: u64,
        is_last: bool,
        turn: &mut EngineTurn<'_>,
    ) -> Result<(), StreamGone> {
        self.engine.offer_content(stream, bytes, is_last, turn)
    }

    /// Ends a response with trailers, after all content that was offered.
    pub fn send_trailers(
        &mut self,
        stream: StreamId,
        fields: Fields,
        turn: &mut EngineTurn<'_>,
    ) -> Result<(), StreamGone> {
        self.engine.send_trailers(stream, fields, turn)
    }

    /// Resets a stream whose response cannot be completed.
    pub fn reset(&mut self, stream: StreamId, code: ErrorCode, turn: &mut EngineTurn<'_>) {
        self.engine.reset(stream, code, turn);
    }

    /// Sets the priority of a response, if the server knows better than the client (RFC 9218, section 8).
    pub fn set_priority(&mut self, stream: StreamId, priority: Priority) {
        self.engine.set_priority(stream.0, priority);
    }

    /// Writes content as windows and priorities allow, up to `room_bytes` with its frames. `place` appends these bytes of the
    /// stream's content, counted from its first. Returns a stream whose content was lost and which was reset; then the caller
    /// must call again.
    pub fn poll_output(
        &mut self,
        room_bytes: usize,
        turn: &mut EngineTurn<'_>,
        place: impl FnMut(StreamId, Range<u64>, &mut Vec<u8>) -> Placement,
    ) -> Option<StreamId> {
        self.engine.poll_output(room_bytes, turn, place)
    }

    /// Returns whether [`H2ServerConnection::poll_output`] has content to write.
    pub fn has_content_to_send(&self) -> bool {
        self.engine.has_content_to_send()
    }

    /// Returns how many more bytes of a response's content the client accepts beyond those offered. A handler that
    /// produces content on demand should produce no more. 0 if the stream is closed.
    pub fn wanted_bytes(&mut self, stream: StreamId) -> u64 {
        self.engine.wanted_bytes(stream)
    }

    /// Returns the bytes of a response's content that were offered but not written; `None` if the stream is closed.
    pub fn unsent_bytes(&mut self, stream: StreamId) -> Option<u64> {
        self.engine.unsent_bytes(stream)
    }

    /// Returns the latest time for [`H2ServerConnection::handle_timeout`].
    pub fn next_timeout(&self, limits: &H2Limits) -> Option<Duration> {
        self.engine.next_timeout(limits)
    }

    /// Handles expired timers. Call it until it returns `None`.
    pub fn handle_timeout(&mut self, turn: &mut EngineTurn<'_>) -> Option<ServerEvent> {
        self.engine.handle_timeout(turn).map(event)
    }

    /// Begins a graceful shutdown: requests in flight are still answered (RFC 9113, section 6.8).
    pub fn shut_down(&mut self, turn: &mut EngineTurn<'_>) {
        self.engine.shut_down(turn);
    }

    /// Ends the connection immediately with an error of the caller's choice.
    pub fn fail(&mut self, error: ConnectionError, turn: &mut EngineTurn<'_>) {
        self.engine.fail(error, turn.output);
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

    /// Returns whether a header block is incomplete. Until it ends, the client can send nothing else.
    pub fn awaits_continuation(&self) -> bool {
        self.engine.awaits_continuation()
    }

    /// Returns the client's settings, or the defaults of RFC 9113.
    pub fn peer_settings(&self) -> &PeerSettings {
        &self.engine.peer
    }

    /// Frees memory that is not needed while no stream is open.
    pub fn shrink(&mut self) {
        self.engine.shrink();
    }
}

#[cfg(test)]
impl H2ServerConnection {
    /// Returns the bytes received on all streams that the caller has not taken.
    pub(super) fn waiting_bytes(&self) -> u32 {
        self.engine.waiting_bytes()
    }
}

/// Converts a step that maps directly to an event.
fn event(step: EngineStep) -> ServerEvent {
    match step {
        EngineStep::NeedInput | EngineStep::Block(_) => ServerEvent::NeedInput,
        EngineStep::AwaitOutput => ServerEvent::AwaitOutput,
        EngineStep::Content { stream, content, is_last } => ServerEvent::Content { stream, content, is_last },
        EngineStep::ContentTooLarge(stream) => {
            ServerEvent::Rejected { stream, rejection: MessageRejection::CONTENT_TOO_LARGE }
        }
        EngineStep::Reset { stream, code, is_by_peer } => ServerEvent::Reset { stream, code, is_by_peer },
        EngineStep::GoAway { .. } => ServerEvent::GoAway,
        EngineStep::Closed(error) => ServerEvent::Closed(error),
    }
}
