//! The streams that are open, and those that were until a moment ago.

use std::collections::VecDeque;
use std::time::Duration;

use super::Priority;
use super::window::{ReceiveWindow, SendWindow};
use crate::http::Fields;

/// How many streams that we have reset are remembered: what a peer sends on one of them may have been on its way.
const RESET_STREAMS_MAX: usize = 256;
/// How many streams that have ended are remembered, to tell a peer that it is wrong about them.
const ENDED_STREAMS_MAX: usize = 32;

/// No slot.
pub(super) const NONE: u32 = u32::MAX;

/// A stream in one of the states open and half-closed (RFC 9113, section 5.1).
#[derive(Debug)]
pub(super) struct Stream {
    pub id: u32,
    /// The peer has ended its message.
    pub is_received: bool,
    /// Content is not given out any more: the message was refused.
    pub discards_content: bool,
    /// The head of the peer's message has come; for a client, whose streams begin without.
    pub has_head: bool,
    /// CONNECT: what either side sends has no end that the other's depends on, and no limit.
    pub is_tunnel: bool,
    /// A response to HEAD or a status without content: whatever its Content-Length says.
    pub has_no_content: bool,
    pub receive: ReceiveWindow,
    /// What Content-Length says is still to come (section 8.1.1).
    pub expected_bytes: Option<u64>,
    pub received_bytes: u64,
    /// How much content there may be.
    pub body_bytes_max: u64,
    /// Our message's head has been sent.
    pub is_head_sent: bool,
    pub send: SendWindow,
    /// Content that the caller has and we have not sent.
    pub offered_bytes: u64,
    pub sent_bytes: u64,
    /// What is offered is the end of the content.
    pub is_end_offered: bool,
    /// To be sent behind the content.
    pub trailers: Option<Box<Fields>>,
    /// When content was sent last, or offered when there was none.
    pub progress_at: Duration,
    pub priority: Priority,
    pub is_ready: bool,
    pub next: u32,
    pub previous: u32,
}

impl Stream {
    pub fn new(id: u32, receive: ReceiveWindow, send: SendWindow) -> Self {
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

    /// Whether our message is complete.
    pub fn is_sent(&self) -> bool {
        self.is_end_offered && self.offered_bytes == 0 && self.trailers.is_none()
    }

    /// Whether there is content and the stream's window lets it be sent.
    pub fn can_send(&self) -> bool {
        self.offered_bytes > 0 && self.send.available_bytes() > 0
    }
}

/// Streams by their number. Numbers only grow (section 5.1.1), so those that are open are a sorted row: a new one goes to
/// its end, and one is found by halving.
#[derive(Debug, Default)]
pub(super) struct Streams {
    slots: Vec<Option<Stream>>,
    free: Vec<u32>,
    /// Number and slot.
    open: VecDeque<(u32, u32)>,
    reset: VecDeque<u32>,
    ended: VecDeque<u32>,
}

/// What became of a stream that is not open, of what is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Past {
    /// We have reset it: the peer may not know yet, and what it sends is ignored.
    ResetByUs,
    /// It has ended, or the peer has reset it, a moment ago.
    Ended,
    /// It never was, or that was long ago.
    Unknown,
}

impl Streams {
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Adds a stream, whose number is the highest yet; returns its slot.
    pub fn insert(&mut self, stream: Stream) -> u32 {
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

    pub fn find(&self, id: u32) -> Option<u32> {
        match self.open.back() {
            Some((last, slot)) if *last == id => Some(*slot),
            _ => self.open.binary_search_by_key(&id, |(id, _)| *id).ok().map(|index| self.open[index].1),
        }
    }

    /// The stream in a slot that was found or inserted, and not removed since.
    pub fn at(&mut self, slot: u32) -> &mut Stream {
        self.slots[slot as usize].as_mut().expect("slots in use hold streams")
    }

    /// Takes a stream out; it must not be in a queue.
    pub fn remove(&mut self, slot: u32, is_reset_by_us: bool) -> Stream {
        let stream = self.slots[slot as usize].take().expect("slots in use hold streams");
        debug_assert!(!stream.is_ready);
        self.free.push(slot);
        if let Ok(index) = self.open.binary_search_by_key(&stream.id, |(id, _)| *id) {
            self.open.remove(index);
        }
        self.remember(stream.id, is_reset_by_us);
        stream
    }

    /// Notes that a stream is closed, or never was opened, in the latter case by our refusal.
    pub fn remember(&mut self, id: u32, is_reset_by_us: bool) {
        let (row, length_max) = match is_reset_by_us {
            true => (&mut self.reset, RESET_STREAMS_MAX),
            false => (&mut self.ended, ENDED_STREAMS_MAX),
        };
        if row.len() == length_max {
            row.pop_front();
        }
        row.push_back(id);
    }

    pub fn past(&self, id: u32) -> Past {
        if self.ended.contains(&id) {
            Past::Ended
        } else if self.reset.contains(&id) {
            Past::ResetByUs
        } else {
            Past::Unknown
        }
    }

    /// The slot of the stream that is at this place among those that are open.
    pub fn slot(&self, index: usize) -> u32 {
        self.open[index].1
    }

    /// Number and slot of the newest stream.
    pub fn last(&self) -> Option<(u32, u32)> {
        self.open.back().copied()
    }

    pub fn streams(&self) -> impl Iterator<Item = &Stream> {
        self.open.iter().filter_map(|(_, slot)| self.slots[*slot as usize].as_ref())
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Gives memory back that is not needed while no stream is open.
    pub fn shrink(&mut self) {
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

    fn stream(id: u32) -> Stream {
        Stream::new(id, ReceiveWindow::new(1, Duration::ZERO), SendWindow::new(1))
    }

    #[test]
    fn slots_are_used_again_and_closed_streams_remembered_for_a_while() {
        let mut streams = Streams::default();
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
