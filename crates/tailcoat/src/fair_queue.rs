//! A queue in which no client holds up the others: requests that wait for a connection of an upstream, or to start a CGI
//! program.
//!
//! All workers share the queue: a place that one worker frees may serve a request of another worker. Requests are served
//! in the order in which they came, except that a client with many waiting requests lets others go first, and that it may
//! not fill the queue.
//!
//! The queue hands out no places itself. It calls a waiting request when something has changed; the request then tries to
//! take what it waits for. A request that comes while others wait joins the queue, so that it overtakes none of them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// Later requests of other clients that go before the next request of a client, for each request that this client has
/// waiting. One client's many requests delay others only briefly, and its own turn still comes, however many others wait.
const OTHERS_BEFORE: u64 = 32;

/// In a queue that is half full, a client may have an eighth of it.
const CROWDED_DIVISOR: usize = 2;
const CLIENT_DIVISOR: usize = 8;

/// The queue.
#[derive(Debug, Default)]
pub struct FairQueue {
    /// Length of the list, to see an empty queue without the lock.
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
    /// Determines the order of the list.
    rank: u64,
    client: Option<u64>,
    is_called: bool,
    waker: Waker,
}

impl FairQueue {
    /// Whether no request waits. Sequentially consistent, as the counter of places in use must be: a worker that frees a
    /// place and then sees an empty queue is seen by every request that joins later.
    pub fn is_empty(&self) -> bool {
        self.length.load(Ordering::SeqCst) == 0
    }

    /// Number of waiting requests.
    pub fn length(&self) -> usize {
        self.length.load(Ordering::Relaxed)
    }

    /// Calls the first request.
    pub fn call_first(&self) {
        if !self.is_empty() {
            self.call(|list| list.waiters.front_mut());
        }
    }

    fn call(&self, which: impl FnOnce(&mut List) -> Option<&mut Waiter>) {
        let waker = which(&mut self.lock()).map(|waiter| {
            waiter.is_called = true;
            waiter.waker.clone()
        });
        // After the lock is released: the waker may run code that takes it.
        waker.into_iter().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        // No code that changes the list can panic halfway.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in the queue of `Q`. Dropping it leaves the queue and calls the first of the requests that still wait.
#[derive(Debug)]
pub struct QueuePlace<Q: AsRef<FairQueue>> {
    owner: Arc<Q>,
    ticket: u64,
}

impl<Q: AsRef<FairQueue>> QueuePlace<Q> {
    /// Joins the queue of at most `queue_max` requests; `None` if the queue or the client's share of it is full. A client
    /// of `None` speaks for many and has no share. A request that joins an empty queue is called from the start, because a
    /// place may have become free between its first try and this call.
    pub fn join(owner: &Arc<Q>, client: Option<u64>, queue_max: usize) -> Option<Self> {
        let queue = owner.as_ref().as_ref();
        let mut list = queue.lock();
        let length = list.waiters.len();
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
        drop(list);
        Some(Self { owner: Arc::clone(owner), ticket })
    }

    /// Whether the request was called since the last time; wakes `waker` when it is called again.
    pub fn is_called(&self, waker: &Waker) -> bool {
        let mut list = self.queue().lock();
        let own = list.waiters.iter_mut().find(|waiter| waiter.ticket == self.ticket);
        own.is_some_and(|own| {
            own.waker.clone_from(waker);
            std::mem::take(&mut own.is_called)
        })
    }

    /// Calls the next request, which may take what this one cannot use.
    pub fn call_next(&self) {
        self.queue().call(|list| list.behind(self.ticket).next());
    }

    /// Calls the next request of another client, which may take what is beyond this client's share.
    pub fn call_next_client(&self) {
        self.queue().call(|list| {
            let client = list.waiters.iter().find(|waiter| waiter.ticket == self.ticket)?.client;
            list.behind(self.ticket).find(|waiter| client.is_none() || waiter.client != client)
        });
    }

    fn queue(&self) -> &FairQueue {
        self.owner.as_ref().as_ref()
    }
}

impl List {
    /// The requests behind the one with this ticket.
    fn behind(&mut self, ticket: u64) -> impl Iterator<Item = &mut Waiter> {
        self.waiters.iter_mut().skip_while(move |waiter| waiter.ticket != ticket).skip(1)
    }
}

impl<Q: AsRef<FairQueue>> Drop for QueuePlace<Q> {
    fn drop(&mut self) {
        let queue = self.queue();
        let mut list = queue.lock();
        list.waiters.retain(|waiter| waiter.ticket != self.ticket);
        queue.length.store(list.waiters.len(), Ordering::SeqCst);
        drop(list);
        queue.call_first();
    }
}
