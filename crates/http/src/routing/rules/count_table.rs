use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Number of locks that the keys are spread over, so that workers rarely wait for each other.
const SHARDS: usize = 16;

/// Shards whose counts one batch sends again, so that they do not expire: all within a second.
const REFRESHED: usize = 2;

/// Keys of one lock whose counts have changed. The next refresh sends those of further keys.
const CHANGED_MAX: usize = 1_024;

/// Keys of one lock that have operations at other instances only.
const IDLE_MAX: usize = 1_024;

/// Counts operations in progress by key. Has entries only for keys with at least one operation, at this instance or, if the
/// limit is shared, at others.
#[derive(Debug, Default)]
pub struct CountTable {
    shards: [Mutex<Shard>; SHARDS],
    /// Identity among instances; 0 if the limit is not shared.
    shared_id: AtomicU64,
    /// True while the store is away and operations must not begin without it.
    is_closed: AtomicBool,
    /// Shard that is refreshed next.
    refreshed: AtomicUsize,
}

/// Counts protected by one lock.
#[derive(Debug, Default)]
struct Shard {
    counts: HashMap<u64, Count>,
    /// Keys whose counts other instances do not know.
    changed: Vec<u64>,
}

/// Operations of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    /// At this instance.
    own: u32,
    /// At other instances, as the store said last.
    others: u32,
    /// Own ones that the store knows.
    told: u32,
    /// True if the key is in [`Shard::changed`].
    is_queued: bool,
}

/// Operations of a key at this instance, for other instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnCount {
    /// Key in the table.
    pub key: u64,
    /// Key among instances.
    pub shared_key: u64,
    /// Operations in progress.
    pub count: u32,
}

/// Operation in progress; dropping the permit ends its count.
#[derive(Debug)]
pub struct Permit {
    table: Arc<CountTable>,
    key: u64,
}

impl CountTable {
    /// Counts one more operation for a key; returns `None` if `count_max` is reached.
    pub fn take(self: &Arc<Self>, key: u64, count_max: u32) -> Option<Permit> {
        self.add(key, count_max).then(|| Permit { table: Arc::clone(self), key })
    }

    /// Counts one more operation for a key; returns false if `count_max` is reached. The caller must end the count with
    /// [`CountTable::give_back`].
    pub fn add(&self, key: u64, count_max: u32) -> bool {
        if self.is_closed.load(Ordering::Relaxed) {
            return false;
        }
        let mut shard = self.lock(key);
        let Shard { counts, changed } = &mut *shard;
        let count = counts.entry(key).or_default();
        let is_granted = count.own.saturating_add(count.others) < count_max;
        count.own += u32::from(is_granted);
        if is_granted && self.is_shared() {
            count.queue(key, changed);
        }
        // A new entry always has an own count of at least 1, because no limit is 0.
        is_granted
    }

    /// Ends the count of one operation.
    pub fn give_back(&self, key: u64) {
        let mut shard = self.lock(key);
        let Shard { counts, changed } = &mut *shard;
        if let Some(count) = counts.get_mut(&key) {
            count.own -= 1;
            if self.is_shared() {
                count.queue(key, changed);
            } else if count.own == 0 {
                counts.remove(&key);
            }
        }
    }

    /// Shares the limit with the instances that have a limit of this identity, which is not 0; 0 shares it no longer.
    /// Returns true if it was not shared before.
    pub(crate) fn share(&self, id: u64) -> bool {
        let before = self.shared_id.swap(id, Ordering::Relaxed);
        if before != id {
            self.forget_others();
        }
        if id == 0 {
            self.is_closed.store(false, Ordering::Relaxed);
        }
        before == 0
    }

    /// True if the limit is shared.
    pub fn is_shared(&self) -> bool {
        self.shared_id.load(Ordering::Relaxed) != 0
    }

    /// Rejects all operations until it is called with `false`.
    pub fn close(&self, is_closed: bool) {
        self.is_closed.store(is_closed && self.is_shared(), Ordering::Relaxed);
    }

    /// Adds counts that other instances do not know, and some that the store would forget, of at most `max` keys. They count
    /// as told.
    pub fn collect(&self, told: &mut Vec<OwnCount>, max: usize) {
        let id = self.shared_id.load(Ordering::Relaxed);
        let first = self.refreshed.fetch_add(REFRESHED, Ordering::Relaxed);
        for (index, shard) in self.shards.iter().enumerate() {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let Shard { counts, changed } = &mut *shard;
            let mut tell = |key: u64, count: &mut Count| {
                (count.told, count.is_queued) = (count.own, false);
                told.push(OwnCount { key, shared_key: key ^ id, count: count.own });
            };
            if index.wrapping_sub(first) % SHARDS < REFRESHED {
                changed.clear();
                counts.iter_mut().for_each(|(key, count)| tell(*key, count));
            }
            for key in changed.drain(..) {
                if let Some(count) = counts.get_mut(&key) {
                    tell(key, count);
                }
            }
        }
        // The next refresh sends the rest.
        told.truncate(max);
    }

    /// Takes the number of operations that other instances have, for a key whose own count the store has.
    pub fn settle(&self, key: u64, others: u32) {
        let mut shard = self.lock(key);
        let is_full = shard.counts.len() > IDLE_MAX;
        if let Some(count) = shard.counts.get_mut(&key) {
            count.others = others;
            if count.own == 0 && count.told == 0 && (others == 0 || is_full) && !count.is_queued {
                shard.counts.remove(&key);
            }
        }
    }

