//! Store of a simulation.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::{
    Expected, FleetEvent, MemberRecord, ROLLOUT_KEY, Rollout, RolloutSettings, RolloutStage, StoreReply, StoreRequest,
};

#[derive(Default)]
pub(crate) struct SimulatedStore {
    values: BTreeMap<String, (Vec<u8>, u64)>,
    version: u64,
    pub(super) requests: u64,
    /// Numbers of purges that were events of the store at some time, where members read them.
    seen: BTreeSet<u64>,
    /// Rollouts that reached all members, and that were returned.
    pub(super) rollouts_ended: (u64, u64),
    /// Step of a rollout that must not happen.
    pub(super) fault: Option<String>,
}

impl SimulatedStore {
    pub(crate) fn carry_out(&mut self, request: StoreRequest, unix_ms: u64) -> StoreReply {
        self.requests += 1;
        match request {
            StoreRequest::Get(key) => {
                StoreReply::Entry(self.values.get(&key).map(|(value, version)| (value.clone(), version.to_string())))
            }
            StoreRequest::Put { key, value, expect } => {
                let known = self.values.get(&key).map(|(_, version)| version.to_string());
                let is_expected = match expect {
                    Expected::Any => true,
                    Expected::Absent => known.is_none(),
                    Expected::Version(version) => known == Some(version),
                };
                if !is_expected {
                    return StoreReply::Conflict;
                }
                self.note(&key, &value);
                self.note_step(&key, &value);
                self.version += 1;
                self.values.insert(key, (value, self.version));
                StoreReply::Done(self.version.to_string())
            }
            StoreRequest::Delete(key) => {
                self.values.remove(&key);
                StoreReply::Deleted
            }
            StoreRequest::List(folder) => {
                let within = self.values.range(format!("{folder}/")..format!("{folder}0"));
                StoreReply::Entries(within.map(|(key, (value, _))| (key.clone(), value.clone())).collect())
            }
            StoreRequest::Time => StoreReply::Time(Some(unix_ms)),
        }
    }

    pub(crate) fn wipe(&mut self) {
        self.values.clear();
    }

    /// Puts a value of another program at a key.
    pub(crate) fn put_foreign(&mut self, key: &str, value: Vec<u8>) {
        self.version += 1;
        self.values.insert(key.to_owned(), (value, self.version));
    }

    /// Puts a value of another program where the next event belongs.
    pub(crate) fn put_next_event(&mut self, value: Vec<u8>) {
        let last = self.values.range("events/".to_owned().."events0".to_owned()).next_back();
        let last = last.and_then(|(key, _)| key.strip_prefix("events/")?.parse::<u64>().ok());
        let number = last.map_or_else(|| self.oldest(), |last| last + 1);
        self.put_foreign(&format!("events/{number:016}"), value);
    }

    /// Number of the oldest event.
    fn oldest(&self) -> u64 {
        let meta = self.values.get("meta").and_then(|(value, _)| serde_json::from_slice::<Value>(value).ok());
        // That of another program may have any number.
        meta.and_then(|meta| meta["oldest"].as_u64()).filter(|oldest| *oldest < u64::MAX).unwrap_or(1)
    }

    /// True if this purge was an event at some time.
    pub(super) fn has_seen(&self, purge: u64) -> bool {
        self.seen.contains(&purge)
    }

    /// Record of the latest rollout.
    pub(super) fn rollout(&self) -> Option<Rollout> {
        let (value, _) = self.values.get(ROLLOUT_KEY)?;
        serde_json::from_slice(value).ok()
    }

    /// Begins a rollout as an operator does; false if that is not possible.
    pub(super) fn begin_rollout(&mut self, text: Option<String>, settings: RolloutSettings) -> bool {
        let records = self.values.range("members/".to_owned().."members0".to_owned());
        let ids: Vec<String> = records
            .filter_map(|(_, (value, _))| Some(serde_json::from_slice::<MemberRecord>(value).ok()?.id))
            .collect();
        let Ok(rollout) = Rollout::begin(self.rollout().as_ref(), text, &ids, settings, 0) else { return false };
        self.version += 1;
        self.values.insert(ROLLOUT_KEY.to_owned(), (serde_json::to_vec(&rollout).unwrap_or_default(), self.version));
        true
    }

    /// Members may only take the next step of the same rollout, or return it.
    fn note_step(&mut self, key: &str, value: &[u8]) {
        if key != ROLLOUT_KEY {
            return;
        }
        let (before, after) = (self.rollout(), serde_json::from_slice::<Rollout>(value).ok());
        let (Some(before), Some(after)) = (before, after) else {
            self.fault.get_or_insert_with(|| "a step of a rollout that the store does not have".to_owned());
            return;
        };
        use RolloutStage::{All, Done, First, Returned};
        let is_next = matches!((before.stage, after.stage), (First, All | Returned) | (All, Done | Returned));
        if !is_next || before.number != after.number || before.text != after.text {
            self.fault.get_or_insert_with(|| format!("{before:?}, then {after:?}"));
        }
        match after.stage {
            Done => self.rollouts_ended.0 += 1,
            Returned => self.rollouts_ended.1 += 1,
            First | All => {}
        }
    }

    fn note(&mut self, key: &str, value: &[u8]) {
        if !key.starts_with("events/") {
            return;
        }
        let Ok(event) = serde_json::from_slice::<FleetEvent>(value) else { return };
        // After a loss of all values, members do not reach an event that follows no other.
        let number = key.strip_prefix("events/").and_then(|number| number.parse::<u64>().ok()).unwrap_or(0);
        let is_reached =
            number == self.oldest() || self.values.contains_key(&format!("events/{:016}", number.saturating_sub(1)));
        if !is_reached || !self.values.contains_key("meta") {
            return;
        }
        self.seen.extend(event.payload.parse::<u64>());
    }
}
