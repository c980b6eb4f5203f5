//! Connections with concurrent streams: many requests in flight, each with its own result.

use super::{LoadConnection, LoadPhase};
use crate::engine::clock::Nanos;
use crate::engine::failure::{FailureClass, FailureReason};
use crate::engine::protocol::ClientProtocol;
use crate::engine::shared::ThreadShared;
use crate::engine::streams::ResponseEvent;

impl LoadConnection {
    /// Handles an event of a response or of the connection. Returns the place of a request to cancel.
    pub(super) fn on_response_event(
        &mut self,
        event: ResponseEvent,
        shared: &mut ThreadShared,
        now: Nanos,
    ) -> Option<usize> {
        match event {
            ResponseEvent::NeedInput | ResponseEvent::Other => {}
            ResponseEvent::Piece { place, received_bytes } => {
                if self.in_flight.get(place).is_some_and(|exchange| received_bytes >= exchange.abort_after_bytes) {
                    if let Some(exchange) = self.in_flight.remove(place) {
                        shared.abort(exchange.due);
                    }
                    return Some(place);
                }
            }
            ResponseEvent::Complete { place, status, verdict, received_bytes } => {
                if let Some(exchange) = self.in_flight.remove(place) {
                    self.count(&exchange, Some(status), verdict, received_bytes, shared, now);
                }
            }
            ResponseEvent::Failed { place, class, reason } => {
                if let Some(exchange) = self.in_flight.remove(place) {
                    shared.fail(class, reason, exchange.due);
                }
            }
            ResponseEvent::Refused { place } => {
                // The server has not handled the request, so it is sent again (RFC 9113, section 8.7; RFC 9114, section
                // 4.1.1).
                if let Some(exchange) = self.in_flight.remove(place) {
                    shared.give_back(exchange.due);
                }
            }
            ResponseEvent::GoAway { from_place, is_orderly, reason } => {
                self.requests_left = 0;
                for exchange in self.in_flight.drain(from_place..) {
                    // The server announced that it has not handled the request. It is retried on another connection.
                    if is_orderly {
                        shared.give_back(exchange.due);
                    } else {
                        shared.fail(FailureClass::EarlyClose, reason.clone(), exchange.due);
                    }
                }
            }
            ResponseEvent::Malformed(reason) => {
                self.fail(FailureClass::Malformed, FailureReason::Text(reason), shared, now);
            }
        }
        None
    }

    /// Cancels each request that exceeds its time limit.
    pub(super) fn check_streams(&mut self, time_out: Nanos, shared: &mut ThreadShared, now: Nanos) {
        let is_over = match &mut self.protocol {
            ClientProtocol::Http2(http2) => matches!(http2.handle_timeout(shared, now), ResponseEvent::Malformed(_)),
            ClientProtocol::Http1(_)
            | ClientProtocol::Http3(_)
            | ClientProtocol::WebSocket(_)
            | ClientProtocol::Http2Sockets(_) => false,
        };
        while let Some(exchange) = self.in_flight.front().copied().filter(|it| it.sent + time_out <= now) {
            match &mut self.protocol {
                ClientProtocol::Http1(_) | ClientProtocol::WebSocket(_) | ClientProtocol::Http2Sockets(_) => {}
                ClientProtocol::Http2(http2) => http2.cancel(0, shared, now),
                ClientProtocol::Http3(http3) => {
                    http3.cancel(0, shared, now);
                    if http3.heard < exchange.sent {
                        // The server is silent. Further requests get another connection.
                        self.requests_left = 0;
                    }
                }
            }
            self.in_flight.pop_front();
            shared.fail(FailureClass::TimeOut, FailureReason::Unknown, exchange.due);
        }
        match is_over {
            true => self.fail(FailureClass::TimeOut, FailureReason::Unknown, shared, now),
            false => self.fill(shared, now),
        }
    }

    /// Returns whether all requests are finished and the connection sends no more.
    pub(super) fn has_finished_streams(&self, shared: &ThreadShared) -> bool {
        shared.plan.version.has_streams()
            && self.phase == LoadPhase::Open
            && self.requests_left == 0
            && self.in_flight.is_empty()
    }
}
