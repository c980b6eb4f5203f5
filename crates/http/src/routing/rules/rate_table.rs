use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::config::Rate;

/// Number of locks that the keys are spread over, so that workers rarely wait for each other.
const SHARDS: usize = 64;

/// Number of places in a set; a key uses one place of its set.
const WAYS: usize = 8;

/// Rate limiter by key. It uses the generic cell rate algorithm, which is a token bucket in one number.
///
/// The number of places is fixed. A key without a free place replaces the key in its set whose bucket will be full
/// first. To evict its own place, a client needs many keys that have used more of their rate than its own. It could as
/// well have sent its requests under those keys.
#[derive(Debug)]
pub(crate) struct RateTable {
    shards: Box<[Mutex<Shard>]>,
    /// Time in which one request is refilled. A request that comes while both times change may be counted by the old
    /// one and the new one.
    interval_ns: AtomicU64,
    /// Time in which an empty bucket is refilled.
    burst_ns: AtomicU64,
}

/// Places protected by one lock, as sets; a key belongs to one set.
type Shard = Box<[[RateEntry; WAYS]]>;

#[derive(Clone, Copy, Debug, Default)]
struct RateEntry {
    key: u64,
    /// Time at which the bucket is full again. If that time is past, the place is free.
    whole_at_ns: u64,
}

impl RateTable {
    /// Makes a table for at least `keys_max` keys. `burst` is at least 1.
    pub(crate) fn new(rate: Rate, burst: u32, keys_max: usize) -> Self {
        let sets = keys_max.div_ceil(SHARDS * WAYS).max(1);
        let shard = || Mutex::new(vec![[RateEntry::default(); WAYS]; sets].into_boxed_slice());
        let shards = (0..SHARDS).map(|_| shard()).collect();
        let table = Self { shards, interval_ns: AtomicU64::default(), burst_ns: AtomicU64::default() };
        table.set_rate(rate, burst);
        table
    }

    /// Changes the rate of all keys; what they have used stays counted. `burst` is at least 1.
    pub(crate) fn set_rate(&self, rate: Rate, burst: u32) {
        let interval_ns = (rate.period.as_nanos() as u64 / u64::from(rate.count)).max(1);
        self.interval_ns.store(interval_ns, Ordering::Relaxed);
        self.burst_ns.store(interval_ns.saturating_mul(burst.into()), Ordering::Relaxed);
    }

    /// Counts a request of a key, which must be a hash that clients cannot choose.
    ///
    /// # Errors
    /// The rate is exceeded: returns the time until the next request is allowed. The request is not counted.
    pub(crate) fn take(&self, key: u64, now_ms: u64) -> Result<(), Duration> {
        let now_ns = now_ms.saturating_mul(1_000_000);
        let shard = &self.shards[key as usize % SHARDS];
        // A panic while the lock is held leaves valid numbers.
        let mut sets = shard.lock().unwrap_or_else(PoisonError::into_inner);
        let index = (key as usize / SHARDS) % sets.len();
        let set = &mut sets[index];
        let place = match set.iter().position(|place| place.key == key) {
            Some(known) => &mut set[known],
            None => {
                let first = (0..WAYS).min_by_key(|&index| set[index].whole_at_ns).unwrap_or(0);
                set[first] = RateEntry { key, whole_at_ns: 0 };
                &mut set[first]
            }
        };
        let whole_at_ns = place.whole_at_ns.max(now_ns).saturating_add(self.interval_ns.load(Ordering::Relaxed));
        let missing_ns = (whole_at_ns - now_ns).saturating_sub(self.burst_ns.load(Ordering::Relaxed));
        if missing_ns > 0 {
            return Err(Duration::from_nanos(missing_ns));
        }
        place.whole_at_ns = whole_at_ns;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn table(count: u32, seconds: u64, burst: u32, keys_max: usize) -> RateTable {
        RateTable::new(Rate { count, period: Duration::from_secs(seconds) }, burst, keys_max)
    }

    #[test]
    fn requests_by_time() {
        let table = table(2, 1, 3, 100);
        // Time in milliseconds, key, and milliseconds to wait; 0 means granted.
        for (now_ms, key, expect_ms) in [
            (10_000, 1, 0),
            (10_000, 1, 0),
            (10_000, 1, 0),
            (10_000, 1, 500),
            (10_100, 1, 400),
            (10_100, 2, 0),
            (10_500, 1, 0),
            (10_500, 1, 500),
            // The bucket is full again.
            (20_000, 1, 0),
            (20_000, 1, 0),
            (20_000, 1, 0),
            (20_000, 1, 500),
            // Clocks of workers may differ by one turn of the event loop.
            (19_999, 1, 501),
        ] {
            let found = table.take(key, now_ms).err().unwrap_or_default();
            assert_eq!(found, Duration::from_millis(expect_ms), "{now_ms} {key}");
        }
    }

    #[test]
    fn a_changed_rate_holds_for_known_keys() {
        let table = table(1, 1, 2, 100);
        assert!(table.take(1, 10_000).is_ok() && table.take(1, 10_000).is_ok());
        table.set_rate(Rate { count: 10, period: Duration::from_secs(1) }, 20);
        // Two seconds are used of the two that the new burst has.
        assert_eq!(table.take(1, 10_000).err(), Some(Duration::from_millis(100)));
        assert!((0..20).all(|_| table.take(2, 10_000).is_ok()));
        table.set_rate(Rate { count: 1, period: Duration::from_secs(1) }, 2);
        assert_eq!(table.take(2, 10_000).err(), Some(Duration::from_secs(1)));
    }

    #[test]
    fn extremes_do_not_overflow() {
        for (count, seconds, burst) in [(1, 86_400, 1_000_000), (1_000_000, 1, 1), (1_000_000, 1, 1_000_000)] {
            let table = table(count, seconds, burst, 8);
            for now_ms in [0, 1, u64::MAX / 2_000_000, u64::MAX] {
                let granted = (0..burst.min(10)).all(|_| table.take(1, now_ms).is_ok());
                assert!(granted, "{count} {seconds} {burst} {now_ms}");
            }
        }
    }

    #[test]
    fn a_flood_of_others_forgets_no_client() {
        let table = table(1, 60, 5, 64);
        assert!((0..5).all(|_| table.take(7, 0).is_ok()));
        // Ten thousand keys with one request each.
        assert!((100..10_100).all(|key: u64| table.take(key.wrapping_mul(0x9e37_79b9_7f4a_7c15), 0).is_ok()));
        assert!(table.take(7, 0).is_err());
    }

    proptest! {
        /// In any period, grants never exceed the burst plus the rate.
        #[test]
        fn no_more_than_the_rate(
            count in 1_u32..100,
            burst in 1_u32..20,
            steps_ms in proptest::collection::vec(0_u64..500, 1..200),
        ) {
            let table = table(count, 1, burst, 8);
            let (mut now_ms, mut granted) = (1_000, 0_u64);
            for step_ms in steps_ms {
                now_ms += step_ms;
                granted += u64::from(table.take(3, now_ms).is_ok());
                let most = u64::from(burst) + (now_ms - 1_000) * u64::from(count) / 1_000 + 1;
                prop_assert!(granted <= most);
            }
        }
    }
}
