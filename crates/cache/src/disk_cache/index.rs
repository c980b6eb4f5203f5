//! Index of the entries on disk: keys, sizes, and the order of use.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::entry::EntryName;
use super::{EntryTest, EntryText};
use crate::config::DiskCacheConfig;

/// Number of a state of an entry. A later state has a greater one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EntryVersion(u64);

/// Entries on disk, and those being written.
pub(super) struct Index {
    entries: HashMap<EntryName, IndexEntry>,
    /// Removed entries whose files may still exist.
    leaving: HashSet<EntryName>,
    /// Complete entries, the least recently used first.
    by_use: BTreeMap<u64, EntryName>,
    bytes: u64,
    bytes_max: u64,
    files_max: usize,
    /// Number of the next use or version.
    next: u64,
    /// Removals that entries found by a search must pass; `None` after the last search.
    removals: Option<Vec<EntryTest>>,
}

struct IndexEntry {
    version: EntryVersion,
    key: Box<[u8]>,
    labels: Box<[u8]>,
    /// `None` while the entry is being written.
    complete: Option<CompleteEntry>,
}

struct CompleteEntry {
    bytes: u64,
    used: u64,
}

impl IndexEntry {
    fn new(version: EntryVersion, text: EntryText<'_>, complete: Option<CompleteEntry>) -> Self {
        Self { version, key: text.key.into(), labels: text.labels.into(), complete }
    }
}

impl Index {
    pub(super) fn new(config: &DiskCacheConfig) -> Self {
        Self {
            entries: HashMap::new(),
            leaving: HashSet::new(),
            by_use: BTreeMap::new(),
            bytes: 0,
            bytes_max: config.bytes_max,
            files_max: config.files_max,
            next: 1,
            removals: Some(Vec::new()),
        }
    }

    pub(super) fn set_limits(&mut self, config: &DiskCacheConfig) {
        (self.bytes_max, self.files_max) = (config.bytes_max, config.files_max);
    }

    /// Number of complete entries, and their size.
    pub(super) fn usage(&self) -> (usize, u64) {
        (self.by_use.len(), self.bytes)
    }

    /// True if an entry is complete or being written.
    pub(super) fn knows(&self, name: EntryName) -> bool {
        self.entries.contains_key(&name)
    }

    /// Finds a complete entry, and counts a use. Returns the size of its file.
    pub(super) fn find(&mut self, name: EntryName) -> Option<u64> {
        let complete = self.entries.get_mut(&name)?.complete.as_mut()?;
        self.by_use.remove(&complete.used);
        complete.used = self.next;
        self.by_use.insert(complete.used, name);
        self.next += 1;
        Some(complete.bytes)
    }

    /// EntryVersion of a complete entry.
    pub(super) fn version(&self, name: EntryName) -> Option<EntryVersion> {
        self.entries.get(&name).filter(|entry| entry.complete.is_some()).map(|entry| entry.version)
    }

    /// Begins to write an entry. An older one is not found any more.
    pub(super) fn begin_write(&mut self, name: EntryName, text: EntryText<'_>) -> EntryVersion {
        self.take(name);
        let version = self.new_version();
        self.entries.insert(name, IndexEntry::new(version, text, None));
        version
    }

    /// True if this write is still the latest of its entry.
    pub(super) fn is_pending(&self, name: EntryName, version: EntryVersion) -> bool {
        self.entries.get(&name).is_some_and(|entry| entry.version == version && entry.complete.is_none())
    }

    /// Completes a write.
    pub(super) fn on_written(&mut self, name: EntryName, version: EntryVersion, text: EntryText<'_>, bytes: u64) {
        if self.is_pending(name, version) {
            self.complete(name, version, text, bytes);
        }
    }

    /// Removes an entry whose write has failed; returns whether it was still the latest.
    pub(super) fn remove_pending(&mut self, name: EntryName, version: EntryVersion) -> bool {
        self.is_pending(name, version) && self.remove(name)
    }

    /// Adds an entry that a search has found. Returns false if it was removed meanwhile.
    pub(super) fn add_found(&mut self, name: EntryName, text: EntryText<'_>, bytes: u64) -> bool {
        if self.knows(name) {
            return true;
        }
        let is_removed = self.removals.iter().flatten().any(|test| test(text.key, text.labels));
        if is_removed || EntryName::of(text.key) != name {
            return false;
        }
        let version = self.new_version();
        self.complete(name, version, text, bytes);
        true
    }

    /// Ends the last search.
    pub(super) fn on_searched(&mut self) {
        self.removals = None;
    }

    /// Removes an entry. Returns whether its file may exist, so that it must be removed, too: the entry was known, another
    /// removal is not done, or no search has seen all files yet.
    pub(super) fn remove(&mut self, name: EntryName) -> bool {
        if self.take(name) {
            self.leaving.insert(name);
        }
        self.removals.is_some() || self.leaving.contains(&name)
    }

    /// Ends the removal of a file.
    pub(super) fn on_file_removed(&mut self, name: EntryName) {
        self.leaving.remove(&name);
    }

    /// Removes an entry if it has this version; returns whether it had.
    pub(super) fn remove_version(&mut self, name: EntryName, version: EntryVersion) -> bool {
        let is_same = self.version(name) == Some(version);
        if is_same {
            self.remove(name);
        }
        is_same
    }

    /// Removes entries that match, also those being written; returns them.
    pub(super) fn remove_matching(&mut self, test: &EntryTest) -> Vec<(EntryName, Box<[u8]>)> {
        if let Some(removals) = &mut self.removals {
            removals.push(EntryTest::clone(test));
        }
        let matching = self.entries.iter().filter(|(_, entry)| test(&entry.key, &entry.labels));
        let names: Vec<_> = matching.map(|(name, entry)| (*name, entry.key.clone())).collect();
        names.iter().for_each(|(name, _)| _ = self.remove(*name));
        names
    }

    /// Removes the least recently used entries until the limits are kept.
    pub(super) fn evict(&mut self) -> Vec<EntryName> {
        let mut evicted = Vec::new();
        while self.bytes > self.bytes_max || self.by_use.len() > self.files_max {
            let Some(name) = self.by_use.first_key_value().map(|(_, name)| *name) else { break };
            self.remove(name);
            evicted.push(name);
        }
        evicted
    }

    /// Takes an entry out of the index; returns whether it was there.
    fn take(&mut self, name: EntryName) -> bool {
        let Some(entry) = self.entries.remove(&name) else { return false };
        if let Some(complete) = entry.complete {
            self.by_use.remove(&complete.used);
            self.bytes -= complete.bytes;
        }
        true
    }

    fn complete(&mut self, name: EntryName, version: EntryVersion, text: EntryText<'_>, bytes: u64) {
        let used = self.next;
        self.next += 1;
        self.by_use.insert(used, name);
        self.bytes += bytes;
        let complete = Some(CompleteEntry { bytes, used });
        self.entries.insert(name, IndexEntry::new(version, text, complete));
    }

    fn new_version(&mut self) -> EntryVersion {
        self.next += 1;
        EntryVersion(self.next)
    }
}
