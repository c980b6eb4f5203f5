//! Cache on disk: the second tier under the memory of the response cache. Entries survive restarts and `kill -9`.
//!
//! An entry is a file with checksums over all of it. It is written under a temporary name and renamed, so that other
//! names never show half of it; after a crash of the machine, the checksums find what the disk has lost. A process checks
//! the content of a file once, and again if the file has changed. An index in memory knows all entries, so that a miss
//! costs no system call. A worker reads small entries that the kernel has in memory. All other work with files runs on
//! threads that may wait for a disk.

mod entry;
mod files;
mod index;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::io::Errno;

pub use self::entry::EntryName;
pub(crate) use self::entry::{EntryParts, read_entry};
use self::entry::{EntryTexts, damaged};
use self::files::{EntryFiles, read_texts};
pub use self::index::FileHolder;
use self::index::{CheckedFile, EntryVersion, EvictedEntry, Index};
use crate::config::DiskCacheConfig;
use crate::log::{ServerLog, Trouble, event};
use crate::object_cache::OpenFile;

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

/// Longest content that a worker reads and checks itself, if the kernel has it in memory: that takes less than 0.1 ms.
const READ_NOW_BYTES_MAX: u64 = 256 << 10;

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
    /// Responses that were not written: they were too large, or the disk was full, failed or was too slow.
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

/// Entry whose file is open. Its texts were read and checked, but not its content.
pub struct DiskEntry {
    name: EntryName,
    file: Arc<OpenFile>,
    texts: EntryTexts,
    version: EntryVersion,
    /// Version of the file if its content was checked.
    checked: Option<CheckedFile>,
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

