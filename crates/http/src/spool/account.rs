//! Memory and disk space that all spools of the process hold, and their limits.

use std::collections::HashMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Context as Task;

use super::spooled::Full;
use super::uploads::{FileUpload, Uploads};
use crate::log::{ServerLog, Trouble, event};
use crate::memory_budget::{Charge, Holder};

/// Advice in the log when buffer files cannot be written.
const HELP: &str =
    "free disk space in `buffer-directory` or set another one; until then slow clients keep upstreams busy";

/// Shards of the table of clients, each with its own lock.
const CLIENT_PARTS: usize = 16;

/// Fraction of free disk space that files may fill, as a divisor, unless an option sets a limit.
const FREE_PART: u64 = 2;

/// Fraction of `file_bytes_max`, as a divisor, that one client's responses in progress may fill, so that their
/// upstreams need not wait.
const BEGUN_PART: u64 = 2;

/// Limits of all spools together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpoolLimits {
    /// Directory of the files.
    pub directory: PathBuf,
    /// Bytes in memory.
    pub memory_bytes_max: u64,
    /// Bytes in files; `None` is half of what the file system has free at the start.
    pub file_bytes_max: Option<u64>,
    /// Bytes in files of one client; `None` is a quarter of `file_bytes_max`.
    pub file_bytes_per_client_max: Option<u64>,
}

/// Counts what all spools of the process hold. Outlives configurations.
#[derive(Debug)]
pub struct SpoolStore {
    directory: Mutex<Arc<Path>>,
    memory_bytes_max: AtomicU64,
    file_bytes_max: AtomicU64,
    file_bytes_per_client_max: AtomicU64,
    memory_bytes: AtomicU64,
    file_bytes: AtomicU64,
    /// Bytes in files of each client that has some.
    clients: [Mutex<HashMap<u64, u64>>; CLIENT_PARTS],
    uploads: Uploads,
    trouble: Trouble,
}

/// Memory and disk space that one spool holds. Dropping it releases all of it.
#[derive(Debug)]
pub(super) struct SpoolAccount {
    store: Arc<SpoolStore>,
    /// Number of the client; `None` where an address stands for many clients.
    client: Option<u64>,
    is_response: bool,
    memory_bytes: u64,
    /// Part in memory, charged to the client's connection.
    charge: Charge,
    file_bytes: u64,
    /// Entry among the uploads in files, while the client still sends and the file is not empty.
    upload: Option<Arc<FileUpload>>,
    is_upload: bool,
}

impl SpoolStore {
    /// A store without limits, which spools nothing to files before [`Self::apply`].
    pub fn new(log: ServerLog) -> Arc<Self> {
        Arc::new(Self {
            directory: Mutex::new(Path::new("/nonexistent").into()),
            memory_bytes_max: AtomicU64::new(0),
            file_bytes_max: AtomicU64::new(0),
            file_bytes_per_client_max: AtomicU64::new(0),
            memory_bytes: AtomicU64::new(0),
            file_bytes: AtomicU64::new(0),
            clients: Default::default(),
            uploads: Uploads::default(),
            trouble: Trouble::new(log, HELP),
        })
    }

    /// Applies the limits of a configuration. Spools keep what they already hold.
    pub fn apply(&self, limits: &SpoolLimits) {
        let free_bytes = || free_bytes(&limits.directory).saturating_add(self.file_bytes());
        let file_bytes_max = limits.file_bytes_max.unwrap_or_else(|| free_bytes() / FREE_PART);
        let per_client_max = limits.file_bytes_per_client_max.unwrap_or(file_bytes_max / 4);
        *self.directory.lock().unwrap_or_else(PoisonError::into_inner) = limits.directory.as_path().into();
        self.memory_bytes_max.store(limits.memory_bytes_max, Ordering::Relaxed);
        self.file_bytes_max.store(file_bytes_max, Ordering::Relaxed);
        self.file_bytes_per_client_max.store(per_client_max, Ordering::Relaxed);
    }

