use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use rustix::io::Errno;
use tokio::sync::Semaphore;

use super::directory::WatchedDirectories;
use super::object::ObjectKey;
use super::root::check_kernel;
use super::sieve::{Links, Nodes, Sieve, SieveSlot};
use super::watcher::Watcher;
use super::{ContentMemory, DiskAccess, FileMemory, Object, ObjectParts, OpenError, Root, WatchedDirectory};
use crate::config::CacheConfig;

/// Maximum number of dead objects that are listed for the workers. A worker that has missed more scans its whole table.
/// Not an option, because it only selects one of two methods.
const OBITUARIES_MAX: usize = 4096;

/// Divisor of the memory limit for content of large files.
const FILE_MEMORY_DIVISOR: u64 = 4;

/// Identifier of the root or of the upstreams that an object comes from. A root that is opened again, after a reload or
/// for another directory, gets a new identifier. Objects of the old root are therefore never served for the new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RootId(u32);

impl RootId {
    /// Root of objects that are in no store.
    pub(super) const NONE: Self = Self(u32::MAX);
}

/// Objects of all workers. Each worker looks in its own table first and here second. The store enforces the limits. Its
/// lock is taken to insert, to evict, and when a worker uses an object for the first time.
#[derive(Debug)]
pub struct ObjectStore {
    limits: RwLock<Arc<CacheConfig>>,
    hasher: RandomState,
    next_root: AtomicU32,
    directories: WatchedDirectories,
    content_memory: Arc<ContentMemory>,
    file_memory: Arc<FileMemory>,
    compressions: Arc<Semaphore>,
    inner: Mutex<ObjectStoreInner>,
    /// Number of objects that have died so far; a copy that workers compare without the lock.
    deaths: AtomicU64,
}

/// Usage counters of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreUsage {
    /// Number of objects.
    pub objects: usize,
    /// Memory of heads and contents, in bytes.
    pub memory_bytes: u64,
    /// Number of file descriptors of large files.
    pub files: usize,
    /// Number of objects evicted so far to keep the limits.
    pub evictions: u64,
}

#[derive(Debug, Default)]
struct ObjectStoreInner {
    table: HashTable<SieveSlot>,
    nodes: Slab,
    /// Objects whose content is entirely in memory.
    in_memory: Sieve,
    /// Objects that hold file descriptors.
    with_files: Sieve,
    usage: StoreUsage,
    /// Key hashes of the objects that died most recently.
    obituaries: VecDeque<u64>,
    /// Number of objects that have died so far.
    deaths: u64,
}

#[derive(Debug, Default)]
struct Slab {
    nodes: Vec<Option<CacheNode>>,
    free: Vec<SieveSlot>,
}

#[derive(Debug)]
struct CacheNode {
    object: Arc<Object>,
    links: Links,
    memory_bytes: u64,
    files: usize,
}

impl ObjectStore {
    /// Creates a store with these limits. Fails if the kernel lacks openat2 with RESOLVE_CACHED (Linux 5.12), because
    /// names could not be confined to a root.
    pub fn new(limits: CacheConfig) -> io::Result<Arc<Self>> {
        check_kernel().map_err(|error| match error {
            Errno::NOSYS | Errno::INVAL => io::Error::new(
                io::ErrorKind::Unsupported,
                "the kernel cannot confine paths to a directory (openat2): use Linux 5.12 or newer, and allow openat2 in a \
                 container's system call filter",
            ),
            error => error.into(),
        })?;
        // If inotify is not available (the kernel limits its instances, too), only the periodic check finds changes.
        let watcher = if limits.watch { Watcher::start(limits.watches_max).ok().map(Arc::new) } else { None };
        let file_memory = Arc::new(FileMemory::default());
        file_memory.set_limit(limits.memory_bytes_max / FILE_MEMORY_DIVISOR);
        Ok(Arc::new(Self {
            limits: RwLock::new(Arc::new(limits)),
            hasher: RandomState::default(),
            next_root: AtomicU32::new(0),
            directories: WatchedDirectories::new(watcher),
            content_memory: Arc::default(),
            file_memory,
            compressions: Arc::new(Semaphore::new(std::thread::available_parallelism().map_or(1, usize::from))),
            inner: Mutex::default(),
            deaths: AtomicU64::new(0),
        }))
    }

