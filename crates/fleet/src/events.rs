//! Ordered events: each instance publishes some, and all apply all in the same order.
//!
//! Event N is the key `events/N`. To publish, an instance reads all events there are, and then creates the next key, which
//! fails if another was faster. So the order is total, no number is missing, and a poll is the read of one key.
//!
//! `meta` names the epoch of the store and its oldest event. A new epoch means that the store was wiped: instances apply
//! [`Heard::Resync`], as does an instance that was away for longer than events are kept, and publish their recent events again.
//! Those without a topic only remove. Another program may write to the keys: an event that no instance can read is skipped, and a
//! `meta` is replaced by one of a new epoch. Both happen after a second read of the same version, because the first may have been
//! wrong. If `meta` had the old epoch after they were published, they need not be published again:
//! each instance has yet to learn of the new epoch, and its [`Heard::Resync`] removes as much.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Expected, InstanceTime, StoreReply, StoreRequest, StoreResult};

/// Events that are kept in the store.
pub const EVENTS_KEPT: u64 = 1_000;

/// Further events that wait to be removed together.
const TRIM_BATCH: u64 = 50;

/// Own events that wait to be published.
pub const OUTBOX_MAX: usize = 10_000;

/// Own events that are published again after the store was wiped.
const RECENT_MAX: usize = 1_000;

/// Topics whose latest event is known.
const TOPICS_MAX: usize = 20_000;

/// Bytes of these events.
const TOPICS_BYTES_MAX: usize = 16 << 20;

/// Other instances whose last event is known.
const ORIGINS_MAX: usize = 10_000;

/// Longest topic of an event, in bytes. A longer one is another program's.
pub const TOPIC_BYTES_MAX: usize = 4 << 10;

/// Longest origin and epoch, in bytes.
const ORIGIN_BYTES_MAX: usize = 200;
const EPOCH_BYTES_MAX: usize = 100;

/// Greatest number of an event; keys have 16 digits.
const NUMBER_MAX: u64 = 1_000_000_000_000_000;

/// Removed events that `meta` does not have yet, at most: the housekeeper removes one after another.
const UNTRIMMED_MAX: u64 = 10 * EVENTS_KEPT;

/// Reads of a `meta` of another program by an instance that knows no epoch. Those that know one replace it first.
const STRANGER_READS: u32 = 10;

/// Time after which `meta` is read again, so that a wiped store is noticed.
const META_INTERVAL: Duration = Duration::from_millis(750);

/// Polls without an event after which `meta` is read again: more reads than these would burden engines with long intervals.
const POLLS_PER_META: std::ops::RangeInclusive<u128> = 2..=20;

/// Wait after a failure.
const RETRY: Duration = Duration::from_millis(500);

const META: &str = "meta";

/// Event of an instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetEvent {
    /// Instance, with the start of its process.
    pub origin: String,
    /// Number of the event among those of its origin.
    pub number: u64,
    /// Time in milliseconds since 1970, by the clock of its origin.
    pub unix_ms: u64,
    /// Subject of which only the latest event counts; `None` for events that may be applied in any order.
    pub topic: Option<String>,
    /// Time after which the event has no effect, in milliseconds since 1970; `None` if it always has.
    pub until_unix_ms: Option<u64>,
    /// Content.
    pub payload: String,
}

/// Position in the events of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventCursor {
    /// Epoch of the store.
    pub epoch: String,
    /// Number of the next event.
    pub next: u64,
}

/// Error: too many events wait to be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutboxFull;

/// Change that an instance applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// An event.
    Event(FleetEvent),
    /// Events were missed: all that they could have removed must go.
    Resync,
}

impl FleetEvent {
    /// Event of a value. `None` for another program's.
    fn of_value(value: &[u8]) -> Option<Self> {
        let event: Self = serde_json::from_slice(value).ok()?;
        let is_sound = event.origin.len() <= ORIGIN_BYTES_MAX
            && event.topic.as_ref().is_none_or(|topic| topic.len() <= TOPIC_BYTES_MAX);
        is_sound.then_some(event)
    }
}

