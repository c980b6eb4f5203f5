//! Decision whether a response of another instance may be served: no purge came after its fetch began.
//!
//! Purges are events that all instances read in the same order. An instance that fetches a response notes its position in the
//! events, which the stored response keeps. Another instance serves it only if it knows all purges since that position, and
//! none of them is for the response. So a purged response is never served, whichever instance stored it again.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Purges that are remembered. Responses that were fetched before older ones are not served.
const HEARD_MAX: usize = 10_000;

/// Purges given here whose place among the events is not known yet. Above it, no response of others is served until it is.
const PENDING_MAX: usize = 1_000;

/// Removals that are remembered. Above it, no response is served that was fetched before them.
const REMOVED_MAX: usize = 65_536;

/// Largest error of the engine's time as instances know it, in milliseconds.
const TIME_ERROR_MS: u64 = 1_000;

/// Purge of an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CachePurge {
    /// Responses for this URL.
    Url(String),
    /// Responses for URLs that begin so.
    Prefix(String),
    /// Responses with this tag.
    Tag(String),
    /// All responses.
    All,
}

/// State of a fetch when it began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchStamp {
    /// Epoch of the events.
    pub epoch: Arc<str>,
    /// Number of the next event: all before it had been applied.
    pub next: u64,
    /// Time by the engine's clock, in milliseconds since 1970.
    pub engine_ms: u64,
}

/// Reason why a response must not be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outdated {
    /// Purges may have been missed.
    Unknown,
    /// This instance has removed the response since, or its time is wrong.
    Removed,
}

/// Purges that this instance knows.
#[derive(Debug, Default)]
pub(super) struct PurgeHistory {
    /// Epoch, and number of the next event.
    position: Option<(Arc<str>, u64)>,
    /// Least position since which all purges are known.
    known_from: u64,
    /// Purges with the position after them, in this order.
    heard: VecDeque<(u64, Arc<CachePurge>)>,
    pending: VecDeque<Arc<CachePurge>>,
    /// The first of them that wait for the store.
    handed: usize,
    /// Removals by this instance alone: hashes of keys, each with the engine's time until which fetches are outdated.
    removed: HashMap<u64, u64>,
    /// Time until which all fetches are outdated.
    removed_all_ms: u64,
    /// Changes so far.
    changes: u64,
}

impl PurgeHistory {
    /// Number that changes with each purge and removal.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Position in the events, once known.
    pub(super) fn position(&self) -> Option<(&Arc<str>, u64)> {
        self.position.as_ref().map(|(epoch, next)| (epoch, *next))
    }

    /// Takes the position in the events.
    pub(super) fn set_position(&mut self, epoch: &str, next: u64) {
        match &mut self.position {
            Some((known, position)) if **known == *epoch => *position = next,
            _ => {
                self.changes += 1;
                self.heard.clear();
                self.known_from = next;
                self.position = Some((epoch.into(), next));
            }
        }
    }

    /// Takes a purge of another instance; `next` is the position after it.
    pub(super) fn on_heard(&mut self, next: u64, purge: CachePurge) {
        self.changes += 1;
        self.remember(next, Arc::new(purge));
    }

    fn remember(&mut self, next: u64, purge: Arc<CachePurge>) {
        if self.heard.len() >= HEARD_MAX
            && let Some((oldest, _)) = self.heard.pop_front()
        {
            self.known_from = self.known_from.max(oldest);
        }
        self.heard.push_back((next, purge));
    }

    /// Events were missed. The position that follows is the first since which all are known.
    pub(super) fn on_missed(&mut self) {
        self.changes += 1;
        self.position = None;
    }

    /// Takes a purge that was given here. Its place among the events is not known yet.
    pub(super) fn on_given(&mut self, purge: CachePurge) {
        self.changes += 1;
        if self.pending.len() >= PENDING_MAX {
            self.pending.pop_back();
            self.pending.push_back(Arc::new(CachePurge::All));
        } else {
            self.pending.push_back(Arc::new(purge));
        }
    }

    /// The next given purge waits for the store now.
    pub(super) fn on_handed(&mut self) {
        self.handed = (self.handed + 1).min(self.pending.len());
    }

    /// The store has all purges that waited for it; their places are before `next`.
    pub(super) fn on_published(&mut self, next: u64) {
        for _ in 0..std::mem::take(&mut self.handed) {
            if let Some(purge) = self.pending.pop_front() {
                self.remember(next, purge);
            }
        }
    }

    /// This instance has removed the response with this hash of its key.
    pub(super) fn on_removed(&mut self, key_hash: u64, engine_ms: u64) {
        self.changes += 1;
        let until_ms = engine_ms.saturating_add(TIME_ERROR_MS);
        if self.removed.len() >= REMOVED_MAX {
            self.removed.clear();
            self.removed_all_ms = until_ms;
        }
        self.removed.insert(key_hash, until_ms);
    }

