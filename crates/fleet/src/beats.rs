//! Signs of life: each instance writes a record of itself, which `tailcoat status` reads.

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::rollout::RolloutReport;
use super::{Expected, InstanceTime, StoreReply, StoreRequest, StoreResult};

/// Interval between two records.
const BEAT: Duration = Duration::from_secs(5);

/// Interval at which the housekeeper looks for records of instances that have ended, and each compares clocks.
const LOOK: Duration = Duration::from_secs(60);

/// Time without change after which a record is removed.
const FORGET: Duration = Duration::from_secs(600);

/// Wait after a failure.
const RETRY: Duration = Duration::from_secs(1);

const FOLDER: &str = "members";

/// Record of an instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberRecord {
    /// Name in the configuration.
    pub name: String,
    /// Name with the start of the process; unique.
    pub id: String,
    /// Number of the record.
    pub beat: u64,
    /// Time in milliseconds since 1970, by the clock of the instance.
    pub unix_ms: u64,
    /// Own clock less the engine's, in milliseconds, if the engine tells its time.
    pub skew_ms: Option<i64>,
    /// Number of the next event.
    pub next_event: Option<u64>,
    /// Own events that wait to be published.
    pub waiting_events: u64,
    /// Further facts that the server reports.
    pub report: BeatReport,
}

/// Facts about a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BeatReport {
    /// Version of the program.
    pub version: String,
    /// Start of the process, in seconds since 1970.
    pub started_unix_seconds: u64,
    /// State of the latest rollout.
    #[serde(default)]
    pub rollout: Option<RolloutReport>,
}

/// Records of one instance.
#[derive(Debug)]
pub(super) struct Beats {
    name: String,
    id: String,
    beat: u64,
    skew_ms: Option<i64>,
    in_flight: Option<InFlight>,
    next_at: InstanceTime,
    look_at: InstanceTime,
    /// Time of the next comparison with the engine's clock.
    clock_at: InstanceTime,
    /// Records of others: the beat seen last, and since when.
    seen: HashMap<String, (u64, InstanceTime)>,
    to_remove: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InFlight {
    Time { sent_unix_ms: u64 },
    Put,
    List,
    Remove,
}

impl Beats {
    pub(super) fn new(name: &str, id: &str) -> Self {
        Self {
            name: name.to_owned(),
            id: id.to_owned(),
            beat: 0,
            skew_ms: None,
            in_flight: None,
            next_at: InstanceTime::ZERO,
            look_at: LOOK,
            clock_at: InstanceTime::ZERO,
            seen: HashMap::new(),
            to_remove: Vec::new(),
        }
    }

    pub(super) fn skew_ms(&self) -> Option<i64> {
        self.skew_ms
    }

    pub(super) fn next_wake(&self) -> Option<InstanceTime> {
        self.in_flight.is_none().then_some(self.next_at)
    }

    /// Writes the next record as soon as possible.
    pub(super) fn hasten(&mut self) {
        self.next_at = InstanceTime::ZERO;
    }

    pub(super) fn poll(
        &mut self,
        now: InstanceTime,
        unix_ms: u64,
        is_housekeeper: bool,
        (next_event, waiting_events): (Option<u64>, u64),
        report: &BeatReport,
    ) -> Option<StoreRequest> {
        if self.in_flight.is_some() || now < self.next_at {
            return None;
        }
        if let Some(key) = self.to_remove.pop() {
            self.in_flight = Some(InFlight::Remove);
            return Some(StoreRequest::Delete(key));
        }
        if is_housekeeper && now >= self.look_at {
            self.look_at = now + LOOK;
            self.in_flight = Some(InFlight::List);
            return Some(StoreRequest::List(FOLDER.to_owned()));
        }
        if now >= self.clock_at {
            self.clock_at = now + LOOK;
            self.in_flight = Some(InFlight::Time { sent_unix_ms: unix_ms });
            return Some(StoreRequest::Time);
        }
        self.beat += 1;
        let record = MemberRecord {
            name: self.name.clone(),
            id: self.id.clone(),
            beat: self.beat,
            unix_ms,
            skew_ms: self.skew_ms,
            next_event,
            waiting_events,
            report: report.clone(),
        };
        self.in_flight = Some(InFlight::Put);
        let value = serde_json::to_vec(&record).unwrap_or_default();
        Some(StoreRequest::Put { key: format!("{FOLDER}/{}", self.id), value, expect: Expected::Any })
    }

    pub(super) fn handle_reply(&mut self, now: InstanceTime, unix_ms: u64, result: StoreResult) {
        let Some(what) = self.in_flight.take() else { return };
        self.next_at = now;
        match (what, result) {
            (InFlight::Time { sent_unix_ms }, Ok(StoreReply::Time(time))) => {
                // The engine read its clock in the middle of the time that this took.
                let middle = sent_unix_ms + unix_ms.saturating_sub(sent_unix_ms) / 2;
                self.skew_ms = time.map(|time| (middle as i64).saturating_sub(i64::try_from(time).unwrap_or(i64::MAX)));
            }
            (InFlight::Put, Ok(_)) => self.next_at = now + BEAT,
            (InFlight::List, Ok(StoreReply::Entries(entries))) => {
                let mut before = std::mem::take(&mut self.seen);
                for (key, value) in entries {
                    let beat = serde_json::from_slice::<MemberRecord>(&value).map_or(0, |record| record.beat);
                    let since = before.remove(&key).filter(|(known, _)| *known == beat).map_or(now, |(_, since)| since);
                    if now.saturating_sub(since) >= FORGET && !key.ends_with(&self.id) {
                        self.to_remove.push(key.clone());
                    }
                    self.seen.insert(key, (beat, since));
                }
            }
            (InFlight::Remove, Ok(_)) => {}
            _ => self.next_at = now + RETRY,
        }
    }
}
