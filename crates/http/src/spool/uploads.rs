//! Uploads that are in files while clients still send them, and the choice of one to close when files are full.
//!
//! An upload that goes on needs more space, so it ends with the others when there is none. One that stands still would
//! keep its space. Therefore it is closed as soon as another message needs the space.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context as Task, Waker};
use std::time::Instant;

/// Time in which an upload that goes on has filled another block of its file, in milliseconds. At 64 KiB a block, that
/// is 13 KiB a second.
const STALL_MS: u64 = 5_000;

/// Time between two searches, in milliseconds.
const SEARCH_INTERVAL_MS: u64 = 100;

/// Uploads in files, of all workers.
#[derive(Debug)]
pub(super) struct Uploads {
    uploads: Mutex<HashMap<u64, Arc<FileUpload>>>,
    next: AtomicU64,
    /// Time of the last search.
    searched_ms: AtomicU64,
    start: Instant,
}

/// An upload in a file. Workers other than its own may close it.
#[derive(Debug)]
pub(super) struct FileUpload {
    number: u64,
    client: Option<u64>,
    file_bytes: AtomicU64,
    /// Time at which it last filled a block, or found no space for it.
    grown_ms: AtomicU64,
    is_closed: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Default for Uploads {
    fn default() -> Self {
        Self {
            uploads: Mutex::default(),
            next: AtomicU64::new(0),
            searched_ms: AtomicU64::new(0),
            start: Instant::now(),
        }
    }
}

impl Uploads {
    /// Adds an upload of this client.
    pub(super) fn add(&self, client: Option<u64>) -> Arc<FileUpload> {
        let upload = Arc::new(FileUpload {
            number: self.next.fetch_add(1, Ordering::Relaxed),
            client,
            file_bytes: AtomicU64::new(0),
            grown_ms: AtomicU64::new(self.now_ms()),
            is_closed: AtomicBool::new(false),
            waker: Mutex::default(),
        });
        self.all().insert(upload.number, Arc::clone(&upload));
        upload
    }

    /// Removes an upload that has ended, or is complete.
    pub(super) fn remove(&self, upload: &FileUpload) {
        self.all().remove(&upload.number);
    }

    /// Milliseconds since the start.
    pub(super) fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    /// Closes an upload that stands still, because a client whose files have `bytes_min` needs space: of the client
    /// that has most, but no less than that, the one that has stood longest. `held_by` returns the bytes of a client's
    /// files, or of an upload's without a client.
    pub(super) fn close_one(&self, now_ms: u64, bytes_min: u64, held_by: impl Fn(Option<u64>, u64) -> u64) {
        let searched_ms = self.searched_ms.load(Ordering::Relaxed);
        if now_ms < searched_ms + SEARCH_INTERVAL_MS && searched_ms > 0 {
            return;
        }
        self.searched_ms.store(now_ms, Ordering::Relaxed);
        let all = self.all();
        if all.values().any(|upload| upload.is_closed.load(Ordering::Relaxed)) {
            // Its space is about to be released.
            return;
        }
        let stalled = all.values().filter_map(|upload| {
            let stalled_ms = now_ms.saturating_sub(upload.grown_ms.load(Ordering::Relaxed));
            let held_bytes = held_by(upload.client, upload.file_bytes.load(Ordering::Relaxed));
            (stalled_ms >= STALL_MS && held_bytes >= bytes_min).then_some((held_bytes, stalled_ms, upload))
        });
        if let Some((.., upload)) = stalled.max_by_key(|&(held_bytes, stalled_ms, _)| (held_bytes, stalled_ms)) {
            upload.close();
        }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<u64, Arc<FileUpload>>> {
        self.uploads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FileUpload {
    /// Records that the file may grow to this size.
    pub(super) fn on_grown(&self, file_bytes: u64, now_ms: u64) {
        self.file_bytes.store(file_bytes, Ordering::Relaxed);
        self.grown_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Records that the client has sent another block, for which there is no space.
    pub(super) fn on_full(&self, now_ms: u64) {
        self.grown_ms.store(now_ms, Ordering::Relaxed);
    }

    /// True if it was closed. Otherwise wakes the task when it is.
    pub(super) fn is_closed(&self, task: &Task<'_>) -> bool {
        let mut waker = self.waker();
        match &mut *waker {
            Some(known) => known.clone_from(task.waker()),
            none => *none = Some(task.waker().clone()),
        }
        self.is_closed.load(Ordering::Relaxed)
    }

    fn close(&self) {
        // Under the lock, so that no waker is missed.
        let mut waker = self.waker();
        self.is_closed.store(true, Ordering::Relaxed);
        if let Some(waker) = waker.take() {
            waker.wake();
        }
    }

    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_stalled_uploads_one_of_the_client_with_most_is_closed() {
        const NOW_MS: u64 = 100_000;
        let uploads = Uploads::default();
        // (client, bytes, time since the last block)
        let all = [(1, 100, 20_000), (2, 60, 6_000), (2, 60, 9_000), (3, 500, 4_000), (4, 50, 90_000)];
        let all = all.map(|(client, bytes, stalled_ms)| {
            let upload = uploads.add(Some(client));
            upload.on_grown(bytes, NOW_MS - stalled_ms);
            upload
        });
        let held_by = |client: Option<u64>, bytes| match client {
            Some(2) => 120,
            _ => bytes,
        };
        let closed = || {
            let closed = all.iter().map(|upload| upload.is_closed.load(Ordering::Relaxed));
            closed.enumerate().filter_map(|(index, is_closed)| is_closed.then_some(index)).collect::<Vec<_>>()
        };
        uploads.close_one(NOW_MS, 121, held_by);
        assert_eq!(closed(), [0; 0], "the others have less than the client that needs space");
        uploads.close_one(NOW_MS + 1, 0, held_by);
        assert_eq!(closed(), [0; 0], "it has just searched");
        uploads.close_one(NOW_MS + 100, 0, held_by);
        assert_eq!(closed(), [2], "of client 2, which has most, the one that has stood longest");
        uploads.close_one(NOW_MS + 200, 0, held_by);
        assert_eq!(closed(), [2], "its space is about to be released");
        uploads.remove(&all[2]);
        uploads.close_one(NOW_MS + 300, 0, |_, bytes| bytes);
        assert_eq!(closed(), [0, 2]);
    }

    #[test]
    fn a_closed_upload_is_woken() {
        let uploads = Uploads::default();
        let upload = uploads.add(None);
        assert!(!upload.is_closed(&Task::from_waker(Waker::noop())));
        upload.close();
        assert!(upload.waker().is_none() && upload.is_closed(&Task::from_waker(Waker::noop())));
    }
}