    /// Purges that came after a fetch, or may have. The response must not be served if one of them is for it.
    pub(super) fn since(
        &self,
        stamp: &FetchStamp,
        key_hash: u64,
        engine_ms: u64,
    ) -> Result<Vec<Arc<CachePurge>>, Outdated> {
        let is_known = |(epoch, _): &(Arc<str>, u64)| *epoch == stamp.epoch && stamp.next >= self.known_from;
        if !self.position.as_ref().is_some_and(is_known) {
            return Err(Outdated::Unknown);
        }
        let removed_ms = self.removed.get(&key_hash).copied().unwrap_or(0).max(self.removed_all_ms);
        if stamp.engine_ms <= removed_ms || stamp.engine_ms > engine_ms.saturating_add(10 * TIME_ERROR_MS) {
            return Err(Outdated::Removed);
        }
        let heard = self.heard.iter().rev().take_while(|(next, _)| *next > stamp.next).map(|(_, purge)| purge);
        Ok(heard.chain(&self.pending).map(Arc::clone).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000_000;

    fn stamp(epoch: &str, next: u64) -> FetchStamp {
        FetchStamp { epoch: epoch.into(), next, engine_ms: NOW }
    }

    fn url(text: &str) -> CachePurge {
        CachePurge::Url(text.to_owned())
    }

    /// Purges since a stamp; `None` if some may be missing.
    fn since(history: &PurgeHistory, epoch: &str, next: u64) -> Option<Vec<CachePurge>> {
        let purges = history.since(&stamp(epoch, next), 7, NOW).ok()?;
        Some(purges.iter().map(|purge| CachePurge::clone(purge)).collect())
    }

    #[test]
    fn purges_after_a_fetch_count() {
        let mut history = PurgeHistory::default();
        assert_eq!(since(&history, "a", 1), None, "no position yet");
        history.set_position("a", 5);
        assert_eq!(since(&history, "a", 4), None, "events before the first read are not known");
        assert_eq!(since(&history, "a", 5), Some(vec![]));
        assert_eq!(since(&history, "a", 9), Some(vec![]), "fetched by an instance that is ahead");
        history.set_position("a", 6);
        history.on_heard(6, url("one"));
        history.set_position("a", 8);
        history.on_heard(8, url("two"));
        assert_eq!(since(&history, "a", 5), Some(vec![url("two"), url("one")]));
        assert_eq!(since(&history, "a", 6), Some(vec![url("two")]));
        assert_eq!(since(&history, "a", 7), Some(vec![url("two")]));
        assert_eq!(since(&history, "a", 8), Some(vec![]));
        assert_eq!(since(&history, "b", 8), None, "the store has lost its values since");
        history.set_position("b", 1);
        assert_eq!((since(&history, "a", 8), since(&history, "b", 1)), (None, Some(vec![])));
    }

    #[test]
    fn own_purges_count_until_their_place_is_known() {
        let mut history = PurgeHistory::default();
        history.set_position("a", 5);
        history.on_given(url("one"));
        assert_eq!(since(&history, "a", 100), Some(vec![url("one")]));
        // Another order is published; this one does not wait yet.
        history.on_published(7);
        assert_eq!(since(&history, "a", 100), Some(vec![url("one")]));
        history.on_handed();
        history.on_given(url("two"));
        history.on_published(9);
        assert_eq!(since(&history, "a", 8), Some(vec![url("one"), url("two")]));
        assert_eq!(since(&history, "a", 9), Some(vec![url("two")]));
        // A wiped store: what waits still counts.
        history.set_position("b", 1);
        assert_eq!(since(&history, "b", 1), Some(vec![url("two")]));
    }

    #[test]
    fn missed_events_make_older_fetches_unknown() {
        let mut history = PurgeHistory::default();
        history.set_position("a", 5);
        history.on_missed();
        assert_eq!(since(&history, "a", 5), None);
        history.set_position("a", 2_000);
        assert_eq!((since(&history, "a", 1_999), since(&history, "a", 2_000)), (None, Some(vec![])));
    }

    #[test]
    fn memory_is_bounded() {
        let mut history = PurgeHistory::default();
        history.set_position("a", 1);
        for next in 2..HEARD_MAX as u64 + 12 {
            history.set_position("a", next);
            history.on_heard(next, url("x"));
        }
        assert_eq!(history.heard.len(), HEARD_MAX);
        assert_eq!((since(&history, "a", 10), since(&history, "a", 11).map(|all| all.len())), (None, Some(HEARD_MAX)));
        (0..=PENDING_MAX).for_each(|_| history.on_given(url("y")));
        assert_eq!(history.pending.len(), PENDING_MAX);
        assert!(since(&history, "a", u64::MAX).unwrap().contains(&CachePurge::All));
        (0..=REMOVED_MAX as u64).for_each(|key| history.on_removed(key + 100, NOW));
        assert!(history.removed.len() <= REMOVED_MAX);
        assert_eq!(history.since(&stamp("a", 1 << 40), 7, NOW), Err(Outdated::Removed), "all that is older");
    }

    #[test]
    fn removals_of_this_instance() {
        let mut history = PurgeHistory::default();
        history.set_position("a", 1);
        history.on_removed(7, NOW - TIME_ERROR_MS);
        assert_eq!(history.since(&stamp("a", 1), 7, NOW), Err(Outdated::Removed), "fetched at the same time, perhaps");
        assert!(history.since(&stamp("a", 1), 8, NOW).is_ok());
        let later = FetchStamp { engine_ms: NOW + 1, ..stamp("a", 1) };
        assert!(history.since(&later, 7, NOW).is_ok());
        let future = FetchStamp { engine_ms: NOW + 60_000, ..stamp("a", 1) };
        assert_eq!(history.since(&future, 8, NOW), Err(Outdated::Removed));
    }
}
