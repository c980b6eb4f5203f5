//! Queue in which no client delays the others: requests that wait for a connection of an upstream, or to start a CGI
//! program.
//!
//! All workers share the queue: a place that one worker frees may serve a request of another worker. Requests are
//! served in order of arrival, with two exceptions: a client with many waiting requests lets others go first, and it
//! may not fill the queue.
//!
//! The queue does not hand out places itself. It calls a waiting request when something has changed; the request then
//! tries to take a place. A request that arrives while others wait joins the queue, so that it overtakes none of them.
//!
//! A queue whose owner sets [`QueueLimits`] may be overloaded: requests wait too long, and not all can be served in
//! time. Then the newest request is called first, because its client still waits for the response. Requests that have
//! waited too long leave, except as many as can be in progress.

mod load;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use self::load::QueueLoad;
pub use self::load::{LoadChange, QueueLimits};

/// Later requests of other clients that go before the next request of a client, for each request that this client has
/// waiting. One client's many requests delay others only briefly, and its own turn still comes, however many others wait.
const OTHERS_BEFORE: u64 = 32;

/// From half its length on, the queue limits each client to an eighth of it.
const CROWDED_DIVISOR: usize = 2;
const CLIENT_DIVISOR: usize = 8;

/// Requests that wait, over all workers.
#[derive(Debug, Default)]
pub struct FairQueue {
    /// Length of the list, to see an empty queue without the lock.
    length: AtomicUsize,
    is_overloaded: AtomicBool,
    /// Number of requests that had to leave because of overload.
    shed: AtomicU64,
    list: Mutex<WaiterList>,
}

#[derive(Debug, Default)]
struct WaiterList {
    next_ticket: u64,
    waiters: VecDeque<Waiter>,
    load: QueueLoad,
    /// Clients that were served last while the queue was overloaded: others go first.
    served: VecDeque<u64>,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    /// Determines the order of the list.
    rank: u64,
    client: Option<u64>,
    joined_ms: u64,
    is_called: bool,
    /// True if the request has to leave, because a newer one takes its place.
    is_displaced: bool,
    waker: Waker,
}

/// Error of a request that has to leave an overloaded queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueOverloaded;

/// Owner of a queue, which all waiting requests keep alive.
pub trait QueueOwner {
    /// Queue that requests join.
    fn queue(&self) -> &FairQueue;

    /// Called when an overload of the queue has begun or ended.
    fn on_load_change(&self, _change: LoadChange) {}
}

impl FairQueue {
    /// True if no request waits. Sequentially consistent, as the counter of places in use must be. Therefore a request
    /// that joins later sees the place of a worker that found the queue empty.
    pub fn is_empty(&self) -> bool {
        self.length.load(Ordering::SeqCst) == 0
    }

    /// Number of waiting requests.
    pub fn length(&self) -> usize {
        self.length.load(Ordering::Relaxed)
    }

    /// True if the queue is overloaded.
    pub fn is_overloaded(&self) -> bool {
        self.is_overloaded.load(Ordering::Relaxed)
    }

    /// Number of requests that had to leave because of overload.
    pub fn shed(&self) -> u64 {
        self.shed.load(Ordering::Relaxed)
    }

    /// Continues the count of the queue that this one replaces.
    pub fn reuse(&self, before: &Self) {
        self.shed.store(before.shed(), Ordering::Relaxed);
    }

    /// Calls the first request, or the newest if the queue is overloaded.
    pub fn call_first(&self) {
        if !self.is_empty() {
            self.call(|list| match list.load.is_overloaded() {
                true => list.newest(u64::MAX),
                false => list.waiters.iter_mut().find(|waiter| !waiter.is_displaced),
            });
        }
    }