    /// Counts the operations of this instance alone, until the store is back.
    pub fn forget_others(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.changed.clear();
            shard.counts.retain(|_, count| {
                *count = Count { own: count.own, ..Count::default() };
                count.own > 0
            });
        }
    }

    fn lock(&self, key: u64) -> MutexGuard<'_, Shard> {
        // A panic while the lock is held leaves valid numbers.
        self.shards[key as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Count {
    fn queue(&mut self, key: u64, changed: &mut Vec<u64>) {
        if !self.is_queued && changed.len() < CHANGED_MAX {
            self.is_queued = true;
            changed.push(key);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.table.give_back(self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_empty(table: &CountTable) -> bool {
        table.shards.iter().all(|shard| shard.lock().unwrap().counts.is_empty())
    }

    #[test]
    fn what_ends_makes_room() {
        let table = Arc::new(CountTable::default());
        let first = table.take(1, 2);
        let second = table.take(1, 2);
        assert!(first.is_some() && second.is_some());
        assert!(table.take(1, 2).is_none());
        assert!(table.take(1 + SHARDS as u64, 2).is_some(), "another key");
        drop(first);
        assert!(table.take(1, 2).is_some());
        drop(second);
        assert!(is_empty(&table), "nothing remains");
    }

    /// Three instances with a store that adds their counts.
    struct Instances {
        tables: [Arc<CountTable>; 3],
        /// Counts by key, of each instance.
        stored: HashMap<u64, [u32; 3]>,
    }

    impl Instances {
        fn new() -> Self {
            let tables = [(); 3].map(|()| Arc::<CountTable>::default());
            tables.iter().for_each(|table| _ = table.share(77));
            Self { tables, stored: HashMap::new() }
        }

        /// One batch of each instance.
        fn sync(&mut self) -> usize {
            let mut sum = 0;
            for (index, table) in self.tables.iter().enumerate() {
                let mut told = Vec::new();
                table.collect(&mut told, 1_000);
                sum += told.len();
                for OwnCount { key, shared_key, count } in told {
                    assert_eq!(shared_key, key ^ 77);
                    let counts = self.stored.entry(shared_key).or_default();
                    counts[index] = count;
                    let others = counts.iter().sum::<u32>() - count;
                    table.settle(key, others);
                }
            }
            sum
        }

        /// Batches until each shard was refreshed.
        fn sync_all(&mut self) {
            (0..SHARDS.div_ceil(REFRESHED)).for_each(|_| _ = self.sync());
        }
    }

    #[test]
    fn instances_share_a_limit() {
        let mut instances = Instances::new();
        let [one, two, three] = instances.tables.clone();
        let mut permits: Vec<Permit> = (0..3).map(|_| one.take(5, 4).unwrap()).collect();
        instances.sync();
        permits.push(two.take(5, 4).expect("the fourth, at another instance"));
        instances.sync_all();
        assert!(one.take(5, 4).is_none() && two.take(5, 4).is_none());
        // An instance that knows nothing of the key learns of it with the first request that it grants.
        let over = three.take(5, 4).expect("not known yet");
        instances.sync();
        assert!(three.take(5, 4).is_none());
        drop(over);
        instances.sync();
        assert!(three.take(5, 4).is_none(), "it is remembered while others have requests");
        drop(permits);
        assert!(!is_empty(&one), "the store must learn of the end");
        instances.sync_all();
        instances.sync_all();
        assert!([&one, &two, &three].into_iter().all(|table| is_empty(table)), "nothing remains");
        assert_eq!(instances.sync(), 0);
    }

    #[test]
    fn a_share_ends_with_its_instance() {
        let mut instances = Instances::new();
        let [one, two, _] = instances.tables.clone();
        let permits: Vec<Permit> = (0..4).map(|_| one.take(5, 4).unwrap()).collect();
        instances.sync();
        let held = two.take(5, 4).unwrap();
        instances.sync();
        assert!(two.take(5, 4).is_none());
        // The engine forgets the share of the first.
        std::mem::forget(permits);
        instances.tables[0] = Arc::default();
        instances.stored.values_mut().for_each(|counts| counts[0] = 0);
        instances.sync_all();
        assert!(two.take(5, 4).is_some());
        drop(held);
    }

    #[test]
    fn a_store_that_is_away() {
        let mut instances = Instances::new();
        let [one, two, _] = instances.tables.clone();
        let _first: Vec<Permit> = (0..3).map(|_| one.take(5, 4).unwrap()).collect();
        let _second = two.take(5, 4).unwrap();
        instances.sync_all();
        assert!(two.take(5, 4).is_none());
        two.forget_others();
        assert!(two.take(5, 4).is_some(), "the limit of this instance alone");
        two.close(true);
        assert!(two.take(9, 4).is_none());
        two.share(0);
        assert!(two.take(9, 4).is_some(), "a limit that is not shared never closes");
    }

    /// A store that says that each key has operations elsewhere makes the table hold a limited number of keys.
    #[test]
    fn a_hostile_store() {
        let table = Arc::<CountTable>::default();
        table.share(77);
        for key in 0..100_000_u64 {
            drop(table.take(key, 4).unwrap());
            if key % 1_000 == 0 {
                for _ in 0..SHARDS {
                    let mut told = Vec::new();
                    table.collect(&mut told, usize::MAX);
                    told.iter().for_each(|count| table.settle(count.key, u32::MAX));
                }
            }
        }
        let most = table.shards.iter().map(|shard| shard.lock().unwrap().counts.len()).max().unwrap();
        assert!(most <= IDLE_MAX + 1_000, "{most}");
        assert!(table.take(200_000, 4).is_some());
    }
}
