//! Leases: at most one owner at a time, by comparing and setting one key.
//!
//! No clock is compared with another's. An owner changes the record each third of its time, and counts its time from before
//! it sent the change. Another instance takes over if it has seen the same record for the whole time, by its own clock. An absent record is created for an unknown owner, because the store may have been wiped.
//! The owner's time so ends before that of all others, unless clocks run at rates that differ by
//! more than [`MARGIN`].

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Expected, InstanceTime};

/// Part of its time after which an owner renews a lease, as a divisor.
const RENEWALS: u32 = 3;

/// Part of its time that an owner does not use, as a divisor.
const MARGIN: u32 = 10;

/// Longest time of a record. A longer one is another program's, and would keep the lease for ever.
const TIME_MS_MAX: u64 = 3_600_000;

/// Owner of a record that was absent.
const UNKNOWN: &str = "?";

/// Lease as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// Owner; empty if it was released.
    pub owner: String,
    /// Number of owners so far: a fencing token.
    pub token: u64,
    /// Number of renewals by this owner.
    pub beat: u64,
    /// Time of the lease, in milliseconds.
    pub time_ms: u64,
}

/// Lease that an instance wants.
#[derive(Debug)]
pub struct FleetLease {
    owner: String,
    time: Duration,
    observed: Option<Observed>,
    /// End of the own lease, by this instance's clock.
    held_until: Option<InstanceTime>,
    in_flight: Option<InFlight>,
    next_at: InstanceTime,
    is_released: bool,
}

#[derive(Debug)]
struct Observed {
    /// Record; `None` if the key was absent.
    record: Option<LeaseRecord>,
    version: Option<String>,
    /// Time at which this version was seen first.
    since: InstanceTime,
}

#[derive(Debug)]
enum InFlight {
    Read,
    Write { record: LeaseRecord, sent_at: InstanceTime },
}

/// Request of a [`FleetLease`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseRequest {
    /// Read the key.
    Read,
    /// Set the key.
    Write(Vec<u8>, Expected),
}

impl LeaseRecord {
    /// Record of a value. `None` for another program's: its numbers cannot grow further, or it never ends.
    fn of_value(value: &[u8]) -> Option<Self> {
        let record: Self = serde_json::from_slice(value).ok()?;
        let is_sound = record.token < u64::MAX && record.beat < u64::MAX && record.time_ms <= TIME_MS_MAX;
        is_sound.then_some(record)
    }
}

impl FleetLease {
    /// Lease that `owner` wants; no other instance may have this name.
    pub fn new(owner: &str, time: Duration) -> Self {
        Self {
            owner: owner.to_owned(),
            time,
            observed: None,
            held_until: None,
            in_flight: None,
            next_at: InstanceTime::ZERO,
            is_released: false,
        }
    }

    /// True while this instance is the owner.
    pub fn is_held(&self, now: InstanceTime) -> bool {
        self.held_until.is_some_and(|until| now < until)
    }

    /// Owner that was seen last; empty if there is none.
    pub fn owner(&self) -> &str {
        self.observed.as_ref().and_then(|seen| seen.record.as_ref()).map_or("", |record| &record.owner)
    }

    /// Fencing token of the own lease.
    pub fn token(&self, now: InstanceTime) -> Option<u64> {
        let record = self.observed.as_ref()?.record.as_ref()?;
        self.is_held(now).then_some(record.token)
    }

    /// Gives the lease up as soon as possible, and wants it no longer.
    pub fn release(&mut self) {
        self.is_released = true;
        self.next_at = InstanceTime::ZERO;
    }

    /// True if nothing is left to do after [`Self::release`].
    pub fn is_done(&self) -> bool {
        self.is_released && self.held_until.is_none() && self.in_flight.is_none()
    }

    /// Time of the next request.
    pub fn next_wake(&self) -> Option<InstanceTime> {
        (self.in_flight.is_none() && !self.is_done()).then_some(self.next_at)
    }

