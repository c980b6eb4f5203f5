//! Cache on disk: the second tier under the memory of the response cache. Entries survive restarts and `kill -9`.
//!
//! An entry is a file with checksums over all of it. It is written under a temporary name and renamed, so that other
//! names never show half of it; after a crash of the machine, the checksums find what the disk has lost. An
//! index in memory knows all entries, so that a miss costs no system call. A worker reads small entries that the kernel
//! has in memory. All other work with files runs on threads that may wait for a disk.

mod entry;
mod files;
mod index;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bytes::Bytes;

pub use self::entry::EntryName;
pub(crate) use self::entry::{EntryParts, read_entry};
use self::entry::{entry_of, read_file};
use self::files::EntryFiles;
use self::index::{EntryVersion, Index};
use crate::config::DiskCacheConfig;
use crate::log::{ServerLog, Trouble, event};

/// Advice in the log when entries cannot be written.
const HELP: &str = "free disk space, or set another directory with `disk` in `cache`; until then responses are kept in \
                    memory alone";

/// Content that waits to be written, by all workers together. Beyond it, responses are kept in memory alone.
const UNWRITTEN_BYTES_MAX: u64 = 64 << 20;

/// Least bytes that count for each such response, so that small ones are bounded in number.
const UNWRITTEN_BYTES_MIN: u64 = UNWRITTEN_BYTES_MAX / 256;

/// Time for which nothing is written after an error.
const PAUSE_AFTER_ERROR: Duration = Duration::from_secs(10);

/// Time after which the directory is searched again, for entries that an earlier process has written during an upgrade.
const SECOND_SEARCH_AFTER: Duration = Duration::from_secs(30);

/// Largest file that a worker reads itself, if the kernel has it in memory: its checksum takes less than 0.1 ms.
const READ_NOW_BYTES_MAX: u64 = 128 << 10;

/// Locks of operations on files; each name belongs to one.
const FILE_LOCKS: usize = 16;

/// Cache on disk, if one is configured. It outlives configurations.
pub struct DiskStore {
    current: RwLock<Option<Arc<DiskCache>>>,
    /// True while there is a directory: without one, no request takes the lock.
    is_on: AtomicBool,
    counters: Arc<DiskCounters>,
    log: ServerLog,
    trouble: Arc<Trouble>,
}

/// Counters of the disk cache.
#[derive(Debug, Default)]
pub struct DiskCounters {
    hits: AtomicU64,
    damaged: AtomicU64,
    unwritten: AtomicU64,
    evictions: AtomicU64,
}

/// State of the disk cache, for operators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Number of entries.
    pub entries: usize,
    /// Size of their files.
    pub bytes: u64,
    /// Responses served from disk.
    pub hits: u64,
    /// Entries dropped because they were incomplete or changed.
    pub damaged: u64,
    /// Responses that were not written: the disk was full, failed or was too slow.
    pub unwritten: u64,
    /// Entries evicted to keep the limits.
    pub evictions: u64,
}

/// A cache in a directory.
pub struct DiskCache {
    files: EntryFiles,
    index: Mutex<Index>,
    file_locks: [Mutex<()>; FILE_LOCKS],
    unwritten_bytes: AtomicU64,
    /// Set in a process that another one has replaced: it writes nothing more.
    is_frozen: AtomicBool,
    paused_until: Mutex<Option<Instant>>,
    counters: Arc<DiskCounters>,
    trouble: Arc<Trouble>,
}

/// Entry that was read from disk.
pub struct DiskEntry {
    /// Properties of the response, as they were written.
    pub meta: Vec<u8>,
    /// Content of the response.
    pub content: Bytes,
    version: EntryVersion,
}

/// Test of keys and labels. Owned, because entries that a search finds later are tested, too.
pub type EntryTest = Arc<dyn Fn(&[u8], &[u8]) -> bool + Send + Sync>;

/// Texts by which an entry is found and removed.
#[derive(Clone, Copy, Debug)]
pub struct EntryText<'a> {
    /// Key. No two entries have the same.
    pub key: &'a [u8],
    /// Further text for tests of [`DiskCache::remove_matching`], such as tags.
    pub labels: &'a [u8],
}

