//! Limit and order of TLS handshakes on a worker.
//!
//! If a limit is configured, handshakes wait in a queue until a place is due. Leaving the queue frees all its state.
//! The queue is only as long as the time limit of a handshake allows, and each client has a limited share of it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context as Task, Poll, Waker, ready};
use std::time::Duration;

use hashbrown::HashMap;
use tokio::time::{Sleep, sleep};

use crate::log::LogClient;
use crate::overload::HandshakeLoad;
use crate::routing::rules::KeyHasher;

/// Handshakes that may begin before other connections get their turn. One takes as long as some hundred small
/// responses.
const BEGUN_A_TURN_MAX: u32 = 4;

/// Length of the burst, in microseconds. After a time without any, as many handshakes may begin at once as fit into
/// this time.
const BURST_US: u64 = 1_000_000;

/// Divisor of the time limit: a handshake may wait for half of it before it begins.
const WAIT_DIVISOR: u32 = 2;

/// Divisors of the queue: a client may have an eighth of it, and a network a quarter.
const CLIENT_DIVISOR: usize = 8;
const NETWORK_DIVISOR: usize = 4;

/// Limit and order of TLS handshakes on a worker.
#[derive(Debug)]
pub struct Handshakes {
    /// Handshakes that have asked to begin in this turn of the event loop.
    asked: Cell<u32>,
    /// Handshakes begun since the load was last taken.
    begun: Cell<u32>,
    /// Minimum number of handshakes that waited at the end of a turn since then.
    waiting_min: Cell<u32>,
    /// Queue of waiting handshakes; `None` without a limit.
    line: RefCell<Option<Rc<HandshakeQueue>>>,
}

#[derive(Debug)]
struct HandshakeQueue {
    /// Minimum time between two handshakes.
    interval_us: u64,
    waiting_max: usize,
    hasher: KeyHasher,
    state: RefCell<LineState>,
}

#[derive(Debug, Default)]
struct LineState {
    /// Time at which the next handshake may begin.
    next_us: u64,
    next_ticket: u64,
    /// Waiting handshakes by ticket, which is their order of arrival.
    waiting: BTreeMap<u64, WaitingHandshake>,
    /// Number of waiting handshakes by client, and by network.
    of_clients: HashMap<u64, usize>,
}

#[derive(Debug)]
struct WaitingHandshake {
    /// Hash of the client, and of its network.
    keys: [u64; 2],
    waker: Waker,
}

/// Place in the queue; dropping it leaves the queue.
#[derive(Debug)]
pub struct LinePlace {
    line: Rc<HandshakeQueue>,
    ticket: u64,
    /// Timer until the next handshake is due; only the first in the queue has one.
    timer: Option<Pin<Box<Sleep>>>,
}

/// Error: the queue has no place for this client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyHandshakes;

impl Handshakes {
    /// Makes the limit: handshakes per second (0 means no limit), and the time limit of each.
    pub fn new(per_second_max: u32, time_limit: Duration) -> Self {
        let (asked, begun, line) = Default::default();
        let handshakes = Self { asked, begun, waiting_min: Cell::new(u32::MAX), line };
        handshakes.apply_limit(per_second_max, time_limit);
        handshakes
    }

    /// Changes the limits. If they differ, handshakes that wait already stay in the old queue.
    pub fn apply_limit(&self, per_second_max: u32, time_limit: Duration) {
        let line = 1_000_000_u64.checked_div(per_second_max.into()).map(|interval_us| {
            let waiting_max = (time_limit / WAIT_DIVISOR).as_micros() as u64 / interval_us.max(1);
            let (hasher, state) = (KeyHasher::default(), RefCell::default());
            Rc::new(HandshakeQueue { interval_us, waiting_max: waiting_max.max(1) as usize, hasher, state })
        });
        let limits = |line: &Option<Rc<HandshakeQueue>>| line.as_ref().map(|line| (line.interval_us, line.waiting_max));
        let current = &mut *self.line.borrow_mut();
        if limits(current) != limits(&line) {
            *current = line;
        }
    }