    /// Next request, if one is due and none is in flight.
    pub fn poll(&mut self, now: InstanceTime) -> Option<LeaseRequest> {
        if self.in_flight.is_some() || now < self.next_at || self.is_done() {
            return None;
        }
        if self.held_until.is_some_and(|until| until <= now) {
            self.held_until = None;
        }
        let Some(seen) = &self.observed else {
            self.in_flight = Some(InFlight::Read);
            return Some(LeaseRequest::Read);
        };
        let is_held = self.held_until.is_some();
        let is_free = match &seen.record {
            Some(record) if record.owner.is_empty() || record.owner == self.owner => true,
            Some(record) => now >= seen.since + Duration::from_millis(record.time_ms),
            // Written at once, for an unknown owner.
            None => true,
        };
        if self.is_released && !is_held {
            return None;
        }
        if !is_held && !is_free {
            self.in_flight = Some(InFlight::Read);
            return Some(LeaseRequest::Read);
        }
        let known = seen.record.as_ref();
        let (token, beat) = known.map_or((0, 0), |record| (record.token, record.beat));
        let record = LeaseRecord {
            owner: match (&seen.record, self.is_released) {
                (_, true) => String::new(),
                // The store may have been wiped while another instance is the owner: its time must pass first.
                (None, false) => UNKNOWN.to_owned(),
                (Some(_), false) => self.owner.clone(),
            },
            token: if is_held || known.is_none() { token } else { token.saturating_add(1) },
            beat: beat.saturating_add(1),
            time_ms: self.time.as_millis().try_into().unwrap_or(u64::MAX),
        };
        let expect = seen.version.clone().map_or(Expected::Absent, Expected::Version);
        let value = serde_json::to_vec(&record).unwrap_or_default();
        self.in_flight = Some(InFlight::Write { record, sent_at: now });
        Some(LeaseRequest::Write(value, expect))
    }

    /// Takes the value of the key. A value that is no record counts as absent, with its version.
    pub fn on_entry(&mut self, now: InstanceTime, entry: Option<(Vec<u8>, String)>) {
        self.in_flight = None;
        let (record, version) = match entry {
            Some((value, version)) => (LeaseRecord::of_value(&value), Some(version)),
            None => (None, None),
        };
        match &self.observed {
            Some(seen) if seen.version == version => {}
            _ => self.observed = Some(Observed { record, version, since: now }),
        }
        if self.owner() != self.owner {
            self.held_until = None;
        }
        // Wakes when the owner's time is over, not up to a third later.
        let over = match &self.observed {
            Some(Observed { record: Some(record), since, .. })
                if record.owner == self.owner || record.owner.is_empty() =>
            {
                *since
            }
            Some(Observed { record: Some(record), since, .. }) => *since + Duration::from_millis(record.time_ms),
            Some(Observed { record: None, .. }) | None => now,
        };
        self.next_at = over.clamp(now, now + self.time / RENEWALS);
    }

    /// Takes the result of a write: the new version, or `None` if the key was not as expected.
    pub fn on_written(&mut self, now: InstanceTime, version: Option<String>) {
        let Some(InFlight::Write { record, sent_at }) = self.in_flight.take() else { return };
        match version {
            Some(version) => {
                let is_own = record.owner == self.owner;
                self.held_until = is_own.then(|| sent_at + self.time - self.time / MARGIN);
                self.observed = Some(Observed { record: Some(record), version: Some(version), since: now });
                self.next_at = sent_at + self.time / RENEWALS;
            }
            None => {
                // Another instance has changed it, or an earlier write of this one was carried out late.
                self.observed = None;
                self.next_at = now;
            }
        }
    }

