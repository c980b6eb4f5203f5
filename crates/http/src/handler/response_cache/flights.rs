//! Request collapsing: one fetch for all requests of a key. Later requests wait for the first.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;
use tokio::sync::watch;
use wire::http::Fields;
use wire::http::caching::CacheTag;

/// Purged tags that are remembered. A fetch that takes longer than that many purges is not stored.
const PURGED_TAGS_MAX: usize = 1_000;

/// End of a fetch, for the requests that waited for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FetchEnd {
    /// The response is stored.
    Stored,
    /// The response can't be shared: each waiting request must fetch for itself.
    NotStored,
    /// The upstream failed to respond.
    Failed,
    /// The fetching request ended early.
    Abandoned,
}

/// Fetches in progress, of all workers.
#[derive(Debug, Default)]
pub(super) struct Flights {
    map: Mutex<HashMap<Box<[u8]>, Flight>>,
    purges: Mutex<TagPurges>,
}

/// Purges by tag. The tags of a response are known only when its head has arrived.
#[derive(Debug, Default)]
struct TagPurges {
    /// Purges since the start.
    count: u64,
    /// Tags of the latest ones.
    recent: VecDeque<CacheTag>,
}

#[derive(Debug)]
struct Flight {
    ended: watch::Sender<Option<FetchEnd>>,
    is_invalid: Arc<AtomicBool>,
}

/// Role of a request for a key.
pub(super) enum Joined {
    /// The first request: it fetches.
    First(Ticket),
    /// A request that waits.
    Waiting(FetchWait),
    /// One request too many: it fetches for itself alone.
    TooMany,
}

/// Duty to fetch for others. Dropping it reports [`FetchEnd::Abandoned`] to them.
#[derive(Debug)]
pub(super) struct Ticket {
    flights: Arc<Flights>,
    key: Box<[u8]>,
    is_invalid: Arc<AtomicBool>,
    /// Purges by tag before the fetch.
    purges_before: u64,
}

/// A wait for a fetch.
pub(super) struct FetchWait {
    ended: watch::Receiver<Option<FetchEnd>>,
}

impl Flights {
    /// Joins the fetch of this key, or begins one. At most `waiting_max` requests wait for one.
    pub(super) fn join(self: &Arc<Self>, key: &[u8], waiting_max: usize) -> Joined {
        let mut map = self.lock();
        if let Some(flight) = map.get(key) {
            return match flight.ended.receiver_count() < waiting_max {
                true => Joined::Waiting(FetchWait { ended: flight.ended.subscribe() }),
                false => Joined::TooMany,
            };
        }
        let is_invalid = Arc::new(AtomicBool::new(false));
        map.insert(key.into(), Flight { ended: watch::Sender::new(None), is_invalid: Arc::clone(&is_invalid) });
        let purges_before = self.purges().count;
        Joined::First(Ticket { flights: Arc::clone(self), key: key.into(), is_invalid, purges_before })
    }

    /// Marks fetches of these keys as outdated, so that their responses are not stored.
    pub(super) fn invalidate(&self, matches: impl Fn(&[u8]) -> bool) {
        let map = self.lock();
        let matching = map.iter().filter(|(key, _)| matches(key));
        matching.for_each(|(_, flight)| flight.is_invalid.store(true, Ordering::Relaxed));
    }

    /// Keeps fetches in progress from storing responses with this tag.
    pub(super) fn purge_tag(&self, tag: CacheTag) {
        let mut purges = self.purges();
        purges.count += 1;
        if purges.recent.len() == PURGED_TAGS_MAX {
            purges.recent.pop_front();
        }
        purges.recent.push_back(tag);
    }

