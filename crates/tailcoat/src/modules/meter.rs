//! How long an instance has computed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use wasmtime::UpdateDeadline;

/// How long an instance has computed, and may. It is read and written by the thread that runs the instance, which may
/// change between two polls.
#[derive(Debug)]
pub(super) struct Meter {
    limit_ns: u64,
    used_ns: AtomicU64,
    /// When it began to run this time, on the clock of [`Self::clock`].
    began_ns: AtomicU64,
    /// It runs on a thread that gives way to others, so that only the processor's time counts. On a worker's thread the
    /// time that passed is nearly the same, and quicker to read.
    is_away: AtomicBool,
    is_used_up: AtomicBool,
}

impl Meter {
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            limit_ns: limit.as_nanos() as u64,
            used_ns: AtomicU64::new(0),
            began_ns: AtomicU64::new(0),
            is_away: AtomicBool::new(false),
            is_used_up: AtomicBool::new(false),
        }
    }

    /// It begins to run.
    pub(super) fn begin(&self) {
        self.began_ns.store(self.clock(), Ordering::Relaxed);
    }

    /// It stops for now.
    pub(super) fn end(&self) {
        self.used_ns.store(self.used_ns(), Ordering::Relaxed);
    }

    /// It was interrupted: whether it goes on after a pause, or ends.
    pub(super) fn on_interrupt(&self) -> wasmtime::Result<UpdateDeadline> {
        if self.used_ns() < self.limit_ns {
            return Ok(UpdateDeadline::Yield(1));
        }
        self.is_used_up.store(true, Ordering::Relaxed);
        Ok(UpdateDeadline::Interrupt)
    }

    /// It begins with another request, wherever it runs.
    pub(super) fn restart(&self) {
        self.used_ns.store(0, Ordering::Relaxed);
    }

    /// Whether it was stopped for having computed too long.
    pub(super) fn is_used_up(&self) -> bool {
        self.is_used_up.load(Ordering::Relaxed)
    }

    /// How long it has computed up to the last [`Self::end`].
    pub(super) fn used(&self) -> Duration {
        Duration::from_nanos(self.used_ns.load(Ordering::Relaxed))
    }

    /// From now on it runs on the worker's thread. Not to be called while it runs: the two have clocks of their own.
    pub(super) fn set_here(&self) {
        self.is_away.store(false, Ordering::Relaxed);
    }

    /// From now on it runs on other threads. Not to be called while it runs.
    pub(super) fn set_away(&self) {
        self.is_away.store(true, Ordering::Relaxed);
    }

    fn used_ns(&self) -> u64 {
        let running = self.clock().saturating_sub(self.began_ns.load(Ordering::Relaxed));
        self.used_ns.load(Ordering::Relaxed) + running
    }

    fn clock(&self) -> u64 {
        let is_away = self.is_away.load(Ordering::Relaxed);
        let time = clock_gettime(if is_away { ClockId::ThreadCPUTime } else { ClockId::Monotonic });
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each of the two clocks has a beginning of its own: mixed up, they tell of as long as the machine is up.
    #[test]
    fn a_request_that_begins_on_another_thread_keeps_its_clock() {
        let goes_on = |meter: &Meter| matches!(meter.on_interrupt(), Ok(UpdateDeadline::Yield(_)));
        let meter = Meter::new(Duration::from_secs(60));
        meter.begin();
        meter.end();
        meter.set_away();
        meter.begin();
        meter.restart();
        assert!(goes_on(&meter) && !meter.is_used_up());
        meter.end();
        meter.set_here();
        meter.begin();
        meter.restart();
        assert!(goes_on(&meter) && meter.used() < Duration::from_secs(60));
    }
}
