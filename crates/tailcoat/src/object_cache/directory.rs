use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::fs::FileType;

use super::open_file::file_time_now_ns;
use super::watcher::Watcher;
use super::{Access, FileIdentity, OpenError, Root, RootId};

/// A directory that cached objects came from, and how often something in it changed as far as we know: by inotify, or
/// because it was not the same when it was looked at again.
#[derive(Debug)]
pub struct Directory {
    /// Relative to the root; empty for the root itself.
    name: Box<[u8]>,
    watcher: Option<Arc<Watcher>>,
    changes: AtomicU64,
    checked_at_ms: AtomicU64,
    /// What it was when it was looked at; `None` if it might have changed since without a trace.
    seen: Mutex<Option<FileIdentity>>,
}

impl Directory {
    /// The number of changes so far. Objects remember what it was, so that one comparison tells whether something in
    /// their directory changed.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Counts a change.
    pub(super) fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Looks at the directory again if that is `revalidate_after_ms` ago: entries that came or went have moved its
    /// time stamps. Gives the number of changes so far.
    pub(super) fn refresh(
        self: &Arc<Self>,
        root: &Root,
        now_ms: u64,
        revalidate_after_ms: u64,
        access: Access,
    ) -> Result<u64, OpenError> {
        let checked_at_ms = self.checked_at_ms.load(Ordering::Relaxed);
        if now_ms < checked_at_ms.saturating_add(revalidate_after_ms) {
            return Ok(self.changes());
        }
        let status = root.status(&self.name, access)?;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if *seen != Some(status.identity) {
            self.note_change();
            // It may be another directory.
            if let (Some(watcher), Ok((fd, _))) = (&self.watcher, root.find(&self.name, access)) {
                watcher.watch(&fd, self);
            }
        }
        *seen = status.identity.is_settled(file_time_now_ns()).then_some(status.identity);
        self.checked_at_ms.store(now_ms, Ordering::Relaxed);
        Ok(self.changes())
    }
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

    /// The directory of this name below a root, watched from now on.
    pub(super) fn get(
        &self,
        id: RootId,
        root: &Root,
        name: &[u8],
        now_ms: u64,
        access: Access,
    ) -> Result<Arc<Directory>, OpenError> {
        let key = (id, Box::from(name));
        if let Some(directory) = self.lock().by_name.get(&key).and_then(Weak::upgrade) {
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