    /// Joins the queue; `None` without a limit.
    ///
    /// # Errors
    /// The queue, or the client's share of it, is full.
    pub fn join(&self, client: LogClient) -> Result<Option<LinePlace>, TooManyHandshakes> {
        let Some(line) = &*self.line.borrow() else { return Ok(None) };
        let ticket = line.join(client).ok_or(TooManyHandshakes)?;
        Ok(Some(LinePlace { line: Rc::clone(line), ticket, timer: None }))
    }

    /// Returns true if one more handshake may begin in this turn of the event loop.
    pub fn take_turn(&self) -> bool {
        let asked = self.asked.get();
        self.asked.set(asked + 1);
        asked < BEGUN_A_TURN_MAX
    }

    /// Begins a new turn of the event loop.
    pub fn on_turn(&self) {
        match self.asked.replace(0) {
            // Waiting handshakes ask in each turn, so none is waiting.
            0 => self.waiting_min.set(0),
            asked => {
                self.begun.set(self.begun.get() + asked.min(BEGUN_A_TURN_MAX));
                self.waiting_min.set(self.waiting_min.get().min(asked.saturating_sub(BEGUN_A_TURN_MAX)));
            }
        }
    }

    /// Returns the load since the last call.
    pub fn take_load(&self) -> HandshakeLoad {
        let waiting = match self.waiting_min.replace(u32::MAX) {
            // No turn has ended since the last call.
            u32::MAX => 0,
            waiting => waiting,
        };
        HandshakeLoad { begun: self.begun.take(), waiting }
    }
}

impl LinePlace {
    /// Ready when the handshake may begin. The caller must then drop the place, so that the next can begin.
    pub fn poll_turn(&mut self, now_ms: u64, task: &mut Task<'_>) -> Poll<()> {
        let Some(wait) = self.line.wait(self.ticket, now_ms, task.waker()) else { return Poll::Pending };
        if !wait.is_zero() {
            ready!(self.timer.get_or_insert_with(|| Box::pin(sleep(wait))).as_mut().poll(task));
        }
        self.line.take(now_ms);
        Poll::Ready(())
    }
}

impl Drop for LinePlace {
    fn drop(&mut self) {
        self.line.leave(self.ticket);
    }
}

impl HandshakeQueue {
    fn join(&self, client: LogClient) -> Option<u64> {
        let state = &mut *self.state.borrow_mut();
        let keys = [self.hasher.of_client(client), self.hasher.of_network(client)];
        let has_share = |(key, divisor): (&u64, usize)| {
            state.of_clients.get(key).is_none_or(|count| *count < self.waiting_max.div_ceil(divisor))
        };
        let has_shares = keys.iter().zip([CLIENT_DIVISOR, NETWORK_DIVISOR]).all(has_share);
        if state.waiting.len() >= self.waiting_max || !has_shares {
            return None;
        }
        keys.iter().for_each(|key| *state.of_clients.entry(*key).or_insert(0) += 1);
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.waiting.insert(ticket, WaitingHandshake { keys, waker: Waker::noop().clone() });
        Some(ticket)
    }

    /// Time that the first in the queue must wait. `None` for the others, which are woken when they become the first.
    fn wait(&self, ticket: u64, now_ms: u64, waker: &Waker) -> Option<Duration> {
        let state = &mut *self.state.borrow_mut();
        if state.waiting.first_key_value().is_some_and(|(first, _)| *first < ticket) {
            if let Some(own) = state.waiting.get_mut(&ticket) {
                own.waker.clone_from(waker);
            }
            return None;
        }
        Some(Duration::from_micros(state.due_us(now_ms).saturating_sub(now_ms * 1_000)))
    }

    /// Uses the place that is due now.
    fn take(&self, now_ms: u64) {
        let state = &mut *self.state.borrow_mut();
        state.next_us = state.due_us(now_ms) + self.interval_us;
    }

    fn leave(&self, ticket: u64) {
        let next = {
            let state = &mut *self.state.borrow_mut();
            let Some(WaitingHandshake { keys, .. }) = state.waiting.remove(&ticket) else { return };
            for key in keys {
                match state.of_clients.get_mut(&key) {
                    Some(count @ 2..) => *count -= 1,
                    _ => _ = state.of_clients.remove(&key),
                }
            }
            state.waiting.first_key_value().filter(|(first, _)| **first > ticket).map(|(_, next)| next.waker.clone())
        };
        if let Some(next) = next {
            next.wake();
        }
    }
}

