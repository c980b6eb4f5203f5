//! Board: entries with an end that all instances know, such as bans by rules. One key holds all of them, and instances change
//! it by comparing and setting it.
//!
//! Unlike [events](super::events), entries have no order, and nothing is lost by an instance that was away: it reads the board.
//! Clients may cause entries, so their number is limited, and any number of new ones is one write.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Expected, InstanceTime, StoreReply, StoreRequest, StoreResult};

/// Entries of a board, at most 300 KiB: each engine takes such values. Further ones stay with their instance.
pub const BOARD_ENTRIES_MAX: usize = 2_048;

/// Bytes of a key and a value together.
pub const BOARD_ENTRY_BYTES_MAX: usize = 96;

/// Wait after a failure.
const RETRY: Duration = Duration::from_secs(1);

/// Entry of a board.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoardEntry {
    /// Content.
    pub value: String,
    /// End, in milliseconds since 1970.
    pub until_unix_ms: u64,
}

/// Change of a board by another instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BoardChange {
    /// The entry is new, or another.
    Set(String, BoardEntry),
    /// The entry was removed before its end.
    Removed(String),
}

/// Entries by key.
type Entries = BTreeMap<String, BoardEntry>;

/// Board of one instance.
#[derive(Debug)]
pub struct Board {
    key: String,
    interval: Duration,
    known: Entries,
    /// Version of `known` in the store.
    version: Option<String>,
    /// Own changes that wait to be written; `None` removes.
    waiting: BTreeMap<String, Option<BoardEntry>>,
    in_flight: Option<InFlight>,
    next_at: InstanceTime,
}

#[derive(Debug)]
enum InFlight {
    Read,
    Write {
        entries: Entries,
        /// Changes that the write has, as they were.
        written: BTreeMap<String, Option<BoardEntry>>,
    },
}

impl Board {
    /// Board at a key of the store, which is read at this interval.
    pub fn new(key: &str, interval: Duration) -> Self {
        Self {
            key: key.to_owned(),
            interval,
            known: Entries::new(),
            version: None,
            waiting: BTreeMap::new(),
            in_flight: None,
            next_at: InstanceTime::ZERO,
        }
    }

    /// Sets an entry for all instances. Returns false if too many wait, or the entry is too long: it stays with this instance.
    pub fn set(&mut self, key: String, entry: BoardEntry) -> bool {
        let fits = key.len() + entry.value.len() <= BOARD_ENTRY_BYTES_MAX
            && (self.waiting.len() < BOARD_ENTRIES_MAX || self.waiting.contains_key(&key));
        if fits {
            self.waiting.insert(key, Some(entry));
        }
        fits
    }

    /// Removes an entry for all instances.
    pub fn remove(&mut self, key: &str) {
        if self.known.contains_key(key) || self.waiting.contains_key(key) || self.in_flight.is_some() {
            self.waiting.insert(key.to_owned(), None);
        }
    }

    /// Entries that are known, with own ones that wait.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// True if no entry is known.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Time of the next request.
    pub fn next_wake(&self) -> Option<InstanceTime> {
        self.in_flight.is_none().then_some(self.next_at)
    }

    /// Request that is due.
    pub fn poll(&mut self, now: InstanceTime) -> Option<StoreRequest> {
        if self.in_flight.is_some() || now < self.next_at {
            return None;
        }
        self.in_flight = Some(InFlight::Read);
        Some(StoreRequest::Get(self.key.clone()))
    }