    fn purges(&self) -> MutexGuard<'_, TagPurges> {
        // No update is left half done by a panic.
        self.purges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<[u8]>, Flight>> {
        // No update is left half done by a panic.
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Joined {
    /// Ticket of the first request.
    pub(super) fn into_ticket(self) -> Option<Ticket> {
        match self {
            Self::First(ticket) => Some(ticket),
            Self::Waiting(_) | Self::TooMany => None,
        }
    }
}

impl Ticket {
    /// Key of the fetch.
    pub(super) fn key(&self) -> &[u8] {
        &self.key
    }

    /// True if the resource was changed since the fetch began.
    pub(super) fn is_invalid(&self) -> bool {
        self.is_invalid.load(Ordering::Relaxed)
    }

    /// True if the response with these fields must not be stored: its URL or one of its tags was purged since the fetch began.
    pub(super) fn is_outdated(&self, fields: &Fields) -> bool {
        if self.is_invalid() {
            return true;
        }
        let purges = self.flights.purges();
        match (purges.count - self.purges_before) as usize {
            0 => false,
            missed if missed > purges.recent.len() => true,
            missed => purges.recent.iter().rev().take(missed).any(|tag| tag.is_in(fields)),
        }
    }

    /// Ends the fetch.
    pub(super) fn end(self, ended: FetchEnd) {
        self.tell(ended);
    }

    /// Reports the end to waiting requests, once. A later fetch of the same key is not touched.
    fn tell(&self, ended: FetchEnd) {
        let mut map = self.flights.lock();
        let is_ours = |flight: &Flight| Arc::ptr_eq(&flight.is_invalid, &self.is_invalid);
        if map.get(&self.key).is_some_and(is_ours)
            && let Some(flight) = map.remove(&self.key)
        {
            flight.ended.send_replace(Some(ended));
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.tell(FetchEnd::Abandoned);
    }
}

impl FetchWait {
    /// Waits for the end.
    pub(super) async fn ended(mut self) -> FetchEnd {
        let ended = self.ended.wait_for(Option::is_some).await.map(|ended| *ended);
        // An error means that the sender is gone.
        ended.ok().flatten().unwrap_or(FetchEnd::Abandoned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(flights: &Arc<Flights>, key: &str) -> Ticket {
        match flights.join(key.as_bytes(), 2) {
            Joined::First(ticket) => ticket,
            _ => panic!("{key} is being fetched"),
        }
    }

    fn waiting(flights: &Arc<Flights>, key: &str) -> FetchWait {
        match flights.join(key.as_bytes(), 2) {
            Joined::Waiting(waiting) => waiting,
            _ => panic!("{key} is not waited for"),
        }
    }

    #[tokio::test]
    async fn the_others_learn_how_it_ended() {
        let flights = Arc::new(Flights::default());
        for ended in [FetchEnd::Stored, FetchEnd::NotStored, FetchEnd::Failed] {
            let ticket = first(&flights, "a");
            let _other = first(&flights, "b");
            let (one, two) = (waiting(&flights, "a"), waiting(&flights, "a"));
            assert!(matches!(flights.join(b"a", 2), Joined::TooMany));
            ticket.end(ended);
            assert_eq!((one.ended().await, two.ended().await), (ended, ended));
        }
        let ticket = first(&flights, "a");
        let one = waiting(&flights, "a");
        drop(ticket);
        assert_eq!(one.ended().await, FetchEnd::Abandoned);
    }

    #[test]
    fn what_was_changed_meanwhile_is_invalid() {
        let flights = Arc::new(Flights::default());
        let (a, b) = (first(&flights, "a"), first(&flights, "b"));
        flights.invalidate(|key| key == b"a");
        assert!(a.is_invalid() && !b.is_invalid());
        a.end(FetchEnd::NotStored);
        assert!(!first(&flights, "a").is_invalid());
    }

    #[test]
    fn tags_that_were_purged_meanwhile() {
        let flights = Arc::new(Flights::default());
        let mut fields = Fields::new();
        fields.push("Surrogate-Key", "one two");
        flights.purge_tag(CacheTag::of(b"one"));
        let ticket = first(&flights, "a");
        assert!(!ticket.is_outdated(&fields), "purged before");
        flights.purge_tag(CacheTag::of(b"three"));
        assert!(!ticket.is_outdated(&fields) && !ticket.is_outdated(&Fields::new()));
        flights.purge_tag(CacheTag::of(b"two"));
        assert!(ticket.is_outdated(&fields) && !ticket.is_outdated(&Fields::new()));
        // More than are remembered.
        let ticket = first(&flights, "b");
        (0..PURGED_TAGS_MAX).for_each(|_| flights.purge_tag(CacheTag::of(b"four")));
        assert!(!ticket.is_outdated(&fields));
        flights.purge_tag(CacheTag::of(b"four"));
        assert!(ticket.is_outdated(&fields));
    }
}
