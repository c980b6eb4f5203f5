//! Budget of packets with which handshakes begin.

use std::time::{Duration, Instant};

/// Packets that an endpoint processes in each [`INITIALS_INTERVAL`]. A worker completes fewer than 2,000 handshakes a second,
/// of two to four such packets each. More come from a flood. Decrypting them all would leave no time for connections.
const INITIALS_MAX: u32 = 100;
const INITIALS_INTERVAL: Duration = Duration::from_millis(10);

/// Packets that may still be processed in an interval.
#[derive(Debug, Default)]
pub(super) struct InitialBudget {
    since: Option<Instant>,
    taken: u32,
}

impl InitialBudget {
    /// Takes one packet; false if there were too many of late.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= INITIALS_INTERVAL) {
            (self.since, self.taken) = (Some(now), 0);
        }
        self.taken = self.taken.saturating_add(1);
        self.taken <= INITIALS_MAX
    }

    /// End of the interval, if no packet may be taken before it.
    pub(super) fn spent_until(&self, now: Instant) -> Option<Instant> {
        let end = self.since? + INITIALS_INTERVAL;
        (self.taken >= INITIALS_MAX && now < end).then_some(end)
    }
}

/// True if a datagram begins with an Initial packet of version 1 (RFC 9000, section 17.2.2). The fixed bit tells nothing, because the
/// engine permits clients to clear it (RFC 9287).
pub(super) fn is_initial(datagram: &[u8]) -> bool {
    matches!(datagram, [first, 0, 0, 0, 1, ..] if first & 0xb0 == 0x80)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn initial_packets_have_a_budget() {
        assert!(is_initial(&[0xc3, 0, 0, 0, 1, 8]) && is_initial(&[0x83, 0, 0, 0, 1, 8]));
        // Handshake, 0-RTT, a short header, another version, and too few bytes.
        for other in
            [&[0xe3, 0, 0, 0, 1][..], &[0xd3, 0, 0, 0, 1], &[0x43, 0, 0, 0, 1], &[0xc3, 0, 0, 0, 2], &[0xc3, 0]]
        {
            assert!(!is_initial(other), "{other:?}");
        }
        let (start, mut budget) = (Instant::now(), InitialBudget::default());
        let mut taken = |at: Duration| (0..3 * INITIALS_MAX).filter(|_| budget.take(start + at)).count() as u32;
        assert_eq!([Duration::ZERO, INITIALS_INTERVAL / 2].map(&mut taken), [INITIALS_MAX, 0]);
        assert_eq!(taken(INITIALS_INTERVAL), INITIALS_MAX);
    }

    #[test]
    fn a_spent_budget_says_when_it_is_full_again() {
        let (start, mut budget) = (Instant::now(), InitialBudget::default());
        for _ in 1..INITIALS_MAX {
            assert!(budget.take(start) && budget.spent_until(start).is_none());
        }
        assert!(budget.take(start));
        let end = start + INITIALS_INTERVAL;
        assert_eq!([start, end].map(|at| budget.spent_until(at)), [Some(end), None]);
    }
}
