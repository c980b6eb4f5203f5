//! Frames about streams that must be sent, without data.

use std::collections::VecDeque;

use crate::id::QuicStreamId;

use super::receive::ReceiveSide;

/// Kinds of frames about a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamControl {
    /// RESET_STREAM.
    Reset,
    /// STOP_SENDING.
    Stop,
    /// MAX_STREAM_DATA.
    Limit,
}

/// Frames about streams, in the order in which they are sent. A flag of the stream keeps each in the queue once.
#[derive(Default)]
pub(super) struct Controls {
    queue: VecDeque<(QuicStreamId, StreamControl)>,
    /// Number of frames of each kind. Most streams end while there are none.
    counts: [u32; 3],
}

impl Controls {
    /// Adds a frame. It must not be there.
    pub(super) fn push(&mut self, id: QuicStreamId, control: StreamControl) {
        self.counts[control as usize] += 1;
        self.queue.push_back((id, control));
    }

    /// Removes the next frame.
    pub(super) fn pop(&mut self) -> Option<(QuicStreamId, StreamControl)> {
        let (id, control) = self.queue.pop_front()?;
        self.counts[control as usize] -= 1;
        Some((id, control))
    }

    /// Removes a frame, if it is there.
    pub(super) fn remove(&mut self, id: QuicStreamId, control: StreamControl) {
        if self.counts[control as usize] > 0
            && let Some(index) = self.queue.iter().position(|&other| other == (id, control))
        {
            self.counts[control as usize] -= 1;
            self.queue.remove(index);
        }
    }

    /// Removes MAX_STREAM_DATA, if it is of no use any more.
    pub(super) fn cancel_limit(&mut self, id: QuicStreamId, side: &mut ReceiveSide) {
        if side.is_limit_due && !side.wants_data() {
            side.is_limit_due = false;
            self.remove(id, StreamControl::Limit);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Frees memory that isn't needed now.
    pub(super) fn shrink(&mut self) {
        self.queue.shrink_to_fit();
    }
}