    /// Takes a reply. Adds what others have changed to `changes`, and returns the next request.
    pub fn handle_reply(
        &mut self,
        now: InstanceTime,
        unix_ms: u64,
        result: StoreResult,
        changes: &mut Vec<BoardChange>,
    ) -> Option<StoreRequest> {
        self.next_at = now + self.interval;
        match (self.in_flight.take()?, result) {
            (InFlight::Read, Ok(StoreReply::Entry(entry))) => {
                self.on_read(unix_ms, entry, changes);
                self.write(unix_ms)
            }
            (InFlight::Write { entries, written }, Ok(StoreReply::Done(version))) => {
                (self.known, self.version) = (entries, Some(version));
                // A change since then waits for the next write.
                self.waiting.retain(|key, change| written.get(key) != Some(change));
                None
            }
            // Another instance was first: reads again.
            (InFlight::Write { .. }, Ok(StoreReply::Conflict)) => {
                self.next_at = now;
                None
            }
            // The next read tells whether it was written.
            _ => {
                self.next_at = now + RETRY;
                None
            }
        }
    }

    fn on_read(&mut self, unix_ms: u64, entry: Option<(Vec<u8>, String)>, changes: &mut Vec<BoardChange>) {
        let (value, version) = entry.unzip();
        if version.is_some() && version == self.version {
            return;
        }
        let stored = value.and_then(|value| serde_json::from_slice::<Entries>(&value).ok());
        self.version = version;
        let Some(mut stored) = stored else {
            // The store is new, was wiped, or holds something else: this instance tells what it knows.
            for (key, entry) in std::mem::take(&mut self.known) {
                self.waiting.entry(key).or_insert(Some(entry));
            }
            return;
        };
        let is_sound = |key: &str, entry: &BoardEntry| {
            entry.until_unix_ms > unix_ms && key.len() + entry.value.len() <= BOARD_ENTRY_BYTES_MAX
        };
        stored.retain(|key, entry| is_sound(key, entry));
        while stored.len() > BOARD_ENTRIES_MAX {
            stored.pop_last();
        }
        for (key, entry) in &self.known {
            if entry.until_unix_ms > unix_ms && !stored.contains_key(key) && !self.waiting.contains_key(key) {
                changes.push(BoardChange::Removed(key.clone()));
            }
        }
        for (key, entry) in &stored {
            if self.known.get(key) != Some(entry) && !self.waiting.contains_key(key) {
                changes.push(BoardChange::Set(key.clone(), entry.clone()));
            }
        }
        self.known = stored;
    }

