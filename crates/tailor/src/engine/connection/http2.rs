//! HTTP/2 connections: many requests in flight, each with its own result.

use super::{LoadConnection, LoadPhase};
use crate::engine::clock::Nanos;
use crate::engine::failure::{FailureClass, FailureReason};
use crate::engine::http2::{H2ClientEvent, Http2};
use crate::engine::protocol::ClientProtocol;
use crate::engine::shared::ThreadShared;

impl LoadConnection {
    /// Begins HTTP/2 on an open connection. Returns whether the server agrees to it; without TLS only its reply shows
    /// that.
    pub(super) fn begin_http2(&mut self, shared: &ThreadShared, now: Nanos) -> bool {
        if self.tls.as_ref().is_some_and(|tls| tls.alpn_protocol() != Some(b"h2")) {
            return false;
        }
        self.protocol = ClientProtocol::Http2(Box::new(Http2::new(&shared.http2_limits, now)));
        true
    }

    /// Appends HTTP/2 output to the unsent bytes.
    pub(super) fn take_http2_output(&mut self, shared: &mut ThreadShared, now: Nanos) {
        let ClientProtocol::Http2(http2) = &mut self.protocol else { return };
        let mut output = std::mem::take(&mut shared.output);
        http2.take_output(self.unsent.is_empty(), shared, now, &mut output);
        shared.output = output;
    }

    /// Handles bytes of responses.
    pub(super) fn feed_http2(&mut self, bytes: &[u8], shared: &mut ThreadShared, now: Nanos) {
        let generation = self.generation;
        let ClientProtocol::Http2(mut http2) = std::mem::take(&mut self.protocol) else { return };
        let joined = http2.join(bytes);
        let input = joined.as_deref().unwrap_or(bytes);
        let is_http1 = !http2.has_started() && input.starts_with(b"HTTP/1.");
        let mut at = 0;
        while self.generation == generation && self.phase == LoadPhase::Open {
            let (consumed_bytes, event) = http2.handle_input(&input[at..], shared, now);
            at += consumed_bytes;
            let event = match event {
                H2ClientEvent::NeedInput => break,
                H2ClientEvent::Malformed(_) if is_http1 => {
                    H2ClientEvent::Malformed("the server answers in HTTP/1; leave out --http2, or use https://")
                }
                event => event,
            };
            self.on_http2_event(&mut http2, event, shared, now);
        }
        if self.generation != generation {
            return; // This connection is over; the slot may be at the next.
        }
        http2.keep(joined, bytes, at);
        self.response_bytes = if http2.is_within_response() { 1 } else { 0 };
        self.protocol = ClientProtocol::Http2(http2);
    }

    fn on_http2_event(&mut self, http2: &mut Http2, event: H2ClientEvent, shared: &mut ThreadShared, now: Nanos) {
        match event {
            H2ClientEvent::NeedInput | H2ClientEvent::Other => {}
            H2ClientEvent::Piece { place, received_bytes } => {
                if self.in_flight.get(place).is_some_and(|exchange| received_bytes >= exchange.abort_after_bytes) {
                    http2.cancel(place, shared, now);
                    if let Some(exchange) = self.in_flight.remove(place) {
                        shared.abort(exchange.due);
                    }
                }
            }
            H2ClientEvent::Complete { place, status, verdict, received_bytes } => {
                if let Some(exchange) = self.in_flight.remove(place) {
                    self.count(&exchange, status, verdict, received_bytes, shared, now);
                }
            }
            H2ClientEvent::Failed { place, class, reason } => {
                if let Some(exchange) = self.in_flight.remove(place) {
                    shared.fail(class, reason, exchange.due);
                }
            }
            H2ClientEvent::Refused { place } => {
                // The server has not handled the request, so it is sent again (RFC 9113, section 8.7).
                if let Some(exchange) = self.in_flight.remove(place) {
                    shared.give_back(exchange.due);
                }
            }
            H2ClientEvent::GoAway { from_place, is_orderly, code } => {
                self.requests_left = 0;
                for exchange in self.in_flight.drain(from_place..) {
                    // The server announced that it has not handled the request. It is retried on another connection.
                    if is_orderly {
                        shared.give_back(exchange.due);
                    } else {
                        shared.fail(FailureClass::EarlyClose, FailureReason::GoAway(code), exchange.due);
                    }
                }
            }
            H2ClientEvent::Malformed(reason) => {
                self.fail(FailureClass::Malformed, FailureReason::Text(reason), shared, now)
            }
        }
    }

    /// Cancels each request that exceeds its time limit.
    pub(super) fn check_streams(&mut self, time_out: Nanos, shared: &mut ThreadShared, now: Nanos) {
        let ClientProtocol::Http2(http2) = &mut self.protocol else { return };
        let is_over = matches!(http2.handle_timeout(shared, now), H2ClientEvent::Malformed(_));
        while let Some(exchange) = self.in_flight.front().copied().filter(|it| it.sent + time_out <= now) {
            http2.cancel(0, shared, now);
            self.in_flight.pop_front();
            shared.fail(FailureClass::TimeOut, FailureReason::Unknown, exchange.due);
        }
        match is_over {
            true => self.fail(FailureClass::TimeOut, FailureReason::Unknown, shared, now),
            false => self.fill(shared, now),
        }
    }

    /// Returns whether all requests are finished and the connection sends no more.
    pub(super) fn is_http2_over(&self) -> bool {
        matches!(self.protocol, ClientProtocol::Http2(_)) && self.requests_left == 0 && self.in_flight.is_empty()
    }

    /// Closes the connection immediately, because HTTP/2 has no need to wait for the server.
    pub(super) fn end_http2(&mut self, shared: &mut ThreadShared, now: Nanos) {
        let ClientProtocol::Http2(http2) = &mut self.protocol else { return };
        http2.shut_down(shared, now);
        let generation = self.generation;
        shared.output.clear();
        self.take_http2_output(shared, now);
        self.transmit(shared, now);
        if self.generation == generation {
            self.close_and_go_on(shared, now);
        }
    }
}