    /// Current limits.
    pub fn limits(&self) -> Arc<CacheConfig> {
        // The value is always replaced as a whole, so a panic cannot leave it half changed.
        Arc::clone(&self.limits.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Applies new limits. The set of watched directories does not change.
    pub fn apply_limits(&self, limits: CacheConfig) {
        let limits = Arc::new(limits);
        *self.limits.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&limits);
        self.file_memory.set_limit(limits.memory_bytes_max / FILE_MEMORY_DIVISOR);
        let mut inner = self.lock();
        inner.evict(&limits);
        self.publish_deaths(&inner);
    }

    /// Current usage of the store.
    pub fn usage(&self) -> StoreUsage {
        self.lock().usage
    }

    /// Memory of upstream response content.
    pub fn content_memory(&self) -> &Arc<ContentMemory> {
        &self.content_memory
    }

    /// Memory of large files, apart from that of objects.
    pub fn file_memory(&self) -> &Arc<FileMemory> {
        &self.file_memory
    }

    /// Removes a large file that was not used lately if another has found no memory.
    pub(super) fn relieve_file_memory(&self) {
        if self.file_memory.take_shortage() {
            let mut inner = self.lock();
            inner.evict_file();
            self.publish_deaths(&inner);
        }
    }

    /// Permits for compressions in all trees together; one for each CPU core. While none is free, clients get the
    /// representations that exist.
    pub fn compressions(&self) -> &Arc<Semaphore> {
        &self.compressions
    }

    /// Returns an identifier for a root that was just opened.
    pub fn new_root_id(&self) -> RootId {
        RootId(self.next_root.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the directory of this name below a root. Before reading an object's files, the caller must get the
    /// directory and note its number of changes.
    pub fn directory(
        &self,
        id: RootId,
        root: &Root,
        name: &[u8],
        now_ms: u64,
        access: DiskAccess,
    ) -> Result<Arc<WatchedDirectory>, OpenError> {
        self.directories.get(id, root, name, now_ms, self.revalidate_after_ms(), access)
    }

    /// Returns true if the object's files are unchanged, so that it may be served. Fails only with
    /// [`OpenError::WouldBlock`] or [`OpenError::Exhausted`].
    pub fn check(&self, object: &Object, root: &Root, now_ms: u64, access: DiskAccess) -> Result<bool, OpenError> {
        object.check(root, now_ms, self.revalidate_after_ms(), access)
    }

    /// Inserts a new object, replacing the one with the same key, and evicts others until the limits are kept. An
    /// object that exceeds the limits by itself is only returned.
    pub fn insert(&self, root: RootId, path: &[u8], parts: ObjectParts) -> Arc<Object> {
        let key = ObjectKey { root, path: path.into(), hash: self.hash(root, path) };
        let object = Arc::new(Object::new(key, parts));
        let limits = self.limits();
        let mut inner = self.lock();
        if let Some(slot) = inner.find(root, path, object.key.hash) {
            inner.remove(slot);
        }
        inner.add(&object, &limits);
        self.publish_deaths(&inner);
        object
    }

    /// Replaces an object with a new one. If the old object is no longer in the store, the new one is only returned.
    pub fn replace(&self, old: &Object, parts: ObjectParts) -> Arc<Object> {
        let key = ObjectKey { root: old.key.root, path: old.key.path.clone(), hash: old.key.hash };
        let object = Arc::new(Object::new(key, parts));
        let limits = self.limits();
        let mut inner = self.lock();
        match inner.slot_of(old) {
            Some(slot) => {
                inner.remove(slot);
                inner.add(&object, &limits);
            }
            None => object.state.dead.store(true, Ordering::Relaxed),
        }
        self.publish_deaths(&inner);
        object
    }

    /// Makes an object with the same key as `like` for a single request; it is not stored.
    pub fn unstored(&self, like: &Object, parts: ObjectParts) -> Arc<Object> {
        let key = ObjectKey { root: like.key.root, path: like.key.path.clone(), hash: like.key.hash };
        let object = Object::new(key, parts);
        object.state.dead.store(true, Ordering::Relaxed);
        Arc::new(object)
    }

    /// Makes an object with this key for a single request; it is not stored.
    pub fn lone(&self, root: RootId, path: &[u8], parts: ObjectParts) -> Arc<Object> {
        let object = Object::new(ObjectKey { root, path: path.into(), hash: self.hash(root, path) }, parts);
        object.state.dead.store(true, Ordering::Relaxed);
        Arc::new(object)
    }

    /// Counts the memory of an object again after it got another coding.
    pub fn recount(&self, object: &Object) {
        let limits = self.limits();
        let mut inner = self.lock();
        inner.recount(object);
        inner.evict(&limits);
        self.publish_deaths(&inner);
    }

    /// Removes an object that no longer matches the file system.
    pub fn remove(&self, object: &Object) {
        let mut inner = self.lock();
        inner.remove_object(object);
        self.publish_deaths(&inner);
    }

    /// Removes all objects of a root that was replaced or is no longer served.
    pub fn remove_root(&self, root: RootId) {
        let mut inner = self.lock();
        inner.remove_where(|object| object.key.root == root);
        self.publish_deaths(&inner);
    }

    /// Removes the objects of a root whose paths match; returns their number.
    pub fn remove_matching(&self, root: RootId, matches: impl Fn(&[u8]) -> bool) -> usize {
        self.remove_objects(root, |object| matches(&object.key.path))
    }

    /// Removes the objects of a root for which a test holds; returns their number.
    pub fn remove_objects(&self, root: RootId, matches: impl Fn(&Object) -> bool) -> usize {
        let mut inner = self.lock();
        let removed = inner.remove_where(|object| object.key.root == root && matches(object));
        self.publish_deaths(&inner);
        removed
    }

    /// Removes all objects that hold file descriptors. Called when the system is out of them.
    pub fn release_files(&self) {
        let mut inner = self.lock();
        inner.remove_where(|object| object.measure().1 > 0);
        self.publish_deaths(&inner);
    }

    /// Returns the object for this path in any state, without counting a visit.
    pub fn peek(&self, root: RootId, path: &[u8]) -> Option<Arc<Object>> {
        self.get(root, path, self.hash(root, path))
    }

    /// Returns the object with this key.
    pub(super) fn get(&self, root: RootId, path: &[u8], hash: u64) -> Option<Arc<Object>> {
        let inner = self.lock();
        let slot = inner.find(root, path, hash)?;
        inner.nodes.get(slot).map(|node| Arc::clone(&node.object))
    }

    #[inline]
    pub(super) fn hash(&self, root: RootId, path: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u32(root.0);
        hasher.write(path);
        hasher.finish()
    }

    pub(super) fn revalidate_after_ms(&self) -> u64 {
        self.limits().revalidate_after.as_millis() as u64
    }

    /// Number of objects that have died so far.
    pub(super) fn deaths(&self) -> u64 {
        self.deaths.load(Ordering::Relaxed)
    }

    /// Calls `each` with the key hashes of all objects that died since there were `seen` deaths. Returns the current
    /// number of deaths; `Err` with that number if some hashes are no longer known.
    pub(super) fn deaths_since(&self, seen: u64, each: impl FnMut(u64)) -> Result<u64, u64> {
        let inner = self.lock();
        let deaths = self.deaths();
        match (deaths - seen) as usize {
            missed if missed > inner.obituaries.len() => Err(deaths),
            missed => {
                inner.obituaries.iter().rev().take(missed).copied().for_each(each);
                Ok(deaths)
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, ObjectStoreInner> {
        // A panic while the lock is held (out of memory) at worst leaves an object uncounted.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish_deaths(&self, inner: &ObjectStoreInner) {
        self.deaths.store(inner.deaths, Ordering::Relaxed);
    }
}

impl ObjectStoreInner {
    fn find(&self, root: RootId, path: &[u8], hash: u64) -> Option<SieveSlot> {
        self.table.find(hash, |slot| self.nodes.get(*slot).is_some_and(|node| node.object.key.is(root, path))).copied()
    }

    /// Adds an object unless it exceeds the limits by itself, and evicts others for it.
    fn add(&mut self, object: &Arc<Object>, limits: &CacheConfig) {
        let (memory_bytes, files) = object.measure();
        if memory_bytes <= limits.memory_bytes_max && files <= limits.files_max {
            self.insert(Arc::clone(object), memory_bytes, files);
            self.evict(limits);
        } else {
            object.state.dead.store(true, Ordering::Relaxed);
        }
    }

    fn insert(&mut self, object: Arc<Object>, memory_bytes: u64, files: usize) {
        let hash = object.key.hash;
        let slot = self.nodes.add(CacheNode { object, links: Links::default(), memory_bytes, files });
        let nodes = &self.nodes;
        self.table.insert_unique(hash, slot, |slot| nodes.get(*slot).map_or(0, |node| node.object.key.hash));
        let sieve = if files > 0 { &mut self.with_files } else { &mut self.in_memory };
        sieve.insert(slot, &mut self.nodes);
        self.usage.objects += 1;
        self.usage.memory_bytes += memory_bytes;
        self.usage.files += files;
    }

    /// Removes an object from all tables, and lists it for the workers.
    fn remove(&mut self, slot: SieveSlot) {
        let Some(files) = self.nodes.get(slot).map(|node| node.files) else { return };
        let sieve = if files > 0 { &mut self.with_files } else { &mut self.in_memory };
        sieve.remove(slot, &mut self.nodes);
        let Some(node) = self.nodes.take(slot) else { return };
        let hash = node.object.key.hash;
        if let Ok(entry) = self.table.find_entry(hash, |other| *other == slot) {
            entry.remove();
        }
        self.usage.objects -= 1;
        self.usage.memory_bytes -= node.memory_bytes;
        self.usage.files -= node.files;
        node.object.state.dead.store(true, Ordering::Relaxed);
        self.deaths += 1;
        if self.obituaries.len() == OBITUARIES_MAX {
            self.obituaries.pop_front();
        }
        self.obituaries.push_back(hash);
    }

    fn remove_object(&mut self, object: &Object) {
        if let Some(slot) = self.slot_of(object) {
            self.remove(slot);
        }
    }

    fn remove_where(&mut self, mut matches: impl FnMut(&Object) -> bool) -> usize {
        let found: Vec<SieveSlot> =
            self.nodes.iter().filter(|(_, node)| matches(&node.object)).map(|(slot, _)| slot).collect();
        let count = found.len();
        found.into_iter().for_each(|slot| self.remove(slot));
        count
    }

    fn recount(&mut self, object: &Object) {
        let Some(node) = self.slot_of(object).and_then(|slot| self.nodes.get_mut(slot)) else { return };
        let (memory_bytes, _) = object.measure();
        self.usage.memory_bytes = self.usage.memory_bytes - node.memory_bytes + memory_bytes;
        node.memory_bytes = memory_bytes;
    }

    /// Slot of exactly this object; `None` if another object has its key.
    fn slot_of(&self, object: &Object) -> Option<SieveSlot> {
        let slot = self.find(object.key.root, &object.key.path, object.key.hash)?;
        self.nodes.get(slot).is_some_and(|node| std::ptr::eq(&*node.object, object)).then_some(slot)
    }

    /// Evicts an object with an open file; returns whether there was one.
    fn evict_file(&mut self) -> bool {
        let Some(victim) = self.with_files.victim(&mut self.nodes) else { return false };
        self.remove(victim);
        self.usage.evictions += 1;
        true
    }

    fn evict(&mut self, limits: &CacheConfig) {
        while self.usage.files > limits.files_max && self.evict_file() {}
        while self.usage.memory_bytes > limits.memory_bytes_max {
            let victim = self.in_memory.victim(&mut self.nodes).or_else(|| self.with_files.victim(&mut self.nodes));
            let Some(victim) = victim else { break };
            self.remove(victim);
            self.usage.evictions += 1;
        }
    }
}

impl Slab {
    fn add(&mut self, node: CacheNode) -> SieveSlot {
        match self.free.pop() {
            Some(slot) => {
                self.nodes[slot as usize] = Some(node);
                slot
            }
            None => {
                self.nodes.push(Some(node));
                self.nodes.len() as SieveSlot - 1
            }
        }
    }

    fn take(&mut self, slot: SieveSlot) -> Option<CacheNode> {
        let node = self.nodes.get_mut(slot as usize)?.take();
        if node.is_some() {
            self.free.push(slot);
        }
        node
    }

    fn get(&self, slot: SieveSlot) -> Option<&CacheNode> {
        self.nodes.get(slot as usize)?.as_ref()
    }

    fn get_mut(&mut self, slot: SieveSlot) -> Option<&mut CacheNode> {
        self.nodes.get_mut(slot as usize)?.as_mut()
    }

    fn iter(&self) -> impl Iterator<Item = (SieveSlot, &CacheNode)> {
        (0..).zip(&self.nodes).filter_map(|(slot, node)| Some((slot, node.as_ref()?)))
    }
}

impl Nodes for Slab {
    fn links(&mut self, slot: SieveSlot) -> &mut Links {
        // A queue holds only occupied slots, because `ObjectStoreInner::remove` removes a slot from its queue first.
        &mut self.get_mut(slot).expect("a queued slot holds a node").links
    }

    fn take_visited(&mut self, slot: SieveSlot) -> bool {
        self.get(slot).is_some_and(|node| node.object.take_visited())
    }
}
