use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::fs::{Dir, FileType};

use super::open_file::file_time_now_ns;
use super::watcher::Watcher;
use super::{Access, FileIdentity, OpenError, Root, RootId};

/// How names of precompressed files end.
pub const PRECOMPRESSED_EXTENSIONS: [&str; 3] = [".br", ".zst", ".gz"];

/// Entries of a directory that are looked through for precompressed files. In a larger directory, each is looked up:
/// not an option, since it only decides which of two ways is taken.
const ENTRIES_SCANNED_MAX: usize = 100_000;

/// A directory that cached objects came from, and how often something in it changed as far as we know: by inotify, or
/// because it was not the same when it was looked at again.
#[derive(Debug)]
pub struct Directory {
    /// Relative to the root; empty for the root itself.
    name: Box<[u8]>,
    watcher: Option<Arc<Watcher>>,
    changes: AtomicU64,
    /// Those of the changes that names came or went by.
    entry_changes: AtomicU64,
    checked_at_ms: AtomicU64,
    precompressed: Mutex<Option<PrecompressedNames>>,
    /// What it was when it was looked at; `None` if it might have changed since without a trace.
    seen: Mutex<Option<FileIdentity>>,
}

/// The precompressed files in a directory, so that they need not be looked for beside each file: most have none, and
/// the kernel doesn't know by heart what isn't there.
#[derive(Debug)]
struct PrecompressedNames {
    /// The number of entry changes before they were read.
    entry_changes: u64,
    /// Without the directory; `None` if the directory is too large.
    names: Option<HashSet<Box<[u8]>>>,
}

impl Directory {
    /// The number of changes so far. Objects remember what it was, so that one comparison tells whether something in
    /// their directory changed.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Those of the changes that names came or went by.
    pub fn entry_changes(&self) -> u64 {
        self.entry_changes.load(Ordering::Relaxed)
    }

    /// When it was last looked at, in milliseconds.
    pub fn checked_at_ms(&self) -> u64 {
        self.checked_at_ms.load(Ordering::Relaxed)
    }

    /// Whether there may be a precompressed file of this name (without the directory). With [`Access::Cached`] only if
    /// that is known already.
    pub fn may_have_precompressed(&self, root: &Root, file_name: &[u8], access: Access) -> Result<bool, OpenError> {
        let mut precompressed = self.precompressed.lock().unwrap_or_else(PoisonError::into_inner);
        let entry_changes = self.entry_changes();
        let known = precompressed.as_ref().filter(|known| known.entry_changes == entry_changes);
        let known = match (known, access) {
            (Some(known), _) => known,
            (None, Access::Cached) => return Err(OpenError::WouldBlock),
            (None, Access::Blocking) => {
                let names = precompressed_names(root, &self.name)?;
                precompressed.insert(PrecompressedNames { entry_changes, names })
            }
        };
        Ok(known.names.as_ref().is_none_or(|names| names.contains(file_name)))
    }

    /// Counts a change; `of_entries` if a name may have come or gone.
    pub(super) fn note_change(&self, of_entries: bool) {
        if of_entries {
            self.entry_changes.fetch_add(1, Ordering::Relaxed);
        }
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Looks at the directory again if that is `revalidate_after_ms` ago: entries that came or went have moved its
    /// time stamps.
    pub(super) fn refresh(
        self: &Arc<Self>,
        root: &Root,
        now_ms: u64,
        revalidate_after_ms: u64,
        access: Access,
    ) -> Result<(), OpenError> {
        if now_ms < self.checked_at_ms().saturating_add(revalidate_after_ms) {
            return Ok(());
        }
        let status = root.status(&self.name, access)?;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if *seen != Some(status.identity) {
            self.note_change(true);
            // It may be another directory.
            if let (Some(watcher), Ok((fd, _))) = (&self.watcher, root.find(&self.name, access)) {
                watcher.watch(&fd, self);
            }
        }
        *seen = status.identity.is_settled(file_time_now_ns()).then_some(status.identity);
        self.checked_at_ms.store(now_ms, Ordering::Relaxed);
        Ok(())
    }
}

/// `None` if there are too many entries to look through.
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

/// The directories in use.
#[derive(Debug)]
pub(super) struct Directories {
    watcher: Option<Arc<Watcher>>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    by_name: HashMap<(RootId, Box<[u8]>), Weak<Directory>>,
    /// At this number those that nobody uses any more are taken out.
    prune_at: usize,
}

impl Directories {
    pub(super) fn new(watcher: Option<Arc<Watcher>>) -> Self {
        Self { watcher, known: Mutex::default() }
    }

    /// The directory of this name below a root, watched from now on, and looked at within `revalidate_after_ms`.
    pub(super) fn get(
        &self,
        id: RootId,
        root: &Root,
        name: &[u8],
        now_ms: u64,
        revalidate_after_ms: u64,
        access: Access,
    ) -> Result<Arc<Directory>, OpenError> {
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
        let directory = Arc::new(Directory {
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

    fn lock(&self) -> std::sync::MutexGuard<'_, Known> {
        // Nothing in here is left half done by a panic.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
