//! Outgoing messages: heads immediately, content as windows and priorities permit.

use std::ops::Range;
use std::time::Duration;

use super::super::frame::{FRAME_BYTES_MAX, FRAME_HEADER_BYTES};
use super::super::frame_write::{write_data_header, write_headers};
use super::super::hpack::Encoder;
use super::super::streams::H2Stream;
use super::super::window::{ReceiveWindow, SendWindow};
use super::super::{EngineTurn, ErrorCode, H2Output, Placement, Priority, StreamId};
use super::{Engine, Role};
use crate::field_section::sendable;
use crate::http::Fields;

/// Minimum content of a frame to earn tokens, unless the content itself is small. A peer that opens its windows by
/// single bytes causes work (data dribble, CVE-2019-9511).
const EARNING_BYTES_MIN: usize = 1024;
/// Tokens that a content frame earns. A peer may update the windows of stream and connection; some do it twice a frame.
const WINDOW_UPDATES_EARNED: u32 = 4;

/// Error of a stream that is closed: either side has reset it, or its connection has ended. The caller can drop what it
/// wanted to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamGone;

impl Engine {
    /// Sends a head, final or not. `write` appends the block.
    pub(crate) fn send_head(
        &mut self,
        stream: StreamId,
        is_final: bool,
        is_last: bool,
        turn: &mut EngineTurn<'_>,
        write: impl FnOnce(&mut Encoder, &mut Vec<u8>),
    ) -> Result<(), StreamGone> {
        let slot = self.streams.find(stream.0).ok_or(StreamGone)?;
        self.streams.at(slot).is_head_sent |= is_final;
        self.write_block(stream.0, is_last, turn.output, write);
        if is_last {
            self.end_sending(slot, turn);
        }
        Ok(())
    }

    pub(super) fn write_block(
        &mut self,
        stream: u32,
        is_last: bool,
        output: &mut H2Output,
        write: impl FnOnce(&mut Encoder, &mut Vec<u8>),
    ) {
        // Frames larger than the default maximum would delay other streams.
        write_headers(&mut output.bytes, stream, is_last, FRAME_BYTES_MAX, |out| {
            self.encoder.begin_block(out);
            write(&mut self.encoder, out);
        });
    }

    /// Offers further bytes of content, after those offered before.
    pub(crate) fn offer_content(
        &mut self,
        stream: StreamId,
        bytes: u64,
        is_last: bool,
        turn: &mut EngineTurn<'_>,
    ) -> Result<(), StreamGone> {
        let slot = self.streams.find(stream.0).ok_or(StreamGone)?;
        let known = self.streams.at(slot);
        if known.is_end_offered {
            return Err(StreamGone);
        }
        debug_assert!(known.is_head_sent, "content follows the head");
        if known.offered_bytes == 0 {
            known.progress_at = turn.now;
        }
        known.offered_bytes += bytes;
        known.is_end_offered = is_last;
        if known.offered_bytes > 0 {
            self.update_ready(slot);
        } else if is_last {
            // An empty frame that ends the stream needs no window.
            write_data_header(&mut turn.output.bytes, stream.0, 0, true);
            self.end_sending(slot, turn);
        }
        Ok(())
    }

    /// Ends a message with trailers, after all content that was offered.
    pub(crate) fn send_trailers(
        &mut self,
        stream: StreamId,
        fields: Fields,
        turn: &mut EngineTurn<'_>,
    ) -> Result<(), StreamGone> {
        let slot = self.streams.find(stream.0).ok_or(StreamGone)?;
        let known = self.streams.at(slot);
        if known.is_end_offered {
            return Err(StreamGone);
        }
        known.is_end_offered = true;
        if known.offered_bytes > 0 {
            known.trailers = Some(Box::new(fields));
            return Ok(());
        }
        self.write_trailers(slot, &fields, turn);
        Ok(())
    }

