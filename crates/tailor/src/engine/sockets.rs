//! WebSockets over HTTP/2 without a socket (RFC 8441): each is a stream that an extended CONNECT opens.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use wire::h2::{ClientEvent, EngineTurn, ErrorCode, H2ClientConnection, H2Limits, H2Output, Placement, StreamId};

use super::clock::Nanos;
use super::failure::{FailureClass, FailureReason};
use super::http2::{CONTENT_BYTES_MAX, Http2Request, engine_turn, make_room};
use super::shared::ThreadShared;
use super::web_socket::{WebSocket, WebSocketEvent};

/// WebSockets of a connection. Each has at most one message in flight.
#[derive(Debug)]
pub(crate) struct Http2Sockets {
    connection: H2ClientConnection,
    output: H2Output,
    /// Output that input has filled; it precedes the rest.
    filled: Vec<u8>,
    /// Input that is not understood yet: the beginning of a frame.
    partial: Vec<u8>,
    /// Sockets in the order of their streams; none before the server's SETTINGS.
    sockets: Vec<StreamSocket>,
    open_sockets: usize,
    /// Sockets of the messages in flight, in the order they were sent.
    owners: VecDeque<usize>,
    has_started: bool,
}

/// WebSocket on a stream.
#[derive(Debug)]
struct StreamSocket {
    stream: StreamId,
    socket: WebSocket,
    /// Bytes for the stream that are not written.
    unsent: Vec<u8>,
    /// Bytes of the stream before them.
    written_bytes: u64,
    is_busy: bool,
}

/// Meaning of the input.
#[derive(Debug)]
pub(crate) enum SocketsEvent {
    NeedInput,
    Other,
    /// All WebSockets are open.
    Open,
    /// Frames of a WebSocket, for [`Http2Sockets::handle_frames`].
    Frames {
        socket: usize,
        frames: Range<usize>,
    },
    /// The server ends one WebSocket, or accepts no more, and no message is lost.
    Ending,
    /// The connection cannot be used any more.
    Failed(FailureClass, FailureReason),
}

impl Http2Sockets {
    /// Creates a connection and writes its preface.
    pub(crate) fn new(limits: &H2Limits, now: Nanos) -> Self {
        let now = Duration::from_nanos(now);
        let mut sockets = Self {
            connection: H2ClientConnection::new(now, limits),
            output: H2Output::default(),
            filled: Vec::new(),
            partial: Vec::new(),
            sockets: Vec::new(),
            open_sockets: 0,
            owners: VecDeque::new(),
            has_started: false,
        };
        sockets.connection.start(&mut EngineTurn { now, limits, output: &mut sockets.output });
        sockets
    }

    /// Returns whether a WebSocket has no message in flight.
    pub(crate) fn takes_requests(&self) -> bool {
        self.owners.len() < self.sockets.len()
    }

    /// Sends a message on a WebSocket that has none in flight.
    pub(crate) fn send(&mut self, frame: &[u8], shared: &ThreadShared, now: Nanos) {
        let Some(index) = self.sockets.iter().position(|socket| !socket.is_busy) else { return };
        self.sockets[index].is_busy = true;
        self.sockets[index].unsent.extend_from_slice(frame);
        self.owners.push_back(index);
        self.offer(index, frame.len(), shared, now);
    }

    /// Joins earlier input that was incomplete with this input.
    pub(crate) fn join(&mut self, input: &[u8]) -> Option<Vec<u8>> {
        if self.partial.is_empty() {
            return None;
        }
        let mut joined = std::mem::take(&mut self.partial);
        joined.extend_from_slice(input);
        Some(joined)
    }

    /// Keeps the incomplete rest of the input.
    pub(crate) fn keep(&mut self, rest: &[u8]) {
        self.partial.extend_from_slice(rest);
    }

