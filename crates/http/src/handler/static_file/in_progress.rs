//! Shared work: several requests wait for one result, and the work stops when none of them waits any more.

use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Work in progress, by key.
#[derive(Debug)]
pub(super) struct InProgress<K, V> {
    by_key: Mutex<HashMap<K, Results<V>>>,
}

/// Sender of a result; the waiting requests are its receivers.
type Results<V> = watch::Sender<Option<V>>;

impl<K, V> Default for InProgress<K, V> {
    fn default() -> Self {
        Self { by_key: Mutex::default() }
    }
}

impl<K, V> InProgress<K, V>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Waits for the result of the work with this key, and starts it if it is not in progress. `None` if the worker
    /// running it has ended.
    ///
    /// `work` may return `None` only when it stopped because no request waited. If one has joined since, it is
    /// started again.
    pub(super) async fn join<W, F>(self: &Arc<Self>, key: K, work: W) -> Option<V>
    where
        W: Fn(Demand<V>) -> F + Send + 'static,
        F: Future<Output = Option<V>> + Send + 'static,
    {
        let mut result = self.subscribe(key, work);
        result.wait_for(Option::is_some).await.ok()?.clone()
    }

    fn subscribe<W, F>(self: &Arc<Self>, key: K, work: W) -> watch::Receiver<Option<V>>
    where
        W: Fn(Demand<V>) -> F + Send + 'static,
        F: Future<Output = Option<V>> + Send + 'static,
    {
        let mut by_key = self.lock();
        if let Some(results) = by_key.get(&key) {
            return results.subscribe();
        }
        let (results, receiver) = watch::channel(None);
        by_key.insert(key.clone(), results.clone());
        let entry = InProgressEntry { list: Arc::clone(self), key, is_listed: true };
        // A task of its own, because the request that began it may be the first to leave.
        tokio::spawn(entry.drive(results, work));
        receiver
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, Results<V>>> {
        // No update is left half done by a panic.
        self.by_key.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An entry of the list; removed on drop.
struct InProgressEntry<K: Eq + Hash, V> {
    list: Arc<InProgress<K, V>>,
    key: K,
    is_listed: bool,
}

impl<K, V> InProgressEntry<K, V>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    async fn drive<W, F>(mut self, results: Results<V>, work: W)
    where
        W: Fn(Demand<V>) -> F + Send + 'static,
        F: Future<Output = Option<V>> + Send + 'static,
    {
        loop {
            let result = work(Demand { results: results.clone() }).await;
            let mut by_key = self.list.lock();
            // No request can join while the list is locked.
            if result.is_none() && results.receiver_count() > 0 {
                continue;
            }
            by_key.remove(&self.key);
            self.is_listed = false;
            drop(by_key);
            results.send_replace(result);
            return;
        }
    }
}

impl<K: Eq + Hash, V> Drop for InProgressEntry<K, V> {
    fn drop(&mut self) {
        if self.is_listed {
            self.list.by_key.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
        }
    }
}

/// Tells the work whether a request waits for its result.
#[derive(Debug)]
pub(super) struct Demand<V> {
    results: Results<V>,
}

impl<V> Demand<V> {
    /// True if a request waits.
    pub(super) fn exists(&self) -> bool {
        !self.results.is_closed()
    }

    /// Waits for a turn; `None` when no request waits any more.
    pub(super) async fn turn(&self, turns: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
        tokio::select! {
            turn = Arc::clone(turns).acquire_owned() => turn.ok(),
            () = self.results.closed() => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    type LoadWaiters = Arc<InProgress<u8, usize>>;

    /// Work that waits for a turn and counts its starts and ends.
    fn count_turns(
        list: &LoadWaiters,
        turns: &Arc<Semaphore>,
        counts: &Arc<[AtomicUsize; 2]>,
    ) -> tokio::task::JoinHandle<Option<usize>> {
        let (list, turns, counts) = (Arc::clone(list), Arc::clone(turns), Arc::clone(counts));
        let work = move |demand: Demand<usize>| {
            let (turns, counts) = (Arc::clone(&turns), Arc::clone(&counts));
            async move {
                counts[0].fetch_add(1, Ordering::Relaxed);
                let _turn = demand.turn(&turns).await?;
                Some(counts[1].fetch_add(1, Ordering::Relaxed))
            }
        };
        tokio::spawn(async move { list.join(1, work).await })
    }

    async fn let_others_run() {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn work_is_shared_and_ends_with_the_last_who_waits() {
        let (list, turns, counts) = (LoadWaiters::default(), Arc::new(Semaphore::new(0)), Arc::default());
        let begin = || count_turns(&list, &turns, &counts);
        let check = |expect: [usize; 3]| {
            let counted = counts.each_ref().map(|count: &AtomicUsize| count.load(Ordering::Relaxed));
            assert_eq!([counted[0], counted[1], list.count()], expect, "begun, ended, in progress");
        };
        let waiting = [begin(), begin(), begin()];
        let_others_run().await;
        check([1, 0, 1]);
        waiting[0].abort();
        waiting[1].abort();
        let_others_run().await;
        check([1, 0, 1]);
        waiting[2].abort();
        let_others_run().await;
        check([1, 0, 0]);

        let waiting = [begin(), begin()];
        let_others_run().await;
        turns.add_permits(1);
        for waiting in waiting {
            assert_eq!(waiting.await.unwrap(), Some(0));
        }
        check([2, 1, 0]);
    }

    #[tokio::test]
    async fn who_comes_while_work_stops_gets_it_begun_again() {
        let list = LoadWaiters::default();
        let attempts = Arc::new(AtomicUsize::new(0));
        let work_attempts = Arc::clone(&attempts);
        let work = move |_| {
            let attempt = work_attempts.fetch_add(1, Ordering::Relaxed);
            // The first attempt behaves as if no request had waited for a moment.
            std::future::ready((attempt > 0).then_some(attempt))
        };
        assert_eq!(list.join(1, work).await, Some(1));
        assert_eq!(list.count(), 0);
    }

    #[tokio::test]
    async fn a_panic_is_an_end_without_a_result() {
        let list = LoadWaiters::default();
        let result = list.join(1, |_| async { panic!("a fault of ours") }).await;
        assert_eq!((result, list.count()), (None, 0));
    }
}
