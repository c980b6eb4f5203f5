use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tailcoat_fleet::SharedBucket;

use crate::config::Rate;

/// Number of locks that the keys are spread over, so that workers rarely wait for each other.
const SHARDS: usize = 64;

/// Number of places in a set; a key uses one place of its set.
const WAYS: usize = 8;

/// Keys of one lock whose grants wait to be told to other instances. Grants of further keys are not told.
const UNSENT_MAX: usize = 1_024;

/// Bursts of debt that a key of a shared limit can have.
const DEBT_BURSTS_MAX: u64 = 64;

/// Wait for clients of a shared limit while the store is away.
const CLOSED_WAIT: Duration = Duration::from_secs(1);

/// Rate limiter by key. It uses the generic cell rate algorithm, which is a token bucket in one number.
///
/// The number of places is fixed. A key without a free place replaces the key in its set whose bucket will be full
/// first. To evict its own place, a client needs many keys that have used more of their rate than its own. It could as
/// well have sent its requests under those keys.
#[derive(Debug)]
pub struct RateTable {
    shards: Box<[Mutex<Shard>]>,
    /// Time in which one request is refilled. A request that comes while both times change may be counted by the old
    /// one and the new one.
    interval_ns: AtomicU64,
    /// Time in which an empty bucket is refilled.
    burst_ns: AtomicU64,
    /// Identity among instances; 0 if the limit is not shared.
    shared_id: AtomicU64,
    /// True while the store is away and requests must not pass without it.
    is_closed: AtomicBool,
    /// True if the table only counts, so that it never closes.
    only_counts: bool,
}

/// Places protected by one lock.
#[derive(Debug)]
struct Shard {
    /// Sets of places; a key belongs to one set.
    sets: Box<[[RateEntry; WAYS]]>,
    /// Keys whose grants other instances do not know.
    unsent: Vec<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct RateEntry {
    key: u64,
    /// If it is full, the place is free.
    bucket: SharedBucket,
}

/// Grants of a key, for other instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsentGrants {
    /// Key in the table.
    pub key: u64,
    /// Key among instances.
    pub shared_key: u64,
    /// Cost of the grants, in nanoseconds.
    pub cost_ns: u64,
    /// Largest backlog of the key, in nanoseconds.
    pub backlog_ns_max: u64,
}

impl RateTable {
    /// Makes a table for at least `keys_max` keys. `burst` is at least 1.
    pub(crate) fn new(rate: Rate, burst: u32, keys_max: usize) -> Self {
        let sets = keys_max.div_ceil(SHARDS * WAYS).max(1);
        let shard = || {
            let sets = vec![[RateEntry::default(); WAYS]; sets].into_boxed_slice();
            Mutex::new(Shard { sets, unsent: Vec::new() })
        };
        let shards = (0..SHARDS).map(|_| shard()).collect();
        let table = Self {
            shards,
            interval_ns: AtomicU64::default(),
            burst_ns: AtomicU64::default(),
            shared_id: AtomicU64::default(),
            is_closed: AtomicBool::default(),
            only_counts: false,
        };
        table.set_rate(rate, burst);
        table
    }

    /// Makes a table of events that are no requests to reject, such as rejections.
    pub(crate) fn counting(rate: Rate, burst: u32, keys_max: usize) -> Self {
        Self { only_counts: true, ..Self::new(rate, burst, keys_max) }
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
        if self.is_closed.load(Ordering::Relaxed) {
            return Err(CLOSED_WAIT);
        }
        let now_ns = now_ms.saturating_mul(1_000_000);
        let mut shard = self.lock(key);
        let Shard { sets, unsent } = &mut *shard;
        let set = &mut sets[set_of(key, sets.len())];
        let place = match set.iter().position(|place| place.key == key) {
            Some(known) => &mut set[known],
            None => {
                let first = (0..WAYS).min_by_key(|&index| set[index].bucket.full_at_ns).unwrap_or(0);
                set[first] = RateEntry { key, bucket: SharedBucket::default() };
                &mut set[first]
            }
        };
        let was_sent = place.bucket.unsent_ns == 0;
        let (interval_ns, burst_ns) = (self.interval_ns.load(Ordering::Relaxed), self.burst_ns.load(Ordering::Relaxed));
        place.bucket.take(interval_ns, burst_ns, now_ns).map_err(Duration::from_nanos)?;
        if self.shared_id.load(Ordering::Relaxed) == 0 || was_sent && unsent.len() >= UNSENT_MAX {
            place.bucket.unsent_ns = 0;
        } else if was_sent {
            unsent.push(key);
        }
        Ok(())
    }

