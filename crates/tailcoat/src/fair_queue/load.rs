//! Whether a queue is overloaded, as a function of how long its oldest request has waited.

/// An overload has ended when the oldest request has waited for less than this part of the longest wait.
const END_DIVISOR: u64 = 2;

/// The load of a queue.
#[derive(Debug, Default)]
pub(super) struct QueueLoad {
    /// Since when the oldest request has waited for too long, and how long the queue was then.
    above: Option<(u64, usize)>,
    /// Since when it has been overloaded.
    overloaded_ms: Option<u64>,
}

/// The limits of a queue that may be overloaded. A queue without a longest wait never is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueLimits {
    /// How long requests may wait before the queue is overloaded.
    pub wait_max_ms: u64,
    /// When a request gives up.
    pub timeout_ms: u64,
    /// How many requests can be in progress.
    pub places: u64,
}

/// The change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadChange {
    /// The queue is overloaded.
    Began,
    /// It no longer is.
    Ended,
}

impl QueueLoad {
    pub(super) fn is_overloaded(&self) -> bool {
        self.overloaded_ms.is_some()
    }

    /// Looks at the queue: when its oldest request has joined it, if there is one, and how many there are.
    pub(super) fn look(
        &mut self,
        now_ms: u64,
        oldest_ms: Option<u64>,
        length: usize,
        limits: QueueLimits,
    ) -> Option<LoadChange> {
        let wait_max_ms = limits.wait_max_ms;
        let Some(oldest_ms) = oldest_ms.filter(|_| wait_max_ms > 0) else { return self.on_empty() };
        let wait_ms = now_ms.saturating_sub(oldest_ms);
        if self.is_overloaded() {
            return if wait_ms < wait_max_ms / END_DIVISOR { self.on_empty() } else { None };
        }
        if wait_ms <= wait_max_ms {
            self.above = None;
            return None;
        }
        let (above_ms, length_then) = *self.above.get_or_insert((now_ms, length));
        let elapsed_ms = now_ms.saturating_sub(above_ms);
        if elapsed_ms < wait_max_ms {
            return None;
        }
        let left_ms = limits.timeout_ms.saturating_sub(wait_ms);
        let drained = length_then.saturating_sub(length) as u64;
        // As many as are in progress are served when those end, however slow they are.
        let is_short = length as u64 <= limits.places;
        // A burst: at this rate, all are served in time.
        let drains_in_time = length as u64 * elapsed_ms <= drained * left_ms;
        if is_short || drains_in_time {
            self.above = Some((now_ms, length));
            return None;
        }
        self.overloaded_ms = Some(now_ms);
        Some(LoadChange::Began)
    }

    /// Notes that no request waits.
    pub(super) fn on_empty(&mut self) -> Option<LoadChange> {
        self.above = None;
        self.overloaded_ms.take().map(|_| LoadChange::Ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: QueueLimits = QueueLimits { wait_max_ms: 1_000, timeout_ms: 10_000, places: 4 };

    /// When a queue begins and ends to be overloaded, in milliseconds. `queue` tells when the oldest has joined, and how many
    /// wait.
    fn changes(queue: impl Fn(u64) -> (u64, usize)) -> Vec<(u64, LoadChange)> {
        let mut load = QueueLoad::default();
        let looks = (0..30_000).step_by(10).filter_map(|now_ms| {
            let (oldest_ms, length) = queue(now_ms);
            let oldest_ms = (length > 0).then_some(oldest_ms);
            load.look(now_ms, oldest_ms, length, LIMITS).map(|change| (now_ms, change))
        });
        looks.collect()
    }

    #[test]
    fn a_queue_that_stands_is_overloaded() {
        use LoadChange::{Began, Ended};
        // Twice as many come as leave: the oldest joined at half the time.
        let growing = |now_ms: u64| (now_ms / 2, now_ms as usize / 20);
        assert_eq!(changes(growing), [(3_010, Began)]);
        // The same, until nobody comes any more.
        let ending = |now_ms: u64| if now_ms < 10_000 { growing(now_ms) } else { (0, 0) };
        assert_eq!(changes(ending), [(3_010, Began), (10_000, Ended)]);
        // Clients that wait for their answers: always as many, each of them for 3 s.
        assert_eq!(changes(|now_ms| (now_ms.saturating_sub(3_000), 100)), [(2_010, Began)]);
        // All wait for less than it takes.
        assert_eq!(changes(|now_ms| (now_ms.saturating_sub(1_000), 100)), []);
    }

    #[test]
    fn a_queue_as_long_as_what_is_in_progress_is_no_overload() {
        for (length, expect) in [(4, None), (5, Some(LoadChange::Began))] {
            let mut load = QueueLoad::default();
            let mut look = |now_ms| load.look(now_ms, Some(0), length, LIMITS);
            assert_eq!([look(1_001), look(2_001)], [None, expect], "{length} wait");
        }
    }

    #[test]
    fn a_burst_that_is_served_in_time_is_no_overload() {
        // 900 at once, of which 100 a second are served.
        let burst = |now_ms: u64| (0, 900_usize.saturating_sub(now_ms as usize / 10));
        assert_eq!(changes(burst), []);
        // Twice as many will not be.
        let burst = |now_ms: u64| (0, 1_800_usize.saturating_sub(now_ms as usize / 10));
        assert_eq!(changes(burst)[0], (2_010, LoadChange::Began));
    }

    #[test]
    fn it_ends_when_the_oldest_has_waited_for_half_the_time() {
        let recovering = |now_ms: u64| match now_ms {
            0..5_000 => (now_ms / 2, 100),
            5_000..6_000 => (now_ms - 600, 100),
            _ => (now_ms - 490, 100),
        };
        assert_eq!(changes(recovering), [(3_010, LoadChange::Began), (6_000, LoadChange::Ended)]);
    }
}
