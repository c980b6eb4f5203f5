//! Clock of the engine.

use std::time::{Duration, Instant};

/// Nanoseconds since the start of the run's clock.
pub(crate) type Nanos = u64;

pub(crate) const SECOND: Nanos = 1_000_000_000;
pub(crate) const MILLISECOND: Nanos = 1_000_000;

/// Monotonic clock that all threads of a run share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunClock {
    start: Instant,
}

impl RunClock {
    /// Starts a clock at 0.
    pub(crate) fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Returns the time since the start.
    pub(crate) fn now(&self) -> Nanos {
        nanos(self.start.elapsed())
    }

    /// Converts a time of this clock to the system's monotonic clock.
    pub(crate) fn instant(&self, now: Nanos) -> Instant {
        self.start + Duration::from_nanos(now)
    }

    /// Converts a time of the system's monotonic clock.
    pub(crate) fn nanos_of(&self, instant: Instant) -> Nanos {
        nanos(instant.saturating_duration_since(self.start))
    }
}

/// Converts a duration; saturates after several centuries.
pub(crate) fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
