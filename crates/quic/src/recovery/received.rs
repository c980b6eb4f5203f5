//! Packets that were received, until the peer knows that.

use std::time::{Duration, Instant};

use crate::frame::EcnCounts;
use crate::ranges::RangeSet;
use crate::types::Ecn;

/// Ranges of packet numbers that are kept. More would only come from a peer that leaves gaps on purpose.
const RANGES_MAX: usize = 32;

/// Packets that the peer wants acknowledged, after which an acknowledgment is sent at once (RFC 9000, section 13.2.2).
const ELICITING_MAX: u32 = 2;

/// Time after which a packet is acknowledged at the latest, in the data space. The peer learns it by the default of the
/// transport parameter (RFC 9000, section 18.2).
pub(crate) const ACK_DELAY_MAX: Duration = Duration::from_millis(25);

/// Packets of a space that were received.
#[derive(Debug, Default)]
pub(crate) struct ReceivedPackets {
    numbers: RangeSet,
    /// Numbers below are not known any more, and such packets are dropped.
    floor: u64,
    /// Time at which the largest number arrived.
    largest_at: Option<Instant>,
    /// Packets that the peer wants acknowledged and that no ACK frame has named.
    eliciting: u32,
    /// Time at which an acknowledgment is due.
    due_at: Option<Instant>,
    ecn: EcnCounts,
}

impl ReceivedPackets {
    /// Largest number that has arrived.
    pub(crate) fn largest(&self) -> Option<u64> {
        self.numbers.last().map(|range| range.end - 1).or_else(|| self.floor.checked_sub(1))
    }

    /// True if a packet has arrived before, or may have.
    pub(crate) fn is_duplicate(&self, number: u64) -> bool {
        number < self.floor || self.numbers.contains(number)
    }

    /// Records a packet that was processed. With `is_at_once` there is no delay (RFC 9000, section 13.2.1).
    pub(crate) fn record(
        &mut self,
        now: Instant,
        number: u64,
        is_ack_eliciting: bool,
        ecn: Option<Ecn>,
        is_at_once: bool,
    ) {
        let largest = self.largest();
        let is_newest = largest.is_none_or(|largest| number > largest);
        // A gap, or a packet that fills one.
        let is_out_of_order = largest.is_some_and(|largest| number != largest + 1);
        self.numbers.insert(number..number + 1);
        if self.numbers.len() > RANGES_MAX
            && let Some(first) = self.numbers.pop_first()
        {
            self.floor = first.end;
        }
        if is_newest {
            self.largest_at = Some(now);
        }
        match ecn {
            Some(Ecn::Ect0) => self.ecn.ect0 += 1,
            Some(Ecn::Ect1) => self.ecn.ect1 += 1,
            Some(Ecn::Ce) => self.ecn.ce += 1,
            None => {}
        }
        if !is_ack_eliciting {
            return;
        }
        self.eliciting += 1;
        let is_at_once = is_at_once || is_out_of_order || self.eliciting >= ELICITING_MAX || ecn == Some(Ecn::Ce);
        let due_at = if is_at_once { now } else { now + ACK_DELAY_MAX };
        self.due_at = Some(self.due_at.map_or(due_at, |known| known.min(due_at)));
    }

    /// True if an ACK frame would tell the peer something.
    pub(crate) fn has_news(&self) -> bool {
        self.eliciting > 0
    }

    /// Time at which an acknowledgment must be sent.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        self.due_at
    }

    /// Ranges for an ACK frame, with the delay since the largest number, and ECN counts.
    pub(crate) fn ack(&self, now: Instant) -> (&RangeSet, Duration, Option<&EcnCounts>) {
        let delay = self.largest_at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        (&self.numbers, delay, (self.ecn != EcnCounts::default()).then_some(&self.ecn))
    }

    /// Records that an ACK frame is sent.
    pub(crate) fn on_ack_sent(&mut self) {
        (self.eliciting, self.due_at) = (0, None);
    }

    /// Handles the acknowledgment of an ACK frame that named numbers up to this one: these are not named again.
    pub(crate) fn on_ack_acked(&mut self, largest: u64) {
        // The range that grows stays whole.
        if let Some(last) = self.numbers.last() {
            let below = last.start.min(largest + 1);
            if below > self.floor {
                self.numbers.remove_below(below);
                self.floor = below;
            }
        }
    }

    /// Frees memory that is not used.
    pub(crate) fn shrink(&mut self) {
        self.numbers.shrink();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgments_wait_for_a_second_packet_or_the_delay() {
        let (start, mut received) = (Instant::now(), ReceivedPackets::default());
        received.record(start, 0, true, None, false);
        assert_eq!(received.due_at(), Some(start + ACK_DELAY_MAX));
        received.record(start, 1, false, None, false);
        assert_eq!(received.due_at(), Some(start + ACK_DELAY_MAX));
        received.record(start, 2, true, None, false);
        assert_eq!(received.due_at(), Some(start));
        let (numbers, delay, ecn) = received.ack(start + Duration::from_millis(3));
        assert_eq!((numbers.len(), delay, ecn.is_none()), (1, Duration::from_millis(3), true));
        received.on_ack_sent();
        assert!(!received.has_news() && received.due_at().is_none());
        received.record(start, 4, true, None, false);
        assert_eq!(received.due_at(), Some(start), "a gap is told at once");
        received.on_ack_sent();
        received.record(start, 5, true, Some(Ecn::Ce), false);
        assert_eq!(received.due_at(), Some(start), "so is congestion");
        assert_eq!(received.ack(start).2.map(|counts| counts.ce), Some(1));
    }

    #[test]
    fn numbers_are_received_once() {
        let (start, mut received) = (Instant::now(), ReceivedPackets::default());
        for number in (0..1_000).step_by(2) {
            assert!(!received.is_duplicate(number));
            received.record(start, number, true, None, false);
            assert!(received.is_duplicate(number));
        }
        let kept = received.ack(start).0.len();
        assert_eq!(kept, RANGES_MAX);
        assert!(received.is_duplicate(1), "too old to be known");
        assert!(!received.is_duplicate(997));
        assert_eq!(received.largest(), Some(998));
        received.on_ack_acked(998);
        assert_eq!(received.ack(start).0.len(), 1);
        assert!(received.is_duplicate(997) && received.is_duplicate(998) && !received.is_duplicate(999));
    }
}
