//! Open streams, and a memory of recently closed ones.

use std::collections::VecDeque;
use std::time::Duration;

use super::Priority;
use super::window::{ReceiveWindow, SendWindow};
use crate::http::Fields;

/// Number of streams reset by this side to remember. Frames that the peer sent before it learned of the reset are
/// valid.
const RESET_STREAMS_MAX: usize = 256;
/// Number of other closed streams to remember. Frames on them are errors of the peer.
const ENDED_STREAMS_MAX: usize = 32;

/// Index that refers to no slot.
pub(super) const NONE: u32 = u32::MAX;

/// Stream in state open or half-closed (RFC 9113, section 5.1).
#[derive(Debug)]
pub(super) struct H2Stream {
    pub id: u32,
    /// True if the peer has ended its message.
    pub is_received: bool,
    /// True if content is dropped, because the message was rejected.
    pub discards_content: bool,
    /// True if the head of the peer's message has arrived. A client's streams begin without.
    pub has_head: bool,
    /// True if the stream is a CONNECT tunnel: each direction ends on its own, and content has no limit.
    pub is_tunnel: bool,
    /// True if the response has no content whatever its Content-Length: after HEAD, or because of its status.
    pub has_no_content: bool,
    pub receive: ReceiveWindow,
    /// Content that is missing according to Content-Length (section 8.1.1).
    pub expected_bytes: Option<u64>,
    pub received_bytes: u64,
    /// Limit of the content.
    pub body_bytes_max: u64,
    /// True if the head of this side's message was sent.
    pub is_head_sent: bool,
    pub send: SendWindow,
    /// Content that the caller has offered and the connection has not sent.
    pub offered_bytes: u64,
    pub sent_bytes: u64,
    /// True if the offered content is the last.
    pub is_end_offered: bool,
    /// Trailers to send after the content.
    pub trailers: Option<Box<Fields>>,
    /// Time when content was last sent, or offered while there was none.
    pub progress_at: Duration,
    pub priority: Priority,
    pub is_ready: bool,
    pub next: u32,
    pub previous: u32,
}

impl H2Stream {
    pub(super) fn new(id: u32, receive: ReceiveWindow, send: SendWindow) -> Self {
        Self {
            id,
            is_received: false,
            discards_content: false,
            has_head: false,
            is_tunnel: false,
            has_no_content: false,
            receive,
            expected_bytes: None,
            received_bytes: 0,
            body_bytes_max: u64::MAX,
            is_head_sent: false,
            send,
            offered_bytes: 0,
            sent_bytes: 0,
            is_end_offered: false,
            trailers: None,
            progress_at: Duration::ZERO,
            priority: Priority::default(),
            is_ready: false,
            next: NONE,
            previous: NONE,
        }
    }

    /// Returns whether this side's message is complete.
    pub(super) fn is_sent(&self) -> bool {
        self.is_end_offered && self.offered_bytes == 0 && self.trailers.is_none()
    }

    /// Returns whether there is content that the stream's window permits to send.
    pub(super) fn can_send(&self) -> bool {
        self.offered_bytes > 0 && self.send.available_bytes() > 0
    }
}

/// Open streams by id. Ids only grow (section 5.1.1), so the list is sorted: a new stream is appended, and lookups use
/// binary search.
#[derive(Debug, Default)]
pub(super) struct StreamTable {
    slots: Vec<Option<H2Stream>>,
    free: Vec<u32>,
    /// Id and slot.
    open: VecDeque<(u32, u32)>,
    reset: VecDeque<u32>,
    ended: VecDeque<u32>,
}

/// State of a stream that is not open, as far as remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Past {
    /// Reset by this side. The peer may not know yet, so its frames are ignored.
    ResetByUs,
    /// Ended, or reset by the peer, recently.
    Ended,
    /// Never opened, or closed long ago.
    Unknown,
}

