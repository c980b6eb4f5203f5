//! Streams of a connection, in tables by kind.

use std::collections::VecDeque;

use crate::id::{Dir, QuicStreamId};

use super::receive::ReceiveSide;
use super::send::SendSide;

/// Ended streams that a table keeps at most, unless they are fewer than the open ones. Removing them together costs
/// less.
const ENDED_MAX: usize = 32;

/// Stream in a table.
pub(super) trait StreamEntry {
    /// ID of the stream.
    fn id(&self) -> QuicStreamId;

    /// True if nothing remains to be done on the stream.
    fn is_done(&self) -> bool;
}

/// Bidirectional stream that the client has opened.
pub(super) struct Exchange {
    id: QuicStreamId,
    pub(super) receive: ReceiveSide,
    pub(super) send: SendSide,
}

/// Unidirectional stream that the client has opened.
pub(super) struct ClientStream {
    id: QuicStreamId,
    pub(super) receive: ReceiveSide,
}

/// Unidirectional stream that this side has opened.
pub(super) struct Outgoing {
    id: QuicStreamId,
    pub(super) send: SendSide,
}

// A server has thousands of open streams and many idle connections, each with some unidirectional streams.
const _: () = assert!(size_of::<Exchange>() <= 192 && size_of::<ClientStream>() <= 80 && size_of::<Outgoing>() <= 120);

/// Streams of one kind, sorted by ID. IDs of neighbors are 4 apart (RFC 9000, section 2.1), unless streams between
/// them have ended.
pub(super) struct Table<T> {
    entries: VecDeque<T>,
    /// Number of entries that are done and await their removal.
    ended: usize,
}

/// All streams of a connection.
pub(super) struct Tables {
    pub(super) exchanges: Table<Exchange>,
    pub(super) incoming: Table<ClientStream>,
    pub(super) own: Table<Outgoing>,
}

impl StreamEntry for Exchange {
    fn id(&self) -> QuicStreamId {
        self.id
    }

    fn is_done(&self) -> bool {
        self.send.is_done() && self.receive.is_done()
    }
}

impl StreamEntry for ClientStream {
    fn id(&self) -> QuicStreamId {
        self.id
    }

    fn is_done(&self) -> bool {
        self.receive.is_done()
    }
}

impl StreamEntry for Outgoing {
    fn id(&self) -> QuicStreamId {
        self.id
    }

    fn is_done(&self) -> bool {
        self.send.is_done()
    }
}

impl<T: StreamEntry> Table<T> {
    const fn new() -> Self {
        Self { entries: VecDeque::new(), ended: 0 }
    }

    /// Place of a stream.
    fn index(&self, id: QuicStreamId) -> Option<usize> {
        let first = self.entries.front()?.id().0;
        let last = self.entries.back()?.id().0;
        if !(first..=last).contains(&id.0) {
            return None;
        }
        let is_at = |index: &usize| self.entries.get(*index).is_some_and(|entry| entry.id() == id);
        // If streams between have been removed, most are near the front, because an old stream goes on.
        let from_front = usize::try_from((id.0 - first) / 4).ok().filter(is_at);
        let from_back = || {
            let after = usize::try_from((last - id.0) / 4).ok()?;
            (self.entries.len() - 1).checked_sub(after).filter(is_at)
        };
        from_front.or_else(from_back).or_else(|| self.entries.binary_search_by_key(&id, |entry| entry.id()).ok())
    }

    /// Open stream with this ID.
    pub(super) fn get_mut(&mut self, id: QuicStreamId) -> Option<&mut T> {
        let index = self.index(id)?;
        self.entries.get_mut(index).filter(|entry| !entry.is_done())
    }

    /// Adds a stream, unless it is there.
    fn insert(&mut self, id: QuicStreamId, make: impl FnOnce() -> T) {
        match self.entries.back() {
            Some(last) if last.id() >= id => {
                if let Err(index) = self.entries.binary_search_by_key(&id, |entry| entry.id()) {
                    self.entries.insert(index, make());
                }
            }
            _ => self.entries.push_back(make()),
        }
    }

    /// Removes a stream if nothing remains to be done on it. Returns true then. Must be called once for a stream that
    /// has ended.
    fn end(&mut self, id: QuicStreamId) -> bool {
        let is_done = self.index(id).is_some_and(|index| self.entries[index].is_done());
        if is_done {
            self.ended += 1;
            while self.entries.front().is_some_and(T::is_done) {
                self.entries.pop_front();
                self.ended -= 1;
            }
            if self.ended > ENDED_MAX.max(self.entries.len() / 2) {
                self.remove_ended();
            }
        }
        is_done
    }

    fn remove_ended(&mut self) {
        self.entries.retain(|entry| !entry.is_done());
        self.ended = 0;
    }

    /// All open streams.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().filter(|entry| !entry.is_done())
    }

    /// Number of open streams.
    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.ended
    }

    fn shrink(&mut self) {
        self.remove_ended();
        self.entries.shrink_to_fit();
    }
}

