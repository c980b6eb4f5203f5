use std::cell::Cell;

use rustix::time::{ClockId, clock_gettime};
use wire::http::date;

use crate::handler::Now;

/// A worker's clock: one reading of the monotonic clock a turn, from which the wall clock follows, and the text of the
/// Date field, formatted once a second.
#[derive(Debug)]
pub struct Clock {
    /// Microseconds that the wall clock is ahead of the monotonic one; set anew now and then, for it can be set.
    unix_lead_us: Cell<i64>,
    recent: Cell<Now>,
    date_second: Cell<u64>,
    date: Cell<[u8; date::DATE_BYTES]>,
}

impl Clock {
    /// A clock that agrees with the system's.
    pub fn new() -> Self {
        let clock = Self {
            unix_lead_us: Cell::new(0),
            recent: Cell::new(Now::read()),
            date_second: Cell::new(u64::MAX),
            date: Cell::new([b' '; date::DATE_BYTES]),
        };
        clock.synchronise();
        clock
    }

    /// Follows the wall clock.
    pub fn synchronise(&self) {
        self.unix_lead_us.set(read_us(ClockId::Realtime) - read_us(ClockId::Monotonic));
    }

    /// The time.
    pub fn now(&self) -> Now {
        let monotonic_us = read_us(ClockId::Monotonic);
        let unix_us = (monotonic_us + self.unix_lead_us.get()).max(0) as u64;
        let now = Now { monotonic_ms: monotonic_us as u64 / 1_000, unix_seconds: unix_us / 1_000_000, unix_us };
        self.recent.set(now);
        now
    }

    /// The time when it was last read: at most as long ago as the worker looks at its connections, a tenth of a second.
    /// Good enough for deadlines, and saves the reading.
    pub fn recent(&self) -> Now {
        self.recent.get()
    }

    /// The text of a Date field.
    pub fn date(&self, now: Now) -> [u8; date::DATE_BYTES] {
        if self.date_second.get() != now.unix_seconds {
            self.date_second.set(now.unix_seconds);
            self.date.set(date::format(now.unix_seconds));
        }
        self.date.get()
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

fn read_us(clock: ClockId) -> i64 {
    let time = clock_gettime(clock);
    time.tv_sec * 1_000_000 + time.tv_nsec / 1_000
}