    /// Handles input. Call it with the rest until it needs more.
    pub(crate) fn handle_input(
        &mut self,
        input: &[u8],
        handshake: &Http2Request,
        shared: &mut ThreadShared,
        now: Nanos,
    ) -> (usize, SocketsEvent) {
        let ThreadShared { http2_limits, response_fields, plan, .. } = shared;
        let mut turn = engine_turn(&mut self.output, http2_limits, now);
        let handled = self.connection.handle_input(input, response_fields, &mut turn);
        self.has_started |= handled.consumed_bytes > 0;
        let event = match handled.event {
            ClientEvent::NeedInput => SocketsEvent::NeedInput,
            ClientEvent::AwaitOutput => {
                make_room(&mut self.output, &mut self.filled);
                SocketsEvent::Other
            }
            ClientEvent::Response { status, .. } if status.code() < 200 => SocketsEvent::Other,
            ClientEvent::Response { status, is_last: false, .. } if status.code() < 300 => {
                self.open_sockets += 1;
                if self.open_sockets == self.sockets.len() { SocketsEvent::Open } else { SocketsEvent::Other }
            }
            ClientEvent::Response { status, .. } => {
                SocketsEvent::Failed(FailureClass::Status, FailureReason::Status(status.code()))
            }
            ClientEvent::Content { stream, content, is_last } => {
                self.connection.take_content(stream, content.len(), &mut turn);
                match self.sockets.binary_search_by_key(&stream, |socket| socket.stream) {
                    Ok(socket) if !content.is_empty() => SocketsEvent::Frames { socket, frames: content },
                    _ if is_last => self.on_end(stream, FailureReason::FIN),
                    _ => SocketsEvent::Other,
                }
            }
            ClientEvent::Trailers { stream } => self.on_end(stream, FailureReason::FIN),
            ClientEvent::Reset { stream, is_by_peer: true, code } => {
                self.on_end(stream, FailureReason::StreamReset(code.0))
            }
            ClientEvent::Reset { code, .. } => {
                SocketsEvent::Failed(FailureClass::Malformed, FailureReason::Text(code.name()))
            }
            ClientEvent::GoAway { code: ErrorCode::NO_ERROR, .. } if self.is_open() => SocketsEvent::Ending,
            ClientEvent::GoAway { code, .. } => {
                SocketsEvent::Failed(FailureClass::EarlyClose, FailureReason::GoAway(code.0))
            }
            ClientEvent::Closed(error) => {
                SocketsEvent::Failed(FailureClass::Malformed, FailureReason::Text(error.reason))
            }
        };
        // A client must not send the request before the server has announced that it understands it (RFC 8441, section 3).
        if self.sockets.is_empty() && self.connection.has_peer_settings() && !matches!(event, SocketsEvent::Failed(..))
        {
            if !self.connection.peer_settings().enables_connect_protocol {
                let reason = FailureReason::Text("the server does not offer WebSockets over HTTP/2 (RFC 8441)");
                return (handled.consumed_bytes, SocketsEvent::Failed(FailureClass::Malformed, reason));
            }
            let count = plan.pipeline;
            self.open(count, handshake, shared, now);
        }
        (handled.consumed_bytes, event)
    }

    /// Requests as many WebSockets as the server permits.
    fn open(&mut self, count: usize, handshake: &Http2Request, shared: &ThreadShared, now: Nanos) {
        let mut turn = engine_turn(&mut self.output, &shared.http2_limits, now);
        while self.sockets.len() < count && self.connection.can_open() {
            let sent = self.connection.send_request(&handshake.head(), handshake.fields(), false, &mut turn);
            let Some(stream) = sent else { break };
            self.sockets.push(StreamSocket {
                stream,
                socket: WebSocket::opened(),
                unsent: Vec::new(),
                written_bytes: 0,
                is_busy: false,
            });
        }
    }

    fn is_open(&self) -> bool {
        !self.sockets.is_empty() && self.open_sockets == self.sockets.len()
    }