/// Duty to write an entry. The entry is not in the cache before.
pub struct PendingWrite {
    cache: Arc<DiskCache>,
    name: EntryName,
    version: EntryVersion,
    bytes: u64,
}

impl DiskStore {
    /// Creates a store without a directory.
    pub fn new(log: ServerLog) -> Arc<Self> {
        let trouble = Arc::new(Trouble::new(log.clone(), HELP));
        Arc::new(Self {
            current: RwLock::default(),
            is_on: AtomicBool::new(false),
            counters: Arc::default(),
            log,
            trouble,
        })
    }

    /// Opens the configured directory, or changes the limits of the open one.
    ///
    /// # Errors
    /// The directory cannot be created or opened, or belongs to another user.
    pub fn apply(&self, config: Option<&DiskCacheConfig>) -> io::Result<()> {
        let current = self.get();
        let Some(config) = config else {
            self.set(None);
            return Ok(());
        };
        if let Some(current) = current.filter(|current| *current.files.path() == config.directory) {
            current.set_limits(config);
            return Ok(());
        }
        let cache = DiskCache::open(config, Arc::clone(&self.counters), Arc::clone(&self.trouble))?;
        cache.search_in_background(self.log.clone())?;
        self.set(Some(cache));
        Ok(())
    }

    /// True if there is a directory.
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Cache of the configured directory.
    pub fn get(&self) -> Option<Arc<DiskCache>> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, cache: Option<Arc<DiskCache>>) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        self.is_on.store(cache.is_some(), Ordering::Relaxed);
        *current = cache;
    }

    /// Writes nothing more: another process uses the directory from now on.
    pub fn freeze(&self) {
        if let Some(cache) = self.get() {
            cache.is_frozen.store(true, Ordering::Relaxed);
        }
    }

    /// State for operators; `None` without a directory.
    pub fn usage(&self) -> Option<DiskUsage> {
        let cache = self.get()?;
        let (entries, bytes) = cache.index().usage();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let DiskCounters { hits, damaged, unwritten, evictions } = &*self.counters;
        Some(DiskUsage {
            entries,
            bytes,
            hits: count(hits),
            damaged: count(damaged),
            unwritten: count(unwritten),
            evictions: count(evictions),
        })
    }
}

impl DiskCache {
    fn open(config: &DiskCacheConfig, counters: Arc<DiskCounters>, trouble: Arc<Trouble>) -> io::Result<Arc<Self>> {
        let files = EntryFiles::open(&config.directory)?;
        Ok(Arc::new(Self {
            files,
            index: Mutex::new(Index::new(config)),
            file_locks: Default::default(),
            unwritten_bytes: AtomicU64::new(0),
            is_frozen: AtomicBool::new(false),
            paused_until: Mutex::default(),
            counters,
            trouble,
        }))
    }

    /// Looks for entries in a thread of its own, and once more for those that an earlier process writes meanwhile.
    fn search_in_background(self: &Arc<Self>, log: ServerLog) -> io::Result<()> {
        let cache = Arc::downgrade(self);
        let search = move || {
            for pause in [Duration::ZERO, SECOND_SEARCH_AFTER] {
                std::thread::sleep(pause);
                let Some(cache) = cache.upgrade() else { return };
                let began = Instant::now();
                cache.search();
                if !pause.is_zero() {
                    cache.index().on_searched();
                }
                let (entries, bytes) = cache.index().usage();
                log.info(event(
                    "disk cache searched",
                    &[("entries", &entries), ("bytes", &bytes), ("milliseconds", &began.elapsed().as_millis())],
                ));
            }
        };
        std::thread::Builder::new().name("disk-cache".to_owned()).spawn(search).map(drop)
    }