    /// Request that writes what waits.
    fn write(&mut self, unix_ms: u64) -> Option<StoreRequest> {
        let mut entries = self.known.clone();
        entries.retain(|_, entry| entry.until_unix_ms > unix_ms);
        for (key, change) in &self.waiting {
            match change {
                Some(entry) if entry.until_unix_ms > unix_ms => {
                    if entries.len() < BOARD_ENTRIES_MAX || entries.contains_key(key) {
                        entries.insert(key.clone(), entry.clone());
                    }
                }
                _ => _ = entries.remove(key),
            }
        }
        let written = self.waiting.clone();
        if entries == self.known {
            // All waiting changes are there already, are over, or have no place.
            self.waiting.clear();
            return None;
        }
        // Entries that are over go with the next change, or when many are.
        if written.is_empty() && self.known.len() - entries.len() < BOARD_ENTRIES_MAX / 4 {
            return None;
        }
        let value = serde_json::to_vec(&entries).ok()?;
        let expect = self.version.clone().map_or(Expected::Absent, Expected::Version);
        self.in_flight = Some(InFlight::Write { entries, written });
        Some(StoreRequest::Put { key: self.key.clone(), value, expect })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::UnknownOutcome;
    use super::super::simulation::random::Random;
    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    /// Store of one key.
    #[derive(Default)]
    struct OneKey {
        value: Option<Vec<u8>>,
        version: u64,
    }

    impl OneKey {
        fn carry_out(&mut self, request: StoreRequest) -> StoreReply {
            let version = self.value.is_some().then(|| self.version.to_string());
            match request {
                StoreRequest::Get(_) => StoreReply::Entry(self.value.clone().zip(version)),
                StoreRequest::Put { value, expect, .. } => {
                    let fits = match expect {
                        Expected::Any => true,
                        Expected::Absent => version.is_none(),
                        Expected::Version(expected) => version == Some(expected),
                    };
                    if !fits {
                        return StoreReply::Conflict;
                    }
                    self.value = Some(value);
                    self.version += 1;
                    StoreReply::Done(self.version.to_string())
                }
                request => panic!("{request:?}"),
            }
        }
    }

    /// Instance with what it has applied.
    struct Host {
        board: Board,
        applied: BTreeSet<String>,
    }

    impl Host {
        fn new() -> Self {
            Self { board: Board::new("bans", Duration::from_secs(1)), applied: BTreeSet::new() }
        }

        fn set(&mut self, key: &str, until_unix_ms: u64) {
            self.applied.insert(key.to_owned());
            assert!(self.board.set(key.to_owned(), BoardEntry { value: "reject".to_owned(), until_unix_ms }));
        }

        fn remove(&mut self, key: &str) {
            self.applied.remove(key);
            self.board.remove(key);
        }

        /// Takes a reply, and returns the next request.
        fn take(&mut self, now_s: u64, result: StoreResult) -> Option<StoreRequest> {
            let mut changes = Vec::new();
            let next = self.board.handle_reply(Duration::from_secs(now_s), now_s * 1_000, result, &mut changes);
            for change in changes {
                match change {
                    BoardChange::Set(key, _) => _ = self.applied.insert(key),
                    BoardChange::Removed(key) => _ = self.applied.remove(&key),
                }
            }
            next
        }

        /// A turn with a store that works.
        fn turn(&mut self, store: &mut OneKey, now_s: u64) {
            let mut request = self.board.poll(Duration::from_secs(now_s));
            while let Some(sent) = request {
                let reply = store.carry_out(sent);
                request = self.take(now_s, Ok(reply));
            }
        }

        fn has(&self, keys: &[&str]) -> bool {
            self.applied.iter().map(String::as_str).eq(keys.iter().copied())
        }
    }

    #[test]
    fn entries_reach_all() {
        let (mut store, mut one, mut two) = (OneKey::default(), Host::new(), Host::new());
        one.set("a", HOUR_MS);
        two.set("b", HOUR_MS);
        for now_s in 1..4 {
            one.turn(&mut store, now_s);
            two.turn(&mut store, now_s);
        }
        assert!(one.has(&["a", "b"]) && two.has(&["a", "b"]));
        let version = store.version;
        // A later instance reads all; a removal holds for all, also if another set the entry.
        let mut three = Host::new();
        three.turn(&mut store, 4);
        assert!(three.has(&["a", "b"]));
        assert_eq!(store.version, version, "reading writes nothing");
        three.remove("a");
        three.turn(&mut store, 6);
        one.turn(&mut store, 7);
        two.turn(&mut store, 7);
        assert!(one.has(&["b"]) && two.has(&["b"]) && three.has(&["b"]));
    }

    #[test]
    fn an_end_is_no_removal() {
        let (mut store, mut one, mut two) = (OneKey::default(), Host::new(), Host::new());
        one.set("short", 10_000);
        one.set("long", HOUR_MS);
        one.turn(&mut store, 1);
        two.turn(&mut store, 2);
        two.set("late", HOUR_MS);
        two.turn(&mut store, 20);
        one.turn(&mut store, 21);
        // The caller knows the end itself.
        assert!(one.has(&["late", "long", "short"]));
        let stored: Entries = serde_json::from_slice(store.value.as_ref().unwrap()).unwrap();
        assert_eq!(stored.len(), 2, "what is over is not kept");
    }

    #[test]
    fn a_wiped_store_is_filled_again() {
        let (mut store, mut one, mut two) = (OneKey::default(), Host::new(), Host::new());
        one.set("a", HOUR_MS);
        one.turn(&mut store, 1);
        two.turn(&mut store, 2);
        for wiped in [None, Some(b"garbage".to_vec()), Some(b"[]".to_vec())] {
            store.value = wiped;
            store.version += 1;
            two.turn(&mut store, 100);
            one.turn(&mut store, 101);
            assert!(one.has(&["a"]) && two.has(&["a"]));
            let stored: Entries = serde_json::from_slice(store.value.as_ref().unwrap()).unwrap();
            assert!(stored.contains_key("a"));
            (one.board.next_at, two.board.next_at) = Default::default();
        }
    }

    #[test]
    fn limits() {
        let (mut store, mut one, mut two) = (OneKey::default(), Host::new(), Host::new());
        for number in 0..BOARD_ENTRIES_MAX {
            one.set(&number.to_string(), HOUR_MS);
        }
        let entry = || BoardEntry { value: String::new(), until_unix_ms: HOUR_MS };
        assert!(!one.board.set("more".to_owned(), entry()), "too many wait");
        one.turn(&mut store, 1);
        one.set("more", HOUR_MS);
        assert!(!one.board.set("x".repeat(BOARD_ENTRY_BYTES_MAX + 1), entry()));
        one.turn(&mut store, 3);
        assert!(one.board.waiting.is_empty(), "no place, no retry");
        two.turn(&mut store, 4);
        assert_eq!(two.applied.len(), BOARD_ENTRIES_MAX);
        // A store that gives more, and longer ones.
        let mut hostile: Entries = (0..2 * BOARD_ENTRIES_MAX).map(|number| (format!("n{number}"), entry())).collect();
        hostile.insert("x".repeat(1_000), entry());
        hostile.insert("over".to_owned(), BoardEntry { value: String::new(), until_unix_ms: 1 });
        store.value = serde_json::to_vec(&hostile).ok();
        store.version += 1;
        let mut three = Host::new();
        three.turn(&mut store, 5);
        assert_eq!((three.applied.len(), three.board.len()), (BOARD_ENTRIES_MAX, BOARD_ENTRIES_MAX));
    }

    /// Five instances with lost requests, lost replies, conflicts and wiped stores. In the end, all have the same entries.
    #[test]
    fn instances_agree_after_faults() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let mut store = OneKey::default();
            let mut hosts: Vec<Host> = (0..5).map(|_| Host::new()).collect();
            // Requests on their way.
            let mut sent: Vec<(usize, StoreRequest)> = Vec::new();
            let mut removed = BTreeSet::new();
            for step in 0..2_000_u64 {
                let (now_s, host) = (step / 5, random.below(5) as usize);
                match random.below(20) {
                    0 if step < 1_500 => hosts[host].set(&format!("{}", random.below(40)), HOUR_MS),
                    1 if step < 1_500 => {
                        if let Some(key) = hosts[host].applied.first().cloned() {
                            hosts[host].remove(&key);
                            removed.insert(key);
                        }
                    }
                    2 if random.below(20) == 0 && step < 1_000 => {
                        (store.value, store.version) = (None, store.version + 1)
                    }
                    3..=9 => {
                        let request = hosts[host].board.poll(Duration::from_secs(now_s));
                        sent.extend(request.map(|request| (host, request)));
                    }
                    _ if !sent.is_empty() => {
                        let (host, request) = sent.swap_remove(random.below(sent.len() as u64) as usize);
                        let faulty = step < 1_500;
                        let result = match random.below(10) {
                            0 if faulty => Err(UnknownOutcome),
                            1 if faulty => {
                                store.carry_out(request);
                                Err(UnknownOutcome)
                            }
                            _ => Ok(store.carry_out(request)),
                        };
                        let next = hosts[host].take(now_s, result);
                        sent.extend(next.map(|request| (host, request)));
                    }
                    _ => {}
                }
            }
            let all: BTreeSet<_> = hosts.iter().map(|host| host.applied.clone()).collect();
            assert_eq!(all.len(), 1, "seed {seed}: {all:?}");
            let stored: Entries = serde_json::from_slice(store.value.as_ref().unwrap()).unwrap();
            assert!(stored.keys().eq(hosts[0].applied.iter()), "seed {seed}");
            assert!(!removed.is_empty(), "seed {seed}");
        }
    }
}