    /// Handles frames of a WebSocket. Call it with the rest until it needs more.
    pub(crate) fn handle_frames(
        &mut self,
        socket: usize,
        frames: &[u8],
        shared: &mut ThreadShared,
        now: Nanos,
    ) -> (usize, WebSocketEvent) {
        let handled = self.sockets[socket].socket.handle_input(frames, "", &mut shared.scratch_head);
        self.offer_control_frames(socket, shared, now);
        handled
    }

    fn offer_control_frames(&mut self, index: usize, shared: &ThreadShared, now: Nanos) {
        let StreamSocket { socket, unsent, .. } = &mut self.sockets[index];
        let earlier_bytes = unsent.len();
        if earlier_bytes > CONTENT_BYTES_MAX {
            return; // The server does not accept what it makes the client send.
        }
        socket.take_output(unsent);
        let added_bytes = unsent.len() - earlier_bytes;
        if added_bytes > 0 {
            self.offer(index, added_bytes, shared, now);
        }
    }

    fn offer(&mut self, index: usize, bytes: usize, shared: &ThreadShared, now: Nanos) {
        let mut turn = engine_turn(&mut self.output, &shared.http2_limits, now);
        // The input says if the stream is gone.
        let _ = self.connection.offer_content(self.sockets[index].stream, bytes as u64, false, &mut turn);
    }

    /// Place among the requests in flight of a socket's message.
    pub(crate) fn place(&self, socket: usize) -> Option<usize> {
        self.owners.iter().position(|owner| *owner == socket)
    }

    /// Frames of a socket.
    pub(crate) fn socket_mut(&mut self, socket: usize) -> &mut WebSocket {
        &mut self.sockets[socket].socket
    }

    /// Removes the message at a place: its response is complete.
    pub(crate) fn finish(&mut self, place: usize) {
        if let Some(owner) = self.owners.remove(place) {
            self.sockets[owner].is_busy = false;
        }
    }

    /// Handles the end of a stream.
    fn on_end(&self, stream: StreamId, reason: FailureReason) -> SocketsEvent {
        let is_busy = self.sockets.iter().any(|socket| socket.stream == stream && socket.is_busy);
        match is_busy || !self.is_open() {
            true => SocketsEvent::Failed(FailureClass::EarlyClose, reason),
            false => SocketsEvent::Ending,
        }
    }

    /// Closes all WebSockets, and announces that no more follow.
    pub(crate) fn shut_down(&mut self, shared: &ThreadShared, now: Nanos) {
        for index in 0..self.sockets.len() {
            self.sockets[index].socket.shut_down();
            self.offer_control_frames(index, shared, now);
        }
        let mut turn = engine_turn(&mut self.output, &shared.http2_limits, now);
        self.connection.shut_down(&mut turn);
    }

    /// Returns whether frames can be sent now.
    pub(crate) fn has_content_to_send(&self) -> bool {
        self.connection.has_content_to_send()
    }

    /// Appends output to `out`; frames of WebSockets only `with_content`.
    pub(crate) fn take_output(&mut self, with_content: bool, shared: &ThreadShared, now: Nanos, out: &mut Vec<u8>) {
        if with_content && self.connection.has_content_to_send() {
            let Self { connection, output, sockets, .. } = self;
            let mut turn = engine_turn(output, &shared.http2_limits, now);
            let place = |id: StreamId, range: Range<u64>, out: &mut Vec<u8>| {
                let socket = sockets.binary_search_by_key(&id, |socket| socket.stream);
                let Some(socket) = socket.ok().and_then(|index| sockets.get_mut(index)) else { return Placement::Lost };
                let length = (range.end - socket.written_bytes) as usize;
                // Content is written in order, so it is the beginning of what is unsent.
                out.extend(socket.unsent.drain(..length));
                socket.written_bytes = range.end;
                Placement::Copied
            };
            connection.poll_output(CONTENT_BYTES_MAX, &mut turn, place);
        }
        out.append(&mut self.filled);
        out.extend_from_slice(self.output.bytes());
        self.output.clear();
    }

    /// Returns whether the server has sent a frame.
    pub(crate) fn has_started(&self) -> bool {
        self.has_started
    }
}
