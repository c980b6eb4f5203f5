//! Request content, buffered until its handler wants it.

use std::rc::Rc;
use std::task::Context as Task;

use wire::http::{Fields, Status};

use super::HttpStreams;
use crate::connection::transfer_rate::{TransferMeter, TransferRateLimit};
use crate::handler::ClientLink;

/// Capacity kept for the next piece, in bytes.
const KEPT_BYTES_MAX: usize = 16 << 10;

/// Request content that is incomplete or has not been read completely.
pub(super) struct StreamUpload {
    link: Rc<ClientLink>,
    /// Bytes received that the handler has not read yet; at most one window.
    received: Vec<u8>,
    /// Length of the piece lent to the handler. The client may send as much again once the handler has taken it.
    lent_bytes: usize,
    /// True if all content has been received.
    is_complete: bool,
    /// True if the handler has seen the end.
    is_end_seen: bool,
    trailers: Option<Box<Fields>>,
    /// True if the client expects 100 (Continue). It is sent when the handler wants the content.
    owes_continue: bool,
    /// Bytes of content received so far.
    content_bytes: u64,
    /// Meter of the content; waits while the handler wants some.
    meter: TransferMeter,
}

/// Outcome of [`StreamUpload::supply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Supplied {
    /// The handler wants no content, or none has been received.
    Nothing,
    /// The handler has content or its end to read, and must be polled again.
    Content,
    /// The content exceeds the handler's limit.
    TooLarge,
}

impl StreamUpload {
    /// Makes the buffer for content that a handler reads through this link.
    pub(super) fn new(link: Rc<ClientLink>, owes_continue: bool) -> Self {
        Self {
            link,
            received: Vec::new(),
            lent_bytes: 0,
            is_complete: false,
            is_end_seen: false,
            trailers: None,
            owes_continue,
            content_bytes: 0,
            meter: TransferMeter::default(),
        }
    }

    /// Buffers a piece of content.
    pub(super) fn on_content(&mut self, content: &[u8], is_last: bool, now_ms: u64, limit: &TransferRateLimit) {
        self.received.extend_from_slice(content);
        self.content_bytes += content.len() as u64;
        self.is_complete |= is_last;
        self.meter.end_wait(now_ms);
        self.meter.on_bytes(content.len() as u64, limit);
    }

    /// Records the end of the content, with trailer fields.
    pub(super) fn on_trailers(&mut self, fields: Fields) {
        self.is_complete = true;
        self.trailers = Some(Box::new(fields));
    }

    /// Gives the handler the content that it wants, if available. Applies the handler's limit, which may be set only
    /// after some content was received.
    pub(super) fn supply<S: HttpStreams>(
        &mut self,
        stream: S::Id,
        streams: &mut S,
        task: &Task<'_>,
        now_ms: u64,
    ) -> Supplied {
        if !self.link.wants_content() {
            return Supplied::Nothing;
        }
        let body_bytes_max = self.link.body_bytes_max();
        if self.content_bytes > body_bytes_max {
            // The engine would report content that follows as another violation.
            streams.set_body_bytes_max(stream, u64::MAX);
            return Supplied::TooLarge;
        }
        streams.set_body_bytes_max(stream, body_bytes_max);
        if self.lent_bytes > 0 {
            streams.take_content(stream, std::mem::take(&mut self.lent_bytes));
            let mut buffer = self.link.reclaim();
            if self.received.is_empty() && buffer.capacity() <= KEPT_BYTES_MAX {
                buffer.clear();
                self.received = buffer;
            }
        }
        let length = self.received.len();
        if length > 0 {
            self.lent_bytes = length;
            self.link.supply(std::mem::take(&mut self.received), 0..length, task);
        }
        if self.is_complete && !self.is_end_seen {
            self.is_end_seen = true;
            self.link.complete(self.trailers.take(), task);
            return Supplied::Content;
        }
        if length == 0 {
            if std::mem::take(&mut self.owes_continue) {
                // If the stream is gone, no client waits for this.
                let _ = streams.send_informational(stream, Status::CONTINUE, &Fields::new());
            }
            self.meter.begin_wait(now_ms);
            return Supplied::Nothing;
        }
        Supplied::Content
    }

    /// Bytes buffered for the handler, including the piece lent to it.
    pub(super) fn held_bytes(&self) -> usize {
        self.received.capacity() + self.lent_bytes
    }

    /// Time by which the next piece must arrive; `None` if none is waited for.
    pub(super) fn deadline_ms(&self, timeout_ms: u64) -> Option<u64> {
        Some(self.meter.waiting_since_ms()? + timeout_ms)
    }

    /// Time at which the content arrives too slowly unless more arrives first; `None` if none is waited for.
    pub(super) fn rate_deadline_ms(&self, limit: &TransferRateLimit) -> Option<u64> {
        self.meter.deadline_ms(limit)
    }

    /// True if content arrives too slowly.
    pub(super) fn is_too_slow(&self, now_ms: u64, limit: &TransferRateLimit) -> bool {
        !self.is_complete && self.meter.is_too_slow(now_ms, limit)
    }
}
