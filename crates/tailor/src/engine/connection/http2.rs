//! HTTP/2 connections: many requests in flight, each with its own result.

use super::{LoadConnection, LoadPhase};
use crate::engine::clock::Nanos;
use crate::engine::failure::{FailureClass, FailureReason};
use crate::engine::http2::Http2;
use crate::engine::protocol::ClientProtocol;
use crate::engine::shared::ThreadShared;
use crate::engine::streams::ResponseEvent;

impl LoadConnection {
    /// Begins HTTP/2 on an open connection. Returns whether the server agrees to it; without TLS only its reply shows
    /// that.
    pub(super) fn begin_http2(&mut self, shared: &ThreadShared, now: Nanos) -> bool {
        if self.has_agreed_to_http2() {
            self.protocol = ClientProtocol::Http2(Box::new(Http2::new(&shared.http2_limits, now)));
            return true;
        }
        false
    }

    pub(super) fn has_agreed_to_http2(&self) -> bool {
        self.tls.as_ref().is_none_or(|tls| tls.alpn_protocol() == Some(b"h2"))
    }

    pub(super) fn fail_without_http2(&mut self, shared: &mut ThreadShared, now: Nanos) {
        let reason = FailureReason::Text("the server does not offer HTTP/2 (ALPN)");
        self.fail(FailureClass::Tls, reason, shared, now);
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
                ResponseEvent::NeedInput => break,
                ResponseEvent::Malformed(_) if is_http1 => {
                    ResponseEvent::Malformed("the server answers in HTTP/1; leave out --http2, or use https://")
                }
                event => event,
            };
            if let Some(place) = self.on_response_event(event, shared, now) {
                http2.cancel(place, shared, now);
            }
        }
        if self.generation != generation {
            return; // This connection is over; the slot may be at the next.
        }
        http2.keep(joined, bytes, at);
        self.response_bytes = if http2.is_within_response() { 1 } else { 0 };
        self.protocol = ClientProtocol::Http2(http2);
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
