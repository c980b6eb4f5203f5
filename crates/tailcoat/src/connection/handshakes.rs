use std::cell::Cell;
use std::time::Duration;

/// Handshakes that begin before other connections have their turn: one takes as long as some hundred small responses.
const BEGUN_A_TURN_MAX: u32 = 4;

/// How many handshakes of TLS a worker begins.
#[derive(Debug)]
pub struct Handshakes {
    begun: Cell<u32>,
    /// Time between two, if there is a limit.
    interval_us: u64,
    /// When the next may begin.
    next_us: Cell<u64>,
}

/// Handshakes that may begin at once after a time without any are those of this time, in microseconds.
const BURST_US: u64 = 1_000_000;

impl Handshakes {
    /// With a limit to so many a second; 0 is none.
    pub fn new(per_second_max: u32) -> Self {
        let interval_us = 1_000_000_u64.checked_div(per_second_max.into()).unwrap_or(0);
        Self { begun: Cell::new(0), interval_us, next_us: Cell::new(0) }
    }

    /// Reserves the next place; how long to wait until it comes, or `None` for no time.
    pub fn reserve(&self, now_ms: u64) -> Option<Duration> {
        let now_us = now_ms * 1_000;
        let due_us = self.next_us.get().max(now_us.saturating_sub(BURST_US));
        self.next_us.set(due_us + self.interval_us);
        (due_us > now_us).then(|| Duration::from_micros(due_us - now_us))
    }

    /// Whether one more may begin in this turn.
    pub fn take_turn(&self) -> bool {
        let begun = self.begun.get();
        self.begun.set(begun + 1);
        begun < BEGUN_A_TURN_MAX
    }

    /// Begins a new turn.
    pub fn on_turn(&self) {
        self.begun.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_of_handshakes_may_come_at_once() {
        let handshakes = Handshakes::new(10);
        let at = 1_000_000;
        let waits: Vec<_> = (0..13).map(|_| handshakes.reserve(at).map_or(0, |wait| wait.as_millis())).collect();
        assert_eq!(waits, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 100, 200]);
        assert_eq!(handshakes.reserve(at + 10_000), None);
        let unlimited = Handshakes::new(0);
        assert!((0..1_000).all(|_| unlimited.reserve(at).is_none()));
    }

    #[test]
    fn a_turn_has_room_for_few() {
        let handshakes = Handshakes::new(0);
        assert_eq!((0..6).filter(|_| handshakes.take_turn()).count(), 4);
        handshakes.on_turn();
        assert!(handshakes.take_turn());
    }
}
