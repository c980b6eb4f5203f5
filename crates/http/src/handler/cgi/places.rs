//! Places for running programs, and the clients that hold them.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use tokio::time::timeout;

use super::{ProgramStartError, SharedPrograms};
use crate::fair_queue::QueuePlace;

/// Places that a client may hold for each free place. So one client alone gets about four fifths of all places, two
/// get four ninths each. A client without a running program finds a free place, unless very many clients are at work.
/// The last free place is always for such a client.
const HELD_PER_FREE: usize = 4;

/// Limit of programs that run at the same time.
#[derive(Debug)]
pub(super) struct Places {
    count_max: usize,
    held: Mutex<HeldPlaces>,
}

#[derive(Debug, Default)]
struct HeldPlaces {
    count: usize,
    /// Places held by each client; clients without any are absent.
    by_client: HashMap<u64, usize>,
}

impl Places {
    pub(super) fn new(count_max: usize) -> Self {
        Self { count_max, held: Mutex::default() }
    }

    /// Takes a place, unless none is free or the client has its share. A client of `None` speaks for many and has no
    /// share.
    fn take(&self, client: Option<u64>) -> bool {
        let mut held = self.lock();
        let free = self.count_max.saturating_sub(held.count);
        let own = client.and_then(|client| held.by_client.get(&client).copied()).unwrap_or_default();
        let is_reserved = own > 0 && free == 1;
        if free == 0 || is_reserved || own >= free.saturating_mul(HELD_PER_FREE) {
            return false;
        }
        held.count += 1;
        if let Some(client) = client {
            held.by_client.insert(client, own + 1);
        }
        true
    }

    fn give_back(&self, client: Option<u64>) {
        let mut held = self.lock();
        held.count -= 1;
        if let Some(client) = client
            && let Some(own) = held.by_client.get_mut(&client)
        {
            *own -= 1;
            if *own == 0 {
                held.by_client.remove(&client);
            }
        }
    }

    fn has_free(&self) -> bool {
        self.lock().count < self.count_max
    }

    fn lock(&self) -> MutexGuard<'_, HeldPlaces> {
        // No update of the counts is left half done by a panic.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SharedPrograms {
    /// Waits for a place for a program of this client.
    pub(super) async fn place(self: &Arc<Self>, client: Option<u64>) -> Result<RunningPlace, ProgramStartError> {
        self.wait_for_place(client).await.inspect_err(|_| self.metrics.rejected.add(1))
    }

    async fn wait_for_place(self: &Arc<Self>, client: Option<u64>) -> Result<RunningPlace, ProgramStartError> {
        // A new request must not overtake waiting ones.
        if self.queue.is_empty() && self.places.take(client) {
            return Ok(RunningPlace::new(self, client));
        }
        let waiting = QueuePlace::join(self, client, self.config.queue_max).ok_or(ProgramStartError::Busy)?;
        if self.places.has_free() {
            // The clients of the waiting requests may have used up their shares; this one may not.
            self.queue.call_first();
        }
        let place = poll_fn(|task| {
            if !waiting.is_called(task.waker()) {
                return Poll::Pending;
            }
            if self.places.take(client) {
                return Poll::Ready(RunningPlace::new(self, client));
            }
            if self.places.has_free() {
                waiting.call_next_client();
            }
            Poll::Pending
        });
        timeout(self.config.queue_timeout, place).await.map_err(|_| ProgramStartError::Busy)
    }
}

/// A place among the running programs; released on drop.
pub(in crate::handler) struct RunningPlace {
    programs: Arc<SharedPrograms>,
    client: Option<u64>,
}

impl RunningPlace {
    /// Creates the guard of a place that was just taken.
    fn new(programs: &Arc<SharedPrograms>, client: Option<u64>) -> Self {
        programs.metrics.running.add(1);
        Self { programs: Arc::clone(programs), client }
    }
}

impl Drop for RunningPlace {
    fn drop(&mut self) {
        self.programs.metrics.running.subtract(1);
        self.programs.places.give_back(self.client);
        self.programs.queue.call_first();
    }
}

#[cfg(test)]
mod tests {
    use super::Places;

    #[test]
    fn one_client_leaves_places_to_others() {
        let take_all = |places: &Places, client| (0..1_000).take_while(|_| places.take(client)).count();
        for (count_max, first, second, anyone) in
            [(1, 1, 0, 0), (2, 1, 1, 0), (4, 3, 1, 0), (5, 4, 1, 0), (10, 8, 1, 1), (64, 52, 10, 2), (100, 80, 16, 4)]
        {
            let places = Places::new(count_max);
            let taken = [Some(1), Some(2), None].map(|client| take_all(&places, client));
            assert_eq!(taken, [first, second, anyone], "{count_max}");
            assert!(!places.has_free());
            (0..first).for_each(|_| places.give_back(Some(1)));
            assert_eq!(take_all(&places, Some(3)) > 0, first > 0);
        }
    }
}
