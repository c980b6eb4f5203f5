//! Time as the engine counts it.

use std::time::{Duration, Instant};

/// Nanoseconds since the run's clock began.
pub(crate) type Nanos = u64;

/// One second.
pub(crate) const SECOND: Nanos = 1_000_000_000;
/// One millisecond.
pub(crate) const MILLISECOND: Nanos = 1_000_000;

/// The clock that all threads of a run share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock that begins now.
    pub(crate) fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// The time since it began.
    pub(crate) fn now(&self) -> Nanos {
        nanos(self.start.elapsed())
    }
}

/// A duration in nanoseconds; centuries are cut off.
pub(crate) fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
