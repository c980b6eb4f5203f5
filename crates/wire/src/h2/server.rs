//! The server's side of a connection.

use std::ops::Range;
use std::time::Duration;

use super::engine::{Block, BlockPurpose, Engine, Role, Step, compression_error, write_fields};
use super::field_rules::decode_trailers;
use super::hpack::{PreparedBlock, write_status};
use super::request_head::{HeadFault, IncomingRequest, decode_request};
use super::{ConnectionError, ErrorCode, Limits, PeerSettings, Placement, Priority, StreamGone, StreamId, Turn};
use crate::h1::Refusal;
use crate::http::date::DATE_BYTES;
use crate::http::{Fields, Method, RequestHead, Status};

/// The server role of an HTTP/2 connection, without its socket: input goes in as it comes, requests and their content come
/// out as events; responses go in, and frames come out.
#[derive(Debug)]
pub struct ServerConnection {
    engine: Engine,
}

/// What input was understood as.
#[derive(Debug)]
pub enum ServerEvent {
    /// More input is needed.
    NeedInput,
    /// No more input is handled until output was taken: a peer that does not read is not read from.
    AwaitOutput,
    /// A request's head, checked.
    Request(IncomingRequest),
    /// A request that is to be answered with an error; what of its head was understood is in `head`. Content that comes,
    /// or has come, of it is not given out.
    Refused {
        /// Where to answer.
        stream: StreamId,
        /// With what. If an answer has begun, the stream is reset instead.
        refusal: Refusal,
    },
    /// A piece of a request's content, at this place of the input. It counts as waiting until it is said to be
    /// [taken](ServerConnection::take_content).
    Content {
        /// Of which request.
        stream: StreamId,
        /// Where in the input it is.
        content: Range<usize>,
        /// Whether the request is complete.
        is_last: bool,
    },
    /// A request is complete, with these trailer fields. They come from the peer, and none of them has been looked at but
    /// for its form.
    Trailers {
        /// Of which request.
        stream: StreamId,
        /// The fields.
        fields: Fields,
    },
    /// The stream is gone: nothing more comes of it, and nothing can be sent.
    Reset {
        /// Which stream.
        stream: StreamId,
        /// Why.
        code: ErrorCode,
        /// The peer has reset it; otherwise it is reset for a fault of the peer's, or for its slowness.
        is_by_peer: bool,
    },
    /// The client will send no more requests.
    GoAway,
    /// The connection has failed; what is in the output is still to be sent, and then it is to be closed.
    Closed(ConnectionError),
}

/// An event, and how much of the input is done with.
#[derive(Debug)]
pub struct ServerHandled {
    /// Bytes of the input that are done with, once the event's content is.
    pub consumed_bytes: usize,
    /// The event.
    pub event: ServerEvent,
}

impl ServerConnection {
    /// A connection whose first bytes are still to come.
    pub fn new(now: Duration, limits: &Limits) -> Self {
        Self { engine: Engine::new(Role::Server, now, limits) }
    }

    /// Writes what the server begins with. To be called once.
    pub fn start(&mut self, turn: &mut Turn<'_>) {
        self.engine.start(turn);
    }

    /// Has new streams refused (REFUSED_STREAM), or not any more. Each that comes all the same counts as a fault of the
    /// peer's (`stream_faults`).
    pub fn refuse_streams(&mut self, is_refused: bool) {
        self.engine.refuses_streams = is_refused;
    }