    fn write_trailers(&mut self, slot: u32, fields: &Fields, turn: &mut EngineTurn<'_>) {
        let stream = self.streams.at(slot).id;
        self.write_block(stream, true, turn.output, |encoder, out| write_fields(encoder, fields, out));
        self.end_sending(slot, turn);
    }

    /// Ends this side's message.
    fn end_sending(&mut self, slot: u32, turn: &mut EngineTurn<'_>) {
        self.ready.remove(&mut self.streams, slot);
        let stream = self.streams.at(slot);
        stream.is_end_offered = true;
        if stream.is_received {
            self.close(slot, false, turn);
        } else if self.role == Role::Server && !stream.is_tunnel {
            // The rest of the request is of no use (RFC 9113, section 8.1), but the client may need a moment to notice
            // the response.
            stream.discards_content = true;
            stream.progress_at = turn.now;
            let (id, waiting_bytes) = (stream.id, stream.receive.waiting_bytes());
            self.take(Some(id), waiting_bytes, turn);
        }
    }

    /// Returns whether the peer accepts another stream (RFC 9113, section 5.1.2).
    pub(crate) fn can_open(&self) -> bool {
        let is_open = !matches!(self.state, super::H2EngineState::Closed(_))
            && self.peer_last_stream.is_none()
            && !self.shutdown.is_final()
            && self.next_own_stream < 1 << 31;
        is_open && self.streams.len() < self.peer.concurrent_streams_max as usize
    }

    /// Opens a stream for a request with this method.
    pub(crate) fn open_own(&mut self, method: &[u8], turn: &EngineTurn<'_>) -> Option<StreamId> {
        if !self.can_open() {
            return None;
        }
        let id = self.next_own_stream;
        self.next_own_stream += 2;
        let receive = ReceiveWindow::new(self.stream_window_bytes, turn.now);
        let mut stream = H2Stream::new(id, receive, SendWindow::new(self.peer.initial_window_bytes));
        stream.body_bytes_max = turn.limits.body.body_bytes_max;
        stream.has_no_content = method == b"HEAD";
        stream.is_tunnel = method == b"CONNECT";
        self.streams.insert(stream);
        Some(StreamId(id))
    }

    /// Sets the priority of a stream.
    pub(crate) fn set_priority(&mut self, stream: u32, priority: Priority) {
        let Some(slot) = self.streams.find(stream) else { return };
        self.ready.remove(&mut self.streams, slot);
        self.streams.at(slot).priority = priority;
        self.update_ready(slot);
    }

    /// Adds a stream to the ready lists if it can send, otherwise removes it.
    pub(super) fn update_ready(&mut self, slot: u32) {
        let stream = self.streams.at(slot);
        match (stream.can_send(), stream.is_ready) {
            (true, false) => self.ready.insert(&mut self.streams, slot),
            (false, true) => self.ready.remove(&mut self.streams, slot),
            _ => {}
        }
    }

    /// Writes up to `room_bytes` of content and frame headers, as windows and priorities permit. Calls `place` for each
    /// piece. Returns a stream whose content was lost.
    pub(crate) fn poll_output(
        &mut self,
        room_bytes: usize,
        turn: &mut EngineTurn<'_>,
        mut place: impl FnMut(StreamId, Range<u64>, &mut Vec<u8>) -> Placement,
    ) -> Option<StreamId> {
        let mut room_bytes = room_bytes;
        while room_bytes > FRAME_HEADER_BYTES
            && self.send.available_bytes() > 0
            && let Some(slot) = self.ready.pop(&mut self.streams)
        {
            let stream = self.streams.at(slot);
            let length = (stream.offered_bytes.min(FRAME_BYTES_MAX as u64) as usize)
                .min(stream.send.available_bytes())
                .min(self.send.available_bytes())
                .min(room_bytes - FRAME_HEADER_BYTES);
            let (id, range) = (StreamId(stream.id), stream.sent_bytes..stream.sent_bytes + length as u64);
            let is_last = stream.offered_bytes == length as u64 && stream.is_end_offered && stream.trailers.is_none();
            let start = turn.output.bytes.len();
            write_data_header(&mut turn.output.bytes, id.0, length, is_last);
            match place(id, range, &mut turn.output.bytes) {
                Placement::Copied => debug_assert_eq!(turn.output.bytes.len(), start + FRAME_HEADER_BYTES + length),
                Placement::Lost => {
                    turn.output.bytes.truncate(start);
                    self.reset(id, ErrorCode::INTERNAL_ERROR, turn);
                    return Some(id);
                }
            }
            room_bytes = room_bytes.saturating_sub(FRAME_HEADER_BYTES + length);
            self.on_sent(slot, length, is_last, turn);
        }
        None
    }

