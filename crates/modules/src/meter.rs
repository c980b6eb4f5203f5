//! CPU time of an instance.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use wasmtime::UpdateDeadline;

/// CPU time that an instance has used, and its limit. The thread that runs the instance reads and writes it; that
/// thread may change between two polls.
#[derive(Debug)]
pub(super) struct Meter {
    limit_ns: u64,
    used_ns: AtomicU64,
    /// Start of the current run, on [`Self::clock`].
    began_ns: AtomicU64,
    /// True on a low-priority thread, where only CPU time counts. On a worker's thread, elapsed time is nearly the
    /// same, and faster to read.
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

    /// Starts a run.
    pub(super) fn begin(&self) {
        self.began_ns.store(self.clock(), Ordering::Relaxed);
    }

    /// Ends a run, until the next poll.
    pub(super) fn end(&self) {
        self.used_ns.store(self.used_ns(), Ordering::Relaxed);
    }

    /// Handles an interrupt: the instance yields, or ends if its time is used up.
    pub(super) fn on_interrupt(&self) -> wasmtime::Result<UpdateDeadline> {
        if self.used_ns() < self.limit_ns {
            return Ok(UpdateDeadline::Yield(1));
        }
        self.is_used_up.store(true, Ordering::Relaxed);
        Ok(UpdateDeadline::Interrupt)
    }

    /// Prepares for another request, on either kind of thread.
    pub(super) fn restart(&self) {
        self.used_ns.store(0, Ordering::Relaxed);
    }

    /// True if the instance was stopped for using too much time.
    pub(super) fn is_used_up(&self) -> bool {
        self.is_used_up.load(Ordering::Relaxed)
    }

    /// Time used up to the last [`Self::end`].
    pub(super) fn used(&self) -> Duration {
        Duration::from_nanos(self.used_ns.load(Ordering::Relaxed))
    }

    /// Moves the meter to a worker's thread. Must not be called during a run, because the two kinds of threads have
    /// different clocks.
    pub(super) fn set_here(&self) {
        self.is_away.store(false, Ordering::Relaxed);
    }

    /// Moves the meter to other threads. Must not be called during a run.
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

    /// The two clocks have different origins: mixed up, they report the machine's uptime.
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
