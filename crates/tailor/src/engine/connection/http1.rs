//! HTTP/1 connections: responses arrive one after the other, in the order of the requests.

use super::{LoadConnection, LoadPhase};
use crate::engine::clock::Nanos;
use crate::engine::failure::{FailureClass, FailureReason};
use crate::engine::protocol::ClientProtocol;
use crate::engine::response::ReadProgress;
use crate::engine::shared::ThreadShared;

impl LoadConnection {
    /// Handles bytes of responses.
    pub(super) fn feed_http1(&mut self, bytes: &[u8], shared: &mut ThreadShared, now: Nanos) {
        let mut rest = bytes;
        while !rest.is_empty() && self.phase == LoadPhase::Open {
            let Some(exchange) = self.in_flight.front().copied() else {
                // Surplus bytes: the response before them was already counted, so this is an error of the connection.
                return self.close_and_go_on(shared, now);
            };
            let ClientProtocol::Http1(reader) = &mut self.protocol else { return };
            let index = exchange.request as usize;
            let (known, scratch) = (&mut shared.known_heads[index], &mut shared.scratch_head);
            match reader.feed(rest, &shared.requests[index], known, scratch) {
                Ok(ReadProgress::Incomplete) => {
                    self.response_bytes += rest.len() as u64;
                    if self.response_bytes >= exchange.abort_after_bytes {
                        return self.abort(shared, now);
                    }
                    return;
                }
                Ok(ReadProgress::Complete { consumed_bytes }) => {
                    self.response_bytes += consumed_bytes as u64;
                    rest = &rest[consumed_bytes..];
                    let is_too_long = !rest.is_empty() && self.in_flight.len() == 1;
                    self.complete_http1(is_too_long, shared, now);
                }
                Err(malformed) => {
                    return self.fail(FailureClass::Malformed, FailureReason::Text(malformed.0), shared, now);
                }
            }
        }
    }

    /// Handles the end of the oldest response.
    pub(super) fn complete_http1(&mut self, is_too_long: bool, shared: &mut ThreadShared, now: Nanos) {
        let ClientProtocol::Http1(reader) = &mut self.protocol else { return };
        let Some(exchange) = self.in_flight.pop_front() else { return };
        let finished = reader.finish(&shared.requests[exchange.request as usize]);
        let response_bytes = std::mem::take(&mut self.response_bytes);
        let verdict = finished.verdict.or(is_too_long.then_some(FailureClass::Length));
        let verdict = verdict.map(|class| (class, FailureReason::of_verdict(class, finished.status)));
        let kept = reader.take_kept();
        let verdict = self.finish_step(&exchange, kept, verdict, shared, now);
        self.count(&exchange, Some(finished.status), verdict, response_bytes, shared, now);
        if !finished.is_persistent || is_too_long || (self.requests_left == 0 && self.in_flight.is_empty()) {
            // The server announced that it will not answer pipelined requests. They are retried on another connection.
            for exchange in self.in_flight.drain(..) {
                shared.give_back(exchange.due);
            }
            if is_too_long || self.is_peer_closed {
                return self.close_and_go_on(shared, now);
            }
            self.phase = LoadPhase::Closing;
            self.since = now;
        }
    }

    /// Aborts a request on purpose; retries the requests pipelined after it.
    fn abort(&mut self, shared: &mut ThreadShared, now: Nanos) {
        self.use_line(now);
        if let Some(exchange) = self.in_flight.pop_front() {
            shared.abort(exchange.due);
        }
        for exchange in self.in_flight.drain(..) {
            shared.give_back(exchange.due);
        }
        self.close_and_go_on(shared, now);
    }
}