impl StreamTable {
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Adds a stream, which must have the highest id so far. Returns its slot.
    pub(super) fn insert(&mut self, stream: H2Stream) -> u32 {
        debug_assert!(self.open.back().is_none_or(|(last, _)| *last < stream.id));
        let id = stream.id;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.slots[slot as usize] = Some(stream);
        self.open.push_back((id, slot));
        slot
    }

    pub(super) fn find(&self, id: u32) -> Option<u32> {
        match self.open.back() {
            Some((last, slot)) if *last == id => Some(*slot),
            _ => self.open.binary_search_by_key(&id, |(id, _)| *id).ok().map(|index| self.open[index].1),
        }
    }

    /// Returns the stream in a slot. The slot must be valid: found or inserted, and not removed since.
    pub(super) fn at(&mut self, slot: u32) -> &mut H2Stream {
        self.slots[slot as usize].as_mut().expect("slots in use hold streams")
    }

    /// Removes a stream, which must not be in a ready list.
    pub(super) fn remove(&mut self, slot: u32, is_reset_by_us: bool) -> H2Stream {
        let stream = self.slots[slot as usize].take().expect("slots in use hold streams");
        debug_assert!(!stream.is_ready);
        self.free.push(slot);
        if let Ok(index) = self.open.binary_search_by_key(&stream.id, |(id, _)| *id) {
            self.open.remove(index);
        }
        self.remember(stream.id, is_reset_by_us);
        stream
    }

    /// Remembers a closed stream, or one that this side rejected before it was opened.
    pub(super) fn remember(&mut self, id: u32, is_reset_by_us: bool) {
        let (row, length_max) = match is_reset_by_us {
            true => (&mut self.reset, RESET_STREAMS_MAX),
            false => (&mut self.ended, ENDED_STREAMS_MAX),
        };
        if row.len() == length_max {
            row.pop_front();
        }
        row.push_back(id);
    }

    pub(super) fn past(&self, id: u32) -> Past {
        if self.ended.contains(&id) {
            Past::Ended
        } else if self.reset.contains(&id) {
            Past::ResetByUs
        } else {
            Past::Unknown
        }
    }

    /// Returns the slot of the open stream at `index`.
    pub(super) fn slot(&self, index: usize) -> u32 {
        self.open[index].1
    }

    /// Returns id and slot of the newest stream.
    pub(super) fn last(&self) -> Option<(u32, u32)> {
        self.open.back().copied()
    }

    pub(super) fn streams(&self) -> impl Iterator<Item = &H2Stream> {
        self.open.iter().filter_map(|(_, slot)| self.slots[*slot as usize].as_ref())
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Frees memory that is not needed while no stream is open.
    pub(super) fn shrink(&mut self) {
        if self.open.is_empty() {
            self.slots = Vec::new();
            self.free = Vec::new();
            self.open = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(id: u32) -> H2Stream {
        H2Stream::new(id, ReceiveWindow::new(1, Duration::ZERO), SendWindow::new(1))
    }

    #[test]
    fn slots_are_used_again_and_closed_streams_remembered_for_a_while() {
        let mut streams = StreamTable::default();
        let slots = [1, 3, 9].map(|id| streams.insert(stream(id)));
        assert_eq!([1, 3, 9, 5].map(|id| streams.find(id)), [Some(slots[0]), Some(slots[1]), Some(slots[2]), None]);
        streams.remove(slots[1], true);
        streams.remove(slots[2], false);
        assert_eq!([1, 3, 9].map(|id| streams.past(id)), [Past::Unknown, Past::ResetByUs, Past::Ended]);
        assert_eq!(streams.insert(stream(11)), slots[2]);
        assert_eq!([streams.slot(0), streams.slot(1)], [slots[0], slots[2]]);
        assert_eq!(streams.last(), Some((11, slots[2])));
        for id in (13..).step_by(2).take(ENDED_STREAMS_MAX) {
            let slot = streams.insert(stream(id));
            streams.remove(slot, false);
        }
        assert_eq!((streams.past(3), streams.past(9)), (Past::ResetByUs, Past::Unknown));
        assert_eq!(streams.slots.len(), 3);
    }
}
