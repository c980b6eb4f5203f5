//! WebSockets over HTTP/2: a connection carries several, each with one message in flight.

use std::sync::Arc;

use super::{LoadConnection, LoadPhase};
use crate::engine::clock::Nanos;
use crate::engine::failure::{FailureClass, FailureReason};
use crate::engine::protocol::ClientProtocol;
use crate::engine::shared::ThreadShared;
use crate::engine::sockets::{Http2Sockets, SocketsEvent};
use crate::engine::web_socket::WebSocketEvent;

impl LoadConnection {
    /// Begins HTTP/2, over which the WebSockets open.
    pub(super) fn begin_sockets(&mut self, shared: &mut ThreadShared, now: Nanos) {
        if !self.has_agreed_to_http2() {
            return self.fail_without_http2(shared, now);
        }
        self.phase = LoadPhase::Upgrading;
        self.protocol = ClientProtocol::Http2Sockets(Box::new(Http2Sockets::new(&shared.http2_limits, now)));
        self.fill(shared, now);
    }

    /// Appends the output of WebSockets to the thread's output buffer.
    pub(super) fn take_sockets_output(&mut self, shared: &mut ThreadShared, now: Nanos) {
        let ClientProtocol::Http2Sockets(sockets) = &mut self.protocol else { return };
        let mut output = std::mem::take(&mut shared.output);
        sockets.take_output(self.unsent.is_empty(), shared, now, &mut output);
        shared.output = output;
    }

    /// Sends what the handshakes of WebSockets need.
    pub(super) fn send_handshakes(&mut self, shared: &mut ThreadShared, now: Nanos) {
        if matches!(self.protocol, ClientProtocol::Http2Sockets(_)) {
            shared.output.clear();
            self.take_sockets_output(shared, now);
            if !shared.output.is_empty() {
                self.transmit(shared, now);
            }
        }
    }

    /// Handles bytes of WebSockets.
    pub(super) fn feed_sockets(&mut self, bytes: &[u8], shared: &mut ThreadShared, now: Nanos) {
        let Some(handshake) = shared.plan.web_socket.as_ref().map(Arc::clone) else { return };
        let Some(handshake) = &handshake.http2 else { return };
        let ClientProtocol::Http2Sockets(mut sockets) = std::mem::take(&mut self.protocol) else { return };
        let generation = self.generation;
        let joined = sockets.join(bytes);
        let input = joined.as_deref().unwrap_or(bytes);
        let mut at = 0;
        while self.generation == generation && matches!(self.phase, LoadPhase::Upgrading | LoadPhase::Open) {
            let (consumed_bytes, event) = sockets.handle_input(&input[at..], handshake, shared, now);
            let from = at;
            at += consumed_bytes;
            match event {
                SocketsEvent::NeedInput => break,
                SocketsEvent::Other => {}
                SocketsEvent::Open => {
                    self.count_connection(shared, now);
                    self.phase = LoadPhase::Open;
                }
                SocketsEvent::Frames { socket, frames } => {
                    let frames = &input[from + frames.start..from + frames.end];
                    self.on_frames(&mut sockets, socket, frames, shared, now);
                }
                SocketsEvent::Ending => self.requests_left = 0,
                SocketsEvent::Failed(class, reason) => self.fail(class, reason, shared, now),
            }
        }
        if self.generation != generation {
            return; // This connection is over; the slot may be at the next.
        }
        sockets.keep(&input[at..]);
        self.protocol = ClientProtocol::Http2Sockets(sockets);
    }

    fn on_frames(
        &mut self,
        sockets: &mut Http2Sockets,
        socket: usize,
        frames: &[u8],
        shared: &mut ThreadShared,
        now: Nanos,
    ) {
        let generation = self.generation;
        let mut rest = frames;
        while self.generation == generation {
            let (consumed_bytes, event) = sockets.handle_frames(socket, rest, shared, now);
            let place = sockets.place(socket);
            match event {
                WebSocketEvent::NeedInput => break,
                WebSocketEvent::Open | WebSocketEvent::Other => {}
                WebSocketEvent::Content(content, is_last) => {
                    let state = sockets.socket_mut(socket);
                    let is_response = self.on_message(state, place, &rest[content], is_last, shared, now);
                    if let Some(place) = place.filter(|_| is_response) {
                        sockets.finish(place);
                    }
                }
                WebSocketEvent::Close(_) if place.is_none() => self.requests_left = 0,
                WebSocketEvent::Close(code) => {
                    self.fail(FailureClass::EarlyClose, FailureReason::WebSocketClose(code), shared, now);
                }
                WebSocketEvent::Rejected(class, reason) => self.fail(class, reason, shared, now),
                WebSocketEvent::Malformed(reason) => {
                    self.fail(FailureClass::Malformed, FailureReason::Text(reason), shared, now);
                }
            }
            rest = &rest[consumed_bytes..];
        }
    }

    /// Closes all WebSockets and the connection, without waiting for the server.
    pub(super) fn end_sockets(&mut self, shared: &mut ThreadShared, now: Nanos) {
        let ClientProtocol::Http2Sockets(sockets) = &mut self.protocol else { return };
        sockets.shut_down(shared, now);
        let generation = self.generation;
        self.send_handshakes(shared, now);
        if self.generation == generation {
            self.close_and_go_on(shared, now);
        }
    }
}
