//! Lists of crawlers and agents that instances share: the newest file of any instance counts at all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tailcoat_fleet::{Expected, InstanceTime, StoreReply, StoreRequest, StoreResult};

use crate::known_clients::{ListContent, SiteLists};
use crate::log::ServerLog;

/// Interval between two looks at all lists.
const LOOK: Duration = Duration::from_secs(10);

/// Lists that are shared; further ones stay with their instance.
const LISTS_MAX: usize = 200;

/// Lists of crawlers and agents that instances share.
pub(super) struct SharedLists {
    sites: Vec<Arc<SiteLists>>,
    /// Names of all lists, and how many of them were looked at in this turn.
    names: Vec<String>,
    looked_at: usize,
    /// Lists of the store that cannot be used, with the time of their last change.
    unusable: BTreeMap<String, u64>,
    in_flight: Option<InFlight>,
    next_at: InstanceTime,
    log: ServerLog,
}

enum InFlight {
    Read(String),
    Write,
}

/// List in the store.
#[derive(Serialize, Deserialize)]
struct StoredList {
    /// Name, in case that two have the same digest.
    name: String,
    modified_ms: u64,
    text: String,
}

impl SharedLists {
    pub(super) fn new(log: ServerLog) -> Self {
        let (sites, names, unusable) = Default::default();
        Self { sites, names, looked_at: 0, unusable, in_flight: None, next_at: InstanceTime::ZERO, log }
    }

    /// Shares these lists, and no others.
    pub(super) fn set_lists(&mut self, sites: Vec<Arc<SiteLists>>) {
        let names: BTreeSet<String> = sites.iter().flat_map(|site| site.names()).collect();
        self.names = names.into_iter().take(LISTS_MAX).collect();
        self.sites = sites;
        self.unusable.clear();
        (self.looked_at, self.next_at) = (0, InstanceTime::ZERO);
    }

    /// Time of the next request.
    pub(super) fn next_wake(&self) -> Option<InstanceTime> {
        (self.in_flight.is_none() && !self.names.is_empty()).then_some(self.next_at)
    }

    /// Request that is due.
    pub(super) fn poll(&mut self, now: InstanceTime) -> Option<StoreRequest> {
        if self.in_flight.is_some() || now < self.next_at {
            return None;
        }
        let name = self.names.get(self.looked_at)?.clone();
        self.looked_at += 1;
        if self.looked_at == self.names.len() {
            (self.looked_at, self.next_at) = (0, now + LOOK);
        }
        let key = key_of(&name);
        self.in_flight = Some(InFlight::Read(name));
        Some(StoreRequest::Get(key))
    }

    /// Takes a reply, and returns the next request.
    pub(super) fn handle_reply(&mut self, now: InstanceTime, result: StoreResult) -> Option<StoreRequest> {
        match (self.in_flight.take()?, result) {
            (InFlight::Read(name), Ok(StoreReply::Entry(entry))) => self.on_read(&name, entry),
            // If another instance was first, the next look tells what it has written.
            (InFlight::Write, Ok(_)) => None,
            _ => {
                self.next_at = self.next_at.max(now + LOOK);
                None
            }
        }
    }

    fn on_read(&mut self, name: &str, entry: Option<(Vec<u8>, String)>) -> Option<StoreRequest> {
        let (value, version) = entry.unzip();
        let stored = value.and_then(|value| serde_json::from_slice::<StoredList>(&value).ok());
        let stored = stored.filter(|stored| stored.name == name);
        let stored_ms = stored.as_ref().map(|stored| stored.modified_ms);
        let own_ms = self.sites.iter().filter_map(|site| site.modified_ms(name)).max();
        if let Some(StoredList { modified_ms, text, .. }) = stored
            && self.unusable.get(name) != Some(&modified_ms)
        {
            for site in &self.sites {
                if !site.apply(name, ListContent { modified_ms, text: text.clone() }, &self.log) {
                    self.unusable.insert(name.to_owned(), modified_ms);
                }
            }
        }
        if own_ms <= stored_ms {
            return None;
        }
        let own = self.sites.iter().filter_map(|site| site.own_content(name));
        let ListContent { modified_ms, text } = own.max_by_key(|list| list.modified_ms)?;
        if Some(modified_ms) <= stored_ms {
            return None;
        }
        let value = serde_json::to_vec(&StoredList { name: name.to_owned(), modified_ms, text }).ok()?;
        self.in_flight = Some(InFlight::Write);
        let expect = version.map_or(Expected::Absent, Expected::Version);
        Some(StoreRequest::Put { key: key_of(name), value, expect })
    }
}

/// Key of a list. Names may have any characters.
fn key_of(name: &str) -> String {
    let digest: String = Sha256::digest(name)[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("lists/{digest}")
}
