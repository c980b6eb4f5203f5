//! Cache that instances share: a tier below memory, in the store of the configuration.
//!
//! Workers hand jobs to the thread that talks to the store (`server/fleet/responses.rs` of the server) and wait for a response for
//! a stated time at most. While the store is away, no job is made. [`purges`] decides which responses may be served.

mod purges;
mod value;

use std::fmt;
use std::hash::BuildHasher;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use foldhash::fast::FixedState;
use tokio::sync::{mpsc, oneshot};

pub use self::purges::{CachePurge, FetchStamp};
use self::purges::{Outdated, PurgeHistory};
use crate::disk_cache::{EntryName, EntryText};
use crate::status::SharedCacheStatus;

/// Jobs that wait for the thread. Beyond it, responses are neither read nor written.
const JOBS_MAX: usize = 1_024;

/// Content that waits to be written.
const UNWRITTEN_BYTES_MAX: u64 = 16 << 20;

/// Failures in a row after which the store counts as away.
const FAILURES_MAX: u32 = 3;

/// Longest time for which a response is kept.
const KEPT_MAX: Duration = Duration::from_secs(86_400);

/// Shortest remaining lifetime of a response that is written.
const KEPT_MIN: Duration = Duration::from_secs(2);

/// Settings of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedCacheSettings {
    /// Longest time that a request waits for the store.
    pub timeout: Duration,
    /// Largest response that is stored, in bytes.
    pub response_bytes_max: u64,
    /// Time after which the position in the events is too old to serve by it.
    pub position_age_max: Duration,
}

/// Cache that instances share, if the configuration has one. It outlives configurations.
#[derive(Default)]
pub struct SharedCache {
    /// True while a thread takes jobs: without one, no request takes the lock.
    is_on: AtomicBool,
    inner: Mutex<Inner>,
    unwritten_bytes: AtomicU64,
    counters: Counters,
}

#[derive(Default)]
struct Inner {
    attached: Option<(SharedCacheSettings, mpsc::Sender<SharedJob>)>,
    history: PurgeHistory,
    /// Time of the latest read of events that found no further one.
    confirmed_at: Option<Instant>,
    /// Own clock less the engine's, in milliseconds.
    skew_ms: Option<i64>,
    failures: u32,
}

#[derive(Debug, Default)]
struct Counters {
    hits: AtomicU64,
    misses: AtomicU64,
    purged: AtomicU64,
    damaged: AtomicU64,
    timeouts: AtomicU64,
    errors: AtomicU64,
    written: AtomicU64,
    unwritten: AtomicU64,
}

/// Test whether a purge is for the response with these labels.
pub type PurgeTest = Arc<dyn Fn(&CachePurge, &[u8]) -> bool + Send + Sync>;

/// Job for the thread that talks to the store.
pub enum SharedJob {
    /// Read a value.
    Read(ReadJob),
    /// Write a value.
    Write(WriteJob),
    /// Remove the value of this name.
    Remove(String),
}

/// Read of a response.
pub struct ReadJob {
    key: Vec<u8>,
    test: PurgeTest,
    reply: oneshot::Sender<Option<SharedEntry>>,
}

/// Write of a response. It counts in the content that waits until it is dropped.
pub struct WriteJob {
    cache: Arc<SharedCache>,
    key: Vec<u8>,
    labels: Vec<u8>,
    meta: Vec<u8>,
    content: Bytes,
    stamp: FetchStamp,
    /// Time for which the response is kept.
    pub kept: Duration,
    bytes: u64,
}

/// Response that was read.
pub struct SharedEntry {
    /// Properties of the response, as they were written.
    pub meta: Vec<u8>,
    /// Content of the response.
    pub content: Bytes,
    /// Own clock less the engine's, in milliseconds: properties have times of the engine.
    pub skew_ms: i64,
    labels: Vec<u8>,
    stamp: FetchStamp,
    /// Number of changes of the history when it was checked.
    checked_at: u64,
}

/// Texts of a response to write.
pub struct SharedText {
    /// Key. No two responses have the same.
    pub key: Vec<u8>,
    /// Tags, for purges.
    pub labels: Vec<u8>,
}