    /// Counts a hit of an object that keeps its file open.
    pub fn count_hit(&self) {
        self.counters.hits.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an entry whose file was found to have changed while an object kept it open.
    pub fn count_damaged(&self) {
        self.counters.damaged.fetch_add(1, Ordering::Relaxed);
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
            let known = read_texts(&file);
            let _lock = self.lock_files(name);
            match known {
                Ok((texts, bytes)) => {
                    let text = EntryText { key: texts.key(), labels: texts.labels() };
                    let added = self.index().add_found(name, text, bytes);
                    if !added {
                        let _ = self.files.remove(name);
                    }
                }
                Err(error) if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::Unsupported) => {
                    let is_damaged = error.kind() == io::ErrorKind::InvalidData;
                    self.counters.damaged.fetch_add(is_damaged.into(), Ordering::Relaxed);
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

    /// True if there is an entry. Makes no system call.
    pub fn has(&self, name: EntryName) -> bool {
        self.index().has(name)
    }

    /// Opens an entry, if that needs only what the kernel has in memory. Counts as a use. `None` leaves it to
    /// [`Self::open_entry`].
    pub fn open_now(&self, name: EntryName, key: &[u8]) -> Option<DiskEntry> {
        let (version, checked) = self.index().find(name)?;
        let (file, texts) = self.files.open_entry_now(name)?;
        (texts.key() == key).then(|| DiskEntry::new(name, file, texts, version, checked))
    }

    /// Opens an entry, and drops it if it is damaged or another key's. Waits for the disk.
    pub fn open_entry(&self, name: EntryName, key: &[u8]) -> Option<DiskEntry> {
        let (version, checked) = self.index().find(name)?;
        let opened = self.files.open_entry(name);
        match opened.and_then(|(file, texts)| if texts.key() == key { Ok((file, texts)) } else { Err(damaged()) }) {
            Ok((file, texts)) => Some(DiskEntry::new(name, file, texts, version, checked)),
            Err(error) => {
                self.on_unreadable(name, version, &error);
                None
            }
        }
    }

    /// Reads the content of an entry. Drops the entry if it is damaged. Waits for the disk.
    pub fn read_content(&self, entry: &DiskEntry) -> Option<Bytes> {
        let read = usize::try_from(entry.content_bytes()).map_err(|_| damaged()).and_then(|length| {
            let content = entry.file.read_bytes_at(length, 0)?;
            if entry.texts.is_of(&content) { Ok(content) } else { Err(damaged()) }
        });
        read.inspect_err(|error| self.on_unreadable(entry.name, entry.version, error)).ok()
    }

    /// Ends the reading of an entry: true if it is still in the cache. Notes that its content was checked, and the object that
    /// keeps the file open, if there is one. Without one, counts a hit.
    pub fn on_read(&self, entry: &DiskEntry, holder: Option<FileHolder>) -> bool {
        self.counters.hits.fetch_add(holder.is_none().into(), Ordering::Relaxed);
        let checked = CheckedFile::of(&entry.file.identity);
        self.index().on_read(entry.name, entry.version, checked, holder)
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

    /// Removes an entry that cannot be read.
    fn on_unreadable(&self, name: EntryName, version: EntryVersion, error: &io::Error) {
        const EXHAUSTED: [Errno; 3] = [Errno::MFILE, Errno::NFILE, Errno::NOMEM];
        if Errno::from_io_error(error).is_some_and(|error| EXHAUSTED.contains(&error)) {
            // The file may be whole.
            return;
        }
        if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) {
            self.counters.damaged.fetch_add(1, Ordering::Relaxed);
        }
        self.remove_version(name, version);
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
        self.remove_files(&evicted.iter().map(|entry| entry.name).collect::<Vec<_>>());
        // A file that stays open would still take space.
        evicted.iter().for_each(EvictedEntry::close);
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        // No update is left half done by a panic.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_files(&self, name: EntryName) -> MutexGuard<'_, ()> {
        self.file_locks[name.shard() % FILE_LOCKS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DiskEntry {
    fn new(
        name: EntryName,
        file: OpenFile,
        texts: EntryTexts,
        version: EntryVersion,
        checked: Option<CheckedFile>,
    ) -> Self {
        let checked = checked.filter(|checked| CheckedFile::of(&file.identity) == Some(*checked));
        Self { name, file: Arc::new(file), texts, version, checked }
    }

    /// Properties of the response, as they were written.
    pub fn meta(&self) -> &[u8] {
        self.texts.meta()
    }

    /// Length of the content.
    pub fn content_bytes(&self) -> u64 {
        self.texts.content_bytes
    }

    /// True if the content need not be read before the file is served: this process has checked the same version of the file.
    pub fn is_checked(&self) -> bool {
        self.checked.is_some()
    }

    /// Reads and checks the content, if it is short and the kernel has it in memory. `None`, also for a damaged one, leaves it
    /// to [`DiskCache::read_content`].
    pub fn content_now(&self) -> Option<Bytes> {
        let length = self.content_bytes();
        let mut content = Vec::new();
        let is_read = length <= READ_NOW_BYTES_MAX && self.file.append_now(0, length as usize, &mut content);
        (is_read && (self.is_checked() || self.texts.is_of(&content))).then(|| content.into())
    }

    /// File whose first bytes are the content.
    pub fn file(&self) -> &Arc<OpenFile> {
        &self.file
    }
}

impl PendingWrite {
    /// Writes the entry. Waits for the disk. All others would be evicted for an entry that is larger than the limit, so it is
    /// dropped.
    pub fn write(self, text: EntryText<'_>, meta: &[u8], content: &[u8]) {
        let Self { cache, name, version, .. } = &self;
        let parts = EntryParts { text, meta, content };
        if parts.file_bytes() > cache.index().bytes_max() {
            cache.counters.unwritten.fetch_add(1, Ordering::Relaxed);
            self.drop_failed();
            return;
        }
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
            // A directory in the place of one entry says nothing about the disk.
            if error.kind() != io::ErrorKind::IsADirectory {
                let until = Instant::now() + PAUSE_AFTER_ERROR;
                *cache.paused_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
            }
        }
        cache.evict();
        self.drop_failed();
    }

    /// Drops the entry, and the older file, if the write has failed.
    fn drop_failed(&self) {
        let is_failed = self.cache.index().remove_pending(self.name, self.version);
        if is_failed {
            self.cache.remove_files(&[self.name]);
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