    fn lock(&self, key: u64) -> MutexGuard<'_, Shard> {
        // A panic while the lock is held leaves valid numbers.
        self.shards[key as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shares the limit with the instances that have a limit of this identity, which is not 0; 0 shares it no longer.
    /// Returns true if it was not shared before.
    pub(crate) fn share(&self, id: u64) -> bool {
        let before = self.shared_id.swap(id, Ordering::Relaxed);
        if id == 0 {
            self.is_closed.store(false, Ordering::Relaxed);
        }
        before == 0
    }

    /// True if the limit is shared.
    pub fn is_shared(&self) -> bool {
        self.shared_id.load(Ordering::Relaxed) != 0
    }

    /// Rejects all requests until it is called with `false`, unless the table only counts.
    pub fn close(&self, is_closed: bool) {
        self.is_closed.store(is_closed && self.is_shared() && !self.only_counts, Ordering::Relaxed);
    }

    /// Adds grants that other instances do not know, of at most `max` keys; they count as told.
    pub fn collect(&self, grants: &mut Vec<UnsentGrants>, max: usize) {
        let id = self.shared_id.load(Ordering::Relaxed);
        let backlog_ns_max = self.burst_ns.load(Ordering::Relaxed).saturating_mul(DEBT_BURSTS_MAX);
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let Shard { sets, unsent } = &mut *shard;
            while grants.len() < max
                && let Some(key) = unsent.pop()
            {
                let set = &mut sets[set_of(key, sets.len())];
                // Another key may have replaced it.
                let Some(place) = set.iter_mut().find(|place| place.key == key) else { continue };
                let cost_ns = place.bucket.send();
                grants.push(UnsentGrants { key, shared_key: key ^ id, cost_ns, backlog_ns_max });
            }
        }
    }

    /// Takes the backlog of all instances for a key whose grants the store has.
    pub fn settle(&self, key: u64, backlog_ns: u64, now_ms: u64) {
        let mut shard = self.lock(key);
        let sets = &mut shard.sets;
        let set = &mut sets[set_of(key, sets.len())];
        if let Some(place) = set.iter_mut().find(|place| place.key == key) {
            place.bucket.settle(backlog_ns, now_ms.saturating_mul(1_000_000));
        }
    }
}

/// Index of the set that a key belongs to.
fn set_of(key: u64, sets: usize) -> usize {
    (key as usize / SHARDS) % sets
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

    /// Two instances with a limit of 10 requests per second and a burst of 10, and a store that adds their costs.
    #[test]
    fn instances_share_a_limit() {
        let tables = [table(10, 1, 10, 100), table(10, 1, 10, 100)];
        tables.iter().for_each(|table| _ = table.share(77));
        let (mut stored_full_at_ns, mut granted) = (0_u64, 0);
        for now_ms in (10_000..70_000).step_by(10) {
            for table in &tables {
                granted += (0..3).filter(|_| table.take(5, now_ms).is_ok()).count();
            }
            if now_ms % 100 == 0 {
                let now_ns = now_ms * 1_000_000;
                for table in &tables {
                    let mut grants = Vec::new();
                    table.collect(&mut grants, 10);
                    for UnsentGrants { key, shared_key, cost_ns, .. } in grants {
                        assert_eq!(shared_key, 5 ^ 77);
                        stored_full_at_ns = stored_full_at_ns.max(now_ns) + cost_ns;
                        table.settle(key, stored_full_at_ns - now_ns, now_ms);
                    }
                }
            }
        }
        // One limiter would grant 610.
        assert!((580..=640).contains(&granted), "{granted}");
        tables[0].close(true);
        assert_eq!(tables[0].take(9, 1_000_000).err(), Some(CLOSED_WAIT));
        tables[0].share(0);
        assert!(tables[0].take(9, 1_000_000).is_ok(), "a limit of this instance alone");
        let counter = RateTable::counting(Rate { count: 1, period: Duration::from_secs(1) }, 1, 100);
        counter.share(77);
        counter.close(true);
        assert!(counter.take(9, 1_000_000).is_ok(), "no ban because the store is away");
        let mut grants = Vec::new();
        tables[0].collect(&mut grants, 10);
        assert_eq!(grants, []);
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