impl SharedCache {
    /// Begins to make jobs, for a thread that takes them. A thread before gets no more.
    pub fn attach(&self, settings: SharedCacheSettings) -> mpsc::Receiver<SharedJob> {
        let (sender, receiver) = mpsc::channel(JOBS_MAX);
        let mut inner = self.inner();
        // The next store may be another one.
        *inner = Inner { attached: Some((settings, sender)), ..Inner::default() };
        self.is_on.store(true, Ordering::Relaxed);
        receiver
    }

    /// Makes no more jobs.
    pub fn detach(&self) {
        self.is_on.store(false, Ordering::Relaxed);
        *self.inner() = Inner::default();
    }

    /// True if the configuration has a shared cache.
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// True if a read may find something: the store responds, and this instance knows all purges.
    pub fn is_usable(&self) -> bool {
        self.is_on() && self.inner().is_usable()
    }

    /// Stamp of a fetch that begins now.
    pub fn stamp(&self) -> Option<FetchStamp> {
        if !self.is_on() {
            return None;
        }
        let inner = self.inner();
        let (epoch, next) = inner.history.position()?;
        Some(FetchStamp { epoch: Arc::clone(epoch), next, engine_ms: engine_ms(inner.skew_ms?) })
    }

    /// Own clock less the engine's, in milliseconds, once known.
    pub fn skew_ms(&self) -> Option<i64> {
        self.inner().skew_ms
    }

    /// Reads the response with this key, unless a purge is for it. Waits no longer than the settings say.
    pub async fn read(&self, key: Vec<u8>, test: PurgeTest) -> Option<SharedEntry> {
        let (reply, receiver) = oneshot::channel();
        let timeout = {
            let inner = self.inner();
            let (settings, sender) = inner.attached.as_ref().filter(|_| inner.is_usable())?;
            // Too many wait.
            sender.try_send(SharedJob::Read(ReadJob { key, test, reply })).ok()?;
            settings.timeout
        };
        match tokio::time::timeout(timeout, receiver).await {
            Ok(reply) => reply.ok().flatten(),
            Err(_) => {
                self.counters.timeouts.fetch_add(1, Ordering::Relaxed);
                self.on_result(false);
                None
            }
        }
    }

    /// True if no purge came since a response was read. Counts a hit then.
    pub fn is_current(&self, key: &[u8], entry: &SharedEntry, test: &PurgeTest) -> bool {
        let is_current = self.inner().history.changes() == entry.checked_at
            || self.check(key, &entry.stamp, &entry.labels, test).is_ok();
        let counter = if is_current { &self.counters.hits } else { &self.counters.purged };
        counter.fetch_add(1, Ordering::Relaxed);
        is_current
    }

    fn check(&self, key: &[u8], stamp: &FetchStamp, labels: &[u8], test: &PurgeTest) -> Result<u64, Outdated> {
        let (purges, changes) = {
            let inner = self.inner();
            let now_ms = engine_ms(inner.skew_ms.unwrap_or(0));
            (inner.history.since(stamp, hash_of(key), now_ms)?, inner.history.changes())
        };
        match purges.iter().any(|purge| test(purge, labels)) {
            true => Err(Outdated::Removed),
            false => Ok(changes),
        }
    }