impl LineState {
    /// Time at which the next handshake is due; may be in the past.
    fn due_us(&self, now_ms: u64) -> u64 {
        self.next_us.max((now_ms * 1_000).saturating_sub(BURST_US))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: u64 = 1_000_000;

    fn client(number: u8) -> LogClient {
        LogClient::Ip(([192, 0, number, 1], 1).into())
    }

    /// Takes the turn of a place if it is the first in the queue; returns its waiting time in milliseconds.
    fn next(place: &LinePlace, now_ms: u64) -> Option<u128> {
        let wait = place.line.wait(place.ticket, now_ms, Waker::noop())?;
        place.line.take(now_ms);
        Some(wait.as_millis())
    }

    fn join(handshakes: &Handshakes, number: u8) -> Option<LinePlace> {
        handshakes.join(client(number)).ok().flatten()
    }

    #[test]
    fn a_second_of_handshakes_may_come_at_once() {
        let handshakes = Handshakes::new(10, Duration::from_secs(10));
        let waits: Vec<_> = (0..13).map(|_| next(&join(&handshakes, 1).unwrap(), NOW_MS).unwrap()).collect();
        assert_eq!(waits, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 100, 200]);
        assert_eq!(next(&join(&handshakes, 1).unwrap(), NOW_MS + 10_000), Some(0));
        assert!(Handshakes::new(0, Duration::from_secs(10)).join(client(1)).unwrap().is_none());
    }

    #[test]
    fn those_that_leave_the_line_are_removed() {
        let handshakes = Handshakes::new(10, Duration::from_secs(10));
        let (first, second) = (join(&handshakes, 1).unwrap(), join(&handshakes, 2).unwrap());
        assert_eq!(next(&second, NOW_MS), None, "another is first");
        for _ in 0..1_000 {
            assert!(join(&handshakes, 3).is_some(), "those before have left");
        }
        drop(first);
        assert_eq!(next(&second, NOW_MS), Some(0));
        drop(second);
        let line = handshakes.line.borrow().clone().unwrap();
        let state = line.state.borrow();
        assert!(state.waiting.is_empty() && state.of_clients.is_empty());
    }

    #[test]
    fn the_line_has_room_for_what_can_be_waited_for_and_a_share_for_each() {
        // Half of 10 s may be spent waiting: 50 handshakes at 10 a second.
        let handshakes = Handshakes::new(10, Duration::from_secs(10));
        let mut places: Vec<_> = (0..20).map_while(|_| join(&handshakes, 1)).collect();
        assert_eq!(places.len(), 7);
        places.extend((0..100).filter_map(|number| join(&handshakes, 2 + number)));
        assert_eq!(places.len(), 50);
        assert_eq!(handshakes.join(client(200)).err(), Some(TooManyHandshakes));
        places.pop();
        assert!(handshakes.join(client(200)).is_ok());
    }

    #[test]
    fn a_network_has_a_quarter_of_the_line() {
        let handshakes = Handshakes::new(10, Duration::from_secs(10));
        let of_network = |number: u8| handshakes.join(LogClient::Ip(([192, 0, 2, number], 1).into()));
        let places: Vec<_> = (0..100).filter_map(|number| of_network(number).ok().flatten()).collect();
        assert_eq!(places.len(), 13);
        assert!(join(&handshakes, 3).is_some(), "another network");
    }

    #[test]
    fn only_handshakes_that_wait_all_the_time_count_as_waiting() {
        let handshakes = Handshakes::new(0, Duration::ZERO);
        for (turns, begun, waiting) in
            [(&[10, 7, 30][..], 12, 3), (&[10, 0, 30], 8, 0), (&[3, 4], 7, 0), (&[], 0, 0), (&[5], 4, 1)]
        {
            for &asked in turns {
                (0..asked).for_each(|_| _ = handshakes.take_turn());
                handshakes.on_turn();
            }
            assert_eq!(handshakes.take_load(), HandshakeLoad { begun, waiting }, "{turns:?}");
        }
    }

    #[test]
    fn a_turn_has_room_for_few() {
        let handshakes = Handshakes::new(0, Duration::ZERO);
        assert_eq!((0..6).filter(|_| handshakes.take_turn()).count(), 4);
        handshakes.on_turn();
        assert!(handshakes.take_turn());
    }
}
