use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::fs::{Dir, FileType};

use super::open_file::file_time_now_ns;
use super::watcher::Watcher;
use super::{DiskAccess, FileIdentity, OpenError, Root, RootId};

/// Suffixes of the names of precompressed files.
pub const PRECOMPRESSED_EXTENSIONS: [&str; 3] = [".br", ".zst", ".gz"];

/// Maximum number of directory entries scanned for precompressed files. In a larger directory, each precompressed file
/// is looked up by name. Not an option, because it only selects one of two methods.
const ENTRIES_SCANNED_MAX: usize = 100_000;

/// Directory that contains the files of cached objects, with counters of its changes. A change is noticed by inotify,
/// or because a later check finds another identity.
#[derive(Debug)]
pub struct WatchedDirectory {
    /// Relative to the root; empty for the root itself.
    name: Box<[u8]>,
    watcher: Option<Arc<Watcher>>,
    changes: AtomicU64,
    /// Number of changes that added or removed a name; part of `changes`.
    entry_changes: AtomicU64,
    checked_at_ms: AtomicU64,
    precompressed: Mutex<Option<PrecompressedNames>>,
    /// Identity at the last check; `None` if the directory may have changed since then without a new time stamp.
    seen: Mutex<Option<FileIdentity>>,
}

/// Names of the precompressed files in a directory, so that a request need not look for them beside each file. Most
/// directories have none, and the kernel often does not cache that a name is missing.
#[derive(Debug)]
struct PrecompressedNames {
    /// Value of `WatchedDirectory::entry_changes` before the names were read.
    entry_changes: u64,
    /// Names without the directory; `None` if the directory has more than `ENTRIES_SCANNED_MAX` entries.
    names: Option<HashSet<Box<[u8]>>>,
}

impl WatchedDirectory {
    /// Number of changes so far. An object stores this number when it is made; one comparison then shows whether its
    /// directory has changed.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Number of changes so far that added or removed a name.
    pub fn entry_changes(&self) -> u64 {
        self.entry_changes.load(Ordering::Relaxed)
    }

    /// Time of the last check, in milliseconds.
    pub fn checked_at_ms(&self) -> u64 {
        self.checked_at_ms.load(Ordering::Relaxed)
    }

    /// Returns false if the directory surely has no precompressed file of this name (given without the directory). With
    /// [`DiskAccess::Cached`], fails with [`OpenError::WouldBlock`] unless the names are known already.
    pub fn may_have_precompressed(&self, root: &Root, file_name: &[u8], access: DiskAccess) -> Result<bool, OpenError> {
        let mut precompressed = self.precompressed.lock().unwrap_or_else(PoisonError::into_inner);
        let entry_changes = self.entry_changes();
        let known = precompressed.as_ref().filter(|known| known.entry_changes == entry_changes);
        let known = match (known, access) {
            (Some(known), _) => known,
            (None, DiskAccess::Cached) => return Err(OpenError::WouldBlock),
            (None, DiskAccess::Blocking) => {
                let names = precompressed_names(root, &self.name)?;
                precompressed.insert(PrecompressedNames { entry_changes, names })
            }
        };
        Ok(known.names.as_ref().is_none_or(|names| names.contains(file_name)))
    }

    /// Counts a change; `of_entries` is true if it may have added or removed a name.
    pub(super) fn note_change(&self, of_entries: bool) {
        if of_entries {
            self.entry_changes.fetch_add(1, Ordering::Relaxed);
        }
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Checks the directory again if the last check is at least `revalidate_after_ms` ago. Adding or removing a name
    /// changes the directory's time stamps.
    pub(super) fn refresh(
        self: &Arc<Self>,
        root: &Root,
        now_ms: u64,
        revalidate_after_ms: u64,
        access: DiskAccess,
    ) -> Result<(), OpenError> {
        if now_ms < self.checked_at_ms().saturating_add(revalidate_after_ms) {
            return Ok(());
        }
        let status = root.status(&self.name, access)?;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if *seen != Some(status.identity) {
            self.note_change(true);
            // The name may now stand for another directory.
            if let (Some(watcher), Ok((fd, _))) = (&self.watcher, root.find(&self.name, access)) {
                watcher.watch(&fd, self);
            }
        }
        *seen = status.identity.is_settled(file_time_now_ns()).then_some(status.identity);
        self.checked_at_ms.store(now_ms, Ordering::Relaxed);
        Ok(())
    }
}

/// Reads the names of the precompressed files; `None` if the directory has too many entries.
fn precompressed_names(root: &Root, directory: &[u8]) -> Result<Option<HashSet<Box<[u8]>>>, OpenError> {
    let mut names = HashSet::new();
    for (count, entry) in Dir::new(root.open_directory(directory)?)?.enumerate() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if count == ENTRIES_SCANNED_MAX {
            return Ok(None);
        }
        if PRECOMPRESSED_EXTENSIONS.iter().any(|extension| name.ends_with(extension.as_bytes())) {
            names.insert(name.into());
        }
    }
    Ok(Some(names))
}

/// Directories that cached objects use, shared by all roots.
#[derive(Debug)]
pub(super) struct WatchedDirectories {
    watcher: Option<Arc<Watcher>>,
    known: Mutex<KnownDirectories>,
}

#[derive(Debug, Default)]
struct KnownDirectories {
    by_name: HashMap<(RootId, Box<[u8]>), Weak<WatchedDirectory>>,
    /// Size of `by_name` at which entries of unused directories are removed.
    prune_at: usize,
}

impl WatchedDirectories {
    pub(super) fn new(watcher: Option<Arc<Watcher>>) -> Self {
        Self { watcher, known: Mutex::default() }
    }

    /// Returns the directory of this name below a root. It is watched from now on, and was checked within the last
    /// `revalidate_after_ms`.
    pub(super) fn get(
        &self,
        id: RootId,
        root: &Root,
        name: &[u8],
        now_ms: u64,
        revalidate_after_ms: u64,
        access: DiskAccess,
    ) -> Result<Arc<WatchedDirectory>, OpenError> {
        let key = (id, Box::from(name));
        let known = self.lock().by_name.get(&key).and_then(Weak::upgrade);
        if let Some(directory) = known {
            directory.refresh(root, now_ms, revalidate_after_ms, access)?;
            return Ok(directory);
        }
        let (fd, status) = root.find(name, access)?;
        if status.kind != FileType::Directory {
            return Err(OpenError::NotFound);
        }
        let directory = Arc::new(WatchedDirectory {
            name: name.into(),
            watcher: self.watcher.clone(),
            changes: AtomicU64::new(0),
            entry_changes: AtomicU64::new(0),
            precompressed: Mutex::default(),
            checked_at_ms: AtomicU64::new(now_ms),
            seen: Mutex::new(status.identity.is_settled(file_time_now_ns()).then_some(status.identity)),
        });
        if let Some(watcher) = &self.watcher {
            watcher.watch(&fd, &directory);
        }
        let mut known = self.lock();
        if known.by_name.len() >= known.prune_at {
            known.by_name.retain(|_, directory| directory.strong_count() > 0);
            known.prune_at = (2 * known.by_name.len()).max(64);
        }
        known.by_name.insert(key, Arc::downgrade(&directory));
        Ok(directory)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, KnownDirectories> {
        // A panic while the lock is held leaves no half-made change.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