    /// Writes a response that stays fresh for this time, without waiting.
    pub fn write(
        self: &Arc<Self>,
        text: SharedText,
        meta: Vec<u8>,
        content: Bytes,
        stamp: FetchStamp,
        fresh_for: Duration,
    ) {
        let SharedText { key, labels } = text;
        let bytes = (key.len() + labels.len() + meta.len() + content.len()) as u64;
        let sender = {
            let inner = self.inner();
            let Some((settings, sender)) = inner.attached.as_ref().filter(|_| inner.is_usable()) else { return };
            if bytes > settings.response_bytes_max || fresh_for < KEPT_MIN {
                return;
            }
            sender.clone()
        };
        let more = |held: u64| (held + bytes <= UNWRITTEN_BYTES_MAX).then_some(held + bytes);
        if self.unwritten_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
            self.on_unwritten();
            return;
        }
        let (cache, kept) = (Arc::clone(self), fresh_for.min(KEPT_MAX));
        let job = WriteJob { cache, key, labels, meta, content, stamp, kept, bytes };
        if sender.try_send(SharedJob::Write(job)).is_err() {
            self.on_unwritten();
        }
    }

    /// Removes a response that this instance has found to be outdated. Others may have it for its lifetime, as in memory.
    pub fn remove(&self, key: &[u8]) {
        if !self.is_on() {
            return;
        }
        let mut inner = self.inner();
        let now_ms = engine_ms(inner.skew_ms.unwrap_or(0));
        inner.history.on_removed(hash_of(key), now_ms);
        if let Some((_, sender)) = inner.attached.as_ref().filter(|_| inner.is_usable()) {
            // The history keeps it from being served here.
            let _ = sender.try_send(SharedJob::Remove(name_of(key)));
        }
    }

    /// An operator has given this purge to this instance. It must be given to the store next.
    pub fn on_given(&self, purge: CachePurge) {
        if self.is_on() {
            self.inner().history.on_given(purge);
        }
    }

    /// The oldest purges that were given here, as many as this, wait for the store now.
    pub fn on_handed(&self, purges: usize) {
        let mut inner = self.inner();
        (0..purges).for_each(|_| inner.history.on_handed());
    }

    /// Takes a purge of another instance; `next` is the position after it.
    pub fn on_heard(&self, next: u64, purge: CachePurge) {
        self.inner().history.on_heard(next, purge);
    }

    /// Events were missed.
    pub fn on_missed(&self) {
        self.inner().history.on_missed();
    }

    /// Takes the position in the events, unless it is not known. `is_published`: no order of this instance waits for the store.
    /// `is_at_end`: the store has just been read, and has no further event.
    pub fn set_position(
        &self,
        position: Option<(&str, u64)>,
        skew_ms: Option<i64>,
        is_published: bool,
        is_at_end: bool,
    ) {
        let mut inner = self.inner();
        let Some((epoch, next)) = position else {
            inner.confirmed_at = None;
            return;
        };
        inner.history.set_position(epoch, next);
        inner.skew_ms = skew_ms;
        if is_published {
            inner.history.on_published(next);
        }
        if is_at_end {
            inner.confirmed_at = Some(Instant::now());
        }
    }

    /// Counts an operation. After some failures in a row, requests do not wait for the store until one succeeds.
    pub fn on_result(&self, is_ok: bool) {
        let failures = &mut self.inner().failures;
        *failures = if is_ok { 0 } else { failures.saturating_add(1) };
    }

    /// Counts an operation that failed.
    pub fn on_error(&self) {
        self.counters.errors.fetch_add(1, Ordering::Relaxed);
        self.on_result(false);
    }

    /// Counts a response that the store did not have.
    pub fn on_miss(&self) {
        self.counters.misses.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a response that was written.
    pub fn on_written(&self) {
        self.counters.written.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a response that was not written.
    pub fn on_unwritten(&self) {
        self.counters.unwritten.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a value that is not whole.
    pub fn on_damaged(&self) {
        self.counters.damaged.fetch_add(1, Ordering::Relaxed);
    }

    /// True if the store counts as away: the thread must find out when it is back.
    pub fn is_away(&self) -> bool {
        self.inner().failures >= FAILURES_MAX
    }

    /// State for operators; `None` if the configuration has no shared cache.
    pub fn usage(&self) -> Option<SharedCacheStatus> {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { hits, misses, purged, damaged, timeouts, errors, written, unwritten } = &self.counters;
        self.is_on().then(|| SharedCacheStatus {
            is_used: self.is_usable(),
            hits: count(hits),
            misses: count(misses),
            purged: count(purged),
            damaged: count(damaged),
            timeouts: count(timeouts),
            errors: count(errors),
            written: count(written),
            unwritten: count(unwritten),
        })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // No update is left half done by a panic.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn is_usable(&self) -> bool {
        let Some((settings, _)) = &self.attached else { return false };
        let is_confirmed = self.confirmed_at.is_some_and(|at| at.elapsed() <= settings.position_age_max);
        is_confirmed && self.skew_ms.is_some() && self.history.position().is_some() && self.failures < FAILURES_MAX
    }
}

impl ReadJob {
    /// Name of the value in the store.
    pub fn name(&self) -> String {
        name_of(&self.key)
    }

    /// True if no request waits for the response any more.
    pub fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }

    /// Takes the value, and gives the response to the request if it may be served.
    pub fn finish(self, cache: &SharedCache, value: Option<&[u8]>) {
        let Self { key, test, reply } = self;
        let Some(value) = value else { return cache.on_miss() };
        let Some(found) = value::read(value, &key) else { return cache.on_damaged() };
        let Some(skew_ms) = cache.skew_ms() else { return };
        match cache.check(&key, &found.stamp, &found.labels, &test) {
            Ok(checked_at) => {
                let value::ReadValue { stamp, labels, meta, content } = found;
                // The request may have gone.
                let _ = reply.send(Some(SharedEntry { meta, content, skew_ms, labels, stamp, checked_at }));
            }
            Err(Outdated::Unknown | Outdated::Removed) => _ = cache.counters.purged.fetch_add(1, Ordering::Relaxed),
        }
    }
}

impl WriteJob {
    /// Name of the value in the store.
    pub fn name(&self) -> String {
        name_of(&self.key)
    }

    /// The value.
    ///
    /// # Errors
    /// A text is too long.
    pub fn value(&self) -> io::Result<Vec<u8>> {
        value::write(&self.stamp, EntryText { key: &self.key, labels: &self.labels }, &self.meta, &self.content)
    }
}

impl Drop for WriteJob {
    fn drop(&mut self) {
        self.cache.unwritten_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl fmt::Debug for SharedCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedCache").field("usage", &self.usage()).finish_non_exhaustive()
    }
}

/// Name of a response's value in the store.
fn name_of(key: &[u8]) -> String {
    format!("responses/{}", EntryName::of(key).digits())
}

fn hash_of(key: &[u8]) -> u64 {
    FixedState::default().hash_one(key)
}

/// Time by the engine's clock, in milliseconds since 1970.
fn engine_ms(skew_ms: i64) -> u64 {
    let own_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64);
    own_ms.saturating_sub(skew_ms).max(0).unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache() -> (Arc<SharedCache>, mpsc::Receiver<SharedJob>) {
        let cache = Arc::new(SharedCache::default());
        let jobs = cache.attach(SharedCacheSettings {
            timeout: Duration::from_millis(20),
            response_bytes_max: 1_000,
            position_age_max: Duration::from_secs(60),
        });
        cache.set_position(Some(("a", 5)), Some(0), true, true);
        (cache, jobs)
    }

    fn test(url: &'static str) -> PurgeTest {
        Arc::new(move |purge, _| *purge == CachePurge::Url(url.to_owned()))
    }

    fn write(cache: &Arc<SharedCache>, content: &'static [u8]) {
        let text = SharedText { key: b"key".to_vec(), labels: Vec::new() };
        let stamp = cache.stamp().unwrap();
        cache.write(text, b"meta".to_vec(), Bytes::from_static(content), stamp, Duration::from_secs(60));
    }

    fn written(jobs: &mut mpsc::Receiver<SharedJob>) -> Option<Vec<u8>> {
        match jobs.try_recv().ok()? {
            SharedJob::Write(job) => job.value().ok(),
            _ => None,
        }
    }

    /// Reads a value that the store has; calls `meanwhile` before it responds.
    async fn read(
        (cache, jobs): (&Arc<SharedCache>, &mut mpsc::Receiver<SharedJob>),
        value: &[u8],
        meanwhile: impl FnOnce(),
    ) -> Option<SharedEntry> {
        let serve = async {
            let Some(SharedJob::Read(job)) = jobs.recv().await else { panic!("a read") };
            meanwhile();
            job.finish(cache, Some(value));
        };
        tokio::join!(cache.read(b"key".to_vec(), test("url")), serve).0
    }

    #[tokio::test]
    async fn what_was_written_is_read_until_it_is_purged() {
        let (cache, mut jobs) = cache();
        write(&cache, b"content");
        let value = written(&mut jobs).unwrap();
        let entry = read((&cache, &mut jobs), &value, || {}).await.unwrap();
        assert_eq!((&*entry.meta, &*entry.content), (&b"meta"[..], &b"content"[..]));
        assert!(cache.is_current(b"key", &entry, &test("url")));
        // Purges for others.
        cache.on_given(CachePurge::Url("other".to_owned()));
        assert!(cache.is_current(b"key", &entry, &test("url")));
        // Between the thread and the worker.
        cache.on_heard(6, CachePurge::Url("url".to_owned()));
        assert!(!cache.is_current(b"key", &entry, &test("url")));
        assert!(read((&cache, &mut jobs), &value, || {}).await.is_none());
        let usage = cache.usage().unwrap();
        assert_eq!((usage.hits, usage.purged, usage.damaged), (2, 2, 0));
    }

    #[tokio::test]
    async fn a_purge_while_the_store_is_read() {
        let (cache, mut jobs) = cache();
        write(&cache, b"content");
        let value = written(&mut jobs).unwrap();
        let purge = || cache.on_given(CachePurge::Url("url".to_owned()));
        assert!(read((&cache, &mut jobs), &value, purge).await.is_none());
    }

    #[tokio::test]
    async fn values_that_are_not_whole() {
        let (cache, mut jobs) = cache();
        assert!(read((&cache, &mut jobs), b"", || {}).await.is_none());
        assert!(read((&cache, &mut jobs), &[0xff; 500], || {}).await.is_none());
        assert_eq!(cache.usage().unwrap().damaged, 2);
        assert!(cache.is_usable(), "a wrong value says nothing about the store");
    }

    #[tokio::test]
    async fn a_store_that_hangs_is_not_waited_for() {
        let (cache, mut jobs) = cache();
        for _ in 0..FAILURES_MAX {
            assert!(cache.read(b"key".to_vec(), test("url")).await.is_none());
            assert!(matches!(jobs.try_recv(), Ok(SharedJob::Read(job)) if job.is_abandoned()));
        }
        assert!(cache.is_away() && !cache.is_usable());
        assert!(cache.read(b"key".to_vec(), test("url")).await.is_none());
        write(&cache, b"content");
        assert!(jobs.try_recv().is_err(), "no job while the store is away");
        cache.on_result(true);
        assert!(cache.is_usable());
        assert_eq!(cache.usage().unwrap().timeouts, u64::from(FAILURES_MAX));
    }

    #[test]
    fn an_instance_that_may_have_missed_purges_does_not_read() {
        let (cache, _jobs) = cache();
        assert!(cache.is_usable());
        cache.set_position(None, Some(0), true, false);
        assert!(!cache.is_usable());
        cache.set_position(Some(("a", 6)), Some(0), true, false);
        assert!(!cache.is_usable(), "there may be further events");
        cache.set_position(Some(("a", 7)), Some(0), true, true);
        assert!(cache.is_usable());
        cache.set_position(Some(("a", 7)), None, true, true);
        assert!(!cache.is_usable() && cache.stamp().is_none(), "the time of the store is not known");
        cache.detach();
        assert!(!cache.is_usable() && cache.usage().is_none());
    }

    /// Requests of an instance without a store take no lock: another thread may hold it for ever.
    #[test]
    fn without_a_store_no_request_takes_the_lock() {
        let cache = Arc::new(SharedCache::default());
        let held = cache.inner();
        assert!(!cache.is_on() && !cache.is_usable() && cache.stamp().is_none() && cache.usage().is_none());
        cache.remove(b"key");
        cache.on_given(CachePurge::All);
        drop(held);
    }

    #[test]
    fn writes_are_bounded() {
        let (cache, mut jobs) = cache();
        write(&cache, &[0; 2_000]);
        assert!(jobs.try_recv().is_err(), "larger than a response may be");
        (0..JOBS_MAX + 5).for_each(|_| write(&cache, b"content"));
        assert_eq!(cache.usage().unwrap().unwritten, 5);
        while jobs.try_recv().is_ok() {}
        assert_eq!(cache.unwritten_bytes.load(Ordering::Relaxed), 0);
    }
}