    /// Bytes that spools hold in memory.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes.load(Ordering::Relaxed)
    }

    /// Bytes that spools hold in files.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes.load(Ordering::Relaxed)
    }

    /// Bytes that spools may hold in memory, and in files.
    pub fn limits(&self) -> (u64, u64) {
        (self.memory_bytes_max.load(Ordering::Relaxed), self.file_bytes_max.load(Ordering::Relaxed))
    }

    /// True if the client's files have reached their limit. Its next response would make an upstream wait.
    pub fn is_client_full(&self, client: u64) -> bool {
        let max = self.file_bytes_per_client_max.load(Ordering::Relaxed).max(1);
        // In most cases all clients together hold less.
        self.file_bytes() >= max && self.file_bytes_of_client(client) >= max
    }

    fn file_bytes_of_client(&self, client: u64) -> u64 {
        let clients = self.part(client).lock().unwrap_or_else(PoisonError::into_inner);
        clients.get(&client).copied().unwrap_or(0)
    }

    pub(super) fn directory(&self) -> Arc<Path> {
        Arc::clone(&self.directory.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Logs that buffer files cannot be written.
    pub(super) fn tell(&self, error: impl Display) {
        let directory = self.directory();
        self.trouble.tell(event("buffering to disk failed", &[("directory", &directory.display()), ("error", &error)]));
    }

    fn part(&self, client: u64) -> &Mutex<HashMap<u64, u64>> {
        // The low bits of addresses differ most.
        &self.clients[(client ^ client >> 8) as usize % CLIENT_PARTS]
    }

    /// Counts bytes as the client's, unless that would exceed the client's limit.
    fn take_of_client(&self, client: u64, bytes: u64, is_response: bool) -> bool {
        let mut clients = self.part(client).lock().unwrap_or_else(PoisonError::into_inner);
        let held = clients.get(&client).copied().unwrap_or(0);
        let share = self.file_bytes_per_client_max.load(Ordering::Relaxed);
        let max = match is_response {
            true => share.max(self.file_bytes_max.load(Ordering::Relaxed) / BEGUN_PART),
            false => share,
        };
        let is_allowed = held + bytes <= max;
        if is_allowed {
            clients.insert(client, held + bytes);
        }
        is_allowed
    }

    /// Closes an upload that stands still, if files are full and a client needs space. `file_bytes` is the size of the
    /// file that must grow.
    fn make_room(&self, client: Option<u64>, file_bytes: u64) {
        let held_by = |client: Option<u64>, file_bytes| match client {
            Some(client) => self.file_bytes_of_client(client),
            None => file_bytes,
        };
        self.uploads.close_one(self.uploads.now_ms(), held_by(client, file_bytes), held_by);
    }

    fn give_of_client(&self, client: u64, bytes: u64) {
        let mut clients = self.part(client).lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = clients.get_mut(&client) {
            *held = held.saturating_sub(bytes);
            if *held == 0 {
                clients.remove(&client);
            }
        }
    }
}

impl SpoolAccount {
    pub(super) fn new(store: &Arc<SpoolStore>, client: Option<u64>, holder: &Rc<Holder>, is_response: bool) -> Self {
        Self {
            store: Arc::clone(store),
            client,
            is_response,
            memory_bytes: 0,
            charge: holder.charge(0),
            file_bytes: 0,
            upload: None,
            is_upload: !is_response,
        }
    }

    pub(super) fn store(&self) -> &Arc<SpoolStore> {
        &self.store
    }

    /// True if all spools together have reached their limit of memory.
    pub(super) fn is_memory_full(&self) -> bool {
        self.store.memory_bytes() >= self.store.memory_bytes_max.load(Ordering::Relaxed)
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// Updates the count of bytes that the spool holds in memory.
    pub(super) fn set_memory(&mut self, bytes: u64) {
        let held = &self.store.memory_bytes;
        if bytes >= self.memory_bytes {
            held.fetch_add(bytes - self.memory_bytes, Ordering::Relaxed);
        } else {
            held.fetch_sub(self.memory_bytes - bytes, Ordering::Relaxed);
        }
        self.memory_bytes = bytes;
        self.charge.set(bytes as usize);
    }

    /// Lets the spool's file grow to this size, if the limits of client and process permit it.
    pub(super) fn grow_file(&mut self, bytes: u64) -> Result<(), Full> {
        let more = bytes.saturating_sub(self.file_bytes);
        if more == 0 {
            return Ok(());
        }
        let store = &self.store;
        if store.file_bytes.fetch_add(more, Ordering::Relaxed) + more > store.file_bytes_max.load(Ordering::Relaxed) {
            store.file_bytes.fetch_sub(more, Ordering::Relaxed);
            self.on_full();
            store.make_room(self.client, self.file_bytes);
            return Err(Full::Process);
        }
        if self.client.is_some_and(|client| !store.take_of_client(client, more, self.is_response)) {
            store.file_bytes.fetch_sub(more, Ordering::Relaxed);
            self.on_full();
            return Err(Full::Client);
        }
        self.file_bytes = bytes;
        if self.is_upload {
            let upload = self.upload.get_or_insert_with(|| store.uploads.add(self.client));
            upload.on_grown(bytes, store.uploads.now_ms());
        }
        Ok(())
    }

    /// Records that the client has sent more than there is space for, so that it does not count as silent.
    fn on_full(&self) {
        if let Some(upload) = &self.upload {
            upload.on_full(self.store.uploads.now_ms());
        }
    }

    /// True if the upload was closed for space. Otherwise wakes the task when it is.
    pub(super) fn is_closed(&self, task: &Task<'_>) -> bool {
        self.upload.as_ref().is_some_and(|upload| upload.is_closed(task))
    }

    /// Records that nothing is received any more, so that the spool is not closed for space.
    pub(super) fn end_upload(&mut self) {
        self.is_upload = false;
        if let Some(upload) = self.upload.take() {
            self.store.uploads.remove(&upload);
        }
    }
}

impl Drop for SpoolAccount {
    fn drop(&mut self) {
        self.end_upload();
        self.set_memory(0);
        self.store.file_bytes.fetch_sub(self.file_bytes, Ordering::Relaxed);
        if let Some(client) = self.client.filter(|_| self.file_bytes > 0) {
            self.store.give_of_client(client, self.file_bytes);
        }
    }
}

/// Bytes that the file system of a directory has free for this user.
fn free_bytes(directory: &Path) -> u64 {
    rustix::fs::statvfs(directory).map_or(0, |found| found.f_bavail.saturating_mul(found.f_frsize))
}