    /// Updates a stream after content of it was written.
    fn on_sent(&mut self, slot: u32, length: usize, is_last: bool, turn: &mut EngineTurn<'_>) {
        let stream = self.streams.at(slot);
        let is_dribble = length < EARNING_BYTES_MIN && (length as u64) < stream.offered_bytes;
        stream.send.on_sent(length);
        self.send.on_sent(length);
        stream.offered_bytes -= length as u64;
        stream.sent_bytes += length as u64;
        stream.progress_at = turn.now;
        self.sent_at = turn.now;
        if !is_dribble {
            self.spent.window_updates.earn(WINDOW_UPDATES_EARNED);
            self.spent.pings.earn(1);
        }
        if is_last {
            self.end_sending(slot, turn);
        } else if stream.offered_bytes > 0 {
            self.update_ready(slot);
        } else if let Some(fields) = stream.trailers.take() {
            self.write_trailers(slot, &fields, turn);
        }
    }

    /// Returns how many bytes of a stream's content the windows permit beyond those offered; 0 if the stream is closed.
    pub(crate) fn wanted_bytes(&mut self, stream: StreamId) -> u64 {
        let connection_bytes = self.send.available_bytes();
        self.stream(stream.0).map_or(0, |stream| {
            let bytes = stream.send.available_bytes().min(connection_bytes) as u64;
            bytes.saturating_sub(stream.offered_bytes)
        })
    }

    /// Returns whether content can be sent now.
    pub(crate) fn has_content_to_send(&self) -> bool {
        self.send.available_bytes() > 0 && !self.ready.is_empty()
    }

    /// Returns, of the streams whose requests are incomplete after the response, the one that was answered first, and
    /// when.
    pub(super) fn lingering(&self) -> Option<(StreamId, Duration)> {
        if self.role == Role::Client {
            return None;
        }
        let answered = self.streams.streams().filter(|stream| stream.is_sent() && !stream.is_tunnel);
        answered.min_by_key(|stream| stream.progress_at).map(|stream| (StreamId(stream.id), stream.progress_at))
    }

    /// Returns the stream that has waited longest for a window, and since when. A stream that only waits for its turn
    /// counts from the time when the connection's window closed for all.
    pub(super) fn stalled(&self) -> Option<(StreamId, Duration)> {
        let is_connection_blocked = self.send.available_bytes() == 0;
        let waiting = self.streams.streams().filter(|stream| stream.offered_bytes > 0);
        let blocked = waiting.filter_map(|stream| match stream.send.available_bytes() {
            0 => Some((StreamId(stream.id), stream.progress_at)),
            _ if is_connection_blocked => Some((StreamId(stream.id), stream.progress_at.max(self.sent_at))),
            _ => None,
        });
        blocked.min_by_key(|(_, since)| *since)
    }
}

/// Appends fields, except those that HTTP/2 forbids (RFC 9113, section 8.2.2).
pub(in super::super) fn write_fields(encoder: &mut Encoder, fields: &Fields, out: &mut Vec<u8>) {
    sendable(fields).for_each(|(name, value)| encoder.write_field(name, value, None, out));
}
