use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::time::{ClockId, clock_gettime};
use wire::http::date;

use crate::handler::Now;

/// Maximum number of readings that one turn of the event loop shares. A turn can be long under load.
const SHARED_READINGS_MAX: u32 = 64;

/// Clock of a worker. The monotonic clock is read once in a turn of the event loop. The wall clock is derived from it,
/// and the text of the Date field is formatted once a second. Reading a clock costs more than a twentieth of the time
/// for a small response.
#[derive(Debug)]
pub struct WorkerClock {
    /// Set by the runtime, in the same thread, after the event loop has waited.
    has_waited: Arc<AtomicBool>,
    shared_readings: Cell<u32>,
    recent: Cell<Now>,
    /// Lead of the wall clock over the monotonic clock, in microseconds. Updated periodically, because an operator can
    /// set the wall clock.
    unix_lead_us: Cell<i64>,
    date_second: Cell<u64>,
    date: Cell<[u8; date::DATE_BYTES]>,
}

impl WorkerClock {
    /// Makes a clock that agrees with the system's. The clock is read again whenever `has_waited` is set.
    pub fn new(has_waited: Arc<AtomicBool>) -> Self {
        let clock = Self {
            has_waited,
            shared_readings: Cell::new(SHARED_READINGS_MAX),
            recent: Cell::new(Now::read()),
            unix_lead_us: Cell::new(0),
            date_second: Cell::new(u64::MAX),
            date: Cell::new([b' '; date::DATE_BYTES]),
        };
        clock.synchronise();
        clock
    }

    /// Adjusts the clock to the system's wall clock.
    pub fn synchronise(&self) {
        self.unix_lead_us.set(read_us(ClockId::Realtime) - read_us(ClockId::Monotonic));
    }

    /// Returns the time, read now or earlier in this turn of the event loop.
    pub fn now(&self) -> Now {
        let shared_readings = self.shared_readings.get();
        if shared_readings < SHARED_READINGS_MAX && !self.has_waited.load(Ordering::Relaxed) {
            self.shared_readings.set(shared_readings + 1);
            return self.recent.get();
        }
        self.has_waited.store(false, Ordering::Relaxed);
        self.shared_readings.set(0);
        self.recent.set(self.read());
        self.recent.get()
    }

    /// Reads the clock and returns the time.
    pub fn refresh(&self) -> Now {
        self.has_waited.store(true, Ordering::Relaxed);
        self.now()
    }

    fn read(&self) -> Now {
        let monotonic_us = read_us(ClockId::Monotonic);
        let unix_us = (monotonic_us + self.unix_lead_us.get()).max(0) as u64;
        Now { monotonic_ms: monotonic_us as u64 / 1_000, unix_seconds: unix_us / 1_000_000, unix_us }
    }

    /// Text of a Date field for this time.
    pub fn date(&self, now: Now) -> [u8; date::DATE_BYTES] {
        if self.date_second.get() != now.unix_seconds {
            self.date_second.set(now.unix_seconds);
            self.date.set(date::format(now.unix_seconds));
        }
        self.date.get()
    }
}

fn read_us(clock: ClockId) -> i64 {
    let time = clock_gettime(clock);
    time.tv_sec * 1_000_000 + time.tv_nsec / 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If an operator sets the system's clock forward or back, deadlines do not move. Dates are right after the next
    /// synchronization.
    #[test]
    fn a_wall_clock_that_is_set() {
        let has_waited = Arc::new(AtomicBool::new(true));
        let clock = WorkerClock::new(Arc::clone(&has_waited));
        let read = || {
            has_waited.store(true, Ordering::Relaxed);
            clock.now()
        };
        let before = read();
        for jump_us in [-86_400_000_000_i64, 86_400_000_000] {
            // After a jump of the wall clock, the clock's lead is off by the length of the jump.
            clock.unix_lead_us.set(clock.unix_lead_us.get() - jump_us);
            let stale = read();
            assert!((86_300..86_500).contains(&stale.unix_seconds.abs_diff(before.unix_seconds)), "{jump_us}");
            assert!((0..60_000).contains(&(stale.monotonic_ms - before.monotonic_ms)), "deadlines don't jump");
            clock.synchronise();
            let after = read();
            assert!(after.unix_seconds.abs_diff(before.unix_seconds) < 60 && after.monotonic_ms >= stale.monotonic_ms);
            assert_eq!(clock.date(after), date::format(after.unix_seconds));
        }
    }
}