    fn call(&self, which: impl FnOnce(&mut WaiterList) -> Option<&mut Waiter>) {
        let waker = which(&mut self.lock()).map(|waiter| {
            waiter.is_called = true;
            waiter.waker.clone()
        });
        // After the lock is released: the waker may run code that takes it.
        waker.into_iter().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, WaiterList> {
        // No code that changes the list can panic halfway.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in the queue of `Q`. Dropping it leaves the queue and calls the first of the requests that still wait.
#[derive(Debug)]
pub struct QueuePlace<Q: QueueOwner> {
    owner: Arc<Q>,
    ticket: u64,
    limits: QueueLimits,
}

impl<Q: QueueOwner> QueuePlace<Q> {
    /// Joins the queue of at most `queue_max` requests; `None` if the queue or the client's share of it is full. A client
    /// of `None` speaks for many and has no share. A request that joins an empty queue counts as called: a place may have
    /// become free since its first try.
    pub fn join(owner: &Arc<Q>, client: Option<u64>, queue_max: usize) -> Option<Self> {
        Self::join_at(owner, client, queue_max, 0, QueueLimits::default())
    }

    /// Joins a queue that may be overloaded, at this time. If such a queue is full, the new request displaces the
    /// oldest.
    pub fn join_at(
        owner: &Arc<Q>,
        client: Option<u64>,
        queue_max: usize,
        now_ms: u64,
        limits: QueueLimits,
    ) -> Option<Self> {
        let queue = owner.queue();
        let mut list = queue.lock();
        let change = list.look(now_ms, limits);
        let (joined, displaced) = list.join(client, queue_max, now_ms);
        queue.length.store(list.waiters.len(), Ordering::SeqCst);
        drop(list);
        note(&**owner, change);
        displaced.into_iter().for_each(Waker::wake);
        Some(Self { owner: Arc::clone(owner), ticket: joined?, limits })
    }

    /// True if the request was called since the last time; wakes `waker` when it is called again.
    pub fn is_called(&self, waker: &Waker) -> bool {
        matches!(self.poll_called(waker), Poll::Ready(Ok(())))
    }

    /// Ready if the request was called since the last time; wakes `waker` when it is called again.
    ///
    /// # Errors
    /// A newer request takes its place.
    pub fn poll_called(&self, waker: &Waker) -> Poll<Result<(), QueueOverloaded>> {
        let mut list = self.queue().lock();
        // Local invariant: a place is in the list until it is dropped.
        let Some(own) = list.find(self.ticket) else { return Poll::Pending };
        own.waker.clone_from(waker);
        if own.is_displaced {
            drop(list);
            return Poll::Ready(Err(self.shed()));
        }
        if std::mem::take(&mut own.is_called) { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// Updates the load of the queue, and checks how long this request has waited.
    ///
    /// # Errors
    /// The queue is overloaded, and the request has waited too long and must leave.
    pub fn look(&self, now_ms: u64) -> Result<(), QueueOverloaded> {
        let mut list = self.queue().lock();
        let change = list.look(now_ms, self.limits);
        let waited_ms = list.find(self.ticket).map_or(0, |own| now_ms.saturating_sub(own.joined_ms));
        // As many as can be in progress stay, so that no place stays free while other clients retry.
        let is_stale = list.load.is_overloaded()
            && waited_ms >= self.limits.wait_max_ms
            && list.waiting().count() as u64 > self.limits.places;
        drop(list);
        note(&*self.owner, change);
        if is_stale { Err(self.shed()) } else { Ok(()) }
    }

    /// Records that the request got a place.
    pub fn on_served(&self) {
        let list = &mut *self.queue().lock();
        if list.load.is_overloaded()
            && let Some(client) = list.find(self.ticket).and_then(|own| own.client)
        {
            list.served.push_back(client);
            if list.served.len() > OTHERS_BEFORE as usize {
                list.served.pop_front();
            }
        }
    }

    fn shed(&self) -> QueueOverloaded {
        self.queue().shed.fetch_add(1, Ordering::Relaxed);
        QueueOverloaded
    }

    /// Calls the next request, which may take what this one cannot use.
    pub fn call_next(&self) {
        self.queue().call(|list| match list.load.is_overloaded() {
            true => list.newest(self.ticket),
            false => list.later(self.ticket).next(),
        });
    }

    /// Calls the next request of another client, which may take what is beyond this client's share.
    pub fn call_next_client(&self) {
        self.queue().call(|list| {
            let client = list.find(self.ticket)?.client;
            list.later(self.ticket).find(|waiter| client.is_none() || waiter.client != client)
        });
    }

    fn queue(&self) -> &FairQueue {
        self.owner.queue()
    }
}

/// Publishes a change of the load to the queue's owner, and to readers without the lock.
fn note<Q: QueueOwner>(owner: &Q, change: Option<LoadChange>) {
    if let Some(change) = change {
        owner.queue().is_overloaded.store(change == LoadChange::Began, Ordering::Relaxed);
        owner.on_load_change(change);
    }
}

impl WaiterList {
    /// Adds a request, if the queue and its client's share have room. Returns its ticket, and the waker of the request
    /// that it displaces.
    fn join(&mut self, client: Option<u64>, queue_max: usize, now_ms: u64) -> (Option<u64>, Option<Waker>) {
        let length = self.waiting().count();
        let own = self.waiting().filter(|waiter| client.is_some() && waiter.client == client);
        let (of_client, last_rank) = own.fold((0, 0), |(count, _), waiter| (count + 1, waiter.rank));
        let is_crowded = length >= queue_max / CROWDED_DIVISOR;
        let has_share = !is_crowded || of_client < (queue_max / CLIENT_DIVISOR).max(1);
        let is_full = length >= queue_max;
        let displaced = if is_full && has_share && self.load.is_overloaded() { self.displace_oldest() } else { None };
        if !has_share || (is_full && displaced.is_none()) {
            return (None, None);
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let rank = (ticket + of_client as u64 * OTHERS_BEFORE).max(last_rank);
        let at = self.waiters.partition_point(|waiter| waiter.rank <= rank);
        let (waker, is_called) = (Waker::noop().clone(), self.waiters.is_empty());
        let waiter = Waiter { ticket, rank, client, joined_ms: now_ms, is_called, is_displaced: false, waker };
        self.waiters.insert(at, waiter);
        (Some(ticket), displaced)
    }

    fn waiting(&self) -> impl Iterator<Item = &Waiter> {
        self.waiters.iter().filter(|waiter| !waiter.is_displaced)
    }

    fn find(&mut self, ticket: u64) -> Option<&mut Waiter> {
        self.waiters.iter_mut().find(|waiter| waiter.ticket == ticket)
    }

    /// Requests after the one with this ticket.
    fn later(&mut self, ticket: u64) -> impl Iterator<Item = &mut Waiter> {
        let later = self.waiters.iter_mut().skip_while(move |waiter| waiter.ticket != ticket).skip(1);
        later.filter(|waiter| !waiter.is_displaced)
    }

    /// Newest request with a lower ticket, preferably of a client that was not served recently.
    fn newest(&mut self, before: u64) -> Option<&mut Waiter> {
        let served = &self.served;
        let is_recent = |client: Option<u64>| client.is_some_and(|client| served.contains(&client));
        let waiting = self.waiters.iter_mut().filter(|waiter| !waiter.is_displaced && waiter.ticket < before);
        waiting.max_by_key(|waiter| (!is_recent(waiter.client), waiter.ticket))
    }

    /// Updates the load from the oldest request's waiting time.
    fn look(&mut self, now_ms: u64, limits: QueueLimits) -> Option<LoadChange> {
        let (oldest_ms, length) = (self.waiting().map(|waiter| waiter.joined_ms).min(), self.waiting().count());
        let change = self.load.look(now_ms, oldest_ms, length, limits);
        if change == Some(LoadChange::Ended) {
            self.served.clear();
        }
        change
    }

    /// Displaces the oldest request to make room for a newer one. Returns its waker.
    fn displace_oldest(&mut self) -> Option<Waker> {
        let waiting = self.waiters.iter_mut().filter(|waiter| !waiter.is_displaced);
        let oldest = waiting.min_by_key(|waiter| waiter.ticket)?;
        oldest.is_displaced = true;
        Some(oldest.waker.clone())
    }
}

impl<Q: QueueOwner> Drop for QueuePlace<Q> {
    fn drop(&mut self) {
        let queue = self.queue();
        let mut list = queue.lock();
        list.waiters.retain(|waiter| waiter.ticket != self.ticket);
        queue.length.store(list.waiters.len(), Ordering::SeqCst);
        let change = if list.waiters.is_empty() { list.load.on_empty() } else { None };
        drop(list);
        note(&*self.owner, change);
        queue.call_first();
    }
}
