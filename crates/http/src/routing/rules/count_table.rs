use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Number of locks that the keys are spread over, so that workers rarely wait for each other.
const SHARDS: usize = 16;

/// Counts operations in progress by key. Has entries only for keys with at least one operation.
#[derive(Debug, Default)]
pub struct CountTable {
    shards: [Mutex<HashMap<u64, u32>>; SHARDS],
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
        let mut counts = self.shard(key).lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(key).or_insert(0);
        let is_granted = *count < count_max;
        *count += u32::from(is_granted);
        // A new entry always has a count of at least 1, because no limit is 0.
        is_granted
    }

    /// Ends the count of one operation.
    pub fn give_back(&self, key: u64) {
        let mut counts = self.shard(key).lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&key);
            }
        }
    }

    fn shard(&self, key: u64) -> &Mutex<HashMap<u64, u32>> {
        &self.shards[key as usize % SHARDS]
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
        assert!(table.shards.iter().all(|shard| shard.lock().unwrap().is_empty()), "nothing remains");
    }
}