impl Meta {
    /// `meta` of a value. `None` for another program's.
    fn of_value(value: &[u8]) -> Option<Self> {
        let meta: Self = serde_json::from_slice(value).ok()?;
        let is_sound = meta.epoch.len() <= EPOCH_BYTES_MAX
            && (1..=NUMBER_MAX).contains(&meta.oldest)
            && meta.removed <= meta.oldest;
        let removed = meta.removed.max(meta.oldest.saturating_sub(UNTRIMMED_MAX));
        is_sound.then_some(Self { removed, ..meta })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Meta {
    epoch: String,
    /// Number of the oldest event.
    oldest: u64,
    /// Numbers below this one are removed.
    removed: u64,
}

/// Waiting event.
#[derive(Debug)]
enum Outgoing {
    Own(FleetEvent),
    /// Own event of the epoch before, unless the store has one of its topic.
    Again(FleetEvent),
    /// Latest event of a topic, which goes to the end because its own number is removed.
    Carried {
        topic: String,
        number: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InFlight {
    Meta,
    CreateMeta,
    Event,
    Publish,
    SetOldest,
    Remove,
    SetRemoved,
}

/// Events of one instance.
#[derive(Debug)]
pub(super) struct EventLog {
    origin: String,
    poll_interval: Duration,
    cursor: Option<EventCursor>,
    /// Position of an earlier process, whose cache this one continues. Events before it that are not of a topic are known.
    resumed: Option<EventCursor>,
    meta: Option<(Meta, String)>,
    outbox: VecDeque<Outgoing>,
    recent: VecDeque<FleetEvent>,
    /// Last number applied of each origin, and the position of that event.
    origins: HashMap<String, (u64, u64)>,
    /// Latest event of each topic, and its position.
    topics: HashMap<String, (u64, FleetEvent)>,
    published: u64,
    in_flight: Option<InFlight>,
    next_at: InstanceTime,
    polls: u32,
    is_meta_due: bool,
    /// True if the latest read found no further event.
    is_at_end: bool,
    /// True if an event of another instance came after the oldest own that is not read yet.
    others_since: bool,
    /// Event that is being published, as sent.
    sent: Option<FleetEvent>,
    /// Target of the trim in progress.
    trim: Option<Trim>,
    /// `meta` that this instance is about to write, and the state of the key that it needs.
    planned_meta: Option<(Meta, Expected)>,
    /// Latest value that this instance cannot read: its version, and how often it was read.
    unreadable: Option<(String, u32)>,
    /// Events that were skipped because no instance can read them.
    skipped: u64,
    /// Bytes of the events in `topics`.
    topics_bytes: usize,
}

#[derive(Clone, Copy, Debug)]
struct Trim {
    oldest: u64,
    /// Next number to remove; `None` before `meta` is set.
    removes: Option<u64>,
}

impl EventLog {
    pub(super) fn new(origin: &str, poll_interval: Duration, resumed: Option<EventCursor>) -> Self {
        Self {
            origin: origin.to_owned(),
            poll_interval,
            cursor: None,
            resumed,
            meta: None,
            outbox: VecDeque::new(),
            recent: VecDeque::new(),
            origins: HashMap::new(),
            topics: HashMap::new(),
            published: 0,
            in_flight: None,
            next_at: InstanceTime::ZERO,
            polls: 0,
            is_meta_due: true,
            is_at_end: false,
            others_since: false,
            sent: None,
            trim: None,
            planned_meta: None,
            unreadable: None,
            skipped: 0,
            topics_bytes: 0,
        }
    }

    /// Position of the next event, once known. That of an earlier process until it is reached.
    pub(super) fn cursor(&self) -> Option<&EventCursor> {
        let cursor = self.cursor.as_ref().filter(|_| self.meta.is_some())?;
        Some(self.resumed.as_ref().filter(|resumed| resumed.next > cursor.next).unwrap_or(cursor))
    }

    /// Events that were skipped because no instance can read them.
    pub(super) fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Events that wait to be published.
    pub(super) fn waiting(&self) -> usize {
        self.outbox.len()
    }

    /// Publishes an event as soon as the store can be reached. Returns its number.
    pub(super) fn publish(
        &mut self,
        unix_ms: u64,
        topic: Option<String>,
        until_unix_ms: Option<u64>,
        payload: String,
    ) -> Result<u64, OutboxFull> {
        if self.outbox.len() >= OUTBOX_MAX {
            return Err(OutboxFull);
        }
        if self.outbox.is_empty() {
            self.others_since = false;
        }
        self.published += 1;
        let (origin, number) = (self.origin.clone(), self.published);
        let event = FleetEvent { origin, number, unix_ms, topic, until_unix_ms, payload };
        self.outbox.push_back(Outgoing::Own(event));
        // A store that was wiped must not get it at a position that other instances do not reach.
        self.is_meta_due = true;
        self.next_at = InstanceTime::ZERO;
        Ok(number)
    }

    pub(super) fn next_wake(&self) -> Option<InstanceTime> {
        self.in_flight.is_none().then_some(self.next_at)
    }

    pub(super) fn poll(&mut self, now: InstanceTime, unix_ms: u64, is_housekeeper: bool) -> Option<StoreRequest> {
        if self.in_flight.is_some() || now < self.next_at {
            return None;
        }
        let (what, request) = self.next_request(unix_ms, is_housekeeper);
        self.in_flight = Some(what);
        Some(request)
    }

    fn next_request(&mut self, unix_ms: u64, is_housekeeper: bool) -> (InFlight, StoreRequest) {
        let get_meta = (InFlight::Meta, StoreRequest::Get(META.to_owned()));
        let (Some((meta, version)), Some(cursor)) = (&self.meta, &self.cursor) else { return get_meta };
        if self.is_meta_due {
            return get_meta;
        }
        let next = cursor.next;
        if !self.is_at_end {
            return (InFlight::Event, StoreRequest::Get(key_of(next)));
        }
        while let Some(outgoing) = self.outbox.front() {
            let event = match outgoing {
                Outgoing::Own(event) => Some(event.clone()),
                Outgoing::Again(event) => {
                    let known = event.topic.as_ref().and_then(|topic| self.topics.get(topic));
                    known.is_none_or(|(number, _)| *number == 0).then(|| event.clone())
                }
                Outgoing::Carried { topic, number } => {
                    let latest = self.topics.get(topic).filter(|(at, event)| at == number && is_valid(event, unix_ms));
                    latest.map(|(_, event)| {
                        self.published += 1;
                        FleetEvent { origin: self.origin.clone(), number: self.published, ..event.clone() }
                    })
                }
            };
            match event {
                Some(event) => {
                    let value = serde_json::to_vec(&event).unwrap_or_default();
                    self.sent = Some(event);
                    let request = StoreRequest::Put { key: key_of(next), value, expect: Expected::Absent };
                    return (InFlight::Publish, request);
                }
                // A later event of the topic has come, or it has no effect any more.
                None => _ = self.outbox.pop_front(),
            }
        }
        if is_housekeeper {
            let set = |meta: Meta| StoreRequest::Put {
                key: META.to_owned(),
                value: serde_json::to_vec(&meta).unwrap_or_default(),
                expect: Expected::Version(version.clone()),
            };
            match self.trim {
                Some(Trim { oldest, removes: None }) => {
                    return (InFlight::SetOldest, set(Meta { oldest, ..meta.clone() }));
                }
                Some(Trim { oldest, removes: Some(number) }) if number < oldest => {
                    return (InFlight::Remove, StoreRequest::Delete(key_of(number)));
                }
                Some(Trim { oldest, .. }) => {
                    return (InFlight::SetRemoved, set(Meta { removed: oldest, ..meta.clone() }));
                }
                None => {}
            }
        } else {
            self.trim = None;
        }
        (InFlight::Event, StoreRequest::Get(key_of(next)))
    }

    /// Takes a reply; returns what to apply.
    pub(super) fn handle_reply(
        &mut self,
        now: InstanceTime,
        is_housekeeper: bool,
        new_epoch: &mut dyn FnMut() -> String,
        result: StoreResult,
    ) -> Vec<Heard> {
        let Some(what) = self.in_flight.take() else { return Vec::new() };
        self.next_at = now;
        match (what, result) {
            (InFlight::Meta, Ok(StoreReply::Entry(Some((value, version))))) => {
                if let Some(meta) = Meta::of_value(&value) {
                    self.unreadable = None;
                    return self.learn_meta(meta, version);
                }
                let reads = self.count_unreadable(&version);
                if reads < if self.cursor.is_some() { 2 } else { STRANGER_READS } {
                    self.next_at = now + RETRY;
                    return Vec::new();
                }
                self.create_meta(new_epoch(), Expected::Version(version));
                Vec::new()
            }
            (InFlight::Meta, Ok(StoreReply::Entry(None))) => {
                // The store is new, or was wiped.
                self.create_meta(new_epoch(), Expected::Absent);
                Vec::new()
            }
            (InFlight::CreateMeta, _) => Vec::new(),
            (InFlight::Event, Ok(StoreReply::Entry(entry))) => match entry {
                Some((value, version)) => {
                    let event = FleetEvent::of_value(&value);
                    if event.is_none() && self.count_unreadable(&version) < 2 {
                        self.is_at_end = false;
                        return Vec::new();
                    }
                    self.unreadable = None;
                    self.hear(event, is_housekeeper).into_iter().collect()
                }
                None => {
                    self.is_at_end = true;
                    self.polls += 1;
                    if self.polls >= self.polls_per_meta() {
                        self.is_meta_due = true;
                    }
                    if self.outbox.is_empty() && self.trim.is_none() {
                        self.next_at = now + self.poll_interval;
                        self.is_at_end = false;
                    }
                    Vec::new()
                }
            },
            (InFlight::Publish, Ok(StoreReply::Done(_))) => {
                // If the store was wiped meanwhile, the event is published again at once.
                self.is_meta_due = true;
                let heard = self.sent.take().and_then(|event| self.on_published(event));
                heard.into_iter().collect()
            }
            // Another was faster.
            (InFlight::Publish, Ok(_)) => {
                self.is_at_end = false;
                Vec::new()
            }
            (InFlight::SetOldest, Ok(StoreReply::Done(version))) => {
                if let (Some(trim), Some((meta, known))) = (&mut self.trim, &mut self.meta) {
                    trim.removes = Some(meta.removed);
                    meta.oldest = trim.oldest;
                    *known = version;
                }
                Vec::new()
            }
            (InFlight::Remove, Ok(_)) => {
                if let Some(Trim { removes: Some(number), .. }) = &mut self.trim {
                    *number += 1;
                }
                Vec::new()
            }
            (InFlight::SetRemoved, Ok(StoreReply::Done(version))) => {
                if let (Some(trim), Some((meta, known))) = (self.trim.take(), &mut self.meta) {
                    meta.removed = trim.oldest;
                    *known = version;
                }
                Vec::new()
            }
            (InFlight::SetOldest | InFlight::SetRemoved, Ok(_)) => {
                self.trim = None;
                self.is_meta_due = true;
                Vec::new()
            }
            (_, Ok(_) | Err(_)) => {
                // An event that was sent may be there: the next read tells.
                self.is_at_end = false;
                self.unreadable = None;
                self.is_meta_due |= matches!(what, InFlight::Meta);
                self.next_at = now + RETRY;
                Vec::new()
            }
        }
    }

    fn polls_per_meta(&self) -> u32 {
        let polls = META_INTERVAL.as_millis() / self.poll_interval.as_millis().max(1);
        polls.clamp(*POLLS_PER_META.start(), *POLLS_PER_META.end()) as u32
    }

    /// Notes a value that this instance cannot read; returns how often it has read this version in a row.
    fn count_unreadable(&mut self, version: &str) -> u32 {
        let reads = match self.unreadable.take() {
            Some((known, reads)) if known == version => reads.saturating_add(1),
            _ => 1,
        };
        self.unreadable = Some((version.to_owned(), reads));
        reads
    }

    /// Plans the `meta` of a new epoch; the request follows by [`Self::creation`]. If only `meta` is another program's, the events of
    /// the epoch before are left, and all are read again.
    fn create_meta(&mut self, epoch: String, expect: Expected) {
        let known = self.meta.take().filter(|_| matches!(expect, Expected::Version(_)));
        let (oldest, removed) = known.map_or((1, 1), |(meta, _)| (meta.oldest, meta.removed));
        self.in_flight = Some(InFlight::CreateMeta);
        self.trim = None;
        self.unreadable = None;
        self.is_meta_due = true;
        self.planned_meta = Some((Meta { epoch, oldest, removed }, expect));
    }

    /// Request that creates `meta`, right after it was found absent, or another program's.
    pub(super) fn creation(&mut self) -> Option<StoreRequest> {
        let (meta, expect) = self.planned_meta.take()?;
        let value = serde_json::to_vec(&meta).unwrap_or_default();
        Some(StoreRequest::Put { key: META.to_owned(), value, expect })
    }

    fn learn_meta(&mut self, meta: Meta, version: String) -> Vec<Heard> {
        self.is_meta_due = false;
        self.polls = 0;
        let mut heard = Vec::new();
        let known = self.cursor.as_ref().filter(|cursor| cursor.epoch == meta.epoch);
        match known {
            Some(cursor) if cursor.next >= meta.oldest => self.recent.retain(|event| event.topic.is_some()),
            Some(_) | None => {
                let is_new_epoch = known.is_none();
                let resumes = |cursor: &EventCursor| cursor.epoch == meta.epoch && cursor.next >= meta.oldest;
                // A process that has just started reads all events, because bans and others do not survive its end.
                if !(self.cursor.is_none() && self.resumed.as_ref().is_some_and(resumes)) {
                    self.resumed = None;
                    heard.push(Heard::Resync);
                }
                self.cursor = Some(EventCursor { epoch: meta.epoch.clone(), next: meta.oldest });
                self.is_at_end = false;
                self.trim = None;
                if is_new_epoch {
                    self.origins.clear();
                    self.outbox.retain(|outgoing| !matches!(outgoing, Outgoing::Carried { .. }));
                    // Before events that were never published, in their order. Only the latest event of a topic counts.
                    let topics = &self.topics;
                    let is_latest = |event: &FleetEvent| {
                        let latest = event.topic.as_ref().and_then(|topic| topics.get(topic));
                        latest.is_none_or(|(_, latest)| latest == event)
                    };
                    let again: Vec<FleetEvent> = self.recent.drain(..).filter(is_latest).collect();
                    again.into_iter().rev().for_each(|event| self.outbox.push_front(Outgoing::Again(event)));
                    // Their positions were those of the old epoch.
                    self.topics.values_mut().for_each(|(number, _)| *number = 0);
                }
            }
        }
        self.meta = Some((meta, version));
        heard
    }

    /// Takes the event at the cursor; `None` if no instance can read it.
    fn hear(&mut self, event: Option<FleetEvent>, is_housekeeper: bool) -> Option<Heard> {
        self.is_at_end = false;
        self.skipped += u64::from(event.is_none());
        let number = self.advance(event.as_ref());
        if is_housekeeper {
            self.plan_trim();
        }
        let event = event?;
        if event.origin == self.origin {
            return self.on_own_read(event);
        }
        let last = self.origins.get(&event.origin).map_or(0, |(last, _)| *last);
        if event.number <= last {
            // Published twice, because the first response was lost.
            return None;
        }
        if self.origins.len() >= ORIGINS_MAX && !self.origins.contains_key(&event.origin) {
            let oldest = self.origins.iter().min_by_key(|(_, (_, at))| *at).map(|(origin, _)| origin.clone());
            oldest.map(|origin| self.origins.remove(&origin));
        }
        self.origins.insert(event.origin.clone(), (event.number, number));
        self.others_since = true;
        let is_known = event.topic.is_none() && self.resumed.as_ref().is_some_and(|cursor| number < cursor.next);
        (!is_known).then_some(Heard::Event(event))
    }

    /// Moves the cursor past an event; returns the event's number.
    fn advance(&mut self, event: Option<&FleetEvent>) -> u64 {
        let Some(cursor) = &mut self.cursor else { return 0 };
        let number = cursor.next;
        cursor.next = cursor.next.saturating_add(1);
        if let Some(event) = event
            && let Some(topic) = &event.topic
        {
            let size = |event: &FleetEvent| event.payload.len() + 2 * event.topic.as_ref().map_or(0, String::len);
            let replaced = self.topics.get(topic).map(|(_, known)| size(known));
            let bytes = self.topics_bytes - replaced.unwrap_or(0) + size(event);
            if (replaced.is_some() || self.topics.len() < TOPICS_MAX) && bytes <= TOPICS_BYTES_MAX {
                self.topics.insert(topic.clone(), (number, event.clone()));
                self.topics_bytes = bytes;
            }
        }
        number
    }

    /// The event at the cursor is the own that was sent.
    fn on_published(&mut self, event: FleetEvent) -> Option<Heard> {
        self.advance(Some(&event));
        self.on_own_read(event)
    }

    /// An own event has its place. It was applied when it was published. If its order matters and others came between, it is
    /// applied again.
    fn on_own_read(&mut self, event: FleetEvent) -> Option<Heard> {
        let is_front = match self.outbox.front() {
            Some(Outgoing::Own(front) | Outgoing::Again(front)) => front.number == event.number,
            Some(Outgoing::Carried { .. }) => self.sent.is_none() || self.sent.as_ref() == Some(&event),
            None => false,
        };
        if is_front {
            self.outbox.pop_front();
        }
        self.sent = None;
        let last = self.origins.entry(self.origin.clone()).or_default();
        let is_again = event.number <= last.0;
        last.0 = last.0.max(event.number);
        if !is_again {
            if self.recent.len() >= RECENT_MAX {
                self.recent.pop_front();
            }
            self.recent.push_back(event.clone());
        }
        let is_ordered = event.topic.is_some() && self.others_since && !is_again;
        if self.outbox.is_empty() {
            self.others_since = false;
        }
        is_ordered.then_some(Heard::Event(event))
    }

    /// Plans to remove old events. Those that are the latest of their topic go to the end first.
    fn plan_trim(&mut self) {
        let (Some((meta, _)), Some(cursor), None) = (&self.meta, &self.cursor, &self.trim) else { return };
        if cursor.next.saturating_sub(meta.oldest) < EVENTS_KEPT + TRIM_BATCH {
            return;
        }
        let oldest = cursor.next - EVENTS_KEPT;
        let carried = self.topics.iter().filter(|(_, (number, _))| (meta.oldest..oldest).contains(number));
        let mut carried: Vec<(u64, String)> = carried.map(|(topic, (number, _))| (*number, topic.clone())).collect();
        carried.sort_unstable();
        self.outbox.extend(carried.into_iter().map(|(number, topic)| Outgoing::Carried { topic, number }));
        self.trim = Some(Trim { oldest, removes: None });
    }
}

fn is_valid(event: &FleetEvent, unix_ms: u64) -> bool {
    event.until_unix_ms.is_none_or(|until| until > unix_ms)
}

fn key_of(number: u64) -> String {
    format!("events/{number:016}")
}

#[cfg(test)]
mod tests;
