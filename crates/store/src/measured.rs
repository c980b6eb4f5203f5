//! Time limits and counts of operations.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tailcoat_config::StoreAbilities;
use tokio::time::timeout;

use super::{
    ENVELOPE_BYTES, EngineTime, Entry, Expectation, InstanceCount, LimitCharge, Pending, Put, SharedStore, StoreError,
    StoreKey,
};

/// Store whose operations have a time limit and are counted.
#[derive(Debug)]
pub struct Measured {
    store: Box<dyn SharedStore>,
    limit: Duration,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    operations: AtomicU64,
    errors: AtomicU64,
    timeouts: AtomicU64,
    nanoseconds: AtomicU64,
    unusable: AtomicU64,
    is_away: AtomicBool,
    answered: Mutex<Option<Instant>>,
    /// First value that could not be used since the last [`Measured::take_unusable`].
    noted: Mutex<Option<String>>,
}

/// Counts of operations since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreCounts {
    /// Operations.
    pub operations: u64,
    /// Operations that failed; those that took too long included.
    pub errors: u64,
    /// Operations that took too long.
    pub timeouts: u64,
    /// Time of all operations.
    pub time: Duration,
    /// Values that could not be used, each time that they were read.
    pub unusable: u64,
    /// True if the latest operation failed. Values that cannot be used say nothing about the engine.
    pub is_away: bool,
    /// Time since the end of the latest operation that succeeded.
    pub age: Option<Duration>,
}

impl Measured {
    pub(super) fn new(store: Box<dyn SharedStore>, limit: Duration) -> Self {
        Self { store, limit, counts: Counts::default() }
    }

    /// Counts of operations since the start.
    pub fn counts(&self) -> StoreCounts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        StoreCounts {
            operations: read(&self.counts.operations),
            errors: read(&self.counts.errors),
            timeouts: read(&self.counts.timeouts),
            unusable: read(&self.counts.unusable),
            time: Duration::from_nanos(read(&self.counts.nanoseconds)),
            is_away: self.counts.is_away.load(Ordering::Relaxed),
            age: (*self.answered()).map(|at| at.elapsed()),
        }
    }

    /// Description of a value that could not be used, if there was one since the last call.
    pub fn take_unusable(&self) -> Option<String> {
        self.noted().take()
    }

    fn on_unusable(&self, count: usize, describe: impl FnOnce() -> String) {
        self.counts.unusable.fetch_add(count as u64, Ordering::Relaxed);
        self.noted().get_or_insert_with(describe);
    }

    fn noted(&self) -> MutexGuard<'_, Option<String>> {
        self.counts.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answered(&self) -> MutexGuard<'_, Option<Instant>> {
        // No update is left half done by a panic.
        self.counts.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn measure<'a, T: Send + 'a>(
        &'a self,
        operation: impl Future<Output = Result<T, StoreError>> + Send + 'a,
    ) -> Pending<'a, T> {
        Box::pin(async move {
            let start = Instant::now();
            let result = timeout(self.limit, operation).await.unwrap_or(Err(StoreError::TimedOut));
            let add = |count: &AtomicU64, number| count.fetch_add(number, Ordering::Relaxed);
            add(&self.counts.operations, 1);
            add(&self.counts.nanoseconds, start.elapsed().as_nanos().try_into().unwrap_or(u64::MAX));
            add(&self.counts.errors, result.is_err().into());
            add(&self.counts.timeouts, matches!(result, Err(StoreError::TimedOut)).into());
            if let Err(error @ StoreError::Unusable(_)) = &result {
                self.on_unusable(1, || error.to_string());
                return result;
            }
            self.counts.is_away.store(result.is_err(), Ordering::Relaxed);
            if result.is_ok() {
                *self.answered() = Some(Instant::now());
            }
            result
        })
    }
}

impl SharedStore for Measured {
    fn abilities(&self) -> StoreAbilities {
        self.store.abilities()
    }

    fn get<'a>(&'a self, key: &'a StoreKey) -> Pending<'a, Option<Entry>> {
        self.measure(async move {
            let entry = self.store.get(key).await?;
            if let Some(flaw) = entry.as_ref().and_then(|entry| entry.flaw) {
                self.on_unusable(1, || StoreError::of_flaw(key, flaw).to_string());
            }
            Ok(entry)
        })
    }

    fn put<'a>(&'a self, key: &'a StoreKey, value: &'a [u8], expect: Expectation<'a>) -> Pending<'a, Put> {
        let of_kind = key.value_bytes_max().saturating_sub(ENVELOPE_BYTES);
        if value.len() > self.abilities().value_bytes_max.min(of_kind) {
            return Box::pin(async { Err(StoreError::TooLarge) });
        }
        self.measure(self.store.put(key, value, expect))
    }

    fn delete<'a>(&'a self, key: &'a StoreKey) -> Pending<'a, ()> {
        self.measure(self.store.delete(key))
    }

    fn list<'a>(&'a self, folder: &'a StoreKey) -> Pending<'a, Vec<(StoreKey, Entry)>> {
        self.measure(async move {
            let entries = self.store.list(folder).await?;
            let mut flawed = entries.iter().filter_map(|(key, entry)| Some((key, entry.flaw?)));
            if let Some((key, flaw)) = flawed.next() {
                self.on_unusable(1 + flawed.count(), || StoreError::of_flaw(key, flaw).to_string());
            }
            Ok(entries)
        })
    }

    fn charge<'a>(&'a self, charges: &'a [LimitCharge]) -> Pending<'a, Vec<u64>> {
        self.measure(self.store.charge(charges))
    }

    fn share_counts<'a>(&'a self, instance: &'a str, counts: &'a [InstanceCount]) -> Pending<'a, Vec<u32>> {
        self.measure(self.store.share_counts(instance, counts))
    }

    fn get_blob<'a>(&'a self, key: &'a StoreKey, bytes_max: usize) -> Pending<'a, Option<Vec<u8>>> {
        self.measure(self.store.get_blob(key, bytes_max))
    }

    fn put_blob<'a>(&'a self, key: &'a StoreKey, value: &'a [u8], time: Duration) -> Pending<'a, ()> {
        if value.len() > self.abilities().value_bytes_max {
            return Box::pin(async { Err(StoreError::TooLarge) });
        }
        self.measure(self.store.put_blob(key, value, time))
    }

    fn delete_blob<'a>(&'a self, key: &'a StoreKey) -> Pending<'a, ()> {
        self.measure(self.store.delete_blob(key))
    }

    fn time(&self) -> Pending<'_, Option<EngineTime>> {
        self.measure(self.store.time())
    }
}
