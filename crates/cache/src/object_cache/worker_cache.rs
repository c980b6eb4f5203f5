use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hashbrown::HashTable;

use super::absent::AbsentPaths;
use super::{CachedObject, Object, ObjectStore, Root, RootId};
use crate::metrics::WorkerMetrics;

/// A worker's own table of objects. A hit takes no lock, and writes to no memory that other workers use; a miss asks
/// the shared store.
#[derive(Debug)]
pub struct WorkerCache {
    store: Arc<ObjectStore>,
    revalidate_after_ms: Cell<u64>,
    table: RefCell<HashTable<Rc<CachedObject>>>,
    absent: RefCell<AbsentPaths>,
    /// Number of deaths that this table has processed.
    deaths_seen: Cell<u64>,
    /// Counters of file lookups; `None` if they are not counted.
    metrics: Option<Arc<WorkerMetrics>>,
}

/// Result of a cache lookup.
#[derive(Debug)]
pub enum CacheLookup {
    /// Object that may be served.
    Fresh(Rc<CachedObject>),
    /// Object that must be checked ([`ObjectStore::check`]) before it is served.
    Due(Rc<CachedObject>),
    /// No object has this key.
    Miss,
}

impl WorkerCache {
    /// Creates an empty table for this store.
    pub fn new(store: Arc<ObjectStore>) -> Self {
        Self {
            revalidate_after_ms: Cell::new(store.revalidate_after_ms()),
            deaths_seen: Cell::new(store.deaths()),
            table: RefCell::default(),
            absent: RefCell::default(),
            metrics: None,
            store,
        }
    }

    /// Sets the metrics that lookups are counted in.
    #[must_use]
    pub fn counting(self, metrics: Arc<WorkerMetrics>) -> Self {
        Self { metrics: Some(metrics), ..self }
    }

    /// Counts a lookup of a file; `is_hit` is true if it found an object that may be served.
    #[inline]
    pub fn count_lookup(&self, is_hit: bool) {
        let Some(metrics) = &self.metrics else { return };
        let counter = if is_hit { &metrics.object_hits } else { &metrics.object_misses };
        counter.add(1);
    }

    /// Store shared by all workers.
    pub fn store(&self) -> &Arc<ObjectStore> {
        &self.store
    }

    /// Applies the current limits of the store.
    pub fn apply_limits(&self) {
        self.revalidate_after_ms.set(self.store.revalidate_after_ms());
    }

    /// Number of objects in the table, including those that have died since the last [`Self::tick`].
    pub fn len(&self) -> usize {
        self.table.borrow().len()
    }

    /// True if the table has no objects.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Looks up an object, first in this table and then in the store.
    #[inline]
    pub fn get(&self, root: RootId, path: &[u8], now_ms: u64) -> CacheLookup {
        let hash = self.store.hash(root, path);
        let table = self.table.borrow();
        match table.find(hash, |cached| cached.object.key.is(root, path)) {
            Some(cached) if !cached.object.state.dead.load(Ordering::Relaxed) => self.visit(Rc::clone(cached), now_ms),
            _ => {
                drop(table);
                self.get_from_store(root, path, hash, now_ms)
            }
        }
    }

    /// Returns true if it is known that no file has this path.
    pub fn is_absent(&self, root: RootId, path: &[u8], now_ms: u64) -> bool {
        self.absent.borrow_mut().has(&self.store, root, path, now_ms, self.revalidate_after_ms.get())
    }

    /// Remembers that no file has this path, if that can be verified without a disk.
    pub fn note_absent(&self, id: RootId, root: &Root, path: &[u8], now_ms: u64) {
        self.absent.borrow_mut().note(&self.store, id, root, path, now_ms);
    }

    /// Number of paths known to have no file.
    pub fn absent_paths(&self) -> usize {
        self.absent.borrow().len()
    }

    /// Adds an object from the store to this table, unless it is there or dead already. Objects that it has displaced leave
    /// the table first: while they are held, the store has no room for their successors.
    pub fn adopt(&self, object: Arc<Object>) -> Rc<CachedObject> {
        self.remove_dead();
        let (key, is_dead) = (&object.key, object.is_dead());
        let mut table = self.table.borrow_mut();
        if let Ok(entry) = table.find_entry(key.hash, |other| other.object.key.is(key.root, &key.path)) {
            if Arc::ptr_eq(&entry.get().object, &object) && !is_dead {
                return Rc::clone(entry.get());
            }
            entry.remove();
        }
        let cached = Rc::new(CachedObject { object });
        if !is_dead {
            table.insert_unique(cached.object.key.hash, Rc::clone(&cached), |cached| cached.object.key.hash);
        }
        cached
    }

    /// Frees the memory of objects that were evicted or replaced meanwhile, and makes room for large files. Must be called
    /// about once a second.
    pub fn tick(&self) {
        self.store.relieve_file_memory();
        self.remove_dead();
    }

    /// Removes objects that were evicted or replaced meanwhile.
    fn remove_dead(&self) {
        let seen = self.deaths_seen.get();
        if self.store.deaths() == seen {
            return;
        }
        let mut table = self.table.borrow_mut();
        let is_dead = |cached: &Rc<CachedObject>| cached.object.state.dead.load(Ordering::Relaxed);
        let reported = self.store.deaths_since(seen, |hash| {
            while let Ok(entry) = table.find_entry(hash, |cached| cached.object.key.hash == hash && is_dead(cached)) {
                entry.remove();
            }
        });
        let deaths = reported.unwrap_or_else(|deaths| {
            table.retain(|cached| !is_dead(cached));
            deaths
        });
        self.deaths_seen.set(deaths);
        if table.len() < table.capacity() / 4 {
            table.shrink_to_fit(|cached| cached.object.key.hash);
        }
    }

    /// Removes all objects, so that an idle worker does not keep evicted objects alive. Objects that are still in the
    /// store are found there again.
    pub fn clear(&self) {
        *self.table.borrow_mut() = HashTable::new();
        self.absent.take();
        self.deaths_seen.set(self.store.deaths());
    }

    #[cold]
    fn get_from_store(&self, root: RootId, path: &[u8], hash: u64, now_ms: u64) -> CacheLookup {
        match self.store.get(root, path, hash) {
            Some(object) => self.visit(self.adopt(object), now_ms),
            None => CacheLookup::Miss,
        }
    }

    #[inline]
    fn visit(&self, cached: Rc<CachedObject>, now_ms: u64) -> CacheLookup {
        let visited = &cached.object.state.visited;
        // The flag is written only if it changes, so that the memory of hot objects stays shared between the cores.
        if !visited.load(Ordering::Relaxed) {
            visited.store(true, Ordering::Relaxed);
        }
        if cached.object.is_due(now_ms, self.revalidate_after_ms.get()) {
            CacheLookup::Due(cached)
        } else {
            CacheLookup::Fresh(cached)
        }
    }
}
