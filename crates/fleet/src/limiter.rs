//! Rate limits that instances share (GCRA).
//!
//! Each instance decides by its own bucket, so that no request waits for the store. It sends what it has granted to the store
//! in batches; the store adds the costs of all instances and returns the whole backlog, which replaces the own. What instances
//! grant before they know of each other is a debt: it delays later requests until it is paid, so that the rate over time is
//! that of one limiter.

/// Bucket of one key at one instance. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedBucket {
    /// Time at which the bucket is full again. If that time is past, it is full.
    pub full_at_ns: u64,
    /// Cost of granted requests that the store does not know.
    pub unsent_ns: u64,
}

impl SharedBucket {
    /// Counts a request of this cost.
    ///
    /// # Errors
    /// The burst is used up: returns the time until the request is allowed. It is not counted.
    pub fn take(&mut self, cost_ns: u64, burst_ns: u64, now_ns: u64) -> Result<(), u64> {
        let full_at_ns = self.full_at_ns.max(now_ns).saturating_add(cost_ns);
        let missing_ns = (full_at_ns - now_ns).saturating_sub(burst_ns);
        if missing_ns > 0 {
            return Err(missing_ns);
        }
        self.full_at_ns = full_at_ns;
        self.unsent_ns = self.unsent_ns.saturating_add(cost_ns);
        Ok(())
    }

    /// Cost to send to the store; it counts as sent.
    pub fn send(&mut self) -> u64 {
        std::mem::take(&mut self.unsent_ns)
    }

    /// Takes the backlog of all instances, which the store had when it added the cost sent last.
    pub fn settle(&mut self, backlog_ns: u64, now_ns: u64) {
        self.full_at_ns = now_ns.saturating_add(backlog_ns).saturating_add(self.unsent_ns);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::simulation::sizing::{LimitLoad, LimitRun};

    #[test]
    fn several_instances_grant_what_one_limiter_grants() {
        for (shares, interval_ms, delay_ms) in [
            (&[1.0, 0.0, 0.0][..], 100, 2),
            (&[0.8, 0.15, 0.05], 100, 2),
            (&[0.34, 0.33, 0.33], 100, 2),
            (&[0.8, 0.15, 0.05], 100, 90),
            (&[0.1; 10], 100, 5),
        ] {
            for arrivals in [LimitLoad::Even, LimitLoad::Random(7)] {
                let time = Duration::from_secs(60);
                let (granted, ideally) = LimitRun { rate: 100, shares, interval_ms, delay_ms, time, arrivals }.run();
                let error = (granted as f64 / ideally as f64 - 1.0).abs();
                assert!(error < 0.05, "{shares:?}, {arrivals:?}, {delay_ms} ms: {granted} instead of {ideally}");
            }
        }
    }

    #[test]
    fn extremes() {
        let mut bucket = SharedBucket::default();
        assert!(bucket.take(u64::MAX, u64::MAX, u64::MAX).is_ok());
        assert_eq!(bucket.take(1, 0, u64::MAX - 1), Err(1));
        bucket.settle(u64::MAX, 5);
        assert_eq!(bucket.full_at_ns, u64::MAX);
        assert_eq!(SharedBucket::default().take(10, 5, 0), Err(5));
    }
}
