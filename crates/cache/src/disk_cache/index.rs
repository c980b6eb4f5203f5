//! Index of the entries on disk: keys, sizes, and the order of use.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::entry::EntryName;
use super::{EntryTest, EntryText};
use crate::config::DiskCacheConfig;
use crate::object_cache::{FileIdentity, Object, ObjectContent, ObjectStore, RootId, file_time_now_ns};

/// Entries that an eviction skips because memory has used them. The index is locked meanwhile, so the search must end.
const SPARED_MAX: usize = 512;

/// Number of a state of an entry. A later state has a greater one. Uses are numbered in the same row.
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

/// Version of a file whose content was found to match its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CheckedFile {
    inode: u64,
    changed_ns: i64,
}

/// Place of the object that keeps the file of an entry open. Its hits do not pass the index.
#[derive(Clone)]
pub struct FileHolder {
    /// Store of the object.
    pub store: Arc<ObjectStore>,
    /// Root of the object.
    pub root: RootId,
    /// Length of the object's path, with which the key of the entry ends.
    pub path_bytes: usize,
}

/// Entry that an eviction has removed.
pub(super) struct EvictedEntry {
    pub(super) name: EntryName,
    key: Box<[u8]>,
    holder: Option<FileHolder>,
}

struct IndexEntry {
    version: EntryVersion,
    key: Box<[u8]>,
    labels: Box<[u8]>,
    /// `None` while the entry is being written.
    complete: Option<CompleteEntry>,
    /// `None` if this process has not read the content yet.
    checked: Option<CheckedFile>,
    /// Last object that was made with the file.
    holder: Option<FileHolder>,
}

struct CompleteEntry {
    bytes: u64,
    used: u64,
}

impl CheckedFile {
    /// Version of the file with this identity; `None` if it has changed just now, so that a later change may leave the same
    /// identity.
    pub(super) fn of(file: &FileIdentity) -> Option<Self> {
        let is_settled = file.is_settled(file_time_now_ns());
        is_settled.then_some(Self { inode: file.inode, changed_ns: file.changed_ns })
    }
}

impl FileHolder {
    /// Object with the open file of the entry with this key, if the store still has it.
    fn object(&self, key: &[u8]) -> Option<Arc<Object>> {
        let object = self.store.peek(self.root, &key[key.len().checked_sub(self.path_bytes)?..])?;
        matches!(object.identity().content, ObjectContent::File(_)).then_some(object)
    }

    /// True if the object was served since the last call, or since its store last looked for one to evict.
    fn take_visited(&self, key: &[u8]) -> bool {
        self.object(key).is_some_and(|object| object.take_visited())
    }
}

impl EvictedEntry {
    /// Removes the object with the entry's file from its store, so that the file is closed.
    pub(super) fn close(&self) {
        if let Some(holder) = &self.holder
            && let Some(object) = holder.object(&self.key)
        {
            holder.store.remove(&object);
        }
    }
}

impl IndexEntry {
    fn new(version: EntryVersion, text: EntryText<'_>, complete: Option<CompleteEntry>) -> Self {
        let (key, labels) = (text.key.into(), text.labels.into());
        Self { version, key, labels, complete, checked: None, holder: None }
    }

    /// True if the entry is complete and has this version.
    fn is_complete(&self, version: EntryVersion) -> bool {
        self.complete.is_some() && self.version == version
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

    /// Limit of the size of all entries.
    pub(super) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Number of complete entries, and their size.
    pub(super) fn usage(&self) -> (usize, u64) {
        (self.by_use.len(), self.bytes)
    }

    /// True if an entry is complete or being written.
    pub(super) fn knows(&self, name: EntryName) -> bool {
        self.entries.contains_key(&name)
    }

    /// True if an entry is complete.
    pub(super) fn has(&self, name: EntryName) -> bool {
        self.entries.get(&name).is_some_and(|entry| entry.complete.is_some())
    }

    /// Finds a complete entry, and counts a use. Returns its version, and that of its file if it was checked.
    pub(super) fn find(&mut self, name: EntryName) -> Option<(EntryVersion, Option<CheckedFile>)> {
        let entry = self.entries.get_mut(&name)?;
        let complete = entry.complete.as_mut()?;
        self.by_use.remove(&complete.used);
        complete.used = self.next;
        self.by_use.insert(complete.used, name);
        self.next += 1;
        Some((entry.version, entry.checked))
    }

    /// Notes that an entry was read, if it still has this version; returns whether it has.
    pub(super) fn on_read(
        &mut self,
        name: EntryName,
        version: EntryVersion,
        checked: Option<CheckedFile>,
        holder: Option<FileHolder>,
    ) -> bool {
        let Some(entry) = self.entries.get_mut(&name).filter(|entry| entry.is_complete(version)) else { return false };
        entry.checked = checked;
        if holder.is_some() {
            entry.holder = holder;
        }
        true
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
        let is_same = self.entries.get(&name).is_some_and(|entry| entry.is_complete(version));
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

    /// Removes the least recently used entries until the limits are kept, and returns them.
    pub(super) fn evict(&mut self) -> Vec<EvictedEntry> {
        let (mut evicted, mut spared) = (Vec::new(), 0);
        while self.bytes > self.bytes_max || self.by_use.len() > self.files_max {
            let Some(name) = self.by_use.first_key_value().map(|(_, name)| *name) else { break };
            let Some(IndexEntry { key, holder, .. }) = self.entries.get(&name) else { break };
            if spared < SPARED_MAX && holder.as_ref().is_some_and(|holder| holder.take_visited(key)) {
                spared += 1;
                self.find(name);
                continue;
            }
            let (key, holder) = (key.clone(), holder.clone());
            self.remove(name);
            evicted.push(EvictedEntry { name, key, holder });
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
        // The request counts as the use. How long the write took says nothing about what is wanted.
        let used = version.0;
        self.by_use.insert(used, name);
        self.bytes += bytes;
        let complete = Some(CompleteEntry { bytes, used });
        self.entries.insert(name, IndexEntry::new(version, text, complete));
    }

    fn new_version(&mut self) -> EntryVersion {
        let version = EntryVersion(self.next);
        self.next += 1;
        version
    }
}
