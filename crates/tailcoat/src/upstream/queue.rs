//! Requests that wait for a connection while all servers have as many in use as they may. One queue for all workers, in
//! the order in which requests came: a connection that one worker gives back may be the next of another.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::shared::SharedUpstream;
use super::tried::Tried;

/// The queue of an upstream.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Length of `waiters`, to see without the lock that nobody waits.
    waiting: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next_ticket: u64,
    waiters: VecDeque<Waiter>,
    /// Tickets that have got a slot at a server, and not yet seen it.
    granted: Vec<(u64, u16)>,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    tried: Tried,
    waker: Waker,
}

impl Queue {
    /// Whether somebody waits. Ordered with the counts of connections in use: who gives one back and then sees nobody
    /// waiting is seen by whoever comes to wait.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) == 0
    }

    /// Gives a slot at this server to the first who may have it. `false` if there is none.
    pub(super) fn grant(&self, server: u16) -> bool {
        let mut state = self.lock();
        let Some(index) = state.waiters.iter().position(|waiter| !waiter.tried.contains(server)) else { return false };
        // Local invariant: `position` has just found it.
        let Some(waiter) = state.waiters.remove(index) else { return false };
        state.granted.push((waiter.ticket, server));
        self.waiting.store(state.waiters.len(), Ordering::SeqCst);
        drop(state);
        waiter.waker.wake();
        true
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing is left half done where it could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in the queue: a future of the server at which a connection may be used. Dropping it leaves the queue.
#[derive(Debug)]
pub(super) struct Waiting {
    upstream: Arc<SharedUpstream>,
    ticket: u64,
    is_over: bool,
}

impl Waiting {
    /// Joins the queue at its end; `None` if it is full.
    pub(super) fn join(upstream: &Arc<SharedUpstream>, tried: Tried) -> Option<Self> {
        let queue = &upstream.queue;
        let mut state = queue.lock();
        if state.waiters.len() >= upstream.config.queue_max {
            return None;
        }
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.waiters.push_back(Waiter { ticket, tried, waker: Waker::noop().clone() });
        queue.waiting.store(state.waiters.len(), Ordering::SeqCst);
        drop(state);
        // A slot may have become free after this request was refused one, and before it could be seen waiting.
        upstream.grant_free();
        Some(Self { upstream: Arc::clone(upstream), ticket, is_over: false })
    }
}

impl Future for Waiting {
    type Output = u16;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<u16> {
        let ticket = self.ticket;
        let server = {
            let mut state = self.upstream.queue.lock();
            if let Some(waiter) = state.waiters.iter_mut().find(|waiter| waiter.ticket == ticket) {
                waiter.waker.clone_from(task.waker());
                return Poll::Pending;
            }
            state.take_granted(ticket)
        };
        self.is_over = true;
        // Local invariant: who is no longer among the waiters was granted a slot.
        server.map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let queue = &self.upstream.queue;
        let mut state = queue.lock();
        state.waiters.retain(|waiter| waiter.ticket != self.ticket);
        queue.waiting.store(state.waiters.len(), Ordering::SeqCst);
        let granted = state.take_granted(self.ticket);
        drop(state);
        if let Some(server) = granted {
            self.upstream.release(server);
        }
    }
}

impl State {
    fn take_granted(&mut self, ticket: u64) -> Option<u16> {
        let index = self.granted.iter().position(|(granted, _)| *granted == ticket)?;
        Some(self.granted.swap_remove(index).1)
    }
}
