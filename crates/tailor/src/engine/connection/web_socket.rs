//! WebSocket connections: each message is a request, and the next message of the server is its response.

use std::sync::Arc;

use super::{LoadConnection, LoadPhase};
use crate::engine::check::BodyJudge;
use crate::engine::clock::Nanos;
use crate::engine::failure::{FailureClass, FailureReason};
use crate::engine::protocol::ClientProtocol;
use crate::engine::shared::ThreadShared;
use crate::engine::web_socket::{WebSocket, WebSocketEvent, WebSocketHandshake};

impl LoadConnection {
    /// Sends the handshake.
    pub(super) fn upgrade(&mut self, handshake: &WebSocketHandshake, shared: &mut ThreadShared, now: Nanos) {
        self.phase = LoadPhase::Upgrading;
        self.protocol = ClientProtocol::WebSocket(Box::default());
        shared.output.clear();
        shared.output.extend_from_slice(&handshake.request);
        self.transmit(shared, now);
    }

    /// Handles bytes of the handshake and of messages.
    pub(super) fn feed_web_socket(&mut self, bytes: &[u8], shared: &mut ThreadShared, now: Nanos) {
        let Some(handshake) = shared.plan.web_socket.as_ref().map(Arc::clone) else { return };
        let ClientProtocol::WebSocket(mut socket) = std::mem::take(&mut self.protocol) else { return };
        let generation = self.generation;
        let mut rest = bytes;
        loop {
            let (consumed_bytes, event) = socket.handle_input(rest, &handshake.accept, &mut shared.scratch_head);
            match event {
                WebSocketEvent::NeedInput => break,
                WebSocketEvent::Other => {}
                WebSocketEvent::Open => {
                    self.count_connection(shared, now);
                    self.phase = LoadPhase::Open;
                }
                WebSocketEvent::Content(content, is_last) => {
                    let place = (!self.in_flight.is_empty()).then_some(0);
                    self.response_bytes += content.len() as u64;
                    self.on_message(&mut socket, place, &rest[content], is_last, shared, now);
                }
                WebSocketEvent::Close(code) => {
                    let is_expected = self.in_flight.is_empty() && self.phase != LoadPhase::Upgrading;
                    match is_expected {
                        true => self.close_and_go_on(shared, now),
                        false => {
                            self.fail(FailureClass::EarlyClose, FailureReason::WebSocketClose(code), shared, now);
                        }
                    }
                }
                WebSocketEvent::Rejected(class, reason) => self.fail(class, reason, shared, now),
                WebSocketEvent::Malformed(reason) => {
                    self.fail(FailureClass::Malformed, FailureReason::Text(reason), shared, now);
                }
            }
            if self.generation != generation {
                return; // This connection is over; the slot may be at the next.
            }
            rest = &rest[consumed_bytes..];
        }
        if self.phase == LoadPhase::Open && self.requests_left == 0 && self.in_flight.is_empty() {
            socket.shut_down();
        }
        self.protocol = ClientProtocol::WebSocket(socket);
    }

    /// Handles a piece of a message, which responds to the request at this place. A message to no request is ignored, such as
    /// a greeting. Returns whether a response is complete.
    pub(super) fn on_message(
        &mut self,
        socket: &mut WebSocket,
        place: Option<usize>,
        content: &[u8],
        is_last: bool,
        shared: &mut ThreadShared,
        now: Nanos,
    ) -> bool {
        let exchange = place.and_then(|place| self.in_flight.get(place));
        let request = exchange.map(|exchange| exchange.request as usize);
        let requests = Arc::clone(&shared.requests);
        let check = request.map(|request| &requests[request].check);
        if socket.message_bytes.is_none() {
            socket.judge = BodyJudge::new(check.and_then(|check| check.body.as_ref()));
        }
        let message_bytes = socket.message_bytes.unwrap_or(0) + content.len() as u64;
        socket.message_bytes = Some(message_bytes);
        socket.judge.update(check.and_then(|check| check.body.as_ref()), content);
        if !is_last {
            return false;
        }
        socket.message_bytes = None;
        self.response_bytes = 0;
        let exchange = place.and_then(|place| self.in_flight.remove(place));
        let (Some(exchange), Some(check)) = (exchange, check) else { return false };
        let body = socket.judge.finish(check.body.as_ref());
        let verdict = check.judge_length(message_bytes).or(body).map(|class| (class, FailureReason::Unknown));
        self.count(&exchange, None, verdict, message_bytes, shared, now);
        true
    }

    /// Appends control frames to the thread's output buffer. Begins to close a connection that has sent all its requests.
    pub(super) fn take_web_socket_output(&mut self, shared: &mut ThreadShared, now: Nanos) {
        if let ClientProtocol::WebSocket(socket) = &mut self.protocol {
            // Control frames wait if the server does not read those before.
            if self.unsent.len() <= super::UNSENT_MAX {
                socket.take_output(&mut shared.output);
            }
            if self.requests_left == 0 && self.in_flight.is_empty() && self.phase == LoadPhase::Open {
                self.phase = LoadPhase::Closing;
                self.since = now;
            }
        }
    }
}
