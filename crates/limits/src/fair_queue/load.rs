//! Detection of an overloaded queue, from the waiting time of its oldest request.

/// Divisor of the longest wait. An overload ends when the oldest request has waited for less than that.
const END_DIVISOR: u64 = 2;

/// Load of a queue, as a state machine without a clock.
#[derive(Debug, Default)]
pub(super) struct QueueLoad {
    /// Time since which the oldest request has waited too long, and the queue's length then.
    above: Option<(u64, usize)>,
    /// Start of the present overload.
    overloaded_ms: Option<u64>,
}

/// Limits of a queue that may be overloaded. A queue with `wait_max_ms` of zero never is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueLimits {
    /// Waiting time above which a queue may be overloaded, in milliseconds.
    pub wait_max_ms: u64,
    /// Time after which a request leaves the queue unserved, in milliseconds.
    pub timeout_ms: u64,
    /// Number of requests that can be in progress.
    pub places: u64,
}

/// Change of a queue's load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadChange {
    /// The queue is overloaded.
    Began,
    /// The overload has ended.
    Ended,
}

impl QueueLoad {
    pub(super) fn is_overloaded(&self) -> bool {
        self.overloaded_ms.is_some()
    }

    /// Updates the load from the time at which the oldest request joined, if there is one, and the queue's length.
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
        // A queue no longer than the number of places is served when the present requests end, however slow they are.
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

    /// Records that no request waits.
    pub(super) fn on_empty(&mut self) -> Option<LoadChange> {
        self.above = None;
        self.overloaded_ms.take().map(|_| LoadChange::Ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: QueueLimits = QueueLimits { wait_max_ms: 1_000, timeout_ms: 10_000, places: 4 };

    /// Times in milliseconds at which a queue's overload begins and ends. `queue` returns when the oldest request
    /// joined, and the length.
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
        // Twice as many arrive as leave: the oldest joined at half the time.
        let growing = |now_ms: u64| (now_ms / 2, now_ms as usize / 20);
        assert_eq!(changes(growing), [(3_010, Began)]);
        // As above, until no more requests arrive.
        let ending = |now_ms: u64| if now_ms < 10_000 { growing(now_ms) } else { (0, 0) };
        assert_eq!(changes(ending), [(3_010, Began), (10_000, Ended)]);
        // Clients that send the next request after each response: a constant length, and a wait of 3 s.
        assert_eq!(changes(|now_ms| (now_ms.saturating_sub(3_000), 100)), [(2_010, Began)]);
        // All wait for less than the limit.
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
        // 900 at once, of which 100 per second are served.
        let burst = |now_ms: u64| (0, 900_usize.saturating_sub(now_ms as usize / 10));
        assert_eq!(changes(burst), []);
        // Twice as many cannot be served in time.
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