impl Tables {
    pub(super) const fn new() -> Self {
        Self { exchanges: Table::new(), incoming: Table::new(), own: Table::new() }
    }

    /// Send side of an open stream.
    #[inline]
    pub(super) fn send(&mut self, id: QuicStreamId) -> Option<&mut SendSide> {
        let side = match (id.is_by_server(), id.dir()) {
            (false, Dir::Bi) => &mut self.exchanges.get_mut(id)?.send,
            (true, Dir::Uni) => &mut self.own.get_mut(id)?.send,
            _ => return None,
        };
        Some(side).filter(|side| !side.is_done())
    }

    /// Receive side of an open stream.
    #[inline]
    pub(super) fn receive(&mut self, id: QuicStreamId) -> Option<&mut ReceiveSide> {
        let side = match (id.is_by_server(), id.dir()) {
            (false, Dir::Bi) => &mut self.exchanges.get_mut(id)?.receive,
            (false, Dir::Uni) => &mut self.incoming.get_mut(id)?.receive,
            _ => return None,
        };
        Some(side).filter(|side| !side.is_done())
    }

    /// Adds a stream that the client has opened, unless it is there.
    pub(super) fn insert(&mut self, id: QuicStreamId, receive_limit: u64, send_limit: u64) {
        let receive = || ReceiveSide::new(receive_limit);
        match id.dir() {
            Dir::Bi => {
                let make = || Exchange { id, receive: receive(), send: SendSide::new(send_limit) };
                self.exchanges.insert(id, make);
            }
            Dir::Uni => self.incoming.insert(id, || ClientStream { id, receive: receive() }),
        }
    }

    /// Adds a unidirectional stream of this side.
    pub(super) fn insert_own(&mut self, id: QuicStreamId, send_limit: u64) {
        self.own.insert(id, || Outgoing { id, send: SendSide::new(send_limit) });
    }

    /// Removes a stream if nothing remains to be done on it. Returns true then. Must be called once after a side has
    /// ended.
    pub(super) fn end(&mut self, id: QuicStreamId) -> bool {
        match (id.is_by_server(), id.dir()) {
            (true, _) => self.own.end(id),
            (false, Dir::Bi) => self.exchanges.end(id),
            (false, Dir::Uni) => self.incoming.end(id),
        }
    }

    /// Frees memory that no stream needs now.
    pub(super) fn shrink(&mut self) {
        self.exchanges.iter_mut().for_each(|stream| {
            stream.send.shrink();
            stream.receive.shrink();
        });
        self.incoming.iter_mut().for_each(|stream| stream.receive.shrink());
        self.own.iter_mut().for_each(|stream| stream.send.shrink());
        self.exchanges.shrink();
        self.incoming.shrink();
        self.own.shrink();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Slot(QuicStreamId, bool);

    impl StreamEntry for Slot {
        fn id(&self) -> QuicStreamId {
            self.0
        }

        fn is_done(&self) -> bool {
            self.1
        }
    }

    fn id(number: u64) -> QuicStreamId {
        QuicStreamId::of(number, Dir::Bi, false)
    }

    fn end(table: &mut Table<Slot>, number: u64) {
        table.get_mut(id(number)).unwrap().1 = true;
        assert!(table.end(id(number)));
        assert!(table.get_mut(id(number)).is_none());
    }

    #[test]
    fn streams_are_found_after_others_have_ended() {
        let mut table = Table::new();
        assert!(table.get_mut(id(0)).is_none());
        for number in [3, 0, 1, 2, 3] {
            table.insert(id(number), || Slot(id(number), false));
        }
        assert_eq!(table.len(), 4);
        for number in 4..1000 {
            table.insert(id(number), || Slot(id(number), false));
        }
        // An old stream goes on while others end, in any order.
        for number in (1..900).filter(|number| number % 7 != 0).rev() {
            end(&mut table, number);
        }
        assert_eq!(table.len(), 1000 - (1..900).filter(|number| number % 7 != 0).count());
        for number in 0..1000 {
            let is_open = number == 0 || number >= 900 || number % 7 == 0;
            assert_eq!(table.get_mut(id(number)).is_some(), is_open, "{number}");
        }
        assert!(table.get_mut(id(1000)).is_none());
        assert!(table.entries.len() <= 2 * table.len() + ENDED_MAX);
        table.shrink();
        assert_eq!(table.entries.len(), table.len());
    }

    #[test]
    fn streams_that_end_in_order_leave_nothing() {
        let mut table = Table::new();
        for number in 0..10_000 {
            table.insert(id(number), || Slot(id(number), false));
            if let Some(old) = number.checked_sub(8) {
                end(&mut table, old);
            }
        }
        assert_eq!((table.len(), table.entries.len()), (8, 8));
        assert!(table.entries.capacity() <= 32);
    }
}