    /// Takes the input that is there and not done with. To be called, with what was not consumed, until it says
    /// [`ServerEvent::NeedInput`] or [`ServerEvent::AwaitOutput`]. A request's head goes to `head` and `text`.
    pub fn handle_input(
        &mut self,
        input: &[u8],
        head: &mut RequestHead,
        text: &mut Vec<u8>,
        turn: &mut Turn<'_>,
    ) -> ServerHandled {
        let mut at = 0;
        loop {
            let (consumed_bytes, step) = self.engine.handle_input(&input[at..], turn);
            let from = at;
            at += consumed_bytes;
            let event = match step {
                Step::Block(block) => match self.on_block(block, &input[from..], head, text, turn) {
                    Ok(None) => continue,
                    Ok(Some(event)) => event,
                    Err(error) => {
                        self.engine.fail(error, turn.output);
                        ServerEvent::Closed(error)
                    }
                },
                Step::Content { stream, content, is_last } => {
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
        turn: &mut Turn<'_>,
    ) -> Result<Option<ServerEvent>, ConnectionError> {
        let (stream, bytes) = (StreamId(block.stream), block.fragment.bytes(input));
        if block.purpose == BlockPurpose::Trailers {
            return self.on_trailers(stream, bytes, turn);
        }
        let decoder = &mut self.engine.decoder;
        let decoded = decode_request(decoder, bytes, stream, block.is_last, head, text, turn.limits);
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
                // RFC 9218, section 7: PRIORITY_UPDATE, if one came before, overrides the field.
                if opened.priority == Priority::default() {
                    opened.priority = request.priority;
                }
                request.priority = opened.priority;
                ServerEvent::Request(request)
            }
            Err(HeadFault::Refused(refusal)) => {
                opened.discards_content = true;
                ServerEvent::Refused { stream, refusal }
            }
            Err(HeadFault::Malformed) => return Ok(None),
        }))
    }

    fn malformed(&mut self, stream: StreamId, turn: &mut Turn<'_>) -> Result<Option<ServerEvent>, ConnectionError> {
        let step = self.engine.stream_fault(stream.0, ErrorCode::PROTOCOL_ERROR, turn)?;
        Ok(step.map(event))
    }

    fn on_trailers(
        &mut self,
        stream: StreamId,
        block: &[u8],
        turn: &mut Turn<'_>,
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

    /// The caller is done with so many bytes of a request's content, so that as many may come.
    pub fn take_content(&mut self, stream: StreamId, bytes: usize, turn: &mut Turn<'_>) {
        self.engine.take(Some(stream.0), u32::try_from(bytes).unwrap_or(u32::MAX), turn);
    }

    /// Sets how much content a request may have, if that depends on who reads it; it counts from now on, for what comes.
    pub fn set_body_bytes_max(&mut self, stream: StreamId, body_bytes_max: u64) {
        if let Some(stream) = self.engine.stream(stream.0) {
            stream.body_bytes_max = body_bytes_max;
        }
    }

    /// Sends a head of status 1xx, to be followed by another (RFC 9110, section 15.2).
    pub fn send_informational(
        &mut self,
        stream: StreamId,
        status: Status,
        fields: &Fields,
        turn: &mut Turn<'_>,
    ) -> Result<(), StreamGone> {
        self.engine.send_head(stream, false, false, turn, |encoder, out| {
            write_status(out, status);
            write_fields(encoder, fields, out);
        })
    }

    /// Sends a response's head; `is_last` if there is no content. What HTTP/2 has no use for (Connection and the like) is
    /// left out.
    pub fn send_response(
        &mut self,
        stream: StreamId,
        status: Status,
        fields: &Fields,
        is_last: bool,
        turn: &mut Turn<'_>,
    ) -> Result<(), StreamGone> {
        self.engine.send_head(stream, true, is_last, turn, |encoder, out| {
            write_status(out, status);
            write_fields(encoder, fields, out);
        })
    }

    /// Sends a response's head that was encoded before, with this date; `add` may append fields by
    /// [`write_literal`](super::hpack::write_literal).
    pub fn send_prepared(
        &mut self,
        stream: StreamId,
        block: &PreparedBlock,
        date: &[u8; DATE_BYTES],
        is_last: bool,
        turn: &mut Turn<'_>,
        add: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), StreamGone> {
        self.send_block(stream, is_last, turn, |out| {
            block.write(date, out);
            add(out);
        })
    }

    /// Sends a response's head that `write` appends: a status and fields that use no dynamic table.
    pub fn send_block(
        &mut self,
        stream: StreamId,
        is_last: bool,
        turn: &mut Turn<'_>,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), StreamGone> {
        self.engine.send_head(stream, true, is_last, turn, |_, out| write(out))
    }

    /// Takes a stream that CONNECT has opened for one of an ordinary request, since it is not answered by a tunnel.
    pub fn refuse_tunnel(&mut self, stream: StreamId) {
        if let Some(stream) = self.engine.stream(stream.0) {
            stream.is_tunnel = false;
        }
    }

    /// Says that the caller has so many more bytes of a response's content, behind those that were offered before. They
    /// are sent by [`ServerConnection::poll_output`] as the client lets them.
    pub fn offer_content(
        &mut self,
        stream: StreamId,
        bytes: u64,
        is_last: bool,
        turn: &mut Turn<'_>,
    ) -> Result<(), StreamGone> {
        self.engine.offer_content(stream, bytes, is_last, turn)
    }

    /// Ends a response by trailers, behind all content that was offered.
    pub fn send_trailers(&mut self, stream: StreamId, fields: Fields, turn: &mut Turn<'_>) -> Result<(), StreamGone> {
        self.engine.send_trailers(stream, fields, turn)
    }

    /// Resets a stream, whose response can't be made or completed.
    pub fn reset(&mut self, stream: StreamId, code: ErrorCode, turn: &mut Turn<'_>) {
        self.engine.reset(stream, code, turn);
    }

    /// Sets how a response is to be sent among others, if the server knows better than the client (RFC 9218, section 8).
    pub fn set_priority(&mut self, stream: StreamId, priority: Priority) {
        self.engine.set_priority(stream.0, priority);
    }

    /// Writes content as windows and priorities allow, up to `room_bytes` with its frames. `place` is asked for each piece:
    /// it appends these bytes of the stream's content, counted from its first, or leaves them where they are. Returns a
    /// stream whose content was lost, so that it was reset; then it is to be called again.
    pub fn poll_output(
        &mut self,
        room_bytes: usize,
        turn: &mut Turn<'_>,
        place: impl FnMut(StreamId, Range<u64>, &mut Vec<u8>) -> Placement,
    ) -> Option<StreamId> {
        self.engine.poll_output(room_bytes, turn, place)
    }

    /// Whether [`ServerConnection::poll_output`] has something to write.
    pub fn has_content_to_send(&self) -> bool {
        self.engine.has_content_to_send()
    }

    /// Bytes that the client takes of a response's content beyond those that were offered: who makes content as it is
    /// wanted makes no more than this. 0 if the stream is closed.
    pub fn wanted_bytes(&mut self, stream: StreamId) -> u64 {
        self.engine.wanted_bytes(stream)
    }

    /// Bytes of a response's content that were offered and not written; `None` if the stream is closed.
    pub fn unsent_bytes(&mut self, stream: StreamId) -> Option<u64> {
        self.engine.unsent_bytes(stream)
    }

    /// When to call [`ServerConnection::handle_timeout`] at the latest.
    pub fn next_timeout(&self, limits: &Limits) -> Option<Duration> {
        self.engine.next_timeout(limits)
    }

    /// Does what is due. To be called until it returns `None`.
    pub fn handle_timeout(&mut self, turn: &mut Turn<'_>) -> Option<ServerEvent> {
        self.engine.handle_timeout(turn).map(event)
    }

    /// Begins a graceful end: requests that are on their way are still answered (RFC 9113, section 6.8).
    pub fn shut_down(&mut self, turn: &mut Turn<'_>) {
        self.engine.shut_down(turn);
    }

    /// Ends the connection at once, for a reason of the caller's.
    pub fn fail(&mut self, error: ConnectionError, turn: &mut Turn<'_>) {
        self.engine.fail(error, turn.output);
    }

    /// Whether the connection can be closed, once the output is sent: no stream is open, and no more will be.
    pub fn is_drained(&self) -> bool {
        self.engine.is_drained()
    }

    /// How many streams are open.
    pub fn open_streams(&self) -> usize {
        self.engine.open_streams()
    }

    /// Whether a header block has begun and not ended: a client that dallies there holds up the whole connection.
    pub fn awaits_continuation(&self) -> bool {
        self.engine.awaits_continuation()
    }

    /// What the client has told about itself.
    pub fn peer_settings(&self) -> &PeerSettings {
        &self.engine.peer
    }

    /// Gives memory back that is not needed while no stream is open.
    pub fn shrink(&mut self) {
        self.engine.shrink();
    }
}

#[cfg(test)]
impl ServerConnection {
    /// What has come of all streams and was not taken.
    pub(super) fn waiting_bytes(&self) -> u32 {
        self.engine.waiting_bytes()
    }
}

/// Steps that are events as they are.
fn event(step: Step) -> ServerEvent {
    match step {
        Step::NeedInput | Step::Block(_) => ServerEvent::NeedInput,
        Step::AwaitOutput => ServerEvent::AwaitOutput,
        Step::Content { stream, content, is_last } => ServerEvent::Content { stream, content, is_last },
        Step::ContentTooLarge(stream) => ServerEvent::Refused { stream, refusal: Refusal::CONTENT_TOO_LARGE },
        Step::Reset { stream, code, is_by_peer } => ServerEvent::Reset { stream, code, is_by_peer },
        Step::GoAway { .. } => ServerEvent::GoAway,
        Step::Closed(error) => ServerEvent::Closed(error),
    }
}
