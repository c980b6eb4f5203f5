//! Timers of connections.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

/// Times at which connections must be polled. QUIC moves its timers with most packets, but rarely to an earlier time. So a
/// connection has one entry here, which is checked when it is due.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    due: BinaryHeap<Reverse<(Instant, u32)>>,
}

/// Entry of one connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TimerEntry(Option<Instant>);

impl Timers {
    /// Sets the time at which the connection in a slot must be polled.
    pub(crate) fn set(&mut self, slot: u32, entry: &mut TimerEntry, at: Option<Instant>) {
        let Some(at) = at else { return };
        if entry.0.is_none_or(|known| at < known) {
            entry.0 = Some(at);
            self.due.push(Reverse((at, slot)));
        }
    }

    /// Time of the first entry.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.due.peek().map(|Reverse((at, _))| *at)
    }

    /// Removes an entry that is due; returns its connection's slot.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<u32> {
        if self.next()? > now {
            return None;
        }
        self.due.pop().map(|Reverse((_, slot))| slot)
    }
}

impl TimerEntry {
    /// Forgets the entry if it is due, because it was removed.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.0 = self.0.filter(|at| *at > now);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_connection_has_one_entry_unless_its_time_is_earlier() {
        let (mut timers, start) = (Timers::default(), Instant::now());
        let (mut first, mut second) = (TimerEntry::default(), TimerEntry::default());
        let at = |seconds| start + Duration::from_secs(seconds);
        timers.set(1, &mut first, Some(at(5)));
        for later in 6..100 {
            timers.set(1, &mut first, Some(at(later)));
        }
        timers.set(2, &mut second, Some(at(7)));
        timers.set(2, &mut second, Some(at(3)));
        timers.set(2, &mut second, None);
        assert_eq!(timers.due.len(), 3);
        assert_eq!(timers.next(), Some(at(3)));
        let popped: Vec<_> = std::iter::from_fn(|| timers.pop_due(at(5))).collect();
        assert_eq!(popped, [2, 1]);
        first.expire(at(5));
        timers.set(1, &mut first, Some(at(99)));
        assert_eq!(timers.next(), Some(at(7)), "an entry that was replaced polls its connection for nothing");
    }
}
