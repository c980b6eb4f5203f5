//! Requests that wait for a connection while all servers have as many in use as they may. One queue for all workers, in
//! the order in which requests came: a connection that one worker gives back may be the next of another. Only who has many
//! waiting lets others go before.
//!
//! Who waits is called when something has changed, and then chooses a server like any other request. Nobody who comes
//! later is faster, for as long as somebody waits, all others join the queue.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use super::shared::SharedUpstream;

/// Later requests of others that go before the next of a client, for each that it has waiting. So one client's many hold up
/// nobody for long, and it still comes to its turn, however many others there are.
const OTHERS_BEFORE: u64 = 32;

/// Of a queue that is half full, a client may have an eighth.
const CROWDED_DIVISOR: usize = 2;
const CLIENT_DIVISOR: usize = 8;

/// The queue of an upstream.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Length of the list, to see without the lock that nobody waits.
    length: AtomicUsize,
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    next_ticket: u64,
    waiters: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    /// By which they are in order.
    rank: u64,
    client: Option<u64>,
    is_called: bool,
    waker: Waker,
}

impl Queue {
    /// Whether nobody waits. Ordered with the counts of connections in use: who gives one back and then sees nobody
    /// waiting is seen by whoever comes to wait.
    pub(super) fn is_empty(&self) -> bool {
        self.length.load(Ordering::SeqCst) == 0
    }

    /// How many wait.
    pub(super) fn length(&self) -> usize {
        self.length.load(Ordering::Relaxed)
    }

    /// Calls the first.
    pub(super) fn call_first(&self) {
        if !self.is_empty() {
            self.call(|list| list.waiters.front_mut());
        }
    }

    fn call(&self, which: impl FnOnce(&mut List) -> Option<&mut Waiter>) {
        let waker = which(&mut self.lock()).map(|waiter| {
            waiter.is_called = true;
            waiter.waker.clone()
        });
        // Not under the lock: it may run what wants it.
        waker.into_iter().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        // Nothing is left half done where it could panic.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in the queue. Dropping it leaves the queue, and calls the first of those that still wait.
#[derive(Debug)]
pub(super) struct QueuePlace {
    upstream: Arc<SharedUpstream>,
    ticket: u64,
}

impl QueuePlace {
    /// Joins the queue, for a client where that is known; `None` if the queue, or the client's share, is full. The first is
    /// called from the beginning: a connection may have become free after it was refused one, and before it could be seen
    /// waiting.
    pub(super) fn join(upstream: &Arc<SharedUpstream>, client: Option<u64>) -> Option<Self> {
        let queue = &upstream.queue;
        let mut list = queue.lock();
        let (length, queue_max) = (list.waiters.len(), upstream.config.queue_max);
        let own = list.waiters.iter().filter(|waiter| client.is_some() && waiter.client == client);
        let (of_client, last_rank) = own.fold((0, 0), |(count, _), waiter| (count + 1, waiter.rank));
        let is_crowded = length >= queue_max / CROWDED_DIVISOR;
        if length >= queue_max || (is_crowded && of_client >= (queue_max / CLIENT_DIVISOR).max(1)) {
            return None;
        }
        let ticket = list.next_ticket;
        list.next_ticket += 1;
        let rank = (ticket + of_client as u64 * OTHERS_BEFORE).max(last_rank);
        let at = list.waiters.partition_point(|waiter| waiter.rank <= rank);
        let waker = Waker::noop().clone();
        list.waiters.insert(at, Waiter { ticket, rank, client, is_called: length == 0, waker });
        queue.length.store(list.waiters.len(), Ordering::SeqCst);
        Some(Self { upstream: Arc::clone(upstream), ticket })
    }

    /// Whether it has been called since it was asked last; `waker` is told when it is again.
    pub(super) fn is_called(&self, waker: &Waker) -> bool {
        let mut list = self.upstream.queue.lock();
        let own = list.waiters.iter_mut().find(|waiter| waiter.ticket == self.ticket);
        own.is_some_and(|own| {
            own.waker.clone_from(waker);
            std::mem::take(&mut own.is_called)
        })
    }

    /// Calls the next one, who may want what this one can't use.
    pub(super) fn call_next(&self) {
        let ticket = self.ticket;
        self.upstream.queue.call(|list| list.waiters.iter_mut().skip_while(|waiter| waiter.ticket != ticket).nth(1));
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        let queue = &self.upstream.queue;
        let mut list = queue.lock();
        list.waiters.retain(|waiter| waiter.ticket != self.ticket);
        queue.length.store(list.waiters.len(), Ordering::SeqCst);
        drop(list);
        queue.call_first();
    }
}
