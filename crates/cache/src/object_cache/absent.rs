use std::sync::Arc;

use hashbrown::HashTable;

use super::{DiskAccess, ObjectStore, Root, RootId, WatchedDirectory};

/// Maximum number of paths in each of the two tables. Not an option: requests for random paths may fill both, with some
/// hundred KiB.
const PATHS_MAX: usize = 1024;

/// Length of the longest path that is remembered, in bytes.
const PATH_BYTES_MAX: usize = 256;

/// Maximum depth at which a path is looked up.
const DEPTH_MAX: usize = 8;

/// Paths that do not exist below a root, so that a request for one needs no system call. A path whose first missing
/// component is a directory stands for all paths below it.
///
/// An entry holds as long as its directory has no new names, and no longer than the directory is trusted without a check.
/// Entries move from the recent table to the earlier one when the recent one is full, and back at a hit. So random paths
/// cost bounded memory, and evict the paths that clients ask for again only if there are very many.
#[derive(Debug, Default)]
pub(super) struct AbsentPaths {
    recent: HashTable<AbsentPath>,
    earlier: HashTable<AbsentPath>,
}

#[derive(Debug)]
struct AbsentPath {
    root: RootId,
    /// Relative to the root, up to the first missing component.
    name: Box<[u8]>,
    hash: u64,
    /// Directory in which the name is missing.
    directory: Arc<WatchedDirectory>,
    /// The directory's number of entry changes before the name was looked up.
    entry_changes_seen: u64,
}

impl AbsentPath {
    fn is(&self, root: RootId, name: &[u8]) -> bool {
        self.root == root && *self.name == *name
    }

    fn holds(&self, now_ms: u64, revalidate_after_ms: u64) -> bool {
        self.directory.entry_changes() == self.entry_changes_seen
            && now_ms < self.directory.checked_at_ms().saturating_add(revalidate_after_ms)
    }
}

impl AbsentPaths {
    /// Returns true if this path, or a directory on the way to it, is known to be missing.
    pub(super) fn has(&mut self, store: &ObjectStore, root: RootId, path: &[u8], now_ms: u64, trust_ms: u64) -> bool {
        if self.recent.is_empty() && self.earlier.is_empty() {
            return false;
        }
        prefixes(path).any(|name| self.has_name(root, name, store.hash(root, name), now_ms, trust_ms))
    }

    fn has_name(&mut self, root: RootId, name: &[u8], hash: u64, now_ms: u64, trust_ms: u64) -> bool {
        let is_same = |entry: &AbsentPath| entry.is(root, name);
        if let Some(entry) = self.recent.find(hash, is_same) {
            return entry.holds(now_ms, trust_ms);
        }
        let Ok(entry) = self.earlier.find_entry(hash, is_same) else { return false };
        let entry = entry.remove().0;
        let holds = entry.holds(now_ms, trust_ms);
        if holds {
            self.insert(entry);
        }
        holds
    }

    /// Remembers the first missing component of a path, if the path is missing. Uses only what the kernel has in memory.
    /// Paths with symbolic links are left out, because a link's target may appear in another directory.
    pub(super) fn note(&mut self, store: &ObjectStore, id: RootId, root: &Root, path: &[u8], now_ms: u64) {
        let Some(name) = prefixes(path).find(|name| root.is_missing(name)) else { return };
        let parent_end = name.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let Ok(directory) = store.directory(id, root, &name[..parent_end], now_ms, DiskAccess::Cached) else { return };
        let entry_changes_seen = directory.entry_changes();
        // Looked up again: a name that was added before the directory's changes were counted would stay unnoticed.
        if !root.is_missing(name) {
            return;
        }
        let hash = store.hash(id, name);
        for table in [&mut self.recent, &mut self.earlier] {
            if let Ok(entry) = table.find_entry(hash, |entry| entry.is(id, name)) {
                entry.remove();
            }
        }
        self.insert(AbsentPath { root: id, name: name.into(), hash, directory, entry_changes_seen });
    }

    fn insert(&mut self, entry: AbsentPath) {
        if self.recent.len() >= PATHS_MAX {
            self.earlier = std::mem::take(&mut self.recent);
        }
        self.recent.insert_unique(entry.hash, entry, |entry| entry.hash);
    }

    /// Number of remembered paths.
    pub(super) fn len(&self) -> usize {
        self.recent.len() + self.earlier.len()
    }
}

/// Names from the root to each component of a path, the shortest first; none if the path is too long or too deep.
fn prefixes(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let name = path.strip_prefix(b"/").unwrap_or(path);
    let name = name.strip_suffix(b"/").unwrap_or(name);
    let is_short =
        !name.is_empty() && name.len() <= PATH_BYTES_MAX && memchr::memchr_iter(b'/', name).count() < DEPTH_MAX;
    let name = if is_short { name } else { &[] };
    let ends = memchr::memchr_iter(b'/', name).chain(is_short.then_some(name.len()));
    ends.map(|end| &name[..end])
}

#[cfg(test)]
mod tests {
    use super::{DEPTH_MAX, prefixes};

    #[test]
    fn prefixes_of_paths() {
        let check = |path: &[u8], expect: &[&str]| {
            let found: Vec<_> = prefixes(path).map(|name| str::from_utf8(name).unwrap()).collect();
            assert_eq!(found, expect);
        };
        check(b"/", &[]);
        check(b"/a", &["a"]);
        check(b"/a/", &["a"]);
        check(b"/a/bc/d.html", &["a", "a/bc", "a/bc/d.html"]);
        check(
            "/d".repeat(DEPTH_MAX).as_bytes(),
            &["d", "d/d", "d/d/d", "d/d/d/d", "d/d/d/d/d", "d/d/d/d/d/d", "d/d/d/d/d/d/d", "d/d/d/d/d/d/d/d"],
        );
        check("/d".repeat(DEPTH_MAX + 1).as_bytes(), &[]);
        check(&[b'n'; 300], &[]);
    }
}