    /// Takes a failure; the write may have been carried out.
    pub fn on_unknown(&mut self, now: InstanceTime) {
        if matches!(self.in_flight.take(), Some(InFlight::Write { .. })) {
            // The version is unknown. The own time still counts from the last write that is known.
            self.observed = None;
        }
        self.next_at = now + self.time / (RENEWALS * 4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_secs(9);

    fn second(number: u64) -> InstanceTime {
        Duration::from_secs(number)
    }

    /// Store with one key.
    #[derive(Default)]
    struct Cell(Option<(Vec<u8>, String)>, u64);

    impl Cell {
        fn serve(&mut self, lease: &mut FleetLease, now: InstanceTime) {
            while let Some(request) = lease.poll(now) {
                match request {
                    LeaseRequest::Read => lease.on_entry(now, self.0.clone()),
                    LeaseRequest::Write(value, expect) => {
                        let is_expected = match &expect {
                            Expected::Any => true,
                            Expected::Absent => self.0.is_none(),
                            Expected::Version(version) => self.0.as_ref().is_some_and(|(_, known)| known == version),
                        };
                        if is_expected {
                            self.1 += 1;
                            self.0 = Some((value, self.1.to_string()));
                        }
                        lease.on_written(now, is_expected.then(|| self.1.to_string()));
                    }
                }
            }
        }
    }

    /// Lease that is held at second 0.
    fn held(cell: &mut Cell) -> FleetLease {
        let released = LeaseRecord { owner: String::new(), token: 0, beat: 0, time_ms: 9_000 };
        cell.0 = Some((serde_json::to_vec(&released).unwrap(), "0".to_owned()));
        let mut lease = FleetLease::new("one", TIME);
        cell.serve(&mut lease, second(0));
        assert!(lease.is_held(second(0)) && lease.token(second(0)) == Some(1));
        lease
    }

    #[test]
    fn one_owner_at_a_time() {
        let (mut cell, mut other) = (Cell::default(), FleetLease::new("other", TIME));
        let mut one = held(&mut cell);
        // The other's clock began elsewhere.
        let base = 1_000;
        cell.serve(&mut other, second(base));
        assert!(!other.is_held(second(base)));
        assert_eq!(other.owner(), "one");
        // The owner renews it.
        cell.serve(&mut one, second(3));
        assert!(one.is_held(second(11)) && !one.is_held(second(12)));
        cell.serve(&mut other, second(base + 3));
        for at in 4..12 {
            cell.serve(&mut other, second(base + at));
            assert!(!other.is_held(second(base + at)), "{at}");
        }
        // The owner has stopped: its time is over, and then that of the other.
        cell.serve(&mut other, second(base + 12));
        assert!(other.is_held(second(base + 12)) && other.token(second(base + 12)) == Some(2));
        // The first continues, and learns of the change.
        assert!(!one.is_held(second(12)));
        cell.serve(&mut one, second(12));
        assert!(!one.is_held(second(12)) && one.owner() == "other");
    }

    #[test]
    fn a_wiped_store_makes_no_second_owner() {
        let (mut cell, mut other) = (Cell::default(), FleetLease::new("other", TIME));
        let one = held(&mut cell);
        cell.0 = None;
        for at in 1..10 {
            cell.serve(&mut other, second(at));
            assert!(!(one.is_held(second(at)) && other.is_held(second(at))), "{at}");
        }
        cell.serve(&mut other, second(10));
        assert!(other.is_held(second(10)));
    }

    #[test]
    fn a_released_lease_is_free_at_once() {
        let (mut cell, mut other) = (Cell::default(), FleetLease::new("other", TIME));
        let mut one = held(&mut cell);
        one.release();
        cell.serve(&mut one, second(1));
        assert!(!one.is_held(second(1)) && one.is_done());
        cell.serve(&mut other, second(1));
        assert!(other.is_held(second(1)));
    }

    #[test]
    fn a_write_whose_response_is_lost() {
        let mut cell = Cell::default();
        let mut one = held(&mut cell);
        let Some(LeaseRequest::Write(value, _)) = one.poll(second(3)) else { panic!("a renewal is due") };
        cell.0 = Some((value, "x".to_owned()));
        one.on_unknown(second(5));
        assert!(one.is_held(second(5)), "until the end of the time that is known");
        cell.serve(&mut one, second(6));
        assert!(one.is_held(second(13)), "it has read its own record, and renewed it");
    }

    #[test]
    fn values_of_others_are_replaced() {
        let record = |token: u64, beat: u64, time_ms: u64| {
            format!(r#"{{"owner":"other","token":{token},"beat":{beat},"time_ms":{time_ms}}}"#)
        };
        for value in [
            "{".to_owned(),
            String::new(),
            // Numbers at their end, and a lease that never ends.
            record(u64::MAX, 1, 9_000),
            record(1, u64::MAX, 9_000),
            record(1, 1, u64::MAX),
        ] {
            let mut cell = Cell(Some((value.clone().into_bytes(), "7".to_owned())), 7);
            let mut one = FleetLease::new("one", TIME);
            for at in 0..10 {
                cell.serve(&mut one, second(at));
            }
            assert!(one.is_held(second(9)), "{value}");
            assert!(one.token(second(9)).is_some_and(|token| token < u64::MAX), "{value}");
        }
        // The last number that is sound: its owner has the greatest token.
        let mut cell = Cell(Some((record(u64::MAX - 1, 1, 9_000).into_bytes(), "7".to_owned())), 7);
        let mut one = FleetLease::new("one", TIME);
        for at in 0..12 {
            cell.serve(&mut one, second(at));
        }
        assert_eq!(one.token(second(11)), Some(u64::MAX));
    }
}
