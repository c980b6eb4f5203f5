//! Scheduler: chooses the stream whose content is sent next (RFC 9218, section 10).

use super::streams::{NONE, StreamTable};
use crate::field_section::priority::URGENCIES;

/// Streams that have content and an open window, in lists that are linked through the streams themselves. Each urgency
/// has two lists: one for responses that are sent one after the other in order of their ids, one for those that take
/// turns.
#[derive(Debug)]
pub(super) struct ReadyStreams {
    rows: [ReadyList; 2 * URGENCIES],
    /// Bit set of the lists that are not empty.
    filled: u16,
    /// True if the incremental list of an urgency comes next.
    is_incremental_next: bool,
}

#[derive(Clone, Copy, Debug)]
struct ReadyList {
    first: u32,
    last: u32,
}

const EMPTY: ReadyList = ReadyList { first: NONE, last: NONE };

impl Default for ReadyStreams {
    fn default() -> Self {
        Self { rows: [EMPTY; 2 * URGENCIES], filled: 0, is_incremental_next: false }
    }
}

impl ReadyStreams {
    /// Adds a stream that is not in any list, at its position in the order.
    pub(super) fn insert(&mut self, streams: &mut StreamTable, slot: u32) {
        let stream = streams.at(slot);
        debug_assert!(!stream.is_ready);
        stream.is_ready = true;
        let (row_index, id, is_incremental) = (row_of(stream.priority), stream.id, stream.priority.is_incremental);
        let row = self.rows[row_index];
        let mut after = row.last;
        // A stream that was just served returns to the front; a new one goes to the end.
        if !is_incremental && row.first != NONE && streams.at(row.first).id > id {
            after = NONE;
        }
        while !is_incremental && after != NONE && streams.at(after).id > id {
            after = streams.at(after).previous;
        }
        self.link(streams, row_index, slot, after);
    }

    /// Removes and returns the stream to serve next.
    pub(super) fn pop(&mut self, streams: &mut StreamTable) -> Option<u32> {
        if self.filled == 0 {
            return None;
        }
        let mut row_index = self.filled.trailing_zeros() as usize;
        // Section 10: both kinds of one urgency must make progress.
        let is_both = row_index.is_multiple_of(2) && self.filled & (2 << row_index) != 0;
        if is_both {
            row_index += usize::from(self.is_incremental_next);
            self.is_incremental_next = !self.is_incremental_next;
        }
        let slot = self.rows[row_index].first;
        self.remove(streams, slot);
        Some(slot)
    }

    /// Removes a stream from its list, if it is in one.
    pub(super) fn remove(&mut self, streams: &mut StreamTable, slot: u32) {
        let stream = streams.at(slot);
        if !stream.is_ready {
            return;
        }
        stream.is_ready = false;
        let (row_index, previous, next) = (row_of(stream.priority), stream.previous, stream.next);
        let row = &mut self.rows[row_index];
        match previous {
            NONE => row.first = next,
            _ => streams.at(previous).next = next,
        }
        match next {
            NONE => row.last = previous,
            _ => streams.at(next).previous = previous,
        }
        if row.first == NONE {
            self.filled &= !(1 << row_index);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.filled == 0
    }

    fn link(&mut self, streams: &mut StreamTable, row_index: usize, slot: u32, after: u32) {
        let row = &mut self.rows[row_index];
        self.filled |= 1 << row_index;
        let next = if after == NONE { row.first } else { streams.at(after).next };
        let stream = streams.at(slot);
        (stream.previous, stream.next) = (after, next);
        match after {
            NONE => row.first = slot,
            _ => streams.at(after).next = slot,
        }
        match next {
            NONE => row.last = slot,
            _ => streams.at(next).previous = slot,
        }
    }
}

fn row_of(priority: super::Priority) -> usize {
    2 * usize::from(priority.urgency) + usize::from(priority.is_incremental)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::h2::Priority;
    use crate::h2::streams::H2Stream;
    use crate::h2::window::{ReceiveWindow, SendWindow};

    /// Returns the ids of streams in the order of service, three turns each, if they become ready in this order.
    fn served(ready: &[(u32, &str)]) -> Vec<u32> {
        let (mut streams, mut queue) = (StreamTable::default(), ReadyStreams::default());
        let mut ids: Vec<_> = ready.to_vec();
        ids.sort_unstable();
        for (id, priority) in ids {
            let mut stream = H2Stream::new(id, ReceiveWindow::new(0, Duration::ZERO), SendWindow::new(0));
            stream.priority = Priority::parse(priority.as_bytes());
            stream.offered_bytes = 3;
            streams.insert(stream);
        }
        for (id, _) in ready {
            let slot = streams.find(*id).unwrap();
            queue.insert(&mut streams, slot);
        }
        let mut served = Vec::new();
        while let Some(slot) = queue.pop(&mut streams) {
            let stream = streams.at(slot);
            served.push(stream.id);
            stream.offered_bytes -= 1;
            if stream.offered_bytes > 0 {
                queue.insert(&mut streams, slot);
            }
        }
        assert_eq!(queue.filled, 0);
        served
    }

    #[test]
    fn order() {
        for (ready, expect) in [
            (&[(3, ""), (1, ""), (5, "")][..], &[1, 1, 1, 3, 3, 3, 5, 5, 5][..]),
            (&[(3, "i"), (1, "i")], &[3, 1, 3, 1, 3, 1]),
            (&[(1, "u=7"), (3, "u=0"), (5, "u=3,i")], &[3, 3, 3, 5, 5, 5, 1, 1, 1]),
            (&[(1, ""), (3, "i"), (5, "i")], &[1, 3, 1, 5, 1, 3, 5, 3, 5]),
        ] {
            assert_eq!(served(ready), expect, "{ready:?}");
        }
    }

    #[test]
    fn removal_anywhere() {
        for removed in [1, 3, 5] {
            let (mut streams, mut queue) = (StreamTable::default(), ReadyStreams::default());
            for id in [1, 3, 5] {
                let stream = H2Stream::new(id, ReceiveWindow::new(0, Duration::ZERO), SendWindow::new(0));
                let slot = streams.insert(stream);
                queue.insert(&mut streams, slot);
            }
            let slot = streams.find(removed).unwrap();
            queue.remove(&mut streams, slot);
            queue.remove(&mut streams, slot);
            let mut rest = Vec::new();
            while let Some(slot) = queue.pop(&mut streams) {
                rest.push(streams.at(slot).id);
            }
            assert!(rest.into_iter().eq([1, 3, 5].into_iter().filter(|id| *id != removed)));
        }
    }
}