    /// Adds entries of the directory that are not known yet, and removes what is not an entry.
    fn search(self: &Arc<Self>) {
        let _ = self.files.each(&mut |name, file| {
            if self.is_frozen.load(Ordering::Relaxed) {
                return;
            }
            if self.index().knows(name) {
                return;
            }
            let known = entry::read_text(&file);
            let _lock = self.lock_files(name);
            match known {
                Ok((key, labels, bytes)) => {
                    let text = EntryText { key: &key, labels: &labels };
                    let added = self.index().add_found(name, text, bytes);
                    if !added {
                        let _ = self.files.remove(name);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    self.counters.damaged.fetch_add(1, Ordering::Relaxed);
                    if !self.index().knows(name) {
                        let _ = self.files.remove(name);
                    }
                }
                // A later search may read it.
                Err(_) => {}
            }
        });
        self.evict();
    }

    /// Looks for an entry, without a system call, and returns the size of its file. Counts as a use.
    pub fn find(&self, name: EntryName) -> Option<u64> {
        self.index().find(name)
    }

    /// Reads an entry of this size, if that needs only what the kernel has in memory. `None` leaves it to [`Self::read`].
    pub fn read_now(&self, name: EntryName, key: &[u8], file_bytes: u64) -> Option<DiskEntry> {
        let file_bytes = usize::try_from(file_bytes).ok().filter(|bytes| *bytes as u64 <= READ_NOW_BYTES_MAX)?;
        let version = self.index().version(name)?;
        let entry = entry_of(&self.files.read_now(name, file_bytes)?, key).ok()?;
        Some(DiskEntry { meta: entry.meta, content: entry.content, version })
    }

    /// Reads an entry, and drops it if it is damaged or another key's. A file that another process has replaced with a
    /// larger one than `file_bytes_max` is not read. Waits for the disk.
    pub fn read(&self, name: EntryName, key: &[u8], file_bytes_max: u64) -> Option<DiskEntry> {
        let version = self.index().version(name)?;
        let read = self.files.open_entry(name).and_then(|file| read_file(&file, key, file_bytes_max));
        match read {
            Ok(entry) => Some(DiskEntry { meta: entry.meta, content: entry.content, version }),
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => None,
            Err(error) => {
                if error.kind() == io::ErrorKind::InvalidData {
                    self.counters.damaged.fetch_add(1, Ordering::Relaxed);
                }
                self.remove_version(name, version);
                None
            }
        }
    }

    /// True if an entry that was read is still in the cache, and counts a hit then.
    pub fn is_current(&self, name: EntryName, entry: &DiskEntry) -> bool {
        let is_current = self.index().version(name) == Some(entry.version);
        self.counters.hits.fetch_add(is_current.into(), Ordering::Relaxed);
        is_current
    }

    /// Takes an older entry out of the cache, and returns the duty to write a new one. `None` if that is not possible at
    /// present; then the older entry must be [removed](Self::remove).
    pub fn begin_write(self: &Arc<Self>, name: EntryName, text: EntryText<'_>, bytes: usize) -> Option<PendingWrite> {
        let bytes = ((bytes + text.key.len() + text.labels.len()) as u64).max(UNWRITTEN_BYTES_MIN);
        let is_paused = || {
            let paused_until = *self.paused_until.lock().unwrap_or_else(PoisonError::into_inner);
            paused_until.is_some_and(|until| Instant::now() < until)
        };
        let has_room = || {
            let more = |held: u64| (held + bytes <= UNWRITTEN_BYTES_MAX).then_some(held + bytes);
            self.unwritten_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
        };
        if self.is_frozen.load(Ordering::Relaxed) || is_paused() || !has_room() {
            self.counters.unwritten.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let version = self.index().begin_write(name, text);
        Some(PendingWrite { cache: Arc::clone(self), name, version, bytes })
    }

    /// Takes an entry out of the cache. Returns whether [`Self::remove_files`] must remove its file.
    pub fn remove(&self, name: EntryName) -> bool {
        // Once another process uses the directory, this one does not know all files.
        self.index().remove(name) || self.is_frozen.load(Ordering::Relaxed)
    }

    /// Removes the files of entries that are not in the cache any more. Waits for the disk.
    pub fn remove_files(&self, names: &[EntryName]) {
        for name in names {
            let _lock = self.lock_files(*name);
            if !self.index().knows(*name) {
                // Another process may have removed it.
                let _ = self.files.remove(*name);
            }
            self.index().on_file_removed(*name);
        }
    }

    /// Removes all entries that match, and those that a search finds later; returns their keys. Waits for the disk.
    pub fn remove_matching(&self, test: &EntryTest) -> Vec<Box<[u8]>> {
        let removed = self.index().remove_matching(test);
        let (names, keys): (Vec<_>, Vec<_>) = removed.into_iter().unzip();
        self.remove_files(&names);
        keys
    }

    fn remove_version(&self, name: EntryName, version: EntryVersion) {
        if self.index().remove_version(name, version) {
            self.remove_files(&[name]);
        }
    }

    fn set_limits(&self, config: &DiskCacheConfig) {
        self.index().set_limits(config);
        // Evicts with the next write.
    }

    /// Removes entries until the limits are kept.
    fn evict(&self) {
        let evicted = self.index().evict();
        self.counters.evictions.fetch_add(evicted.len() as u64, Ordering::Relaxed);
        self.remove_files(&evicted);
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        // No update is left half done by a panic.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_files(&self, name: EntryName) -> MutexGuard<'_, ()> {
        self.file_locks[name.shard() % FILE_LOCKS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingWrite {
    /// Writes the entry. Waits for the disk.
    pub fn write(self, text: EntryText<'_>, meta: &[u8], content: &[u8]) {
        let Self { cache, name, version, .. } = &self;
        let parts = EntryParts { text, meta, content };
        let result = cache.files.write_temporary(*name, &parts).and_then(|temporary| {
            let _lock = cache.lock_files(*name);
            let is_wanted = !cache.is_frozen.load(Ordering::Relaxed) && cache.index().is_pending(*name, *version);
            if !is_wanted {
                return Ok(());
            }
            temporary.rename()?;
            cache.index().on_written(*name, *version, text, parts.file_bytes());
            Ok(())
        });
        if let Err(error) = result {
            cache.counters.unwritten.fetch_add(1, Ordering::Relaxed);
            cache.trouble.tell(event("writing to the disk cache failed", &[("reason", &error)]));
            let until = Instant::now() + PAUSE_AFTER_ERROR;
            *cache.paused_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
        }
        cache.evict();
        // Of a failed write, the older file must go, too.
        if cache.index().remove_pending(*name, *version) {
            cache.remove_files(&[*name]);
        }
    }
}

impl Drop for PendingWrite {
    fn drop(&mut self) {
        self.cache.unwritten_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl fmt::Debug for DiskStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let directory: Option<PathBuf> = self.get().map(|cache| cache.files.path().clone());
        f.debug_struct("DiskStore").field("directory", &directory).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;
    use std::process::{Command, Stdio};

    use super::*;

    fn config(directory: &Path, bytes_max: u64, files_max: usize) -> DiskCacheConfig {
        DiskCacheConfig { directory: directory.to_owned(), bytes_max, files_max }
    }

    fn open(directory: &Path) -> Arc<DiskCache> {
        open_with(&config(directory, 1 << 30, 1_000))
    }

    fn open_with(config: &DiskCacheConfig) -> Arc<DiskCache> {
        let log = ServerLog::stderr(crate::config::LogLevel::Error);
        let cache = DiskCache::open(config, Arc::default(), Arc::new(Trouble::new(log, HELP))).unwrap();
        cache.search();
        cache
    }

    fn text(key: &[u8]) -> EntryText<'_> {
        EntryText { key, labels: b"" }
    }

    fn put(cache: &Arc<DiskCache>, key: &str, content: &str) {
        let name = EntryName::of(key.as_bytes());
        let text = text(key.as_bytes());
        cache.begin_write(name, text, content.len()).unwrap().write(text, b"meta", content.as_bytes());
    }

    fn get(cache: &DiskCache, key: &str) -> Option<String> {
        let name = EntryName::of(key.as_bytes());
        let file_bytes = cache.find(name)?;
        // The kernel has it in memory, or not; but it is the same.
        let at_once = cache.read_now(name, key.as_bytes(), file_bytes);
        let entry = cache.read(name, key.as_bytes(), u64::MAX);
        if let Some(at_once) = at_once {
            let entry = entry.as_ref().expect("no damaged entry is read at once");
            assert_eq!((&at_once.meta, &at_once.content), (&entry.meta, &entry.content));
        }
        let entry = entry?;
        assert_eq!(entry.meta, b"meta");
        cache.is_current(name, &entry).then(|| String::from_utf8(entry.content.to_vec()).unwrap())
    }

    /// All files below a directory.
    fn files(directory: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        let files =
            entries.flat_map(|path| if path.is_dir() && !path.is_symlink() { files(&path) } else { vec![path] });
        files.collect()
    }

    #[test]
    fn entries_survive_the_process() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cache");
        let cache = open(&path);
        put(&cache, "a", "one");
        put(&cache, "b", "two");
        put(&cache, "b", "three");
        assert_eq!((get(&cache, "a").as_deref(), get(&cache, "b").as_deref()), (Some("one"), Some("three")));
        let again = open(&path);
        assert_eq!((get(&again, "a").as_deref(), get(&again, "b").as_deref()), (Some("one"), Some("three")));
        assert_eq!(get(&again, "c"), None);
        assert_eq!(again.index().usage().0, 2);
        for file in files(&path) {
            assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
            assert_eq!(std::fs::metadata(file.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
        }
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn removed_entries_stay_removed() {
        let directory = tempfile::tempdir().unwrap();
        let cache = open(directory.path());
        for key in ["a1", "a2", "b1"] {
            put(&cache, key, key);
        }
        let name = EntryName::of(b"b1");
        assert!(cache.remove(name));
        assert_eq!(get(&cache, "b1"), None);
        assert!(cache.remove(name), "the file is not removed yet");
        cache.remove_files(&[name]);
        let starts_with_a: EntryTest = Arc::new(|key, _| key.starts_with(b"a"));
        assert_eq!(cache.remove_matching(&starts_with_a).len(), 2);
        assert_eq!(open(directory.path()).index().usage().0, 0);
        assert!(files(directory.path()).is_empty());
    }

    #[test]
    fn a_removal_during_the_search_is_obeyed() {
        let directory = tempfile::tempdir().unwrap();
        let cache = open(directory.path());
        put(&cache, "a", "one");
        put(&cache, "b", "two");
        let log = ServerLog::stderr(crate::config::LogLevel::Error);
        let limits = config(directory.path(), 1 << 30, 1_000);
        let other = DiskCache::open(&limits, Arc::default(), Arc::new(Trouble::new(log, HELP))).unwrap();
        let is_a: EntryTest = Arc::new(|key, _| key == b"a");
        other.remove_matching(&is_a);
        other.search();
        assert_eq!((get(&other, "a"), get(&other, "b").as_deref()), (None, Some("two")));
        // After the search, a new entry of the same key is welcome.
        put(&other, "a", "three");
        other.search();
        assert_eq!(get(&other, "a").as_deref(), Some("three"));
    }

    /// A removal costs a thread's work only if it may find a file.
    #[test]
    fn only_files_that_may_exist_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let cache = open(directory.path());
        let name = EntryName::of(b"a");
        assert!(cache.remove(name), "a search may still find it");
        cache.index().on_searched();
        assert!(!cache.remove(name));
        let pending = cache.begin_write(name, text(b"a"), 3).unwrap();
        assert!(cache.remove(name), "being written");
        cache.remove_files(&[name]);
        drop(pending);
        assert!(!cache.remove(name));
        put(&cache, "a", "one");
        assert!(cache.remove(name));
        cache.remove_files(&[name]);
        assert!(!cache.remove(name));
        cache.is_frozen.store(true, Ordering::Relaxed);
        assert!(cache.remove(name), "another process may have written it");
    }

    #[test]
    fn pending_writes_are_bounded_in_bytes_and_number() {
        let directory = tempfile::tempdir().unwrap();
        let cache = open(directory.path());
        let begin = |bytes: usize| {
            let key = fastrand::u64(..).to_string();
            cache.begin_write(EntryName::of(key.as_bytes()), text(key.as_bytes()), bytes)
        };
        let small: Vec<_> = (0..300).map_while(|_| begin(1)).collect();
        assert_eq!(small.len(), 256);
        drop(small);
        assert!(begin(UNWRITTEN_BYTES_MAX as usize).is_none());
        // Keys count, too.
        let large = begin(UNWRITTEN_BYTES_MAX as usize / 2 - 100).unwrap();
        let small: Vec<_> = (0..300).map_while(|_| begin(1)).collect();
        assert_eq!(small.len(), 128);
        drop(large);
        assert!(begin(1).is_some());
    }

    #[test]
    fn a_file_that_has_grown_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let (old, new) = (open(directory.path()), open(directory.path()));
        put(&old, "a", "one");
        let name = EntryName::of(b"a");
        let file_bytes = old.find(name).unwrap();
        put(&new, "a", "a longer one");
        assert!(old.read_now(name, b"a", file_bytes).is_none());
        assert!(old.read(name, b"a", file_bytes).is_none());
        assert_eq!(get(&new, "a").as_deref(), Some("a longer one"));
    }

    #[test]
    fn a_write_that_was_overtaken_is_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let cache = open(directory.path());
        let name = EntryName::of(b"a");
        let (old, new) =
            (cache.begin_write(name, text(b"a"), 3).unwrap(), cache.begin_write(name, text(b"a"), 3).unwrap());
        new.write(text(b"a"), b"meta", b"new");
        old.write(text(b"a"), b"meta", b"old");
        assert_eq!(get(&cache, "a").as_deref(), Some("new"));
        let pending = cache.begin_write(name, text(b"a"), 3).unwrap();
        cache.remove(name);
        cache.remove_files(&[name]);
        pending.write(text(b"a"), b"meta", b"old");
        assert_eq!(get(&cache, "a"), None);
        assert!(files(directory.path()).is_empty());
    }

    #[test]
    fn the_least_recently_used_are_evicted() {
        let directory = tempfile::tempdir().unwrap();
        let cache = open_with(&config(directory.path(), 1 << 30, 3));
        for key in ["a", "b", "c"] {
            put(&cache, key, key);
        }
        get(&cache, "a");
        put(&cache, "d", "d");
        assert_eq!(["a", "b", "c", "d"].map(|key| get(&cache, key).is_some()), [true, false, true, true]);
        let by_bytes = tempfile::tempdir().unwrap();
        let cache = open_with(&config(by_bytes.path(), 10_000, 1_000));
        for key in 0..100 {
            put(&cache, &key.to_string(), &"x".repeat(1_000));
        }
        let total: u64 = files(by_bytes.path()).iter().map(|file| std::fs::metadata(file).unwrap().len()).sum();
        assert!(total <= 10_000 && total > 5_000, "{total}");
        assert_eq!(cache.index().usage().1, total);
        // Too large for all.
        put(&cache, "large", &"x".repeat(20_000));
        assert_eq!(get(&cache, "large"), None);
        // Smaller limits apply after a restart, too.
        assert!(open_with(&config(by_bytes.path(), 3_000, 1_000)).index().usage().1 <= 3_000);
    }

    #[test]
    fn damaged_files_are_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let text = "content of some length";
        let length = {
            let cache = open(directory.path());
            put(&cache, "a", text);
            std::fs::read(&files(directory.path())[0]).unwrap().len()
        };
        // Each byte, and each length.
        for at in 0..2 * length {
            let cache = open(directory.path());
            put(&cache, "a", text);
            let file = files(directory.path()).remove(0);
            let mut bytes = std::fs::read(&file).unwrap();
            if at < length {
                bytes[at] ^= 1;
            } else {
                bytes.truncate(at - length);
            }
            std::fs::write(&file, &bytes).unwrap();
            assert_eq!(get(&cache, "a"), None, "{at}: in a running process");
            std::fs::write(&file, &bytes).unwrap();
            assert_eq!(get(&open(directory.path()), "a"), None, "{at}: after a restart");
            assert!(files(directory.path()).is_empty(), "{at}");
        }
        let cache = open(directory.path());
        put(&cache, "a", text);
        let file = files(directory.path()).remove(0);
        let longer = [std::fs::read(&file).unwrap(), b"x".to_vec()].concat();
        std::fs::write(&file, longer).unwrap();
        assert_eq!(get(&cache, "a"), None, "longer than it was");
    }

    #[test]
    fn links_are_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let (path, other) = (directory.path().join("cache"), directory.path().join("other"));
        let cache = open(&path);
        put(&cache, "a", "one");
        let file = files(&path).remove(0);
        std::fs::rename(&file, &other).unwrap();
        symlink(&other, &file).unwrap();
        assert_eq!(get(&cache, "a"), None);
        symlink(&other, &file).unwrap();
        assert_eq!(get(&open(&path), "a"), None);
        // A directory of entries that is a link.
        let (inner, elsewhere) = (file.parent().unwrap(), directory.path().join("elsewhere"));
        let _ = std::fs::remove_file(&file);
        std::fs::remove_dir(inner).unwrap();
        std::fs::create_dir(&elsewhere).unwrap();
        symlink(&elsewhere, inner).unwrap();
        put(&open(&path), "a", "two");
        assert!(files(&elsewhere).is_empty());
    }

    #[test]
    fn leftovers_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let cache = open(directory.path());
        put(&cache, "a", "one");
        let inner = files(directory.path())[0].parent().unwrap().to_owned();
        for leftover in ["tmp-999999999-1", "tmp-x", "unknown"] {
            std::fs::write(inner.join(leftover), "half").unwrap();
        }
        let cache = open(directory.path());
        assert_eq!((files(directory.path()).len(), get(&cache, "a").as_deref()), (2, Some("one")));
        assert!(inner.join("unknown").exists(), "files that are not the cache's stay");
    }

    /// A process that writes all the time is killed at random (kill -9); all entries that it leaves are whole.
    #[test]
    fn a_killed_process_leaves_whole_entries() {
        const VARIABLE: &str = "TAILCOAT_TEST_DISK_CACHE";
        let content = |round: usize| format!("{round};").repeat(500 + round % 1_000);
        if let Some(path) = std::env::var_os(VARIABLE) {
            let cache = open(Path::new(&path));
            for round in 0.. {
                put(&cache, &(round % 10).to_string(), &content(round));
            }
        }
        let directory = tempfile::tempdir().unwrap();
        let mut found = 0;
        for _ in 0..40 {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "disk_cache::tests::a_killed_process_leaves_whole_entries"]);
            command.env(VARIABLE, directory.path()).stdout(Stdio::null()).stderr(Stdio::null());
            let mut child = command.spawn().unwrap();
            while files(directory.path()).is_empty() && child.try_wait().unwrap().is_none() {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_micros(fastrand::u64(0..20_000)));
            child.kill().unwrap();
            child.wait().unwrap();
            let cache = open(directory.path());
            for key in 0..10_usize {
                let Some(text) = get(&cache, &key.to_string()) else { continue };
                let round: usize = text.split(';').next().unwrap().parse().unwrap();
                assert!(text == content(round) && round % 10 == key, "{key}: {round}");
                found += 1;
            }
            assert_eq!(cache.counters.damaged.load(Ordering::Relaxed), 0, "a rename shows no half of an entry");
            assert!(files(directory.path()).len() <= 10, "no leftover stays");
        }
        assert!(found > 0);
    }

    #[test]
    fn another_process_shares_the_directory() {
        let directory = tempfile::tempdir().unwrap();
        let (old, new) = (open(directory.path()), open(directory.path()));
        put(&old, "a", "one");
        assert_eq!(get(&new, "a"), None, "not known yet");
        new.search();
        assert_eq!(get(&new, "a").as_deref(), Some("one"));
        put(&new, "a", "two");
        assert_eq!(get(&old, "a").as_deref(), Some("two"), "the file is whole, from either process");
        new.remove_matching(&(Arc::new(|_: &[u8], _: &[u8]| true) as EntryTest));
        assert_eq!(get(&old, "a"), None);
        old.is_frozen.store(true, Ordering::Relaxed);
        assert!(old.begin_write(EntryName::of(b"b"), text(b"b"), 1).is_none());
    }
}
